// fovea_merge(): calls over disjoint sets of keys, merged by their LSE, are the call over all of them. Parts without keys leave
// no trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>

#include "support/call.h"
#include "support/elements.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::nanf("");

class MergeTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(MergeTest);

// out and lse of some rows: a part, or the result.
struct Rows {
  std::vector<float> out, lse;
  fovea_params params;

  explicit Rows(const fovea_params &like) : out(size_t(0)), params(like) {
    const int64_t batch = like.cu_seqlens_q ? 1 : like.batch;
    lse.assign(size_t(batch * like.heads_q * like.seq_q), Call::canary);
    out.assign(lse.size() * size_t(like.dim_v), Call::canary);
    params.out.data = out.data();
    params.out.dtype = FOVEA_F32;
    params.lse = lse.data();
    params.weights = {};
  }
  Rows(int64_t rows, int64_t dim_v) : Rows(of_sizes(rows, dim_v)) {}
  Rows(const Rows &) = delete;
  Rows &operator=(const Rows &) = delete;

  void set(int64_t row, float lse_value, float value) {
    lse[size_t(row)] = lse_value;
    std::fill_n(out.begin() + row * params.dim_v, params.dim_v, value);
  }

 private:
  static fovea_params of_sizes(int64_t rows, int64_t dim_v) {
    fovea_params p;
    EXPECT_EQ(fovea_params_init(&p, sizeof p, 1, 1, 1, rows, 0, 1, dim_v), FOVEA_OK);
    return p;
  }
};

using Parts = std::vector<std::unique_ptr<Rows>>;

std::vector<const fovea_params *> pointers(const Parts &parts) {
  std::vector<const fovea_params *> result;
  for (const auto &part : parts) result.push_back(&part->params);
  return result;
}

fovea_status merge(const fovea_context *context, const std::vector<const fovea_params *> &parts, const Rows &result) {
  return fovea_merge(context, parts.data(), int32_t(parts.size()), &result.params);
}

// The call's results over each range of keys between neighbours of cuts: views of its keys, values and mask.
Parts run_parts(const fovea_context *context, const Call &call, const std::vector<int64_t> &cuts) {
  Parts parts;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    auto part = std::make_unique<Rows>(call.params);
    fovea_params &p = part->params;
    p.seq_kv = cuts[i + 1] - cuts[i];
    p.k.data = static_cast<float *>(p.k.data) + cuts[i] * p.k.stride[2];
    p.v.data = static_cast<float *>(p.v.data) + cuts[i] * p.v.stride[2];
    if (p.mask.data)
      p.mask.data = static_cast<char *>(p.mask.data) + cuts[i] * p.mask.stride[3] * (p.mask.dtype == FOVEA_BOOL ? 1 : 4);
    if (i != 1) p.sinks = nullptr;
    EXPECT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_OK) << fovea_last_error();
    parts.push_back(std::move(part));
  }
  return parts;
}

void expect_merged(const fovea_context *context, Call &call, const std::vector<int64_t> &cuts, const std::string &what) {
  const Parts parts = run_parts(context, call, cuts);
  Rows result(call.params);
  ASSERT_EQ(merge(context, pointers(parts), result), FOVEA_OK) << what << fovea_last_error();
  call.params.weights = {};
  call.out = result.out;
  call.lse = result.lse;
  expect_within_bound(call, what);
}

TEST_P(MergeTest, PartsOfTheKeysAreTheWholeCall) {
  const std::vector<int64_t> cuts[] = {{0, 300, 600}, {0, 1, 600}, {0, 0, 256, 256, 500, 600, 600}, {0, 600}};
  for (const int32_t threads : {1, 2}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 7, 70}) {
      for (const float gain : {1.0f, 20.0f}) {
        for (const std::vector<int64_t> &cut : cuts) {
          Call call({2, 4, 2, queries, 600, 32, 150});
          call.fill_random(10);
          for (float &q : call.q) q *= gain;
          expect_merged(context.get(), call, cut, std::to_string(queries) + " queries, gain " + std::to_string(gain));
        }
      }
    }
  }
}

