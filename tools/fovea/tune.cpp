// fovea tune: the parameters that are fastest on this machine, level by level, and the table of them that the library loads.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "api/call.h"
#include "api/context.h"
#include "api/tuning.h"
#include "commands.h"
#include "cpu/cpu.h"

namespace fovea::tools {
namespace {

struct Options {
  std::vector<std::string> levels;
  int32_t threads = 1;
  std::string from, out;
  bool quick = false, check = false, json = false;
};

// The least that a table has to gain: builds of the same code differ by as much.
constexpr double kLeastGain = 0.005;
// How many times its standard error a difference must be to be one: of a hundred comparisons none then is a difference by chance.
constexpr double kSure = 3;
// How much slower than what is tuned the defaults may be.
constexpr double kCheckedLoss = 0.03;

struct Shape {
  const char *name;
  Sizes sizes;
  bool causal;
  bool quick;            // measured with --quick too
  fovea_dtype type;      // of keys and values
  int32_t from_threads;  // measured with so many threads or more
  uintptr_t past_line;   // bytes of a tensor behind the start of a cache line: 0, or the 16 that malloc() puts before a block
};

// Where the time is in one part of a call each: tiles of scores, of outputs, short calls, inputs on either side of what a cache holds, masked
// panels, keys from memory. How far ahead these are best fetched depends on whether they begin with a cache line.
constexpr Shape kShapes[] = {
    {"prefill, long", {1, 4, 4, 2048, 2048, 64, 64}, false, false, FOVEA_F32, 1, 0},
    {"prefill, middling", {1, 12, 12, 512, 512, 64, 64}, false, true, FOVEA_F32, 1, 0},
    {"prefill, short", {1, 8, 8, 64, 64, 64, 64}, false, true, FOVEA_F32, 1, 0},
    {"prefill, 256 dims", {1, 2, 2, 1024, 1024, 256, 256}, false, false, FOVEA_F32, 1, 0},
    {"prefill, many heads", {4, 8, 8, 512, 512, 128, 128}, false, false, FOVEA_F32, 1, 0},
    {"causal, long", {1, 8, 2, 1024, 1024, 128, 128}, true, false, FOVEA_F32, 1, 0},
    {"causal, middling", {1, 12, 12, 512, 512, 64, 64}, true, true, FOVEA_F32, 1, 0},
    {"decode, one row", {16, 8, 8, 1, 1024, 128, 128}, false, false, FOVEA_F32, 1, 0},
    {"decode, row off a line", {16, 8, 8, 1, 1024, 128, 128}, false, false, FOVEA_F32, 1, 16},
    {"decode, groups of 4", {1, 32, 8, 1, 16384, 128, 128}, false, true, FOVEA_BF16, 1, 0},
    {"decode, off a line", {1, 32, 8, 1, 16384, 128, 128}, false, true, FOVEA_BF16, 1, 16},
    {"decode, one head", {1, 4, 1, 1, 16384, 128, 128}, false, true, FOVEA_BF16, 2, 0},
};

std::vector<int64_t> candidates(const TuningParameter &parameter, const KernelShape &shape) {
  constexpr int64_t kKiB = 1024, kMiB = kKiB * kKiB;
  const std::string name = parameter.name;
  if (name == "group_panels") return {2, 4, 8, 16, 32};
  if (name == "task_bytes") return {128 * kKiB, 256 * kKiB, 384 * kKiB, 512 * kKiB, 768 * kKiB, kMiB, 3 * kMiB / 2, 2 * kMiB};
  if (name == "tasks_per_worker") return {1, 2, 3, 4, 6, 8, 16};
  if (name == "cached_bytes") return {kMiB, 2 * kMiB, 4 * kMiB, 8 * kMiB, 16 * kMiB, 32 * kMiB, 64 * kMiB};
  if (name == "ahead_bytes") return {0, 2 * kKiB, 4 * kKiB, 8 * kKiB, 16 * kKiB, 32 * kKiB};
  const TuningRange range = tuning_range(parameter, shape);
  std::vector<int64_t> all;
  for (int64_t value = range.least; value <= range.most; value += range.unit) all.push_back(value);
  return all;
}

// What a value of a parameter did to the time of the calls that it matters to, when it was tried.
struct Trial {
  const TuningParameter *parameter;
  int64_t value;
  double ratio;  // of the times, with this value and with the best so far
};

// A kernel of a level, and which values its parameters have.
struct Level {
  fovea_isa isa;
  int32_t kernel;  // its place in the registry
  Tuning defaults, tuned;
  std::vector<Trial> trials;
};

// A call of a shape, with its memory.
class Workload {
 public:
  // all_bf16: for kernels that multiply nothing else.
  Workload(const Shape &shape, bool all_bf16) : shape_(shape) {
    const Sizes &n = shape.sizes;
    require_ok(fovea_params_init(&params_, sizeof params_, n.batch, n.heads_q, n.heads_kv, n.seq_q, n.seq_kv, n.dim_k, n.dim_v));
    fill(params_.q, n.batch * n.heads_q * n.seq_q * n.dim_k, all_bf16 ? FOVEA_BF16 : FOVEA_F32);
    fill(params_.k, n.batch * n.heads_kv * n.seq_kv * n.dim_k, all_bf16 ? FOVEA_BF16 : shape.type);
    fill(params_.v, n.batch * n.heads_kv * n.seq_kv * n.dim_v, all_bf16 ? FOVEA_BF16 : shape.type);
    fill(params_.out, n.batch * n.heads_q * n.seq_q * n.dim_v, FOVEA_F32);
    params_.causal = shape.causal ? 1 : 0;
    params_.align = shape.causal ? FOVEA_ALIGN_BOTTOM_RIGHT : FOVEA_ALIGN_NONE;
  }

