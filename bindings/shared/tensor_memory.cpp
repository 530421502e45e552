// SPDX-License-Identifier: Apache-2.0
#include "bindings/shared/tensor_memory.hpp"

namespace gradsieve::bindings {

TensorMemory memory_of(Chain const& chain, TensorInfo const& tensor) {
  Compressor const& compressor = *chain.compressor;
  TensorMemory memory;
  for (int i = 0; i < compressor.num_rounds(); ++i) {
    RoundInfo const round = compressor.round(i, tensor);
    // A sum travels without a header.
    memory.payloads +=
        round.capacity_bytes + (round.exchange == ExchangeKind::sum ? 0 : wire::kHeaderBytes);
  }
  if (chain.feedback.enabled) memory.residual = tensor.num_elements * size_of(chain.feedback.dtype);
  for (SlotInfo const& slot : compressor.slots(tensor)) memory.slots += 2 * slot.num_bytes;
  memory.workspace = compressor.workspace_bytes(tensor);
  // Fused kernels write the rest in f32: into the residual if that is f32, else into scratch
  // memory.
  bool const needs_scratch = !chain.feedback.enabled || chain.feedback.dtype != DType::f32;
  if (needs_scratch) memory.workspace += tensor.num_elements * sizeof(float);
  return memory;
}

}  // namespace gradsieve::bindings
