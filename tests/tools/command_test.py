"""The `fovea` command as its users see it: files, texts and exit codes.

Usage: command_test.py PATH_OF_FOVEA SOURCE_FOLDER [unittest arguments]. Needs tools/requirements.txt.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import matplotlib  # noqa: F401: what `fovea saturation` draws with
    import numpy as np
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    sys.exit(f"{error}: pip install -r tools/requirements.txt")

FOVEA, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
OK, WRONG, IMPOSSIBLE = 0, 1, 2
SUBCOMMANDS = ("info", "run", "check", "saturation", "minilm")


def attention(q, k, v, scale=None, causal=None):
    """float64 output, weights and log-sum-exp over [..., head, seq, dim]."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    if q.ndim > 2:
        k, v = (np.repeat(x, q.shape[-3] // k.shape[-3], axis=-3) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        offset = 0 if causal == "top-left" else k.shape[-2] - q.shape[-2]
        keep = np.arange(k.shape[-2]) <= np.arange(q.shape[-2])[:, None] + offset
        scores = np.where(keep, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True)
    exponentials = np.exp(scores - largest)
    total = exponentials.sum(axis=-1, keepdims=True)
    weights = exponentials / total
    return weights @ v, weights, (largest + np.log(total))[..., 0]


class CommandTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fovea-command-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.random = np.random.default_rng(1)

    def fovea(self, *arguments, wanted=OK, stdin="", environment=None):
        process = subprocess.run([FOVEA, *map(str, arguments)], input=stdin, capture_output=True, text=True, cwd=self.folder,
                                 env={**os.environ, **(environment or {})}, timeout=300)
        self.assertEqual(process.returncode, wanted, process.stdout + process.stderr)
        return process

    def json(self, *arguments, **options):
        return json.loads(self.fovea(*arguments, "--json", **options).stdout)

    def normal(self, *shape):
        return self.random.standard_normal(shape).astype(np.float32)

    def save(self, **arrays):
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", array)

    def files(self):
        return sorted(path.name for path in self.folder.iterdir())

    def assert_close(self, actual, wanted):
        self.assertEqual(actual.dtype, np.float32)
        np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=2e-6)


class Help(CommandTest):
    def test_every_subcommand_explains_itself_and_offers_json(self):
        text = self.fovea("--help").stdout
        for name in SUBCOMMANDS:
            self.assertIn(f"\n  {name} ", text)
            self.assertIn("--json", self.fovea(name, "--help").stdout)

    def test_wrong_usage_is_exit_code_2(self):
        for arguments in ((), ("nonsense",), ("info", "--nonsense"), ("run",), ("info", "--threads", "-1"), ("saturation", "--draws", "1")):
            self.assertNotEqual(self.fovea(*arguments, wanted=IMPOSSIBLE).stderr, "")

    def test_version_is_that_of_the_header(self):
        header = (SOURCE / "include/fovea/fovea.h").read_text()
        numbers = [line.split()[2] for line in header.splitlines() if line.startswith("#define FOVEA_VERSION_")]
        self.assertEqual(self.fovea("--version").stdout.strip(), ".".join(numbers))


class Info(CommandTest):
    def test_levels_say_which_is_chosen_and_why_others_are_not_usable(self):
        report = self.json("info", environment={"FOVEA_ISA": "auto"})
        self.assertEqual([level["name"] for level in report["levels"] if level["chosen"]], [report["chosen"]])
        for level in report["levels"]:
            self.assertEqual(level["usable"], level["refusal"] == "")
            self.assertTrue(level["compiled"] or not level["usable"])
        self.assertEqual([level["name"] for level in report["levels"] if level["usable"]][-1], report["chosen"])
        self.assertGreaterEqual(report["threads"], 1)
        compiled = {level["name"] for level in report["levels"] if level["compiled"]}
        self.assertEqual({kernel["level"] for kernel in report["kernels"]}, compiled)

    def test_a_level_is_forced_by_option_and_by_environment(self):
        self.assertEqual(self.json("info", "--isa", "scalar")["chosen"], "scalar")
        self.assertEqual(self.json("info", environment={"FOVEA_ISA": "scalar"})["chosen"], "scalar")
        self.assertEqual(self.json("info", "--threads", "1")["threads"], 1)

    def test_a_level_that_is_not_to_be_had_is_an_error_beside_the_list(self):
        refused = [level["name"] for level in self.json("info")["levels"] if not level["usable"]]
        for name in ["nonsense", *refused]:
            process = self.fovea("info", "--isa", name, wanted=IMPOSSIBLE)
            self.assertIn(name, process.stderr)
            self.assertIn("scalar", process.stdout)


class Run(CommandTest):
    def run_files(self, *options):
        return self.fovea("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "out.npy", *options)

    def test_two_three_and_four_axes_give_what_numpy_gives(self):
        for lead_q, lead_kv in (((), ()), ((6,), (2,)), ((2, 6), (2, 3))):
            q, k, v = self.normal(*lead_q, 9, 17), self.normal(*lead_kv, 21, 17), self.normal(*lead_kv, 21, 5)
            self.save(q=q, k=k, v=v)
            for causal in (None, "top-left", "bottom-right"):
                self.run_files("--weights", "weights.npy", "--lse", "lse.npy", *(("--causal", causal) if causal else ()))
                for name, wanted in zip(("out", "weights", "lse"), attention(q, k, v, causal=causal)):
                    self.assert_close(np.load(self.folder / f"{name}.npy"), wanted)
        self.assertEqual(self.files(), ["k.npy", "lse.npy", "out.npy", "q.npy", "v.npy", "weights.npy"])

    def test_scale_is_taken_as_it_is(self):
        q, k, v = self.normal(4, 8), self.normal(7, 8), self.normal(7, 8)
        self.save(q=q, k=k, v=v)
        for scale in (0, 1, -0.5):
            self.run_files("--scale", scale)
            self.assert_close(np.load(self.folder / "out.npy"), attention(q, k, v, scale=scale)[0])

    def test_storage_order_byte_order_and_width_do_not_matter(self):
        q, k, v = self.normal(3, 4, 8), self.normal(3, 7, 8), self.normal(3, 7, 8)
        self.save(q=q, k=k, v=v)
        self.run_files()
        wanted = (self.folder / "out.npy").read_bytes()
        self.save(q=np.asfortranarray(q), k=k.astype(">f4"), v=v.astype(np.float64))
        self.run_files()
        self.assertEqual((self.folder / "out.npy").read_bytes(), wanted)

    def test_safetensors_in_and_out(self):
        q, k, v = self.normal(2, 4, 8), self.normal(2, 7, 8), self.normal(2, 7, 3)
        save_file({"q": q, "k": k, "other": v}, self.folder / "in.safetensors", metadata={"text": "is skipped"})
        report = self.json("run", "--q", "in.safetensors", "--k", "in.safetensors:k", "--v", "in.safetensors:other",
                           "--out", "result.safetensors", "--lse", "result.safetensors", "--weights", "result.safetensors:softmax")
        self.assertEqual(report["out"]["shape"], [2, 4, 3])
        result = load_file(self.folder / "result.safetensors")
        self.assertEqual(sorted(result), ["lse", "out", "softmax"])
        for name, wanted in zip(("out", "softmax", "lse"), attention(q, k, v)):
            self.assert_close(result[name], wanted)
        np.testing.assert_allclose(result["softmax"].sum(axis=-1), 1, rtol=1e-6)

    def test_both_formats_give_the_same_bits(self):
        arrays = {name: self.normal(5, 6) for name in "qkv"}
        self.save(**arrays)
        save_file(arrays, self.folder / "in.safetensors")
        self.run_files()
        self.fovea("run", "--q", "in.safetensors", "--k", "in.safetensors", "--v", "in.safetensors", "--out", "out.safetensors:x")
        np.testing.assert_array_equal(load_file(self.folder / "out.safetensors")["x"], np.load(self.folder / "out.npy"))

    def test_empty_arrays_are_valid(self):
        self.save(q=self.normal(3, 4), k=self.normal(0, 4), v=self.normal(0, 2))
        self.run_files("--lse", "lse.npy")
        np.testing.assert_array_equal(np.load(self.folder / "out.npy"), np.zeros((3, 2)))
        np.testing.assert_array_equal(np.load(self.folder / "lse.npy"), np.full(3, -np.inf))

    def test_bad_input_is_named_and_nothing_is_written(self):
        good = {name: self.normal(4, 8) for name in "qkv"}
        self.save(**good)
        (self.folder / "text.npy").write_text("not numpy")
        whole = (self.folder / "k.npy").read_bytes()
        (self.folder / "short.npy").write_bytes(whole[:-1])
        self.save(integers=np.zeros((4, 8), np.int32), half=np.zeros((4, 8), np.float16), complex=np.zeros((4, 8), np.complex64),
                  line=self.normal(4), five=self.normal(1, 1, 1, 4, 8), deep=self.normal(1, 4, 8), narrow=self.normal(4, 7),
                  long=self.normal(5, 8), heads3=self.normal(3, 4, 8), heads2=self.normal(2, 4, 8), batch=self.normal(2, 1, 4, 8),
                  four=self.normal(1, 1, 4, 8))
        save_file({"a": good["q"], "b": good["k"]}, self.folder / "two.safetensors")
        before = {path.name: path.read_bytes() for path in self.folder.iterdir()}

        def refused(*mentions, **changed):
            arguments = {"q": "q.npy", "k": "k.npy", "v": "v.npy", "out": "out.npy", "weights": "w.npy", **changed}
            process = self.fovea("run", *(f"--{name}={value}" for name, value in arguments.items()), wanted=IMPOSSIBLE)
            for mention in mentions:
                self.assertIn(mention, process.stderr)
            self.assertEqual(process.stdout, "")
            self.assertEqual({path.name: path.read_bytes() for path in self.folder.iterdir()}, before)

        refused("--q", "missing.npy", "No such file", q="missing.npy")
        refused("--k", "text.npy", "not an .npy file", k="text.npy")
        refused("--v", "short.npy", "ends within", v="short.npy")
        refused("--q", "<i4", q="integers.npy")
        refused("--q", "<f2", q="half.npy")
        refused("--q", "<c8", q="complex.npy")
        refused("--q", "line.npy", "[4]", q="line.npy")
        refused("--q", "five.npy", q="five.npy")
        refused("--k", "number of axes", k="deep.npy")
        refused("--k", "dim", "7", k="narrow.npy")
        refused("--v", "seq", "5", v="long.npy")
        refused("heads", q="heads3.npy", k="heads2.npy", v="heads2.npy")
        refused("--v", "heads", q="heads2.npy", k="heads2.npy", v="heads3.npy")
        refused("--k", "batch", q="batch.npy", k="four.npy", v="four.npy")
        refused("--q", "two.safetensors", "a, b", q="two.safetensors")
        refused("--q", "nothing", q="two.safetensors:nothing")
        refused("--q", "q.txt", ".npy or .safetensors", q="q.txt")
        refused("out.txt", out="out.txt")
        refused("no/such/out.npy", out="no/such/out.npy")
        refused("no/such/w.npy", weights="no/such/w.npy")
        refused("out.npy", "two outputs", weights="out.npy")
        refused("scale", scale="nan")
        refused("scale", scale="inf")
        refused("nonsense", isa="nonsense")

    def test_a_result_replaces_the_old_one_even_its_own_input(self):
        q = self.normal(4, 4)
        self.save(q=q, k=q, v=q)
        self.fovea("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "q.npy")
        self.assert_close(np.load(self.folder / "q.npy"), attention(q, q, q)[0])
        self.assertEqual(self.files(), ["k.npy", "q.npy", "v.npy"])

    @unittest.skipUnless(pathlib.Path("/dev/full").exists(), "there is no /dev/full")
    def test_a_full_standard_output_is_an_error(self):
        with open("/dev/full", "w") as full:
            process = subprocess.run([FOVEA, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(process.returncode, IMPOSSIBLE)


class Check(CommandTest):
    def test_a_right_result_is_exit_code_0(self):
        report = self.json("check", "hq=4", "hkv=2", "sq=9", "skv=33", "dk=17", "dv=5", "causal=br", "lse=1", "weights=1", "isa=scalar")
        (entry,) = report["problems"]
        self.assertTrue(entry["ok"])
        self.assertEqual(entry["level"], "scalar")
        for ratio in ("out_ratio", "lse_ratio", "weights_ratio"):
            self.assertGreater(entry[ratio], 0)
            self.assertLessEqual(entry[ratio], 1)
        self.assertIn("pass", self.fovea("check", "sq=3 skv=5").stdout)

    def test_an_error_beyond_the_limit_is_exit_code_1(self):
        exact, rounded = "dist=ones", "sq=3 skv=5 dk=7 dv=11"
        report = self.json("check", "--limit", "1e-6", exact + " dk=2", rounded, wanted=WRONG)
        self.assertEqual([entry["ok"] for entry in report["problems"]], [True, False])
        self.assertEqual((report["passed"], report["failed"], report["refused"]), (1, 1, 0))
        self.assertIn("FAIL", self.fovea("check", "--limit", "0", rounded, wanted=WRONG).stdout)
        self.fovea("check", "--limit", "2", rounded, wanted=IMPOSSIBLE)

    def test_a_refused_or_malformed_problem_is_exit_code_2(self):
        self.assertIn("refused", self.fovea("check", "isa=imaginary", wanted=IMPOSSIBLE).stdout)
        for line in ("nonsense", "colour=red", "sq=many", "sq=-1", "hq=3 hkv=2"):
            self.assertIn(line, self.fovea("check", line, wanted=IMPOSSIBLE).stderr)
        self.fovea("check", wanted=IMPOSSIBLE)
        self.fovea("check", "--file", "missing", wanted=IMPOSSIBLE)

    def test_lines_come_from_arguments_files_and_standard_input(self):
        (self.folder / "lines").write_text("# a comment\n\nsq=3\nsq=4 skv=9\n")
        self.assertEqual(self.json("check", "--file", "lines")["passed"], 2)
        self.assertEqual(self.json("check", "-", stdin="sq=3\nsq=4\nsq=5\n")["passed"], 3)
        self.assertEqual(self.json("check", "sq=3", "skv=4", "sq=5 skv=6", "b=2", "sq=7")["passed"], 3)

    def test_the_line_printed_describes_the_same_problem(self):
        line = "b=2 hq=4 hkv=2 sq=5 skv=6 dk=7 dv=8 causal=tl layout=strided seed=3"
        first = self.json("check", line)["problems"][0]
        again = self.json("check", first["problem"])["problems"][0]
        self.assertEqual(first, again)


class Saturation(CommandTest):
    DRAWS = ("--draws", "500")

    def test_weights_sum_to_one_and_are_the_softmax_of_the_scores(self):
        report = self.json("saturation", *self.DRAWS)
        scores = np.array(report["scores"])
        for which, scale in (("softmax_unscaled", 1), ("softmax_scaled", 1 / np.sqrt(report["dim_k"]))):
            wanted = np.exp(scale * (scores - scores.max()))
            self.assertAlmostEqual(sum(report[which]), 1, delta=1e-6)
            np.testing.assert_allclose(report[which], wanted / wanted.sum(), rtol=1e-4, atol=1e-30)
        self.assertLessEqual(report["softmax_error_ratio"], 1)

    def test_statistics_are_those_of_theory(self):
        report = self.json("saturation", "--draws", "4000", "--seed", "7")
        self.assertEqual([row["dim_k"] for row in report["statistics"]], [16, 32, 64, 128, 256, 512, 1024])
        for row in report["statistics"]:
            self.assertTrue(row["inside_99.9"])
            for which, variance in (("score", row["dim_k"]), ("scaled_score", 1)):
                estimate = row[which]["variance"]
                self.assertEqual(estimate["theory"], variance)
                self.assertEqual(row[which]["mean"]["theory"], 0)
                self.assertLess(abs(estimate["estimate"] / variance - 1), 0.15)
                # The standard error of a variance of n draws is near variance * sqrt(2 / n).
                half_width = (estimate["bounds_95"][1] - estimate["bounds_95"][0]) / 2
                self.assertLess(abs(half_width / (1.96 * variance * np.sqrt(2 / 4000)) - 1), 0.3)

    def test_the_same_seed_gives_the_same_and_another_does_not(self):
        first = self.fovea("saturation", *self.DRAWS, "--json").stdout
        self.assertEqual(first, self.fovea("saturation", *self.DRAWS, "--json").stdout)
        self.assertNotEqual(json.loads(first)["scores"], self.json("saturation", *self.DRAWS, "--seed", "2")["scores"])

    def test_figures_are_drawn_and_the_same_each_time(self):
        for name in ("first", "second"):
            report = self.json("saturation", *self.DRAWS, "--out", name, "--python", sys.executable)
            self.assertEqual(len(report["written"]), 5)
        for path in (self.folder / "first").iterdir():
            self.assertEqual(path.read_bytes(), (self.folder / "second" / path.name).read_bytes(), path.name)
        self.assertTrue((self.folder / "first/saturation.png").read_bytes().startswith(b"\x89PNG"))
        self.assertIn("<svg", (self.folder / "first/score_variance.svg").read_text())
        saved = json.loads((self.folder / "first/saturation.json").read_text())
        self.assertEqual(saved["scores"], report["scores"])

    def test_without_python_the_numbers_are_written_and_the_way_to_draw_is_said(self):
        process = self.fovea("saturation", *self.DRAWS, "--out", "figures", "--python", "no-such-python")
        self.assertIn("plot_saturation.py", process.stderr)
        self.assertEqual([path.name for path in (self.folder / "figures").iterdir()], ["saturation.json"])

    def test_a_folder_that_cannot_be_made_is_an_error(self):
        (self.folder / "file").write_text("")
        self.assertIn("file", self.fovea("saturation", *self.DRAWS, "--out", "file", wanted=IMPOSSIBLE).stderr)


class MiniLM(CommandTest):
    DATA = SOURCE / "tests/data/minilm_layer.safetensors"

    def test_the_library_gives_what_the_model_gives_on_every_level(self):
        for level in (level["name"] for level in self.json("info")["levels"] if level["usable"]):
            report = self.json("minilm", "--isa", level, "--threads", "1")
            self.assertEqual((report["level"], report["ok"], len(report["sentences"])), (level, True, 6))

    def test_the_data_is_attention(self):
        tensors = load_file(self.DATA)
        for sentence in range(6):
            q, k, v, out = (tensors[f"sentence{sentence}.{name}"] for name in ("q", "k", "v", "out"))
            np.testing.assert_allclose(out, attention(q, k, v)[0], rtol=1e-6, atol=1e-7)

    def test_a_wrong_value_is_exit_code_1(self):
        content = bytearray(self.DATA.read_bytes())
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        place = 8 + int.from_bytes(content[:8], "little") + header["sentence3.out"]["data_offsets"][0]
        value = np.frombuffer(content, np.float32, 1, place)[0]
        content[place : place + 4] = np.float32(value + 1e-4).tobytes()
        (self.folder / "wrong.safetensors").write_bytes(content)
        report = self.json("minilm", "--data", "wrong.safetensors", wanted=WRONG)
        self.assertEqual([entry["ok"] for entry in report["sentences"]], [True, True, True, False, True, True])

    def test_another_file_is_refused(self):
        save_file({"x": self.normal(2, 2)}, self.folder / "x.safetensors")
        for name in ("x.safetensors", "missing.safetensors"):
            self.assertIn(name, self.fovea("minilm", "--data", name, wanted=IMPOSSIBLE).stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
