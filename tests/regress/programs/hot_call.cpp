// Given a workspace of exactly the size asked for, a call neither allocates nor locks, and hands its workers tasks at most once; once more
// where a mask is looked through first. What an OpenMP runtime does to wake its threads is its own. This program's own malloc() and
// pthread_mutex_lock() take the place of the C library's, and count.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "reference/guarded_buffer.h"
#include "support/levels.h"
#include "support/pool.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<int> allocations{0}, locks{0};
}  // namespace

extern "C" {
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes) noexcept {
  allocations += counting;
  return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes) noexcept {
  allocations += counting;
  return __libc_calloc(count, bytes);
}
void *realloc(void *memory, size_t bytes) noexcept {
  allocations += counting;
  return __libc_realloc(memory, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) noexcept {
  allocations += counting;
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void **memory, size_t alignment, size_t bytes) noexcept {
  allocations += counting;
  *memory = __libc_memalign(alignment, bytes);
  return *memory ? 0 : ENOMEM;
}
int pthread_mutex_lock(pthread_mutex_t *mutex) noexcept {
  using Lock = int (*)(pthread_mutex_t *);
  static std::atomic<Lock> real{nullptr};
  if (!real) real = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  locks += counting;
  return real.load()(mutex);
}
}

namespace fovea::testing {
namespace {

using reference::GuardedBuffer;
using reference::ProblemData;
using reference::ProblemLine;

constexpr int32_t kWorkers[] = {1, 2, 3, 7, 64};

struct Counts {
  int allocations, locks;
};
template <class Work>
Counts counts_of(Work work) {
  allocations = locks = 0;
  counting = true;
  work();
  counting = false;
  return {allocations, locks};
}

class HotCallTest : public LevelTest {
 protected:
  // Runs tasks on the calling thread, in the name of so many workers.
  reference::ContextPtr counted_context(int32_t workers) {
    handed_out_ = 0;
    executor_ = {sizeof executor_, workers, this, [](void *user, fovea_task_fn task, void *arg, int64_t n) {
                   auto *test = static_cast<HotCallTest *>(user);
                   ++test->handed_out_;
                   for (int64_t i = 0; i < n; ++i) task(arg, i, int32_t(i % test->executor_.num_workers));
                 }};
    fovea_options options;
    EXPECT_EQ(fovea_options_init(&options, sizeof options), FOVEA_OK);
    options.isa = GetParam();
    options.executor = &executor_;
    fovea_context *context = nullptr;
    EXPECT_EQ(fovea_context_create(&options, &context), FOVEA_OK) << fovea_last_error();
    return reference::ContextPtr(context);
  }

  // What a function of the library does that takes a context.
  template <class Work>
  void expect_quiet(const fovea_context *context, int most_handed_out, const std::string &what, Work work) {
    fovea_status status = FOVEA_OK;
    handed_out_ = 0;
    const Counts counts = counts_of([&] { status = work(context); });
    EXPECT_EQ(status, FOVEA_OK) << what << ": " << fovea_last_error();
    EXPECT_EQ(counts.allocations, 0) << what;
    EXPECT_EQ(counts.locks, 0) << what;
    EXPECT_LE(handed_out_, most_handed_out) << what;
  }

