// A window [p - left, p + right] around a query at position p is inclusive, exact to the key, and -1 means unbounded. Set probe: the weights
// of equal scores are 1 / |set| on exactly the permitted keys. Count probe: exp(LSE) is the number of keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "dispatch/dispatch.h"
#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

constexpr int32_t kCorners[] = {FOVEA_ALIGN_TOP_LEFT, FOVEA_ALIGN_BOTTOM_RIGHT};

struct Lengths {
  int64_t queries, keys;
};

struct Window {
  int64_t left, right;
};

void set_window(Call &call, Window window, int32_t align) {
  call.params.window_left = window.left;
  call.params.window_right = window.right;
  call.params.align = align;
}

// The keys [begin, end) that query i sees.
struct Keys {
  int64_t begin, end;
};
Keys keys_seen(Lengths n, Window window, bool causal, int32_t align, int64_t i) {
  const int64_t position = align == FOVEA_ALIGN_BOTTOM_RIGHT ? i + n.keys - n.queries : i;
  Keys keys{0, n.keys};
  if (window.left != -1 && window.left < position) keys.begin = std::min(position - window.left, n.keys);
  if (window.right != -1 && window.right < INT64_MAX / 2) keys.end = std::clamp(position + window.right + 1, int64_t{0}, n.keys);
  if (causal) keys.end = std::clamp(position + 1, int64_t{0}, keys.end);
  if (keys.end < keys.begin) keys.end = keys.begin;
  return keys;
}

class WindowTest : public LevelTest {
 protected:
  std::vector<Lengths> tile_edges() const {
    const KernelEntry *entries = nullptr;
    const int32_t count = kernel_entries(&entries);
    std::vector<Lengths> lengths;
    for (int32_t e = 0; e < count; ++e) {
      if (entries[e].level != GetParam() || !fits_vectors(entries[e], cpu_features())) continue;
      const Tuning &tuning = entries[e].kernel->tuning;
      for (const int64_t queries : {tuning.panel_rows, tuning.window_panel_rows})
        for (const int64_t keys : {kKeyTile, tuning.panel_rows, kBlockKeys})
          for (int64_t edge = -1; edge <= 1; ++edge) lengths.push_back({queries + edge, keys + edge});
    }
    return lengths;
  }

  static void expect_set(Call &call, Lengths n, Window window, bool causal, int32_t align) {
    for (int64_t i = 0; i < n.queries; ++i) {
      const Keys keys = keys_seen(n, window, causal, align, i);
      const int64_t count = keys.end - keys.begin;
      const auto where = [&] {
        return std::to_string(n.queries) + "x" + std::to_string(n.keys) + " window " + std::to_string(window.left) + "," +
               std::to_string(window.right) + " causal " + std::to_string(causal) + " align " + std::to_string(align) + " row " +
               std::to_string(i);
      };
      if (count == 0) {
        expect_empty(call, {0, 0, i});
        continue;
      }
      ASSERT_EQ(call.out_at(0, 0, i, 0), 1.0f) << where();
      const float weight = 1.0f / float(count);
      for (int64_t j = 0; j < n.keys; ++j)
        ASSERT_EQ(call.weight_at(0, 0, i, j), j >= keys.begin && j < keys.end ? weight : 0.0f) << where() << " key " << j;
      ASSERT_EQ(std::llround(std::exp(double(call.lse_at(0, 0, i)))), count) << where();
    }
  }
};
FOVEA_TEST_EVERY_LEVEL(WindowTest);

