#include <cstdio>
#include <fovea/fovea.hpp>
#include <vector>

int main() {
  const fovea::Sizes sizes{1, 8, 2, 100, 100, 64, 64};  // batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v
  std::vector<float> q(8 * 100 * 64, 0.5f), k(2 * 100 * 64, 0.25f), v(2 * 100 * 64, 3.0f), out(8 * 100 * 64), lse(8 * 100);
  fovea::Context context;  // the best instructions and all threads that this process may use
  fovea::Params call(sizes);
  call.with_q(q.data()).with_k(k.data()).with_v(v.data()).with_out(out.data()).with_lse(lse.data());
  call.with_causal(FOVEA_ALIGN_TOP_LEFT);
  std::vector<char> workspace(context.workspace_size(call));
  context.forward(call, workspace.data(), workspace.size());  // allocates nothing; throws fovea::Error
  std::printf("%s, output %.1f, log-sum-exp of the last row %.4f\n", fovea_isa_name(context.isa()), out.back(), lse.back());
}
