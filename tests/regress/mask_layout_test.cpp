// A mask may lack any of its axes, have any strides and any of its dtypes: the bits are those of the dense mask that says the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/guarded_buffer.h"
#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A value for each element, exact in every dtype; some exclude. Of an axis that the mask lacks, the index counts as 0.
float value_at(int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t lot = (b * 5 + h * 7 + i * 11 + j * 13 + i * j) % 17;
  return lot % 4 == 1 ? -kInfinity : float(lot - 8) / 4;
}

float value_over(const std::string &axes, int64_t b, int64_t h, int64_t i, int64_t j) {
  const auto has = [&](char axis) { return axes.find(axis) != std::string::npos; };
  return value_at(has('b') ? b : 0, has('h') ? h : 0, has('q') ? i : 0, has('k') ? j : 0);
}

// What a mask of this dtype holds for a value.
float as_held(fovea_dtype dtype, float value) { return dtype != FOVEA_BOOL ? value : std::isinf(value) ? 0.0f : 1.0f; }

std::vector<std::string> all_axes() {
  std::vector<std::string> all;
  for (int which = 0; which < 16; ++which) {
    std::string axes;
    for (int axis = 0; axis < 4; ++axis)
      if (which >> axis & 1) axes += "bhqk"[axis];
    all.push_back(axes);
  }
  return all;
}

class MaskLayoutTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(MaskLayoutTest);

TEST_P(MaskLayoutTest, AnyAxesAnyDtype) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const Sizes &n : {Sizes{2, 3, 3, 5, 33, 8, 9}, Sizes{2, 3, 1, 1, 33, 8, 9}, Sizes{2, 6, 2, 50, 300, 8, 9}}) {
      for (const fovea_dtype dtype : kMaskDtypes) {
        for (const std::string &axes : all_axes()) {
          const std::string where =
              std::to_string(n.seq_q) + "x" + std::to_string(n.seq_kv) + " axes [" + axes + "] dtype " + std::to_string(dtype);
          const auto value = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
            return as_held(dtype, value_over(axes, b, h, i, j));
          };
          Call call(n), dense(n);
          call.fill_random(111);
          dense.fill_random(111);
          Mask mask(dtype, n, axes), full(dtype, n);
          mask.set_all(value);
          full.set_all(value);
          call.params.mask = mask.tensor();
          dense.params.mask = full.tensor();
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error() << " " << where;
          ASSERT_EQ(dense.run(context.get()), FOVEA_OK) << fovea_last_error() << " " << where;
          EXPECT_TRUE(same_bits(call.out, dense.out)) << where;
          EXPECT_TRUE(same_bits(call.lse, dense.lse)) << where;
          EXPECT_TRUE(same_bits(call.weights, dense.weights)) << where;
          expect_within_bound(dense, where);
          for (int64_t b = 0; b < n.batch; ++b)
            for (int64_t h = 0; h < n.heads_q; ++h)
              for (int64_t i = 0; i < n.seq_q; ++i)
                for (int64_t j = 0; j < n.seq_kv; ++j)
                  ASSERT_EQ(dense.weight_at(b, h, i, j) > 0, !std::isinf(value_over(axes, b, h, i, j)))
                      << where << " " << b << " " << h << " " << i << " " << j;
        }
      }
    }
  }
}

