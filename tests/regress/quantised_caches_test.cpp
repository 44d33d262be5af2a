// Quantised keys and values: their bytes are the numbers that they stand for, in every layout and with every feature.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "reference/element.h"
#include "reference/guarded_buffer.h"
#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

using reference::ProblemData;
using reference::ProblemLine;

constexpr float kInfinity = HUGE_VALF;
constexpr uint16_t kHalf = 0x3800, kTwo = 0x4000, kLeastHalf = 0x0001, kHalfNaN = 0x7E00,
                   kHalfInfinity = 0x7C00;  // binary16: 0.5, 2, 2^-24

using Bytes = std::vector<uint8_t>;

void add_block(Bytes *bytes, uint16_t scale, const Bytes &rest) {
  bytes->push_back(uint8_t(scale & 0xFF));
  bytes->push_back(uint8_t(scale >> 8));
  bytes->insert(bytes->end(), rest.begin(), rest.end());
}

// Element i is 0.5 * (i - 16), then 2^-24 times that.
Bytes two_blocks_q8_0() {
  Bytes bytes, numbers;
  for (int i = 0; i < 32; ++i) numbers.push_back(uint8_t(i - 16));
  add_block(&bytes, kHalf, numbers);
  add_block(&bytes, kLeastHalf, numbers);
  return bytes;
}

// Element i < 16 is 2 * (i - 8), element 16 + i is 2 * (7 - i).
Bytes block_q4_0() {
  Bytes bytes, nibbles;
  for (int i = 0; i < 16; ++i) nibbles.push_back(uint8_t(i | (15 - i) << 4));
  add_block(&bytes, kTwo, nibbles);
  return bytes;
}

void become(fovea_tensor *t, fovea_dtype dtype, Bytes &bytes) {
  t->data = bytes.data();
  t->dtype = dtype;
}

class QuantisedCachesTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(QuantisedCachesTest);

// Of one key the output is its value.
TEST_P(QuantisedCachesTest, ValuesInPlainNumbers) {
  const auto context = this->context();
  Call q8_0({1, 1, 1, 1, 1, 1, 64});
  Bytes bytes = two_blocks_q8_0();
  become(&q8_0.params.v, FOVEA_Q8_0, bytes);
  ASSERT_EQ(q8_0.run(context.get()), FOVEA_OK) << fovea_last_error();
  for (int i = 0; i < 32; ++i) EXPECT_EQ(q8_0.out_at(0, 0, 0, i), 0.5f * float(i - 16)) << i;
  const float least = flushes_halves(level()) ? 0 : 0x1p-24f;  // the scale of the second block is a subnormal half
  for (int i = 0; i < 32; ++i) EXPECT_EQ(q8_0.out_at(0, 0, 0, 32 + i), least * float(i - 16)) << i;

  Call q4_0({1, 1, 1, 1, 1, 1, 32});
  bytes = block_q4_0();
  become(&q4_0.params.v, FOVEA_Q4_0, bytes);
  ASSERT_EQ(q4_0.run(context.get()), FOVEA_OK) << fovea_last_error();
  for (int i = 0; i < 16; ++i) EXPECT_EQ(q4_0.out_at(0, 0, 0, i), 2.0f * float(i - 8)) << i;
  for (int i = 0; i < 16; ++i) EXPECT_EQ(q4_0.out_at(0, 0, 0, 16 + i), 2.0f * float(7 - i)) << i;

  Call i8({1, 2, 2, 1, 1, 1, 21});
  bytes.clear();
  for (int i = 0; i < 42; ++i) bytes.push_back(uint8_t(i < 21 ? i * 12 - 128 : 127 - i));
  float scales[] = {0.25f, -3.0f};
  become(&i8.params.v, FOVEA_I8, bytes);
  i8.params.v_scale = {scales, {2, 1, 1, 1}, FOVEA_F32, 0};
  ASSERT_EQ(i8.run(context.get()), FOVEA_OK) << fovea_last_error();
  for (int i = 0; i < 21; ++i) {
    EXPECT_EQ(i8.out_at(0, 0, 0, i), 0.25f * float(i * 12 - 128)) << i;
    EXPECT_EQ(i8.out_at(0, 1, 0, i), -3.0f * float(127 - 21 - i)) << i;
  }
}

