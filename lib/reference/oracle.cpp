#include "reference/oracle.h"

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>
#include <tuple>

#include "reference/element.h"

namespace fovea::reference {
namespace {

constexpr double kUnitRoundoff = 0x1p-24;  // u: of float, which all arithmetic is done in
constexpr double kWeightError = 0x1p-22;   // u_p: of one float exp2, argument reduction included
// Weights below may count as 0: of keys that lie up to 2^20 above their chunk's reference, which lies FLT_MIN below the row's largest.
constexpr double kLeastWeight = 0x1p20 * double{FLT_MIN};
constexpr double kSubnormalHalfStep = 0x1p-25;  // of binary16, whose subnormals are in every ordinary range
// Of exponentials before they are divided by their sum: 2^20 in each of 64 chunks, or a row's keys.
constexpr double kLargestSum = 0x1p26;
constexpr double kLog2e = 1.4426950408889634;
// Kernels count scores in units of ln 2, and leave room for a score and a bias to be added.
constexpr double kLargestScore = FLT_MAX / kLog2e, kLargestBias = kLargestScore / 2;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A batch entry's lengths, and where it begins on packed token axes.
struct Entry {
  int64_t first_query, first_key, q_len, kv_len;
};

Entry entry_of(const fovea_params &p, int64_t b) {
  Entry e{0, 0, p.seq_q, p.seq_kv};
  if (p.seqlens_q) e.q_len = p.seqlens_q[b];
  if (p.seqlens_kv) e.kv_len = p.seqlens_kv[b];
  if (p.cu_seqlens_q) e.first_query = p.cu_seqlens_q[b], e.q_len = p.cu_seqlens_q[b + 1] - e.first_query;
  if (p.cu_seqlens_kv) e.first_key = p.cu_seqlens_kv[b], e.kv_len = p.cu_seqlens_kv[b + 1] - e.first_key;
  return e;
}

// Where a row of a tensor begins, in strides of its axes.
struct Place {
  int64_t outer, head, row;  // batch entry (0 where packed) or page; head; query, token or slot
};

double element(const fovea_tensor &t, const Place &at, int64_t d) {
  return read_element(t.data, t.dtype, at.outer * t.stride[0] + at.head * t.stride[1] + at.row * t.stride[2] + d * t.stride[3]);
}

Place place_of_key(const fovea_params &p, int64_t b, int64_t head_kv, int64_t j) {
  if (p.page_size) return {p.block_table[b * p.block_table_stride + j / p.page_size], head_kv, j % p.page_size};
  return {p.cu_seqlens_kv ? 0 : b, head_kv, entry_of(p, b).first_key + j};
}

// Kernels count subnormal inputs as 0: it matters where the other factor is infinite.
double flushed(double x) { return std::fabs(x) < FLT_MIN ? 0.0 : x; }

double query_element(const fovea_params &p, const fovea_tensor &t, const Row &row, int64_t d) {
  return element(t, {p.cu_seqlens_q ? 0 : row.batch, row.head, entry_of(p, row.batch).first_query + row.query}, d);
}

double mask_at(const fovea_params &p, int64_t b, int64_t h, int64_t i, int64_t j) { return element(p.mask, {b, h, i}, j); }

int64_t position(const fovea_params &p, int64_t b, int64_t i) {
  const Entry e = entry_of(p, b);
  return p.align == FOVEA_ALIGN_BOTTOM_RIGHT ? i + e.kv_len - e.q_len : i;
}

// Element d of a row of k or v, with the scale that the row of FOVEA_I8 has. A subnormal scale counts as 0 too.
double cache_element(const fovea_tensor &t, const fovea_tensor &scale, const Place &at, int64_t d) {
  const int64_t row = at.outer * t.stride[0] + at.head * t.stride[1] + at.row * t.stride[2], n = block_elements(t.dtype);
  const double x = read_block_element(t.data, t.dtype, row + d / n * t.stride[3], d % n);
  return flushed(t.dtype == FOVEA_I8 ? x * flushed(element(scale, at, 0)) : x);
}

// The keys and values of one (batch, key-value head) in double, keys transposed so that the inner loops run along keys.
struct HeadMemory {
  int64_t keys;
  std::vector<double> k;  // [dim_k][keys]
  std::vector<double> v;  // [keys][dim_v]
};

// Keys that no row may see are not even read.
HeadMemory load_head(const fovea_params &p, int64_t b, int64_t head_kv, const std::vector<char> &seen) {
  const auto keys = int64_t(seen.size());
  HeadMemory head{keys, std::vector<double>(keys * p.dim_k), std::vector<double>(keys * p.dim_v)};
  for (int64_t j = 0; j < keys; ++j) {
    if (!seen[j]) continue;
    const Place at = place_of_key(p, b, head_kv, j);
    for (int64_t c = 0; c < p.dim_k; ++c) head.k[c * keys + j] = cache_element(p.k, p.k_scale, at, c);
    for (int64_t c = 0; c < p.dim_v; ++c) head.v[j * p.dim_v + c] = cache_element(p.v, p.v_scale, at, c);
  }
  return head;
}

// A score, and how large the terms are that it is the sum of: its part in A.
struct Score {
  double value = 0, magnitude = 0;
  bool excluded = false;      // by the score function
  bool out_of_range = false;  // of float, in some kernel's order of operations
};

// scale * q.k for all keys of a head; rows exclude some of them later.
std::vector<Score> dot_products(const fovea_params &p, const HeadMemory &head, const std::vector<double> &q) {
  std::vector<double> sum(head.keys, 0.0), magnitude(head.keys, 0.0);
  double largest_q = 1;
  for (int64_t c = 0; c < p.dim_k; ++c) {
    const double *k = head.k.data() + c * head.keys;
    for (int64_t j = 0; j < head.keys; ++j) {
      const double term = q[c] * k[j];
      sum[j] += term;
      magnitude[j] += std::fabs(term) <= DBL_MAX ? std::fabs(term) : 0.0;
    }
    if (std::fabs(q[c]) <= FLT_MAX) largest_q = std::max(largest_q, std::fabs(q[c]));
  }
  const double scale = p.scale, size = std::fabs(scale);
  std::vector<Score> scores(head.keys);
  for (int64_t j = 0; j < head.keys; ++j) {
    scores[j].value = scale * sum[j];
    scores[j].magnitude = size * magnitude[j];
    // Kernels multiply a query by scale * log2(e) before anything else.
    scores[j].out_of_range = std::max(largest_q * size, scores[j].magnitude) > kLargestScore;
  }
  return scores;
}

// The caller's function on a tile of one score.
double user_score(const fovea_params &p, const Row &row, int64_t j, double score, const std::vector<float> &q,
                  const std::vector<float> &k) {
  auto value = float(score);
  fovea_score_tile tile{};
  tile.score = &value;
  tile.row_stride = tile.col_stride = tile.rows = tile.cols = 1;
  tile.batch = row.batch;
  tile.head = row.head;
  tile.row0 = row.query;
  tile.col0 = j;
  if (p.score_mode == FOVEA_SCORE_REPLACE) {
    tile.q = q.data();
    tile.k = k.data();
    tile.ldq = tile.ldk = tile.dim_k = p.dim_k;
  }
  p.score(p.score_user, &tile);
  return value;
}

Score replaced_score(const fovea_params &p, const HeadMemory &head, const Row &row, int64_t j, const std::vector<double> &q) {
  std::vector<float> k(p.dim_k);
  for (int64_t c = 0; c < p.dim_k; ++c) k[c] = float(head.k[c * head.keys + j]);
  Score s;
  s.value = user_score(p, row, j, 0, {q.begin(), q.end()}, k);
  s.excluded = s.value == -kInfinity;
  s.magnitude = std::isfinite(s.value) ? std::fabs(s.value) : 0;
  return s;
}

// Softcap, biases and a modifying function, for a permitted key.
void finish(const fovea_params &p, const Row &row, int64_t j, Score *s) {
  if (p.softcap > 0) {
    const double cap = p.softcap;
    s->value = cap * std::tanh(s->value / cap);
    s->magnitude += cap;
  }
  double biased = s->value;
  const auto add = [&](double bias) {
    biased += bias;
    if (std::isfinite(bias)) s->magnitude += std::fabs(bias);
    s->out_of_range |= bias > kLargestBias && bias < kInfinity;
  };
  if (p.alibi_slopes) add(-double{p.alibi_slopes[row.head]} * std::fabs(double(position(p, row.batch, row.query) - j)));
  if (p.mask.data && p.mask.dtype != FOVEA_BOOL) add(mask_at(p, row.batch, row.head, row.query, j));
  s->value = s->value > -kInfinity && biased < -FLT_MAX ? -FLT_MAX : biased;
  if (p.score && p.score_mode == FOVEA_SCORE_MODIFY) {
    const double modified = user_score(p, row, j, s->value, {}, {}), change = std::fabs(modified - s->value);
    if (std::isfinite(change)) s->magnitude += change;
    s->value = modified;
    s->excluded = modified == -kInfinity;
  }
  s->out_of_range |= s->value > kLargestBias && s->value < kInfinity;
}

void compute_row(const fovea_params &p, const HeadMemory &head, const Row &place, int64_t row, Expected *e) {
  std::vector<double> q(p.dim_k);
  for (int64_t c = 0; c < p.dim_k; ++c) q[c] = flushed(query_element(p, p.q, place, c));
  const bool replace = p.score && p.score_mode == FOVEA_SCORE_REPLACE;
  std::vector<Score> score = replace ? std::vector<Score>(head.keys) : dot_products(p, head, q);
  bool out_of_range = false;
  std::vector<char> in_set(head.keys, 0);
  for (int64_t j = 0; j < head.keys; ++j) {
    if (!permitted(p, place.batch, place.head, place.query, j)) continue;
    if (replace) score[j] = replaced_score(p, head, place, j, q);
    if (!score[j].excluded) finish(p, place, j, &score[j]);
    in_set[j] = !score[j].excluded;
    out_of_range |= in_set[j] && score[j].out_of_range;
  }

  const double sink = p.sinks ? double{p.sinks[place.head]} : -kInfinity;
  double maximum = sink, sum = 0;
  int64_t kept = 0;
  for (int64_t j = 0; j < head.keys; ++j) {
    if (!in_set[j] || score[j].value == -kInfinity) continue;
    ++kept;
    maximum = score[j].value > maximum || std::isnan(score[j].value) ? score[j].value : maximum;  // once NaN it stays NaN
  }
  // A is about the keys that can weigh something: the others count as 0, and so does an error in them.
  double largest = 0;
  std::vector<double> weight(head.keys, 0.0);
  for (int64_t j = 0; j < head.keys; ++j) {
    if (!in_set[j] || score[j].value == -kInfinity) continue;
    sum += weight[j] = std::exp(score[j].value - maximum);
    const double error = 8 * kUnitRoundoff * (1 + 2 * score[j].magnitude);
    if (!(score[j].value + error < maximum + std::log(double{FLT_MIN}))) largest = std::max(largest, score[j].magnitude);
  }
  if (sink > -kInfinity) sum += std::exp(sink - maximum);

  e->kept[row] = kept;
  out_of_range |= kept > 0 && maximum < -kLargestBias;
  e->score_magnitude[row] = out_of_range ? kInfinity : largest;
  e->lse[row] = maximum == -kInfinity ? -kInfinity : maximum + std::log(sum);
  double *out = e->out.data() + row * p.dim_v, *g = e->magnitude.data() + row * p.dim_v;
  double *lost = e->lost.data() + row * p.dim_v, *largest_value = e->largest.data() + row * p.dim_v;
  for (int64_t j = 0; j < head.keys; ++j) {
    if (!in_set[j]) continue;
    if (sum != 0) weight[j] /= sum;  // a NaN makes 0 NaN, at a score of -infinity too; a sum of 0 is an empty row's
    if (!e->weights.empty()) {
      e->weights[row * p.seq_kv + j] = weight[j];
      e->in_set[row * p.seq_kv + j] = 1;
    }
    const double *v = head.v.data() + j * p.dim_v;
    for (int64_t c = 0; c < p.dim_v; ++c) {
      out[c] += weight[j] * v[c];
      g[c] += weight[j] * std::fabs(v[c]);
      largest_value[c] = std::max(largest_value[c], std::fabs(v[c]));
    }
    if (weight[j] >= 2 * kLeastWeight) continue;  // twice: what is near it may be computed as less
    for (int64_t c = 0; c < p.dim_v; ++c) lost[c] += weight[j] * std::fabs(v[c]);
  }
}

std::vector<int64_t> all_or(const std::vector<int64_t> &rows, int64_t count) {
  if (!rows.empty()) return rows;
  std::vector<int64_t> all(count);
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

}  // namespace

int64_t row_count(const fovea_params &p) { return (p.cu_seqlens_q ? 1 : p.batch) * p.heads_q * p.seq_q; }

Row row_at(const fovea_params &p, int64_t row) {
  Row place{true, row / p.seq_q / p.heads_q, row / p.seq_q % p.heads_q, row % p.seq_q};
  if (!p.cu_seqlens_q) {
    place.exists = place.query < entry_of(p, place.batch).q_len;
    return place;
  }
  const int64_t token = place.query;
  for (int64_t b = 0; b < p.batch; ++b)
    if (token >= p.cu_seqlens_q[b] && token < p.cu_seqlens_q[b + 1]) return {true, b, place.head, token - p.cu_seqlens_q[b]};
  place.exists = false;
  return place;
}

bool permitted(const fovea_params &p, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (j >= entry_of(p, b).kv_len) return false;
  const int64_t ahead = j - position(p, b, i);
  if (p.causal && ahead > 0) return false;
  if (p.window_left != -1 && -ahead > p.window_left) return false;
  if (p.window_right != -1 && ahead > p.window_right) return false;
  if (!p.mask.data) return true;
  const double mask = mask_at(p, b, h, i, j);
  return p.mask.dtype == FOVEA_BOOL ? mask != 0 : mask != -kInfinity;
}

Expected attention(const fovea_params &p, bool want_weights, const std::vector<int64_t> &rows) {
  const int64_t count = row_count(p);
  Expected e{count, p.seq_kv, p.dim_v, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  e.out.assign(count * p.dim_v, 0.0);
  e.magnitude.assign(count * p.dim_v, 0.0);
  e.lost.assign(count * p.dim_v, 0.0);
  e.largest.assign(count * p.dim_v, 0.0);
  e.lse.assign(count, 0.0);
  e.score_magnitude.assign(count, 0.0);
  e.kept.assign(count, 0);
  if (want_weights) {
    e.weights.assign(count * p.seq_kv, 0.0);
    e.in_set.assign(count * p.seq_kv, 0);
  }

  struct Wanted {
    Row place;
    int64_t head_kv, row;
  };
  std::vector<Wanted> wanted;
  for (const int64_t row : all_or(rows, count)) {
    const Row place = row_at(p, row);
    if (place.exists) wanted.push_back({place, place.head / (p.heads_q / p.heads_kv), row});
  }
  const auto head_of = [](const Wanted &w) { return std::make_tuple(w.place.batch, w.head_kv); };
  std::sort(wanted.begin(), wanted.end(), [&](const Wanted &a, const Wanted &b) { return head_of(a) < head_of(b); });
  for (size_t begin = 0; begin < wanted.size();) {
    const auto [b, head_kv] = head_of(wanted[begin]);
    size_t end = begin;
    std::vector<char> seen(entry_of(p, b).kv_len, 0);
    for (; end < wanted.size() && head_of(wanted[end]) == head_of(wanted[begin]); ++end)
      for (size_t j = 0; j < seen.size(); ++j)
        seen[j] |= permitted(p, b, wanted[end].place.head, wanted[end].place.query, int64_t(j));
    const HeadMemory memory = load_head(p, b, head_kv, seen);

    std::atomic<size_t> next{begin};
    const auto work = [&] {
      for (size_t r = next++; r < end; r = next++) compute_row(p, memory, wanted[r].place, wanted[r].row, &e);
    };
    const double steps = double(end - begin) * double(memory.keys) * double(p.dim_k + p.dim_v);
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
  for (const int64_t row : all_or(rows, e.rows)) {
    const Row place = row_at(p, row);
    if (!place.exists || e.score_magnitude[row] == kInfinity) continue;
    const double score_error = kUnitRoundoff * (1 + 2 * e.score_magnitude[row]);
    const double underflow = double(e.kept[row] + 1) * FLT_MIN;
    const auto arithmetic_error = [&](double g) { return 8 * (score_error * g + kWeightError * g) + underflow; };
    const double half_step = p.out.dtype == FOVEA_F16 ? kSubnormalHalfStep : 0, overflow = least_that_overflows(p.out.dtype);
    for (int64_t c = 0; c < e.dim_v; ++c) {
      const double expected = e.out[row * e.dim_v + c], g = e.magnitude[row * e.dim_v + c];
      const double actual = query_element(p, p.out, place, c);
      if (e.largest[row * e.dim_v + c] * std::max(kLargestSum, double(e.kept[row])) >
          FLT_MAX) {  // outside the bound, but an infinite value must show
        if (std::isinf(g) && std::isfinite(actual)) verdict.out_ratio = kInfinity, verdict.worst_row = row, verdict.worst_dim = c;
        continue;
      }
      const double before_rounding = arithmetic_error(g) + e.lost[row * e.dim_v + c];
      const bool overflowed = std::isinf(actual) && actual * expected > 0;  // not NaN
      const double ratio =
          overflowed ? std::max(0.0, overflow - std::fabs(expected)) / before_rounding
                     : ratio_of(actual, expected, before_rounding + unit_roundoff(p.out.dtype) * std::fabs(expected) + half_step);
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
      const fovea_tensor lse{p.lse, {p.lse_stride[0], p.lse_stride[1], p.lse_stride[2], 0}, FOVEA_F32, 0};
      const double expected = e.lse[row], actual = query_element(p, lse, place, 0);
      verdict.lse_ratio =
          std::max(verdict.lse_ratio, ratio_of(actual, expected, 8 * score_error + kUnitRoundoff * std::fabs(expected)));
    }
    if (p.weights.data && !e.weights.empty()) {
      for (int64_t j = 0; j < e.seq_kv; ++j) {
        const double expected = e.weights[row * e.seq_kv + j];
        const double actual = query_element(p, p.weights, place, j);
        // Excluded keys weigh exactly 0; in a row of NaN only those of the set are NaN.
        const double bound = e.in_set[row * e.seq_kv + j] ? arithmetic_error(expected) + kUnitRoundoff * expected : 0;
        verdict.weights_ratio = std::max(verdict.weights_ratio, ratio_of(actual, expected, bound));
      }
    }
  }
  return verdict;
}

}  // namespace fovea::reference
