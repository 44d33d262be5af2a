#include "dispatch/dispatch.h"

#include <string.h>

#include "fovea/fovea.h"

namespace fovea {

#define FOVEA_KERNEL(level, operation, types, rows, keys) extern const ForwardKernel kernel_##level##_##operation##_##types;
#include "dispatch/kernels.inc"
#undef FOVEA_KERNEL

namespace {

// The levels by the names that the registry and the environment give them; of SVE the registry has an object for each length of
// its vectors.
enum {
  level_scalar = FOVEA_ISA_SCALAR,
  level_avx2 = FOVEA_ISA_AVX2,
  level_avx512 = FOVEA_ISA_AVX512,
  level_avx512_bf16 = FOVEA_ISA_AVX512_BF16,
  level_avx512_fp16 = FOVEA_ISA_AVX512_FP16,
  level_amx = FOVEA_ISA_AMX,
  level_neon = FOVEA_ISA_NEON,
  level_neon_bf16 = FOVEA_ISA_NEON_BF16,
  level_sve = FOVEA_ISA_SVE,
  level_sve128 = FOVEA_ISA_SVE,
  level_sve256 = FOVEA_ISA_SVE,
  level_sve512 = FOVEA_ISA_SVE,
  level_sve1024 = FOVEA_ISA_SVE,
  level_sve2048 = FOVEA_ISA_SVE,
  level_sve_bf16 = FOVEA_ISA_SVE_BF16,
  level_sve256_bf16 = FOVEA_ISA_SVE_BF16,
};

constexpr KernelEntry kEntries[] = {
#define FOVEA_KERNEL(level, operation, types, rows, keys) \
  {level_##level, #operation, #types, &kernel_##level##_##operation##_##types},
#include "dispatch/kernels.inc"
#undef FOVEA_KERNEL
};

struct Feature {
  bool CpuFeatures::*present;
  const char *missing;  // the refusal
};

// A level needs its own features, in the order in which a refusal names them, and all that its base needs.
struct Level {
  int32_t level;
  int32_t base;  // FOVEA_ISA_AUTO: none
  const char *name;
  bool CpuFeatures::*disabled;  // null: nothing of this level waits for the OS
  const char *disabled_refusal;
  Feature features[5];
};

#define FOVEA_FEATURE(field, name) \
  { &CpuFeatures::field, "this CPU has no " name }
constexpr Level kLevels[] = {
    {level_scalar, FOVEA_ISA_AUTO, "scalar", nullptr, nullptr, {}},
    {level_avx2,
     level_scalar,
     "avx2",
     &CpuFeatures::avx_disabled,
     "the operating system has not enabled AVX state",
     {FOVEA_FEATURE(avx2, "AVX2"), FOVEA_FEATURE(fma, "FMA"), FOVEA_FEATURE(f16c, "F16C")}},
    {level_avx512,
     level_avx2,
     "avx512",
     &CpuFeatures::avx512_disabled,
     "the operating system has not enabled AVX-512 state",
     {FOVEA_FEATURE(avx512f, "AVX-512F"), FOVEA_FEATURE(avx512bw, "AVX-512BW"), FOVEA_FEATURE(avx512dq, "AVX-512DQ"),
      FOVEA_FEATURE(avx512vl, "AVX-512VL"), FOVEA_FEATURE(avx512cd, "AVX-512CD")}},
    {level_avx512_bf16, level_avx512, "avx512_bf16", nullptr, nullptr, {FOVEA_FEATURE(avx512bf16, "AVX512-BF16")}},
    {level_avx512_fp16, level_avx512, "avx512_fp16", nullptr, nullptr, {FOVEA_FEATURE(avx512fp16, "AVX512-FP16")}},
    {level_amx,
     level_avx512_fp16,
     "amx",
     &CpuFeatures::amx_disabled,
     "the operating system has not enabled AMX state",
     {FOVEA_FEATURE(amx_tile, "AMX tiles"), FOVEA_FEATURE(amx_bf16, "AMX-BF16"), FOVEA_FEATURE(amx_int8, "AMX-INT8")}},
    {level_neon, level_scalar, "neon", nullptr, nullptr, {FOVEA_FEATURE(neon, "Advanced SIMD")}},
    {level_neon_bf16, level_neon, "neon_bf16", nullptr, nullptr, {FOVEA_FEATURE(bf16, "BF16")}},
    {level_sve, level_neon, "sve", nullptr, nullptr, {FOVEA_FEATURE(sve, "SVE")}},
    {level_sve_bf16, level_sve, "sve_bf16", nullptr, nullptr, {FOVEA_FEATURE(sve_bf16, "BF16 for SVE")}},
};
#undef FOVEA_FEATURE

#if defined(__x86_64__)
constexpr int32_t kKnown[] = {level_scalar, level_avx2, level_avx512, level_avx512_bf16, level_avx512_fp16, level_amx};
#elif defined(__aarch64__)
constexpr int32_t kKnown[] = {level_scalar, level_neon, level_neon_bf16, level_sve, level_sve_bf16};
#else
constexpr int32_t kKnown[] = {level_scalar};
#endif
constexpr int32_t kKnownCount = sizeof kKnown / sizeof *kKnown;

const Level *find(int32_t level) {
  for (const Level &known : kLevels)
    if (known.level == level) return &known;
  return nullptr;
}

bool of_this_architecture(int32_t level) {
  for (int32_t known : kKnown)
    if (known == level) return true;
  return false;
}

const char *missing_feature(const Level &level, const CpuFeatures &features) {
  const Level *base = find(level.base);
  const char *refusal = base ? missing_feature(*base, features) : "";
  if (*refusal) return refusal;
  if (level.disabled && features.*level.disabled) return level.disabled_refusal;
  for (const Feature &feature : level.features)
    if (feature.missing && !(features.*feature.present)) return feature.missing;
  return "";
}

}  // namespace

LevelList known_levels([[maybe_unused]] const CpuFeatures &features) {
#if defined(__x86_64__)
  // Where its instruction is slow, AVX512-BF16 multiplies no faster than what becomes floats once a block: see docs/performance.md.
  static constexpr int32_t kWithSlowBf16[] = {level_scalar, level_avx2,        level_avx512_bf16,
                                              level_avx512, level_avx512_fp16, level_amx};
  static_assert(sizeof kWithSlowBf16 == sizeof kKnown);
  if (!features.fast_bf16_dot) return {kWithSlowBf16, kKnownCount};
#elif defined(__aarch64__)
  // Where its vectors are no longer than those of Advanced SIMD, SVE is no faster: see docs/performance.md.
  constexpr int32_t kNeonBits = 128;
  static constexpr int32_t kWithShortVectors[] = {level_scalar, level_sve, level_sve_bf16, level_neon, level_neon_bf16};
  static_assert(sizeof kWithShortVectors == sizeof kKnown);
  if (features.sve_bits <= kNeonBits) return {kWithShortVectors, kKnownCount};
#endif
  return {kKnown, kKnownCount};
}

const char *level_name(int32_t level) {
  if (level == FOVEA_ISA_AUTO) return "auto";
  const Level *known = find(level);
  return known ? known->name : "unknown";
}

int32_t level_from_name(const char *name) {
  if (!strcmp(name, "auto")) return FOVEA_ISA_AUTO;
  for (const Level &known : kLevels)
    if (!strcmp(name, known.name)) return known.level;
  return -1;
}

bool level_compiled(int32_t level) {
  for (const KernelEntry &entry : kEntries)
    if (entry.level == level) return true;
  return false;
}

const char *level_refusal(int32_t level, const CpuFeatures &features) {
  const Level *known = find(level);
  if (!known) return "not a level";
  if (!of_this_architecture(level)) return "a level of another architecture";
  if (!level_compiled(level)) return "not built into this library";
  const char *refusal = missing_feature(*known, features);
  if (*refusal || select_kernel(level, features, {}) >= 0) return refusal;
  return "this CPU's vectors have a length for which no kernel is built";
}

int32_t best_level(const CpuFeatures &features) {
  const LevelList known = known_levels(features);
  int32_t i = known.count - 1;
  while (i > 0 && *level_refusal(known.levels[i], features)) --i;
  return known.levels[i];
}

int32_t select_kernel(int32_t level, const CpuFeatures &features, const Problem &problem) {
  bool has_others = false;
  for (int32_t i = 0; i < kKernelCount; ++i) {
    if (kEntries[i].level != level || !fits_vectors(kEntries[i], features)) continue;
    if (serves(kEntries[i], problem)) return i;
    has_others = true;
  }
  return has_others ? select_kernel(find(level)->base, features, problem) : -1;
}

bool serves(const KernelEntry &entry, const Problem &problem) {
  if (strcmp(entry.types, "bf16") != 0) return true;
  // A score function would see queries times the scale, which are not bfloat16.
  return problem.q.dtype == FOVEA_BF16 && problem.k.dtype == FOVEA_BF16 && !problem.score;
}

bool fits_vectors(const KernelEntry &entry, const CpuFeatures &features) {
  constexpr int32_t kFloatBits = 32;
  const bool of_sve = entry.level == level_sve || entry.level == level_sve_bf16;
  return !of_sve || entry.kernel->shape.row_unit * kFloatBits == features.sve_bits;
}

int32_t kernel_entries(const KernelEntry **entries) {
  *entries = kEntries;
  return kKernelCount;
}

}  // namespace fovea
