// The product with V of few rows, from where V lies in its own type: see few_rows.inl.h. Sums are the same in every tile shape.
#pragma once
#include "kernels/generic/few_rows.inl.h"
#include "kernels/generic/value.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// Of a run that is passed several times: the first-level cache holds it beside as much that is fetched meanwhile.
constexpr int64_t kPartBytes = 8 << 10;

// A run of keys is in the first-level cache when further rows and dims come to it.
template <class Simd, class E>
struct FewRowsValues {
  using Vector = typename Simd::Vector;
  static constexpr int L = Simd::kLanes, kLeast = E::kVectors;
  static constexpr int kFewSums = 4;
  static constexpr bool fits(int rows, int vectors) { return rows == 1 || rows * vectors <= Simd::kFewRowsSums; }

  // Sums over keys [first, keys) of the block: sums[row][stride].
  static void multiply(const float *p, int64_t p_stride, const KeyRows &v, int64_t first, int64_t keys, int64_t rows,
                       int64_t dim_v, float *sums, int64_t stride) {
    FewRowsValues run = {p, p_stride, &v, rows, dim_v, sums, stride, first, first, first, 1, 0, 0, kKeyRun};
    run.template plan_passes<8>();
    for (; run.end_ < keys; run.begin_ = run.end_) {
      run.end_ = smaller((run.begin_ / run.part_ + 1) * run.part_, keys);
      run.opens_ = run.begin_ == first || run.begin_ % kKeyRun == 0;
      run.closes_ = run.end_ == keys || run.end_ % kKeyRun == 0;
      run.two_ = run.pairs_ && run.begin_ % kKeyRun == 0 && run.end_ + kKeyRun <= keys;
      if (run.two_) run.end_ += kKeyRun;
      run.pass_ = 0;
      run.template multiply_columns<8>(0);
    }
  }

  // A run is passed once for each tile of rows and dims. A tile of few sums waits for its own latency: it takes two runs at once, each with
  // its own.
  template <int W>
  void plan_passes() {
    if (W > kLeast && !fits(static_cast<int>(rows_ < 4 ? rows_ : 4), W)) return plan_passes<(W > kLeast ? W / 2 : W)>();
    if (W > kLeast && W * L > dim_v_) return plan_passes<(W > kLeast ? W / 2 : W)>();
    pairs_ = rows_of_tile<W>(rows_) * W <= kFewSums;
    int64_t tiles = 0;
    for (int64_t row = 0; row < rows_; row += rows_of_tile<W>(rows_ - row)) ++tiles;
    passes_ = larger(tiles * ((dim_v_ + W * L - 1) / (W * L)), 1);
    while (passes_ > 1 && part_ > kKeyTile && part_ * v_->bytes > kPartBytes) part_ /= 2;
    lines_ = (v_->bytes + passes_ * kLineBytes - 1) / (passes_ * kLineBytes);
  }

  // What is fetched in this pass: its share of the rows that are read next.
  RowFetcher fetcher() {
    if (v_->bytes == 0) return {v_->row, 0, 0};
    if (passes_ == 1 && !pairs_) return {v_->row + begin_ + v_->ahead, v_->bytes, 0};
    const int64_t of_row = (v_->bytes + kLineBytes - 1) / kLineBytes, line = pass_++ * lines_ * (end_ - begin_);
    const int64_t row = line / of_row;
    if (row >= end_ - begin_) return {v_->row, 0, 0};
    return {v_->row + end_ + row, v_->bytes, line % of_row * kLineBytes};
  }

  // Vectors of dims from `vector` on, W at a time: so many that rows are read in one go, or that more rows share what is loaded.
  template <int W>
  void multiply_columns(int64_t vector) {
    if (W == kLeast || fits(static_cast<int>(rows_ < 4 ? rows_ : 4), W)) {
      for (; (vector + W) * L <= dim_v_; vector += W) multiply_rows<W, false>(vector * L);
    }
    if constexpr (W > kLeast) return multiply_columns<W / 2>(vector);
    if constexpr (kLeast == 1) {
      if (vector * L < dim_v_) multiply_rows<1, true>(vector * L);
    }
  }

