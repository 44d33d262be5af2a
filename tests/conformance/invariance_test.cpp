// Same call, same bits; and a row's bits depend on neither threads, executor, batch nor other heads. Everything here is compared bit
// for bit. Input elements of a problem line depend on their coordinates alone, so that a head of a large call is the same head as
// that of a small one.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"
#include "support/tuning.h"

namespace fovea::testing {
namespace {

using reference::ProblemData;
using reference::ProblemLine;

struct Bits {
  std::vector<float> out, lse, weights;
  bool operator==(const Bits &other) const {
    return same_bits(out, other.out) && same_bits(lse, other.lse) && same_bits(weights, other.weights);
  }
};

Bits bits_of(const ProblemLine &line) {
  std::string error;
  const reference::ContextPtr context = reference::make_context(line, &error);
  EXPECT_TRUE(context) << error;
  if (!context) return {};
  EXPECT_STREQ(fovea_isa_name(fovea_context_isa(context.get())), line.isa.c_str());
  const ProblemData data(line);
  EXPECT_EQ(reference::run_guarded(context.get(), data.params), "") << reference::format(line);
  return {data.dense_out(), data.dense_lse(), data.dense_weights()};
}

// The heads [0, heads) of batch entry 0 of a dense result of so many values a head.
std::vector<float> first_heads(const std::vector<float> &values, int64_t heads, int64_t values_per_head) {
  return {values.begin(), values.begin() + heads * values_per_head};
}

Bits first_heads(const Bits &bits, int64_t heads, const ProblemLine &line) {
  return {first_heads(bits.out, heads, line.seq_q * line.dim_v), first_heads(bits.lse, heads, line.seq_q),
          first_heads(bits.weights, heads, line.weights ? line.seq_q * line.seq_kv : 0)};
}

// Shapes that give each task rows of its own, and shapes with too few rows for the threads, so that tasks share a row's keys.
const char *const kShapes[] = {
    "hq=3 hkv=3 sq=50 skv=77 dk=16 dv=24 weights=1",
    "hq=8 hkv=2 sq=200 skv=300 dk=64 dv=64 causal=br weights=1",
    "hq=71 hkv=1 sq=5 skv=260 dk=40 dv=33",
    "sq=300 skv=900 dk=32 dv=15 causal=tl dist=outlier",
    "sq=97 skv=1500 dk=65 dv=1 causal=br dist=outlier v=strided",
    "sq=1 skv=600 dk=64 dv=64 weights=1",
    "sq=1 skv=600 dk=64 dv=64 dist=outlier out=strided",
    "sq=3 skv=4096 dk=128 dv=128 causal=br dist=outlier",
    "hq=4 hkv=1 sq=1 skv=4097 dk=80 dv=96",
    "hq=7 hkv=1 sq=2 skv=16385 dk=16 dv=31 causal=tl",
    "sq=5 skv=33000 dk=8 dv=8 dist=outlier",
    "sq=1 skv=70000 dk=33 dv=7 out=padded",
    // The score function's features. Standard slopes, ragged lengths and packed offsets depend on heads and batch: kShapesOfOneBatch.
    "hq=6 hkv=2 sq=50 skv=300 dk=16 dv=24 weights=1 mask=bool maskaxes=bhqk",
    "hq=2 hkv=2 sq=97 skv=1300 dk=40 dv=33 mask=f32 maskaxes=hqk dist=outlier",
    "hq=4 hkv=1 sq=3 skv=4097 dk=64 dv=64 mask=f16 maskaxes=qk maskfill=low weights=1",
    "sq=1 skv=1500 dk=33 dv=7 mask=bf16 maskaxes=k weights=1",
    "hq=3 hkv=1 sq=200 skv=640 dk=32 dv=15 mask=bool maskfill=late weights=1",
    "hq=2 hkv=1 sq=300 skv=900 dk=32 dv=15 mask=bool maskfill=blocks causal=br",
    "hq=8 hkv=2 sq=200 skv=300 dk=64 dv=64 left=40 right=7 align=tl softcap=5 weights=1",
    "hq=2 hkv=2 sq=3 skv=9000 dk=16 dv=16 left=5000 causal=br softcap=2",
    "hq=4 hkv=2 sq=50 skv=300 dk=16 dv=24 score=modify mask=f32 weights=1",
    "hq=4 hkv=4 sq=2 skv=1300 dk=16 dv=24 score=replace causal=br",
    // Types of 16 bits.
    "hq=8 hkv=2 sq=200 skv=300 dk=64 dv=64 causal=br weights=1 type=bf16",
    "hq=3 hkv=1 sq=70 skv=301 dk=33 dv=24 dist=outlier weights=1 type=bf16",
    "hq=4 hkv=1 sq=3 skv=4097 dk=33 dv=31 weights=1 type=f16",
    "sq=97 skv=1500 dk=65 dv=1 causal=br dist=outlier v=strided tk=bf16 tv=f16",
    "hq=4 hkv=1 sq=1 skv=1500 dk=33 dv=7 dist=outlier type=bf16 tout=f32",
    // Quantised keys and values.
    "hq=8 hkv=2 sq=3 skv=4097 dk=64 dv=64 causal=br tk=q8_0 tv=q8_0 weights=1",
    "hq=3 hkv=1 sq=97 skv=900 dk=33 dv=96 dist=outlier tk=i8 tv=q4_0",
};
const char *const kShapesOfOneBatch[] = {
    "b=3 hq=6 hkv=2 sq=50 skv=300 dk=16 dv=24 lens=ragged alibi=1 sinks=1 weights=1",
    "b=5 hq=4 hkv=2 sq=70 skv=600 dk=16 dv=24 packed=1 causal=br alibi=1 sinks=1 softcap=3",
    "b=4 hq=4 hkv=1 sq=1 skv=3000 dk=16 dv=24 lens=ragged mask=bool maskaxes=bhqk left=1000 sinks=1 weights=1",
    "b=4 hq=3 hkv=1 sq=97 skv=97 dk=33 dv=24 packed=1 mask=f16 maskaxes=bhqk score=modify",
    "b=3 hq=4 hkv=4 sq=20 skv=300 dk=16 dv=8 packed=q lens=ragged sinks=1 score=replace",
    "b=4 hq=4 hkv=2 sq=70 skv=600 dk=16 dv=24 packed=1 causal=br type=f16 tout=bf16",
    // Pages.
    "b=4 hq=8 hkv=2 sq=1 skv=3000 dk=33 dv=24 lens=ragged pages=16 type=bf16",
    "b=3 hq=4 hkv=2 sq=70 skv=700 dk=16 dv=24 packed=1 causal=br left=200 pages=7",
};

class InvarianceTest : public LevelTest {
 protected:
  static std::vector<const char *> all_shapes() {
    std::vector<const char *> all(std::begin(kShapes), std::end(kShapes));
    all.insert(all.end(), std::begin(kShapesOfOneBatch), std::end(kShapesOfOneBatch));
    return all;
  }
  ProblemLine parsed(const char *text) const {
    ProblemLine line;
    EXPECT_EQ(reference::parse(text + std::string(" lse=1 exec=serial isa=") + level(), &line), "");
    return line;
  }
};
FOVEA_TEST_EVERY_LEVEL(InvarianceTest);

TEST_P(InvarianceTest, SameCallSameBits) {
  for (const char *shape : all_shapes()) {
    ProblemLine line = parsed(shape);
    EXPECT_TRUE(bits_of(line) == bits_of(line)) << shape;
    line.exec = "omp";
    line.threads = 3;
    const Bits first = bits_of(line);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(first == bits_of(line)) << shape;
  }
}

TEST_P(InvarianceTest, BitsDependOnNeitherThreadsNorExecutor) {
  for (const char *shape : all_shapes()) {
    ProblemLine line = parsed(shape);
    const Bits serial = bits_of(line);
    for (const char *exec : {"omp", "pool"}) {
      for (const int32_t threads : {1, 2, 3, 7}) {
        line.exec = exec;
        line.threads = threads;
        EXPECT_TRUE(serial == bits_of(line)) << reference::format(line);
      }
    }
  }
}

TEST_P(InvarianceTest, BitsDependOnNoTuning) {
  std::vector<std::string> tables = {table(Values::kLeast), table(Values::kMost)};
  for (uint32_t seed = 1; seed <= 3; ++seed) tables.push_back(table(Values::kRandom, seed));
  for (const char *shape : all_shapes()) {
    ProblemLine line = parsed(shape);
    const Bits usual = bits_of(line);
    for (const std::string &text : tables) {
      const TemporaryFile file(text);
      const EnvironmentVariable variable("FOVEA_TUNING", file.path());
      for (const int32_t threads : {1, 3}) {
        line.exec = threads == 1 ? "serial" : "pool";
        line.threads = threads;
        EXPECT_TRUE(usual == bits_of(line)) << reference::format(line) << "\n" << text;
      }
    }
  }
}

TEST_P(InvarianceTest, BitsDependOnNeitherBatchNorOtherHeads) {
  for (const char *shape : kShapes) {
    const ProblemLine alone = parsed(shape);
    const Bits expected = bits_of(alone);
    const int64_t others[][2] = {{2, 1}, {1, 5}, {8, 1}, {3, 2}, {32, 1}};
    for (const auto &[batch, heads] : others) {
      if (batch * heads * alone.heads_kv * alone.seq_kv * (alone.dim_k + alone.dim_v) > 4000000)
        continue;  // enough is seen in the others
      ProblemLine line = alone;
      line.batch = batch;
      line.heads_kv *= heads;
      line.heads_q *= heads;
      line.exec = "pool";
      for (const int32_t threads : {1, 3}) {
        line.threads = threads;
        EXPECT_TRUE(expected == first_heads(bits_of(line), alone.heads_q, line)) << reference::format(line);
      }
    }
  }
}

// What the rows of a panel have in common must not reach another row: not even that one of them is done again because its scores
// went out of range, or holds a NaN.
TEST_P(InvarianceTest, BitsDependOnNoOtherQuery) {
  const reference::ContextPtr context = this->context(2);
  for (const int64_t queries : {4, 16, 100}) {
    for (const int64_t keys : {40, 300, 1100}) {
      const Sizes n = {1, 1, 1, queries, keys, 16, 8};
      Call call(n);
      call.fill_random(7);
      ASSERT_EQ(call.run(context.get()), FOVEA_OK);
      for (const float outlier : {1e4f, -1e4f, __builtin_nanf(""), __builtin_inff()}) {
        Call other(n);
        other.fill_random(7);
        for (int64_t i = 0; i < queries; i += 3) other.q_at(0, 0, i, i % 16) = outlier;
        ASSERT_EQ(other.run(context.get()), FOVEA_OK);
        for (int64_t i = 0; i < queries; ++i) {
          if (i % 3 == 0) continue;
          EXPECT_TRUE(same_row(other, call, {0, 0, i})) << "row " << i << " of " << queries << " beside " << outlier;
          EXPECT_EQ(std::memcmp(&other.weight_at(0, 0, i, 0), &call.weight_at(0, 0, i, 0), size_t(keys) * sizeof(float)), 0)
              << "row " << i << " of " << queries << " beside " << outlier;
        }
      }
    }
  }
}

// Nor what the mask does to the other rows: that they are empty, hold a NaN, or numbers that put them out of range.
TEST_P(InvarianceTest, BitsDependOnNoOtherRowOfTheMask) {
  const auto context = this->context(2);
  for (const int64_t queries : {4, 100}) {
    for (const int64_t keys : {40, 300, 1100}) {
      for (const fovea_dtype dtype : kMaskDtypes) {
        const Sizes n = {1, 2, 1, queries, keys, 16, 8};
        const auto own = [&](int64_t h, int64_t i, int64_t j) {  // of the rows that are compared
          if ((h + i + j) % 4 == 1) return -__builtin_inff();
          return dtype == FOVEA_BOOL ? 1.0f : float((i + j) % 5) / 4;
        };
        std::vector<float> out, lse, weights;
        for (const float other : {1.0f, -__builtin_inff(), __builtin_nanf(""), -1e4f, -88.0f, 1e4f}) {
          Mask mask(dtype, n, "hqk");
          mask.set_all([&](int64_t, int64_t h, int64_t i, int64_t j) {
            const float value = i % 3 ? own(h, i, j) : j % 2 ? other : 0.0f;
            return dtype == FOVEA_BOOL && value < 0 ? 0.0f : value;
          });
          Call call(n);
          call.fill_random(8);
          call.params.mask = mask.tensor();
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          if (out.empty()) out = call.out, lse = call.lse, weights = call.weights;
          for (int64_t h = 0; h < 2; ++h)
            for (int64_t i = 0; i < queries; ++i) {
              if (i % 3 == 0) continue;
              const size_t row = size_t(h * queries + i);
              EXPECT_EQ(std::memcmp(&call.out_at(0, h, i, 0), &out[row * 8], 8 * sizeof(float)), 0)
                  << "row " << i << " beside " << other << " dtype " << dtype;
              EXPECT_EQ(std::memcmp(&call.lse_at(0, h, i), &lse[row], sizeof(float)), 0) << "row " << i << " beside " << other;
              EXPECT_EQ(std::memcmp(&call.weight_at(0, h, i, 0), &weights[row * size_t(keys)], size_t(keys) * sizeof(float)), 0)
                  << "row " << i << " beside " << other;
            }
        }
      }
    }
  }
}

TEST_P(InvarianceTest, BitsDependOnNoLayout) {
  for (const char *shape :
       {"hq=4 hkv=2 sq=37 skv=300 dk=33 dv=40 weights=1", "hq=2 hkv=2 sq=2 skv=4100 dk=64 dv=17 causal=br dist=outlier",
        "hq=4 hkv=2 sq=37 skv=300 dk=33 dv=40 weights=1 mask=f16 maskaxes=bhqk lens=ragged sinks=1 alibi=1",
        "hq=4 hkv=2 sq=37 skv=300 dk=33 dv=40 packed=1 mask=bool maskaxes=qk left=100 causal=br score=replace",
        "hq=4 hkv=2 sq=37 skv=300 dk=33 dv=40 weights=1 type=bf16", "hq=2 hkv=2 sq=2 skv=4100 dk=64 dv=17 causal=br type=f16",
        "hq=4 hkv=2 sq=37 skv=300 dk=33 dv=40 tk=f16 tv=bf16 tout=f16"}) {
    ProblemLine line = parsed(shape);
    line.batch = 2;
    line.threads = 2;
    line.exec = "pool";
    const Bits dense = bits_of(line);
    for (const char *q : {"bhsd", "bhds", "padded", "strided"})
      for (const char *k : {"bhsd", "bshd", "strided"})
        for (const char *v : {"bhsd", "bhds", "padded"}) {
          line.layout_q = q;
          line.layout_k = k;
          line.layout_v = v;
          line.layout_out = q;
          EXPECT_TRUE(dense == bits_of(line)) << reference::format(line);
        }
  }
}

}  // namespace
}  // namespace fovea::testing
