// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_setup.hpp"

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "comm/nccl/nccl_handle.hpp"

namespace gradsieve {

namespace {

constexpr std::uint32_t kTag = 0x4e43;  // "NC", below the tags that MPI promises
/// Longer than rank 0 waits for the others, so that it can still tell them who is missing.
constexpr std::chrono::milliseconds kVerdictGrace{1000};

/// What a rank tells rank 0: that it is ready, or why not.
struct Report {
  Code code = Code::ok;
  std::int32_t version = 0;
};

/// What rank 0 tells all: the id, or who is at fault.
struct Verdict {
  Code code = Code::ok;
  std::int32_t rank = -1;
  std::int32_t version = 0;        ///< rank 0's
  std::int32_t other_version = 0;  ///< that of the rank at fault
  ncclUniqueId id = {};
};

/// What a rank can say about itself.
struct Readiness {
  NcclApi const* api = nullptr;
  int device = 0;
  Code code = Code::ok;
  std::string text;
};

template <typename Record>
Bytes bytes_of(Record& record) noexcept {
  return std::as_writable_bytes(std::span(&record, 1));
}

[[noreturn]] void fail(Code code, std::string const& text) {
  throw Error(code, "make_nccl_transport: " + text);
}

int current_device() {
  int device = 0;
  if (cudaError_t const error = cudaGetDevice(&device); error != cudaSuccess)
    throw Error(Code::device_error,
                std::string("there is no CUDA device (") + cudaGetErrorString(error) + ")");
  return device;
}

Readiness look_around() {
  Readiness readiness;
  try {
    readiness.api = &nccl_api();
    readiness.device = current_device();
  } catch (Error const& error) {
    readiness.code = error.code();
    readiness.text = error.what();
  }
  return readiness;
}

/// Rank 0's judgement on another rank's report.
void judge(Verdict& verdict, int rank, Report const& report, Status received) noexcept {
  if (verdict.code != Code::ok) return;
  Code code = received.ok() ? report.code : received.code();
  if (code == Code::ok && report.version != verdict.version) code = Code::mismatch;
  if (code == Code::ok) return;
  verdict.code = code;
  verdict.rank = rank;
  verdict.other_version = report.version;
}

void collect_reports(Transport& host, Verdict& verdict, Deadline deadline) {
  std::size_t const num_ranks = static_cast<std::size_t>(host.world_size());
  std::vector<Report> reports(num_ranks);
  std::vector<Request> requests(num_ranks);
  // An error of receive() stays in the request, where wait() finds it.
  for (std::size_t rank = 1; rank < num_ranks; ++rank)
    static_cast<void>(host.receive(Channel::control, static_cast<int>(rank), kTag,
                                   bytes_of(reports[rank]), requests[rank]));
  for (std::size_t rank = 1; rank < num_ranks; ++rank)
    judge(verdict, static_cast<int>(rank), reports[rank], host.wait(requests[rank], deadline));
}

void send_verdict(Transport& host, Verdict& verdict, Deadline deadline) {
  std::size_t const num_ranks = static_cast<std::size_t>(host.world_size());
  std::vector<Request> requests(num_ranks);
  for (std::size_t rank = 1; rank < num_ranks; ++rank)
    static_cast<void>(host.send(Channel::control, static_cast<int>(rank), kTag, bytes_of(verdict),
                                requests[rank]));
  for (std::size_t rank = 1; rank < num_ranks; ++rank)
    static_cast<void>(host.wait(requests[rank], deadline));
}

Verdict reach_verdict(Transport& host, Readiness const& readiness,
                      std::chrono::milliseconds deadline) {
  Verdict verdict;
  verdict.code = readiness.code;
  verdict.rank = verdict.code == Code::ok ? -1 : 0;
  verdict.version = readiness.api == nullptr ? 0 : readiness.api->version;
  collect_reports(host, verdict, Clock::now() + deadline);
  if (verdict.code == Code::ok && readiness.api->get_unique_id(&verdict.id) != ncclSuccess) {
    verdict.code = Code::transport_error;
    verdict.rank = 0;
  }
  send_verdict(host, verdict, Clock::now() + kVerdictGrace);
  return verdict;
}

Verdict ask_for_verdict(Transport& host, Readiness const& readiness,
                        std::chrono::milliseconds deadline) {
  Deadline const until = Clock::now() + deadline + kVerdictGrace;
  Report report{readiness.code, readiness.api == nullptr ? 0 : readiness.api->version};
  Verdict verdict;
  Request sent;
  Request received;
  static_cast<void>(host.send(Channel::control, 0, kTag, bytes_of(report), sent));
  static_cast<void>(host.receive(Channel::control, 0, kTag, bytes_of(verdict), received));
  Status status = host.wait(sent, until);
  Status const answered = host.wait(received, until);
  if (status.ok()) status = answered;
  if (!status.ok()) {
    verdict.code = status.code();
    verdict.rank = 0;
  }
  return verdict;
}

void require(Verdict const& verdict, Readiness const& readiness) {
  if (readiness.code != Code::ok) fail(readiness.code, readiness.text);
  if (verdict.code == Code::ok) return;
  std::string const who = "rank " + std::to_string(verdict.rank);
  if (verdict.code == Code::timeout) fail(Code::timeout, who + " did not come in time");
  if (verdict.code == Code::aborted) fail(Code::aborted, "the host transport was aborted");
  if (verdict.code == Code::mismatch)
    fail(Code::mismatch, "NCCL is " + nccl_version_text(verdict.version) + " on rank 0 and " +
                             nccl_version_text(verdict.other_version) + " on " + who +
                             "; expected one version on all ranks");
  fail(Code::peer_failed, who + " cannot take part (" + std::string(code_name(verdict.code)) + ")");
}

}  // namespace

NcclId make_nccl_id() {
  ncclUniqueId made = {};
  if (nccl_api().get_unique_id(&made) != ncclSuccess)
    throw Error(Code::transport_error, "make_nccl_id: NCCL gives no id");
  NcclId id;
  static_assert(sizeof made == sizeof id.bytes);
  std::memcpy(id.bytes.data(), &made, sizeof made);
  return id;
}

std::unique_ptr<NcclCommunicator> make_communicator(NcclId const& id, int world_size, int rank,
                                                    NcclOptions options) {
  if (world_size < 1 || rank < 0 || rank >= world_size)
    fail(Code::invalid_argument, "rank " + std::to_string(rank) + " of " +
                                     std::to_string(world_size) +
                                     "; expected a rank below the number of ranks");
  Readiness const readiness = look_around();
  require({}, readiness);
  NcclApi const& api = *readiness.api;
  ncclUniqueId unique = {};
  std::memcpy(&unique, id.bytes.data(), sizeof unique);
  ncclComm_t const handle =
      make_handle(api, readiness.device, options.deadline, "ncclCommInitRankConfig",
                  [&api, unique, world_size, rank](ncclComm_t* made) {
                    ncclConfig_t config = blocking_config();
                    return api.comm_init_rank_config(made, world_size, unique, rank, &config);
                  });
  return std::make_unique<NcclCommunicator>(api, handle, NcclCommunicator::Ownership::owned,
                                            options.call_deadline);
}

std::unique_ptr<NcclCommunicator> make_communicator(Transport& host, NcclOptions options) {
  Readiness const readiness = look_around();
  Verdict const verdict = host.rank() == 0 ? reach_verdict(host, readiness, options.deadline)
                                           : ask_for_verdict(host, readiness, options.deadline);
  require(verdict, readiness);
  NcclApi const& api = *readiness.api;
  ncclComm_t handle = make_handle(
      api, readiness.device, options.deadline, "ncclCommInitRankConfig",
      [&api, id = verdict.id, num_ranks = host.world_size(), rank = host.rank()](ncclComm_t* made) {
        ncclConfig_t config = blocking_config();
        return api.comm_init_rank_config(made, num_ranks, id, rank, &config);
      });
  return std::make_unique<NcclCommunicator>(api, handle, NcclCommunicator::Ownership::owned,
                                            options.call_deadline);
}

}  // namespace gradsieve
