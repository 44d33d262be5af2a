// fovea check: calls described by a line of text, against the float64 oracle.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <vector>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "reference/problem_line.h"

namespace fovea::tools {
namespace {

struct Options {
  std::vector<std::string> problems;
  std::string file;
  double limit = 1;
  bool json = false;
};

void read_lines(std::istream &stream, std::vector<std::string> *lines) {
  std::string line;
  while (std::getline(stream, line)) {
    const size_t start = line.find_first_not_of(" \t\r");
    if (start != std::string::npos && line[start] != '#') lines->push_back(line);
  }
}

std::vector<std::string> gather(const Options &options) {
  std::vector<std::string> lines;
  bool in_words = false;
  for (const std::string &text : options.problems) {
    const bool word = text.find_first_of(" \t") == std::string::npos;
    if (text == "-") {
      read_lines(std::cin, &lines);
    } else if (word && in_words) {
      lines.back() += " " + text;
    } else {
      lines.push_back(text);
    }
    in_words = word && text != "-";
  }
  if (options.file == "-") {
    read_lines(std::cin, &lines);
  } else if (!options.file.empty()) {
    std::ifstream stream(options.file);
    if (!stream) throw InputError("--file: cannot open " + options.file);
    read_lines(stream, &lines);
  }
  if (lines.empty()) throw InputError("no problem given; see fovea check --help");
  return lines;
}

// JSON has no infinity, which is the ratio where one side is NaN.
nlohmann::json number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(std::isnan(value) ? "nan" : "inf");
}

// About how many bytes a check takes: the tensors twice, as if all were floats, two copies of the outputs, twice as large while they
// grow, the oracle's results in double, the lengths of both sides, the numbers of heads and the pages of both calls, which grow too, and
// the most workspace that docs/semantics.md allows.
double bytes_to_check(const reference::ProblemLine &p) {
  const double batch = double(p.batch), heads_q = double(p.heads_q), heads_kv = double(p.heads_kv), seq_q = double(p.seq_q),
               seq_kv = double(p.seq_kv), dim_k = double(p.dim_k), dim_v = double(p.dim_v);
  const double pages = p.page_size ? batch * (std::ceil(seq_kv / double(p.page_size)) + 1) + 2 : 0;
  const auto row = [](const std::string &layout, double dim) {
    return layout == "strided" ? 3 * dim : layout == "padded" || layout == "packed" ? dim + 3 : dim;
  };
  const auto elements = [&](const std::string &layout, double heads, double seq, double dim) {
    return (layout == "broadcast" ? 1 : batch * heads) * seq * row(layout, dim);
  };
  const auto cache = [&](const std::string &layout, double dim) {
    if (p.page_size == 0) return elements(layout, heads_kv, seq_kv, dim);
    return (layout == "broadcast" ? 1 : heads_kv) * pages * double(p.page_size) * row(layout, dim);
  };
  const double rows = batch * heads_q * seq_q;
  const double outputs = elements(p.layout_out, heads_q, seq_q, dim_v) + (p.lse ? elements(p.layout_out, heads_q, seq_q, 1) : 0) +
                         (p.weights ? elements(p.layout_out, heads_q, seq_q, seq_kv) : 0);
  const double inputs = elements(p.layout_q, heads_q, seq_q, dim_k) + cache(p.layout_k, dim_k) + cache(p.layout_v, dim_v);
  double mask = p.mask == "none" ? 0 : 1;
  for (const auto &[axis, size] : {std::pair('b', batch), {'h', heads_q}, {'q', seq_q}, {'k', seq_kv}}) {
    if (p.mask_axes.find(axis) != std::string::npos) mask *= size;
  }
  const double doubles = 4 * rows * dim_v + 3 * rows + (p.weights ? 9.0 / 8 * rows * seq_kv : 0) + seq_kv * (dim_k + dim_v);
  const double lists = 20 * batch + 8 * heads_q + 20 * pages;
  const double workspace = double(8 << 20) * p.threads * std::max({1.0, dim_k / 256, dim_v / 256});
  return sizeof(float) * (2 * (inputs + outputs + mask) + 4 * outputs + lists) + sizeof(double) * doubles + workspace;
}

int run(const Options &options) {
  std::vector<reference::ProblemLine> problems;
  for (const std::string &text : gather(options)) {
    reference::ProblemLine problem;
    const std::string wrong = reference::parse(text, &problem);
    if (!wrong.empty()) throw InputError(std::string("'").append(text).append("': ").append(wrong));
    problems.push_back(problem);
  }

  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  size_t passed = 0, wrong = 0;
  for (const reference::ProblemLine &problem : problems) {
    const std::string text = reference::format(problem);
    const std::string place = std::to_string(results.size() + 1) + " of " + std::to_string(problems.size());
    reference::CheckResult result = {};
    result.error = memory_refusal(bytes_to_check(problem));
    if (result.error.empty()) {
      Progress progress;
      const auto on_stage = [&](const std::string &stage) { progress.stage("problem " + place + ": " + stage); };
      on_stage("oracle");
      result = reference::check(problem, reference::line_reference(problem), on_stage);
    }
    const reference::Verdict &verdict = result.verdict;
    nlohmann::ordered_json entry;
    entry["problem"] = text;
    const bool ok = result.ok() && std::max({verdict.out_ratio, verdict.lse_ratio, verdict.weights_ratio}) <= options.limit;
    entry["ok"] = ok;
    if (!result.error.empty()) {
      entry["error"] = result.error;
      if (!options.json) std::printf("refused  %s\n         %s\n", text.c_str(), result.error.c_str());
    } else {
      entry["level"] = result.level;
      entry["max_abs_error"] = number(verdict.max_abs_error);
      entry["max_rel_error"] = number(verdict.max_rel_error);
      entry["out_ratio"] = number(verdict.out_ratio);
      if (problem.lse) entry["lse_ratio"] = number(verdict.lse_ratio);
      if (problem.weights) entry["weights_ratio"] = number(verdict.weights_ratio);
      entry["gaps_intact"] = result.gaps_intact;
      entry["same_bits"] = result.same_bits;
      if (!options.json) {
        std::printf("%s  %s\n         %s, largest error %.3g, error / bound: out %.3g", ok ? "pass   " : "FAIL   ", text.c_str(),
                    result.level.c_str(), verdict.max_abs_error, verdict.out_ratio);
        if (problem.lse) std::printf(", lse %.3g", verdict.lse_ratio);
        if (problem.weights) std::printf(", weights %.3g", verdict.weights_ratio);
        if (!(verdict.out_ratio <= options.limit)) {
          std::printf("; worst at row %lld, dim %lld", static_cast<long long>(verdict.worst_row),
                      static_cast<long long>(verdict.worst_dim));
        }
        std::printf("%s%s\n", result.gaps_intact ? "" : "; WROTE OUTSIDE THE OUTPUT",
                    result.same_bits ? "" : "; OTHER BITS WHEN RUN AGAIN");
      }
      (ok ? passed : wrong) += 1;
    }
    std::fflush(stdout);
    results.push_back(entry);
  }
  const size_t refused = problems.size() - passed - wrong;
  if (options.json) {
    nlohmann::ordered_json report;
    report["problems"] = results;
    report["passed"] = passed;
    report["failed"] = wrong;
    report["refused"] = refused;
    print_json(report);
  } else if (problems.size() > 1) {
    std::printf("%zu passed, %zu failed, %zu refused\n", passed, wrong, refused);
  }
  return wrong > 0 ? kWrong : refused > 0 ? kImpossible : kOk;
}

}  // namespace

