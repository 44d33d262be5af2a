// The float64 oracle: what a call must give, computed the slow and obvious way. Tests, tools and benches only.
//
// It states three rules that the float arithmetic of the kernels must come to as well:
//   - a score of -infinity weighs exactly 0, and a row of nothing else is empty; 0 * v takes part, and is NaN where v is not finite;
//   - a score of NaN at a permitted key makes the row NaN;
//   - a score of +infinity at a permitted key makes the row NaN (infinity - infinity).
#pragma once
#include <cstdint>
#include <vector>

#include "fovea/fovea.h"

namespace fovea::reference {

// Dense [batch, heads_q, seq_q, ...] results of a call in double, and what the error bound needs.
struct Expected {
  int64_t batch, heads_q, seq_q, seq_kv, dim_v;
  std::vector<double> out;              // [batch, heads_q, seq_q, dim_v]
  std::vector<double> lse;              // [batch, heads_q, seq_q]
  std::vector<double> weights;          // [batch, heads_q, seq_q, seq_kv]; empty unless asked for
  std::vector<double> magnitude;        // like out: g = sum of p |v|
  std::vector<double> largest;          // like out: the largest |v| of the row's set
  std::vector<double> score_magnitude;  // like lse: A = largest |scale| * sum |q||k| over the kept keys, of finite terms
  std::vector<int64_t> kept;            // like lse: how many keys are permitted and have a score above -infinity
};

// The keys that query i may see are 0 ... permitted_keys(p, i) - 1.
int64_t permitted_keys(const fovea_params &p, int64_t i);

// Computes the call that p describes from its tensors as they lie. p must be a valid call. rows: empty for all, else only these
// flattened (batch, head, query) rows are computed and the others left 0.
Expected attention(const fovea_params &p, bool want_weights = false, const std::vector<int64_t> &rows = {});

// Largest error of p->out (and lse and weights where present) as a multiple of the bound of docs/semantics.md; at most 1 is right. A
// NaN where the oracle has none, or none where it has one, is infinity. Rows whose scores can leave the range of float, and elements
// with g beyond it, are outside the bound and not compared.
struct Verdict {
  double out_ratio, lse_ratio, weights_ratio;  // error / bound, the largest
  double max_abs_error, max_rel_error;         // of out
  int64_t worst_row, worst_dim;                // where out_ratio is reached; -1 where nothing was compared
  bool ok() const { return out_ratio <= 1 && lse_ratio <= 1 && weights_ratio <= 1; }
};
Verdict compare(const fovea_params &p, const Expected &expected, const std::vector<int64_t> &rows = {});

}  // namespace fovea::reference
