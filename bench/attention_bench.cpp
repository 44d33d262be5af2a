// fovea_bench: whole calls beside a peer library and beside what the machine can do at most, in one run.
//
// A repetition is probe, peak, Fovea, peer, peak, probe on bound cores. It is dropped as disturbed where the probe shows a
// neighbour or the OS gave a core to another process. Shares are of the peak of the same repetition. Every result is held against the float64
// oracle before it is timed. Each level runs in a process of its own, since a peer library can be limited to a level only once.
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <random>

#include "fovea/fovea.h"
#include "machine.h"
#include "peaks.h"
#include "peers/peer.h"
#include "reference/oracle.h"
#include "shapes.h"

namespace fovea::bench {
namespace {

using json = nlohmann::ordered_json;

constexpr double kQuietProbe = 0.94;   // of the probe's maximum: below it a neighbour was at work
constexpr double kMostWaiting = 0.02;  // of the time: above it the OS gave a core to another process
constexpr int kMostTries = 5;          // repetitions tried for each that is wanted
constexpr int kLeastQuiet = 3;         // with fewer undisturbed repetitions there is no figure
constexpr size_t kCheckedRows = 48;
constexpr double kWholeCores = 1.95;  // two threads' peak over one thread's where the machine gives both cores

struct Settings {
  std::vector<std::string> isas, shapes, sets;
  std::string json_file;
  int threads = 1, repetitions = 9;
  double min_time = 0.005;
  bool goals = false, scaling = false, no_peer = false, keep_disturbed = false, quick = false;
};

struct ContextDeleter {
  void operator()(fovea_context *c) const { fovea_context_destroy(c); }
};
using Context = std::unique_ptr<fovea_context, ContextDeleter>;

void must(fovea_status status) {
  if (status != FOVEA_OK) throw std::runtime_error(fovea_last_error());
}

Context make_context(fovea_isa level, int threads) {
  fovea_options options;
  must(fovea_options_init(&options, sizeof options));
  options.isa = level;
  options.num_threads = threads;
  fovea_context *context = nullptr;
  must(fovea_context_create(&options, &context));
  Context owner(context);
  if (fovea_context_isa(context) != level || fovea_context_threads(context) != threads) {
    throw std::runtime_error("the context has another level or other threads than it was asked for");
  }
  return owner;
}

// A call's memory, and the oracle's word on a sample of its rows.
class Call {
 public:
  explicit Call(const Shape &s)
      : q_(size(s.batch * s.heads_q * s.seq_q * s.dim_k)),
        k_(size(s.batch * s.heads_kv * s.seq_kv * s.dim_k)),
        v_(size(s.batch * s.heads_kv * s.seq_kv * s.dim_v)),
        out_(size(s.batch * s.heads_q * s.seq_q * s.dim_v)) {
    must(fovea_params_init(&params, sizeof params, s.batch, s.heads_q, s.heads_kv, s.seq_q, s.seq_kv, s.dim_k, s.dim_v));
    params.q.data = q_.data();
    params.k.data = k_.data();
    params.v.data = v_.data();
    params.out.data = out_.data();
    if (s.causal) {
      params.causal = 1;
      params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
    }
    q_.fill_normal(1);
    k_.fill_normal(2);
    v_.fill_normal(3);

    const int64_t rows = s.batch * s.heads_q * s.seq_q;
    std::mt19937_64 random(4);
    for (size_t i = 0; i < kCheckedRows; i++) rows_.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(rows)));
    rows_.insert(rows_.end(), {0, rows - 1});
    std::sort(rows_.begin(), rows_.end());
    rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
    expected_ = reference::attention(params, false, rows_);
  }

  reference::Verdict judge(const std::function<void()> &run) {
    out_.fill(std::numeric_limits<float>::quiet_NaN());
    run();
    return reference::compare(params, expected_, rows_);
  }

  double bytes_of_keys_and_values() const { return static_cast<double>(k_.size() + v_.size()) * sizeof(float); }
  std::vector<ReadSpan> keys_and_values() {
    return {{k_.data(), static_cast<int64_t>(k_.size())}, {v_.data(), static_cast<int64_t>(v_.size())}};
  }
  std::vector<float> result() { return std::vector<float>(out_.data(), out_.data() + out_.size()); }

  fovea_params params;

