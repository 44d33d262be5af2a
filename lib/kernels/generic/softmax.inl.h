// The softmax of a panel over one chunk of keys, and the fold of chunks. A weight is 2^(step * (score - reference)): the difference is formed
// first, which loses next to nothing where it matters, near 0. See Task::set_scale() for the step.
//
// What is subtracted from a row's scores is not their maximum but a reference: the maximum over the row's permitted keys in the first
// tile of kKeyTile keys (by absolute index) of the chunk that holds one. Softmax is the same for any reference; all it has to do is
// keep the exponentials in range. Where a row's sum passes kSumLimit, the block is done again with the true maximum for that row.
#pragma once
#include "kernels/generic/shape.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// Ordinary rows stay far below it (equal scores sum to the number of keys), and what stays below it in each of 64 chunks keeps P * V
// finite for values up to FLT_MAX / 2^26.
constexpr float kSumLimit = 0x1p20f;
constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr float kSureToPass = 21.0f;           // log2 of kSumLimit, and one more
constexpr float kRiseMargin = 10.0f;           // half of log2 of kSumLimit: what is expected may be missed by as much, either way
constexpr float kMostRise = 0x1p100f;          // finite beside any score: a row that has met no key yet stays at -inf
constexpr float kSmallest = 1.175494351e-38f;  // FLT_MIN: less than this is a sum over no keys; others are at least 1

// State of the rows of a panel; row r is lane r % kLanes of vector r / kLanes.
template <class Simd>
struct SoftmaxState {
  static constexpr int kRows = Simd::kPanelVectors * Simd::kLanes;
  alignas(64) float max[kRows], sum[kRows], sum_low[kRows];  // over the folded chunks; low: what rounding left of the sum
  alignas(64) float chunk_max[kRows];                        // of the current chunk: the reference
  alignas(64) float chunk_sum[kRows], chunk_low[kRows];
  alignas(64) float run_sum[kRows];              // of the last run of keys, not yet in chunk_sum
  alignas(64) float keep[kRows], take[kRows];    // of the last fold: factors of what was there and of the chunk
  alignas(64) float divide[kRows];               // sum, or 1 where the row is empty, with the sink
  alignas(64) float unit[kRows];                 // of divide, where there are sinks
  alignas(64) float begin[kRows], limit[kRows];  // the row's window, counted from the current block's start
  float step;                                    // what scores and maxima count, in log2 units; positive
};

template <class Simd>
FOVEA_INLINE void begin_chunk(SoftmaxState<Simd> &state, int vectors) {
  for (int i = 0; i < vectors * Simd::kLanes; i += Simd::kLanes) {
    Simd::store(state.chunk_max + i, Simd::set1(kNoKeys));
    Simd::store(state.chunk_sum + i, Simd::set1(0.0f));
    Simd::store(state.chunk_low + i, Simd::set1(0.0f));
    Simd::store(state.run_sum + i, Simd::set1(0.0f));
  }
}

// a + b = sum + what is added to low, exactly (Knuth's two-sum): thousands of terms lose no more than one does.
template <class Simd>
FOVEA_INLINE typename Simd::Vector add_exactly(typename Simd::Vector a, typename Simd::Vector b, typename Simd::Vector &low) {
  const auto sum = Simd::add(a, b), b_part = Simd::sub(sum, a);
  low = Simd::add(low, Simd::add(Simd::sub(a, Simd::sub(sum, b_part)), Simd::sub(b, b_part)));
  return sum;
}

// Tile sums are added up to runs of sixteen of them, and those exactly.
template <class Simd>
FOVEA_INLINE bool run_ends(int64_t key) {
  return key % (16 * Simd::kKeyTile) == 0;
}

