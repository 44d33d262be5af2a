// The C++ veneer: what it builds, what it throws, and that two contexts never own the same thing.
#include "fovea/fovea.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <type_traits>
#include <vector>

namespace {

static_assert(!std::is_copy_constructible_v<fovea::Context> && std::is_nothrow_move_constructible_v<fovea::Context>);
static_assert(sizeof(fovea::Params) == sizeof(fovea_params) && sizeof(fovea::Options) == sizeof(fovea_options));

TEST(Veneer, RunsACall) {
  const std::vector<float> q = {1, 2}, k = {3, 4}, v = {5, 6, 7};
  std::vector<float> out(3), lse(1), weights(1);
  const fovea::Context context;
  fovea::Params call({1, 1, 1, 1, 1, 2, 3});
  call.with_q(q.data()).with_k(k.data()).with_v(v.data()).with_out(out.data()).with_lse(lse.data()).with_weights(weights.data());
  call.with_scale(2).with_causal(FOVEA_ALIGN_TOP_LEFT);
  context.forward(call);
  EXPECT_EQ(out, v);
  EXPECT_EQ(weights[0], 1);
  EXPECT_FLOAT_EQ(lse[0], 2 * (1 * 3 + 2 * 4));

  std::fill(out.begin(), out.end(), 0.f);
  std::vector<char> workspace(context.workspace_size(call));
  context.forward(call, workspace.data(), workspace.size());
  EXPECT_EQ(out, v);
}

TEST(Veneer, MergesPartsOfTheKeys) {
  std::vector<float> one = {4}, other = {8}, merged(1), lse_one = {1}, lse_other = {1}, lse(1);
  const fovea::Context context;
  const auto rows = [](std::vector<float> &out, std::vector<float> &sums) {
    fovea::Params call({1, 1, 1, 1, 0, 1, 1});
    call.with_out(out.data()).with_lse(sums.data());
    return call;
  };
  const fovea::Params a = rows(one, lse_one), b = rows(other, lse_other), result = rows(merged, lse);
  context.merge({&a, &b}, result);
  EXPECT_EQ(merged[0], 6);
  EXPECT_FLOAT_EQ(lse[0], 1 + std::log(2.f));
  EXPECT_THROW(context.merge({}, result), fovea::Error);
}

TEST(Veneer, AppendsToACache) {
  std::vector<float> k(3), v(6), k_new = {7}, v_new = {8, 9};
  const int32_t start = 1, count = 1;
  const fovea::Context context;
  fovea::Params cache({1, 1, 1, 0, 3, 1, 2});
  cache.with_k(k.data()).with_v(v.data());
  const fovea_tensor one = {k_new.data(), {1, 1, 1, 1}, FOVEA_F32, 0}, two = {v_new.data(), {2, 2, 2, 1}, FOVEA_F32, 0};
  context.kv_append(cache, one, two, &start, &count);
  EXPECT_EQ(k, (std::vector<float>{0, 7, 0}));
  EXPECT_EQ(v, (std::vector<float>{0, 0, 8, 9, 0, 0}));
  const int32_t behind = 3;
  EXPECT_THROW(context.kv_append(cache, one, two, &behind, &count), fovea::Error);
}

TEST(Veneer, TakesStrides) {
  const float *data = reinterpret_cast<const float *>(64);
  float *output = reinterpret_cast<float *>(128);
  fovea::Params call({2, 4, 2, 3, 5, 6, 7});
  call.with_q(data, {1, 2, 3, 4}).with_k(data, {5, 6, 7, 8}).with_v(data, {9, 10, 11, 12});
  call.with_out(output, {13, 14, 15, 16}).with_weights(output, {17, 18, 19, 20}).with_lse(output, {21, 22, 23});
  int64_t next = 1;
  for (const fovea_tensor *t : {&call.q, &call.k, &call.v, &call.out, &call.weights})
    for (int64_t stride : t->stride) EXPECT_EQ(stride, next++);
  for (int64_t stride : call.lse_stride) EXPECT_EQ(stride, next++);
  for (const fovea_tensor *t : {&call.q, &call.k, &call.v}) EXPECT_EQ(t->data, data);
  for (const fovea_tensor *t : {&call.out, &call.weights}) EXPECT_EQ(t->data, output);
  EXPECT_EQ(call.lse, output);
}

TEST(Veneer, SetsWhatShapesTheScores) {
  const std::vector<float> numbers(4);
  const std::vector<int32_t> queries = {3, 2}, keys = {5, 0};
  const bool boolean[1] = {true};
  fovea::Params call({2, 4, 2, 3, 5, 6, 7});
  call.with_softcap(30).with_window(-1, 4, FOVEA_ALIGN_TOP_LEFT).with_sinks(numbers.data());
  EXPECT_EQ(call.softcap, 30);
  EXPECT_EQ(call.window_left, -1);
  EXPECT_EQ(call.window_right, 4);
  EXPECT_EQ(call.align, FOVEA_ALIGN_TOP_LEFT);
  EXPECT_EQ(call.sinks, numbers.data());
  call.with_alibi(numbers.data(), FOVEA_ALIGN_TOP_LEFT);
  EXPECT_EQ(call.alibi_slopes, numbers.data());
  EXPECT_EQ(call.align, FOVEA_ALIGN_TOP_LEFT);

  call.with_mask(boolean, {0, 1, 2, 3});
  EXPECT_EQ(call.mask.data, boolean);
  EXPECT_EQ(call.mask.dtype, FOVEA_BOOL);
  for (int64_t a = 0; a < 4; ++a) EXPECT_EQ(call.mask.stride[a], a);
  call.with_mask(numbers.data(), {4, 5, 6, 7});
  EXPECT_EQ(call.mask.data, numbers.data());
  EXPECT_EQ(call.mask.dtype, FOVEA_F32);
  for (int64_t a = 0; a < 4; ++a) EXPECT_EQ(call.mask.stride[a], 4 + a);
  call.with_mask(queries.data(), FOVEA_BF16, {});
  EXPECT_EQ(call.mask.data, queries.data());
  EXPECT_EQ(call.mask.dtype, FOVEA_BF16);

  call.with_lengths(queries.data(), keys.data());
  EXPECT_EQ(call.seqlens_q, queries.data());
  EXPECT_EQ(call.seqlens_kv, keys.data());
  call.with_lengths(nullptr, nullptr).with_offsets(keys.data(), queries.data());
  EXPECT_EQ(call.seqlens_q, nullptr);
  EXPECT_EQ(call.seqlens_kv, nullptr);
  EXPECT_EQ(call.cu_seqlens_q, keys.data());
  EXPECT_EQ(call.cu_seqlens_kv, queries.data());
}

// Values 1, 2, 4, 8, 16 of equal weight: the output says which keys a query saw.
TEST(Veneer, TakesPages) {
  const std::vector<int32_t> table = {0, 2, 1, 3};
  fovea::Params call({2, 1, 1, 1, 7, 8, 8});
  call.with_pages(4, 5, table.data(), 2);
  EXPECT_EQ(call.page_size, 4);
  EXPECT_EQ(call.num_pages, 5);
  EXPECT_EQ(call.block_table, table.data());
  EXPECT_EQ(call.block_table_stride, 2);
}

TEST(Veneer, CausalAndAWindowPermitWhatBothPermitInEitherOrder) {
  const std::vector<float> nothing(5), values = {1, 2, 4, 8, 16};
  const fovea::Context context;
  const auto seen = [&](auto shape) {
    std::vector<float> out(3);
    fovea::Params call({1, 1, 1, 3, 5, 1, 1});
    call.with_q(nothing.data()).with_k(nothing.data()).with_v(values.data()).with_out(out.data());
    shape(call);
    context.forward(call);
    return out;
  };
  constexpr int32_t kCorner = FOVEA_ALIGN_BOTTOM_RIGHT;  // the queries stand at keys 2, 3 and 4
  for (const int64_t right : {-1, 0, 1, 3}) {
    const std::vector<float> wanted = {(2 + 4) / 2.f, (4 + 8) / 2.f, (8 + 16) / 2.f};
    EXPECT_EQ(seen([&](auto &call) { call.with_causal(kCorner).with_window(1, right, kCorner); }), wanted) << right;
    EXPECT_EQ(seen([&](auto &call) { call.with_window(1, right, kCorner).with_causal(kCorner); }), wanted) << right;
  }
}

TEST(Veneer, ASecondCornerThrowsAndChangesNothing) {
  const std::vector<float> slopes(4);
  fovea::Params call({2, 4, 2, 3, 5, 6, 7});
  call.with_causal(FOVEA_ALIGN_TOP_LEFT);
  EXPECT_THROW(call.with_window(3, 1, FOVEA_ALIGN_BOTTOM_RIGHT), fovea::Error);
  EXPECT_THROW(call.with_alibi(slopes.data(), FOVEA_ALIGN_BOTTOM_RIGHT), fovea::Error);
  EXPECT_EQ(call.window_left, -1);
  EXPECT_EQ(call.alibi_slopes, nullptr);
  EXPECT_EQ(call.align, FOVEA_ALIGN_TOP_LEFT);
  fovea::Params other({2, 4, 2, 3, 5, 6, 7});
  other.with_window(3, 1, FOVEA_ALIGN_BOTTOM_RIGHT);
  EXPECT_THROW(other.with_causal(FOVEA_ALIGN_TOP_LEFT), fovea::Error);
  EXPECT_EQ(other.causal, 0);
  EXPECT_EQ(other.align, FOVEA_ALIGN_BOTTOM_RIGHT);
}

TEST(Veneer, HandsTilesToAnyCallable) {
  int64_t rows = 0;
  auto counts = [&rows](const fovea_score_tile &tile) { rows += tile.rows; };
  const auto writes = [](const fovea_score_tile &tile) { *tile.score = 7; };
  float score = 0;
  fovea_score_tile tile = {};
  tile.score = &score;
  tile.rows = 3;
  fovea::Params call({1, 1, 1, 1, 1, 1, 1});
  call.with_score(FOVEA_SCORE_MODIFY, counts);
  EXPECT_EQ(call.score_mode, FOVEA_SCORE_MODIFY);
  call.score(call.score_user, &tile);
  call.score(call.score_user, &tile);
  EXPECT_EQ(rows, 6);
  call.with_score(FOVEA_SCORE_REPLACE, writes);
  EXPECT_EQ(call.score_mode, FOVEA_SCORE_REPLACE);
  call.score(call.score_user, &tile);
  EXPECT_EQ(score, 7);
}

TEST(Veneer, MakesAlibiSlopes) {
  EXPECT_EQ(fovea::alibi_slopes(4), (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f}));
  EXPECT_THROW(fovea::alibi_slopes(-1), fovea::Error);
}

