// fovea saturation: why scores are divided by the square root of d_k. One query against ten keys, with and without the division,
// and the mean and variance of the scores over many draws.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "reference/oracle.h"

namespace fovea::tools {
namespace {

constexpr int64_t kDim = 512, kKeys = 10;
constexpr double kPi = 3.14159265358979323846;
// Quantiles of the standard normal distribution: two-sided 95 % and 99.9 %.
constexpr double kZ95 = 1.9599639845400545, kZ999 = 3.2905267314919255;

struct Options {
  ContextOptions context;
  std::string out;
  uint64_t seed = 1;
  int64_t draws = 20000;
  std::string python = "python3";
  bool no_figures = false, json = false;
};

// Box and Muller's transform of a generator that the standard defines to the bit, which std::normal_distribution is not.
class StandardNormal {
 public:
  explicit StandardNormal(uint64_t seed) : bits_(seed) {}
  double operator()() {
    if (have_spare_) {
      have_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2 * std::log(uniform())), angle = 2 * kPi * uniform();
    spare_ = radius * std::sin(angle);
    have_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  double uniform() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)
  std::mt19937_64 bits_;
  double spare_ = 0;
  bool have_spare_ = false;
};

struct Softmax {
  std::vector<float> weights;
  double error_ratio;  // of the weights against the float64 oracle, as a multiple of the bound
  bool ok;
};

// The softmax of the scores, by the library.
Softmax softmax(const fovea_context *context, const std::vector<float> &q, const std::vector<float> &k, float scale) {
  std::vector<float> v(kKeys, 1), weights(kKeys), out(1);  // values of 1: the output is the sum of the weights
  fovea_params params = dense_call({1, 1, 1, 1, kKeys, kDim, 1}, q, k, v, out);
  params.weights.data = address(weights);
  params.scale = scale;
  require_ok(fovea_forward(context, &params, nullptr, 0));
  const reference::Verdict verdict = reference::compare(params, reference::attention(params, /*want_weights=*/true));
  return {weights, verdict.weights_ratio, verdict.ok()};
}

struct Interval {
  double estimate, error, theory;
  bool inside(double z) const { return std::fabs(estimate - theory) <= z * error; }
  nlohmann::ordered_json json() const {
    return {{"estimate", estimate},
            {"theory", theory},
            {"bounds_95", {estimate - kZ95 * error, estimate + kZ95 * error}},
            {"bounds_99.9", {estimate - kZ999 * error, estimate + kZ999 * error}},
            {"inside_95", inside(kZ95)},
            {"inside_99.9", inside(kZ999)}};
  }
};

struct Moments {
  Interval mean, variance;
};

// Mean and variance of a sample with their standard errors; that of the variance comes from the fourth moment, since scores are
// not exactly normal (their kurtosis is 3 + 6 / d_k).
Moments moments(const std::vector<double> &sample, double theory_variance) {
  const double n = static_cast<double>(sample.size());
  double sum = 0, second = 0, fourth = 0;
  for (const double x : sample) sum += x;
  const double mean = sum / n;
  for (const double x : sample) {
    const double square = (x - mean) * (x - mean);
    second += square;
    fourth += square * square;
  }
  const double variance = second / (n - 1);
  return {{mean, std::sqrt(variance / n), 0}, {variance, std::sqrt((fourth / n - variance * variance) / n), theory_variance}};
}

void write_text(const std::string &name, const std::string &text) {
  const std::string temporary = name + "." + std::to_string(getpid()) + ".tmp";
  std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
  stream << text;
  stream.close();
  if (!stream || std::rename(temporary.c_str(), name.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    std::remove(temporary.c_str());
    throw InputError("--out: " + name + ": " + reason);
  }
}

// Runs `python script file`, its output on stderr; whether it ended well.
bool draw(const std::string &python, const std::string &script, const std::string &file) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  const char *arguments[] = {python.c_str(), script.c_str(), file.c_str(), nullptr};
  pid_t child;
  int status = -1;
  if (posix_spawnp(&child, python.c_str(), &actions, nullptr, const_cast<char **>(arguments), environ) == 0) {
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  posix_spawn_file_actions_destroy(&actions);
  return status == 0;
}

int run(const Options &options) {
  if (!options.out.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.out, error);
    if (error) throw InputError("--out: " + options.out + ": " + error.message());
  }
  const ContextPtr context = make_context(options.context);
  StandardNormal normal(options.seed);

  std::vector<float> q(kDim), k(kKeys * kDim);
  for (float &x : q) x = static_cast<float>(normal());
  for (float &x : k) x = static_cast<float>(normal());
  std::vector<double> scores(kKeys, 0);
  for (int64_t j = 0; j < kKeys; ++j) {
    for (int64_t i = 0; i < kDim; ++i) scores[j] += static_cast<double>(q[i]) * k[j * kDim + i];
  }
  const Softmax unscaled = softmax(context.get(), q, k, 1);
  const Softmax scaled = softmax(context.get(), q, k, static_cast<float>(1 / std::sqrt(kDim)));

  nlohmann::ordered_json report;
  report["seed"] = options.seed;
  report["level"] = fovea_isa_name(fovea_context_isa(context.get()));
  report["dim_k"] = kDim;
  report["scores"] = scores;
  report["softmax_unscaled"] = unscaled.weights;
  report["softmax_scaled"] = scaled.weights;
  report["softmax_error_ratio"] = std::max(unscaled.error_ratio, scaled.error_ratio);
  report["draws"] = options.draws;
  report["statistics"] = nlohmann::ordered_json::array();

  if (!options.json) {
    std::printf("One query, ten keys, d_k = 512, standard normal (seed %llu); softmax by Fovea, %s\n\n",
                static_cast<unsigned long long>(options.seed), report["level"].get<std::string>().c_str());
    std::printf("  key   k.q       softmax(k.q)   k.q/sqrt(512)   softmax(k.q/sqrt(512))\n");
    for (int64_t j = 0; j < kKeys; ++j) {
      std::printf("  %3d  %7.2f  %15.3e  %14.3f  %22.4f\n", static_cast<int>(j) + 1, scores[j],
                  static_cast<double>(unscaled.weights[j]), scores[j] / std::sqrt(kDim), static_cast<double>(scaled.weights[j]));
    }
    std::printf("\nUnscaled, one key takes %.2f %% of the weight: the softmax saturates and passes on next to no gradient.\n",
                100.0 * *std::max_element(unscaled.weights.begin(), unscaled.weights.end()));
    std::printf(
        "Divided by sqrt(d_k), scores keep variance 1 whatever d_k, and the largest weight is %.0f %%: several keys count.\n",
        100.0 * *std::max_element(scaled.weights.begin(), scaled.weights.end()));
    std::printf("\nScores of %lld draws; estimate and half-width of its 99.9 %% bounds\n\n",
                static_cast<long long>(options.draws));
    std::printf(
        "   d_k             mean k.q            variance k.q       (theory)     mean k.q/sqrt(d_k)   variance (theory 1)\n");
  }

  bool as_theory_says = true;
  for (int64_t dim = 16; dim <= 1024; dim *= 2) {
    std::vector<double> raw(static_cast<size_t>(options.draws)), divided(raw.size());
    {
      Progress progress;
      progress.stage("drawing " + std::to_string(options.draws) + " scores of d_k = " + std::to_string(dim));
      for (size_t draw = 0; draw < raw.size(); ++draw) {
        double score = 0;
        for (int64_t i = 0; i < dim; ++i) {
          const double k_i = normal(), q_i = normal();
          score += k_i * q_i;
        }
        raw[draw] = score;
        divided[draw] = score / std::sqrt(static_cast<double>(dim));
      }
    }
    const Moments plain = moments(raw, static_cast<double>(dim)), scaled_moments = moments(divided, 1);
    bool inside = true;
    for (const Interval &interval : {plain.mean, plain.variance, scaled_moments.mean, scaled_moments.variance}) {
      inside = inside && interval.inside(kZ999);
    }
    as_theory_says = as_theory_says && inside;
    report["statistics"].push_back(
        {{"dim_k", dim},
         {"score", {{"mean", plain.mean.json()}, {"variance", plain.variance.json()}}},
         {"scaled_score", {{"mean", scaled_moments.mean.json()}, {"variance", scaled_moments.variance.json()}}},
         {"inside_99.9", inside}});
    if (!options.json) {
      std::printf("  %4lld  %8.3f +- %-8.3f  %9.2f +- %-8.2f (%4lld)   %8.4f +- %-8.4f   %8.4f +- %-8.4f %s\n",
                  static_cast<long long>(dim), plain.mean.estimate, kZ999 * plain.mean.error, plain.variance.estimate,
                  kZ999 * plain.variance.error, static_cast<long long>(dim), scaled_moments.mean.estimate,
                  kZ999 * scaled_moments.mean.error, scaled_moments.variance.estimate, kZ999 * scaled_moments.variance.error,
                  inside ? "" : " OUTSIDE");
      std::fflush(stdout);
    }
  }
  const bool ok = as_theory_says && unscaled.ok && scaled.ok;
  report["ok"] = ok;
  if (!options.json) {
    std::printf("\n%s\n", as_theory_says
                              ? "Every mean is 0 and every variance d_k, or 1 for scaled scores, within the bounds."
                              : "A theoretical value lies OUTSIDE its bounds: an error, or chance, as for one seed in seventy.");
    if (!unscaled.ok || !scaled.ok)
      std::printf("The softmax is WRONG: farther from the float64 oracle than the bound of docs/semantics.md.\n");
  }

  bool drawn = true;
  if (!options.out.empty()) {
    const std::string file = (std::filesystem::path(options.out) / "saturation.json").string();
    write_text(file, report.dump(2) + "\n");
    report["written"] = {file};
    const std::string script = companion_file("plot_saturation.py");
    std::fflush(stdout);
    drawn = options.no_figures || draw(options.python, script, file);
    if (!drawn) {
      std::fprintf(stderr,
                   "fovea: %s has the numbers, but %s could not draw them; --python takes an interpreter with matplotlib, "
                   "--no-figures none\n",
                   file.c_str(), options.python.c_str());
    } else if (!options.no_figures) {
      for (const char *name : {"saturation.svg", "saturation.png", "score_variance.svg", "score_variance.png"}) {
        report["written"].push_back((std::filesystem::path(options.out) / name).string());
      }
    }
    if (!options.json) {
      std::printf("\nwritten:");
      for (const auto &name : report["written"]) std::printf(" %s", name.get<std::string>().c_str());
      std::printf("\n");
    }
  }
  if (options.json) print_json(report);
  return !ok ? kWrong : drawn ? kOk : kImpossible;
}

}  // namespace

void add_saturation(CLI::App &app, int &exit_code) {
  CLI::App *command =
      app.add_subcommand("saturation", "Why scores are divided by sqrt(d_k): softmax of one query and ten keys, and statistics");
  const auto options = std::make_shared<Options>();
  CLI::Option *const out =
      command->add_option("--out", options->out, "Folder for saturation.json and the figures (SVG and PNG)")->type_name("DIR");
  command->add_option("--seed", options->seed, "Of the random numbers")->capture_default_str();
  command->add_option("--draws", options->draws, "Scores drawn for each d_k")
      ->check(CLI::Range(100, 100000000))
      ->capture_default_str();
  command->add_option("--python", options->python, "Interpreter with matplotlib, for the figures")->capture_default_str();
  command->add_flag("--no-figures", options->no_figures, "Write saturation.json alone")->needs(out);
  options->context.add_to(*command);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "The two softmax vectors are computed by the library. Means and variances of k.q and of k.q/sqrt(d_k) are measured in "
      "float64 for\n"
      "d_k = 16 to 1024, theory: 0 and d_k, 0 and 1. Exit code 1 where a theoretical value lies outside the 99.9 % confidence "
      "bounds, or a softmax\n"
      "vector outside the error bound of docs/semantics.md; 2 where the figures could not be drawn.");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace fovea::tools
