// Every kernel of every level within the error bound, between guard pages, over two matrices: of sizes, dims, groups, layouts, causal
// corners and workers; and of everything that shapes the score. The quick tier runs a covering array of each: every pair of values of
// any two factors, and every triple of the factors that have few values. The long tier (FOVEA_TEST_LONG=1) runs more of them, and longer
// sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "conformance/covering_array.h"
#include "dispatch/dispatch.h"
#include "plan/plan.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

using reference::ProblemLine;

const std::vector<int64_t> kDims = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 80, 96, 128, 192, 256, 576};
const std::vector<int64_t> kGroups = {1, 2, 3, 4, 7, 8, 71};
const std::vector<int64_t> kFewAndPrimes = {1, 2, 3, 4, 5, 6, 13, 31, 97, 173};

std::vector<int64_t> around(const std::set<int64_t> &edges, const std::vector<int64_t> &others, int64_t most) {
  std::set<int64_t> sizes(others.begin(), others.end());
  for (const int64_t edge : edges)
    for (int64_t size = edge - 1; size <= edge + 1; ++size)
      if (size >= 1 && size <= most) sizes.insert(size);
  return {sizes.begin(), sizes.end()};
}

// Queries around one panel, two, and all the panels of a task, of every registered kernel.
std::vector<int64_t> query_sizes(int64_t most) {
  const KernelEntry *entries = nullptr;
  const int32_t count = kernel_entries(&entries);
  std::set<int64_t> edges;
  for (int32_t i = 0; i < count; ++i) {
    if (!fits_vectors(entries[i], cpu_features())) continue;
    const Tuning &tuning = entries[i].kernel->tuning;
    for (const int64_t rows : {tuning.panel_rows, tuning.window_panel_rows})
      for (const int64_t panels : {int64_t{1}, int64_t{2}, tuning.group_panels}) edges.insert(panels * rows);
  }
  return around(edges, kFewAndPrimes, most);
}

// Keys around one tile, two, a block and a chunk.
std::vector<int64_t> key_sizes(int64_t most) {
  const KernelEntry *entries = nullptr;
  const int32_t count = kernel_entries(&entries);
  std::set<int64_t> edges = {kKeyTile, 2 * kKeyTile, kBlockKeys, 2 * kBlockKeys, 5 * kBlockKeys};
  for (int32_t i = 0; i < count; ++i) edges.insert(entries[i].kernel->shape.key_tile);
  return around(edges, kFewAndPrimes, most);
}

enum Factor {
  kSeqQ,
  kSeqKv,
  kDimK,
  kDimV,
  kGroup,
  kHeadsKv,
  kBatch,
  kCausal,
  kLayoutQ,
  kLayoutK,
  kLayoutV,
  kLayoutOut,
  kWorkers,
  kOutputs,
  kDistribution,
  kScale,
  kTypes,
  kFactors
};

struct Workers {
  const char *exec;
  int32_t threads;
};
const std::vector<Workers> kAllWorkers = {{"serial", 1}, {"omp", 1},  {"omp", 2},  {"omp", 3},
                                          {"omp", 7},    {"pool", 2}, {"pool", 3}, {"pool", 7}};

struct Types {
  const char *q, *k, *v, *out;
};
// All alike, keys and values of another type than queries and outputs, each unlike its neighbours, and quantised ones.
const std::vector<Types> kAllTypes = {
    {"f32", "f32", "f32", "f32"},    {"f16", "f16", "f16", "f16"},   {"bf16", "bf16", "bf16", "bf16"},
    {"f32", "bf16", "bf16", "f32"},  {"bf16", "f16", "f16", "bf16"}, {"f16", "f32", "bf16", "f32"},
    {"bf16", "bf16", "f32", "f16"},  {"f32", "i8", "i8", "f32"},     {"f16", "q8_0", "q8_0", "f16"},
    {"bf16", "q4_0", "q4_0", "f32"}, {"f32", "q8_0", "i8", "bf16"},  {"f32", "i8", "q4_0", "f32"}};

