#include "support/call.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "reference/oracle.h"

namespace fovea::testing {

Call::Call(const Sizes &sizes)
    : n(sizes),
      q(size_t(n.batch * n.heads_q * n.seq_q * n.dim_k), 0.0f),
      k(size_t(n.batch * n.heads_kv * n.seq_kv * n.dim_k), 0.0f),
      v(size_t(n.batch * n.heads_kv * n.seq_kv * n.dim_v), 1.0f),
      out(size_t(n.batch * n.heads_q * n.seq_q * n.dim_v), canary),
      lse(size_t(n.batch * n.heads_q * n.seq_q), canary),
      weights(size_t(n.batch * n.heads_q * n.seq_q * n.seq_kv), canary) {
  EXPECT_EQ(fovea_params_init(&params, sizeof params, n.batch, n.heads_q, n.heads_kv, n.seq_q, n.seq_kv, n.dim_k, n.dim_v),
            FOVEA_OK);
  static float nothing;  // what a tensor without elements points at
  const auto data = [](std::vector<float> &values) { return values.empty() ? &nothing : values.data(); };
  params.q.data = data(q);
  params.k.data = data(k);
  params.v.data = data(v);
  params.out.data = data(out);
  params.weights.data = data(weights);
  params.lse = data(lse);
}

void Call::fill_random(uint32_t seed) {
  std::mt19937 bits(seed);
  for (std::vector<float> *values : {&q, &k, &v})
    for (float &value : *values) value = float(bits() >> 8) * 0x1p-23f - 1;
}

fovea_status Call::run(const fovea_context *context) {
  for (std::vector<float> *values : {&out, &lse, &weights}) values->assign(values->size(), canary);
  return fovea_forward(context, &params, nullptr, 0);
}

bool same_row(Call &a, Row row, Call &other, Row other_row) {
  const size_t bytes = size_t(a.n.dim_v) * sizeof(float);
  return (bytes == 0 ||
          std::memcmp(&a.out_at(row.b, row.h, row.i, 0), &other.out_at(other_row.b, other_row.h, other_row.i, 0), bytes) == 0) &&
         std::memcmp(&a.lse_at(row.b, row.h, row.i), &other.lse_at(other_row.b, other_row.h, other_row.i), sizeof(float)) == 0;
}

void expect_empty(Call &call, Row row) {
  const auto &[b, h, i] = row;
  for (int64_t c = 0; c < call.n.dim_v; ++c) EXPECT_EQ(call.out_at(b, h, i, c), 0.0f) << "head " << h << " row " << i;
  EXPECT_EQ(call.lse_at(b, h, i), -std::numeric_limits<float>::infinity()) << "head " << h << " row " << i;
  if (!call.params.weights.data) return;
  for (int64_t j = 0; j < call.n.seq_kv; ++j) EXPECT_EQ(call.weight_at(b, h, i, j), 0.0f) << "head " << h << " row " << i;
}

void expect_within_bound(const Call &call, const std::string &what) {
  const reference::Verdict verdict =
      reference::compare(call.params, reference::attention(call.params, call.params.weights.data != nullptr));
  EXPECT_TRUE(verdict.ok()) << what << ": error / bound of out " << verdict.out_ratio << " (row " << verdict.worst_row << ", dim "
                            << verdict.worst_dim << "), lse " << verdict.lse_ratio << ", weights " << verdict.weights_ratio;
}

}  // namespace fovea::testing
