// The scores of one panel of rows against one block of keys, and their exponentials.
#pragma once
#include "kernels/generic/ahead.inl.h"
#include "kernels/generic/task.inl.h"

namespace fovea::FOVEA_LEVEL {
namespace {

// Which keys of a block a panel scores, counted from the block's start: tiles from `first` on, up to `keys`; those in
// [whole_begin, whole_end) are in every row's window.
struct KeyRange {
  int64_t first, keys, whole_begin, whole_end;
  bool shaped;  // scores are changed, or excluded by a mask
  bool whole(int64_t key) const { return whole_begin <= key && key + kKeyTile <= whole_end; }
  bool all_whole() const { return whole_begin <= first && keys <= whole_end; }
  int64_t tiles() const { return (keys - first + kKeyTile - 1) / kKeyTile; }
};

template <class Simd, int NV>
class BlockScores {
  using Key = typename Simd::Dot::Key;
  static constexpr int L = Simd::kLanes, kWidth = NV * L, kRows = Panel<Simd>::kRows;
  static constexpr bool kMayBeFewRows = NV == 1;  // a vector holds all of few rows

 public:
  BlockScores(Task<Simd> &task, Panel<Simd> &panel, Block &block) : task_(task), panel_(panel), block_(block) {
    const Problem &problem = *task_.call;
    range_.first = larger(panel_.first - block_.begin, 0) / kKeyTile * kKeyTile;
    range_.keys = smaller(block_.keys, panel_.most_limit - block_.begin);
    range_.whole_begin = panel_.most_begin - block_.begin;
    range_.whole_end = smaller(panel_.least_limit - block_.begin, block_.keys);
    if (range_.all_whole()) {
      set_key_ends(range_.first, range_.keys);
    } else {
      for (int r = 0; r < kWidth; ++r) {
        int64_t begin = clamp(panel_.begin[r] - block_.begin, 0, range_.keys),
                end = clamp(panel_.limit[r] - block_.begin, 0, range_.keys);
        if (begin >= end) begin = kBlockKeys, end = 0;
        panel_.key_begin[r] = static_cast<int32_t>(begin);
        panel_.key_end[r] = static_cast<int32_t>(end);
        panel_.state.begin[r] = static_cast<float>(begin);
        panel_.state.limit[r] = static_cast<float>(end);
      }
    }
    mask_matters_ = problem.mask.data && (task_.mask_map.bits == nullptr || (task_.describe(panel_, block_.begin) & kMapChanges));
    range_.shaped = task_.always_shaped || mask_matters_;
    mask_excludes_ = mask_matters_ && read_mask();
    if (task_.shape.alibi) set_distances();
    may_rise_ = (task_.shape.alibi || mask_matters_) && !every_row_has_reference(panel_.state, NV);
    if (may_rise_) expect_rise();
  }

  const KeyRange &range() const { return range_; }

  // The weights of the block into task.p, and their sums into the panel's state.
  void compute(Ahead &ahead) {
    ChunkState<Simd> before;
    if (panel_.chunk_started) save_chunk(panel_.state, NV, before);
    const BlockSums sums = exponentiate_block(ahead);
    if (sums != BlockSums::kInRange) redo(before, sums == BlockSums::kOutOfRange);
  }

  // Of the weights: [key][p_stride].
  int64_t p_stride() const { return side_by_side() ? rows_by_dims<Simd>(panel_.rows) : kWidth; }

  // Finished scores of the tiles of keys [first, end), excluded ones -inf.
  void finish_scores(int64_t first, int64_t end, float *score) {
    if (task_.call->score && task_.call->score_replaces) {
      call_score_function(score);
    } else {
      for (int64_t key = first; key < end; key += kKeyTile) score_keys(key, score + (key - first) * kWidth);
    }
    work_on_scores(first, end, score);
  }

