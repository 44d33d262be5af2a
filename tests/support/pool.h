// K or V of a key-value cache of any type, in memory of its own: [entries, heads, slots, dim], entries being batch entries or pages.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "fovea/fovea.h"
#include "reference/element.h"
#include "support/call.h"

namespace fovea::testing {

constexpr fovea_dtype kCacheDtypes[] = {FOVEA_F32, FOVEA_F16, FOVEA_BF16, FOVEA_I8, FOVEA_Q8_0, FOVEA_Q4_0};

struct Pool {
  static constexpr unsigned char kCanary = 0xA5;  // in every byte that is not written
  int64_t heads, slots, dim;
  std::vector<unsigned char> bytes;
  std::vector<float> scales;
  fovea_tensor tensor = {}, scale = {};

  // An entry before the first and one behind the last are room for what is written by mistake.
  // step: the stride of dims, and what lies between tokens and heads beside their elements. heads_first: tokens lie inside of heads.
  Pool(fovea_dtype dtype, int64_t entries, int64_t heads_kv, int64_t slot_count, int64_t dim_count, int64_t step = 1,
       bool heads_first = true)
      : heads(heads_kv), slots(slot_count), dim(dim_count) {
    const int64_t inner = reference::block_elements(dtype) > 1 ? 1 : step;
    const int64_t row = blocks(dtype) * inner + step - 1, slot_stride = heads_first ? row : row * heads,
                  head_stride = heads_first ? row * slots : row;
    bytes.assign(size_t((entries + 2) * heads * slots * row) * reference::element_bytes(dtype), kCanary);
    tensor = {bytes.data(), {heads * slots * row, head_stride, slot_stride, inner}, dtype, 0};
    tensor.data = bytes.data() + block_at(0, 0, 0, 0);
    if (dtype != FOVEA_I8) return;
    scales.assign(size_t((entries + 2) * heads * slots * step), Call::canary);
    scale = {scales.data() + heads * slots * step,
             {heads * slots * step, heads_first ? slots * step : step, heads_first ? step : heads * step, 7},
             FOVEA_F32,
             0};
  }
  Pool(const Pool &) = delete;
  Pool &operator=(const Pool &) = delete;

  int64_t blocks(fovea_dtype dtype) const { return dim / reference::block_elements(dtype); }
  int64_t block_at(int64_t entry, int64_t head, int64_t slot, int64_t block) const {
    const int64_t *s = tensor.stride;
    return ((entry + 1) * s[0] + head * s[1] + slot * s[2] + block * s[3]) * int64_t(reference::element_bytes(tensor.dtype));
  }
  int64_t scale_at(int64_t entry, int64_t head, int64_t slot) const {
    return (entry + 1) * scale.stride[0] + head * scale.stride[1] + slot * scale.stride[2];
  }

  // One element as it is read, and how far what was written may lie from it.
  struct Value {
    double value, half_step;
  };
  Value value(int64_t entry, int64_t head, int64_t slot, int64_t c) const {
    const fovea_dtype dtype = tensor.dtype;
    const int64_t in_block = reference::block_elements(dtype);
    const unsigned char *at = bytes.data() + block_at(entry, head, slot, c / in_block);
    if (dtype == FOVEA_I8) {
      const double step = double{scales[size_t(scale_at(entry, head, slot))]};
      return {step * int8_t(*at), step / 2 * (1 + 127 * 0x1p-22)};  // the quotient is rounded, and so is the scale
    }
    if (in_block == 1) {
      const double x = reference::read_element(at, dtype, 0);
      return {x, dtype == FOVEA_F32 ? 0 : std::max(std::fabs(x) * reference::unit_roundoff(dtype), 0x1p-25)};
    }
    uint16_t half;
    std::memcpy(&half, at, 2);
    const double scale_value = reference::read_element(&half, FOVEA_F16, 0), step = std::fabs(scale_value);
    const int64_t i = c % in_block;
    if (dtype == FOVEA_Q8_0)
      return {scale_value * int8_t(at[2 + i]), step * (0.5 + 127 * 0x1p-11) * (1 + 0x1p-10)};  // the scale is a half
    const int nibble = i < 16 ? at[2 + i] & 15 : at[2 + i - 16] >> 4;
    // 8 steps to one side, 7 to the other: what lies beyond is off by a whole one.
    return {scale_value * (nibble - 8), step * ((nibble == 15 ? 1 : 0.5) + 8 * 0x1p-11) * (1 + 0x1p-10)};
  }

  // Marks the bytes of one token of one head; then its scale.
  void mark(int64_t entry, int64_t head, int64_t slot, std::vector<char> *written, std::vector<char> *scales_written) const {
    for (int64_t block = 0; block < blocks(tensor.dtype); ++block)
      std::fill_n(written->begin() + block_at(entry, head, slot, block), reference::element_bytes(tensor.dtype), char{1});
    if (!scales.empty()) (*scales_written)[size_t(scale_at(entry, head, slot))] = 1;
  }
};

}  // namespace fovea::testing
