// What the algorithm asks of an instruction set. XsimdVector fills most of it from xsimd; isa/<level>.cpp completes it to a type
// named Simd:
//
//   Vector, kLanes                      a vector of floats
//   Dot                                 how a tile of scores multiplies: FloatDot<Simd>, or its like for elements of other types
//   kPanelVectors, kKeyTile             tile of scores: kKeyTile keys x at most kPanelVectors vectors of queries, one accumulator each
//   kValueVectors, value_rows(w)        tile of outputs: value_rows(w) rows x w <= kValueVectors vectors of value dims;
//   value_vectors(rows)                 w for so many rows
//   kSumsByDims                         of few rows: sums in registers beside a key's and a query's dims, a power of two
//   kFewRowsSums                        likewise of outputs, beside values and three weights
//   clamp(t, low, high)                 NaN stays NaN
//   exponent_bits(biased)               the low bits of its lanes shifted into the exponent: 2^n from n + 127
//   in_register(a)                      a, which the compiler shall not load again for each use
//   load, store, set1, add, sub, mul, div, fma(a, b, c) = a * b + c, abs, max, min, select_less(a, b, x, y) = a < b ? x : y
//   sums<n>(x)                          lane i: the sum over the lanes of x[i], i < n <= kLanes; formed alike for each
//   lanes<n>(a, from)                   lanes [from, from + n) of a, the last again to the end
//   repeat<n>(a)                        lanes [0, n) of a again and again; n is a power of two
//   all_less(a, b), all_finite(a)       over all lanes; false where a lane is NaN
//   exp2(t)                             relative error <= 2^-22, exactly 1 at 0, exactly 0 where 2^t is below FLT_MIN, inf above
//                                       FLT_MAX, NaN for NaN
//   Tail, tail(n), load_tail, store_tail   the first n < kLanes elements; nothing behind them is touched, other lanes load as 0
//   load_columns(row, d, x)             x[i] = row[lane][d + i] lane by lane, for i < kColumns; for i < kMostColumns too
//   load_i8                             kLanes signed bytes
//   load_nibbles(p, scale, low, high)   scale * (the low and the high 4 bits of kLanes bytes - 8); kLanes <= 16
//   set1_f16(p)                         the f16 at p, of any alignment, in all lanes
//   load_f16, load_bf16, store_f16, store_bf16   kLanes 16-bit elements, the bits that convert.inl.h makes of them
//
// Every function here has internal linkage or lies in a namespace of the level: see docs/architecture.md for why.
#pragma once
#include "kernels/kernel.h"

#define FOVEA_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define FOVEA_UNROLL _Pragma("unroll")
#else
#define FOVEA_UNROLL _Pragma("GCC unroll 32")
#endif