  fovea_executor executor_;
  int handed_out_ = 0;
};
FOVEA_TEST_EVERY_LEVEL(HotCallTest);

const char *const kCalls[] = {
    "hq=8 hkv=2 sq=70 skv=300 dk=64 dv=64 causal=br",
    "b=2 hq=4 hkv=1 sq=1 skv=5000 dk=33 dv=64",
    "b=3 hq=4 hkv=2 sq=50 skv=700 dk=16 dv=24 packed=1 left=90 causal=br type=bf16 layout=strided",
    "b=3 hq=4 hkv=2 sq=50 skv=700 dk=16 dv=24 mask=f16 maskaxes=bhqk softcap=3 alibi=1 sinks=1 weights=1",
    "hq=2 hkv=2 sq=5 skv=900 dk=16 dv=16 score=modify type=f16",
    "b=3 hq=8 hkv=2 sq=1 skv=3000 dk=64 dv=64 lens=ragged pages=16 type=bf16",
    "b=3 hq=4 hkv=2 sq=60 skv=400 dk=64 dv=64 packed=1 causal=br left=90 pages=7",
    "b=2 hq=8 hkv=2 sq=1 skv=3000 dk=64 dv=96 tk=i8 tv=q8_0",
    "b=2 hq=8 hkv=2 sq=60 skv=700 dk=32 dv=64 tk=q4_0 tv=i8 mask=bool",
    "b=2 hq=8 hkv=2 sq=4 skv=700 dk=32 dv=64 tk=q8_0 tv=q4_0 pages=48 causal=br score=replace",
};

TEST_P(HotCallTest, Forward) {
  for (const char *call : kCalls) {
    ProblemLine line;
    ASSERT_EQ(reference::parse(call + std::string(" lse=1"), &line), "");
    const ProblemData data(line);
    for (const int32_t workers : kWorkers) {
      const auto context = counted_context(workers);
      size_t bytes = 0;
      ASSERT_EQ(fovea_workspace_size(context.get(), &data.params, &bytes), FOVEA_OK) << fovea_last_error();
      for (const reference::Flush flush : {reference::Flush::kBack, reference::Flush::kFront}) {
        const GuardedBuffer workspace(bytes, flush, 0xFF);
        expect_quiet(context.get(), line.mask == "none" ? 1 : 2, call + (", workers " + std::to_string(workers)),
                     [&](const fovea_context *c) { return fovea_forward(c, &data.params, workspace.data(), bytes); });
      }
    }
    EXPECT_TRUE(data.output_gaps_intact()) << call;
  }
}

TEST_P(HotCallTest, AppendAndMerge) {
  constexpr int64_t kBatch = 2, kHeads = 2, kTokens = 100, kDim = 64, kPage = 16, kColumns = 7;
  std::vector<float> tokens(size_t(kBatch * kHeads * kTokens * kDim), 0.5f);
  const fovea_tensor added = {tokens.data(), {kHeads * kTokens * kDim, kTokens * kDim, kDim, 1}, FOVEA_F32, 0};
  const int32_t start[] = {0, 3}, count[] = {int32_t(kTokens), 90};
  std::vector<int32_t> table;
  for (int32_t page = 0; page < kBatch * kColumns; ++page) table.push_back(page);
  for (const int32_t workers : kWorkers) {
    const auto context = counted_context(workers);
    for (const fovea_dtype dtype : kCacheDtypes)
      for (const bool paged : {false, true}) {
        Pool k(dtype, paged ? kBatch * kColumns : kBatch, kHeads, paged ? kPage : kTokens, kDim),
            v(dtype, paged ? kBatch * kColumns : kBatch, kHeads, paged ? kPage : kTokens, kDim);
        fovea_params cache;
        ASSERT_EQ(fovea_params_init(&cache, sizeof cache, kBatch, kHeads, kHeads, 0, kTokens, kDim, kDim), FOVEA_OK);
        cache.k = k.tensor, cache.v = v.tensor;
        cache.k_scale = k.scale, cache.v_scale = v.scale;
        if (paged) {
          cache.page_size = kPage, cache.num_pages = kBatch * kColumns;
          cache.block_table = table.data(), cache.block_table_stride = kColumns;
        }
        expect_quiet(
            context.get(), 1,
            "append dtype " + std::to_string(dtype) + " paged " + std::to_string(paged) + " workers " + std::to_string(workers),
            [&](const fovea_context *c) { return fovea_kv_append(c, &cache, &added, &added, start, count); });
      }

    fovea_params rows;
    ASSERT_EQ(fovea_params_init(&rows, sizeof rows, kBatch, kHeads, kHeads, kTokens, 0, 1, kDim), FOVEA_OK);
    std::vector<float> out(tokens.size()), lse(size_t(kBatch * kHeads * kTokens), 1.0f), merged_lse = lse;
    fovea_params merged = rows;
    rows.out.data = tokens.data(), rows.lse = lse.data();
    merged.out.data = out.data(), merged.lse = merged_lse.data();
    const fovea_params *const parts[] = {&rows, &rows, &rows};
    expect_quiet(context.get(), 1, "merge, workers " + std::to_string(workers),
                 [&](const fovea_context *c) { return fovea_merge(c, parts, 3, &merged); });
  }
}

// What counts is counted.
TEST(CountersTest, CountThisProgramsAllocationsAndLocks) {
  void *volatile memory = nullptr;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  const Counts counts = counts_of([&] {
    memory = std::malloc(1);
    pthread_mutex_lock(&mutex);
  });
  std::free(memory);
  pthread_mutex_unlock(&mutex);
  EXPECT_EQ(counts.allocations, 1);
  EXPECT_EQ(counts.locks, 1);
}

}  // namespace
}  // namespace fovea::testing
