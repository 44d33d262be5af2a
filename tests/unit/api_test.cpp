// The C API: every error names its argument, and a call that fails touches no memory at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "fovea/fovea.h"
#include "run/executor.h"

extern "C" int fovea_c99_program(void);

namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kHuge = int64_t{1} << 62;
constexpr float kCanary = -12345.f;

// Address space that nobody may touch.
class Forbidden {
 public:
  explicit Forbidden(size_t bytes) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Forbidden() { munmap(memory_, bytes_); }
  float *at(size_t element) const { return static_cast<float *>(memory_) + element; }

 private:
  size_t bytes_;
  void *memory_;
};

fovea_params params_of(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seq_q, int64_t seq_kv, int64_t dim_k,
                       int64_t dim_v) {
  fovea_params p;
  EXPECT_EQ(fovea_params_init(&p, sizeof p, batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v), FOVEA_OK)
      << fovea_last_error();
  return p;
}

class Api : public testing::Test {
 protected:
  Api() : forbidden(1 << 20) { EXPECT_EQ(fovea_context_create(nullptr, &context), FOVEA_OK) << fovea_last_error(); }
  ~Api() override { fovea_context_destroy(context); }

  // A valid call whose tensors, all of them, lie in forbidden memory.
  fovea_params forbidden_call() const {
    fovea_params p = params_of(2, 4, 2, 3, 5, 6, 7);
    p.q.data = forbidden.at(0x1000);
    p.k.data = forbidden.at(0x2000);
    p.v.data = forbidden.at(0x3000);
    p.out.data = forbidden.at(0x4000);
    p.weights.data = forbidden.at(0x5000);
    p.lse = forbidden.at(0x6000);
    return p;
  }

  Forbidden forbidden;
  fovea_context *context = nullptr;
};

using Change = std::function<void(fovea_params &)>;

struct Wrong {
  const char *name;
  Change change;
  fovea_status status;
  const char *text;  // how the error text starts
};

std::vector<Wrong> wrong_sizes() {
  return {
      {"batch", [](auto &p) { p.batch = -1; }, FOVEA_ERR_INVALID_SIZE, "batch: -1 is negative"},
      {"heads_q", [](auto &p) { p.heads_q = -2; }, FOVEA_ERR_INVALID_SIZE, "heads_q: -2 is negative"},
      {"heads_kv", [](auto &p) { p.heads_kv = -1; }, FOVEA_ERR_INVALID_SIZE, "heads_kv: -1 is negative"},
      {"seq_q", [](auto &p) { p.seq_q = -1; }, FOVEA_ERR_INVALID_SIZE, "seq_q: -1 is negative"},
      {"seq_kv", [](auto &p) { p.seq_kv = -7; }, FOVEA_ERR_INVALID_SIZE, "seq_kv: -7 is negative"},
      {"dim_k", [](auto &p) { p.dim_k = -1; }, FOVEA_ERR_INVALID_SIZE, "dim_k: -1 is negative"},
      {"dim_v", [](auto &p) { p.dim_v = -kMax; }, FOVEA_ERR_INVALID_SIZE, "dim_v: -"},
      {"33 heads on 2", [](auto &p) { p.heads_q = 33; }, FOVEA_ERR_INVALID_SIZE, "heads_q: 33 is not a multiple of heads_kv (2)"},
      {"4 heads on 0", [](auto &p) { p.heads_kv = 0; }, FOVEA_ERR_INVALID_SIZE, "heads_q: 4 is not a multiple of heads_kv (0)"},
      {"huge dim_k", [](auto &p) { p.dim_k = kHuge; }, FOVEA_ERR_INVALID_SIZE, "dim_k: "},
      {"huge dim_v", [](auto &p) { p.dim_v = kMax; }, FOVEA_ERR_INVALID_SIZE, "dim_v: "},
      {"offsets of a huge batch", [](auto &p) { p.batch = kMax, p.heads_q = 0; }, FOVEA_ERR_INVALID_SIZE, "batch: "},
      {"offsets of more bytes than there are",
       [](auto &p) {
         p = params_of(1, 1, 1, 1, 0, 0, 0);
         static const int32_t lengths[1] = {};
         p.batch = int64_t{1} << 60, p.seqlens_q = lengths;
       },
       FOVEA_ERR_INVALID_SIZE, "batch: 1152921504606846976 is above "},
      {"huge rows", [](auto &p) { p.batch = p.seq_q = int64_t{1} << 31; }, FOVEA_ERR_INVALID_SIZE, "batch, heads_q, seq_q: "},
      {"huge rows without keys or dims",
       [](auto &p) {
         p.batch = p.heads_q = p.heads_kv = p.seq_q = int64_t{1} << 30, p.seq_kv = p.dim_k = p.dim_v = 0;
         p.lse = nullptr;
       },
       FOVEA_ERR_INVALID_SIZE, "batch, heads_q, seq_q: "},
      {"huge scores of an entry", [](auto &p) { p.seq_q = p.seq_kv = int64_t{1} << 31; }, FOVEA_ERR_INVALID_SIZE,
       "heads_q, seq_q, seq_kv: "},
      {"huge scores", [](auto &p) { p.batch = 1000, p.seq_q = p.seq_kv = int64_t{1} << 28; }, FOVEA_ERR_INVALID_SIZE,
       "batch, heads_q, seq_q, seq_kv: "},
      {"huge q", [](auto &p) { p.batch = int64_t{1} << 55, p.seq_kv = p.dim_v = 1, p.dim_k = 256; }, FOVEA_ERR_INVALID_SIZE,
       "q: "},
      {"huge k", [](auto &p) { p.seq_kv = int64_t{1} << 53, p.dim_k = 4096, p.seq_q = 1, p.batch = 1; }, FOVEA_ERR_INVALID_SIZE,
       "k: "},
  };
}

void score_nothing(void *, const fovea_score_tile *) {}

std::vector<Wrong> wrong_options() {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  static const int32_t some_int = 0;
  static const float some_float = 0;
  const auto wrong = FOVEA_ERR_INVALID_ARGUMENT;
  return {
      {"NaN scale", [=](auto &p) { p.scale = nan; }, wrong, "scale: nan is not finite"},
      {"infinite scale", [=](auto &p) { p.scale = infinity; }, wrong, "scale: inf is not finite"},
      {"-infinite scale", [=](auto &p) { p.scale = -infinity; }, wrong, "scale: -inf is not finite"},
      {"NaN softcap", [=](auto &p) { p.softcap = nan; }, wrong, "softcap: nan is not finite"},
      {"infinite softcap", [=](auto &p) { p.softcap = infinity; }, wrong, "softcap: inf is not finite"},
      {"negative softcap", [](auto &p) { p.softcap = -30; }, wrong, "softcap: -30 is negative"},
      {"negative subnormal softcap", [](auto &p) { p.softcap = -1e-40f; }, wrong, "softcap: -"},

      {"causal 2", [](auto &p) { p.causal = 2, p.align = 1; }, wrong, "causal: 2"},
      {"causal -1", [](auto &p) { p.causal = -1, p.align = 1; }, wrong, "causal: -1"},
      {"align 3", [](auto &p) { p.align = 3; }, wrong, "align: 3"},
      {"align -1", [](auto &p) { p.align = -1; }, wrong, "align: -1"},
      {"window_left -2", [](auto &p) { p.window_left = -2, p.align = 1; }, wrong, "window_left: -2 is below -1"},
      {"least window_right", [](auto &p) { p.window_right = -kMax - 1, p.align = 1; }, wrong, "window_right: -"},
      {"causal without a corner", [](auto &p) { p.causal = 1; }, wrong, "align: must name a corner where causal"},
      {"left bound without a corner", [](auto &p) { p.window_left = 0; }, wrong, "align: must name a corner where window_left"},
      {"right bound without a corner", [](auto &p) { p.window_right = 9; }, wrong,
       "align: must name a corner where window_right"},
      {"ALiBi without a corner", [](auto &p) { p.alibi_slopes = &some_float; }, wrong,
       "align: must name a corner where alibi_slopes"},

      {"score_mode 3", [](auto &p) { p.score = score_nothing, p.score_mode = 3; }, wrong, "score_mode: 3"},
      {"score_mode -1", [](auto &p) { p.score = score_nothing, p.score_mode = -1; }, wrong, "score_mode: -1"},
      {"score_mode 3 without a function", [](auto &p) { p.score_mode = 3; }, wrong, "score_mode: 3"},
      {"a score function without a mode", [](auto &p) { p.score = score_nothing; }, wrong, "score_mode: "},
      {"a mode without a score function", [](auto &p) { p.score_mode = FOVEA_SCORE_MODIFY; }, FOVEA_ERR_NULL_POINTER, "score: "},

      {"two lengths of queries", [](auto &p) { p.seqlens_q = p.cu_seqlens_q = &some_int, p.weights.data = nullptr; }, wrong,
       "seqlens_q: "},
      {"two lengths of keys", [](auto &p) { p.seqlens_kv = p.cu_seqlens_kv = &some_int, p.weights.data = nullptr; }, wrong,
       "seqlens_kv: "},
      {"weights of packed queries", [](auto &p) { p.cu_seqlens_q = &some_int; }, wrong, "weights: "},
      {"weights of packed keys", [](auto &p) { p.cu_seqlens_kv = &some_int; }, wrong, "weights: "},
  };
}