TEST_P(MergeTest, WithSinksInOnePart) {
  const auto context = this->context();
  const float sinks[] = {0.5f, -kInfinity, 5, -20};
  for (const std::vector<int64_t> &cuts : {std::vector<int64_t>{0, 200, 300}, {0, 100, 100, 300}}) {  // the second part has them
    Call call({2, 4, 1, 5, 300, 16, 9});
    call.fill_random(11);
    call.params.sinks = sinks;
    expect_merged(context.get(), call, cuts, std::to_string(cuts.size() - 1) + " parts");
  }
}

TEST_P(MergeTest, WithMasks) {
  const auto context = this->context();
  for (const fovea_dtype dtype : {FOVEA_BOOL, FOVEA_F32}) {
    Call call({1, 2, 1, 20, 300, 16, 9});
    call.fill_random(12);
    Mask mask(dtype, call.n);
    // Rows of the first part alone, of the second, of both, of none.
    mask.permit_where([](int64_t, int64_t, int64_t i, int64_t j) { return j < 120 ? i % 2 == 0 : i % 4 == 1 || i % 4 == 2; });
    call.params.mask = mask.tensor();
    call.params.softcap = 3;
    expect_merged(context.get(), call, {0, 120, 300}, "dtype " + std::to_string(dtype));
  }
}

// A prefix that all entries share is scored once, by all their queries as one entry; each entry's own keys follow it.
TEST_P(MergeTest, APrefixThatEntriesShare) {
  const auto context = this->context(2);
  const int64_t prefix = 200, heads_q = 4, heads_kv = 2, dim_k = 16, dim_v = 24;
  const int32_t queries[] = {0, 3, 3, 8, 9}, keys[] = {0, 40, 60, 65, 170};  // the packed suffixes
  const int64_t tokens_q = 9, tokens_kv = 170, batch = 4;
  Call whole({1, heads_q, heads_kv, tokens_q, prefix + tokens_kv, dim_k, dim_v});
  whole.fill_random(13);
  fovea_params shared = whole.params, own = whole.params;  // of the same k and v
  shared.seq_kv = prefix;
  own.batch = batch;
  own.seq_kv = tokens_kv;
  own.k.data = &whole.k_at(0, 0, prefix, 0);
  own.v.data = &whole.v_at(0, 0, prefix, 0);
  own.cu_seqlens_q = queries;
  own.cu_seqlens_kv = keys;
  own.causal = 1;
  own.align = FOVEA_ALIGN_BOTTOM_RIGHT;
  Rows first(shared), second(own), result(own);
  for (Rows *part : {&first, &second})
    ASSERT_EQ(fovea_forward(context.get(), &part->params, nullptr, 0), FOVEA_OK) << fovea_last_error();
  ASSERT_EQ(merge(context.get(), {&first.params, &second.params}, result), FOVEA_OK) << fovea_last_error();
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t q_len = queries[b + 1] - queries[b], kv_len = keys[b + 1] - keys[b];
    Call entry({1, heads_q, heads_kv, q_len, prefix + kv_len, dim_k, dim_v});
    for (int64_t h = 0; h < heads_kv; ++h) {
      for (int64_t j = 0; j < prefix + kv_len; ++j) {
        const int64_t from = j < prefix ? j : j + keys[b];
        std::copy_n(&whole.k_at(0, h, from, 0), dim_k, &entry.k_at(0, h, j, 0));
        std::copy_n(&whole.v_at(0, h, from, 0), dim_v, &entry.v_at(0, h, j, 0));
      }
    }
    for (int64_t h = 0; h < heads_q; ++h) {
      for (int64_t i = 0; i < q_len; ++i) {
        const int64_t token = queries[b] + i;
        std::copy_n(&whole.q_at(0, h, token, 0), dim_k, &entry.q_at(0, h, i, 0));
        std::copy_n(&result.out[size_t((h * tokens_q + token) * dim_v)], dim_v, &entry.out_at(0, h, i, 0));
        entry.lse_at(0, h, i) = result.lse[size_t(h * tokens_q + token)];
      }
    }
    entry.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
    entry.params.weights = {};
    if (q_len) expect_within_bound(entry, "entry " + std::to_string(b));
  }
}

