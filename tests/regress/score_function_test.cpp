// The caller's own score function: which tiles it gets, what it finds in them, and what becomes of what it writes.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>

#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kThreads[] = {1, 2, 3, 7};
constexpr int32_t kModes[] = {FOVEA_SCORE_MODIFY, FOVEA_SCORE_REPLACE};

// The scaled dot product of an entry of a tile of FOVEA_SCORE_REPLACE.
float dot(const fovea_score_tile *t, int64_t r, int64_t c) {
  float sum = 0;
  for (int64_t d = 0; d < t->dim_k; ++d) sum += t->q[r * t->ldq + d] * t->k[c * t->ldk + d];
  return sum;
}

template <class Visit>  // visit(score, row in tile, column in tile)
void for_each_entry(const fovea_score_tile *t, Visit visit) {
  for (int64_t r = 0; r < t->rows; ++r)
    for (int64_t c = 0; c < t->cols; ++c) visit(t->score[r * t->row_stride + c * t->col_stride], r, c);
}

// Watches every tile of a call: within the call's bounds, each permitted entry seen, and holding what it must.
struct Watch {
  const Call *call;
  std::vector<int64_t> q_len, kv_len;                   // of each batch entry
  std::function<int64_t(int64_t b)> first_q, first_kv;  // where an entry's tokens begin
  // In natural units, for a modifying function; nothing is known of excluded entries.
  std::function<double(int64_t b, int64_t h, int64_t i, int64_t j)> expected;
  std::function<bool(int64_t b, int64_t h, int64_t i, int64_t j)> permitted;
  std::vector<std::atomic<int32_t>> seen;
  std::mutex mutex;
  std::string wrong;

  explicit Watch(Call &c, int64_t entries)
      : call(&c),
        q_len(size_t(entries), c.n.seq_q),
        kv_len(size_t(entries), c.n.seq_kv),
        first_q([](int64_t) { return 0; }),
        first_kv([](int64_t) { return 0; }),
        permitted([](int64_t, int64_t, int64_t, int64_t) { return true; }),
        seen(size_t(entries * c.n.heads_q * c.n.seq_q * c.n.seq_kv)) {
    c.params.score = watch;
    c.params.score_user = this;
  }

  size_t index(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return size_t(((b * call->n.heads_q + h) * call->n.seq_q + i) * call->n.seq_kv + j);
  }

  static void watch(void *user, const fovea_score_tile *t) {
    Watch &w = *static_cast<Watch *>(user);
    std::string wrong;
    w.look(t, &wrong);
    if (wrong.empty()) return;
    const std::lock_guard<std::mutex> lock(w.mutex);
    if (w.wrong.empty()) w.wrong = wrong;
  }

