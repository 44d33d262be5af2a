// The rows of a task: panels of them, where their memory lies, and which keys each of them may see.
#pragma once
#include "kernels/generic/softmax.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// Where a tensor with these strides has the rows [row, row + count) of a range: offset[r], and the last row's again up to `fill`.
// first_query: where the entry begins on a packed token axis.
FOVEA_INLINE void row_offsets(const Problem &problem, const RowRange &rows, const int64_t *stride, int64_t first_query,
                              int64_t row, int count, int fill, int64_t *offset) {
  const int64_t group = problem.group;
  row += rows.row_begin;
  int64_t head = row % group;
  int64_t at = rows.batch * stride[0] + (rows.head_kv * group + head) * stride[1] + (first_query + row / group) * stride[2];
  if (group == 1) {
    for (int r = 0; r < count; ++r) offset[r] = at + r * stride[2];
  } else {
    const int64_t next_query = stride[2] - (group - 1) * stride[1];
    for (int r = 0; r < count; ++r) {
      offset[r] = at;
      const bool last_head = ++head == group;
      at += last_head ? next_query : stride[1];
      if (last_head) head = 0;
    }
  }
  for (int r = count; r < fill; ++r) offset[r] = offset[count - 1];
}

template <class Simd>
struct Panel {
  static constexpr int kRows = Simd::kPanelVectors * Simd::kLanes;
  SoftmaxState<Simd> state;
  const float *queries;                // packed, times the scale: see multiply_dims() and pack_rows()
  float *out[kRows];                   // a row's output, or its place in scratch where the output's dims are strided
  float *sum[kRows];                   // a row's sums of the current chunk, where they are stored
  const char *mask[kRows];             // a row's mask, its entry for key 0
  alignas(64) float slope[kRows];      // ALiBi
  int64_t position[kRows];             // of the query, for ALiBi
  int64_t begin[kRows], limit[kRows];  // keys [begin, limit) are in the row's window; both 0 where none is. Unset without windows
  int64_t first, most_begin;           // the smallest and the largest begin, of rows that have keys
  int64_t least_limit, most_limit;     // [first, most_limit) are all keys of the panel, [most_begin, least_limit) are every row's
  int32_t key_begin[kRows], key_end[kRows];  // the same of a row in the current block, counted from the block's start
  int64_t first_row;                         // in the task
  int64_t next;                              // where the next block begins of which some row may see a key; kNoBlock: none does
  int rows, vectors;
  bool started, chunk_started;  // some chunk is folded into out; some block is in the current chunk's sums
};
constexpr int64_t kNoBlock = INT64_MAX;

FOVEA_INLINE bool has_window(const Problem &problem) {
  return problem.window_left != kUnbounded || problem.window_right != kUnbounded;
}

// The windows of a panel's rows; lanes behind the last row repeat it.
template <class Simd>
void set_windows(Panel<Simd> &panel, const Problem &problem, const RowRange &rows) {
  const int64_t kv_len = rows.kv_len;
  panel.first = panel.most_begin = 0;
  panel.least_limit = panel.most_limit = kv_len;
  if (!has_window(problem)) return;
  const int64_t shift = problem.bottom_right ? kv_len - rows.q_len : 0;
  int64_t query = (rows.row_begin + panel.first_row) / problem.group, head = (rows.row_begin + panel.first_row) % problem.group;
  panel.first = kNoBlock;
  panel.most_limit = 0;
  for (int r = 0; r < panel.rows; ++r) {
    const int64_t position = query + shift;
    int64_t begin = clamp(position - problem.window_left, 0, kv_len);
    int64_t limit = clamp(position + problem.window_right + 1, 0, kv_len);
    if (begin < limit) {
      panel.first = smaller(panel.first, begin);
      panel.most_begin = larger(panel.most_begin, begin);
    } else {
      begin = limit = 0;
    }
    panel.least_limit = smaller(panel.least_limit, limit);
    panel.most_limit = larger(panel.most_limit, limit);
    panel.begin[r] = begin;
    panel.limit[r] = limit;
    if (++head == problem.group) head = 0, ++query;
  }
  for (int r = panel.rows; r < panel.vectors * Simd::kLanes; ++r) {
    panel.begin[r] = panel.begin[panel.rows - 1];
    panel.limit[r] = panel.limit[panel.rows - 1];
  }
  panel.first = smaller(panel.first, panel.most_limit);
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