// 300 parts of a key each, in any order. A NaN makes its own row NaN, and others keep their bits.
TEST_P(MergeTest, OfManyPartsInAnyOrder) {
  const auto context = this->context();
  Call call({1, 2, 1, 3, 300, 8, 5});
  call.fill_random(14);
  std::vector<int64_t> cuts;
  for (int64_t j = 0; j <= 300; ++j) cuts.push_back(j);
  Parts parts = run_parts(context.get(), call, cuts);
  Rows result(call.params);
  std::mt19937 shuffle(15);
  for (int order = 0; order < 5; ++order) {
    ASSERT_EQ(merge(context.get(), pointers(parts), result), FOVEA_OK) << fovea_last_error();
    call.params.weights = {};
    call.out = result.out;
    call.lse = result.lse;
    expect_within_bound(call, "order " + std::to_string(order));
    std::shuffle(parts.begin(), parts.end(), shuffle);
  }
  ASSERT_EQ(merge(context.get(), pointers(parts), result), FOVEA_OK) << fovea_last_error();
  const std::vector<float> out = result.out, lse = result.lse;
  parts[123]->set(4, kNaN, kNaN);
  ASSERT_EQ(merge(context.get(), pointers(parts), result), FOVEA_OK) << fovea_last_error();
  for (size_t row = 0; row < 6; ++row) {
    EXPECT_EQ(std::isnan(result.lse[row]), row == 4);
    for (size_t c = 0; c < 5; ++c) {
      const size_t i = row * 5 + c;
      EXPECT_TRUE(row == 4 ? std::isnan(result.out[i]) : result.out[i] == out[i]) << row;
    }
    EXPECT_TRUE(row == 4 || result.lse[row] == lse[row]);
  }
}

TEST_P(MergeTest, InPlainNumbers) {
  const auto context = this->context();
  Rows a(9, 3), b(9, 3), result(9, 3);
  const struct {
    float lse_a, a, lse_b, b, lse, out;
  } rows[] = {{2, 5, 2, 5, 2 + std::log(2.0f), 5},           // equal halves
              {2, 1, 2, 4, 2 + std::log(2.0f), 2.5f},        // equal weights
              {std::log(3.0f), 4, 0, 8, std::log(4.0f), 5},  // of 3 keys and of 1
              {1e4f, 3, -1e4f, 1e30f, 1e4f, 3},              // one far below
              {-3e38f, 3, -3e38f, 1, -3e38f, 2},             // at the ends of float
              {3e38f, 3, 3e38f, 1, 3e38f, 2},
              {-800, 3, -800, 1, -800 + std::log(2.0f), 2},
              {0, 3e38f, 0, 3e38f, std::log(2.0f), 3e38f},  // a sum beyond float on the way
              {-1e4f, 0x1p-20f, -1e4f, 0x1p-20f, -1e4f + std::log(2.0f), 0x1p-20f}};
  for (int64_t row = 0; row < 9; ++row) {
    a.set(row, rows[row].lse_a, rows[row].a);
    b.set(row, rows[row].lse_b, rows[row].b);
  }
  ASSERT_EQ(merge(context.get(), {&a.params, &b.params}, result), FOVEA_OK) << fovea_last_error();
  for (size_t row = 0; row < 9; ++row) {
    EXPECT_NEAR(result.lse[row], rows[row].lse, 0x1p-23 * std::fabs(double{rows[row].lse})) << "row " << row;
    for (size_t c = 0; c < 3; ++c) {
      if (row == 2)
        EXPECT_NEAR(result.out[row * 3 + c], 5, 5 * 0x1p-22);  // ln 3 is rounded
      else
        EXPECT_EQ(result.out[row * 3 + c], rows[row].out) << "row " << row;
    }
  }
}

