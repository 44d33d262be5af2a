/* A score function that replaces scores: f(q, k) = sum over d of w[d] * tanh(q[d] + k[d]), where Q and K hold the projected queries
 * and keys. */
#include <fovea/fovea.h>
#include <math.h>
#include <stdio.h>

void additive_attention(void *user, const fovea_score_tile *tile) {
  const float *w = user;
  for (int64_t i = 0; i < tile->rows; ++i) {
    for (int64_t j = 0; j < tile->cols; ++j) {
      const float *q = tile->q + i * tile->ldq, *k = tile->k + j * tile->ldk;
      float score = 0;
      for (int64_t d = 0; d < tile->dim_k; ++d) score += w[d] * tanhf(q[d] + k[d]);
      tile->score[i * tile->row_stride + j * tile->col_stride] = score;
    }
  }
}

int main(void) {
  float w[2] = {1, 2}, q[1][2] = {{0.5f, 0}}, k[3][2] = {{-0.5f, 0}, {0.5f, 0}, {0.5f, 1}}, v[3][1] = {{1}, {2}, {3}};
  float out[1][1], weights[1][3];
  fovea_context *context;
  fovea_params p;
  if (fovea_context_create(NULL, &context) != FOVEA_OK) return puts(fovea_last_error()), 1;
  fovea_params_init(&p, sizeof p, 1, 1, 1, 1, 3, 2, 1); /* batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v */
  p.q.data = q, p.k.data = k, p.v.data = v, p.out.data = out, p.weights.data = weights;
  p.score_mode = FOVEA_SCORE_REPLACE;
  p.score = additive_attention;
  p.score_user = w;
  const fovea_status status = fovea_forward(context, &p, NULL, 0);
  fovea_context_destroy(context);
  if (status != FOVEA_OK) return puts(fovea_last_error()), 1;
  printf("weights %.4f %.4f %.4f, output %.4f\n", weights[0][0], weights[0][1], weights[0][2], out[0][0]);
  return 0;
}