std::vector<Wrong> unsupported_fields() {
  return {
      {"flags", [](auto &p) { p.flags = 1; }, FOVEA_ERR_UNSUPPORTED, "flags:"},
      {"q.reserved", [](auto &p) { p.q.reserved = 1; }, FOVEA_ERR_UNSUPPORTED, "q.reserved:"},
      {"weights.reserved", [](auto &p) { p.weights.reserved = -1; }, FOVEA_ERR_UNSUPPORTED, "weights.reserved:"},
  };
}

std::vector<Wrong> wrong_tensors() {
  return {
      {"q dtype 0", [](auto &p) { p.q.dtype = 0; }, FOVEA_ERR_INVALID_DTYPE, "q.dtype: 0"},
      {"k dtype 99", [](auto &p) { p.k.dtype = 99; }, FOVEA_ERR_INVALID_DTYPE, "k.dtype: 99"},
      {"v dtype -1", [](auto &p) { p.v.dtype = -1; }, FOVEA_ERR_INVALID_DTYPE, "v.dtype: -1"},
      {"out dtype 4", [](auto &p) { p.out.dtype = 4; }, FOVEA_ERR_INVALID_DTYPE, "out.dtype: 4"},
      {"weights dtype 4", [](auto &p) { p.weights.dtype = 4; }, FOVEA_ERR_INVALID_DTYPE, "weights.dtype: 4"},
      {"boolean q", [](auto &p) { p.q.dtype = FOVEA_BOOL; }, FOVEA_ERR_INVALID_DTYPE, "q.dtype: 10"},
      {"quantised out", [](auto &p) { p.out.dtype = FOVEA_Q8_0; }, FOVEA_ERR_INVALID_DTYPE, "out.dtype: 21"},
      {"f16 weights", [](auto &p) { p.weights.dtype = FOVEA_F16; }, FOVEA_ERR_UNSUPPORTED, "weights.dtype:"},
      {"bf16 weights", [](auto &p) { p.weights.dtype = FOVEA_BF16; }, FOVEA_ERR_UNSUPPORTED, "weights.dtype:"},
      {"blocks of v", [](auto &p) { p.v.dtype = FOVEA_Q4_0; }, FOVEA_ERR_INVALID_SIZE, "v.dtype: its blocks"},
      {"scales of floats", [](auto &p) { p.k_scale = p.k; }, FOVEA_ERR_INVALID_ARGUMENT, "k_scale: "},

      {"q stride", [](auto &p) { p.q.stride[0] = -1; }, FOVEA_ERR_INVALID_STRIDE, "q.stride[0]: -1 is negative"},
      {"k stride", [](auto &p) { p.k.stride[2] = -5; }, FOVEA_ERR_INVALID_STRIDE, "k.stride[2]: -5 is negative"},
      {"v stride", [](auto &p) { p.v.stride[3] = -1; }, FOVEA_ERR_INVALID_STRIDE, "v.stride[3]: -1 is negative"},
      {"out stride", [](auto &p) { p.out.stride[1] = -21; }, FOVEA_ERR_INVALID_STRIDE, "out.stride[1]: -21 is negative"},
      {"weights stride", [](auto &p) { p.weights.stride[1] = -1; }, FOVEA_ERR_INVALID_STRIDE,
       "weights.stride[1]: -1 is negative"},
      {"lse stride", [](auto &p) { p.lse_stride[2] = -1; }, FOVEA_ERR_INVALID_STRIDE, "lse_stride[2]: -1 is negative"},
      {"huge q stride", [](auto &p) { p.q.stride[2] = kMax; }, FOVEA_ERR_INVALID_STRIDE, "q.stride[2]: "},
      {"huge k strides", [](auto &p) { p.k.stride[0] = p.k.stride[1] = kMax / 8 - 2; }, FOVEA_ERR_INVALID_STRIDE, "k.stride["},
      {"huge lse stride", [](auto &p) { p.lse_stride[0] = kMax / 4; }, FOVEA_ERR_INVALID_STRIDE, "lse_stride["},

      {"broadcast out", [](auto &p) { p.out.stride[1] = 0; }, FOVEA_ERR_INVALID_STRIDE, "out.stride: "},
      {"out rows too close", [](auto &p) { p.out.stride[2] = 6; }, FOVEA_ERR_INVALID_STRIDE, "out.stride: "},
      {"out dims on top of heads", [](auto &p) { p.out.stride[1] = 1; }, FOVEA_ERR_INVALID_STRIDE, "out.stride: "},
      {"weights rows too close", [](auto &p) { p.weights.stride[2] = 4; }, FOVEA_ERR_INVALID_STRIDE, "weights.stride: "},
      {"broadcast lse", [](auto &p) { p.lse_stride[1] = 0; }, FOVEA_ERR_INVALID_STRIDE, "lse_stride: "},
  };
}

std::vector<Wrong> wrong_pointers(const Forbidden &memory) {
  const auto off_by = [](void *&data, size_t bytes) { data = static_cast<char *>(data) + bytes; };
  return {
      {"no q", [](auto &p) { p.q.data = nullptr; }, FOVEA_ERR_NULL_POINTER, "q: "},
      {"no k", [](auto &p) { p.k.data = nullptr; }, FOVEA_ERR_NULL_POINTER, "k: "},
      {"no v", [](auto &p) { p.v.data = nullptr; }, FOVEA_ERR_NULL_POINTER, "v: "},
      {"no out", [](auto &p) { p.out.data = nullptr; }, FOVEA_ERR_NULL_POINTER, "out: "},

      {"q off by 1", [=](auto &p) { off_by(p.q.data, 1); }, FOVEA_ERR_INVALID_ARGUMENT, "q: "},
      {"k off by 2", [=](auto &p) { off_by(p.k.data, 2); }, FOVEA_ERR_INVALID_ARGUMENT, "k: "},
      {"v off by 3", [=](auto &p) { off_by(p.v.data, 3); }, FOVEA_ERR_INVALID_ARGUMENT, "v: "},
      {"out off by 1", [=](auto &p) { off_by(p.out.data, 1); }, FOVEA_ERR_INVALID_ARGUMENT, "out: "},
      {"weights off by 1", [=](auto &p) { off_by(p.weights.data, 1); }, FOVEA_ERR_INVALID_ARGUMENT, "weights: "},
      {"lse off by 2", [](auto &p) { p.lse = reinterpret_cast<float *>(uintptr_t(p.lse) + 2); }, FOVEA_ERR_INVALID_ARGUMENT,
       "lse: "},
      {"q at the end of memory", [](auto &p) { p.q.data = reinterpret_cast<void *>(~uintptr_t{15}); }, FOVEA_ERR_INVALID_STRIDE,
       "q.stride: "},

      {"out is q", [](auto &p) { p.out.data = p.q.data; }, FOVEA_ERR_OVERLAP, "out: overlaps q"},
      {"out is k", [](auto &p) { p.out.data = p.k.data; }, FOVEA_ERR_OVERLAP, "out: overlaps k"},
      {"out starts at the last of v", [](auto &p) { p.out.data = static_cast<float *>(p.v.data) + 2 * 2 * 5 * 7 - 1; },
       FOVEA_ERR_OVERLAP, "out: overlaps v"},
      {"out is weights", [](auto &p) { p.out.data = p.weights.data; }, FOVEA_ERR_OVERLAP, "out: overlaps weights"},
      {"f16 out starts at the last of bf16 v",
       [](auto &p) {
         p.v.dtype = FOVEA_BF16, p.out.dtype = FOVEA_F16;
         p.out.data = static_cast<uint16_t *>(p.v.data) + 2 * 2 * 5 * 7 - 1;
       },
       FOVEA_ERR_OVERLAP, "out: overlaps v"},
      {"f16 out ends at the first of q",
       [](auto &p) {
         p.out.dtype = FOVEA_F16;
         p.out.data = static_cast<uint16_t *>(p.q.data) - (2 * 4 * 3 * 7 - 1);
       },
       FOVEA_ERR_OVERLAP, "out: overlaps q"},
      {"lse within out", [](auto &p) { p.lse = static_cast<float *>(p.out.data) + 60; }, FOVEA_ERR_OVERLAP, "out: overlaps lse"},
      {"weights is q", [](auto &p) { p.weights.data = p.q.data; }, FOVEA_ERR_OVERLAP, "weights: overlaps q"},
      {"lse within k", [](auto &p) { p.lse = static_cast<float *>(p.k.data) + 5; }, FOVEA_ERR_OVERLAP, "lse: overlaps k"},
      {"out on a token of a packed q",
       [&memory](auto &p) {
         p.q.stride[2] = 24, p.q.stride[1] = 6, p.q.stride[0] = 72;  // [batch, seq, head, dim]
         p.out.stride[3] = 24, p.out.stride[2] = 7 * 24, p.out.stride[1] = 21 * 24, p.out.stride[0] = 84 * 24;
         p.out.data = memory.at(0x1000 - 24 * 100 + 23);
         p.q.data = memory.at(0x1000);
       },
       FOVEA_ERR_OVERLAP, "out: overlaps q"},
  };
}

// The mask of a forbidden call, dense, is 2 * 4 * 3 * 5 elements.
constexpr size_t kMaskAt = 0x7000;

