"""What the wheel holds, what its types say, and that its results are those of the C library."""

import ast
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import fovea
from conftest import ROOT

CORE = pathlib.Path(fovea._core.__file__)


def test_the_version_is_that_of_the_header():
    numbers = re.findall(r"#define FOVEA_VERSION_\w+ (\d+)", (ROOT / "include/fovea/fovea.h").read_text())
    assert fovea.__version__ == ".".join(numbers) == importlib.metadata.version("fovea")


def test_the_module_shows_nothing_but_its_initialisation():
    listed = subprocess.run(["nm", "-D", "--defined-only", CORE], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in listed.splitlines()] == ["PyInit__core"]


def test_the_module_needs_no_openmp_and_no_python():
    listed = subprocess.run(["readelf", "-d", CORE], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", listed)
    assert needed and all(re.match(r"lib(c|m|stdc\+\+|gcc_s|pthread|dl)\.so|ld-linux", name) for name in needed), needed


def test_the_stubs_are_those_that_stubgen_makes(tmp_path):
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "fovea._core", "-p",
                    ROOT / "bindings/python/stubs.pattern", "-o", tmp_path / "made.pyi"], check=True, cwd=tmp_path, timeout=60)
    assert (CORE.parent / "_core.pyi").read_text() == (tmp_path / "made.pyi").read_text()


def test_stubs_and_module_have_the_same_names():
    tree = ast.parse((CORE.parent / "_core.pyi").read_text())
    stubbed = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert {name for name in vars(fovea._core) if not name.startswith("_")} <= stubbed
    for name in fovea.__all__:
        assert getattr(fovea, name).__doc__, name
    assert (CORE.parent / "py.typed").exists()


def test_every_argument_is_documented():
    for function in fovea.attention, fovea.kv_append, fovea.merge:
        signature, text = function.__nb_signature__[0][:2]
        names = re.findall(r"(\w+): ", signature.split("->")[0])
        assert len(names) > 5
        for name in names:
            assert re.search(rf"\b{name}\b", text), name


WHEEL = os.environ.get("FOVEA_WHEEL")


@pytest.mark.skipif(not WHEEL, reason="FOVEA_WHEEL does not say where the wheel is")
def test_the_wheel_runs_on_other_distributions():
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", WHEEL], capture_output=True, text=True, check=True).stdout
    assert re.search(r'platform tag:\s+"manylinux_\d', shown), shown
    names = subprocess.run([sys.executable, "-m", "zipfile", "-l", WHEEL], capture_output=True, text=True, check=True).stdout
    files = set(re.findall(r"^fovea/(\S+)", names, re.MULTILINE))
    assert {"__init__.py", "_core.pyi", "errors.py", "py.typed", "torch.py", "transformers.py", CORE.name} == files
    assert pathlib.Path(WHEEL).stat().st_size < 4 << 20


COMMAND = os.environ.get("FOVEA_COMMAND")


@pytest.fixture
def run_command(tmp_path, level):
    """out and lse of `fovea run`, of arrays by the names of its options."""

    def run(arrays, *flags):
        words = []
        for name, array in arrays.items():
            np.save(tmp_path / f"{name}.npy", array)
            words += [f"--{name}", tmp_path / f"{name}.npy"]
        outputs = [tmp_path / "out.npy", tmp_path / "lse.npy"]
        done = subprocess.run([COMMAND, "run", *words, "--out", outputs[0], "--lse", outputs[1], *flags, "--isa", level.isa],
                              timeout=60, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return tuple(map(np.load, outputs))

    return run


def assert_same_bits(got, wanted):
    for x, y in zip(got, wanted):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8))


needs_command = pytest.mark.skipif(not COMMAND, reason="FOVEA_COMMAND does not say where the fovea command is")


@needs_command
@pytest.mark.parametrize("options, flags", [
    ({}, []), ({"causal": True, "align": "bottom-right"}, ["--causal", "bottom-right"]),
    ({"window": (9, 3), "align": "top-left", "softcap": 3.0},
     ["--window-left", "9", "--window-right", "3", "--align", "top-left", "--softcap", "3"]),
    ({"scale": 0.25}, ["--scale", "0.25"]),
], ids=["plain", "causal", "window", "scale"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bits_are_those_of_the_command(run_command, rng, level, options, flags, dtype):
    q, k, v = (rng.standard_normal((2, heads, seq, 64), np.float32).astype(dtype) for heads, seq in ((4, 70), (2, 600), (2, 600)))
    wanted = run_command({"q": q, "k": k, "v": v}, *flags)
    assert_same_bits(fovea.attention(q, k, v, return_lse=True, context=level, **options), wanted)


@needs_command
def test_bits_are_those_of_the_command_with_masks_slopes_sinks_and_lengths(run_command, rng, level):
    q, k, v = (rng.standard_normal((2, heads, seq, 64), np.float32) for heads, seq in ((4, 70), (2, 600), (2, 600)))
    mask, sinks = rng.random((1, 4, 70, 600)) < 0.7, rng.standard_normal(4, np.float32)
    slopes, lengths = fovea.alibi_slopes(4), np.array([600, 311], np.int32)
    wanted = run_command({"q": q, "k": k, "v": v, "mask": mask, "alibi": slopes, "sinks": sinks, "seqlens-kv": lengths},
                         "--causal", "bottom-right")
    got = fovea.attention(q, k, v, mask=mask, alibi_slopes=slopes, sinks=sinks, seqlens_kv=lengths, causal=True,
                          align="bottom-right", return_lse=True, context=level)
    assert_same_bits(got, wanted)


@needs_command
def test_bits_are_those_of_the_command_with_pages_of_int8_and_blocks(run_command, rng, level):
    q = rng.standard_normal((2, 4, 3, 64), np.float32)
    k, k_scale = rng.integers(-128, 128, (12, 2, 16, 64), np.int8), rng.random((12, 2, 16, 1), np.float32) / 99
    v = rng.integers(0, 256, (12, 2, 16, 68), np.uint8)
    v[..., 0::34], v[..., 1::34] = 0x66, 0x1e  # scales of about 0.006
    table, lengths = rng.permutation(12).reshape(2, 6).astype(np.int32), np.array([96, 41], np.int32)
    wanted = run_command({"q": q, "k": k, "k-scale": k_scale, "v": v, "block-table": table, "seqlens-kv": lengths},
                         "--v-blocks", "q8_0")
    got = fovea.attention(q, k, v, k_scale=k_scale, v_type="q8_0", block_table=table, seqlens_kv=lengths, return_lse=True,
                          context=level)
    assert_same_bits(got, wanted)
