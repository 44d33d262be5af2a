#include <fovea/fovea.h>
#include <stdio.h>

int main(void) {
  float q[2] = {4, 0}, k[3][2] = {{1, 0}, {0, 1}, {-1, 0}}, v[3][2] = {{10, 1}, {20, 2}, {30, 3}}, out[2], weights[3];
  fovea_context *context;
  fovea_params p;
  if (fovea_context_create(NULL, &context) != FOVEA_OK) return 1;
  fovea_params_init(&p, sizeof p, 1, 1, 1, 1, 3, 2, 2);  // batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v
  p.q.data = q, p.k.data = k, p.v.data = v, p.out.data = out, p.weights.data = weights;
  if (fovea_forward(context, &p, NULL, 0) != FOVEA_OK) return puts(fovea_last_error()), 1;
  printf("weights %.3f %.3f %.3f, output %.3f %.3f\n", weights[0], weights[1], weights[2], out[0], out[1]);
  fovea_context_destroy(context);
  return 0;
}
