// The product with V: output rows x value dims, one row's weight broadcast against a vector of value dims. V is read where it
// lies. A row's sum over a block of keys starts at 0 and runs over the keys in order whatever tile it is computed in; keys that a
// row excludes add weight 0 (or -0), which changes no bit of a sum that started at +0.
#pragma once
#include "kernels/generic/score.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// What to do with the sums of one block for the rows of a panel. All arrays are indexed by the row in the panel.
struct ValueJob {
  const float *p;  // weights: [key][p_stride]
  int64_t p_stride;
  const float *v;  // the block's values: [key][v_stride]
  int64_t v_stride;
  int64_t dim_v;
  const int32_t *key_begin, *key_end;  // keys of the block that may have a weight, a row

  // Some row excludes some of its tile's keys, and what those hold must not reach it: not even as 0 * NaN.
  bool exact_rows;
  void (*mark_excluded)(void *step);  // makes the weights of excluded keys kExcluded
  void *step;

  // The chunk's sums so far, which this block continues.
  float *const *sum;
  bool sum_load, sum_store;  // not the first block of the chunk; not the last, or the chunk itself is wanted

  // The last block of a chunk folds it into the output: out = (out * keep + chunk * take) / divide.
  float *const *out;
  bool out_load;    // not the first chunk
  bool out_divide;  // the last chunk
  const float *keep, *take, *divide;
  const float *unit;  // of divide; null: 1
};

// A true division, so that equal weights give exact values; the sum with +0 leaves no -0 that would depend on the path taken.
template <class Simd>
FOVEA_INLINE typename Simd::Vector normalise(typename Simd::Vector x, typename Simd::Vector sum) {
  return Simd::add(Simd::div(x, sum), Simd::set1(0.0f));
}

// A weight that no permitted key has: -0.
constexpr uint32_t kExcluded = 0x80000000;
FOVEA_INLINE bool is_excluded(float weight) {
  uint32_t bits;
  __builtin_memcpy(&bits, &weight, sizeof bits);
  return bits == kExcluded;
}

template <class Simd, int R, int W, bool kTail>
struct ValueTile {
  using Vector = typename Simd::Vector;
  static constexpr int L = Simd::kLanes;

  static FOVEA_INLINE Vector load(const float *p, int w, typename Simd::Tail tail) {
    return kTail && w == W - 1 ? Simd::load_tail(p + w * L, tail) : Simd::load(p + w * L);
  }
  static FOVEA_INLINE void store(float *p, int w, Vector x, typename Simd::Tail tail) {
    if (kTail && w == W - 1)
      Simd::store_tail(p + w * L, x, tail);
    else
      Simd::store(p + w * L, x);
  }

  // kSkip: keys that the row excludes are not read.
  template <bool kSkip>
  static FOVEA_INLINE void multiply(const ValueJob &job, int64_t row, int64_t dim, int64_t first, int64_t keys,
                                    typename Simd::Tail tail, Vector (&acc)[R][W]) {
    alignas(64) float earlier[R * W * L];
    const int64_t p_stride = job.p_stride, v_stride = job.v_stride;
    const float *p = job.p + first * p_stride + row, *v = job.v + first * v_stride + dim;
    for (int64_t begin = first;;) {
      const int64_t run_end = (begin / kKeyRun + 1) * kKeyRun, end = run_end < keys ? run_end : keys;
      repeat<R>(FOVEA_EACH(r) { repeat<W>(FOVEA_EACH(w) { acc[r][w] = Simd::set1(0.0f); }); });
      for (int64_t j = begin; j < end; ++j, p += p_stride, v += v_stride) {
        if (kSkip && is_excluded(*p)) continue;
        Vector values[W];
        repeat<W>(FOVEA_EACH(w) { values[w] = load(v, w, tail); });
        repeat<R>(FOVEA_EACH(r) {
          const auto weight = Simd::set1(p[r]);
          repeat<W>(FOVEA_EACH(w) { acc[r][w] = Simd::fma(weight, values[w], acc[r][w]); });
        });
      }
      if (begin > first) {
        repeat<R>(FOVEA_EACH(r) {
          repeat<W>(FOVEA_EACH(w) { acc[r][w] = Simd::add(Simd::load(earlier + (r * W + w) * L), acc[r][w]); });
        });
      }
      if (end >= keys) return;
      begin = end;
      repeat<R>(FOVEA_EACH(r) { repeat<W>(FOVEA_EACH(w) { Simd::store(earlier + (r * W + w) * L, acc[r][w]); }); });
    }
  }