void add_check(CLI::App &app, int &exit_code) {
  CLI::App *command = app.add_subcommand("check", "Calls described by a line of text, against the float64 oracle");
  const auto options = std::make_shared<Options>();
  command->add_option("PROBLEM", options->problems,
                      "Words key=value of one problem, or quoted lines, one problem each; - reads lines from stdin");
  command
      ->add_option("--file", options->file,
                   "Read lines from this file, - for stdin; empty ones and those that start with # are skipped")
      ->type_name("FILE");
  command->add_option("--limit", options->limit, "Largest error accepted, as a multiple of the bound")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Keys, each optional: b hq hkv sq skv dk dv (sizes, default 1)  scale=X  causal=none|tl|br\n"
      "  left=N right=N (window, -1 = unbounded)  align=br|tl (its corner, and that of alibi)  softcap=X  alibi=0|1  sinks=0|1\n"
      "  mask=none|bool|f32|f16|bf16  maskaxes= (those it does not repeat along: any of bhqk)\n"
      "  maskfill=random|true|blocks|late|low  lens=full|ragged  packed=0|1|q|kv  pages=N (slots of a page, 0 = none)\n"
      "  score=none|modify|replace\n"
      "  layout=bhsd|bshd|bhds|packed|padded|strided|broadcast (all tensors), or q= k= v= out= (one tensor)\n"
      "  type=f32|f16|bf16 (all four tensors), or tq= tk= tv= tout= (one tensor; tk and tv also i8|q8_0|q4_0)\n"
      "  lse=0|1  weights=0|1  dist=normal|uniform|ones|zero|outlier  gain=X  seed=N\n"
      "  isa=auto|NAME  threads=N  exec=omp|pool|serial\n"
      "Printed: the level that ran, the largest error, and the error as a multiple of the bound of docs/semantics.md, at most "
      "1.\n"
      "Exit codes: 0 all within the bound, 1 some are not, 2 a line is malformed or too large for the memory there is, or the\n"
      "library refuses the call.\n"
      "Example: fovea check b=2 hq=8 hkv=2 sq=100 skv=257 dk=64 dv=64 causal=br isa=avx2 threads=2");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace fovea::tools
