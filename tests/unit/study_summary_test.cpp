// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bench/convergence/report.hpp"
#include "bench/convergence/run_folder.hpp"
#include "bench/convergence/summary.hpp"

namespace gradsieve::study {
namespace {

RunRecord run_of(std::string const& spec, std::uint64_t seed, double loss,
                 std::uint64_t wire_bytes) {
  RunRecord run;
  run.model = "mlp";
  run.spec = spec;
  run.seed = seed;
  run.world_size = 4;
  run.num_steps = 10;
  run.validation_loss = loss;
  run.accuracy = 1.0 - loss;
  run.wire_bytes = wire_bytes;
  run.dense_fp32_bytes = 1000;
  run.dense_bf16_bytes = 500;
  run.compute_s = 1.0;
  run.encode_s = 0.2;
  run.decode_s = 0.3;
  run.parameter_hash = 0xab;
  MetricsRow row;
  row.step = 10;
  row.loss = loss;
  row.wire_bytes = static_cast<double>(wire_bytes);
  row.accuracy = 1.0 - loss;
  run.rows.push_back(row);
  return run;
}

StudyRecord record_of_two_specs() {
  StudyRecord record;
  record.title = "A <test>";
  record.runs = {
      run_of("none", 1, 0.2, 1000), run_of("topk(density=0.1, block=2) | int8", 1, 0.3, 10),
      run_of("none", 2, 0.4, 1000), run_of("topk(density=0.1, block=2) | int8", 2, 0.3, 20)};
  return record;
}

TEST(StudySummary, GivesMedianAndRange) {
  Spread const odd = spread_of({3.0, 1.0, 2.0});
  EXPECT_EQ(odd.median, 2.0);
  EXPECT_EQ(odd.low, 1.0);
  EXPECT_EQ(odd.high, 3.0);
  EXPECT_EQ(spread_of({4.0, 1.0}).median, 2.5);
}

TEST(StudySummary, ComparesRunsOfTheSameSeed) {
  auto const rows = summarise(record_of_two_specs().runs);

  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].spec, "none");
  EXPECT_NEAR(rows[1].loss_gap.low, -0.1, 1e-12);
  EXPECT_NEAR(rows[1].loss_gap.high, 0.1, 1e-12);
  EXPECT_NEAR(rows[1].ratio_fp32, 75.0, 1e-12);
  EXPECT_NEAR(rows[1].ratio_bf16, 37.5, 1e-12);
}

TEST(StudySummary, ModelsAStepAsItsFormulaSays) {
  MetricsRow totals;
  totals.compute_s = 1.0;
  totals.encode_s = 0.5;
  totals.exchange_s = 100.0;
  totals.decode_s = 0.25;
  totals.wire_bytes = 1.25e9;

  EXPECT_DOUBLE_EQ(modelled_step_s(totals, 10, 10.0), (1.75 + 1.0) / 10.0);
}

TEST(StudySummary, WritesTheNamedColumns) {
  std::istringstream lines(summary_csv(record_of_two_specs()));
  std::string header;
  std::string first;
  std::string second;
  std::getline(lines, header);
  std::getline(lines, first);
  std::getline(lines, second);

  EXPECT_EQ(
      header,
      "model,spec,seed,world_size,steps,train_loss,val_loss,accuracy,wire_bytes,dense_fp32_bytes,"
      "dense_bf16_bytes,encode_s,exchange_s,decode_s,parameter_hash");
  EXPECT_EQ(first,
            "mlp,\"none\",1,4,10,0.000000,0.200000,0.800000,1000,1000,500,0.2000,0.0000,0.3000,"
            "00000000000000ab");
  EXPECT_EQ(second.substr(0, 41), "mlp,\"topk(density=0.1, block=2) | int8\",1");
}

TEST(StudySummary, WritesAReportThatNeedsNothingElse) {
  std::string const html = report_html(record_of_two_specs());

  EXPECT_NE(html.find("A &lt;test&gt;"), std::string::npos);
  for (char const* foreign : {"<script", "http:", "https:", "<link", "@import", "url("})
    EXPECT_EQ(html.find(foreign), std::string::npos) << foreign;
  EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST(StudySummary, CountsRunsThatDiverged) {
  StudyRecord record = record_of_two_specs();
  record.runs[1].validation_loss = record.runs[1].accuracy = NAN;

  SummaryRow const row = summarise(record.runs)[1];

  EXPECT_EQ(seeds_text(row), "2, 1 diverged");
  EXPECT_EQ(row.validation_loss.median, 0.3);
  EXPECT_EQ(report_html(record).find("nan"), std::string::npos);
}

TEST(StudySummary, TakesOneRankThatSendsNothing) {
  StudyRecord record;
  record.runs = {run_of("none", 1, 0.2, 0)};
  std::ostringstream table;

  print_table(table, summarise(record.runs));

  EXPECT_NE(table.str().find("mlp"), std::string::npos);
  EXPECT_EQ(report_html(record).find("inf"), std::string::npos);
}

}  // namespace
}  // namespace gradsieve::study
