// Memory and stack: nothing grows with the square of the lengths, nothing needs a large stack.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <functional>
#include <numeric>

#include "dispatch/dispatch.h"
#include "reference/thread_pool.h"
#include "support/call.h"
#include "support/levels.h"
#include "support/mask.h"
#include "support/pool.h"

namespace fovea::testing {
namespace {

// The memory and stack that sanitizers use drown ours.
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) || \
    __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class MemoryUseTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(MemoryUseTest);

constexpr size_t kMostWorkspace = size_t{8} << 20;  // a thread, for dims up to 256: what the header promises

TEST_P(MemoryUseTest, WorkspaceIsBoundedWhateverTheLengths) {
  for (const int32_t threads : {1, 2, 3, 7, 64}) {
    const auto context = this->context(threads);
    for (const int64_t queries : {1, 5, 300, 32768, 1 << 22}) {
      for (const int64_t keys : {1, 600, 32768, 1 << 24}) {
        for (const int64_t heads : {1, 8, 71}) {
          fovea_params dense, strided, paged, quantised;
          ASSERT_EQ(fovea_params_init(&dense, sizeof dense, 1, heads, 1, queries, keys, 256, 256), FOVEA_OK);
          strided = dense;  // worst case: nothing can be read or written where it lies
          for (fovea_tensor *t : {&strided.q, &strided.k, &strided.v, &strided.out})
            for (int64_t &stride : t->stride) stride *= 2;
          paged = dense;
          paged.page_size = 16, paged.num_pages = keys / 16 + 1, paged.block_table_stride = keys / 16 + 1;
          for (fovea_tensor *t : {&paged.k, &paged.v}) t->stride[0] = t->stride[1] = 16 * 256;
          quantised = paged;
          quantised.k.dtype = FOVEA_Q8_0, quantised.v.dtype = FOVEA_Q4_0;
          for (fovea_tensor *t : {&quantised.k, &quantised.v}) t->stride[0] = t->stride[1] = 16 * 8, t->stride[2] = 8;
          for (const fovea_params &params : {dense, strided, paged, quantised}) {
            size_t bytes = 0;
            ASSERT_EQ(fovea_workspace_size(context.get(), &params, &bytes), FOVEA_OK) << fovea_last_error();
            EXPECT_LE(bytes, kMostWorkspace * size_t(threads))
                << heads << " heads, " << queries << "x" << keys << ", threads " << threads;
          }
        }
      }
    }
  }
}

long peak_kilobytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// A score matrix of this size would be 4 GiB. Causal and of few queries a task, so that the test takes a second.
TEST_P(MemoryUseTest, PeakOfALongCall) {
  if (kSanitized) GTEST_SKIP() << "not meaningful under a sanitizer";
  constexpr int64_t kLength = 32768;
  const auto context = this->context(2);
  Call call({1, 1, 1, 1, kLength, 8, 8});
  call.fill_random(22);
  std::vector<float> out(size_t(kLength * 8)), lse(static_cast<size_t>(kLength));
  call.params.seq_q = kLength;  // every query is the same one
  call.params.q.stride[2] = 0;
  call.params.out.data = out.data();
  call.params.lse = lse.data();
  call.params.weights.data = nullptr;
  const long before = peak_kilobytes();
  ASSERT_EQ(fovea_forward(context.get(), &call.params, nullptr, 0), FOVEA_OK) << fovea_last_error();
  EXPECT_LE(peak_kilobytes() - before, long(2 * kMostWorkspace >> 10) + 4096) << "KiB more than before the call";
  for (int64_t i = 1; i < kLength; ++i)
    ASSERT_EQ(std::memcmp(&out[size_t(i * 8)], out.data(), 8 * sizeof(float)), 0) << "row " << i;
}

// What a mask costs: at most two bits for each block of keys of each kMapQueries queries, and for each worker a tile of what it adds and one of
// what it excludes.
TEST_P(MemoryUseTest, WorkspaceOfAMask) {
  const KernelEntry *entries = nullptr;
  const int32_t count = kernel_entries(&entries);
  int64_t panel_rows = INT64_MAX;
  for (int32_t i = 0; i < count; ++i) {
    const KernelShape &shape = entries[i].kernel->shape;
    if (entries[i].level == GetParam() && fits_vectors(entries[i], cpu_features()))
      panel_rows = std::min<int64_t>(panel_rows, shape.most_panel_rows);
  }
  for (const int32_t threads : {1, 3}) {
    const auto context = this->context(threads);
    for (const int64_t length : {1024, 32768, 1 << 17}) {
      for (const fovea_dtype dtype : kMaskDtypes) {
        fovea_params params;
        ASSERT_EQ(fovea_params_init(&params, sizeof params, 1, 8, 8, length, length, 64, 64), FOVEA_OK);
        size_t without = 0, with = 0;
        ASSERT_EQ(fovea_workspace_size(context.get(), &params, &without), FOVEA_OK) << fovea_last_error();
        unsigned char element[4] = {};
        params.mask = {element, {0, 0, length, 1}, dtype, 0};
        ASSERT_EQ(fovea_workspace_size(context.get(), &params, &with), FOVEA_OK) << fovea_last_error();
        const int64_t map_rows = (length + kMapQueries - 1) / kMapQueries, blocks = (length + kBlockKeys - 1) / kBlockKeys;
        const int64_t tile = kBlockKeys * panel_rows * int64_t{sizeof(float)};
        constexpr int64_t kRounding = 4096;
        EXPECT_LE(int64_t(with) - int64_t(without), map_rows * blocks * 2 / 8 + threads * (2 * tile + kRounding) + kRounding)
            << length << " queries and keys, dtype " << dtype;
      }
    }
  }
}

// With a mask too: its rows are windows into one line, so that it is no matrix in memory either. A band, so that the test is short.
TEST_P(MemoryUseTest, PeakOfALongCallWithAMask) {
  if (kSanitized) GTEST_SKIP() << "not meaningful under a sanitizer";
  constexpr int64_t kLength = 32768;
  const auto context = this->context(2);
  for (const fovea_dtype dtype : kMaskDtypes) {
    Call call({1, 1, 1, 1, kLength, 8, 8});
    std::vector<float> out(size_t(kLength * 8)), lse(static_cast<size_t>(kLength));
    call.params.seq_q = kLength;  // every query is the same one
    call.params.q.stride[2] = 0;
    call.params.out.data = out.data();
    call.params.lse = lse.data();
    call.params.weights.data = nullptr;
    Mask line(dtype, {1, 1, 1, 1, 2 * kLength, 1, 1}, "k");
    line.permit_where([](int64_t, int64_t, int64_t, int64_t j) { return j >= kLength && j < kLength + 300; });
    call.params.mask = line.tensor();
    call.params.mask.stride[2] = 1;  // query i permits the 300 keys from kLength - i on, or the last i of them
    const long before = peak_kilobytes();
    ASSERT_EQ(fovea_forward(context.get(), &call.params, nullptr, 0), FOVEA_OK) << fovea_last_error();
    EXPECT_LE(peak_kilobytes() - before, long(2 * kMostWorkspace >> 10) + 4096) << "KiB more than before the call";
    for (int64_t i = 0; i < kLength; ++i) {
      const int64_t keys = std::min<int64_t>(i, 300);
      ASSERT_EQ(out[size_t(i * 8)], keys ? 1.0f : 0.0f) << "row " << i;
      if (keys)
        ASSERT_NEAR(lse[size_t(i)], std::log(double(keys)), 1e-6) << "row " << i;
      else
        ASSERT_EQ(lse[size_t(i)], -INFINITY) << "row " << i;
    }
  }
}

// A mask that no query has of its own is one row.
TEST_P(MemoryUseTest, PeakOfALongCallWithARepeatedMask) {
  if (kSanitized) GTEST_SKIP() << "not meaningful under a sanitizer";
  constexpr int64_t kLength = 32768;
  const auto context = this->context(2);
  Call call({1, 1, 1, 1, kLength, 8, 8});
  std::vector<float> out(size_t(kLength * 8));
  call.params.seq_q = kLength;
  call.params.q.stride[2] = 0;
  call.params.out.data = out.data();
  call.params.lse = nullptr;
  call.params.weights.data = nullptr;
  Mask mask(FOVEA_F32, call.n, "k");
  mask.permit_where([](int64_t, int64_t, int64_t, int64_t j) { return j % 2048 < 100; });
  call.params.mask = mask.tensor();
  const long before = peak_kilobytes();
  ASSERT_EQ(fovea_forward(context.get(), &call.params, nullptr, 0), FOVEA_OK) << fovea_last_error();
  EXPECT_LE(peak_kilobytes() - before, long(2 * kMostWorkspace >> 10) + 4096) << "KiB more than before the call";
  for (const float value : out) ASSERT_EQ(value, 1.0f);
}

void run_on_stack(size_t bytes, std::function<void()> work) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
  pthread_t thread;
  const auto run = [](void *arg) -> void * {
    (*static_cast<std::function<void()> *>(arg))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &work), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST_P(MemoryUseTest, SmallStacksOfCallersAndWorkers) {
  if (kSanitized) GTEST_SKIP() << "not meaningful under a sanitizer";
  for (const size_t bytes : {size_t{64} << 10, size_t{128} << 10}) {
    const size_t stack = std::max(bytes, size_t(PTHREAD_STACK_MIN));  // 128 KiB on AArch64
    reference::ThreadPool pool(3, stack);
    fovea_options options;
    ASSERT_EQ(fovea_options_init(&options, sizeof options), FOVEA_OK);
    options.isa = GetParam();
    options.executor = &pool.executor();
    fovea_context *created = nullptr;
    ASSERT_EQ(fovea_context_create(&options, &created), FOVEA_OK);
    const reference::ContextPtr pooled(created);
    const auto serial = this->context(1, "serial");
    for (const reference::ContextPtr *owner : {&serial, &pooled}) {
      const fovea_context *context = owner->get();
      for (const Sizes &n :
           {Sizes{1, 2, 1, 70, 300, 64, 64}, Sizes{1, 8, 1, 1, 20000, 16, 128}, Sizes{1, 1, 1, 30, 600, 512, 576}}) {
        Call call(n);
        for (const bool strided : {false, true}) {
          if (strided) call.params.v.stride[3] = call.params.k.stride[3] = 0;  // read through scratch
          Mask mask(FOVEA_F16, n, "qk");
          if (strided) call.params.mask = mask.tensor();
          fovea_status status = FOVEA_OK;
          run_on_stack(stack, [&] { status = call.run(context); });
          EXPECT_EQ(status, FOVEA_OK);
          for (const float out : call.out) ASSERT_EQ(out, 1.0f);
        }
      }
      // A cache in every type and in pages: appended to, read, and the result merged with itself.
      constexpr int64_t kTokens = 500, kDim = 256, kPage = 48, kColumns = 11;
      std::vector<int32_t> table(size_t{kColumns});
      std::iota(table.begin(), table.end(), 0);
      for (const fovea_dtype dtype : kCacheDtypes) {
        Pool k(dtype, kColumns, 2, kPage, kDim), v(dtype, kColumns, 2, kPage, kDim);
        Call call({1, 8, 2, 3, kTokens, kDim, kDim});
        const fovea_tensor k_new = call.params.k, v_new = call.params.v;
        call.params.k = k.tensor, call.params.v = v.tensor, call.params.k_scale = k.scale, call.params.v_scale = v.scale;
        call.params.page_size = kPage, call.params.num_pages = kColumns;
        call.params.block_table = table.data(), call.params.block_table_stride = kColumns;
        call.params.weights.data = nullptr;
        const fovea_params *const parts[] = {&call.params, &call.params};
        const int32_t start = 0, count = kTokens;
        fovea_status append = FOVEA_OK, forward = FOVEA_OK, merge = FOVEA_OK;
        run_on_stack(stack, [&] {
          append = fovea_kv_append(context, &call.params, &k_new, &v_new, &start, &count);
          forward = call.run(context);
          merge = fovea_merge(context, parts, 2, &call.params);
        });
        EXPECT_TRUE(append == FOVEA_OK && forward == FOVEA_OK && merge == FOVEA_OK) << append << forward << merge;
        for (const float out : call.out) ASSERT_NEAR(out, 1, 1e-2) << "dtype " << dtype;
      }
    }
  }
}

}  // namespace
}  // namespace fovea::testing