  const Shape &shape() const { return shape_; }
  const fovea_params &params() const { return params_; }

 private:
  void fill(fovea_tensor &tensor, int64_t count, fovea_dtype type) {
    constexpr uintptr_t kLineBytes = 64;
    const bool half = type == FOVEA_BF16;
    memory_.emplace_back(static_cast<size_t>(half ? (count + 1) / 2 : count) + 2 * kLineBytes / sizeof(uint32_t));
    uint32_t random = 1;
    for (uint32_t &bits : memory_.back()) {
      random = random * 1664525 + 1013904223;  // Numerical Recipes' generator
      const float number = static_cast<float>(random >> 8) * 0x1p-23f - 1;
      std::memcpy(&bits, &number, sizeof bits);
      if (half) bits = bits >> 16 | (bits & 0xffff0000);
    }
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory_.back().data());
    tensor.data = reinterpret_cast<void *>((begin + kLineBytes - 1) / kLineBytes * kLineBytes + shape_.past_line);
    tensor.dtype = type;
  }

  const Shape &shape_;
  std::vector<std::vector<uint32_t>> memory_;
  fovea_params params_;
};

struct Comparison {
  double ratio = 1, noise = 0;  // time of the second / of the first, and its standard error
  double first_seconds = 0, second_seconds = 0;
};

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const size_t half = numbers.size() / 2;
  return numbers.size() % 2 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2;
}

double standard_error_of_median(const std::vector<double> &numbers, double middle) {
  constexpr double kDeviations = 1.4826, kMedianOverMean = 1.2533;  // of a normal distribution
  std::vector<double> distances;
  for (const double number : numbers) distances.push_back(std::fabs(number - middle));
  return kDeviations * kMedianOverMean * median(distances) / std::sqrt(static_cast<double>(numbers.size()));
}

