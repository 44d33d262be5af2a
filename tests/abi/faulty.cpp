// Everything that the checks of objects must find, compiled like an AVX2 object but for -mno-vzeroupper.
#include <algorithm>

float known_at_run_time();

namespace fovea {
inline __attribute__((noinline)) float shared_by_accident(float x) { return x * x; }  // weak, and any level may define it
}  // namespace fovea

namespace fovea::avx2 {

float loaded_early = shared_by_accident(known_at_run_time());  // run before main

void sort(float *p, int n) { std::sort(p, p + n); }  // functions of std

void tile(float *out, const float *a, const float *b, int n) {  // multiply and add, upper halves left dirty
  for (int i = 0; i < n; i++) out[i] = a[i] * b[i] + out[i] + loaded_early;
}

}  // namespace fovea::avx2
