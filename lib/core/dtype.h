// The layout of quantised elements, which is ggml's: blocks of elements with one binary16 scale, in memory before them. Constants only: this
// header is also compiled into objects of every instruction set.
#pragma once
#include <cstdint>

namespace fovea {

constexpr int64_t kBlockElements = 32;
constexpr int64_t kBytesQ8_0 = 2 + kBlockElements;  // a signed byte each
constexpr int64_t kBytesQ4_0 =
    2 + kBlockElements / 2;  // byte i: element i in the low bits, element i + 16 in the high ones, each plus 8

}  // namespace fovea
