// Elements of 16 bits: every pattern goes in and comes out as the number it is, whichever tensor it is in and whichever kernel reads it.
// A row that sees a single key has out = v and lse = its score, which shows what was read and how it was rounded.
#include <gtest/gtest.h>

#include <atomic>
#include <cfloat>
#include <cmath>
#include <limits>

#include "support/call.h"
#include "support/elements.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

constexpr size_t kPatterns = 0x10000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows that see one key each: their heads have no other, or (diagonal) a window of longer rows leaves query i the key i.
struct Shape {
  int64_t heads, queries, dim;
  bool diagonal;
  int64_t keys() const { return diagonal ? queries : 1; }
};

// For every kernel, heads with so many different values of v in all.
std::vector<Shape> shapes_for(size_t values) {
  std::vector<Shape> shapes = {{1, 1, 64, false},  {1, 1, 1, false},  {1, 3, 33, false},
                               {1, 60, 17, false}, {1, 300, 7, true}, {1, 300, 64, true}};
  for (Shape &shape : shapes) {
    const auto of_head = size_t(shape.keys() * shape.dim);
    shape.heads = int64_t((values + of_head - 1) / of_head);
  }
  return shapes;
}

void see_one_key(const Shape &shape, Call *call) {
  call->params.weights.data = nullptr;
  if (!shape.diagonal) return;
  call->params.window_left = call->params.window_right = 0;
  call->params.align = FOVEA_ALIGN_TOP_LEFT;
}

// Repeats `values` through all of a tensor.
Elements repeated(fovea_dtype dtype, const Elements &values, size_t count) {
  Elements all(dtype, count);
  for (size_t i = 0; i < count; ++i) all.set_bits(i, values.bits(i % values.size()));
  return all;
}

Elements every_pattern(fovea_dtype dtype) {
  Elements patterns(dtype, kPatterns);
  for (size_t i = 0; i < kPatterns; ++i) patterns.set_bits(i, uint32_t(i));
  return patterns;
}

// Every number of the type, the numbers halfway between neighbours, which are ties, and the floats on both sides of these.
Elements floats_around(fovea_dtype dtype) {
  const Elements patterns = every_pattern(dtype);
  std::vector<float> floats;
  for (size_t i = 0; i < kPatterns; ++i) {
    const double value = patterns[i], next = patterns[(i & 0x8000) | ((i + 1) & 0x7FFF)];
    if (!std::isfinite(value)) continue;
    const double end = std::isfinite(next) ? next : std::copysign(reference::least_that_overflows(dtype), value) * 2 - value;
    const auto halfway = float((value + end) / 2);
    floats.insert(floats.end(),
                  {float(value), halfway, std::nextafter(halfway, float(value)), std::nextafter(halfway, float(end))});
  }
  for (const float infinity : {HUGE_VALF, -HUGE_VALF}) floats.push_back(infinity);
  return Elements(FOVEA_F32, floats);
}

// Sends values through v of every shape.
template <class Check>  // check(value of v, element of out, its bits)
void run_values(const fovea_context *context, const Elements &values, fovea_dtype type, fovea_dtype type_out, Check check) {
  for (const Shape &shape : shapes_for(values.size())) {
    Call call({1, shape.heads, shape.heads, shape.queries, shape.keys(), 1, shape.dim});
    see_one_key(shape, &call);
    Elements v = repeated(type, values, call.v.size()), out(type_out, call.out.size());
    v.become(&call.params.v);
    out.become(&call.params.out);
    ASSERT_EQ(call.run(context), FOVEA_OK) << fovea_last_error();
    for (int64_t h = 0; h < shape.heads; ++h)
      for (int64_t i = 0; i < shape.queries; ++i)
        for (int64_t c = 0; c < shape.dim; ++c) {
          const int64_t key = shape.diagonal ? i : 0;
          const auto from = size_t((h * shape.keys() + key) * shape.dim + c),
                     to = size_t((h * shape.queries + i) * shape.dim + c);
          ASSERT_TRUE(check(v[from], out[to], out.bits(to)))
              << std::hexfloat << out[to] << " for " << v[from] << " (bits " << std::hex << v.bits(from) << ") of " << std::dec
              << shape.queries << " queries, dim " << shape.dim << ", dtypes " << type << " to " << type_out;
        }
  }
}

// Subnormal f32 and bf16 numbers may count as 0; those of binary16 are ordinary numbers of the arithmetic.
bool may_be_flushed(fovea_dtype dtype, double value) { return dtype != FOVEA_F16 && std::fabs(value) < double{FLT_MIN}; }