class Tuner {
 public:
  Tuner(const Options &options, Level *level) : options_(options), level_(level) {
    for (const Shape &shape : kShapes) {
      if (options.threads < shape.from_threads || (options.quick && !shape.quick)) continue;
      const KernelEntry *entries;
      kernel_entries(&entries);
      workloads_.push_back(std::make_unique<Workload>(shape, !std::strcmp(entries[level->kernel].types, "bf16")));
    }
    shape_ = context(level->defaults)->kernels[level->kernel].shape;
  }

  // Coordinate descent: one parameter after the other, until none gets better.
  void run() {
    for (int pass = 0; pass < (options_.quick ? 1 : 2); ++pass) {
      const Tuning before = level_->tuned;
      for (const TuningParameter &parameter : kTuningParameters) {
        for (const int64_t value : candidates(parameter, shape_)) {
          if (value != level_->tuned.*parameter.value) try_value(parameter, value);
        }
      }
      if (!std::memcmp(&before, &level_->tuned, sizeof before)) break;
    }
  }

  // Shape by shape, what is tuned beside the defaults.
  nlohmann::ordered_json compare_with_defaults() {
    nlohmann::ordered_json report = nlohmann::ordered_json::array();
    progress_.stage(std::string(fovea_isa_name(level_->isa)) + ": the defaults and what is tuned");
    constexpr double kLonger = 4;  // than to decide
    for (const auto &workload : workloads_) {
      const Comparison c = compare(*workload, level_->tuned, level_->defaults, kLonger * seconds());
      const Sizes &n = workload->shape().sizes;
      std::string sizes;
      for (const int64_t size : {n.batch, n.heads_q, n.heads_kv, n.seq_q, n.seq_kv}) sizes += std::to_string(size) + ",";
      report.push_back({{"name", workload->shape().name},
                        {"shape", sizes + std::to_string(n.dim_k)},
                        {"default_seconds", c.second_seconds},
                        {"tuned_seconds", c.first_seconds},
                        {"ratio", c.ratio},
                        {"noise", c.noise}});
    }
    return report;
  }

 private:
  double seconds() const { return options_.quick ? 0.1 : 0.4; }  // for one comparison

  ContextPtr context(const Tuning &tuning) const {
    fovea_options o;
    require_ok(fovea_options_init(&o, sizeof o));
    o.flags = FOVEA_IGNORE_ENV;
    o.isa = level_->isa;
    o.num_threads = options_.threads;
    fovea_context *made = nullptr;
    require_ok(fovea_context_create(&o, &made));
    made->kernels[level_->kernel].tuning = tuning;  // nobody has it yet
    return ContextPtr(made);
  }

  // Whether a call can take another time with the other table: by its plan, or by what only the kernel sees.
  bool may_differ(const Workload &workload, const Tuning &a, const Tuning &b) const {
    const bool few_rows = workload.shape().sizes.seq_q == 1, windowed = workload.shape().causal;
    if (!few_rows && !windowed && a.panel_rows != b.panel_rows) return true;
    if (!few_rows && windowed && a.window_panel_rows != b.window_panel_rows) return true;
    if (few_rows && a.ahead_bytes != b.ahead_bytes) return true;
    Call calls[2];
    require_ok(prepare(context(a).get(), &workload.params(), &calls[0]));
    require_ok(prepare(context(b).get(), &workload.params(), &calls[1]));
    const Plan &first = calls[0].plan, &second = calls[1].plan;
    return first.rows_per_block != second.rows_per_block || first.splits != second.splits ||
           first.fetch_ahead != second.fetch_ahead;
  }

