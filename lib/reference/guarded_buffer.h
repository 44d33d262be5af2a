// Memory between two inaccessible pages: a read or write one byte beyond its flush side faults.
#pragma once
#include <cstddef>

namespace fovea::reference {

enum class Flush { kBack, kFront };  // which end of the bytes touches an inaccessible page

class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes = 0, Flush flush = Flush::kBack, unsigned char fill = 0);
  GuardedBuffer(GuardedBuffer &&other) noexcept;
  GuardedBuffer &operator=(GuardedBuffer &&other) noexcept;
  ~GuardedBuffer();

  void *data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T *as() const {
    return static_cast<T *>(data_);
  }

  // The whole accessible range, with the slack between the bytes and the page boundary of the other side.
  unsigned char *pages() const { return pages_; }
  size_t page_bytes() const { return page_bytes_; }

  void set_writable(bool writable);

 private:
  unsigned char *mapping_ = nullptr, *pages_ = nullptr;
  size_t mapping_bytes_ = 0, page_bytes_ = 0, bytes_ = 0;
  void *data_ = nullptr;
};

}  // namespace fovea::reference