// Moves the sums of a run of keys to the chunk's.
template <class Simd>
FOVEA_INLINE void end_run(SoftmaxState<Simd> &state, int vectors) {
  for (int i = 0; i < vectors * Simd::kLanes; i += Simd::kLanes) {
    auto low = Simd::load(state.chunk_low + i);
    Simd::store(state.chunk_sum + i, add_exactly<Simd>(Simd::load(state.chunk_sum + i), Simd::load(state.run_sum + i), low));
    Simd::store(state.chunk_low + i, low);
    Simd::store(state.run_sum + i, Simd::set1(0.0f));
  }
}

// A chunk as it was before a block, should the block have to be done again.
template <class Simd>
struct ChunkState {
  alignas(64) float max[SoftmaxState<Simd>::kRows], sum[SoftmaxState<Simd>::kRows], low[SoftmaxState<Simd>::kRows];
};
template <class Simd>
FOVEA_INLINE void save_chunk(const SoftmaxState<Simd> &state, int vectors, ChunkState<Simd> &saved) {
  for (int i = 0; i < vectors * Simd::kLanes; i += Simd::kLanes) {
    Simd::store(saved.max + i, Simd::load(state.chunk_max + i));
    Simd::store(saved.sum + i, Simd::load(state.chunk_sum + i));
    Simd::store(saved.low + i, Simd::load(state.chunk_low + i));
  }
}

template <class Simd>
FOVEA_INLINE typename Simd::Vector chunk_total(const SoftmaxState<Simd> &state, int i) {
  return Simd::add(Simd::load(state.chunk_sum + i), Simd::load(state.chunk_low + i));
}

// Rows whose window misses the block need none.
template <class Simd>
FOVEA_INLINE bool every_row_has_reference(const SoftmaxState<Simd> &state, int vectors) {
  bool all = true;
  for (int i = 0; i < vectors * Simd::kLanes; i += Simd::kLanes) {
    const auto needed = Simd::select_less(Simd::load(state.begin + i), Simd::load(state.limit + i),
                                          Simd::load(state.chunk_max + i), Simd::set1(0.0f));
    all &= Simd::all_less(Simd::set1(kNoKeys), needed);
  }
  return all;
}

// How a row's sum may be out of range. It is too small, and so were weights lost that are above FLT_MIN, where a reference above all
// scores was expected to be met. The bits of a row that is NaN do not matter: only a number is out of range.
template <class Simd>
FOVEA_INLINE typename Simd::Vector sum_too_large(const SoftmaxState<Simd> &state, int i) {
  return Simd::select_less(Simd::set1(kSumLimit), Simd::load(state.chunk_sum + i), Simd::set1(1.0f), Simd::set1(0.0f));
}
template <class Simd>
FOVEA_INLINE typename Simd::Vector sum_too_small(const SoftmaxState<Simd> &state, int i) {
  const auto zero = Simd::set1(0.0f);
  const auto small = Simd::select_less(Simd::load(state.chunk_sum + i), Simd::set1(1.0f), Simd::set1(1.0f), zero);
  return Simd::select_less(Simd::set1(kNoKeys), Simd::load(state.chunk_max + i), small, zero);
}
template <class Simd>
FOVEA_INLINE bool sums_in_range(const SoftmaxState<Simd> &state, int vectors, bool may_be_small) {
  bool all = true;
  for (int i = 0; i < vectors * Simd::kLanes; i += Simd::kLanes) {
    all &= Simd::all_less(sum_too_large(state, i), Simd::set1(1.0f));
    if (may_be_small) all &= Simd::all_less(sum_too_small(state, i), Simd::set1(1.0f));
  }
  return all;
}

// Rows that meet their first key here take their reference from it. rise: how much higher than here scores are to be expected; null: no
// higher. Adds 1 to `beyond` where a row's sum is sure to pass kSumLimit: a score so far above the reference has an exponential beyond it,
// however rounded.
template <class Simd, int T>
FOVEA_INLINE void take_reference(const typename Simd::Vector (&s)[T], float step, const float *rise,
                                 typename Simd::Vector &reference, typename Simd::Vector &beyond) {
  const auto here = maximum<Simd, T>(s);
  const auto expected = rise ? Simd::add(here, Simd::load(rise)) : here;
  reference = Simd::select_less(reference, Simd::set1(kLowest), expected, reference);
  const auto passes = Simd::add(reference, Simd::set1(kSureToPass / step));
  beyond = Simd::add(beyond, Simd::select_less(passes, here, Simd::set1(1.0f), Simd::set1(0.0f)));
}

