// The forward pass of one task: a block of rows of one key-value head, over some chunks of keys. Loops: block of keys, then panel of
// rows, so that a block of K and V is used by all panels of the task while it is in cache. One panel and one block at a time:
// scores (score.inl.h), what else the call does to them (shape.inl.h, mask.inl.h), their softmax (softmax.inl.h), the product with V
// (value.inl.h).
#pragma once
#include "kernels/generic/ahead.inl.h"
#include "kernels/generic/mask.inl.h"
#include "kernels/generic/rows.inl.h"
#include "kernels/generic/shape.inl.h"
#include "kernels/generic/value.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// Hands out parts of a task's scratch. With base null it only counts.
struct Arena {
  char *base;
  int64_t used;
  template <class T>
  T *take(int64_t count) {
    T *part = reinterpret_cast<T *>(base + used);
    used += (count * static_cast<int64_t>(sizeof(T)) + 63) & ~int64_t{63};
    return part;
  }
};

// Up to so many rows share a key-value head, scores are computed with the dims in the lanes. With them in the lanes a score costs
// dim_k / kLanes multiply-adds and a sum over lanes, otherwise dim_k of a vector that these rows do not fill.
constexpr int64_t kFewRows = 4;

constexpr double kMostSoftcap = 0x1p120;
constexpr double kLog2E = 0x1.71547652b82fep+0;

FOVEA_INLINE bool dense_rows(const Tensor &t, int64_t dim) { return dim <= 1 || t.stride[3] == 1; }

// A block of keys as the tiles read it.
struct Block {
  const float *k, *v;  // of the block's first key
  int64_t k_stride, v_stride;
  int64_t begin, keys;
  int64_t first;           // keys before it are not read
  const float *padded[2];  // copies of the tiles that hold the first and the last key, other keys as zeros; null: not made yet
};

template <class Simd>
class Forward {
  static constexpr int L = Simd::kLanes;
  static constexpr int kRows = Panel<Simd>::kRows;

 public:
  static int64_t scratch_bytes(const Problem *problem, int64_t rows) {
    Forward f;
    f.carve(*problem, rows, nullptr);
    return f.arena_.used;
  }

  static void forward(const ForwardTask *task) {
    Forward f;
    f.begin(*task->problem, task->rows, task->scratch, true);
    f.mask_map_ = task->mask_map;
    f.run_chunks(*task);
    if (task->partials == nullptr) f.write_results();
  }

  static void merge(const MergeTask *task) {
    Forward f;
    f.begin(*task->problem, task->rows, task->scratch, task->problem->weights.data != nullptr);
    f.mask_map_ = task->mask_map;
    f.merge_partials(*task);
    f.write_results();
  }

 private:
  void carve(const Problem &problem, int64_t rows, void *scratch) {
    problem_ = &problem;
    arena_ = {static_cast<char *>(scratch), 0};
    const bool windowed = problem.window_left != kUnbounded || problem.window_right != kUnbounded;
    const bool reads_queries = problem.score && problem.score_replaces;
    const int64_t vectors = (rows + L - 1) / L;
    const int64_t panel_vectors = windowed ? Simd::kWindowPanelVectors : Simd::kPanelVectors;
    panel_count_ = (vectors + panel_vectors - 1) / panel_vectors;
    panels_ = arena_.take<Panel<Simd>>(panel_count_);
    const int64_t by_dims = smaller(rows, kFewRows) * padded_dim<Simd>(problem.dim_k);
    queries_ = arena_.take<float>(larger(by_dims, vectors * L * problem.dim_k));
    p_ = arena_.take<float>(kBlockKeys * kRows);
    padded_ = arena_.take<float>(2 * kKeyTile * problem.dim_k);
    k_ = dense_rows(problem.k, problem.dim_k) ? nullptr : arena_.take<float>(kBlockKeys * problem.dim_k);
    v_ = dense_rows(problem.v, problem.dim_v) ? nullptr : arena_.take<float>(kBlockKeys * problem.dim_v);
    sums_ = problem.seq_kv <= kBlockKeys * kMaxChunks ? nullptr : arena_.take<float>(rows * problem.dim_v);
    out_ = dense_rows(problem.out, problem.dim_v) ? nullptr : arena_.take<float>(rows * problem.dim_v);
    marks_ = windowed || problem.mask.data || problem.score ? arena_.take<float>(kBlockKeys * kRows) : nullptr;
    bias_ = problem.mask.data ? arena_.take<float>(kRows * kBlockKeys) : nullptr;
    rows_of_q_ = reads_queries && !dense_rows(problem.q, problem.dim_k) ? arena_.take<float>(kRows * problem.dim_k) : nullptr;
  }

  void begin(const Problem &problem, const RowRange &rows, void *scratch, bool scores_wanted) {
    rows_ = rows;
    const int64_t count = rows.row_end - rows.row_begin;
    carve(problem, count, scratch);
    mask_map_ = {};
    // Depends on the row's own entry alone, not on the rows of a task, so that a row's bits do not depend on how tasks are cut.
    dims_in_lanes_ = rows.q_len * problem.group <= kFewRows;
    // The unit of scores: where no function of the caller sees them, log2(e) is in the packed queries already.
    const double unit = problem.score ? 1 : kLog2E;
    shape_.unit = static_cast<float>(unit);
    scale_ = static_cast<float>(static_cast<double>(problem.scale) * unit);
    // Its reciprocal shall not be subnormal; scores that such a cap would change are far outside of the error bound.
    const double softcap = problem.softcap < kMostSoftcap ? problem.softcap : kMostSoftcap;
    shape_.cap = static_cast<float>(softcap * unit);
    shape_.cap_to_log2 = softcap == 0 ? 0 : static_cast<float>(2 * kLog2E / (softcap * unit));
    shape_.keeps_excluded = problem.score && problem.score_replaces;
    shape_.alibi = problem.alibi_slopes != nullptr;
    always_shaped_ = shape_.cap != 0 || shape_.alibi || problem.score;

    int64_t row = 0, vectors = (count + L - 1) / L;
    float *queries = queries_;
    for (int64_t i = 0; i < panel_count_; ++i) {
      Panel<Simd> &panel = panels_[i];
      const int64_t left = panel_count_ - i;
      panel.vectors = static_cast<int>(vectors / left + (vectors % left != 0));
      panel.first_row = row;
      panel.rows = static_cast<int>(smaller(panel.vectors * L, count - row));
      panel.queries = queries;
      begin_panel(panel, scores_wanted ? queries : nullptr);
      queries += panel.vectors * L * problem.dim_k;
      vectors -= panel.vectors;
      row += panel.rows;
    }
  }

