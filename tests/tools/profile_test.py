"""bench/profile.py knows the parts of a call by the names of functions.

Usage: profile_test.py SOURCE_FOLDER
"""
import subprocess
import sys
import unittest

SOURCE = sys.argv[1]
sys.path.insert(0, f"{SOURCE}/bench")
import profile as calls  # noqa: E402

KERNEL = "fovea::avx2::(anonymous namespace)"
PERF = f"""# Samples: 10K of event 'cpu-clock'
 500\t[.] {KERNEL}::ValueTile<{KERNEL}::Simd, 6, 4, false>::run
 300\t[.] {KERNEL}::exponentiate_tile<{KERNEL}::Simd, 3, ({KERNEL}::TileKind)0>
  90\t[.] {KERNEL}::BlockScores<{KERNEL}::Simd, 1>::BlockScores
  60\t[.] {KERNEL}::Task<{KERNEL}::Simd>::begin_panel
  30\t[.] {KERNEL}::Forward<{KERNEL}::Simd>::step<3>
  20\t[.] fovea::check_params
 700\t[.] fovea::bench::(anonymous namespace)::probe
  40\t[.] std::vector<double, std::allocator<double> >::_M_fill_assign
  50\t[k] clear_page_erms
"""
CALLGRIND = f"""Ir
1,000 (100.0%)  PROGRAM TOTALS
--------------------------------------------------------------------------------
  700 (70.00%)  ./lib/kernels/generic/value.inl.h:{KERNEL}::ValueTile<{KERNEL}::Simd, 6, 4, false>::run({KERNEL}::ValueJob const&, long) [/b/fovea_bench]
  200 ( 2.00%)  ???:void {KERNEL}::load_elements<{KERNEL}::Simd>(void const*, int, float*) [/b/fovea_bench]
  100 (10.00%)  ./bench/machine.cpp:fovea::bench::Buffer::fill_normal(unsigned int) [/b/fovea_bench]
"""


def result(shape, type_="f32", counted="sampled", **more):
    return {"kind": "some kind", "shape": shape, "isa": "avx2", "counted": counted, "parts": calls.parts(calls.of_perf(PERF)), "report": {
        "fovea": "1", "processor": "a CPU", "date": "today", "peak": {"fma": 1e11, "bf16_dot": 2e11},
        "results": [{"shape": shape, "type": type_, "fovea": {"seconds": 1e-3, "share": 0.8}, **more}]}}


class Parts(unittest.TestCase):
    def test_samples_of_perf(self):
        self.assertEqual(list(calls.parts(calls.of_perf(PERF)).values()), [500, 390, 60, 30, 20])

    def test_instructions_of_callgrind(self):
        self.assertEqual(list(calls.parts(calls.of_callgrind(CALLGRIND)).values()), [700, 0, 200, 0, 0])


class Tables(unittest.TestCase):
    def test_parts_that_multiply_have_a_speed_of_their_own(self):
        row = calls.table([result("1,8,8,64,64,64")]).splitlines()[-1]
        self.assertEqual(row, "| some kind: 1,8,8,64,64,64 | 1.00 ms | 80% | 50.0% (at 80%) | 39.0% (at 103%) | 6.0% | 3.0% | 2.0% |")

    def test_scores_of_bf16_are_held_to_their_own_peak(self):
        row = calls.table([result("1,8,8,64,64,64 bf16", "bf16")]).splitlines()[-1]
        self.assertIn("| 60% | 50.0% (at 80%) | 39.0% (at 51%) |", row)

    def test_a_cache_is_held_to_its_roofline(self):
        self.assertIn("| 1.00 ms | 70% | 50.0% | 39.0% |", calls.table([result("1,8,8,1,4096,64", roofline_share=0.7, bandwidth=1e10)]))

    def test_instructions_are_no_time(self):
        self.assertIn("| some kind: 1,8,8,64,64,64 |  |  | 50.0% | 39.0% |", calls.table([result("1,8,8,64,64,64", counted="instructions")]))


    def test_levels_have_tables_of_their_own(self):
        text = calls.section([result("1,8,8,64,64,64"), {**result("1,8,8,64,64,64", counted="instructions"), "isa": "avx512"}])
        self.assertTrue(text.startswith("Fovea 1, one thread on a CPU, today.\n\n**avx2**\n\n| call | time |"))
        self.assertIn("**avx512**, instructions instead of time\n\n| call | time |", text)


class Tools(unittest.TestCase):
    def test_without_a_profiler_the_error_says_what_to_install(self):
        done = subprocess.run([sys.executable, f"{SOURCE}/bench/profile.py", "fovea_bench"], env={"PATH": "/nowhere"}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("linux-perf", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
