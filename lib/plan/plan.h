// A Problem becomes tasks: row blocks, key splits and the layout of the workspace. No intrinsics, no threads.
#pragma once
#include <cstdint>

#include "core/problem.h"
#include "kernels/kernel.h"

namespace fovea {

// How a map of blocks lies (kernels/kernel.h says what it holds): one row of bytes for kMapQueries queries, of each head and batch entry
// that has a mask of its own. The rows of packed entries follow each other. bytes 0: none is made.
struct MaskMapLayout {
  int64_t heads, entries, rows_per_entry;
  int64_t rows;  // of all entries of a head, at most
  int64_t row_bytes;
  int64_t bytes;
};

struct Plan {
  int64_t row_blocks;      // per (batch, key-value head); where entries differ in length, of the longest
  int64_t rows_per_block;  // flattened rows (query * group + head in group)
  int64_t blocks;          // of all heads and batch entries; where entries differ in length, at most
  int64_t chunks;          // of the keys of an entry, at most
  int64_t splits;          // tasks that share a block's chunks; 1: each task owns its rows
  int64_t tasks;           // blocks * splits
  bool ragged_queries;     // entries have query counts of their own
  int64_t multiply_adds;   // of the whole call, at most
  bool fetch_ahead;        // inputs are too large to be in cache already
  MaskMapLayout mask_map;
  int64_t scratch_bytes;    // per worker
  int64_t partial_bytes;    // all stored partials
  int64_t counter_bytes;    // one counter per block: how many of its splits are still missing
  int64_t index_bytes;      // ragged queries: the first block of each entry
  int64_t workspace_bytes;  // of everything, alignment slack included
};

// Keys of a chunk of a row with kv_len keys (kernels/kernel.h says what a chunk is).
int64_t chunk_keys(int64_t kv_len);

// workers >= 1. Results of a plan differ in speed only: the bits of a row depend on neither workers, batch nor tuning.
Plan make_plan(const Problem &problem, const ForwardKernel &kernel, int32_t workers);

}  // namespace fovea