void set_types(const Types &types, ProblemLine *line) {
  line->type_q = types.q;
  line->type_k = types.k;
  line->type_v = types.v;
  line->type_out = types.out;
  // Blocks of 32 divide a row.
  const auto round_up = [](const std::string &type, int64_t *dim) {
    if (type == "q8_0" || type == "q4_0") *dim = (*dim + 31) / 32 * 32;
  };
  round_up(line->type_k, &line->dim_k);
  round_up(line->type_v, &line->dim_v);
}

// Every pair of all factors, every triple of some.
std::vector<FactorSet> interactions(size_t factors, const FactorSet &in_triples) {
  FactorSet all;
  for (size_t f = 0; f < factors; ++f) all.push_back(f);
  std::vector<FactorSet> sets = all_pairs(all);
  const std::vector<FactorSet> triples = all_triples(in_triples);
  sets.insert(sets.end(), triples.begin(), triples.end());
  return sets;
}

struct Matrix {
  std::vector<int64_t> seq_q, seq_kv;
  std::vector<int64_t> heads_kv = {1, 3}, batch = {1, 2};
  std::vector<std::string> causal = {"none", "tl", "br"};
  std::vector<std::string> inputs = {"bhsd", "bshd", "bhds", "padded", "strided", "broadcast"};
  std::vector<std::string> outputs = {"bhsd", "bshd", "bhds", "padded", "strided"};
  std::vector<std::string> distributions = {"normal", "outlier", "uniform"};
  std::vector<float> scales = {0, -0.3f, 1.7f};  // 0: the default

  static std::vector<FactorSet> sets() {
    return interactions(kFactors, {kCausal, kLayoutQ, kLayoutK, kLayoutV, kLayoutOut, kOutputs, kDistribution, kTypes});
  }

  Matrix(int64_t most_queries, int64_t most_keys) : seq_q(query_sizes(most_queries)), seq_kv(key_sizes(most_keys)) {}

  std::vector<size_t> levels() const {
    return {seq_q.size(),       seq_kv.size(),        kDims.size(),         kDims.size(),  kGroups.size(),  heads_kv.size(),
            batch.size(),       causal.size(),        inputs.size(),        inputs.size(), inputs.size(),   outputs.size(),
            kAllWorkers.size(), 4 /* lse, weights */, distributions.size(), scales.size(), kAllTypes.size()};
  }

  ProblemLine line(const Row &row, uint64_t seed) const {
    ProblemLine l;
    l.seq_q = seq_q[row[kSeqQ]];
    l.seq_kv = seq_kv[row[kSeqKv]];
    l.dim_k = kDims[row[kDimK]];
    l.dim_v = kDims[row[kDimV]];
    l.heads_kv = heads_kv[row[kHeadsKv]];
    l.heads_q = l.heads_kv * kGroups[row[kGroup]];
    l.batch = batch[row[kBatch]];
    l.causal = causal[row[kCausal]];
    l.layout_q = inputs[row[kLayoutQ]];
    l.layout_k = inputs[row[kLayoutK]];
    l.layout_v = inputs[row[kLayoutV]];
    l.layout_out = outputs[row[kLayoutOut]];
    l.exec = kAllWorkers[row[kWorkers]].exec;
    l.threads = kAllWorkers[row[kWorkers]].threads;
    l.lse = row[kOutputs] & 1;
    l.weights = row[kOutputs] & 2;
    l.dist = distributions[row[kDistribution]];
    l.scale = scales[row[kScale]];
    l.scale_set = l.scale != 0;
    set_types(kAllTypes[row[kTypes]], &l);
    l.seed = seed;
    // Long rows of many heads are about their heads: one key-value head and one batch entry, not gigabytes of weights.
    constexpr int64_t kMostScores = 20'000'000;
    if (l.batch * l.heads_q * l.seq_q * l.seq_kv > kMostScores) {
      l.heads_q /= l.heads_kv;
      l.heads_kv = l.batch = 1;
    }
    return l;
  }
};

