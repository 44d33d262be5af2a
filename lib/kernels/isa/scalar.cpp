// Portable C++: vectors of four floats that the compiler maps to the baseline of the target (SSE2 on x86-64, Advanced SIMD on
// AArch64) or to scalars. No fused multiply-add is assumed.
#define FOVEA_LEVEL scalar
#include "kernels/generic/forward.inl.h"

namespace fovea::scalar {
namespace {

struct Vector4 {
  typedef float Vector __attribute__((vector_size(16)));
  typedef int32_t Bits __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;

  static FOVEA_INLINE Vector load(const float *p) {
    Vector v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static FOVEA_INLINE void store(float *p, Vector v) { __builtin_memcpy(p, &v, sizeof v); }
  static FOVEA_INLINE Vector set1(float x) { return Vector{x, x, x, x}; }
  static FOVEA_INLINE Vector in_register(Vector a) { return a; }
  static FOVEA_INLINE Vector add(Vector a, Vector b) { return a + b; }
  static FOVEA_INLINE Vector sub(Vector a, Vector b) { return a - b; }
  static FOVEA_INLINE Vector mul(Vector a, Vector b) { return a * b; }
  static FOVEA_INLINE Vector div(Vector a, Vector b) { return a / b; }
  static FOVEA_INLINE Vector fma(Vector a, Vector b, Vector c) { return a * b + c; }
  static FOVEA_INLINE float sum(Vector a) { return (a[0] + a[2]) + (a[1] + a[3]); }
  static FOVEA_INLINE Vector select(Bits mask, Vector x, Vector y) { return (Vector)(((Bits)x & mask) | ((Bits)y & ~mask)); }
  static FOVEA_INLINE Vector select_less(Vector a, Vector b, Vector x, Vector y) { return select(a < b, x, y); }
  static FOVEA_INLINE Vector abs(Vector a) { return (Vector)((Bits)a & 0x7fffffff); }
  static FOVEA_INLINE Vector max(Vector a, Vector b) { return select(a > b, a, b); }
  static FOVEA_INLINE Vector min(Vector a, Vector b) { return select(a < b, a, b); }
  static FOVEA_INLINE bool every(Bits mask) { return (mask[0] & mask[1] & mask[2] & mask[3]) != 0; }
  static FOVEA_INLINE bool all_less(Vector a, Vector b) { return every(a < b); }
  static FOVEA_INLINE bool all_finite(Vector a) {
    const Vector zero = a - a;  // NaN for NaN and infinities
    return every(zero == zero);
  }
  // NaN fails both comparisons and stays.
  static FOVEA_INLINE Vector clamp(Vector t, float low, float high) {
    t = select(t < set1(low), set1(low), t);
    return select(t > set1(high), set1(high), t);
  }
  static FOVEA_INLINE Vector exponent_bits(Vector biased) { return (Vector)((Bits)biased << 23); }
  static constexpr int kMostColumns = kColumns;
  static FOVEA_INLINE void load_columns(const float *const *row, int64_t d, Vector (&x)[kColumns]) {
    for (int i = 0; i < kColumns; ++i) x[i] = Vector{row[0][d + i], row[1][d + i], row[2][d + i], row[3][d + i]};
  }
};

struct Simd : ShuffledByLane<BlocksByLane<ConvertedByLane<BufferedTail<Vector4>>>> {
  using Dot = FloatDot<Simd>;
  // 8 accumulators, 2 query vectors and a product fit the 16 registers of SSE2.
  static constexpr int kPanelVectors = 2, kKeyTile = 4;
  static constexpr int kValueVectors = 2;
  static constexpr int value_rows(int) { return 4; }
  static constexpr int value_vectors(int64_t) { return kValueVectors; }
  static constexpr int kSumsByDims = 8, kFewRowsSums = 12;
  static FOVEA_INLINE Vector exp2(Vector t) { return exp2_by_exponent_bits<Simd>(t); }
};

}  // namespace
}  // namespace fovea::scalar

namespace fovea {
extern const ForwardKernel kernel_scalar_prefill_f32;
const ForwardKernel kernel_scalar_prefill_f32 = scalar::make_forward_kernel<scalar::Simd>("scalar/prefill/f32", {8, 8, 16});
}  // namespace fovea
