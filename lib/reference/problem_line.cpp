#include "reference/problem_line.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iomanip>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>

#include "reference/element.h"
#include "reference/guarded_buffer.h"
#include "reference/thread_pool.h"

namespace fovea::reference {
namespace {

constexpr unsigned char kPoison =
    0xFF;  // an element of it is a NaN in each of the types, with a payload that no arithmetic produces
constexpr int64_t kUnusedStride = std::numeric_limits<int64_t>::max();  // of the batch axis of packed tensors

const std::vector<std::string> kLayouts = {"bhsd", "bshd", "bhds", "packed", "padded", "strided", "broadcast"};
const std::vector<std::string> kTypes = {"f32", "f16", "bf16"}, kCacheTypes = {"f32", "f16", "bf16", "i8", "q8_0", "q4_0"};
const std::vector<std::string> kDistributions = {"normal", "uniform", "ones", "zero", "outlier"};

std::string parse_choice(const std::string &key, const std::string &value, const std::vector<std::string> &choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return "";
  std::string list;
  for (const std::string &choice : choices) list += (list.empty() ? "" : "|") + choice;
  return key + "=" + value + ": not one of " + list;
}

std::string parse_integer(const std::string &key, const std::string &value, int64_t low, int64_t high, int64_t *out) {
  char *end = nullptr;
  errno = 0;
  const long long number = std::strtoll(value.c_str(), &end, 10);
  if (value.empty() || *end || errno || number < low || number > high)
    return key + "=" + value + ": not a whole number from " + std::to_string(low) + " to " + std::to_string(high);
  *out = number;
  return "";
}

std::string parse_float(const std::string &key, const std::string &value, float *out) {
  char *end = nullptr;
  *out = std::strtof(value.c_str(), &end);
  return value.empty() || *end ? key + "=" + value + ": not a number" : "";
}

std::string format_float(float value) {  // a short text that reads back as the same float
  for (int digits = 6;; ++digits) {
    std::ostringstream text;
    text << std::setprecision(digits) << value;
    if (digits >= std::numeric_limits<float>::max_digits10 || std::strtof(text.str().c_str(), nullptr) == value)
      return text.str();
  }
}

struct Shape {
  int64_t batch, heads, seq, dim;
};

enum Role { kQ, kK, kV, kOut, kWeights, kLse, kMask, kKScale, kVScale, kRoles };

struct View {
  int64_t offset = 0;
  int64_t stride[4];
};

// Strides of one tensor in an allocation of its own.
View own_view(const std::string &layout, const Shape &s, Role role) {
  const auto rows = [&](int64_t inner, int64_t row, int64_t head_gap) {
    const int64_t head = s.seq * row + head_gap;
    return View{0, {s.heads * head, head, row, inner}};
  };
  if (layout == "bshd") return View{0, {s.seq * s.heads * s.dim, s.dim, s.heads * s.dim, 1}};
  if (layout == "bhds") return View{0, {s.heads * s.dim * s.seq, s.dim * s.seq, 1, s.seq}};
  if (layout == "padded" || layout == "packed") return rows(1, s.dim + 3, 5);
  if (layout == "strided") {
    const int64_t inner = role == kQ || role == kV ? 2 : 3;
    return rows(inner, s.dim * inner, 0);
  }
  if (layout == "broadcast") return View{0, {0, 0, s.dim, 1}};
  return rows(1, s.dim, 0);
}

size_t span(const View &view, const Shape &s) {  // elements from the first to the last, both included
  if (s.batch == 0 || s.heads == 0 || s.seq == 0 || s.dim == 0) return 0;
  return static_cast<size_t>(1 + (s.batch - 1) * view.stride[0] + (s.heads - 1) * view.stride[1] + (s.seq - 1) * view.stride[2] +
                             (s.dim - 1) * view.stride[3]);
}

template <class Visit>  // visit(b, h, s, d, offset of the element)
void for_each_element(const View &view, const Shape &s, Visit visit) {
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t t = 0; t < s.seq; ++t)
        for (int64_t d = 0; d < s.dim; ++d)
          visit(b, h, t, d, view.offset + b * view.stride[0] + h * view.stride[1] + t * view.stride[2] + d * view.stride[3]);
}

uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

double unit(uint64_t hash) { return (double(hash >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)

void fill_row(const ProblemLine &line, Role role, uint64_t row_hash, int64_t dim, float *row) {
  if (line.dist == "ones" || line.dist == "zero") {
    std::fill(row, row + dim, line.dist == "ones" ? line.gain : 0.0f);
    return;
  }
  if (line.dist == "uniform") {
    for (int64_t d = 0; d < dim; ++d) row[d] = static_cast<float>(2 * unit(mix(row_hash + uint64_t(d))) - 1) * line.gain;
    return;
  }
  const bool outlier = line.dist == "outlier";
  const uint64_t lot = mix(row_hash ^ 0x5EED) % 16;  // of 16 keys one is large and one is nought
  const double key_factor = outlier && role == kK ? (lot == 0 ? 32.0 : lot == 1 ? 0.0 : 1.0) : 1.0;
  for (int64_t d = 0; d < dim; d += 2) {  // Box-Muller: a pair shares a radius and an angle
    const uint64_t pair = mix(row_hash + uint64_t(d));
    const double factor = outlier && role == kV && pair % 64 == 0 ? 10000.0 : key_factor;
    const double radius = factor * std::sqrt(-2 * std::log(unit(pair))), angle = 2 * M_PI * unit(mix(pair));
    row[d] = static_cast<float>(radius * std::cos(angle)) * line.gain;
    if (d + 1 < dim) row[d + 1] = static_cast<float>(radius * std::sin(angle)) * line.gain;
  }
}

// The lengths of the batch entries on one side, and where they lie.
struct Side {
  bool packed = false, ragged = false;
  std::vector<int32_t> first;   // token of each entry; [batch + 1] where packed, else all 0
  std::vector<int32_t> length;  // [batch]
  int64_t tokens = 0;           // of the axis

  // Packed entries lie side by side.
  bool has_row(int64_t b, int64_t token) const {
    return packed ? token >= first.front() && token < first.back() : token < length[size_t(b)];
  }
};

int64_t entry_length(const ProblemLine &line, Role role, bool packed, int64_t entry, int64_t longest) {
  if (packed && entry == 0) return longest;
  // Entry 1 lacks queries and entry 2 keys, or the other way round.
  const bool some_are_empty = line.batch > (packed ? 2 : 1);
  const bool lacks_queries = (mix(line.seed) + uint64_t(entry)) % 2;
  if (some_are_empty && (entry == 1 || entry == 2) && lacks_queries == (role == kQ)) return 0;
  const uint64_t lot = mix(mix(mix(line.seed ^ 0x1E46) + role) + uint64_t(entry));
  return lot % 4 == 0 || longest == 0 ? longest : 1 + int64_t(lot / 4 % uint64_t(longest));
}

Side side_of(const ProblemLine &line, Role role) {
  const int64_t longest = role == kQ ? line.seq_q : line.seq_kv;
  Side side;
  const bool uneven = line.packed == "1" || line.packed == (role == kQ ? "q" : "kv"), paged = role == kK && line.page_size > 0;
  side.packed = uneven && !paged;
  side.ragged = !side.packed && (line.lens == "ragged" || uneven);
  int64_t token = side.packed ? int64_t(mix(line.seed + role) % 3) : 0;  // those before belong to no entry
  for (int64_t b = 0; b < line.batch; ++b) {
    const int64_t length = side.packed || side.ragged ? entry_length(line, role, uneven, b, longest) : longest;
    side.first.push_back(int32_t(token));
    side.length.push_back(int32_t(length));
    if (side.packed) token += length;
  }
  side.first.push_back(int32_t(token));
  side.tokens = side.packed ? token + 1 + int64_t(mix(line.seed + role) / 3 % 5) : longest;
  return side;
}

// The pages that hold the keys of the batch entries.
struct Pages {
  int64_t size = 0, count = 0, columns = 0;
  std::vector<int64_t> page;   // [batch, columns]: of so many keys each; kNoPage where no query may see one of them
  std::vector<int32_t> table;  // likewise; anything but a page there
};
constexpr int64_t kNoPage = -1;

Pages pages_of(const ProblemLine &line, const Side &queries, const Side &keys) {
  constexpr int64_t kFar = int64_t{1} << 40;  // beyond any sequence
  const bool bottom_right = (line.causal == "none" ? line.align : line.causal) == "br";
  const int64_t left = line.window_left < 0 ? kFar : std::min(line.window_left, kFar);
  const int64_t right = line.causal != "none" ? 0 : line.window_right < 0 ? kFar : std::min(line.window_right, kFar);
  Pages pages;
  pages.size = line.page_size;
  pages.columns = (line.seq_kv + pages.size - 1) / pages.size + 1;  // one more than is needed
  pages.page.assign(size_t(line.batch * pages.columns), kNoPage);
  std::vector<size_t> used;
  for (int64_t b = 0; b < line.batch; ++b) {
    const int64_t q_len = queries.length[size_t(b)], kv_len = keys.length[size_t(b)], shift = bottom_right ? kv_len - q_len : 0;
    for (int64_t c = 0; c < pages.columns && q_len > 0 && line.heads_q > 0; ++c) {
      const int64_t first = c * pages.size, last = std::min(first + pages.size, kv_len) - 1;
      if (first <= last && last >= shift - left && first <= shift + q_len - 1 + right)
        used.push_back(size_t(b * pages.columns + c));
    }
  }
  pages.count = int64_t(used.size()) + 2;
  std::vector<int64_t> order(size_t(pages.count));
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto lot = [&](int64_t page) { return mix(mix(line.seed ^ 0x9A6E) + uint64_t(page)); };
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return lot(a) < lot(b); });
  for (size_t i = 0; i < used.size(); ++i) pages.page[used[i]] = order[i];
  const int32_t no_pages[] = {-1, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(), int32_t(pages.count)};
  for (size_t i = 0; i < pages.page.size(); ++i)
    pages.table.push_back(pages.page[i] == kNoPage ? no_pages[i % 4] : int32_t(pages.page[i]));
  return pages;
}

fovea_dtype dtype_named(const std::string &name) {
  static const std::map<std::string, fovea_dtype> named = {{"bool", FOVEA_BOOL}, {"f16", FOVEA_F16},   {"bf16", FOVEA_BF16},
                                                           {"i8", FOVEA_I8},     {"q8_0", FOVEA_Q8_0}, {"q4_0", FOVEA_Q4_0}};
  const auto found = named.find(name);
  return found == named.end() ? FOVEA_F32 : found->second;
}

// What is added to a score; coordinates along which the mask repeats are 0.
double mask_value(const ProblemLine &line, int64_t kv_len, int64_t b, int64_t h, int64_t i, int64_t j) {
  constexpr double excluded = -std::numeric_limits<double>::infinity();
  if (line.mask_fill == "true") return 0;
  if (line.mask_fill == "blocks") {
    const auto block = [](int64_t index, int64_t length) { return index / std::max<int64_t>(1, (length + 7) / 8); };
    return block(i, line.seq_q) == block(j, line.seq_kv) ? 0 : excluded;
  }
  if (line.mask_fill == "late") return j >= kv_len - 3 ? 0 : excluded;
  const uint64_t head = mix(mix(mix(line.seed ^ 0xA5C) + uint64_t(b)) + uint64_t(h)), row = mix(head + uint64_t(i));
  const uint64_t lot = mix(row ^ mix(uint64_t(j)));
  if (line.mask_fill == "low") {
    if (line.mask == "bool") return 0;
    const double low[] = {0, -88, -95, -200, -1e4, lowest_element(dtype_named(line.mask))};
    return low[lot % 6];
  }
  const uint64_t key_block = uint64_t(j / 300);
  const bool block_excluded = mix(head ^ mix(~key_block)) % (key_block == 0 ? 16 : 3) == 0;
  const bool row_excluded = mix(row) % 16 == 0;
  return block_excluded || row_excluded || lot % 2 ? excluded : 8 * unit(mix(lot)) - 4;
}

// The slopes of the ALiBi paper: a geometric sequence for a power of two; for another count that of the power of two below, and behind
// it every other slope of the power of two above.
std::vector<float> standard_slopes(int64_t heads) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<float> slopes;
  for (int64_t h = 0; h < heads; ++h) {
    const double exponent = h < power ? -8.0 * double(h + 1) / double(power) : -4.0 * double(2 * (h - power) + 1) / double(power);
    slopes.push_back(float(std::exp2(exponent)));
  }
  return slopes;
}