 private:
  static size_t size(int64_t count) { return static_cast<size_t>(count); }
  Buffer q_, k_, v_, out_;
  std::vector<int64_t> rows_;
  reference::Expected expected_;
};

// Fovea with the workspace given.
class Forward {
 public:
  Forward(const Call &call, fovea_isa level, int threads) : params_(call.params), context_(make_context(level, threads)) {
    must(fovea_workspace_size(context_.get(), &params_, &bytes_));
    workspace_ = std::make_unique<Buffer>(bytes_ / sizeof(float) + 1);
  }
  void operator()() const { must(fovea_forward(context_.get(), &params_, workspace_->data(), bytes_)); }

 private:
  const fovea_params &params_;
  Context context_;
  size_t bytes_ = 0;
  std::unique_ptr<Buffer> workspace_;
};

double seconds(const std::function<void()> &run, int64_t calls = 1) {
  const double start = now();
  for (int64_t i = 0; i < calls; i++) run();
  return (now() - start) / static_cast<double>(calls);
}

// Calls that fill a timed block, after a first one that warms up.
int64_t calls_for(const std::function<void()> &run, double block) {
  run();
  double best = seconds(run);
  for (int i = 0; i < 3; i++) best = std::min(best, seconds(run));
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(block / best)));
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

json verdict_json(const reference::Verdict &verdict) {
  return {{"max_error", verdict.max_abs_error}, {"error_over_bound", verdict.out_ratio}};
}

struct Repetition {
  double probe;          // the slower one of before and after
  double peak;           // the faster one of before and after
  double waiting;        // share of the time that threads waited for a core
  double first, second;  // seconds a call: Fovea and the peer, or one thread and two
  double extra;          // read bandwidth, or the peak of two threads
};

// The measurements of a level.
class Session {
 public:
  Session(fovea_isa level, const Settings &settings)
      : level_(level),
        settings_(settings),
        loops_(loops_of(level)),
        cores_(pin(settings.threads)),
        peaks_(loops_, settings.threads) {
    if (cores_.empty()) throw std::runtime_error("this process may not use " + std::to_string(settings.threads) + " cores");
    for (int i = 0; i < 20; i++) {  // some tens of milliseconds: the clock rises, and the probe's maximum is known
      probe_max_ = std::max(probe_max_, peaks_.probe());
      exp2_ = std::max(exp2_, peaks_.exp2());
    }
  }

  json run(const std::vector<Shape> &shapes) {
    json level = {{"isa", fovea_isa_name(level_)}, {"threads", settings_.threads}, {"cores", cores_}};
    for (int i = 0; i < 5; i++) peaks_seen_.push_back(peaks_.fma());
    if (!peer_library().empty() && !settings_.no_peer) level["peer_limit"] = limit_peers(level_);
    std::vector<std::pair<json, std::vector<Repetition>>> measured;
    for (const Shape &shape : shapes) {
      say(std::to_string(measured.size() + 1) + "/" + std::to_string(shapes.size()) + " " + format(shape));
      json result = {{"shape", format(shape)}};
      std::vector<Repetition> repetitions;
      try {
        repetitions = measure(shape, &result);
      } catch (const std::exception &error) {
        result["failure"] = error.what();
      }
      measured.emplace_back(std::move(result), std::move(repetitions));
    }
    // Only now is the probe's maximum over the whole run known.
    level["results"] = json::array();
    for (size_t i = 0; i < shapes.size(); i++) {
      summarize(shapes[i], measured[i].second, &measured[i].first);
      level["results"].push_back(measured[i].first);
    }
    level["peak"] = {{"fma", median(peaks_seen_)}, {"exp2", exp2_}, {"probe", probe_max_}};
    if (settings_.scaling) {
      try {
        level["scaling"] = scaling();
      } catch (const std::exception &error) {
        level["scaling"] = {{"failure", error.what()}};
      }
    }
    return level;
  }

 private:
  static const PeakLoops &loops_of(fovea_isa level) {
    const PeakLoops *loops = peak_loops(level);
    if (loops == nullptr) throw std::runtime_error("no peak is measured for this level");
    return *loops;
  }

  void say(const std::string &text) const { std::cerr << fovea_isa_name(level_) << ": " << text << std::endl; }