  // Some row excludes some of the keys that another permits.
  bool excludes() const { return mask_excludes_ || task_.call->score || !range_.all_whole(); }

  // What multiply_values() needs to tell excluded keys from those whose weight is 0.
  static __attribute__((noinline)) void mark_excluded(void *self) {
    BlockScores &scores = *static_cast<BlockScores *>(self);
    if (scores.marked_) return;
    scores.marked_ = true;
    float *marks = scores.find_excluded();
    const int64_t keys = scores.range_.tiles() * kKeyTile, stride = scores.p_stride();
    if (scores.side_by_side()) put_side_by_side<Simd>(marks, keys, static_cast<int>(stride), marks);
    float *p = scores.task_.p + scores.range_.first * stride;
    for (int64_t i = 0; i < keys * stride; i += L)
      Simd::store(p + i, Simd::select_less(Simd::load(marks + i), Simd::set1(kLowest), Simd::set1(-0.0f), Simd::load(p + i)));
  }

  // Like p, from range().first on: -inf for the excluded keys and no other. The scores once more, everything permitted being 0 where no
  // function of the caller decides it.
  float *find_excluded() {
    float *marks = task_.marks;
    if (task_.call->score) {
      finish_scores(range_.first, range_.keys, marks);
    } else {
      for (int64_t i = 0; i < range_.tiles() * kKeyTile * kWidth; ++i) marks[i] = 0;
      work_on_scores(range_.first, range_.keys, marks);
    }
    return marks;
  }

 private:
  void set_distances() {
    for (int r = 0; r < kWidth; ++r) task_.shape.distance[r] = static_cast<float>(panel_.position[r] - block_.begin);
  }

  // What is added to scores may make them rise far above a reference taken from the first keys of a block: by how much that alone can be.
  void expect_rise() {
    const auto zero = Simd::set1(0.0f), margin = Simd::set1(kRiseMargin / panel_.state.step);
    for (int i = 0; i < kWidth; i += L) {
      auto rise = zero;
      if (mask_matters_) rise = mask_rise(i);
      if (task_.shape.alibi) rise = Simd::add(rise, alibi_rise(i));
      rise = Simd::sub(rise, margin);
      Simd::store(task_.shape.rise + i, Simd::select_less(zero, rise, Simd::clamp(rise, 0.0f, kMostRise), zero));
    }
  }

  typename Simd::Vector alibi_rise(int i) const {
    const auto distance = Simd::load(task_.shape.distance + i), first = Simd::load(panel_.state.begin + i);
    const auto last = Simd::sub(Simd::load(panel_.state.limit + i), Simd::set1(1.0f));
    auto nearest = Simd::select_less(distance, last, distance, last);
    nearest = Simd::select_less(nearest, first, first, nearest);
    const auto fall = Simd::sub(Simd::abs(Simd::sub(distance, first)), Simd::abs(Simd::sub(distance, nearest)));
    return Simd::mul(Simd::load(panel_.slope + i), fall);
  }

  // How much higher the largest addition of the block is than that of the first tile that has any.
  typename Simd::Vector mask_rise(int i) const {
    BiasRange<Simd> rise = bias_range_[i / L];
    if (!range_.all_whole()) {  // then a row's own keys count, which are not all of those that were read
      const auto none = Simd::set1(kNoKeys), begin = Simd::load(panel_.state.begin + i),
                 limit = Simd::load(panel_.state.limit + i);
      rise.clear();
      for (int64_t key = range_.first; key < range_.keys; key += kKeyTile) {
        typename Simd::Vector tile[kKeyTile];
        FOVEA_UNROLL
        for (int r = 0; r < kKeyTile; ++r) {
          const auto at = Simd::set1(static_cast<float>(key + r)), bias = Simd::load(task_.bias + (key + r) * kWidth + i);
          tile[r] = Simd::select_less(at, begin, none, Simd::select_less(at, limit, bias, none));
        }
        rise.add_tile(tile);
      }
    }
    // As it is added: see finish_vector().
    const auto unit = Simd::set1(task_.shape.unit), floor = Simd::set1(kLowestBias);
    return Simd::sub(Simd::mul(Simd::max(floor, rise.most), unit), Simd::mul(Simd::max(floor, rise.first), unit));
  }

