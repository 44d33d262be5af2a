// fovea run: attention of arrays in files.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "arrays.h"
#include "commands.h"

namespace fovea::tools {
namespace {

struct Options {
  ContextOptions context;
  std::string q, k, v, out, weights, lse;
  std::string causal = "none";
  std::optional<float> scale;
  bool json = false;
};

// An input as [batch, head, seq, dim].
struct Input {
  Array array;
  int64_t batch = 1, heads = 1, seq = 0, dim = 0;
};

std::string shape_text(const std::vector<int64_t> &shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

Input read_input(const char *argument, const std::string &text, const char *default_tensor) {
  Input input;
  try {
    input.array = read_array(ArrayPath(text), default_tensor);
  } catch (const FileError &error) {
    throw InputError(std::string(argument) + ": " + error.what());
  }
  const std::vector<int64_t> &shape = input.array.shape;
  const size_t rank = shape.size();
  if (rank < 2 || rank > 4) {
    throw InputError(std::string(argument) + ": " + text + " has shape " + shape_text(shape) +
                     "; [seq, dim], [head, seq, dim] or [batch, head, seq, dim] is wanted");
  }
  input.dim = shape[rank - 1];
  input.seq = shape[rank - 2];
  if (rank >= 3) input.heads = shape[rank - 3];
  if (rank == 4) input.batch = shape[0];
  return input;
}

void require_equal(const char *argument, const char *axis, int64_t size, const char *other, int64_t wanted) {
  if (size == wanted) return;
  throw InputError(std::string(argument) + ": " + axis + " is " + std::to_string(size) + ", but that of " + other + " is " +
                   std::to_string(wanted));
}

// Never null, which would mean an absent tensor, not even for arrays of no elements.
float *address(const Array &array) {
  static float nothing;
  return array.data.empty() ? &nothing : const_cast<float *>(array.data.data());
}

Array make_output(const std::vector<int64_t> &shape) {
  size_t count = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(count, static_cast<size_t>(size), &count)) throw InputError("an output would be too large");
  }
  return {shape, std::vector<float>(count)};
}

int run(const Options &options) {
  const Input q = read_input("--q", options.q, "q"), k = read_input("--k", options.k, "k"), v = read_input("--v", options.v, "v");
  const auto rank = [](const Input &input) { return static_cast<int64_t>(input.array.shape.size()); };
  require_equal("--k", "number of axes", rank(k), "--q", rank(q));
  require_equal("--v", "number of axes", rank(v), "--q", rank(q));
  require_equal("--k", "batch", k.batch, "--q", q.batch);
  require_equal("--v", "batch", v.batch, "--q", q.batch);
  require_equal("--v", "number of heads", v.heads, "--k", k.heads);
  require_equal("--v", "seq", v.seq, "--k", k.seq);
  require_equal("--k", "dim", k.dim, "--q", q.dim);

  // Outputs have the axes of the inputs: [seq, dim] in gives [seq, dim] out.
  const auto output = [&](std::initializer_list<int64_t> last) {
    std::vector<int64_t> shape(q.array.shape.begin(), q.array.shape.end() - 2);
    shape.insert(shape.end(), last);
    return make_output(shape);
  };
  ArrayWriter writer;
  std::optional<ArrayPath> out_path, weights_path, lse_path;  // names are checked before anything is computed
  try {
    out_path.emplace(options.out);
    if (!options.weights.empty()) weights_path.emplace(options.weights);
    if (!options.lse.empty()) lse_path.emplace(options.lse);
  } catch (const FileError &error) {
    throw InputError(error.what());
  }

  fovea_params params = default_params(q.batch, q.heads, k.heads, q.seq, k.seq, q.dim, v.dim);
  params.q.data = address(q.array);
  params.k.data = address(k.array);
  params.v.data = address(v.array);
  Array out = output({q.seq, v.dim}), weights, lse;
  params.out.data = address(out);
  if (weights_path) {
    weights = output({q.seq, k.seq});
    params.weights.data = address(weights);
  }
  if (lse_path) {
    lse = output({q.seq});
    params.lse = address(lse);
  }
  if (options.scale) params.scale = *options.scale;
  if (options.causal != "none") {
    params.causal = 1;
    params.align = options.causal == "top-left" ? FOVEA_ALIGN_TOP_LEFT : FOVEA_ALIGN_BOTTOM_RIGHT;
  }

  const ContextPtr context = make_context(options.context);
  const auto start = std::chrono::steady_clock::now();
  require_ok(fovea_forward(context.get(), &params, nullptr, 0));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  nlohmann::ordered_json report;
  report["level"] = fovea_isa_name(fovea_context_isa(context.get()));
  report["threads"] = fovea_context_threads(context.get());
  report["seconds"] = seconds;
  report["scale"] = params.scale;
  report["causal"] = options.causal;
  report["q"] = {{"from", options.q}, {"shape", q.array.shape}};
  report["k"] = {{"from", options.k}, {"shape", k.array.shape}};
  report["v"] = {{"from", options.v}, {"shape", v.array.shape}};
  const auto write = [&](const char *name, const ArrayPath &path, const std::string &text, Array array) {
    report[name] = {{"to", text}, {"shape", array.shape}};
    writer.add(path, name, std::move(array));
  };
  write("out", *out_path, options.out, std::move(out));
  if (weights_path) write("weights", *weights_path, options.weights, std::move(weights));
  if (lse_path) write("lse", *lse_path, options.lse, std::move(lse));
  writer.commit();

  if (options.json) {
    print_json(report);
  } else {
    std::printf("%s, %d threads, %.3g ms\n", report["level"].get<std::string>().c_str(), report["threads"].get<int>(),
                1e3 * seconds);
    for (const char *name : {"out", "weights", "lse"}) {
      if (!report.contains(name)) continue;
      std::printf("%-8s %s %s\n", name, report[name]["to"].get<std::string>().c_str(),
                  shape_text(report[name]["shape"].get<std::vector<int64_t>>()).c_str());
    }
  }
  return kOk;
}

}  // namespace