  void find_rows(const Panel<Simd> &panel, const int64_t *stride, int64_t first_query, int64_t *offset) const {
    row_offsets(*problem_, rows_, stride, first_query, panel.first_row, panel.rows, panel.vectors * L, offset);
  }

  void begin_panel(Panel<Simd> &panel, float *queries) {
    const Problem &problem = *problem_;
    int64_t offset[kRows];
    if (out_) {
      for (int r = 0; r < panel.rows; ++r) panel.out[r] = out_ + (panel.first_row + r) * problem.dim_v;
    } else {
      find_rows(panel, problem.out.stride, rows_.first_query, offset);
      for (int r = 0; r < panel.rows; ++r) panel.out[r] = static_cast<float *>(problem.out.data) + offset[r];
    }
    for (int r = 0; r < panel.rows && sums_; ++r) panel.sum[r] = sums_ + (panel.first_row + r) * problem.dim_v;
    set_windows(panel, problem, rows_);
    if (shape_.alibi) begin_alibi(panel);
    if (problem.mask.data) {
      find_rows(panel, problem.mask.stride, 0, offset);
      for (int r = 0; r < panel.vectors * L; ++r)
        panel.mask[r] = static_cast<const char *>(problem.mask.data) + offset[r] * mask_element_bytes(problem.mask.dtype);
    }
    for (int i = 0; i < panel.vectors * L; i += L) {
      Simd::store(panel.state.max + i, Simd::set1(kNoKeys));
      Simd::store(panel.state.sum + i, Simd::set1(0.0f));
      Simd::store(panel.state.sum_low + i, Simd::set1(0.0f));
    }
    panel.started = false;
    if (queries == nullptr) return;
    // Lanes behind the last row repeat it, so that they never stand out.
    find_rows(panel, problem.q.stride, rows_.first_query, offset);
    const float *q[kRows];
    for (int r = 0; r < panel.vectors * L; ++r) q[r] = static_cast<const float *>(problem.q.data) + offset[r];
    if (dims_in_lanes_)
      pack_rows(q, panel.rows, queries);
    else
      pack_queries(q, panel.vectors, queries);
  }

  void begin_alibi(Panel<Simd> &panel) const {
    const Problem &problem = *problem_;
    for (int r = 0; r < panel.vectors * L; ++r) {
      const int64_t row = rows_.row_begin + panel.first_row + smaller(r, panel.rows - 1);
      panel.slope[r] = problem.alibi_slopes[rows_.head_kv * problem.group + row % problem.group] * shape_.unit;
      panel.position[r] = row / problem.group + (problem.bottom_right ? rows_.kv_len - rows_.q_len : 0);
    }
  }

  void pack_queries(const float *const *q, int vectors, float *packed) const {
    const int64_t dim_k = problem_->dim_k, stride = problem_->q.stride[3];
    const int width = vectors * L;
    const auto scale = Simd::set1(scale_);
    for (int v = 0; v < vectors; ++v) {
      int64_t d = 0;
      if (dense_rows(problem_->q, dim_k)) {
        for (; d + kColumns <= dim_k; d += kColumns) {
          typename Simd::Vector x[kColumns];
          Simd::load_columns(q + v * L, d, x);
          FOVEA_UNROLL
          for (int i = 0; i < kColumns; ++i) Simd::store(packed + (d + i) * width + v * L, Simd::mul(x[i], scale));
        }
      }
      for (; d < dim_k; ++d) {
        for (int i = 0; i < L; ++i) packed[d * width + v * L + i] = q[v * L + i][d * stride] * scale_;
      }
    }
  }

  void pack_rows(const float *const *q, int rows, float *packed) const {
    const int64_t dim_k = problem_->dim_k, padded = padded_dim<Simd>(dim_k), stride = problem_->q.stride[3];
    for (int r = 0; r < rows; ++r, packed += padded) {
      for (int64_t d = 0; d < padded; ++d) packed[d] = d < dim_k ? q[r][d * stride] * scale_ : 0.0f;
    }
  }

  void load_block(int64_t begin, int64_t end, int64_t first, Block &block) {
    const Problem &problem = *problem_;
    const Tensor &k = problem.k, &v = problem.v;
    const int64_t key = rows_.first_key + begin;
    block.begin = begin;
    block.keys = end - begin;
    block.first = first;
    block.k = static_cast<const float *>(k.data) + rows_.batch * k.stride[0] + rows_.head_kv * k.stride[1] + key * k.stride[2];
    block.v = static_cast<const float *>(v.data) + rows_.batch * v.stride[0] + rows_.head_kv * v.stride[1] + key * v.stride[2];
    block.k_stride = k.stride[2];
    block.v_stride = v.stride[2];
    if (k_) {
      gather(block.k, k, first, block.keys, problem.dim_k, k_);
      block.k = k_;
      block.k_stride = problem.dim_k;
    }
    if (v_) {
      gather(block.v, v, first, block.keys, problem.dim_v, v_);
      block.v = v_;
      block.v_stride = problem.dim_v;
    }
    block.padded[0] = block.padded[1] = nullptr;
  }

  static void gather(const float *from, const Tensor &t, int64_t first, int64_t end, int64_t dim, float *to) {
    for (int64_t j = first; j < end; ++j) {
      for (int64_t d = 0; d < dim; ++d) to[j * dim + d] = from[j * t.stride[2] + d * t.stride[3]];
    }
  }

