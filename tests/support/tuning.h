// Tables of tuning in files.
#pragma once
#include <cstdint>
#include <string>

namespace fovea::testing {

// A file that lives as long as the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string &text);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile &) = delete;
  TemporaryFile &operator=(const TemporaryFile &) = delete;
  const char *path() const { return path_.c_str(); }
  void write(const std::string &text) const;

 private:
  std::string path_;
};

// A variable of the environment for the life of the object; null: it is not there.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char *name, const char *value);
  ~EnvironmentVariable();
  EnvironmentVariable(const EnvironmentVariable &) = delete;
  EnvironmentVariable &operator=(const EnvironmentVariable &) = delete;

 private:
  const char *const name_;
  bool was_there_;
  std::string before_;
};

// Tables of all that this CPU runs: each value the least or the most that loads, or any that does.
enum class Values { kLeast, kMost, kRandom };
std::string table(Values values, uint32_t seed = 1);

}  // namespace fovea::testing