namespace fovea::FOVEA_LEVEL {
namespace {

// f(0), ..., f(N - 1), each number a constant with a type of its own. Arrays that are indexed by nothing else are registers at once; GCC 12
// gives those of unrolled loops memory first, and what writes to it remains.
template <int I>
struct Constant {
  static constexpr int value = I;
  constexpr operator int() const { return I; }
};
template <int N, int I = 0, class F>
FOVEA_INLINE void repeat(const F &f) {
  if constexpr (I < N) {
    f(Constant<I>());
    repeat<N, I + 1>(f);
  }
}
#define FOVEA_EACH(i) [&](auto i) __attribute__((always_inline))

constexpr int kColumns = 4;  // what load_columns() transposes at least: the floats of 128 bits

// 2^f on [-1/2, 1/2] and on [0, 1): minimax in relative error (9.1e-8 and 8.2e-8) among the polynomials of degree 5 with constant
// term 1, so that 2^0 is exact and equal scores get equal weights. tools/exp2_polynomial.py derives them.
constexpr float kExp2Centred[5] = {0x1.62e42ap-1f, 0x1.ebf9bcp-3f, 0x1.c6b752p-5f, 0x1.3cea88p-7f, 0x1.5bba14p-10f};
constexpr float kExp2Unit[5] = {0x1.62e4bap-1f, 0x1.ebdb56p-3f, 0x1.c91cf0p-5f, 0x1.277824p-7f, 0x1.e975aap-10f};

// (2^f - 1) / f
template <class Simd>
FOVEA_INLINE typename Simd::Vector exp2_slope(typename Simd::Vector f, const float (&c)[5]) {
  auto p = Simd::fma(f, Simd::set1(c[4]), Simd::set1(c[3]));
  p = Simd::fma(p, f, Simd::set1(c[2]));
  p = Simd::fma(p, f, Simd::set1(c[1]));
  return Simd::fma(p, f, Simd::set1(c[0]));
}
template <class Simd>
FOVEA_INLINE typename Simd::Vector exp2_polynomial(typename Simd::Vector f, const float (&c)[5]) {
  return Simd::fma(exp2_slope<Simd>(f, c), f, Simd::set1(1.0f));
}

// 2^t where the instruction set has no help for it: t is split into a whole number n and f in [-1/2, 1/2] by adding a number so
// large that its last bit is worth 1. The exponent field of 2^n is n + 127, which is left in the low bits of that sum: Simd's
// exponent_bits() shifts them up. Below -126.5 n becomes -127, whose field is that of 0; above 127.5 it becomes that of infinity.
constexpr float kRound = 12582912.0f + 127.0f;  // 1.5 * 2^23 + exponent bias
template <class Simd>
FOVEA_INLINE typename Simd::Vector exp2_by_exponent_bits(typename Simd::Vector t) {
  t = Simd::clamp(t, -127.0f, 128.0f);
  const auto biased = Simd::add(t, Simd::set1(kRound));
  const auto f = Simd::sub(t, Simd::sub(biased, Simd::set1(kRound)));
  return Simd::mul(exp2_polynomial<Simd>(f, kExp2Centred), Simd::exponent_bits(biased));
}

// tanh(x) from t = 2 * log2(e) * x, as e / (e + 2) with e = 2^t - 1, which is formed without cancellation. Beyond 2^30 it is 1.
template <class Simd>
FOVEA_INLINE typename Simd::Vector tanh_of_log2(typename Simd::Vector t) {
  t = Simd::clamp(t, -30.0f, 30.0f);
  const auto biased = Simd::add(t, Simd::set1(kRound)), one = Simd::set1(1.0f);
  const auto f = Simd::sub(t, Simd::sub(biased, Simd::set1(kRound)));
  const auto power = Simd::exponent_bits(biased);
  const auto e = Simd::fma(power, Simd::mul(exp2_slope<Simd>(f, kExp2Centred), f), Simd::sub(power, one));
  return Simd::div(e, Simd::add(e, Simd::set1(2.0f)));
}

#ifdef FOVEA_XSIMD_ARCH
template <class Arch>
struct XsimdVector {
  using Vector = xsimd::batch<float, Arch>;
  static constexpr int kLanes = static_cast<int>(Vector::size);
  static FOVEA_INLINE Vector load(const float *p) { return Vector::load_unaligned(p); }
  static FOVEA_INLINE void store(float *p, Vector v) { v.store_unaligned(p); }
  static FOVEA_INLINE Vector set1(float x) { return Vector(x); }
  static FOVEA_INLINE Vector in_register(Vector a) { return a; }
  static FOVEA_INLINE Vector add(Vector a, Vector b) { return a + b; }
  static FOVEA_INLINE Vector sub(Vector a, Vector b) { return a - b; }
  static FOVEA_INLINE Vector mul(Vector a, Vector b) { return a * b; }
  static FOVEA_INLINE Vector div(Vector a, Vector b) { return a / b; }
  static FOVEA_INLINE Vector abs(Vector a) { return xsimd::abs(a); }
  static FOVEA_INLINE Vector max(Vector a, Vector b) { return xsimd::max(a, b); }
  static FOVEA_INLINE Vector min(Vector a, Vector b) { return xsimd::min(a, b); }
  static FOVEA_INLINE Vector select_less(Vector a, Vector b, Vector x, Vector y) { return xsimd::select(a < b, x, y); }
  static FOVEA_INLINE bool all_less(Vector a, Vector b) { return xsimd::all(a < b); }
};
#endif

// Products of queries and keys, dim by dim. Elements of keys may be of a narrower type of their own, so that kDims neighbouring dims are
// multiplied at a time, and these of kKeys keys, one or two: then as many vectors hold the dims of a vector of queries, and as many sums the
// scores against these keys, in an order of the instruction's own, until separate() makes them one vector of queries for each key.
//
//   pack(dims, queries)          exact where the dims are Keys
//   broadcast(dims, next_key)    dims of a key, and of that next_key elements behind it
template <class Simd>
struct FloatDot {
  using Vector = typename Simd::Vector;
  using Key = float;
  static constexpr int kDims = 1, kKeys = 1;
  static FOVEA_INLINE void pack(const Vector (&dims)[kDims], Vector (&queries)[kKeys]) { queries[0] = dims[0]; }
  static FOVEA_INLINE Vector broadcast(const Key *dims, int64_t) { return Simd::set1(*dims); }
  static FOVEA_INLINE Vector add(Vector queries, Vector keys, Vector sum) { return Simd::fma(keys, queries, sum); }
  static FOVEA_INLINE void separate(Vector (&)[kKeys]) {}
};

// For instruction sets whose shuffles differ from lane to lane, through memory.
template <class Base>
struct ShuffledByLane : Base {
  using typename Base::Vector;
  template <int kCount>
  static FOVEA_INLINE Vector sums(const Vector *x) {
    float lanes[Base::kLanes] = {};
    for (int i = 0; i < kCount; ++i) lanes[i] = Base::sum(x[i]);
    return Base::load(lanes);
  }
  template <int kCount>
  static FOVEA_INLINE Vector lanes(Vector a, int from) {
    float all[Base::kLanes], some[Base::kLanes];
    Base::store(all, a);
    for (int i = 0; i < Base::kLanes; ++i) some[i] = all[from + (i < kCount ? i : kCount - 1)];
    return Base::load(some);
  }
  template <int kCount>
  static FOVEA_INLINE Vector repeat(Vector a) {
    float all[Base::kLanes], some[Base::kLanes];
    Base::store(all, a);
    for (int i = 0; i < Base::kLanes; ++i) some[i] = all[i % kCount];
    return Base::load(some);
  }
};

// For instruction sets without masked memory operations: a tail goes through a buffer.
template <class Base>
struct BufferedTail : Base {
  using typename Base::Vector;
  using Tail = int;
  static FOVEA_INLINE Tail tail(int n) { return n; }
  static FOVEA_INLINE Vector load_tail(const float *p, Tail n) {
    float buffer[Base::kLanes] = {};
    for (int i = 0; i < n; ++i) buffer[i] = p[i];
    return Base::load(buffer);
  }
  static FOVEA_INLINE void store_tail(float *p, Vector v, Tail n) {
    float buffer[Base::kLanes];
    Base::store(buffer, v);
    for (int i = 0; i < n; ++i) p[i] = buffer[i];
  }
};

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
