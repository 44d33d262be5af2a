// Few rows a key-value head, as in decoding: the time is that of reading K and V, so both are read once, in their own type, where they lie.
// A panel of queries in lanes would not be filled: scores have the dims in the lanes, and so the outputs have anyway (few_values.inl.h). A
// score is the same sum in every tile shape.
#pragma once
#include "kernels/generic/elements.inl.h"
#include "kernels/generic/softmax.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// More rows than a vector has lanes fill panels of queries well enough: 16 rows get 0.59 of the peak here with AVX2 and 0.79 there. And more
// than 16 are bound by arithmetic.
template <class Simd>
constexpr int kFewRows = Simd::kLanes < 16 ? Simd::kLanes : 16;

template <class Simd>
constexpr int64_t padded_dim(int64_t dim) {
  return (dim + Simd::kLanes - 1) / Simd::kLanes * Simd::kLanes;
}

// Rows are scored 8, 4, 2 or 1 at a time, the last repeated where three are left; never more than a vector has lanes for.
template <class Simd>
FOVEA_INLINE int rows_by_dims(int64_t left) {
  return left >= 8 && Simd::kLanes >= 8 ? 8 : left >= 3 ? 4 : static_cast<int>(left);
}

// run(Constant<R>()) for a tile of so many rows.
template <class Simd, class Run>
FOVEA_INLINE void with_rows(int rows, Run run) {
  switch (rows) {
    case 1: return run(Constant<1>());
    case 2: return run(Constant<2>());
    case 4: return run(Constant<4>());
  }
  if constexpr (Simd::kLanes >= 8) run(Constant<8>());
}

// Queries of a tile of R rows: [dim / kLanes][R][kLanes], zero behind dim_k, times the scale; tiles one after the other.
template <class Simd>
void pack_rows(const float *const *q, int64_t count, int64_t dim_k, float scale, float *packed) {
  constexpr int L = Simd::kLanes;
  const int64_t whole = dim_k / L * L;
  for (int64_t first = 0, rows; first < count; first += rows) {
    rows = rows_by_dims<Simd>(count - first);
    for (int64_t r = 0; r < rows; ++r) {
      const float *row = q[smaller(first + r, count - 1)];
      float *to = packed + r * L;
      for (int64_t d = 0; d < whole; d += L, to += rows * L) Simd::store(to, Simd::mul(Simd::load(row + d), Simd::set1(scale)));
      for (int64_t d = whole; d < whole + L && whole < dim_k; ++d) to[d - whole] = d < dim_k ? row[d] * scale : 0.0f;
    }
    packed += padded_dim<Simd>(dim_k) * rows;
  }
}

// Keys of a block, some of them: where they lie, and what is fetched meanwhile.
struct KeyTile {
  const char *const *row;
  const float *scale;
  int32_t ahead;  // see KeyRows
  int64_t bytes;

  FOVEA_INLINE RowFetcher fetcher(int64_t key) const { return {row + key + ahead, bytes, 0}; }
};

// The scores of R rows, as many keys at a time as kSumsByDims registers hold sums of.
template <class Simd, class E, int R>
struct ScoresByDims {
  using Vector = typename Simd::Vector;
  static constexpr int L = Simd::kLanes, V = E::kVectors;
  static constexpr int J = kKeyTile < Simd::kSumsByDims / R ? kKeyTile : Simd::kSumsByDims / R, kSums = R * J;
  // Keys whose vectors are in registers beside the sums. Those of one row are read almost one after the other, as they lie: there is little
  // to do with them but to read them.
  static constexpr int kInRegisters = R > 1 || E::kBytes < 2 * L ? Simd::kSumsByDims / 2
                                      : E::kBytes < 4 * L        ? Simd::kSumsByDims / 4
                                                                 : 1;
  static constexpr int G = J * V <= kInRegisters ? J : V <= kInRegisters ? kInRegisters / V : 1;
  static constexpr int kDimsOfLine = L * V * (E::kBytes < kLineBytes ? kLineBytes / E::kBytes : 1);  // about a cache line's
  static constexpr int kLines = E::kBytes > kLineBytes ? E::kBytes / kLineBytes : 1;                 // that so many dims lie in
  static constexpr int kAtOnce = kSums < L ? kSums : L;  // sums that come to lie in one vector: those of a key side by side