bool is_or_is_flushed(double actual, double expected, bool flushed) {
  return std::isnan(expected) ? std::isnan(actual) : actual == expected || (flushed && actual == 0);
}

class ConversionsTest : public LevelTest {
 protected:
  void SetUp() override {
    LevelTest::SetUp();
    if (flushes_halves(level())) GTEST_SKIP() << level() << ": subnormal halves are flushed here";
  }
};
FOVEA_TEST_EVERY_LEVEL(ConversionsTest);

TEST_P(ConversionsTest, EveryPatternOfAValue) {
  const auto context = this->context(2);
  for (const fovea_dtype type : k16BitDtypes)
    for (const fovea_dtype type_out : {fovea_dtype{FOVEA_F32}, type})
      run_values(context.get(), every_pattern(type), type, type_out,
                 [&](double v, double out, uint32_t) { return is_or_is_flushed(out, v, may_be_flushed(type, v)); });
}

TEST_P(ConversionsTest, OutputsAreRoundedToNearestEven) {
  const auto context = this->context(2);
  for (const fovea_dtype type_out : k16BitDtypes) {
    Elements rounded(type_out, 1);
    run_values(context.get(), floats_around(type_out), FOVEA_F32, type_out, [&](double v, double out, uint32_t) {
      rounded.set(0, v);
      return is_or_is_flushed(out, rounded[0], may_be_flushed(type_out, v));
    });
  }
  for (const fovea_dtype type_out : k16BitDtypes) {
    const fovea_dtype type = type_out == FOVEA_F16 ? FOVEA_BF16 : FOVEA_F16;
    Elements rounded(type_out, 1);
    run_values(context.get(), every_pattern(type), type, type_out, [&](double v, double out, uint32_t) {
      rounded.set(0, v);
      return is_or_is_flushed(out, rounded[0], may_be_flushed(type, v) || may_be_flushed(type_out, v));
    });
  }
}

TEST_P(ConversionsTest, OutputsInPlainNumbers) {
  struct {
    float value;
    double f16, bf16;
  } const cases[] = {{0.2691408770f, 0x1.138p-2, 0.26953125},
                     {1 + 0x1p-11f, 1, 1},  // ties of f16: down to even, up to even
                     {1 + 0x3p-11f, 1 + 0x1p-9, 1},
                     {1 + 0x1p-8f, 1 + 0x1p-8, 1},  // and of bf16
                     {1 + 0x3p-8f, 1 + 0x3p-8, 1 + 0x1p-6},
                     {-1 - 0x3p-8f, -1 - 0x3p-8, -1 - 0x1p-6},
                     {65504, 65504, 65536},
                     {65519.996f, 65504, 65536},
                     {65520, kInfinity, 65536},
                     {-65520, -kInfinity, -65536},
                     {FLT_MAX, kInfinity, kInfinity},
                     {0x1.FEp127f, kInfinity, 0x1.FEp127},
                     {0x1p-14f, 0x1p-14, 0x1p-14},
                     {0x1.8p-24f, 0x1p-23, 0x1.8p-24},  // subnormal in f16
                     {0x1.000002p-25f, 0x1p-24, 0x1p-25},
                     {0x1p-25f, 0, 0x1p-25},
                     {1e-30f, 0, 0x1.44p-100}};
  const auto context = this->context();
  for (const auto &c : cases)
    for (const fovea_dtype type_out : k16BitDtypes)
      run_values(context.get(), Elements(FOVEA_F32, std::vector<float>{c.value}), FOVEA_F32, type_out,
                 [&](double, double out, uint32_t) { return out == (type_out == FOVEA_F16 ? c.f16 : c.bf16); });
}

// Rounding adds to the bits: a NaN must not become an infinity that way, or a zero.
TEST_P(ConversionsTest, NaNStaysNaN) {
  const auto context = this->context();
  const uint32_t patterns[] = {0x7F800001, 0x7FFF8C22, 0x7FFFFFFF, 0x7F80FFFF, 0x7FC00000, 0x7F808000, 0x7FFF7FFF, 0x7F802000};
  Elements v(FOVEA_F32, 2 * std::size(patterns));
  for (size_t i = 0; i < v.size(); ++i) v.set_bits(i, patterns[i / 2] | (i % 2 ? 0x80000000 : 0));
  for (const fovea_dtype type_out : kDtypes)
    run_values(context.get(), v, FOVEA_F32, type_out, [](double, double out, uint32_t) { return std::isnan(out); });
}

