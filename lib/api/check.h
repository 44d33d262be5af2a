// Every check of a call's arguments: what passes is a Problem.
#pragma once
#include <cstddef>

#include "api/operands.h"
#include "core/problem.h"
#include "fovea/fovea.h"

namespace fovea {

fovea_status check_sizes(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seq_q, int64_t seq_kv, int64_t dim_k,
                         int64_t dim_v);

// Named as "<prefix>struct_size".
fovea_status check_struct_size(const char *prefix, const fovea_params &p);

// The number of elements of one tensor; then its strides; then where its data lie.
fovea_status check_countable(const Operand &tensor);
fovea_status check_layout(const Operand &tensor);
fovea_status check_address(const Operand &tensor);

// No output, which come first, has a byte in common with another or with an input.
fovea_status check_apart(const Operand *begin, const Operand *end);

// Lengths in 0..most, offsets that never fall in 0..tokens; null passes.
fovea_status check_lengths(const char *name, const int32_t *lengths, int64_t batch, int64_t most);
fovea_status check_offsets(const char *name, const int32_t *offsets, int64_t batch, int64_t tokens);

// page_size and the numbers that go with it.
fovea_status check_pages(const fovea_params &p);

struct BlockTable {
  const int32_t *pages;  // [batch, columns]
  int64_t columns, page_size, num_pages;
};

// A row of the table has columns for all keys of its batch entry, and keys [begin, end) lie in pages that exist.
fovea_status check_pages_of_keys(const BlockTable &table, int64_t batch, int64_t length, int64_t begin, int64_t end);

// k or v of a cache: its type, the blocks and scales that go with it.
fovea_status check_cache(const char *name, const fovea_tensor &t, const char *dim_name, int64_t dim, const char *scale_name,
                         const fovea_tensor &scale);

// Everything but data pointers: of these, only which options are there.
fovea_status check_params(const fovea_params *p, Problem *problem);

// The data of a checked problem: pointers present and aligned, lengths, offsets, slopes and sinks in their ranges, outputs and
// the bytes of workspace that will be used apart from all else.
fovea_status check_data(const Problem &problem, const void *workspace, int64_t workspace_bytes);

}  // namespace fovea
