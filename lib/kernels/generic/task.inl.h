// What a task reads and where: its rows in panels, their queries packed, blocks of its keys, and its scratch.
#pragma once
#include "kernels/generic/few_rows.inl.h"
#include "kernels/generic/mask.inl.h"
#include "kernels/generic/rows.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// Hands out parts of a task's scratch. With base null it only counts.
struct Arena {
  char *base;
  int64_t used;
  template <class T>
  T *take(int64_t count) {
    T *part = reinterpret_cast<T *>(reinterpret_cast<uintptr_t>(base) + static_cast<uintptr_t>(used));
    used += (count * static_cast<int64_t>(sizeof(T)) + 63) & ~int64_t{63};
    return part;
  }
};

constexpr float kSteepSlope = 0x1p60f;  // times any distance, which is below 2^62, less is far from overflow
constexpr double kMostSoftcap = 0x1p120;
constexpr double kLog2E = 0x1.71547652b82fep+0;

// Its rows are used where they lie; others are copied.
template <class Element = float>
FOVEA_INLINE bool in_place(const Tensor &t, int64_t dim) {
  return t.dtype == kDtypeOf<Element> && (dim <= 1 || t.stride[3] == 1);
}

// The element at an offset of a tensor.
FOVEA_INLINE char *element(const Tensor &t, int64_t offset) {
  return static_cast<char *>(t.data) + offset * element_bytes(t.dtype);
}

// Whether a block of keys may lie in several pages. Blocks begin at multiples of kBlockKeys.
FOVEA_INLINE bool pages_cut_blocks(const Problem &problem) { return problem.page_size % kBlockKeys != 0; }

// Keys of a batch entry that lie one stride[2] after the other: `keys` of them from `slot` on, of page or batch entry `entry` of a tensor.
struct KeyRun {
  int64_t entry, slot, keys;
};

// A block of keys as the tiles read it.
struct Block {
  const void *k;   // of the block's first key: rows of whole_steps(dim_k) Keys, of dim_k floats where rows are few, and asked for
  const float *v;  // likewise
  int64_t k_stride, v_stride;
  int64_t begin, keys;
  int64_t first;          // keys before it are not read
  const void *padded[2];  // copies of the tiles that hold the first and the last key, other keys as zeros; null: not made yet

  template <class Key>
  const Key *key(int64_t j) const {
    return static_cast<const Key *>(k) + j * k_stride;
  }
};

template <class Simd>
struct Task {
  using Key = typename Simd::Dot::Key;
  static constexpr int L = Simd::kLanes;
  static constexpr int kRows = Panel<Simd>::kRows;
  static constexpr int kDims = Simd::Dot::kDims, kKeys = Simd::Dot::kKeys;

  const Problem *call;
  const Tuning *tuning;
  RowRange rows;
  MaskMap mask_map;
  bool few_rows;            // see few_rows.inl.h
  bool keys_are_cold;       // where rows are few, keys are fetched ahead
  bool always_shaped;       // scores of every block are changed
  float query_scale, step;  // what packed queries are multiplied by; see softmax.inl.h
  ScoreShape<Simd> shape;
  int64_t panel_count;
  Panel<Simd> *panels;

  // Scratch.
  Arena arena;
  float *packed_queries;
  float *p;                                                 // weights of a panel and a block: [key][vectors * kLanes]
  float *padded_tiles;                                      // see Block
  float *marks;                                             // like p, for find_excluded()
  float *bias;                                              // like p, of the mask
  KeyRows *k_rows, *v_rows;                                 // of the block, where rows are few
  float *value_sums;                                        // see multiply_few_values()
  float *k_copy, *v_copy, *chunk_sums, *out_copy, *q_copy;  // null where the tensor's own memory always serves