void add_mask(fovea_params &p, const Forbidden &memory, fovea_dtype dtype) {
  p.mask = {memory.at(kMaskAt), {60, 15, 5, 1}, dtype, 0};
}

std::vector<Wrong> wrong_masks(const Forbidden &memory) {
  std::vector<Wrong> wrongs;
  for (fovea_dtype dtype : {0, 4, 11, -1, 99})
    wrongs.push_back(
        {"mask dtype", [&memory, dtype](auto &p) { add_mask(p, memory, dtype); }, FOVEA_ERR_INVALID_DTYPE, "mask.dtype: "});
  for (fovea_dtype dtype : {FOVEA_I8, FOVEA_Q8_0, FOVEA_Q4_0})
    wrongs.push_back(
        {"quantised mask", [&memory, dtype](auto &p) { add_mask(p, memory, dtype); }, FOVEA_ERR_INVALID_DTYPE, "mask.dtype: "});
  const auto with_mask = [&memory](auto change) {
    return [&memory, change](auto &p) {
      add_mask(p, memory, FOVEA_F16);
      change(p.mask);
    };
  };
  wrongs.push_back({"mask reserved", with_mask([](auto &m) { m.reserved = 1; }), FOVEA_ERR_UNSUPPORTED, "mask.reserved:"});
  wrongs.push_back({"negative mask stride 0", with_mask([](auto &m) { m.stride[0] = -1; }), FOVEA_ERR_INVALID_STRIDE,
                    "mask.stride[0]: -1 is negative"});
  wrongs.push_back(
      {"negative mask stride 3", with_mask([](auto &m) { m.stride[3] = -kMax; }), FOVEA_ERR_INVALID_STRIDE, "mask.stride[3]: -"});
  wrongs.push_back(
      {"huge mask stride", with_mask([](auto &m) { m.stride[2] = kMax / 4; }), FOVEA_ERR_INVALID_STRIDE, "mask.stride[2]: "});
  return wrongs;
}

std::vector<Wrong> wrong_mask_data(const Forbidden &memory) {
  const auto off_by_1 = [&memory](fovea_dtype dtype) {
    return [&memory, dtype](auto &p) {
      add_mask(p, memory, dtype);
      p.mask.data = static_cast<char *>(p.mask.data) + 1;
    };
  };
  return {
      {"f32 mask off by 1", off_by_1(FOVEA_F32), FOVEA_ERR_INVALID_ARGUMENT, "mask: its address"},
      {"f16 mask off by 1", off_by_1(FOVEA_F16), FOVEA_ERR_INVALID_ARGUMENT, "mask: its address"},
      {"bf16 mask off by 1", off_by_1(FOVEA_BF16), FOVEA_ERR_INVALID_ARGUMENT, "mask: its address"},
      {"mask at the end of memory",
       [&memory](auto &p) {
         add_mask(p, memory, FOVEA_BOOL);
         p.mask.data = reinterpret_cast<void *>(~uintptr_t{50});
       },
       FOVEA_ERR_INVALID_STRIDE, "mask.stride: "},
      {"boolean mask up to the first byte of out",
       [&memory](auto &p) {
         add_mask(p, memory, FOVEA_BOOL);
         p.mask.data = static_cast<char *>(p.out.data) - (2 * 60 - 1);
       },
       FOVEA_ERR_OVERLAP, "out: overlaps mask"},
      {"f16 mask from the last two bytes of weights",
       [&memory](auto &p) {
         add_mask(p, memory, FOVEA_F16);
         p.mask.data = static_cast<char *>(p.weights.data) + 4 * 2 * 60 - 2;
       },
       FOVEA_ERR_OVERLAP, "weights: overlaps mask"},
      {"lse within the mask",
       [&memory](auto &p) {
         add_mask(p, memory, FOVEA_F32);
         p.lse = static_cast<float *>(p.mask.data) + 7;
       },
       FOVEA_ERR_OVERLAP, "lse: overlaps mask"},
  };
}

void expect_error(fovea_status status, const Wrong &wrong) {
  EXPECT_EQ(status, wrong.status) << wrong.name << ": " << fovea_last_error();
  EXPECT_EQ(std::string(fovea_last_error()).rfind(wrong.text, 0), 0u) << wrong.name << ": " << fovea_last_error();
}

// Memory that must not be touched ends the test with a signal if it is.
TEST_F(Api, WrongParamsAreNamedAndNothingIsTouched) {
  for (const auto &wrongs : {wrong_sizes(), wrong_options(), unsupported_fields(), wrong_tensors(), wrong_masks(forbidden)})
    for (const Wrong &wrong : wrongs) {
      fovea_params p = forbidden_call();
      wrong.change(p);
      expect_error(fovea_forward(context, &p, nullptr, 0), wrong);
      expect_error(fovea_forward(context, &p, forbidden.at(0x8000), 1 << 16), wrong);
      size_t bytes = 77;
      expect_error(fovea_workspace_size(context, &p, &bytes), wrong);
      EXPECT_EQ(bytes, 77u) << wrong.name;
    }
}

TEST_F(Api, WrongPointersAreNamedAndNothingIsTouched) {
  for (const auto &wrongs : {wrong_pointers(forbidden), wrong_mask_data(forbidden)})
    for (const Wrong &wrong : wrongs) {
      fovea_params p = forbidden_call();
      wrong.change(p);
      expect_error(fovea_forward(context, &p, nullptr, 0), wrong);
      size_t bytes;
      EXPECT_EQ(fovea_workspace_size(context, &p, &bytes), FOVEA_OK) << wrong.name << ": " << fovea_last_error();
    }
}

// Lengths, offsets, slopes and sinks: what stands in them is checked before any tensor is touched.
struct Contents {
  std::vector<int32_t> seqlens_q, seqlens_kv, cu_seqlens_q, cu_seqlens_kv;
  std::vector<float> alibi_slopes, sinks;
};

struct WrongContents {
  Contents contents;
  const char *text;
};

std::vector<WrongContents> wrong_contents() {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  const auto lengths = [](std::vector<int32_t> q, std::vector<int32_t> kv) { return Contents{q, kv, {}, {}, {}, {}}; };
  const auto offsets = [](std::vector<int32_t> q, std::vector<int32_t> kv) { return Contents{{}, {}, q, kv, {}, {}}; };
  const auto heads = [](std::vector<float> slopes, std::vector<float> sinks) { return Contents{{}, {}, {}, {}, slopes, sinks}; };
  return {
      {lengths({3, 4}, {}), "seqlens_q[1]: 4 is not in 0..3"},
      {lengths({-1, 3}, {}), "seqlens_q[0]: -1 is not in 0..3"},
      {lengths({}, {6, 0}), "seqlens_kv[0]: 6 is not in 0..5"},
      {lengths({3, 3}, {5, -5}), "seqlens_kv[1]: -5 is not in 0..5"},
      {offsets({-1, 0, 3}, {}), "cu_seqlens_q[0]: -1 is not in 0..3"},
      {offsets({1, 0, 3}, {}), "cu_seqlens_q[1]: 0 is not in 1..3"},
      {offsets({0, 2, 4}, {}), "cu_seqlens_q[2]: 4 is not in 2..3"},
      {offsets({}, {0, 6, 5}), "cu_seqlens_kv[1]: 6 is not in 0..5"},
      {offsets({0, 3, 3}, {0, 5, 4}), "cu_seqlens_kv[2]: 4 is not in 5..5"},
      {heads({1, 2, nan, 3}, {}), "alibi_slopes[2]: nan is not finite"},
      {heads({1, 2, 3, -infinity}, {}), "alibi_slopes[3]: -inf is not finite"},
      {heads({}, {infinity, 0, 0, 0}), "sinks[0]: inf is neither finite nor -infinity"},
      {heads({}, {-infinity, -nan, 0, 0}), "sinks[1]: "},
  };
}

void set_contents(fovea_params &p, const Contents &contents) {
  const auto data = [](const auto &list) { return list.empty() ? nullptr : list.data(); };
  p.seqlens_q = data(contents.seqlens_q), p.seqlens_kv = data(contents.seqlens_kv);
  p.cu_seqlens_q = data(contents.cu_seqlens_q), p.cu_seqlens_kv = data(contents.cu_seqlens_kv);
  p.alibi_slopes = data(contents.alibi_slopes), p.sinks = data(contents.sinks);
  p.align = FOVEA_ALIGN_TOP_LEFT;
  if (p.cu_seqlens_q || p.cu_seqlens_kv) p.weights.data = nullptr;
}

TEST_F(Api, WrongContentsAreNamedAndNoTensorIsTouched) {
  for (const WrongContents &wrong : wrong_contents()) {
    fovea_params p = forbidden_call();
    add_mask(p, forbidden, FOVEA_BOOL);
    set_contents(p, wrong.contents);
    expect_error(fovea_forward(context, &p, nullptr, 0), {wrong.text, {}, FOVEA_ERR_INVALID_ARGUMENT, wrong.text});
    size_t bytes;
    EXPECT_EQ(fovea_workspace_size(context, &p, &bytes), FOVEA_OK) << wrong.text << ": " << fovea_last_error();
  }
}

