#include "shapes.h"

#include <algorithm>
#include <regex>
#include <stdexcept>

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

constexpr const char *kTiny = "1,1,1,1,10,512";
constexpr double kTinySeconds = 1e-6;

}  // namespace

Shape parse_shape(const std::string &text) {
  static const std::regex pattern(R"(\s*(\d+),(\d+),(\d+),(\d+),(\d+),(\d+)(?:/(\d+))?(\s+causal)?\s*)");
  std::smatch match;
  if (!std::regex_match(text, match, pattern)) {
    throw std::invalid_argument("'" + text + "' is not batch,heads_q,heads_kv,seq_q,seq_kv,dim_k[/dim_v] [causal]");
  }
  const auto number = [&](size_t i) { return std::stoll(match[i].str()); };
  const Shape shape = {
      number(1),       number(2), number(3), number(4), number(5), number(6), match[7].matched ? number(7) : number(6),
      match[8].matched};
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
  return s.causal ? text + " causal" : text;
}

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
  if (!has_goals(level)) return {0, 0};
  const std::string text = format(shape);
  if (text == kTiny) return {0, kTinySeconds};
  for (const CoreShape &core : kCore) {
    if (text == core.text) return {level == FOVEA_ISA_AVX2 ? core.avx2 : core.avx512, 0};
  }
  return {0, 0};
}

Shape scaling_shape() { return parse_shape(kCore[0].text); }

std::vector<Shape> shape_set(const std::string &name) {
  std::vector<Shape> shapes;
  if (name == "core") {
    for (const CoreShape &core : kCore) shapes.push_back(parse_shape(core.text));
    shapes.push_back(parse_shape(kTiny));
  } else if (name == "decode") {
    for (const char *text : {"1,32,8,1,4096,128", "1,32,8,1,32768,128", "8,32,8,1,2048,128", "1,32,32,1,4096,128"}) {
      shapes.push_back(parse_shape(text));
    }
  } else if (name == "quick") {
    for (const char *text : {"1,12,12,197,197,64", "8,12,12,512,512,64", "1,16,16,1024,1024,192/128 causal", kTiny}) {
      shapes.push_back(parse_shape(text));
    }
  } else if (name == "smoke") {
    for (const char *text : {"1,8,8,64,64,64", "1,4,2,65,130,40/24 causal", "1,4,1,1,300,64", kTiny}) {
      shapes.push_back(parse_shape(text));
    }
  } else {
    throw std::invalid_argument("'" + name + "' is not a set: core, decode, quick, smoke, features");
  }
  return shapes;
}

}  // namespace fovea::bench
