// The float64 oracle: what a call must give, computed the slow and obvious way. Tests, tools and benches only.
//
// It states the rules that the float arithmetic of the kernels must come to as well:
//   - an excluded key is not in the row's set, whatever its key, value and score hold;
//   - a score of -infinity weighs exactly 0, and a row of nothing else is empty; 0 * v takes part, and is NaN where v is not finite.
//     Where the call has a score function, such a key is excluded;
//   - a score of NaN at a permitted key makes the row NaN, the weights of all its permitted keys included, and so does +infinity
//     (infinity - infinity);
//   - subnormal elements of q, k and v are 0;
//   - a finite score plus finite biases is never below -FLT_MAX.
//
// Inputs are taken as the numbers that their elements are, whatever the type; quantised ones are exact products.
#pragma once
#include <cstdint>
#include <vector>

#include "fovea/fovea.h"

namespace fovea::reference {

// The rows of a call in the order of its outputs: [batch, heads_q, seq_q] flattened, or [heads_q, seq_q] where queries are packed and
// seq_q counts tokens.
struct Row {
  bool exists;  // in some batch entry; the others are neither read nor written
  int64_t batch, head, query;
};
int64_t row_count(const fovea_params &p);
Row row_at(const fovea_params &p, int64_t row);

// Whether query i of batch entry b sees key j of it, as far as causal, window, lengths and mask say.
bool permitted(const fovea_params &p, int64_t b, int64_t h, int64_t i, int64_t j);

// Dense results of a call in double, row by row, and what the error bound needs.
struct Expected {
  int64_t rows, seq_kv, dim_v;
  std::vector<double> out;              // [rows, dim_v]
  std::vector<double> lse;              // [rows]
  std::vector<double> weights;          // [rows, seq_kv]; empty unless asked for
  std::vector<char> in_set;             // like weights: whether the key is in the row's set
  std::vector<double> magnitude;        // like out: g = sum of p |v|
  std::vector<double> lost;             // like out: what keys of weights that may count as 0 add to g
  std::vector<double> largest;          // like out: the largest |v| of the row's set
  std::vector<double> score_magnitude;  // like lse: A; infinite where the row can leave the range of float
  std::vector<int64_t> kept;            // like lse: how many keys are in the set and have a score above -infinity
};

// Computes the call that p describes from its tensors as they lie. p must be a valid call. rows: empty for all, else only these are
// computed and the others left 0.
Expected attention(const fovea_params &p, bool want_weights = false, const std::vector<int64_t> &rows = {});

// Largest error of p->out (and lse and weights where present) as a multiple of the bound of docs/semantics.md; at most 1 is right. A
// NaN where the oracle has none, or none where it has one, is infinity; an infinite output stands for every number that rounds to it.
// Rows whose scores can leave the range of float, and elements with g beyond it, are outside the bound and not compared. Subnormal f32
// and bf16 numbers may count as 0, in inputs and in outputs: the bound has room for them.
struct Verdict {
  double out_ratio, lse_ratio, weights_ratio;  // error / bound, the largest
  double max_abs_error, max_rel_error;         // of out
  int64_t worst_row, worst_dim;                // where out_ratio is reached; -1 where nothing was compared
  bool ok() const { return out_ratio <= 1 && lse_ratio <= 1 && weights_ratio <= 1; }
};
Verdict compare(const fovea_params &p, const Expected &expected, const std::vector<int64_t> &rows = {});

}  // namespace fovea::reference
