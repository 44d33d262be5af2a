// fovea run: attention of arrays in files.
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "arrays.h"
#include "commands.h"
#include "reference/element.h"

namespace fovea::tools {
namespace {

struct Options {
  ContextOptions context;
  std::string q, k, v, out, weights, lse, out_dtype;
  std::string k_scale, v_scale, k_blocks, v_blocks, block_table;
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

// Types by the names that options and reports give them.
constexpr std::pair<const char *, fovea_dtype> kDtypes[] = {{"f32", FOVEA_F32},   {"f16", FOVEA_F16}, {"bf16", FOVEA_BF16},
                                                            {"bool", FOVEA_BOOL}, {"i8", FOVEA_I8},   {"q8_0", FOVEA_Q8_0},
                                                            {"q4_0", FOVEA_Q4_0}};

const char *dtype_name(fovea_dtype dtype) {
  return std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const auto &entry) { return entry.second == dtype; })->first;
}

fovea_dtype dtype_named(const std::string &name) {
  return std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const auto &entry) { return entry.first == name; })->second;
}

// Never null, which would mean an absent tensor, not even where there are no elements.
void *elements_of(const Array &array) {
  alignas(float) static unsigned char no_element[sizeof(float)];
  return array.bytes.empty() ? no_element : const_cast<unsigned char *>(array.bytes.data());
}

