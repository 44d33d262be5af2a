// The `fovea` command.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>

#include "commands.h"

namespace fovea::tools {

std::string companion_file(const std::string &name) {
  std::error_code error;
  const std::filesystem::path command = std::filesystem::read_symlink("/proc/self/exe", error);
  return (command.parent_path().parent_path() / "share" / "fovea" / name).string();
}

void ContextOptions::add_to(CLI::App &command) {
  command.add_option("--isa", isa, "Level of instructions: a name that `fovea info` prints, or auto")->capture_default_str();
  command.add_option("--threads", threads, "Threads to compute with; 0 = what OpenMP, affinity and quota allow")
      ->check(CLI::Range(0, FOVEA_MAX_THREADS))
      ->capture_default_str();
  command.add_option("--tuning", tuning, "Table of parameters, as `fovea tune` writes it")->type_name("FILE");
}

void print_json(const nlohmann::ordered_json &report) {
  std::printf("%s\n", report.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

void require_ok(fovea_status status) {
  if (status != FOVEA_OK) throw InputError(std::string(fovea_status_string(status)) + ": " + fovea_last_error());
}

ContextPtr make_context(const ContextOptions &options) {
  fovea_options o;
  require_ok(fovea_options_init(&o, sizeof o));
  o.num_threads = options.threads;
  if (!options.tuning.empty()) o.tuning = options.tuning.c_str();
  if (options.isa != "auto") {
    fovea_isa levels[32];
    const int32_t count = fovea_isa_list(levels, 32, 0);
    std::string names;
    for (int32_t i = 0; i < count && i < 32; ++i) {
      if (options.isa == fovea_isa_name(levels[i])) o.isa = levels[i];
      names += std::string(" ") + fovea_isa_name(levels[i]);
    }
    if (o.isa == FOVEA_ISA_AUTO) throw InputError("--isa: no level '" + options.isa + "' here; there are: auto" + names);
  }
  fovea_context *context = nullptr;
  if (fovea_context_create(&o, &context) != FOVEA_OK) {
    const std::string text = fovea_last_error(), field = "options.";  // else what the environment asks for
    throw InputError(text.rfind(field, 0) == 0 ? "--" + text.substr(field.size()) : text);
  }
  return ContextPtr(context);
}

float *address(const std::vector<float> &numbers) {
  static float nothing;
  return numbers.empty() ? &nothing : const_cast<float *>(numbers.data());
}

fovea_params dense_call(const Sizes &sizes, const std::vector<float> &q, const std::vector<float> &k, const std::vector<float> &v,
                        std::vector<float> &out) {
  fovea_params params;
  require_ok(fovea_params_init(&params, sizeof params, sizes.batch, sizes.heads_q, sizes.heads_kv, sizes.seq_q, sizes.seq_kv,
                               sizes.dim_k, sizes.dim_v));
  params.q.data = address(q);
  params.k.data = address(k);
  params.v.data = address(v);
  params.out.data = address(out);
  return params;
}

namespace {

int run(int argc, char **argv) {
  int exit_code = kOk;
  CLI::App app("Scaled dot-product attention on CPUs: look at, run and check the Fovea library.", "fovea");
  app.set_version_flag("--version", fovea_version());
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done and right, 1 what was checked is wrong, 2 usage or bad input. Every subcommand takes --help and "
      "--json.");
  add_info(app, exit_code);
  add_run(app, exit_code);
  add_check(app, exit_code);
  add_saturation(app, exit_code);
  add_minilm(app, exit_code);
  add_tune(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    exit_code = app.exit(error) == 0 ? kOk : kImpossible;  // 0: --help or --version
  }
  if (std::fflush(stdout) != 0) throw InputError(std::string("standard output: ") + std::strerror(errno));
  return exit_code;
}

}  // namespace
}  // namespace fovea::tools

int main(int argc, char **argv) {
  try {
    return fovea::tools::run(argc, argv);
  } catch (const std::bad_alloc &) {
    std::fprintf(stderr, "fovea: not enough memory\n");
  } catch (const std::exception &error) {
    std::fprintf(stderr, "fovea: %s\n", error.what());
  }
  return fovea::tools::kImpossible;
}
