// A bad call gets a status and a text that names the argument, before anything is read through a pointer or written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

using reference::ProblemData;
using reference::ProblemLine;

constexpr int64_t kDecodeAndPrefill[] = {1, 5, 64};  // queries

struct Fault {
  const char *argument;  // must occur in the text
  fovea_status status;
  std::function<void(fovea_params &)> make;
};

void expect_refused(const fovea_context *context, const std::vector<Fault> &faults, int64_t queries = 5) {
  ProblemLine line;
  ASSERT_EQ(reference::parse("b=2 hq=4 hkv=2 skv=6 dk=8 dv=7 layout=padded lse=1 weights=1", &line), "");
  line.seq_q = queries;
  for (const Fault &fault : faults) {
    ProblemData data(line);
    fault.make(data.params);
    EXPECT_EQ(fovea_forward(context, &data.params, nullptr, 0), fault.status) << fault.argument << ": " << fovea_last_error();
    EXPECT_NE(std::string(fovea_last_error()).find(fault.argument), std::string::npos)
        << fault.argument << ": " << fovea_last_error();
    EXPECT_TRUE(data.outputs_untouched()) << fault.argument << ", " << queries << " queries";
  }
}

class InvalidArgumentsTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(InvalidArgumentsTest);

TEST_P(InvalidArgumentsTest, Heads) {
  std::vector<Fault> faults;
  const int64_t heads[][2] = {{33, 2}, {3, 2}, {32, 5}, {4, 0}, {2, 4}};
  for (const auto &pair : heads)
    faults.push_back({"heads_q", FOVEA_ERR_INVALID_SIZE, [pair](fovea_params &p) { p.heads_q = pair[0], p.heads_kv = pair[1]; }});
  expect_refused(context().get(), faults);
}

TEST_P(InvalidArgumentsTest, SizesAndStrides) {
  expect_refused(context().get(), {{"batch", FOVEA_ERR_INVALID_SIZE, [](fovea_params &p) { p.batch = -1; }},
                                   {"heads_q", FOVEA_ERR_INVALID_SIZE, [](fovea_params &p) { p.heads_q = -4; }},
                                   {"heads_kv", FOVEA_ERR_INVALID_SIZE, [](fovea_params &p) { p.heads_kv = -2; }},
                                   {"seq_q", FOVEA_ERR_INVALID_SIZE, [](fovea_params &p) { p.seq_q = -5; }},
                                   {"seq_kv", FOVEA_ERR_INVALID_SIZE, [](fovea_params &p) { p.seq_kv = INT64_MIN; }},
                                   {"dim_k", FOVEA_ERR_INVALID_SIZE, [](fovea_params &p) { p.dim_k = -1; }},
                                   {"dim_v", FOVEA_ERR_INVALID_SIZE, [](fovea_params &p) { p.dim_v = -1; }},
                                   {"seq_kv", FOVEA_ERR_INVALID_SIZE, [](fovea_params &p) { p.seq_kv = INT64_MAX; }},
                                   {"q.stride", FOVEA_ERR_INVALID_STRIDE, [](fovea_params &p) { p.q.stride[3] = -1; }},
                                   {"k.stride", FOVEA_ERR_INVALID_STRIDE, [](fovea_params &p) { p.k.stride[2] = -8; }},
                                   {"v.stride", FOVEA_ERR_INVALID_STRIDE, [](fovea_params &p) { p.v.stride[1] = INT64_MIN; }},
                                   {"v.stride", FOVEA_ERR_INVALID_STRIDE, [](fovea_params &p) { p.v.stride[0] = INT64_MAX; }},
                                   {"lse_stride", FOVEA_ERR_INVALID_STRIDE, [](fovea_params &p) { p.lse_stride[2] = -1; }}});
}

