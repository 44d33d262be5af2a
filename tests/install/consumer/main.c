/* Keys of 0 weigh the same: the output is the mean of the values. */
#include <fovea/fovea.h>
#include <stdio.h>

int main(void) {
  float q[2] = {1, 2}, k[4] = {0, 0, 0, 0}, v[2] = {3, 5}, out[1] = {0};
  fovea_context *context;
  fovea_params p;
  fovea_status status = fovea_context_create(NULL, &context);
  if (status == FOVEA_OK) status = fovea_params_init(&p, sizeof p, 1, 1, 1, 1, 2, 2, 1);
  p.q.data = q;
  p.k.data = k;
  p.v.data = v;
  p.out.data = out;
  if (status == FOVEA_OK) status = fovea_forward(context, &p, NULL, 0);
  printf("%s: %s, %g\n", fovea_version(), fovea_status_string(status), out[0]);
  if (status == FOVEA_OK) fovea_context_destroy(context);
  return status == FOVEA_OK && out[0] == 4 ? 0 : 1;
}
