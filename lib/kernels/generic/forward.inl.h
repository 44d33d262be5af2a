// The forward pass of one task: a block of rows of one key-value head, over some chunks of keys. Loops: block of keys, then panel of
// rows, so that a block of K and V is used by all panels of the task while it is in cache. One panel and one block at a time: scores and
// their softmax (block_scores.inl.h), the product with V (value.inl.h, few_values.inl.h).
#pragma once
#include "kernels/generic/block_scores.inl.h"
#include "kernels/generic/few_values.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

template <class Simd>
class Forward {
  static constexpr int L = Simd::kLanes;
  static constexpr int kRows = Panel<Simd>::kRows;

 public:
  static int64_t scratch_bytes(const Problem *problem, const Tuning *tuning, int64_t rows) {
    Task<Simd> task;
    task.carve(*problem, *tuning, rows, nullptr);
    return task.arena.used;
  }

  static void forward(const ForwardTask *task) {
    Forward f;
    f.task_.begin(*task->problem, *task->tuning, task->rows, task->scratch, task->mask_map, true);
    f.task_.keys_are_cold = task->keys_are_cold;
    f.run_chunks(*task);
    if (task->partials == nullptr) f.write_results();
  }

  static void merge(const MergeTask *task) {
    Forward f;
    f.task_.begin(*task->problem, *task->tuning, task->rows, task->scratch, task->mask_map,
                  task->problem->weights.data != nullptr);
    f.merge_partials(*task);
    f.write_results();
  }

 private:
  void run_chunks(const ForwardTask &task) {
    int64_t most_limit = 0;
    for (int64_t i = 0; i < task_.panel_count; ++i) {
      Panel<Simd> &panel = task_.panels[i];
      most_limit = larger(most_limit, panel.most_limit);
      panel.next = task_.next_block(panel, larger(panel.first / kBlockKeys * kBlockKeys, task.chunk_begin * task.chunk_keys));
    }
    for (int64_t c = task.chunk_begin; c < task.chunk_end; ++c) {
      const int64_t chunk_end = smaller((c + 1) * task.chunk_keys, task_.rows.kv_len);
      const Partial *partial = task.partials ? task.partials + (c - task.chunk_begin) : nullptr;
      begin_chunks(partial);
      for (;;) {
        int64_t begin = kNoBlock, first = kNoBlock, count = 0;
        for (int64_t i = 0; i < task_.panel_count; ++i) {
          if (task_.panels[i].next > begin) continue;
          if (task_.panels[i].next < begin) begin = task_.panels[i].next, first = kNoBlock, count = 0;
          first = smaller(first, task_.panels[i].first);
          ++count;
        }
        if (begin >= chunk_end) break;
        Block block;
        task_.load_block(begin, smaller(begin + kBlockKeys, smaller(chunk_end, most_limit)), most_limit, larger(first - begin, 0),
                         block);
        look_ahead(task, block.begin + block.keys, most_limit, count * ((block.keys + kKeyTile - 1) / kKeyTile));
        for (int64_t i = 0; i < task_.panel_count; ++i) {
          if (task_.panels[i].next != begin) continue;
          if (task_.call->mask.data) look_ahead_in_mask(i, begin);
          select_step<Simd::kPanelVectors>(task_.panels[i], block, chunk_end, partial != nullptr);
        }
      }
      if (partial) store_partial(*partial);
    }
  }

  void begin_chunks(const Partial *partial) {
    for (int64_t i = 0; i < task_.panel_count; ++i) {
      Panel<Simd> &panel = task_.panels[i];
      begin_chunk(panel.state, panel.vectors);
      panel.chunk_started = false;
      if (partial == nullptr) continue;
      for (int r = 0; r < panel.rows; ++r) panel.sum[r] = partial->value + (panel.first_row + r) * task_.call->dim_v;
    }
  }

  void store_partial(const Partial &partial) {
    for (int64_t i = 0; i < task_.panel_count; ++i) {
      const Panel<Simd> &panel = task_.panels[i];
      for (int r = 0; r < panel.rows; ++r) {
        partial.max[panel.first_row + r] = panel.state.chunk_max[r];
        partial.sum[panel.first_row + r] = panel.state.chunk_sum[r] + panel.state.chunk_low[r];
        for (int64_t d = 0; d < task_.call->dim_v && !panel.chunk_started; ++d) panel.sum[r][d] = 0.0f;
      }
    }
  }

