// The first call of a process, made where processes are least ready for it: in a constructor before main, from 16 threads at once, and
// from an atexit handler. The argument says which.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "fovea/fovea.h"

namespace {

// Values of 1: the output is 1 whatever the weights.
bool call_is_right(int32_t threads) {
  fovea_options options;
  fovea_context *context = nullptr;
  if (fovea_options_init(&options, sizeof options) != FOVEA_OK) return false;
  options.num_threads = threads;
  if (fovea_context_create(&options, &context) != FOVEA_OK) return false;
  std::vector<float> q(4 * 20 * 8, 0.5f), k(4 * 300 * 8, 0.25f), v(4 * 300 * 8, 1.0f), out(q.size(), 0.0f);
  fovea_params p;
  bool right = fovea_params_init(&p, sizeof p, 1, 4, 4, 20, 300, 8, 8) == FOVEA_OK;
  p.q.data = q.data();
  p.k.data = k.data();
  p.v.data = v.data();
  p.out.data = out.data();
  right = right && fovea_forward(context, &p, nullptr, 0) == FOVEA_OK;
  for (const float x : out) right = right && x == 1.0f;
  fovea_context_destroy(context);
  return right;
}

struct BeforeMain {
  // No arguments yet: the environment says whether to call.
  BeforeMain() : right(!std::getenv("FOVEA_FIRST_USE_BEFORE_MAIN") || (call_is_right(1) && call_is_right(2))) {}
  bool right;
} before_main;

}  // namespace

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  if (!std::strcmp(mode, "constructor")) return before_main.right && call_is_right(2) ? 0 : 1;
  if (!std::strcmp(mode, "atexit")) {
    std::atexit([] {
      if (!call_is_right(2)) std::_Exit(1);
    });
    return 0;
  }
  if (!std::strcmp(mode, "race")) {
    std::atomic<int> ready{0}, right{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 16; ++t)
      threads.emplace_back([&, t] {
        ++ready;
        while (ready < 16) std::this_thread::yield();
        right += call_is_right(t % 2 + 1);
      });
    for (std::thread &t : threads) t.join();
    return right == 16 ? 0 : 1;
  }
  std::fprintf(stderr, "usage: %s constructor|atexit|race\n", argv[0]);
  return 2;
}