// Of one key the LSE is its score: with queries of a single 1, an element of the key.
TEST_P(QuantisedCachesTest, KeysInPlainNumbers) {
  const auto expect_elements = [&](fovea_dtype dtype, Bytes bytes, float i8_scale, int64_t dim, const auto &element) {
    Call call({1, 1, 1, dim, 1, dim, 1});
    for (int64_t d = 0; d < dim; ++d) call.q_at(0, 0, d, d) = 1;
    call.params.scale = 1;
    become(&call.params.k, dtype, bytes);
    if (dtype == FOVEA_I8) call.params.k_scale = {&i8_scale, {1, 1, 1, 1}, FOVEA_F32, 0};
    ASSERT_EQ(call.run(context().get()), FOVEA_OK) << fovea_last_error();
    for (int d = 0; d < dim; ++d) EXPECT_NEAR(call.lse_at(0, 0, d), element(d), std::fabs(element(d)) * 1e-6) << "dim " << d;
  };
  expect_elements(FOVEA_Q8_0, two_blocks_q8_0(), 0, 64, [](int d) { return d < 32 ? 0.5 * (d - 16) : 0x1p-24 * (d - 48); });
  expect_elements(FOVEA_Q4_0, block_q4_0(), 0, 32, [](int d) { return d < 16 ? 2.0 * (d - 8) : 2.0 * (23 - d); });
  expect_elements(FOVEA_I8, {128, 255, 0, 1, 127}, 1.5f, 5, [](int d) {
    constexpr int kNumbers[] = {-128, -1, 0, 1, 127};
    return 1.5 * kNumbers[d];
  });
}

const char *const kCalls[] = {
    "b=2 hq=4 hkv=2 sq=70 skv=300 dk=64 dv=96 causal=br weights=1 tk=q8_0 tv=q8_0",
    "b=2 hq=8 hkv=1 sq=1 skv=1500 dk=128 dv=128 lens=ragged sinks=1 tk=q4_0 tv=q4_0 layout=padded weights=1",
    "b=3 hq=4 hkv=2 sq=50 skv=600 dk=33 dv=65 packed=1 causal=br left=70 softcap=3 alibi=1 tk=i8 tv=i8 layout=bshd",
    "b=2 hq=4 hkv=2 sq=3 skv=700 dk=17 dv=32 left=300 right=2 align=tl mask=bf16 maskaxes=bhqk tk=i8 tv=q4_0 layout=strided",
    "b=2 hq=2 hkv=2 sq=20 skv=300 dk=32 dv=5 mask=bool maskfill=late tk=q8_0 tv=i8 layout=bhds score=modify weights=1",
    "hq=3 hkv=3 sq=30 skv=520 dk=96 dv=32 tk=q4_0 tv=q8_0 score=replace left=100 causal=tl",
    "b=2 hq=4 hkv=2 sq=5 skv=300 dk=64 dv=64 tk=q8_0 tv=i8 layout=broadcast",
};

TEST_P(QuantisedCachesTest, WithinTheBoundWithEveryFeature) {
  for (const char *call : kCalls)
    for (const char *rest : {"", " dist=outlier threads=3", " type=bf16"}) {
      const std::string text = call, words = rest;
      expect_right(words + " " + text + " lse=1 seed=9", level());
    }
}

// With queries of 16 bits, since those of 32 are scaled otherwise for keys of 32.
TEST_P(QuantisedCachesTest, BitsAreThoseOfTheNumbersAsFloats) {
  for (const char *call : kCalls) {
    ProblemLine line;
    ASSERT_EQ(reference::parse(call + std::string(" lse=1 tq=bf16 isa=") + level(), &line), "");
    if (line.packed != "0") line.packed = "q", line.lens = "ragged";
    const auto context = this->context();
    ProblemData data(line);
    ASSERT_EQ(reference::run_guarded(context.get(), data.params), "") << call;
    const std::vector<float> out = data.dense_out(), lse = data.dense_lse(), weights = data.dense_weights();
    fovea_params p = data.params;
    const auto as_floats = [&](fovea_tensor *t, fovea_tensor *scale, int64_t dim) {
      std::vector<float> numbers;
      const int64_t block = reference::block_elements(t->dtype);
      for (int64_t b = 0; b < p.batch; ++b)
        for (int64_t h = 0; h < p.heads_kv; ++h)
          for (int64_t j = 0; j < p.seq_kv; ++j)
            for (int64_t d = 0; d < dim; ++d) {
              const int64_t row = b * t->stride[0] + h * t->stride[1] + j * t->stride[2];
              double x = reference::read_block_element(t->data, t->dtype, row + d / block * t->stride[3], d % block);
              if (scale->data)
                x *= static_cast<const float *>(scale->data)[b * scale->stride[0] + h * scale->stride[1] + j * scale->stride[2]];
              numbers.push_back(float(x));
            }
      *t = {nullptr, {p.heads_kv * p.seq_kv * dim, p.seq_kv * dim, dim, 1}, FOVEA_F32, 0};
      *scale = {};
      return numbers;
    };
    std::vector<float> k = as_floats(&p.k, &p.k_scale, p.dim_k), v = as_floats(&p.v, &p.v_scale, p.dim_v);
    p.k.data = k.data(), p.v.data = v.data();
    data.reset_outputs();
    ASSERT_EQ(reference::run_guarded(context.get(), p), "") << call;
    EXPECT_TRUE(same_bits(data.dense_out(), out)) << call;
    EXPECT_TRUE(same_bits(data.dense_lse(), lse)) << call;
    EXPECT_TRUE(same_bits(data.dense_weights(), weights)) << call;
  }
}

