// What is detected from CPUID, XCR0 and HWCAP answers, most of them of machines that are not here.
#include "cpu/cpu.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace fovea {
namespace {

struct FakeX86 {
  std::string vendor = "GenuineIntel";
  CpuidLeaf leaf1 = {}, leaf7 = {}, leaf7_1 = {};
  uint64_t xcr0 = 0;
  bool xcr0_was_read = false;

  CpuFeatures detect() {
    CpuSource source = {};
    source.user = this;
    source.cpuid = [](void *user, uint32_t leaf, uint32_t subleaf) {
      const FakeX86 &fake = *static_cast<FakeX86 *>(user);
      if (leaf == 0) return fake.leaf0();
      if (leaf == 1) return fake.leaf1;
      if (leaf == 7) return subleaf == 0 ? fake.leaf7 : fake.leaf7_1;
      return CpuidLeaf{};
    };
    source.xcr0 = [](void *user) {
      static_cast<FakeX86 *>(user)->xcr0_was_read = true;
      return static_cast<FakeX86 *>(user)->xcr0;
    };
    return detect_features(source);
  }

 private:
  CpuidLeaf leaf0() const {
    CpuidLeaf leaf = {};
    std::memcpy(&leaf.ebx, vendor.data(), 4);
    std::memcpy(&leaf.edx, vendor.data() + 4, 4);
    std::memcpy(&leaf.ecx, vendor.data() + 8, 4);
    return leaf;
  }
};

constexpr uint32_t kFma = 1u << 12, kOsxsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;

FakeX86 haswell() {
  FakeX86 fake;
  fake.leaf1.ecx = kFma | kOsxsave | kAvx | kF16c;
  fake.leaf7.ebx = 1u << 5;
  fake.xcr0 = 0x7;
  return fake;
}

FakeX86 sapphire_rapids() {
  FakeX86 fake = haswell();
  fake.leaf7.eax = 1;
  fake.leaf7.ebx |= 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
  fake.leaf7.ecx |= 1u << 11;
  fake.leaf7.edx |= 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25;
  fake.leaf7_1.eax = 1u << 5;
  fake.xcr0 = 0x600e7;
  return fake;
}

bool any_avx(const CpuFeatures &f) { return f.avx2 || f.fma || f.f16c; }
bool any_avx512(const CpuFeatures &f) {
  return f.avx512f || f.avx512bw || f.avx512dq || f.avx512vl || f.avx512cd || f.avx512vnni || f.avx512bf16 || f.avx512fp16;
}
bool any_amx(const CpuFeatures &f) { return f.amx_tile || f.amx_bf16 || f.amx_int8; }

TEST(CpuFeatures, HaswellHasAvx2FmaF16cOnly) {
  const CpuFeatures f = haswell().detect();
  EXPECT_TRUE(f.avx2 && f.fma && f.f16c);
  EXPECT_FALSE(any_avx512(f) || any_amx(f));
  EXPECT_FALSE(f.avx_disabled || f.avx512_disabled || f.amx_disabled);
}

TEST(CpuFeatures, SapphireRapidsHasAll) {
  const CpuFeatures f = sapphire_rapids().detect();
  EXPECT_TRUE(f.avx2 && f.fma && f.f16c);
  EXPECT_TRUE(f.avx512f && f.avx512bw && f.avx512dq && f.avx512vl && f.avx512cd && f.avx512vnni && f.avx512bf16 && f.avx512fp16);
  EXPECT_TRUE(f.amx_tile && f.amx_bf16 && f.amx_int8);
  EXPECT_FALSE(f.avx_disabled || f.avx512_disabled || f.amx_disabled);
}

TEST(CpuFeatures, OnlyAmdMultipliesPairsOfBf16AsOftenAsFloats) {
  FakeX86 fake = sapphire_rapids();
  EXPECT_FALSE(fake.detect().fast_bf16_dot);
  fake.vendor = "AuthenticAMD";
  EXPECT_TRUE(fake.detect().fast_bf16_dot);
  fake.leaf7_1.eax = 0;
  EXPECT_FALSE(fake.detect().fast_bf16_dot);
  fake = haswell();
  fake.vendor = "AuthenticAMD";
  EXPECT_FALSE(fake.detect().fast_bf16_dot);
}

TEST(CpuFeatures, OldCpuHasNone) {
  FakeX86 fake;
  const CpuFeatures f = fake.detect();
  EXPECT_FALSE(any_avx(f) || any_avx512(f) || any_amx(f) || f.avx_disabled || f.avx512_disabled || f.amx_disabled);
}

TEST(CpuFeatures, WithoutOsxsaveXgetbvIsNotExecutedAndNothingIsUsable) {
  FakeX86 fake = sapphire_rapids();
  fake.leaf1.ecx &= ~kOsxsave;
  const CpuFeatures f = fake.detect();
  EXPECT_FALSE(fake.xcr0_was_read);
  EXPECT_FALSE(any_avx(f) || any_avx512(f) || any_amx(f));
  EXPECT_TRUE(f.avx_disabled && f.avx512_disabled && f.amx_disabled);
}

TEST(CpuFeatures, AvxNeedsBothOfItsStates) {
  for (int bit : {1, 2}) {
    FakeX86 fake = sapphire_rapids();
    fake.xcr0 &= ~(uint64_t{1} << bit);
    const CpuFeatures f = fake.detect();
    EXPECT_FALSE(any_avx(f) || any_avx512(f)) << "XCR0 bit " << bit;
    EXPECT_TRUE(f.avx_disabled) << "XCR0 bit " << bit;
  }
}

TEST(CpuFeatures, Avx512NeedsAllThreeOfItsStates) {
  for (int bit : {5, 6, 7}) {
    FakeX86 fake = sapphire_rapids();
    fake.xcr0 &= ~(uint64_t{1} << bit);
    const CpuFeatures f = fake.detect();
    EXPECT_TRUE(f.avx2 && f.fma && f.f16c) << "XCR0 bit " << bit;
    EXPECT_FALSE(any_avx512(f)) << "XCR0 bit " << bit;
    EXPECT_TRUE(f.avx512_disabled && !f.avx_disabled) << "XCR0 bit " << bit;
  }
}

TEST(CpuFeatures, AmxNeedsBothOfItsStates) {
  for (int bit : {17, 18}) {
    FakeX86 fake = sapphire_rapids();
    fake.xcr0 &= ~(uint64_t{1} << bit);
    const CpuFeatures f = fake.detect();
    EXPECT_TRUE(f.avx512f) << "XCR0 bit " << bit;
    EXPECT_FALSE(any_amx(f)) << "XCR0 bit " << bit;
    EXPECT_TRUE(f.amx_disabled) << "XCR0 bit " << bit;
  }
}

TEST(CpuFeatures, EachBitDecidesItsOwnFeature) {
  const struct {
    const char *name;
    bool CpuFeatures::*feature;
    uint32_t CpuidLeaf::*word;
    CpuidLeaf FakeX86::*leaf;
    int bit;
  } bits[] = {
      {"fma", &CpuFeatures::fma, &CpuidLeaf::ecx, &FakeX86::leaf1, 12},
      {"f16c", &CpuFeatures::f16c, &CpuidLeaf::ecx, &FakeX86::leaf1, 29},
      {"avx2", &CpuFeatures::avx2, &CpuidLeaf::ebx, &FakeX86::leaf7, 5},
      {"avx512dq", &CpuFeatures::avx512dq, &CpuidLeaf::ebx, &FakeX86::leaf7, 17},
      {"avx512cd", &CpuFeatures::avx512cd, &CpuidLeaf::ebx, &FakeX86::leaf7, 28},
      {"avx512bw", &CpuFeatures::avx512bw, &CpuidLeaf::ebx, &FakeX86::leaf7, 30},
      {"avx512vl", &CpuFeatures::avx512vl, &CpuidLeaf::ebx, &FakeX86::leaf7, 31},
      {"avx512vnni", &CpuFeatures::avx512vnni, &CpuidLeaf::ecx, &FakeX86::leaf7, 11},
      {"avx512fp16", &CpuFeatures::avx512fp16, &CpuidLeaf::edx, &FakeX86::leaf7, 23},
      {"avx512bf16", &CpuFeatures::avx512bf16, &CpuidLeaf::eax, &FakeX86::leaf7_1, 5},
      {"amx_bf16", &CpuFeatures::amx_bf16, &CpuidLeaf::edx, &FakeX86::leaf7, 22},
      {"amx_int8", &CpuFeatures::amx_int8, &CpuidLeaf::edx, &FakeX86::leaf7, 25},
  };
  for (const auto &cleared : bits) {
    FakeX86 fake = sapphire_rapids();
    fake.*cleared.leaf.*cleared.word &= ~(1u << cleared.bit);
    const CpuFeatures f = fake.detect();
    for (const auto &other : bits) EXPECT_EQ(f.*other.feature, &other != &cleared) << cleared.name << " cleared: " << other.name;
  }
}

TEST(CpuFeatures, Avx512NeedsItsFoundation) {
  FakeX86 fake = sapphire_rapids();
  fake.leaf7.ebx &= ~(1u << 16);
  EXPECT_FALSE(any_avx512(fake.detect()));
}

TEST(CpuFeatures, SubleafBeyondTheHighestIsNotBelieved) {
  FakeX86 fake = sapphire_rapids();
  fake.leaf7.eax = 0;
  EXPECT_FALSE(fake.detect().avx512bf16);
}

CpuFeatures detect_arm(
    uint64_t hwcap, uint64_t hwcap2, int32_t (*sve_bits)(void *) = [](void *) { return 256; }) {
  uint64_t words[2] = {hwcap, hwcap2};
  CpuSource source = {};
  source.sve_bits = sve_bits;
  source.user = words;
  source.hwcap = [](void *user, int which) { return static_cast<uint64_t *>(user)[which - 1]; };
  return detect_features(source);
}

constexpr uint64_t kAsimd = 1u << 1, kSve = 1u << 22, kSve2 = 1u << 1, kSveBf16 = 1u << 12, kI8mm = 1u << 13, kBf16 = 1u << 14;

TEST(CpuFeatures, ArmBitsDecideTheirOwnFeatures) {
  const CpuFeatures none = detect_arm(0, 0);
  EXPECT_FALSE(none.neon || none.sve || none.sve2 || none.sve_bf16 || none.i8mm || none.bf16);
  const CpuFeatures all = detect_arm(kAsimd | kSve, kSve2 | kSveBf16 | kI8mm | kBf16);
  EXPECT_TRUE(all.neon && all.sve && all.sve2 && all.sve_bf16 && all.i8mm && all.bf16);
}

TEST(CpuFeatures, Sve2DoesNotImplyBf16) {
  const CpuFeatures f = detect_arm(kAsimd | kSve, kSve2);
  EXPECT_TRUE(f.sve && f.sve2);
  EXPECT_FALSE(f.bf16 || f.sve_bf16 || f.i8mm);
}

TEST(CpuFeatures, ExtensionsOfSveAreNotUsableWithoutIt) {
  const CpuFeatures f = detect_arm(kAsimd, kSve2 | kSveBf16 | kBf16);
  EXPECT_FALSE(f.sve2 || f.sve_bf16);
  EXPECT_TRUE(f.bf16);
}

TEST(CpuFeatures, TheVectorLengthIsAskedForWhereThereIsSve) {
  EXPECT_EQ(detect_arm(kAsimd | kSve, 0).sve_bits, 256);
  const CpuFeatures f = detect_arm(kAsimd, 0, [](void *) {
    ADD_FAILURE() << "asked of a CPU without SVE";
    return 256;
  });
  EXPECT_EQ(f.sve_bits, 0);
}

TEST(CpuFeatures, OfThisMachineAgreeWithTheCompiler) {
  const CpuFeatures &f = cpu_features();
#if defined(__x86_64__)
  EXPECT_EQ(f.avx2, bool(__builtin_cpu_supports("avx2")));
  EXPECT_EQ(f.fma, bool(__builtin_cpu_supports("fma")));
  EXPECT_EQ(f.avx512f, bool(__builtin_cpu_supports("avx512f")));
  EXPECT_EQ(f.avx512bw, bool(__builtin_cpu_supports("avx512bw")));
  EXPECT_EQ(f.avx512dq, bool(__builtin_cpu_supports("avx512dq")));
  EXPECT_EQ(f.avx512vl, bool(__builtin_cpu_supports("avx512vl")));
  EXPECT_EQ(f.avx512cd, bool(__builtin_cpu_supports("avx512cd")));
  EXPECT_EQ(f.avx512vnni, bool(__builtin_cpu_supports("avx512vnni")));
  EXPECT_EQ(f.avx512bf16, bool(__builtin_cpu_supports("avx512bf16")));
  EXPECT_FALSE(f.neon || f.sve);
#elif defined(__aarch64__)
  EXPECT_TRUE(f.neon);
  EXPECT_EQ(f.sve_bits != 0, f.sve);
  EXPECT_EQ(f.sve_bits % 128, 0);
  EXPECT_FALSE(any_avx(f) || any_avx512(f));
#endif
}

TEST(CpuFeatures, AreOneObjectForAllThreads) {
  std::vector<const CpuFeatures *> seen(16);
  std::vector<std::thread> threads;
  threads.reserve(seen.size());
  for (auto &slot : seen) threads.emplace_back([&slot] { slot = &cpu_features(); });
  for (auto &thread : threads) thread.join();
  for (const CpuFeatures *features : seen) EXPECT_EQ(features, &cpu_features());
}

TEST(CpuName, HasNoBlanksAround) {
  const std::string name = cpu_name();
#if defined(__x86_64__)
  ASSERT_FALSE(name.empty());
#endif
  if (name.empty()) return;
  EXPECT_NE(name.front(), ' ');
  EXPECT_NE(name.back(), ' ');
}

}  // namespace
}  // namespace fovea