  bool quiet(const Repetition &r) const { return r.probe >= kQuietProbe * probe_max_ && r.waiting <= kMostWaiting; }
  bool kept(const Repetition &r) const { return settings_.keep_disturbed || quiet(r); }

  int64_t disturbed(const std::vector<Repetition> &all) const {
    return std::count_if(all.begin(), all.end(), [this](const Repetition &r) { return !quiet(r); });
  }

  std::vector<double> kept_values(const std::vector<Repetition> &all,
                                  const std::function<double(const Repetition &)> &value) const {
    std::vector<double> values;
    for (const Repetition &r : all) {
      if (kept(r)) values.push_back(value(r));
    }
    return values;
  }

  // Two calls in turn between two measurements of the machine, until enough repetitions were quiet. The second may be empty.
  std::vector<Repetition> interleave(const Peaks &peaks, const std::function<void()> &first, const std::function<void()> &second,
                                     const std::function<double()> &extra) {
    const int64_t first_calls = calls_for(first, settings_.min_time);
    const int64_t second_calls = second ? calls_for(second, settings_.min_time) : 0;
    std::vector<Repetition> all;
    double probe = peaks.probe();
    for (int good = 0; good < settings_.repetitions && static_cast<int>(all.size()) < kMostTries * settings_.repetitions;) {
      Repetition r = {};
      const double peak_before = peaks.fma();
      const double start = now(), waiting_start = waiting_seconds();
      r.first = seconds(first, first_calls);
      if (second) r.second = seconds(second, second_calls);
      r.waiting = (waiting_seconds() - waiting_start) / (now() - start);
      r.extra = extra ? extra() : 0;
      r.peak = std::max(peak_before, peaks.fma());
      const double probe_after = peaks.probe();
      r.probe = std::min(probe, probe_after);
      probe_max_ = std::max({probe_max_, probe, probe_after});
      probe = probe_after;
      good += kept(r);
      all.push_back(r);
    }
    return all;
  }

  // The fastest right path of the peer library; how all of them fared is noted.
  std::unique_ptr<Peer> choose_peer(Call &call, json *result) {
    std::unique_ptr<Peer> best;
    double best_seconds = std::numeric_limits<double>::infinity();
    json paths = json::array();
    for (Offer &offer : offers(call.params, settings_.threads)) {
      json path = {{"path", offer.path}};
      if (offer.peer == nullptr) {
        path["status"] = offer.refusal;
      } else {
        const reference::Verdict verdict = call.judge([&] {
          offer.peer->run();
          offer.peer->rearrange();
        });
        path.update(verdict_json(verdict));
        if (!verdict.ok()) {
          path["status"] = "wrong";
        } else {
          const std::function<void()> run = [&] { offer.peer->run(); };
          const int64_t calls = calls_for(run, settings_.min_time);
          const double fastest = std::min(seconds(run, calls), seconds(run, calls));
          path["status"] = "right";
          path["seconds"] = fastest;
          if (fastest < best_seconds) {
            best_seconds = fastest;
            best = std::move(offer.peer);
            (*result)["peer"] = {{"name", best->name()}};
            (*result)["peer"].update(verdict_json(verdict));
          }
        }
      }
      paths.push_back(path);
    }
    (*result)["peer_paths"] = paths;
    return best;
  }

  std::vector<Repetition> measure(const Shape &shape, json *result) {
    Call call(shape);
    const Forward fovea(call, level_, settings_.threads);
    const reference::Verdict verdict = call.judge(std::cref(fovea));
    (*result)["fovea"] = verdict_json(verdict);
    if (!verdict.ok()) {
      (*result)["failure"] = "wrong result";
      return {};
    }
    const std::unique_ptr<Peer> peer = settings_.no_peer ? nullptr : choose_peer(call, result);
    std::function<void()> second;
    if (peer != nullptr) second = [&] { peer->run(); };
    std::function<double()> read;
    if (is_decode(shape)) {
      const double bytes = call.bytes_of_keys_and_values();
      (*result)["bytes"] = bytes;
      const int64_t passes = calls_for([&] { peaks_.read(call.keys_and_values()); }, settings_.min_time);
      read = [this, &call, passes] {
        double best = 0;
        for (int64_t i = 0; i < passes; i++) best = std::max(best, peaks_.read(call.keys_and_values()));
        return best;
      };
    }
    return interleave(peaks_, std::cref(fovea), second, read);
  }

