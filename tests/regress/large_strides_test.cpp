// Index times stride beyond 2^31 elements, and beyond 2^32, on each axis of each tensor. The address range is reserved only: touched
// pages are all that costs memory.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>

#include "support/call.h"
#include "support/levels.h"

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

}  // namespace
}  // namespace fovea::testing