// Scores become exponentials, and join the sum of the run.
template <class Simd, int T>
FOVEA_INLINE void exponentiate_vector(const typename Simd::Vector (&s)[T], float step, typename Simd::Vector reference, float *p,
                                      int64_t p_stride, float *sum) {
  typename Simd::Vector t[T];
  repeat<T>(FOVEA_EACH(r) { t[r] = Simd::sub(s[r], reference); });
  if (step != 1) {  // one multiplication more would cost f32 calls 0.7 % at 64 dims
    repeat<T>(FOVEA_EACH(r) { t[r] = Simd::mul(t[r], Simd::set1(step)); });
  }
  auto tile_sum = Simd::exp2(t[0]);
  Simd::store(p, tile_sum);
  repeat<T, 1>(FOVEA_EACH(r) {
    const auto e = Simd::exp2(t[r]);
    Simd::store(p + r * p_stride, e);
    tile_sum = Simd::add(tile_sum, e);
  });
  Simd::store(sum, Simd::add(Simd::load(sum), tile_sum));
}

// What is known of a tile before its scores are: every row permits all of its keys, and has its reference; no row has met a key in this
// chunk yet, so references are found here; or nothing, scores may need work, and keys may be excluded.
enum class TileKind { kWhole, kFirst, kWorked };

// Exponentials straight out of the accumulators, for T keys. p: [key][NV * kLanes]. The sum of a tile is formed before it is added, which
// halves the error and is free. Returns whether all sums may still be in range: see take_reference().
template <class Simd, int NV, TileKind kKind, int T = Simd::kKeyTile>
__attribute__((noinline)) bool exponentiate_tile(const typename Simd::Dot::Key *k, int64_t k_stride, const float *panel,
                                                 int64_t dim_k, SoftmaxState<Simd> &state, float *p, const TileWork<Simd> *work) {
  constexpr int L = Simd::kLanes;
  typename Simd::Vector acc[whole_keys<Simd>(T)][NV];
  multiply_keys<Simd, NV, T>(k, k_stride, panel, dim_k, acc);
  auto beyond = Simd::set1(0.0f);
  repeat<NV>(FOVEA_EACH(v) {
    typename Simd::Vector s[T];
    repeat<T>(FOVEA_EACH(r) { s[r] = acc[r][v]; });
    float *max = state.chunk_max + v * L;
    auto reference = Simd::load(max);
    if constexpr (kKind == TileKind::kWorked) {
      finish_vector<Simd, T>(s, v * L, *work);
      if constexpr (T == kKeyTile) {
        if (work->takes_references) {
          take_reference<Simd, T>(s, state.step, work->rise ? work->rise + v * L : nullptr, reference, beyond);
          Simd::store(max, reference);
        }
      }
      reference = finite_reference<Simd>(reference);
    }
    if constexpr (kKind == TileKind::kFirst) {
      repeat<T>(FOVEA_EACH(r) { reference = Simd::max(reference, s[r]); });
      Simd::store(max, reference);
      reference = finite_reference<Simd>(reference);
    }
    exponentiate_vector<Simd, T>(s, state.step, reference, p + v * L, NV * L, state.run_sum + v * L);
  });
  return kKind != TileKind::kWorked || Simd::all_less(beyond, Simd::set1(1.0f));
}

