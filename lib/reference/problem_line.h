// One line of text describes a call with its shapes, layouts, inputs, level and threads: what `fovea check` takes and what a failing
// test prints. Owns the memory of such a call, with guard pages around every tensor and NaN in every gap.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fovea/fovea.h"
#include "reference/oracle.h"

namespace fovea::reference {

// A problem line is words of the form key=value in any order, each optional:
//   b=1 hq=8 hkv=8 sq=128 skv=128 dk=64 dv=64 scale=0.125 causal=none|tl|br
//   left=-1 right=-1 align=br|tl softcap=0 alibi=0|1 sinks=0|1 lens=full|ragged packed=0|1|q|kv pages=0 score=none|modify|replace
//   mask=none|bool|f32|f16|bf16 maskaxes=qk (any of b, h, q, k in this order) maskfill=random|true|blocks|late|low
//   layout=bhsd|bshd|bhds|packed|padded|strided|broadcast (all tensors) q=... k=... v=... out=... (one tensor)
//   type=f32|f16|bf16 (all four tensors) tq=... tk=... tv=... tout=... (one tensor; tk and tv also i8|q8_0|q4_0)
//   lse=0|1 weights=0|1 dist=normal|uniform|ones|zero|outlier gain=1 seed=1 isa=auto|scalar|avx2|... threads=1 exec=omp|pool|serial
//
// Layouts: bhsd and bshd are dense with dim innermost; bhds has seq innermost; packed makes q, k and v the parts of one
// [batch][seq][heads_q + 2 heads_kv][dim] allocation (all three must say so and have equal lengths, dims and types, else it means
// padded);
// padded has 3 elements between rows and 5 more between heads; strided has an innermost stride of 2 (q, v) or 3 (k, out); broadcast
// repeats one head of one batch entry, for inputs only (as the layout of all tensors it leaves out in bhsd). weights and lse follow
// out; the mask follows q, and repeats along the axes that maskaxes does not name.
//
// i8 rows have scales in a tensor of the row's layout. q8_0 and q4_0 blocks lie side by side: strided means padded, and bhds means bhsd.
//
// Inputs: normal is N(0, 1), uniform is [-1, 1); outlier is normal with some keys 32 times as large, some 0, and some values 10000
// times as large, so that the first keys say little about the largest score. All are multiplied by gain. An input element depends
// on seed and its coordinates (of its batch entry) alone: neither on layout nor on any size, and on the type only in that it is
// rounded to it, to nearest even, or quantised with the scale of its row or block.
//
// Lengths: ragged gives each batch entry lengths of its own, in seqlens_*; some are full, and with more than one entry one is 0.
// packed puts the entries (segments) one after the other on one token axis, with cu_seqlens_*, on both sides or that of q or of k and
// v alone; the longest segment has sq queries and skv keys, with more than two segments one is empty, and tokens before the first and
// behind the last belong to none. lens is about the sides that are not packed. What no entry has, in q, k, v and the mask, is NaN.
//
// pages=SIZE puts keys and values into pages of SIZE slots, in shuffled order among pages of no entry; where no query of its entry may see
// a key of a page, the block table holds what is no page. Slots of no key are NaN. packed means the queries alone then: keys that would have
// been packed have the lengths of packed segments in seqlens_kv. broadcast repeats one head.
//
// Score: left, right, align (the corner, where causal does not name one), softcap; alibi gives the standard slopes; sinks gives each
// head one, -infinity to some. Mask fills: true permits all; random excludes about half of the keys, some rows and some blocks of 300
// keys wholly, and adds up to 4 elsewhere; blocks is block-diagonal, 8 blocks; late permits the last 3 keys; low adds 0, -88, -95, -200,
// -10000 or the lowest finite value (and is true for a boolean mask). Score functions: modify adds a bias of the relative position and
// excludes a key of eleven; replace is additive attention.
struct ProblemLine {
  int64_t batch = 1, heads_q = 1, heads_kv = 1, seq_q = 1, seq_kv = 1, dim_k = 1, dim_v = 1;
  bool scale_set = false;
  float scale = 0;
  std::string causal = "none";
  int64_t window_left = -1, window_right = -1;
  std::string align = "br";
  float softcap = 0;
  bool alibi = false, sinks = false;
  std::string mask = "none", mask_axes = "qk", mask_fill = "random";
  std::string lens = "full", packed = "0", score = "none";
  int64_t page_size = 0;
  std::string layout_q = "bhsd", layout_k = "bhsd", layout_v = "bhsd", layout_out = "bhsd";
  std::string type_q = "f32", type_k = "f32", type_v = "f32", type_out = "f32";
  bool lse = false, weights = false;
  std::string dist = "normal";
  float gain = 1;
  uint64_t seed = 1;
  std::string isa = "auto";
  int32_t threads = 1;
  std::string exec = "omp";
};

// Returns "" and fills line, or says what is wrong.
std::string parse(const std::string &text, ProblemLine *line);
std::string format(const ProblemLine &line);  // a short text that parses to line

// The memory of a problem line. Every tensor and every array lies between two inaccessible pages, flush with the one behind it (or with
// the one before it: guard_front), gaps hold NaN and the outputs hold a canary pattern. Inputs are read-only.
class ProblemData {
 public:
  explicit ProblemData(const ProblemLine &line, bool guard_front = false);
  ~ProblemData();
  ProblemData(const ProblemData &) = delete;
  ProblemData &operator=(const ProblemData &) = delete;