// The same numbers in 16 bits and in 32, subnormal halves included.
TEST_P(MaskLayoutTest, HalvesAreTheFloatsThatTheyStandFor) {
  const float numbers[] = {0,        -0.0f,       1,        -1.5f,         3.140625f, -65504,    0x1p-14f,
                           0x1p-15f, -0x1.8p-15f, 0x1p-24f, -0x1.ff8p-15f, 100,       -kInfinity};
  const float wide[] = {0, 1, -1.5f, 3.140625f, -0x1.fep100f, 0x1p-30f, -0x1.02p-14f, 88, -kInfinity};
  const auto context = this->context(2);
  for (const Sizes &n : {Sizes{1, 2, 1, 1, 300, 8, 9}, Sizes{1, 2, 1, 3, 31, 8, 9}, Sizes{1, 2, 1, 50, 301, 8, 9}}) {
    for (const fovea_dtype dtype : {FOVEA_F16, FOVEA_BF16}) {
      const auto value = [&](int64_t, int64_t h, int64_t i, int64_t j) {
        return dtype == FOVEA_F16 ? numbers[(h + i + j) % 13] : wide[(h + i + j) % 9];
      };
      Call halves(n), floats(n);
      halves.fill_random(112);
      floats.fill_random(112);
      Mask half(dtype, n, "hqk"), whole(FOVEA_F32, n, "hqk");
      half.set_all(value);
      whole.set_all(value);
      halves.params.mask = half.tensor();
      floats.params.mask = whole.tensor();
      ASSERT_EQ(halves.run(context.get()), FOVEA_OK) << fovea_last_error();
      ASSERT_EQ(floats.run(context.get()), FOVEA_OK) << fovea_last_error();
      EXPECT_TRUE(same_bits(halves.out, floats.out)) << "dtype " << dtype << " queries " << n.seq_q;
      EXPECT_TRUE(same_bits(halves.lse, floats.lse)) << "dtype " << dtype << " queries " << n.seq_q;
      EXPECT_TRUE(same_bits(halves.weights, floats.weights)) << "dtype " << dtype << " queries " << n.seq_q;
      expect_within_bound(halves, "dtype " + std::to_string(dtype));
    }
  }
}

// A subnormal half is worth up to 6e-5: as much more weight for its key.
TEST_P(MaskLayoutTest, SubnormalHalvesCount) {
  if (flushes_halves(level())) GTEST_SKIP() << level() << ": subnormal halves are flushed here";
  const auto context = this->context();
  for (const int64_t queries : {1, 50}) {
    for (const int64_t keys : {2, 9, 300}) {
      Call call({1, 1, 1, queries, keys, 2, 2});
      Mask mask(FOVEA_F16, call.n, "qk");
      mask.set_all([](int64_t, int64_t, int64_t, int64_t j) { return j == 0 ? 0x1.ff8p-15f : 0.0f; });
      call.params.mask = mask.tensor();
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (int64_t i = 0; i < queries; ++i)
        EXPECT_NEAR(call.weight_at(0, 0, i, 0) / call.weight_at(0, 0, i, keys - 1) - 1, 6.1e-5, 2e-6)
            << keys << " keys row " << i;
    }
  }
}

// A boolean is a byte that is 0 or not.
TEST_P(MaskLayoutTest, EveryByteThatIsNotZeroIsTrue) {
  const auto context = this->context(2);
  for (const int64_t queries : {1, 3, 50}) {
    Call call({1, 1, 1, queries, 512, 4, 3});
    std::vector<unsigned char> bytes(512);
    for (size_t j = 0; j < 512; ++j) bytes[j] = static_cast<unsigned char>(j);
    call.params.mask = {bytes.data(), {0, 0, 0, 1}, FOVEA_BOOL, 0};
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t j = 0; j < 512; ++j) ASSERT_EQ(call.weight_at(0, 0, i, j), j % 256 ? 1 / 510.0f : 0.0f) << i << " " << j;
      EXPECT_NEAR(call.lse_at(0, 0, i), std::log(510.0), 1e-6);
    }
  }
}