// Every level rounds alike, flushed subnormals and the signs of zeros included.
TEST(ConversionsOfLevelsTest, AreTheSame) {
  for (const fovea_dtype type : kDtypes)
    for (const fovea_dtype type_out : kDtypes) {
      std::vector<uint32_t> first;
      for (const fovea_isa level : usable_levels()) {
        std::vector<uint32_t> bits;
        const Elements values =
            type != FOVEA_F32 ? every_pattern(type) : floats_around(type_out == FOVEA_F32 ? FOVEA_BF16 : type_out);
        run_values(context_for(level).get(), values, type, type_out, [&](double, double out, uint32_t b) {
          constexpr uint32_t kAnyNaN = 0xFFFFFFFF;
          bits.push_back(std::isnan(out) ? kAnyNaN : b);
          return true;
        });
        if (first.empty()) first = bits;
        EXPECT_TRUE(bits == first) << fovea_isa_name(level) << " from dtype " << type << " to " << type_out;
      }
    }
}

// Through q and k: lse is the only score. Factors bring every number into a range where its last bit counts: scores of small numbers
// are enlarged, those of large ones made smaller.
TEST_P(ConversionsTest, EveryPatternOfAQueryOrKey) {
  const auto context = this->context(2);
  struct Range {
    double least, most;  // of |q| or |k|; the others are 0 in this call
    float other, scale;
  };
  for (const fovea_dtype type : k16BitDtypes) {
    const Range whole{0, kInfinity, 1, 0x1p24f}, small{0, 0x1.FEp-1, 0x1p60f, 0x1p60f}, large{1, kInfinity, 1, 0x1p-10f};
    for (const Range &range : type == FOVEA_F16 ? std::vector<Range>{whole} : std::vector<Range>{small, large}) {
      Elements values = every_pattern(type);
      for (size_t i = 0; i < values.size(); ++i)
        if (std::fabs(values[i]) < range.least || std::fabs(values[i]) > range.most) values.set(i, 0);
      for (const bool through_q : {false, true}) {
        for (const Shape &shape : shapes_for(kPatterns)) {
          if (shape.dim != 1 && shape.dim != 17 && shape.dim != 7) continue;  // one for each number of queries
          const int64_t rows = through_q ? shape.queries : shape.keys();
          const auto heads = int64_t((kPatterns + size_t(rows) - 1) / size_t(rows));
          Call call({1, heads, heads, shape.queries, shape.keys(), 1, 1});
          see_one_key(shape, &call);
          call.params.scale = range.scale;
          Elements inputs = repeated(type, values, size_t(heads * rows));
          Elements others(type, std::vector<float>(through_q ? call.k.size() : call.q.size(), range.other));
          inputs.become(through_q ? &call.params.q : &call.params.k);
          others.become(through_q ? &call.params.k : &call.params.q);
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          for (int64_t h = 0; h < heads; ++h)
            for (int64_t i = 0; i < shape.queries; ++i) {
              const double value = inputs[size_t(h * rows + (rows > 1 ? i : 0))];
              const double score = double{range.scale} * range.other * value, lse = call.lse_at(0, h, i);
              const bool right = std::isnan(value) || value == kInfinity ? std::isnan(lse)
                                 : std::isinf(value)                     ? lse == -kInfinity
                                                     : std::fabs(lse - score) <= 0x1p-20 * (1 + std::fabs(score)) ||
                                                           (may_be_flushed(type, value) && lse == 0);
              ASSERT_TRUE(right) << std::hexfloat << lse << " for " << value << " in " << (through_q ? "q" : "k") << ", dtype "
                                 << type << ", " << shape.queries << " queries";
            }
        }
      }
    }
  }
}

// Products of numbers that float holds and 16 bits do not, and sums of many large values.
TEST_P(ConversionsTest, NothingOverflowsOnTheWay) {
  const auto context = this->context();
  for (const fovea_dtype type : k16BitDtypes) {
    for (const int64_t queries : {1, 5, 60}) {
      Call call({1, 1, 1, queries, 2, 64, 9});
      call.params.scale = 0.125f;
      Elements q(type, std::vector<float>(call.q.size(), 100)), k(type, std::vector<float>(call.k.size(), 100));
      Elements v(type, call.v.size()), out(type, call.out.size());
      for (size_t i = 0; i < v.size(); ++i) v.set(i, double(i < 9 ? i : 3 * i));
      q.become(&call.params.q);
      k.become(&call.params.k);
      v.become(&call.params.v);
      out.become(&call.params.out);
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], (v[i % 9] + v[9 + i % 9]) / 2) << i;

      Call sum({1, 1, 1, queries, 4096, 64, 9});
      Elements large(type, std::vector<float>(sum.v.size(), 60000)), mean(type, sum.out.size());
      large.become(&sum.params.v);
      mean.become(&sum.params.out);
      ASSERT_EQ(sum.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (size_t i = 0; i < mean.size(); ++i) ASSERT_EQ(mean[i], large[0]) << i;
      EXPECT_TRUE(type != FOVEA_F16 || large[0] == 60000);
    }
  }
}

