// What takes long says what it is at, and for how long, on a line that is wiped when it is done.
#include <unistd.h>

#include <cstdio>

#include "commands.h"

namespace fovea::tools {

Progress::~Progress() {
  if (!clock_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
  }
  wake_.notify_one();
  clock_.join();
  std::fputs("\r\033[K", stderr);
}

void Progress::stage(const std::string &text) {
  if (isatty(STDERR_FILENO) == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  text_ = text;
  begin_ = std::chrono::steady_clock::now();
  show();
  if (!clock_.joinable()) clock_ = std::thread([this] { tick(); });
}

void Progress::show() const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin_).count();
  std::fprintf(stderr, "\r\033[K%s, %lld s", text_.c_str(), static_cast<long long>(seconds));
  std::fflush(stderr);
}

void Progress::tick() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::seconds(1), [this] { return done_; })) show();
}

}  // namespace fovea::tools
