"""What bench/peers computes and writes by itself: numbers, the oracle, tables and plots.

Usage: peers_test.py SOURCE_FOLDER. Needs tools/requirements.txt.
"""
import collections
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

import numpy as np

sys.path.insert(0, f"{sys.argv[1]}/bench")
from peers import page  # noqa: E402
from peers.calls import Call  # noqa: E402
from peers.measure import Field, best_peer, length_differences  # noqa: E402
from peers.oracle import Oracle  # noqa: E402
from peers.tensors import Tensors, decode, encode  # noqa: E402


def timed(seconds, ratios=(), **more):
    return {"ways": {"way": {"error": 1e-7, "seconds": seconds}}, "way": "way", "error": 1e-7, "seconds": seconds, "spread": 0.01,
            "ratios": list(ratios), **more}


def report():
    wrong = {"ways": {"way": {"error": None, "wrong": True}}, "way": None}
    calls = [{"shape": "1,1,1,1,10,512", "type": "f32", "threads": threads, "best": "torch", "ratio": 1.5, "goal": goal,
              "peers": {"fovea": timed(2e-6 / threads), "torch": timed(3e-6), "openvino": wrong, "ggml": {"failure": "its process ended: SIGSEGV"},
                        "naive": timed(9e-6)}} for threads, goal in ((1, 1.0), (2, 2.0))]
    inputs = [{"shape": "1,4,4,128,1024,64", "type": "f32", "inputs": "large scores", "peers": {"fovea": timed(1), "openvino": wrong}}]
    lengths = [{"keys": keys, "bytes": 70000, "peers": {"fovea": timed(1e-9 * keys**2)}} for keys in (1024, 2048, 4096)]
    return {"date": "2026-01-01", "processor": "a processor", "disturbed_kept": False, "versions": {"fovea": "Fovea 1", "torch": "PyTorch 1"},
            "calls": calls, "inputs": inputs, "lengths": lengths}


class Numbers(unittest.TestCase):
    def test_bf16_rounds_to_nearest_even(self):
        x = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -3.1415926], np.float32)
        np.testing.assert_array_equal(decode(encode(x, "bf16"), "bf16"), np.float32([1, 1, 1 + 2**-6, -3.140625]))

    def test_blocks_are_ggmls(self):
        x = np.arange(32, dtype=np.float32)
        eight = encode(x, "q8_0")
        self.assertEqual(eight[:2].view(np.float16)[0], np.float16(31 / 127))
        self.assertEqual((eight.size, eight[2], eight[33]), (34, 0, 127))
        four = encode(x - 16, "q4_0")  # steps of 2 from -16 on, the first one 0
        self.assertEqual((four.size, four[:2].view(np.float16)[0], four[2], four[17]), (18, 2, 0 | 8 << 4, 8 | 15 << 4))
        np.testing.assert_allclose(decode(eight, "q8_0"), x, atol=31 / 127 / 2 + 0.02)
        np.testing.assert_array_equal(decode(four, "q4_0")[[0, 2, 31]], [-16, -14, 14])

    def test_a_block_of_zeros_is_zeros(self):
        for type_ in ("q8_0", "q4_0"):
            np.testing.assert_array_equal(decode(encode(np.zeros(64, np.float32), type_), type_), np.zeros(64))


class Calls(unittest.TestCase):
    def test_shapes_are_read_and_written(self):
        for shape in ("1,2,1,3,4,5", "1,16,16,1024,1024,192/128 causal"):
            self.assertEqual(Call.parse(shape, "f32").shape, shape)
        for shape in ("1,2,3,4,5", "1,3,2,1,1,1", "0,1,1,1,1,1", "1,1,1,2,3,4 causal"):
            with self.assertRaises(ValueError):
                Call.parse(shape, "f32")

    def test_blocks_are_of_caches_alone(self):
        exists = [Call.parse(shape, "q8_0").exists() for shape in ("1,8,2,1,9,64", "1,8,2,2,9,64", "1,8,2,1,9,40")]
        self.assertEqual(exists, [True, False, False])

    def test_goals_go_by_kind_of_call(self):
        goals = [Call.parse(shape, type_).goal(has_bf16_tiles) for shape, type_, has_bf16_tiles in (
            ("1,8,8,64,64,64", "f32", False), ("1,8,8,64,64,64", "bf16", False), ("1,8,8,64,64,64", "bf16", True),
            ("1,8,2,1,64,64", "f16", False), ("1,8,8,1,64,64", "f32", False))]
        self.assertEqual(goals, [1.2, 2.0, None, 2.0, 1.0])


