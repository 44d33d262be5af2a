// The loops behind peaks.h, written once over the compiler's vector type. A file per level defines FOVEA_PEAKS (the name of its table),
// FOVEA_VECTOR_BYTES and FOVEA_REGISTERS, may define FOVEA_FLOOR and FOVEA_SCALE, and FOVEA_BF16_DOT(sum, x, y) with FOVEA_BF16_PRODUCTS, how many it
// adds to a lane, and includes this. Compiled with -ffp-contract=fast, so that a
// product and a sum become the level's multiply-add; without -ffast-math, so that no loop may be shortened.
#include "peaks.h"

namespace fovea::bench {
namespace {

typedef float Vector __attribute__((vector_size(FOVEA_VECTOR_BYTES)));
typedef int32_t Bits __attribute__((vector_size(FOVEA_VECTOR_BYTES)));
typedef int32_t UnalignedBits __attribute__((vector_size(FOVEA_VECTOR_BYTES), aligned(4), may_alias));
typedef float Unaligned __attribute__((vector_size(FOVEA_VECTOR_BYTES), aligned(4), may_alias));

constexpr int kLanes = FOVEA_VECTOR_BYTES / 4;
// Multiply-adds in flight: more than latency times units on every core known (4 * 2 on x86-64, 4 * 4 on Arm), and all in registers.
constexpr int kChains = FOVEA_REGISTERS == 32 ? 24 : 12;
// The probe's tile: kTileRows broadcasts times two vectors, kept in registers beside the two vectors and a broadcast.
constexpr int kTileRows = FOVEA_REGISTERS == 32 ? 8 : 6;
constexpr int kProbeFloats = 2048;  // 8 KiB: a quarter of the smallest first-level cache in use
constexpr int kExpFloats = 2048;

thread_local volatile float sink;  // results go here, where the compiler must leave them

Vector broadcast(float x) { return x - Vector{}; }

float opaque(float x) {
  volatile float hidden = x;
  return hidden;
}

void consume(const Vector *values, int count) {
  Vector sum = values[0];
  for (int i = 1; i < count; i++) sum += values[i];
  for (int i = 0; i < kLanes; i++) sink = sum[i];
}

template <class Step>
void run_chains(int64_t steps, Step step) {
  const Vector x = broadcast(opaque(0.999f)), y = broadcast(opaque(0.001f));
  Vector chain[kChains];
#pragma GCC unroll 32
  for (int i = 0; i < kChains; i++) chain[i] = broadcast(opaque(static_cast<float>(i)));
  for (int64_t n = 0; n < steps; n++) {
#pragma GCC unroll 32
    for (int i = 0; i < kChains; i++) chain[i] = step(chain[i], x, y);
  }
  consume(chain, kChains);
}

void fma(int64_t steps) {
  run_chains(
      steps, [](Vector chain, Vector x, Vector y) __attribute__((always_inline)) { return chain * x + y; });
}

#ifdef FOVEA_BF16_DOT
void bf16_dot(int64_t steps) {
  run_chains(
      steps, [](Vector chain, Vector x, Vector y) __attribute__((always_inline)) { return FOVEA_BF16_DOT(chain, x, y); });
}
#else
#define FOVEA_BF16_PRODUCTS 0
constexpr void (*bf16_dot)(int64_t) = nullptr;
#endif

void probe(int64_t steps) {
  alignas(64) static const float tile[kProbeFloats] = {};
  constexpr int kStride = 2 * kLanes + 16;  // two vectors and the scalars behind them
  constexpr int kTiles = kProbeFloats / kStride;
  Vector sum[2 * kTileRows];
#pragma GCC unroll 32
  for (int i = 0; i < 2 * kTileRows; i++) sum[i] = broadcast(opaque(0));
  int position = 0;
  for (int64_t step = 0; step < steps; step++) {
    const float *p = tile + position * kStride;
    asm volatile("" : "+r"(p));  // what lies there is not known to be zero
    position = position + 1 == kTiles ? 0 : position + 1;
    const Vector left = *reinterpret_cast<const Unaligned *>(p), right = *reinterpret_cast<const Unaligned *>(p + kLanes);
#pragma GCC unroll 32
    for (int row = 0; row < kTileRows; row++) {
      const Vector scalar = broadcast(p[2 * kLanes + row]);
      sum[2 * row] = scalar * left + sum[2 * row];
      sum[2 * row + 1] = scalar * right + sum[2 * row + 1];
    }
  }
  consume(sum, 2 * kTileRows);
}

// ln(2)^k / k!, the series of 2^r: how long it takes does not depend on the values of the coefficients.
constexpr float kSeries[6] = {1, 0.69314718f, 0.24022651f, 0.055504109f, 0.0096181291f, 0.0013333558f};

Vector series(Vector r) {
  Vector p = broadcast(kSeries[5]);
#pragma GCC unroll 5
  for (int k = 4; k >= 0; k--) p = p * r + kSeries[k];
  return p;
}

#ifndef FOVEA_SCALE
// Rounds x to the integer n in the low bits of a large number, and adds n to the exponent of 2^(x - n).
Vector exp2_vector(Vector x) {
  const Vector kRound = broadcast(12582912.0f);  // 1.5 * 2^23: its unit in the last place is 1
  const Vector shifted = x + kRound;
  return (Vector)((Bits)series(x - (shifted - kRound)) + ((Bits)shifted << 23));
}
#else
Vector exp2_vector(Vector x) {
  const Vector n = FOVEA_FLOOR(x);
  return FOVEA_SCALE(series(x - n), n);
}
#endif

void exp2(int64_t steps) {
  alignas(64) static float argument[kExpFloats];
  Vector sum[4] = {};
  for (int64_t step = 0; step < steps; step++) {
    const float *p = argument;
    asm volatile("" : "+r"(p) : : "memory");
    for (int i = 0; i < kExpFloats; i += 4 * kLanes) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) sum[j] += exp2_vector(*reinterpret_cast<const Unaligned *>(p + i + j * kLanes));
    }
  }
  consume(sum, 4);
}

// As whole numbers: what lies there need not be floats.
void read(const float *data, int64_t count) {
  Bits sum[8] = {};
  int64_t i = 0;
  for (; i + 8 * kLanes <= count; i += 8 * kLanes) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) sum[j] ^= *reinterpret_cast<const UnalignedBits *>(data + i + j * kLanes);
  }
  Vector all[9] = {};
  for (int j = 0; j < 8; j++) all[j] = (Vector)sum[j];
  for (; i < count; i++) all[8][0] += data[i];
  consume(all, 9);
}

}  // namespace

extern const PeakLoops FOVEA_PEAKS;
const PeakLoops FOVEA_PEAKS = {2.0 * kChains * kLanes,
                               fma,
                               2.0 * 2 * kTileRows *kLanes,
                               probe,
                               kExpFloats,
                               exp2,
                               read,
                               2.0 * kChains *kLanes *FOVEA_BF16_PRODUCTS,
                               bf16_dot};

}  // namespace fovea::bench
