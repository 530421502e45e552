// SPDX-License-Identifier: Apache-2.0
// One rank of an MPI job in which a rank is killed or stopped: tools/faults starts it. A survivor
// checks code, names, time and state, writes its books to FOLDER/RANK.books and a line to
// FOLDER/RANK.report, and leaves by _exit: MPI_Finalize would wait for the rank that is gone.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include <mpi.h>
#include <unistd.h>

#include "gradsieve/mpi.hpp"

#include "tests/faults/expected_run.hpp"
#include "tests/support/test_transports.hpp"

namespace {

using namespace gradsieve;
using namespace gradsieve::testing;

struct Arguments {
  std::string spec;
  Rollback rollback = Rollback::merge;
  int victim = 0;
  int signal = SIGKILL;
  /// After kFirstFault steps; −1: in the step then, between its exchanges and its vote; −2: between
  /// encoding and its first message.
  long delay_us = 0;
  std::filesystem::path folder;
};

constexpr std::uint64_t kFirstFault = 3;
constexpr std::chrono::milliseconds kExchangeDeadline{1000};
// A survivor that the machine holds up for less than this is still there for the roll call.
constexpr std::chrono::milliseconds kVoteDeadline{4000};
// What a busy machine may add to both deadlines: processes share its cores, and may all be held up.
constexpr std::chrono::seconds kSlack{20};
constexpr std::chrono::milliseconds kLongestStep = kExchangeDeadline + kVoteDeadline + kSlack;
constexpr std::chrono::seconds kLongestRun{60};

Layout layout() { return one_bucket_each({20'000, 3'000, 0, 301}); }

HookOptions options_of(Arguments const& arguments) {
  HookOptions options = options_for(arguments.spec);
  options.rollback = arguments.rollback;
  options.exchange_deadline = kExchangeDeadline;
  options.vote_deadline = kVoteDeadline;
  return options;
}

Arguments parse(char** argv) {
  return {argv[1],
          std::string(argv[2]) == "exact" ? Rollback::exact : Rollback::merge,
          std::atoi(argv[3]),
          std::string(argv[4]) == "stop" ? SIGSTOP : SIGKILL,
          std::atol(argv[5]),
          argv[6]};
}

/// Ends the process at its first data message once it is armed.
class DyingTransport final : public ForwardingTransport {
 public:
  DyingTransport(Transport& inner, int signal) : ForwardingTransport(inner), signal_(signal) {}
  void arm() { armed_ = true; }
  Status send(Channel channel, int peer, std::uint32_t tag, ConstBytes bytes,
              Request& request) noexcept override {
    if (armed_ && channel == Channel::data) ::kill(::getpid(), signal_);
    return inner_.send(channel, peer, tag, bytes, request);
  }

 private:
  int signal_;
  std::atomic<bool> armed_{false};
};

/// What a survivor has found out.
struct Findings {
  std::uint64_t committed_steps = 0;
  Status status;
  Failure failure;
  double failed_step_seconds = 0.0;
  std::string wrong;  ///< the first thing that is not as promised
  bool in_doubt = false;