TEST_F(Api, ArraysAreApartFromOutputsAndAligned) {
  const Contents good = {{3, 2}, {5, 0}, {}, {}, {1, 2, 3, 4}, {0, 0, 0, 0}};
  const Contents packed = {{}, {}, {0, 1, 3}, {0, 0, 5}, {}, {}};
  const auto expect = [&](const Contents &contents, auto change, fovea_status status, const char *text) {
    fovea_params p = forbidden_call();
    set_contents(p, contents);
    change(p);
    expect_error(fovea_forward(context, &p, nullptr, 0), {text, {}, status, text});
  };
  const auto writable = [](auto *array, size_t index) {
    return const_cast<float *>(reinterpret_cast<const float *>(array)) + index;
  };
  expect(
      good, [&](auto &p) { p.lse = writable(p.seqlens_q, 1); }, FOVEA_ERR_OVERLAP, "lse: overlaps seqlens_q");
  expect(
      good, [&](auto &p) { p.lse = writable(p.seqlens_kv, 1); }, FOVEA_ERR_OVERLAP, "lse: overlaps seqlens_kv");
  expect(
      good, [&](auto &p) { p.lse = writable(p.alibi_slopes, 3); }, FOVEA_ERR_OVERLAP, "lse: overlaps alibi_slopes");
  expect(
      good, [&](auto &p) { p.out.data = writable(p.sinks, 3); }, FOVEA_ERR_OVERLAP, "out: overlaps sinks");
  expect(
      packed, [&](auto &p) { p.out.data = writable(p.cu_seqlens_q, 2); }, FOVEA_ERR_OVERLAP, "out: overlaps cu_seqlens_q");
  expect(
      packed, [&](auto &p) { p.out.data = writable(p.cu_seqlens_kv, 2); }, FOVEA_ERR_OVERLAP, "out: overlaps cu_seqlens_kv");
  const auto off_by_1 = [](auto *&array) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(reinterpret_cast<uintptr_t>(array) + 1);
  };
  expect(
      good, [&](auto &p) { off_by_1(p.seqlens_q); }, FOVEA_ERR_INVALID_ARGUMENT, "seqlens_q: its address");
  expect(
      good, [&](auto &p) { off_by_1(p.seqlens_kv); }, FOVEA_ERR_INVALID_ARGUMENT, "seqlens_kv: its address");
  expect(
      good, [&](auto &p) { off_by_1(p.alibi_slopes); }, FOVEA_ERR_INVALID_ARGUMENT, "alibi_slopes: its address");
  expect(
      good, [&](auto &p) { off_by_1(p.sinks); }, FOVEA_ERR_INVALID_ARGUMENT, "sinks: its address");
  expect(
      packed, [&](auto &p) { off_by_1(p.cu_seqlens_q); }, FOVEA_ERR_INVALID_ARGUMENT, "cu_seqlens_q: its address");
  expect(
      packed, [&](auto &p) { off_by_1(p.cu_seqlens_kv); }, FOVEA_ERR_INVALID_ARGUMENT, "cu_seqlens_kv: its address");
}

// Only what a segment can use of a mask counts: the token axes of a packed batch are longer than any of its segments.
TEST_F(Api, TheMaskOfAPackedBatchEndsWithItsLongestSegments) {
  const int32_t offsets_q[] = {0, 2, 3}, offsets_kv[] = {1, 1, 5};  // at most 2 queries and 4 keys
  float q[4 * 3 * 6] = {}, k[2 * 5 * 6] = {}, v[2 * 5 * 7] = {};
  struct {
    unsigned char mask[2][4][2][4];
    float out[4 * 3 * 7];
  } memory = {};
  fovea_params p = params_of(2, 4, 2, 3, 5, 6, 7);
  p.q.data = q, p.k.data = k, p.v.data = v, p.out.data = memory.out;
  p.cu_seqlens_q = offsets_q, p.cu_seqlens_kv = offsets_kv;
  p.mask = {memory.mask, {32, 8, 4, 1}, FOVEA_BOOL, 0};
  EXPECT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_OK) << fovea_last_error();
  p.mask.data = &memory.mask[0][0][0][1];
  EXPECT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_ERR_OVERLAP);
  EXPECT_STREQ(fovea_last_error(), "out: overlaps mask");
}

TEST_F(Api, ManySegmentsOfManyTokensAreNotTooManyScores) {
  const int64_t segments = 1 << 16, tokens = 1 << 22;
  fovea_params p = params_of(segments, 64, 64, tokens, tokens, 128, 128);
  static const int32_t offsets = 0;  // not read
  size_t bytes;
  EXPECT_EQ(fovea_workspace_size(context, &p, &bytes), FOVEA_ERR_INVALID_SIZE);
  p.cu_seqlens_q = p.cu_seqlens_kv = &offsets;
  EXPECT_EQ(fovea_workspace_size(context, &p, &bytes), FOVEA_OK) << fovea_last_error();
}

// A signalling NaN and subnormals, which raise flags wherever they are computed with.
TEST_F(Api, ErrorsLeaveTheFloatingPointEnvironmentAlone) {
  const uint32_t signalling_bits = 0x7f800001;
  float signalling;
  memcpy(&signalling, &signalling_bits, sizeof signalling);
  const float four[] = {0.5f, 1e-40f, signalling, 1};
  const Change changes[] = {[&](auto &p) { memcpy(&p.scale, &signalling, sizeof p.scale); },
                            [&](auto &p) { memcpy(&p.softcap, &signalling, sizeof p.softcap); },
                            [](auto &p) { p.softcap = -1e-40f; }, [&](auto &p) { p.sinks = four; },
                            [&](auto &p) { p.alibi_slopes = four, p.align = FOVEA_ALIGN_TOP_LEFT; }};
  for (const Change &change : changes) {
    fovea_params p = forbidden_call();
    change(p);
    std::feclearexcept(FE_ALL_EXCEPT);
    EXPECT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(std::fetestexcept(FE_ALL_EXCEPT), 0) << fovea_last_error();
  }
}