// New tokens behind a cache are the same rows as those of one call for all of them.
TEST_P(ConversionsTest, TokensBehindACache) {
  constexpr int64_t kCached = 70, kNew = 37;
  const auto context = this->context(2);
  reference::ProblemLine line;
  ASSERT_EQ(reference::parse("hq=16 hkv=4 sq=107 skv=107 dk=64 dv=64 causal=br type=bf16 lse=1", &line), "");
  const reference::ProblemData whole(line);
  ASSERT_EQ(reference::run_guarded(context.get(), whole.params), "");
  EXPECT_TRUE(reference::compare(whole.params, reference::attention(whole.params)).ok());

  fovea_params p = whole.params;
  const size_t elements = size_t(16 * kNew * 64);
  Elements out(FOVEA_BF16, elements);
  std::vector<float> lse(size_t(16 * kNew));
  p.seq_q = kNew;
  p.q.data = static_cast<uint16_t *>(p.q.data) + kCached * p.q.stride[2];
  out.become(&p.out);
  p.out.stride[1] = kNew * 64;
  p.lse = lse.data();
  p.lse_stride[1] = kNew;
  ASSERT_EQ(reference::run_guarded(context.get(), p), "");
  EXPECT_TRUE(reference::compare(p, reference::attention(p)).ok());
  const std::vector<float> all = whole.dense_out();
  for (size_t i = 0; i < elements; ++i) {
    const size_t h = i / (kNew * 64), row = i / 64 % kNew;
    const double expected = double{all[(h * (kCached + kNew) + kCached + row) * 64 + i % 64]};
    ASSERT_NEAR(out[i], expected, 0x1p-7 * std::fabs(expected) + 1e-6) << i;  // neighbours at most: the kernels may differ
  }
}

// A function that replaces the score is handed the numbers of its rows.
TEST_P(ConversionsTest, ScoreFunctionsSeeTheNumbers) {
  const auto context = this->context(2);
  for (const fovea_dtype type : kDtypes) {
    for (const fovea_dtype type_k : kDtypes) {
      for (const int64_t queries : {1, 7, 100}) {
        Call call({2, 4, 2, queries, 300, 33, 8});
        call.fill_random(31);
        Elements q(type, call.q), k(type_k, call.k);
        q.become(&call.params.q);
        k.become(&call.params.k);
        struct Seen {
          const fovea_params *params;
          std::atomic<int64_t> right, wrong;
        } seen{&call.params, {0}, {0}};
        call.params.score_mode = FOVEA_SCORE_REPLACE;
        call.params.score_user = &seen;
        call.params.score = [](void *user, const fovea_score_tile *tile) {
          auto *s = static_cast<Seen *>(user);
          const auto judge = [&](const fovea_tensor &t, int64_t head, int64_t row, const float *given) {
            const int64_t start = tile->batch * t.stride[0] + head * t.stride[1] + row * t.stride[2];
            for (int64_t d = 0; d < tile->dim_k; ++d)
              ++(reference::read_element(t.data, t.dtype, start + d) == double{given[d]} ? s->right : s->wrong);
          };
          for (int64_t i = 0; i < tile->rows; ++i) judge(s->params->q, tile->head, tile->row0 + i, tile->q + i * tile->ldq);
          for (int64_t j = 0; j < tile->cols; ++j) judge(s->params->k, tile->head / 2, tile->col0 + j, tile->k + j * tile->ldk);
          for (int64_t i = 0; i < tile->rows; ++i)
            for (int64_t j = 0; j < tile->cols; ++j) tile->score[i * tile->row_stride + j * tile->col_stride] = 0;
        };
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        EXPECT_GE(seen.right, 2 * 4 * (queries + 300) * 33);
        EXPECT_EQ(seen.wrong, 0) << "dtypes " << type << " and " << type_k << ", " << queries << " queries";
      }
    }
  }
}

// Scores and sums of 16-bit tensors are floats, and so are weights and LSE: none of them is a multiple of a 16-bit step.
TEST_P(ConversionsTest, WeightsAndLseStayFloats) {
  for (const char *type : {"f16", "bf16"})
    expect_right(std::string("hq=4 hkv=2 sq=50 skv=300 dk=64 dv=64 lse=1 weights=1 type=") + type, level());
}

}  // namespace
}  // namespace fovea::testing