  // What comes after a block that ends at key `end`: the next block of this task, or what the next task begins with.
  void look_ahead(const ForwardTask &task, int64_t end, int64_t most_limit, int64_t tiles) {
    const Problem &problem = *task_.call;
    ahead_.clear();
    if (end < most_limit) {
      if (task.keys_are_cold && !task_.few_rows) fetch_keys(task_.rows, end, smaller(most_limit - end, kBlockKeys));
    } else if (task.next) {
      const RowRange &next = *task.next;
      if (next.batch != task_.rows.batch || next.head_kv != task_.rows.head_kv)
        fetch_keys(next, 0, smaller(next.kv_len, kBlockKeys));
      if (problem.group == 1) {
        fetch_rows(problem.q, problem.dim_k, next, next.first_query + next.row_begin, next.row_end - next.row_begin);
        fetch_rows(problem.out, problem.dim_v, next, next.first_query + next.row_begin, next.row_end - next.row_begin);
      }
    }
    ahead_.spread(tiles);
  }
  // The mask of the panel whose turn is next: its rows are too many, too far apart, for the processor to see where they go.
  void look_ahead_in_mask(int64_t panel, int64_t begin) {
    const Tensor &mask = task_.call->mask;
    const bool last = panel + 1 == task_.panel_count;
    const Panel<Simd> &next = task_.panels[last ? 0 : panel + 1];
    const int64_t bytes = element_bytes(mask.dtype);
    ahead_.scatter(next.mask, mask.stride[3] == 1 ? next.rows : 0, (last ? begin + kBlockKeys : begin) * bytes,
                   kBlockKeys * bytes);
  }
  // Pages lie anywhere; where the next one does is known when its keys are needed.
  void fetch_keys(const RowRange &rows, int64_t begin, int64_t keys) {
    if (task_.call->page_size) return;
    fetch_rows(task_.call->k, task_.call->dim_k, rows, rows.first_key + begin, keys);
    fetch_rows(task_.call->v, task_.call->dim_v, rows, rows.first_key + begin, keys);
  }
  void fetch_rows(const Tensor &t, int64_t dim, const RowRange &rows, int64_t begin, int64_t count) {
    if (dim > 1 && t.stride[3] > 1) return;
    ahead_.add(element(t, rows.batch * t.stride[0] + rows.head_kv * t.stride[1] + begin * t.stride[2]), row_bytes(t.dtype, dim),
               t.stride[2] * element_bytes(t.dtype), count);
  }

  template <int NV>
  void select_step(Panel<Simd> &panel, Block &block, int64_t chunk_end, bool store) {
    if constexpr (NV > 1) {
      if (panel.vectors < NV) return select_step<NV - 1>(panel, block, chunk_end, store);
    }
    step<NV>(panel, block, chunk_end, store);
  }

  template <int NV>
  void step(Panel<Simd> &panel, Block &block, int64_t chunk_end, bool store) {
    SoftmaxState<Simd> &state = panel.state;
    BlockScores<Simd, NV> scores(task_, panel, block);
    scores.compute(ahead_);
    panel.next = task_.next_block(panel, block.begin + kBlockKeys);

    const bool chunk_done = panel.next >= chunk_end;
    ValueJob job;
    job.p = task_.p;
    job.p_stride = scores.p_stride();
    job.v = block.v;
    job.v_stride = block.v_stride;
    job.dim_v = task_.call->dim_v;
    job.key_begin = panel.key_begin;
    job.key_end = panel.key_end;
    job.exact_rows = scores.excludes();
    job.mark_excluded = BlockScores<Simd, NV>::mark_excluded;
    job.step = &scores;
    job.sum = panel.sum;
    job.sum_load = panel.chunk_started;
    job.sum_store = store || !chunk_done;
    job.out = panel.out;
    job.out_load = panel.started;
    job.out_divide = panel.next == kNoBlock;
    job.keep = state.keep;
    job.take = state.take;
    job.divide = state.divide;
    job.unit = task_.call->sinks ? state.unit : nullptr;
    if (!job.sum_store) {
      if (panel.started)
        fold_chunk(state, NV);
      else
        fold_first_chunk(state, NV);
      for (int r = 0; r < panel.rows && job.out_divide && job.unit; ++r) task_.add_sink(panel, r);
      panel.started = true;
    }
    panel.chunk_started = true;
    if (task_.few_rows) {
      if (multiply_few_values<Simd>(job, *task_.v_rows, panel.rows, task_.value_sums)) return;
      task_.load_values(block);
      job.v = block.v;
      job.v_stride = block.v_stride;
    }
    multiply_values<Simd>(job, panel.rows);
  }

  static float first_lane(typename Simd::Vector v) {
    alignas(64) float lanes[L];
    Simd::store(lanes, v);
    return lanes[0];
  }