  void expect(bool holds, std::string const& sentence) {
    if (!holds && wrong.empty()) wrong = sentence;
  }
};

/// The victim's last moments.
void meet_fate(HookRank& rank, DyingTransport& transport, std::uint64_t step,
               Arguments const& arguments) {
  if (rank.rank() != arguments.victim || step != kFirstFault) return;
  if (arguments.delay_us == -2) {
    transport.arm();
    return;
  }
  if (arguments.delay_us == -1) {
    static_cast<void>(rank.hook().begin(step));
    rank.fill(step, heavy_tailed_of);
    static_cast<void>(rank.reduce_all());
    ::kill(::getpid(), arguments.signal);
    return;
  }
  std::thread([&arguments] {
    std::this_thread::sleep_for(std::chrono::microseconds(arguments.delay_us));
    ::kill(::getpid(), arguments.signal);
  }).detach();
}

/// Trains until a step fails, and exports a checkpoint now and then as a trainer would.
Findings train(HookRank& rank, DyingTransport& transport, Arguments const& arguments,
               std::filesystem::path const& checkpoint) {
  Findings findings;
  for (std::uint64_t step = 0;; ++step) {
    if (step % 10 == 0) rank.hook().export_state(checkpoint.string());
    meet_fate(rank, transport, step, arguments);
    auto const start = Clock::now();
    HookRank::Attempt const attempt = rank.attempt(step, heavy_tailed_of);
    if (attempt.result.committed) {
      findings.committed_steps = step + 1;
      continue;
    }
    findings.status = attempt.result.status;
    findings.failure = rank.hook().failure();
    findings.in_doubt = findings.status.code() == Code::in_doubt;
    auto const spent = Clock::now() - start;
    findings.failed_step_seconds = std::chrono::duration<double>(spent).count();
    findings.expect(spent < kLongestStep, "the step ended long after its deadlines");
    break;
  }
  Code const code = findings.failure.code;
  findings.expect(code == Code::timeout || code == Code::peer_failed || code == Code::in_doubt,
                  "another code than timeout, peer_failed or in_doubt");
  findings.expect(findings.failure.rank == arguments.victim, "the failure names another rank");
  findings.expect(findings.in_doubt || !findings.failure.tensor.empty(),
                  "the failure names no tensor");
  return findings;
}

/// State, export and the books of conservation. A step in doubt has none of them: its outcome is
/// not known, and the job restarts from its checkpoint.
void check_state(HookRank& rank, Arguments const& arguments, int world_size, Findings& findings,
                 std::filesystem::path const& checkpoint) {
  std::uint64_t const failed_step = findings.committed_steps;
  ExpectedRun const expected =
      expected_run(world_size, options_of(arguments), rank.layout(), failed_step);
  auto const me = static_cast<std::size_t>(rank.rank());
  findings.expect(std::filesystem::file_size(checkpoint) > 0, "no checkpoint");
  try {
    rank.hook().export_state((checkpoint.parent_path() / "last").string() + std::to_string(me));
    findings.expect(!findings.in_doubt, "state was exported although the outcome is unknown");
  } catch (Error const& error) {
    findings.expect(findings.in_doubt && error.code() == Code::in_doubt, error.what());
  }
  if (findings.in_doubt) return;
  std::string const wrong = compare_after_rollback(rank, arguments.rollback, expected.residuals[me],
                                                   failed_step, heavy_tailed_of);
  findings.expect(wrong.empty(), wrong);

  // Sent, kept here, given here; kept and given by the victim up to its last step that counts.
  std::vector<double> given(expected.sent.size());
  std::vector<double> lost_given(given.size());
  std::uint64_t const taken = arguments.rollback == Rollback::merge ? 1 : 0;
  add_gradients(given, rank.layout(), rank.rank(), 0, failed_step + taken);
  add_gradients(lost_given, rank.layout(), arguments.victim, 0, failed_step);
  std::ofstream books(arguments.folder / (std::to_string(me) + ".books"), std::ios::binary);
  auto const write = [&](std::vector<double> const& numbers) {
    books.write(reinterpret_cast<char const*>(numbers.data()),
                static_cast<std::streamsize>(numbers.size() * sizeof(double)));
  };
  auto const flat = [](Residuals const& residuals) {
    std::vector<double> all;
    for (auto const& residual : residuals) all.insert(all.end(), residual.begin(), residual.end());
    return all;
  };
  write(expected.sent);
  write(flat(rank.all_residuals()));
  write(given);
  write(flat(expected.residuals[static_cast<std::size_t>(arguments.victim)]));
  write(lost_given);
}

void report(Arguments const& arguments, int rank, Findings const& findings) {
  std::filesystem::path const path = arguments.folder / (std::to_string(rank) + ".report");
  {
    std::ofstream out(path.string() + ".partial");
    out << findings.committed_steps << '\t' << code_name(findings.failure.code) << '\t'
        << findings.failure.rank << '\t' << findings.failure.tensor << '\t'
        << findings.failure.field << '\t' << findings.failed_step_seconds << '\t' << findings.wrong
        << '\n';
  }
  std::filesystem::rename(path.string() + ".partial", path);
}

/// A launcher may end the job once the first rank has left it without MPI_Finalize.
void wait_for_others(Arguments const& arguments, int world_size) {
  auto const end = Clock::now() + kLongestRun;
  for (int rank = 0; rank < world_size; ++rank) {
    std::filesystem::path const path = arguments.folder / (std::to_string(rank) + ".report");
    while (rank != arguments.victim && !std::filesystem::exists(path) && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: fault_rank SPEC merge|exact VICTIM kill|stop DELAY_US FOLDER\n");
    return 2;
  }
  Arguments const arguments = parse(argv);
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  std::unique_ptr<Transport> const mpi = make_mpi_transport(MPI_COMM_WORLD);
  DyingTransport transport(*mpi, arguments.signal);
  int const me = transport.rank();
  std::ofstream(arguments.folder / (std::to_string(me) + ".pid")) << ::getpid() << '\n';
  std::filesystem::path const checkpoint = arguments.folder / ("checkpoint" + std::to_string(me));
  HookRank rank(transport, options_of(arguments), layout());
  Findings findings;
  try {
    findings = train(rank, transport, arguments, checkpoint);
    check_state(rank, arguments, transport.world_size(), findings, checkpoint);
  } catch (std::exception const& error) {
    findings.expect(false, error.what());
  }
  report(arguments, me, findings);
  wait_for_others(arguments, transport.world_size());
  ::_exit(findings.wrong.empty() ? 0 : 1);
}
