// fovea info: what this machine offers and what the library chooses.
#include <cstdio>
#include <vector>

#include <nlohmann/json.hpp>

#include "api/context.h"
#include "api/tuning.h"
#include "commands.h"
#include "cpu/cpu.h"

namespace fovea::tools {
namespace {

struct Options {
  ContextOptions context;
  bool json = false;
};

int run(const Options &options) {
  nlohmann::ordered_json report;
  report["version"] = fovea_version();
  report["cpu"] = cpu_name();
  if (cpu_features().sve_bits) report["sve_bits"] = cpu_features().sve_bits;
  report["openmp"] = FOVEA_TOOLS_OPENMP != 0;

  ContextPtr context;
  std::string refusal;  // of the whole choice: a level forced here or by FOVEA_ISA is not to be had
  try {
    context = make_context(options.context);
    report["chosen"] = fovea_isa_name(fovea_context_isa(context.get()));
    report["threads"] = fovea_context_threads(context.get());
    report["tuning"] = fovea_context_tuning(context.get());
  } catch (const InputError &error) {
    refusal = error.what();
    report["error"] = refusal;
  }

  std::vector<fovea_isa> levels(static_cast<size_t>(fovea_isa_list(nullptr, 0, 0)));
  fovea_isa_list(levels.data(), static_cast<int32_t>(levels.size()), 0);
  report["levels"] = nlohmann::ordered_json::array();
  for (const fovea_isa level : levels) {
    const std::string why_not = fovea_isa_refusal(level);
    report["levels"].push_back({{"name", fovea_isa_name(level)},
                                {"compiled", level_compiled(level)},
                                {"usable", why_not.empty()},
                                {"chosen", context && level == fovea_context_isa(context.get())},
                                {"refusal", why_not}});
  }

  const KernelEntry *entries = nullptr;
  const int32_t count = kernel_entries(&entries);
  report["kernels"] = nlohmann::ordered_json::array();
  for (int32_t i = 0; i < count; ++i) {
    const ForwardKernel &kernel = context ? context->kernels[i] : *entries[i].kernel;
    report["kernels"].push_back({{"name", kernel.name},
                                 {"level", level_name(entries[i].level)},
                                 {"fits_vectors", fits_vectors(entries[i], cpu_features())},
                                 {"operation", entries[i].operation},
                                 {"types", entries[i].types},
                                 {"key_tile", kernel.shape.key_tile}});
    for (const TuningParameter &parameter : kTuningParameters)
      report["kernels"].back()[parameter.name] = kernel.tuning.*parameter.value;
  }

  if (options.json) {
    print_json(report);
  } else {
    std::printf("Fovea    %s\nCPU      %s\n", fovea_version(), *cpu_name() != '\0' ? cpu_name() : "unknown");
    if (report.contains("sve_bits")) std::printf("SVE      vectors of %d bits\n", cpu_features().sve_bits);
    if (context) {
      const char *tuning = fovea_context_tuning(context.get());
      std::printf("Level    %s\nThreads  %d (%s)\nTuning   %s\n", fovea_isa_name(fovea_context_isa(context.get())),
                  fovea_context_threads(context.get()), FOVEA_TOOLS_OPENMP != 0 ? "OpenMP" : "built without OpenMP",
                  *tuning ? tuning : "the defaults");
    } else {
      std::printf("Level    none: %s\n", refusal.c_str());
    }
    std::printf("\nLevels, best last\n");
    for (const auto &level : report["levels"]) {
      const std::string name = level["name"], why_not = level["refusal"];
      std::printf("  %-12s  %s\n", name.c_str(),
                  level["chosen"]   ? "chosen"
                  : level["usable"] ? "usable"
                                    : ("no: " + why_not).c_str());
    }
    std::printf("\nKernels\n");
    for (const auto &kernel : report["kernels"]) {
      std::printf("  %s\n   ", kernel["name"].get<std::string>().c_str());
      for (const TuningParameter &parameter : kTuningParameters)
        std::printf(" %s %lld", parameter.name, kernel[parameter.name].get<long long>());
      std::printf("\n");
    }
  }
  if (!refusal.empty()) std::fprintf(stderr, "fovea: %s\n", refusal.c_str());
  return refusal.empty() ? kOk : kImpossible;
}

}  // namespace

void add_info(CLI::App &app, int &exit_code) {
  CLI::App *command = app.add_subcommand("info", "This CPU, the levels of instructions and why not others, kernels, threads");
  const auto options = std::make_shared<Options>();
  options->context.add_to(*command);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace fovea::tools
