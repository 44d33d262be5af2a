// fovea_bench: whole calls beside a peer library and beside what the machine can do at most, and calls with a feature beside the
// plain one, in one run.
//
// A repetition is probe, peak, Fovea, peer, peak, probe on bound cores; for a feature the plain call and that with the feature take
// the places of Fovea and the peer. It is dropped as disturbed where the probe shows a neighbour or the OS gave a core to another
// process. Shares are of the peak of the same repetition. Every result is held against the float64 oracle before it is timed. Each
// level runs in a process of its own, since a peer library can be limited to a level only once.
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>

#include "call.h"
#include "feature_list.h"
#include "fovea/fovea.h"
#include "machine.h"
#include "peaks.h"
#include "peers/peer.h"
#include "print.h"
#include "reference/oracle.h"
#include "shapes.h"

namespace fovea::bench {
namespace {

using json = nlohmann::ordered_json;

constexpr double kQuietProbe = 0.94;   // of the probe's maximum: below it a neighbour was at work
constexpr double kMostWaiting = 0.02;  // of the time: above it the OS gave a core to another process
constexpr int kMostTries = 5;          // repetitions tried for each that is wanted
constexpr int kLeastQuiet = 3;         // with fewer undisturbed repetitions there is no figure
constexpr double kWholeCores = 1.95;   // two threads' peak over one thread's where the machine gives both cores

struct Settings {
  std::vector<std::string> isas, shapes, sets;
  std::vector<Comparison> comparisons;
  std::string json_file;
  int threads = 1, repetitions = 9;
  double min_time = 0.005;
  bool goals = false, scaling = false, no_peer = false, keep_disturbed = false, quick = false;
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
  for (int i = 0; i < 3 && best < block; i++) best = std::min(best, seconds(run));
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(block / best)));
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double spread(const std::vector<double> &values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return (*most - *least) / median(values);
}

json verdict_json(const reference::Verdict &verdict) {
  return {{"max_error", verdict.max_abs_error}, {"error_over_bound", verdict.out_ratio}};
}

struct Repetition {
  double probe;          // the slower one of before and after
  double peak;           // the faster one of before and after
  double waiting;        // share of the time that threads waited for a core
  double first, second;  // seconds a call: Fovea and the peer, or one thread and two, or the plain call and that with a feature
  double extra;          // read bandwidth, or how many times one thread's rate the machine gives to several
};

// What is known of a shape or a feature: its result so far, with "failure" where there is no figure, and the repetitions.
struct Measured {
  json result;
  std::vector<Repetition> repetitions;
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
      bf16_dot_ = std::max(bf16_dot_, peaks_.bf16_dot());
    }
  }

  json run(const std::vector<Shape> &shapes) {
    json level = {{"isa", fovea_isa_name(level_)}, {"threads", settings_.threads}, {"cores", cores_}};
    for (int i = 0; i < 5; i++) peaks_seen_.push_back(peaks_.fma());
    if (!peer_library().empty() && !settings_.no_peer) level["peer_limit"] = limit_peers(level_);
    std::vector<Measured> measured;
    for (const Shape &shape : shapes) {
      say(std::to_string(measured.size() + 1) + "/" + std::to_string(shapes.size()) + " " + format(shape));
      measured.push_back(attempt({{"shape", format(shape)}, {"type", type_name(shape.type)}, {"decode", in_decode_set(shape)}},
                                 [&](json *result) { return measure(shape, result); }));
    }
    std::vector<std::vector<Measured>> compared;
    for (const Comparison &comparison : settings_.comparisons) compared.push_back(compare(comparison));
    // Only now is the probe's maximum over the whole run known.
    level["results"] = json::array();
    for (size_t i = 0; i < shapes.size(); i++) {
      summarize(shapes[i], &measured[i]);
      level["results"].push_back(measured[i].result);
    }
    level["comparisons"] = json::array();
    for (size_t c = 0; c < compared.size(); c++) {
      const Comparison &comparison = settings_.comparisons[c];
      json results = json::array();
      for (size_t i = 0; i < compared[c].size(); i++) {
        summarize(comparison.features[i], &compared[c][i]);
        results.push_back(compared[c][i].result);
      }
      level["comparisons"].push_back({{"set", comparison.set}, {"shape", format(comparison.shape)}, {"results", results}});
    }
    level["peak"] = {{"fma", median(peaks_seen_)}, {"exp2", exp2_}, {"probe", probe_max_}};
    if (bf16_dot_ > 0) level["peak"]["bf16_dot"] = bf16_dot_;
    if (settings_.scaling) level["scaling"] = scaling();
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

  static Measured attempt(json result, const std::function<std::vector<Repetition>(json *)> &measure) {
    Measured measured = {std::move(result), {}};
    try {
      measured.repetitions = measure(&measured.result);
    } catch (const std::exception &error) {
      measured.result["failure"] = error.what();
    }
    return measured;
  }

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
      r.extra = extra ? extra() : 0;
      r.waiting = (waiting_seconds() - waiting_start) / (now() - start);
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
    (*result)["flops_per_byte"] = flops(shape) / call.bytes();
    (*result)["fovea"] = judge(call, fovea);
    const bool has_peer = !settings_.no_peer && shape.type == FOVEA_F32;
    const std::unique_ptr<Peer> peer = has_peer ? choose_peer(call, result) : nullptr;
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

  // Each feature in turn with the plain call of the same tensors.
  std::vector<Measured> compare(const Comparison &comparison) {
    const Call plain(comparison.shape);
    const Forward run_plain(plain, level_, settings_.threads);
    std::vector<Measured> measured;
    for (const Feature &feature : comparison.features) {
      say(comparison.set + " " + std::to_string(measured.size() + 1) + "/" + std::to_string(comparison.features.size()) + " " +
          format(comparison.shape) + ", " + feature.name);
      measured.push_back(attempt({{"feature", feature.name}}, [&](json *result) {
        Call call = plain.with(feature);
        const Forward run(call, level_, settings_.threads);
        result->update(judge(call, run));
        return interleave(peaks_, std::cref(run_plain), std::cref(run), nullptr);
      }));
    }
    return measured;
  }

  // Throws where the result is wrong.
  static json judge(Call &call, const Forward &run) {
    const reference::Verdict verdict = call.judge(std::cref(run));
    if (!verdict.ok()) throw std::runtime_error("wrong result, error / bound " + std::to_string(verdict.out_ratio));
    return verdict_json(verdict);
  }

  // Whether there are enough undisturbed repetitions for a figure; notes how many there are.
  bool enough(Measured *measured) const {
    json &result = measured->result;
    const int64_t all = static_cast<int64_t>(measured->repetitions.size()), disturbed_ones = disturbed(measured->repetitions);
    const int64_t kept_ones = settings_.keep_disturbed ? all : all - disturbed_ones;
    if (result.contains("failure")) return false;
    result["repetitions"] = kept_ones;
    result["disturbed"] = disturbed_ones;
    if (kept_ones >= kLeastQuiet) return true;
    result["failure"] =
        "the machine was too busy: " + std::to_string(kept_ones) + " of " + std::to_string(all) + " repetitions undisturbed";
    return false;
  }

  void summarize(const Feature &feature, Measured *measured) {
    const std::vector<Repetition> &all = measured->repetitions;
    for (const Repetition &r : all) peaks_seen_.push_back(r.peak);
    if (!enough(measured)) return;
    json &result = measured->result;
    const std::vector<double> ratios = kept_values(all, [](const Repetition &r) { return r.second / r.first; });
    const double ratio = median(ratios);
    result["seconds"] = median(kept_values(all, [](const Repetition &r) { return r.second; }));
    result["plain_seconds"] = median(kept_values(all, [](const Repetition &r) { return r.first; }));
    result["ratio"] = ratio;
    result["spread"] = spread(ratios);
    const double most = loops_.bf16_dot != nullptr && feature.most_by_bf16_dot > 0 ? feature.most_by_bf16_dot : feature.most;
    if (has_goals(level_) && settings_.threads == 1 && most > 0) {
      result["goal"] = {{"ratio", most}, {"met", ratio <= most}};
    }
  }

  void summarize(const Shape &shape, Measured *measured) {
    const std::vector<Repetition> &all = measured->repetitions;
    for (const Repetition &r : all) peaks_seen_.push_back(r.peak);
    if (!enough(measured)) return;
    json *result = &measured->result;
    const double work = flops(shape);
    const std::vector<double> shares = kept_values(all, [&](const Repetition &r) { return work / r.first / r.peak; });
    const double call_seconds = median(kept_values(all, [](const Repetition &r) { return r.first; }));
    json &fovea = (*result)["fovea"];
    fovea["seconds"] = call_seconds;
    fovea["flops_per_second"] = work / call_seconds;
    fovea["share"] = median(shares);
    fovea["best_share"] = *std::max_element(shares.begin(), shares.end());
    fovea["spread"] = spread(shares);
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
      (*result)["roofline_share"] =
          median(kept_values(all, [&](const Repetition &r) { return std::max(bytes / r.extra, work / r.peak) / r.first; }));
    }
    const Goal wanted = goal(shape, level_);
    if (settings_.threads == 1 && wanted.share > 0) {
      (*result)["goal"] = {{"share", wanted.share}, {"met", median(shares) >= wanted.share}};
    } else if (settings_.threads == 1 && wanted.seconds > 0) {
      (*result)["goal"] = {{"seconds", wanted.seconds}, {"met", call_seconds <= wanted.seconds}};
    } else if (settings_.threads <= 2 && wanted.roofline > 0) {
      (*result)["goal"] = {{"roofline", wanted.roofline}, {"met", (*result)["roofline_share"] >= wanted.roofline}};
    }
  }

  // Each shape on all numbers of threads that are powers of 2 and have cores, beside one thread.
  json scaling() {
    if (pin(2).empty())
      return json::array({{{"shape", "any"}, {"threads", 2}, {"failure", "this process may not use two cores"}}});
    json results = json::array();
    for (const Shape &shape : scaling_shapes()) {
      for (int threads = 2; !pin(threads).empty(); threads *= 2) {
        say("scaling " + format(shape) + " on " + std::to_string(threads));
        Measured measured =
            attempt({{"shape", format(shape)}, {"threads", threads}}, [&](json *) { return scale(shape, threads); });
        if (enough(&measured)) {
          const std::vector<Repetition> &all = measured.repetitions;
          json &result = measured.result;
          result["ratio"] = median(kept_values(all, [](const Repetition &r) { return r.first / r.second; }));
          result["machine_ratio"] = median(kept_values(all, [](const Repetition &r) { return r.extra; }));
          if (results.empty() && result["machine_ratio"] >= kWholeCores)
            result["goal"] = {{"ratio", kScalingGoal}, {"met", result["ratio"] >= kScalingGoal}};
        }
        results.push_back(measured.result);
      }
    }
    return results;
  }

  // What the machine gives to several threads is its multiply-adds, or its reading of keys and values that are not in cache.
  std::vector<Repetition> scale(const Shape &shape, int threads) {
    const Peaks one_peak(loops_, 1), many_peak(loops_, threads);
    probe_max_ = 0;  // from here on of so many threads
    for (int i = 0; i < 20; i++) probe_max_ = std::max(probe_max_, many_peak.probe());
    Call call(shape);
    const Forward one(call, level_, 1), many(call, level_, threads);
    judge(call, one);
    const std::vector<char> result_of_one = call.result();
    judge(call, many);
    if (result_of_one != call.result()) throw std::runtime_error("the bits differ from those of one thread");
    const auto rate = [&](const Peaks &peaks) { return is_decode(shape) ? peaks.read(call.keys_and_values()) : peaks.fma(); };
    return interleave(many_peak, std::cref(one), std::cref(many), [&] { return rate(many_peak) / rate(one_peak); });
  }

  const fovea_isa level_;
  const Settings &settings_;
  const PeakLoops &loops_;
  const std::vector<int> cores_;
  const Peaks peaks_;
  double probe_max_ = 0, exp2_ = 0, bf16_dot_ = 0;
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

