// What this CPU has and what this OS lets programs use. A feature is reported only where both hold.
#pragma once
#include <cstdint>

namespace fovea {

struct CpuFeatures {
  // x86-64
  bool avx2, fma, f16c;
  bool avx512f, avx512bw, avx512dq, avx512vl, avx512cd, avx512vnni, avx512bf16, avx512fp16;
  bool fast_bf16_dot;  // VDPBF16PS starts as often as a multiply-add of as many floats
  bool amx_tile, amx_bf16, amx_int8;
  // AArch64
  bool neon, bf16, i8mm, sve, sve2, sve_bf16;
  int32_t sve_bits;  // the length of SVE's vectors: that of the thread which asked first; 0 without SVE
  // x86-64: the CPU has such registers, but the OS has not enabled them; for the text of a refusal
  bool avx_disabled, avx512_disabled, amx_disabled;
};

// The raw answers that decide; tests feed invented ones.
struct CpuidLeaf {
  uint32_t eax, ebx, ecx, edx;
};
struct CpuSource {
  void *user;
  CpuidLeaf (*cpuid)(void *user, uint32_t leaf, uint32_t subleaf);  // x86-64; leaves beyond the maximum give zeros
  uint64_t (*xcr0)(void *user);                                     // called only where OSXSAVE is set
  uint64_t (*hwcap)(void *user, int which);                         // AArch64 Linux: AT_HWCAP (1) and AT_HWCAP2 (2)
  int32_t (*sve_bits)(void *user);                                  // called only where the CPU has SVE
};
CpuFeatures detect_features(const CpuSource &source);

// Of this machine; computed once, free of races.
const CpuFeatures &cpu_features();

// "AMD EPYC ...", "" where unknown. Constant text.
const char *cpu_name();

}  // namespace fovea
