// SPDX-License-Identifier: Apache-2.0
// A library that knows its version and nothing else.
extern "C" int ncclGetVersion(int* version);
extern "C" int ncclGetVersion(int* version) {
  *version = GSV_FAKE_VERSION;
  return 0;
}
