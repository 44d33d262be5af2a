// The forward pass of one task: a block of rows of one key-value head, over some chunks of keys. Loops: block of keys, then panel of
// rows, so that a block of K and V is used by all panels of the task while it is in cache. One panel and one block at a time:
// scores (score.inl.h), their softmax (softmax.inl.h), the product with V (value.inl.h).
#pragma once
#include "kernels/generic/softmax.inl.h"
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

constexpr int64_t kLineFloats = 16;  // a cache line of 64 bytes

FOVEA_INLINE bool dense_rows(const Tensor &t, int64_t dim) { return dim <= 1 || t.stride[3] == 1; }
FOVEA_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
FOVEA_INLINE int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : smaller(x, high); }

template <class Simd>
struct Panel {
  static constexpr int kRows = Simd::kPanelVectors * Simd::kLanes;
  SoftmaxState<Simd> state;
  const float *queries;  // packed: [dim_k][vectors * kLanes], times scale * log2(e)
  float *out[kRows];     // a row's output, or its place in scratch where the output's dims are strided
  float *sum[kRows];     // a row's sums of the current chunk, where they are stored
  int64_t limit[kRows];  // keys [0, limit) are permitted
  int64_t least_limit, most_limit;
  int32_t key_end[kRows];
  int64_t first_row;  // in the task
  int rows, vectors;
  bool started;  // some chunk is folded into out
};

// A block of keys as the tiles read it.
struct Block {
  const float *k, *v;
  int64_t k_stride, v_stride;
  int64_t begin, keys;
  const float *last_keys;  // the last tile, padded to kKeyTile rows, where the block does not fill it
};

// Memory that will be read soon, fetched a few lines at a time between tiles: the misses of a new head cost a short call 3 to 6 % of its
// time otherwise, and a burst of fetches would delay the reads of the tile at hand.
class Ahead {
 public:
  void clear() { count_ = 0; }
  void add(const float *first, int64_t dim, int64_t stride, int64_t rows) { streams_[count_++] = {first, dim, stride, rows, 0}; }
  // Deals everything out over so many calls of fetch().
  void spread(int64_t calls) {
    for (int i = 0; i < count_; ++i) streams_[i].rows_per_call = (streams_[i].rows + calls - 1) / calls;
  }
  FOVEA_INLINE void fetch() {
    for (int i = 0; i < count_; ++i) {
      Stream &s = streams_[i];
      for (int64_t r = 0; r < s.rows_per_call && s.rows > 0; ++r, --s.rows, s.at += s.stride) {
        for (int64_t d = 0; d < s.dim; d += kLineFloats) __builtin_prefetch(s.at + d, 0, 2);
      }
    }
  }