  // The first block from the one that begins at `begin` on of which some row may see a key.
  int64_t next_block(const Panel<Simd> &panel, int64_t begin) const {
    for (; begin < panel.most_limit; begin += kBlockKeys) {
      if (mask_map_.bits == nullptr || (describe(panel, begin) & kMapPermits)) return begin;
    }
    return kNoBlock;
  }

  unsigned describe(const Panel<Simd> &panel, int64_t begin) const {
    const int64_t group = problem_->group, row = rows_.row_begin + panel.first_row, last = row + panel.rows - 1;
    const bool one_query = row / group == last / group;
    const int64_t head = rows_.head_kv * group;
    return describe_block(mask_map_, head + (one_query ? row % group : 0), head + (one_query ? last % group + 1 : group),
                          row / group, last / group, begin / kBlockKeys);
  }

  void run_chunks(const ForwardTask &task) {
    int64_t most_limit = 0;
    for (int64_t i = 0; i < panel_count_; ++i) {
      Panel<Simd> &panel = panels_[i];
      most_limit = larger(most_limit, panel.most_limit);
      panel.next = next_block(panel, larger(panel.first / kBlockKeys * kBlockKeys, task.chunk_begin * task.chunk_keys));
    }
    for (int64_t c = task.chunk_begin; c < task.chunk_end; ++c) {
      const int64_t chunk_end = smaller((c + 1) * task.chunk_keys, rows_.kv_len);
      const Partial *partial = task.partials ? task.partials + (c - task.chunk_begin) : nullptr;
      begin_chunks(partial);
      for (;;) {
        int64_t begin = kNoBlock, first = kNoBlock, count = 0;
        for (int64_t i = 0; i < panel_count_; ++i) {
          if (panels_[i].next > begin) continue;
          if (panels_[i].next < begin) begin = panels_[i].next, first = kNoBlock, count = 0;
          first = smaller(first, panels_[i].first);
          ++count;
        }
        if (begin >= chunk_end) break;
        Block block;
        load_block(begin, smaller(begin + kBlockKeys, smaller(chunk_end, most_limit)), larger(first - begin, 0), block);
        look_ahead(task, block.begin + block.keys, most_limit, count * ((block.keys + kKeyTile - 1) / kKeyTile));
        for (int64_t i = 0; i < panel_count_; ++i) {
          if (panels_[i].next == begin) select_step<Simd::kPanelVectors>(panels_[i], block, chunk_end, partial != nullptr);
        }
      }
      if (partial) store_partial(*partial);
    }
  }

  void begin_chunks(const Partial *partial) {
    for (int64_t i = 0; i < panel_count_; ++i) {
      Panel<Simd> &panel = panels_[i];
      begin_chunk(panel.state, panel.vectors);
      panel.chunk_started = false;
      if (partial == nullptr) continue;
      for (int r = 0; r < panel.rows; ++r) panel.sum[r] = partial->value + (panel.first_row + r) * problem_->dim_v;
    }
  }

  void store_partial(const Partial &partial) {
    for (int64_t i = 0; i < panel_count_; ++i) {
      const Panel<Simd> &panel = panels_[i];
      for (int r = 0; r < panel.rows; ++r) {
        partial.max[panel.first_row + r] = panel.state.chunk_max[r];
        partial.sum[panel.first_row + r] = panel.state.chunk_sum[r] + panel.state.chunk_low[r];
        for (int64_t d = 0; d < problem_->dim_v && !panel.chunk_started; ++d) panel.sum[r][d] = 0.0f;
      }
    }
  }

  // What comes after a block that ends at key `end`: the next block of this task, or what the next task begins with.
  void look_ahead(const ForwardTask &task, int64_t end, int64_t most_limit, int64_t tiles) {
    const Problem &problem = *problem_;
    ahead_.clear();
    if (end < most_limit) {
      if (task.keys_are_cold) fetch_keys(rows_, end, smaller(most_limit - end, kBlockKeys));
    } else if (task.next) {
      const RowRange &next = *task.next;
      if (next.batch != rows_.batch || next.head_kv != rows_.head_kv) fetch_keys(next, 0, smaller(next.kv_len, kBlockKeys));
      if (problem.group == 1) {
        fetch_rows(problem.q, problem.dim_k, next, next.first_query + next.row_begin, next.row_end - next.row_begin);
        fetch_rows(problem.out, problem.dim_v, next, next.first_query + next.row_begin, next.row_end - next.row_begin);
      }
    }
    ahead_.spread(tiles);
  }
  void fetch_keys(const RowRange &rows, int64_t begin, int64_t keys) {
    fetch_rows(problem_->k, problem_->dim_k, rows, rows.first_key + begin, keys);
    fetch_rows(problem_->v, problem_->dim_v, rows, rows.first_key + begin, keys);
  }
  void fetch_rows(const Tensor &t, int64_t dim, const RowRange &rows, int64_t begin, int64_t count) {
    if (!dense_rows(t, dim)) return;
    const float *head = static_cast<const float *>(t.data) + rows.batch * t.stride[0] + rows.head_kv * t.stride[1];
    ahead_.add(head + begin * t.stride[2], dim, t.stride[2], count);
  }

  template <int NV>
  void select_step(Panel<Simd> &panel, Block &block, int64_t chunk_end, bool store) {
    if constexpr (NV > 1) {
      if (panel.vectors < NV) return select_step<NV - 1>(panel, block, chunk_end, store);
    }
    step<NV>(panel, block, chunk_end, store);
  }

