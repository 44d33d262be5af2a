#include "reference/guarded_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace fovea::reference {

GuardedBuffer::GuardedBuffer(size_t bytes, Flush flush, unsigned char fill) : bytes_(bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  page_bytes_ = (bytes + page - 1) / page * page;
  mapping_bytes_ = page_bytes_ + 2 * page;
  // qemu's AVX2 reads the elements that a masked load leaves out: under it the pages around may be read, never written.
  static const int guard = std::getenv("FOVEA_READABLE_GUARDS") ? PROT_READ : PROT_NONE;
  void *mapping = mmap(nullptr, mapping_bytes_, guard, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<unsigned char *>(mapping);
  pages_ = mapping_ + page;
  data_ = flush == Flush::kBack ? pages_ + page_bytes_ - bytes : pages_;
  if (page_bytes_ == 0) return;
  set_writable(true);
  std::memset(pages_, fill, page_bytes_);
}

GuardedBuffer::GuardedBuffer(GuardedBuffer &&other) noexcept { *this = std::move(other); }

GuardedBuffer &GuardedBuffer::operator=(GuardedBuffer &&other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(pages_, other.pages_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(page_bytes_, other.page_bytes_);
  std::swap(bytes_, other.bytes_);
  std::swap(data_, other.data_);
  return *this;
}

GuardedBuffer::~GuardedBuffer() {
  if (mapping_) munmap(mapping_, mapping_bytes_);
}

void GuardedBuffer::set_writable(bool writable) {
  if (page_bytes_ && mprotect(pages_, page_bytes_, writable ? PROT_READ | PROT_WRITE : PROT_READ)) throw std::bad_alloc();
}

}  // namespace fovea::reference