  // acc[key * R + row], lane by lane, over the dims [begin, end) of all keys of the group that begins at `first`, and the tail where they
  // are the last whole ones.
  static FOVEA_INLINE void multiply_run(const KeyTile &tile, int first, const float *rows, int64_t begin, int64_t end,
                                        int64_t whole, int64_t dim_k, Vector (&acc)[kSums], RowFetcher &fetcher) {
    const char *const *key = tile.row + first;
    const float *scale = tile.scale + first;
    rows += begin * R;
    FOVEA_UNROLL
    for (int i = 0; i < kSums; ++i) acc[i] = Simd::set1(0.0f);
    repeat<J / G>(FOVEA_EACH(g) {
      constexpr int first_key = g * G;
      const float *q = rows;
      for (int64_t d = begin; d < end; d += L * V, q += L * V * R) {
        if (fetcher.bytes && d % kDimsOfLine == 0) {
          FOVEA_UNROLL
          for (int line = 0; line < G * kLines; ++line) fetcher.fetch();
        }
        Vector x[G][V];
        FOVEA_UNROLL
        for (int j = 0; j < G; ++j) E::load(key[first_key + j], scale[first_key + j], d, x[j]);
        FOVEA_UNROLL
        for (int v = 0; v < V; ++v) {
          FOVEA_UNROLL
          for (int r = 0; r < R; ++r) {
            const auto query = Simd::in_register(Simd::load(q + (v * R + r) * L));
            FOVEA_UNROLL
            for (int j = 0; j < G; ++j) acc[(first_key + j) * R + r] = Simd::fma(query, x[j][v], acc[(first_key + j) * R + r]);
          }
        }
      }
    });
    rows += (end - begin) * R;
    if (end < whole || whole == dim_k) return;
    const int rest = static_cast<int>(dim_k - whole);
    const auto tail = Simd::tail(rest);
    FOVEA_UNROLL
    for (int j = 0; j < J; ++j) {
      const auto x = E::load_tail(key[j], scale[j], whole, rest, tail);
      FOVEA_UNROLL
      for (int r = 0; r < R; ++r) acc[j * R + r] = Simd::fma(Simd::load(rows + r * L), x, acc[j * R + r]);
    }
  }

  static FOVEA_INLINE void multiply(const KeyTile &tile, int first, const float *rows, int64_t dim_k, Vector (&acc)[kSums]) {
    const int64_t whole = dim_k / (L * V) * (L * V);
    RowFetcher fetcher = tile.fetcher(first);
    if (whole <= kDimRun * L) return multiply_run(tile, first, rows, 0, whole, whole, dim_k, acc, fetcher);
    alignas(64) float sums[kSums * L];
    multiply_runs(tile, first, rows, whole, dim_k, sums);
    FOVEA_UNROLL
    for (int i = 0; i < kSums; ++i) acc[i] = Simd::load(sums + i * L);
  }
  static __attribute__((noinline)) void multiply_runs(const KeyTile &tile, int first, const float *rows, int64_t whole,
                                                      int64_t dim_k, float *sums) {
    RowFetcher fetcher = tile.fetcher(first);
    for (int64_t begin = 0; begin < whole; begin += kDimRun * L) {
      const int64_t end = begin + kDimRun * L < whole ? begin + kDimRun * L : whole;
      Vector acc[kSums];
      multiply_run(tile, first, rows, begin, end, whole, dim_k, acc, fetcher);
      FOVEA_UNROLL
      for (int i = 0; i < kSums; ++i) Simd::store(sums + i * L, begin > 0 ? Simd::add(Simd::load(sums + i * L), acc[i]) : acc[i]);
    }
  }

  // Scores of the keys of a tile as they are: score[key][stride], from lane 0 on; lanes behind the last row repeat it.
  static __attribute__((noinline)) void score(const KeyTile &tile, const float *rows, int64_t dim_k, float *score,
                                              int64_t stride) {
    for (int first = 0; first < kKeyTile; first += J) {
      Vector acc[kSums];
      multiply(tile, first, rows, dim_k, acc);
      FOVEA_UNROLL
      for (int i = 0; i < kSums; i += kAtOnce) {
        const auto sums = Simd::template sums<kAtOnce>(acc + i);
        FOVEA_UNROLL
        for (int at = 0; at < kAtOnce; at += R)
          Simd::store(score + (first + (i + at) / R) * stride, Simd::template lanes<R>(sums, at));
      }
    }
  }

  // Scores of a block's tiles side by side: score[key][R]. What lies behind them in a vector is overwritten.
  static __attribute__((noinline)) void score_block(const KeyTile &keys, int64_t count, const float *rows, int64_t dim_k,
                                                    float *score) {
    for (int64_t key = 0; key < count; key += J) {
      Vector acc[kSums];
      multiply(keys, static_cast<int>(key), rows, dim_k, acc);
      FOVEA_UNROLL
      for (int i = 0; i < kSums; i += kAtOnce) Simd::store(score + key * R + i, Simd::template sums<kAtOnce>(acc + i));
    }
  }
};

// Scores and weights of up to eight rows lie side by side, [key][rows_by_dims(rows)]: vectors are full, and nothing waits for the sums over
// the dims but a store.
template <class Simd>
FOVEA_INLINE bool lie_side_by_side(int64_t rows) {
  return rows <= rows_by_dims<Simd>(rows);
}

// Moves [key][kLanes], of which the first so many rows count, together: to[key][rows]. In place, or anywhere else.
template <class Simd>
void put_side_by_side(const float *from, int64_t keys, int rows, float *to) {
  for (int64_t key = 0; key < keys; ++key) Simd::store(to + key * rows, Simd::load(from + key * Simd::kLanes));
}

