// Products of bfloat16 queries and keys, which some levels multiply in pairs of neighbouring dims, out of the caller's memory: every dim counts
// once, whatever it holds and wherever it lies. Query i sees key i alone, so that its LSE is their score.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "support/call.h"
#include "support/elements.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Few rows, a panel and a piece, and more keys than a block has; dims that are odd, fill pairs, and are more than one sum holds.
constexpr int64_t kRows[] = {3, 5, 60, 300};
constexpr int64_t kDims[] = {1, 2, 3, 7, 8, 33, 64, 65, 66, 130};

// How the keys of a head lie. What is not an element is NaN.
struct Layout {
  int64_t first, row_gap, dim_stride;
};
constexpr Layout kLayouts[] = {{0, 0, 1}, {1, 0, 1}, {0, 1, 1}, {3, 4, 1}, {0, 3, 2}};

struct Bf16Call {
  Bf16Call(int64_t rows, int64_t dims, const Layout &layout)
      : call({1, 1, 1, rows, rows, dims, 1}),
        q(FOVEA_BF16, call.q),
        layout_(layout),
        row_stride_(row_stride(dims, layout)),
        k_(FOVEA_BF16, size_t(layout.first + rows * row_stride_)) {
    call.params.window_left = call.params.window_right = 0;
    call.params.align = FOVEA_ALIGN_TOP_LEFT;
    call.params.scale = 1;
    call.params.weights.data = nullptr;
    for (int64_t j = 0; j < rows; ++j)
      for (int64_t d = 0; d < dims; ++d) set_k(j, d, 0);
    q.become(&call.params.q);
    k_.become(&call.params.k);
    call.params.k.data = static_cast<uint16_t *>(call.params.k.data) + layout.first;
    call.params.k.stride[2] = row_stride_;
    call.params.k.stride[3] = layout.dim_stride;
  }

  void set_q(int64_t i, int64_t d, double value) { q.set(size_t(i * call.n.dim_k + d), value); }
  void set_k(int64_t j, int64_t d, double value) {
    k_.set(size_t(layout_.first + j * row_stride_ + d * layout_.dim_stride), value);
  }
  float score(int64_t i) { return call.lse_at(0, 0, i); }

  Call call;
  Elements q;

 private:
  static int64_t row_stride(int64_t dims, const Layout &layout) { return dims * layout.dim_stride + layout.row_gap; }

  const Layout layout_;
  const int64_t row_stride_;
  Elements k_;
};

class Bf16ProductsTest : public LevelTest {
 protected:
  template <class Body>
  void for_every_shape(Body body) const {
    const auto context = this->context();
    for (const int64_t rows : kRows) {
      for (const int64_t dims : kDims) {
        for (const Layout &layout : kLayouts) {
          SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(dims) + " dims, keys from element " +
                       std::to_string(layout.first) + ", " + std::to_string(layout.row_gap) + " between rows, dims " +
                       std::to_string(layout.dim_stride) + " apart");
          body(context.get(), rows, dims, layout);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};
FOVEA_TEST_EVERY_LEVEL(Bf16ProductsTest);

TEST_P(Bf16ProductsTest, AreMadeByTheKernelThatExplainNames) {
  const auto context = this->context();
  for (const fovea_dtype type_q : kDtypes) {
    for (const fovea_dtype type_k : kDtypes) {
      Call call({1, 1, 1, 60, 60, 8, 8});
      Elements q(type_q, call.q), k(type_k, call.k);
      q.become(&call.params.q);
      k.become(&call.params.k);
      std::vector<char> text(fovea_explain(context.get(), &call.params, nullptr, 0) + 1);
      fovea_explain(context.get(), &call.params, text.data(), text.size());
      const std::string kernel = nlohmann::json::parse(text.data()).at("kernel");
      const bool pairs = level().find("_bf16") != std::string::npos && type_q == FOVEA_BF16 && type_k == FOVEA_BF16;
      EXPECT_EQ(kernel.find("/bf16") != std::string::npos, pairs) << kernel << " for dtypes " << type_q << " and " << type_k;
    }
  }
}

// One dim of each query is not 0; the keys tell the dims apart.
TEST_P(Bf16ProductsTest, EveryDimCountsOnce) {
  for_every_shape([](const fovea_context *context, int64_t rows, int64_t dims, const Layout &layout) {
    Bf16Call c(rows, dims, layout);
    const auto sign = [](int64_t j) { return j % 2 ? -1.0 : 1.0; };
    for (int64_t i = 0; i < rows; ++i) {
      c.set_q(i, i % dims, 0.25);
      for (int64_t d = 0; d < dims; ++d) c.set_k(i, d, sign(i) * double(d + 1));
    }
    ASSERT_EQ(c.call.run(context), FOVEA_OK) << fovea_last_error();
    for (int64_t i = 0; i < rows; ++i) {
      const double expected = sign(i) * 0.25 * double(i % dims + 1);
      ASSERT_NEAR(c.score(i), expected, 0x1p-21 * std::fabs(expected)) << "row " << i;
    }
  });
}

// Sums that float holds and bfloat16 does not.
TEST_P(Bf16ProductsTest, AreSummedInFloat) {
  for_every_shape([](const fovea_context *context, int64_t rows, int64_t dims, const Layout &layout) {
    Bf16Call c(rows, dims, layout);
    std::vector<double> expected(size_t(rows), 0);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t d = 0; d < dims; ++d) {
        const double q = double((7 * i + 3 * d) % 255) - 127, k = double((5 * i + 11 * d) % 253) - 126;
        c.set_q(i, d, q);
        c.set_k(i, d, k * 0x1p-8);
        expected[size_t(i)] += q * k * 0x1p-8;
      }
    }
    ASSERT_EQ(c.call.run(context), FOVEA_OK) << fovea_last_error();
    for (int64_t i = 0; i < rows; ++i)  // sums are exact, their way to natural units is not
      ASSERT_NEAR(c.score(i), expected[size_t(i)], 0x1p-21 * std::fabs(expected[size_t(i)])) << "row " << i;
  });
}

// In one dim of a key; other rows keep their bits.
TEST_P(Bf16ProductsTest, WhatIsNotFiniteShowsInItsRowAlone) {
  for_every_shape([](const fovea_context *context, int64_t rows, int64_t dims, const Layout &layout) {
    Bf16Call clean(rows, dims, layout);
    const auto fill = [&](Bf16Call &c) {
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t d = 0; d < dims; ++d) c.set_q(i, d, 1 + double(d % 3)), c.set_k(i, d, 0.5);
    };
    fill(clean);
    ASSERT_EQ(clean.call.run(context), FOVEA_OK) << fovea_last_error();
    for (const int64_t d : {int64_t{0}, dims / 2, dims - 1}) {
      struct {
        float q, k, score;
      } const cases[] = {{1, std::nanf(""), std::nanf("")}, {std::nanf(""), 1, std::nanf("")}, {1, kInfinity, std::nanf("")},
                         {0, kInfinity, std::nanf("")},     {1, -kInfinity, -kInfinity},       {-kInfinity, 1, -kInfinity},
                         {0x1p120f, -0x1p120f, -kInfinity}};
      for (const auto &poison : cases) {
        const int64_t row = rows * 2 / 3;
        Bf16Call c(rows, dims, layout);
        fill(c);
        c.set_q(row, d, double{poison.q});
        c.set_k(row, d, double{poison.k});
        ASSERT_EQ(c.call.run(context), FOVEA_OK) << fovea_last_error();
        for (int64_t i = 0; i < rows; ++i) {
          const bool right = i != row                   ? c.score(i) == clean.score(i) && c.call.out_at(0, 0, i, 0) == 1
                             : std::isnan(poison.score) ? std::isnan(c.score(i))
                                                        : c.score(i) == poison.score;
          ASSERT_TRUE(right) << c.score(i) << " in row " << i << ", " << poison.q << " * " << poison.k << " in dim " << d
                             << " of row " << row;
        }
      }
    }
  });
}