TEST_P(WindowTest, SetProbe) {
  std::vector<Lengths> lengths = {{1, 1},   {2, 5},    {5, 2},    {1, 7},    {7, 1},    {5, 6},   {1, 300},
                                  {3, 600}, {70, 300}, {129, 64}, {300, 70}, {4, 1300}, {16, 300}};
  const std::vector<Lengths> edges = tile_edges();
  lengths.insert(lengths.end(), edges.begin(), edges.end());
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const Lengths n : lengths) {
      Call call({1, 1, 1, n.queries, n.keys, 3, 2});
      for (const Window window :
           {Window{0, 0}, Window{-1, 0}, Window{0, -1}, Window{-1, -1}, Window{1, 0}, Window{0, 1}, Window{7, 8}, Window{8, 7},
            Window{16, 16}, Window{32, 64}, Window{n.keys - 1, 0}, Window{n.keys, 0}, Window{-1, 3}, Window{3, -1},
            Window{n.keys + n.queries, n.keys + n.queries}}) {
        for (const int32_t align : kCorners) {
          for (const bool causal : {false, true}) {
            set_window(call, window, align);
            call.params.causal = causal;
            ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
            expect_set(call, n, window, causal, align);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// (seq_q, seq_kv), window and corner: how many keys each query sees.
TEST_P(WindowTest, WrittenOut) {
  const auto context = this->context();
  const auto counts = [&](Lengths n, Window window, int32_t align) {
    Call call({1, 1, 1, n.queries, n.keys, 1, 1});
    set_window(call, window, align);
    EXPECT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < n.queries; ++i) {
      seen.push_back(0);
      for (int64_t j = 0; j < n.keys; ++j) seen.back() += call.weight_at(0, 0, i, j) > 0;
    }
    return seen;
  };
  EXPECT_EQ(counts({4, 4}, {1, 0}, FOVEA_ALIGN_TOP_LEFT), (std::vector<int64_t>{1, 2, 2, 2}));
  EXPECT_EQ(counts({4, 4}, {1, 1}, FOVEA_ALIGN_TOP_LEFT), (std::vector<int64_t>{2, 3, 3, 2}));
  EXPECT_EQ(counts({4, 4}, {0, -1}, FOVEA_ALIGN_TOP_LEFT), (std::vector<int64_t>{4, 3, 2, 1}));
  EXPECT_EQ(counts({2, 5}, {2, 0}, FOVEA_ALIGN_BOTTOM_RIGHT), (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(counts({2, 5}, {2, 0}, FOVEA_ALIGN_TOP_LEFT), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(counts({5, 2}, {1, 1}, FOVEA_ALIGN_BOTTOM_RIGHT), (std::vector<int64_t>{0, 0, 1, 2, 2}));
  EXPECT_EQ(counts({5, 2}, {1, 1}, FOVEA_ALIGN_TOP_LEFT), (std::vector<int64_t>{2, 2, 1, 0, 0}));
}

TEST_P(WindowTest, CountProbe) {
  const struct {
    Lengths n;
    Window window;
  } cases[] = {{{4096, 4096}, {2048, 0}}, {{256, 256}, {16, 16}}, {{129, 64}, {32, 64}}, {{64, 4096}, {1000, 17}},
               {{1, 5000}, {4094, 0}},    {{4, 5000}, {255, -1}}, {{1, 20000}, {511, 0}}};
  for (const int32_t threads : {1, 2, 3, 7}) {
    const auto context = this->context(threads);
    for (const auto &c : cases) {
      if (c.n.queries == 4096 && threads != 2) continue;  // once is enough of the long one
      for (const int32_t align : kCorners) {
        Call call({1, 1, 1, c.n.queries, c.n.keys, 1, 2});
        set_window(call, c.window, align);
        call.params.weights.data = nullptr;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        int64_t interior = 0;
        for (int64_t i = 0; i < c.n.queries; ++i) {
          const Keys keys = keys_seen(c.n, c.window, false, align, i);
          const int64_t count = keys.end - keys.begin;
          interior = std::max(interior, count);
          ASSERT_EQ(call.out_at(0, 0, i, 1), count ? 1.0f : 0.0f) << c.n.queries << "x" << c.n.keys << " row " << i;
          ASSERT_EQ(std::llround(std::exp(double(call.lse_at(0, 0, i)))), count)
              << c.n.queries << "x" << c.n.keys << " row " << i;
        }
        if (c.n.queries == 4096) {
          EXPECT_EQ(interior, 2049);
        }
      }
    }
  }
}

TEST_P(WindowTest, OfTheDiagonalIsTheValue) {
  const auto context = this->context(2);
  for (const Lengths n : {Lengths{1, 1}, Lengths{1, 300}, Lengths{4, 300}, Lengths{9, 9}, Lengths{60, 300}, Lengths{700, 700}}) {
    Call call({1, 2, 1, n.queries, n.keys, 8, 9});
    call.fill_random(71);
    set_window(call, {0, 0}, FOVEA_ALIGN_BOTTOM_RIGHT);
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < n.queries; ++i)
        for (int64_t c = 0; c < 9; ++c) ASSERT_EQ(call.out_at(0, h, i, c), call.v_at(0, 0, i + n.keys - n.queries, c)) << i;
  }
}

TEST_P(WindowTest, OfEveryKeyBeforeIsCausal) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const Lengths n : {Lengths{1, 300}, Lengths{5, 6}, Lengths{129, 64}, Lengths{100, 700}, Lengths{300, 300}}) {
      for (const int32_t align : kCorners) {
        Call causal({1, 2, 1, n.queries, n.keys, 8, 9});
        causal.fill_random(72);
        causal.causal(align);
        ASSERT_EQ(causal.run(context.get()), FOVEA_OK);
        Call call({1, 2, 1, n.queries, n.keys, 8, 9});
        call.fill_random(72);
        const int64_t most = std::max(n.queries, n.keys);
        for (const Window window : {Window{-1, 0}, Window{most - 1, 0}, Window{most, 0}, Window{INT64_MAX, 0}}) {
          for (const bool both : {false, true}) {
            set_window(call, window, align);
            call.params.causal = both;
            ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
            EXPECT_TRUE(same_bits(call.out, causal.out)) << n.queries << "x" << n.keys << " left " << window.left;
            EXPECT_TRUE(same_bits(call.lse, causal.lse)) << n.queries << "x" << n.keys << " left " << window.left;
            EXPECT_TRUE(same_bits(call.weights, causal.weights)) << n.queries << "x" << n.keys << " left " << window.left;
          }
        }
        // The right bound of a causal call is the query itself, whatever the window says.
        set_window(call, {-1, 5}, align);
        call.params.causal = 1;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        EXPECT_TRUE(same_bits(call.out, causal.out)) << n.queries << "x" << n.keys;
      }
    }
  }
}

TEST_P(WindowTest, UnboundedIsNoWindow) {
  const auto context = this->context(2);
  for (const Lengths n : {Lengths{1, 300}, Lengths{100, 700}}) {
    Call none({1, 2, 1, n.queries, n.keys, 8, 9}), call({1, 2, 1, n.queries, n.keys, 8, 9});
    none.fill_random(73);
    call.fill_random(73);
    ASSERT_EQ(none.run(context.get()), FOVEA_OK);
    for (const Window window : {Window{-1, -1}, Window{INT64_MAX, INT64_MAX}, Window{INT64_MAX - 1, -1}, Window{-1, INT64_MAX},
                                Window{n.keys + n.queries, n.keys + n.queries}}) {
      for (const int32_t align : kCorners) {
        set_window(call, window, align);
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        EXPECT_TRUE(same_bits(call.out, none.out)) << window.left << "," << window.right;
        EXPECT_TRUE(same_bits(call.lse, none.lse)) << window.left << "," << window.right;
        EXPECT_TRUE(same_bits(call.weights, none.weights)) << window.left << "," << window.right;
      }
    }
  }
}

// Keys on one side of every window are not read: the pages are not there.
TEST_P(WindowTest, KeysBehindEveryWindowMayBeMissing) {
  constexpr int64_t kMissing = 40;
  const auto context = this->context(2);
  for (const int64_t queries : {1, 5, 60, 300}) {
    reference::ProblemLine line;
    line.seq_q = line.seq_kv = queries;
    line.dim_k = 24;
    line.dim_v = 17;
    const reference::ProblemData data(line);
    fovea_params params = data.params;
    params.seq_kv = queries + kMissing;  // k and v end at an inaccessible page all the same
    params.window_left = 3;
    params.window_right = 0;
    params.align = FOVEA_ALIGN_TOP_LEFT;
    ASSERT_EQ(reference::run_guarded(context.get(), params), "");
    EXPECT_TRUE(data.output_gaps_intact());
    // And before them: the first kMissing keys lie on the page in front.
    const reference::ProblemData front(line, true);
    params = front.params;
    params.seq_kv = queries + kMissing;
    params.k.data = static_cast<float *>(front.params.k.data) - kMissing * line.dim_k;
    params.v.data = static_cast<float *>(front.params.v.data) - kMissing * line.dim_v;
    params.window_left = 0;
    params.window_right = 3;
    params.align = FOVEA_ALIGN_BOTTOM_RIGHT;  // query i stands at key kMissing + i
    ASSERT_EQ(reference::run_guarded(context.get(), params, true), "");
    EXPECT_TRUE(front.output_gaps_intact());
  }
}

}  // namespace
}  // namespace fovea::testing