  fovea_params params;                   // complete: ready for fovea_forward()
  bool output_gaps_intact() const;       // canaries between the elements of out, lse and weights, and in rows that no entry has
  bool outputs_untouched() const;        // canaries everywhere
  std::vector<float> dense_out() const;  // [batch, heads_q, seq_q, dim_v], or [heads_q, seq_q, dim_v] where queries are packed
  std::vector<float> dense_lse() const;
  std::vector<float> dense_weights() const;  // [batch, heads_q, seq_q, seq_kv]
  void reset_outputs();                      // canaries everywhere again
  void make_inputs_writable();               // for tests that change some of them

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A context for the line's level, threads and executor; null and a text in error where it is not to be had. It owns the pool of
// exec=pool.
struct ContextDeleter {
  std::shared_ptr<void> pool;
  void operator()(fovea_context *c) const { fovea_context_destroy(c); }
};
using ContextPtr = std::unique_ptr<fovea_context, ContextDeleter>;
ContextPtr make_context(const ProblemLine &line, std::string *error);

// Runs p with a workspace of exactly the size asked for, between guard pages and full of NaN. Returns "" or the error.
std::string run_guarded(const fovea_context *context, const fovea_params &p, bool guard_front = false);

// What the oracle says about a line, for any level, threads and executor.
struct LineReference {
  Expected expected;
  std::vector<int64_t> rows;  // those it computed; empty for all
  int64_t rows_checked = 0;   // of them, those that are rows of a batch entry
};
// At most about so many multiplications, 4e9 being seconds: beyond them an even sample of the rows, the first and the last included.
LineReference line_reference(const ProblemLine &line, double most_steps = 4e9);

// Runs the line twice, with all memory flush with the guard page behind it and then with the one before it, and compares with the
// oracle. error is not empty where the call failed.
struct CheckResult {
  std::string error;
  std::string level;  // that ran
  Verdict verdict;
  bool gaps_intact;
  bool same_bits;        // both runs
  int64_t rows_checked;  // against the oracle
  bool ok() const { return error.empty() && gaps_intact && same_bits && verdict.ok(); }
};
// on_stage is told what comes next, of a line that may take minutes.
CheckResult check(
    const ProblemLine &line, const LineReference &reference,
    const std::function<void(const std::string &)> &on_stage = [](const std::string &) {});

}  // namespace fovea::reference