// The references of rows that have none yet, each from the first tile that holds a key for it: of a block that all rows permit, but a score
// may be -inf.
template <class Simd, int R>
FOVEA_INLINE void take_first_references(const float *score, int64_t keys, SoftmaxState<Simd> &state) {
  alignas(64) float reference[Simd::kLanes];
  bool taken = false;
  for (int r = 0; r < R; ++r) {
    reference[r] = state.chunk_max[r];
    for (int64_t begin = 0; begin < keys && !(kLowest <= reference[r]); begin += kKeyTile) {
      for (int64_t j = begin; j < begin + kKeyTile; ++j) {
        if (score[j * R + r] > reference[r]) reference[r] = score[j * R + r];
      }
      taken = true;
    }
  }
  if (taken) Simd::store(state.chunk_max, R == 1 ? Simd::set1(reference[0]) : Simd::template lanes<R>(Simd::load(reference), 0));
}

// The sums of all lanes of a row, where rows alternate; the last again behind it.
template <class Simd, int R, int N = Simd::kLanes / 2>
FOVEA_INLINE typename Simd::Vector sums_of_rows(typename Simd::Vector a) {
  if constexpr (N < R)
    return Simd::template lanes<R>(a, 0);
  else
    return sums_of_rows<Simd, R, N / 2>(Simd::add(a, Simd::template lanes<N>(a, N)));
}

// Such scores of the keys [first, end) of a block become weights, and join the chunk's sums: each lane has its own, of vectors that begin at
// multiples of kLanes, so that a row's sum depends on nothing but its weights. Writes to the end of the last vector.
template <class Simd, int R>
__attribute__((noinline)) void exponentiate_side_by_side(float *p, int64_t first, int64_t end, SoftmaxState<Simd> &state) {
  constexpr int L = Simd::kLanes;
  constexpr int64_t kTile = kKeyTile * L, kRun = 16 * kKeyTile * R;
  const auto reference = Simd::template repeat<R>(finite_reference<Simd>(Simd::load(state.chunk_max)));
  const int64_t start = first * R / L * L, stop = (end * R + L - 1) / L * L;
  for (int64_t i = start; i < first * R; ++i) p[i] = kNoKeys;
  for (int64_t i = end * R; i < stop; ++i) p[i] = kNoKeys;
  for (int64_t i = start; i < stop;) {
    auto run_sum = Simd::set1(0.0f);
    for (const int64_t run_end = smaller((i / kRun + 1) * kRun, stop); i < run_end;) {
      auto tile_sum = Simd::set1(0.0f);
      for (const int64_t tile_end = smaller((i / kTile + 1) * kTile, run_end); i < tile_end; i += L) {
        auto t = Simd::sub(Simd::load(p + i), reference);
        if (state.step != 1) t = Simd::mul(t, Simd::set1(state.step));
        const auto weights = Simd::exp2(t);
        Simd::store(p + i, weights);
        tile_sum = Simd::add(tile_sum, weights);
      }
      run_sum = Simd::add(run_sum, tile_sum);
    }
    Simd::store(state.run_sum, sums_of_rows<Simd, R>(run_sum));
    end_run(state, 1);
  }
}

// The scores of a tile's keys and any number of few rows: score[key][kLanes].
template <class Simd, class E>
void score_few_rows(KeyTile tile, const float *rows, int64_t count, int64_t dim_k, float *score) {
  constexpr int L = Simd::kLanes;
  const auto score_rows = [&](int64_t first, float *to, int64_t stride) {
    const float *packed = rows + first * padded_dim<Simd>(dim_k);
    with_rows<Simd>(rows_by_dims<Simd>(count - first),
                    [&](auto tile_rows) { ScoresByDims<Simd, E, tile_rows>::score(tile, packed, dim_k, to, stride); });
  };
  if (rows_by_dims<Simd>(count) >= count) return score_rows(0, score, L);
  // Several tiles of rows lie beside each other, and each fills a whole vector.
  constexpr int kWidest = kFewRows<Simd> + L;
  float scores[kKeyTile][kWidest];
  for (int64_t first = 0; first < count; first += rows_by_dims<Simd>(count - first)) {
    score_rows(first, scores[0] + first, kWidest);
    tile.bytes = 0;
  }
  for (int j = 0; j < kKeyTile; ++j) Simd::store(score + j * L, Simd::load(scores[j]));
}

// The scores of a block's keys and R rows, side by side. Behind the last key they are -inf to the end of a tile.
template <class Simd, class E, int R>
void score_side_by_side(const KeyRows &k, int64_t keys, const float *rows, int64_t dim_k, float *score) {
  using Scores = ScoresByDims<Simd, E, R>;
  const int64_t whole = keys / kKeyTile * kKeyTile;
  Scores::score_block({k.row, k.scale, k.ahead, k.bytes}, whole, rows, dim_k, score);
  if (whole == keys) return;
  const char *row[kKeyTile];
  float scale[kKeyTile];
  for (int64_t j = 0; j < kKeyTile; ++j) {
    row[j] = k.row[smaller(whole + j, keys - 1)];
    scale[j] = k.scale[smaller(whole + j, keys - 1)];
  }
  Scores::score_block({row, scale, 0, 0}, kKeyTile, rows, dim_k, score + whole * R);
  for (int64_t i = keys * R; i < (whole + kKeyTile) * R; ++i) score[i] = kNoKeys;
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
