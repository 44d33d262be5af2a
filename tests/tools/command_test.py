"""The `fovea` command as its users see it: files, texts and exit codes.

Usage: command_test.py PATH_OF_FOVEA SOURCE_FOLDER [unittest arguments]. Needs tools/requirements.txt.
"""
import contextlib
import json
import os
import pathlib
import pty
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
SUBCOMMANDS = ("info", "run", "check", "saturation", "minilm", "tune")


def attention(q, k, v, scale=None, causal=None, align=None, left=None, right=None, softcap=None, slopes=None, mask=None,
              sinks=None):
    """float64 output, weights and log-sum-exp over [..., head, seq, dim]."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    if q.ndim > 2:
        k, v = (np.repeat(x, q.shape[-3] // k.shape[-3], axis=-3) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    offset = k.shape[-2] - q.shape[-2] if "bottom-right" in (causal, align) else 0
    ahead = np.arange(k.shape[-2]) - np.arange(q.shape[-2])[:, None] - offset
    keep = np.full(scores.shape, True)
    if causal:
        keep &= ahead <= 0
    if left is not None:
        keep &= ahead >= -left
    if right is not None:
        keep &= ahead <= right
    if slopes is not None:
        scores = scores - np.abs(ahead) * np.float64(slopes)[:, None, None]
    if mask is not None and mask.dtype == bool:
        keep &= mask
    elif mask is not None:
        scores = scores + mask.astype(np.float64)
    scores = np.where(keep, scores, -np.inf)
    sinks = -np.inf if sinks is None else np.float64(sinks)[:, None, None]
    largest = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), sinks)
    largest = np.where(np.isfinite(largest), largest, 0)  # of rows without a key and a sink
    exponentials = np.exp(scores - largest)
    total = exponentials.sum(axis=-1, keepdims=True) + np.exp(sinks - largest)
    weights = np.divide(exponentials, total, out=np.zeros_like(exponentials), where=total > 0)
    with np.errstate(divide="ignore"):
        return weights @ v, weights, (largest + np.log(total))[..., 0]


def as_bfloat16(array):
    """The upper halves of float32 numbers, which NumPy has no type for."""
    return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


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

    def save_safetensors(self, name, dtype, array):
        """One tensor of a type that NumPy does not have, as its bytes."""
        about = {"t": {"dtype": dtype, "shape": array.shape, "data_offsets": [0, array.nbytes]}}
        header = json.dumps(about).encode()
        (self.folder / name).write_bytes(len(header).to_bytes(8, "little") + header + array.tobytes())

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
        for arguments in ((), ("nonsense",), ("info", "--nonsense"), ("run",), ("info", "--threads", "-1"), ("saturation", "--draws", "1"),
                          ("tune", "--isa", "nonsense"), ("tune", "--threads", "0"), ("tune", "--from", "none.tuning")):
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


class Tune(CommandTest):
    def test_what_is_slow_is_found_and_the_table_that_is_written_is_the_one_that_is_used(self):
        levels = [level["name"] for level in self.json("info")["levels"] if level["usable"]]
        level = "avx2" if "avx2" in levels else levels[-1]
        kernel = lambda **options: next(k for k in self.json("info", **options)["kernels"] if k["level"] == level and k["fits_vectors"])
        usual = kernel()
        least = usual["panel_rows"] // 3 if level != "scalar" else usual["panel_rows"] // 2  # one vector of queries
        (self.folder / "slow.tuning").write_text(f"format = 1\n{level}.panel_rows = {least}\n")
        report = self.json("tune", "--quick", "--isa", level, "--from", "slow.tuning", "--out", "table")
        self.assertEqual(self.files(), ["slow.tuning", "table"])
        self.assertEqual([entry["level"] for entry in report["levels"]], [level])
        tuned = {p["name"]: p["tuned"] for p in report["levels"][0]["parameters"]}
        self.assertEqual({p["name"]: p["default"] for p in report["levels"][0]["parameters"]}, {name: usual[name] for name in tuned})
        self.assertGreater(tuned["panel_rows"], least)
        for shape in report["levels"][0]["shapes"]:
            self.assertGreater(shape["default_seconds"], 0)
        used = kernel(environment={"FOVEA_TUNING": "table"})
        self.assertEqual({name: used[name] for name in tuned}, tuned)

    def test_a_table_is_forced_by_option_and_by_environment(self):
        for name, panels in ("a", 3), ("b", 4):
            (self.folder / name).write_text(f"format = 1\nscalar.group_panels = {panels}\n")
        panels = lambda *arguments, **options: self.json("info", *arguments, **options)["kernels"][0]["group_panels"]
        usual = panels()
        self.assertNotIn(usual, (3, 4))
        self.assertEqual(panels("--tuning", "a"), 3)
        self.assertEqual(panels("--tuning", "a", environment={"FOVEA_TUNING": "b"}), 3)
        self.assertEqual(panels(environment={"FOVEA_TUNING": "b"}), 4)
        self.assertIn("Tuning   b\n", self.fovea("info", environment={"FOVEA_TUNING": "b"}).stdout)
        self.assertIn("Tuning   the defaults\n", self.fovea("info").stdout)

    def test_a_fault_in_a_table_is_an_error_of_every_command_that_computes(self):
        (self.folder / "bad").write_text("format = 1\nscalar.group_panels = 0\n")
        text = "bad: line 2: scalar.group_panels: 0 is not in 1..32"
        self.save(q=self.normal(5, 8))
        for arguments in ("info",), ("check", "sq=3"), ("run", *"--q q.npy --k q.npy --v q.npy --out o.npy".split()):
            process = self.fovea(*arguments, wanted=IMPOSSIBLE, environment={"FOVEA_TUNING": "bad"})
            self.assertIn("FOVEA_TUNING: " + text, process.stdout + process.stderr)
        self.assertIn("--tuning: " + text, self.fovea("info", "--tuning", "bad", wanted=IMPOSSIBLE).stderr)
        self.assertIn("--from: " + text, self.fovea("tune", "--from", "bad", wanted=IMPOSSIBLE).stderr)
        self.assertEqual(self.files(), ["bad", "q.npy"])

    def test_a_table_that_cannot_be_written_is_an_error_before_anything_is_measured(self):
        for out in "none/table", ".":
            process = self.fovea("tune", "--out", out, wanted=IMPOSSIBLE)
            self.assertIn(f"--out: {out}: ", process.stderr)
        self.assertEqual(self.files(), [])


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

    def check_feature(self, options, heads=(6, 2), batch=(2,), queries=9, keys=21, **feature):
        """The command with these options gives what NumPy gives with that feature."""
        q = self.normal(*batch, heads[0], queries, 17)
        k, v = self.normal(*batch, heads[1], keys, 17), self.normal(*batch, heads[1], keys, 5)
        self.save(q=q, k=k, v=v)
        self.run_files("--weights", "weights.npy", "--lse", "lse.npy", *options)
        for name, wanted in zip(("out", "weights", "lse"), attention(q, k, v, **feature)):
            self.assert_close(np.load(self.folder / f"{name}.npy"), wanted)

    def test_windows_are_inclusive_and_count_from_the_named_corner(self):
        for align in ("top-left", "bottom-right"):
            for left, right in ((0, 0), (3, 5), (None, 2), (2, None), (40, 40)):
                options = [f"--align={align}"]
                options += [f"--window-left={left}"] if left is not None else []
                options += [f"--window-right={right}"] if right is not None else []
                self.check_feature(options, align=align, left=left, right=right)
        self.check_feature(["--causal=bottom-right", "--window-left=3"], causal="bottom-right", left=3)
        self.check_feature(["--causal=top-left", "--align=top-left", "--window-right=-1"], causal="top-left")

    def test_softcap_alibi_and_sinks_are_those_of_numpy(self):
        self.check_feature(["--softcap", "1.5"], softcap=1.5)
        slopes, sinks = np.float32([0.5, 0.25, 0, -0.5, 1, 2]), np.float32([0, 1, -1, -np.inf, 30, 2])
        self.save(slopes=slopes, sinks=sinks)
        self.check_feature(["--alibi", "slopes.npy", "--align", "bottom-right"], slopes=slopes, align="bottom-right")
        self.check_feature(["--sinks", "sinks.npy"], sinks=sinks)
        save_file({"sinks": sinks, "alibi_slopes": slopes}, self.folder / "heads.safetensors")
        self.check_feature(["--sinks", "heads.safetensors", "--alibi", "heads.safetensors", "--align", "top-left"], sinks=sinks,
                           slopes=slopes, align="top-left")
        # Six heads: those of four, then every other one of eight.
        standard = np.float32([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
        self.check_feature(["--alibi", "standard", "--align", "bottom-right"], slopes=standard, align="bottom-right")

    def test_masks_of_every_type_are_broadcast_as_numpy_does(self):
        for shape in ((21,), (9, 1), (9, 21), (6, 1, 1), (2, 1, 1, 21), (2, 6, 9, 21), (1, 1, 1, 1)):
            keep = self.random.random(shape) < 0.6
            bias = np.where(keep, self.normal(*shape), -np.inf)
            self.save(bool=keep, f16=bias.astype(np.float16), f32=bias.astype(np.float32), f64=bias)
            self.check_feature(["--mask", "bool.npy"], mask=keep)
            self.check_feature(["--mask", "f16.npy"], mask=bias.astype(np.float16))
            self.check_feature(["--mask", "f32.npy"], mask=bias)
            self.check_feature(["--mask", "f64.npy"], mask=bias)
            upper = as_bfloat16(bias)
            self.save_safetensors("bf16.safetensors", "BF16", upper)
            self.check_feature(["--mask", "bf16.safetensors"], mask=(upper.astype(np.uint32) << 16).view(np.float32))
            self.save_safetensors("bool.safetensors", "BOOL", keep)
            self.check_feature(["--mask", "bool.safetensors:t"], mask=keep)

    def test_all_features_together(self):
        slopes, sinks, mask = self.normal(6), self.normal(6), self.random.random((2, 1, 9, 21)) < 0.8
        self.save(slopes=slopes, sinks=sinks, mask=mask)
        options = ["--causal=bottom-right", "--window-left=9", "--softcap=2", "--alibi=slopes.npy", "--sinks=sinks.npy",
                   "--mask=mask.npy", "--scale=0.5"]
        self.check_feature(options, causal="bottom-right", left=9, softcap=2, slopes=slopes, sinks=sinks, mask=mask, scale=0.5)

    def test_lengths_leave_out_the_rest_of_each_entry(self):
        q, k, v = self.normal(3, 4, 9, 8), self.normal(3, 2, 21, 8), self.normal(3, 2, 21, 8)
        queries, keys = np.array([9, 0, 5]), np.array([21, 4, 7], np.int32)
        for entry in range(3):
            q[entry, :, queries[entry] :] = np.nan
            k[entry, :, keys[entry] :] = v[entry, :, keys[entry] :] = np.nan
        self.save(q=q, k=k, v=v, queries=queries, keys=keys)
        self.run_files("--seqlens-q", "queries.npy", "--seqlens-kv", "keys.npy", "--causal", "bottom-right", "--lse", "lse.npy",
                       "--weights", "weights.npy")
        wanted = {"out": np.zeros((3, 4, 9, 8)), "lse": np.full((3, 4, 9), -np.inf), "weights": np.zeros((3, 4, 9, 21))}
        for entry, (rows, columns) in enumerate(zip(queries, keys)):
            out, weights, lse = attention(q[entry, :, :rows], k[entry, :, :columns], v[entry, :, :columns], causal="bottom-right")
            wanted["out"][entry, :, :rows] = out
            wanted["lse"][entry, :, :rows] = lse
            wanted["weights"][entry, :, :rows, :columns] = weights
        for name in wanted:
            self.assert_close(np.load(self.folder / f"{name}.npy"), wanted[name])

    def test_packed_segments_give_what_separate_calls_give(self):
        queries, keys = np.array([1, 4, 4, 10], np.int32), np.array([0, 7, 12, 20], np.int64)
        q, k, v = self.normal(4, 12, 8), self.normal(2, 21, 8), self.normal(2, 21, 3)
        q[:, [0, 10, 11]] = k[:, 20] = v[:, 20] = np.nan  # tokens of no segment
        mask = self.random.random((3, 1, 6, 8)) < 0.7
        self.save(q=q, k=k, v=v, queries=queries, keys=keys, mask=mask)
        packed = ["--cu-seqlens-q", "queries.npy", "--cu-seqlens-kv", "keys.npy", "--lse", "lse.npy"]
        for options, feature in (([], {}), (["--causal=bottom-right", "--mask=mask.npy"], {"causal": "bottom-right"})):
            self.run_files(*packed, *options)
            wanted_out, wanted_lse = np.zeros((4, 12, 3)), np.full((4, 12), -np.inf)
            for segment in range(3):
                rows, columns = slice(*queries[segment : segment + 2]), slice(*keys[segment : segment + 2])
                shape = (rows.stop - rows.start, columns.stop - columns.start)
                if options:
                    feature["mask"] = mask[segment, :, : shape[0], : shape[1]]
                out, _, lse = attention(q[:, rows], k[:, columns], v[:, columns], **feature)
                wanted_out[:, rows], wanted_lse[:, rows] = out, lse
            self.assert_close(np.load(self.folder / "out.npy"), wanted_out)
            self.assert_close(np.load(self.folder / "lse.npy"), wanted_lse)

        # One side alone: packed queries beside a batch of keys.
        k, v = self.normal(3, 2, 9, 8), self.normal(3, 2, 9, 3)
        self.save(q=q[None], k=k, v=v)
        self.run_files("--cu-seqlens-q", "queries.npy")
        out = np.load(self.folder / "out.npy")
        for segment in range(3):
            rows = slice(*queries[segment : segment + 2])
            self.assert_close(out[0, :, rows], attention(q[:, rows], k[segment], v[segment])[0])

    def quantised(self, array, dtype):
        """What a cache of this type holds for the rows of an array: bytes, scales of rows, and the numbers that they stand for."""
        if dtype == "i8":
            scale = (np.abs(array).max(axis=-1) / 127).astype(np.float32)
            whole = np.rint(array / scale[..., None]).astype(np.int8)
            return whole, scale, whole * scale[..., None]
        low, high = (-127, 127) if dtype == "q8_0" else (-8, 7)
        parts = array.reshape(*array.shape[:-1], -1, 32)
        scale = (np.abs(parts).max(axis=-1, keepdims=True) / high).astype(np.float16)
        whole = np.clip(np.rint(parts / scale), low, high).astype(np.int8)
        numbers = whole if dtype == "q8_0" else (whole[..., :16] + 8) | ((whole[..., 16:] + 8) << 4)
        blocks = np.concatenate([scale.view(np.uint8), numbers.view(np.uint8)], axis=-1)
        return blocks.reshape(*array.shape[:-1], -1), None, (whole * scale.astype(np.float32)).reshape(array.shape)

    def test_quantised_keys_and_values_are_the_numbers_that_they_stand_for(self):
        q, k, v = self.normal(2, 6, 5, 64), self.normal(2, 2, 21, 64), self.normal(2, 2, 21, 96)
        for type_k, type_v in (("i8", "i8"), ("q8_0", "q4_0"), ("q4_0", "i8"), ("q8_0", "q8_0")):
            (k_bytes, k_scale, k_numbers), (v_bytes, v_scale, v_numbers) = self.quantised(k, type_k), self.quantised(v, type_v)
            self.save(q=q, k=k_bytes, v=v_bytes)
            options = []
            for name, dtype, scale in (("k", type_k, k_scale), ("v", type_v, v_scale)):
                if scale is None:
                    options.append(f"--{name}-blocks={dtype}")
                else:
                    self.save(**{f"{name}_scale": scale if name == "k" else scale[..., None]})
                    options.append(f"--{name}-scale={name}_scale.npy")
            self.run_files("--lse", "lse.npy", "--causal=bottom-right", *options)
            out, _, lse = attention(q, k_numbers, v_numbers, causal="bottom-right")
            self.assert_close(np.load(self.folder / "out.npy"), out)
            self.assert_close(np.load(self.folder / "lse.npy"), lse)

    def test_pages_hold_the_keys_that_the_block_table_names(self):
        q, k, v = self.normal(2, 6, 3, 32), self.normal(9, 2, 4, 32), self.normal(9, 2, 4, 5)  # pages of 4
        table, keys = np.int64([[7, 2, 5, -1], [0, 8, 1, 3]]), np.int32([10, 13])
        save_file({"k": k, "v": v, "block_table": table}, self.folder / "cache.safetensors")
        self.save(q=q, keys=keys)
        for packed in (False, True):
            if packed:
                self.save(q=q.transpose(1, 0, 2, 3).reshape(1, 6, 6, 32), queries=np.int32([0, 3, 6]))
            report = self.json("run", "--q=q.npy", "--k=cache.safetensors", "--v=cache.safetensors", "--out=out.npy",
                               "--block-table=cache.safetensors", "--seqlens-kv=keys.npy", "--causal=bottom-right",
                               *(["--cu-seqlens-q=queries.npy"] if packed else []))
            self.assertEqual(report["block_table"], "cache.safetensors")
            out = np.load(self.folder / "out.npy")
            if packed:
                out = out.reshape(6, 2, 3, 5).transpose(1, 0, 2, 3)
            for entry in range(2):
                rows = [x[table[entry, : -(-keys[entry] // 4)]].transpose(1, 0, 2, 3).reshape(2, -1, x.shape[-1])[:, : keys[entry]]
                        for x in (k, v)]
                self.assert_close(out[entry], attention(q[entry], *rows, causal="bottom-right")[0])

    def test_the_report_names_the_features(self):
        q = self.normal(4, 8)
        self.save(q=q, k=q, v=q, mask=np.full((4, 4), True))
        files = [f"--{name}={name}.npy" for name in ("q", "k", "v", "out", "mask")]
        report = self.json("run", *files, "--window-left=2", "--softcap=3", "--align=top-left", "--alibi=standard")
        self.assertEqual(report["window"], [2, -1])
        self.assertEqual((report["softcap"], report["align"], report["alibi"]), (3, "top-left", "standard"))
        self.assertEqual(report["mask"], {"from": "mask.npy", "shape": [4, 4], "dtype": "bool"})

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
        self.save(integers=np.zeros((4, 8), np.int32), half=np.float16([0]), complex=np.zeros((4, 8), np.complex64),
                  line=self.normal(4), five=self.normal(1, 1, 1, 4, 8), deep=self.normal(1, 4, 8), narrow=self.normal(4, 7),
                  long=self.normal(5, 8), heads3=self.normal(3, 4, 8), heads2=self.normal(2, 4, 8), batch=self.normal(2, 1, 4, 8),
                  four=self.normal(1, 1, 4, 8))
        self.save(two=np.int32([1, 2]), one=np.int32([4]), minus=np.int32([-1]), wide=np.int64([2**40]), falling=np.int32([3, 1]),
                  beyond=np.int32([0, 5]), mask=np.full((3, 4), True), slopes=np.float32([np.nan]),
                  tables=np.int32([[0], [9]]), bytes=np.zeros((4, 8), np.uint8), int8=np.zeros((4, 8), np.int8))
        save_file({"a": good["q"], "b": good["k"]}, self.folder / "two.safetensors")
        before = {path.name: path.read_bytes() for path in self.folder.iterdir()}

        def refused(*mentions, **changed):
            arguments = {"q": "q.npy", "k": "k.npy", "v": "v.npy", "out": "out.npy", "weights": "w.npy", **changed}
            process = self.fovea("run", *(f"--{name}={value}" for name, value in arguments.items() if value), wanted=IMPOSSIBLE)
            for mention in mentions:
                self.assertIn(mention, process.stderr)
            self.assertEqual(process.stdout, "")
            self.assertEqual({path.name: path.read_bytes() for path in self.folder.iterdir()}, before)

        refused("--q", "missing.npy", "No such file", q="missing.npy")
        refused("--k", "text.npy", "not an .npy file", k="text.npy")
        refused("--v", "short.npy", "ends within", v="short.npy")
        refused("--q", "<i4", q="integers.npy")
        refused("--sinks", "<f2", sinks="half.npy")
        refused("--q", "<c8", q="complex.npy")
        refused("--q", "line.npy", "[4]", q="line.npy")
        refused("--q", "five.npy", q="five.npy")
        refused("--k", "number of axes", k="deep.npy")
        refused("--k", "dim", "7", k="narrow.npy")
        refused("--v", "seq", "5", v="long.npy")
        refused("--q", "heads is 3", "--k, 2", q="heads3.npy", k="heads2.npy", v="heads2.npy")
        refused("--v", "heads", q="heads2.npy", k="heads2.npy", v="heads3.npy")
        refused("--k", "batch", q="batch.npy", k="four.npy", v="four.npy")
        refused("--q", "two.safetensors", "a, b", q="two.safetensors")
        refused("--q", "nothing", q="two.safetensors:nothing")
        refused("--q", "q.txt", ".npy or .safetensors", q="q.txt")
        refused("out.txt", out="out.txt")
        refused("no/such/out.npy", out="no/such/out.npy")
        refused("no/such/w.npy", weights="no/such/w.npy")
        refused("out.npy", "two outputs", weights="out.npy")
        refused("--mask", "[3, 4]", "[1, 1, 4, 4]", mask="mask.npy")
        refused("--mask", "five.npy", mask="five.npy")
        refused("--mask", "<i4", mask="integers.npy")
        refused("--sinks", "<i4", sinks="two.npy")
        refused("--sinks", "[4]", "[1]", sinks="line.npy")
        refused("--alibi[0]", alibi="slopes.npy", align="top-left")
        refused("--align", "--alibi", alibi="standard")
        refused("--align", "--window-left", **{"window-left": "3"})
        refused("--align", "bottom-right", "top-left", align="bottom-right", causal="top-left")
        refused("--window-left: -2", align="top-left", **{"window-left": "-2"})
        refused("--softcap: -1", softcap="-1")
        refused("--softcap: nan", softcap="nan")
        refused("--seqlens-q", "[2]", "[1]", **{"seqlens-q": "two.npy"})
        refused("--seqlens-kv", "q.npy", "<f4", **{"seqlens-kv": "q.npy"})
        refused("--seqlens-kv", "1099511627776", **{"seqlens-kv": "wide.npy"})
        refused("--seqlens-kv[0]: -1", **{"seqlens-kv": "minus.npy"})
        refused("--cu-seqlens-q[1]", weights="", **{"cu-seqlens-q": "falling.npy", "cu-seqlens-kv": "two.npy"})
        refused("--cu-seqlens-kv[1]", weights="", **{"cu-seqlens-kv": "beyond.npy"})
        refused("--seqlens-q", "--cu-seqlens-q", weights="", **{"cu-seqlens-q": "two.npy", "seqlens-q": "one.npy"})
        refused("--weights", "--cu-seqlens-q", **{"cu-seqlens-q": "two.npy"})
        refused("--q", "batch is 2", "--cu-seqlens-q", q="batch.npy", k="four.npy", v="four.npy", weights="", **{"cu-seqlens-q": "two.npy"})
        refused("--cu-seqlens-kv", "batch", "--cu-seqlens-q", weights="", **{"cu-seqlens-q": "two.npy", "cu-seqlens-kv": "one.npy"})
        refused("--cu-seqlens-q", "[4, 8]", weights="", **{"cu-seqlens-q": "integers.npy"})
        refused("--block-table", "[1]", weights="", **{"block-table": "one.npy"})
        refused("--block-table", "batch is 2", "--q", q="four.npy", k="batch.npy", v="batch.npy", weights="", **{"block-table": "tables.npy"})
        refused("--block-table: 9 at batch entry 1, column 0", q="batch.npy", k="batch.npy", v="batch.npy", weights="", **{"block-table": "tables.npy"})
        refused("--block-table", "--weights", q="batch.npy", k="batch.npy", v="batch.npy", **{"block-table": "tables.npy"})
        refused("--block-table", "--cu-seqlens-kv", weights="", **{"block-table": "tables.npy", "cu-seqlens-kv": "two.npy"})
        refused("--k", "|u1", "only int8", k="bytes.npy")
        refused("--k", "blocks of 34 bytes", k="bytes.npy", **{"k-blocks": "q8_0"})
        refused("--k", "<f4", "only uint8", **{"k-blocks": "q8_0"})
        refused("--k-scale: must not be NULL", k="int8.npy")
        refused("--k-scale", "[4]", "[4]", k="int8.npy", **{"k-scale": "k.npy"})
        refused("--v-scale: must be NULL", **{"v-scale": "line.npy"})
        refused("--scale: nan", scale="nan")
        refused("--scale: inf", scale="inf")
        refused("nonsense", isa="nonsense")

    def test_a_result_that_memory_cannot_hold_is_refused(self):
        self.save(q=self.normal(2000000, 1), k=self.normal(2000000, 1), v=self.normal(2000000, 1))
        process = self.fovea("run", "--q=q.npy", "--k=k.npy", "--v=v.npy", "--out=out.npy", "--weights=w.npy", wanted=IMPOSSIBLE)
        self.assertIn("[2000000, 2000000]", process.stderr)
        self.assertIn("memory", process.stderr)
        self.assertEqual(self.files(), ["k.npy", "q.npy", "v.npy"])

    def test_a_result_replaces_the_old_one(self):
        q = self.normal(4, 4)
        self.save(q=q, k=q, v=q, out=self.normal(7))
        self.run_files()
        self.assert_close(np.load(self.folder / "out.npy"), attention(q, q, q)[0])
        self.assertEqual(self.files(), ["k.npy", "out.npy", "q.npy", "v.npy"])

    def test_an_output_that_is_an_input_or_another_output_is_refused(self):
        q = self.normal(4, 4)
        self.save(q=q, k=q, v=q, mask=np.full((4, 4), True), old=q)
        save_file({"q": q, "old": q}, self.folder / "in.safetensors")
        (self.folder / "hard.npy").hardlink_to(self.folder / "k.npy")
        (self.folder / "soft.npy").symlink_to("v.npy")
        (self.folder / "here").symlink_to(".")
        (self.folder / "same.npy").symlink_to("old.npy")
        (self.folder / "soft.safetensors").symlink_to("in.safetensors")
        before = {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}

        def refused(*mentions, **changed):
            arguments = {"q": "q.npy", "k": "k.npy", "v": "v.npy", "out": "out.npy", **changed}
            process = self.fovea("run", *(f"--{name}={value}" for name, value in arguments.items()), wanted=IMPOSSIBLE)
            for mention in mentions:
                self.assertIn(mention, process.stderr)
            self.assertEqual({path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}, before)

        refused("--out", "--q", out="q.npy")
        refused("--out", "--q", out="./q.npy")
        refused("--lse", "--q", lse=self.folder / "q.npy")
        refused("--weights", "--k", weights="hard.npy")
        refused("--out", "--v", out="soft.npy")
        refused("--out", "--v", out="here/v.npy")
        refused("--lse", "--mask", lse="mask.npy", mask="mask.npy")
        refused("--out", "--q", q="in.safetensors:q", out="in.safetensors:out")
        refused("--weights", "out.npy", weights="here/out.npy")
        refused("--lse", "old.npy", out="same.npy", lse="old.npy")
        refused("--lse", "in.safetensors", out="soft.safetensors", lse="in.safetensors")
        # One .safetensors file for several outputs is none of these, whatever way leads there.
        self.run_files("--weights=new.safetensors", "--lse=here/new.safetensors")
        self.assertEqual(sorted(load_file(self.folder / "new.safetensors")), ["lse", "weights"])

    def test_16_bit_inputs_are_computed_with_as_they_are(self):
        q, k, v = (self.normal(*shape) for shape in ((2, 9, 8), (2, 21, 8), (2, 21, 5)))
        half = {name: array.astype(np.float16) for name, array in (("q", q), ("k", k), ("v", v))}
        self.save(**half)
        save_file(half, self.folder / "half.safetensors")
        upper = {name: as_bfloat16(array) for name, array in (("q", q), ("k", k), ("v", v))}
        for name, array in upper.items():
            self.save_safetensors(f"{name}.bf16.safetensors", "BF16", array)
        brain = {name: (array.astype(np.uint32) << 16).view(np.float32) for name, array in upper.items()}

        def assert_rounded(actual, wanted, roundoff):
            np.testing.assert_allclose(actual.astype(np.float64), wanted, rtol=1.01 * roundoff, atol=1e-6)

        report = self.json("run", "--q=q.npy", "--k=k.npy", "--v=half.safetensors", "--out=out.npy", "--lse=lse.npy")
        self.assertEqual([report[name]["dtype"] for name in ("q", "k", "v", "out", "lse")], ["f16"] * 4 + ["f32"])
        out, _, lse = attention(half["q"], half["k"], half["v"])
        self.assertEqual(np.load(self.folder / "out.npy").dtype, np.float16)
        assert_rounded(np.load(self.folder / "out.npy"), out, 2**-11)
        self.assert_close(np.load(self.folder / "lse.npy"), lse)

        files = [f"--{name}={name}.bf16.safetensors" for name in "qkv"]
        self.assertEqual(self.json("run", *files, "--out=out.safetensors")["out"]["dtype"], "bf16")
        content = (self.folder / "out.safetensors").read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        self.assertEqual(json.loads(content[8:start])["out"], {"dtype": "BF16", "shape": [2, 9, 5], "data_offsets": [0, 180]})
        bits = np.frombuffer(content, np.uint16, offset=start).reshape(2, 9, 5)
        assert_rounded((bits.astype(np.uint32) << 16).view(np.float32), attention(brain["q"], brain["k"], brain["v"])[0], 2**-8)

        # Types may be mixed, and that of the result named.
        self.json("run", "--q=q.npy", "--k=k.bf16.safetensors", "--v=half.safetensors", "--out=out.npy", "--out-dtype=f32")
        self.assert_close(np.load(self.folder / "out.npy"), attention(half["q"], brain["k"], half["v"])[0])
        (self.folder / "out.npy").unlink()
        process = self.fovea("run", *files, "--out=out.npy", wanted=IMPOSSIBLE)
        self.assertIn("--out", process.stderr)
        self.assertIn("bfloat16", process.stderr)
        self.assertFalse((self.folder / "out.npy").exists())
        self.fovea("run", *files, "--out=out.npy", "--out-dtype=f64", wanted=IMPOSSIBLE)

    def test_what_the_library_refuses_is_called_by_its_option(self):
        q = self.normal(4, 4)
        self.save(q=q, k=q, v=q, long=np.int32([9]), slopes=np.float32([np.inf]))

        def text(*options):
            return self.fovea("run", "--q=q.npy", "--k=k.npy", "--v=v.npy", "--out=out.npy", *options, wanted=IMPOSSIBLE).stderr

        self.assertEqual(text("--softcap=-1"), "fovea: --softcap: -1 is negative\n")
        self.assertEqual(text("--window-left=3"), "fovea: --align: must name a corner where --window-left is on\n")
        self.assertEqual(text("--seqlens-kv=long.npy"), "fovea: --seqlens-kv[0]: 9 is not in 0..4\n")
        self.assertTrue(text("--alibi=slopes.npy", "--align=top-left").startswith("fovea: --alibi[0]: "))
        refused = [level["name"] for level in self.json("info")["levels"] if not level["usable"]]
        self.assertTrue(text(f"--isa={refused[0]}").startswith(f"fovea: --isa: {refused[0]}: "))

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

    def test_every_feature_is_checked(self):
        size = "b=2 hq=4 hkv=2 sq=40 skv=65 dk=8 dv=5 lse=1"
        features = ["left=7 right=3", "left=0 align=tl", "causal=br left=20", "softcap=2", "alibi=1", "alibi=1 align=tl",
                    "sinks=1", "mask=bool", "mask=f32 maskaxes=bk", "mask=f16 maskfill=late", "mask=bf16 maskaxes=bhqk maskfill=low",
                    "mask=bool maskfill=blocks", "lens=ragged causal=br", "packed=1", "packed=q mask=f32",
                    "score=modify weights=1", "score=replace softcap=2",
                    "causal=br alibi=1 sinks=1 softcap=5 mask=f32 lens=ragged score=modify weights=1"]
        report = self.json("check", *(f"{size} {feature}" for feature in features))
        self.assertEqual((report["passed"], report["failed"], report["refused"]), (len(features), 0, 0))
        for entry in report["problems"]:
            self.assertTrue(entry["gaps_intact"] and entry["same_bits"])
        words = {word.split("=")[0] for feature in features for word in feature.split()} | {"maskfill"}
        text = self.fovea("check", "--help").stdout
        for word in words:
            self.assertIn(f" {word}=", text)

    def test_a_problem_that_memory_cannot_hold_is_refused(self):
        large = ["sq=2000000 skv=2000000 weights=1", "b=2147483648 hq=2147483648 hkv=2147483648 sq=2147483648",
                 "sq=3000000 skv=3000000 mask=f32", "b=2147483648 sq=0 skv=0", "threads=8192 dk=65536"]
        report = self.json("check", *large, "sq=3 skv=4", wanted=IMPOSSIBLE)
        self.assertEqual((report["passed"], report["failed"], report["refused"]), (1, 0, len(large)))
        for entry in report["problems"][:-1]:
            self.assertIn("memory", entry["error"])
            self.assertFalse(entry["ok"])
        self.assertIn("too large", self.fovea("check", large[0], wanted=IMPOSSIBLE).stdout)

    def test_a_terminal_sees_what_a_check_is_at_and_nothing_else_does(self):
        line = "sq=20 skv=30 dk=4 dv=4"
        here, there = pty.openpty()
        process = subprocess.run([FOVEA, "check", line, line], stdout=subprocess.PIPE, stderr=there, text=True, timeout=60)
        os.close(there)
        seen = b""
        with contextlib.suppress(OSError):  # how the end shows
            while part := os.read(here, 65536):
                seen += part
        os.close(here)
        self.assertEqual(process.returncode, OK)
        for stage in ("oracle", "tensors", "first call", "second call", "comparison"):
            for place in ("1 of 2", "2 of 2"):
                self.assertIn(f"problem {place}: {stage}, 0 s", seen.decode())
        self.assertTrue(seen.endswith(b"\r\x1b[K"), "the line is wiped")
        self.assertEqual(self.fovea("check", line, line).stderr, "")

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

    def test_figures_that_cannot_be_drawn_are_an_error_and_the_numbers_stay(self):
        for python in ("no-such-python", shutil.which("false")):
            process = self.fovea("saturation", *self.DRAWS, "--out", "figures", "--python", python, wanted=IMPOSSIBLE)
            for mention in (python, "--python", "--no-figures"):
                self.assertIn(mention, process.stderr)
            self.assertEqual([path.name for path in (self.folder / "figures").iterdir()], ["saturation.json"])

    def test_figures_that_are_not_asked_for_need_no_python(self):
        report = self.json("saturation", *self.DRAWS, "--out", "numbers", "--no-figures", "--python", "no-such-python")
        self.assertEqual(report["written"], ["numbers/saturation.json"])
        self.assertEqual([path.name for path in (self.folder / "numbers").iterdir()], ["saturation.json"])
        self.fovea("saturation", *self.DRAWS, "--no-figures", wanted=IMPOSSIBLE)

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
