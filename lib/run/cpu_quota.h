// The CPU time that the control groups of this process allow.
#pragma once
#include <cstdint>

namespace fovea {

// Whole CPUs, rounded up, that the tightest quota (cgroup v1 or v2, ancestors included) allows; INT32_MAX where there is none.
// root stands before /proc and /sys: "" for those of this machine.
int32_t cpu_quota(const char *root);

}  // namespace fovea