  void set_key_ends(int64_t begin, int64_t end) {
    for (int r = 0; r < kWidth; ++r) {
      panel_.key_begin[r] = static_cast<int32_t>(begin);
      panel_.key_end[r] = static_cast<int32_t>(end);
    }
    for (int i = 0; i < kWidth; i += L) {
      Simd::store(panel_.state.begin + i, Simd::set1(static_cast<float>(begin)));
      Simd::store(panel_.state.limit + i, Simd::set1(static_cast<float>(end)));
    }
  }

  // Where kKeyTile keys from `key` on may be read: in the block, or in a padded copy of its first or last tile.
  struct TileKeys {
    const Key *k;
    int64_t stride;
  };
  TileKeys tile_keys(int64_t key) const {
    if (block_.first <= key && key + kKeyTile <= block_.keys) return {block_.template key<Key>(key), block_.k_stride};
    const int end = key < block_.first ? 0 : 1;
    const int64_t dims = whole_steps<Simd>(task_.call->dim_k);
    if (block_.padded[end] == nullptr) {
      Key *padded = reinterpret_cast<Key *>(task_.padded_tiles) + end * kKeyTile * dims;
      for (int64_t j = 0; j < kKeyTile; ++j) {
        const bool present = block_.first <= key + j && key + j < block_.keys;
        for (int64_t d = 0; d < dims; ++d) padded[j * dims + d] = present ? block_.template key<Key>(key + j)[d] : Key{};
      }
      block_.padded[end] = padded;
    }
    return {static_cast<const Key *>(block_.padded[end]), dims};
  }

  template <TileKind kKind>
  bool exponentiate(int64_t key, bool referenced, float *p) {
    const TileKeys rows = tile_keys(key);
    TileWork<Simd> work;
    if constexpr (kKind == TileKind::kWorked) {
      work = tile_work(key);
      work.takes_references = !referenced;
    }
    bool in_range = true;
    for (int t = 0; t < kKeyTile; t += Simd::kKeyTile) {
      in_range &= exponentiate_tile<Simd, NV, kKind>(rows.k + t * rows.stride, rows.stride, panel_.queries, task_.call->dim_k,
                                                     panel_.state, p + t * kWidth, &work);
      if constexpr (kKind == TileKind::kWorked) work.skip(Simd::kKeyTile);
    }
    return in_range;
  }

  const float *rise() const { return may_rise_ ? task_.shape.rise : nullptr; }

  TileWork<Simd> tile_work(int64_t key) const {
    TileWork<Simd> work = {};
    work.shape = &task_.shape;
    work.slope = panel_.slope;
    if (mask_matters_) work.bias = task_.bias + key * kWidth;
    work.bias_stride = kWidth;
    work.bias_excludes = mask_excludes_;
    if (!range_.whole(key)) work.begin = panel_.state.begin, work.limit = panel_.state.limit;
    work.rise = rise();
    work.key = key;
    return work;
  }

  // All keys of the block from `key` on, where they do not fill a tile and every row permits them.
  void exponentiate_last(int64_t key, float *p) {
    for (; key < block_.keys; key += Simd::kKeyTile, p += Simd::kKeyTile * kWidth) {
      const Key *k = block_.template key<Key>(key);
      if (key + Simd::kKeyTile <= block_.keys) {
        exponentiate_tile<Simd, NV, TileKind::kWhole>(k, block_.k_stride, panel_.queries, task_.call->dim_k, panel_.state, p,
                                                      nullptr);
      } else {
        exponentiate_rest<Simd, NV>(block_.keys - key, k, block_.k_stride, panel_.queries, task_.call->dim_k, panel_.state, p);
      }
    }
  }

