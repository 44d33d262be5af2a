#include "support/features.h"

#include <cmath>

namespace fovea::testing {

const float kSomeSinks[9] = {1, -INFINITY, -2, 0.5f, 3, 0, -1, 2, -INFINITY};

namespace {

const float kSomeSlopes[9] = {0.5f, 0.0625f, 0.25f, 1, 0.03125f, 0.125f, 2, 0, -0.25f};

void shift_scores(void *, const fovea_score_tile *t) {  // by the place within the batch entry
  for (int64_t r = 0; r < t->rows; ++r)
    for (int64_t c = 0; c < t->cols; ++c)
      t->score[r * t->row_stride + c * t->col_stride] += float((t->row0 + r + 3 * (t->col0 + c) + t->head) % 7) / 4;
}

void everything(fovea_params &p, const Mask &mask) {
  p.causal = 1;
  p.align = FOVEA_ALIGN_BOTTOM_RIGHT;
  p.window_left = 150;
  p.alibi_slopes = kSomeSlopes;
  p.sinks = kSomeSinks;
  p.softcap = 2;
  p.mask = mask.tensor();
  p.score = shift_scores;
  p.score_mode = FOVEA_SCORE_MODIFY;
}

}  // namespace

const std::vector<Feature> &features() {
  static const std::vector<Feature> all = {
      {"plain", [](fovea_params &, const Mask &) {}},
      {"causal top-left", [](fovea_params &p, const Mask &) { p.causal = 1, p.align = FOVEA_ALIGN_TOP_LEFT; }},
      {"causal bottom-right", [](fovea_params &p, const Mask &) { p.causal = 1, p.align = FOVEA_ALIGN_BOTTOM_RIGHT; }},
      {"window",
       [](fovea_params &p, const Mask &) { p.window_left = 9, p.window_right = 4, p.align = FOVEA_ALIGN_BOTTOM_RIGHT; }},
      {"ALiBi", [](fovea_params &p, const Mask &) { p.alibi_slopes = kSomeSlopes, p.align = FOVEA_ALIGN_BOTTOM_RIGHT; }},
      {"sinks and softcap", [](fovea_params &p, const Mask &) { p.sinks = kSomeSinks, p.softcap = 0.5f; }},
      {"mask", [](fovea_params &p, const Mask &mask) { p.mask = mask.tensor(); }},
      {"score function", [](fovea_params &p, const Mask &) { p.score = shift_scores, p.score_mode = FOVEA_SCORE_MODIFY; }},
      {"everything", everything}};
  return all;
}

Mask mask_of_entries(const Sizes &n, const std::vector<int64_t> &q_len, const std::vector<int64_t> &kv_len) {
  Mask mask(FOVEA_F32, n);
  mask.set_all([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    if (i >= q_len[size_t(b)] || j >= kv_len[size_t(b)]) return std::nanf("");
    const int64_t lot = (b + h * 3 + i * 5 + j * 7 + i * j) % 11;
    return lot == 4 ? -INFINITY : float(lot) / 8;
  });
  return mask;
}

}  // namespace fovea::testing