std::vector<float> some_sinks(const ProblemLine &line) {
  std::vector<float> sinks;
  for (int64_t h = 0; h < line.heads_q; ++h) {
    const double sink = 8 * unit(mix(mix(line.seed ^ 0x5146) + uint64_t(h))) - 4;
    sinks.push_back(h % 4 == 1 ? -std::numeric_limits<float>::infinity() : h % 8 == 6 ? 20.0f : float(sink));
  }
  return sinks;
}

// The score functions of score=modify and score=replace. user: how much they add or weigh.
void add_relative_bias(void *user, const fovea_score_tile *tile) {
  const float amplitude = *static_cast<const float *>(user);
  for (int64_t r = 0; r < tile->rows; ++r)
    for (int64_t c = 0; c < tile->cols; ++c) {
      const int64_t query = tile->row0 + r, key = tile->col0 + c;
      float &score = tile->score[r * tile->row_stride + c * tile->col_stride];
      if ((query + 3 * key + 5 * tile->head + 7 * tile->batch) % 11 == 4)
        score = -std::numeric_limits<float>::infinity();
      else
        score += amplitude * std::cos(0.25f * float((query - key) % 64));
    }
}

void additive_attention(void *user, const fovea_score_tile *tile) {
  const float amplitude = *static_cast<const float *>(user) / std::sqrt(float(tile->dim_k));
  for (int64_t r = 0; r < tile->rows; ++r)
    for (int64_t c = 0; c < tile->cols; ++c) {
      const float *q = tile->q + r * tile->ldq, *k = tile->k + c * tile->ldk;
      float score = 0;
      for (int64_t d = 0; d < tile->dim_k; ++d) score += (d % 2 ? -amplitude : amplitude) * std::tanh(q[d] + k[d]);
      tile->score[r * tile->row_stride + c * tile->col_stride] = score;
    }
}

