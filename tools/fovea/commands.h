// The subcommands of `fovea`. Each adds itself to the command line; its work is done when the command line has been parsed.
#pragma once
#include <CLI/CLI.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fovea/fovea.hpp"

namespace fovea::tools {

enum ExitCode {
  kOk = 0,
  kWrong = 1,       // what was checked is wrong
  kImpossible = 2,  // usage, bad input, or a file that cannot be written: the text on stderr names it
};

// Ends a command with kImpossible and this text.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void add_info(CLI::App &app, int &exit_code);
void add_run(CLI::App &app, int &exit_code);
void add_check(CLI::App &app, int &exit_code);
void add_saturation(CLI::App &app, int &exit_code);
void add_minilm(CLI::App &app, int &exit_code);
void add_tune(CLI::App &app, int &exit_code);

// What several subcommands share.

// A file that comes with the command: in share/fovea beside the command's folder, in the build tree as where it is installed.
std::string companion_file(const std::string &name);

struct ContextOptions {
  std::string isa = "auto";
  int32_t threads = 0;
  std::string tuning;
  void add_to(CLI::App &command);  // --isa, --threads and --tuning
};

struct ContextDeleter {
  void operator()(fovea_context *context) const { fovea_context_destroy(context); }
};
using ContextPtr = std::unique_ptr<fovea_context, ContextDeleter>;

// Throws InputError where the level or the table is not to be had.
ContextPtr make_context(const ContextOptions &options);

// On standard output. Bytes of file names that are not UTF-8 are replaced.
void print_json(const nlohmann::ordered_json &report);

// "" where this process may still take so many bytes of memory, else a text that says what is needed and what there is.
std::string memory_refusal(double bytes);

// What long work is at and for how many seconds, where standard error is a terminal; the line is wiped at the end. To be out of the way
// of results, it ends before they are printed.
class Progress {
 public:
  Progress() = default;
  Progress(const Progress &) = delete;
  Progress &operator=(const Progress &) = delete;
  ~Progress();
  void stage(const std::string &text);

 private:
  void show() const;
  void tick();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread clock_;
  std::string text_;
  std::chrono::steady_clock::time_point begin_;
  bool done_ = false;
};

// Throws InputError with fovea_last_error().
void require_ok(fovea_status status);

// Never null, which would mean an absent tensor, not even where there are no numbers.
float *address(const std::vector<float> &numbers);

// A call on dense tensors with every option at its default.
fovea_params dense_call(const Sizes &sizes, const std::vector<float> &q, const std::vector<float> &k, const std::vector<float> &v,
                        std::vector<float> &out);

}  // namespace fovea::tools
