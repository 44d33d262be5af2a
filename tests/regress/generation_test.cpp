// Generation: tokens are appended to a cache step by step, and each step's queries attend to all that is there. Every row is the row of
// one causal call over the whole sequence, whatever the cache's type, its pages and the number of tokens of a step. The long tier decodes
// at every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "reference/oracle.h"
#include "support/levels.h"
#include "support/pool.h"

namespace fovea::testing {
namespace {

using reference::Expected;
using reference::Verdict;

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 bits(seed);
  std::vector<float> values(count);
  for (float &x : values) x = float(bits() >> 8) * 0x1p-22f - 2;
  return values;
}

fovea_tensor dense(std::vector<float> &values, int64_t heads, int64_t seq, int64_t dim) {
  return {values.data(), {heads * seq * dim, seq * dim, dim, 1}, FOVEA_F32, 0};
}

struct Setting {
  fovea_dtype dtype;
  int32_t page_size;  // 0: contiguous
  int64_t window;     // -1: none
  std::string name() const {
    return "dtype " + std::to_string(dtype) + ", pages of " + std::to_string(page_size) + ", window " + std::to_string(window);
  }
};

std::vector<int32_t> shuffled_pages(int64_t count) {
  std::vector<int32_t> pages(static_cast<size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(41));
  return pages;
}

// Two sequences, one shorter, and the cache that they grow in.
class Generation {
 public:
  static constexpr int64_t kTokens = 4096, kBatch = 2, kHeadsQ = 4, kHeadsKV = 2;
  static constexpr int32_t kLengths[kBatch] = {int32_t(kTokens), 2731};

  explicit Generation(const Setting &setting)
      : setting_(setting),
        dim_k_(reference::block_elements(setting.dtype) > 1 ? 32 : 20),
        dim_v_(reference::block_elements(setting.dtype) > 1 ? 32 : 24),
        columns_(setting.page_size ? (kTokens + setting.page_size - 1) / setting.page_size : 0),
        k_(pool(dim_k_)),
        v_(pool(dim_v_)),
        table_(shuffled_pages(kBatch * columns_ + 1)),
        needed_(table_),
        q_(random_floats(size_t(kBatch * kHeadsQ * kTokens * dim_k_), 42)),
        k_new_(random_floats(size_t(kBatch * kHeadsKV * kTokens * dim_k_), 43)),
        v_new_(random_floats(size_t(kBatch * kHeadsKV * kTokens * dim_v_), 44)),
        out_(size_t(kBatch * kHeadsQ * kTokens * dim_v_)),
        lse_(size_t(kBatch * kHeadsQ * kTokens)) {
    EXPECT_EQ(fovea_params_init(&whole_, sizeof whole_, kBatch, kHeadsQ, kHeadsKV, kTokens, kTokens, dim_k_, dim_v_), FOVEA_OK);
    whole_.q = dense(q_, kHeadsQ, kTokens, dim_k_);
    whole_.k = k_.tensor, whole_.v = v_.tensor;
    whole_.k_scale = k_.scale, whole_.v_scale = v_.scale;
    whole_.out = dense(out_, kHeadsQ, kTokens, dim_v_);
    whole_.lse = lse_.data();
    whole_.seqlens_q = whole_.seqlens_kv = kLengths;
    whole_.causal = 1;
    whole_.align = FOVEA_ALIGN_BOTTOM_RIGHT;
    whole_.window_left = setting.window;
    if (!setting.page_size) return;
    whole_.page_size = setting.page_size;
    whole_.num_pages = int64_t(table_.size());
    whole_.block_table = table_.data();
    whole_.block_table_stride = columns_;
  }

