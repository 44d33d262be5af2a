// What a call reads and writes, under its names in fovea_params.
#pragma once
#include <cstdint>

#include "api/overlap.h"
#include "core/problem.h"

namespace fovea {

// What the elements of a type lie in: blocks of one or more, of so many bytes.
struct Format {
  int64_t elements, bytes;
};
Format format_of(int32_t dtype);

bool has_zero(const int64_t size[4]);

// So many elements have a size in bytes that fits 64 bits.
bool is_countable(const int64_t size[4], int64_t element_bytes);

struct Operand {
  const char *name, *stride_name;
  const void *data;
  int64_t element_bytes;  // of a block, where elements lie in such: sizes and strides count blocks then
  int64_t size[4], stride[4];
  bool is_output;

  int64_t alignment() const { return element_bytes & -element_bytes; }
  bool is_empty() const { return has_zero(size); }
  Elements elements() const;
};

// They have a byte in common.
bool overlap(const Operand &a, const Operand &b);

// Strides of axes of size 1 are ignored.
Operand tensor_operand(const char *name, const char *stride_name, const Tensor &t, int64_t entries, int64_t heads, int64_t seq,
                       int64_t dim, bool is_output);

template <class T>
Operand array_operand(const char *name, const T *data, int64_t size) {
  return {name, name, data, sizeof(T), {size, 1, 1, 1}, {1, 0, 0, 0}, false};
}

Tensor to_tensor(const fovea_tensor &t);

// The mask of a problem with batch entries of at most so many queries and keys.
Operand mask_operand(const Problem &p, int64_t q_len, int64_t kv_len);

// What k and v have beside heads and dims: batch entries and their keys, or one entry of all tokens, or pages and their slots.
struct KeyAxes {
  int64_t entries, length;
};
KeyAxes key_axes(const Problem &p);

// Everything but the mask, outputs first.
class Operands {
 public:
  explicit Operands(const Problem &p);
  void add(const Operand &operand) { list_[count_++] = operand; }
  const Operand *begin() const { return list_; }
  const Operand *end() const { return list_ + count_; }

 private:
  Operand
      list_[14];  // three outputs, q, k, v, their scales, two arrays of lengths or offsets, a block table, slopes, sinks, a mask
  int count_ = 0;
};

}  // namespace fovea
