#include "support/levels.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "cpu/cpu.h"
#include "dispatch/dispatch.h"
#include "run/float_environment.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fovea::testing {
namespace {

#if defined(__x86_64__)
__attribute__((target("f16c"))) bool f16c_flushes() {
  volatile int subnormal = 1;  // 2^-24
  const FloatEnvironment saved = enter_float_environment();
  const bool flushed = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(subnormal))) == 0;
  leave_float_environment(saved);
  return flushed;
}
#endif

bool has_halves(const reference::ProblemLine &line) {
  for (const std::string &type : {line.type_q, line.type_k, line.type_v, line.type_out, line.mask})
    if (type == "f16") return true;
  return false;
}

}  // namespace

std::vector<fovea_isa> registered_levels() {
  const KernelEntry *entries = nullptr;
  const int32_t count = kernel_entries(&entries);
  std::vector<fovea_isa> levels;
  for (int32_t i = 0; i < count; ++i)
    if (std::find(levels.begin(), levels.end(), entries[i].level) == levels.end()) levels.push_back(entries[i].level);
  return levels;
}

std::vector<fovea_isa> usable_levels() {
  std::array<fovea_isa, 64> usable;
  const auto *end = usable.data() + fovea_isa_list(usable.data(), int32_t(usable.size()), 1);
  std::vector<fovea_isa> levels = registered_levels();
  levels.erase(std::remove_if(
                   levels.begin(), levels.end(),
                   [&](fovea_isa level) { return std::find(static_cast<const fovea_isa *>(usable.data()), end, level) == end; }),
               levels.end());
  return levels;
}

std::vector<std::string> required_levels() {
  const char *required = std::getenv("FOVEA_REQUIRE_ISA");
  std::istringstream names(required ? required : "");
  std::vector<std::string> levels;
  for (std::string name; std::getline(names, name, ',');) levels.push_back(name);
  return levels;
}

bool flushes_halves(const std::string &level) {
#if defined(__x86_64__)
  return level != "scalar" && cpu_features().f16c && f16c_flushes();
#else
  return level.empty();
#endif
}

reference::ContextPtr context_for(fovea_isa level, int32_t threads, const std::string &exec) {
  reference::ProblemLine line;
  line.isa = fovea_isa_name(level);
  line.threads = threads;
  line.exec = exec;
  std::string error;
  reference::ContextPtr context = reference::make_context(line, &error);
  if (context) {
    EXPECT_EQ(fovea_context_isa(context.get()), level);
  } else {
    ADD_FAILURE() << error;
  }
  return context;
}

void LevelTest::SetUp() {
  const std::vector<fovea_isa> usable = usable_levels();
  if (std::find(usable.begin(), usable.end(), GetParam()) != usable.end()) return;
  const std::string reason = level() + ": " + fovea_isa_refusal(GetParam());
  for (const std::string &required : required_levels())
    if (required == level()) FAIL() << "required by FOVEA_REQUIRE_ISA, but " << reason;
  GTEST_SKIP() << reason;
}

void expect_right(const reference::ProblemLine &line) { expect_right(line, reference::line_reference(line)); }

void expect_right(const reference::ProblemLine &line, const reference::LineReference &reference) {
  if (has_halves(line) && flushes_halves(line.isa)) return;
  const reference::CheckResult result = reference::check(line, reference);
  EXPECT_TRUE(result.ok()) << "fovea check \"" << reference::format(line) << "\"\n"
                           << (result.error.empty() ? "" : "error: " + result.error + "\n")
                           << (result.gaps_intact ? "" : "wrote outside of its outputs\n")
                           << (result.same_bits ? "" : "different bits when its tensors lay elsewhere\n") << "error / bound: out "
                           << result.verdict.out_ratio << " (row " << result.verdict.worst_row << ", dim "
                           << result.verdict.worst_dim << "), lse " << result.verdict.lse_ratio << ", weights "
                           << result.verdict.weights_ratio;
  if (result.error.empty()) {
    EXPECT_EQ(result.level, line.isa) << "another level ran";
  }
}

void expect_right(const std::string &text, const std::string &level) {
  reference::ProblemLine line;
  const std::string error = reference::parse(text + " isa=" + level, &line);
  ASSERT_EQ(error, "");
  expect_right(line);
}

bool long_tier() {
  const char *value = std::getenv("FOVEA_TEST_LONG");
  return value && std::string(value) == "1";
}

}  // namespace fovea::testing