TEST_P(MergeTest, EmptyPartsLeaveNoTrace) {
  const auto context = this->context();
  constexpr int64_t kRows = 4, kDim = 6;
  Rows empty(kRows, kDim), some(kRows, kDim), result(kRows, kDim);
  const float numbers[] = {-0.0f, 1e-41f, 3e38f, -kInfinity, kNaN, 0x1.234568p3f};
  for (int64_t row = 0; row < kRows; ++row) {
    empty.set(row, -kInfinity, kNaN);  // what is there does not count
    some.set(row, 3.0f, 0);
    std::copy_n(numbers, kDim, some.out.begin() + row * kDim);
  }
  some.lse[1] = kNaN;
  some.lse[2] = kInfinity;
  some.lse[3] = -1e-42f;
  const fovea_params *e = &empty.params, *s = &some.params;
  for (const std::vector<const fovea_params *> &parts : {std::vector{s}, {e, s}, {s, e}, {e, e, s, e}}) {
    std::fill(result.out.begin(), result.out.end(), Call::canary);
    ASSERT_EQ(merge(context.get(), parts, result), FOVEA_OK) << fovea_last_error();
    EXPECT_TRUE(same_bits(result.out, some.out)) << parts.size() << " parts";
    EXPECT_TRUE(same_bits(result.lse, some.lse)) << parts.size() << " parts";
  }
  Rows other(kRows, kDim), without(kRows, kDim);
  for (int64_t row = 0; row < kRows; ++row) other.set(row, 2.5f, float(row));
  const fovea_params *o = &other.params;
  ASSERT_EQ(merge(context.get(), {s, o}, without), FOVEA_OK) << fovea_last_error();
  EXPECT_TRUE(std::isfinite(without.out[0]));
  for (const std::vector<const fovea_params *> &parts : {std::vector{e, s, o}, {s, e, o}, {s, o, e, e}}) {
    std::fill(result.out.begin(), result.out.end(), Call::canary);
    ASSERT_EQ(merge(context.get(), parts, result), FOVEA_OK) << fovea_last_error();
    EXPECT_TRUE(same_bits(result.out, without.out)) << parts.size() << " parts";
    EXPECT_TRUE(same_bits(result.lse, without.lse)) << parts.size() << " parts";
  }
  for (const std::vector<const fovea_params *> &parts : {std::vector{e}, {e, e}}) {
    std::fill(result.out.begin(), result.out.end(), Call::canary);
    ASSERT_EQ(merge(context.get(), parts, result), FOVEA_OK) << fovea_last_error();
    EXPECT_EQ(result.out, std::vector<float>(kRows * kDim, 0.0f));
    EXPECT_EQ(result.lse, std::vector<float>(kRows, -kInfinity));
  }
}

// Parts and result each of their type: the mean of two, rounded once; a part alone is copied, and bit for bit where types agree.
TEST_P(MergeTest, EveryMixOfTypes) {
  if (flushes_halves(level())) GTEST_SKIP() << "halves are flushed here";
  const auto context = this->context();
  constexpr int64_t kDim = 300;
  for (const fovea_dtype type_a : kDtypes) {
    for (const fovea_dtype type_b : kDtypes) {
      for (const fovea_dtype type_out : kDtypes) {
        Elements a(type_a, kDim), b(type_b, kDim), out(type_out, kDim);
        for (size_t c = 0; c < kDim; ++c) {
          a.set(c, std::sin(double(c)) * (c < 20 ? 0x1p-22 : 3));
          b.set(c, std::cos(double(c)) * (c < 20 ? 0x1p-22 : 3));
        }
        Rows part_a(1, kDim), part_b(1, kDim), result(1, kDim);
        a.become(&part_a.params.out);
        b.become(&part_b.params.out);
        out.become(&result.params.out);
        part_a.lse[0] = part_b.lse[0] = 1;
        ASSERT_EQ(merge(context.get(), {&part_a.params, &part_b.params}, result), FOVEA_OK) << fovea_last_error();
        Elements expected(type_out, kDim);
        for (size_t c = 0; c < kDim; ++c) {
          expected.set(c, double(float((a[c] + b[c]) / 2)));
          ASSERT_EQ(out.bits(c), expected.bits(c)) << type_a << " " << type_b << " " << type_out << " dim " << c;
        }
        part_b.lse[0] = -kInfinity;
        ASSERT_EQ(merge(context.get(), {&part_a.params, &part_b.params}, result), FOVEA_OK) << fovea_last_error();
        for (size_t c = 0; c < kDim; ++c) {
          expected.set(c, a[c]);
          ASSERT_EQ(out.bits(c), expected.bits(c)) << type_a << " to " << type_out << " dim " << c;
        }
        EXPECT_TRUE(type_a != type_out || out.bytes() == a.bytes());
      }
    }
  }
}