TEST_F(Api, ASmallerParamsIsReadNoFurtherThanItsSize) {
  // The struct of another version may end at the end of its page: only struct_size may be read.
  const long page = sysconf(_SC_PAGESIZE);
  char *pages = static_cast<char *>(mmap(nullptr, size_t(2 * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(mprotect(pages + page, size_t(page), PROT_NONE), 0);
  fovea_params *p = reinterpret_cast<fovea_params *>(pages + page - 8);
  p->struct_size = 8;
  EXPECT_EQ(fovea_forward(context, p, nullptr, 0), FOVEA_ERR_STRUCT_SIZE);
  EXPECT_EQ(std::string(fovea_last_error()).rfind("params.struct_size: 8", 0), 0u) << fovea_last_error();
  p->struct_size = sizeof(fovea_params) + 8;
  EXPECT_EQ(fovea_forward(context, p, nullptr, 0), FOVEA_ERR_STRUCT_SIZE);
  fovea_options *o = reinterpret_cast<fovea_options *>(p);
  o->struct_size = 8;
  fovea_context *created = nullptr;
  EXPECT_EQ(fovea_context_create(o, &created), FOVEA_ERR_STRUCT_SIZE);
  EXPECT_EQ(created, nullptr);
  munmap(pages, size_t(2 * page));
}

TEST_F(Api, NullArgumentsAreNamed) {
  fovea_params p = forbidden_call();
  size_t bytes = 0;
  const auto expect_null = [](fovea_status status, const char *name) {
    EXPECT_EQ(status, FOVEA_ERR_NULL_POINTER) << name;
    EXPECT_EQ(std::string(fovea_last_error()).rfind(name, 0), 0u) << fovea_last_error();
  };
  expect_null(fovea_forward(nullptr, &p, nullptr, 0), "context: ");
  expect_null(fovea_forward(context, nullptr, nullptr, 0), "params: ");
  expect_null(fovea_workspace_size(nullptr, &p, &bytes), "context: ");
  expect_null(fovea_workspace_size(context, nullptr, &bytes), "params: ");
  expect_null(fovea_workspace_size(context, &p, nullptr), "bytes: ");
  expect_null(fovea_params_init(nullptr, sizeof p, 1, 1, 1, 1, 1, 1, 1), "p: ");
  expect_null(fovea_options_init(nullptr, sizeof(fovea_options)), "o: ");
  expect_null(fovea_context_create(nullptr, nullptr), "out: ");
  fovea_context_destroy(nullptr);
}

// What one key gives is that key's value, exactly.
struct OneKeyCall {
  int64_t batch = 2, heads = 4, seq = 3, dim_k = 5, dim_v = 7;
  std::vector<float> q, k, v, out, lse, weights;
  fovea_params params;

  OneKeyCall() : params(params_of(batch, heads, heads, seq, 1, dim_k, dim_v)) {
    q.assign(size_t(batch * heads * seq * dim_k), 0.5f);
    k.assign(size_t(batch * heads * dim_k), 0.25f);
    for (int64_t i = 0; i < batch * heads * dim_v; ++i) v.push_back(float(i));
    out.assign(size_t(batch * heads * seq * dim_v), kCanary);
    lse.assign(size_t(batch * heads * seq), kCanary);
    weights.assign(lse.size(), kCanary);
    params.q.data = q.data();
    params.k.data = k.data();
    params.v.data = v.data();
    params.out.data = out.data();
    params.lse = lse.data();
    params.weights.data = weights.data();
  }

  float expected(int64_t b, int64_t h, int64_t d) const { return v[size_t((b * heads + h) * dim_v + d)]; }

  bool is_right() const {
    for (int64_t row = 0; row < batch * heads * seq; ++row)
      for (int64_t d = 0; d < dim_v; ++d)
        if (out[size_t(row * dim_v + d)] != v[size_t(row / seq * dim_v + d)]) return false;
    return std::all_of(weights.begin(), weights.end(), [](float w) { return w == 1; });
  }
  bool is_untouched() const {
    const auto canary = [](float x) { return x == kCanary; };
    return std::all_of(out.begin(), out.end(), canary) && std::all_of(lse.begin(), lse.end(), canary) &&
           std::all_of(weights.begin(), weights.end(), canary);
  }
};

TEST_F(Api, RunsWithAnyWorkspaceLargeEnoughAndWithItsOwn) {
  OneKeyCall own;
  EXPECT_EQ(fovea_forward(context, &own.params, nullptr, 0), FOVEA_OK) << fovea_last_error();
  EXPECT_TRUE(own.is_right());

  size_t needed = 0;
  ASSERT_EQ(fovea_workspace_size(context, &own.params, &needed), FOVEA_OK);
  ASSERT_GT(needed, 0u);
  for (size_t misalignment : {0, 1, 63}) {
    OneKeyCall given;
    std::vector<char> memory(misalignment + needed);
    EXPECT_EQ(fovea_forward(context, &given.params, memory.data() + misalignment, needed), FOVEA_OK) << fovea_last_error();
    EXPECT_TRUE(given.is_right()) << misalignment;
  }
}

TEST_F(Api, TooSmallAWorkspaceIsAnError) {
  OneKeyCall call;
  size_t needed = 0;
  ASSERT_EQ(fovea_workspace_size(context, &call.params, &needed), FOVEA_OK);
  EXPECT_EQ(fovea_forward(context, &call.params, forbidden.at(0), needed - 1), FOVEA_ERR_WORKSPACE);
  EXPECT_EQ(fovea_last_error(),
            "workspace: " + std::to_string(needed - 1) + " bytes given, " + std::to_string(needed) + " needed");
  EXPECT_TRUE(call.is_untouched());
}

TEST_F(Api, AWorkspaceOnTopOfATensorIsAnError) {
  size_t needed = 0;
  OneKeyCall call;
  ASSERT_EQ(fovea_workspace_size(context, &call.params, &needed), FOVEA_OK);
  std::vector<char> memory(needed + 4096);
  const auto try_at = [&](char *data) {
    call.params.q.data = data;
    return fovea_forward(context, &call.params, memory.data() + 1, needed);
  };
  char *behind = memory.data() + (1 + needed + 3) / 4 * 4;
  EXPECT_EQ(try_at(behind - 4), FOVEA_ERR_OVERLAP);
  EXPECT_STREQ(fovea_last_error(), "workspace: overlaps q");
  EXPECT_TRUE(call.is_untouched());
  EXPECT_EQ(try_at(behind), FOVEA_OK) << fovea_last_error();
}

TEST_F(Api, WorkspaceSizeLooksAtNoDataPointer) {
  OneKeyCall call;
  size_t with = 0, without = 0;
  ASSERT_EQ(fovea_workspace_size(context, &call.params, &with), FOVEA_OK);
  for (fovea_tensor *t : {&call.params.q, &call.params.k, &call.params.v, &call.params.out}) t->data = nullptr;
  ASSERT_EQ(fovea_workspace_size(context, &call.params, &without), FOVEA_OK);
  EXPECT_EQ(with, without);
}

TEST_F(Api, OutputsMayLieInTheGapsOfTheirInputs) {
  // Token by token: q, v, out, lse and weights of all heads beside each other in one buffer. k repeats for all.
  OneKeyCall call;
  const int64_t h = call.heads, token = h * (call.dim_k + 2 * call.dim_v + 2);
  std::vector<float> packed(size_t(call.batch * call.seq * token), kCanary);
  int64_t offset = 0;
  const auto place = [&](fovea_tensor *t, int64_t dim) {
    t->data = packed.data() + offset;
    t->stride[0] = call.seq * token, t->stride[1] = dim, t->stride[2] = token, t->stride[3] = 1;
    offset += h * dim;
  };
  place(&call.params.q, call.dim_k);
  place(&call.params.v, call.dim_v);
  place(&call.params.out, call.dim_v);
  place(&call.params.weights, 1);
  call.params.lse = packed.data() + offset;
  call.params.lse_stride[0] = call.seq * token, call.params.lse_stride[1] = 1, call.params.lse_stride[2] = token;
  const auto at = [&](const fovea_tensor &t, int64_t b, int64_t head, int64_t s, int64_t d) -> float & {
    return static_cast<float *>(t.data)[b * t.stride[0] + head * t.stride[1] + s * t.stride[2] + d * t.stride[3]];
  };
  for (int64_t b = 0; b < call.batch; ++b)
    for (int64_t head = 0; head < h; ++head) {
      for (int64_t s = 0; s < call.seq; ++s)
        for (int64_t d = 0; d < call.dim_k; ++d) at(call.params.q, b, head, s, d) = 1;
      for (int64_t d = 0; d < call.dim_v; ++d) at(call.params.v, b, head, 0, d) = call.expected(b, head, d);
    }
  ASSERT_EQ(fovea_forward(context, &call.params, nullptr, 0), FOVEA_OK) << fovea_last_error();
  for (int64_t b = 0; b < call.batch; ++b)
    for (int64_t head = 0; head < h; ++head)
      for (int64_t s = 0; s < call.seq; ++s) {
        for (int64_t d = 0; d < call.dim_v; ++d) EXPECT_EQ(at(call.params.out, b, head, s, d), call.expected(b, head, d));
        EXPECT_EQ(at(call.params.weights, b, head, s, 0), 1);
      }
}

TEST_F(Api, StridesOfAxesOfSizeOneAreIgnored) {
  float q[2] = {1, 2}, k[2] = {3, 4}, v[2] = {5, 6}, out[2] = {}, lse = 0, weights = 0;
  fovea_params p = params_of(1, 1, 1, 1, 1, 2, 2);
  p.q.data = q, p.k.data = k, p.v.data = v, p.out.data = out, p.weights.data = &weights, p.lse = &lse;
  for (fovea_tensor *t : {&p.q, &p.k, &p.v, &p.out})
    for (int axis = 0; axis < 3; ++axis) t->stride[axis] = axis == 1 ? -kMax : kMax;
  p.weights.stride[3] = -1;
  for (int64_t &stride : p.lse_stride) stride = kMax;
  ASSERT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(out[0], 5);
  EXPECT_EQ(out[1], 6);
}

TEST_F(Api, ZeroSizesWriteNothingWhereThereIsNothingToWrite) {
  const struct {
    const char *name;
    int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v;
  } cases[] = {
      {"batch", 0, 4, 2, 3, 5, 6, 7}, {"heads", 2, 0, 0, 3, 5, 6, 7}, {"heads_q", 2, 0, 2, 3, 5, 6, 7},
      {"seq_q", 2, 4, 2, 0, 5, 6, 7}, {"all", 0, 0, 0, 0, 0, 0, 0},   {"huge rest", 0, 4, 2, kMax, kMax, 6, 7},
  };
  for (const auto &c : cases)
    for (int causal : {0, 1}) {
      fovea_params p = {};
      if (c.seq_q < kMax) {
        p = params_of(c.batch, c.heads_q, c.heads_kv, c.seq_q, c.seq_kv, c.dim_k, c.dim_v);
      } else {
        p = params_of(1, c.heads_q, c.heads_kv, 1, 1, c.dim_k, c.dim_v);
        p.batch = c.batch, p.seq_q = c.seq_q, p.seq_kv = c.seq_kv;
      }
      p.causal = causal;
      p.align = FOVEA_ALIGN_BOTTOM_RIGHT;
      p.q.data = forbidden.at(0x1000), p.k.data = forbidden.at(0x2000), p.v.data = forbidden.at(0x3000);
      p.out.data = forbidden.at(0x4000), p.weights.data = forbidden.at(0x5000), p.lse = forbidden.at(0x6000);
      size_t bytes = 77;
      EXPECT_EQ(fovea_workspace_size(context, &p, &bytes), FOVEA_OK) << c.name << ": " << fovea_last_error();
      EXPECT_EQ(bytes, 0u) << c.name;
      EXPECT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_OK) << c.name << ": " << fovea_last_error();
    }
}

TEST_F(Api, EmptyTensorsMayBeNull) {
  fovea_params p = params_of(0, 4, 2, 3, 5, 6, 7);
  EXPECT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_OK) << fovea_last_error();
  float out[2] = {kCanary, kCanary}, lse[2] = {kCanary, kCanary}, v[3] = {1, 2, 6};

  p = params_of(1, 2, 1, 1, 0, 3, 1);  // no keys
  float q[6] = {};
  p.q.data = q, p.out.data = out, p.lse = lse;
  ASSERT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_OK) << fovea_last_error();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(out[i], 0);
    EXPECT_EQ(lse[i], -std::numeric_limits<float>::infinity());
  }

  p = params_of(1, 2, 1, 1, 3, 0, 1);  // no dims in q and k: every score is 0
  p.v.data = v, p.out.data = out, p.lse = lse;
  ASSERT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_OK) << fovea_last_error();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(out[i], 3);
    EXPECT_FLOAT_EQ(lse[i], std::log(3.f));
  }

  p = params_of(1, 2, 1, 1, 3, 2, 0);  // no dims in v: only the LSE is written
  float qk[6] = {};
  p.q.data = p.k.data = qk, p.lse = lse;
  lse[0] = lse[1] = kCanary;
  ASSERT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_OK) << fovea_last_error();
  for (float x : lse) EXPECT_FLOAT_EQ(x, std::log(3.f));
}