  void look(const fovea_score_tile *t, std::string *problem) {
    const Sizes &n = call->n;
    const auto complain = [&](const std::string &what) {
      *problem = what + " in the tile " + std::to_string(t->rows) + "x" + std::to_string(t->cols) + " at batch " +
                 std::to_string(t->batch) + " head " + std::to_string(t->head) + " row " + std::to_string(t->row0) + " column " +
                 std::to_string(t->col0);
    };
    if (t->batch < 0 || t->batch >= int64_t(q_len.size()) || t->head < 0 || t->head >= n.heads_q) return complain("no such head");
    if (t->rows < 1 || t->cols < 1 || t->rows > FOVEA_SCORE_TILE_MAX || t->cols > FOVEA_SCORE_TILE_MAX) return complain("size");
    if (t->row0 < 0 || t->row0 + t->rows > q_len[size_t(t->batch)]) return complain("rows that are not there");
    if (t->col0 < 0 || t->col0 + t->cols > kv_len[size_t(t->batch)]) return complain("columns that are not there");
    const bool replaces = call->params.score_mode == FOVEA_SCORE_REPLACE;
    if (replaces != (t->q != nullptr) || replaces != (t->k != nullptr)) return complain("q and k given or not");
    if (replaces && t->dim_k != n.dim_k) return complain("dim_k");
    const auto at = [](const fovea_tensor &tensor, int64_t b, int64_t h, int64_t s, int64_t d) {
      return static_cast<const float *>(
          tensor.data)[b * tensor.stride[0] + h * tensor.stride[1] + s * tensor.stride[2] + d * tensor.stride[3]];
    };
    const fovea_params &p = call->params;
    const int64_t head_kv = t->head * n.heads_kv / n.heads_q;
    for (int64_t r = 0; r < t->rows && replaces; ++r)
      for (int64_t d = 0; d < n.dim_k; ++d)
        if (t->q[r * t->ldq + d] != at(p.q, p.cu_seqlens_q ? 0 : t->batch, t->head, first_q(t->batch) + t->row0 + r, d))
          return complain("another query");
    for (int64_t c = 0; c < t->cols && replaces; ++c) {
      bool any = false;
      for (int64_t r = 0; r < t->rows; ++r) any |= permitted(t->batch, t->head, t->row0 + r, t->col0 + c);
      for (int64_t d = 0; d < n.dim_k && any; ++d)
        if (t->k[c * t->ldk + d] != at(p.k, p.cu_seqlens_kv ? 0 : t->batch, head_kv, first_kv(t->batch) + t->col0 + c, d))
          return complain("another key");
    }
    for_each_entry(t, [&](float &score, int64_t r, int64_t c) {
      const int64_t i = t->row0 + r, j = t->col0 + c;
      ++seen[index(t->batch, t->head, i, j)];
      const bool wanted = permitted(t->batch, t->head, i, j);
      if (replaces) {
        score = wanted ? p.scale * dot(t, r, c) : 7;
      } else if (wanted && expected) {
        const double right = expected(t->batch, t->head, i, j);
        if (!(std::fabs(double(score) - right) <= 4e-6 * (1 + std::fabs(right))))
          complain("a score of " + std::to_string(score) + " instead of " + std::to_string(right) + " at " + std::to_string(i) +
                   "," + std::to_string(j));
      }
    });
    // Entries are apart: each keeps a number of its own.
    std::vector<float> kept;
    for_each_entry(t, [&](float &score, int64_t, int64_t) {
      kept.push_back(score);
      score = float(kept.size());
    });
    size_t entry = 0;
    for_each_entry(t, [&](float &score, int64_t, int64_t) {
      if (score != float(entry + 1)) complain("entries that overlap");
      score = kept[entry++];
    });
  }

  void expect_seen(const std::string &what) const {
    EXPECT_EQ(wrong, "") << what;
    for (size_t b = 0; b < q_len.size(); ++b)
      for (int64_t h = 0; h < call->n.heads_q; ++h)
        for (int64_t i = 0; i < q_len[b]; ++i)
          for (int64_t j = 0; j < kv_len[b]; ++j) {
            if (!permitted(int64_t(b), h, i, j)) continue;
            ASSERT_GT(seen[index(int64_t(b), h, i, j)].load(), 0)
                << what << ": not seen: " << b << " " << h << " " << i << " " << j;
          }
  }
};

class ScoreFunctionTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(ScoreFunctionTest);