  KeyTile key_tile(int64_t key) const {
    const KeyRows &rows = *task_.k_rows;
    return {rows.row + key, rows.scale + key, rows.ahead, rows.bytes};
  }

  void score_keys_in_place(int64_t key, float *score) const {
    KeyTile tile = key_tile(key);
    const char *row[kKeyTile];
    float scale[kKeyTile];
    if (key < block_.first || block_.keys < key + kKeyTile) {  // its first or last key stands for those that are not there
      for (int64_t j = 0; j < kKeyTile; ++j) {
        const int64_t there = clamp(key + j, block_.first, block_.keys - 1);
        row[j] = task_.k_rows->row[there];
        scale[j] = task_.k_rows->scale[there];
      }
      tile = {row, scale, 0, 0};
    }
    with_elements<Simd>(task_.k_rows->dtype, [&](auto elements) {
      score_few_rows<Simd, decltype(elements)>(tile, panel_.queries, panel_.rows, task_.call->dim_k, score);
    });
  }

  void score_keys(int64_t key, float *score) {
    if constexpr (kMayBeFewRows) {
      if (task_.few_rows) return score_keys_in_place(key, score);
    }
    const TileKeys rows = tile_keys(key);
    for (int t = 0; t < kKeyTile; t += Simd::kKeyTile)
      score_tile<Simd, NV>(rows.k + t * rows.stride, rows.stride, panel_.queries, task_.call->dim_k, score + t * kWidth);
  }

  // The panel's mask for the keys of the range: task.bias is [key][width]. Returns whether some of it is below kModerateBias: -inf, perhaps.
  bool read_mask() {
    const int64_t first = larger(range_.first, block_.first);
    bool all_moderate = true;
    for (int i = 0; i < kWidth; i += L) {
      transpose_mask<Simd>(panel_.mask + i, task_.call->mask, block_.begin + first, block_.begin + range_.keys,
                           task_.bias + first * kWidth + i, kWidth, bias_range_[i / L]);
      all_moderate &= Simd::all_less(Simd::set1(kModerateBias), bias_range_[i / L].least);
    }
    return !all_moderate;
  }

  // What the caller's function makes of the natural scores of all keys of the range, head by head.
  void call_score_function(float *score) {
    const Problem &problem = *task_.call;
    const int64_t group = problem.group, row = task_.rows.row_begin + panel_.first_row,
                  first = larger(range_.first, block_.first);
    fovea_score_tile tile = {};
    tile.row_stride = group;
    tile.col_stride = kWidth;
    tile.cols = range_.keys - first;
    tile.batch = task_.rows.batch;
    tile.col0 = block_.begin + first;
    int64_t q_row[kRows];
    task_.find_rows(panel_, problem.q.stride, task_.rows.first_query, q_row);
    for (int64_t r = 0; r < smaller(group, panel_.rows); ++r) {
      tile.score = score + (first - range_.first) * kWidth + r;
      tile.rows = (panel_.rows - r + group - 1) / group;
      tile.head = task_.rows.head_kv * group + (row + r) % group;
      tile.row0 = (row + r) / group;
      if (problem.score_replaces) {
        tile.q = reinterpret_cast<const float *>(element(problem.q, q_row[r]));
        tile.ldq = problem.q.stride[2];
        if (task_.q_copy) {
          load_rows<Simd>(tile.q, problem.q, nullptr, 0, tile.rows, problem.dim_k, task_.q_copy, problem.dim_k);
          tile.q = task_.q_copy;
          tile.ldq = problem.dim_k;
        }
        tile.k = block_.template key<float>(first);
        tile.ldk = block_.k_stride;
        tile.dim_k = problem.dim_k;
      }
      problem.score(problem.score_user, &tile);
    }
    // Lanes behind the last row repeat it here too.
    for (int64_t j = first - range_.first; j < range_.keys - range_.first; ++j) {
      for (int r = panel_.rows; r < kWidth; ++r) score[j * kWidth + r] = score[j * kWidth + panel_.rows - 1];
    }
  }

