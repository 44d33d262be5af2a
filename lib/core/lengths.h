// How many queries and keys a batch entry has.
#pragma once
#include "core/problem.h"

namespace fovea {

inline int64_t queries_of(const Problem &problem, int64_t batch) {
  if (problem.cu_seqlens_q) return problem.cu_seqlens_q[batch + 1] - problem.cu_seqlens_q[batch];
  return problem.seqlens_q ? problem.seqlens_q[batch] : problem.seq_q;
}

inline int64_t keys_of(const Problem &problem, int64_t batch) {
  if (problem.cu_seqlens_kv) return problem.cu_seqlens_kv[batch + 1] - problem.cu_seqlens_kv[batch];
  return problem.seqlens_kv ? problem.seqlens_kv[batch] : problem.seq_kv;
}

}  // namespace fovea
