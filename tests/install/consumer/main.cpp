// Keys of 0 weigh the same: the output is the mean of the values.
#include <cstdio>
#include <fovea/fovea.hpp>

int main() {
  const float q[2] = {1, 2}, k[4] = {0, 0, 0, 0}, v[2] = {3, 5};
  float out[1] = {0};
  fovea::Context context;
  fovea::Params call({1, 1, 1, 1, 2, 2, 1});
  call.with_q(q).with_k(k).with_v(v).with_out(out);
  context.forward(call);
  std::printf("%s: %g\n", fovea_version(), out[0]);
  return out[0] == 4 ? 0 : 1;
}
