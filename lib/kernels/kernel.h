// The contract between plan and kernels: everything that crosses the boundary of an instruction set, and nothing else does.
// PODs and pointers to functions only, no code: this header is compiled into the objects of every level.
#pragma once
#include <cstdint>

#include "core/problem.h"

namespace fovea {

// How a row's keys are summed: a function of the row's own key count alone, so that its bits depend on nothing else. Each chunk
// has its own reference maximum; chunks are folded left in index order, whoever computed them.
constexpr int64_t kBlockKeys = 256;  // keys scored and multiplied at a time; a chunk is a whole number of blocks
constexpr int64_t kMaxChunks = 64;
constexpr int64_t kKeyTile = 8;  // keys of a tile of scores: the reference maximum and the order of sums are defined by it

// Rows of a task are the queries of one key-value head, query by query, the heads of its group beside each other:
// row = query * group + head within the group.
struct RowRange {
  int64_t batch, head_kv;
  int64_t row_begin, row_end;
  int64_t q_len, kv_len;           // of this batch entry
  int64_t first_query, first_key;  // where the entry begins on a packed token axis; else 0
};

// What one chunk of keys contributes to one row: the maximum that was subtracted (in steps; -inf: no key permitted), the sum of
// exponentials, and the sum of exponentials times values. Laid out for rows of a range: max[row], sum[row], value[row][dim_v].
struct Partial {
  float *max, *sum, *value;
};

// What a mask holds, 2 bits a block of kBlockKeys keys and kMapQueries queries: blocks that exclude everything are skipped, blocks that
// change nothing take the fast path. Strides are bytes, 0 on the axes that the mask repeats.
constexpr int64_t kMapQueries = 64;                   // about a panel of rows: finer would not be used
constexpr unsigned kMapPermits = 1, kMapChanges = 2;  // some entry permits its key; some entry is not "permitted, nothing added"
struct MaskMap {
  uint8_t *bits;  // of a batch entry; null: none was made, any block may hold anything
  int64_t head_stride, row_stride;
};

// Adds what a rectangle of a mask holds to one row of a map.
struct MaskMapTask {
  const Problem *problem;
  int64_t batch, head, query_begin, query_end;
  int64_t key_begin, key_end;  // key_begin is the start of a block
  uint8_t *bits;               // of the whole row, four blocks a byte
};

// What differs in speed only, and best is measured on the machine: `fovea tune` does. No bit of a result depends on it. docs/tuning.md
// describes each; what values a table may give them: api/tuning.cpp.
struct Tuning {
  int64_t panel_rows;         // rows scored together
  int64_t window_panel_rows;  // the same for calls with a window: on its edges much of a panel is wasted
  int64_t group_panels;       // most panels in a task: they share each block of keys while it is in cache
  // Queries and outputs of a task are used again for every block of keys, and shall stay in a second-level cache of 1 MiB or more beside the
  // block: 256 keys of K and V.
  int64_t task_bytes = 768 << 10;
  // Enough tasks that the last one to end leaves the others idle for little, and that work of unequal length evens out.
  int64_t tasks_per_worker = 4;
  // Inputs beyond a core's share of a last-level cache come from memory, a head at a time.
  int64_t cached_bytes = 8 << 20;
  int64_t ahead_bytes = 8 << 10;  // of few rows: how far ahead keys and values are fetched; see elements.inl.h
};

// One task of the forward pass.
struct ForwardTask {
  const Problem *problem;
  RowRange rows;
  const Tuning *tuning;
  bool keys_are_cold;  // fetch blocks of keys ahead of their use
  MaskMap mask_map;
  const RowRange *next;            // the rows that come next and are to be fetched; null: none
  int64_t chunk_keys;              // keys of a chunk, the last one shorter
  int64_t chunk_begin, chunk_end;  // which chunks this task sums
  const Partial *partials;         // one per chunk of the task: stored there. Null: the task owns its rows, folds and writes them
  void *scratch;                   // of this worker, 64-byte aligned, as many bytes as the kernel's scratch function says
};

// Folds the stored partials of all chunks of a range and writes its rows.
struct MergeTask {
  const Problem *problem;
  RowRange rows;
  const Tuning *tuning;
  int64_t chunks, chunk_keys;
  MaskMap mask_map;
  const Partial *partials;  // one per chunk
  void *scratch;
};

// What a kernel is compiled for.
struct KernelShape {
  int32_t most_panel_rows;  // rows that can be scored together
  int32_t row_unit;         // the lanes of a vector: a panel is a whole number of these
  int32_t key_tile;         // keys scored together; divides kKeyTile
};

// One kernel of one level. All of its functions are pure but for what their task points to.
struct ForwardKernel {
  const char *name;  // level/operation/types: "avx512/prefill/f32"
  KernelShape shape;
  Tuning tuning;                                                                         // of the registry: the defaults
  int64_t (*scratch_bytes)(const Problem *problem, const Tuning *tuning, int64_t rows);  // for a task of at most so many rows
  void (*forward)(const ForwardTask *task);
  void (*merge)(const MergeTask *task);
  void (*map_mask)(const MaskMapTask *task);
};

}  // namespace fovea