  // Both in turn, in pairs, so that what slows the machine slows both.
  Comparison compare(const Workload &workload, const Tuning &first, const Tuning &second, double seconds) {
    constexpr size_t kFewestPairs = 5;
    constexpr double kShortestSample = 1e-3;
    if (!may_differ(workload, first, second)) {
      const double alone = time_of(workload, first, seconds / 4);
      return {1, 0, alone, alone};
    }
    const ContextPtr contexts[2] = {context(first), context(second)};
    run_calls(*contexts[1], workload, 1);
    run_calls(*contexts[0], workload, 1);
    const int64_t calls = std::max<int64_t>(1, std::llround(kShortestSample / run_calls(*contexts[0], workload, 1)));
    std::vector<double> times[2], ratios;
    for (const double begin = now(); ratios.size() < kFewestPairs || now() - begin < seconds;) {
      const size_t leads = ratios.size() % 2;
      for (const size_t which : {leads, 1 - leads}) times[which].push_back(run_calls(*contexts[which], workload, calls));
      ratios.push_back(times[1].back() / times[0].back());
    }
    const double ratio = median(ratios);
    return {ratio, standard_error_of_median(ratios, ratio), median(times[0]), median(times[1])};
  }

  double time_of(const Workload &workload, const Tuning &tuning, double seconds) {
    const ContextPtr alone = context(tuning);
    std::vector<double> times;
    run_calls(*alone, workload, 1);
    for (const double begin = now(); times.empty() || now() - begin < seconds;) times.push_back(run_calls(*alone, workload, 1));
    return median(times);
  }

  // Seconds a call. One workspace for all, so that none has the luckier memory.
  double run_calls(const fovea_context &context, const Workload &workload, int64_t calls) {
    size_t bytes;
    require_ok(fovea_workspace_size(&context, &workload.params(), &bytes));
    if (workspace_.size() < bytes) workspace_.resize(bytes);
    const double begin = now();
    for (int64_t i = 0; i < calls; ++i)
      require_ok(fovea_forward(&context, &workload.params(), workspace_.data(), workspace_.size()));
    return (now() - begin) / static_cast<double>(calls);
  }

  // Of one thread the time that it has a processor, which others take little of.
  double now() const {
    timespec t;
    clock_gettime(options_.threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }

  struct Mean {
    double log_ratio, noise;
    bool is_better() const { return -log_ratio > std::max(kLeastGain, kSure * noise); }
  };

  // Over the shapes that it matters to; 0 where there is none.
  Mean compare_with_best(const Tuning &tuning) {
    double sum = 0, variance = 0, count = 0;
    for (const auto &workload : workloads_) {
      if (!may_differ(*workload, level_->tuned, tuning)) continue;
      const Comparison c = compare(*workload, level_->tuned, tuning, seconds());
      sum += std::log(c.ratio);
      variance += c.noise * c.noise;
      count += 1;
    }
    if (count == 0) return {0, 0};
    return {sum / count, std::sqrt(variance) / count};
  }

  void try_value(const TuningParameter &parameter, int64_t value) {
    progress_.stage(std::string(fovea_isa_name(level_->isa)) + ": " + parameter.name + " = " + std::to_string(value));
    Tuning tuning = level_->tuned;
    tuning.*parameter.value = value;
    const Mean mean = compare_with_best(tuning);
    if (mean.log_ratio != 0) level_->trials.push_back({&parameter, value, std::exp(mean.log_ratio)});
    if (mean.is_better() && compare_with_best(tuning).is_better()) level_->tuned = tuning;  // twice: luck does not last
  }

  const Options &options_;
  Level *const level_;
  KernelShape shape_;
  std::vector<std::unique_ptr<Workload>> workloads_;
  std::vector<char> workspace_;
  Progress progress_;
};

std::string threads_text(int32_t threads) { return std::to_string(threads) + (threads == 1 ? " thread" : " threads"); }

// A file that appears whole or not at all. Made at once, so that nothing is measured for a file that cannot be written.
class OutputFile {
 public:
  explicit OutputFile(const std::string &name) : name_(name), temporary_(name + "." + std::to_string(getpid()) + ".tmp") {
    std::error_code ignored;
    if (std::filesystem::is_directory(name, ignored)) throw InputError("--out: " + name + ": is a directory");
    errno = 0;
    stream_.open(temporary_, std::ios::trunc);
    if (!stream_) fail();
  }
  OutputFile(const OutputFile &) = delete;
  OutputFile &operator=(const OutputFile &) = delete;
  ~OutputFile() {
    if (stream_.is_open()) std::remove(temporary_.c_str());
  }

