#include "cpu/cpu.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

namespace fovea {
namespace {

bool bit(uint64_t word, int index) { return (word >> index) & 1; }

bool all_bits(uint64_t word, uint64_t mask) { return (word & mask) == mask; }

// Bits of XCR0 (Intel SDM volume 1, section 13.3): the register sets that the OS saves and restores.
constexpr uint64_t kAvxState = 1u << 1 | 1u << 2;                           // XMM, upper halves of YMM
constexpr uint64_t kAvx512State = kAvxState | 1u << 5 | 1u << 6 | 1u << 7;  // opmasks, upper halves of ZMM0-15, ZMM16-31
constexpr uint64_t kAmxState = 1u << 17 | 1u << 18;                         // TILECFG, TILEDATA

// CPUID does not tell how fast an instruction is; who made the CPU does. All of AMD's with AVX512-BF16 (from Zen 4 on) start VDPBF16PS as often as
// VFMADD231PS, Intel's half as often at most.
bool made_by_amd(const CpuidLeaf &vendor) {
  char name[12];
  memcpy(name, &vendor.ebx, 4);
  memcpy(name + 4, &vendor.edx, 4);
  memcpy(name + 8, &vendor.ecx, 4);
  return memcmp(name, "AuthenticAMD", sizeof name) == 0;
}

// Bits of CPUID as in Intel SDM volume 2, CPUID, leaf 1 and leaf 7.
void detect_x86(const CpuSource &source, CpuFeatures *f) {
  const CpuidLeaf basic = source.cpuid(source.user, 1, 0);
  const CpuidLeaf extended = source.cpuid(source.user, 7, 0);
  const CpuidLeaf extended1 = extended.eax >= 1 ? source.cpuid(source.user, 7, 1) : CpuidLeaf{};
  const bool osxsave = bit(basic.ecx, 27);
  const uint64_t xcr0 = osxsave ? source.xcr0(source.user) : 0;

  const bool cpu_avx = bit(basic.ecx, 28), cpu_avx512 = bit(extended.ebx, 16), cpu_amx = bit(extended.edx, 24);
  const bool avx = cpu_avx && all_bits(xcr0, kAvxState);
  const bool avx512 = avx && cpu_avx512 && all_bits(xcr0, kAvx512State);
  const bool amx = cpu_amx && all_bits(xcr0, kAmxState);
  f->avx_disabled = cpu_avx && !avx;
  f->avx512_disabled = cpu_avx512 && !all_bits(xcr0, kAvx512State);
  f->amx_disabled = cpu_amx && !amx;

  f->fma = avx && bit(basic.ecx, 12);
  f->f16c = avx && bit(basic.ecx, 29);
  f->avx2 = avx && bit(extended.ebx, 5);
  f->avx512f = avx512;
  f->avx512dq = avx512 && bit(extended.ebx, 17);
  f->avx512cd = avx512 && bit(extended.ebx, 28);
  f->avx512bw = avx512 && bit(extended.ebx, 30);
  f->avx512vl = avx512 && bit(extended.ebx, 31);
  f->avx512vnni = avx512 && bit(extended.ecx, 11);
  f->avx512fp16 = avx512 && bit(extended.edx, 23);
  f->avx512bf16 = avx512 && bit(extended1.eax, 5);
  f->fast_bf16_dot = f->avx512bf16 && made_by_amd(source.cpuid(source.user, 0, 0));
  f->amx_tile = amx;
  f->amx_bf16 = amx && bit(extended.edx, 22);
  f->amx_int8 = amx && bit(extended.edx, 25);
}

// Bits of AT_HWCAP and AT_HWCAP2 as in Linux, arch/arm64/include/uapi/asm/hwcap.h. The kernel reports what it has enabled.
void detect_arm(const CpuSource &source, CpuFeatures *f) {
  const uint64_t hwcap = source.hwcap(source.user, 1), hwcap2 = source.hwcap(source.user, 2);
  f->neon = bit(hwcap, 1);
  f->sve = bit(hwcap, 22);
  f->sve_bits = f->sve ? source.sve_bits(source.user) : 0;
  f->sve2 = f->sve && bit(hwcap2, 1);
  f->sve_bf16 = f->sve && bit(hwcap2, 12);
  f->i8mm = bit(hwcap2, 13);
  f->bf16 = bit(hwcap2, 14);
}

#if defined(__x86_64__)
CpuidLeaf machine_cpuid(void *, uint32_t leaf, uint32_t subleaf) {
  CpuidLeaf r = {};
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // leaves r alone beyond the highest leaf
  return r;
}

uint64_t machine_xcr0(void *) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

constexpr CpuSource kMachine = {nullptr, machine_cpuid, machine_xcr0, nullptr, nullptr};

void machine_brand(char *brand) {
  for (uint32_t i = 0; i < 3; ++i) {
    const CpuidLeaf part = machine_cpuid(nullptr, 0x80000002 + i, 0);
    memcpy(brand + 16 * i, &part, 16);
  }
}
#else
#if defined(__aarch64__)
uint64_t machine_hwcap(void *, int which) {
#if defined(__linux__)
  return getauxval(which == 1 ? AT_HWCAP : AT_HWCAP2);
#else
  return which == 1 ? 1u << 1 : 0;  // Advanced SIMD belongs to the baseline
#endif
}

int32_t machine_sve_bits(void *) {
#if defined(__linux__)
  const int length = prctl(PR_SVE_GET_VL);
  return length < 0 ? 0 : (length & PR_SVE_VL_LEN_MASK) * 8;
#else
  return 0;
#endif
}

constexpr CpuSource kMachine = {nullptr, nullptr, nullptr, machine_hwcap, machine_sve_bits};
#else
constexpr CpuSource kMachine = {};
#endif

void machine_brand(char *) {}
#endif

CpuFeatures machine_features;
char machine_name[49];  // CPUID leaves 0x80000002..4 give 48 characters
pthread_once_t machine_once = PTHREAD_ONCE_INIT;

void detect_machine() {
  machine_features = detect_features(kMachine);
  char brand[sizeof machine_name] = {};
  machine_brand(brand);
  char *begin = brand + strspn(brand, " ");
  size_t length = strlen(begin);
  while (length > 0 && begin[length - 1] == ' ') begin[--length] = 0;
  memcpy(machine_name, begin, length + 1);
}

}  // namespace

CpuFeatures detect_features(const CpuSource &source) {
  CpuFeatures features = {};
  if (source.cpuid) detect_x86(source, &features);
  if (source.hwcap) detect_arm(source, &features);
  return features;
}

const CpuFeatures &cpu_features() {
  pthread_once(&machine_once, detect_machine);
  return machine_features;
}

const char *cpu_name() {
  pthread_once(&machine_once, detect_machine);
  return machine_name;
}

}  // namespace fovea
