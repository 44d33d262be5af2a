// The floating-point environment of the kernels: round to nearest, no traps, subnormals flushed (weights in the subnormal range cost
// ten times an ordinary one). Entered by every task on its own thread and left as it was found, sticky flags included.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace fovea {

using FloatEnvironment = uint64_t;

inline FloatEnvironment enter_float_environment() {
#if defined(__x86_64__)
  constexpr uint32_t kMaskAll = 0x1f80, kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  const FloatEnvironment saved = _mm_getcsr();
  _mm_setcsr(kMaskAll | kFlushToZero | kDenormalsAreZero);
  return saved;
#elif defined(__aarch64__)
  constexpr uint64_t kFlushToZero = uint64_t{1} << 24;
  uint64_t control, flags;  // the sticky flags have a register of their own, whose upper half is unused
  __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(flags));
  __asm__ volatile("msr fpcr, %0" : : "r"(kFlushToZero) : "memory");
  return control | flags << 32;
#else
  return 0;
#endif
}

inline void leave_float_environment(FloatEnvironment saved) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<uint32_t>(saved));
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(saved & 0xffffffff), "r"(saved >> 32) : "memory");
#else
  (void)saved;
#endif
}

}  // namespace fovea