class TheOracle(unittest.TestCase):
    def result(self, call, tensors):
        q, k, v = (x.astype(np.float64) for x in tensors.floats())
        k, v = (np.repeat(x, call.group, 1) for x in (k, v))
        scores = q @ k.swapaxes(2, 3) / np.sqrt(call.dim_k)
        if tensors.sees() is not None:
            scores = np.where(tensors.sees(), scores, -1e9)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights @ v / weights.sum(-1, keepdims=True)

    def test_a_right_result_is_right(self):
        for shape, type_ in (("2,6,3,20,30,16", "f32"), ("1,4,2,40,40,32 causal", "bf16"), ("2,4,1,1,50,64/32", "q4_0")):
            call = Call.parse(shape, type_)
            tensors = Tensors.random(call)
            error, right = Oracle(tensors).error(self.result(call, tensors))
            self.assertTrue(right)
            self.assertLess(error, 1e-6)

    def test_a_wrong_row_is_wrong(self):
        call = Call.parse("1,2,2,5,30,16", "f32")
        tensors = Tensors.random(call)
        result = self.result(call, tensors)
        result[0, 1, 4, 3] += 1e-3
        self.assertFalse(Oracle(tensors).error(result)[1])
        result[0, 1, 4, 3] = np.nan
        self.assertEqual(Oracle(tensors).error(result), (None, False))

    def test_a_row_without_keys_is_zero(self):
        call = Call.parse("1,1,1,3,30,16", "f32", "a row without keys")
        tensors = Tensors.random(call)
        result = self.result(call, tensors)
        self.assertFalse(Oracle(tensors).error(result)[1])
        result[:, :, 0] = 0
        self.assertTrue(Oracle(tensors).error(result)[1])


class Rounds(unittest.TestCase):
    def turns(self, answers):
        """{name: its result} of libraries that answer so every time, and how often each was asked."""
        field = Field.__new__(Field)
        field.names, field.threads, asked = list(answers), 1, collections.Counter()

        def ask(name, time):
            asked[name] += 1
            return answers[name]

        field.ask = ask
        results = {name: {"ways": {"way": {"error": 0, "seconds": answer["seconds"]}}, "way": "way"} for name, answer in answers.items()}
        with unittest.mock.patch("peers.measure.probe", return_value=1.0):
            field.take_turns(list(answers), results, 0.01, 1, False)
        return results, asked

    def test_a_library_far_behind_is_asked_in_the_fewest_rounds(self):
        _, asked = self.turns({name: {"seconds": seconds, "waiting": 0} for name, seconds in (("fovea", 0.02), ("torch", 0.03), ("ggml", 1))})
        self.assertEqual(asked, {"fovea": 10, "torch": 10, "ggml": 3})

    def test_beside_others_a_round_with_waiting_does_not_count(self):
        results, asked = self.turns({"fovea": {"seconds": 0.02, "waiting": 0}, "torch": {"seconds": 0.03, "waiting": 0.1}})
        self.assertEqual(results["torch"]["failure"], "the machine was too busy: 0 of 30 rounds undisturbed")
        self.assertEqual(results["fovea"]["seconds"], 0.02)
        self.assertEqual(asked, {"fovea": 30, "torch": 30})

    def test_alone_the_waiting_is_no_part_of_the_time(self):
        results, _ = self.turns({"fovea": {"seconds": 20, "waiting": 0.1}})
        self.assertAlmostEqual(results["fovea"]["seconds"], 18)
        results, asked = self.turns({"fovea": {"seconds": 20, "waiting": 0.6}})
        self.assertIn("too busy", results["fovea"]["failure"])
        self.assertEqual(asked, {"fovea": 9})


class Pages(unittest.TestCase):
    def test_the_best_peer_is_the_fastest_right_one(self):
        peers = {"fovea": timed(1), "torch": timed(3, [2, 3, 7]), "naive": timed(4, [4]), "ggml": {"failure": "-"}}
        self.assertEqual(best_peer(peers), ("torch", 3))
        self.assertEqual(best_peer({"fovea": timed(1), "ggml": {"failure": "-"}}), (None, None))

    def test_time_over_pairs_is_compared_with_the_median(self):
        lengths = report()["lengths"]
        lengths[2]["peers"]["fovea"]["seconds"] *= 1.25
        for (keys, difference), expected in zip(length_differences(lengths), (0, 0, 0.25)):
            self.assertAlmostEqual(difference, expected)

    def test_tables_and_plots(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "page.md")
            marks = (f"<!-- peers-{name}: {edge} -->" for name in ("calls", "inputs", "lengths") for edge in ("begin", "end"))
            path.write_text("before\n" + "\n".join(marks) + "\nafter\n")
            page.publish(report(), path, f"{folder}/peers")
            text = path.read_text()
            for row in ("| 1,1,1,1,10,512 | f32 | 2.0 µs | 1% | **1.50** |  | wrong | failed |  | 4.50 | 1.50 | 1.0 |",
                        "| **3.00** |  | wrong | failed |  | 9.00 | 1.50 | 2.0 missed |",
                        "* OpenVINO: 1,1,1,1,10,512 f32: wrong.", "* ggml: 1,1,1,1,10,512 f32: its process ended: SIGSEGV.",
                        "| large scores | f32 | 1.0e-07 |  |  | **not a number** |",
                        "| 2048 | 4.19 ms | +0.0% | 0.07 MB |"):
                self.assertIn(row, text)
            self.assertTrue(text.startswith("before\n") and text.endswith("after\n"))
            plots = sorted(plot.name for plot in pathlib.Path(folder).glob("peers-*") if plot.stat().st_size > 1000)
            self.assertEqual(plots, ["peers-lengths.png", "peers-lengths.svg", "peers-ratios.png", "peers-ratios.svg"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