enum ScoreFactor {
  kScoreSeqQ,
  kScoreSeqKv,
  kScoreDimK,
  kScoreDimV,
  kScoreGroup,
  kScoreHeadsKv,
  kScoreBatch,
  kScoreLayout,
  kScoreWorkers,
  kScoreOutputs,
  kScoreDistribution,
  kScoreScale,
  kScoreMaskAxes,
  kScoreMaskFill,
  kScoreCausal,
  kScoreWindow,
  kScoreCorner,
  kScoreLengths,
  kScoreMask,
  kScoreSoftcap,
  kScoreAlibi,
  kScoreSinks,
  kScoreFunction,
  kScoreTypes,
  kScorePages,
  kScoreFactors
};

struct Window {
  int64_t left, right;
};
struct Lengths {
  const char *lens, *packed;
};

struct ScoreMatrix {
  std::vector<int64_t> seq_q = {1, 3, 50, 97, 200}, seq_kv = {1, 8, 31, 97, 255, 257, 600, 1300};
  std::vector<int64_t> dim_k = {1, 8, 33, 64}, dim_v = {1, 7, 16, 65};
  std::vector<int64_t> groups = {1, 3, 8}, heads_kv = {1, 2}, batch = {1, 2, 4};
  std::vector<std::string> layouts = {"bhsd", "bshd", "bhds", "padded", "strided"};
  std::vector<std::string> distributions = {"normal", "outlier"};
  std::vector<float> scales = {0, -0.3f, 1.7f};  // 0: the default
  std::vector<std::string> masks = {"none", "bool", "f32", "f16", "bf16"},
                           mask_fills = {"random", "true", "blocks", "late", "low"};
  std::vector<std::string> mask_axes = {"bhqk", "qk", "k", "bk", "hqk", "bq"};
  std::vector<std::string> causal = {"none", "tl", "br"}, corners = {"tl", "br"};
  std::vector<Window> windows = {{-1, -1}, {0, 0}, {5, 2}, {40, -1}, {-1, 20}, {300, 0}};
  std::vector<Lengths> lengths = {{"full", "0"}, {"ragged", "0"}, {"full", "1"}, {"ragged", "q"}, {"ragged", "kv"}};
  std::vector<float> softcaps = {0, 0.5f, 20};
  std::vector<std::string> functions = {"none", "modify", "replace"};
  std::vector<int64_t> page_sizes = {0, 1, 7, 16, 256, 300};  // 0: no pages
  int64_t most_scores = 1'000'000;

  static ScoreMatrix long_one() {
    ScoreMatrix matrix;
    matrix.seq_q = {1, 2, 3, 4, 5, 8, 49, 97, 300};
    matrix.seq_kv = {1, 7, 8, 9, 31, 97, 255, 256, 257, 511, 600, 1300};
    matrix.most_scores = 4'000'000;
    return matrix;
  }

  static std::vector<FactorSet> sets() {
    return interactions(kScoreFactors, {kScoreCausal, kScoreWindow, kScoreLengths, kScoreMask, kScoreMaskFill, kScoreSoftcap,
                                        kScoreAlibi, kScoreSinks, kScoreFunction, kScoreGroup, kScoreSeqQ, kScorePages});
  }

  std::vector<size_t> levels() const {
    return {seq_q.size(),         seq_kv.size(),  dim_k.size(),     dim_v.size(),       groups.size(),
            heads_kv.size(),      batch.size(),   layouts.size(),   kAllWorkers.size(), 4 /* lse, weights */,
            distributions.size(), scales.size(),  mask_axes.size(), mask_fills.size(),  causal.size(),
            windows.size(),       corners.size(), lengths.size(),   masks.size(),       softcaps.size(),
            2 /* ALiBi */,        2 /* sinks */,  functions.size(), kAllTypes.size(),   page_sizes.size()};
  }