// Every permitted entry is seen, where and as it should be; writing nothing, or the scaled dot product, changes nothing but roundings.
TEST_P(ScoreFunctionTest, SeesEveryPermittedEntry) {
  const Sizes sizes[] = {{1, 1, 1, 1, 1, 1, 1},     {2, 4, 2, 3, 33, 5, 4},    {1, 1, 1, 1, 1300, 8, 9}, {2, 6, 2, 50, 300, 8, 9},
                         {1, 3, 3, 97, 257, 16, 7}, {1, 8, 1, 300, 263, 8, 8}, {1, 1, 1, 2, 9000, 4, 3}};
  for (const int32_t threads : kThreads) {
    for (const char *exec : {"omp", "pool"}) {
      const auto context = this->context(threads, exec);
      for (const Sizes &n : sizes) {
        if (threads != 3 && n.seq_q * n.seq_kv * n.heads_q > 100000) continue;
        for (const int32_t mode : kModes) {
          for (const bool causal : {false, true}) {
            const std::string what = std::to_string(n.heads_q) + " heads " + std::to_string(n.seq_q) + "x" +
                                     std::to_string(n.seq_kv) + " mode " + std::to_string(mode) + " causal " +
                                     std::to_string(causal) + " threads " + std::to_string(threads);
            Call call(n), plain(n);
            call.fill_random(141);
            plain.fill_random(141);
            if (causal) call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
            if (causal) plain.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
            call.params.score_mode = mode;
            Watch watch(call, n.batch);
            const int64_t shift = n.seq_kv - n.seq_q;
            if (causal) watch.permitted = [=](int64_t, int64_t, int64_t i, int64_t j) { return j <= i + shift; };
            watch.expected = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
              double sum = 0;
              for (int64_t d = 0; d < n.dim_k; ++d)
                sum += double(call.q_at(b, h, i, d)) * double(call.k_at(b, h * n.heads_kv / n.heads_q, j, d));
              return sum * double(call.params.scale);
            };
            ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
            watch.expect_seen(what);
            if (HasFailure()) return;
            ASSERT_EQ(plain.run(context.get()), FOVEA_OK);
            for (size_t i = 0; i < call.out.size(); ++i) ASSERT_NEAR(call.out[i], plain.out[i], 2e-6) << what << " " << i;
            for (size_t i = 0; i < call.weights.size(); ++i)
              ASSERT_NEAR(call.weights[i], plain.weights[i], 2e-6) << what << " " << i;
            for (size_t i = 0; i < call.lse.size(); ++i) {
              if (std::isinf(plain.lse[i]))
                ASSERT_EQ(call.lse[i], plain.lse[i]) << what << " " << i;
              else
                ASSERT_NEAR(call.lse[i], plain.lse[i], 2e-6 * (1 + std::fabs(plain.lse[i]))) << what << " " << i;
            }
          }
        }
      }
    }
  }
}

// What a modifying function finds: scale, softcap, ALiBi and the additive mask are in the scores, in natural units.
TEST_P(ScoreFunctionTest, FindsFinishedScores) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const Sizes &n : {Sizes{2, 4, 2, 3, 33, 5, 4}, Sizes{2, 4, 1, 50, 300, 8, 9}, Sizes{1, 2, 2, 1, 700, 8, 9}}) {
      const float slopes[] = {0.5f, 0.25f, 0.125f, 2};
      Call call(n);
      call.fill_random(142);
      call.params.score_mode = FOVEA_SCORE_MODIFY;
      call.params.scale = 0.7f;
      call.params.softcap = 0.75f;
      call.params.alibi_slopes = slopes;
      call.params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
      const auto bias = [](int64_t h, int64_t i, int64_t j) {
        const int64_t lot = (h * 3 + i * 5 + j * 7 + i * j) % 11;
        return lot == 4 ? -kInfinity : float(lot) / 8;
      };
      Mask mask(FOVEA_F32, n, "hqk");
      mask.set_all([&](int64_t, int64_t h, int64_t i, int64_t j) { return bias(h, i, j); });
      call.params.mask = mask.tensor();
      Watch watch(call, n.batch);
      watch.permitted = [&](int64_t, int64_t h, int64_t i, int64_t j) { return !std::isinf(bias(h, i, j)); };
      watch.expected = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
        double sum = 0;
        for (int64_t d = 0; d < n.dim_k; ++d)
          sum += double(call.q_at(b, h, i, d)) * double(call.k_at(b, h * n.heads_kv / n.heads_q, j, d));
        const double capped = 0.75 * std::tanh(sum * double(0.7f) / 0.75);
        return capped - double(slopes[h]) * std::fabs(double(i + n.seq_kv - n.seq_q - j)) + double(bias(h, i, j));
      };
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      watch.expect_seen(std::to_string(n.seq_q) + "x" + std::to_string(n.seq_kv));
      if (HasFailure()) return;
    }
  }
}