TEST_P(InvalidArgumentsTest, OutputsThatOverlap) {
  expect_refused(context().get(),
                 {{"out.stride", FOVEA_ERR_INVALID_STRIDE, [](fovea_params &p) { p.out.stride[0] = 0; }},
                  {"out.stride", FOVEA_ERR_INVALID_STRIDE, [](fovea_params &p) { p.out.stride[2] = p.dim_v - 1; }},
                  {"weights.stride", FOVEA_ERR_INVALID_STRIDE, [](fovea_params &p) { p.weights.stride[1] = 0; }},
                  {"lse_stride", FOVEA_ERR_INVALID_STRIDE, [](fovea_params &p) { p.lse_stride[1] = p.lse_stride[2]; }},
                  {"out", FOVEA_ERR_OVERLAP, [](fovea_params &p) { p.out.data = p.q.data; }},
                  {"out", FOVEA_ERR_OVERLAP, [](fovea_params &p) { p.out.data = static_cast<float *>(p.v.data) + 1; }},
                  {"weights", FOVEA_ERR_OVERLAP, [](fovea_params &p) { p.weights.data = p.k.data; }},
                  {"lse", FOVEA_ERR_OVERLAP, [](fovea_params &p) { p.lse = static_cast<float *>(p.out.data) + 2; }}});
}

TEST_P(InvalidArgumentsTest, Pointers) {
  expect_refused(context().get(), {{"q", FOVEA_ERR_NULL_POINTER, [](fovea_params &p) { p.q.data = nullptr; }},
                                   {"k", FOVEA_ERR_NULL_POINTER, [](fovea_params &p) { p.k.data = nullptr; }},
                                   {"v", FOVEA_ERR_NULL_POINTER, [](fovea_params &p) { p.v.data = nullptr; }},
                                   {"out", FOVEA_ERR_NULL_POINTER, [](fovea_params &p) { p.out.data = nullptr; }}});
  Call call({1, 1, 1, 2, 3, 4, 5});
  EXPECT_EQ(fovea_forward(nullptr, &call.params, nullptr, 0), FOVEA_ERR_NULL_POINTER);
  EXPECT_EQ(fovea_forward(context().get(), nullptr, nullptr, 0), FOVEA_ERR_NULL_POINTER);
}

TEST_P(InvalidArgumentsTest, Numbers) {
  expect_refused(context().get(), {{"scale", FOVEA_ERR_INVALID_ARGUMENT, [](fovea_params &p) { p.scale = NAN; }},
                                   {"scale", FOVEA_ERR_INVALID_ARGUMENT, [](fovea_params &p) { p.scale = INFINITY; }},
                                   {"scale", FOVEA_ERR_INVALID_ARGUMENT, [](fovea_params &p) { p.scale = -INFINITY; }},
                                   {"causal", FOVEA_ERR_INVALID_ARGUMENT, [](fovea_params &p) { p.causal = 2; }},
                                   {"align", FOVEA_ERR_INVALID_ARGUMENT, [](fovea_params &p) { p.causal = 1; }},
                                   {"align", FOVEA_ERR_INVALID_ARGUMENT, [](fovea_params &p) { p.causal = 1, p.align = 3; }},
                                   {"q.dtype", FOVEA_ERR_INVALID_DTYPE, [](fovea_params &p) { p.q.dtype = 0; }},
                                   {"k.dtype", FOVEA_ERR_INVALID_DTYPE, [](fovea_params &p) { p.k.dtype = 99; }},
                                   {"v.dtype", FOVEA_ERR_INVALID_DTYPE, [](fovea_params &p) { p.v.dtype = FOVEA_BOOL; }},
                                   {"out.dtype", FOVEA_ERR_INVALID_DTYPE, [](fovea_params &p) { p.out.dtype = FOVEA_Q8_0; }},
                                   {"struct_size", FOVEA_ERR_STRUCT_SIZE, [](fovea_params &p) { p.struct_size = 8; }},
                                   {"struct_size", FOVEA_ERR_STRUCT_SIZE, [](fovea_params &p) { p.struct_size = 0; }}});
}