float score_amplitude = 2;

}  // namespace

std::string parse(const std::string &text, ProblemLine *line) {
  *line = ProblemLine{};
  using Value = const std::string &;
  const auto size = [](int64_t *out) {
    return [out](Value key, Value value) { return parse_integer(key, value, 0, int64_t{1} << 31, out); };
  };
  const auto bound = [](int64_t *out) {
    return [out](Value key, Value value) { return parse_integer(key, value, -1, std::numeric_limits<int64_t>::max(), out); };
  };
  const auto number = [](float *out) { return [out](Value key, Value value) { return parse_float(key, value, out); }; };
  const auto flag = [](bool *out) {
    return [out](Value key, Value value) {
      *out = value == "1";
      return parse_choice(key, value, {"0", "1"});
    };
  };
  const auto word = [](const std::vector<std::string> &choices, std::string *out) {
    return [&choices, out](Value key, Value value) {
      *out = value;
      return choices.empty() ? "" : parse_choice(key, value, choices);
    };
  };
  static const std::vector<std::string> anything,
      causal = {"none", "tl", "br"}, corners = {"tl", "br"}, masks = {"none", "bool", "f32", "f16", "bf16"},
      fills = {"true", "random", "blocks", "late", "low"}, lengths = {"full", "ragged"}, sides = {"0", "1", "q", "kv"},
      scores = {"none", "modify", "replace"}, executors = {"omp", "pool", "serial"};
  const std::map<std::string, std::function<std::string(Value, Value)>> keys = {
      {"b", size(&line->batch)},
      {"hq", size(&line->heads_q)},
      {"hkv", size(&line->heads_kv)},
      {"sq", size(&line->seq_q)},
      {"skv", size(&line->seq_kv)},
      {"dk", size(&line->dim_k)},
      {"dv", size(&line->dim_v)},
      {"scale",
       [&](Value key, Value value) {
         line->scale_set = true;
         return parse_float(key, value, &line->scale);
       }},
      {"causal", word(causal, &line->causal)},
      {"left", bound(&line->window_left)},
      {"right", bound(&line->window_right)},
      {"align", word(corners, &line->align)},
      {"softcap", number(&line->softcap)},
      {"alibi", flag(&line->alibi)},
      {"sinks", flag(&line->sinks)},
      {"lens", word(lengths, &line->lens)},
      {"packed", word(sides, &line->packed)},
      {"pages", [&](Value key,
                    Value value) { return parse_integer(key, value, 0, std::numeric_limits<int32_t>::max(), &line->page_size); }},
      {"score", word(scores, &line->score)},
      {"mask", word(masks, &line->mask)},
      {"maskaxes",
       [&](Value key, Value value) {
         line->mask_axes = value;
         std::string in_order;
         for (const char axis : std::string("bhqk"))
           if (value.find(axis) != std::string::npos) in_order += axis;
         return value == in_order ? "" : key + "=" + value + ": not some of b, h, q and k in this order";
       }},
      {"maskfill", word(fills, &line->mask_fill)},
      {"layout",
       [&](Value key, Value value) {
         line->layout_q = line->layout_k = line->layout_v = line->layout_out = value;
         if (value == "broadcast") line->layout_out = "bhsd";
         return parse_choice(key, value, kLayouts);
       }},
      {"q", word(kLayouts, &line->layout_q)},
      {"k", word(kLayouts, &line->layout_k)},
      {"v", word(kLayouts, &line->layout_v)},
      {"out", word(kLayouts, &line->layout_out)},
      {"type",
       [&](Value key, Value value) {
         line->type_q = line->type_k = line->type_v = line->type_out = value;
         return parse_choice(key, value, kTypes);
       }},
      {"tq", word(kTypes, &line->type_q)},
      {"tk", word(kCacheTypes, &line->type_k)},
      {"tv", word(kCacheTypes, &line->type_v)},
      {"tout", word(kTypes, &line->type_out)},
      {"lse", flag(&line->lse)},
      {"weights", flag(&line->weights)},
      {"dist", word(kDistributions, &line->dist)},
      {"gain", number(&line->gain)},
      {"seed",
       [&](Value key, Value value) {
         int64_t seed = 0;
         const std::string error = parse_integer(key, value, 0, std::numeric_limits<int64_t>::max(), &seed);
         line->seed = static_cast<uint64_t>(seed);
         return error;
       }},
      {"isa", word(anything, &line->isa)},
      {"threads",
       [&](Value key, Value value) {
         int64_t threads = 0;
         const std::string error = parse_integer(key, value, 1, FOVEA_MAX_THREADS, &threads);
         line->threads = static_cast<int32_t>(threads);
         return error;
       }},
      {"exec", word(executors, &line->exec)},
  };
  std::istringstream words(text);
  for (std::string pair; words >> pair;) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos) return pair + ": not of the form key=value";
    const auto found = keys.find(pair.substr(0, equals));
    if (found == keys.end()) {
      std::string known;
      for (const auto &entry : keys) known += " " + entry.first;
      return pair + ": not a key; known are" + known;
    }
    const std::string error = found->second(found->first, pair.substr(equals + 1));
    if (!error.empty()) return error;
  }
  if (line->heads_q && (line->heads_kv == 0 || line->heads_q % line->heads_kv)) return "hq: not a multiple of hkv";
  for (const auto &[dim_key, dim, type_key, type] :
       {std::make_tuple("dk", line->dim_k, "tk", line->type_k), std::make_tuple("dv", line->dim_v, "tv", line->type_v)})
    if (const int64_t block = block_elements(dtype_named(type)); dim % block)
      return dim_key + ("=" + std::to_string(dim)) + ": not a multiple of the " + std::to_string(block) +
             " elements of a block of " + type_key + "=" + type;
  if (line->layout_out == "broadcast") return "out=broadcast: only inputs can be broadcast";
  if (line->weights && line->packed != "0") return "weights=1: not with packed";
  if (line->weights && line->page_size) return "weights=1: not with pages";
  if (line->exec == "serial" && line->threads != 1) return "exec=serial: threads must be 1";
  return "";
}