  // Row by row, in the order and with the operations of a task that owns its rows.
  void merge_partials(const MergeTask &task) {
    for (int64_t i = 0; i < task_.panel_count; ++i) {
      Panel<Simd> &panel = task_.panels[i];
      panel.started = true;
      for (int r = 0; r < panel.rows; ++r) {
        const int64_t row = panel.first_row + r;
        alignas(64) float keep[kMaxChunks][L], take[kMaxChunks][L];
        Fold<Simd> f;
        f.max = Simd::set1(kNoKeys);
        f.sum = f.sum_low = Simd::set1(0.0f);
        for (int64_t c = 0; c < task.chunks; ++c) {
          fold<Simd>(f, Simd::set1(panel.state.step), Simd::set1(task.partials[c].max[row]),
                     Simd::set1(task.partials[c].sum[row]));
          Simd::store(keep[c], f.keep);
          Simd::store(take[c], f.take);
        }
        panel.state.max[r] = first_lane(f.max);
        panel.state.sum[r] = first_lane(f.sum);
        panel.state.sum_low[r] = first_lane(f.sum_low);
        panel.state.divide[r] = first_lane(divisor<Simd>(Simd::add(f.sum, f.sum_low)));
        task_.add_sink(panel, r);
        const auto divide = Simd::set1(panel.state.divide[r]), unit = Simd::set1(panel.state.unit[r]);
        for (int64_t d = 0; d < task_.call->dim_v; d += L) {
          const int n = static_cast<int>(smaller(L, task_.call->dim_v - d));
          const auto tail = Simd::tail(n % L);
          auto out = Simd::set1(0.0f);
          for (int64_t c = 0; c < task.chunks; ++c) {
            const float *value = task.partials[c].value + row * task_.call->dim_v + d;
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
    const Problem &problem = *task_.call;
    const int64_t dim_v = problem.dim_v;
    int64_t row[kRows];
    for (int64_t i = 0; i < task_.panel_count; ++i) {
      Panel<Simd> &panel = task_.panels[i];
      for (int r = 0; r < panel.rows && !panel.started; ++r) {
        for (int64_t d = 0; d < dim_v; ++d) panel.out[r][d] = 0.0f;
      }
      if (task_.out_copy) {
        task_.find_rows(panel, problem.out.stride, task_.rows.first_query, row);
        for (int r = 0; r < panel.rows; ++r)
          store_elements<Simd>(panel.out[r], dim_v, element(problem.out, row[r]), problem.out.dtype, problem.out.stride[3]);
      }
      if (problem.lse) {
        task_.find_rows(panel, problem.lse_stride, task_.rows.first_query, row);
        for (int r = 0; r < panel.rows; ++r) {
          problem.lse[row[r]] = log_sum_exp(panel.state.max[r], panel.state.step, panel.state.sum[r] + panel.state.sum_low[r],
                                            task_.sink(panel.first_row + r));
        }
      }
    }
    if (problem.weights.data) write_weights();
  }

  // The softmax matrix, on request: the scores once more, now that every row's maximum and sum are known. Keys that no row permits
  // are not read.
  void write_weights() {
    const Tensor &weights = task_.call->weights;
    for (int64_t i = 0; i < task_.panel_count; ++i) {
      Panel<Simd> &panel = task_.panels[i];
      int64_t row[kRows];
      task_.find_rows(panel, weights.stride, 0, row);
      for (int r = 0; r < panel.rows; ++r) {
        float *out = static_cast<float *>(weights.data) + row[r];
        for (int64_t j = 0; j < task_.call->seq_kv; ++j) out[j * weights.stride[3]] = 0.0f;
      }
      for (int64_t begin = task_.next_block(panel, panel.first / kBlockKeys * kBlockKeys); begin != kNoBlock;
           begin = task_.next_block(panel, begin + kBlockKeys)) {
        Block block;
        task_.load_block(begin, smaller(begin + kBlockKeys, panel.most_limit), panel.most_limit, larger(panel.first - begin, 0),
                         block);
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
    const Tensor &weights = task_.call->weights;
    BlockScores<Simd, NV> scores(task_, panel, block);
    const KeyRange &range = scores.range();
    scores.finish_scores(range.first, range.keys, task_.p + range.first * kWidth);
    const float *marks = scores.excludes() ? scores.find_excluded() : nullptr;
    int64_t row[kRows];
    task_.find_rows(panel, weights.stride, 0, row);
    for (int r = 0; r < panel.rows; ++r) {
      float *out = static_cast<float *>(weights.data) + row[r] + block.begin * weights.stride[3];
      const auto max = finite_reference<Simd>(Simd::set1(panel.state.max[r])), step = Simd::set1(panel.state.step);
      const auto sum = Simd::set1(panel.state.divide[r]), unit = Simd::set1(task_.call->sinks ? panel.state.unit[r] : 1.0f);
      for (int64_t key = panel.key_begin[r]; key < panel.key_end[r]; key += L) {
        const int64_t n = smaller(L, panel.key_end[r] - key);
        alignas(64) float weight[L] = {};
        for (int64_t j = 0; j < n; ++j) weight[j] = task_.p[(key + j) * kWidth + r];
        const auto e = Simd::exp2(Simd::mul(Simd::sub(Simd::load(weight), max), step));
        Simd::store(weight, Simd::div(Simd::mul(e, unit), sum));
        for (int64_t j = 0; j < n; ++j) {
          const bool excluded = marks && marks[(key + j - range.first) * kWidth + r] < kLowest;
          out[(key + j) * weights.stride[3]] = excluded ? 0.0f : weight[j];
        }
      }
    }
  }

  Task<Simd> task_;
  Ahead ahead_;
};

template <class Simd>
constexpr ForwardKernel make_forward_kernel(const char *name, Tuning defaults) {
  return {name,
          {Panel<Simd>::kRows, Simd::kLanes, Simd::kKeyTile},
          defaults,
          Forward<Simd>::scratch_bytes,
          Forward<Simd>::forward,
          Forward<Simd>::merge,
          map_mask};
}

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