  void commit(const std::string &text) {
    errno = 0;
    stream_ << text << std::flush;
    if (!stream_ || std::rename(temporary_.c_str(), name_.c_str()) != 0) fail();
    stream_.close();
  }

 private:
  [[noreturn]] void fail() const {
    throw InputError("--out: " + name_ + ": " + (errno != 0 ? std::strerror(errno) : "cannot be written"));
  }

  const std::string name_, temporary_;
  std::ofstream stream_;
};

std::string table(const Options &options, const std::vector<Level> &levels) {
  std::string text = std::string("# fovea tune: Fovea ") + fovea_version() + ", " + threads_text(options.threads) + ", " +
                     cpu_name() + "\nformat = " + std::to_string(kTuningFormat) + "\n";
  for (const Level &level : levels) {
    text += "\n";
    for (const TuningParameter &parameter : kTuningParameters) {
      const int64_t value = level.tuned.*parameter.value, usual = level.defaults.*parameter.value;
      text += std::string(fovea_isa_name(level.isa)) + "." + parameter.name + " = " + std::to_string(value);
      text += (value == usual ? "" : "  # " + std::to_string(usual) + " by default") + "\n";
    }
  }
  return text;
}

// The levels that are asked for, or all usable ones, each with the kernel that it does not share with another.
std::vector<Level> choose_levels(const Options &options) {
  std::vector<fovea_isa> usable(static_cast<size_t>(fovea_isa_list(nullptr, 0, 1)));
  fovea_isa_list(usable.data(), static_cast<int32_t>(usable.size()), 1);
  std::vector<fovea_isa> chosen = usable;
  if (!options.levels.empty()) chosen.clear();
  for (const std::string &name : options.levels) {
    const auto found = std::find_if(usable.begin(), usable.end(), [&](fovea_isa isa) { return name == fovea_isa_name(isa); });
    if (found == usable.end()) throw InputError("--isa: no level '" + name + "' here; fovea info lists them");
    if (std::find(chosen.begin(), chosen.end(), *found) == chosen.end()) chosen.push_back(*found);
  }
  std::vector<Level> levels;
  const KernelEntry *entries;
  const int32_t count = kernel_entries(&entries);
  ForwardKernel kernels[kKernelCount];
  for (int32_t i = 0; i < count; ++i) kernels[i] = *entries[i].kernel;
  if (!options.from.empty()) require_ok(load_tuning("--from", options.from.c_str(), kernels));
  for (const fovea_isa isa : chosen) {
    for (int32_t i = 0; i < count; ++i) {
      if (entries[i].level != isa || !fits_vectors(entries[i], cpu_features())) continue;
      levels.push_back({isa, i, entries[i].kernel->tuning, kernels[i].tuning, {}});
    }
  }
  return levels;
}

void print(const nlohmann::ordered_json &level) {
  std::printf("%s\n  %-20s  %12s  %12s     tried: time / that of the best so far\n", level["level"].get<std::string>().c_str(),
              "parameter", "default", "tuned");
  for (const auto &p : level["parameters"]) {
    std::printf("  %-20s  %12lld  %12lld%s", p["name"].get<std::string>().c_str(), p["default"].get<long long>(),
                p["tuned"].get<long long>(), p["default"] == p["tuned"] ? "   " : " * ");
    for (const auto &trial : p["tried"])
      std::printf("  %lld: %.3f", trial["value"].get<long long>(), trial["ratio"].get<double>());
    std::printf("\n");
  }
  std::printf("  %-22s  %-22s  %11s  %11s  %s\n", "shape", "", "default ms", "tuned ms", "default / tuned");
  for (const auto &s : level["shapes"]) {
    std::printf("  %-22s  %-22s  %11.4g  %11.4g  %.3f +- %.3f\n", s["name"].get<std::string>().c_str(),
                s["shape"].get<std::string>().c_str(), 1e3 * s["default_seconds"].get<double>(),
                1e3 * s["tuned_seconds"].get<double>(), s["ratio"].get<double>(), s["noise"].get<double>());
  }
  std::printf("\n");
}

int run(const Options &options) {
  std::vector<Level> levels = choose_levels(options);
  const auto file = options.out.empty() ? nullptr : std::make_unique<OutputFile>(options.out);
  nlohmann::ordered_json report;
  report["version"] = fovea_version();
  report["cpu"] = cpu_name();
  report["threads"] = options.threads;
  report["levels"] = nlohmann::ordered_json::array();
  bool good = true;
  for (Level &level : levels) {
    nlohmann::ordered_json entry = {{"level", fovea_isa_name(level.isa)}};
    {
      Tuner tuner(options, &level);
      tuner.run();
      entry["shapes"] = tuner.compare_with_defaults();
    }
    entry["parameters"] = nlohmann::ordered_json::array();
    for (const TuningParameter &parameter : kTuningParameters) {
      nlohmann::ordered_json tried = nlohmann::ordered_json::array();
      for (const Trial &trial : level.trials) {
        if (trial.parameter == &parameter) tried.push_back({{"value", trial.value}, {"ratio", trial.ratio}});
      }
      entry["parameters"].push_back({{"name", parameter.name},
                                     {"default", level.defaults.*parameter.value},
                                     {"tuned", level.tuned.*parameter.value},
                                     {"tried", tried}});
    }
    for (const auto &shape : entry["shapes"])
      good &= shape["ratio"].get<double>() - kSure * shape["noise"].get<double>() <= 1 + kCheckedLoss;
    if (!options.json) print(entry);
    std::fflush(stdout);
    report["levels"].push_back(entry);
  }
  if (file) file->commit(table(options, levels));
  report["written"] = options.out;
  report["defaults_are_good"] = good;
  if (options.json) {
    print_json(report);
  } else {
    std::printf("The defaults are %swithin %.0f %% of what is tuned.\n", good ? "" : "NOT ", 100 * kCheckedLoss);
    if (!options.out.empty()) std::printf("Written: %s\n", options.out.c_str());
  }
  return options.check && !good ? kWrong : kOk;
}

}  // namespace