std::string format(const ProblemLine &line) {
  const ProblemLine standard;
  std::ostringstream text;
  const auto add = [&](const char *key, const auto &value, const auto &usual) {
    if (value != usual) text << (text.tellp() > 0 ? " " : "") << key << '=' << value;
  };
  add("b", line.batch, standard.batch);
  add("hq", line.heads_q, standard.heads_q);
  add("hkv", line.heads_kv, standard.heads_kv);
  add("sq", line.seq_q, standard.seq_q);
  add("skv", line.seq_kv, standard.seq_kv);
  add("dk", line.dim_k, standard.dim_k);
  add("dv", line.dim_v, standard.dim_v);
  if (line.scale_set) add("scale", format_float(line.scale), "");
  add("causal", line.causal, standard.causal);
  add("left", line.window_left, standard.window_left);
  add("right", line.window_right, standard.window_right);
  add("align", line.align, standard.align);
  add("softcap", format_float(line.softcap), format_float(standard.softcap));
  add("alibi", line.alibi, standard.alibi);
  add("sinks", line.sinks, standard.sinks);
  add("lens", line.lens, standard.lens);
  add("packed", line.packed, standard.packed);
  add("pages", line.page_size, standard.page_size);
  add("score", line.score, standard.score);
  add("mask", line.mask, standard.mask);
  add("maskaxes", line.mask_axes, standard.mask_axes);
  add("maskfill", line.mask_fill, standard.mask_fill);
  ProblemLine layouts;
  if (line.layout_q == line.layout_k && line.layout_k == line.layout_v) {
    add("layout", line.layout_q, layouts.layout_q);
    layouts.layout_q = layouts.layout_k = layouts.layout_v = line.layout_q;
    if (line.layout_q != "broadcast") layouts.layout_out = line.layout_q;
  }
  add("q", line.layout_q, layouts.layout_q);
  add("k", line.layout_k, layouts.layout_k);
  add("v", line.layout_v, layouts.layout_v);
  add("out", line.layout_out, layouts.layout_out);
  ProblemLine types;
  if (line.type_q == line.type_k && line.type_k == line.type_v) {
    add("type", line.type_q, types.type_q);
    types.type_q = types.type_k = types.type_v = types.type_out = line.type_q;
  }
  add("tq", line.type_q, types.type_q);
  add("tk", line.type_k, types.type_k);
  add("tv", line.type_v, types.type_v);
  add("tout", line.type_out, types.type_out);
  add("lse", line.lse, standard.lse);
  add("weights", line.weights, standard.weights);
  add("dist", line.dist, standard.dist);
  add("gain", format_float(line.gain), format_float(standard.gain));
  add("seed", line.seed, standard.seed);
  add("isa", line.isa, standard.isa);
  add("threads", line.threads, standard.threads);
  add("exec", line.exec, standard.exec);
  return text.str();
}