  void summarize(const Shape &shape, const std::vector<Repetition> &all, json *result) {
    for (const Repetition &r : all) peaks_seen_.push_back(r.peak);
    if (result->contains("failure")) return;
    const double work = flops(shape);
    const std::vector<double> shares = kept_values(all, [&](const Repetition &r) { return work / r.first / r.peak; });
    (*result)["repetitions"] = shares.size();
    (*result)["disturbed"] = disturbed(all);
    if (static_cast<int>(shares.size()) < kLeastQuiet) {
      (*result)["failure"] = "the machine was too busy: " + std::to_string(shares.size()) + " of " + std::to_string(all.size()) +
                             " repetitions undisturbed";
      return;
    }
    const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
    const double call_seconds = median(kept_values(all, [](const Repetition &r) { return r.first; }));
    json &fovea = (*result)["fovea"];
    fovea["seconds"] = call_seconds;
    fovea["flops_per_second"] = work / call_seconds;
    fovea["share"] = median(shares);
    fovea["best_share"] = *most;
    fovea["spread"] = (*most - *least) / median(shares);
    if (result->contains("peer")) {
      json &peer = (*result)["peer"];
      const double peer_seconds = median(kept_values(all, [](const Repetition &r) { return r.second; }));
      peer["seconds"] = peer_seconds;
      peer["flops_per_second"] = work / peer_seconds;
      peer["share"] = median(kept_values(all, [&](const Repetition &r) { return work / r.second / r.peak; }));
      (*result)["ratio"] = median(kept_values(all, [](const Repetition &r) { return r.second / r.first; }));
    }
    if (result->contains("bytes")) {
      const double bytes = (*result)["bytes"];
      (*result)["bandwidth"] = bytes / call_seconds;
      (*result)["read_bandwidth"] = median(kept_values(all, [](const Repetition &r) { return r.extra; }));
      (*result)["bandwidth_share"] = median(kept_values(all, [&](const Repetition &r) { return bytes / r.first / r.extra; }));
    }
    const Goal wanted = goal(shape, level_);
    if (settings_.threads == 1 && wanted.share > 0) {
      (*result)["goal"] = {{"share", wanted.share}, {"met", median(shares) >= wanted.share}};
    } else if (settings_.threads == 1 && wanted.seconds > 0) {
      (*result)["goal"] = {{"seconds", wanted.seconds}, {"met", call_seconds <= wanted.seconds}};
    }
  }

  json scaling() {
    say("scaling " + format(scaling_shape()));
    if (pin(2).empty()) throw std::runtime_error("this process may not use two cores");
    const Peaks one_peak(loops_, 1), two_peak(loops_, 2);
    probe_max_ = 0;  // from here on of two threads
    for (int i = 0; i < 20; i++) probe_max_ = std::max(probe_max_, two_peak.probe());
    Call call(scaling_shape());
    const Forward one(call, level_, 1), two(call, level_, 2);
    if (!call.judge(std::cref(one)).ok()) throw std::runtime_error("wrong result on one thread");
    const std::vector<float> result_of_one = call.result();
    if (!call.judge(std::cref(two)).ok()) throw std::runtime_error("wrong result on two threads");
    const std::vector<float> result_of_two = call.result();
    if (std::memcmp(result_of_one.data(), result_of_two.data(), result_of_one.size() * sizeof(float)) != 0) {
      throw std::runtime_error("one thread and two give different bits");
    }
    const std::vector<Repetition> all = interleave(two_peak, std::cref(one), std::cref(two), [&] { return one_peak.fma(); });
    const std::vector<double> ratios = kept_values(all, [](const Repetition &r) { return r.first / r.second; });
    if (static_cast<int>(ratios.size()) < kLeastQuiet) throw std::runtime_error("the machine was too busy");
    const double machine = median(kept_values(all, [](const Repetition &r) { return r.peak / r.extra; }));
    json result = {{"shape", format(scaling_shape())},
                   {"ratio", median(ratios)},
                   {"peak_ratio", machine},
                   {"repetitions", ratios.size()},
                   {"disturbed", disturbed(all)}};
    if (machine >= kWholeCores) result["goal"] = {{"ratio", kScalingGoal}, {"met", median(ratios) >= kScalingGoal}};
    return result;
  }