  void work_on_scores(int64_t first, int64_t end, float *score) {
    const auto finish = [&](int64_t key, bool only_excludes) {
      TileWork<Simd> work = tile_work(key);
      work.bias_only_excludes = only_excludes;
      if (range_.shaped || work.begin) finish_tile(score + (key - first) * kWidth, kWidth, work);
    };
    for (int64_t key = first; key < end; key += kKeyTile) finish(key, false);
    if (task_.call->score == nullptr) return;
    if (!task_.call->score_replaces) call_score_function(score);
    for (int64_t key = first; key < end; key += kKeyTile) finish(key, true);
  }

  // The exponentials of a block, and their sums. kIncomplete: some row's sum is sure to go out of range, and the rest was left.
  enum class BlockSums { kInRange, kOutOfRange, kIncomplete };
  BlockSums exponentiate_block(Ahead &ahead) {
    if constexpr (kMayBeFewRows) {
      if (side_by_side()) return exponentiate_few_rows();
    }
    SoftmaxState<Simd> &state = panel_.state;
    const bool scores_first = task_.call->score != nullptr;
    if (scores_first) finish_scores(range_.first, range_.keys, task_.p + range_.first * kWidth);
    // Tiles are fused where their scores need not be in memory. Their references are those of kKeyTile keys.
    const bool fused = !scores_first && !task_.few_rows, plain = fused && !range_.shaped;
    bool untouched = !panel_.chunk_started, referenced = !untouched && every_row_has_reference(state, NV);
    for (int64_t key = range_.first; key < range_.keys; key += kKeyTile) {
      ahead.fetch();
      if (mask_matters_) ahead.fetch_scattered(key / kKeyTile);
      float *p = task_.p + key * kWidth;
      const bool whole = range_.whole(key);
      if (plain && referenced && whole) {
        exponentiate<TileKind::kWhole>(key, referenced, p);
      } else if (plain && referenced && range_.whole_begin <= key && range_.whole_end == block_.keys) {
        exponentiate_last(key, p);
      } else if (plain && whole && untouched && Simd::kKeyTile == kKeyTile) {
        exponentiate<TileKind::kFirst>(key, referenced, p);
        referenced = every_row_has_reference(state, NV);
      } else if (fused && (referenced || Simd::kKeyTile == kKeyTile)) {
        if (!exponentiate<TileKind::kWorked>(key, referenced, p)) return BlockSums::kIncomplete;
        if (!referenced) referenced = every_row_has_reference(state, NV);
      } else {
        if (!scores_first) finish_scores(key, smaller(key + kKeyTile, range_.keys), p);
        if (!take_references(p, rise(), state, NV)) return BlockSums::kIncomplete;
        exponentiate_scores(p, state, NV);
        if (!scores_first) referenced = every_row_has_reference(state, NV);
      }
      untouched = false;
      if (key + kKeyTile < range_.keys && run_ends<Simd>(key + kKeyTile)) end_run(state, NV);
    }
    end_run(state, NV);
    return sums_in_range(state, NV, rise()) ? BlockSums::kInRange : BlockSums::kOutOfRange;
  }