  // Which keys of a block a panel scores, counted from the block's start: tiles from `first` on, up to `keys`; those in
  // [whole_begin, whole_end) are in every row's window.
  struct KeyRange {
    int64_t first, keys, whole_begin, whole_end;
    bool shaped;  // scores are changed, or excluded by a mask
    bool whole(int64_t key) const { return whole_begin <= key && key + kKeyTile <= whole_end; }
  };
  KeyRange key_range(Panel<Simd> &panel, Block &block) {
    const Problem &problem = *problem_;
    KeyRange range;
    range.first = larger(panel.first - block.begin, 0) / kKeyTile * kKeyTile;
    range.keys = smaller(block.keys, panel.most_limit - block.begin);
    range.whole_begin = panel.most_begin - block.begin;
    range.whole_end = smaller(panel.least_limit - block.begin, block.keys);
    if (range.whole_begin <= range.first && range.keys <= range.whole_end) {
      set_key_ends(panel, range.first, range.keys);
    } else {
      for (int r = 0; r < panel.vectors * L; ++r) {
        int64_t begin = clamp(panel.begin[r] - block.begin, 0, range.keys),
                end = clamp(panel.limit[r] - block.begin, 0, range.keys);
        if (begin >= end) begin = kBlockKeys, end = 0;
        panel.key_begin[r] = static_cast<int32_t>(begin);
        panel.key_end[r] = static_cast<int32_t>(end);
        panel.state.begin[r] = static_cast<float>(begin);
        panel.state.limit[r] = static_cast<float>(end);
      }
    }
    may_rise_ = false;
    mask_matters_ = problem.mask.data && (mask_map_.bits == nullptr || (describe(panel, block.begin) & kMapChanges));
    range.shaped = always_shaped_ || mask_matters_;
    if (mask_matters_) read_mask(panel, block, range);
    if (shape_.alibi) set_distances(panel, block.begin);
    if (!every_row_has_reference(panel.state, panel.vectors)) expect_rise(panel, range);
    return range;
  }

  void set_distances(const Panel<Simd> &panel, int64_t begin) {
    for (int r = 0; r < panel.vectors * L; ++r) shape_.distance[r] = static_cast<float>(panel.position[r] - begin);
  }

  // What is added to scores may make them rise far above a reference taken from the first keys of a block: by how much that alone can be.
  void expect_rise(const Panel<Simd> &panel, const KeyRange &range) {
    may_rise_ = shape_.alibi || mask_matters_;
    if (!may_rise_) return;
    const auto zero = Simd::set1(0.0f), margin = Simd::set1(kRiseMargin);
    for (int i = 0; i < panel.vectors * L; i += L) {
      auto rise = zero;
      if (mask_matters_) rise = mask_rise(panel, range, i);
      if (shape_.alibi) rise = Simd::add(rise, alibi_rise(panel, i));
      rise = Simd::sub(rise, margin);
      Simd::store(shape_.rise + i, Simd::select_less(zero, rise, rise, zero));
    }
  }

  typename Simd::Vector alibi_rise(const Panel<Simd> &panel, int i) const {
    const auto distance = Simd::load(shape_.distance + i), first = Simd::load(panel.state.begin + i);
    const auto last = Simd::sub(Simd::load(panel.state.limit + i), Simd::set1(1.0f));
    auto nearest = Simd::select_less(distance, last, distance, last);
    nearest = Simd::select_less(nearest, first, first, nearest);
    const auto fall = Simd::sub(Simd::abs(Simd::sub(distance, first)), Simd::abs(Simd::sub(distance, nearest)));
    return Simd::mul(Simd::mul(Simd::load(panel.slope + i), fall), Simd::set1(static_cast<float>(kLog2E) / shape_.unit));
  }

  // How much higher the largest addition of the block is than that of the first tile that has any.
  typename Simd::Vector mask_rise(const Panel<Simd> &panel, const KeyRange &range, int i) const {
    MaskRise<Simd> rise = mask_rise_[i / L];
    const bool all_whole = range.whole_begin <= range.first && range.keys <= range.whole_end;
    if (!all_whole) {  // then a row's own keys count, which are not all of those that were read
      const int width = panel.vectors * L;
      const auto none = Simd::set1(kNoKeys), begin = Simd::load(panel.state.begin + i), limit = Simd::load(panel.state.limit + i);
      rise.clear();
      for (int64_t key = range.first; key < range.keys; key += kKeyTile) {
        typename Simd::Vector tile[kKeyTile];
        FOVEA_UNROLL
        for (int r = 0; r < kKeyTile; ++r) {
          const auto at = Simd::set1(static_cast<float>(key + r)), bias = Simd::load(bias_ + (key + r) * width + i);
          tile[r] = Simd::select_less(at, begin, none, Simd::select_less(at, limit, bias, none));
        }
        rise.add_tile(maximum<Simd, kKeyTile>(tile));
      }
    }
    // As it is added: see finish_vector().
    const auto unit = Simd::set1(static_cast<float>(kLog2E)), floor = Simd::set1(kLowestBias);
    return Simd::sub(Simd::mul(Simd::max(floor, rise.most), unit), Simd::mul(Simd::max(floor, rise.first), unit));
  }

  static void set_key_ends(Panel<Simd> &panel, int64_t begin, int64_t end) {
    for (int r = 0; r < panel.vectors * L; ++r) {
      panel.key_begin[r] = static_cast<int32_t>(begin);
      panel.key_end[r] = static_cast<int32_t>(end);
    }
    for (int i = 0; i < panel.vectors * L; i += L) {
      Simd::store(panel.state.begin + i, Simd::set1(static_cast<float>(begin)));
      Simd::store(panel.state.limit + i, Simd::set1(static_cast<float>(end)));
    }
  }

  // Where kKeyTile keys from `key` on may be read: in the block, or in a padded copy of its first or last tile.
  struct KeyRows {
    const float *k;
    int64_t stride;
  };
  KeyRows key_rows(Block &block, int64_t key) const {
    if (block.first <= key && key + kKeyTile <= block.keys) return {block.k + key * block.k_stride, block.k_stride};
    const int end = key < block.first ? 0 : 1;
    const int64_t dim_k = problem_->dim_k;
    if (block.padded[end] == nullptr) {
      float *padded = padded_ + end * kKeyTile * dim_k;
      for (int64_t j = 0; j < kKeyTile; ++j) {
        const bool present = block.first <= key + j && key + j < block.keys;
        for (int64_t d = 0; d < dim_k; ++d) padded[j * dim_k + d] = present ? block.k[(key + j) * block.k_stride + d] : 0.0f;
      }
      block.padded[end] = padded;
    }
    return {block.padded[end], dim_k};
  }