TEST_P(QuantisedCachesTest, BitsDependNotOnPages) {
  for (const char *types : {"tk=i8 tv=q8_0", "tk=q8_0 tv=q4_0", "tk=q4_0 tv=i8"})
    for (const char *call :
         {"b=3 hq=8 hkv=2 sq=1 skv=700 lens=ragged", "b=3 hq=4 hkv=2 sq=60 skv=400 packed=1 causal=br left=90"}) {
      ProblemLine line;
      ASSERT_EQ(reference::parse(std::string(types) + " dk=64 dv=32 lse=1 " + call, &line), "");
      const auto context = this->context(2);
      const ProblemData contiguous(line);
      ASSERT_EQ(reference::run_guarded(context.get(), contiguous.params), "");
      for (const int64_t page_size : {1, 7, 16, 256, 300}) {
        line.page_size = page_size;
        const ProblemData paged(line);
        ASSERT_EQ(reference::run_guarded(context.get(), paged.params), "");
        EXPECT_TRUE(same_bits(paged.dense_out(), contiguous.dense_out())) << reference::format(line);
        EXPECT_TRUE(same_bits(paged.dense_lse(), contiguous.dense_lse())) << reference::format(line);
      }
    }
}

// A scale that is not finite makes every row NaN that permits its key, and no other.
TEST_P(QuantisedCachesTest, ScalesThatAreNotFinite) {
  constexpr int64_t kKeys = 40, kBad = 21, kDim = 32;
  for (const bool in_blocks : {false, true})
    for (const bool of_keys : {false, true}) {
      Call call({1, 2, 1, kKeys, kKeys, kDim, kDim});
      call.fill_random(2);
      call.causal(FOVEA_ALIGN_TOP_LEFT);
      Bytes bytes;
      for (int64_t j = 0; j < kKeys; ++j) {
        const Bytes numbers(size_t{kDim}, uint8_t(j));
        if (in_blocks)
          add_block(&bytes, j == kBad ? kHalfNaN : kHalf, numbers);
        else
          bytes.insert(bytes.end(), numbers.begin(), numbers.end());
      }
      fovea_tensor *t = of_keys ? &call.params.k : &call.params.v;
      become(t, in_blocks ? FOVEA_Q8_0 : FOVEA_I8, bytes);
      std::vector<float> scales(size_t(kKeys), 0.5f);
      scales[kBad] = kInfinity;
      if (in_blocks)
        t->stride[2] = 1, t->stride[1] = t->stride[0] = kKeys;
      else
        (of_keys ? call.params.k_scale : call.params.v_scale) = {scales.data(), {kKeys, kKeys, 1, 1}, FOVEA_F32, 0};
      ASSERT_EQ(call.run(context().get()), FOVEA_OK) << fovea_last_error();
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < kKeys; ++i) {
          EXPECT_EQ(std::isfinite(call.out_at(0, h, i, 3)), i < kBad)
              << "blocks " << in_blocks << ", keys " << of_keys << ", row " << i;
        }
    }
}