TEST_P(InvalidArgumentsTest, Masks) {
  static const float entries[2 * 4 * 5 * 6] = {};
  const auto with_mask = [](fovea_dtype dtype, std::function<void(fovea_params &)> change) {
    return [dtype, change](fovea_params &p) {
      p.mask = {const_cast<float *>(entries), {120, 30, 6, 1}, dtype, 0};
      change(p);
    };
  };
  std::vector<Fault> faults;
  for (const fovea_dtype dtype : std::initializer_list<fovea_dtype>{0, 4, 99, FOVEA_I8, FOVEA_Q8_0, FOVEA_Q4_0})
    faults.push_back({"mask.dtype", FOVEA_ERR_INVALID_DTYPE, with_mask(dtype, [](fovea_params &) {})});
  for (const fovea_dtype dtype : {FOVEA_BOOL, FOVEA_F32, FOVEA_F16, FOVEA_BF16}) {
    for (int axis = 0; axis < 4; ++axis)
      faults.push_back(
          {"mask.stride", FOVEA_ERR_INVALID_STRIDE, with_mask(dtype, [axis](fovea_params &p) { p.mask.stride[axis] = -1; })});
    faults.push_back(
        {"out: overlaps mask", FOVEA_ERR_OVERLAP, with_mask(dtype, [](fovea_params &p) { p.mask.data = p.out.data; })});
    if (dtype != FOVEA_BOOL)
      faults.push_back({"mask: its address", FOVEA_ERR_INVALID_ARGUMENT,
                        with_mask(dtype, [](fovea_params &p) { p.mask.data = static_cast<char *>(p.mask.data) + 1; })});
  }
  expect_refused(context().get(), faults);
}

TEST_P(InvalidArgumentsTest, Positions) {
  static const float slopes[4] = {};
  const auto wrong = FOVEA_ERR_INVALID_ARGUMENT;
  expect_refused(context().get(),
                 {{"window_left", wrong, [](fovea_params &p) { p.window_left = -2, p.align = FOVEA_ALIGN_TOP_LEFT; }},
                  {"window_right", wrong, [](fovea_params &p) { p.window_right = INT64_MIN, p.align = FOVEA_ALIGN_TOP_LEFT; }},
                  {"align", wrong, [](fovea_params &p) { p.window_left = 3; }},
                  {"align", wrong, [](fovea_params &p) { p.window_right = 0; }},
                  {"align", wrong, [](fovea_params &p) { p.alibi_slopes = slopes; }}});
}

TEST_P(InvalidArgumentsTest, ScoreFunctions) {
  const auto wrong = FOVEA_ERR_INVALID_ARGUMENT;
  static const fovea_score_fn must_not_run = [](void *, const fovea_score_tile *) { ADD_FAILURE(); };
  expect_refused(context().get(),
                 {{"softcap", wrong, [](fovea_params &p) { p.softcap = NAN; }},
                  {"softcap", wrong, [](fovea_params &p) { p.softcap = -1; }},
                  {"softcap", wrong, [](fovea_params &p) { p.softcap = INFINITY; }},
                  {"score:", FOVEA_ERR_NULL_POINTER, [](fovea_params &p) { p.score_mode = FOVEA_SCORE_MODIFY; }},
                  {"score:", FOVEA_ERR_NULL_POINTER, [](fovea_params &p) { p.score_mode = FOVEA_SCORE_REPLACE; }},
                  {"score_mode", wrong, [](fovea_params &p) { p.score = must_not_run; }},
                  {"score_mode", wrong, [](fovea_params &p) { p.score = must_not_run, p.score_mode = 3; }},
                  {"score_mode", wrong, [](fovea_params &p) { p.score_mode = -1; }}});
}

TEST_P(InvalidArgumentsTest, SlopesAndSinks) {
  const auto slope = [](size_t head, float value) {
    return [head, value](fovea_params &p) {
      static float slopes[4];
      for (float &s : slopes) s = 1;
      slopes[head] = value;
      p.alibi_slopes = slopes, p.align = FOVEA_ALIGN_BOTTOM_RIGHT;
    };
  };
  const auto sink = [](size_t head, float value) {
    return [head, value](fovea_params &p) {
      static float sinks[4];
      for (float &s : sinks) s = -INFINITY;  // none
      sinks[head] = value;
      p.sinks = sinks;
    };
  };
  const auto wrong = FOVEA_ERR_INVALID_ARGUMENT;
  expect_refused(context().get(), {{"alibi_slopes[0]", wrong, slope(0, NAN)},
                                   {"alibi_slopes[2]", wrong, slope(2, INFINITY)},
                                   {"alibi_slopes[3]", wrong, slope(3, -INFINITY)},
                                   {"sinks[0]", wrong, sink(0, NAN)},
                                   {"sinks[3]", wrong, sink(3, INFINITY)}});
}

