// fovea_kv_append(): new tokens in caches of every type and layout. What is read back lies within half a step, nothing else
// changes, and where something is wrong nothing changes at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "reference/element.h"
#include "support/call.h"
#include "support/elements.h"
#include "support/levels.h"
#include "support/pool.h"

namespace fovea::testing {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::nanf("");

bool is_blocked(fovea_dtype dtype) { return reference::block_elements(dtype) > 1; }

int64_t block_bytes(fovea_dtype dtype) { return int64_t(reference::element_bytes(dtype)); }

struct Layout {
  bool paged, heads_first;
  int64_t step;
};
constexpr Layout kLayouts[] = {{false, true, 1}, {false, false, 3}, {true, true, 1}, {true, false, 2}};

// A cache of 3 entries with room for 40 tokens, of pages of 16 where paged, and tokens for it.
struct Cache {
  static constexpr int64_t kBatch = 3, kHeads = 2, kCapacity = 40, kPage = 16, kColumns = 3, kMost = 20;
  Pool k, v;
  std::vector<int32_t> table = {4, 0, 7, 2, 5, 1, -1, 1000000, 6};  // two columns that no token comes to
  std::vector<int32_t> start = {0, 11, 37}, count = {20, 20, 3};
  fovea_params params;
  Elements k_values, v_values;
  fovea_tensor k_new = {}, v_new = {};

  Cache(fovea_dtype dtype_k, fovea_dtype dtype_v, const Layout &layout, fovea_dtype dtype_new = FOVEA_F32, int64_t dim_k = 64,
        int64_t dim_v = 320)
      : k(pool(dtype_k, layout, dim_k)),
        v(pool(dtype_v, layout, dim_v)),
        k_values(dtype_new, size_t(kBatch * kHeads * kMost * dim_k)),
        v_values(dtype_new, size_t(kBatch * kHeads * kMost * dim_v)) {
    EXPECT_EQ(fovea_params_init(&params, sizeof params, kBatch, kHeads, kHeads, 0, kCapacity, dim_k, dim_v), FOVEA_OK);
    params.k = k.tensor, params.v = v.tensor;
    params.k_scale = k.scale, params.v_scale = v.scale;
    if (layout.paged) {
      params.page_size = int32_t(kPage);
      params.num_pages = 8;
      params.block_table = table.data();
      params.block_table_stride = kColumns;
    }
    std::mt19937 bits(31);
    for (Elements *values : {&k_values, &v_values})
      for (size_t i = 0; i < values->size(); ++i)
        values->set(i, std::ldexp(double(bits() >> 8) * 0x1p-23 - 1, int(i / 32 % 9) - 4));
    // [token, head, batch, dim]: not the order of the cache.
    k_new.stride[0] = dim_k, k_new.stride[1] = kBatch * dim_k, k_new.stride[2] = kBatch * kHeads * dim_k, k_new.stride[3] = 1;
    v_new.stride[0] = dim_v, v_new.stride[1] = kBatch * dim_v, v_new.stride[2] = kBatch * kHeads * dim_v, v_new.stride[3] = 1;
    k_values.become(&k_new);
    v_values.become(&v_new);
  }
  Cache(const Cache &) = delete;
  Cache &operator=(const Cache &) = delete;

  fovea_status append(const fovea_context *context) const {
    return fovea_kv_append(context, &params, &k_new, &v_new, start.data(), count.data());
  }
  std::pair<int64_t, int64_t> place(int64_t b, int64_t token) const {  // entry and slot in the pool
    if (!params.page_size) return {b, token};
    return {table[size_t(b * kColumns + token / kPage)], token % kPage};
  }
  static double new_value(const Elements &values, const fovea_tensor &t, int64_t b, int64_t h, int64_t token, int64_t c) {
    return values[size_t(b * t.stride[0] + h * t.stride[1] + token * t.stride[2] + c * t.stride[3])];
  }

