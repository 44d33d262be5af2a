// A call with dense tensors in vectors, for tests that set and read single elements.
#pragma once
#include <cstring>
#include <string>
#include <vector>

#include "fovea/fovea.h"

namespace fovea::testing {

struct Sizes {
  int64_t batch = 1, heads_q = 1, heads_kv = 1, seq_q = 1, seq_kv = 1, dim_k = 1, dim_v = 1;
};

struct Call {
  // q and k hold 0, v holds 1, outputs hold canary. Probes follow from there.
  static constexpr float canary = 0x1.abcdeep99f;
  explicit Call(const Sizes &sizes);
  Call(const Call &) = delete;
  Call &operator=(const Call &) = delete;

  Sizes n;
  std::vector<float> q, k, v, out, lse, weights;  // all outputs are asked for
  fovea_params params;

  void causal(int32_t align) {
    params.causal = 1;
    params.align = align;
  }
  void fill_random(uint32_t seed);                 // q, k and v uniform in [-1, 1)
  fovea_status run(const fovea_context *context);  // resets the outputs first

  float &q_at(int64_t b, int64_t h, int64_t i, int64_t c) { return q[size_t(((b * n.heads_q + h) * n.seq_q + i) * n.dim_k + c)]; }
  float &k_at(int64_t b, int64_t h, int64_t j, int64_t c) {
    return k[size_t(((b * n.heads_kv + h) * n.seq_kv + j) * n.dim_k + c)];
  }
  float &v_at(int64_t b, int64_t h, int64_t j, int64_t c) {
    return v[size_t(((b * n.heads_kv + h) * n.seq_kv + j) * n.dim_v + c)];
  }
  float &out_at(int64_t b, int64_t h, int64_t i, int64_t c) {
    return out[size_t(((b * n.heads_q + h) * n.seq_q + i) * n.dim_v + c)];
  }
  float &lse_at(int64_t b, int64_t h, int64_t i) { return lse[size_t((b * n.heads_q + h) * n.seq_q + i)]; }
  float &weight_at(int64_t b, int64_t h, int64_t i, int64_t j) {
    return weights[size_t(((b * n.heads_q + h) * n.seq_q + i) * n.seq_kv + j)];
  }
};

struct Row {
  int64_t b, h, i;
};

// Whether rows of two calls with equal dim_v have the same bits of out and LSE.
bool same_row(Call &a, Row row, Call &other, Row other_row);
inline bool same_row(Call &a, Call &other, Row row) { return same_row(a, row, other, row); }

// A row without a key: out and weights 0, LSE -infinity.
void expect_empty(Call &call, Row row);

// The results of a call that has run are within the error bound of the oracle.
void expect_within_bound(const Call &call, const std::string &what);

inline bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace fovea::testing
