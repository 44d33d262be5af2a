/* A score function that changes scores: a learned number for each head and each distance between query and key. */
#include <fovea/fovea.h>
#include <stdio.h>

typedef struct {
  const float *table; /* [heads][2 * furthest + 1], from the key furthest behind the query to the one furthest ahead */
  int64_t furthest;   /* distances beyond it share the last number */
} RelativeBias;

void add_relative_bias(void *user, const fovea_score_tile *tile) {
  const RelativeBias *bias = user;
  const float *table = bias->table + tile->head * (2 * bias->furthest + 1) + bias->furthest;
  for (int64_t i = 0; i < tile->rows; ++i) {
    for (int64_t j = 0; j < tile->cols; ++j) {
      int64_t distance = (tile->col0 + j) - (tile->row0 + i);
      if (distance < -bias->furthest) distance = -bias->furthest;
      if (distance > bias->furthest) distance = bias->furthest;
      tile->score[i * tile->row_stride + j * tile->col_stride] += table[distance];
    }
  }
}

int main(void) {
  /* Two heads, three queries and keys. Queries are 0, so that the bias alone is the score: none in the first head; in the second
   * ln 2 where the key is the query's own. */
  const float table[2][3] = {{0, 0, 0}, {0, 0.6931472f, 0}};
  RelativeBias bias = {table[0], 1};
  float q[2][3][1] = {{{0}}}, k[2][3][1] = {{{1}, {2}, {3}}, {{4}, {5}, {6}}}, v[2][3][1] = {{{1}, {2}, {6}}, {{1}, {2}, {6}}};
  float out[2][3][1];
  fovea_context *context;
  fovea_params p;
  if (fovea_context_create(NULL, &context) != FOVEA_OK) return puts(fovea_last_error()), 1;
  fovea_params_init(&p, sizeof p, 1, 2, 2, 3, 3, 1, 1); /* batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v */
  p.q.data = q, p.k.data = k, p.v.data = v, p.out.data = out;
  p.score_mode = FOVEA_SCORE_MODIFY;
  p.score = add_relative_bias;
  p.score_user = &bias;
  const fovea_status status = fovea_forward(context, &p, NULL, 0);
  fovea_context_destroy(context);
  if (status != FOVEA_OK) return puts(fovea_last_error()), 1;
  for (int h = 0; h < 2; ++h) printf("head %d: %.2f %.2f %.2f\n", h, out[h][0][0], out[h][1][0], out[h][2][0]);
  return 0;
}