  void carve(const Problem &problem, const Tuning &chosen, int64_t row_count, void *scratch) {
    call = &problem;
    tuning = &chosen;
    arena = {static_cast<char *>(scratch), 0};
    const bool windowed = has_window(problem);
    const int64_t vectors = (row_count + L - 1) / L;
    const int64_t panel_vectors = (windowed ? tuning->window_panel_rows : tuning->panel_rows) / L;
    panel_count = (vectors + panel_vectors - 1) / panel_vectors;
    panels = arena.take<Panel<Simd>>(panel_count);
    packed_queries = arena.take<float>(vectors * L * padded_dim<Simd>(problem.dim_k));
    p = arena.take<float>(kBlockKeys * kRows);
    k_rows = arena.take<KeyRows>(1);
    v_rows = arena.take<KeyRows>(1);
    value_sums = arena.take<float>(2 * smaller(row_count, kFewRows<Simd>) * padded_dim<Simd>(problem.dim_v));
    padded_tiles = arena.take<float>(2 * kKeyTile * whole_steps<Simd>(problem.dim_k));
    const bool cut = pages_cut_blocks(problem);
    k_copy =
        in_place(problem.k, problem.dim_k) && !cut ? nullptr : arena.take<float>(kBlockKeys * whole_steps<Simd>(problem.dim_k));
    v_copy = in_place(problem.v, problem.dim_v) && !cut ? nullptr : arena.take<float>(kBlockKeys * problem.dim_v);
    chunk_sums = problem.seq_kv <= kBlockKeys * kMaxChunks ? nullptr : arena.take<float>(row_count * problem.dim_v);
    out_copy = in_place(problem.out, problem.dim_v) ? nullptr : arena.take<float>(row_count * problem.dim_v);
    marks = windowed || problem.mask.data || problem.score ? arena.take<float>(kBlockKeys * kRows) : nullptr;
    bias = problem.mask.data ? arena.take<float>(kRows * kBlockKeys) : nullptr;
    q_copy = in_place(problem.q, problem.dim_k) ? nullptr : arena.take<float>(kRows * problem.dim_k);
  }

  void begin(const Problem &problem, const Tuning &chosen, const RowRange &range, void *scratch, const MaskMap &map,
             bool scores_wanted) {
    rows = range;
    mask_map = map;
    keys_are_cold = false;
    const int64_t count = rows.row_end - rows.row_begin;
    carve(problem, chosen, count, scratch);
    // Depends on the row's own entry alone, not on the rows of a task, so that a row's bits do not depend on how tasks are cut.
    few_rows = rows.q_len * problem.group <= kFewRows<Simd>;
    set_scale();
    const auto unit = static_cast<double>(shape.unit);
    // Its reciprocal shall not be subnormal; scores that such a cap would change are far outside of the error bound.
    const double softcap = problem.softcap < kMostSoftcap ? problem.softcap : kMostSoftcap;
    shape.cap = static_cast<float>(softcap * unit);
    shape.cap_to_log2 = softcap == 0 ? 0 : static_cast<float>(2 * kLog2E / (softcap * unit));
    shape.keeps_excluded = problem.score && problem.score_replaces;
    shape.alibi = problem.alibi_slopes != nullptr;
    shape.careful = shape.keeps_excluded;
    for (int64_t h = 0; h < problem.group && shape.alibi; ++h)
      shape.careful |= __builtin_fabsf(problem.alibi_slopes[rows.head_kv * problem.group + h]) > kSteepSlope;
    always_shaped = shape.cap != 0 || shape.alibi || problem.score;

    int64_t row = 0, vectors = (count + L - 1) / L;
    float *queries = packed_queries;
    for (int64_t i = 0; i < panel_count; ++i) {
      Panel<Simd> &panel = panels[i];
      const int64_t left = panel_count - i;
      panel.vectors = static_cast<int>(vectors / left + (vectors % left != 0));
      panel.first_row = row;
      panel.rows = static_cast<int>(smaller(panel.vectors * L, count - row));
      panel.queries = queries;
      begin_panel(panel, scores_wanted ? queries : nullptr);
      queries += panel.vectors * L * padded_dim<Simd>(problem.dim_k);
      vectors -= panel.vectors;
      row += panel.rows;
    }
  }

  // Queries are packed times the scale, so that scores are in log2 units; natural ones where a function of the caller sees them. But products
  // with numbers of few bits lose little or nothing, and queries shall not either: they are multiplied by a power of 2 alone, and what else
  // there is becomes the step of scores.
  void set_scale() {
    const bool has_few_bits = call->q.dtype != FOVEA_F32 || call->k.dtype != FOVEA_F32;
    double scale = static_cast<double>(call->scale) * (call->score ? 1 : kLog2E);
    step = call->score ? static_cast<float>(kLog2E) : 1.0f;
    if (has_few_bits && !call->score && scale != 0 && __builtin_isfinite(scale)) {
      int exponent;
      step = static_cast<float>(2 * __builtin_fabs(__builtin_frexp(scale, &exponent)));
      scale = __builtin_copysign(__builtin_ldexp(1, exponent - 1), scale);
    }
    query_scale = static_cast<float>(scale);
    shape.unit = static_cast<float>(kLog2E / static_cast<double>(step));
  }

