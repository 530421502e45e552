// SPDX-License-Identifier: Apache-2.0
#include "bench/comm/comm_table.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <type_traits>

#include <nlohmann/json.hpp>
#include <unistd.h>

namespace gradsieve::bench {
namespace {

double dense_bytes(Row const& row) {
  return static_cast<double>(row.num_elements * size_of(row.dtype));
}

/// Bytes per microsecond are MB/s; a thousandth of that is GB/s.
double gbps(double bytes, double microseconds) {
  return microseconds > 0.0 ? bytes / microseconds * 1e-3 : 0.0;
}

/// nccl-tests' algbw: size over time, here on the bytes that travel, as if they were the message.
double algbw(Row const& row, int world_size) {
  double const factor = world_size > 1 ? 2.0 * (world_size - 1) / world_size : 1.0;
  return gbps(row.wire_bytes / factor, row.total_us);
}

double busbw(Row const& row, int world_size) {
  return world_size > 1 ? algbw(row, world_size) * 2.0 * (world_size - 1) / world_size : 0.0;
}

/// What was not found out is `none`.
template <typename T>
std::string text_of(char const* format, std::optional<T> const& number, char const* none) {
  if (!number) return none;
  char text[64];
  if constexpr (std::is_same_v<T, double>) {
    std::snprintf(text, sizeof text, format, *number);
  } else {
    std::snprintf(text, sizeof text, format, static_cast<unsigned long long>(*number));
  }
  return text;
}

template <typename T>
nlohmann::json json_of(std::optional<T> const& number) {
  return number ? nlohmann::json(*number) : nlohmann::json();
}

void write_whole(std::string const& path, std::string const& content) {
  std::string const temporary = path + ".partial";
  std::ofstream out(temporary, std::ios::binary);
  out << content;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(temporary, path, error);
  if (!out || error) {
    std::filesystem::remove(temporary, error);
    throw Error(Code::io_error, "cannot write '" + path + "'");
  }
}

}  // namespace

void print_header(int world_size) {
  if (world_size == 1)
    std::printf("# one rank: no communication takes place; times are encode and decode alone\n");
  std::printf("#%11s %10s %5s %-44s %-10s %11s %11s %8s %9s %9s %9s %10s %7s %7s %8s %8s %9s %6s\n",
              "size", "count", "type", "spec", "exchange", "wire_bytes", "predicted", "ratio",
              "encode_us", "comm_us", "decode_us", "total_us", "algbw", "busbw", "eff_bw",
              "vs_dense", "rel_err", "#wrong");
}

void print_row(Row const& row, int world_size) {
  if (!row.supported) {
    std::printf(" %11.0f %10llu %5s %-44s not offered by this transport\n", dense_bytes(row),
                static_cast<unsigned long long>(row.num_elements),
                std::string(dtype_name(row.dtype)).c_str(), row.spec.c_str());
    return;
  }
  std::string const spec = row.spec.size() > 44 ? row.spec.substr(0, 41) + "..." : row.spec;
  std::printf(
      " %11.0f %10llu %5s %-44s %-10s %11.0f %11.0f %8s %9.1f %9.1f %9.1f %10.1f %7.2f %7.2f "
      "%8.2f %8s %9s %6s\n",
      dense_bytes(row), static_cast<unsigned long long>(row.num_elements),
      std::string(dtype_name(row.dtype)).c_str(), spec.c_str(), row.exchange.c_str(),
      row.wire_bytes, row.predicted_bytes, text_of("%.1f", row.ratio, "N/A").c_str(), row.encode_us,
      row.exchange_us, row.decode_us, row.total_us, algbw(row, world_size), busbw(row, world_size),
      gbps(dense_bytes(row), row.total_us), text_of("%.2f", row.vs_dense, "N/A").c_str(),
      text_of("%.2e", row.relative_error, "N/A").c_str(),
      text_of("%llu", row.num_wrong, "N/A").c_str());
  std::fflush(stdout);
}

void write_json(std::string const& path, std::vector<Row> const& rows, int world_size,
                std::string const& command, std::uint64_t sent_bytes) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  nlohmann::json root{{"command", command},
                      {"host", host},
                      {"world_size", world_size},
                      {"sent_bytes", sent_bytes},
                      {"rows", nlohmann::json::array()}};
  for (Row const& row : rows) {
    if (!row.supported) continue;
    root["rows"].push_back({{"spec", row.spec},
                            {"exchange", row.exchange},
                            {"dtype", dtype_name(row.dtype)},
                            {"count", row.num_elements},
                            {"size", dense_bytes(row)},
                            {"wire_bytes", row.wire_bytes},
                            {"predicted_bytes", row.predicted_bytes},
                            {"ratio", json_of(row.ratio)},
                            {"encode_us", row.encode_us},
                            {"comm_us", row.exchange_us},
                            {"decode_us", row.decode_us},
                            {"total_us", row.total_us},
                            {"algbw", algbw(row, world_size)},
                            {"busbw", busbw(row, world_size)},
                            {"eff_bw", gbps(dense_bytes(row), row.total_us)},
                            {"vs_dense", json_of(row.vs_dense)},
                            {"rel_err", json_of(row.relative_error)},
                            {"wrong", json_of(row.num_wrong)}});
  }
  write_whole(path, root.dump(1) + "\n");
}

void write_csv(std::string const& path, std::vector<Row> const& rows, int world_size) {
  std::string text =
      "size,count,type,spec,exchange,wire_bytes,predicted_bytes,ratio,encode_us,comm_us,decode_us,"
      "total_us,algbw,busbw,eff_bw,vs_dense,rel_err,wrong\n";
  char line[1024];
  for (Row const& row : rows) {
    if (!row.supported) continue;
    std::snprintf(
        line, sizeof line,
        "%.0f,%llu,%s,\"%s\",%s,%.0f,%.0f,%s,%.3f,%.3f,%.3f,%.3f,%.4f,%.4f,%.4f,%s,%s,%s\n",
        dense_bytes(row), static_cast<unsigned long long>(row.num_elements),
        std::string(dtype_name(row.dtype)).c_str(), row.spec.c_str(), row.exchange.c_str(),
        row.wire_bytes, row.predicted_bytes, text_of("%.4f", row.ratio, "").c_str(), row.encode_us,
        row.exchange_us, row.decode_us, row.total_us, algbw(row, world_size),
        busbw(row, world_size), gbps(dense_bytes(row), row.total_us),
        text_of("%.4f", row.vs_dense, "").c_str(), text_of("%.6e", row.relative_error, "").c_str(),
        text_of("%llu", row.num_wrong, "").c_str());
    text += line;
  }
  write_whole(path, text);
}

}  // namespace gradsieve::bench