  // As many rows as there are sums for, dealt out so that none is left alone.
  template <int W>
  static int rows_of_tile(int64_t left) {
    if (fits(6, W) && (left == 6 || left >= 9)) return 6;
    if (fits(4, W) && (left == 4 || left >= 7)) return 4;
    if (fits(3, W) && (left == 3 || left >= 5)) return 3;
    return fits(2, W) && left >= 2 ? 2 : 1;
  }
  template <int W, bool kTail>
  void multiply_rows(int64_t dim) {
    for (int64_t row = 0; row < rows_;) {
      const int count = rows_of_tile<W>(rows_ - row);
      select_tile<6, W, kTail>(count, row, dim);
      row += count;
    }
  }
  template <int R, int W, bool kTail>
  FOVEA_INLINE void select_tile(int count, int64_t row, int64_t dim) {
    if constexpr (!fits(R, W)) {
      return select_tile<R - 1, W, kTail>(count, row, dim);
    } else if constexpr (R > 1) {
      if (count < R) return select_tile<(R == 6 ? 4 : R - 1), W, kTail>(count, row, dim);
    }
    multiply_tile<R, W, kTail>(row, dim);
  }

  // Rows [row, row + R), dims from dim.
  template <int R, int W, bool kTail>
  __attribute__((noinline)) void multiply_tile(int64_t row, int64_t dim) {
    const int64_t offset = row_bytes(v_->dtype, dim);
    constexpr int kRuns = R * W <= kFewSums ? 2 : 1;
    const int rest = static_cast<int>(dim_v_ - dim);
    const auto tail = Simd::tail(kTail ? rest : 0);
    float *sum = sums_ + row * stride_ + dim;
    Vector acc[kRuns][R][W];
    const auto clear = [&] {
      FOVEA_UNROLL
      for (int n = 0; n < kRuns; ++n) {
        FOVEA_UNROLL
        for (int r = 0; r < R; ++r) {
          FOVEA_UNROLL
          for (int w = 0; w < W; ++w) acc[n][r][w] = Simd::set1(0.0f);
        }
      }
    };
    RowFetcher fetcher = this->fetcher();
    const int64_t lines = fetcher.bytes ? lines_ : 0;
    // Lines of the part of a row, fetched one by one between its vectors.
    constexpr int kLines = (W / kLeast * E::kBytes + kLineBytes - 1) / kLineBytes, kLinesOfStep = (kLines * kLeast + W - 1) / W;
    const auto multiply_key = [&](int64_t j, int n) __attribute__((always_inline)) {
      const float *weight = p_ + j * p_stride_ + row;
      const char *key = v_->row[j] + offset;
      __asm__("" : "+r"(key));  // one register, not one for each vector of it
      Vector weights[R];
      FOVEA_UNROLL
      for (int r = 0; r < R; ++r) weights[r] = Simd::set1(weight[r]);
      if constexpr (kTail) {
        const auto x = E::load_tail(key, v_->scale[j], 0, rest, tail);
        FOVEA_UNROLL
        for (int r = 0; r < R; ++r) acc[n][r][0] = Simd::fma(weights[r], x, acc[n][r][0]);
      } else {
        FOVEA_UNROLL
        for (int w = 0; w < W; w += kLeast) {
          FOVEA_UNROLL
          for (int i = 0; i < kLinesOfStep; ++i) {
            const int line = w * kLines / W + i;
            if (line < (w + kLeast) * kLines / W && line < lines) fetcher.fetch();
          }
          Vector x[kLeast];
          E::load(key, v_->scale[j], w * L, x);
          FOVEA_UNROLL
          for (int i = 0; i < kLeast; ++i) {
            FOVEA_UNROLL
            for (int r = 0; r < R; ++r) acc[n][r][w + i] = Simd::fma(weights[r], x[i], acc[n][r][w + i]);
          }
        }
      }
    };
    // Of a part of a run that does not end it, what came together so far is put aside.
    float *open = sum + rows_ * stride_;
    const auto each = [&](auto run) __attribute__((always_inline)) {
      FOVEA_UNROLL
      for (int r = 0; r < R; ++r) {
        FOVEA_UNROLL
        for (int w = 0; w < W; ++w) run(acc[0][r][w], acc[kRuns - 1][r][w], r * stride_ + w * L);
      }
    };
    if (opens_)
      clear();
    else
      each([&](Vector & a, Vector &, int64_t at) __attribute__((always_inline)) { a = Simd::load(open + at); });
    const int64_t middle = two_ ? begin_ + kKeyRun : end_;
    for (int64_t j = begin_; j < middle; ++j) {
      multiply_key(j, 0);
      if (kRuns == 2 && two_) multiply_key(j + kKeyRun, kRuns - 1);
    }
    if (!closes_)
      return each([&](Vector & a, Vector &, int64_t at) __attribute__((always_inline)) { Simd::store(open + at, a); });
    const bool started = begin_ / kKeyRun > first_ / kKeyRun;
    each([&](Vector & a, Vector & b, int64_t at) __attribute__((always_inline)) {
      if (started) a = Simd::add(Simd::load(sum + at), a);
      Simd::store(sum + at, kRuns == 2 && two_ ? Simd::add(a, b) : a);
    });
  }