  template <int NV, TileKind kKind>
  bool exponentiate(Panel<Simd> &panel, Block &block, const KeyRange &range, int64_t key, float *p) {
    const KeyRows rows = key_rows(block, key);
    SoftmaxState<Simd> &state = panel.state;
    bool in_range = true;
    for (int t = 0; t < kKeyTile; t += Simd::kKeyTile) {
      TileWork<Simd> work;
      if constexpr (kKind == TileKind::kWorked) work = tile_work(panel, range, key, t, NV * L);
      in_range &= exponentiate_tile<Simd, NV, kKind>(rows.k + t * rows.stride, rows.stride, panel.queries, problem_->dim_k,
                                                     state.chunk_max, state.run_sum, p + t * NV * L, &work);
    }
    return in_range;
  }

  const float *rise() const { return may_rise_ ? shape_.rise : nullptr; }

  // Keys from `offset` on of the tile at `key`.
  TileWork<Simd> tile_work(const Panel<Simd> &panel, const KeyRange &range, int64_t key, int64_t offset, int width) {
    TileWork<Simd> work = {};
    work.shape = &shape_;
    work.slope = panel.slope;
    if (mask_matters_) work.bias = bias_ + (key + offset) * width;
    work.bias_stride = width;
    if (!range.whole(key)) work.begin = panel.state.begin, work.limit = panel.state.limit;
    work.rise = rise();
    work.key = key + offset;
    return work;
  }

  // All keys of the block from `key` on, where they do not fill a tile and every row permits them.
  template <int NV>
  void exponentiate_last(Panel<Simd> &panel, const Block &block, int64_t key, float *p) {
    SoftmaxState<Simd> &state = panel.state;
    for (; key < block.keys; key += Simd::kKeyTile, p += Simd::kKeyTile * NV * L) {
      const float *k = block.k + key * block.k_stride;
      if (key + Simd::kKeyTile <= block.keys) {
        exponentiate_tile<Simd, NV, TileKind::kWhole>(k, block.k_stride, panel.queries, problem_->dim_k, state.chunk_max,
                                                      state.run_sum, p, nullptr);
      } else {
        exponentiate_rest<Simd, NV>(block.keys - key, k, block.k_stride, panel.queries, problem_->dim_k, state.chunk_max,
                                    state.run_sum, p);
      }
    }
  }

  template <int NV>
  void score_keys(const Panel<Simd> &panel, Block &block, int64_t key, float *score) {
    if (dims_in_lanes_) {
      return score_tile_by_dims<Simd>(block.k + key * block.k_stride, block.k_stride, block.first - key, block.keys - key,
                                      panel.queries, panel.rows, problem_->dim_k, score);
    }
    const KeyRows rows = key_rows(block, key);
    for (int t = 0; t < kKeyTile; t += Simd::kKeyTile)
      score_tile<Simd, NV>(rows.k + t * rows.stride, rows.stride, panel.queries, problem_->dim_k, score + t * NV * L);
  }

  // The panel's mask for the keys of the range: bias_ is [key][width].
  void read_mask(const Panel<Simd> &panel, const Block &block, const KeyRange &range) {
    const int64_t first = larger(range.first, block.first), width = panel.vectors * L;
    for (int i = 0; i < width; i += L) {
      transpose_mask<Simd>(panel.mask + i, problem_->mask, block.begin + first, block.begin + range.keys,
                           bias_ + first * width + i, width, mask_rise_[i / L]);
    }
  }

  // The mask of the next block, a few rows at a time: there are too many of them, too far apart, for the processor to see where they go.
  void fetch_mask(const Panel<Simd> &panel, const Block &block, int64_t key) const {
    const Tensor &mask = problem_->mask;
    if (mask.stride[3] != 1) return;
    const int64_t bytes = mask_element_bytes(mask.dtype), tiles = kBlockKeys / kKeyTile, tile = key / kKeyTile;
    const int64_t next = (block.begin + kBlockKeys) * bytes;
    for (int64_t r = panel.rows * tile / tiles; r < panel.rows * (tile + 1) / tiles; ++r) {
      for (int64_t line = 0; line < kBlockKeys * bytes; line += kLineBytes) __builtin_prefetch(panel.mask[r] + next + line, 0, 2);
    }
  }

  // What the caller's function makes of the natural scores of all keys of the range, head by head.
  void call_score_function(const Panel<Simd> &panel, const Block &block, const KeyRange &range, int width, float *score) {
    const Problem &problem = *problem_;
    const int64_t group = problem.group, row = rows_.row_begin + panel.first_row, first = larger(range.first, block.first);
    fovea_score_tile tile = {};
    tile.row_stride = group;
    tile.col_stride = width;
    tile.cols = range.keys - first;
    tile.batch = rows_.batch;
    tile.col0 = block.begin + first;
    int64_t q_row[kRows];
    find_rows(panel, problem.q.stride, rows_.first_query, q_row);
    for (int64_t r = 0; r < smaller(group, panel.rows); ++r) {
      tile.score = score + (first - range.first) * width + r;
      tile.rows = (panel.rows - r + group - 1) / group;
      tile.head = rows_.head_kv * group + (row + r) % group;
      tile.row0 = (row + r) / group;
      if (problem.score_replaces) {
        tile.q = static_cast<const float *>(problem.q.data) + q_row[r];
        tile.ldq = problem.q.stride[2];
        if (rows_of_q_) {
          gather(tile.q, problem.q, 0, tile.rows, problem.dim_k, rows_of_q_);
          tile.q = rows_of_q_;
          tile.ldq = problem.dim_k;
        }
        tile.k = block.k + first * block.k_stride;
        tile.ldk = block.k_stride;
        tile.dim_k = problem.dim_k;
      }
      problem.score(problem.score_user, &tile);
    }
    // Lanes behind the last row repeat it here too.
    for (int64_t j = first - range.first; j < range.keys - range.first; ++j) {
      for (int r = panel.rows; r < width; ++r) score[j * width + r] = score[j * width + panel.rows - 1];
    }
  }