struct ProblemData::Impl {
  Side queries, keys;
  Pages pages;
  Shape shapes[kRoles];
  View views[kRoles];
  fovea_dtype types[kRoles];
  GuardedBuffer packed;
  GuardedBuffer buffers[kRoles];  // those of q, k and v are empty where they are packed
  std::vector<GuardedBuffer> arrays;

  static bool is_of_keys(Role role) { return role == kK || role == kV || role == kKScale || role == kVScale; }
  const Side &side(Role role) const { return is_of_keys(role) ? keys : queries; }
  void *tensor(Role role) const {
    if (role <= kV && packed.bytes())
      return packed.as<unsigned char>() + views[role].offset * int64_t(element_bytes(types[role]));
    return buffers[role].data();
  }
  template <class T>
  const T *array(const std::vector<T> &values, Flush flush) {
    arrays.emplace_back(values.size() * sizeof(T), flush, kPoison);
    if (!values.empty()) std::memcpy(arrays.back().data(), values.data(), values.size() * sizeof(T));
    arrays.back().set_writable(false);
    return arrays.back().as<T>();
  }
  std::vector<float> dense(Role role) const {
    std::vector<float> values;
    for_each_element(views[role], shapes[role], [&](int64_t, int64_t, int64_t, int64_t, int64_t offset) {
      values.push_back(float(read_element(buffers[role].data(), types[role], offset)));
    });
    return values;
  }
  bool is_paged(Role role) const { return pages.size && is_of_keys(role); }
  void write_row(Role role, int64_t b, int64_t h, int64_t s, int64_t start, const std::vector<float> &row);
  int64_t start_of_row(Role role, int64_t b, int64_t h, int64_t s) const;
  void fill_input(const ProblemLine &line, Role role, bool broadcast);
  void fill_mask(const ProblemLine &line);
};

// The offset of token s of batch entry b; -1 where it has no place.
int64_t ProblemData::Impl::start_of_row(Role role, int64_t b, int64_t h, int64_t s) const {
  const View &view = views[role];
  const Side &entries = side(role);
  int64_t outer = entries.packed ? 0 : b, row = entries.packed ? entries.first[size_t(b)] + s : s;
  if (is_paged(role)) {
    outer = pages.page[size_t(b * pages.columns + s / pages.size)];
    row = s % pages.size;
    if (outer == kNoPage) return -1;
  }
  return outer * view.stride[0] + h * view.stride[1] + row * view.stride[2];
}

// A row of numbers, as elements of the tensor's type.
void ProblemData::Impl::write_row(Role role, int64_t b, int64_t h, int64_t s, int64_t start, const std::vector<float> &row) {
  const fovea_dtype dtype = types[role];
  const int64_t step = views[role].stride[3], dim = int64_t(row.size()), block = block_elements(dtype);
  if (dtype == FOVEA_I8) {
    const Role scale_role = role == kK ? kKScale : kVScale;
    float scale = 0;
    for (const float x : row) scale = std::max(scale, std::fabs(x) / 127);
    buffers[scale_role].as<float>()[start_of_row(scale_role, b, h, s)] = scale;
    for (int64_t d = 0; d < dim; ++d)
      buffers[role].as<int8_t>()[start + d * step] = int8_t(scale == 0 ? 0 : std::lrint(row[size_t(d)] / scale));
  } else if (block > 1) {
    for (int64_t d = 0; d < dim; d += block) write_block(tensor(role), dtype, start + d / block, row.data() + d);
  } else {
    for (int64_t d = 0; d < dim; ++d) write_element(tensor(role), dtype, start + d * step, row[size_t(d)]);
  }
}

