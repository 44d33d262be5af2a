// Load the shared library, call it on several threads, unload it, a hundred times; and the floating-point state of the process is what it was
// before the first load. Linked to nothing of the project.
#include <dirent.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "fovea/fovea.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
static unsigned float_state() { return _mm_getcsr() & ~0x3fu; }  // control bits
#else
static unsigned float_state() { return 0; }
#endif

static int thread_count() {
  int count = 0;
  if (DIR *tasks = opendir("/proc/self/task")) {
    while (const dirent *entry = readdir(tasks)) count += entry->d_name[0] != '.';
    closedir(tasks);
  }
  return count;
}

static bool call_is_right(void *library) {
  const auto options_init = reinterpret_cast<decltype(&fovea_options_init)>(dlsym(library, "fovea_options_init"));
  const auto params_init = reinterpret_cast<decltype(&fovea_params_init)>(dlsym(library, "fovea_params_init"));
  const auto create = reinterpret_cast<decltype(&fovea_context_create)>(dlsym(library, "fovea_context_create"));
  const auto destroy = reinterpret_cast<decltype(&fovea_context_destroy)>(dlsym(library, "fovea_context_destroy"));
  const auto forward = reinterpret_cast<decltype(&fovea_forward)>(dlsym(library, "fovea_forward"));
  if (!options_init || !params_init || !create || !destroy || !forward) return false;
  fovea_options options;
  fovea_context *context = nullptr;
  if (options_init(&options, sizeof options) != FOVEA_OK) return false;
  options.num_threads = 3;
  if (create(&options, &context) != FOVEA_OK) return false;
  std::vector<float> q(4 * 20 * 8, 0.5f), k(4 * 300 * 8, 0.25f), v(4 * 300 * 8, 1.0f), out(q.size(), 0.0f);
  fovea_params p;
  bool right = params_init(&p, sizeof p, 1, 4, 4, 20, 300, 8, 8) == FOVEA_OK;
  p.q.data = q.data();
  p.k.data = k.data();
  p.v.data = v.data();
  p.out.data = out.data();
  right = right && forward(context, &p, nullptr, 0) == FOVEA_OK;
  for (const float x : out) right = right && x == 1.0f;
  destroy(context);
  return right;
}

int main() {
  const unsigned state = float_state();
  int threads = 0;
  for (int i = 0; i < 100; ++i) {
    void *library = dlopen(FOVEA_SHARED_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    if (float_state() != state) return std::fprintf(stderr, "loading changed the floating-point state\n"), 1;
    if (!call_is_right(library)) return std::fprintf(stderr, "wrong result after load %d\n", i), 1;
    if (dlclose(library)) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    if (float_state() != state) return std::fprintf(stderr, "a call changed the floating-point state\n"), 1;
    if (i == 0) threads = thread_count();
  }
  if (thread_count() > threads)
    return std::fprintf(stderr, "%d threads after the first unload, %d after the last\n", threads, thread_count()), 1;
  return 0;
}
