// exit() while other threads are inside calls: the process ends, with the status it was given, and neither hangs nor crashes.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "fovea/fovea.h"

int main() {
  alarm(60);  // a hang ends here
  std::atomic<int> calls{0};
  for (int t = 0; t < 3; ++t)
    std::thread([&calls, t] {
      fovea_options options;
      fovea_options_init(&options, sizeof options);
      options.num_threads = t + 1;
      fovea_context *context = nullptr;
      if (fovea_context_create(&options, &context) != FOVEA_OK) std::_Exit(1);
      std::vector<float> data(8 * 512 * 32, 0.5f), out(data.size());
      fovea_params p;
      fovea_params_init(&p, sizeof p, 1, 8, 8, 512, 512, 32, 32);
      p.q.data = p.k.data = p.v.data = data.data();
      p.out.data = out.data();
      for (;;) {
        if (fovea_forward(context, &p, nullptr, 0) != FOVEA_OK) std::_Exit(1);
        ++calls;
      }
    }).detach();
  while (calls < 6) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::exit(0);
}