// What an excluded key's scale is does not matter, whichever way the key is excluded.
TEST_P(QuantisedCachesTest, ScalesOfExcludedKeysNeverShow) {
  constexpr int64_t kKeys = 300, kDim = 32;
  static constexpr int32_t kBad = kKeys - 1;
  const auto context = this->context(2);
  for (const int64_t queries : {1, 4, 16, 60}) {
    Mask mask(FOVEA_BOOL, {1, 2, 1, queries, kKeys, kDim, kDim}, "k");
    mask.permit_where([](int64_t, int64_t, int64_t, int64_t j) { return j != kBad; });
    const std::function<void(fovea_params &)> ways[] = {
        [&](fovea_params &p) { p.mask = mask.tensor(); }, [](fovea_params &p) { p.seqlens_kv = &kBad; },
        [](fovea_params &p) { p.window_right = 20, p.align = FOVEA_ALIGN_TOP_LEFT; },
        [](fovea_params &p) {
          p.score = [](void *, const fovea_score_tile *t) {
            for (int64_t r = 0; r < t->rows; ++r)
              for (int64_t c = 0; c < t->cols; ++c)
                if (t->col0 + c == kBad) t->score[r * t->row_stride + c * t->col_stride] = -kInfinity;
          };
          p.score_mode = FOVEA_SCORE_MODIFY;
        }};
    for (size_t way = 0; way < std::size(ways); ++way)
      for (const fovea_dtype dtype : {FOVEA_I8, FOVEA_Q8_0, FOVEA_Q4_0})
        for (const bool of_keys : {false, true}) {
          const auto bits_with = [&](float i8_scale, uint16_t half_scale) {
            Call call({1, 2, 1, queries, kKeys, kDim, kDim});
            call.fill_random(4);
            ways[way](call.params);
            Bytes bytes;
            for (int64_t j = 0; j < kKeys; ++j) {
              const Bytes numbers(size_t(dtype == FOVEA_Q4_0 ? kDim / 2 : kDim), uint8_t(j));
              if (dtype == FOVEA_I8)
                bytes.insert(bytes.end(), numbers.begin(), numbers.end());
              else
                add_block(&bytes, j == kBad ? half_scale : kHalf, numbers);
            }
            std::vector<float> scales(size_t(kKeys), 0.01f);
            scales[kBad] = i8_scale;
            fovea_tensor *t = of_keys ? &call.params.k : &call.params.v;
            become(t, dtype, bytes);
            if (dtype == FOVEA_I8)
              (of_keys ? call.params.k_scale : call.params.v_scale) = {scales.data(), {kKeys, kKeys, 1, 1}, FOVEA_F32, 0};
            else
              t->stride[2] = 1, t->stride[1] = t->stride[0] = kKeys;
            EXPECT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
            std::vector<float> all = call.out;
            all.insert(all.end(), call.lse.begin(), call.lse.end());
            return all;
          };
          const std::vector<float> clean = bits_with(0.01f, kHalf);
          EXPECT_TRUE(std::all_of(clean.begin(), clean.end(), [](float x) { return std::isfinite(x); }));
          EXPECT_TRUE(same_bits(bits_with(std::nanf(""), kHalfNaN), clean))
              << queries << " queries, way " << way << ", dtype " << dtype << ", keys " << of_keys;
          EXPECT_TRUE(same_bits(bits_with(kInfinity, kHalfInfinity), clean))
              << queries << " queries, way " << way << ", dtype " << dtype << ", keys " << of_keys;
        }
  }
}

// A scale of FOVEA_I8 may be shared by tokens, heads or all.
TEST_P(QuantisedCachesTest, ScalesRepeatAlongAxes) {
  Call call({2, 2, 2, 3, 10, 4, 4});
  call.fill_random(3);
  Bytes keys(2 * 2 * 10 * 4);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = uint8_t(7 * i);
  become(&call.params.k, FOVEA_I8, keys);
  std::vector<float> each(40);
  for (size_t i = 0; i < 40; ++i) each[i] = 0.01f * float(i / 20 + 1);
  call.params.k_scale = {each.data(), {20, 10, 1, 1}, FOVEA_F32, 0};
  ASSERT_EQ(call.run(context().get()), FOVEA_OK) << fovea_last_error();
  const std::vector<float> out = call.out;
  float of_batch[] = {each.front(), each.back()};
  call.params.k_scale = {of_batch, {1, 0, 0, 0}, FOVEA_F32, 0};
  ASSERT_EQ(call.run(context().get()), FOVEA_OK) << fovea_last_error();
  EXPECT_TRUE(same_bits(call.out, out));
}

// Rows of blocks, two bytes off the alignment of a float, with the outputs in the gaps between them.
TEST_P(QuantisedCachesTest, OutputsMayLieInTheGapsOfBlocks) {
  Call call({1, 1, 1, 1, 5, 32, 8});
  Bytes memory(5 * 68 + 64, 0xFF);
  uint8_t *first = memory.data();
  while (reinterpret_cast<uintptr_t>(first) % 4 != 2) ++first;
  Bytes block;
  add_block(&block, kHalf, Bytes(32, 3));
  for (int j = 0; j < 5; ++j) std::memcpy(first + j * 68, block.data(), block.size());
  call.params.k = {first, {0, 0, 2, 1}, FOVEA_Q8_0, 0};
  call.params.out.data = first + 34;
  ASSERT_EQ(call.run(context().get()), FOVEA_OK) << fovea_last_error();
  float out[8];
  std::memcpy(out, first + 34, sizeof out);
  for (const float x : out) EXPECT_EQ(x, 1);
  EXPECT_EQ(std::memcmp(first, block.data(), block.size()), 0);
  call.params.out.data = first + 30;
  EXPECT_EQ(call.run(context().get()), FOVEA_ERR_OVERLAP);
  EXPECT_EQ(std::string(fovea_last_error()), "out: overlaps k");
  call.params.out.data = call.out.data();
  call.params.k.data = first + 1;
  EXPECT_EQ(call.run(context().get()), FOVEA_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(fovea_last_error()), "k: its address is not a multiple of 2");
}

}  // namespace
}  // namespace fovea::testing