  static FOVEA_INLINE void finish(const ValueJob &job, int64_t row, int64_t dim, typename Simd::Tail tail, Vector (&acc)[R][W]) {
    if (job.sum_load) {
      repeat<R>(FOVEA_EACH(r) {
        repeat<W>(FOVEA_EACH(w) { acc[r][w] = Simd::add(load(job.sum[row + r] + dim, w, tail), acc[r][w]); });
      });
    }
    if (job.sum_store) {
      repeat<R>(FOVEA_EACH(r) { repeat<W>(FOVEA_EACH(w) { store(job.sum[row + r] + dim, w, acc[r][w], tail); }); });
      return;
    }
    repeat<R>(FOVEA_EACH(r) {
      float *out = job.out[row + r] + dim;
      const auto take = Simd::set1(job.take[row + r]);
      repeat<W>(FOVEA_EACH(w) { acc[r][w] = Simd::mul(acc[r][w], take); });
      if (job.out_load) {
        const auto keep = Simd::set1(job.keep[row + r]);
        repeat<W>(FOVEA_EACH(w) { acc[r][w] = Simd::fma(load(out, w, tail), keep, acc[r][w]); });
      }
      if (job.out_divide) {
        const auto divide = Simd::set1(job.divide[row + r]);
        if (job.unit) {
          repeat<W>(FOVEA_EACH(w) { acc[r][w] = Simd::mul(acc[r][w], Simd::set1(job.unit[row + r])); });
        }
        repeat<W>(FOVEA_EACH(w) { acc[r][w] = normalise<Simd>(acc[r][w], divide); });
      }
      repeat<W>(FOVEA_EACH(w) { store(out, w, acc[r][w], tail); });
    });
  }

  // Rows [row, row + R) of the panel, dims from dim.
  static __attribute__((noinline)) void run(const ValueJob &job, int64_t row, int64_t dim, typename Simd::Tail tail) {
    int64_t first = kBlockKeys, keys = 0;
    for (int r = 0; r < R; ++r) {
      if (job.key_end[row + r] > keys) keys = job.key_end[row + r];
      if (job.key_begin[row + r] < first) first = job.key_begin[row + r];
    }
    if (first > keys) first = keys;
    Vector acc[R][W];
    multiply<false>(job, row, dim, first, keys, tail, acc);
    if (job.exact_rows) {
      bool finite = true;
      repeat<R>(FOVEA_EACH(r) { repeat<W>(FOVEA_EACH(w) { finite &= Simd::all_finite(acc[r][w]); }); });
      if (!finite) {
        job.mark_excluded(job.step);
        for (int r = 0; r < R; ++r) ValueTile<Simd, 1, W, kTail>::run_row(job, row + r, dim, tail);
        return;
      }
    }
    finish(job, row, dim, tail, acc);
  }

  // One row alone, in the same order, over the keys that it permits.
  static __attribute__((noinline)) void run_row(const ValueJob &job, int64_t row, int64_t dim, typename Simd::Tail tail) {
    static_assert(R == 1);
    Vector acc[R][W];
    const int64_t keys = job.key_end[row], first = job.key_begin[row];
    multiply<true>(job, row, dim, first < keys ? first : keys, keys, tail, acc);
    finish(job, row, dim, tail, acc);
  }
};

// Picks the tile of R rows at run time.
template <class Simd, int R, int W, bool kTail>
FOVEA_INLINE void run_value_tile(int rows, const ValueJob &job, int64_t row, int64_t dim, typename Simd::Tail tail) {
  if constexpr (R > 1) {
    if (rows < R) return run_value_tile<Simd, R - 1, W, kTail>(rows, job, row, dim, tail);
  }
  ValueTile<Simd, R, W, kTail>::run(job, row, dim, tail);
}

// All rows of the panel, W vectors of dims. Rows are dealt out evenly, so that no tile is left with few rows.
template <class Simd, int W, bool kTail>
void multiply_value_columns(const ValueJob &job, int64_t rows, int64_t dim, typename Simd::Tail tail) {
  constexpr int R = Simd::value_rows(W);
  const int64_t tiles = (rows + R - 1) / R;
  int64_t row = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t count = (rows - row) / (tiles - t) + ((rows - row) % (tiles - t) != 0);
    run_value_tile<Simd, R, W, kTail>(static_cast<int>(count), job, row, dim, tail);
    row += count;
  }
}

template <class Simd, int W>
FOVEA_INLINE void select_value_columns(int width, bool has_tail, const ValueJob &job, int64_t rows, int64_t dim,
                                       typename Simd::Tail tail) {
  if constexpr (W > 1) {
    if (width < W) return select_value_columns<Simd, W - 1>(width, has_tail, job, rows, dim, tail);
  }
  if (has_tail)
    multiply_value_columns<Simd, W, true>(job, rows, dim, tail);
  else
    multiply_value_columns<Simd, W, false>(job, rows, dim, tail);
}

// The whole block for the whole panel.
template <class Simd>
void multiply_values(const ValueJob &job, int64_t rows) {
  constexpr int L = Simd::kLanes;
  const int64_t vectors = (job.dim_v + L - 1) / L;
  const int rest = static_cast<int>(job.dim_v % L);
  const auto tail = Simd::tail(rest);
  const int64_t widest = Simd::value_vectors(rows), columns = (vectors + widest - 1) / widest;
  int64_t vector = 0;
  for (int64_t c = 0; c < columns; ++c) {
    const int64_t width = (vectors - vector) / (columns - c) + ((vectors - vector) % (columns - c) != 0);
    const bool has_tail = rest != 0 && c == columns - 1;
    select_value_columns<Simd, Simd::kValueVectors>(static_cast<int>(width), has_tail, job, rows, vector * L, tail);
    vector += width;
  }
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
