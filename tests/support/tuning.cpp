#include "support/tuning.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>

#include "api/tuning.h"
#include "dispatch/dispatch.h"

namespace fovea::testing {

TemporaryFile::TemporaryFile(const std::string &text) : path_(::testing::TempDir() + "fovea-tuning-XXXXXX") {
  const int file = mkstemp(path_.data());
  EXPECT_GE(file, 0) << path_;
  close(file);
  write(text);
}

TemporaryFile::~TemporaryFile() { unlink(path()); }

void TemporaryFile::write(const std::string &text) const {
  std::ofstream stream(path_, std::ios::binary | std::ios::trunc);
  stream << text;
  stream.close();
  EXPECT_TRUE(stream) << path_;
}

EnvironmentVariable::EnvironmentVariable(const char *name, const char *value) : name_(name) {
  const char *before = std::getenv(name);
  was_there_ = before != nullptr;
  if (before) before_ = before;
  if (value)
    setenv(name, value, 1);
  else
    unsetenv(name);
}

EnvironmentVariable::~EnvironmentVariable() {
  if (was_there_)
    setenv(name_, before_.c_str(), 1);
  else
    unsetenv(name_);
}

std::string table(Values values, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text = "format = 1\n";
  const KernelEntry *entries;
  const int32_t count = kernel_entries(&entries);
  for (int32_t i = 0; i < count; ++i) {
    if (!fits_vectors(entries[i], cpu_features())) continue;
    for (const TuningParameter &parameter : kTuningParameters) {
      const TuningRange range = tuning_range(parameter, entries[i].kernel->shape);
      int64_t value = values == Values::kLeast ? range.least : range.most;
      if (values == Values::kRandom) {  // any order of magnitude alike
        const double unit = double(random()) / 0x1p32;
        value = std::llround(std::exp2(unit * std::log2(double(range.most) / double(std::max<int64_t>(range.least, 1)))) *
                             double(std::max<int64_t>(range.least, 1)));
        value = std::clamp(value / range.unit * range.unit, range.least, range.most);
      }
      text += std::string(level_name(entries[i].level)) + "." + parameter.name + " = " + std::to_string(value) + "\n";
    }
  }
  return text;
}

}  // namespace fovea::testing
