// The shapes that are measured, and how fast they are meant to be.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "fovea/fovea.h"

namespace fovea::bench {

struct Shape {
  int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v;
  bool causal;       // the last query sees the last key
  fovea_dtype type;  // of all tensors where it is a float, else of keys and values alone, whose queries and outputs are f32
};

// "1,16,16,1024,1024,192/128 causal", "1,32,8,1,4096,128 q8_0": batch, heads_q, heads_kv, seq_q, seq_kv, dim_k[/dim_v]. Throws
// std::invalid_argument.
Shape parse_shape(const std::string &text);
std::string format(const Shape &shape);
const char *type_name(fovea_dtype type);

// Which queries see which keys, counted; causal: only those permitted.
double pairs(const Shape &shape);
inline double flops(const Shape &shape) { return 2 * pairs(shape) * static_cast<double>(shape.dim_k + shape.dim_v); }

// One query a head and keys beyond the caches of a core: its time is that of reading K and V.
inline bool is_decode(const Shape &s) {
  constexpr int64_t kCoreCache = int64_t{1} << 18;  // floats
  return s.seq_q == 1 && s.batch * s.heads_kv * s.seq_kv * (s.dim_k + s.dim_v) > kCoreCache;
}

// What a shape is meant to reach at a level; 0 where nothing is set.
struct Goal {
  double share;     // of the measured multiply-add peak of the level, on one thread
  double seconds;   // of a call, likewise
  double roofline;  // share of the time that the slower of reading and multiply-adds takes alone, on one thread or two
};
Goal goal(const Shape &shape, fovea_isa level);
bool has_goals(fovea_isa level);
bool in_decode_set(const Shape &shape);

// Those whose speed is compared over numbers of threads. Of the first, two threads are meant to have so many times that of one.
constexpr double kScalingGoal = 1.9;
std::vector<Shape> scaling_shapes();

// "core", "core16" (the same in f16 and bf16), "decode", "quick" (some of core), "smoke" (small ones). Throws std::invalid_argument
// for other names.
std::vector<Shape> shape_set(const std::string &name);

}  // namespace fovea::bench