TEST(ParamsInit, IsDenseWithEveryOptionOff) {
  fovea_params p;
  memset(&p, 0x5a, sizeof p);
  ASSERT_EQ(fovea_params_init(&p, sizeof p, 2, 6, 3, 5, 7, 16, 9), FOVEA_OK);
  EXPECT_EQ(p.struct_size, sizeof p);
  const auto expect_dense = [](const fovea_tensor &t, int64_t heads, int64_t seq, int64_t dim) {
    EXPECT_EQ(t.data, nullptr);
    EXPECT_EQ(t.dtype, FOVEA_F32);
    EXPECT_EQ(t.reserved, 0);
    EXPECT_EQ(t.stride[3], 1);
    EXPECT_EQ(t.stride[2], dim);
    EXPECT_EQ(t.stride[1], seq * dim);
    EXPECT_EQ(t.stride[0], heads * seq * dim);
  };
  expect_dense(p.q, 6, 5, 16);
  expect_dense(p.k, 3, 7, 16);
  expect_dense(p.v, 3, 7, 9);
  expect_dense(p.out, 6, 5, 9);
  expect_dense(p.weights, 6, 5, 7);
  EXPECT_EQ(p.lse, nullptr);
  EXPECT_EQ(p.lse_stride[0], 30);
  EXPECT_EQ(p.lse_stride[1], 5);
  EXPECT_EQ(p.lse_stride[2], 1);
  EXPECT_EQ(p.scale, 0.25f);
  EXPECT_EQ(p.window_left, -1);
  EXPECT_EQ(p.window_right, -1);
  EXPECT_EQ(p.causal, 0);
  ASSERT_EQ(fovea_params_init(&p, sizeof p, 1, 1, 1, 1, 1, 0, 1), FOVEA_OK);
  EXPECT_EQ(p.scale, 1.f);
}

// No tensor has an element: nothing can be too large.
TEST(ParamsInit, AllowsAnySizesBesideOneOfZero) {
  for (int64_t zero = 0; zero < 3; ++zero) {
    fovea_params p = params_of(zero == 0 ? 0 : 2, zero == 1 ? 0 : kHuge, kHuge, zero == 2 ? 0 : kHuge, zero == 2 ? 0 : kHuge,
                               zero ? 0 : 3, zero ? 0 : 5);
    for (const fovea_tensor &t : {p.q, p.k, p.v, p.out, p.weights})
      for (int64_t stride : t.stride) EXPECT_GE(stride, 0);
    fovea_context *context;
    ASSERT_EQ(fovea_context_create(nullptr, &context), FOVEA_OK);
    EXPECT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_OK) << fovea_last_error();
    fovea_context_destroy(context);
  }
}

TEST(ParamsInit, WritesNothingWhenItFails) {
  fovea_params p, before;
  memset(&p, 0x5a, sizeof p);
  before = p;
  EXPECT_EQ(fovea_params_init(&p, sizeof p - 8, 1, 1, 1, 1, 1, 1, 1), FOVEA_ERR_STRUCT_SIZE);
  EXPECT_EQ(fovea_params_init(&p, sizeof p + 8, 1, 1, 1, 1, 1, 1, 1), FOVEA_ERR_STRUCT_SIZE);
  EXPECT_EQ(fovea_params_init(&p, sizeof p, -1, 1, 1, 1, 1, 1, 1), FOVEA_ERR_INVALID_SIZE);
  EXPECT_EQ(fovea_params_init(&p, sizeof p, 1, 32, 5, 1, 1, 1, 1), FOVEA_ERR_INVALID_SIZE);
  EXPECT_EQ(fovea_params_init(&p, sizeof p, 1, 4, 0, 1, 1, 1, 1), FOVEA_ERR_INVALID_SIZE);
  EXPECT_EQ(fovea_params_init(&p, sizeof p, kHuge, 4, 4, 1, 1, 1, 1), FOVEA_ERR_INVALID_SIZE);
  EXPECT_EQ(fovea_params_init(&p, sizeof p, 1, 1, 1, 1, kHuge / 4, 1000, 1), FOVEA_ERR_INVALID_SIZE);
  EXPECT_EQ(memcmp(&p, &before, sizeof p), 0);
}

// FOVEA_ISA for the life of the object.
class Environment {
 public:
  explicit Environment(const char *value) {
    const char *old = getenv("FOVEA_ISA");
    was_set_ = old;
    if (old) old_ = old;
    if (value)
      setenv("FOVEA_ISA", value, 1);
    else
      unsetenv("FOVEA_ISA");
  }
  ~Environment() {
    if (was_set_)
      setenv("FOVEA_ISA", old_.c_str(), 1);
    else
      unsetenv("FOVEA_ISA");
  }

 private:
  bool was_set_;
  std::string old_;
};

fovea_options default_options() {
  fovea_options o;
  EXPECT_EQ(fovea_options_init(&o, sizeof o), FOVEA_OK);
  return o;
}

// The level that a context gets, or minus the status.
int32_t level_with(const fovea_options &o) {
  fovea_context *context = nullptr;
  const fovea_status status = fovea_context_create(&o, &context);
  if (status) {
    EXPECT_EQ(context, nullptr);
    return -status;
  }
  const int32_t level = fovea_context_isa(context);
  fovea_context_destroy(context);
  return level;
}

std::vector<fovea_isa> isa_list(bool usable_only) {
  std::vector<fovea_isa> list(size_t(fovea_isa_list(nullptr, 0, usable_only)));
  EXPECT_EQ(fovea_isa_list(list.data(), int32_t(list.size()), usable_only), int32_t(list.size()));
  return list;
}

TEST(Context, TakesTheBestUsableLevelOrTheOneNamed) {
  Environment none(nullptr);
  fovea_options o = default_options();
  EXPECT_EQ(level_with(o), isa_list(true).back());
  for (fovea_isa level : isa_list(true)) {
    o.isa = level;
    EXPECT_EQ(level_with(o), level);
  }
}

TEST(Context, EnvironmentNamesALevelWhereTheOptionsDoNot) {
  fovea_options o = default_options();
  const fovea_isa best = isa_list(true).back();
  {
    Environment scalar("scalar");
    EXPECT_EQ(level_with(o), FOVEA_ISA_SCALAR);
    o.isa = best;
    EXPECT_EQ(level_with(o), best);
    o.isa = FOVEA_ISA_AUTO;
    o.flags = FOVEA_IGNORE_ENV;
    EXPECT_EQ(level_with(o), best);
    o.flags = 0;
  }
  for (const char *empty : {"", "auto"}) {
    Environment automatic(empty);
    EXPECT_EQ(level_with(o), best) << '"' << empty << '"';
  }
  Environment nonsense("sse9");
  EXPECT_EQ(level_with(o), -FOVEA_ERR_INVALID_ARGUMENT);
  EXPECT_STREQ(fovea_last_error(), "FOVEA_ISA: \"sse9\" is not the name of a level");
}

TEST(Context, AnUnusableLevelIsAnErrorThatSaysWhy) {
  int refused = 0;
  for (fovea_isa level : {FOVEA_ISA_AVX2, FOVEA_ISA_AVX512, FOVEA_ISA_AVX512_BF16, FOVEA_ISA_AVX512_FP16, FOVEA_ISA_AMX,
                          FOVEA_ISA_NEON, FOVEA_ISA_NEON_BF16, FOVEA_ISA_SVE, FOVEA_ISA_SVE_BF16}) {
    const std::string refusal = fovea_isa_refusal(level);
    if (refusal.empty()) continue;
    ++refused;
    fovea_options o = default_options();
    o.isa = level;
    EXPECT_EQ(level_with(o), -FOVEA_ERR_ISA_UNAVAILABLE);
    EXPECT_EQ(fovea_last_error(), std::string("options.isa: ") + fovea_isa_name(level) + ": " + refusal);
    o.isa = FOVEA_ISA_AUTO;
    Environment named(fovea_isa_name(level));
    EXPECT_EQ(level_with(o), -FOVEA_ERR_ISA_UNAVAILABLE);
    EXPECT_EQ(fovea_last_error(), std::string("FOVEA_ISA: ") + fovea_isa_name(level) + ": " + refusal);
  }
  EXPECT_GT(refused, 0) << "no machine has the levels of two architectures";
}

void run_here(void *user, fovea_task_fn task, void *arg, int64_t n) {
  ++*static_cast<int *>(user);
  for (int64_t i = n; i-- > 0;) task(arg, i, 2);
}

