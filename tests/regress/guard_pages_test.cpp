// No byte outside of a tensor is read or written: every tensor, and the workspace, touches an inaccessible page, first behind it and then
// before it. And no alignment is needed but that of an element.
#include <gtest/gtest.h>

#include "support/call.h"
#include "support/elements.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

using reference::ProblemData;
using reference::ProblemLine;

class GuardPagesTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(GuardPagesTest);

TEST_P(GuardPagesTest, EveryDimAndLength) {
  for (const int32_t threads : {1, 2}) {
    const auto context = this->context(threads);
    for (const int64_t dim :
         {1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 33, 40, 63, 64, 65, 72, 80, 96, 112, 127, 128, 129, 192, 256, 512}) {
      for (const int64_t length : {1, 2, 3, 5, 17, 38, 39}) {
        for (const auto &[front, type] :
             {std::pair(false, "f32"), {true, "f32"}, {false, "f16"}, {true, "f16"}, {false, "bf16"}, {true, "bf16"}}) {
          ProblemLine line;
          line.type_q = line.type_k = line.type_v = line.type_out = type;
          line.heads_q = 2;
          line.seq_q = length % 2 ? length : 1;
          line.seq_kv = length;
          line.dim_k = dim;
          line.dim_v = dim % 2 ? dim : dim + 1;
          line.lse = line.weights = true;
          line.causal = length % 3 ? "none" : "br";
          const ProblemData data(line, front);
          ASSERT_EQ(reference::run_guarded(context.get(), data.params, front), "") << reference::format(line);
          ASSERT_TRUE(data.output_gaps_intact()) << reference::format(line);
        }
      }
    }
  }
}

TEST_P(GuardPagesTest, QuantisedAndPagedCaches) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const char *type : {"f32", "bf16", "i8", "q8_0", "q4_0"}) {
      const bool in_blocks = type[0] == 'q';
      for (const int64_t dim : {1, 7, 16, 31, 32, 33, 64, 65, 96}) {
        if (in_blocks && dim % 32) continue;
        for (const int64_t length : {1, 2, 7, 17, 39, 300}) {
          for (const int64_t page_size : {0, 1, 7, 16}) {
            ProblemLine line;
            line.type_k = line.type_v = type;
            line.batch = line.heads_q = 2;
            line.heads_kv = 1 + dim % 2;
            line.seq_q = length % 2 ? 1 : 5;
            line.seq_kv = length;
            line.dim_k = line.dim_v = dim;
            line.page_size = page_size;
            line.lens = page_size ? "ragged" : "full";
            line.causal = length % 3 ? "none" : "br";
            line.lse = true;
            for (const bool front : {false, true}) {
              const ProblemData data(line, front);
              ASSERT_EQ(reference::run_guarded(context.get(), data.params, front), "") << reference::format(line);
              ASSERT_TRUE(data.output_gaps_intact()) << reference::format(line);
            }
          }
        }
      }
    }
  }
}

class AlignmentTest : public LevelTest {
 protected:
  // Moves one tensor by so many bytes; returns the status.
  static fovea_status run_moved(const fovea_context *context, Call &call, fovea_tensor *tensor, std::vector<float> &values,
                                bool output, size_t bytes) {
    std::vector<unsigned char> memory((values.size() + 32) * sizeof(float), 0xFF);
    unsigned char *start = memory.data();
    while (reinterpret_cast<uintptr_t>(start) % 64) ++start;  // so that `bytes` is the whole misalignment
    void *before = tensor->data;
    tensor->data = start + bytes;
    if (!output) std::memcpy(start + bytes, values.data(), values.size() * sizeof(float));
    const fovea_status status = call.run(context);
    if (output) {
      if (status == FOVEA_OK) std::memcpy(values.data(), start + bytes, values.size() * sizeof(float));
      for (unsigned char *byte = memory.data(); byte < memory.data() + memory.size(); ++byte) {
        if (status == FOVEA_OK && byte >= start + bytes && byte < start + bytes + values.size() * sizeof(float)) continue;
        EXPECT_EQ(*byte, 0xFF) << "written outside of the output";
      }
    }
    tensor->data = before;
    return status;
  }
};
FOVEA_TEST_EVERY_LEVEL(AlignmentTest);