  const fovea_isa level_;
  const Settings &settings_;
  const PeakLoops &loops_;
  const std::vector<int> cores_;
  const Peaks peaks_;
  double probe_max_ = 0, exp2_ = 0;
  std::vector<double> peaks_seen_;
};

// Runs a level in a child process and returns its report.
json run_level(fovea_isa level, const Settings &settings, const std::vector<Shape> &shapes) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no child process");
  if (child == 0) {
    close(ends[0]);
    json report;
    try {
      report = Session(level, settings).run(shapes);
    } catch (const std::exception &error) {
      report = {{"isa", fovea_isa_name(level)}, {"failure", error.what()}};
    }
    std::FILE *pipe_end = fdopen(ends[1], "w");
    const std::string text = report.dump();
    const bool written = std::fwrite(text.data(), 1, text.size(), pipe_end) == text.size() && std::fclose(pipe_end) == 0;
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t count; (count = read(ends[0], part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(count));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  const json report = json::parse(text, nullptr, false);
  if (status != 0 || report.is_discarded())
    return {{"isa", fovea_isa_name(level)}, {"failure", "the process of this level died"}};
  return report;
}

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

void print_level(const json &level, bool goals) {
  std::printf("\n%s", level.at("isa").get<std::string>().c_str());
  if (level.contains("failure")) {
    std::printf(": %s\n", level["failure"].get<std::string>().c_str());
    return;
  }
  std::printf(", %d thread(s): peak %.1f GFLOP/s f32, exp2 %.2f G/s", level.at("threads").get<int>(),
              level.at("peak").at("fma").get<double>() / 1e9, level["peak"].at("exp2").get<double>() / 1e9);
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
      row.push_back(std::to_string(r.at("repetitions").get<int>()) + " (" + std::to_string(r.at("disturbed").get<int>()) + ")");
      if (goals && r.contains("goal")) {
        const json &wanted = r["goal"];
        row.push_back(
            (wanted.contains("share") ? ">= " + number("%.2f", wanted["share"]) : "<= " + time_text(wanted["seconds"])) +
            (wanted.at("met").get<bool>() ? " met" : " MISSED"));
      } else if (goals) {
        row.push_back("-");
      }
    }
    rows.push_back(row);
  }
  if (rows.size() > 1) print_table(rows);
  for (const json &r : level["results"]) {
    if (r.contains("failure")) {
      std::printf("%s: NO FIGURE: %s\n", r["shape"].get<std::string>().c_str(), r["failure"].get<std::string>().c_str());
    }
    if (r.contains("bandwidth")) {
      std::printf("%s: K and V at %.1f GB/s, %.2f of a plain read of them (%.1f GB/s)\n", r["shape"].get<std::string>().c_str(),
                  r["bandwidth"].get<double>() / 1e9, r["bandwidth_share"].get<double>(),
                  r["read_bandwidth"].get<double>() / 1e9);
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
  if (level.contains("scaling")) {
    const json &s = level["scaling"];
    if (s.contains("failure")) {
      std::printf("two threads: %s\n", s["failure"].get<std::string>().c_str());
    } else {
      std::printf("two threads on %s: %.2fx one thread (the peak itself: %.2fx)%s\n", s["shape"].get<std::string>().c_str(),
                  s["ratio"].get<double>(), s["peak_ratio"].get<double>(),
                  !goals                         ? ""
                  : !s.contains("goal")          ? ", not judged: the machine does not give both cores"
                  : s["goal"]["met"].get<bool>() ? ", goal met"
                                                 : ", goal MISSED");
    }
  }
}

// A wrong or missing figure is a failure; with --goals so is a goal that is not met.
bool succeeded(const json &level, bool goals) {
  if (level.contains("failure")) return false;
  const auto good = [&](const json &r) {
    return !r.contains("failure") && !(goals && r.contains("goal") && !r["goal"]["met"].get<bool>());
  };
  return std::all_of(level.at("results").begin(), level.at("results").end(), good) &&
         (!level.contains("scaling") || good(level["scaling"]));
}

std::vector<fovea_isa> chosen_levels(const std::vector<std::string> &names) {
  std::vector<fovea_isa> levels(static_cast<size_t>(fovea_isa_list(nullptr, 0, 1)));
  levels.resize(static_cast<size_t>(fovea_isa_list(levels.data(), static_cast<int32_t>(levels.size()), 1)));
  std::reverse(levels.begin(), levels.end());
  if (names.empty()) return levels;
  std::vector<fovea_isa> chosen;
  for (const std::string &name : names) {
    const auto found = std::find_if(levels.begin(), levels.end(), [&](fovea_isa level) { return name == fovea_isa_name(level); });
    if (found == levels.end()) throw std::invalid_argument("'" + name + "' is not a level that can run here");
    chosen.push_back(*found);
  }
  return chosen;
}

std::string today() {
  const std::time_t time = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&time));
  return text;
}