TEST(Veneer, ThrowsStatusAndText) {
  try {
    fovea::Params call({1, 3, 2, 1, 1, 1, 1});
    FAIL() << "3 query heads on 2 key-value heads";
  } catch (const fovea::Error &e) {
    EXPECT_EQ(e.status(), FOVEA_ERR_INVALID_SIZE);
    EXPECT_NE(std::string(e.what()).find("heads_q"), std::string::npos) << e.what();
  }
  const fovea::Context context;
  const fovea::Params call({1, 1, 1, 1, 1, 1, 1});
  EXPECT_THROW(context.forward(call), fovea::Error);
}

TEST(Veneer, PassesOptions) {
  const fovea::Context context(fovea::Options().with_isa(FOVEA_ISA_SCALAR).with_threads(1));
  EXPECT_EQ(context.isa(), FOVEA_ISA_SCALAR);
  EXPECT_EQ(context.threads(), 1);

  const fovea_executor executor = {sizeof executor, 5, nullptr, [](void *, fovea_task_fn task, void *arg, int64_t n) {
                                     for (int64_t i = 0; i < n; ++i) task(arg, i, 0);
                                   }};
  EXPECT_EQ(fovea::Context(fovea::Options().with_executor(executor)).threads(), 5);
}

TEST(Veneer, ExplainsAndLists) {
  const fovea::Context context;
  const std::string json = context.explain(fovea::Params({1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(json.front(), '{');
  EXPECT_EQ(json.back(), '}');
  EXPECT_EQ(fovea::isa_list().front(), FOVEA_ISA_SCALAR);
  EXPECT_EQ(fovea::isa_list(true).front(), FOVEA_ISA_SCALAR);
  EXPECT_LE(fovea::isa_list(true).size(), fovea::isa_list().size());
}

}  // namespace
