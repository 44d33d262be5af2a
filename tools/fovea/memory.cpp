// How much memory this process may still take: Linux gives more than there is, and ends the process that uses it.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

#include "commands.h"

namespace fovea::tools {
namespace {

using Path = std::filesystem::path;
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// The number behind a word of a file of words and numbers; otherwise where there is none.
double number_behind(const Path &file, const std::string &word, double otherwise) {
  std::ifstream stream(file);
  for (std::string found; stream >> found;) {
    double number;
    if (found == word && stream >> number) return number;
  }
  return otherwise;
}

// What a control group and those that it lies in leave. A container may see its own group as the mount itself: levels that do not exist
// under the mount set no limit.
double left_in_group(const Path &mount, Path group, const char *limit_file, const char *used_word) {
  double left = kUnlimited;
  for (;; group = group.parent_path()) {
    const Path folder = mount / group.relative_path();
    double limit;  // "max" is no number
    if (std::ifstream(folder / limit_file) >> limit) {
      left = std::min(left, limit - number_behind(folder / "memory.stat", used_word, 0));
    }
    if (!group.has_relative_path()) return left;
  }
}

double left_in_groups() {
  double left = kUnlimited;
  std::ifstream groups("/proc/self/cgroup");  // "4:memory:/path" of version 1, "0::/path" of version 2
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) left = std::min(left, left_in_group("/sys/fs/cgroup", group, "memory.max", "anon"));
    if (controllers == "memory") {
      left = std::min(left, left_in_group("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", "total_rss"));
    }
  }
  return left;
}

double resource_limit(int resource) {
  rlimit value;
  return getrlimit(resource, &value) == 0 && value.rlim_cur != RLIM_INFINITY ? static_cast<double>(value.rlim_cur) : kUnlimited;
}

double available_memory() {
  const double of_machine = 1024 * number_behind("/proc/meminfo", "MemAvailable:", kUnlimited);
  return std::min({of_machine, left_in_groups(), resource_limit(RLIMIT_AS), resource_limit(RLIMIT_DATA)});
}

}  // namespace

std::string memory_refusal(double bytes) {
  const double available = available_memory();
  if (bytes <= available) return "";
  const auto gigabytes = [](double count) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g GB", count / 1e9);
    return std::string(text);
  };
  return "too large: about " + gigabytes(bytes) + " of memory are needed, " + gigabytes(available) + " are available";
}

}  // namespace fovea::tools