// Of 2 batch entries with at most 5 queries and 6 keys.
TEST_P(InvalidArgumentsTest, LengthsAndOffsets) {
  using Numbers = std::vector<int32_t>;
  const auto wrong = FOVEA_ERR_INVALID_ARGUMENT;
  const auto give = [](const int32_t *fovea_params::*field, Numbers numbers) {
    const auto kept = std::make_shared<Numbers>(std::move(numbers));
    return [field, kept](fovea_params &p) {
      p.*field = kept->data();
      if (field == &fovea_params::cu_seqlens_q || field == &fovea_params::cu_seqlens_kv) p.weights.data = nullptr;
    };
  };
  const auto queries = [&](Numbers n) { return give(&fovea_params::seqlens_q, std::move(n)); };
  const auto keys = [&](Numbers n) { return give(&fovea_params::seqlens_kv, std::move(n)); };
  const auto query_offsets = [&](Numbers n) { return give(&fovea_params::cu_seqlens_q, std::move(n)); };
  const auto key_offsets = [&](Numbers n) { return give(&fovea_params::cu_seqlens_kv, std::move(n)); };
  static const int32_t zeros[3] = {};
  expect_refused(context().get(), {{"seqlens_q[1]", wrong, queries({5, 6})},
                                   {"seqlens_q[0]", wrong, queries({-1, 5})},
                                   {"seqlens_kv[1]", wrong, keys({0, 7})},
                                   {"seqlens_kv[0]", wrong, keys({INT32_MIN, 7})},
                                   {"cu_seqlens_q[0]", wrong, query_offsets({-1, 0, 5})},
                                   {"cu_seqlens_q[1]", wrong, query_offsets({3, 2, 5})},
                                   {"cu_seqlens_q[2]", wrong, query_offsets({0, 0, 6})},
                                   {"cu_seqlens_kv[2]", wrong, key_offsets({0, 4, 3})},
                                   {"cu_seqlens_kv[1]", wrong, key_offsets({0, INT32_MAX, INT32_MAX})},
                                   {"seqlens_q:", wrong,
                                    [=](fovea_params &p) {
                                      query_offsets({0, 0, 0})(p), p.seqlens_q = zeros;
                                    }},
                                   {"seqlens_kv:", wrong,
                                    [=](fovea_params &p) {
                                      key_offsets({0, 0, 0})(p), p.seqlens_kv = zeros;
                                    }},
                                   {"weights", wrong, [](fovea_params &p) { p.cu_seqlens_q = zeros; }},
                                   {"weights", wrong, [](fovea_params &p) { p.cu_seqlens_kv = zeros; }}});
}

