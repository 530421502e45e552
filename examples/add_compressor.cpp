// SPDX-License-Identifier: Apache-2.0
// A new compressor in one file, used through the hook like a built-in one.
#include <bit>
#include <cmath>
#include <cstdio>
#include <vector>

#include "gradsieve/gradsieve.hpp"

// [tag: compressor]
namespace gradsieve {

/// Rounds each element to the nearest power of two (in the logarithm): sign and exponent, one byte.
///
/// Paper:    Horváth et al., Natural compression, MSML 2022, arXiv:1905.10988. Deviation: nearest
///           instead of stochastic rounding, and exponents outside [-63, 63] become 0 or 2^63.
/// Payload:  n bytes: bit 7 is the sign, bits 0-6 are 0 for zero, else exponent + 64
class PowerOfTwo final : public Compressor {
 public:
  explicit PowerOfTwo(Params const&) {}

  Claims claims() const noexcept override { return {.fixed_rate = true, .elementwise = true}; }
  RoundInfo round(int, TensorInfo const& piece) const noexcept override {
    return {.exchange = ExchangeKind::shard_sum, .capacity_bytes = piece.num_elements};
  }

 private:
  Status do_encode(ExecContext const&, int, TensorInfo const&, std::span<float const> corrected,
                   StateView, Body body) const noexcept override {
    Bytes const out = body.resize(corrected.size());
    for (std::size_t i = 0; i < corrected.size(); ++i) {
      float const x = corrected[i];
      int const exponent = x == 0.0F ? -64 : static_cast<int>(std::lround(std::log2(std::fabs(x))));
      int const code = exponent < -63 ? 0 : std::min(exponent, 63) + 64;
      out[i] = static_cast<std::byte>(code | (std::signbit(x) ? 0x80 : 0));
    }
    return {};
  }

  Status do_decode_add(ExecContext const&, int, TensorInfo const&, ConstBytes body, float weight,
                       StateView, std::span<float> accumulator) const noexcept override {
    if (body.size() != accumulator.size()) return {Code::corrupt_payload, "not n bytes"};
    for (std::size_t i = 0; i < body.size(); ++i) {
      int const code = std::to_integer<int>(body[i]);
      float const size = (code & 0x7f) == 0 ? 0.0F : std::ldexp(1.0F, (code & 0x7f) - 64);
      accumulator[i] += weight * ((code & 0x80) != 0 ? -size : size);
    }
    return {};
  }
};

}  // namespace gradsieve

GRADSIEVE_REGISTER_COMPRESSOR(power_of_two, gradsieve::PowerOfTwo,
                              PluginInfo{.name = "power_of_two",
                                         .kind = PluginKind::compressor,
                                         .payload_id = 160,
                                         .summary = "nearest power of two, one byte per element",
                                         .paper = "Horváth et al., MSML 2022, arXiv:1905.10988"});
// [end: compressor]

int main() {
  using namespace gradsieve;
  Registry registry = builtin_registry();
  register_power_of_two(registry);

  LocalGroup group(1);
  Hook hook(group.transport(0),
            {.rules = {{"*", "power_of_two ; feedback=residual"}}, .registry = &registry});
  TensorDesc const tensors[] = {{.name = "w", .num_elements = 4}};
  BucketDesc const buckets[] = {{{"w"}}};
  hook.plan(tensors, buckets);

  float sum = 0.0F;
  for (std::uint64_t step = 0; step < 100; ++step) {
    std::vector<float> gradient{0.3F, -3.0F, 0.0F, 1.0F};
    Event event;
    if (!hook.begin(step).ok() || !hook.reduce(0, TensorView(std::span(gradient)), event).ok())
      return 1;
    if (!hook.finish().committed) return 1;
    sum += gradient[0];
  }
  std::printf("100 gradients of 0.3: %.4f arrived, %.4f waits\n", sum, hook.residual("w")[0]);
  return std::fabs(sum + hook.residual("w")[0] - 30.0F) < 1e-3F ? 0 : 1;
}
