#include "context.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "error.h"
#include "run/cpu_quota.h"
#include "without_gil.h"

namespace fovea_python {
namespace {

// What a core computes in 20 microseconds, about as long as a sleeping thread needs to wake up and to be waited for: with calls 300 microseconds
// apart, two threads are slower than one at 2^20 multiply-adds, as fast from 2^21 to 2^22; calls one after the other gain from 2^20 on.
constexpr double kWorthWakingFor = 1 << 21;

// As the library's own default with OpenMP: min(OMP_NUM_THREADS, CPU affinity, CPU quota of the control group).
int32_t default_threads() {
  int32_t threads = FOVEA_MAX_THREADS;
  cpu_set_t set[8];  // of 1024 CPUs each: as many as Linux can be built for
  if (sched_getaffinity(0, sizeof set, set) == 0) threads = std::min<int32_t>(threads, CPU_COUNT_S(sizeof set, set));
  threads = std::min(threads, fovea::cpu_quota(""));
  const char *text = std::getenv("OMP_NUM_THREADS");
  const long asked = text ? std::strtol(text, nullptr, 10) : 0;
  if (asked > 0 && asked < threads) threads = int32_t(asked);
  return std::max<int32_t>(threads, 1);
}

fovea_isa level_named(const std::string &name) {
  for (fovea_isa isa = 0; isa <= FOVEA_ISA_SVE_BF16; ++isa)
    if (name != "unknown" && name == fovea_isa_name(isa)) return isa;
  fail(FOVEA_ERR_INVALID_ARGUMENT, "isa: \"%.100s\" is not the name of a level", name.c_str());
}

// Grows to what the calls of this thread need.
class Workspace {
 public:
  ~Workspace() { std::free(data_); }
  fovea_status forward(const fovea_context *context, const fovea_params &p) {
    fovea_status status = data_ ? fovea_forward(context, &p, data_, bytes_) : FOVEA_ERR_WORKSPACE;
    if (status != FOVEA_ERR_WORKSPACE) return status;
    size_t needed;
    status = fovea_workspace_size(context, &p, &needed);
    if (status) return status;
    std::free(data_);
    bytes_ = std::max<size_t>(needed, 1);
    data_ = std::malloc(bytes_);
    // Without memory of its own the library says that there is none.
    return fovea_forward(context, &p, data_, data_ ? bytes_ : 0);
  }

 private:
  void *data_ = nullptr;
  size_t bytes_ = 0;
};

thread_local Workspace workspace;

double multiply_adds(const fovea_params &p) {
  const double rows = double(p.cu_seqlens_q ? 1 : p.batch) * double(p.heads_q) * double(p.seq_q);
  return rows * double(p.seq_kv) * double(p.dim_k + p.dim_v);
}

}  // namespace

Context::Context(const std::optional<std::string> &isa, std::optional<int64_t> threads,
                 const std::optional<std::string> &tuning) {
  const fovea_isa level = isa ? level_named(*isa) : FOVEA_ISA_AUTO;
  const int64_t workers = threads ? *threads : default_threads();
  if (workers < 1 || workers > FOVEA_MAX_THREADS)
    fail(FOVEA_ERR_INVALID_ARGUMENT, "threads: %lld is not in 1..%d", static_cast<long long>(workers), FOVEA_MAX_THREADS);
  if (tuning && tuning->find('\0') != std::string::npos) fail(FOVEA_ERR_INVALID_ARGUMENT, "tuning: has a NUL character");
  const char *file = tuning ? tuning->c_str() : nullptr;
  if (workers > 1) pool_ = std::make_unique<Pool>(int32_t(workers));
  parallel_ = create(level, pool_.get(), file);
  serial_ = create(fovea_context_isa(parallel_.get()), nullptr, file);
}

Context::Owned Context::create(fovea_isa isa, Pool *pool, const char *tuning) {
  fovea_options options;
  fovea_options_init(&options, sizeof options);
  options.isa = isa;
  options.num_threads = 1;
  options.tuning = tuning;
  fovea_executor executor;
  if (pool) {
    executor = pool->executor();
    options.executor = &executor;
  }
  fovea_context *context;
  check(fovea_context_create(&options, &context));
  return Owned(context);
}

const Context &Context::standard() {
  static const Context *context = nullptr;  // the GIL guards it
  if (!context) context = new Context(std::nullopt, std::nullopt, std::nullopt);
  return *context;
}

const fovea_context *Context::for_work(double multiply_adds) const {
  return multiply_adds < kWorthWakingFor ? serial_.get() : parallel_.get();
}

void Context::forward(const fovea_params &p) const {
  fovea_status status;
  {
    const WithoutGil without_gil;
    status = workspace.forward(for_work(multiply_adds(p)), p);
  }
  check(status);
}

double Context::seconds_per_forward(const fovea_params &p, int64_t calls) const {
  using Clock = std::chrono::steady_clock;
  constexpr int kRuns = 10;
  fovea_status status = FOVEA_OK;
  double least = 1e9;
  {
    const WithoutGil without_gil;
    const fovea_context *context = for_work(multiply_adds(p));
    for (int run = 0; run < kRuns && !status; ++run) {
      const Clock::time_point begin = Clock::now();
      for (int64_t i = 0; i < calls && !status; ++i) status = workspace.forward(context, p);
      least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count() / double(calls));
    }
  }
  check(status);
  return least;
}

}  // namespace fovea_python
