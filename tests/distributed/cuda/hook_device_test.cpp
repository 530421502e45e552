// SPDX-License-Identifier: Apache-2.0
// What a hook on a device promises beside the bits: a bad payload is an error, nothing is allocated
// in a step, state goes between devices and hosts, streams are respected.
#include <atomic>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/distributed/cuda/hook_cuda_checks.hpp"
#include "tests/distributed/faulty_transport.hpp"
#include "tests/support/failed_plans.hpp"
#include "tests/support/rank_runner.hpp"

namespace gradsieve::testing {
namespace {

bool is_letter(std::vector<std::byte> const& bytes) {
  std::uint32_t magic = 0;
  if (bytes.size() >= sizeof(PayloadHeader)) std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic == PayloadHeader::kMagic;
}

/// Steps of two ranks; in every second one rank 0's payloads are changed on their way. `judge` is
/// told what rank 1 then got.
void with_faults(
    std::string const& spec, std::uint64_t num_steps,
    std::function<void(std::uint64_t step, std::vector<std::byte>&)> const& fault,
    std::function<void(std::uint64_t step, StepResult const&, Failure const&)> const& judge) {
  test::run_ranks(2, [&](Transport& inner) {
    std::atomic<std::uint64_t> now = 0;
    test::FaultyTransport transport(inner, [&](int, std::uint64_t, std::vector<std::byte>& bytes) {
      if (inner.rank() == 0 && now % 2 == 1 && is_letter(bytes)) fault(now, bytes);
    });
    CudaHookRank rank(transport, options_for(spec), one_bucket_each({700}));
    for (std::uint64_t step = 0; step < num_steps; ++step) {
      now = step;
      StepResult const result = rank.attempt(step, heavy_tailed_of).result;
      if (step % 2 == 0) {
        if (!result.committed) fail(rank.hook(), "a step without a fault", result.status);
      } else if (inner.rank() == 1) {
        judge(step, result, rank.hook().failure());
      }
    }
  });
}

TEST(HookDevice, AWrongHeaderFailsTheStepAndNamesTheRank) {
  struct Field {
    std::size_t offset;
    Code code;
    char const* name;
  };
  std::vector<Field> const fields = {
      {4, Code::corrupt_payload, "header"}, {5, Code::corrupt_payload, "header"},
      {7, Code::corrupt_payload, "header"}, {8, Code::peer_failed, "status"},
      {12, Code::corrupt_payload, "rank"},  {16, Code::mismatch, "step"},
      {24, Code::mismatch, "plan_hash"},    {32, Code::mismatch, "num_elements"},
      {40, Code::mismatch, "num_elements"}, {48, Code::corrupt_payload, "header"},
      {56, Code::mismatch, "round"},        {58, Code::mismatch, "num_elements"},
      {60, Code::mismatch, "round"}};
  auto const field_of = [&](std::uint64_t step) -> Field const& { return fields[step / 2]; };
  for (std::string const spec :
       {"topk(density=0.05) | int8 ; feedback=residual", "int8 ; feedback=residual"}) {
    with_faults(
        spec, 2 * fields.size(),
        [&](std::uint64_t step, std::vector<std::byte>& bytes) {
          bytes[field_of(step).offset] ^= std::byte{0x40};
        },
        [&](std::uint64_t step, StepResult const& result, Failure const& failure) {
          Field const& field = field_of(step);
          EXPECT_FALSE(result.committed) << field.name;
          EXPECT_EQ(result.status.code(), field.code) << field.name << ' ' << field.offset;
          EXPECT_EQ(failure.rank, 0) << field.name;
          EXPECT_EQ(failure.field, field.name) << field.offset;
          EXPECT_EQ(failure.tensor, "t0");
        });
  }
}

// Whatever a peer sends, nothing is read or stored out of bounds (the emulator looks), and the step
// either counts or is rolled back with the code that says why.
TEST(HookDevice, AnyBodyIsDecodedOrRefused) {
  std::uint64_t const num_steps = is_quick_subset() ? 10 : 60;
  std::uint64_t num_refused = 0;
  for (std::string const spec :
       {"topk(density=0.05) | int8 ; feedback=residual",
        "topk(density=0.2) | index(bitmap) ; feedback=residual",
        "blocktopk(density=0.1, block=32) | sign ; feedback=residual",
        "threshold(value=2, max_density=0.05) | bf16 ; feedback=residual",
        "int4(block=64) ; feedback=residual", "sign ; feedback=residual ; exchange=gather"}) {
    with_faults(
        spec, num_steps,
        [](std::uint64_t step, std::vector<std::byte>& bytes) {
          std::uint64_t random = mix64(step);
          std::size_t const body = sizeof(PayloadHeader);
          for (int i = 0; i < 3; ++i, random = mix64(random)) {
            std::size_t const at = body + random % (bytes.size() - body);
            bytes[at] = static_cast<std::byte>(random >> 32);
          }
        },
        [&](std::uint64_t, StepResult const& result, Failure const&) {
          if (result.committed) return;
          ++num_refused;
          EXPECT_TRUE(result.status.code() == Code::corrupt_payload ||
                      result.status.code() == Code::peer_failed || result.found_nonfinite)
              << spec << ": " << result.status.message();
        });
  }
  EXPECT_GT(num_refused, num_steps / 10);
}

/// Counts what is asked of another resource.
class CountingMemory final : public MemoryResource {
 public:
  explicit CountingMemory(MemoryResource& inner) : inner_(inner) {}
  void* allocate(std::size_t num_bytes, Stream stream) override {
    ++num_calls_;
    return inner_.allocate(num_bytes, stream);
  }
  void deallocate(void* pointer, std::size_t num_bytes, Stream stream) noexcept override {
    ++num_calls_;
    inner_.deallocate(pointer, num_bytes, stream);
  }
  [[nodiscard]] Device device() const noexcept override { return inner_.device(); }
  [[nodiscard]] int num_calls() const noexcept { return num_calls_; }