// A wrong or missing figure is a failure; with --goals so is a goal that is not met.
bool succeeded(const json &level, bool goals) {
  if (level.contains("failure")) return false;
  const auto good = [&](const json &r) {
    return !r.contains("failure") && !(goals && r.contains("goal") && !r["goal"]["met"].get<bool>());
  };
  const auto all_good = [&](const json &results) { return std::all_of(results.begin(), results.end(), good); };
  const json &comparisons = level.at("comparisons");
  return all_good(level.at("results")) &&
         std::all_of(comparisons.begin(), comparisons.end(), [&](const json &c) { return all_good(c.at("results")); }) &&
         (!level.contains("scaling") || all_good(level["scaling"]));
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
  app.add_option("--shape", settings.shapes,
                 "batch,heads_q,heads_kv,seq_q,seq_kv,dim_k[/dim_v] [causal] [type]; quoted, repeatable")
      ->allow_extra_args(false);
  app.add_option("--set", settings.sets,
                 "core, core16 (the same in f16 and bf16), decode, quick or smoke; features or types: what each costs beside the "
                 "plain f32 call; repeatable (default: core)")
      ->allow_extra_args(false);
  app.add_option("--min-time", settings.min_time, "seconds of a timed block")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--repetitions", settings.repetitions, "undisturbed repetitions wanted")
      ->check(CLI::Range(kLeastQuiet, 1000))
      ->capture_default_str();
  app.add_flag("--goals", settings.goals, "print each goal; exit with 1 if one is not met");
  app.add_flag("--scaling", settings.scaling, "also several threads against one (alone, if no shape is named)");
  app.add_flag("--keep-disturbed", settings.keep_disturbed, "use all repetitions, for trying the bench on a busy machine");
  app.add_flag(
      "--quick", settings.quick,
      "a first impression: few repetitions, disturbed ones kept, the best level and the quick set unless others are named");
  app.add_flag("--no-peer", settings.no_peer, "measure Fovea alone");
  app.add_option("--json", settings.json_file, "write the report there");
  CLI11_PARSE(app, argc, argv);

  std::vector<Shape> shapes;
  std::vector<fovea_isa> levels;
  try {
    if (settings.quick) {
      if (settings.sets.empty() && settings.shapes.empty()) settings.sets = {"quick"};
      settings.repetitions = kLeastQuiet;
      settings.keep_disturbed = true;
    }
    for (const std::string &text : settings.shapes) shapes.push_back(parse_shape(text));
    if (settings.sets.empty() && settings.shapes.empty() && !settings.scaling) settings.sets = {"core"};
    for (const std::string &name : settings.sets) {
      const std::vector<Comparison> compared = comparisons(name);
      settings.comparisons.insert(settings.comparisons.end(), compared.begin(), compared.end());
      if (!compared.empty()) continue;
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