void add_run(CLI::App &app, int &exit_code) {
  CLI::App *command = app.add_subcommand("run", "Attention of arrays in files");
  const auto options = std::make_shared<Options>();
  command->add_option("--q", options->q, "Queries: an .npy or .safetensors file")->required()->type_name("FILE");
  command->add_option("--k", options->k, "Keys")->required()->type_name("FILE");
  command->add_option("--v", options->v, "Values")->required()->type_name("FILE");
  command->add_option("--out", options->out, "Where the result goes")->required()->type_name("FILE");
  command->add_option("--weights", options->weights, "Where the softmax matrix goes, [..., seq_q, seq_kv]")->type_name("FILE");
  command->add_option("--lse", options->lse, "Where the log-sum-exp of every row goes, [..., seq_q]")->type_name("FILE");
  command->add_option("--causal", options->causal, "Query i sees keys up to i, counted from that corner of the score matrix")
      ->check(CLI::IsMember({"none", "top-left", "bottom-right"}))
      ->capture_default_str();
  command->add_option("--scale", options->scale, "Factor of the scores; default 1/sqrt(dim of --q)");
  options->context.add_to(*command);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Inputs are float32 or float64 (rounded to float32), all of the same number of axes: [seq, dim], [head, seq, dim] or\n"
      "[batch, head, seq, dim]; there may be fewer heads of keys and values than of queries. In a .safetensors file a tensor is\n"
      "named FILE.safetensors:TENSOR; without a name it is the only one, or the one called q, k or v. Results are float32, "
      "called\n"
      "out, weights and lse where no name is given; those for one .safetensors file are written there together. A file appears\n"
      "under its name only when it is complete.\n"
      "Example: fovea run --q in.safetensors:q --k in.safetensors:k --v in.safetensors:v --out out.npy --causal bottom-right");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace fovea::tools
