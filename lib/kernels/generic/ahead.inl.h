// Memory that will be read soon, fetched a few lines at a time between tiles: the misses of a new head cost a short call 3 to 6 % of its
// time otherwise, and a burst of fetches would delay the reads of the tile at hand.
#pragma once
#include "kernels/generic/simd.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

constexpr int64_t kLineBytes = 64;  // of a cache line

class Ahead {
 public:
  void clear() { count_ = 0; }
  void add(const char *first, int64_t bytes, int64_t stride, int64_t rows) {
    streams_[count_++] = {first, bytes, stride, rows, 0};
  }
  // Deals everything out over so many calls of fetch().
  void spread(int64_t calls) {
    for (int i = 0; i < count_; ++i) streams_[i].rows_per_call = (streams_[i].rows + calls - 1) / calls;
  }
  // Rows that lie anywhere, of a mask: `bytes` of each from `begin` on, for the panel whose turn is next.
  void scatter(const char *const *rows, int64_t count, int64_t begin, int64_t bytes) { scattered_ = {rows, count, begin, bytes}; }
  // The share of call `index` of kBlockKeys / kKeyTile.
  FOVEA_INLINE void fetch_scattered(int64_t index) {
    constexpr int64_t kCalls = kBlockKeys / kKeyTile;
    const Scattered &s = scattered_;
    for (int64_t r = s.count * index / kCalls; r < s.count * (index + 1) / kCalls; ++r) {
      for (int64_t b = 0; b < s.bytes; b += kLineBytes) __builtin_prefetch(s.rows[r] + s.begin + b, 0, 2);
    }
  }
  FOVEA_INLINE void fetch() {
    for (int i = 0; i < count_; ++i) {
      Stream &s = streams_[i];
      for (int64_t r = 0; r < s.rows_per_call && s.rows > 0; ++r, --s.rows, s.at += s.stride) {
        for (int64_t b = 0; b < s.bytes; b += kLineBytes) __builtin_prefetch(s.at + b, 0, 2);
      }
    }
  }

 private:
  struct Stream {
    const char *at;
    int64_t bytes, stride, rows, rows_per_call;
  };
  struct Scattered {
    const char *const *rows;
    int64_t count, begin, bytes;
  };
  Scattered scattered_ = {};
  Stream streams_[4];  // keys, values, queries, outputs
  int count_;
};

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