 private:
  MemoryResource& inner_;
  std::atomic<int> num_calls_ = 0;
};

TEST(HookDevice, StatisticsAreThoseOfTheCpu) {
  LocalGroup host(2);
  test::run_ranks(2, [&](Transport& transport) {
    for (std::string const spec :
         {"topk(density=0.05) | int8 ; feedback=residual", "topk(density=0.05)", "int8"}) {
      Layout const layout = one_bucket_each({700, 40});
      HookRank cpu(host.transport(transport.rank()), options_for(spec), layout);
      CudaHookRank cuda(transport, options_for(spec), layout);
      for (std::uint64_t step = 0; step < 3; ++step) {
        cpu.step(step);
        EXPECT_TRUE(cuda.attempt(step, heavy_tailed_of).result.committed);
      }
      auto const expected = cpu.hook().tensor_stats();
      auto const actual = cuda.hook().tensor_stats();
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t t = 0; t < expected.size(); ++t) {
        EXPECT_EQ(actual[t].spec, expected[t].spec);
        EXPECT_EQ(actual[t].exchange, expected[t].exchange);
        EXPECT_EQ(actual[t].kept_elements, expected[t].kept_elements) << spec;
        EXPECT_EQ(actual[t].residual_norm, expected[t].residual_norm) << spec;
        EXPECT_EQ(actual[t].dropped_norm, expected[t].dropped_norm) << spec;
        // By capacity: multiples of 16; and in a two-shot every letter is as long as that of the
        // longest shard, here 444 of 700 elements.
        std::uint64_t const slack = spec == "int8" ? expected[t].wire_bytes / 2 : 64;
        EXPECT_GE(actual[t].wire_bytes, expected[t].wire_bytes) << spec;
        EXPECT_LE(actual[t].wire_bytes, expected[t].wire_bytes + slack) << spec;
      }
      std::ostringstream text;
      cuda.hook().describe(text);
      EXPECT_NE(text.str().find(layout.tensors[1].name), std::string::npos);
    }
  });
}

TEST(HookDevice, MetricsOfAStepAreWritten) {
  std::string const path = ::testing::TempDir() + "hook_device_metrics.%r.jsonl";
  ASSERT_EQ(setenv("GRADSIEVE_METRICS", path.c_str(), 1), 0);
  LocalGroup host(1);
  {
    CudaHookRank cuda(host.transport(0), options_for("topk(density=0.05) ; feedback=residual"),
                      one_bucket_each({700}));
    EXPECT_TRUE(cuda.attempt(0, heavy_tailed_of).result.committed);
  }
  ASSERT_EQ(unsetenv("GRADSIEVE_METRICS"), 0);
  std::string line;
  std::getline(std::ifstream(::testing::TempDir() + "hook_device_metrics.0.jsonl"), line);
  EXPECT_NE(line.find("\"kept_elements\":35"), std::string::npos) << line;
  EXPECT_NE(line.find("\"residual_norm\":"), std::string::npos) << line;
}

TEST(HookDevice, AStepTakesNoMemory) {
  test::run_ranks(2, [](Transport& transport) {
    CountingMemory memory(device_memory());
    HookOptions options = options_for("topk(density=0.05) | int8 ; feedback=residual");
    options.memory = &memory;
    {
      CudaHookRank rank(transport, options, one_bucket_each({700, 33}));
      EXPECT_GT(memory.num_calls(), 0);
      int const before = memory.num_calls();
      for (std::uint64_t step = 0; step < 10; ++step)
        EXPECT_TRUE(rank.attempt(step, heavy_tailed_of).result.committed);
      EXPECT_EQ(memory.num_calls(), before);
    }
  });
  HookOptions options = options_for("none");
  options.memory = &host_memory();
  LocalGroup group(1);
  EXPECT_THROW(CudaHookRank(group.transport(0), options, one_bucket_each({7})), Error);
}

TEST(HookDevice, AllRanksKeepThePlanThatOneHasNoMemoryToLeave) {
  for (std::string const spec :
       {"int8 ; feedback=residual", "topk(density=0.05) | int8 ; feedback=residual"}) {
    SCOPED_TRACE(spec);
    LocalGroup twins(2);
    test::run_ranks(2, [&](Transport& transport) {
      Layout const before = one_bucket_each({700, 33, 5});
      FailingMemory memory(device_memory());
      HookOptions options = options_for(spec);
      HookRank twin(twins.transport(transport.rank()), options, before);
      options.memory = &memory;
      CudaHookRank rank(transport, options, before);
      check_failed_plans(rank, memory, twin, all_in_one(before), is_quick_subset() ? 3 : 1);
    });
    if (is_quick_subset()) break;
  }
}

// Residuals saved by a hook on the CPU are taken up by one on a device, and the other way round,
// across another bucket layout; the next steps are those of a hook that never stopped.
TEST(HookDevice, StateGoesFromHostToDeviceAndBack) {
  std::string const spec = "topk(density=0.05) | int8 ; feedback=residual";
  LocalGroup host(2);
  test::run_ranks(2, [&](Transport& transport) {
    Layout const layout = one_bucket_each({700, 33});
    HookRank cpu(host.transport(transport.rank()), options_for(spec), layout);
    for (std::uint64_t step = 0; step < 4; ++step) cpu.step(step);
    std::vector<std::byte> const saved = cpu.hook().save_state();

    CudaHookRank cuda(transport, options_for(spec), layout);
    ConstBytes const states[] = {saved};
    cuda.hook().load_state(states);
    for (std::uint64_t step = 4; step < 7; ++step) {
      cpu.step(step);
      EXPECT_TRUE(cuda.attempt(step, heavy_tailed_of).result.committed);
      EXPECT_EQ(bits_of(cuda.all_results()), bits_of(cpu.all_results()));
    }
    cuda.plan(all_in_one(layout));  // a bucket rebuild: the residuals stay
    for (TensorDesc const& tensor : layout.tensors) {
      EXPECT_EQ(bits_of(cuda.hook().residual(tensor.name)),
                bits_of(cpu.hook().residual(tensor.name)));
    }
    std::vector<std::byte> const back = cuda.hook().save_state();
    ConstBytes const returned[] = {back};
    cpu.hook().load_state(returned);
    for (TensorDesc const& tensor : layout.tensors) {
      EXPECT_EQ(bits_of(cuda.hook().residual(tensor.name)),
                bits_of(cpu.hook().residual(tensor.name)));
    }
  });
}

// With CUDASIM_STREAMS=lazy nothing runs before somebody waits for it, so a missing event shows.
TEST(HookDevice, StreamC69ResultsComeInTheOrderOfTheCallersStream) {
  test::run_ranks(2, [](Transport& transport) {
    HookOptions const options = options_for("none");
    CudaHookRank rank(transport, options, one_bucket_each({513, 5}));
    for (std::uint64_t step = 0; step < 20; ++step) {
      auto const counting = [](int r, std::uint64_t s, std::string const&, std::uint64_t n) {
        return std::vector<float>(n, static_cast<float>(4 * s) + static_cast<float>(2 * r));
      };
      EXPECT_TRUE(rank.attempt(step, counting).result.committed);
      std::vector<float> const expected(518, static_cast<float>(4 * step + 1));
      EXPECT_EQ(rank.all_results(), expected);
    }
  });
}

// Whole numbers under 127, which each block of eight has, too: coded with scale 1 they are exact,
// and so is the mean of two ranks, which are 2 apart. No two elements are alike.
float number_at(std::size_t i, int rank) {
  if (i % 8 == 0) return 127.0F;
  return static_cast<float>(static_cast<int>(i * 5 % 59) - 29 + 2 * rank);
}

TEST(HookDevice, StreamC70GradientsMayStartAnywhere) {
  static constexpr std::size_t kBuffer = 64;
  static constexpr float kUntouched = 99.0F;
  test::run_ranks(2, [](Transport& transport) {
    OwnCudaStream const stream;
    Stream const handle{stream.get()};
    for (DType const dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (std::uint64_t count = 1; count <= 33; count += is_quick_subset() ? 8 : 1) {
        HookOptions options = options_for("int8(block=8) ; feedback=residual");
        options.backend = Backend::cuda;
        options.stream = handle;
        Hook hook(transport, options);
        Layout const layout = one_bucket_each({count}, dtype);
        hook.plan(layout.tensors, layout.buckets);
        Buffer const host(kBuffer * size_of(dtype), pinned_memory());
        Buffer const device(kBuffer * size_of(dtype), device_memory(), handle);
        for (std::size_t offset = 0; offset * size_of(dtype) < 16; ++offset) {
          auto const is_ours = [&](std::size_t i) { return i >= offset && i < offset + count; };
          for (std::size_t i = 0; i < kBuffer; ++i) {
            float const own = is_ours(i) ? number_at(i - offset, transport.rank()) : kUntouched;
            store_element(host, dtype, i, own);
          }
          require(cudaMemcpyAsync(device.data(), host.data(), host.num_bytes(), cudaMemcpyDefault,
                                  stream.get()));
          ASSERT_TRUE(hook.begin(offset).ok());
          Event event;
          TensorView const view(device.data() + offset * size_of(dtype), count, dtype,
                                Device::cuda);
          ASSERT_TRUE(hook.reduce(0, view, event).ok());
          EXPECT_TRUE(hook.finish().committed);
          require(cudaMemcpyAsync(host.data(), device.data(), host.num_bytes(), cudaMemcpyDefault,
                                  stream.get()));
          require(cudaStreamSynchronize(stream.get()));
          for (std::size_t i = 0; i < kBuffer; ++i) {
            float const mean = (number_at(i - offset, 0) + number_at(i - offset, 1)) / 2;
            ASSERT_EQ(load_element(host, dtype, i), is_ours(i) ? mean : kUntouched)
                << dtype_name(dtype) << " element " << i << " of " << count << " from " << offset;
          }
        }
      }
    }
  });
}

// A trainer may have another device current, whatever it calls, and finds it so afterwards.
TEST(HookDevice, StreamC71EveryCallRunsOnTheDeviceOfItsStream) {
  int num_devices = 0;
  require(cudaGetDeviceCount(&num_devices));
  if (num_devices < 2) GTEST_SKIP() << "needs 2 devices";
  LocalGroup host(2);
  test::run_ranks(2, [&](Transport& transport) {
    std::string const spec = "topk(density=0.05) | int8 ; feedback=residual";
    Layout const layout = one_bucket_each({700, 40});
    HookRank cpu(host.transport(transport.rank()), options_for(spec), layout);
    require(cudaSetDevice(1));
    std::optional<CudaHookRank> cuda(std::in_place, transport, options_for(spec), layout);
    require(cudaSetDevice(0));
    auto const expect_device_0 = [](char const* call) {
      int current = -1;
      require(cudaGetDevice(&current));
      EXPECT_EQ(current, 0) << call;
    };
    for (std::uint64_t step = 0; step < 6; ++step) {
      cpu.step(step);
      EXPECT_TRUE(cuda->attempt(step, heavy_tailed_of).result.committed);
      expect_device_0("a step");
      EXPECT_EQ(bits_of(cuda->all_results()), bits_of(cpu.all_results()));
      if (step == 3) {
        ASSERT_TRUE(cpu.hook().refuse().ok());
        ASSERT_TRUE(cuda->hook().refuse().ok());
        expect_device_0("refuse");
        continue;
      }
      std::vector<std::byte> const saved = cuda->hook().save_state();
      expect_device_0("save_state");
      ConstBytes const states[] = {saved};
      cuda->hook().load_state(states);
      expect_device_0("load_state");
      for (TensorDesc const& tensor : layout.tensors) {
        EXPECT_EQ(bits_of(cuda->hook().residual(tensor.name)),
                  bits_of(cpu.hook().residual(tensor.name)));
      }
      expect_device_0("residual");
      static_cast<void>(cuda->hook().tensor_stats());
      expect_device_0("tensor_stats");
      if (step == 2) {
        cpu.hook().set_rules({{"*", "int4(block=64) ; feedback=residual"}});
        cuda->hook().set_rules({{"*", "int4(block=64) ; feedback=residual"}});
        expect_device_0("set_rules");
      }
    }
    cuda.reset();
    expect_device_0("the destructor");
  });
}

TEST(HookDevice, StreamC72RunsWithOtherDelaysGiveTheSameBits) {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t t = 0; t < 20; ++t) sizes.push_back(1 + mix64(t) % (t % 5 == 0 ? 5000 : 300));
  Layout layout = one_bucket_each(sizes);
  for (std::size_t b = 1; b < layout.buckets.size(); ++b) {  // ten tensors in each of two buckets
    auto const& tensors = layout.buckets[b].tensors;
    auto& into = layout.buckets[b < 10 ? 0 : 10].tensors;
    if (b != 10) into.insert(into.end(), tensors.begin(), tensors.end());
  }
  layout.buckets = {layout.buckets[0], layout.buckets[10]};
  std::vector<std::uint32_t> first;
  for (int run = 0; run < (is_quick_subset() ? 3 : 10); ++run) {
    std::mutex mutex;
    std::vector<std::uint32_t> bits;
    test::run_ranks(2, [&](Transport& transport) {
      CudaHookRank rank(transport, options_for("int8(rounding=stochastic) ; feedback=residual"),
                        layout);
      std::uint64_t random = mix64(static_cast<std::uint64_t>(2 * run + transport.rank()));
      rank.before_reduce = [&random] {
        random = mix64(random);
        std::this_thread::sleep_for(std::chrono::milliseconds(random % 21));
      };
      for (std::uint64_t step = 0; step < 6; ++step)
        EXPECT_TRUE(rank.attempt(step, heavy_tailed_of).result.committed);
      std::vector<std::uint32_t> const own = bits_of(rank.all_results());
      std::lock_guard const lock(mutex);
      if (bits.empty()) bits = own;
      EXPECT_EQ(bits, own);
    });
    if (run == 0) first = bits;
    EXPECT_EQ(bits, first);
  }
}

}  // namespace
}  // namespace gradsieve::testing
