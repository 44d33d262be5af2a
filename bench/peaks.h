// What the machine can do at most, measured: the yardstick of every figure that the benches print.
#pragma once
#include <cstdint>
#include <vector>

#include "fovea/fovea.h"

namespace fovea::bench {

// The loops of one level, each in a file compiled for that level alone: call them only where the level is usable.
struct PeakLoops {
  double fma_flops;              // of one step
  void (*fma)(int64_t steps);    // nothing but independent multiply-adds in registers
  double probe_flops;            // of one step
  void (*probe)(int64_t steps);  // a matrix tile from the first-level cache: loads, broadcasts and multiply-adds
  double exp2_elements;          // of one step
  void (*exp2)(int64_t steps);
  void (*read)(const float *data, int64_t count);  // loads every element once
  double bf16_flops;                               // of one step
  void (*bf16_dot)(int64_t steps);                 // as fma, by an instruction for bfloat16; null: there is none
};

// Null where there are no loops for the level.
const PeakLoops *peak_loops(fovea_isa level);

struct ReadSpan {
  const float *data;
  int64_t count;
};

// Rates of a level on so many threads at once, in units per second. With one thread OpenMP is not entered.
class Peaks {
 public:
  Peaks(const PeakLoops &loops, int threads);

  double fma() const;       // flop/s, the best of a few short runs
  double bf16_dot() const;  // likewise; 0 where there is no such instruction
  double exp2() const;      // elements/s, likewise
  double probe()
      const;  // flop/s of one run, with its disturbances: a neighbour on the same core slows it, and the FMA peak hardly
  double read(const std::vector<ReadSpan> &spans) const;  // bytes/s of one pass, each thread over its part of each span

 private:
  const PeakLoops &loops_;
  int threads_;
  int64_t fma_steps_, probe_steps_, exp2_steps_;
};

}  // namespace fovea::bench
