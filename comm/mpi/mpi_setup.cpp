// SPDX-License-Identifier: Apache-2.0
// How an MPI transport begins and ends, and MPI's own all-reduce.
#include <algorithm>
#include <array>
#include <climits>
#include <string>

#include <unistd.h>

#include "comm/mpi/mpi_transport.hpp"
#include "kernels/ops.hpp"

namespace gradsieve {

namespace {

void require(int error, char const* call) {
  if (error == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(error, text.data(), &length);
  throw Error(Code::transport_error, std::string(call) + " failed: " + text.data());
}

void require_usable_mpi() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized == 0)
    throw Error(Code::invalid_usage,
                "make_mpi_transport: MPI is not initialised; call MPI_Init_thread before");
  if (finalized != 0)
    throw Error(Code::invalid_usage, "make_mpi_transport: MPI is already finalised");
}

/// inout_i ← inout_i + in_i: both widened to f32, the sum rounded to nearest. MPI calls it.
template <typename Half>
void add_halves(void* in, void* inout, int* length, MPI_Datatype*) {
  constexpr std::size_t kBlock = 512;
  ExecContext const ctx;
  std::span<Half> const values(static_cast<Half*>(in), static_cast<std::size_t>(*length));
  std::span<Half> const sums(static_cast<Half*>(inout), static_cast<std::size_t>(*length));
  std::array<float, kBlock> x;
  std::array<float, kBlock> sum;
  for (std::size_t begin = 0; begin < sums.size(); begin += kBlock) {
    std::size_t const count = std::min(kBlock, sums.size() - begin);
    std::span<float> const wide(sum.data(), count);
    kernels::widen(ctx, ConstTensorView(values.subspan(begin, count)),
                   std::span<float>(x.data(), count));
    kernels::widen(ctx, ConstTensorView(sums.subspan(begin, count)), wide);
    for (std::size_t i = 0; i < count; ++i) wide[i] += x[i];
    kernels::narrow(ctx, wide, false, TensorView(sums.subspan(begin, count)));
  }
}

}  // namespace

MpiTransport::MpiTransport(MPI_Comm communicator, MpiOptions options)
    : chunk_bytes_(static_cast<int>(std::min<std::size_t>(options.chunk_bytes, INT_MAX))),
      process_id_(::getpid()),
      home_thread_(std::this_thread::get_id()) {
  require_usable_mpi();
  if (communicator == MPI_COMM_NULL)
    throw Error(Code::invalid_argument,
                "make_mpi_transport: expected a communicator, got MPI_COMM_NULL");
  if (options.chunk_bytes < 1 || options.chunk_bytes > INT_MAX)
    throw Error(Code::invalid_argument, "make_mpi_transport: chunk_bytes is " +
                                            std::to_string(options.chunk_bytes) +
                                            "; expected 1 ... 2147483647");
  int is_inter = 0;
  require(MPI_Comm_test_inter(communicator, &is_inter), "MPI_Comm_test_inter");
  if (is_inter != 0)
    throw Error(Code::invalid_argument,
                "make_mpi_transport: expected an intra-communicator, got an inter-communicator");
  int is_home = 0;
  require(MPI_Query_thread(&thread_level_), "MPI_Query_thread");
  require(MPI_Is_thread_main(&is_home), "MPI_Is_thread_main");
  if (thread_level_ < MPI_THREAD_SERIALIZED && is_home == 0)
    throw Error(Code::invalid_usage,
                "make_mpi_transport: MPI was initialised without MPI_THREAD_SERIALIZED or "
                "MPI_THREAD_MULTIPLE; "
                "expected to be called by the thread that initialised it");
  try {
    for (MPI_Comm& duplicate : communicators_) {
      require(MPI_Comm_dup(communicator, &duplicate), "MPI_Comm_dup");
      require(MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    require(MPI_Comm_rank(communicators_[0], &rank_), "MPI_Comm_rank");
    require(MPI_Comm_size(communicators_[0], &world_size_), "MPI_Comm_size");
    void* value = nullptr;
    int found = 0;
    // MPI promises this attribute of the world alone; a subgroup may not have it.
    require(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found), "MPI_Comm_get_attr");
    if (found != 0) max_tag_ = *static_cast<int*>(value);
    agree_on_options();
    make_sums_of_halves();
  } catch (...) {
    release_mpi_objects();
    throw;
  }
}

void MpiTransport::agree_on_options() const {
  std::array<int, 2> bounds{chunk_bytes_, -chunk_bytes_};
  require(MPI_Allreduce(MPI_IN_PLACE, bounds.data(), 2, MPI_INT, MPI_MIN, communicators_[0]),
          "MPI_Allreduce");
  if (bounds[0] != -bounds[1])
    throw Error(Code::mismatch, "make_mpi_transport: chunk_bytes is " + std::to_string(bounds[0]) +
                                    " on one rank and " + std::to_string(-bounds[1]) +
                                    " on another; expected the same on all");
}

void MpiTransport::make_sums_of_halves() noexcept {
  MPI_Type_contiguous(2, MPI_BYTE, &half_);
  MPI_Type_commit(&half_);
  MPI_Op_create(&add_halves<Float16>, 1, &add_float16_);
  MPI_Op_create(&add_halves<BFloat16>, 1, &add_bfloat16_);
}

void MpiTransport::release_mpi_objects() noexcept {
  if (add_float16_ != MPI_OP_NULL) MPI_Op_free(&add_float16_);
  if (add_bfloat16_ != MPI_OP_NULL) MPI_Op_free(&add_bfloat16_);
  if (half_ != MPI_DATATYPE_NULL) MPI_Type_free(&half_);
  for (MPI_Comm& duplicate : communicators_)
    if (duplicate != MPI_COMM_NULL) MPI_Comm_free(&duplicate);
}

// After a failure, ranks may be gone and messages under way: MPI keeps the duplicates then. It
// would give the number of one that is freed to the next, and with it what came too late for this
// one.
MpiTransport::~MpiTransport() {
  if (::getpid() != process_id_ || left_messages_ || entangled_ || aborted_) return;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) release_mpi_objects();
}

Status MpiTransport::dense_all_reduce(TensorView data) noexcept {
  GRADSIEVE_RETURN_IF_ERROR(check_call());
  if (data.device != Device::host)
    return {Code::unsupported,
            "MPI is given host memory only: copy the gradient to the host first"};
  bool const is_half = data.dtype == DType::f16 || data.dtype == DType::bf16;
  MPI_Datatype const type = is_half ? half_ : data.dtype == DType::f64 ? MPI_DOUBLE : MPI_FLOAT;
  MPI_Op const sum = data.dtype == DType::f16    ? add_float16_
                     : data.dtype == DType::bf16 ? add_bfloat16_
                                                 : MPI_SUM;
  constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 28;
  for (std::uint64_t begin = 0; begin < data.num_elements; begin += kMaxElements) {
    std::uint64_t const count = std::min(kMaxElements, data.num_elements - begin);
    if (MPI_Allreduce(MPI_IN_PLACE, data.slice(begin, count).data, static_cast<int>(count), type,
                      sum, communicators_[0]) != MPI_SUCCESS)
      return {Code::transport_error, "MPI_Allreduce failed"};
  }
  return {};
}

std::unique_ptr<Transport> make_mpi_transport(MPI_Comm communicator, MpiOptions options) {
  return std::make_unique<MpiTransport>(communicator, options);
}

}  // namespace gradsieve