// Softcap, ALiBi and mask are applied to what a replacing function writes, the scale is not.
TEST_P(ScoreFunctionTest, ReplacesTheFirstStepOnly) {
  const auto context = this->context(2);
  for (const int64_t queries : {1, 3, 50}) {
    const float slope = 0.5f;
    Call call({1, 1, 1, queries, 2, 1, 1});
    call.v = {1, 0};
    call.params.scale = 100;
    call.params.softcap = 2;
    call.params.alibi_slopes = &slope;
    call.params.align = FOVEA_ALIGN_TOP_LEFT;
    Mask mask(FOVEA_F32, call.n, "k");
    mask.set(0, 0, 0, 0, 0.25f);
    call.params.mask = mask.tensor();
    call.params.score_mode = FOVEA_SCORE_REPLACE;
    call.params.score = [](void *, const fovea_score_tile *t) {
      for_each_entry(t, [&](float &score, int64_t, int64_t c) { score = t->col0 + c ? -1.0f : 3.0f; });
    };
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    for (int64_t i = 0; i < queries; ++i) {
      const double first = 2 * std::tanh(1.5) - 0.5 * double(i) + 0.25,
                   second = 2 * std::tanh(-0.5) - 0.5 * std::fabs(double(i - 1));
      EXPECT_NEAR(call.out_at(0, 0, i, 0), 1 / (1 + std::exp(second - first)), 2e-6) << i;
    }
  }
}

// Attention that is no dot product: score = sum over d of tanh(q_d + k_d) * w_d.
TEST_P(ScoreFunctionTest, AdditiveAttention) {
  static const float w[] = {0.5f, -1, 2, 0.25f, 1, -0.75f, 0.125f, 1.5f};
  const auto additive = [](void *user, const fovea_score_tile *t) {
    const auto *weights = static_cast<const float *>(user);
    for_each_entry(t, [&](float &score, int64_t r, int64_t c) {
      score = 0;
      for (int64_t d = 0; d < t->dim_k; ++d) score += std::tanh(t->q[r * t->ldq + d] + t->k[c * t->ldk + d]) * weights[d];
    });
  };
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const Sizes &n : {Sizes{2, 4, 2, 3, 33, 8, 9}, Sizes{1, 4, 1, 50, 300, 8, 9}, Sizes{1, 2, 2, 1, 700, 8, 9}}) {
      for (const bool causal : {false, true}) {
        Call call(n);
        call.fill_random(143);
        if (causal) call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
        call.params.score = additive;
        call.params.score_user = const_cast<float *>(w);
        call.params.score_mode = FOVEA_SCORE_REPLACE;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        for (int64_t b = 0; b < n.batch; ++b)
          for (int64_t h = 0; h < n.heads_q; ++h)
            for (int64_t i = 0; i < n.seq_q; ++i) {
              const int64_t keys = causal ? i + n.seq_kv - n.seq_q + 1 : n.seq_kv, kv = h * n.heads_kv / n.heads_q;
              double sum = 0;
              std::vector<double> out(size_t(n.dim_v), 0.0);
              for (int64_t j = 0; j < keys; ++j) {
                double score = 0;
                for (int64_t d = 0; d < n.dim_k; ++d)
                  score += std::tanh(double(call.q_at(b, h, i, d)) + double(call.k_at(b, kv, j, d))) * double(w[d]);
                sum += std::exp(score);
                for (int64_t c = 0; c < n.dim_v; ++c) out[size_t(c)] += std::exp(score) * double(call.v_at(b, kv, j, c));
              }
              for (int64_t c = 0; c < n.dim_v; ++c)
                ASSERT_NEAR(call.out_at(b, h, i, c), out[size_t(c)] / sum, 1e-5) << h << " " << i;
              ASSERT_NEAR(call.lse_at(b, h, i), std::log(sum), 1e-5) << h << " " << i;
            }
      }
    }
  }
}

