/* The header as a C99 program sees it, and its shortest correct program. Compiled with -std=c99 -pedantic. */
#include "fovea/fovea.h"

int fovea_c99_program(void);

/* 0 where one query that sees one key gives that key's value. */
int fovea_c99_program(void) {
  float q[2] = {1, 2}, k[2] = {3, 4}, v[3] = {5, 6, 7}, out[3] = {0, 0, 0};
  fovea_context *context;
  fovea_params p;
  fovea_status status;
  if (fovea_context_create(NULL, &context) != FOVEA_OK) return 1;
  if (fovea_params_init(&p, sizeof p, 1, 1, 1, 1, 1, 2, 3) != FOVEA_OK) return 2;
  p.q.data = q;
  p.k.data = k;
  p.v.data = v;
  p.out.data = out;
  status = fovea_forward(context, &p, NULL, 0);
  fovea_context_destroy(context);
  if (status != FOVEA_OK) return 3;
  return out[0] == 5 && out[1] == 6 && out[2] == 7 ? 0 : 4;
}
