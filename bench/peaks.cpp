#include "peaks.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <sys/prctl.h>
#endif

#include <algorithm>

#include "machine.h"

namespace fovea::bench {

extern const PeakLoops peaks_scalar, peaks_avx2, peaks_avx512, peaks_avx512_bf16, peaks_neon, peaks_neon_bf16, peaks_sve128,
    peaks_sve256, peaks_sve512, peaks_sve1024, peaks_sve2048, peaks_sve256_bf16;

namespace {

constexpr double kPeakSeconds = 3e-4;   // long enough for the clock, short enough to fit between two interruptions
constexpr double kProbeSeconds = 1e-3;  // long enough to meet them
constexpr int kPeakTries = 3;

template <class Body>
double seconds(const Body &body) {
  const double start = now();
  body();
  return now() - start;
}

// Steps that take so many seconds on an undisturbed core.
int64_t steps_of(void (*loop)(int64_t), double duration) {
  int64_t steps = 1024;
  loop(steps);
  for (;; steps *= 2) {
    double best = seconds([&] { loop(steps); });
    for (int i = 0; i < kPeakTries; i++) best = std::min(best, seconds([&] { loop(steps); }));
    if (best >= duration / 2) return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(steps) * duration / best));
  }
}

// The rates of all threads together; body(thread) does so much work.
template <class Body>
double rate(int threads, double work, const Body &body) {
#ifdef _OPENMP
  if (threads > 1) {
    double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    {
#pragma omp barrier
      sum += work / seconds([&] { body(omp_get_thread_num()); });
    }
    return sum;
  }
#endif
  (void)threads;
  return work / seconds([&] { body(0); });
}

template <class Body>
double best_rate(int threads, double work, const Body &body) {
  double best = 0;
  for (int i = 0; i < kPeakTries; i++) best = std::max(best, rate(threads, work, body));
  return best;
}

#if defined(__aarch64__)
const PeakLoops *sve_loops() {
#if defined(__linux__) && (!defined(__clang__) || __clang_major__ >= 19)  // as in kernels.inc
  switch ((prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK) * 8) {
    case 128: return &peaks_sve128;
    case 256: return &peaks_sve256;
    case 512: return &peaks_sve512;
    case 1024: return &peaks_sve1024;
    case 2048: return &peaks_sve2048;
  }
#endif
  return nullptr;
}
#endif

}  // namespace

const PeakLoops *peak_loops(fovea_isa level) {
  switch (level) {
    case FOVEA_ISA_SCALAR: return &peaks_scalar;
#if defined(__x86_64__)
    case FOVEA_ISA_AVX2: return &peaks_avx2;
    case FOVEA_ISA_AVX512: return &peaks_avx512;
    case FOVEA_ISA_AVX512_BF16: return &peaks_avx512_bf16;
#elif defined(__aarch64__)
    case FOVEA_ISA_NEON: return &peaks_neon;
#if !defined(__clang__) || __clang_major__ >= 19  // as in kernels.inc
    case FOVEA_ISA_NEON_BF16: return &peaks_neon_bf16;
    case FOVEA_ISA_SVE_BF16: return &peaks_sve256_bf16;
#endif
    case FOVEA_ISA_SVE: return sve_loops();
#endif
    default: return nullptr;
  }
}

Peaks::Peaks(const PeakLoops &loops, int threads)
    : loops_(loops),
      threads_(threads),
      fma_steps_(steps_of(loops.fma, kPeakSeconds)),
      probe_steps_(steps_of(loops.probe, kProbeSeconds)),
      exp2_steps_(steps_of(loops.exp2, kPeakSeconds)) {}

double Peaks::fma() const {
  return best_rate(threads_, loops_.fma_flops * static_cast<double>(fma_steps_), [&](int) { loops_.fma(fma_steps_); });
}

double Peaks::bf16_dot() const {
  if (loops_.bf16_dot == nullptr) return 0;
  return best_rate(threads_, loops_.bf16_flops * static_cast<double>(fma_steps_), [&](int) { loops_.bf16_dot(fma_steps_); });
}

double Peaks::exp2() const {
  return best_rate(threads_, loops_.exp2_elements * static_cast<double>(exp2_steps_), [&](int) { loops_.exp2(exp2_steps_); });
}

double Peaks::probe() const {
  return rate(threads_, loops_.probe_flops * static_cast<double>(probe_steps_), [&](int) { loops_.probe(probe_steps_); });
}

double Peaks::read(const std::vector<ReadSpan> &spans) const {
  double bytes = 0;
  for (const ReadSpan &span : spans) bytes += static_cast<double>(span.count) * sizeof(float);
  return rate(threads_, bytes / threads_, [&](int thread) {
    for (const ReadSpan &span : spans) {
      const int64_t begin = span.count * thread / threads_, end = span.count * (thread + 1) / threads_;
      loops_.read(span.data + begin, end - begin);
    }
  });
}

}  // namespace fovea::bench