// What the options of a call point to.
struct Features {
  Array mask;
  std::vector<float> k_scale, v_scale, alibi_slopes, sinks;
  Integers block_table;
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

template <class Read>
Input read_input(const char *argument, const std::string &text, const char *default_tensor, Read read) {
  Input input;
  input.array = read_file(argument, text, default_tensor, read);
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

// Keys or values. blocks: "q8_0" or "q4_0" where the file holds their bytes, else "".
Input read_keys(const char *argument, const std::string &text, const char *default_tensor, const std::string &blocks) {
  if (blocks.empty()) return read_input(argument, text, default_tensor, read_cache);
  const auto read = [dtype = dtype_named(blocks)](const ArrayPath &path, const std::string &tensor) {
    return read_blocks(path, tensor, dtype, static_cast<int64_t>(reference::element_bytes(dtype)),
                       reference::block_elements(dtype));
  };
  return read_input(argument, text, default_tensor, read);
}

// The factors of int8 keys or values, one for each row; empty where no file is named.
std::vector<float> read_scales(const char *argument, const std::string &text, const char *default_tensor, const Input &input) {
  if (text.empty()) return {};
  Floats scales = read_file(argument, text, default_tensor, read_floats);
  std::vector<int64_t> rows(input.array.shape.begin(), input.array.shape.end() - 1), column = rows;
  column.push_back(1);
  if (scales.shape != rows && scales.shape != column) {
    refuse(argument,
           text + " has shape " + shape_text(scales.shape) + "; " + shape_text(rows) + " is wanted, a factor for each row");
  }
  return std::move(scales.data);
}

// Which page holds which keys of which entry; empty where no file is named.
Integers read_block_table(const std::string &text) {
  if (text.empty()) return {};
  Integers table = read_file("--block-table", text, "block_table", read_integers);
  if (table.shape.size() != 2) {
    refuse("--block-table", text + " has shape " + shape_text(table.shape) + "; [batch, pages of an entry] is wanted");
  }
  return table;
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
fovea_tensor broadcast_mask(const std::string &text, const Array &mask, const Sizes &sizes, const Features &features) {
  const int64_t wanted[4] = {sizes.batch, sizes.heads_q, sizes.seq_q, sizes.seq_kv};
  const std::vector<int32_t> nothing;
  const std::vector<int32_t> *const segments[4] = {&nothing, &nothing, &features.cu_seqlens_q, &features.cu_seqlens_kv};
  fovea_tensor tensor = {};
  tensor.data = elements_of(mask);
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

// Dense, as the file of an input lies in memory.
void lay_out(const Input &input, fovea_tensor *tensor) {
  const int64_t row = input.dim / reference::block_elements(input.array.dtype);
  const int64_t strides[] = {input.heads * input.seq * row, input.seq * row, row, 1};
  std::copy(std::begin(strides), std::end(strides), tensor->stride);
}

void apply_scales(std::vector<float> &scales, const Input &input, fovea_tensor *tensor) {
  if (scales.empty()) return;
  *tensor = {scales.data(), {input.heads * input.seq, input.seq, 1, 1}, FOVEA_F32, 0};
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

  features->sinks = read_list("--sinks", options.sinks, "sinks", sizes.heads_q, read_floats);
  if (options.alibi == "standard") {
    features->alibi_slopes.resize(static_cast<size_t>(sizes.heads_q));
    require_ok(fovea_alibi_slopes(sizes.heads_q, address(features->alibi_slopes)));
  } else {
    features->alibi_slopes = read_list("--alibi", options.alibi, "alibi_slopes", sizes.heads_q, read_floats);
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

// Full of 0.
Array make_output(const std::vector<int64_t> &shape, fovea_dtype dtype) {
  double bytes = static_cast<double>(reference::element_bytes(dtype));
  for (const int64_t size : shape) bytes *= static_cast<double>(size);
  const std::string refusal = memory_refusal(bytes);
  if (!refusal.empty()) refuse("an output of shape " + shape_text(shape), refusal);
  return {shape, dtype, std::vector<unsigned char>(static_cast<size_t>(bytes))};
}

// Files are named by the options that read and that write them.
using NamedFiles = std::vector<std::pair<const char *, const std::string &>>;

// An output that is an input would take its place; those that share a file are the writer's to judge.
void refuse_to_overwrite(const NamedFiles &inputs, const NamedFiles &outputs) {
  for (const auto &[output, to] : outputs) {
    for (const auto &[input, from] : inputs) {
      if (to.empty() || from.empty()) continue;
      try {
        if (is_same_file(ArrayPath(to).file, ArrayPath(from).file)) refuse(output, to + " is the file of " + input);
      } catch (const FileError &) {  // a name that is no array's, which whoever reads or writes it refuses
      }
    }
  }
}

// A text of the library with the names of its fields turned into those of options: what it begins with, and words that only fields are.
std::string with_option_names(const CLI::App &command, const std::string &text) {
  std::string result;
  for (size_t at = 0, end; at < text.size(); at = end) {
    end = at;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
    if (end == at) {
      result += text[end++];
      continue;
    }
    const std::string word = text.substr(at, end - at);
    std::string option = word == "alibi_slopes" ? "--alibi" : "--" + word;
    std::replace(option.begin(), option.end(), '_', '-');
    const bool is_field = at == 0 || word.find('_') != std::string::npos;
    result += is_field && command.get_option_no_throw(option) != nullptr ? option : word;
  }
  return result;
}

int run(const CLI::App &command, const Options &options) {
  const NamedFiles inputs = {{"--q", options.q},
                             {"--k", options.k},
                             {"--v", options.v},
                             {"--k-scale", options.k_scale},
                             {"--v-scale", options.v_scale},
                             {"--block-table", options.block_table},
                             {"--mask", options.mask},
                             {"--alibi", options.alibi},
                             {"--sinks", options.sinks},
                             {"--seqlens-q", options.seqlens_q},
                             {"--seqlens-kv", options.seqlens_kv},
                             {"--cu-seqlens-q", options.cu_seqlens_q},
                             {"--cu-seqlens-kv", options.cu_seqlens_kv}};
  refuse_to_overwrite(inputs, {{"--out", options.out}, {"--weights", options.weights}, {"--lse", options.lse}});

  const Input q = read_input("--q", options.q, "q", read_array), k = read_keys("--k", options.k, "k", options.k_blocks),
              v = read_keys("--v", options.v, "v", options.v_blocks);
  const auto rank = [](const Input &input) { return static_cast<int64_t>(input.array.shape.size()); };
  require_equal("--k", "number of axes", rank(k), "--q", rank(q));
  require_equal("--v", "number of axes", rank(v), "--q", rank(q));
  require_equal("--v", "batch", v.batch, "--k", k.batch);
  require_equal("--v", "number of heads", v.heads, "--k", k.heads);
  require_equal("--v", "seq", v.seq, "--k", k.seq);
  require_equal("--k", "dim", k.dim, "--q", q.dim);
  if (k.heads == 0 ? q.heads != 0 : q.heads % k.heads != 0) {
    refuse("--q",
           "number of heads is " + std::to_string(q.heads) + ", not a multiple of that of --k, " + std::to_string(k.heads));
  }

  Features features;
  features.cu_seqlens_q = read_offsets("--cu-seqlens-q", options.cu_seqlens_q, "cu_seqlens_q", "--q", q);
  features.cu_seqlens_kv = read_offsets("--cu-seqlens-kv", options.cu_seqlens_kv, "cu_seqlens_kv", "--k", k);
  const auto entries = [](const std::vector<int32_t> &offsets, const Input &input) {
    return offsets.empty() ? input.batch : static_cast<int64_t>(offsets.size()) - 1;
  };
  const int64_t batch = entries(features.cu_seqlens_q, q);
  features.block_table = read_block_table(options.block_table);
  const bool paged = !options.block_table.empty();
  const std::vector<int64_t> &table = features.block_table.shape;
  require_equal(paged                            ? "--block-table"
                : features.cu_seqlens_kv.empty() ? "--k"
                                                 : "--cu-seqlens-kv",
                "batch", paged ? table[0] : entries(features.cu_seqlens_kv, k),
                features.cu_seqlens_q.empty() ? "--q" : "--cu-seqlens-q", batch);
  if (paged && k.seq == 0) refuse("--k", "pages of no slots hold no keys");
  if (paged && k.seq > INT32_MAX) refuse("--k", "pages of " + std::to_string(k.seq) + " slots are too large");
  const Sizes sizes = {batch, q.heads, k.heads, q.seq, paged ? table[1] * k.seq : k.seq, q.dim, v.dim};

  // Outputs have the axes of the inputs: [seq, dim] in gives [seq, dim] out. Rows of no entry are not written: they are made what empty
  // rows are.
  ArrayWriter writer;
  const auto output = [&](const char *argument, const std::string &text, const char *name, fovea_dtype dtype,
                          std::initializer_list<int64_t> last) -> Array * {
    if (text.empty()) return nullptr;
    std::vector<int64_t> shape(q.array.shape.begin(), q.array.shape.end() - 2);
    shape.insert(shape.end(), last);
    try {
      return &writer.add(ArrayPath(text), name, make_output(shape, dtype));
    } catch (const FileError &error) {
      refuse(argument, error.what());
    }
  };
  const fovea_dtype out_dtype = options.out_dtype.empty() ? q.array.dtype : dtype_named(options.out_dtype);
  Array *const out = output("--out", options.out, "out", out_dtype, {q.seq, v.dim});
  Array *const weights = output("--weights", options.weights, "weights", FOVEA_F32, {q.seq, k.seq});
  Array *const lse = output("--lse", options.lse, "lse", FOVEA_F32, {q.seq});

  fovea_params params;
  require_ok(fovea_params_init(&params, sizeof params, sizes.batch, sizes.heads_q, sizes.heads_kv, sizes.seq_q, sizes.seq_kv,
                               sizes.dim_k, sizes.dim_v));
  const std::pair<fovea_tensor *, const Array *> tensors[] = {
      {&params.q, &q.array}, {&params.k, &k.array}, {&params.v, &v.array}, {&params.out, out}, {&params.weights, weights}};
  for (const auto &[tensor, array] : tensors) {
    if (array == nullptr) continue;
    tensor->data = elements_of(*array);
    tensor->dtype = array->dtype;
  }
  lay_out(k, &params.k);
  lay_out(v, &params.v);
  features.k_scale = read_scales("--k-scale", options.k_scale, "k_scale", k);
  features.v_scale = read_scales("--v-scale", options.v_scale, "v_scale", v);
  apply_scales(features.k_scale, k, &params.k_scale);
  apply_scales(features.v_scale, v, &params.v_scale);
  if (paged) {
    params.page_size = static_cast<int32_t>(k.seq);
    params.num_pages = k.batch;
    params.block_table = features.block_table.data.data();
    params.block_table_stride = table[1];
  }
  if (lse != nullptr) {
    params.lse = static_cast<float *>(elements_of(*lse));
    std::fill_n(params.lse, lse->bytes.size() / sizeof(float), -INFINITY);
  }
  apply_options(options, sizes, &features, &params);

  const ContextPtr context = make_context(options.context);
  const auto start = std::chrono::steady_clock::now();
  if (fovea_forward(context.get(), &params, nullptr, 0) != FOVEA_OK) {
    throw InputError(with_option_names(command, fovea_last_error()));
  }
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
  const auto describe = [&](const char *name, const char *role, const std::string &text, const Array *array) {
    if (array == nullptr) return;
    report[name] = {{role, text}, {"shape", array->shape}, {"dtype", dtype_name(array->dtype)}};
  };
  describe("q", "from", options.q, &q.array);
  describe("k", "from", options.k, &k.array);
  describe("v", "from", options.v, &v.array);
  describe("mask", "from", options.mask, params.mask.data != nullptr ? &features.mask : nullptr);
  const std::pair<const char *, const std::string &> lists[] = {
      {"k_scale", options.k_scale},
      {"v_scale", options.v_scale},
      {"block_table", options.block_table},
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
  describe("out", "to", options.out, out);
  describe("weights", "to", options.weights, weights);
  describe("lse", "to", options.lse, lse);
  writer.commit();

  if (options.json) {
    print_json(report);
  } else {
    std::printf("%s, %d threads, %.3g ms\n", report["level"].get<std::string>().c_str(), report["threads"].get<int>(),
                1e3 * seconds);
    for (const char *name : {"out", "weights", "lse"}) {
      if (!report.contains(name)) continue;
      std::printf("%-8s %s %s %s\n", name, report[name]["to"].get<std::string>().c_str(),
                  shape_text(report[name]["shape"].get<std::vector<int64_t>>()).c_str(),
                  report[name]["dtype"].get<std::string>().c_str());
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
  file("--k-scale", options->k_scale, "Factor of each row of int8 keys, [..., seq]");
  file("--v-scale", options->v_scale, "Factor of each row of int8 values, [..., seq]");
  for (const auto &[name, variable, what] :
       {std::tuple("--k-blocks", &options->k_blocks, "--k"), {"--v-blocks", &options->v_blocks, "--v"}}) {
    command->add_option(name, *variable, std::string("Type of the blocks of ggml whose bytes ") + what + " holds, as uint8")
        ->check(CLI::IsMember({"q8_0", "q4_0"}));
  }
  CLI::Option *const block_table = file(
      "--block-table", options->block_table,
      "Keys and values lie in pages, [page, head, slot, dim]: which page holds which keys of each entry, [batch, pages of an "
      "entry]; a place that is not needed holds anything");
  command->add_option("--out-dtype", options->out_dtype, "Type of the numbers of --out; default: that of --q")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  CLI::Option *const weights =
      file("--weights", options->weights, "Where the softmax matrix goes, [..., seq_q, seq_kv]")->excludes(block_table);
  file("--lse", options->lse, "Where the log-sum-exp of every row goes, [..., seq_q]");
  command->add_option("--scale", options->scale, "Factor of the scores; default: 1/sqrt(dim of --q)");
  command->add_option("--softcap", options->softcap, "Scores s become C * tanh(s / C); 0 = off")
      ->type_name("C")
      ->capture_default_str();
  const CLI::IsMember corners({"none", "top-left", "bottom-right"});
  command
      ->add_option("--causal", options->causal,
                   "On unless none: a query sees no key after its own position. top-left: query i stands at key i; bottom-right: "
                   "the last query stands at the last key")
      ->check(corners)
      ->capture_default_str();
  command
      ->add_option("--align", options->align,
                   "Where queries stand for --window-left, --window-right and --alibi, in the words of --causal; needed unless "
                   "--causal says it")
      ->check(corners)
      ->capture_default_str();
  command
      ->add_option("--window-left", options->window_left,
                   "Number of keys before its own position that a query sees, besides the key there; 0 = none, -1 = no limit")
      ->type_name("KEYS")
      ->capture_default_str();
  command
      ->add_option("--window-right", options->window_right,
                   "Number of keys after its own position that a query sees; 0 = none, -1 = no limit; where --causal is on, 0 "
                   "whatever is given")
      ->type_name("KEYS")
      ->capture_default_str();
  file("--mask", options->mask,
       "Keys that may be seen (bool), or what is added to the scores (float; -inf excludes); broadcast to [batch, head, seq_q, "
       "seq_kv]");
  command->add_option("--alibi", options->alibi, "Slope of the distance of each query head, or 'standard'")
      ->type_name("FILE|standard");
  file("--sinks", options->sinks, "Sink logit of each query head; -inf = none");
  CLI::Option *const seqlens_q = file("--seqlens-q", options->seqlens_q, "How many queries each entry of the batch has");
  CLI::Option *const seqlens_kv = file("--seqlens-kv", options->seqlens_kv, "How many keys each entry of the batch has");
  file("--cu-seqlens-q", options->cu_seqlens_q, "Queries are packed: where each segment begins on the seq axis, and the end")
      ->excludes(seqlens_q)
      ->excludes(weights);
  file("--cu-seqlens-kv", options->cu_seqlens_kv, "Keys and values are packed: as --cu-seqlens-q")
      ->excludes(seqlens_kv)
      ->excludes(weights)
      ->excludes(block_table);
  options->context.add_to(*command);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Inputs are float16, bfloat16 (in .safetensors), float32 or float64 (rounded to float32), each of its own type, all of "
      "the\n"
      "same number of axes: [seq, dim], [head, seq, dim] or [batch, head, seq, dim]; --q may have a multiple of the heads of "
      "--k\n"
      "and --v. These two may also be int8, with --k-scale and --v-scale, or uint8, the bytes of blocks that --k-blocks and\n"
      "--v-blocks name. A mask may also be bool; scales, slopes and sinks are float32 or float64; lengths, offsets and block\n"
      "tables are int32 or int64.\n"
      "In a .safetensors file a tensor is named FILE.safetensors:TENSOR; without a name it is the only one, or the one called\n"
      "q, k, v, k_scale, v_scale, block_table, mask, alibi_slopes, sinks, seqlens_q, seqlens_kv, cu_seqlens_q or\n"
      "cu_seqlens_kv.\n"
      "Results are called out, weights and lse where no name is given; weights and lse are float32; those for one .safetensors\n"
      "file are written there together. A file appears under its name only when it is complete, and replaces what was there; a\n"
      "file that is an input is refused. Queries beyond their entry's length give what a query without keys gives: 0,\n"
      "log-sum-exp -inf.\n"
      "Example: fovea run --q in.safetensors:q --k in.safetensors:k --v in.safetensors:v --out out.npy --causal bottom-right");
  command->callback([command, options, &exit_code] { exit_code = run(*command, *options); });
}

}  // namespace fovea::tools