int bench(int argc, char **argv) {
  Settings settings;
  CLI::App app(
      "Measures whole attention calls: share of the machine's measured peak, ratio to oneDNN, error against the oracle.");
  app.add_option("--isa", settings.isas, "levels, comma-separated (default: all usable)")->delimiter(',');
  app.add_option("--threads", settings.threads, "threads, each bound to a core")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--shape", settings.shapes, "batch,heads_q,heads_kv,seq_q,seq_kv,dim_k[/dim_v] [causal]; quoted, repeatable")
      ->allow_extra_args(false);
  app.add_option("--set", settings.sets, "core, decode, quick or smoke; repeatable (default: core)")->allow_extra_args(false);
  app.add_option("--min-time", settings.min_time, "seconds of a timed block")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--repetitions", settings.repetitions, "undisturbed repetitions wanted")
      ->check(CLI::Range(kLeastQuiet, 1000))
      ->capture_default_str();
  app.add_flag("--goals", settings.goals, "print each goal; exit with 1 if one is not met");
  app.add_flag("--scaling", settings.scaling, "also two threads against one (alone, if no shape is named)");
  app.add_flag("--keep-disturbed", settings.keep_disturbed, "use all repetitions, for trying the bench on a busy machine");
  app.add_flag("--quick", settings.quick,
               "the quick set on the best level, few repetitions, disturbed ones kept: a first impression");
  app.add_flag("--no-peer", settings.no_peer, "measure Fovea alone");
  app.add_option("--json", settings.json_file, "write the report there");
  CLI11_PARSE(app, argc, argv);

  std::vector<Shape> shapes;
  std::vector<fovea_isa> levels;
  try {
    if (settings.quick) {
      settings.sets = {"quick"};
      settings.repetitions = kLeastQuiet;
      settings.keep_disturbed = true;
    }
    for (const std::string &text : settings.shapes) shapes.push_back(parse_shape(text));
    if (settings.sets.empty() && settings.shapes.empty() && !settings.scaling) settings.sets = {"core"};
    for (const std::string &name : settings.sets) {
      for (const Shape &shape : shape_set(name)) shapes.push_back(shape);
    }
    levels = chosen_levels(settings.isas);
    if (settings.quick && settings.isas.empty()) levels.resize(1);
  } catch (const std::invalid_argument &error) {
    std::cerr << error.what() << std::endl;
    return 2;
  }

  keep_freed_memory();
  json report = {{"fovea", fovea_version()},
                 {"date", today()},
                 {"processor", processor_name()},
                 {"threads", settings.threads},
                 {"disturbed_kept", settings.keep_disturbed}};
  if (!peer_library().empty() && !settings.no_peer) report["peer"] = peer_library();
  std::printf("Fovea %s on %s%s\n", fovea_version(), processor_name().c_str(),
              report.contains("peer") ? (", beside " + peer_library()).c_str() : "");
  std::fflush(stdout);  // before the first fork
  bool success = true;
  report["levels"] = json::array();
  for (const fovea_isa level : levels) {
    report["levels"].push_back(run_level(level, settings, shapes));
    print_level(report["levels"].back(), settings.goals);
    std::fflush(stdout);
    success = success && succeeded(report["levels"].back(), settings.goals);
  }
  if (!settings.json_file.empty()) {
    std::ofstream file(settings.json_file);
    file << report.dump(2) << std::endl;
    if (!file) {
      std::cerr << "cannot write " << settings.json_file << std::endl;
      return 2;
    }
  }
  return success ? 0 : 1;
}

}  // namespace
}  // namespace fovea::bench

int main(int argc, char **argv) { return fovea::bench::bench(argc, argv); }