// Whole tiles of `keys` < kKeyTile keys: what remains at the end of the keys.
template <class Simd, int NV, int T = Simd::kKeyTile - 1>
FOVEA_INLINE void exponentiate_rest(int64_t keys, const typename Simd::Dot::Key *k, int64_t k_stride, const float *panel,
                                    int64_t dim_k, SoftmaxState<Simd> &state, float *p) {
  if constexpr (T > 1) {
    if (keys < T) return exponentiate_rest<Simd, NV, T - 1>(keys, k, k_stride, panel, dim_k, state, p);
  }
  exponentiate_tile<Simd, NV, TileKind::kWhole, T>(k, k_stride, panel, dim_k, state, p, nullptr);
}

// A tile whose finished scores are in memory, [key][width]: they become exponentials.
template <class Simd>
FOVEA_INLINE void exponentiate_scores(float *score, SoftmaxState<Simd> &state, int vectors) {
  const int width = vectors * Simd::kLanes;
  for (int i = 0; i < width; i += Simd::kLanes) {
    const auto reference = finite_reference<Simd>(Simd::load(state.chunk_max + i));
    for (int t = 0; t < kKeyTile; t += Simd::kKeyTile) {
      typename Simd::Vector s[Simd::kKeyTile];
      float *at = score + t * width + i;
      FOVEA_UNROLL
      for (int r = 0; r < Simd::kKeyTile; ++r) s[r] = Simd::load(at + r * width);
      exponentiate_vector<Simd, Simd::kKeyTile>(s, state.step, reference, at, width, state.run_sum + i);
    }
  }
}

// The references of rows that meet their first key in it, as take_reference().
template <class Simd>
FOVEA_INLINE bool take_references(const float *score, const float *rise, SoftmaxState<Simd> &state, int vectors) {
  const int width = vectors * Simd::kLanes;
  auto beyond = Simd::set1(0.0f);
  for (int i = 0; i < width; i += Simd::kLanes) {
    typename Simd::Vector s[kKeyTile];
    FOVEA_UNROLL
    for (int r = 0; r < kKeyTile; ++r) s[r] = Simd::load(score + r * width + i);
    auto reference = Simd::load(state.chunk_max + i);
    take_reference<Simd, kKeyTile>(s, state.step, rise ? rise + i : nullptr, reference, beyond);
    Simd::store(state.chunk_max + i, reference);
  }
  return Simd::all_less(beyond, Simd::set1(1.0f));
}

// A block again, for the rows whose sum went out of range, or is sure to: they get the true maximum over the block's scores as their
// reference. too_large, too_small: which failed, 1 or 0. state: as it was before the block, but for references taken since. rescale:
// factor a row for what the chunk summed so far; too small a sum is a row's first.
template <class Simd>
FOVEA_INLINE void move_references(const float *score, int64_t tiles, const ChunkState<Simd> &before, const float *too_large,
                                  const float *too_small, SoftmaxState<Simd> &state, int vectors, float *rescale) {
  const int width = vectors * Simd::kLanes;
  const auto one = Simd::set1(1.0f), half = Simd::set1(0.5f), step = Simd::set1(state.step);
  const auto sure_to_pass = Simd::set1(kSureToPass / state.step);
  for (int i = 0; i < width; i += Simd::kLanes) {
    const auto old = Simd::load(state.chunk_max + i);
    auto highest = Simd::set1(kNoKeys);
    for (int64_t j = 0; j < tiles * kKeyTile; ++j) highest = Simd::max(highest, Simd::load(score + j * width + i));
    const auto raised = Simd::max(old, highest);
    const auto raise = Simd::select_less(Simd::add(old, sure_to_pass), highest, one, Simd::load(too_large + i));
    auto reference = Simd::select_less(half, raise, raised, old);
    reference = Simd::select_less(half, Simd::load(too_small + i), highest, reference);
    const auto kept =
        Simd::select_less(half, raise, Simd::exp2(Simd::mul(Simd::sub(Simd::load(before.max + i), raised), step)), one);
    Simd::store(state.chunk_max + i, reference);
    Simd::store(state.chunk_sum + i, Simd::mul(Simd::load(before.sum + i), kept));
    Simd::store(state.chunk_low + i, Simd::mul(Simd::load(before.low + i), kept));
    Simd::store(state.run_sum + i, Simd::set1(0.0f));
    Simd::store(rescale + i, kept);
  }
}