  // Finished scores of the tiles of keys [first, end): in log2 units, excluded ones -inf.
  template <int NV>
  void finish_scores(const Panel<Simd> &panel, Block &block, const KeyRange &range, int64_t first, int64_t end, float *score) {
    if (problem_->score && problem_->score_replaces) {
      call_score_function(panel, block, range, NV * L, score);
    } else {
      for (int64_t key = first; key < end; key += kKeyTile) score_keys<NV>(panel, block, key, score + (key - first) * NV * L);
    }
    work_on_scores<NV>(panel, block, range, first, end, score);
  }

  template <int NV>
  void work_on_scores(const Panel<Simd> &panel, Block &block, const KeyRange &range, int64_t first, int64_t end, float *score) {
    constexpr int kWidth = NV * L;
    const auto finish = [&](int64_t key, bool only_excludes) {
      TileWork<Simd> work = tile_work(panel, range, key, 0, kWidth);
      work.bias_only_excludes = only_excludes;
      if (range.shaped || work.begin) finish_tile(score + (key - first) * kWidth, kWidth, work);
    };
    for (int64_t key = first; key < end; key += kKeyTile) finish(key, false);
    if (problem_->score == nullptr) return;
    if (!problem_->score_replaces) call_score_function(panel, block, range, kWidth, score);
    to_log2<Simd>(score, (end - first + kKeyTile - 1) / kKeyTile * kKeyTile * kWidth);
    for (int64_t key = first; key < end; key += kKeyTile) finish(key, true);
  }

  template <int NV>
  void step(Panel<Simd> &panel, Block &block, int64_t chunk_end, bool store) {
    constexpr int kWidth = NV * L;
    SoftmaxState<Simd> &state = panel.state;
    const KeyRange range = key_range(panel, block);
    panel.next = next_block(panel, block.begin + kBlockKeys);

    ChunkState<Simd> before;
    if (panel.chunk_started) save_chunk(state, NV, before);
    const BlockSums sums = exponentiate_block<NV>(panel, block, range);
    if (sums != BlockSums::kInRange) redo<NV>(panel, block, range, before, sums == BlockSums::kOutOfRange);

    StepMarker marker = {this, &panel, &block, &range, false};
    const bool chunk_done = panel.next >= chunk_end;
    ValueJob job;
    job.p = p_;
    job.p_stride = kWidth;
    job.v = block.v;
    job.v_stride = block.v_stride;
    job.dim_v = problem_->dim_v;
    job.key_begin = panel.key_begin;
    job.key_end = panel.key_end;
    job.exact_rows = mask_matters_ || problem_->score || range.whole_begin > range.first || range.whole_end < range.keys;
    job.mark_excluded = mark_excluded<NV>;
    job.step = &marker;
    job.sum = panel.sum;
    job.sum_load = panel.chunk_started;
    job.sum_store = store || !chunk_done;
    job.out = panel.out;
    job.out_load = panel.started;
    job.out_divide = panel.next == kNoBlock;
    job.keep = state.keep;
    job.take = state.take;
    job.divide = state.divide;
    if (!job.sum_store) {
      if (panel.started)
        fold_chunk(state, NV);
      else
        fold_first_chunk(state, NV);
      if (job.out_divide && problem_->sinks) add_sinks(panel);
      panel.started = true;
    }
    panel.chunk_started = true;
    multiply_values<Simd>(job, panel.rows);
  }

  // The exponentials of a block, and their sums. kIncomplete: some row's sum is sure to go out of range, the rest was left.
  enum class BlockSums { kInRange, kOutOfRange, kIncomplete };
  template <int NV>
  BlockSums exponentiate_block(Panel<Simd> &panel, Block &block, const KeyRange &range) {
    constexpr int kWidth = NV * L;
    SoftmaxState<Simd> &state = panel.state;
    const bool scores_first = problem_->score != nullptr;
    if (scores_first) finish_scores<NV>(panel, block, range, range.first, range.keys, p_ + range.first * kWidth);
    // Tiles are fused where their scores need not be in memory. Their references are those of kKeyTile keys.
    const bool fused = !scores_first && !dims_in_lanes_, plain = fused && !range.shaped;
    bool untouched = !panel.chunk_started, referenced = !untouched && every_row_has_reference(state, NV);
    for (int64_t key = range.first; key < range.keys; key += kKeyTile) {
      ahead_.fetch();
      if (mask_matters_) fetch_mask(panel, block, key);
      float *p = p_ + key * kWidth;
      const bool whole = range.whole(key);
      if (plain && referenced && whole) {
        exponentiate<NV, TileKind::kWhole>(panel, block, range, key, p);
      } else if (plain && referenced && range.whole_begin <= key && range.whole_end == block.keys) {
        exponentiate_last<NV>(panel, block, key, p);
      } else if (plain && whole && untouched && Simd::kKeyTile == kKeyTile) {
        exponentiate<NV, TileKind::kFirst>(panel, block, range, key, p);
        referenced = every_row_has_reference(state, NV);
      } else if (fused && (referenced || Simd::kKeyTile == kKeyTile)) {
        if (!exponentiate<NV, TileKind::kWorked>(panel, block, range, key, p)) return BlockSums::kIncomplete;
        if (!referenced) referenced = every_row_has_reference(state, NV);
      } else {
        if (!scores_first) finish_scores<NV>(panel, block, range, key, smaller(key + kKeyTile, range.keys), p);
        if (!take_references(p, rise(), state, NV)) return BlockSums::kIncomplete;
        exponentiate_scores(p, state, NV);
        if (fused) referenced = every_row_has_reference(state, NV);
      }
      untouched = false;
      if (key + kKeyTile < range.keys && run_ends<Simd>(key + kKeyTile)) end_run(state, NV);
    }
    end_run(state, NV);
    return sums_in_range(state, NV, rise()) ? BlockSums::kInRange : BlockSums::kOutOfRange;
  }