// In packed and padded batches a tile names its entry, and rows and columns within it.
TEST_P(ScoreFunctionTest, NamesItsSegment) {
  for (const int32_t threads : kThreads) {
    const auto context = this->context(threads);
    for (const int32_t mode : kModes) {
      for (const bool packed : {true, false}) {
        const int32_t q[] = {2, 9, 9, 62, 63}, kv[] = {0, 40, 50, 310, 310};
        const int32_t q_lengths[] = {7, 0, 53, 1}, kv_lengths[] = {40, 10, 260, 0};
        Call call(packed ? Sizes{1, 4, 2, 70, 320, 8, 9} : Sizes{4, 4, 2, 53, 260, 8, 9});
        call.fill_random(144);
        call.params.weights.data = nullptr;
        call.params.score_mode = mode;
        if (packed) {
          call.params.batch = 4;
          call.params.cu_seqlens_q = q;
          call.params.cu_seqlens_kv = kv;
        } else {
          call.params.seqlens_q = q_lengths;
          call.params.seqlens_kv = kv_lengths;
        }
        call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
        Watch watch(call, 4);
        watch.q_len.assign(std::begin(q_lengths), std::end(q_lengths));
        watch.kv_len.assign(std::begin(kv_lengths), std::end(kv_lengths));
        if (packed) {
          watch.first_q = [&](int64_t b) { return q[b]; };
          watch.first_kv = [&](int64_t b) { return kv[b]; };
        }
        watch.permitted = [&](int64_t b, int64_t, int64_t i, int64_t j) { return j <= i + kv_lengths[b] - q_lengths[b]; };
        watch.expected = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
          double sum = 0;
          for (int64_t d = 0; d < 8; ++d)
            sum += double(call.q_at(packed ? 0 : b, h, (packed ? q[b] : 0) + i, d)) *
                   double(call.k_at(packed ? 0 : b, h / 2, (packed ? kv[b] : 0) + j, d));
          return sum * double(call.params.scale);
        };
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        watch.expect_seen("mode " + std::to_string(mode) + " packed " + std::to_string(packed));
        if (HasFailure()) return;
      }
    }
  }
}

// Queries and keys of strided dims are handed over as rows.
TEST_P(ScoreFunctionTest, RowsOfStridedTensors) {
  const auto context = this->context(2);
  for (const Sizes &n : {Sizes{2, 4, 2, 50, 300, 8, 9}, Sizes{1, 2, 2, 1, 300, 8, 9}}) {
    Call dense(n), call(n);
    dense.fill_random(145);
    dense.params.score_mode = FOVEA_SCORE_REPLACE;
    Watch watch_dense(dense, n.batch);
    ASSERT_EQ(dense.run(context.get()), FOVEA_OK) << fovea_last_error();
    const auto transpose = [](const std::vector<float> &from, fovea_tensor &t, int64_t seq, int64_t dim) {
      auto *to = static_cast<float *>(t.data);
      for (size_t at = 0; at < from.size(); ++at) {
        const int64_t d = int64_t(at) % dim, s = int64_t(at) / dim % seq, head = int64_t(at) / dim / seq;
        to[(head * dim + d) * seq + s] = from[at];
      }
      t.stride[2] = 1;
      t.stride[3] = seq;
    };
    call.v = dense.v;
    transpose(dense.q, call.params.q, n.seq_q, n.dim_k);
    transpose(dense.k, call.params.k, n.seq_kv, n.dim_k);
    call.params.score_mode = FOVEA_SCORE_REPLACE;
    Watch watch(call, n.batch);
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    watch.expect_seen("strided");
    EXPECT_TRUE(same_bits(call.out, dense.out));
    EXPECT_TRUE(same_bits(call.lse, dense.lse));
  }
}