// The fold of one more chunk: the factors for both sides. Also how stored partials are merged, so that both give the same bits.
template <class Simd>
struct Fold {
  typename Simd::Vector max, sum, sum_low, keep, take;
};
template <class Simd>
FOVEA_INLINE void fold(Fold<Simd> &f, typename Simd::Vector step, typename Simd::Vector chunk_max,
                       typename Simd::Vector chunk_sum) {
  const auto max = Simd::max(f.max, chunk_max), reference = finite_reference<Simd>(max);
  f.keep = Simd::exp2(Simd::mul(Simd::sub(f.max, reference), step));
  f.take = Simd::exp2(Simd::mul(Simd::sub(chunk_max, reference), step));
  f.max = max;
  f.sum_low = Simd::mul(f.sum_low, f.keep);
  f.sum = add_exactly<Simd>(Simd::mul(f.sum, f.keep), Simd::mul(chunk_sum, f.take), f.sum_low);
}

template <class Simd>
FOVEA_INLINE typename Simd::Vector divisor(typename Simd::Vector sum) {
  return Simd::select_less(sum, Simd::set1(kSmallest), Simd::set1(1.0f), sum);
}

template <class Simd>
FOVEA_INLINE void fold_chunk(SoftmaxState<Simd> &state, int vectors) {
  for (int i = 0; i < vectors * Simd::kLanes; i += Simd::kLanes) {
    Fold<Simd> f;
    f.max = Simd::load(state.max + i);
    f.sum = Simd::load(state.sum + i);
    f.sum_low = Simd::load(state.sum_low + i);
    fold<Simd>(f, Simd::set1(state.step), Simd::load(state.chunk_max + i), chunk_total(state, i));
    Simd::store(state.max + i, f.max);
    Simd::store(state.sum + i, f.sum);
    Simd::store(state.sum_low + i, f.sum_low);
    Simd::store(state.keep + i, f.keep);
    Simd::store(state.take + i, f.take);
    Simd::store(state.divide + i, divisor<Simd>(Simd::add(f.sum, f.sum_low)));
  }
}

// The same for the first chunk, of which all factors are known.
template <class Simd>
FOVEA_INLINE void fold_first_chunk(SoftmaxState<Simd> &state, int vectors) {
  for (int i = 0; i < vectors * Simd::kLanes; i += Simd::kLanes) {
    const auto sum = chunk_total(state, i);
    Simd::store(state.max + i, Simd::load(state.chunk_max + i));
    Simd::store(state.sum + i, sum);
    Simd::store(state.sum_low + i, Simd::set1(0.0f));
    Simd::store(state.take + i, Simd::set1(1.0f));
    Simd::store(state.divide + i, divisor<Simd>(sum));
  }
}

// A sink is one more exponential in the sum of a row that has keys. Far above the row's scores it would leave the range of float: then
// the sum, and what it divides, are in a smaller unit.
constexpr double kLargeSum = 0x1p64;
constexpr float kLargeSumUnit = 0x1p-64f;
FOVEA_INLINE double natural(float max, float step) { return static_cast<double>(max) * static_cast<double>(step) * kLn2; }
FOVEA_INLINE double sink_weight(float sink, float max, float step) {
  return __builtin_exp(static_cast<double>(sink) - natural(max, step));
}

// Natural log of the sum of exponentials, a sink included (-inf: none).
FOVEA_INLINE float log_sum_exp(float max, float step, float sum, float sink) {
  if (sum < kSmallest) return sink;
  const double keys = natural(max, step) + __builtin_log(static_cast<double>(sum));
  if (sink < kLowest) return static_cast<float>(keys);
  const double larger = keys < sink ? sink : keys, smaller = keys < sink ? keys : sink;
  return static_cast<float>(larger + __builtin_log1p(__builtin_exp(smaller - larger)));
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