  ProblemLine line(const Row &row, uint64_t seed) const {
    ProblemLine l;
    l.seq_q = seq_q[row[kScoreSeqQ]];
    l.seq_kv = seq_kv[row[kScoreSeqKv]];
    l.dim_k = dim_k[row[kScoreDimK]];
    l.dim_v = dim_v[row[kScoreDimV]];
    l.heads_kv = heads_kv[row[kScoreHeadsKv]];
    l.heads_q = l.heads_kv * groups[row[kScoreGroup]];
    l.batch = batch[row[kScoreBatch]];
    l.layout_q = l.layout_k = l.layout_v = l.layout_out = layouts[row[kScoreLayout]];
    l.exec = kAllWorkers[row[kScoreWorkers]].exec;
    l.threads = kAllWorkers[row[kScoreWorkers]].threads;
    l.lse = row[kScoreOutputs] & 1;
    l.dist = distributions[row[kScoreDistribution]];
    l.scale = scales[row[kScoreScale]];
    l.scale_set = l.scale != 0;
    l.causal = causal[row[kScoreCausal]];
    l.align = corners[row[kScoreCorner]];
    l.window_left = windows[row[kScoreWindow]].left;
    l.window_right = windows[row[kScoreWindow]].right;
    l.lens = lengths[row[kScoreLengths]].lens;
    l.packed = lengths[row[kScoreLengths]].packed;
    l.page_size = page_sizes[row[kScorePages]];
    l.weights = row[kScoreOutputs] & 2 && l.packed == "0" && !l.page_size;
    l.mask = masks[row[kScoreMask]];
    if (l.mask != "none") {
      l.mask_axes = mask_axes[row[kScoreMaskAxes]];
      l.mask_fill = mask_fills[row[kScoreMaskFill]];
    }
    l.softcap = softcaps[row[kScoreSoftcap]];
    l.alibi = row[kScoreAlibi];
    l.sinks = row[kScoreSinks];
    l.score = functions[row[kScoreFunction]];
    set_types(kAllTypes[row[kScoreTypes]], &l);
    l.seed = seed;
    const auto scores = [&] { return l.batch * l.heads_q * l.seq_q * l.seq_kv; };
    if (scores() > most_scores) {
      l.heads_q /= l.heads_kv;
      l.heads_kv = 1;
    }
    if (scores() > most_scores) l.batch = std::min<int64_t>(l.batch, 2);
    return l;
  }
};

void expect_right_on_levels(const std::vector<fovea_isa> &levels, ProblemLine line, double most_steps) {
  const reference::LineReference reference = reference::line_reference(line, most_steps);
  for (const fovea_isa level : levels) {
    line.isa = fovea_isa_name(level);
    expect_right(line, reference);
  }
}

void expect_right_on_every_level(const ProblemLine &line, double most_steps) {
  const std::vector<fovea_isa> levels = usable_levels();
  ASSERT_FALSE(levels.empty());
  expect_right_on_levels(levels, line, most_steps);
}

constexpr double kQuickSteps = 1e7;  // of the oracle for one line: some 10 ms

// Level by level, so that a level which cannot run here is a skip that is counted and may be made a failure.
class LevelIsTested : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(LevelIsTested);
TEST_P(LevelIsTested, RunsWhereItIsUsable) { expect_right("hq=6 hkv=2 sq=50 skv=300 dk=64 dv=80 lse=1 weights=1", level()); }

TEST(RequiredLevelsTest, HaveKernels) {
  for (const std::string &required : required_levels()) {
    bool registered = false;
    for (const fovea_isa level : registered_levels()) registered |= required == fovea_isa_name(level);
    EXPECT_TRUE(registered) << required << ", which FOVEA_REQUIRE_ISA names, has no kernel";
  }
}

constexpr int kParts = 16;
class MatrixTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Part, MatrixTest, ::testing::Range(0, kParts));

