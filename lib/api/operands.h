// What a call reads and writes, under its names in fovea_params.
#pragma once
#include <cstdint>

#include "api/overlap.h"
#include "core/problem.h"

namespace fovea {

int64_t element_bytes(int32_t dtype);

bool has_zero(const int64_t size[4]);

// So many elements have a size in bytes that fits 64 bits.
bool is_countable(const int64_t size[4], int64_t element_bytes);

struct Operand {
  const char *name, *stride_name;
  const void *data;
  int64_t element_bytes;
  int64_t size[4], stride[4];
  bool is_output;

  bool is_empty() const { return has_zero(size); }
  Elements elements() const;
};

// They have a byte in common.
bool overlap(const Operand &a, const Operand &b);

// The mask of a problem with batch entries of at most so many queries and keys.
Operand mask_operand(const Problem &p, int64_t q_len, int64_t kv_len);

// Everything but the mask, outputs first.
class Operands {
 public:
  explicit Operands(const Problem &p);
  void add(const Operand &operand) { list_[count_++] = operand; }
  const Operand *begin() const { return list_; }
  const Operand *end() const { return list_ + count_; }

 private:
  Operand list_[11];  // three outputs, q, k, v, two arrays of lengths or offsets, slopes, sinks, and a mask
  int count_ = 0;
};

}  // namespace fovea