// Gaps between its elements, axes in another order, rows that overlap, and one element off any alignment.
TEST_P(MaskLayoutTest, AnyStrides) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const Sizes &n : {Sizes{2, 4, 2, 5, 33, 8, 9}, Sizes{2, 4, 2, 1, 300, 8, 9}, Sizes{1, 2, 1, 50, 300, 8, 9}}) {
      for (const fovea_dtype dtype : kMaskDtypes) {
        const auto value = [&](int64_t b, int64_t h, int64_t i, int64_t j) { return as_held(dtype, value_at(b, h, i, j)); };
        Call dense(n);
        dense.fill_random(113);
        Mask full(dtype, n);
        full.set_all(value);
        dense.params.mask = full.tensor();
        ASSERT_EQ(dense.run(context.get()), FOVEA_OK) << fovea_last_error();
        const auto expect_same = [&](const fovea_tensor &tensor, const char *how) {
          for (int which = 0; which < 8; ++which) {  // beside every combination of dense and transposed q, k and v
            Call call(n);
            call.q = dense.q;
            call.k = dense.k;
            call.v = dense.v;
            const auto transpose = [](std::vector<float> &values, fovea_tensor &t, int64_t heads, int64_t seq, int64_t dim) {
              const std::vector<float> before = values;
              for (size_t at = 0; at < values.size(); ++at) {
                const int64_t d = int64_t(at) % dim, s = int64_t(at) / dim % seq, head = int64_t(at) / dim / seq;
                values[size_t((head * dim + d) * seq + s)] = before[at];
              }
              t.stride[0] = heads * seq * dim;
              t.stride[2] = 1;
              t.stride[3] = seq;
            };
            if (which & 1) transpose(call.q, call.params.q, n.heads_q, n.seq_q, n.dim_k);
            if (which & 2) transpose(call.k, call.params.k, n.heads_kv, n.seq_kv, n.dim_k);
            if (which & 4) transpose(call.v, call.params.v, n.heads_kv, n.seq_kv, n.dim_v);
            call.params.mask = tensor;
            ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
            const std::string where = std::string(how) + " dtype " + std::to_string(dtype) + " transposed " +
                                      std::to_string(which) + " queries " + std::to_string(n.seq_q);
            EXPECT_TRUE(same_bits(call.out, dense.out)) << where;
            EXPECT_TRUE(same_bits(call.lse, dense.lse)) << where;
            EXPECT_TRUE(same_bits(call.weights, dense.weights)) << where;
          }
        };
        for (const int64_t step : {2, 3}) {
          Mask gaps(dtype, n, "bhqk", step);
          gaps.set_all(value);
          expect_same(gaps.tensor(), "gaps");
        }
        // [b][key][query][head]
        const size_t element = dtype == FOVEA_BOOL ? 1 : dtype == FOVEA_F32 ? 4 : 2;
        std::vector<unsigned char> turned(full.bytes().size() + element);
        const int64_t stride[4] = {n.heads_q * n.seq_q * n.seq_kv, 1, n.heads_q, n.heads_q * n.seq_q};
        const int64_t *from = full.tensor().stride;
        for (int64_t b = 0; b < n.batch; ++b)
          for (int64_t h = 0; h < n.heads_q; ++h)
            for (int64_t i = 0; i < n.seq_q; ++i)
              for (int64_t j = 0; j < n.seq_kv; ++j)
                std::memcpy(&turned[element * size_t(1 + b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3])],
                            &full.bytes()[element * size_t(b * from[0] + h * from[1] + i * from[2] + j * from[3])], element);
        expect_same({turned.data() + element, {stride[0], stride[1], stride[2], stride[3]}, dtype, 0}, "turned");
      }
    }
  }
}

// Rows of a mask may be windows into one line: mask[i, j] = line[i + j].
TEST_P(MaskLayoutTest, RowsThatOverlap) {
  const auto context = this->context(2);
  for (const Sizes &n : {Sizes{1, 1, 1, 3, 300, 8, 9}, Sizes{1, 1, 1, 60, 300, 8, 9}}) {
    for (const fovea_dtype dtype : kMaskDtypes) {
      Mask line(dtype, {1, 1, 1, 1, n.seq_q + n.seq_kv, 1, 1}, "k"), full(dtype, n, "qk");
      line.set_all([&](int64_t, int64_t, int64_t, int64_t j) { return as_held(dtype, value_at(0, 0, 0, j)); });
      full.set_all([&](int64_t, int64_t, int64_t i, int64_t j) { return as_held(dtype, value_at(0, 0, 0, i + j)); });
      Call call(n), dense(n);
      call.fill_random(114);
      dense.fill_random(114);
      call.params.mask = line.tensor();
      call.params.mask.stride[2] = 1;
      dense.params.mask = full.tensor();
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      ASSERT_EQ(dense.run(context.get()), FOVEA_OK) << fovea_last_error();
      EXPECT_TRUE(same_bits(call.out, dense.out)) << "dtype " << dtype;
      EXPECT_TRUE(same_bits(call.lse, dense.lse)) << "dtype " << dtype;
    }
  }
}