// The tokens of batch entries; all others stay poison.
void ProblemData::Impl::fill_input(const ProblemLine &line, Role role, bool broadcast) {
  const Shape &shape = shapes[role];
  const Side &entries = side(role);
  std::vector<float> row(static_cast<size_t>(shape.dim * block_elements(types[role])));
  for (int64_t b = 0; b < line.batch; ++b)
    for (int64_t h = 0; h < (broadcast ? std::min<int64_t>(shape.heads, 1) : shape.heads); ++h)
      for (int64_t s = 0; s < entries.length[size_t(b)]; ++s) {
        const int64_t start = start_of_row(role, b, h, s);
        if (start < 0) continue;
        const int64_t entry = broadcast && !entries.packed && !is_paged(role) ? 0 : b;  // the one that is repeated
        const uint64_t hash = mix(mix(mix(mix(mix(line.seed) + role) + uint64_t(entry)) + uint64_t(h)) + uint64_t(s));
        fill_row(line, role, hash, int64_t(row.size()), row.data());
        write_row(role, b, h, s, start, row);
      }
}

// What some batch entry has; all else stays poison.
void ProblemData::Impl::fill_mask(const ProblemLine &line) {
  const View &view = views[kMask];
  const auto along = [&](char axis) { return line.mask_axes.find(axis) != std::string::npos; };
  const auto extent = [&](char axis, int64_t length) { return along(axis) ? length : std::min<int64_t>(length, 1); };
  const fovea_dtype dtype = types[kMask];
  for (int64_t b = 0; b < line.batch; ++b) {
    const int64_t q_len = queries.length[size_t(b)], kv_len = keys.length[size_t(b)];
    for (int64_t h = 0; h < extent('h', line.heads_q); ++h)
      for (int64_t i = 0; i < extent('q', q_len); ++i)
        for (int64_t j = 0; j < extent('k', kv_len); ++j) {
          const double value = mask_value(line, along('b') ? kv_len : line.seq_kv, along('b') ? b : 0, h, i, j);
          const int64_t offset = b * view.stride[0] + h * view.stride[1] + i * view.stride[2] + j * view.stride[3];
          if (dtype == FOVEA_BOOL)  // any byte but 0 is true
            buffers[kMask].as<unsigned char>()[offset] = std::isfinite(value) ? static_cast<unsigned char>(1 + (i + j) % 255) : 0;
          else
            write_element(buffers[kMask].data(), dtype, offset, value);
        }
  }
}