// Where a query and a key stand, among how many, is nothing to their score: with queries that are alike and keys that are, every weight has the
// same bits. Values of 1 for a key each show them.
TEST_P(Bf16ProductsTest, OfLikeQueriesAndKeysAreAlike) {
  const auto context = this->context();
  for (const int64_t dims : kDims) {
    for (int64_t keys = 1; keys <= 24; ++keys) {  // up to three tiles, and every piece of one
      Call call({1, 1, 1, 60, keys, dims, keys});
      Elements q(FOVEA_BF16, call.q), k(FOVEA_BF16, call.k);
      for (int64_t d = 0; d < dims; ++d) {
        for (int64_t i = 0; i < 60; ++i) q.set(size_t(i * dims + d), 1.5 - 0.37 * double(d % 7));
        for (int64_t j = 0; j < keys; ++j) k.set(size_t(j * dims + d), 1 + 0.43 * double(d % 5));
      }
      q.become(&call.params.q);
      k.become(&call.params.k);
      for (int64_t j = 0; j < keys; ++j)
        for (int64_t d = 0; d < keys; ++d) call.v[size_t(j * keys + d)] = j == d ? 1.0f : 0.0f;
      call.params.scale = 1;
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      ASSERT_NEAR(call.out_at(0, 0, 0, 0), 1 / double(keys), 0x1p-22);
      for (int64_t i = 0; i < 60; ++i) {
        ASSERT_EQ(call.lse_at(0, 0, i), call.lse_at(0, 0, 0)) << "row " << i << " of " << dims << " dims, " << keys << " keys";
        for (int64_t j = 0; j < keys; ++j)
          ASSERT_EQ(call.out_at(0, 0, i, j), call.out_at(0, 0, 0, 0))
              << "row " << i << ", key " << j << " of " << keys << ", " << dims << " dims";
      }
    }
  }
}

// Subnormal numbers and products count as 0 or as what they are: next to nothing beside another product, and no NaN.
TEST_P(Bf16ProductsTest, NextToNothingChangesNothing) {
  for_every_shape([](const fovea_context *context, int64_t rows, int64_t dims, const Layout &layout) {
    for (const auto &[q, k] : {std::pair(0x1p-130f, 1.0f), {1.0f, 0x1p-130f}, {0x1p-70f, -0x1p-70f}, {-0x1p-126f, 0x1p-1f}}) {
      Bf16Call c(rows, dims, layout);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t d = 0; d < dims; ++d) c.set_q(i, d, double{q}), c.set_k(i, d, double{k});
        if (i % 2 == 0) c.set_q(i, i % dims, 3), c.set_k(i, i % dims, 0.5);
      }
      ASSERT_EQ(c.call.run(context), FOVEA_OK) << fovea_last_error();
      for (int64_t i = 0; i < rows; ++i)
        ASSERT_NEAR(c.score(i), i % 2 == 0 ? 1.5 : 0, i % 2 == 0 ? 0x1p-20 : 0x1p-110) << "row " << i << ", " << q << " * " << k;
    }
  });
}

}  // namespace
}  // namespace fovea::testing