  void find_rows(const Panel<Simd> &panel, const int64_t *stride, int64_t first_query, int64_t *offset) const {
    row_offsets(*call, rows, stride, first_query, panel.first_row, panel.rows, panel.vectors * L, offset);
  }

  void begin_panel(Panel<Simd> &panel, float *queries) {
    const Problem &problem = *call;
    int64_t offset[kRows];
    if (out_copy) {
      for (int r = 0; r < panel.rows; ++r) panel.out[r] = out_copy + (panel.first_row + r) * problem.dim_v;
    } else {
      find_rows(panel, problem.out.stride, rows.first_query, offset);
      for (int r = 0; r < panel.rows; ++r) panel.out[r] = static_cast<float *>(problem.out.data) + offset[r];
    }
    for (int r = 0; r < panel.rows && chunk_sums; ++r) panel.sum[r] = chunk_sums + (panel.first_row + r) * problem.dim_v;
    set_windows(panel, problem, rows);
    if (shape.alibi) begin_alibi(panel);
    if (problem.mask.data) {
      find_rows(panel, problem.mask.stride, 0, offset);
      for (int r = 0; r < panel.vectors * L; ++r) panel.mask[r] = element(problem.mask, offset[r]);
    }
    for (int i = 0; i < panel.vectors * L; i += L) {
      Simd::store(panel.state.max + i, Simd::set1(kNoKeys));
      Simd::store(panel.state.sum + i, Simd::set1(0.0f));
      Simd::store(panel.state.sum_low + i, Simd::set1(0.0f));
    }
    panel.state.step = step;
    panel.started = false;
    if (queries == nullptr) return;
    // Lanes behind the last row repeat it, so that they never stand out.
    find_rows(panel, problem.q.stride, rows.first_query, offset);
    const float *q[kRows];
    for (int r = 0; r < panel.vectors * L; ++r) {
      q[r] =
          q_copy ? q_copy + smaller(r, panel.rows - 1) * problem.dim_k : static_cast<const float *>(problem.q.data) + offset[r];
      if (q_copy && r < panel.rows)
        load_elements<Simd>(element(problem.q, offset[r]), problem.q.dtype, problem.q.stride[3], problem.dim_k,
                            q_copy + r * problem.dim_k);
    }
    if (few_rows)
      pack_rows<Simd>(q, panel.rows, problem.dim_k, query_scale, queries);
    else
      pack_queries(q, panel.vectors, queries);
  }

  void begin_alibi(Panel<Simd> &panel) const {
    const Problem &problem = *call;
    for (int r = 0; r < panel.vectors * L; ++r) {
      const int64_t row = rows.row_begin + panel.first_row + smaller(r, panel.rows - 1);
      const float slope = problem.alibi_slopes[rows.head_kv * problem.group + row % problem.group] * shape.unit;
      panel.slope[r] = slope < kLowest ? kLowest : slope > -kLowest ? -kLowest : slope;  // infinity * 0 would be NaN
      panel.position[r] = row / problem.group + (problem.bottom_right ? rows.kv_len - rows.q_len : 0);
    }
  }

  void pack_queries(const float *const *q, int vectors, float *packed) const {
    const int64_t dim_k = call->dim_k;
    const int width = vectors * L;
    const auto scale = Simd::set1(query_scale);
    for (int v = 0; v < vectors; ++v) {
      for (int64_t d = 0; d < dim_k; d += kColumns) {
        typename Simd::Vector x[kColumns];
        if (d + kColumns <= dim_k)
          Simd::load_columns(q + v * L, d, x);
        else
          load_last_columns(q + v * L, d, x);
        FOVEA_UNROLL
        for (int i = 0; i < kColumns; i += kDims) {
          typename Simd::Vector dims[kDims];
          FOVEA_UNROLL
          for (int j = 0; j < kDims; ++j) dims[j] = Simd::mul(x[i + j], scale);
          typename Simd::Vector queries[kKeys];
          Simd::Dot::pack(dims, queries);
          if (d + i >= dim_k) continue;
          repeat<kKeys>(FOVEA_EACH(j) { Simd::store(packed + ((d + i) / kDims * width + v * L) * kKeys + j * L, queries[j]); });
        }
      }
    }
  }