ProblemData::ProblemData(const ProblemLine &line, bool guard_front) : impl_(new Impl) {
  const Flush flush = guard_front ? Flush::kFront : Flush::kBack;
  Impl &impl = *impl_;
  const Side &queries = impl.queries = side_of(line, kQ), &keys = impl.keys = side_of(line, kK);
  fovea_params_init(&params, sizeof params, line.batch, line.heads_q, line.heads_kv, queries.tokens, keys.tokens, line.dim_k,
                    line.dim_v);
  if (line.page_size) impl.pages = pages_of(line, queries, keys);
  const int64_t batch_q = queries.packed ? 1 : line.batch;
  const int64_t key_entries = line.page_size ? impl.pages.count : keys.packed ? 1 : line.batch;
  const int64_t key_rows = line.page_size ? line.page_size : keys.tokens;
  impl.shapes[kQ] = {batch_q, line.heads_q, queries.tokens, line.dim_k};
  const auto blocks = [](int64_t dim, const std::string &type) { return dim / block_elements(dtype_named(type)); };
  impl.shapes[kK] = {key_entries, line.heads_kv, key_rows, blocks(line.dim_k, line.type_k)};
  impl.shapes[kV] = {key_entries, line.heads_kv, key_rows, blocks(line.dim_v, line.type_v)};
  impl.shapes[kKScale] = impl.shapes[kVScale] = {key_entries, line.heads_kv, key_rows, 1};
  impl.shapes[kOut] = {batch_q, line.heads_q, queries.tokens, line.dim_v};
  impl.shapes[kWeights] = {line.batch, line.heads_q, line.seq_q, line.seq_kv};
  impl.shapes[kLse] = {batch_q, line.heads_q, queries.tokens, 1};
  const auto repeated = [&](char axis) { return line.mask_axes.find(axis) == std::string::npos; };
  impl.shapes[kMask] = {repeated('b') ? 1 : line.batch, repeated('h') ? 1 : line.heads_q, repeated('q') ? 1 : line.seq_q,
                        repeated('k') ? 1 : line.seq_kv};
  const std::string layouts[kRoles] = {line.layout_q,
                                       line.layout_k,
                                       line.layout_v,
                                       line.layout_out,
                                       line.layout_out,
                                       line.layout_out,
                                       line.layout_q == "broadcast" ? "bhsd" : line.layout_q,
                                       line.layout_k,
                                       line.layout_v};
  const fovea_dtype types[kRoles] = {dtype_named(line.type_q),
                                     dtype_named(line.type_k),
                                     dtype_named(line.type_v),
                                     dtype_named(line.type_out),
                                     FOVEA_F32,
                                     FOVEA_F32,
                                     dtype_named(line.mask),
                                     FOVEA_F32,
                                     FOVEA_F32};
  std::copy(types, types + kRoles, impl.types);
  const bool wanted[kRoles] = {
      true, true, true, true, line.weights, line.lse, line.mask != "none", line.type_k == "i8", line.type_v == "i8"};
  const bool packed = line.layout_q == "packed" && line.layout_k == "packed" && line.layout_v == "packed" && !line.page_size &&
                      queries.packed == keys.packed && queries.tokens == keys.tokens && line.dim_k == line.dim_v &&
                      line.type_q == line.type_k && line.type_k == line.type_v;
  for (int role = 0; role < kRoles; ++role) {
    View &view = impl.views[role];
    const bool in_blocks = block_elements(types[role]) > 1;
    const std::string &layout = layouts[role];
    view = own_view(in_blocks && layout == "strided" ? "padded"
                    : in_blocks && layout == "bhds"  ? "bhsd"
                                                     : layout,
                    impl.shapes[role], Role(role));
    if (impl.is_paged(Role(role)) && layout == "broadcast") view.stride[0] = impl.shapes[role].seq * impl.shapes[role].dim;
    if (packed && role <= kV) {
      const int64_t heads = line.heads_q + 2 * line.heads_kv, dim = line.dim_k;
      const int64_t first_head = role == kQ ? 0 : line.heads_q + (role == kV) * line.heads_kv;
      view = View{first_head * dim, {queries.tokens * heads * dim, dim, heads * dim, 1}};
    } else if (wanted[role]) {
      impl.buffers[role] = GuardedBuffer(span(view, impl.shapes[role]) * element_bytes(types[role]), flush, kPoison);
    }
  }
  if (packed) {
    const int64_t elements = batch_q * queries.tokens * (line.heads_q + 2 * line.heads_kv) * line.dim_k;
    impl.packed = GuardedBuffer(size_t(elements) * element_bytes(types[kQ]), flush, kPoison);
  }

  for (const Role role : {kQ, kK, kV}) {
    impl.fill_input(line, role, layouts[role] == "broadcast");
    impl.buffers[role].set_writable(false);
  }
  for (const Role role : {kKScale, kVScale}) impl.buffers[role].set_writable(false);
  impl.packed.set_writable(false);

  const auto set = [&](fovea_tensor *t, Role role) {
    t->data = impl.tensor(role);
    std::copy(impl.views[role].stride, impl.views[role].stride + 4, t->stride);
    t->dtype = types[role];
    if (impl.side(role).packed) t->stride[0] = kUnusedStride;
  };
  set(&params.q, kQ);
  set(&params.k, kK);
  set(&params.v, kV);
  if (wanted[kKScale]) set(&params.k_scale, kKScale);
  if (wanted[kVScale]) set(&params.v_scale, kVScale);
  set(&params.out, kOut);
  if (line.weights) set(&params.weights, kWeights);
  if (line.lse) {
    params.lse = impl.buffers[kLse].as<float>();
    std::copy(impl.views[kLse].stride, impl.views[kLse].stride + 3, params.lse_stride);
    if (queries.packed) params.lse_stride[0] = kUnusedStride;
  }
  if (line.mask != "none") {
    if (repeated('b')) impl.views[kMask].stride[0] = 0;
    if (repeated('h')) impl.views[kMask].stride[1] = 0;
    if (repeated('q')) impl.views[kMask].stride[2] = 0;
    if (repeated('k')) impl.views[kMask].stride[3] = 0;
    impl.fill_mask(line);
    impl.buffers[kMask].set_writable(false);
    params.mask.data = impl.buffers[kMask].data();
    std::copy(impl.views[kMask].stride, impl.views[kMask].stride + 4, params.mask.stride);
    params.mask.dtype = types[kMask];
  }
  if (queries.packed) params.cu_seqlens_q = impl.array(queries.first, flush);
  if (keys.packed) params.cu_seqlens_kv = impl.array(keys.first, flush);
  if (queries.ragged) params.seqlens_q = impl.array(queries.length, flush);
  if (keys.ragged) params.seqlens_kv = impl.array(keys.length, flush);
  if (line.page_size) {
    params.page_size = int32_t(line.page_size);
    params.num_pages = impl.pages.count;
    params.block_table = impl.array(impl.pages.table, flush);
    params.block_table_stride = impl.pages.columns;
  }
  if (line.alibi) params.alibi_slopes = impl.array(standard_slopes(line.heads_q), flush);
  if (line.sinks) params.sinks = impl.array(some_sinks(line), flush);
  if (line.score != "none") {
    params.score = line.score == "modify" ? add_relative_bias : additive_attention;
    params.score_mode = line.score == "modify" ? FOVEA_SCORE_MODIFY : FOVEA_SCORE_REPLACE;
    params.score_user = &score_amplitude;
  }
  if (line.scale_set) params.scale = line.scale;
  params.softcap = line.softcap;
  params.causal = line.causal != "none";
  params.window_left = line.window_left;
  params.window_right = line.window_right;
  if (params.causal || line.window_left != -1 || line.window_right != -1 || line.alibi)
    params.align = (params.causal ? line.causal : line.align) == "tl" ? FOVEA_ALIGN_TOP_LEFT : FOVEA_ALIGN_BOTTOM_RIGHT;
}

ProblemData::~ProblemData() = default;