// Of 2 batch entries with at most 6 keys, in pages of 2: what fits the 2 * 2 * 6 rows of the call's own k and v is 6 pages.
TEST_P(InvalidArgumentsTest, Pages) {
  using Numbers = std::vector<int32_t>;
  const auto wrong = FOVEA_ERR_INVALID_ARGUMENT;
  const auto pages = [](
                         Numbers table, std::function<void(fovea_params &)> change = [](fovea_params &) {}) {
    const auto kept = std::make_shared<Numbers>(std::move(table));
    return [kept, change](fovea_params &p) {
      p.weights.data = nullptr;
      p.page_size = 2, p.num_pages = 6, p.block_table = kept->data(), p.block_table_stride = 3;
      for (fovea_tensor *t : {&p.k, &p.v}) t->stride[0] /= 3, t->stride[1] /= 3;
      change(p);
    };
  };
  static const int32_t lengths[2] = {2, 5}, zeros[3] = {};
  const Numbers good = {0, 1, 2, 3, 4, 5};
  const std::vector<Fault> faults = {
      {"block_table: -1 at batch entry 0, column 1 ", wrong, pages({0, -1, 2, 3, 4, 5})},
      {"block_table: 6 at batch entry 1, column 2 ", wrong, pages({0, 1, 2, 3, 4, 6})},
      {"block_table: 7 at batch entry 1, column 0 ", wrong,
       pages({0, -1, -1, 7, 4, -1}, [](auto &p) { p.seqlens_kv = lengths; })},
      {"block_table: -2 at batch entry 1, column 2 ", wrong,
       pages({0, -1, -1, 3, 4, -2}, [](auto &p) { p.seqlens_kv = lengths; })},
      {"block_table: 0 at batch entry 0, column 0 ", wrong, pages(good, [](auto &p) { p.num_pages = 0; })},
      {"block_table_stride: 2 pages of 2 keys do not hold the 6 of batch entry 0", wrong,
       pages(good, [](auto &p) { p.block_table_stride = 2; })},
      {"block_table_stride: 2 pages of 2 keys do not hold the 5 of batch entry 1", wrong,
       pages(good, [](auto &p) { p.block_table_stride = 2, p.seqlens_kv = lengths; })},
      {"block_table:", FOVEA_ERR_NULL_POINTER, pages(good, [](auto &p) { p.block_table = nullptr; })},
      {"out: overlaps block_table", FOVEA_ERR_OVERLAP,
       pages(good, [](auto &p) { p.block_table = static_cast<int32_t *>(p.out.data), p.seqlens_kv = zeros; })},
      {"block_table_stride: -3", FOVEA_ERR_INVALID_STRIDE, pages(good, [](auto &p) { p.block_table_stride = -3; })},
      {"block_table_stride: ", FOVEA_ERR_INVALID_STRIDE, pages(good, [](auto &p) { p.block_table_stride = INT64_MAX / 2; })},
      {"page_size: -2", FOVEA_ERR_INVALID_SIZE, pages(good, [](auto &p) { p.page_size = -2; })},
      {"num_pages: -1", FOVEA_ERR_INVALID_SIZE, pages(good, [](auto &p) { p.num_pages = -1; })},
      {"k: its number of elements", FOVEA_ERR_INVALID_SIZE, pages(good, [](auto &p) { p.num_pages = INT64_MAX; })},
      {"k.stride", FOVEA_ERR_INVALID_STRIDE, pages(good, [](auto &p) { p.k.stride[0] = INT64_MAX / 8; })},
      {"seqlens_kv[1]: 7", wrong,
       pages(good,
             [](auto &p) {
               static const int32_t too_long[2] = {6, 7};
               p.seqlens_kv = too_long;
             })},
      {"cu_seqlens_kv", wrong, pages(good, [](auto &p) { p.cu_seqlens_kv = zeros; })},
      {"k_scale: must not be NULL", FOVEA_ERR_NULL_POINTER, pages(good, [](auto &p) { p.k.dtype = FOVEA_I8; })},
      {"v_scale: must not be NULL", FOVEA_ERR_NULL_POINTER, pages(good, [](auto &p) { p.v.dtype = FOVEA_I8; })},
      {"weights:", wrong,
       pages(good,
             [](auto &p) {
               static float weights[2 * 4 * 5 * 6];
               p.weights.data = weights;
             })},
      {"block_table:", wrong, pages(good, [](auto &p) { p.page_size = 0; })},
      {"block_table_stride:", wrong, [](fovea_params &p) { p.block_table_stride = 3; }},
      {"num_pages:", wrong, [](fovea_params &p) { p.num_pages = 3; }}};
  for (const int64_t queries : kDecodeAndPrefill) expect_refused(context().get(), faults, queries);
}