  // Appends the tokens [begin, begin + most) of each sequence that it has, and attends with their queries where that is asked for.
  void step(const fovea_context *context, int64_t begin, int64_t most, bool decode) {
    int32_t start[kBatch], count[kBatch], length[kBatch];
    for (int64_t b = 0; b < kBatch; ++b) {
      start[b] = int32_t(begin);
      count[b] = int32_t(std::clamp<int64_t>(kLengths[b] - begin, 0, most));
      length[b] = std::min(int32_t(begin) + count[b], kLengths[b]);
    }
    fovea_tensor k_new = dense(k_new_, kHeadsKV, kTokens, dim_k_), v_new = dense(v_new_, kHeadsKV, kTokens, dim_v_);
    k_new.data = k_new_.data() + begin * dim_k_;
    v_new.data = v_new_.data() + begin * dim_v_;
    ASSERT_EQ(fovea_kv_append(context, &whole_, &k_new, &v_new, start, count), FOVEA_OK) << fovea_last_error();
    if (!decode) return;
    fovea_params p = whole_;
    p.seq_q = most;
    p.seqlens_q = count;
    p.seqlens_kv = length;
    p.q.data = q_.data() + begin * dim_k_;
    p.out.data = out_.data() + begin * dim_v_;
    p.lse = lse_.data() + begin;
    evict(begin);
    if (setting_.page_size) p.block_table = needed_.data();
    ASSERT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_OK) << fovea_last_error();
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t h = 0; h < kHeadsQ; ++h)
        for (int64_t i = begin; i < begin + count[b]; ++i) rows_.push_back((b * kHeadsQ + h) * kTokens + i);
  }

  // Rows that were computed step by step, and those of one call, agree within the bound, with the oracle and with each other.
  void expect_one_causal_call(const fovea_context *context, const std::string &what) {
    std::vector<float> out(out_.size()), lse(lse_.size());
    fovea_params at_once = whole_;
    at_once.out.data = out.data();
    at_once.lse = lse.data();
    ASSERT_EQ(fovea_forward(context, &at_once, nullptr, 0), FOVEA_OK) << fovea_last_error();
    std::sort(rows_.begin(), rows_.end());
    Expected expected = reference::attention(whole_, false, rows_);
    const auto expect_near = [&](const fovea_params &p, const char *which) {
      const Verdict verdict = reference::compare(p, expected, rows_);
      EXPECT_TRUE(verdict.ok()) << setting_.name() << ", " << what << ", " << which << ": error / bound of out "
                                << verdict.out_ratio << " (row " << verdict.worst_row << "), lse " << verdict.lse_ratio;
      EXPECT_GE(verdict.worst_row, 0) << "nothing was compared";
    };
    expect_near(whole_, "step by step");
    expect_near(at_once, "at once");
    std::copy(out.begin(), out.end(), expected.out.begin());
    std::copy(lse.begin(), lse.end(), expected.lse.begin());
    expect_near(whole_, "step by step beside at once");
  }

 private:
  Pool pool(int64_t dim) const {
    return {setting_.dtype, setting_.page_size ? kBatch * columns_ + 1 : kBatch, kHeadsKV,
            setting_.page_size ? setting_.page_size : kTokens, dim};
  }

  // Pages that no window reaches any more are gone from the table.
  void evict(int64_t first_query) {
    if (setting_.window < 0 || !setting_.page_size) return;
    const int64_t gone = std::max<int64_t>(first_query - setting_.window, 0) / setting_.page_size;
    for (int64_t b = 0; b < kBatch; ++b)
      if (first_query < kLengths[b]) std::fill_n(needed_.begin() + b * columns_, gone, -1);
  }

  Setting setting_;
  int64_t dim_k_, dim_v_, columns_;
  Pool k_, v_;
  std::vector<int32_t> table_, needed_;
  std::vector<float> q_, k_new_, v_new_, out_, lse_;
  fovea_params whole_;
  std::vector<int64_t> rows_;
};

class GenerationTest : public LevelTest {
 protected:
  // Steps of these numbers of tokens, again and again. The quick tier decodes where a block of keys begins and ends, and last.
  void expect_steps(int32_t page_size, const std::vector<int64_t> &widths) const {
    const auto context = this->context(2);
    for (const fovea_dtype dtype : kCacheDtypes) {
      if (dtype == FOVEA_F16 && flushes_halves(level())) continue;
      for (const int64_t window : {-1, 300}) {
        Generation generation({dtype, page_size, window});
        size_t steps = 0;
        for (int64_t begin = 0, width; begin < Generation::kTokens; begin += width) {
          width = std::min(widths[steps++ % widths.size()], Generation::kTokens - begin);
          const int64_t end = begin + width, in_block = end % 256;
          const bool edge = in_block <= width || begin < 3 || end == Generation::kTokens || end == Generation::kLengths[1];
          generation.step(context.get(), begin, width, edge || long_tier());
          if (HasFatalFailure()) return;
        }
        generation.expect_one_causal_call(context.get(), "steps of up to " + std::to_string(widths.back()));
      }
    }
  }
};
FOVEA_TEST_EVERY_LEVEL(GenerationTest);

constexpr int32_t kPageSize = 48;  // neither a multiple nor a divisor of a block of keys

TEST_P(GenerationTest, TokenByToken) { expect_steps(0, {1}); }

TEST_P(GenerationTest, TokenByTokenInPages) { expect_steps(kPageSize, {1}); }

TEST_P(GenerationTest, SeveralTokensAStep) { expect_steps(0, {2, 3, 5, 8, 1, 13, 16}); }

TEST_P(GenerationTest, SeveralTokensAStepInPages) { expect_steps(kPageSize, {2, 3, 5, 8, 1, 13, 16}); }

