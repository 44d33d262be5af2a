// Which level is chosen for which machine, and what is said of the others.
#include "dispatch/dispatch.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "fovea/fovea.h"

namespace fovea {
namespace {

const ForwardKernel *selected(int32_t level, const CpuFeatures &features, const Problem &problem) {
  const KernelEntry *entries;
  kernel_entries(&entries);
  const int32_t kernel = select_kernel(level, features, problem);
  return kernel < 0 ? nullptr : entries[kernel].kernel;
}

std::vector<int32_t> known(const CpuFeatures &features = cpu_features()) {
  const LevelList list = known_levels(features);
  return std::vector<int32_t>(list.levels, list.levels + list.count);
}

TEST(Levels, KnownOnesStartWithScalarAndRiseInQuality) {
#if defined(__x86_64__)
  CpuFeatures f = {};
  EXPECT_EQ(known(f), (std::vector<int32_t>{FOVEA_ISA_SCALAR, FOVEA_ISA_AVX2, FOVEA_ISA_AVX512_BF16, FOVEA_ISA_AVX512,
                                            FOVEA_ISA_AVX512_FP16, FOVEA_ISA_AMX}));
  f.fast_bf16_dot = true;
  EXPECT_EQ(known(f), (std::vector<int32_t>{FOVEA_ISA_SCALAR, FOVEA_ISA_AVX2, FOVEA_ISA_AVX512, FOVEA_ISA_AVX512_BF16,
                                            FOVEA_ISA_AVX512_FP16, FOVEA_ISA_AMX}));
#elif defined(__aarch64__)
  CpuFeatures f = {};
  for (const int32_t bits : {0, 128, 256, 2048}) {
    f.sve_bits = bits;
    const bool longer = bits > 128;
    EXPECT_EQ(
        known(f),
        longer ? (std::vector<int32_t>{FOVEA_ISA_SCALAR, FOVEA_ISA_NEON, FOVEA_ISA_NEON_BF16, FOVEA_ISA_SVE, FOVEA_ISA_SVE_BF16})
               : (std::vector<int32_t>{FOVEA_ISA_SCALAR, FOVEA_ISA_SVE, FOVEA_ISA_SVE_BF16, FOVEA_ISA_NEON, FOVEA_ISA_NEON_BF16}))
        << bits;
  }
#else
  EXPECT_EQ(known(), std::vector<int32_t>{FOVEA_ISA_SCALAR});
#endif
}

TEST(Levels, NamesAreDistinctAndReadBack) {
  std::set<std::string> names;
  for (int32_t level :
       {FOVEA_ISA_AUTO, FOVEA_ISA_SCALAR, FOVEA_ISA_AVX2, FOVEA_ISA_AVX512, FOVEA_ISA_AVX512_BF16, FOVEA_ISA_AVX512_FP16,
        FOVEA_ISA_AMX, FOVEA_ISA_NEON, FOVEA_ISA_NEON_BF16, FOVEA_ISA_SVE, FOVEA_ISA_SVE_BF16}) {
    EXPECT_TRUE(names.insert(level_name(level)).second) << level;
    EXPECT_EQ(level_from_name(level_name(level)), level);
  }
  EXPECT_STREQ(level_name(FOVEA_ISA_AVX2), "avx2");
  EXPECT_STREQ(level_name(FOVEA_ISA_NEON), "neon");
}

TEST(Levels, OtherNumbersAndNamesAreNone) {
  for (int32_t level : {-1, 2, 15, 99}) {
    EXPECT_STREQ(level_name(level), "unknown");
    EXPECT_FALSE(level_compiled(level));
    EXPECT_STRNE(level_refusal(level, CpuFeatures{}), "");
  }
  for (const char *name : {"", "AVX2", "avx", "avx2 ", "unknown"}) EXPECT_EQ(level_from_name(name), -1) << name;
}

TEST(Levels, ScalarIsNeverRefused) {
  EXPECT_STREQ(level_refusal(FOVEA_ISA_SCALAR, CpuFeatures{}), "");
  EXPECT_EQ(best_level(CpuFeatures{}), FOVEA_ISA_SCALAR);
}

#if defined(__x86_64__)
CpuFeatures all_x86() {
  CpuFeatures f = {};
  f.avx2 = f.fma = f.f16c = true;
  f.avx512f = f.avx512bw = f.avx512dq = f.avx512vl = f.avx512cd = f.avx512vnni = f.avx512bf16 = f.avx512fp16 = true;
  f.fast_bf16_dot = true;
  f.amx_tile = f.amx_bf16 = f.amx_int8 = true;
  return f;
}

TEST(Levels, RefusalNamesTheMissingFeature) {
  const struct {
    bool CpuFeatures::*missing;
    const char *refusal;
    int32_t refused, best;
  } cases[] = {
      {&CpuFeatures::avx2, "this CPU has no AVX2", FOVEA_ISA_AVX2, FOVEA_ISA_SCALAR},
      {&CpuFeatures::fma, "this CPU has no FMA", FOVEA_ISA_AVX2, FOVEA_ISA_SCALAR},
      {&CpuFeatures::f16c, "this CPU has no F16C", FOVEA_ISA_AVX2, FOVEA_ISA_SCALAR},
      {&CpuFeatures::avx512f, "this CPU has no AVX-512F", FOVEA_ISA_AVX512, FOVEA_ISA_AVX2},
      {&CpuFeatures::avx512bw, "this CPU has no AVX-512BW", FOVEA_ISA_AVX512, FOVEA_ISA_AVX2},
      {&CpuFeatures::avx512dq, "this CPU has no AVX-512DQ", FOVEA_ISA_AVX512, FOVEA_ISA_AVX2},
      {&CpuFeatures::avx512vl, "this CPU has no AVX-512VL", FOVEA_ISA_AVX512, FOVEA_ISA_AVX2},
      {&CpuFeatures::avx512cd, "this CPU has no AVX-512CD", FOVEA_ISA_AVX512, FOVEA_ISA_AVX2},
      {&CpuFeatures::avx512bf16, "this CPU has no AVX512-BF16", FOVEA_ISA_AVX512_BF16, FOVEA_ISA_AVX512},
  };
  for (const auto &c : cases) {
    CpuFeatures f = all_x86();
    f.*c.missing = false;
    EXPECT_STREQ(level_refusal(c.refused, f), c.refusal);
    EXPECT_STREQ(level_refusal(c.best, f), "") << c.refusal;
    EXPECT_EQ(best_level(f), c.best) << c.refusal;
  }
}

TEST(Levels, Avx512Bf16IsChosenWhereItsInstructionIsFast) {
  CpuFeatures f = all_x86();
  EXPECT_EQ(best_level(f), FOVEA_ISA_AVX512_BF16);
  f.fast_bf16_dot = false;
  EXPECT_EQ(best_level(f), FOVEA_ISA_AVX512);
  EXPECT_STREQ(level_refusal(FOVEA_ISA_AVX512_BF16, f), "");
}

TEST(Levels, Avx512NeedsTheFeaturesOfAvx2) {
  for (bool CpuFeatures::*missing : {&CpuFeatures::avx2, &CpuFeatures::fma, &CpuFeatures::f16c}) {
    CpuFeatures f = all_x86();
    f.*missing = false;
    EXPECT_STRNE(level_refusal(FOVEA_ISA_AVX512, f), "");
  }
}

TEST(Levels, RefusalTellsTheOperatingSystemFromTheCpu) {
  CpuFeatures f = {};
  f.avx2 = f.fma = f.f16c = true;
  EXPECT_STREQ(level_refusal(FOVEA_ISA_AVX512, f), "this CPU has no AVX-512F");
  f.avx512_disabled = true;
  EXPECT_STREQ(level_refusal(FOVEA_ISA_AVX512, f), "the operating system has not enabled AVX-512 state");
  f = {};
  f.avx_disabled = f.avx512_disabled = true;
  EXPECT_STREQ(level_refusal(FOVEA_ISA_AVX2, f), "the operating system has not enabled AVX state");
  EXPECT_STREQ(level_refusal(FOVEA_ISA_AVX512, f), "the operating system has not enabled AVX state");
}

TEST(Levels, OfAnotherArchitectureAreRefused) {
  EXPECT_STREQ(level_refusal(FOVEA_ISA_NEON, all_x86()), "a level of another architecture");
}
#elif defined(__aarch64__)
TEST(Levels, NeonNeedsAdvancedSimd) {
  CpuFeatures f = {};
  EXPECT_STREQ(level_refusal(FOVEA_ISA_NEON, f), "this CPU has no Advanced SIMD");
  f.neon = true;
  EXPECT_STREQ(level_refusal(FOVEA_ISA_NEON, f), "");
  EXPECT_EQ(best_level(f), FOVEA_ISA_NEON);
}

CpuFeatures with_sve(int32_t bits) {
  CpuFeatures f = {};
  f.neon = f.sve = true;
  f.sve_bits = bits;
  return f;
}

TEST(Levels, SveIsChosenWhereItsVectorsAreLongerThanThoseOfNeon) {
  if (!level_compiled(FOVEA_ISA_SVE)) GTEST_SKIP() << "no SVE in this build";
  for (const int32_t bits : {128, 256, 512, 1024, 2048}) {
    for (const bool sve2 : {false, true}) {  // which implies neither BF16 nor another choice
      CpuFeatures f = with_sve(bits);
      f.sve2 = sve2;
      EXPECT_STREQ(level_refusal(FOVEA_ISA_SVE, f), "") << bits;
      EXPECT_STRNE(level_refusal(FOVEA_ISA_NEON_BF16, f), "") << bits;
      EXPECT_EQ(best_level(f), bits > 128 ? FOVEA_ISA_SVE : FOVEA_ISA_NEON) << bits;
    }
  }
}

TEST(Levels, NeonBf16IsChosenWhereVectorsAreNoLonger) {
  if (!level_compiled(FOVEA_ISA_NEON_BF16)) GTEST_SKIP() << "no BF16 in this build";
  for (const int32_t bits : {0, 128, 256}) {
    CpuFeatures f = with_sve(bits);
    f.sve = bits > 0;
    EXPECT_STREQ(level_refusal(FOVEA_ISA_NEON_BF16, f), "this CPU has no BF16");
    f.bf16 = true;
    EXPECT_STREQ(level_refusal(FOVEA_ISA_NEON_BF16, f), "");
    EXPECT_EQ(best_level(f), bits > 128 ? FOVEA_ISA_SVE : FOVEA_ISA_NEON_BF16) << bits;
  }
}

TEST(Levels, SveBf16IsChosenWhereVectorsAreLongerAndHaveItsKernel) {
  if (!level_compiled(FOVEA_ISA_SVE_BF16)) GTEST_SKIP() << "no BF16 for SVE in this build";
  for (const int32_t bits : {128, 256, 512}) {
    CpuFeatures f = with_sve(bits);
    f.bf16 = true;
    EXPECT_STREQ(level_refusal(FOVEA_ISA_SVE_BF16, f), "this CPU has no BF16 for SVE");
    f.sve_bf16 = true;
    EXPECT_STREQ(level_refusal(FOVEA_ISA_SVE_BF16, f),
                 bits == 256 ? "" : "this CPU's vectors have a length for which no kernel is built");
    EXPECT_EQ(best_level(f), bits == 128 ? FOVEA_ISA_NEON_BF16 : bits == 256 ? FOVEA_ISA_SVE_BF16 : FOVEA_ISA_SVE) << bits;
  }
}

TEST(Levels, SveIsRefusedWithoutItsFeatureOrItsBase) {
  if (!level_compiled(FOVEA_ISA_SVE)) GTEST_SKIP() << "no SVE in this build";
  CpuFeatures f = with_sve(256);
  f.sve = false;
  f.sve_bits = 0;
  EXPECT_STREQ(level_refusal(FOVEA_ISA_SVE, f), "this CPU has no SVE");
  f = with_sve(256);
  f.neon = false;
  EXPECT_STREQ(level_refusal(FOVEA_ISA_SVE, f), "this CPU has no Advanced SIMD");
}

TEST(Levels, NoSveKernelRunsOnVectorsOfAnotherLength) {
  if (!level_compiled(FOVEA_ISA_SVE)) GTEST_SKIP() << "no SVE in this build";
  for (int32_t bits = 128; bits <= 2048; bits += 128) {
    const CpuFeatures f = with_sve(bits);
    const ForwardKernel *kernel = selected(FOVEA_ISA_SVE, f, {});
    if ((bits & (bits - 1)) == 0) {
      ASSERT_NE(kernel, nullptr) << bits;
      EXPECT_STREQ(kernel->name, ("sve" + std::to_string(bits) + "/prefill/f32").c_str());
    } else {
      EXPECT_EQ(kernel, nullptr) << bits;
      EXPECT_STREQ(level_refusal(FOVEA_ISA_SVE, f), "this CPU's vectors have a length for which no kernel is built") << bits;
      EXPECT_EQ(best_level(f), FOVEA_ISA_NEON) << bits;
    }
  }
}

TEST(Levels, OfAnotherArchitectureAreRefused) {
  EXPECT_STREQ(level_refusal(FOVEA_ISA_AVX2, {}), "a level of another architecture");
}
#endif

TEST(Levels, AreRefusedOnAPerfectMachineOnlyWhereTheyHaveNoKernel) {
  CpuFeatures everything;
  memset(&everything, 1, sizeof everything);
  everything.avx_disabled = everything.avx512_disabled = everything.amx_disabled = false;
  everything.sve_bits = 256;
  for (int32_t level : known())
    EXPECT_STREQ(level_refusal(level, everything), level_compiled(level) ? "" : "not built into this library")
        << level_name(level);
}

// SVE's objects have the length of their vectors behind it.
std::string level_of_object(std::string object) {
  if (object.rfind("sve", 0) == 0) object.erase(3, object.find_first_not_of("0123456789", 3) - 3);
  return object;
}

TEST(Registry, EveryKernelIsWhatItsLineSays) {
  const struct {
    const char *object, *operation, *types;
    int32_t rows, keys;
  } lines[] = {
#define FOVEA_KERNEL(level, operation, types, rows, keys) {#level, #operation, #types, rows, keys},
#include "dispatch/kernels.inc"
#undef FOVEA_KERNEL
  };
  const KernelEntry *entries;
  ASSERT_EQ(kernel_entries(&entries), int32_t(sizeof lines / sizeof *lines));
  for (const auto &line : lines) {
    const KernelEntry &entry = entries[&line - lines];
    const std::string name = std::string(line.object) + "/" + line.operation + "/" + line.types;
    EXPECT_EQ(std::string(entry.kernel->name).rfind(name, 0), 0u) << entry.kernel->name;
    EXPECT_EQ(level_of_object(line.object), level_name(entry.level));
    EXPECT_STREQ(entry.operation, line.operation);
    EXPECT_STREQ(entry.types, line.types);
    EXPECT_EQ(entry.kernel->shape.most_panel_rows, line.rows) << name;
    EXPECT_EQ(entry.kernel->shape.key_tile, line.keys) << name;
    EXPECT_EQ(kKeyTile % entry.kernel->shape.key_tile, 0) << name;
  }
}

// Levels whose own kernels are for bfloat16, and what they leave the rest to.
constexpr struct {
  int32_t level, base;
} kBf16Levels[] = {
    {FOVEA_ISA_AVX512_BF16, FOVEA_ISA_AVX512}, {FOVEA_ISA_NEON_BF16, FOVEA_ISA_NEON}, {FOVEA_ISA_SVE_BF16, FOVEA_ISA_SVE}};

TEST(Registry, Bf16IsMultipliedAsSuchWhereQueriesAndKeysBothAreBf16) {
  CpuFeatures features = {};
  features.sve_bits = 256;
  const auto name = [&](int32_t level, const Problem &problem) {
    const std::string kernel = selected(level, features, problem)->name;
    return level_of_object(kernel.substr(0, kernel.find('/'))) + kernel.substr(kernel.find('/'));
  };
  for (const auto &of : kBf16Levels) {
    if (!level_compiled(of.level)) continue;
    const std::string floats = level_name(of.base) + std::string("/prefill/f32"),
                      pairs = level_name(of.level) + std::string("/prefill/bf16");
    Problem p = {};
    for (const int32_t q : {FOVEA_F32, FOVEA_F16, FOVEA_BF16}) {
      for (const int32_t k : {FOVEA_F32, FOVEA_F16, FOVEA_BF16, FOVEA_I8, FOVEA_Q8_0, FOVEA_Q4_0}) {
        p.q.dtype = q;
        p.k.dtype = k;
        for (const int32_t v : {FOVEA_F32, FOVEA_BF16}) {
          p.v.dtype = p.out.dtype = v;
          EXPECT_EQ(name(of.level, p), q == FOVEA_BF16 && k == FOVEA_BF16 ? pairs : floats) << q << " " << k;
          EXPECT_EQ(name(of.base, p), floats);
        }
      }
    }
    p.q.dtype = p.k.dtype = FOVEA_BF16;
    p.score = [](void *, const fovea_score_tile *) {};
    EXPECT_EQ(name(of.level, p), floats);
  }
}

TEST(Registry, EveryCompiledLevelHasAKernelOfItsOwn) {
  Problem problem = {};
  problem.q.dtype = problem.k.dtype = FOVEA_BF16;
  CpuFeatures features = {};
  features.sve_bits = 256;
  for (int32_t level : known()) {
    const ForwardKernel *kernel = selected(level, features, problem);
    ASSERT_EQ(kernel != nullptr, level_compiled(level)) << level_name(level);
    if (!kernel) continue;
    const std::string name = kernel->name;
    EXPECT_EQ(level_of_object(name.substr(0, name.find('/'))), level_name(level));
  }
}

}  // namespace
}  // namespace fovea