void add_tune(CLI::App &app, int &exit_code) {
  CLI::App *command =
      app.add_subcommand("tune", "Measure which parameters are fastest on this machine, and write a table of them");
  const auto options = std::make_shared<Options>();
  command
      ->add_option("--isa", options->levels, "Levels of instructions to tune, with commas; all that are usable if none is named")
      ->delimiter(',');
  command->add_option("--threads", options->threads, "Threads to compute with")
      ->check(CLI::Range(1, FOVEA_MAX_THREADS))
      ->capture_default_str();
  command->add_option("--from", options->from, "Begin with this table in place of the defaults")->type_name("FILE");
  command->add_option("--out", options->out, "Write the table to this file, which is replaced as a whole")->type_name("FILE");
  command->add_flag("--quick", options->quick, "Fewer shapes, less often: seconds a level in place of minutes");
  command->add_flag("--check", options->check, "Exit with 1 where the defaults are more than 3 % slower than what was found");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "One parameter after the other is tried over calls of several shapes, in turn with the best so far, and taken where it is\n"
      "faster in the mean by more than 0.5 % and three times the standard error, twice. Results have the same bits with every\n"
      "table. The machine should have nothing else to do. The library loads a table that the environment variable FOVEA_TUNING "
      "or\n"
      "fovea_options.tuning names; docs/tuning.md says what is in it.\n"
      "Example: fovea tune --isa avx512,avx2 --out fovea.tuning && FOVEA_TUNING=fovea.tuning fovea info");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace fovea::tools
