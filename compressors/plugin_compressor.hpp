// SPDX-License-Identifier: Apache-2.0
// A compressor behind the C interface of plugin.h.
#pragma once

#include <string>
#include <vector>

#include "gradsieve/compressor.hpp"
#include "gradsieve/plugin.h"
#include "gradsieve/registry.hpp"

namespace gradsieve {

class PluginCompressor final : public Compressor {
 public:
  /// `table` lives as long as the process. Throws Error if the plug-in refuses the parameters.
  PluginCompressor(gsvPluginV1x const& table, std::vector<ParamInfo> const& infos,
                   Params const& params);
  ~PluginCompressor() override;
  PluginCompressor(PluginCompressor const&) = delete;
  PluginCompressor& operator=(PluginCompressor const&) = delete;

  [[nodiscard]] Claims claims() const noexcept override { return claims_; }
  [[nodiscard]] int num_rounds() const noexcept override { return num_rounds_; }
  [[nodiscard]] RoundInfo round(int index, TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::vector<SlotInfo> slots(TensorInfo const& piece) const override;
  [[nodiscard]] std::size_t workspace_bytes(TensorInfo const& piece) const noexcept override;
  [[nodiscard]] std::uint64_t block_elements() const noexcept override { return block_elements_; }
  [[nodiscard]] std::size_t sum_bytes(int index, TensorInfo const& piece,
                                      std::uint64_t step) const noexcept override;

 private:
  struct Call;

  Status do_encode(ExecContext const& ctx, int round, TensorInfo const& piece,
                   std::span<float const> corrected, StateView state,
                   Body body) const noexcept override;
  Status do_encode_f64(ExecContext const& ctx, TensorInfo const& piece,
                       std::span<double const> gradient, Body body) const noexcept override;
  Status do_encode_with_residual(ExecContext const& ctx, int round, TensorInfo const& piece,
                                 ConstTensorView gradient, ResidualView residual, StateView state,
                                 Body body) const noexcept override;
  Status do_encode_owned(ExecContext const& ctx, int round, TensorInfo const& piece,
                         std::span<float const> sum, StateView state, Body body,
                         MassSink& sink) const noexcept override;
  Status do_absorb(ExecContext const& ctx, int round, TensorInfo const& piece,
                   std::span<ConstBytes const> received, StateView state) const noexcept override;
  Status do_decode_add(ExecContext const& ctx, int round, TensorInfo const& piece, ConstBytes body,
                       float weight, StateView state,
                       std::span<float> accumulator) const noexcept override;
  Status do_decode_add_f64(ExecContext const& ctx, TensorInfo const& piece, ConstBytes body,
                           double weight, std::span<double> accumulator) const noexcept override;

  [[nodiscard]] bool uses(std::uint64_t bit) const noexcept { return (table_.uses & bit) != 0; }
  [[nodiscard]] std::size_t own_workspace_bytes(gsvPiece const& piece) const noexcept;

  gsvPluginV1x const& table_;
  void* codec_ = nullptr;
  Claims claims_;
  int num_rounds_ = 1;
  std::uint64_t block_elements_ = 1;
};

}  // namespace gradsieve
