#include "support/call.h"

#include <gtest/gtest.h>

#include <random>

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

}  // namespace fovea::testing
