#include "print.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace fovea::bench {
namespace {

using json = nlohmann::ordered_json;

std::string number(const char *format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string time_text(double s) {
  if (s < 1e-3) return number("%.2f us", s * 1e6);
  return s < 1 ? number("%.2f ms", s * 1e3) : number("%.3f s", s);
}

void print_table(const std::vector<std::vector<std::string>> &rows) {
  std::vector<size_t> width(rows[0].size());
  for (const auto &row : rows) {
    for (size_t i = 0; i < row.size(); i++) width[i] = std::max(width[i], row[i].size());
  }
  for (const auto &row : rows) {
    for (size_t i = 0; i < row.size(); i++) {
      std::printf(i == 0 ? "%-*s" : "  %*s", static_cast<int>(width[i]), row[i].c_str());
    }
    std::printf("\n");
  }
}

std::string runs_text(const json &result) {
  return std::to_string(result.at("repetitions").get<int>()) + " (" + std::to_string(result.at("disturbed").get<int>()) + ")";
}

std::string goal_text(const json &result) {
  if (!result.contains("goal")) return "-";
  const json &goal = result["goal"];
  const std::string wanted = goal.contains("share")      ? ">= " + number("%.2f", goal["share"])
                             : goal.contains("roofline") ? ">= " + number("%.2f", goal["roofline"]) + " of the roofline"
                             : goal.contains("ratio")    ? "<= " + number("%.2f", goal["ratio"])
                                                         : "<= " + time_text(goal.at("seconds"));
  return wanted + (goal.at("met").get<bool>() ? " met" : " MISSED");
}

void print_failure(const std::string &what, const json &result) {
  if (result.contains("failure")) std::printf("%s: NO FIGURE: %s\n", what.c_str(), result["failure"].get<std::string>().c_str());
}

void print_comparison(const json &comparison, bool goals) {
  std::printf("%s on %s\n", comparison.at("set").get<std::string>().c_str(), comparison.at("shape").get<std::string>().c_str());
  std::vector<std::vector<std::string>> rows = {
      {"call", "time", "plain call", "ratio", "spread", "max error", "/bound", "runs (disturbed)"}};
  if (goals) rows[0].push_back("goal");
  for (const json &r : comparison.at("results")) {
    std::vector<std::string> row = {r.at("feature").get<std::string>()};
    if (r.contains("failure")) {
      row.resize(rows[0].size(), "-");
    } else {
      row.insert(row.end(), {time_text(r.at("seconds")), time_text(r.at("plain_seconds")), number("%.3f", r.at("ratio")),
                             number("%.1f%%", 100 * r.at("spread").get<double>()), number("%.1e", r.at("max_error")),
                             number("%.3f", r.at("error_over_bound")), runs_text(r)});
      if (goals) row.push_back(goal_text(r));
    }
    rows.push_back(row);
  }
  print_table(rows);
  for (const json &r : comparison["results"]) print_failure(r["feature"], r);
}

void print_scaling(const json &results, bool goals) {
  std::vector<std::vector<std::string>> rows = {
      {"over one thread", "threads", "times as fast", "the machine", "runs (disturbed)"}};
  if (goals) rows[0].push_back("goal");
  for (const json &r : results) {
    std::vector<std::string> row = {r.at("shape").get<std::string>(), std::to_string(r.at("threads").get<int>())};
    if (r.contains("failure")) {
      row.resize(rows[0].size(), "-");
    } else {
      row.insert(row.end(), {number("%.2f", r.at("ratio")), number("%.2f", r.at("machine_ratio")), runs_text(r)});
      if (goals)
        row.push_back(r.contains("goal")
                          ? ">= " + number("%.2f", r["goal"]["ratio"]) + (r["goal"]["met"].get<bool>() ? " met" : " MISSED")
                          : "-");
    }
    rows.push_back(row);
  }
  print_table(rows);
  for (const json &r : results) print_failure(r["shape"], r);
}

}  // namespace

void print_level(const json &level, bool goals) {
  std::printf("\n%s", level.at("isa").get<std::string>().c_str());
  if (level.contains("failure")) {
    std::printf(": %s\n", level["failure"].get<std::string>().c_str());
    return;
  }
  std::printf(", %d thread(s): peak %.1f GFLOP/s f32, exp2 %.2f G/s", level.at("threads").get<int>(),
              level.at("peak").at("fma").get<double>() / 1e9, level["peak"].at("exp2").get<double>() / 1e9);
  if (level["peak"].contains("bf16_dot")) std::printf(", bf16 %.1f GFLOP/s", level["peak"]["bf16_dot"].get<double>() / 1e9);
  if (level.contains("peer_limit")) std::printf("; peer %s", level["peer_limit"].get<std::string>().c_str());
  std::printf("\n");
  std::vector<std::vector<std::string>> rows = {{"shape", "time", "GFLOP/s", "share", "best", "spread", "max error", "/bound",
                                                 "peer GFLOP/s", "ratio", "runs (disturbed)"}};
  if (goals) rows[0].push_back("goal");
  for (const json &r : level.at("results")) {
    std::vector<std::string> row = {r.at("shape").get<std::string>()};
    if (r.contains("failure")) {
      row.resize(rows[0].size(), "-");
    } else {
      const json &fovea = r.at("fovea");
      row.push_back(time_text(fovea.at("seconds")));
      row.push_back(number("%.1f", fovea.at("flops_per_second").get<double>() / 1e9));
      row.push_back(number("%.3f", fovea.at("share")));
      row.push_back(number("%.3f", fovea.at("best_share")));
      row.push_back(number("%.1f%%", 100 * fovea.at("spread").get<double>()));
      row.push_back(number("%.1e", fovea.at("max_error")));
      row.push_back(number("%.3f", fovea.at("error_over_bound")));
      row.push_back(r.contains("peer") ? number("%.1f", r["peer"].at("flops_per_second").get<double>() / 1e9) : "-");
      row.push_back(r.contains("ratio") ? number("%.2fx", r["ratio"]) : "-");
      row.push_back(runs_text(r));
      if (goals) row.push_back(goal_text(r));
    }
    rows.push_back(row);
  }
  if (rows.size() > 1) print_table(rows);
  for (const json &r : level["results"]) {
    print_failure(r["shape"], r);
    if (r.contains("bandwidth")) {
      std::printf("%s: K and V at %.1f GB/s, %.2f of a plain read of them (%.1f GB/s), %.2f of the roofline\n",
                  r["shape"].get<std::string>().c_str(), r["bandwidth"].get<double>() / 1e9, r["bandwidth_share"].get<double>(),
                  r["read_bandwidth"].get<double>() / 1e9, r["roofline_share"].get<double>());
    }
  }
  for (const json &r : level["results"]) {
    if (!r.contains("peer_paths")) continue;
    std::printf("%s: peer = %s\n", r["shape"].get<std::string>().c_str(),
                r.contains("peer") ? r["peer"].at("name").get<std::string>().c_str() : "none");
    for (const json &path : r["peer_paths"]) {
      std::printf("    %s: %s%s\n", path.at("path").get<std::string>().c_str(), path.at("status").get<std::string>().c_str(),
                  path.contains("seconds")     ? (", " + time_text(path["seconds"])).c_str()
                  : path.contains("max_error") ? (", max error " + number("%.1e", path["max_error"])).c_str()
                                               : "");
    }
  }
  for (const json &comparison : level.at("comparisons")) print_comparison(comparison, goals);
  if (level.contains("scaling")) print_scaling(level["scaling"], goals);
}

}  // namespace fovea::bench
