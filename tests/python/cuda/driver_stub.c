// SPDX-License-Identifier: Apache-2.0
// The one function of the CUDA driver that torch asks for on its way to tensors and streams: the
// emulator replaces the runtime alone, where devices are always ready.
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active);

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return 0;
}
