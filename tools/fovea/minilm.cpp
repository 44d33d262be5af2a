// fovea minilm: the attention layer of a real sentence encoder on real sentences.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include <nlohmann/json.hpp>

#include "arrays.h"
#include "commands.h"
#include "reference/oracle.h"

namespace fovea::tools {
namespace {

struct Options {
  ContextOptions context;
  std::string data = companion_file("minilm_layer.safetensors");
  bool json = false;
};

// The fastest of several calls, the workspace given, for at least a fiftieth of a second.
double seconds_per_call(const fovea_context *context, const fovea_params &params) {
  using Clock = std::chrono::steady_clock;
  size_t bytes = 0;
  require_ok(fovea_workspace_size(context, &params, &bytes));
  std::vector<char> workspace(bytes + 1);  // + 1: never null
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(20);
  double best = 1e300;
  do {
    const Clock::time_point start = Clock::now();
    require_ok(fovea_forward(context, &params, workspace.data(), bytes));
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  } while (Clock::now() < deadline);
  return best;
}

Floats tensor(const Options &options, size_t sentence, const char *name) {
  const std::string full = "sentence" + std::to_string(sentence) + "." + name;
  return read_floats(ArrayPath(options.data + ":" + full), full);
}

int run(const Options &options) {
  const ContextPtr context = make_context(options.context);
  nlohmann::ordered_json report;
  report["data"] = options.data;
  report["level"] = fovea_isa_name(fovea_context_isa(context.get()));
  report["threads"] = fovea_context_threads(context.get());

  std::vector<std::string> sentences;
  try {
    const nlohmann::json about = nlohmann::json::parse(safetensors_metadata(options.data).at("about").get<std::string>());
    about.at("sentences").get_to(sentences);
    report["model"] = about.at("model").get<std::string>();
    report["layer"] = about.at("layer").get<int>();
  } catch (const nlohmann::json::exception &) {
    throw InputError("--data: " + options.data + " was not made by tools/make_minilm_data.py");
  }
  if (!options.json) {
    std::printf("%s, attention of layer %d, %s, %d threads\n\n%7s %12s %14s %13s  sentence\n",
                report["model"].get<std::string>().c_str(), report["layer"].get<int>(),
                report["level"].get<std::string>().c_str(), report["threads"].get<int>(), "tokens", "time/call", "largest error",
                "error/bound");
  }

  bool ok = true;
  report["sentences"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < sentences.size(); ++i) {
    const Floats q = tensor(options, i, "q"), k = tensor(options, i, "k"), v = tensor(options, i, "v");
    const Floats wanted = tensor(options, i, "out");
    const std::vector<int64_t> &shape = q.shape;
    if (shape.size() != 4 || k.shape != shape || v.shape != shape || wanted.shape != shape || q.data.empty()) {
      throw InputError("--data: " + options.data + ": the tensors of sentence " + std::to_string(i) + " differ in shape");
    }
    std::vector<float> out(q.data.size());
    const fovea_params params =
        dense_call({shape[0], shape[1], shape[1], shape[2], shape[2], shape[3], shape[3]}, q.data, k.data, v.data, out);
    const double seconds = seconds_per_call(context.get(), params);

    // The oracle gives the bound; the values to meet are the file's, which were computed without this project.
    reference::Expected expected = reference::attention(params);
    expected.out.assign(wanted.data.begin(), wanted.data.end());
    const reference::Verdict verdict = reference::compare(params, expected);
    ok = ok && verdict.ok();
    report["sentences"].push_back({{"text", sentences[i]},
                                   {"tokens", shape[2]},
                                   {"seconds", seconds},
                                   {"max_abs_error", verdict.max_abs_error},
                                   {"out_ratio", verdict.out_ratio},
                                   {"ok", verdict.ok()}});
    if (!options.json) {
      const std::string start = sentences[i].size() <= 48 ? sentences[i] : sentences[i].substr(0, 45) + "...";
      std::printf("%7lld %9.1f us %14.2g %13.3f  %s%s\n", static_cast<long long>(shape[2]), 1e6 * seconds, verdict.max_abs_error,
                  verdict.out_ratio, start.c_str(), verdict.ok() ? "" : "  WRONG");
    }
  }
  report["ok"] = ok;
  if (options.json) {
    print_json(report);
  } else {
    std::printf("\n%s\n", ok ? "Every output is the model's, within the error bound of docs/semantics.md (error/bound at most 1)."
                             : "WRONG: an output is farther from the model's than the bound of docs/semantics.md allows.");
  }
  return ok ? kOk : kWrong;
}

}  // namespace

void add_minilm(CLI::App &app, int &exit_code) {
  CLI::App *command =
      app.add_subcommand("minilm", "An attention layer of the sentence encoder all-MiniLM-L6-v2 on real sentences");
  const auto options = std::make_shared<Options>();
  command->add_option("--data", options->data, "File made by tools/make_minilm_data.py")
      ->type_name("FILE")
      ->capture_default_str();
  options->context.add_to(*command);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Exit code 1 where an output is outside the error bound. Times are the best of several calls; bench/ compares speeds.");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace fovea::tools