// The result takes the place of the first part, or of another; lengths and tokens of no segment keep their bytes, gaps of strides too.
TEST_P(MergeTest, InPlaceAndRowsThatExistAlone) {
  const auto context = this->context();
  const int32_t lengths[] = {2, 0, 5}, offsets[] = {1, 3, 3, 13};
  for (const bool packed : {false, true}) {
    for (const size_t place : {size_t{0}, size_t{1}}) {
      Call call({packed ? 1 : 3, 2, 1, packed ? 15 : 5, 4, 8, 3});
      call.fill_random(16);
      call.params.batch = 3;
      call.params.seqlens_q = packed ? nullptr : lengths;
      call.params.cu_seqlens_q = packed ? offsets : nullptr;
      Parts parts;
      for (int i = 0; i < 2; ++i) {
        parts.push_back(std::make_unique<Rows>(call.params));
        for (size_t row = 0; row < 30; ++row)
          parts.back()->set(int64_t(row), float(row % 3) + float(i), float(row) + 7 * float(i));
      }
      Rows apart(call.params);
      ASSERT_EQ(merge(context.get(), pointers(parts), apart), FOVEA_OK) << fovea_last_error();
      const std::vector<float> before = parts[place]->out, lse_before = parts[place]->lse;
      ASSERT_EQ(merge(context.get(), pointers(parts), *parts[place]), FOVEA_OK) << fovea_last_error();
      int written = 0;
      for (size_t row = 0; row < 30; ++row) {
        const int64_t token = int64_t(row) % 15, query = int64_t(row) % 5, entry = int64_t(row) / 10;
        const bool exists = packed ? token >= 1 && token < 13 : query < lengths[entry];
        written += exists;
        for (size_t c = 0; c < 3; ++c) {
          const size_t i = row * 3 + c;
          EXPECT_EQ(parts[place]->out[i], exists ? apart.out[i] : before[i]) << "row " << row;
          EXPECT_EQ(apart.out[i] == Call::canary, !exists) << "row " << row;
        }
        EXPECT_EQ(parts[place]->lse[row], exists ? apart.lse[row] : lse_before[row]) << "row " << row;
      }
      EXPECT_EQ(written, packed ? 24 : 14);
    }
  }
}

TEST_P(MergeTest, AnyStrides) {
  const auto context = this->context();
  constexpr int64_t kBatch = 2, kHeads = 3, kSeq = 4, kDim = 5;
  Call dense({kBatch, kHeads, 1, kSeq, 0, 1, kDim});
  Rows a(dense.params), b(dense.params), expected(dense.params), spread(dense.params);
  for (int64_t row = 0; row < kBatch * kHeads * kSeq; ++row) {
    a.set(row, float(row % 5), float(row));
    b.set(row, float(row % 3), float(-row));
  }
  ASSERT_EQ(merge(context.get(), {&a.params, &b.params}, expected), FOVEA_OK) << fovea_last_error();
  // Tokens before heads, every third element; lse transposed.
  const int64_t strides[4] = {kSeq * kHeads * kDim * 3, kDim * 3, kHeads * kDim * 3, 3};
  std::vector<float> out(size_t(kBatch * strides[0]), Call::canary), lse(size_t(kBatch * kHeads * kSeq), Call::canary);
  std::copy_n(strides, 4, spread.params.out.stride);
  spread.params.out.data = out.data();
  spread.params.lse = lse.data();
  spread.params.lse_stride[0] = 1, spread.params.lse_stride[1] = kBatch, spread.params.lse_stride[2] = kBatch * kHeads;
  // A part that is repeated along the heads, beside one that is not.
  ASSERT_EQ(merge(context.get(), {&a.params, &b.params}, spread), FOVEA_OK) << fovea_last_error();
  size_t written = 0;
  for (int64_t n = 0; n < kBatch; ++n)
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < kSeq; ++i) {
        const int64_t row = (n * kHeads + h) * kSeq + i;
        EXPECT_EQ(lse[size_t(n + h * kBatch + i * kBatch * kHeads)], expected.lse[size_t(row)]);
        for (int64_t c = 0; c < kDim; ++c)
          EXPECT_EQ(out[size_t(n * strides[0] + h * strides[1] + i * strides[2] + c * 3)], expected.out[size_t(row * kDim + c)]);
      }
  for (const float x : out) written += x != Call::canary;
  EXPECT_EQ(written, expected.out.size()) << "gaps keep their bytes";
  // And read like that.
  Rows back(dense.params);
  ASSERT_EQ(merge(context.get(), {&spread.params}, back), FOVEA_OK) << fovea_last_error();
  EXPECT_TRUE(same_bits(back.out, expected.out));
  EXPECT_TRUE(same_bits(back.lse, expected.lse));
}