// Nothing beside a mask is read, and nothing of it that belongs to no permitted query and key: the pages are not there.
TEST_P(MaskLayoutTest, ReadsNothingBesideIt) {
  for (const int32_t threads : {1, 2}) {
    const auto context = this->context(threads);
    for (const fovea_dtype dtype : kMaskDtypes) {
      for (const int64_t queries : {1, 3, 50}) {
        for (const int64_t keys : {1, 7, 8, 9, 31, 33, 255, 257, 300}) {
          Call call({1, 2, 1, queries, keys, 8, 9});
          call.fill_random(115);
          Mask mask(dtype, call.n, "hqk");
          mask.permit_where([](int64_t, int64_t h, int64_t i, int64_t j) { return (h + i * 3 + j) % 4 != 0; });
          call.params.mask = mask.tensor();
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          const std::vector<float> out = call.out, lse = call.lse;
          for (const reference::Flush flush : {reference::Flush::kBack, reference::Flush::kFront}) {
            const reference::GuardedBuffer memory(mask.bytes().size(), flush);
            std::memcpy(memory.data(), mask.bytes().data(), mask.bytes().size());
            call.params.mask.data = memory.data();
            ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
            EXPECT_TRUE(same_bits(call.out, out)) << "dtype " << dtype << " " << queries << "x" << keys;
            EXPECT_TRUE(same_bits(call.lse, lse)) << "dtype " << dtype << " " << queries << "x" << keys;
          }
          if (queries < 2 || keys < 2) continue;
          // Lengths one below: the last row and, in the last row that counts, the last key lie on the page that is not there.
          const auto element = int64_t(mask.bytes().size()) / (2 * queries * keys);
          const int32_t length_q = int32_t(queries - 1), length_kv = int32_t(keys - 1);
          const auto last = (queries + length_q - 1) * keys + length_kv - 1;  // of head 1
          const reference::GuardedBuffer exact(size_t((last + 1) * element));
          std::memcpy(exact.data(), mask.bytes().data(), exact.bytes());
          call.params.mask.data = exact.data();
          call.params.seqlens_q = &length_q;
          call.params.seqlens_kv = &length_kv;
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          expect_within_bound(call, "lengths one below, dtype " + std::to_string(dtype));
        }
      }
    }
  }
}

// Where entries share a mask, what some entry permits is read and nothing else: not the queries of one by the keys of another. Rows overlap,
// so that all of what is needed lies before the page that is not there: rows [0, 64) of 10 keys, and rows [0, 16) of 8192.
TEST_P(MaskLayoutTest, SharedByEntriesOfOtherLengths) {
  const int32_t queries[] = {64, 16}, keys[] = {10, 8192};
  constexpr int64_t kStep = 10;
  const int64_t elements = std::max(63 * kStep + 10, 15 * kStep + 8192);
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const fovea_dtype dtype : kMaskDtypes) {
      const Mask line(dtype, {1, 1, 1, 1, elements, 1, 1}, "k");  // permits everything: nothing ends a search early
      const size_t bytes = line.bytes().size();
      const reference::GuardedBuffer memory(bytes);
      std::memcpy(memory.data(), line.bytes().data(), bytes);
      for (const bool packed : {false, true}) {
        for (const bool swapped : {false, true}) {  // the long entry first
          const int32_t q[] = {queries[swapped], queries[!swapped]}, kv[] = {keys[swapped], keys[!swapped]};
          const int32_t cu_q[] = {0, q[0], 80}, cu_kv[] = {0, kv[0], 8202};
          Call call(packed ? Sizes{1, 1, 1, 80, 8202, 2, 2} : Sizes{2, 1, 1, 64, 8192, 2, 2});
          call.fill_random(116);
          call.params.weights.data = nullptr;
          call.params.mask = {memory.data(), {0, 0, kStep, 1}, dtype, 0};
          if (packed) {
            call.params.batch = 2;
            call.params.cu_seqlens_q = cu_q;
            call.params.cu_seqlens_kv = cu_kv;
          } else {
            call.params.seqlens_q = q;
            call.params.seqlens_kv = kv;
          }
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          expect_within_bound(call, "dtype " + std::to_string(dtype) + " packed " + std::to_string(packed) + " swapped " +
                                        std::to_string(swapped));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