  // The block again, with the true maximum for the rows whose sums went out of range; the others come out as they were. Where the sums are
  // not complete, rows that are sure to fail show by their maximum, and a second round finds the others.
  template <int NV>
  __attribute__((noinline)) void redo(Panel<Simd> &panel, Block &block, const KeyRange &range, ChunkState<Simd> &before,
                                      bool complete) {
    constexpr int kWidth = NV * L;
    SoftmaxState<Simd> &state = panel.state;
    alignas(64) float rescale[kRows], too_large[kRows], too_small[kRows];
    for (int r = 0; r < kWidth; ++r) {
      too_large[r] = too_small[r] = 0;
      if (!panel.chunk_started) before.max[r] = kNoKeys, before.sum[r] = before.low[r] = 0;
    }
    float *scores = p_ + range.first * kWidth;
    const int64_t tiles = (range.keys - range.first + kKeyTile - 1) / kKeyTile;
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < kWidth; i += L) {
        if (complete) {
          Simd::store(too_large + i, Simd::max(Simd::load(too_large + i), sum_too_large(state, i)));
          if (rise()) Simd::store(too_small + i, Simd::max(Simd::load(too_small + i), sum_too_small(state, i)));
        }
        Simd::store(state.chunk_max + i, Simd::load(before.max + i));
      }
      complete = true;
      finish_scores<NV>(panel, block, range, range.first, range.keys, scores);
      for (int64_t t = 0; t < tiles; ++t) take_references(scores + t * kKeyTile * kWidth, rise(), state, NV);
      move_references(scores, tiles, before, too_large, too_small, state, NV, rescale);
      for (int64_t t = 0; t < tiles; ++t) {
        exponentiate_scores(scores + t * kKeyTile * kWidth, state, NV);
        const int64_t next = range.first + (t + 1) * kKeyTile;
        if (next < range.keys && run_ends<Simd>(next)) end_run(state, NV);
      }
      end_run(state, NV);
      if (sums_in_range(state, NV, rise())) break;
    }
    if (!panel.chunk_started) return;
    for (int r = 0; r < panel.rows; ++r) {
      if (rescale[r] == 1.0f) continue;
      for (int64_t d = 0; d < problem_->dim_v; ++d) panel.sum[r][d] *= rescale[r];
    }
  }

  // What multiply_values() needs to tell excluded keys from those whose weight is 0: the block's scores once more, everything that is
  // permitted being 0 where no function of the caller decides it.
  struct StepMarker {
    Forward *forward;
    const Panel<Simd> *panel;
    Block *block;
    const KeyRange *range;
    bool done;
  };
  template <int NV>
  static __attribute__((noinline)) void mark_excluded(void *step) {
    StepMarker &marker = *static_cast<StepMarker *>(step);
    if (marker.done) return;
    marker.done = true;
    Forward &f = *marker.forward;
    const int64_t count = f.find_excluded<NV>(*marker.panel, *marker.block, *marker.range);
    float *p = f.p_ + marker.range->first * NV * L;
    for (int64_t i = 0; i < count; i += L)
      Simd::store(p + i, Simd::select_less(Simd::load(f.marks_ + i), Simd::set1(kLowest), Simd::set1(-0.0f), Simd::load(p + i)));
  }
  // marks_ becomes -inf for the excluded keys of the range and no other; returns how many floats of it are set.
  template <int NV>
  int64_t find_excluded(const Panel<Simd> &panel, Block &block, const KeyRange &range) {
    const int64_t count = (range.keys - range.first + kKeyTile - 1) / kKeyTile * kKeyTile * NV * L;
    if (problem_->score) {
      finish_scores<NV>(panel, block, range, range.first, range.keys, marks_);
    } else {
      for (int64_t i = 0; i < count; ++i) marks_[i] = 0;
      work_on_scores<NV>(panel, block, range, range.first, range.keys, marks_);
    }
    return count;
  }

  float sink(int64_t row) const {
    if (problem_->sinks == nullptr) return kNoKeys;
    return problem_->sinks[rows_.head_kv * problem_->group + (rows_.row_begin + row) % problem_->group];
  }

  void add_sinks(Panel<Simd> &panel) const {
    for (int r = 0; r < panel.rows; ++r) {
      add_sink(panel, r);
      panel.state.keep[r] *= panel.state.unit[r];
      panel.state.take[r] *= panel.state.unit[r];
    }
  }

  // The sink joins the sum that a row is divided by.
  void add_sink(Panel<Simd> &panel, int r) const {
    SoftmaxState<Simd> &state = panel.state;
    state.unit[r] = 1.0f;
    if (problem_->sinks == nullptr || state.max[r] < kLowest) return;
    const double sum = static_cast<double>(state.divide[r]) + sink_weight(sink(panel.first_row + r), state.max[r]);
    if (sum > kLargeSum) state.unit[r] = kLargeSumUnit;
    state.divide[r] = static_cast<float>(sum * static_cast<double>(state.unit[r]));
  }

  static float first_lane(typename Simd::Vector v) {
    alignas(64) float lanes[L];
    Simd::store(lanes, v);
    return lanes[0];
  }

  // Row by row, in the order and with the operations of a task that owns its rows.
  void merge_partials(const MergeTask &task) {
    for (int64_t i = 0; i < panel_count_; ++i) {
      Panel<Simd> &panel = panels_[i];
      panel.started = true;
      for (int r = 0; r < panel.rows; ++r) {
        const int64_t row = panel.first_row + r;
        alignas(64) float keep[kMaxChunks][L], take[kMaxChunks][L];
        Fold<Simd> f;
        f.max = Simd::set1(kNoKeys);
        f.sum = f.sum_low = Simd::set1(0.0f);
        for (int64_t c = 0; c < task.chunks; ++c) {
          fold<Simd>(f, Simd::set1(task.partials[c].max[row]), Simd::set1(task.partials[c].sum[row]));
          Simd::store(keep[c], f.keep);
          Simd::store(take[c], f.take);
        }
        panel.state.max[r] = first_lane(f.max);
        panel.state.sum[r] = first_lane(f.sum);
        panel.state.sum_low[r] = first_lane(f.sum_low);
        panel.state.divide[r] = first_lane(divisor<Simd>(Simd::add(f.sum, f.sum_low)));
        add_sink(panel, r);
        const auto divide = Simd::set1(panel.state.divide[r]), unit = Simd::set1(panel.state.unit[r]);
        for (int64_t d = 0; d < problem_->dim_v; d += L) {
          const int n = static_cast<int>(smaller(L, problem_->dim_v - d));
          const auto tail = Simd::tail(n % L);
          auto out = Simd::set1(0.0f);
          for (int64_t c = 0; c < task.chunks; ++c) {
            const float *value = task.partials[c].value + row * problem_->dim_v + d;
            const auto x = n == L ? Simd::load(value) : Simd::load_tail(value, tail);
            out = Simd::fma(out, Simd::load(keep[c]), Simd::mul(x, Simd::load(take[c])));
          }
          out = normalise<Simd>(Simd::mul(out, unit), divide);
          if (n == L)
            Simd::store(panel.out[r] + d, out);
          else
            Simd::store_tail(panel.out[r] + d, out, tail);
        }
      }
    }
  }

  // What remains once every row's output, maximum and sum are there.
  void write_results() {
    const Problem &problem = *problem_;
    const int64_t dim_v = problem.dim_v;
    int64_t row[kRows];
    for (int64_t i = 0; i < panel_count_; ++i) {
      Panel<Simd> &panel = panels_[i];
      for (int r = 0; r < panel.rows && !panel.started; ++r) {
        for (int64_t d = 0; d < dim_v; ++d) panel.out[r][d] = 0.0f;
      }
      if (out_) {
        find_rows(panel, problem.out.stride, rows_.first_query, row);
        for (int r = 0; r < panel.rows; ++r) {
          float *out = static_cast<float *>(problem.out.data) + row[r];
          for (int64_t d = 0; d < dim_v; ++d) out[d * problem.out.stride[3]] = panel.out[r][d];
        }
      }
      if (problem.lse) {
        find_rows(panel, problem.lse_stride, rows_.first_query, row);
        for (int r = 0; r < panel.rows; ++r) {
          problem.lse[row[r]] =
              log_sum_exp(panel.state.max[r], panel.state.sum[r] + panel.state.sum_low[r], sink(panel.first_row + r));
        }
      }
    }
    if (problem.weights.data) write_weights();
  }

  // The softmax matrix, on request: the scores once more, now that every row's maximum and sum are known. Keys that no row permits
  // are not read.
  void write_weights() {
    const Tensor &weights = problem_->weights;
    for (int64_t i = 0; i < panel_count_; ++i) {
      Panel<Simd> &panel = panels_[i];
      int64_t row[kRows];
      find_rows(panel, weights.stride, 0, row);
      for (int r = 0; r < panel.rows; ++r) {
        float *out = static_cast<float *>(weights.data) + row[r];
        for (int64_t j = 0; j < problem_->seq_kv; ++j) out[j * weights.stride[3]] = 0.0f;
      }
      for (int64_t begin = next_block(panel, panel.first / kBlockKeys * kBlockKeys); begin != kNoBlock;
           begin = next_block(panel, begin + kBlockKeys)) {
        Block block;
        load_block(begin, smaller(begin + kBlockKeys, panel.most_limit), larger(panel.first - begin, 0), block);
        select_weights<Simd::kPanelVectors>(panel, block);
      }
    }
  }

  template <int NV>
  void select_weights(Panel<Simd> &panel, Block &block) {
    if constexpr (NV > 1) {
      if (panel.vectors < NV) return select_weights<NV - 1>(panel, block);
    }
    constexpr int kWidth = NV * L;
    const Tensor &weights = problem_->weights;
    const KeyRange range = key_range(panel, block);
    float *scores = p_ + range.first * kWidth;
    finish_scores<NV>(panel, block, range, range.first, range.keys, scores);
    const bool some_excluded = mask_matters_ || problem_->score;
    if (some_excluded) find_excluded<NV>(panel, block, range);
    int64_t row[kRows];
    find_rows(panel, weights.stride, 0, row);
    for (int r = 0; r < panel.rows; ++r) {
      float *out = static_cast<float *>(weights.data) + row[r] + block.begin * weights.stride[3];
      const auto max = finite_reference<Simd>(Simd::set1(panel.state.max[r]));
      const auto sum = Simd::set1(panel.state.divide[r]), unit = Simd::set1(problem_->sinks ? panel.state.unit[r] : 1.0f);
      for (int64_t key = panel.key_begin[r]; key < panel.key_end[r]; key += L) {
        const int64_t n = smaller(L, panel.key_end[r] - key);
        alignas(64) float weight[L] = {};
        for (int64_t j = 0; j < n; ++j) weight[j] = p_[(key + j) * kWidth + r];
        Simd::store(weight, Simd::div(Simd::mul(Simd::exp2(Simd::sub(Simd::load(weight), max)), unit), sum));
        for (int64_t j = 0; j < n; ++j) {
          const bool excluded = some_excluded && marks_[(key + j - range.first) * kWidth + r] < kLowest;
          out[(key + j) * weights.stride[3]] = excluded ? 0.0f : weight[j];
        }
      }
    }
  }

  const Problem *problem_;
  RowRange rows_;
  MaskMap mask_map_;
  float scale_;
  bool dims_in_lanes_, always_shaped_;
  bool mask_matters_, may_rise_;  // of the panel and block at hand
  ScoreShape<Simd> shape_;
  MaskRise<Simd> mask_rise_[Simd::kPanelVectors];
  Arena arena_;
  Ahead ahead_;
  int64_t panel_count_;
  Panel<Simd> *panels_;
  float *queries_, *p_, *padded_, *marks_, *bias_;
  float *k_, *v_, *sums_, *out_, *rows_of_q_;  // null where the tensor's own memory serves
};

template <class Simd, int kGroupPanels>
constexpr ForwardKernel make_forward_kernel(const char *name) {
  return {name,
          {Panel<Simd>::kRows, Simd::kWindowPanelVectors * Simd::kLanes, Simd::kLanes, Simd::kKeyTile, kGroupPanels},
          Forward<Simd>::scratch_bytes,
          Forward<Simd>::forward,
          Forward<Simd>::merge,
          map_mask};
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