// NaN and +infinity make their row NaN, -infinity excludes, in that row only.
TEST_P(ScoreFunctionTest, WritesThatAreNotFinite) {
  struct Write {
    float value, scale;
    int64_t key;
  };
  const auto write = [](void *user, const fovea_score_tile *t) {
    const Write &w = *static_cast<const Write *>(user);
    for_each_entry(t, [&](float &score, int64_t r, int64_t c) {
      if (t->q) score = dot(t, r, c) * w.scale;
      if ((t->row0 + r) % 3 == 1 && t->head == 1 && t->col0 + c == w.key) score = w.value;
    });
  };
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int32_t mode : kModes) {
      for (const Sizes &n : {Sizes{1, 2, 1, 2, 9, 8, 9}, Sizes{1, 2, 1, 50, 300, 8, 9}, Sizes{1, 2, 1, 4, 1300, 8, 9}}) {
        for (const int64_t key : {int64_t{0}, n.seq_kv / 2, n.seq_kv - 1}) {
          Write none{0, 1 / std::sqrt(8.0f), -1};
          Call clean(n);
          clean.fill_random(146);
          clean.params.score = write;
          clean.params.score_user = &none;
          clean.params.score_mode = mode;
          ASSERT_EQ(clean.run(context.get()), FOVEA_OK) << fovea_last_error();
          for (const float value : {std::nanf(""), kInfinity, -kInfinity}) {
            Write bad{value, none.scale, key};
            Call call(n);
            call.fill_random(146);
            call.params.score = write;
            call.params.score_user = &bad;
            call.params.score_mode = mode;
            ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
            for (int64_t h = 0; h < 2; ++h)
              for (int64_t i = 0; i < n.seq_q; ++i) {
                const std::string where = "mode " + std::to_string(mode) + " " + std::to_string(n.seq_q) + "x" +
                                          std::to_string(n.seq_kv) + " key " + std::to_string(key) + " " + std::to_string(value) +
                                          " head " + std::to_string(h) + " row " + std::to_string(i);
                if (h != 1 || i % 3 != 1) {
                  ASSERT_TRUE(same_row(call, clean, {0, h, i})) << where;
                } else if (value != -kInfinity) {
                  for (int64_t c = 0; c < 9; ++c) ASSERT_TRUE(std::isnan(call.out_at(0, h, i, c))) << where;
                  ASSERT_TRUE(std::isnan(call.lse_at(0, h, i))) << where;
                } else {
                  ASSERT_EQ(call.weight_at(0, h, i, key), 0.0f) << where;
                  const double rest = 1 - double(clean.weight_at(0, h, i, key));
                  ASSERT_NEAR(call.lse_at(0, h, i), double(clean.lse_at(0, h, i)) + std::log(rest), 1e-5) << where;
                }
              }
          }
        }
      }
    }
  }
}

// What it excludes is excluded, whatever a mask adds there; in FOVEA_SCORE_REPLACE that is decided before the mask is added.
TEST_P(ScoreFunctionTest, ExclusionsBesideMasksThatAreNotFinite) {
  struct Write {
    int64_t first, key;  // excludes keys below first, and key
  };
  const auto write = [](void *user, const fovea_score_tile *t) {
    const Write &w = *static_cast<const Write *>(user);
    for_each_entry(t, [&](float &score, int64_t, int64_t c) {
      const int64_t j = t->col0 + c;
      if (t->q) score = 0.5f;
      if (j < w.first || j == w.key) score = -kInfinity;
    });
  };
  const float slope = 0x1p-10f;
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int32_t mode : kModes) {
      for (const int64_t queries : {1, 20}) {
        for (const int64_t keys : {24, 300}) {
          for (const float bad : {kInfinity, std::nanf("")}) {
            for (const Write &w : {Write{0, 3}, Write{8, 12}, Write{8, 15}, Write{0, 0}}) {
              for (const int more : {0, 1, 2}) {
                Write user = w;
                Call call({1, 1, 1, queries, keys, 4, 4}), clean({1, 1, 1, queries, keys, 4, 4});
                Mask mask(FOVEA_F32, call.n, "k"), zeros(FOVEA_F32, call.n, "k");
                mask.set(0, 0, 0, w.key, bad);
                call.params.mask = mask.tensor();
                clean.params.mask = zeros.tensor();
                for (Call *each : {&call, &clean}) {
                  each->params.score = write;
                  each->params.score_user = &user;
                  each->params.score_mode = mode;
                  if (more == 1) each->params.softcap = 2;
                  if (more == 2) each->params.alibi_slopes = &slope, each->params.align = FOVEA_ALIGN_TOP_LEFT;
                }
                ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
                ASSERT_EQ(clean.run(context.get()), FOVEA_OK) << fovea_last_error();
                const std::string where = "mode " + std::to_string(mode) + " " + std::to_string(queries) + "x" +
                                          std::to_string(keys) + " " + std::to_string(bad) + " at " + std::to_string(w.key) +
                                          " more " + std::to_string(more);
                for (const float out : call.out) ASSERT_NEAR(out, 1, 1e-6) << where;
                for (int64_t i = 0; i < queries; ++i) ASSERT_EQ(call.weight_at(0, 0, i, w.key), 0.0f) << where;
                for (size_t i = 0; i < call.lse.size(); ++i) ASSERT_NEAR(call.lse[i], clean.lse[i], 1e-6) << where;
                expect_within_bound(call, where);
              }
            }
          }
        }
      }
    }
  }
}

