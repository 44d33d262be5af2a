// A level that was asked for runs, or the context is refused with the reason: never another one in silence.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "fovea/fovea.h"

namespace fovea::testing {
namespace {

std::vector<fovea_isa> levels(bool usable_only) {
  std::vector<fovea_isa> list(size_t(fovea_isa_list(nullptr, 0, usable_only)));
  EXPECT_EQ(fovea_isa_list(list.data(), int32_t(list.size()), usable_only), int32_t(list.size()));
  return list;
}

class LevelChoiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char *value = std::getenv("FOVEA_ISA")) before_ = value;
    unsetenv("FOVEA_ISA");
    ASSERT_EQ(fovea_options_init(&options, sizeof options), FOVEA_OK);
  }
  void TearDown() override {
    if (before_.empty())
      unsetenv("FOVEA_ISA");
    else
      setenv("FOVEA_ISA", before_.c_str(), 1);
  }
  // The level that a context of these options has, or its status, negated.
  fovea_isa created() {
    fovea_context *context = nullptr;
    const fovea_status status = fovea_context_create(&options, &context);
    const fovea_isa level = status == FOVEA_OK ? fovea_context_isa(context) : -status;
    EXPECT_EQ(context == nullptr, status != FOVEA_OK);
    fovea_context_destroy(context);
    return level;
  }
  fovea_options options;

 private:
  std::string before_;
};

TEST_F(LevelChoiceTest, EveryLevelIsUsableOrRefusedWithAReason) {
  const std::vector<fovea_isa> usable = levels(true);
  for (const fovea_isa level : levels(false)) {
    const bool can = std::find(usable.begin(), usable.end(), level) != usable.end();
    EXPECT_EQ(std::string(fovea_isa_refusal(level)).empty(), can) << fovea_isa_name(level);
    options.isa = level;
    unsetenv("FOVEA_ISA");
    EXPECT_EQ(created(), can ? level : -FOVEA_ERR_ISA_UNAVAILABLE) << fovea_isa_name(level);
    if (!can) {
      EXPECT_NE(std::string(fovea_last_error()).find(fovea_isa_refusal(level)), std::string::npos) << fovea_last_error();
    }
    options.isa = FOVEA_ISA_AUTO;
    setenv("FOVEA_ISA", fovea_isa_name(level), 1);
    EXPECT_EQ(created(), can ? level : -FOVEA_ERR_ISA_UNAVAILABLE) << fovea_isa_name(level);
  }
}

TEST_F(LevelChoiceTest, TheBestUsableLevelByDefault) {
  EXPECT_EQ(created(), levels(true).back());
  setenv("FOVEA_ISA", "", 1);
  EXPECT_EQ(created(), levels(true).back());
  setenv("FOVEA_ISA", "auto", 1);
  EXPECT_EQ(created(), levels(true).back());
}

TEST_F(LevelChoiceTest, UnknownNamesAreErrors) {
  for (const char *name : {"AVX2", "avx", "avx512 ", "sse9", "unknown"}) {
    setenv("FOVEA_ISA", name, 1);
    EXPECT_EQ(created(), -FOVEA_ERR_INVALID_ARGUMENT) << name;
    EXPECT_NE(std::string(fovea_last_error()).find("FOVEA_ISA"), std::string::npos);
  }
  options.flags = FOVEA_IGNORE_ENV;
  EXPECT_EQ(created(), levels(true).back());
}

TEST_F(LevelChoiceTest, TheOptionWinsOverTheEnvironment) {
  setenv("FOVEA_ISA", "sse9", 1);
  options.isa = FOVEA_ISA_SCALAR;
  EXPECT_EQ(created(), FOVEA_ISA_SCALAR);
}

}  // namespace
}  // namespace fovea::testing