  bool side_by_side() const { return kMayBeFewRows && task_.few_rows && lie_side_by_side<Simd>(panel_.rows); }
  BlockSums exponentiate_few_rows() {
    SoftmaxState<Simd> &state = panel_.state;
    float *scores = task_.p + range_.first * kWidth;
    if (!range_.shaped && range_.first == 0 && block_.first == 0 && range_.all_whole()) {
      with_rows<Simd>(rows_by_dims<Simd>(panel_.rows), [&](auto rows) {
        with_elements<Simd>(task_.k_rows->dtype, [&](auto elements) {
          score_side_by_side<Simd, decltype(elements), rows>(*task_.k_rows, range_.keys, panel_.queries, task_.call->dim_k,
                                                             task_.p);
        });
        take_first_references<Simd, rows>(task_.p, range_.keys, state);
        exponentiate_side_by_side<Simd, rows>(task_.p, 0, range_.keys, state);
      });
    } else {
      finish_scores(range_.first, range_.keys, scores);
      for (int64_t t = 0; t < range_.tiles(); ++t) {
        if (!take_references(scores + t * kKeyTile * kWidth, rise(), state, NV)) return BlockSums::kIncomplete;
      }
      exponentiate_together();
    }
    return sums_in_range(state, NV, rise()) ? BlockSums::kInRange : BlockSums::kOutOfRange;
  }
  // Finished scores of the block, which lie apart.
  void exponentiate_together() {
    const int rows = rows_by_dims<Simd>(panel_.rows);
    const int64_t end = range_.first + range_.tiles() * kKeyTile;
    put_side_by_side<Simd>(task_.p + range_.first * kWidth, end - range_.first, rows, task_.p + range_.first * rows);
    with_rows<Simd>(rows, [&](auto r) { exponentiate_side_by_side<Simd, r>(task_.p, range_.first, end, panel_.state); });
  }

  // The block again, with the true maximum for the rows whose sums went out of range; the others come out as they were. Where the sums are
  // not complete, rows that are sure to fail show by their maximum, and a second round finds the others.
  __attribute__((noinline)) void redo(ChunkState<Simd> &before, bool complete) {
    SoftmaxState<Simd> &state = panel_.state;
    alignas(64) float rescale[kRows], too_large[kRows], too_small[kRows];
    for (int r = 0; r < kWidth; ++r) {
      too_large[r] = too_small[r] = 0;
      if (!panel_.chunk_started) before.max[r] = kNoKeys, before.sum[r] = before.low[r] = 0;
    }
    float *scores = task_.p + range_.first * kWidth;
    const int64_t tiles = range_.tiles();
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < kWidth; i += L) {
        if (complete) {
          Simd::store(too_large + i, Simd::max(Simd::load(too_large + i), sum_too_large(state, i)));
          if (rise()) Simd::store(too_small + i, Simd::max(Simd::load(too_small + i), sum_too_small(state, i)));
        }
        Simd::store(state.chunk_max + i, Simd::load(before.max + i));
      }
      complete = true;
      finish_scores(range_.first, range_.keys, scores);
      for (int64_t t = 0; t < tiles; ++t) take_references(scores + t * kKeyTile * kWidth, rise(), state, NV);
      move_references(scores, tiles, before, too_large, too_small, state, NV, rescale);
      if (side_by_side()) {
        exponentiate_together();
      } else {
        for (int64_t t = 0; t < tiles; ++t) {
          exponentiate_scores(scores + t * kKeyTile * kWidth, state, NV);
          const int64_t next = range_.first + (t + 1) * kKeyTile;
          if (next < range_.keys && run_ends<Simd>(next)) end_run(state, NV);
        }
        end_run(state, NV);
      }
      if (sums_in_range(state, NV, rise())) break;
    }
    if (!panel_.chunk_started) return;
    for (int r = 0; r < panel_.rows; ++r) {
      if (rescale[r] == 1.0f) continue;
      for (int64_t d = 0; d < task_.call->dim_v; ++d) panel_.sum[r][d] *= rescale[r];
    }
  }

  Task<Simd> &task_;
  Panel<Simd> &panel_;
  Block &block_;
  KeyRange range_;
  bool mask_matters_, mask_excludes_, may_rise_;
  bool marked_ = false;
  BiasRange<Simd> bias_range_[NV];
};

}  // namespace
}  // namespace fovea::FOVEA_LEVEL
