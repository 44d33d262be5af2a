// fovea run: attention of arrays in files.
#include <algorithm>
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
  std::string mask, alibi, sinks, seqlens_q, seqlens_kv, cu_seqlens_q, cu_seqlens_kv;
  std::string causal = "none", align = "none";
  int64_t window_left = -1, window_right = -1;
  float softcap = 0;
  std::optional<float> scale;
  bool json = false;
};

// An input as [batch, head, seq, dim].
struct Input {
  Array array;
  int64_t batch = 1, heads = 1, seq = 0, dim = 0;
};

// What the options of a call point to.
struct Features {
  Mask mask;
  std::vector<float> alibi_slopes, sinks;
  std::vector<int32_t> seqlens_q, seqlens_kv, cu_seqlens_q, cu_seqlens_kv;
};

std::string shape_text(const std::vector<int64_t> &shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

[[noreturn]] void refuse(const std::string &argument, const std::string &what) { throw InputError(argument + ": " + what); }

void require_equal(const char *argument, const char *axis, int64_t size, const char *other, int64_t wanted) {
  if (size == wanted) return;
  refuse(argument,
         std::string(axis) + " is " + std::to_string(size) + ", but that of " + other + " is " + std::to_string(wanted));
}

// The array that an argument names, by one of the readers of arrays.h.
template <class Read>
auto read_file(const char *argument, const std::string &text, const char *default_tensor, Read read) {
  try {
    return read(ArrayPath(text), default_tensor);
  } catch (const FileError &error) {
    refuse(argument, error.what());
  }
}

Input read_input(const char *argument, const std::string &text, const char *default_tensor) {
  Input input;
  input.array = read_file(argument, text, default_tensor, read_array);
  const std::vector<int64_t> &shape = input.array.shape;
  const size_t rank = shape.size();
  if (rank < 2 || rank > 4) {
    refuse(argument,
           text + " has shape " + shape_text(shape) + "; [seq, dim], [head, seq, dim] or [batch, head, seq, dim] is wanted");
  }
  input.dim = shape[rank - 1];
  input.seq = shape[rank - 2];
  if (rank >= 3) input.heads = shape[rank - 3];
  if (rank == 4) input.batch = shape[0];
  return input;
}

// A list of numbers, one for each of count; empty where no file is named.
template <class Read>
auto read_list(const char *argument, const std::string &text, const char *default_tensor, int64_t count, Read read) {
  decltype(read(ArrayPath(text), default_tensor).data) list;
  if (text.empty()) return list;
  auto array = read_file(argument, text, default_tensor, read);
  if (array.shape != std::vector<int64_t>{count}) {
    refuse(argument, text + " has shape " + shape_text(array.shape) + "; [" + std::to_string(count) + "] is wanted");
  }
  list = std::move(array.data);
  return list;
}

// Offsets of the segments that lie one after the other on a token axis; empty where no file is named.
std::vector<int32_t> read_offsets(const char *argument, const std::string &text, const char *default_tensor,
                                  const char *packed_argument, const Input &packed) {
  if (text.empty()) return {};
  Integers offsets = read_file(argument, text, default_tensor, read_integers);
  if (offsets.shape.size() != 1 || offsets.data.empty()) {
    refuse(argument, text + " has shape " + shape_text(offsets.shape) + "; [segments + 1] is wanted");
  }
  if (packed.batch != 1) {
    refuse(packed_argument,
           "batch is " + std::to_string(packed.batch) + ", but " + argument + " packs all segments into one entry of the batch");
  }
  return std::move(offsets.data);
}

// The longest segment, of offsets that the library has yet to check.
int64_t longest(const std::vector<int32_t> &offsets) {
  int64_t length = 0;
  for (size_t i = 1; i < offsets.size(); ++i) length = std::max(length, int64_t{offsets[i]} - offsets[i - 1]);
  return length;
}

// Lays the last axis of the file beside the last one of the mask, as NumPy broadcasts: axes of size 1 and axes that are not there repeat.
fovea_tensor broadcast_mask(const std::string &text, const Mask &mask, const Sizes &sizes, const Features &features) {
  const int64_t wanted[4] = {sizes.batch, sizes.heads_q, sizes.seq_q, sizes.seq_kv};
  const std::vector<int32_t> nothing;
  const std::vector<int32_t> *const segments[4] = {&nothing, &nothing, &features.cu_seqlens_q, &features.cu_seqlens_kv};
  static const unsigned char no_element[sizeof(float)] = {};
  fovea_tensor tensor = {};
  tensor.data = const_cast<unsigned char *>(mask.bytes.empty() ? no_element : mask.bytes.data());
  tensor.dtype = mask.dtype;
  int64_t stride = 1;
  const size_t rank = mask.shape.size();
  bool fits = rank <= 4;
  for (size_t back = 1; fits && back <= rank; ++back) {
    const size_t axis = 4 - back;
    const int64_t size = mask.shape[rank - back];
    // In packed batches queries and keys are counted within their segment.
    fits = size == 1 || (segments[axis]->empty() ? size == wanted[axis] : size >= longest(*segments[axis]));
    tensor.stride[axis] = size == 1 ? 0 : stride;
    stride *= size;
  }
  if (!fits) {
    std::vector<int64_t> most(wanted, wanted + 4);
    for (size_t axis = 2; axis < 4; ++axis) {
      if (!segments[axis]->empty()) most[axis] = longest(*segments[axis]);
    }
    refuse("--mask", text + " has shape " + shape_text(mask.shape) + ", which does not broadcast to " + shape_text(most) +
                         ", [batch, head, seq of --q, seq of --k]");
  }
  return tensor;
}

int32_t corner(const std::string &name) {
  return name == "top-left" ? FOVEA_ALIGN_TOP_LEFT : name == "bottom-right" ? FOVEA_ALIGN_BOTTOM_RIGHT : FOVEA_ALIGN_NONE;
}

void apply_options(const Options &options, const Sizes &sizes, Features *features, fovea_params *params) {
  if (options.scale) params->scale = *options.scale;
  params->softcap = options.softcap;
  params->window_left = options.window_left;
  params->window_right = options.window_right;
  params->causal = options.causal != "none";
  params->align = corner(params->causal ? options.causal : options.align);
  if (params->causal && options.align != "none" && options.align != options.causal) {
    refuse("--align", options.align + ", but --causal counts from " + options.causal);
  }

  features->sinks = read_list("--sinks", options.sinks, "sinks", sizes.heads_q, read_array);
  if (options.alibi == "standard") {
    features->alibi_slopes.resize(static_cast<size_t>(sizes.heads_q));
    require_ok(fovea_alibi_slopes(sizes.heads_q, address(features->alibi_slopes)));
  } else {
    features->alibi_slopes = read_list("--alibi", options.alibi, "alibi_slopes", sizes.heads_q, read_array);
  }
  features->seqlens_q = read_list("--seqlens-q", options.seqlens_q, "seqlens_q", sizes.batch, read_integers);
  features->seqlens_kv = read_list("--seqlens-kv", options.seqlens_kv, "seqlens_kv", sizes.batch, read_integers);
  if (!options.mask.empty()) {
    features->mask = read_file("--mask", options.mask, "mask", read_mask);
    params->mask = broadcast_mask(options.mask, features->mask, sizes, *features);
  }
  const auto point_to = [](const auto &list) { return list.empty() ? nullptr : list.data(); };
  params->sinks = point_to(features->sinks);
  params->alibi_slopes = point_to(features->alibi_slopes);
  params->seqlens_q = point_to(features->seqlens_q);
  params->seqlens_kv = point_to(features->seqlens_kv);
  params->cu_seqlens_q = point_to(features->cu_seqlens_q);
  params->cu_seqlens_kv = point_to(features->cu_seqlens_kv);
}

Array make_output(const std::vector<int64_t> &shape, float value) {
  double count = 1;
  for (const int64_t size : shape) count *= static_cast<double>(size);
  const std::string refusal = memory_refusal(count * sizeof(float));
  if (!refusal.empty()) refuse("an output of shape " + shape_text(shape), refusal);
  return {shape, std::vector<float>(static_cast<size_t>(count), value)};
}

int run(const Options &options) {
  const Input q = read_input("--q", options.q, "q"), k = read_input("--k", options.k, "k"), v = read_input("--v", options.v, "v");
  const auto rank = [](const Input &input) { return static_cast<int64_t>(input.array.shape.size()); };
  require_equal("--k", "number of axes", rank(k), "--q", rank(q));
  require_equal("--v", "number of axes", rank(v), "--q", rank(q));
  require_equal("--v", "batch", v.batch, "--k", k.batch);
  require_equal("--v", "number of heads", v.heads, "--k", k.heads);
  require_equal("--v", "seq", v.seq, "--k", k.seq);
  require_equal("--k", "dim", k.dim, "--q", q.dim);

  Features features;
  features.cu_seqlens_q = read_offsets("--cu-seqlens-q", options.cu_seqlens_q, "cu_seqlens_q", "--q", q);
  features.cu_seqlens_kv = read_offsets("--cu-seqlens-kv", options.cu_seqlens_kv, "cu_seqlens_kv", "--k", k);
  const auto entries = [](const std::vector<int32_t> &offsets, const Input &input) {
    return offsets.empty() ? input.batch : static_cast<int64_t>(offsets.size()) - 1;
  };
  const int64_t batch = entries(features.cu_seqlens_q, q);
  require_equal(features.cu_seqlens_kv.empty() ? "--k" : "--cu-seqlens-kv", "batch", entries(features.cu_seqlens_kv, k),
                features.cu_seqlens_q.empty() ? "--q" : "--cu-seqlens-q", batch);
  const Sizes sizes = {batch, q.heads, k.heads, q.seq, k.seq, q.dim, v.dim};

  // Outputs have the axes of the inputs: [seq, dim] in gives [seq, dim] out.
  const auto output = [&](std::initializer_list<int64_t> last, float value) {
    std::vector<int64_t> shape(q.array.shape.begin(), q.array.shape.end() - 2);
    shape.insert(shape.end(), last);
    return make_output(shape, value);
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

  // Rows of no entry are not written: they are made what empty rows are.
  Array out = output({q.seq, v.dim}, 0), weights, lse;
  fovea_params params = dense_call(sizes, q.array.data, k.array.data, v.array.data, out.data);
  apply_options(options, sizes, &features, &params);
  if (weights_path) {
    weights = output({q.seq, k.seq}, 0);
    params.weights.data = address(weights.data);
  }
  if (lse_path) {
    lse = output({q.seq}, -INFINITY);
    params.lse = address(lse.data);
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
  report["softcap"] = params.softcap;
  report["causal"] = options.causal;
  report["align"] = params.causal ? options.causal : options.align;
  report["window"] = {params.window_left, params.window_right};
  report["q"] = {{"from", options.q}, {"shape", q.array.shape}};
  report["k"] = {{"from", options.k}, {"shape", k.array.shape}};
  report["v"] = {{"from", options.v}, {"shape", v.array.shape}};
  if (params.mask.data != nullptr) report["mask"] = {{"from", options.mask}, {"shape", features.mask.shape}};
  const std::pair<const char *, const std::string &> lists[] = {
      {"alibi", options.alibi},
      {"sinks", options.sinks},
      {"seqlens_q", options.seqlens_q},
      {"seqlens_kv", options.seqlens_kv},
      {"cu_seqlens_q", options.cu_seqlens_q},
      {"cu_seqlens_kv", options.cu_seqlens_kv},
  };
  for (const auto &[name, from] : lists) {
    if (!from.empty()) report[name] = from;
  }
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
  const auto file = [&](const char *name, std::string &variable, const char *description) {
    return command->add_option(name, variable, description)->type_name("FILE");
  };
  file("--q", options->q, "Queries: an .npy or .safetensors file")->required();
  file("--k", options->k, "Keys")->required();
  file("--v", options->v, "Values")->required();
  file("--out", options->out, "Where the result goes")->required();
  file("--weights", options->weights, "Where the softmax matrix goes, [..., seq_q, seq_kv]");
  file("--lse", options->lse, "Where the log-sum-exp of every row goes, [..., seq_q]");
  command->add_option("--scale", options->scale, "Factor of the scores; default 1/sqrt(dim of --q)");
  command->add_option("--softcap", options->softcap, "Scores s become C * tanh(s / C); 0 = off")
      ->type_name("C")
      ->capture_default_str();
  const CLI::IsMember corners({"none", "top-left", "bottom-right"});
  command->add_option("--causal", options->causal, "Query i sees keys up to i, counted from that corner of the score matrix")
      ->check(corners)
      ->capture_default_str();
  command->add_option("--align", options->align, "The corner that windows and ALiBi count from, where --causal does not say")
      ->check(corners)
      ->capture_default_str();
  command->add_option("--window-left", options->window_left, "How many keys before its own position a query sees; -1 = all")
      ->capture_default_str();
  command->add_option("--window-right", options->window_right, "How many keys behind it; -1 = all")->capture_default_str();
  file("--mask", options->mask,
       "Keys that may be seen (bool), or what is added to the scores (float; -inf excludes); broadcast to [batch, head, seq_q, "
       "seq_kv]");
  command->add_option("--alibi", options->alibi, "Slope of the distance of each query head, or 'standard'")
      ->type_name("FILE|standard");
  file("--sinks", options->sinks, "Sink logit of each query head; -inf = none");
  file("--seqlens-q", options->seqlens_q, "How many queries each entry of the batch has");
  file("--seqlens-kv", options->seqlens_kv, "How many keys each entry of the batch has");
  file("--cu-seqlens-q", options->cu_seqlens_q, "Queries are packed: where each segment begins on the seq axis, and the end");
  file("--cu-seqlens-kv", options->cu_seqlens_kv, "Keys and values are packed");
  options->context.add_to(*command);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Inputs are float32 or float64 (rounded to float32), all of the same number of axes: [seq, dim], [head, seq, dim] or\n"
      "[batch, head, seq, dim]; there may be fewer heads of keys and values than of queries. A mask may also be bool, float16 "
      "or\n"
      "bfloat16; lengths and offsets are int32 or int64. In a .safetensors file a tensor is named FILE.safetensors:TENSOR; "
      "without\n"
      "a name it is the only one, or the one called q, k, v, mask, alibi_slopes, sinks, seqlens_q, seqlens_kv, cu_seqlens_q or\n"
      "cu_seqlens_kv. Results are float32, called out, weights and lse where no name is given; those for one .safetensors file "
      "are\n"
      "written there together; queries beyond their entry's length give what a query without keys gives: 0, log-sum-exp -inf. A\n"
      "file appears under its name only when it is complete.\n"
      "Example: fovea run --q in.safetensors:q --k in.safetensors:k --v in.safetensors:v --out out.npy --causal bottom-right");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace fovea::tools