TEST_P(AlignmentTest, AnElementIsEnoughAndAByteIsRefused) {
  const auto context = this->context(2);
  for (const int64_t queries : {1, 40}) {
    Call call({1, 2, 1, queries, 300, 64, 48});
    call.fill_random(11);
    ASSERT_EQ(call.run(context.get()), FOVEA_OK);
    const std::vector<float> out = call.out, weights = call.weights;
    struct {
      fovea_tensor *tensor;
      std::vector<float> *values;
      const std::vector<float> *expected;
      bool output;
    } const tensors[] = {{&call.params.q, &call.q, &out, false},
                         {&call.params.k, &call.k, &out, false},
                         {&call.params.v, &call.v, &out, false},
                         {&call.params.out, &call.out, &out, true},
                         {&call.params.weights, &call.weights, &weights, true}};
    for (const auto &t : tensors) {
      for (const size_t bytes : {4, 8, 20, 60}) {
        ASSERT_EQ(run_moved(context.get(), call, t.tensor, *t.values, t.output, bytes), FOVEA_OK) << fovea_last_error();
        EXPECT_TRUE(same_bits(t.output ? *t.values : call.out, *t.expected)) << "moved by " << bytes;
      }
      for (const size_t bytes : {1, 2, 3}) {
        EXPECT_EQ(run_moved(context.get(), call, t.tensor, *t.values, t.output, bytes), FOVEA_ERR_INVALID_ARGUMENT);
        for (const float value : call.out) ASSERT_EQ(value, Call::canary);
      }
    }
  }
}

TEST_P(AlignmentTest, AnElementOf16BitsIsEnough) {
  const auto context = this->context(2);
  for (const fovea_dtype type : k16BitDtypes) {
    for (const int64_t queries : {1, 40}) {
      Call call({1, 2, 1, queries, 300, 63, 48});
      call.fill_random(11);
      Elements q(type, call.q), k(type, call.k), v(type, call.v), out(type, call.out);
      q.become(&call.params.q);
      k.become(&call.params.k);
      v.become(&call.params.v);
      out.become(&call.params.out);
      ASSERT_EQ(call.run(context.get()), FOVEA_OK) << fovea_last_error();
      const std::vector<unsigned char> expected = out.bytes(), nothing(out.bytes().size(), 0xFF);
      for (fovea_tensor *tensor : {&call.params.q, &call.params.k, &call.params.v, &call.params.out}) {
        const std::vector<unsigned char> &bytes = tensor == &call.params.q   ? q.bytes()
                                                  : tensor == &call.params.k ? k.bytes()
                                                  : tensor == &call.params.v ? v.bytes()
                                                                             : nothing;
        for (const size_t shift : {1, 2, 6, 10, 63}) {
          std::vector<unsigned char> memory(bytes.size() + 128, 0xFF);
          unsigned char *start = memory.data();
          while (reinterpret_cast<uintptr_t>(start) % 64 != shift) ++start;
          std::memcpy(start, bytes.data(), bytes.size());
          void *before = tensor->data;
          tensor->data = start;
          out.clear();
          const fovea_status status = call.run(context.get());
          const bool is_out = tensor == &call.params.out;
          const std::vector<unsigned char> result =
              is_out ? std::vector<unsigned char>(start, start + bytes.size()) : out.bytes();
          EXPECT_EQ(status, shift % 2 ? FOVEA_ERR_INVALID_ARGUMENT : FOVEA_OK) << "moved by " << shift;
          EXPECT_TRUE(result == (shift % 2 ? nothing : expected)) << "moved by " << shift;
          if (is_out) {
            for (unsigned char *byte = memory.data(); byte < memory.data() + memory.size(); ++byte) {
              ASSERT_TRUE(*byte == 0xFF || (byte >= start && byte < start + bytes.size())) << "written outside of the output";
            }
          }
          tensor->data = before;
        }
      }
    }
  }
}

TEST_P(AlignmentTest, AnyWorkspaceWillDo) {
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    Call call({1, 1, 1, 5, 2000, 33, 17});
    call.fill_random(12);
    ASSERT_EQ(call.run(context.get()), FOVEA_OK);
    const std::vector<float> out = call.out;
    size_t bytes = 0;
    ASSERT_EQ(fovea_workspace_size(context.get(), &call.params, &bytes), FOVEA_OK);
    std::vector<unsigned char> workspace(bytes + 64);
    for (size_t shift = 0; shift < 64; shift += shift < 9 ? 1 : 11) {
      std::fill(workspace.begin(), workspace.end(), 0xFF);
      call.out.assign(call.out.size(), Call::canary);
      ASSERT_EQ(fovea_forward(context.get(), &call.params, workspace.data() + shift, bytes), FOVEA_OK);
      EXPECT_TRUE(same_bits(out, call.out)) << "moved by " << shift;
      for (size_t i = 0; i < workspace.size(); ++i) {
        if (i >= shift && i < shift + bytes) continue;
        ASSERT_EQ(workspace[i], 0xFF) << "written outside of the workspace";
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
