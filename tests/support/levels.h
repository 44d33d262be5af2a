// Tests that run once for each level with a registered kernel. A level that this machine cannot run is skipped with the library's
// own reason, which ctest counts; where FOVEA_REQUIRE_ISA ("avx2,avx512") names it, the skip is a failure.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fovea/fovea.h"
#include "reference/problem_line.h"

namespace fovea::testing {

std::vector<fovea_isa> registered_levels();
std::vector<fovea_isa> usable_levels();      // of the registered ones
std::vector<std::string> required_levels();  // those that FOVEA_REQUIRE_ISA names

// Whether the half-precision loads and stores of this level flush subnormal halves, as no CPU's do: VCVTPH2PS and VCVTPS2PH obey neither
// DAZ nor FTZ for halves (Intel SDM volume 2), but qemu's obey both. Elements of FOVEA_F16 cannot be tested there.
bool flushes_halves(const std::string &level);

// A context that is sure to run this level: the test fails where it names another.
reference::ContextPtr context_for(fovea_isa level, int32_t threads = 1, const std::string &exec = "omp");

class LevelTest : public ::testing::TestWithParam<fovea_isa> {
 protected:
  void SetUp() override;
  std::string level() const { return fovea_isa_name(GetParam()); }
  reference::ContextPtr context(int32_t threads = 1, const std::string &exec = "omp") const {
    return context_for(GetParam(), threads, exec);
  }
};

#define FOVEA_TEST_EVERY_LEVEL(suite)                                           \
  INSTANTIATE_TEST_SUITE_P(                                                     \
      Every, suite, ::testing::ValuesIn(::fovea::testing::registered_levels()), \
      [](const ::testing::TestParamInfo<fovea_isa> &info) { return std::string(fovea_isa_name(info.param)); })

// Fails with the line that reproduces it unless the line, which names its level, runs there and within the bound. Passes over lines with
// halves where flushes_halves().
void expect_right(const reference::ProblemLine &line);
void expect_right(const reference::ProblemLine &line, const reference::LineReference &reference);
void expect_right(const std::string &line, const std::string &level);

bool long_tier();  // FOVEA_TEST_LONG=1

}  // namespace fovea::testing