template <class AnyMatrix>
void run_part(const AnyMatrix &matrix, uint64_t seed, double most_steps) {
  const std::vector<Row> rows = covering_array(matrix.levels(), matrix.sets(), seed);
  ASSERT_EQ(uncovered(matrix.levels(), matrix.sets(), rows), 0u);
  for (size_t r = size_t(MatrixTest::GetParam()); r < rows.size(); r += kParts)
    expect_right_on_every_level(matrix.line(rows[r], seed << 32 | r), most_steps);
}

TEST_P(MatrixTest, EveryPairIsWithinTheBound) {
  run_part(Matrix(400, 600), 1, kQuickSteps);
  if (!long_tier()) return;
  for (uint64_t seed = 2; seed < 6; ++seed) run_part(Matrix(500, 1500), seed, 1e8);
}

TEST_P(MatrixTest, EveryPairThatShapesTheScoreIsWithinTheBound) {
  run_part(ScoreMatrix(), 11, kQuickSteps);
  if (!long_tier()) return;
  for (uint64_t seed = 12; seed < 14; ++seed) run_part(ScoreMatrix::long_one(), seed, 1e8);
}

// Usable levels that multiply bfloat16 as such.
std::vector<fovea_isa> bf16_levels() {
  const KernelEntry *entries = nullptr;
  const int32_t count = kernel_entries(&entries);
  std::vector<fovea_isa> levels = usable_levels();
  levels.erase(std::remove_if(levels.begin(), levels.end(),
                              [&](fovea_isa level) {
                                return std::none_of(entries, entries + count, [&](const KernelEntry &entry) {
                                  return entry.level == level && std::string(entry.types) == "bf16";
                                });
                              }),
               levels.end());
  return levels;
}

// The types of the matrix are few calls of bfloat16 queries and keys; here all are.
template <class AnyMatrix>
void run_part_of_bf16(const AnyMatrix &matrix, uint64_t seed) {
  const std::vector<Row> rows = covering_array(matrix.levels(), matrix.sets(), seed);
  for (size_t r = size_t(MatrixTest::GetParam()); r < rows.size(); r += kParts) {
    ProblemLine line = matrix.line(rows[r], seed << 32 | r);
    line.type_q = line.type_k = "bf16";
    expect_right_on_levels(bf16_levels(), line, kQuickSteps);
  }
}

TEST_P(MatrixTest, EveryPairOfBf16IsWithinTheBound) {
  if (bf16_levels().empty()) GTEST_SKIP() << "no level that can run here multiplies bfloat16 as such";
  run_part_of_bf16(Matrix(400, 600), 21);
  run_part_of_bf16(ScoreMatrix(), 22);
}

// Self-attention whose q, k and v are parts of one allocation, grouped heads included.
TEST(PackedTest, PartsOfOneAllocation) {
  for (const int64_t dim : kDims) {
    ProblemLine line;
    line.layout_q = line.layout_k = line.layout_v = "packed";
    line.layout_out = "bshd";
    line.batch = 2;
    line.heads_kv = 2;
    line.heads_q = dim % 2 ? 2 : 6;
    line.seq_q = line.seq_kv = 33 + dim % 31;
    line.dim_k = line.dim_v = dim;
    line.causal = dim % 2 ? "br" : "none";
    line.lse = true;
    expect_right_on_every_level(line, kQuickSteps);
  }
}

// Around the lengths where the number of keys of a chunk changes, and where tasks share a row's keys.
TEST(ChunkTest, EdgesOfChunks) {
  std::set<int64_t> edges = {3 * kBlockKeys, kBlockKeys * kMaxChunks, 2 * kBlockKeys * kMaxChunks};
  for (const int64_t keys : around(edges, {70001}, INT64_MAX)) {
    ProblemLine line;
    line.seq_q = keys % 3 + 1;
    line.seq_kv = keys;
    line.dim_k = 9;
    line.dim_v = 17;
    line.lse = true;
    line.causal = "br";
    line.dist = keys % 2 ? "outlier" : "normal";
    for (const int32_t threads : {1, 3}) {
      line.threads = threads;
      expect_right_on_every_level(line, 1e9);
    }
  }
}

}  // namespace
}  // namespace fovea::testing