 private:
  struct Stream {
    const float *at;
    int64_t dim, stride, rows, rows_per_call;
  };
  Stream streams_[4];  // keys, values, queries, outputs
  int count_;
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
    f.run_chunks(*task);
    if (task->partials == nullptr) f.write_results();
  }

  static void merge(const MergeTask *task) {
    Forward f;
    f.begin(*task->problem, task->rows, task->scratch, task->problem->weights.data != nullptr);
    f.merge_partials(*task);
    f.write_results();
  }

 private:
  void carve(const Problem &problem, int64_t rows, void *scratch) {
    problem_ = &problem;
    arena_ = {static_cast<char *>(scratch), 0};
    const int64_t vectors = (rows + L - 1) / L;
    const int64_t panel_vectors = problem.causal ? Simd::kCausalPanelVectors : Simd::kPanelVectors;
    panel_count_ = (vectors + panel_vectors - 1) / panel_vectors;
    panels_ = arena_.take<Panel<Simd>>(panel_count_);
    // Depends on the problem alone, not on the rows of a task, so that a row's bits do not depend on how tasks are cut.
    dims_in_lanes_ = problem.seq_q * problem.group <= kFewRows;
    queries_ = arena_.take<float>(dims_in_lanes_ ? rows * padded_dim<Simd>(problem.dim_k) : vectors * L * problem.dim_k);
    p_ = arena_.take<float>(kBlockKeys * kRows);
    last_keys_ = arena_.take<float>(kKeyTile * problem.dim_k);
    k_ = dense_rows(problem.k, problem.dim_k) ? nullptr : arena_.take<float>(kBlockKeys * problem.dim_k);
    v_ = dense_rows(problem.v, problem.dim_v) ? nullptr : arena_.take<float>(kBlockKeys * problem.dim_v);
    sums_ = problem.seq_kv <= kBlockKeys * kMaxChunks ? nullptr : arena_.take<float>(rows * problem.dim_v);
    out_ = dense_rows(problem.out, problem.dim_v) ? nullptr : arena_.take<float>(rows * problem.dim_v);
  }

  void begin(const Problem &problem, const RowRange &rows, void *scratch, bool scores_wanted) {
    rows_ = rows;
    const int64_t count = rows.row_end - rows.row_begin;
    carve(problem, count, scratch);
    scale_ = static_cast<float>(static_cast<double>(problem.scale) * 0x1.71547652b82fep+0 /* log2(e) */);
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

  // Where a tensor [batch, head, seq, dim] has the rows of the task, one after the other, without a multiplication or division a row.
  class RowWalk {
   public:
    RowWalk(const Forward &f, const Tensor &t, int64_t row) : group_(f.problem_->group), head_stride_(t.stride[1]) {
      row += f.rows_.row_begin;
      query_ = row / group_;
      head_ = row % group_;
      next_query_ = t.stride[2] - (group_ - 1) * head_stride_;
      at_ = static_cast<float *>(t.data) + f.rows_.batch * t.stride[0] + (f.rows_.head_kv * group_ + head_) * head_stride_ +
            query_ * t.stride[2];
    }
    float *at() const { return at_; }
    int64_t query() const { return query_; }
    void advance() {
      if (++head_ < group_) {
        at_ += head_stride_;
      } else {
        head_ = 0;
        ++query_;
        at_ += next_query_;
      }
    }

   private:
    int64_t group_, head_stride_, next_query_, query_, head_;
    float *at_;
  };

  void begin_panel(Panel<Simd> &panel, float *queries) {
    const Problem &problem = *problem_;
    const float *q[kRows];
    RowWalk q_row(*this, problem.q, panel.first_row), out_row(*this, problem.out, panel.first_row);
    for (int r = 0; r < panel.rows; ++r, q_row.advance(), out_row.advance()) {
      q[r] = q_row.at();
      panel.out[r] = out_ ? out_ + (panel.first_row + r) * problem.dim_v : out_row.at();
      panel.sum[r] = sums_ ? sums_ + (panel.first_row + r) * problem.dim_v : nullptr;
      panel.limit[r] = problem.causal ? clamp(q_row.query() + problem.causal_offset + 1, 0, rows_.kv_len) : rows_.kv_len;
    }
    panel.least_limit = panel.limit[0];  // limits grow with the query
    panel.most_limit = panel.limit[panel.rows - 1];
    // Lanes behind the last row repeat it, so that they never stand out.
    for (int r = panel.rows; r < panel.vectors * L; ++r) {
      q[r] = q[panel.rows - 1];
      panel.limit[r] = panel.most_limit;
    }
    for (int i = 0; i < panel.vectors * L; i += L) {
      Simd::store(panel.state.max + i, Simd::set1(kNoKeys));
      Simd::store(panel.state.sum + i, Simd::set1(0.0f));
      Simd::store(panel.state.sum_low + i, Simd::set1(0.0f));
    }
    panel.started = false;
    if (queries == nullptr) return;
    if (dims_in_lanes_)
      pack_rows(q, panel.rows, queries);
    else
      pack_queries(q, panel.vectors, queries);
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

  void load_block(int64_t begin, int64_t end, Block &block) {
    const Problem &problem = *problem_;
    const Tensor &k = problem.k, &v = problem.v;
    block.begin = begin;
    block.keys = end - begin;
    block.k = static_cast<const float *>(k.data) + rows_.batch * k.stride[0] + rows_.head_kv * k.stride[1] + begin * k.stride[2];
    block.v = static_cast<const float *>(v.data) + rows_.batch * v.stride[0] + rows_.head_kv * v.stride[1] + begin * v.stride[2];
    block.k_stride = k.stride[2];
    block.v_stride = v.stride[2];
    if (k_) {
      gather(block.k, k, block.keys, problem.dim_k, k_);
      block.k = k_;
      block.k_stride = problem.dim_k;
    }
    if (v_) {
      gather(block.v, v, block.keys, problem.dim_v, v_);
      block.v = v_;
      block.v_stride = problem.dim_v;
    }
    const int64_t rest = block.keys % kKeyTile;
    block.last_keys = last_keys_;
    if (rest == 0 || dims_in_lanes_) return;
    const float *last = block.k + (block.keys - rest) * block.k_stride;
    for (int64_t r = 0; r < kKeyTile; ++r) {
      for (int64_t d = 0; d < problem.dim_k; ++d)
        last_keys_[r * problem.dim_k + d] = r < rest ? last[r * block.k_stride + d] : 0.0f;
    }
  }

  static void gather(const float *from, const Tensor &t, int64_t keys, int64_t dim, float *to) {
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t d = 0; d < dim; ++d) to[j * dim + d] = from[j * t.stride[2] + d * t.stride[3]];
    }
  }

  void run_chunks(const ForwardTask &task) {
    for (int64_t c = task.chunk_begin; c < task.chunk_end; ++c) {
      const int64_t chunk_begin = c * task.chunk_keys;
      const int64_t chunk_end = smaller(chunk_begin + task.chunk_keys, rows_.kv_len);
      const Partial *partial = task.partials ? task.partials + (c - task.chunk_begin) : nullptr;
      int64_t most_limit = 0;
      for (int64_t i = 0; i < panel_count_; ++i) {
        Panel<Simd> &panel = panels_[i];
        begin_chunk(panel.state, panel.vectors);
        if (partial) {
          for (int r = 0; r < panel.rows; ++r) panel.sum[r] = partial->value + (panel.first_row + r) * problem_->dim_v;
        }
        if (panel.most_limit > most_limit) most_limit = panel.most_limit;
      }
      for (int64_t begin = chunk_begin; begin < smaller(chunk_end, most_limit); begin += kBlockKeys) {
        Block block;
        load_block(begin, smaller(begin + kBlockKeys, smaller(chunk_end, most_limit)), block);
        look_ahead(task, block.begin + block.keys, most_limit, panel_count_ * ((block.keys + kKeyTile - 1) / kKeyTile));
        for (int64_t i = 0; i < panel_count_; ++i) {
          if (panels_[i].most_limit > begin) select_step<Simd::kPanelVectors>(panels_[i], block, chunk_begin, chunk_end, partial);
        }
      }
      if (partial) store_partial_sums(*partial);
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
        fetch_rows(problem.q, problem.dim_k, next, next.row_begin, next.row_end - next.row_begin);
        fetch_rows(problem.out, problem.dim_v, next, next.row_begin, next.row_end - next.row_begin);
      }
    }
    ahead_.spread(tiles);
  }
  void fetch_keys(const RowRange &rows, int64_t begin, int64_t keys) {
    fetch_rows(problem_->k, problem_->dim_k, rows, begin, keys);
    fetch_rows(problem_->v, problem_->dim_v, rows, begin, keys);
  }
  void fetch_rows(const Tensor &t, int64_t dim, const RowRange &rows, int64_t begin, int64_t count) {
    if (!dense_rows(t, dim)) return;
    const float *head = static_cast<const float *>(t.data) + rows.batch * t.stride[0] + rows.head_kv * t.stride[1];
    ahead_.add(head + begin * t.stride[2], dim, t.stride[2], count);
  }

  template <int NV>
  void select_step(Panel<Simd> &panel, const Block &block, int64_t chunk_begin, int64_t chunk_end, const Partial *partial) {
    if constexpr (NV > 1) {
      if (panel.vectors < NV) return select_step<NV - 1>(panel, block, chunk_begin, chunk_end, partial);
    }
    step<NV>(panel, block, chunk_begin, chunk_end, partial);
  }

  // Where kKeyTile keys from `key` on may be read: in the block, or in the padded copy of its last tile.
  struct KeyRows {
    const float *k;
    int64_t stride;
  };
  KeyRows key_rows(const Block &block, int64_t key) const {
    if (key + kKeyTile <= block.keys) return {block.k + key * block.k_stride, block.k_stride};
    return {block.last_keys, problem_->dim_k};
  }

  template <int NV, TileKind kKind>
  void exponentiate(Panel<Simd> &panel, const Block &block, int64_t key, float *p) {
    const KeyRows rows = key_rows(block, key);
    SoftmaxState<Simd> &state = panel.state;
    for (int t = 0; t < kKeyTile; t += Simd::kKeyTile) {
      exponentiate_tile<Simd, NV, kKind>(rows.k + t * rows.stride, rows.stride, panel.queries, problem_->dim_k, state.chunk_max,
                                         state.run_sum, p + t * NV * L, state.limit, static_cast<float>(key + t));
    }
  }

  template <int NV>
  void score_keys(const Panel<Simd> &panel, const Block &block, int64_t key, float *score) {
    if (dims_in_lanes_) {
      return score_tile_by_dims<Simd>(block.k + key * block.k_stride, block.k_stride, smaller(kKeyTile, block.keys - key),
                                      panel.queries, panel.rows, problem_->dim_k, score);
    }
    const KeyRows rows = key_rows(block, key);
    for (int t = 0; t < kKeyTile; t += Simd::kKeyTile)
      score_tile<Simd, NV>(rows.k + t * rows.stride, rows.stride, panel.queries, problem_->dim_k, score + t * NV * L);
  }

  template <int NV>
  void step(Panel<Simd> &panel, const Block &block, int64_t chunk_begin, int64_t chunk_end, const Partial *partial) {
    constexpr int kWidth = NV * L;
    SoftmaxState<Simd> &state = panel.state;
    const int64_t keys = smaller(block.keys, panel.most_limit - block.begin);
    const int64_t full_keys = panel.least_limit - block.begin;  // permitted by every row
    for (int r = 0; r < kWidth; ++r) {
      panel.key_end[r] = static_cast<int32_t>(full_keys >= keys ? keys : clamp(panel.limit[r] - block.begin, 0, keys));
      state.limit[r] = static_cast<float>(panel.key_end[r]);
    }

    ChunkSums<Simd> before;
    save_sums(state, NV, before);
    bool referenced = every_row_has_reference(state, NV);
    for (int64_t key = 0; key < keys; key += kKeyTile) {
      ahead_.fetch();
      float *p = p_ + key * kWidth;
      const bool whole = key + kKeyTile <= smaller(full_keys, block.keys);
      if (referenced && !dims_in_lanes_) {
        if (whole)
          exponentiate<NV, TileKind::kWhole>(panel, block, key, p);
        else
          exponentiate<NV, TileKind::kLimited>(panel, block, key, p);
      } else if (whole && !dims_in_lanes_ && Simd::kKeyTile == kKeyTile && block.begin + key == chunk_begin) {
        exponentiate<NV, TileKind::kFirst>(panel, block, key, p);
        referenced = every_row_has_reference(state, NV);
      } else {
        score_keys<NV>(panel, block, key, p);
        softmax_tile(p, key, state, NV);
        if (!referenced) referenced = every_row_has_reference(state, NV);
      }
      if (key + kKeyTile < keys && run_ends<Simd>(key + kKeyTile)) end_run(state, NV);
    }
    end_run(state, NV);
    if (!sums_in_range(state, NV)) redo<NV>(panel, block, keys, before, block.begin > chunk_begin);

    const int64_t panel_end = smaller(chunk_end, panel.most_limit);
    const bool chunk_done = block.begin + keys >= panel_end;
    ValueJob job;
    job.p = p_;
    job.p_stride = kWidth;
    job.v = block.v;
    job.v_stride = block.v_stride;
    job.dim_v = problem_->dim_v;
    job.key_end = panel.key_end;
    job.exact_rows = full_keys < keys;
    job.sum = panel.sum;
    job.sum_load = block.begin > chunk_begin;
    job.sum_store = partial != nullptr || !chunk_done;
    job.out = panel.out;
    job.out_load = panel.started;
    job.out_divide = block.begin + keys >= panel.most_limit;
    job.keep = state.keep;
    job.take = state.take;
    job.divide = state.divide;
    if (!job.sum_store) {
      fold_chunk(state, NV);
      panel.started = true;
    }
    multiply_values<Simd>(job, panel.rows);
  }

  // The block again, with the true maximum for the rows whose sums went out of range; the others come out as they were.
  template <int NV>
  __attribute__((noinline)) void redo(Panel<Simd> &panel, const Block &block, int64_t keys, const ChunkSums<Simd> &before,
                                      bool rescale_sums) {
    constexpr int kWidth = NV * L;
    for (int64_t key = 0; key < keys; key += kKeyTile) {
      score_keys<NV>(panel, block, key, p_ + key * kWidth);
      exclude_keys(p_ + key * kWidth, key, panel.state, NV);
    }
    alignas(64) float rescale[kRows];
    raise_references(p_, keys, before, panel.state, NV, rescale);
    for (int64_t key = 0; key < keys; key += kKeyTile) {
      exponentiate_scores(p_ + key * kWidth, panel.state, NV);
      if (key + kKeyTile < keys && run_ends<Simd>(key + kKeyTile)) end_run(panel.state, NV);
    }
    end_run(panel.state, NV);
    if (!rescale_sums) return;
    for (int r = 0; r < panel.rows; ++r) {
      if (rescale[r] == 1.0f) continue;
      for (int64_t d = 0; d < problem_->dim_v; ++d) panel.sum[r][d] *= rescale[r];
    }
  }

  void store_partial_sums(const Partial &partial) {
    for (int64_t i = 0; i < panel_count_; ++i) {
      const Panel<Simd> &panel = panels_[i];
      for (int r = 0; r < panel.rows; ++r) {
        partial.max[panel.first_row + r] = panel.state.chunk_max[r];
        partial.sum[panel.first_row + r] = panel.state.chunk_sum[r] + panel.state.chunk_low[r];
      }
    }
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
        const auto divide = divisor<Simd>(Simd::add(f.sum, f.sum_low));
        panel.state.max[r] = first_lane(f.max);
        panel.state.sum[r] = first_lane(f.sum);
        panel.state.sum_low[r] = first_lane(f.sum_low);
        panel.state.divide[r] = first_lane(divide);
        for (int64_t d = 0; d < problem_->dim_v; d += L) {
          const int n = static_cast<int>(smaller(L, problem_->dim_v - d));
          const auto tail = Simd::tail(n % L);
          auto out = Simd::set1(0.0f);
          for (int64_t c = 0; c < task.chunks; ++c) {
            if (panel.limit[r] <= c * task.chunk_keys) break;  // no key of the chunk is the row's: its values may not be written
            const float *value = task.partials[c].value + row * problem_->dim_v + d;
            const auto x = n == L ? Simd::load(value) : Simd::load_tail(value, tail);
            out = Simd::fma(out, Simd::load(keep[c]), Simd::mul(x, Simd::load(take[c])));
          }
          out = normalise<Simd>(out, divide);
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
    for (int64_t i = 0; i < panel_count_; ++i) {
      Panel<Simd> &panel = panels_[i];
      for (int r = 0; r < panel.rows && !panel.started; ++r) {
        for (int64_t d = 0; d < dim_v; ++d) panel.out[r][d] = 0.0f;
      }
      if (out_) {
        RowWalk row(*this, problem.out, panel.first_row);
        for (int r = 0; r < panel.rows; ++r, row.advance()) {
          for (int64_t d = 0; d < dim_v; ++d) row.at()[d * problem.out.stride[3]] = panel.out[r][d];
        }
      }
      if (problem.lse) {
        const Tensor lse = {problem.lse, {problem.lse_stride[0], problem.lse_stride[1], problem.lse_stride[2], 0}, 0};
        RowWalk row(*this, lse, panel.first_row);
        for (int r = 0; r < panel.rows; ++r, row.advance())
          *row.at() = log_sum_exp(panel.state.max[r], panel.state.sum[r] + panel.state.sum_low[r]);
      }
    }
    if (problem.weights.data) write_weights();
  }

  // The softmax matrix, on request: the scores once more, now that every row's maximum and sum are known. Keys that no row permits
  // are not read.
  void write_weights() {
    const int64_t most_limit = panels_[panel_count_ - 1].most_limit;
    for (int64_t begin = 0; begin < most_limit; begin += kBlockKeys) {
      Block block;
      load_block(begin, smaller(begin + kBlockKeys, most_limit), block);
      for (int64_t i = 0; i < panel_count_; ++i) {
        if (panels_[i].most_limit > begin) select_weights<Simd::kPanelVectors>(panels_[i], block);
      }
    }
    const Tensor &weights = problem_->weights;
    for (int64_t i = 0; i < panel_count_; ++i) {
      RowWalk row(*this, weights, panels_[i].first_row);
      for (int r = 0; r < panels_[i].rows; ++r, row.advance()) {
        for (int64_t j = panels_[i].limit[r]; j < rows_.kv_len; ++j) row.at()[j * weights.stride[3]] = 0.0f;
      }
    }
  }

  template <int NV>
  void select_weights(Panel<Simd> &panel, const Block &block) {
    if constexpr (NV > 1) {
      if (panel.vectors < NV) return select_weights<NV - 1>(panel, block);
    }
    constexpr int kWidth = NV * L;
    const Tensor &weights = problem_->weights;
    for (int64_t key = 0; key < smaller(block.keys, panel.most_limit - block.begin); key += kKeyTile) {
      score_keys<NV>(panel, block, key, p_);
      RowWalk row(*this, weights, panel.first_row);
      for (int r = 0; r < panel.rows; ++r, row.advance()) {
        float *out = row.at() + (block.begin + key) * weights.stride[3];
        const auto max = finite_reference<Simd>(Simd::set1(panel.state.max[r]));
        const auto sum = Simd::set1(panel.state.divide[r]);
        alignas(64) float weight[kKeyTile < L ? L : kKeyTile] = {};
        for (int j = 0; j < kKeyTile; ++j) weight[j] = p_[j * kWidth + r];
        for (int j = 0; j < kKeyTile; j += L)
          Simd::store(weight + j, Simd::div(Simd::exp2(Simd::sub(Simd::load(weight + j), max)), sum));
        for (int64_t j = 0; j < smaller(kKeyTile, panel.limit[r] - block.begin - key); ++j)
          out[j * weights.stride[3]] = weight[j];
      }
    }
  }

  const Problem *problem_;
  RowRange rows_;
  float scale_;
  bool dims_in_lanes_;
  Arena arena_;
  Ahead ahead_;
  int64_t panel_count_;
  Panel<Simd> *panels_;
  float *queries_, *p_, *last_keys_;
  float *k_, *v_, *sums_, *out_;  // null where the tensor's own memory serves
};

template <class Simd, int kGroupPanels>
constexpr ForwardKernel make_forward_kernel(const char *name) {
  return {name,
          {Panel<Simd>::kRows, Simd::kCausalPanelVectors * Simd::kLanes, Simd::kLanes, Simd::kKeyTile, kGroupPanels},
          Forward<Simd>::scratch_bytes,
          Forward<Simd>::forward,
          Forward<Simd>::merge};
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