  void load_last_columns(const float *const *q, int64_t d, typename Simd::Vector (&x)[kColumns]) const {
    for (int i = 0; i < kColumns; ++i) {
      alignas(64) float column[L] = {};
      for (int r = 0; r < L && d + i < call->dim_k; ++r) column[r] = q[r][d + i];
      x[i] = Simd::load(column);
    }
  }

  // limit: keys from there on are not read.
  void load_block(int64_t begin, int64_t end, int64_t limit, int64_t first, Block &block) {
    const Problem &problem = *call;
    const Tensor &k = problem.k, &v = problem.v;
    block.begin = begin;
    block.keys = end - begin;
    block.first = first;
    if (few_rows) {
      if (problem.score_replaces || !find_rows_of_keys(k, problem.k_scale, problem.dim_k, block, *k_rows)) {
        const float *keys = find_keys(k, problem.k_scale, first, problem.dim_k, problem.dim_k, k_copy, block, &block.k_stride);
        set_rows_of_keys(keys, block.k_stride, block, *k_rows);
        block.k = keys;
      }
      if (!find_rows_of_keys(v, problem.v_scale, problem.dim_v, block, *v_rows)) {
        load_values(block);
        set_rows_of_keys(block.v, block.v_stride, block, *v_rows);
      }
      if (keys_are_cold) find_rows_ahead(block, limit);
    } else {
      block.k = find_keys(k, problem.k_scale, first, problem.dim_k, whole_steps<Simd>(problem.dim_k),
                          reinterpret_cast<Key *>(k_copy), block, &block.k_stride);
      load_values(block);
    }
    block.padded[0] = block.padded[1] = nullptr;
  }

  // The block's values as floats.
  void load_values(Block &block) const {
    block.v = find_keys(call->v, call->v_scale, block.first, call->dim_v, call->dim_v, v_copy, block, &block.v_stride);
  }

  // Where each of the block's keys lies; false where some cannot be loaded from there.
  bool find_rows_of_keys(const Tensor &t, const Tensor &scale, int64_t dim, const Block &block, KeyRows &found) const {
    if (!loads_in_place<Simd>(t, dim)) return false;
    found.dtype = t.dtype;
    found.bytes = keys_are_cold ? larger(row_bytes(t.dtype, dim), 1) : 0;
    found.ahead = found.bytes ? static_cast<int32_t>(clamp(tuning->ahead_bytes / found.bytes, kKeyTile, kMostAhead)) : 0;
    list_rows(t, block.begin + block.first, block.begin + block.keys, found.row + block.first);
    if (scale.data == nullptr) return true;
    for (int64_t key = block.first; key < block.keys;) {
      const KeyRun run = run_of_keys(block.begin + key);
      const int64_t count = smaller(run.keys, block.keys - key), stride = scale.stride[2];
      const float *first = reinterpret_cast<const float *>(key_of(scale, run, 0));
      if (stride == 1)
        __builtin_memcpy(found.scale + key, first, static_cast<size_t>(count) * sizeof(float));
      else
        for (int64_t j = 0; j < count; ++j) found.scale[key + j] = first[j * stride];
      key += count;
    }
    return true;
  }
  // What is fetched behind the keys of the block are its values, and behind these the keys that come next, before `limit`.
  void find_rows_ahead(const Block &block, int64_t limit) const {
    for (int64_t j = 0; j < k_rows->ahead; ++j)
      k_rows->row[block.keys + j] = v_rows->row[smaller(block.first + j, block.keys - 1)];
    if (v_rows->bytes == 0) return;
    const int64_t next = block.begin + block.keys, end = k_rows->bytes ? smaller(next + kMostAhead, limit) : next;
    list_rows(call->k, next, end, v_rows->row + block.keys);
    for (int64_t key = end - block.begin; key < block.keys + kMostAhead; ++key) v_rows->row[key] = v_rows->row[key - 1];
  }
  void list_rows(const Tensor &t, int64_t key, int64_t end, const char **row) const {
    const int64_t stride = t.stride[2] * element_bytes(t.dtype);
    while (key < end) {
      const KeyRun run = run_of_keys(key);
      const char *first = key_of(t, run, 0);
      const int64_t count = smaller(run.keys, end - key);
      for (int64_t j = 0; j < count; ++j) row[j] = first + j * stride;
      row += count;
      key += count;
    }
  }
  static void set_rows_of_keys(const float *first, int64_t stride, const Block &block, KeyRows &found) {
    found.dtype = FOVEA_F32;
    found.ahead = 0;
    found.bytes = 0;
    for (int64_t key = block.first; key < block.keys; ++key)
      found.row[key] = reinterpret_cast<const char *>(first + key * stride);
  }

