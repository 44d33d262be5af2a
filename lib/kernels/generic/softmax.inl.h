// The softmax of a panel over one chunk of keys, and the fold of chunks. Scores and maxima are in log2 units.
//
// What is subtracted from a row's scores is not their maximum but a reference: the maximum over the row's permitted keys in the first
// tile of kKeyTile keys (by absolute index) of the chunk that holds one. Softmax is the same for any reference; all it has to do is
// keep the exponentials in range. Where a row's sum passes kSumLimit, the block is done again with the true maximum for that row.
#pragma once
#include "kernels/generic/score.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// Ordinary rows stay far below it (equal scores sum to the number of keys), and what stays below it in each of 64 chunks keeps P * V
// finite for values up to FLT_MAX / 2^26.
constexpr float kSumLimit = 0x1p20f;
constexpr float kSmallest = 1.175494351e-38f;  // FLT_MIN: less than this is a sum over no keys; others are at least 1

// State of the rows of a panel; row r is lane r % kLanes of vector r / kLanes.
template <class Simd>
struct SoftmaxState {
  static constexpr int kRows = Simd::kPanelVectors * Simd::kLanes;
  alignas(64) float max[kRows], sum[kRows], sum_low[kRows];  // over the folded chunks; low: what rounding left of the sum
  alignas(64) float chunk_max[kRows];                        // of the current chunk: the reference
  alignas(64) float chunk_sum[kRows], chunk_low[kRows];
  alignas(64) float run_sum[kRows];            // of the last run of keys, not yet in chunk_sum
  alignas(64) float keep[kRows], take[kRows];  // of the last fold: factors of what was there and of the chunk
  alignas(64) float divide[kRows];             // sum, or 1 where the row is empty
  alignas(64) float limit[kRows];              // keys that the row permits, counted from the current block's start
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

// What a chunk has summed before a block, should the block have to be done again.
template <class Simd>
struct ChunkSums {
  alignas(64) float sum[SoftmaxState<Simd>::kRows], low[SoftmaxState<Simd>::kRows];
};
template <class Simd>
FOVEA_INLINE void save_sums(const SoftmaxState<Simd> &state, int vectors, ChunkSums<Simd> &saved) {
  for (int i = 0; i < vectors * Simd::kLanes; i += Simd::kLanes) {
    Simd::store(saved.sum + i, Simd::load(state.chunk_sum + i));
    Simd::store(saved.low + i, Simd::load(state.chunk_low + i));
  }
}

template <class Simd>
FOVEA_INLINE typename Simd::Vector chunk_total(const SoftmaxState<Simd> &state, int i) {
  return Simd::add(Simd::load(state.chunk_sum + i), Simd::load(state.chunk_low + i));
}

template <class Simd>
FOVEA_INLINE bool every_row_has_reference(const SoftmaxState<Simd> &state, int vectors) {
  bool all = true;
  for (int i = 0; i < vectors * Simd::kLanes; i += Simd::kLanes)
    all &= Simd::all_less(Simd::set1(kNoKeys), Simd::load(state.chunk_max + i));
  return all;
}

template <class Simd>
FOVEA_INLINE bool sums_in_range(const SoftmaxState<Simd> &state, int vectors) {
  bool all = true;
  for (int i = 0; i < vectors * Simd::kLanes; i += Simd::kLanes)
    all &= Simd::all_less(Simd::load(state.chunk_sum + i), Simd::set1(kSumLimit));
  return all;
}

// Scores of excluded keys in a tile become -inf. key: index of the tile's first key from the block's start.
template <class Simd>
FOVEA_INLINE void exclude_keys(float *score, int64_t key, const SoftmaxState<Simd> &state, int vectors) {
  const int width = vectors * Simd::kLanes;
  for (int i = 0; i < width; i += Simd::kLanes) {
    const auto limit = Simd::load(state.limit + i);
    for (int r = 0; r < kKeyTile; ++r) {
      float *s = score + r * width + i;
      Simd::store(s, Simd::select_less(Simd::set1(static_cast<float>(key + r)), limit, Simd::load(s), Simd::set1(kNoKeys)));
    }
  }
}

// max over the kKeyTile scores of each row of lane vector i, and over `max`.
template <class Simd>
FOVEA_INLINE typename Simd::Vector tile_maximum(const float *score, int width, typename Simd::Vector max) {
  for (int r = 0; r < kKeyTile; ++r) max = Simd::max(max, Simd::load(score + r * width));
  return max;
}

// Scores of a tile become exponentials and join the sums of the run, in the order of exponentiate_tile().
template <class Simd>
FOVEA_INLINE void exponentiate_scores(float *score, SoftmaxState<Simd> &state, int vectors) {
  const int width = vectors * Simd::kLanes;
  for (int i = 0; i < width; i += Simd::kLanes) {
    const auto reference = finite_reference<Simd>(Simd::load(state.chunk_max + i));
    auto sum = Simd::load(state.run_sum + i);
    for (int t = 0; t < kKeyTile; t += Simd::kKeyTile) {
      float *s = score + t * width + i;
      auto tile_sum = Simd::exp2(Simd::sub(Simd::load(s), reference));
      Simd::store(s, tile_sum);
      FOVEA_UNROLL
      for (int r = 1; r < Simd::kKeyTile; ++r) {
        const auto e = Simd::exp2(Simd::sub(Simd::load(s + r * width), reference));
        Simd::store(s + r * width, e);
        tile_sum = Simd::add(tile_sum, e);
      }
      sum = Simd::add(sum, tile_sum);
    }
    Simd::store(state.run_sum + i, sum);
  }
}

// The general form of exponentiate_tile(): rows may exclude keys, and may meet their first key here.
template <class Simd>
FOVEA_INLINE void softmax_tile(float *score, int64_t key, SoftmaxState<Simd> &state, int vectors) {
  const int width = vectors * Simd::kLanes;
  exclude_keys(score, key, state, vectors);
  for (int i = 0; i < width; i += Simd::kLanes) {
    const auto known = Simd::load(state.chunk_max + i);
    const auto here = tile_maximum<Simd>(score + i, width, Simd::set1(kNoKeys));
    Simd::store(state.chunk_max + i, Simd::select_less(known, Simd::set1(kLowest), here, known));
  }
  exponentiate_scores(score, state, vectors);
}

// Where sums went out of range: raises those rows' references to the true maximum over the block's scores, and sets the sums back to
// what they were before the block, in the new units. rescale: factor a row for what the chunk has summed so far.
template <class Simd>
FOVEA_INLINE void raise_references(const float *score, int64_t keys, const ChunkSums<Simd> &before, SoftmaxState<Simd> &state,
                                   int vectors, float *rescale) {
  const int width = vectors * Simd::kLanes;
  for (int i = 0; i < width; i += Simd::kLanes) {
    const auto old = Simd::load(state.chunk_max + i);
    auto max = old;
    for (int64_t key = 0; key < keys; key += kKeyTile) max = tile_maximum<Simd>(score + key * width + i, width, max);
    const auto sum = Simd::load(state.chunk_sum + i), limit = Simd::set1(kSumLimit);
    const auto factor = Simd::exp2(Simd::sub(old, max));
    max = Simd::select_less(sum, limit, old, max);
    const auto kept = Simd::select_less(sum, limit, Simd::set1(1.0f), factor);
    Simd::store(state.chunk_max + i, max);
    Simd::store(state.chunk_sum + i, Simd::mul(Simd::load(before.sum + i), kept));
    Simd::store(state.chunk_low + i, Simd::mul(Simd::load(before.low + i), kept));
    Simd::store(rescale + i, kept);
  }
}

// The fold of one more chunk: the factors for both sides. Also how stored partials are merged, so that both give the same bits.
template <class Simd>
struct Fold {
  typename Simd::Vector max, sum, sum_low, keep, take;
};
template <class Simd>
FOVEA_INLINE void fold(Fold<Simd> &f, typename Simd::Vector chunk_max, typename Simd::Vector chunk_sum) {
  const auto max = Simd::max(f.max, chunk_max), reference = finite_reference<Simd>(max);
  f.keep = Simd::exp2(Simd::sub(f.max, reference));
  f.take = Simd::exp2(Simd::sub(chunk_max, reference));
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
    fold<Simd>(f, Simd::load(state.chunk_max + i), chunk_total(state, i));
    Simd::store(state.max + i, f.max);
    Simd::store(state.sum + i, f.sum);
    Simd::store(state.sum_low + i, f.sum_low);
    Simd::store(state.keep + i, f.keep);
    Simd::store(state.take + i, f.take);
    Simd::store(state.divide + i, divisor<Simd>(Simd::add(f.sum, f.sum_low)));
  }
}

// Natural log of the sum of exponentials, from log2 units.
FOVEA_INLINE float log_sum_exp(float max, float sum) {
  if (sum < kSmallest) return kNoKeys;
  return static_cast<float>(static_cast<double>(max) * 0x1.62e42fefa39efp-1 /* ln 2 */ + __builtin_log(static_cast<double>(sum)));
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