// Of heads of 8 and 7 dims.
TEST_P(InvalidArgumentsTest, QuantisedCaches) {
  static const float scales[2 * 2 * 6] = {};
  const auto wrong = FOVEA_ERR_INVALID_ARGUMENT;
  const auto i8_keys = [](std::function<void(fovea_params &)> change) {
    return [change](fovea_params &p) {
      p.k.dtype = FOVEA_I8;
      p.k_scale = {const_cast<float *>(scales), {12, 6, 1, 1}, FOVEA_F32, 0};
      change(p);
    };
  };
  const auto blocks = [](int64_t dim, int64_t stride) {
    return [dim, stride](fovea_params &p) { p.v.dtype = FOVEA_Q4_0, p.dim_v = dim, p.v.stride[3] = stride; };
  };
  for (const fovea_dtype dtype : {FOVEA_I8, FOVEA_Q8_0, FOVEA_Q4_0})
    expect_refused(context().get(), {{"q.dtype", FOVEA_ERR_INVALID_DTYPE, [dtype](fovea_params &p) { p.q.dtype = dtype; }},
                                     {"out.dtype", FOVEA_ERR_INVALID_DTYPE, [dtype](fovea_params &p) { p.out.dtype = dtype; }}});
  const std::vector<Fault> faults = {
      {"k.dtype: its blocks of 32 elements do not divide dim_k, 8", FOVEA_ERR_INVALID_SIZE,
       [](fovea_params &p) { p.k.dtype = FOVEA_Q8_0; }},
      {"v.dtype: its blocks of 32 elements do not divide dim_v, 65", FOVEA_ERR_INVALID_SIZE, blocks(65, 1)},
      {"v.stride[3]: 2 is not 1", FOVEA_ERR_INVALID_STRIDE, blocks(64, 2)},
      {"v.stride[3]: 0 is not 1", FOVEA_ERR_INVALID_STRIDE, blocks(64, 0)},
      {"k_scale: must not be NULL", FOVEA_ERR_NULL_POINTER, i8_keys([](auto &p) { p.k_scale.data = nullptr; })},
      {"k_scale: must not be NULL", FOVEA_ERR_NULL_POINTER, i8_keys([](auto &p) { p.k_scale = {}; })},
      {"v_scale: must not be NULL", FOVEA_ERR_NULL_POINTER, i8_keys([](auto &p) { p.v.dtype = FOVEA_I8; })},
      {"k_scale: must be NULL", wrong, i8_keys([](auto &p) { p.k.dtype = FOVEA_F16; })},
      {"v_scale: must be NULL", wrong, i8_keys([](auto &p) { p.v_scale = p.k_scale; })},
      {"k_scale.dtype", FOVEA_ERR_INVALID_DTYPE, i8_keys([](auto &p) { p.k_scale.dtype = 0; })},
      {"k_scale.dtype", FOVEA_ERR_INVALID_DTYPE, i8_keys([](auto &p) { p.k_scale.dtype = FOVEA_I8; })},
      {"k_scale.dtype", FOVEA_ERR_UNSUPPORTED, i8_keys([](auto &p) { p.k_scale.dtype = FOVEA_F16; })},
      {"k_scale.reserved", FOVEA_ERR_UNSUPPORTED, i8_keys([](auto &p) { p.k_scale.reserved = 1; })},
      {"k_scale.stride[2]: -1", FOVEA_ERR_INVALID_STRIDE, i8_keys([](auto &p) { p.k_scale.stride[2] = -1; })},
      {"k_scale.stride[0]", FOVEA_ERR_INVALID_STRIDE, i8_keys([](auto &p) { p.k_scale.stride[0] = INT64_MAX / 2; })},
      {"k_scale: its address", wrong, i8_keys([](auto &p) { p.k_scale.data = static_cast<char *>(p.k_scale.data) + 2; })},
      {"out: overlaps k_scale", FOVEA_ERR_OVERLAP, i8_keys([](auto &p) { p.k_scale.data = p.out.data; })}};
  for (const int64_t queries : kDecodeAndPrefill) expect_refused(context().get(), faults, queries);
}

// What this version does not do yet is refused by name, not ignored.
TEST_P(InvalidArgumentsTest, FeaturesThatAreNotThere) {
  expect_refused(context().get(),
                 {{"weights.dtype", FOVEA_ERR_UNSUPPORTED, [](fovea_params &p) { p.weights.dtype = FOVEA_BF16; }},
                  {"flags", FOVEA_ERR_UNSUPPORTED, [](fovea_params &p) { p.flags = 1; }}});
}

TEST_P(InvalidArgumentsTest, WorkspaceOneByteTooSmall) {
  const auto context = this->context();
  ProblemLine line;
  line.seq_q = 9;
  line.seq_kv = 10;
  const ProblemData data(line);
  size_t bytes = 0;
  ASSERT_EQ(fovea_workspace_size(context.get(), &data.params, &bytes), FOVEA_OK);
  std::vector<unsigned char> workspace(bytes, 0xAA);
  EXPECT_EQ(fovea_forward(context.get(), &data.params, workspace.data(), bytes - 1), FOVEA_ERR_WORKSPACE);
  EXPECT_NE(std::string(fovea_last_error()).find("workspace"), std::string::npos);
  EXPECT_TRUE(data.outputs_untouched());
  for (const unsigned char byte : workspace) ASSERT_EQ(byte, 0xAA);
}

}  // namespace
}  // namespace fovea::testing
