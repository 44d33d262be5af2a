// What a call does to scores besides scale * q.k: softcap, ALiBi, mask, windows. Scores are in steps of the softmax, which are natural
// units where a function of the caller sees them.
#pragma once
#include "kernels/generic/score.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// A finite addition below it counts as it: so it stays finite in any unit, with room for a score.
constexpr float kLowestBias = -0x1.5p127f;
constexpr float kModerateBias = -0x1p60f;  // added to any score that means something, it is far from overflow

template <class Simd>
struct ScoreShape {
  static constexpr int kRows = Simd::kPanelVectors * Simd::kLanes;
  float unit;           // what 1 is in steps of the softmax
  float cap;            // 0: none
  float cap_to_log2;    // 2 * log2(e) / softcap per step
  bool keeps_excluded;  // -inf stays -inf under the cap: a function of the caller wrote it
  bool alibi;
  bool careful;                       // sums may leave the range of float, or meet a -inf that stays
  alignas(64) float distance[kRows];  // ALiBi: how far a row's query stands behind the block's first key
  alignas(64) float rise[kRows];      // how much higher than at a row's first keys scores of the block are to be expected
};

// What is done to the scores of a tile, T keys from `key` on, counted from the block's start.
template <class Simd>
struct TileWork {
  const ScoreShape<Simd> *shape;
  const float *slope;  // of the panel's rows, for ALiBi
  const float *bias;   // of the mask: [key][bias_stride] from `key` on; null: none
  int64_t bias_stride;
  bool bias_excludes;          // some of it is below kModerateBias, perhaps -inf
  bool bias_only_excludes;     // it was added before
  const float *begin, *limit;  // the rows' windows; null: all of them hold the tile
  bool takes_references;       // some row may meet its first key here
  const float *rise;           // how much higher scores may be expected later in the block; null: no higher
  int64_t key;

  void skip(int64_t keys) {
    key += keys;
    if (bias) bias += keys * bias_stride;
  }
};

// s with something added to it: what was finite stays at least kLowest; -inf that a function of the caller wrote stays -inf.
template <class Simd>
FOVEA_INLINE typename Simd::Vector bounded_sum(typename Simd::Vector s, typename Simd::Vector sum, bool keeps_excluded) {
  const auto lowest = Simd::set1(kLowest);
  return Simd::select_less(s, lowest, keeps_excluded ? s : sum, Simd::max(lowest, sum));
}

// Natural scores of lane vector i become finished ones, excluded keys -inf.
template <class Simd, int T>
FOVEA_INLINE void finish_vector(typename Simd::Vector (&s)[T], int i, const TileWork<Simd> &work) {
  const ScoreShape<Simd> &shape = *work.shape;
  const auto excluded = Simd::set1(kNoKeys);
  if (shape.cap != 0 && !work.bias_only_excludes) {
    FOVEA_UNROLL
    for (int r = 0; r < T; ++r) {
      const auto capped = Simd::mul(Simd::set1(shape.cap), tanh_of_log2<Simd>(Simd::mul(s[r], Simd::set1(shape.cap_to_log2))));
      s[r] = shape.keeps_excluded ? Simd::select_less(s[r], Simd::set1(kLowest), s[r], capped) : capped;
    }
  }
  if (shape.alibi && !work.bias_only_excludes) {
    const auto slope = Simd::sub(Simd::set1(0.0f), Simd::load(work.slope + i));
    const auto distance = Simd::sub(Simd::load(shape.distance + i), Simd::set1(static_cast<float>(work.key)));
    typename Simd::Vector sum[T];
    FOVEA_UNROLL
    for (int r = 0; r < T; ++r)
      sum[r] = Simd::fma(slope, Simd::abs(Simd::sub(distance, Simd::set1(static_cast<float>(r)))), s[r]);
    if (shape.careful) {
      FOVEA_UNROLL
      for (int r = 0; r < T; ++r) sum[r] = bounded_sum<Simd>(s[r], sum[r], shape.keeps_excluded);
    }
    FOVEA_UNROLL
    for (int r = 0; r < T; ++r) s[r] = sum[r];
  }
  const bool plain_bias = !work.bias_excludes && !shape.careful;
  if (work.bias && plain_bias && !work.bias_only_excludes) {
    FOVEA_UNROLL
    for (int r = 0; r < T; ++r) s[r] = Simd::fma(Simd::load(work.bias + r * work.bias_stride + i), Simd::set1(shape.unit), s[r]);
  } else if (work.bias && !plain_bias) {
    FOVEA_UNROLL
    for (int r = 0; r < T; ++r) {
      const auto bias = Simd::load(work.bias + r * work.bias_stride + i);
      auto sum = s[r];
      if (!work.bias_only_excludes) {
        sum = Simd::fma(Simd::max(Simd::set1(kLowestBias), bias), Simd::set1(shape.unit), s[r]);
        sum = bounded_sum<Simd>(s[r], sum, shape.keeps_excluded);
      }
      s[r] = Simd::select_less(bias, Simd::set1(kLowest), excluded, sum);
    }
  }
  if (work.begin) {
    const auto key = Simd::set1(static_cast<float>(work.key));
    const auto first = Simd::sub(Simd::load(work.begin + i), key), end = Simd::sub(Simd::load(work.limit + i), key);
    FOVEA_UNROLL
    for (int r = 0; r < T; ++r) {
      const auto at = Simd::set1(static_cast<float>(r));
      s[r] = Simd::select_less(at, first, excluded, Simd::select_less(at, end, s[r], excluded));
    }
  }
}

// The same for a tile of kKeyTile keys in memory: [key][width].
template <class Simd>
__attribute__((noinline)) void finish_tile(float *score, int width, const TileWork<Simd> &work) {
  for (int i = 0; i < width; i += Simd::kLanes) {
    typename Simd::Vector s[kKeyTile];
    FOVEA_UNROLL
    for (int r = 0; r < kKeyTile; ++r) s[r] = Simd::load(score + r * width + i);
    finish_vector<Simd, kKeyTile>(s, i, work);
    FOVEA_UNROLL
    for (int r = 0; r < kKeyTile; ++r) Simd::store(score + r * width + i, s[r]);
  }
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
