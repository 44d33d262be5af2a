#include "machine.h"

#include <malloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <random>
#include <system_error>

namespace fovea::bench {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// The last ones first: the OS likes the first ones for its own work.
std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = CPU_SETSIZE - 1; core >= 0; core--) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

}  // namespace

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double processor_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double waiting_seconds() {
  double sum = 0;
  std::error_code error;
  for (const auto &task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    double running = 0, waiting = 0;  // nanoseconds
    if (std::ifstream(task.path() / "schedstat") >> running >> waiting) sum += 1e-9 * waiting;
  }
  return sum;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

std::vector<int> pin(int threads) {
  static const std::vector<int> allowed = allowed_cores();  // before the first thread is bound
  if (static_cast<int>(allowed.size()) < threads) return {};
  const std::vector<int> cores(allowed.begin(), allowed.begin() + threads);
#ifdef _OPENMP
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    pin_to(cores[static_cast<size_t>(omp_get_thread_num())]);
    return cores;
  }
#else
  if (threads > 1) return {};
#endif
  pin_to(cores[0]);
  return cores;
}

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
}

Buffer::Buffer(size_t count) : count_(count) {
  const size_t bytes = (count * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  data_ = static_cast<float *>(std::aligned_alloc(kHugePage, bytes));
  if (data_ == nullptr) throw std::bad_alloc();
  madvise(data_, bytes, MADV_HUGEPAGE);
  fill(0);
}

Buffer::~Buffer() { std::free(data_); }

void Buffer::fill_normal(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::generate(data_, data_ + count_, [&] { return normal(random); });
}

void Buffer::fill(float value) { std::fill(data_, data_ + count_, value); }

}  // namespace fovea::bench
