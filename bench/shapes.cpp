#include "shapes.h"

#include <algorithm>
#include <iterator>
#include <regex>
#include <stdexcept>
#include <utility>

namespace fovea::bench {
namespace {

struct CoreShape {
  const char *text;
  double avx512, avx2;  // share of the level's peak on one thread
};

constexpr CoreShape kCore[] = {
    {"1,8,8,4096,4096,64", 0.88, 0.86},          {"8,12,12,512,512,64", 0.87, 0.84},
    {"1,12,12,197,197,64", 0.83, 0.80},          {"1,8,8,64,64,64", 0.78, 0.75},
    {"1,8,8,2048,2048,128", 0.90, 0.88},         {"1,8,8,1024,1024,256", 0.90, 0.90},
    {"1,32,8,2048,2048,128 causal", 0.87, 0.84}, {"1,16,16,1024,1024,192/128 causal", 0.84, 0.82},
    {"1,32,32,512,512,80", 0.82, 0.80},          {"1,16,16,300,77,40", 0.70, 0.68},
};

// Share of the roofline with few query heads a key-value head, and with many.
struct DecodeType {
  fovea_dtype type;
  const char *name;
  double few, many;  // at AVX-512
};

constexpr DecodeType kDecodeTypes[] = {
    {FOVEA_F32, "f32", 0.93, 0.93}, {FOVEA_F16, "f16", 0.85, 0.62},   {FOVEA_BF16, "bf16", 0.90, 0.75},
    {FOVEA_I8, "i8", 0.70, 0.62},   {FOVEA_Q8_0, "q8_0", 0.70, 0.62}, {FOVEA_Q4_0, "q4_0", 0, 0},
};
constexpr int kDecodeGroups[] = {1, 4, 8, 16};
constexpr int kFewDecodeGroups = 4;
constexpr double kNarrowerDecode = 0.05;  // so much less where vectors are half as long

struct ShortDecode {
  const char *text;
  double share, seconds;
};
constexpr ShortDecode kShortDecode[] = {{"1,8,8,1,16,64", 0, 2e-6}, {"1,8,8,1,128,64", 1 / 1.5, 0}};

// Of each kind one: long, causal with shared heads, short; caches in memory whose limit is reading, and one whose is not.
constexpr const char *kScaling[] = {kCore[0].text,       "1,32,8,2048,2048,128 causal", "1,8,8,64,64,64",
                                    "1,8,8,1,32768,128", "1,32,8,1,32768,128 bf16",     "1,32,8,1,32768,128 i8"};

constexpr const char *kTiny = "1,1,1,1,10,512";
constexpr double kTinySeconds = 1e-6;

const DecodeType &decode_type(fovea_dtype type) {
  return *std::find_if(std::begin(kDecodeTypes), std::end(kDecodeTypes), [&](const DecodeType &t) { return t.type == type; });
}

// Batch entries and keys: from the last-level cache where elements are small, and from memory.
std::vector<std::string> long_decode_shapes() {
  std::vector<std::string> shapes;
  for (const auto &[batch, keys] : {std::pair("1", "4096"), std::pair("1", "32768"), std::pair("8", "4096")}) {
    for (const DecodeType &type : kDecodeTypes) {
      for (const int group : kDecodeGroups)
        shapes.push_back(std::string(batch) + "," + std::to_string(8 * group) + ",8,1," + keys + ",128 " + type.name);
    }
  }
  return shapes;
}

}  // namespace

Shape parse_shape(const std::string &text) {
  static const std::regex pattern(R"(\s*(\d+),(\d+),(\d+),(\d+),(\d+),(\d+)(?:/(\d+))?(\s+causal)?(?:\s+(\w+))?\s*)");
  std::smatch match;
  if (!std::regex_match(text, match, pattern)) {
    throw std::invalid_argument("'" + text + "' is not batch,heads_q,heads_kv,seq_q,seq_kv,dim_k[/dim_v] [causal] [type]");
  }
  const std::string type = match[9].matched ? match[9].str() : "f32";
  const auto *const found =
      std::find_if(std::begin(kDecodeTypes), std::end(kDecodeTypes), [&](const DecodeType &t) { return type == t.name; });
  if (found == std::end(kDecodeTypes)) throw std::invalid_argument("'" + type + "' is not f32, f16, bf16, i8, q8_0 or q4_0");
  const auto number = [&](size_t i) { return std::stoll(match[i].str()); };
  const Shape shape = {
      number(1),        number(2),  number(3), number(4), number(5), number(6), match[7].matched ? number(7) : number(6),
      match[8].matched, found->type};
  if (std::min({shape.batch, shape.heads_q, shape.heads_kv, shape.seq_q, shape.seq_kv, shape.dim_k, shape.dim_v}) == 0 ||
      shape.heads_q % shape.heads_kv != 0) {
    throw std::invalid_argument("'" + text + "': sizes start at 1, and heads_q is a multiple of heads_kv");
  }
  return shape;
}

std::string format(const Shape &s) {
  std::string text;
  for (const int64_t size : {s.batch, s.heads_q, s.heads_kv, s.seq_q, s.seq_kv}) text += std::to_string(size) + ",";
  text += std::to_string(s.dim_k);
  if (s.dim_v != s.dim_k) text += "/" + std::to_string(s.dim_v);
  if (s.causal) text += " causal";
  return s.type == FOVEA_F32 ? text : text + " " + type_name(s.type);
}

const char *type_name(fovea_dtype type) { return decode_type(type).name; }

double pairs(const Shape &s) {
  int64_t of_a_head = s.seq_q * s.seq_kv;
  if (s.causal) {
    of_a_head = 0;
    for (int64_t i = 0; i < s.seq_q; i++) of_a_head += std::clamp<int64_t>(i + 1 + s.seq_kv - s.seq_q, 0, s.seq_kv);
  }
  return static_cast<double>(s.batch * s.heads_q) * static_cast<double>(of_a_head);
}

bool has_goals(fovea_isa level) { return level == FOVEA_ISA_AVX512_BF16 || level == FOVEA_ISA_AVX512 || level == FOVEA_ISA_AVX2; }

Goal goal(const Shape &shape, fovea_isa level) {
  if (!has_goals(level)) return {0, 0, 0};
  const std::string text = format(shape);
  if (text == kTiny) return {0, kTinySeconds, 0};
  for (const CoreShape &core : kCore) {
    if (text == core.text) return {level == FOVEA_ISA_AVX2 ? core.avx2 : core.avx512, 0, 0};
  }
  for (const ShortDecode &decode : kShortDecode) {
    if (text == decode.text) return {decode.share, decode.seconds, 0};
  }
  if (!is_decode(shape) || !in_decode_set(shape)) return {0, 0, 0};
  const DecodeType &type = decode_type(shape.type);
  const double share = shape.heads_q / shape.heads_kv <= kFewDecodeGroups ? type.few : type.many;
  return {0, 0, share > 0 && level == FOVEA_ISA_AVX2 ? share - kNarrowerDecode : share};
}

bool in_decode_set(const Shape &shape) {
  static const std::vector<Shape> set = shape_set("decode");
  return std::any_of(set.begin(), set.end(), [&](const Shape &s) { return format(s) == format(shape); });
}

std::vector<Shape> scaling_shapes() {
  std::vector<Shape> shapes;
  for (const char *text : kScaling) shapes.push_back(parse_shape(text));
  return shapes;
}

std::vector<Shape> shape_set(const std::string &name) {
  std::vector<Shape> shapes;
  if (name == "core") {
    for (const CoreShape &core : kCore) shapes.push_back(parse_shape(core.text));
    shapes.push_back(parse_shape(kTiny));
  } else if (name == "core16") {
    for (const char *type : {" f16", " bf16"}) {
      for (const CoreShape &core : kCore) shapes.push_back(parse_shape(std::string(core.text) + type));
    }
  } else if (name == "decode") {
    for (const ShortDecode &decode : kShortDecode) shapes.push_back(parse_shape(decode.text));
    for (const std::string &text : long_decode_shapes()) shapes.push_back(parse_shape(text));
  } else if (name == "quick") {
    for (const char *text : {"1,12,12,197,197,64", "8,12,12,512,512,64", "1,16,16,1024,1024,192/128 causal", kTiny}) {
      shapes.push_back(parse_shape(text));
    }
  } else if (name == "smoke") {
    for (const char *text : {"1,8,8,64,64,64", "1,4,2,65,130,40/24 causal", "1,4,1,1,300,64", kTiny}) {
      shapes.push_back(parse_shape(text));
    }
  } else {
    throw std::invalid_argument("'" + name + "' is not a set: core, core16, decode, quick, smoke, features, types");
  }
  return shapes;
}

}  // namespace fovea::bench
