"""bench/mca.py finds the loops that it is to predict.

Usage: mca_test.py SOURCE_FOLDER
"""
import sys
import unittest

sys.path.insert(0, f"{sys.argv[1]}/bench")
import mca  # noqa: E402

# As objdump -d -C --no-show-raw-insn writes it. The jump at 20 goes back over the loop at 8, as code that was laid out behind it does.
DISASSEMBLY = """
neon.cpp.o:     file format elf64-littleaarch64

0000000000000000 <void fovea::neon::ValueTile<fovea::neon::Simd, 6, 4, false>::run(int)>:
   0:\tmov\tx1, x0
   4:\tcbz\tx1, 24 <void fovea::neon::ValueTile<fovea::neon::Simd, 6, 4, false>::run(int)+0x24>
   8:\tldr\tq0, [x0], #16
   c:\tfmla\tv1.4s, v0.4s, v2.s[0]
  10:\tfmla\tv3.4s, v0.4s, v2.s[0]        // a remark
  14:\tb.ne\t8 <void fovea::neon::ValueTile<fovea::neon::Simd, 6, 4, false>::run(int)+0x8>  // b.any
  18:\tfmla\tv1.4s, v0.4s, v2.4s
  1c:\tfmla\tv1.4s, v0.4s, v2.4s
  20:\tb\t0 <void fovea::neon::ValueTile<fovea::neon::Simd, 6, 4, false>::run(int)>
  24:\tret

0000000000000028 <void fovea::neon::ValueTile<fovea::neon::Simd, 8, 3, false>::run(int)>:
  28:\tret
"""


class Loops(unittest.TestCase):
    def setUp(self):
        self.bodies = mca.functions(DISASSEMBLY)

    def test_functions_are_taken_apart(self):
        self.assertEqual([len(body) for body in self.bodies.values()], [10, 1])

    def test_the_widest_tile_counts(self):
        self.assertEqual(len(mca.largest_tile(self.bodies, mca.TILES["outputs"])), 10)
        self.assertEqual(mca.largest_tile(self.bodies, mca.TILES["scores"]), [])

    def test_the_loop_has_no_jump_inside(self):
        loop = mca.hottest_loop(mca.largest_tile(self.bodies, mca.TILES["outputs"]))
        self.assertEqual(loop, ["ldr q0, [x0], #16", "fmla v1.4s, v0.4s, v2.s[0]", "fmla v3.4s, v0.4s, v2.s[0]", "b.ne loop"])
        self.assertEqual(mca.multiply_adds(loop), 2)

    def test_code_without_a_loop_has_none(self):
        self.assertEqual(mca.hottest_loop(self.bodies[list(self.bodies)[1]]), [])

    def test_the_hand_written_tile_has_24_accumulators(self):
        for sve in (False, True):
            accumulators = {line.split()[1] for line in mca.bfdot_tile(sve) if mca.is_multiply_add(line)}
            self.assertEqual((len(accumulators), mca.multiply_adds(mca.bfdot_tile(sve))), (24, 24))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