  // The keys from `key` on, which some row may see.
  KeyRun run_of_keys(int64_t key) const {
    if (call->page_size == 0) return {rows.batch, rows.first_key + key, rows.kv_len - key};
    const int64_t page = key / call->page_size, slot = key % call->page_size;
    return {call->block_table[rows.batch * call->block_table_stride + page], slot, call->page_size - slot};
  }
  // Where key j of a run lies.
  char *key_of(const Tensor &t, const KeyRun &run, int64_t j) const {
    return element(t, run.entry * t.stride[0] + rows.head_kv * t.stride[1] + (run.slot + j) * t.stride[2]);
  }

  // Where the block's keys are as Elements, those from `first` on, in rows of padded_dim: as the caller has them, or in a copy.
  template <class Element>
  const Element *find_keys(const Tensor &t, const Tensor &scale, int64_t first, int64_t dim, int64_t padded_dim, Element *copy,
                           const Block &block, int64_t *stride) const {
    KeyRun run = run_of_keys(block.begin + first);
    if (in_place<Element>(t, dim) && dim == padded_dim && first + run.keys >= block.keys) {
      *stride = t.stride[2];
      return reinterpret_cast<const Element *>(key_of(t, run, -first));
    }
    *stride = padded_dim;
    for (int64_t key = first;;) {
      const int64_t count = smaller(run.keys, block.keys - key);
      const float *scales = scale.data ? reinterpret_cast<const float *>(key_of(scale, run, 0)) : nullptr;
      load_rows<Simd>(key_of(t, run, 0), t, scales, scale.stride[2], count, dim, copy + key * padded_dim, padded_dim);
      if ((key += count) >= block.keys) return copy;
      run = run_of_keys(block.begin + key);
    }
  }

  // The first block from the one that begins at `begin` on of which some row may see a key.
  int64_t next_block(const Panel<Simd> &panel, int64_t begin) const {
    for (; begin < panel.most_limit; begin += kBlockKeys) {
      if (mask_map.bits == nullptr || (describe(panel, begin) & kMapPermits)) return begin;
    }
    return kNoBlock;
  }

  unsigned describe(const Panel<Simd> &panel, int64_t begin) const {
    const int64_t group = call->group, row = rows.row_begin + panel.first_row, last = row + panel.rows - 1;
    const bool one_query = row / group == last / group;
    const int64_t head = rows.head_kv * group;
    return describe_block(mask_map, head + (one_query ? row % group : 0), head + (one_query ? last % group + 1 : group),
                          row / group, last / group, begin / kBlockKeys);
  }

  float sink(int64_t row) const {
    if (call->sinks == nullptr) return kNoKeys;
    return call->sinks[rows.head_kv * call->group + (rows.row_begin + row) % call->group];
  }

  // The sink joins the sum that a row is divided by.
  void add_sink(Panel<Simd> &panel, int r) const {
    SoftmaxState<Simd> &state = panel.state;
    state.unit[r] = 1.0f;
    if (call->sinks == nullptr || state.max[r] < kLowest) return;
    const double sum = static_cast<double>(state.divide[r]) + sink_weight(sink(panel.first_row + r), state.max[r], state.step);
    if (sum > kLargeSum) state.unit[r] = kLargeSumUnit;
    state.divide[r] = static_cast<float>(sum * static_cast<double>(state.unit[r]));
  }
};

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
