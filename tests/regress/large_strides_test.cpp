// Index times stride beyond 2^31 elements, and beyond 2^32, on each axis of each tensor. The address range is reserved only: touched
// pages are all that costs memory.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>

#include "reference/element.h"
#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"

namespace fovea::testing {
namespace {

class Reserved {
 public:
  explicit Reserved(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Reserved() {
    if (ok()) munmap(data_, bytes_);
  }
  bool ok() const { return data_ != MAP_FAILED; }
  float *data() const { return static_cast<float *>(data_); }

 private:
  size_t bytes_;
  void *data_;
};

class LargeStridesTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(LargeStridesTest);

template <class Visit>  // visit(b, h, s, d)
void for_each(const int64_t *size, Visit visit) {
  for (int64_t b = 0; b < size[0]; ++b)
    for (int64_t h = 0; h < size[1]; ++h)
      for (int64_t s = 0; s < size[2]; ++s)
        for (int64_t d = 0; d < size[3]; ++d) visit(b, h, s, d);
}

TEST_P(LargeStridesTest, OneAxisOfOneTensorAtATime) {
  constexpr int64_t kStride = (int64_t{1} << 31) + 64;
  const auto context = this->context(2);
  Call dense({2, 4, 2, 4, 5, 8, 8});
  dense.fill_random(6);
  ASSERT_EQ(dense.run(context.get()), FOVEA_OK);
  const std::vector<float> out = dense.out, weights = dense.weights, lse = dense.lse;

  Call call({2, 4, 2, 4, 5, 8, 8});
  call.q = dense.q;
  call.k = dense.k;
  call.v = dense.v;
  const Sizes &n = call.n;
  struct {
    const char *name;
    fovea_tensor *tensor;
    const std::vector<float> *values;
    int64_t size[4];
    bool output;
  } const tensors[] = {{"q", &call.params.q, &call.q, {n.batch, n.heads_q, n.seq_q, n.dim_k}, false},
                       {"k", &call.params.k, &call.k, {n.batch, n.heads_kv, n.seq_kv, n.dim_k}, false},
                       {"v", &call.params.v, &call.v, {n.batch, n.heads_kv, n.seq_kv, n.dim_v}, false},
                       {"out", &call.params.out, &out, {n.batch, n.heads_q, n.seq_q, n.dim_v}, true},
                       {"weights", &call.params.weights, &weights, {n.batch, n.heads_q, n.seq_q, n.seq_kv}, true}};
  // Tensors whose innermost stride is not 1 take another way through the kernels.
  for (int i = 0; i < 10; ++i) {
    const auto &t = tensors[i / 2];
    for (int axis = 0; axis < 4; ++axis) {
      const fovea_tensor before = *t.tensor;
      const Reserved memory(size_t((t.size[axis] - 1) * kStride + 4096) * sizeof(float));
      if (!memory.ok()) GTEST_SKIP() << "cannot reserve address space";
      t.tensor->data = memory.data();
      if (i % 2)
        for (int64_t &stride : t.tensor->stride) stride *= 3;
      t.tensor->stride[axis] = kStride;
      const auto place = [&](int64_t b, int64_t h, int64_t s, int64_t d) {
        const int64_t *stride = t.tensor->stride;
        return memory.data() + b * stride[0] + h * stride[1] + s * stride[2] + d * stride[3];
      };
      size_t index = 0;
      if (!t.output)
        for_each(t.size, [&](int64_t b, int64_t h, int64_t s, int64_t d) { *place(b, h, s, d) = (*t.values)[index++]; });
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      if (t.output) {
        bool same = true;
        for_each(t.size, [&](int64_t b, int64_t h, int64_t s, int64_t d) { same &= *place(b, h, s, d) == (*t.values)[index++]; });
        EXPECT_TRUE(same) << t.name << " axis " << axis;
      } else {
        EXPECT_TRUE(same_bits(out, call.out)) << t.name << " axis " << axis;
      }
      *t.tensor = before;
    }
  }

  const int64_t lse_size[4] = {n.batch, n.heads_q, n.seq_q, 1};
  for (int axis = 0; axis < 3; ++axis) {
    const Reserved memory(size_t((lse_size[axis] - 1) * kStride + 4096) * sizeof(float));
    if (!memory.ok()) GTEST_SKIP() << "cannot reserve address space";
    const int64_t before = call.params.lse_stride[axis];
    call.params.lse = memory.data();
    call.params.lse_stride[axis] = kStride;
    ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
    size_t index = 0;
    const int64_t *stride = call.params.lse_stride;
    for_each(lse_size, [&](int64_t b, int64_t h, int64_t s, int64_t) {
      EXPECT_EQ(memory.data()[b * stride[0] + h * stride[1] + s * stride[2]], lse[index++]) << "lse axis " << axis;
    });
    call.params.lse_stride[axis] = before;
    call.params.lse = call.lse.data();
  }
}

TEST_P(LargeStridesTest, OneAxisOfTheMaskAtATime) {
  const auto context = this->context(2);
  // Two of anything, or so many keys that a block begins far from the first.
  for (const Sizes &n : {Sizes{2, 4, 2, 4, 5, 8, 8}, Sizes{2, 2, 2, 1, 3, 8, 8}, Sizes{1, 2, 1, 20, 520, 4, 4}}) {
    for (const fovea_dtype dtype : kMaskDtypes) {
      Mask mask(dtype, n);
      mask.permit_where([](int64_t b, int64_t h, int64_t i, int64_t j) { return (b + h * 3 + i * 5 + j * 7) % 4 != 0; });
      Call call(n);
      call.fill_random(7);
      call.params.mask = mask.tensor();
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      const std::vector<float> out = call.out;
      const int64_t size[4] = {n.batch, n.heads_q, n.seq_q, n.seq_kv};
      const size_t element = reference::element_bytes(dtype);
      for (int axis = 0; axis < 4; ++axis) {
        if (size[axis] == 1) continue;
        const int64_t stride = (int64_t{1} << 33) / size[axis] + 64;  // the last element lies beyond 2^32
        const Reserved memory((size_t((size[axis] - 1) * stride) + mask.bytes().size()) * element);
        if (!memory.ok()) GTEST_SKIP() << "cannot reserve address space";
        fovea_tensor far = mask.tensor();
        far.data = memory.data();
        far.stride[axis] = stride;
        const int64_t *from = mask.tensor().stride;
        for_each(size, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
          const int64_t to = b * far.stride[0] + h * far.stride[1] + s * far.stride[2] + d * far.stride[3];
          std::memcpy(static_cast<unsigned char *>(far.data) + size_t(to) * element,
                      mask.bytes().data() + size_t(b * from[0] + h * from[1] + s * from[2] + d * from[3]) * element, element);
        });
        call.params.mask = far;
        ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
        EXPECT_TRUE(same_bits(out, call.out)) << "dtype " << dtype << " axis " << axis;
      }
    }
  }
}

// Tokens of a packed batch that lie beyond 2^31 elements: the offset is a token's, not a segment's.
TEST_P(LargeStridesTest, TokensOfPackedBatches) {
  constexpr int64_t kStride = (int64_t{1} << 30) + 64;
  const auto context = this->context(2);
  const int32_t q[] = {0, 2, 5}, kv[] = {1, 3, 6};
  Call dense({1, 2, 1, 5, 6, 8, 8});
  dense.fill_random(8);
  dense.params.batch = 2;
  dense.params.cu_seqlens_q = q;
  dense.params.cu_seqlens_kv = kv;
  dense.params.weights.data = nullptr;
  ASSERT_EQ(dense.run(context.get()), FOVEA_OK) << fovea_last_error();
  const std::vector<float> out = dense.out, lse = dense.lse;
  struct {
    fovea_tensor *tensor;
    const std::vector<float> *values;
    int64_t heads, tokens;
  } const tensors[] = {{&dense.params.q, &dense.q, 2, 5},
                       {&dense.params.k, &dense.k, 1, 6},
                       {&dense.params.v, &dense.v, 1, 6},
                       {&dense.params.out, &out, 2, 5}};
  for (const auto &t : tensors) {
    const fovea_tensor before = *t.tensor;
    const Reserved memory(size_t((t.tokens - 1) * kStride + 4096) * sizeof(float));
    if (!memory.ok()) GTEST_SKIP() << "cannot reserve address space";
    *t.tensor = {memory.data(), {0, 8, kStride, 1}, FOVEA_F32, 0};
    const auto place = [&](int64_t at) { return memory.data() + at / 8 / t.tokens * 8 + at / 8 % t.tokens * kStride + at % 8; };
    const bool output = t.values == &out;
    for (int64_t at = 0; at < t.heads * t.tokens * 8 && !output; ++at) *place(at) = (*t.values)[size_t(at)];
    ASSERT_EQ(dense.run(context.get()), FOVEA_OK) << fovea_last_error();
    for (int64_t at = 0; at < t.heads * t.tokens * 8 && output; ++at) ASSERT_EQ(*place(at), out[size_t(at)]) << at;
    EXPECT_TRUE(output || same_bits(out, dense.out));
    EXPECT_TRUE(same_bits(lse, dense.lse));
    *t.tensor = before;
  }
}

}  // namespace
}  // namespace fovea::testing