TEST(Context, WrongOptionsAreNamed) {
  int calls = 0;
  const fovea_executor good = {sizeof good, 3, &calls, run_here};
  fovea_executor executor = good;
  const auto expect = [](const fovea_options &o, fovea_status status, const char *text) {
    EXPECT_EQ(level_with(o), -status) << text;
    EXPECT_EQ(std::string(fovea_last_error()).rfind(text, 0), 0u) << fovea_last_error();
  };
  const auto with = [](auto change) {
    fovea_options o = default_options();
    change(o);
    return o;
  };
  expect(with([](auto &o) { --o.struct_size; }), FOVEA_ERR_STRUCT_SIZE, "options.struct_size: ");
  expect(with([](auto &o) { o.flags = 0x80; }), FOVEA_ERR_UNSUPPORTED, "options.flags: 0x80");
  expect(with([](auto &o) { o.isa = 15; }), FOVEA_ERR_INVALID_ARGUMENT, "options.isa: 15");
  expect(with([](auto &o) { o.isa = -1; }), FOVEA_ERR_INVALID_ARGUMENT, "options.isa: -1");
  expect(with([](auto &o) { o.num_threads = -1; }), FOVEA_ERR_INVALID_ARGUMENT, "options.num_threads: -1");
  expect(with([](auto &o) { o.num_threads = FOVEA_MAX_THREADS + 1; }), FOVEA_ERR_INVALID_ARGUMENT, "options.num_threads: 8193");
  const fovea_options o = with([&](auto &options) { options.executor = &executor; });
  executor.struct_size = 4;
  expect(o, FOVEA_ERR_STRUCT_SIZE, "executor.struct_size: 4");
  executor = good;
  executor.num_workers = 0;
  expect(o, FOVEA_ERR_INVALID_ARGUMENT, "executor.num_workers: 0");
  executor.num_workers = FOVEA_MAX_THREADS + 1;
  expect(o, FOVEA_ERR_INVALID_ARGUMENT, "executor.num_workers: 8193");
  executor = good;
  executor.parallel_for = nullptr;
  expect(o, FOVEA_ERR_NULL_POINTER, "executor.parallel_for: ");
  EXPECT_EQ(calls, 0);
}

TEST(Context, ReservedFlagsAreAcceptedAndChangeNoBit) {
  const auto results = [](uint32_t flags) {
    fovea_options o = default_options();
    o.flags = flags;
    fovea_context *context = nullptr;
    EXPECT_EQ(fovea_context_create(&o, &context), FOVEA_OK) << fovea_last_error();
    std::vector<uint16_t> inputs(3 * 40 * 24), out(40 * 24);  // float16, where 16-bit arithmetic would be tempting
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = uint16_t(0x3400 + 37 * i % 0x800 + (i % 3 ? 0x8000 : 0));
    fovea_params p = params_of(1, 1, 1, 40, 40, 24, 24);
    fovea_tensor *const tensors[] = {&p.q, &p.k, &p.v};
    for (size_t i = 0; i < 3; ++i) tensors[i]->data = inputs.data() + i * out.size(), tensors[i]->dtype = FOVEA_F16;
    p.out.data = out.data(), p.out.dtype = FOVEA_F16;
    EXPECT_EQ(fovea_forward(context, &p, nullptr, 0), FOVEA_OK) << fovea_last_error();
    const fovea_isa level = fovea_context_isa(context);
    fovea_context_destroy(context);
    return std::pair(level, out);
  };
  const auto plain = results(0);
  EXPECT_NE(plain.second, std::vector<uint16_t>(plain.second.size()));
  EXPECT_EQ(results(FOVEA_NO_AMX), plain);
  EXPECT_EQ(results(FOVEA_FAST_MATH16), plain);
  EXPECT_EQ(results(FOVEA_NO_AMX | FOVEA_FAST_MATH16), plain);
}

TEST(Context, RunsOnTheCallersExecutor) {
  int calls = 0;
  fovea_executor executor = {sizeof executor, 3, &calls, run_here};
  fovea_options o = default_options();
  o.executor = &executor;
  fovea_context *context;
  ASSERT_EQ(fovea_context_create(&o, &context), FOVEA_OK);
  executor.parallel_for = nullptr;  // copied
  EXPECT_EQ(fovea_context_threads(context), 3);
  OneKeyCall call;
  EXPECT_EQ(fovea_forward(context, &call.params, nullptr, 0), FOVEA_OK) << fovea_last_error();
  EXPECT_TRUE(call.is_right());
  EXPECT_EQ(calls, 1);
  fovea_context_destroy(context);
}

TEST(Context, HasTheThreadsAskedFor) {
  for (int32_t threads : {1, 3}) {
    fovea_options o = default_options();
    o.num_threads = threads;
    fovea_context *context;
    ASSERT_EQ(fovea_context_create(&o, &context), FOVEA_OK);
    EXPECT_EQ(fovea_context_threads(context), fovea::openmp_executor(threads).workers);
    fovea_context_destroy(context);
  }
  EXPECT_EQ(fovea_context_threads(nullptr), 0);
  EXPECT_EQ(fovea_context_isa(nullptr), FOVEA_ISA_AUTO);
}

// A sanitizer ends the process where memory runs out.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Context, RunsOutOfMemoryWithAStatusAndNothingTouched) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int calls = 0;
    const fovea_executor executor = {sizeof executor, FOVEA_MAX_THREADS, &calls, run_here};
    fovea_options o = default_options();
    o.executor = &executor;
    fovea_context *context;
    if (fovea_context_create(&o, &context) != FOVEA_OK) _exit(2);
    const int64_t dim = 1 << 24;  // the workspace for so many workers on such rows takes terabytes
    const Forbidden memory(size_t(2 * dim) * sizeof(float));
    fovea_params p = params_of(1, 1, 1, 1, 1, dim, dim);
    p.q.data = p.k.data = p.v.data = memory.at(0);
    p.out.data = memory.at(size_t(dim));
    size_t needed = 0;
    if (fovea_workspace_size(context, &p, &needed) != FOVEA_OK || needed >> 40 == 0) _exit(3);
    const rlimit limit = {size_t{1} << 36, size_t{1} << 36};  // for systems that promise memory they do not have
    setrlimit(RLIMIT_AS, &limit);
    if (fovea_forward(context, &p, nullptr, 0) != FOVEA_ERR_OUT_OF_MEMORY) _exit(4);
    if (std::string(fovea_last_error()).rfind("workspace: ", 0) != 0) _exit(5);
    _exit(calls == 0 ? 0 : 6);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}
#endif

TEST(Info, ListsLevels) {
  const auto known = isa_list(false), usable = isa_list(true);
  ASSERT_FALSE(usable.empty());
  EXPECT_EQ(known.front(), FOVEA_ISA_SCALAR);
  for (fovea_isa level : known) {
    const bool is_usable = std::find(usable.begin(), usable.end(), level) != usable.end();
    EXPECT_EQ(is_usable, *fovea_isa_refusal(level) == 0) << fovea_isa_name(level);
  }
  std::vector<fovea_isa> short_list = {-7, -7};
  EXPECT_EQ(fovea_isa_list(short_list.data(), 1, 0), int32_t(known.size()));
  EXPECT_EQ(short_list, (std::vector<fovea_isa>{FOVEA_ISA_SCALAR, -7}));
  EXPECT_STREQ(fovea_isa_name(12345), "unknown");
  EXPECT_STRNE(fovea_isa_refusal(12345), "");
}

TEST(Info, VersionIsThatOfTheHeader) {
  EXPECT_EQ(fovea_version(), std::to_string(FOVEA_VERSION_MAJOR) + "." + std::to_string(FOVEA_VERSION_MINOR) + "." +
                                 std::to_string(FOVEA_VERSION_PATCH));
}

TEST(Errors, EveryStatusHasItsPhrase) {
  std::vector<std::string> phrases;
  for (fovea_status status : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 30}) phrases.push_back(fovea_status_string(status));
  std::sort(phrases.begin(), phrases.end());
  EXPECT_EQ(std::unique(phrases.begin(), phrases.end()), phrases.end());
  EXPECT_EQ(std::count(phrases.begin(), phrases.end(), "unknown status"), 0);
  for (fovea_status status : {-1, 10, 31}) EXPECT_STREQ(fovea_status_string(status), "unknown status");
}

TEST(Errors, TextBelongsToItsThread) {
  EXPECT_EQ(fovea_options_init(nullptr, 0), FOVEA_ERR_NULL_POINTER);
  const std::string mine = fovea_last_error();
  EXPECT_FALSE(mine.empty());
  std::thread([] {
    EXPECT_STREQ(fovea_last_error(), "");
    EXPECT_EQ(fovea_context_create(nullptr, nullptr), FOVEA_ERR_NULL_POINTER);
    EXPECT_EQ(std::string(fovea_last_error()).rfind("out: ", 0), 0u);
  }).join();
  EXPECT_EQ(fovea_last_error(), mine);
}

std::string explain(const fovea_context *context, const fovea_params *p) {
  std::string json(fovea_explain(context, p, nullptr, 0), '\0');
  EXPECT_EQ(fovea_explain(context, p, json.data(), json.size() + 1), json.size());
  return json;
}

