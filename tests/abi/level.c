/* Prints the usable levels; with an argument, fails unless a call computed right and its kernel is of the object named: of the
 * level, and for SVE of the vector length. */
#include <stdio.h>
#include <string.h>

#include "fovea/fovea.h"

int main(int argc, char **argv) {
  fovea_isa levels[16];
  const int32_t count = fovea_isa_list(levels, 16, 1);
  for (int32_t i = 0; i < count; i++) printf("%s\n", fovea_isa_name(levels[i]));
  if (argc == 1) return 0;

  /* Keys of 0 weigh the same: the output is the mean of 1, 2 and 6. Queries and keys are bfloat16, which some levels multiply as such. */
  uint16_t q[1] = {0x40a0}, k[3] = {0, 0, 0};
  float v[3] = {1, 2, 6}, out[1] = {0};
  fovea_context *context;
  fovea_params p;
  fovea_params_init(&p, sizeof p, 1, 1, 1, 1, 3, 1, 1);
  p.q.data = q, p.k.data = k, p.v.data = v, p.out.data = out;
  p.q.dtype = p.k.dtype = FOVEA_BF16;
  if (fovea_context_create(NULL, &context) || fovea_forward(context, &p, NULL, 0)) {
    puts(fovea_last_error());
    return 1;
  }
  char explanation[8192], wanted[64];
  fovea_explain(context, &p, explanation, sizeof explanation);
  snprintf(wanted, sizeof wanted, "\"kernel\": \"%s/", argv[1]);
  const char *kernel = strstr(explanation, "\"kernel\"");
  printf("%.40s, out: %g\n", kernel ? kernel : "no kernel", out[0]);
  const int right = out[0] == 3 && strstr(explanation, wanted) != NULL;
  fovea_context_destroy(context);
  return right ? 0 : 1;
}