// Entries that have a prefix of whole pages in common: all their queries over the prefix, each entry's over its own pages, merged.
TEST_P(GenerationTest, OfASharedPrefixIsOneCall) {
  constexpr int64_t kBatch = 3, kHeadsQ = 4, kHeadsKV = 2, kDim = 32, kPages = 12, kSharedPages = 6, kColumns = 8;
  constexpr int64_t kPrefix = kSharedPages * kPageSize;
  const std::vector<int32_t> table = {7,  2,  9,  4,  0,  11, 3,  -1,  //
                                      7,  2,  9,  4,  0,  11, 10, 1,   //
                                      7,  2,  9,  4,  0,  11, 6,  -1,  //
                                      -1, -1, -1, -1, -1, -1};         // where a table ends that begins behind the shared pages
  const int32_t lengths[] = {kPrefix + 31, kPrefix + 77, kPrefix + 48}, own_lengths[] = {31, 77, 48};
  const auto context = this->context(2);
  for (const fovea_dtype dtype : kCacheDtypes) {
    if (dtype == FOVEA_F16 && flushes_halves(level())) continue;
    for (const int32_t queries : {1, 5}) {
      Pool k(dtype, kPages, kHeadsKV, kPageSize, kDim), v(dtype, kPages, kHeadsKV, kPageSize, kDim);
      std::vector<float> k_new = random_floats(size_t(kBatch * kHeadsKV * kColumns * kPageSize * kDim), 45), v_new = k_new;
      std::reverse(v_new.begin(), v_new.end());
      const int32_t offsets[] = {0, queries, 2 * queries, 3 * queries}, all[] = {0, 3 * queries};
      const int64_t tokens = offsets[3];
      std::vector<float> q = random_floats(size_t(kHeadsQ * tokens * kDim), 46);
      fovea_params whole;
      ASSERT_EQ(fovea_params_init(&whole, sizeof whole, kBatch, kHeadsQ, kHeadsKV, tokens, kColumns * kPageSize, kDim, kDim),
                FOVEA_OK);
      whole.q = dense(q, kHeadsQ, tokens, kDim);
      whole.cu_seqlens_q = offsets;
      whole.k = k.tensor, whole.v = v.tensor;
      whole.k_scale = k.scale, whole.v_scale = v.scale;
      whole.page_size = kPageSize, whole.num_pages = kPages;
      whole.block_table = table.data(), whole.block_table_stride = kColumns;
      whole.seqlens_kv = lengths;
      whole.causal = 1, whole.align = FOVEA_ALIGN_BOTTOM_RIGHT;
      const fovea_tensor from_k = dense(k_new, kHeadsKV, kColumns * kPageSize, kDim),
                         from_v = dense(v_new, kHeadsKV, kColumns * kPageSize, kDim);
      const int32_t prefix_once[] = {kPrefix, 0, 0}, from_start[] = {0, 0, 0}, behind_it[] = {kPrefix, kPrefix, kPrefix};
      ASSERT_EQ(fovea_kv_append(context.get(), &whole, &from_k, &from_v, from_start, prefix_once), FOVEA_OK)
          << fovea_last_error();
      ASSERT_EQ(fovea_kv_append(context.get(), &whole, &from_k, &from_v, behind_it, own_lengths), FOVEA_OK) << fovea_last_error();

      fovea_params parts[2] = {whole, whole};
      parts[0].batch = 1, parts[0].cu_seqlens_q = all;
      parts[0].seqlens_kv = nullptr, parts[0].seq_kv = kPrefix, parts[0].causal = 0;
      parts[1].block_table = table.data() + kSharedPages;
      parts[1].seqlens_kv = own_lengths;
      parts[1].seq_kv = (kColumns - kSharedPages) * kPageSize;
      std::vector<float> out[2], lse[2];
      for (int i = 0; i < 2; ++i) {
        out[i].assign(size_t(kHeadsQ * tokens * kDim), 0);
        lse[i].assign(size_t(kHeadsQ * tokens), 0);
        parts[i].out = dense(out[i], kHeadsQ, tokens, kDim);
        parts[i].lse = lse[i].data();
        ASSERT_EQ(fovea_forward(context.get(), &parts[i], nullptr, 0), FOVEA_OK) << fovea_last_error();
      }
      whole.out = parts[0].out, whole.lse = parts[0].lse;
      const fovea_params *const both[] = {&parts[0], &parts[1]};
      ASSERT_EQ(fovea_merge(context.get(), both, 2, &whole), FOVEA_OK) << fovea_last_error();
      const Verdict verdict = reference::compare(whole, reference::attention(whole));
      EXPECT_TRUE(verdict.ok()) << "dtype " << dtype << ", " << queries << " queries: out " << verdict.out_ratio << ", lse "
                                << verdict.lse_ratio;
    }
  }
}

}  // namespace
}  // namespace fovea::testing