 private:
  static Pool pool(fovea_dtype dtype, const Layout &layout, int64_t dim) {
    return {dtype, layout.paged ? 8 : kBatch, kHeads, layout.paged ? kPage : kCapacity, dim, layout.step, layout.heads_first};
  }
};

void expect_untouched(const Pool &pool, const std::vector<char> &written, const std::vector<char> &scales_written) {
  for (size_t i = 0; i < pool.bytes.size(); ++i) ASSERT_TRUE(written[i] || pool.bytes[i] == Pool::kCanary) << "byte " << i;
  for (size_t i = 0; i < pool.scales.size(); ++i)
    ASSERT_TRUE(scales_written[i] || pool.scales[i] == Call::canary) << "scale " << i;
}

class AppendTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(AppendTest);

TEST_P(AppendTest, ReadsBackWithinHalfAStepAndTouchesNothingElse) {
  const auto context = this->context(2);
  for (const fovea_dtype dtype : kCacheDtypes) {
    for (const Layout &layout : kLayouts) {
      for (const fovea_dtype dtype_new : kDtypes) {
        const std::string what = "dtype " + std::to_string(dtype) + " of " + std::to_string(dtype_new) +
                                 (layout.paged ? " paged" : "") + " step " + std::to_string(layout.step);
        Cache cache(dtype, dtype == FOVEA_I8 ? FOVEA_Q8_0 : dtype == FOVEA_F16 ? FOVEA_I8 : dtype, layout, dtype_new);
        ASSERT_EQ(cache.append(context.get()), FOVEA_OK) << what << ": " << fovea_last_error();
        const auto expect_written = [&](const Pool &pool, const Elements &values, const fovea_tensor &from) {
          std::vector<char> written(pool.bytes.size()), scales_written(pool.scales.size());
          for (int64_t b = 0; b < Cache::kBatch; ++b)
            for (int64_t h = 0; h < Cache::kHeads; ++h)
              for (int64_t t = 0; t < cache.count[size_t(b)]; ++t) {
                const auto [entry, slot] = cache.place(b, cache.start[size_t(b)] + t);
                pool.mark(entry, h, slot, &written, &scales_written);
                for (int64_t c = 0; c < pool.dim; ++c) {
                  const Pool::Value read = pool.value(entry, h, slot, c);
                  ASSERT_NEAR(read.value, Cache::new_value(values, from, b, h, t, c), read.half_step)
                      << what << ", entry " << b << ", head " << h << ", token " << t << ", dim " << c;
                }
              }
          expect_untouched(pool, written, scales_written);
        };
        expect_written(cache.k, cache.k_values, cache.k_new);
        expect_written(cache.v, cache.v_values, cache.v_new);
      }
    }
  }
}

// One token of one head and one block, and what the cache holds then.
struct Single {
  std::vector<float> x = std::vector<float>(32, 0.0f);
  Bytes bytes;
  float scale = Call::canary;