// In a call with a score function any score of -infinity excludes its key: also one that q and k make and the function leaves alone.
TEST_P(ScoreFunctionTest, MinusInfinityOfTheDotProductExcludes) {
  const auto context = this->context(2);
  for (const int64_t queries : {1, 3, 50}) {
    for (const int64_t keys : {2, 9, 300}) {
      Call call({1, 1, 1, queries, keys, 1, 2});
      for (float &q : call.q) q = 1;
      for (int64_t j = 0; j < keys; j += 2) {
        call.k_at(0, 0, j, 0) = -kInfinity;
        call.v_at(0, 0, j, 0) = std::nanf("");
      }
      call.params.score = [](void *, const fovea_score_tile *) {};
      call.params.score_mode = FOVEA_SCORE_MODIFY;
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      for (const float out : call.out) ASSERT_EQ(out, 1.0f) << queries << "x" << keys;
      for (const float lse : call.lse) ASSERT_NEAR(lse, std::log(double(keys / 2)), 1e-6) << queries << "x" << keys;
    }
  }
}

// Scores of any size, rising and falling: the softmax stays exact whatever is written.
TEST_P(ScoreFunctionTest, WritesOfAnySize) {
  const auto steps = [](void *user, const fovea_score_tile *t) {
    const float size = *static_cast<const float *>(user);
    for_each_entry(t, [&](float &score, int64_t r, int64_t c) {
      const int64_t j = t->col0 + c, i = t->row0 + r;
      score = j % 100 == 99 ? size * float(j + i % 5) / 100 : float(j % 10) / 10;
    });
  };
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int32_t mode : kModes) {
      for (const int64_t queries : {1, 3, 50}) {
        for (float size : {1.0f, 15.0f, 100.0f, 1e4f, -1e4f, 1e30f}) {
          Call call({1, 2, 1, queries, 900, 4, 5});
          call.fill_random(147);
          call.params.score = steps;
          call.params.score_user = &size;
          call.params.score_mode = mode;
          ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
          expect_within_bound(
              call, "mode " + std::to_string(mode) + " " + std::to_string(queries) + " queries, size " + std::to_string(size));
        }
      }
    }
  }
}

// Tiles far from what is permitted are left out: a narrow window, and a mask of eight blocks along the diagonal.
TEST_P(ScoreFunctionTest, IsNotCalledForWhatIsFarAway) {
  constexpr int64_t kLength = 2048;
  const auto context = this->context(2);
  for (const bool masked : {false, true}) {
    std::atomic<int64_t> entries{0};
    Call call({1, 1, 1, kLength, kLength, 4, 4});
    call.params.weights.data = nullptr;
    Mask mask(FOVEA_BOOL, call.n, "qk");
    if (masked) {
      mask.permit_where([](int64_t, int64_t, int64_t i, int64_t j) { return i / (kLength / 8) == j / (kLength / 8); });
      call.params.mask = mask.tensor();
    } else {
      call.params.window_left = 16;
      call.params.window_right = 0;
      call.params.align = FOVEA_ALIGN_TOP_LEFT;
    }
    call.params.score = [](void *user, const fovea_score_tile *t) {
      *static_cast<std::atomic<int64_t> *>(user) += t->rows * t->cols;
    };
    call.params.score_user = &entries;
    call.params.score_mode = FOVEA_SCORE_MODIFY;
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    EXPECT_LT(entries, kLength * kLength * 4 / 10) << "masked " << masked;
    for (const float out : call.out) ASSERT_EQ(out, 1.0f);
  }
}

}  // namespace
}  // namespace fovea::testing
