#include "reference/oracle.h"

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

namespace fovea::reference {
namespace {

constexpr double kUnitRoundoff = 0x1p-24;  // u: of float
constexpr double kWeightError = 0x1p-22;   // u_p: of one float exp2, argument reduction included
// Of exponentials before they are divided by their sum: 2^20 in each of 64 chunks, or a row's keys.
constexpr double kLargestSum = 0x1p26;
constexpr double kLog2e = 1.4426950408889634;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const float *element(const fovea_tensor &t, int64_t b, int64_t h, int64_t s, int64_t d) {
  return static_cast<const float *>(t.data) + b * t.stride[0] + h * t.stride[1] + s * t.stride[2] + d * t.stride[3];
}

// The keys and values of one (batch, key-value head) in double, keys transposed so that the inner loops run along keys.
struct HeadMemory {
  int64_t keys;
  std::vector<double> k;  // [dim_k][keys]
  std::vector<double> v;  // [keys][dim_v]
};

HeadMemory load_head(const fovea_params &p, int64_t b, int64_t head_kv, int64_t keys) {
  HeadMemory head{keys, std::vector<double>(keys * p.dim_k), std::vector<double>(keys * p.dim_v)};
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t c = 0; c < p.dim_k; ++c) head.k[c * keys + j] = *element(p.k, b, head_kv, j, c);
    for (int64_t c = 0; c < p.dim_v; ++c) head.v[j * p.dim_v + c] = *element(p.v, b, head_kv, j, c);
  }
  return head;
}

// Kernels multiply a query by scale * log2(e) before anything else.
bool query_in_range(const fovea_params &p, int64_t b, int64_t h, int64_t i) {
  double largest = 1;
  for (int64_t c = 0; c < p.dim_k; ++c) {
    const double q = std::fabs(double{*element(p.q, b, h, i, c)});
    if (q <= FLT_MAX) largest = std::max(largest, q);
  }
  return largest * std::fabs(double{p.scale}) * kLog2e <= FLT_MAX;
}

void compute_row(const fovea_params &p, const HeadMemory &head, int64_t row, Expected *e) {
  const int64_t i = row % p.seq_q, h = row / p.seq_q % p.heads_q, b = row / p.seq_q / p.heads_q;
  const int64_t keys = permitted_keys(p, i);
  std::vector<double> score(keys, 0.0), magnitude(keys, 0.0);
  for (int64_t c = 0; c < p.dim_k; ++c) {
    const double q = *element(p.q, b, h, i, c);
    const double *k = head.k.data() + c * head.keys;
    for (int64_t j = 0; j < keys; ++j) {
      const double term = q * k[j];
      score[j] += term;
      magnitude[j] += std::fabs(term) <= DBL_MAX ? std::fabs(term) : 0.0;
    }
  }
  double maximum = -kInfinity, largest = 0;
  int64_t kept = 0;
  std::vector<char> weightless(keys, 0);
  for (int64_t j = 0; j < keys; ++j) {
    score[j] *= p.scale;
    weightless[j] = score[j] == -kInfinity;
    if (weightless[j]) continue;
    ++kept;
    largest = std::max(largest, std::fabs(double{p.scale}) * magnitude[j]);
    maximum = score[j] > maximum || std::isnan(score[j]) ? score[j] : maximum;  // once NaN it stays NaN
  }
  double sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    if (!weightless[j]) sum += score[j] = std::exp(score[j] - maximum);
  }
  e->kept[row] = kept;
  e->score_magnitude[row] = query_in_range(p, b, h, i) ? largest : kInfinity;
  e->lse[row] = kept ? maximum + std::log(sum) : -kInfinity;
  double *out = e->out.data() + row * p.dim_v, *g = e->magnitude.data() + row * p.dim_v;
  double *largest_value = e->largest.data() + row * p.dim_v;
  for (int64_t j = 0; j < keys; ++j) {
    const double weight = weightless[j] ? 0 : score[j] / sum;
    if (!e->weights.empty()) e->weights[row * p.seq_kv + j] = weight;
    const double *v = head.v.data() + j * p.dim_v;
    for (int64_t c = 0; c < p.dim_v; ++c) {
      out[c] += weight * v[c];
      g[c] += weight * std::fabs(v[c]);
      largest_value[c] = std::max(largest_value[c], double(std::fabs(v[c])));
    }
  }
}

std::vector<int64_t> all_or(const std::vector<int64_t> &rows, int64_t count) {
  if (!rows.empty()) return rows;
  std::vector<int64_t> all(count);
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

}  // namespace

int64_t permitted_keys(const fovea_params &p, int64_t i) {
  if (!p.causal) return p.seq_kv;
  const int64_t position = p.align == FOVEA_ALIGN_BOTTOM_RIGHT ? i + p.seq_kv - p.seq_q : i;
  return std::min(std::max(position + 1, int64_t{0}), p.seq_kv);
}