TEST_F(Api, ExplainsACall) {
  const fovea_params p = params_of(2, 4, 2, 3, 5, 6, 7);
  const auto json = nlohmann::json::parse(explain(context, &p));
  EXPECT_EQ(json["version"], fovea_version());
  EXPECT_EQ(json["status"], FOVEA_OK);
  EXPECT_EQ(json["error"], "");
  EXPECT_EQ(json["level"], fovea_isa_name(fovea_context_isa(context)));
  EXPECT_EQ(json["threads"], fovea_context_threads(context));
  const std::string kernel = json["kernel"], level = json["level"];
  const std::string object = level.substr(0, level.find("_bf16"));  // which leaves floats to its base; sve256/... of sve
  EXPECT_EQ(kernel.rfind(object, 0), 0u) << kernel;
  EXPECT_GT(json["tasks"], 0);
  size_t bytes = 0;
  ASSERT_EQ(fovea_workspace_size(context, &p, &bytes), FOVEA_OK);
  EXPECT_EQ(json["workspace_bytes"], bytes);
  const auto known = isa_list(false);
  ASSERT_EQ(json["levels"].size(), known.size());
  for (size_t i = 0; i < known.size(); ++i) {
    EXPECT_EQ(json["levels"][i]["name"], fovea_isa_name(known[i]));
    EXPECT_EQ(json["levels"][i]["refusal"], fovea_isa_refusal(known[i]));
    EXPECT_EQ(json["levels"][i]["usable"], *fovea_isa_refusal(known[i]) == 0);
  }
}

TEST_F(Api, ExplainsAnErrorAndACallWithoutWork) {
  fovea_params p = params_of(2, 4, 2, 3, 5, 6, 7);
  p.heads_q = 5;
  auto json = nlohmann::json::parse(explain(context, &p));
  EXPECT_EQ(json["status"], FOVEA_ERR_INVALID_SIZE);
  EXPECT_EQ(json["error"], fovea_last_error());
  json = nlohmann::json::parse(explain(nullptr, &p));
  EXPECT_EQ(json["status"], FOVEA_ERR_NULL_POINTER);
  p = params_of(0, 4, 2, 3, 5, 6, 7);
  json = nlohmann::json::parse(explain(context, &p));
  EXPECT_EQ(json["status"], FOVEA_OK);
  EXPECT_EQ(json["tasks"], 0);
  EXPECT_EQ(json["workspace_bytes"], 0);
}

TEST_F(Api, ExplanationIsCutLikeSnprintf) {
  const fovea_params p = params_of(2, 4, 2, 3, 5, 6, 7);
  const std::string whole = explain(context, &p);
  for (size_t capacity : {size_t{1}, size_t{2}, size_t{17}, whole.size(), whole.size() + 1}) {
    std::string buffer(whole.size() + 2, '#');
    EXPECT_EQ(fovea_explain(context, &p, buffer.data(), capacity), whole.size());
    EXPECT_EQ(std::string(buffer.c_str()), whole.substr(0, capacity - 1));
    EXPECT_EQ(buffer[capacity], '#');
  }
}

TEST_F(Api, ExplainsWhichFeaturesAreInUse) {
  using List = std::vector<std::string>;
  const auto features = [&](auto change) {
    fovea_params p = params_of(2, 4, 2, 3, 5, 6, 7);
    change(p);
    return nlohmann::json::parse(explain(context, &p)).at("features").get<List>();
  };
  EXPECT_EQ(features([](auto &) {}), List());
  EXPECT_EQ(features([](auto &p) { p.causal = 1, p.align = 1; }), List{"causal"});
  EXPECT_EQ(features([](auto &p) { p.window_right = 1, p.align = 1; }), List{"window_right"});
  EXPECT_EQ(features([&](auto &p) {
              const float *floats = forbidden.at(0);
              const int32_t *ints = reinterpret_cast<const int32_t *>(floats);
              p.window_left = 1, p.align = 2, p.softcap = 5;
              p.seqlens_q = ints, p.cu_seqlens_kv = ints;
              p.alibi_slopes = p.sinks = floats;
              add_mask(p, forbidden, FOVEA_BF16);
              p.score = score_nothing, p.score_mode = FOVEA_SCORE_REPLACE;
            }),
            (List{"window_left", "seqlens_q", "cu_seqlens_kv", "softcap", "alibi_slopes", "mask", "sinks", "score"}));
}

TEST_F(Api, ExplainsACallOnAQuantisedCacheInPages) {
  fovea_params p = params_of(2, 4, 2, 1, 500, 64, 32);
  p.q.dtype = p.out.dtype = FOVEA_BF16;
  p.k.dtype = FOVEA_I8, p.v.dtype = FOVEA_Q4_0;
  p.k_scale = {forbidden.at(0), {32, 16, 1, 1}, FOVEA_F32, 0};
  p.k.stride[0] = 2 * 16 * 64, p.k.stride[1] = 16 * 64;
  p.v.stride[0] = 2 * 16, p.v.stride[1] = 16, p.v.stride[2] = 1;
  p.page_size = 16, p.num_pages = 70, p.block_table_stride = 32;
  p.block_table = reinterpret_cast<const int32_t *>(forbidden.at(0));
  p.seqlens_kv = p.block_table;
  const auto json = nlohmann::json::parse(explain(context, &p));
  EXPECT_EQ(json["error"], "");
  EXPECT_EQ(json["features"], nlohmann::json::parse(R"(["seqlens_kv", "page_size"])"));
  EXPECT_EQ(json["types"], nlohmann::json::parse(R"({"q": "bf16", "k": "i8", "v": "q4_0", "out": "bf16"})"));
  size_t bytes = 0;
  ASSERT_EQ(fovea_workspace_size(context, &p, &bytes), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(json["workspace_bytes"], bytes);
}

TEST_F(Api, WorkspaceSizeDependsOnNoPointer) {
  fovea_params p = params_of(1, 1, 1, 1, 8, 4, 0);
  size_t without = 0, with = 0;
  ASSERT_EQ(fovea_workspace_size(context, &p, &without), FOVEA_OK);
  float lse;
  p.lse = &lse;
  ASSERT_EQ(fovea_workspace_size(context, &p, &with), FOVEA_OK);
  EXPECT_EQ(without, with);
}

TEST_F(Api, DefaultScaleIsThatOfRoundingToNearest) {
  const float scale = params_of(1, 1, 1, 1, 1, 3, 1).scale;
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  std::feclearexcept(FE_ALL_EXCEPT);
  const float upward = params_of(1, 1, 1, 1, 1, 3, 1).scale;
  const int raised = std::fetestexcept(FE_ALL_EXCEPT);
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(scale, upward);
  EXPECT_EQ(raised, 0);
}

std::vector<float> alibi_slopes(int64_t heads) {
  std::vector<float> slopes(size_t(heads), kCanary);
  EXPECT_EQ(fovea_alibi_slopes(heads, slopes.data()), FOVEA_OK) << fovea_last_error();
  return slopes;
}

TEST(AlibiSlopes, ArePowersOfTwoForAPowerOfTwoOfHeads) {
  EXPECT_EQ(alibi_slopes(1), (std::vector<float>{1.f / 256}));
  EXPECT_EQ(alibi_slopes(2), (std::vector<float>{1.f / 16, 1.f / 256}));
  EXPECT_EQ(alibi_slopes(8), (std::vector<float>{0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f}));
  const std::vector<float> of_64 = alibi_slopes(64);
  for (size_t h = 0; h < 64; ++h) EXPECT_EQ(of_64[h], float(std::pow(2.0, -double(h + 1) / 8))) << h;
}

TEST(AlibiSlopes, InterleaveThoseOfTheNextPowerOfTwo) {
  const std::vector<float> of_12 = alibi_slopes(12), of_16 = alibi_slopes(16), of_8 = alibi_slopes(8);
  const float last[] = {0.707107f, 0.353553f, 0.176777f, 0.088388f};
  for (size_t h = 0; h < 8; ++h) EXPECT_EQ(of_12[h], of_8[h]);
  for (size_t h = 0; h < 4; ++h) {
    EXPECT_NEAR(of_12[8 + h], last[h], 5e-7);
    EXPECT_EQ(of_12[8 + h], of_16[2 * h]);
  }
  EXPECT_EQ(alibi_slopes(3), (std::vector<float>{1.f / 16, 1.f / 256, 0.25f}));
  EXPECT_EQ(alibi_slopes(6), (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f}));
}

TEST(AlibiSlopes, NameWrongArguments) {
  float slope = kCanary;
  EXPECT_EQ(fovea_alibi_slopes(-1, &slope), FOVEA_ERR_INVALID_SIZE);
  EXPECT_STREQ(fovea_last_error(), "heads: -1 is negative");
  EXPECT_EQ(fovea_alibi_slopes(1, nullptr), FOVEA_ERR_NULL_POINTER);
  EXPECT_STREQ(fovea_last_error(), "slopes: must not be NULL");
  EXPECT_EQ(fovea_alibi_slopes(0, nullptr), FOVEA_OK);
  EXPECT_EQ(fovea_alibi_slopes(0, &slope), FOVEA_OK);
  EXPECT_EQ(slope, kCanary);
}

TEST(AlibiSlopes, AreTheSameWhateverTheRounding) {
  const std::vector<float> nearest = alibi_slopes(12);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  std::feclearexcept(FE_ALL_EXCEPT);
  std::vector<float> upward(12);
  fovea_alibi_slopes(12, upward.data());
  const int raised = std::fetestexcept(FE_ALL_EXCEPT);
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(upward, nearest);
  EXPECT_EQ(raised, 0);
}

TEST(C99, ProgramRuns) { EXPECT_EQ(fovea_c99_program(), 0); }

}  // namespace
