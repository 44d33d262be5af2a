#include "run/cpu_quota.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace fovea {
namespace {

constexpr size_t kPath = 1024;

// The text of a small file; false where it cannot be read.
bool read_text(const char *path, char *text, size_t capacity) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  size_t length = 0;
  for (ssize_t got; length + 1 < capacity && (got = read(file, text + length, capacity - 1 - length)) > 0;) length += size_t(got);
  close(file);
  text[length] = 0;
  return length > 0;
}

bool read_number(const char *folder, const char *name, int64_t *number) {
  char path[kPath + 32], text[32];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  if (!read_text(path, text, sizeof text)) return false;
  *number = strtoll(text, nullptr, 10);
  return true;
}

int32_t whole_cpus(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return INT32_MAX;  // v1 writes -1 for "no quota"
  const int64_t cpus = quota / period + (quota % period != 0);
  return cpus < INT32_MAX ? int32_t(cpus) : INT32_MAX;
}

int32_t quota_v2(const char *folder) {
  char path[kPath + 32], text[64];  // "200000 100000" or "max 100000"
  snprintf(path, sizeof path, "%s/cpu.max", folder);
  if (!read_text(path, text, sizeof text)) return INT32_MAX;
  char *rest;
  const int64_t quota = strtoll(text, &rest, 10);
  return rest == text ? INT32_MAX : whole_cpus(quota, strtoll(rest, nullptr, 10));
}

int32_t quota_v1(const char *folder) {
  int64_t quota, period;
  if (!read_number(folder, "cpu.cfs_quota_us", &quota) || !read_number(folder, "cpu.cfs_period_us", &period)) return INT32_MAX;
  return whole_cpus(quota, period);
}

// The tightest quota of a group and its ancestors. A container may see its own group as the mount itself: so levels that do not
// exist under the mount count as none.
int32_t tightest(const char *root, const char *mount, const char *group, int32_t (*quota)(const char *folder)) {
  char folder[kPath];
  const int length = snprintf(folder, sizeof folder, "%s%s%s", root, mount, group);
  if (length < 0 || size_t(length) >= sizeof folder) return INT32_MAX;
  const size_t mount_length = strlen(root) + strlen(mount);
  int32_t least = INT32_MAX;
  for (;;) {
    const int32_t cpus = quota(folder);
    if (cpus < least) least = cpus;
    if (strlen(folder) <= mount_length) return least;
    *strrchr(folder, '/') = 0;
  }
}

bool lists_cpu_controller(const char *controllers) {
  for (const char *at = controllers; at;) {
    const size_t length = strcspn(at, ",");
    if (length == 3 && !memcmp(at, "cpu", 3)) return true;
    at = at[length] ? at + length + 1 : nullptr;
  }
  return false;
}

}  // namespace

int32_t cpu_quota(const char *root) {
  char path[kPath], text[4096];
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  if (!read_text(path, text, sizeof text)) return INT32_MAX;
  int32_t least = INT32_MAX;
  char *next_line = nullptr;
  for (char *line = strtok_r(text, "\n", &next_line); line; line = strtok_r(nullptr, "\n", &next_line)) {
    // hierarchy:controllers:group; version 2 is hierarchy 0 and names no controllers.
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : nullptr;
    if (!group || group[1] != '/') continue;
    *group++ = 0;
    ++controllers;
    int32_t cpus = INT32_MAX;
    if (!*controllers)
      cpus = tightest(root, "/sys/fs/cgroup", group, quota_v2);
    else if (lists_cpu_controller(controllers))
      cpus = tightest(root, "/sys/fs/cgroup/cpu", group, quota_v1);
    if (cpus < least) least = cpus;
  }
  return least;
}

}  // namespace fovea
