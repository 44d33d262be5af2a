// The machine under the benches: cores, memory, clocks.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace fovea::bench {

double now();                // seconds of the wall clock
double processor_seconds();  // that the calling thread has used
double waiting_seconds();    // that this process's threads could have run but were given no core; 0 where the OS does not say

std::string processor_name();  // as the OS calls it

// Binds the calling thread to a core of its own, and with OpenMP the other threads of teams of this size too. Returns the cores, or
// none where the process may not use so many.
std::vector<int> pin(int threads);

// Memory freed stays with the process, so that no library pays for fresh pages in a timed call.
void keep_freed_memory();

// Pages that the OS was asked to make large, touched once. As many floats as asked for.
class Buffer {
 public:
  explicit Buffer(size_t count);
  ~Buffer();
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  float *data() { return data_; }
  size_t size() const { return count_; }
  void fill_normal(unsigned seed);
  void fill(float value);

 private:
  size_t count_;
  float *data_;
};

}  // namespace fovea::bench