  fovea_status append(const fovea_context *context, fovea_dtype dtype) {
    bytes.assign(size_t(is_blocked(dtype) ? block_bytes(dtype) : 32 * block_bytes(dtype)), Pool::kCanary);
    fovea_params cache;
    EXPECT_EQ(fovea_params_init(&cache, sizeof cache, 1, 1, 1, 0, 1, 32, 0), FOVEA_OK);
    cache.k = {bytes.data(), {0, 0, 0, 1}, dtype, 0};
    if (dtype == FOVEA_I8) cache.k_scale = {&scale, {0, 0, 0, 0}, FOVEA_F32, 0};
    const fovea_tensor k_new = {x.data(), {32, 32, 32, 1}, FOVEA_F32, 0}, none = {nullptr, {0, 0, 0, 0}, FOVEA_F32, 0};
    const int32_t start = 0, count = 1;
    return fovea_kv_append(context, &cache, &k_new, &none, &start, &count);
  }
  uint16_t half_scale() const { return uint16_t(bytes[0] | bytes[1] << 8); }
};

TEST_P(AppendTest, BytesOfRoundedNumbers) {
  const auto context = this->context();
  Single one;
  const float numbers[] = {127, -127, 63.5f, -63.5f, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, 0.49999997f, -0.49999997f, 126.5f, 1, 0};
  std::copy(std::begin(numbers), std::end(numbers), one.x.begin());

  ASSERT_EQ(one.append(context.get(), FOVEA_I8), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(one.scale, 1);
  const int8_t even[] = {127, -127, 64, -64, 0, 0, 2, -2, 2, 0, 0, 126, 1, 0};
  for (size_t i = 0; i < std::size(even); ++i) EXPECT_EQ(int8_t(one.bytes[i]), even[i]) << numbers[i];

  ASSERT_EQ(one.append(context.get(), FOVEA_Q8_0), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(one.half_scale(), 0x3C00);
  const int8_t away[] = {127, -127, 64, -64, 1, -1, 2, -2, 3, 0, 0, 127, 1, 0};
  for (size_t i = 0; i < std::size(away); ++i) EXPECT_EQ(int8_t(one.bytes[2 + i]), away[i]) << numbers[i];
}

TEST_P(AppendTest, BytesOfNibbles) {
  const auto context = this->context();
  Single one;
  // The largest is negative: the scale is positive, -8 is the nibble 0.
  for (int i = 0; i < 32; ++i) one.x[size_t(i)] = float(i % 16 - 8);
  one.x[16] = 8;     // would be the nibble 16
  one.x[17] = 0.5f;  // 8.5 + 0.5 is 9
  one.x[18] = 0.25f;
  ASSERT_EQ(one.append(context.get(), FOVEA_Q4_0), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(one.half_scale(), 0x3C00);
  EXPECT_EQ(one.bytes,
            Bytes({0x00, 0x3C, 0xF0, 0x91, 0x82, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB, 0xCC, 0xDD, 0xEE, 0xFF}));

  // The largest is positive, the first of two: -2 is the scale.
  std::fill(one.x.begin(), one.x.end(), 2.0f);
  one.x[3] = 16, one.x[30] = -16;
  ASSERT_EQ(one.append(context.get(), FOVEA_Q4_0), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(one.half_scale(), 0xC000);
  EXPECT_EQ(one.bytes,
            Bytes({0x00, 0xC0, 0x77, 0x77, 0x77, 0x70, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77, 0xF7, 0x77}));

  std::fill(one.x.begin(), one.x.end(), 0.0f);  // as ggml: the scale is 0 / -8
  ASSERT_EQ(one.append(context.get(), FOVEA_Q4_0), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(one.half_scale(), 0x8000);
  EXPECT_EQ(Bytes(one.bytes.begin() + 2, one.bytes.end()), Bytes(16, 0x88));
}

// ggml's reference quantisation written down again, operation by operation in float. volatile: no product is fused with a sum.
Bytes ggml_block(const std::vector<float> &x, fovea_dtype dtype) {
  Bytes block(size_t(block_bytes(dtype)), 0);
  float largest = 0, of_largest_magnitude = 0;
  for (const float value : x)
    if (largest < std::fabs(value)) largest = std::fabs(value), of_largest_magnitude = value;
  const float d = dtype == FOVEA_Q8_0 ? largest / 127 : of_largest_magnitude / -8, id = d != 0 ? 1 / d : 0;
  reference::write_element(block.data(), FOVEA_F16, 0, double{d});
  for (size_t i = 0; i < 32; ++i) {
    const volatile float scaled = x[i] * id;
    if (dtype == FOVEA_Q8_0)
      block[2 + i] = static_cast<unsigned char>(int8_t(std::round(scaled)));
    else
      block[2 + i % 16] |= static_cast<unsigned char>(std::min(15, int(scaled + 8.5f)) << (i < 16 ? 0 : 4));
  }
  return block;
}

TEST_P(AppendTest, BlocksAreThoseOfGgml) {
  const auto context = this->context();
  std::mt19937 bits(32);
  Single one;
  for (const fovea_dtype dtype : {FOVEA_Q8_0, FOVEA_Q4_0}) {
    for (int round = 0; round < 3000; ++round) {
      const int exponent = round % 60 - 30;
      for (float &x : one.x) {
        const double number = double(bits() >> 8) * 0x1p-23 - 1;
        x = float(std::ldexp(round % 3 ? number : std::round(number * 20) / 20, exponent));  // every third: ties
      }
      ASSERT_EQ(one.append(context.get(), dtype), FOVEA_OK) << fovea_last_error();
      ASSERT_EQ(one.bytes, ggml_block(one.x, dtype)) << "dtype " << dtype << ", round " << round;
    }
  }
}

// What is not finite makes all that shares its scale NaN; of numbers at the ends of float the scale stays a number where it can.
TEST_P(AppendTest, NotFinite) {
  const auto context = this->context();
  for (const float value : {kNaN, -kNaN, kInfinity, -kInfinity}) {
    for (const size_t at : {size_t{0}, size_t{17}, size_t{31}}) {
      Single one;
      for (float &x : one.x) x = 3;
      one.x[at] = value;
      ASSERT_EQ(one.append(context.get(), FOVEA_I8), FOVEA_OK) << fovea_last_error();
      EXPECT_TRUE(std::isnan(one.scale)) << value;
      for (const fovea_dtype dtype : {FOVEA_Q8_0, FOVEA_Q4_0}) {
        ASSERT_EQ(one.append(context.get(), dtype), FOVEA_OK) << fovea_last_error();
        EXPECT_TRUE(std::isnan(reference::read_element(one.bytes.data(), FOVEA_F16, 0))) << value << " dtype " << dtype;
      }
      for (const fovea_dtype dtype : kDtypes) {
        ASSERT_EQ(one.append(context.get(), dtype), FOVEA_OK) << fovea_last_error();
        for (size_t i = 0; i < 32; ++i) {
          const double read = reference::read_element(one.bytes.data(), dtype, int64_t(i));
          EXPECT_TRUE(i != at             ? read == 3
                      : std::isnan(value) ? std::isnan(read)
                                          : read == double{value})
              << value << " dtype " << dtype;
        }
      }
    }
  }
  Single one;
  one.x[0] = std::numeric_limits<float>::max();
  one.x[1] = -one.x[0];
  ASSERT_EQ(one.append(context.get(), FOVEA_I8), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(one.scale, std::numeric_limits<float>::max() / 127);
  EXPECT_EQ(int8_t(one.bytes[0]), 127);
  EXPECT_EQ(int8_t(one.bytes[1]), -127);
  one.x[0] = 1e-37f, one.x[1] = -1e-37f;  // the scale would be subnormal
  ASSERT_EQ(one.append(context.get(), FOVEA_I8), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(one.scale, 0);
  EXPECT_EQ(one.bytes, Bytes(32, 0));
}

TEST_P(AppendTest, TokenByTokenIsAllAtOnce) {
  const auto context = this->context();
  for (const fovea_dtype dtype : kCacheDtypes) {
    for (const Layout &layout : kLayouts) {
      Cache at_once(dtype, dtype, layout), one_by_one(dtype, dtype, layout);
      ASSERT_EQ(at_once.append(context.get()), FOVEA_OK) << fovea_last_error();
      const std::vector<int32_t> start = one_by_one.start, count = one_by_one.count;
      for (int32_t t = 0; t < Cache::kMost; ++t) {
        for (size_t b = 0; b < 3; ++b) {
          one_by_one.count[b] = t < count[b];
          one_by_one.start[b] = t < count[b] ? start[b] + t : -5;  // not read
        }
        ASSERT_EQ(one_by_one.append(context.get()), FOVEA_OK) << fovea_last_error();
        for (fovea_tensor *from : {&one_by_one.k_new, &one_by_one.v_new})
          from->data = static_cast<float *>(from->data) + from->stride[2];
      }
      EXPECT_EQ(at_once.k.bytes, one_by_one.k.bytes) << "dtype " << dtype;
      EXPECT_EQ(at_once.v.bytes, one_by_one.v.bytes) << "dtype " << dtype;
      EXPECT_TRUE(same_bits(at_once.k.scales, one_by_one.k.scales) && same_bits(at_once.v.scales, one_by_one.v.scales));
    }
  }
}

TEST_P(AppendTest, BytesDependOnNeitherThreadsNorExecutorNorEnvironment) {
  for (const fovea_dtype dtype : kCacheDtypes) {
    const auto run = [&](const fovea_context *context) {
      Cache cache(dtype, dtype, kLayouts[2], FOVEA_F32, 4096, 4096);
      EXPECT_EQ(cache.append(context), FOVEA_OK) << fovea_last_error();
      Bytes all = cache.k.bytes;
      all.insert(all.end(), cache.v.bytes.begin(), cache.v.bytes.end());
      return std::pair(all, cache.k.scales);
    };
    const auto first = run(context(1).get());
    for (const int32_t threads : {2, 7})
      for (const char *executor : {"omp", "pool"})
        EXPECT_TRUE(run(context(threads, executor).get()) == first) << threads << executor;
    Cache cache(dtype, dtype, kLayouts[2], FOVEA_F32, 4096, 4096);
    const auto serial = context(1);
    for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      std::feclearexcept(FE_ALL_EXCEPT);
      std::fesetround(rounding);
      EXPECT_EQ(cache.append(serial.get()), FOVEA_OK);
      EXPECT_EQ(std::fegetround(), rounding);
      EXPECT_EQ(std::fetestexcept(FE_ALL_EXCEPT), 0);
      std::fesetround(FE_TONEAREST);
      EXPECT_TRUE(std::equal(cache.k.bytes.begin(), cache.k.bytes.end(), first.first.begin())) << "dtype " << dtype;
    }
  }
}

// K and V in one pool, beside each other in each slot.
TEST_P(AppendTest, IntoOnePoolOfKeysAndValues) {
  const auto context = this->context();
  constexpr int64_t kDim = 32;
  for (const fovea_dtype dtype : {FOVEA_F32, FOVEA_Q8_0}) {
    Cache cache(dtype, dtype, kLayouts[2], FOVEA_F32, kDim, kDim);
    const int64_t blocks = is_blocked(dtype) ? 1 : kDim;
    Bytes pool(size_t(8 * Cache::kHeads * Cache::kPage * 2 * blocks * block_bytes(dtype)), Pool::kCanary);
    for (fovea_tensor *t : {&cache.params.k, &cache.params.v})
      for (int a = 0; a < 3; ++a) t->stride[a] *= 2;
    cache.params.k.data = pool.data();
    cache.params.v.data = pool.data() + blocks * block_bytes(dtype);
    ASSERT_EQ(cache.append(context.get()), FOVEA_OK) << fovea_last_error();
    Cache apart(dtype, dtype, kLayouts[2], FOVEA_F32, kDim, kDim);
    ASSERT_EQ(apart.append(context.get()), FOVEA_OK) << fovea_last_error();
    const size_t row = size_t(blocks * block_bytes(dtype));
    for (size_t i = 0; i < pool.size() / (2 * row); ++i) {
      EXPECT_TRUE(std::equal(pool.begin() + int64_t(2 * i * row), pool.begin() + int64_t((2 * i + 1) * row),
                             apart.k.bytes.begin() + apart.k.block_at(0, 0, 0, 0) + int64_t(i * row)));
      EXPECT_TRUE(std::equal(pool.begin() + int64_t((2 * i + 1) * row), pool.begin() + int64_t((2 * i + 2) * row),
                             apart.v.bytes.begin() + apart.v.block_at(0, 0, 0, 0) + int64_t(i * row)));
    }
    cache.params.v.data = pool.data() + row - (dtype == FOVEA_F32 ? 4 : 2);
    EXPECT_EQ(cache.append(context.get()), FOVEA_ERR_OVERLAP);
    EXPECT_STREQ(fovea_last_error(), "k: overlaps v");
  }
}

TEST_P(AppendTest, SizesOfZero) {
  const auto context = this->context();
  Cache cache(FOVEA_Q8_0, FOVEA_Q8_0, kLayouts[0]);
  std::fill(cache.count.begin(), cache.count.end(), 0);
  EXPECT_EQ(cache.append(context.get()), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(cache.k.bytes, Bytes(cache.k.bytes.size(), Pool::kCanary));
  cache.params.batch = 0;
  EXPECT_EQ(fovea_kv_append(context.get(), &cache.params, &cache.k_new, &cache.v_new, nullptr, nullptr), FOVEA_OK)
      << fovea_last_error();
  // A latent cache: V is a view of K, and K alone is written.
  Cache latent(FOVEA_F16, FOVEA_F16, kLayouts[0], FOVEA_F32, 64, 64);
  latent.params.v = latent.params.k;
  EXPECT_EQ(latent.append(context.get()), FOVEA_ERR_OVERLAP);
  latent.params.dim_v = 0;
  latent.v_new.data = nullptr;
  ASSERT_EQ(latent.append(context.get()), FOVEA_OK) << fovea_last_error();
  EXPECT_NEAR(latent.k.value(0, 1, 19, 5).value, Cache::new_value(latent.k_values, latent.k_new, 0, 1, 19, 5), 1e-2);
}

TEST_P(AppendTest, WhatIsWrongIsNamedAndNothingWritten) {
  const auto context = this->context();
  static const int32_t offsets[] = {0, 1, 2, 3};
  struct Fault {
    const char *text;
    fovea_status status;
    std::function<void(Cache &)> make;
  };
  const auto expect_refused = [&](fovea_dtype dtype, const Layout &layout, const std::vector<Fault> &faults) {
    for (const Fault &fault : faults) {
      Cache cache(dtype, dtype, layout);
      fault.make(cache);
      EXPECT_EQ(cache.append(context.get()), fault.status) << fault.text << " / " << fovea_last_error();
      EXPECT_EQ(std::string(fovea_last_error()).rfind(fault.text, 0), size_t{0}) << fault.text << " / " << fovea_last_error();
      for (const Pool *pool : {&cache.k, &cache.v}) {
        EXPECT_EQ(pool->bytes, Bytes(pool->bytes.size(), Pool::kCanary)) << fault.text;
        EXPECT_EQ(pool->scales, std::vector<float>(pool->scales.size(), Call::canary)) << fault.text;
      }
    }
  };
  const Layout &dense = kLayouts[0], &paged = kLayouts[2];
  expect_refused(
      FOVEA_F32, dense,
      {{"cache.struct_size", FOVEA_ERR_STRUCT_SIZE, [](Cache &c) { c.params.struct_size = 8; }},
       {"cache.flags", FOVEA_ERR_UNSUPPORTED, [](Cache &c) { c.params.flags = 2; }},
       {"batch: -1", FOVEA_ERR_INVALID_SIZE, [](Cache &c) { c.params.batch = -1; }},
       {"heads_kv: -1", FOVEA_ERR_INVALID_SIZE, [](Cache &c) { c.params.heads_kv = -1; }},
       {"dim_v: -1", FOVEA_ERR_INVALID_SIZE, [](Cache &c) { c.params.dim_v = -1; }},
       {"cu_seqlens_kv", FOVEA_ERR_INVALID_ARGUMENT, [](Cache &c) { c.params.cu_seqlens_kv = offsets; }},
       {"count[2]: 4 tokens behind 37 are more than the capacity, seq_kv = 40", FOVEA_ERR_INVALID_ARGUMENT,
        [](Cache &c) { c.count[2] = 4; }},
       {"count[1]: 2147483647", FOVEA_ERR_INVALID_ARGUMENT, [](Cache &c) { c.count[1] = c.start[1] = INT32_MAX; }},
       {"count[1]: -1", FOVEA_ERR_INVALID_ARGUMENT, [](Cache &c) { c.count[1] = -1; }},
       {"start[2]: -1", FOVEA_ERR_INVALID_ARGUMENT, [](Cache &c) { c.start[2] = -1; }},
       {"k: must not be NULL", FOVEA_ERR_NULL_POINTER, [](Cache &c) { c.params.k.data = nullptr; }},
       {"v: must not be NULL", FOVEA_ERR_NULL_POINTER, [](Cache &c) { c.params.v.data = nullptr; }},
       {"k_new: must not be NULL", FOVEA_ERR_NULL_POINTER, [](Cache &c) { c.k_new.data = nullptr; }},
       {"v_new: must not be NULL", FOVEA_ERR_NULL_POINTER, [](Cache &c) { c.v_new.data = nullptr; }},
       {"k.dtype", FOVEA_ERR_INVALID_DTYPE, [](Cache &c) { c.params.k.dtype = FOVEA_BOOL; }},
       {"k_new.dtype", FOVEA_ERR_INVALID_DTYPE, [](Cache &c) { c.k_new.dtype = FOVEA_I8; }},
       {"v_new.reserved", FOVEA_ERR_UNSUPPORTED, [](Cache &c) { c.v_new.reserved = 1; }},
       {"k_scale: must be NULL", FOVEA_ERR_INVALID_ARGUMENT, [](Cache &c) { c.params.k_scale.data = &c; }},
       {"v_scale: must not be NULL", FOVEA_ERR_NULL_POINTER, [](Cache &c) { c.params.v.dtype = FOVEA_I8; }},
       {"v.stride[1]", FOVEA_ERR_INVALID_STRIDE, [](Cache &c) { c.params.v.stride[1] = -64; }},
       {"k.stride: elements of this output overlap", FOVEA_ERR_INVALID_STRIDE, [](Cache &c) { c.params.k.stride[0] = 0; }},
       {"v_new.stride[2]", FOVEA_ERR_INVALID_STRIDE, [](Cache &c) { c.v_new.stride[2] = INT64_MAX; }},
       {"k: overlaps v", FOVEA_ERR_OVERLAP, [](Cache &c) { c.params.k.data = c.params.v.data; }},
       {"v: overlaps v_new", FOVEA_ERR_OVERLAP, [](Cache &c) { c.v_new.data = c.params.v.data; }},
       {"block_table: must be 0", FOVEA_ERR_INVALID_ARGUMENT, [](Cache &c) { c.params.block_table = c.table.data(); }},
       {"page_size: -1", FOVEA_ERR_INVALID_SIZE, [](Cache &c) { c.params.page_size = -1; }}});
  expect_refused(FOVEA_BF16, paged,
                 {{"block_table: 8 at batch entry 1, column 1 is not one of 8 pages", FOVEA_ERR_INVALID_ARGUMENT,
                   [](Cache &c) { c.table[4] = 8; }},
                  {"block_table: -1 at batch entry 0, column 0", FOVEA_ERR_INVALID_ARGUMENT, [](Cache &c) { c.table[0] = -1; }},
                  {"block_table_stride: 2 pages of 16 keys do not hold the 40 of batch entry 2", FOVEA_ERR_INVALID_ARGUMENT,
                   [](Cache &c) { c.params.block_table_stride = 2; }},
                  {"block_table_stride: -1", FOVEA_ERR_INVALID_STRIDE, [](Cache &c) { c.params.block_table_stride = -1; }},
                  {"count[2]: 4", FOVEA_ERR_INVALID_ARGUMENT, [](Cache &c) { c.count[2] = 4; }},
                  {"block_table: must not be NULL", FOVEA_ERR_NULL_POINTER, [](Cache &c) { c.params.block_table = nullptr; }},
                  {"num_pages: -1", FOVEA_ERR_INVALID_SIZE, [](Cache &c) { c.params.num_pages = -1; }}});
  expect_refused(
      FOVEA_I8, paged,
      {{"k_scale: must not be NULL", FOVEA_ERR_NULL_POINTER, [](Cache &c) { c.params.k_scale.data = nullptr; }},
       {"v_scale.dtype", FOVEA_ERR_UNSUPPORTED, [](Cache &c) { c.params.v_scale.dtype = FOVEA_F16; }},
       {"v_scale.stride", FOVEA_ERR_INVALID_STRIDE, [](Cache &c) { c.params.v_scale.stride[1] = 0; }},
       {"block_table: 8 at batch entry 1, column 2 ", FOVEA_ERR_INVALID_ARGUMENT,
        [](Cache &c) { c.table[5] = 8, c.count[1] = 29; }},
       {"k_scale: overlaps v_scale", FOVEA_ERR_OVERLAP, [](Cache &c) { c.params.v_scale.data = c.params.k_scale.data; }}});
  expect_refused(FOVEA_I8, dense,
                 {{"k_scale: must not be NULL", FOVEA_ERR_NULL_POINTER, [](Cache &c) { c.params.k_scale = {}; }},
                  {"count[2]: 4 tokens behind 37", FOVEA_ERR_INVALID_ARGUMENT, [](Cache &c) { c.count[2] = 4; }}});
  for (const fovea_dtype dtype : {FOVEA_Q8_0, FOVEA_Q4_0})
    expect_refused(
        dtype, dense,
        {{"k.dtype: its blocks of 32 elements do not divide dim_k, 48", FOVEA_ERR_INVALID_SIZE,
          [](Cache &c) { c.params.dim_k = 48; }},
         {"v.stride[3]: 2 is not 1", FOVEA_ERR_INVALID_STRIDE, [](Cache &c) { c.params.v.stride[3] = 2; }},
         {"k.stride[0]", FOVEA_ERR_INVALID_STRIDE, [](Cache &c) { c.params.k.stride[0] = INT64_MAX / 20; }},
         {"k.stride: elements of this output overlap", FOVEA_ERR_INVALID_STRIDE, [](Cache &c) { c.params.k.stride[2] = 1; }},
         {"v: its address", FOVEA_ERR_INVALID_ARGUMENT,
          [](Cache &c) { c.params.v.data = static_cast<char *>(c.params.v.data) + 1; }},
         {"k_scale: must be NULL", FOVEA_ERR_INVALID_ARGUMENT, [](Cache &c) { c.params.k_scale.data = &c; }}});

  const Cache cache(FOVEA_F32, FOVEA_F32, dense);
  const fovea_params &p = cache.params;
  const int32_t *start = cache.start.data(), *count = cache.count.data();
  EXPECT_EQ(fovea_kv_append(nullptr, &p, &cache.k_new, &cache.v_new, start, count), FOVEA_ERR_NULL_POINTER);
  EXPECT_EQ(fovea_kv_append(context.get(), nullptr, &cache.k_new, &cache.v_new, start, count), FOVEA_ERR_NULL_POINTER);
  EXPECT_EQ(fovea_kv_append(context.get(), &p, nullptr, &cache.v_new, start, count), FOVEA_ERR_NULL_POINTER);
  EXPECT_EQ(fovea_kv_append(context.get(), &p, &cache.k_new, nullptr, start, count), FOVEA_ERR_NULL_POINTER);
  EXPECT_EQ(fovea_kv_append(context.get(), &p, &cache.k_new, &cache.v_new, nullptr, count), FOVEA_ERR_NULL_POINTER);
  EXPECT_STREQ(fovea_last_error(), "start: must not be NULL");
  EXPECT_EQ(fovea_kv_append(context.get(), &p, &cache.k_new, &cache.v_new, start, nullptr), FOVEA_ERR_NULL_POINTER);
  EXPECT_STREQ(fovea_last_error(), "count: must not be NULL");
}

}  // namespace
}  // namespace fovea::testing