  const float *p_;
  int64_t p_stride_;
  const KeyRows *v_;
  int64_t rows_, dim_v_;
  float *sums_;
  int64_t stride_, first_;
  int64_t begin_, end_;  // keys
  int64_t passes_, pass_;
  int64_t lines_;                        // of each key's row that a pass fetches
  int64_t part_;                         // keys of a run that are passed at a time: as many as the first-level cache holds twice
  bool opens_ = false, closes_ = false;  // a run begins, ends
  bool pairs_ = false, two_ = false;     // two runs at once, where that can be; here
};

// The whole block for the whole panel, as multiply_values(), with v in place of the job's. False where a row may have met what an excluded
// key holds: then nothing is done. sums: [row][padded_dim(dim_v)].
template <class Simd>
bool multiply_few_values(const ValueJob &job, const KeyRows &v, int64_t rows, float *sums) {
  constexpr int L = Simd::kLanes;
  const int64_t stride = padded_dim<Simd>(job.dim_v), whole = job.dim_v / L * L;
  const auto tail = Simd::tail(static_cast<int>(job.dim_v - whole));
  int64_t first = kBlockKeys, keys = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (job.key_end[r] > keys) keys = job.key_end[r];
    if (job.key_begin[r] < first) first = job.key_begin[r];
  }
  if (first < keys) {
    with_elements<Simd>(v.dtype, [&](auto elements) {
      FewRowsValues<Simd, decltype(elements)>::multiply(job.p, job.p_stride, v, first, keys, rows, job.dim_v, sums, stride);
    });
  } else {
    for (int64_t i = 0; i < rows * stride; i += L) Simd::store(sums + i, Simd::set1(0.0f));
  }
  for (int64_t r = 0; r < rows && job.exact_rows; ++r) {
    for (int64_t d = 0; d < job.dim_v; d += L) {
      if (!Simd::all_finite(d < whole ? Simd::load(sums + r * stride + d) : Simd::load_tail(sums + r * stride + d, tail)))
        return false;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    typename Simd::Vector acc[1][1];
    for (int64_t d = 0; d < whole; d += L) {
      acc[0][0] = Simd::load(sums + r * stride + d);
      ValueTile<Simd, 1, 1, false>::finish(job, r, d, tail, acc);
    }
    if (whole == job.dim_v) continue;
    acc[0][0] = Simd::load(sums + r * stride + whole);
    ValueTile<Simd, 1, 1, true>::finish(job, r, whole, tail, acc);
  }
  return true;
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