Expected attention(const fovea_params &p, bool want_weights, const std::vector<int64_t> &rows) {
  const int64_t count = p.batch * p.heads_q * p.seq_q;
  Expected e{p.batch, p.heads_q, p.seq_q, p.seq_kv, p.dim_v, {}, {}, {}, {}, {}, {}, {}};
  e.out.assign(count * p.dim_v, 0.0);
  e.magnitude.assign(count * p.dim_v, 0.0);
  e.largest.assign(count * p.dim_v, 0.0);
  e.lse.assign(count, 0.0);
  e.score_magnitude.assign(count, 0.0);
  e.kept.assign(count, 0);
  if (want_weights) e.weights.assign(count * p.seq_kv, 0.0);
  if (count == 0) return e;

  std::vector<int64_t> wanted = all_or(rows, count);
  std::sort(wanted.begin(), wanted.end());
  const int64_t rows_per_kv = p.heads_q / p.heads_kv * p.seq_q;  // rows of one key-value head lie side by side
  for (size_t begin = 0; begin < wanted.size();) {
    const int64_t head = wanted[begin] / rows_per_kv;
    size_t end = begin;
    int64_t keys = 0;  // keys that no row may see are not even read
    for (; end < wanted.size() && wanted[end] / rows_per_kv == head; ++end)
      keys = std::max(keys, permitted_keys(p, wanted[end] % p.seq_q));
    const HeadMemory memory = load_head(p, head / p.heads_kv, head % p.heads_kv, keys);

    std::atomic<size_t> next{begin};
    const auto work = [&] {
      for (size_t r = next++; r < end; r = next++) compute_row(p, memory, wanted[r], &e);
    };
    const double steps = double(end - begin) * double(keys) * double(p.dim_k + p.dim_v);
    constexpr double kStepsWorthAThread = 1e7;  // some milliseconds
    const auto helpers = std::min<int64_t>(std::thread::hardware_concurrency() - 1, int64_t(steps / kStepsWorthAThread));
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < helpers; ++t) threads.emplace_back(work);
    work();
    for (std::thread &t : threads) t.join();
    begin = end;
  }
  return e;
}

Verdict compare(const fovea_params &p, const Expected &e, const std::vector<int64_t> &rows) {
  Verdict verdict{0, 0, 0, 0, 0, -1, -1};
  const auto ratio_of = [](double actual, double expected, double bound) {
    if (std::isnan(expected)) return std::isnan(actual) ? 0.0 : kInfinity;
    if (actual == expected) return 0.0;
    const double error = std::fabs(actual - expected);
    return std::isfinite(error) && bound > 0 ? error / bound : kInfinity;
  };
  for (const int64_t row : all_or(rows, e.batch * e.heads_q * e.seq_q)) {
    const int64_t i = row % e.seq_q, h = row / e.seq_q % e.heads_q, b = row / e.seq_q / e.heads_q;
    const double score_error = kUnitRoundoff * (1 + 2 * e.score_magnitude[row]);
    const double underflow = double(e.kept[row] + 1) * FLT_MIN;
    if (e.score_magnitude[row] * kLog2e > FLT_MAX) continue;
    const auto bound_of = [&](double expected, double g) {
      return 8 * (score_error * g + kWeightError * g) + kUnitRoundoff * std::fabs(expected) + underflow;
    };
    for (int64_t c = 0; c < e.dim_v; ++c) {
      const double expected = e.out[row * e.dim_v + c], g = e.magnitude[row * e.dim_v + c];
      const double actual = *element(p.out, b, h, i, c);
      if (e.largest[row * e.dim_v + c] * std::max(kLargestSum, double(e.kept[row])) >
          FLT_MAX) {  // outside the bound, but an infinite value must show
        if (std::isinf(g) && std::isfinite(actual)) verdict.out_ratio = kInfinity, verdict.worst_row = row, verdict.worst_dim = c;
        continue;
      }
      const double ratio = ratio_of(actual, expected, bound_of(expected, g));
      const double error = std::fabs(actual - expected);
      if (ratio > verdict.out_ratio || verdict.worst_row < 0) {
        verdict.out_ratio = ratio;
        verdict.worst_row = row;
        verdict.worst_dim = c;
      }
      verdict.max_abs_error = std::max(verdict.max_abs_error, error);
      if (expected != 0) verdict.max_rel_error = std::max(verdict.max_rel_error, error / std::fabs(expected));
    }
    if (p.lse) {
      const double expected = e.lse[row];
      const double actual = p.lse[b * p.lse_stride[0] + h * p.lse_stride[1] + i * p.lse_stride[2]];
      verdict.lse_ratio =
          std::max(verdict.lse_ratio, ratio_of(actual, expected, 8 * score_error + kUnitRoundoff * std::fabs(expected)));
    }
    if (p.weights.data && !e.weights.empty()) {
      for (int64_t j = 0; j < e.seq_kv; ++j) {
        const double expected = e.weights[row * e.seq_kv + j];
        const double actual = *element(p.weights, b, h, i, j);
        // Excluded keys weigh exactly 0; in a row of NaN only the permitted ones are NaN.
        const double bound = j < permitted_keys(p, i) ? bound_of(expected, expected) : 0;
        verdict.weights_ratio = std::max(verdict.weights_ratio, ratio_of(actual, expected, bound));
      }
    }
  }
  return verdict;
}

}  // namespace fovea::reference
