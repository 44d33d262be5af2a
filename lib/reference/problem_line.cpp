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
#include <sstream>

#include "reference/guarded_buffer.h"
#include "reference/thread_pool.h"

namespace fovea::reference {
namespace {

constexpr unsigned char kPoison = 0xFF;  // four of them are a NaN with a payload that no arithmetic produces
constexpr uint32_t kPoisonWord = 0xFFFFFFFF;

const std::vector<std::string> kLayouts = {"bhsd", "bshd", "bhds", "packed", "padded", "strided", "broadcast"};
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

enum Role { kQ, kK, kV, kOut, kWeights, kLse, kRoles };

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

}  // namespace

std::string parse(const std::string &text, ProblemLine *line) {
  *line = ProblemLine{};
  using Value = const std::string &;
  const auto size = [](int64_t *out) {
    return [out](Value key, Value value) { return parse_integer(key, value, 0, int64_t{1} << 31, out); };
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
  static const std::vector<std::string> anything, corners = {"none", "tl", "br"}, executors = {"omp", "pool", "serial"};
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
      {"causal", word(corners, &line->causal)},
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
         const std::string error = parse_integer(key, value, 1, 4096, &threads);
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
  if (line->layout_out == "broadcast") return "out=broadcast: only inputs can be broadcast";
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
  Shape shapes[kRoles];
  View views[kRoles];
  GuardedBuffer packed;
  GuardedBuffer buffers[kRoles];  // those of q, k and v are empty where they are packed

  float *tensor(Role role) const {
    if (role <= kV && packed.bytes()) return packed.as<float>() + views[role].offset;
    return buffers[role].as<float>();
  }
  std::vector<float> dense(Role role) const {
    std::vector<float> values;
    for_each_element(views[role], shapes[role], [&](int64_t, int64_t, int64_t, int64_t, int64_t offset) {
      values.push_back(buffers[role].as<float>()[offset]);
    });
    return values;
  }
};

ProblemData::ProblemData(const ProblemLine &line, bool guard_front) : impl_(new Impl) {
  const Flush flush = guard_front ? Flush::kFront : Flush::kBack;
  fovea_params_init(&params, sizeof params, line.batch, line.heads_q, line.heads_kv, line.seq_q, line.seq_kv, line.dim_k,
                    line.dim_v);
  impl_->shapes[kQ] = {line.batch, line.heads_q, line.seq_q, line.dim_k};
  impl_->shapes[kK] = {line.batch, line.heads_kv, line.seq_kv, line.dim_k};
  impl_->shapes[kV] = {line.batch, line.heads_kv, line.seq_kv, line.dim_v};
  impl_->shapes[kOut] = {line.batch, line.heads_q, line.seq_q, line.dim_v};
  impl_->shapes[kWeights] = {line.batch, line.heads_q, line.seq_q, line.seq_kv};
  impl_->shapes[kLse] = {line.batch, line.heads_q, line.seq_q, 1};
  const std::string layouts[kRoles] = {line.layout_q,   line.layout_k,   line.layout_v,
                                       line.layout_out, line.layout_out, line.layout_out};
  const bool packed = line.layout_q == "packed" && line.layout_k == "packed" && line.layout_v == "packed" &&
                      line.seq_q == line.seq_kv && line.dim_k == line.dim_v;
  for (int role = 0; role < kRoles; ++role) {
    View &view = impl_->views[role];
    view = own_view(layouts[role], impl_->shapes[role], Role(role));
    if (packed && role <= kV) {
      const int64_t heads = line.heads_q + 2 * line.heads_kv, dim = line.dim_k;
      const int64_t first_head = role == kQ ? 0 : line.heads_q + (role == kV) * line.heads_kv;
      view = View{first_head * dim, {line.seq_q * heads * dim, dim, heads * dim, 1}};
    } else if ((role != kLse || line.lse) && (role != kWeights || line.weights)) {
      impl_->buffers[role] = GuardedBuffer(span(view, impl_->shapes[role]) * sizeof(float), flush, kPoison);
    }
  }
  if (packed) {
    const int64_t elements = line.batch * line.seq_q * (line.heads_q + 2 * line.heads_kv) * line.dim_k;
    impl_->packed = GuardedBuffer(size_t(elements) * sizeof(float), flush, kPoison);
  }

  for (const Role role : {kQ, kK, kV}) {
    const Shape &shape = impl_->shapes[role];
    const View &view = impl_->views[role];
    const bool broadcast = layouts[role] == "broadcast";
    std::vector<float> row(static_cast<size_t>(shape.dim));
    for (int64_t b = 0; b < (broadcast ? std::min<int64_t>(shape.batch, 1) : shape.batch); ++b)
      for (int64_t h = 0; h < (broadcast ? std::min<int64_t>(shape.heads, 1) : shape.heads); ++h)
        for (int64_t s = 0; s < shape.seq; ++s) {
          const uint64_t hash = mix(mix(mix(mix(mix(line.seed) + role) + uint64_t(b)) + uint64_t(h)) + uint64_t(s));
          fill_row(line, role, hash, shape.dim, row.data());
          float *out = impl_->tensor(role) + b * view.stride[0] + h * view.stride[1] + s * view.stride[2];
          for (int64_t d = 0; d < shape.dim; ++d) out[d * view.stride[3]] = row[size_t(d)];
        }
    impl_->buffers[role].set_writable(false);
  }
  impl_->packed.set_writable(false);

  const auto set = [&](fovea_tensor *t, Role role) {
    t->data = impl_->tensor(role);
    std::copy(impl_->views[role].stride, impl_->views[role].stride + 4, t->stride);
    t->dtype = FOVEA_F32;
  };
  set(&params.q, kQ);
  set(&params.k, kK);
  set(&params.v, kV);
  set(&params.out, kOut);
  if (line.weights) set(&params.weights, kWeights);
  if (line.lse) {
    params.lse = impl_->tensor(kLse);
    std::copy(impl_->views[kLse].stride, impl_->views[kLse].stride + 3, params.lse_stride);
  }
  if (line.scale_set) params.scale = line.scale;
  params.causal = line.causal != "none";
  if (line.causal == "tl") params.align = FOVEA_ALIGN_TOP_LEFT;
  if (line.causal == "br") params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
}

ProblemData::~ProblemData() = default;

bool ProblemData::output_gaps_intact() const {
  for (const Role role : {kOut, kWeights, kLse}) {
    const GuardedBuffer &buffer = impl_->buffers[role];
    if (!buffer.bytes()) continue;
    std::vector<unsigned char> pages(buffer.pages(), buffer.pages() + buffer.page_bytes());
    unsigned char *first = pages.data() + (static_cast<unsigned char *>(buffer.data()) - buffer.pages());
    for_each_element(impl_->views[role], impl_->shapes[role], [&](int64_t, int64_t, int64_t, int64_t, int64_t offset) {
      std::memcpy(first + offset * int64_t{sizeof kPoisonWord}, &kPoisonWord, sizeof kPoisonWord);
    });
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
  for (const Role role : {kQ, kK, kV}) impl_->buffers[role].set_writable(true);
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
  const int64_t rows = line.batch * line.heads_q * line.seq_q;
  const double row_steps = std::max(1.0, double(line.seq_kv) * double(line.dim_k + line.dim_v));
  LineReference reference;
  reference.rows_checked = std::min(rows, std::max(int64_t{2}, int64_t(most_steps / row_steps)));
  if (reference.rows_checked < rows)
    for (int64_t i = 0; i < reference.rows_checked; ++i)
      reference.rows.push_back(int64_t(double(i) * double(rows - 1) / double(reference.rows_checked - 1) + 0.5));
  reference.expected = attention(ProblemData(line).params, line.weights, reference.rows);
  return reference;
}

CheckResult check(const ProblemLine &line) { return check(line, line_reference(line)); }

CheckResult check(const ProblemLine &line, const LineReference &reference) {
  CheckResult result{"", "", {0, 0, 0, 0, 0, -1, -1}, true, true, reference.rows_checked};
  const ContextPtr context = make_context(line, &result.error);
  if (!context) return result;
  result.level = fovea_isa_name(fovea_context_isa(context.get()));

  ProblemData back(line), front(line, true);
  for (const ProblemData *data : {&back, &front}) {
    result.error = run_guarded(context.get(), data->params, data == &front);
    if (!result.error.empty()) return result;
    result.gaps_intact = result.gaps_intact && data->output_gaps_intact();
  }
  const auto same = [](const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
  };
  result.same_bits = same(back.dense_out(), front.dense_out()) && same(back.dense_lse(), front.dense_lse()) &&
                     same(back.dense_weights(), front.dense_weights());
  result.verdict = compare(back.params, reference.expected, reference.rows);
  return result;
}

}  // namespace fovea::reference