bool ProblemData::output_gaps_intact() const {
  for (const Role role : {kOut, kWeights, kLse}) {
    const GuardedBuffer &buffer = impl_->buffers[role];
    if (!buffer.bytes()) continue;
    const size_t bytes = element_bytes(impl_->types[role]);
    std::vector<unsigned char> pages(buffer.pages(), buffer.pages() + buffer.page_bytes());
    unsigned char *first = pages.data() + (static_cast<unsigned char *>(buffer.data()) - buffer.pages());
    const auto forgive = [&](int64_t b, int64_t, int64_t row, int64_t, int64_t offset) {
      if (impl_->queries.has_row(b, row)) std::memset(first + offset * int64_t(bytes), kPoison, bytes);
    };
    for_each_element(impl_->views[role], impl_->shapes[role], forgive);
    if (std::any_of(pages.begin(), pages.end(), [](unsigned char byte) { return byte != kPoison; })) return false;
  }
  return true;
}

bool ProblemData::outputs_untouched() const {
  for (const Role role : {kOut, kWeights, kLse}) {
    const GuardedBuffer &buffer = impl_->buffers[role];
    if (std::any_of(buffer.pages(), buffer.pages() + buffer.page_bytes(), [](unsigned char byte) { return byte != kPoison; }))
      return false;
  }
  return true;
}

std::vector<float> ProblemData::dense_out() const { return impl_->dense(kOut); }
std::vector<float> ProblemData::dense_lse() const { return params.lse ? impl_->dense(kLse) : std::vector<float>(); }
std::vector<float> ProblemData::dense_weights() const {
  return params.weights.data ? impl_->dense(kWeights) : std::vector<float>();
}

void ProblemData::reset_outputs() {
  for (const Role role : {kOut, kWeights, kLse})
    if (impl_->buffers[role].bytes()) std::memset(impl_->buffers[role].pages(), kPoison, impl_->buffers[role].page_bytes());
}

void ProblemData::make_inputs_writable() {
  for (const Role role : {kQ, kK, kV, kMask, kKScale, kVScale}) impl_->buffers[role].set_writable(true);
  for (GuardedBuffer &array : impl_->arrays) array.set_writable(true);
  impl_->packed.set_writable(true);
}

ContextPtr make_context(const ProblemLine &line, std::string *error) {
  error->clear();
  fovea_options options;
  fovea_options_init(&options, sizeof options);
  options.num_threads = line.threads;
  if (line.isa != "auto") {
    std::array<fovea_isa, 64> levels;
    const int32_t count = fovea_isa_list(levels.data(), int32_t(levels.size()), 0);
    const auto *end = levels.data() + std::min<size_t>(size_t(count), levels.size());
    const auto *level = std::find_if(static_cast<const fovea_isa *>(levels.data()), end,
                                     [&](fovea_isa candidate) { return line.isa == fovea_isa_name(candidate); });
    if (level == end) {
      *error = "isa=" + line.isa + ": not a level of this architecture";
      return nullptr;
    }
    options.isa = *level;
  }
  ContextDeleter deleter;
  if (line.exec == "pool") {
    auto pool = std::make_shared<ThreadPool>(line.threads);
    options.executor = &pool->executor();
    options.num_threads = 0;
    deleter.pool = pool;
  }
  fovea_context *context = nullptr;
  if (fovea_context_create(&options, &context) != FOVEA_OK) *error = fovea_last_error();
  return ContextPtr(context, deleter);
}

std::string run_guarded(const fovea_context *context, const fovea_params &p, bool guard_front) {
  size_t bytes = 0;
  if (fovea_workspace_size(context, &p, &bytes) != FOVEA_OK) return fovea_last_error();
  const GuardedBuffer workspace(bytes, guard_front ? Flush::kFront : Flush::kBack, kPoison);
  return fovea_forward(context, &p, workspace.data(), bytes) == FOVEA_OK ? "" : fovea_last_error();
}

LineReference line_reference(const ProblemLine &line, double most_steps) {
  const ProblemData data(line);
  const int64_t rows = row_count(data.params);
  const double row_steps = std::max(1.0, double(line.seq_kv) * double(line.dim_k + line.dim_v));
  const int64_t sampled = std::min(rows, std::max(int64_t{2}, int64_t(most_steps / row_steps)));
  LineReference reference;
  if (sampled < rows)
    for (int64_t i = 0; i < sampled; ++i)
      reference.rows.push_back(int64_t(double(i) * double(rows - 1) / double(sampled - 1) + 0.5));
  for (int64_t i = 0; i < sampled; ++i)
    reference.rows_checked += row_at(data.params, reference.rows.empty() ? i : reference.rows[size_t(i)]).exists;
  reference.expected = attention(data.params, line.weights, reference.rows);
  return reference;
}

CheckResult check(const ProblemLine &line, const LineReference &reference,
                  const std::function<void(const std::string &)> &on_stage) {
  CheckResult result{"", "", {0, 0, 0, 0, 0, -1, -1}, true, true, reference.rows_checked};
  const ContextPtr context = make_context(line, &result.error);
  if (!context) return result;
  result.level = fovea_isa_name(fovea_context_isa(context.get()));

  on_stage("tensors");
  ProblemData back(line), front(line, true);
  for (const ProblemData *data : {&back, &front}) {
    on_stage(data == &back ? "first call" : "second call");
    result.error = run_guarded(context.get(), data->params, data == &front);
    if (!result.error.empty()) return result;
    result.gaps_intact = result.gaps_intact && data->output_gaps_intact();
  }
  on_stage("comparison");
  const auto same = [](const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
  };
  result.same_bits = same(back.dense_out(), front.dense_out()) && same(back.dense_lse(), front.dense_lse()) &&
                     same(back.dense_weights(), front.dense_weights());
  result.verdict = compare(back.params, reference.expected, reference.rows);
  return result;
}

}  // namespace fovea::reference