TEST_P(MergeTest, SizesOfZero) {
  const auto context = this->context();
  Rows a(3, 0), b(3, 0), result(3, 0);  // no dims: LSE alone
  for (int64_t row = 0; row < 3; ++row) a.lse[size_t(row)] = 1, b.lse[size_t(row)] = row == 2 ? -kInfinity : 1;
  ASSERT_EQ(merge(context.get(), {&a.params, &b.params}, result), FOVEA_OK) << fovea_last_error();
  EXPECT_FLOAT_EQ(result.lse[0], 1 + std::log(2.0f));
  EXPECT_EQ(result.lse[2], 1);
  Rows none(0, 4);  // no rows: nothing is needed
  none.params.out.data = none.params.lse = nullptr;
  EXPECT_EQ(merge(context.get(), {&none.params}, none), FOVEA_OK) << fovea_last_error();
}

TEST_P(MergeTest, BitsDependOnNeitherThreadsNorExecutorNorEnvironment) {
  constexpr int64_t kRows = 500, kDim = 130;
  Rows a(kRows, kDim), b(kRows, kDim), c(kRows, kDim);
  std::mt19937 bits(17);
  const auto random = [&] { return float(bits() >> 8) * 0x1p-21f - 4; };
  for (Rows *part : {&a, &b, &c}) {
    for (float &x : part->out) x = random();
    for (float &x : part->lse) x = random();
  }
  const auto run = [&](const fovea_context *context) {
    Rows result(kRows, kDim);
    EXPECT_EQ(merge(context, {&a.params, &b.params, &c.params}, result), FOVEA_OK) << fovea_last_error();
    return std::pair(result.out, result.lse);
  };
  const auto first = run(context(1).get());
  for (const int32_t threads : {2, 3, 7})
    for (const char *executor : {"omp", "pool"}) EXPECT_EQ(run(context(threads, executor).get()), first) << threads << executor;
  const auto serial = context(1);
  for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::feclearexcept(FE_ALL_EXCEPT);
    std::fesetround(rounding);
    const auto result = run(serial.get());
    EXPECT_EQ(std::fegetround(), rounding);
    EXPECT_EQ(std::fetestexcept(FE_ALL_EXCEPT), 0);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(result, first);
  }
}

TEST_P(MergeTest, WhatIsWrongIsNamedAndNothingWritten) {
  const auto context = this->context();
  static const int32_t lengths[] = {3, 2}, shorter[] = {3, 1}, offsets[] = {0, 2, 3}, later[] = {1, 2, 3}, longer[] = {0, 2, 4};
  Call call({2, 4, 2, 3, 0, 1, 5});
  struct Fault {
    const char *text;
    fovea_status status;
    std::function<void(fovea_params &, fovea_params &)> make;  // of parts[1] and the result
  };
  const std::vector<Fault> faults = {
      {"parts[1].struct_size", FOVEA_ERR_STRUCT_SIZE, [](auto &p, auto &) { p.struct_size = 4; }},
      {"parts[1].flags", FOVEA_ERR_UNSUPPORTED, [](auto &p, auto &) { p.flags = 1; }},
      {"parts[1].batch: 1 is not", FOVEA_ERR_INVALID_SIZE, [](auto &p, auto &) { p.batch = 1; }},
      {"parts[1].batch: -1", FOVEA_ERR_INVALID_SIZE, [](auto &p, auto &) { p.batch = -1; }},
      {"parts[1].heads_q: 2 is not", FOVEA_ERR_INVALID_SIZE, [](auto &p, auto &) { p.heads_q = 2; }},
      {"parts[1].seq_q: 2 is not", FOVEA_ERR_INVALID_SIZE, [](auto &p, auto &) { p.seq_q = 2; }},
      {"parts[1].dim_v: 4 is not", FOVEA_ERR_INVALID_SIZE, [](auto &p, auto &) { p.dim_v = 4; }},
      {"result.batch, heads_q, seq_q: their product", FOVEA_ERR_INVALID_SIZE, [](auto &, auto &r) { r.seq_q = INT64_MAX; }},
      {"parts[1].out: must not be NULL", FOVEA_ERR_NULL_POINTER, [](auto &p, auto &) { p.out.data = nullptr; }},
      {"parts[1].lse: must not be NULL", FOVEA_ERR_NULL_POINTER, [](auto &p, auto &) { p.lse = nullptr; }},
      {"result.out: must not be NULL", FOVEA_ERR_NULL_POINTER, [](auto &, auto &r) { r.out.data = nullptr; }},
      {"result.lse: must not be NULL", FOVEA_ERR_NULL_POINTER, [](auto &, auto &r) { r.lse = nullptr; }},
      {"parts[1].out.dtype", FOVEA_ERR_INVALID_DTYPE, [](auto &p, auto &) { p.out.dtype = FOVEA_Q8_0; }},
      {"result.out.dtype", FOVEA_ERR_INVALID_DTYPE, [](auto &, auto &r) { r.out.dtype = FOVEA_BOOL; }},
      {"parts[1].out.stride[2]", FOVEA_ERR_INVALID_STRIDE, [](auto &p, auto &) { p.out.stride[2] = -5; }},
      {"parts[1].lse_stride[1]", FOVEA_ERR_INVALID_STRIDE, [](auto &p, auto &) { p.lse_stride[1] = INT64_MAX; }},
      {"result.out.stride", FOVEA_ERR_INVALID_STRIDE, [](auto &, auto &r) { r.out.stride[1] = 0; }},
      {"result.weights", FOVEA_ERR_INVALID_ARGUMENT, [](auto &, auto &r) { r.weights.data = &r; }},
      {"parts[1].seqlens_q: entry 1 has the queries [0, 1), the result [0, 3)", FOVEA_ERR_INVALID_ARGUMENT,
       [](auto &p, auto &) { p.seqlens_q = shorter; }},
      {"parts[1].seqlens_q: entry 1 has the queries [0, 1), the result [0, 2)", FOVEA_ERR_INVALID_ARGUMENT,
       [](auto &p, auto &r) { p.seqlens_q = shorter, r.seqlens_q = lengths; }},
      {"result.seqlens_q[0]: 3", FOVEA_ERR_INVALID_ARGUMENT,
       [](auto &p, auto &r) { p.seq_q = r.seq_q = 2, r.seqlens_q = lengths; }},
      {"parts[1].cu_seqlens_q: is given", FOVEA_ERR_INVALID_SIZE, [](auto &p, auto &) { p.cu_seqlens_q = offsets; }},
      {"parts[1].cu_seqlens_q[2]: 4", FOVEA_ERR_INVALID_ARGUMENT, [](auto &p, auto &) { p.cu_seqlens_q = longer; }},
      {"parts[0].cu_seqlens_q: is NULL", FOVEA_ERR_INVALID_SIZE, [](auto &, auto &r) { r.cu_seqlens_q = offsets; }},
      {"parts[1].seqlens_q: must be NULL", FOVEA_ERR_INVALID_ARGUMENT,
       [](auto &p, auto &) { p.seqlens_q = lengths, p.cu_seqlens_q = offsets; }},
      {"parts[1].out: overlaps out", FOVEA_ERR_OVERLAP,
       [](auto &p, auto &r) { p.out.data = static_cast<float *>(r.out.data) + 1; }},
      {"parts[1].out: overlaps out", FOVEA_ERR_OVERLAP, [](auto &p, auto &r) { p.out.data = r.out.data, p.out.stride[2] = 0; }},
      {"parts[1].out: overlaps out", FOVEA_ERR_OVERLAP,
       [](auto &p, auto &r) { p.out.data = r.out.data, p.out.dtype = FOVEA_F16; }},
      {"parts[1].lse: overlaps out", FOVEA_ERR_OVERLAP, [](auto &p, auto &r) { p.lse = static_cast<float *>(r.out.data); }},
      {"parts[1].lse: overlaps lse", FOVEA_ERR_OVERLAP, [](auto &p, auto &r) { p.lse = r.lse + 1; }},
      {"parts[1].out: overlaps lse", FOVEA_ERR_OVERLAP,
       [](auto &p, auto &r) { p.out.data = r.lse, std::fill_n(p.out.stride, 4, 0); }},
      {"result.lse: overlaps out", FOVEA_ERR_OVERLAP, [](auto &, auto &r) { r.lse = static_cast<float *>(r.out.data) + 2; }},
      {"result.seqlens_q: overlaps out", FOVEA_ERR_OVERLAP,
       [](auto &, auto &r) {
         static_cast<int32_t *>(r.out.data)[0] = static_cast<int32_t *>(r.out.data)[1] = 0;
         r.seqlens_q = static_cast<int32_t *>(r.out.data);
       }},
  };
  for (const Fault &fault : faults) {
    Rows a(call.params), b(call.params), result(call.params);
    fault.make(b.params, result.params);
    const std::vector<float> out = result.out, lse = result.lse, out_b = b.out, lse_b = b.lse;
    if (result.params.seq_q == 2) a.params.seq_q = 2;
    EXPECT_EQ(merge(context.get(), {&a.params, &b.params}, result), fault.status) << fault.text << " / " << fovea_last_error();
    EXPECT_EQ(std::string(fovea_last_error()).rfind(fault.text, 0), size_t{0}) << fault.text << " / " << fovea_last_error();
    EXPECT_TRUE(same_bits(result.out, out) && same_bits(result.lse, lse) && same_bits(b.out, out_b) && same_bits(b.lse, lse_b))
        << fault.text;
  }
  // Tokens that the result has and the part has not.
  Call packed({1, 4, 2, 3, 0, 1, 5});
  packed.params.batch = 2;
  packed.params.cu_seqlens_q = offsets;
  Rows whole(packed.params), part(packed.params), result(packed.params);
  part.params.cu_seqlens_q = later;
  EXPECT_EQ(merge(context.get(), {&whole.params, &part.params}, result), FOVEA_ERR_INVALID_ARGUMENT);
  EXPECT_STREQ(fovea_last_error(), "parts[1].cu_seqlens_q: entry 0 has the queries [1, 3), the result [0, 3)");

  const fovea_params *parts[] = {&whole.params, nullptr};
  EXPECT_EQ(fovea_merge(nullptr, parts, 1, &result.params), FOVEA_ERR_NULL_POINTER);
  EXPECT_EQ(fovea_merge(context.get(), nullptr, 1, &result.params), FOVEA_ERR_NULL_POINTER);
  EXPECT_EQ(fovea_merge(context.get(), parts, 1, nullptr), FOVEA_ERR_NULL_POINTER);
  EXPECT_EQ(fovea_merge(context.get(), parts, 0, &result.params), FOVEA_ERR_INVALID_ARGUMENT);
  EXPECT_STREQ(fovea_last_error(), "count: 0 is not positive");
  EXPECT_EQ(fovea_merge(context.get(), parts, 2, &result.params), FOVEA_ERR_NULL_POINTER);
  EXPECT_STREQ(fovea_last_error(), "parts[1]: must not be NULL");
  for (const float x : result.out) EXPECT_EQ(x, Call::canary);
}

}  // namespace
}  // namespace fovea::testing
