"""bench/peers measures Fovea beside other libraries, and times none that is wrong."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

DECODE, PREFILL = "1,8,2,1,300,64", "2,4,2,33,33,40/24 causal"
ARGUMENTS = ["--threads", "1", "--shape", DECODE, "--shape", PREFILL, "--min-time", "0.001", "--budget", "0.02", "--keep-disturbed", "--quick"]

# Peers as bench/peers has them: one gives zeros, one fails in its first call, one ends its process.
WRONG = """
def version(threads):
    return "Wrong 1"

def offers(call, tensors):
    return {"zeros": lambda: (lambda: tensors.out.fill(0), tensors.result)}
"""
FAILING = """
def version(threads):
    return "Failing 1"

def offers(call, tensors):
    return {"division": lambda: (lambda: 1 / 0, tensors.result)}
"""
ENDING = """
import os

def version(threads):
    return "Ending 1"

def offers(call, tensors):
    return {"end": lambda: (os.abort, tensors.result)}
"""


def run(bench, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(bench)}
    return subprocess.run([sys.executable, "-m", "peers", *ARGUMENTS, *arguments], env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.json"
    done = run(ROOT / "bench", "--peers", "naive", "--json", str(path))
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """The result of one call of a copy of bench/peers that has the peers above too."""
    folder = tmp_path_factory.mktemp("bench")
    shutil.copytree(ROOT / "bench/peers", folder / "peers")
    shutil.copy(ROOT / "bench/report.py", folder)
    for name, program in (("wrong", WRONG), ("failing", FAILING), ("ending", ENDING)):
        (folder / f"peers/{name}.py").write_text(program)
    with open(folder / "peers/__init__.py", "a") as file:
        file.write('\nNAMES += ("wrong", "failing", "ending")\n')
    done = run(folder, "--peers", "wrong,failing,ending", "--types", "q8_0", "--parts", "calls", "--json", str(folder / "report.json"))
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "report.json").read_text())["calls"][0]


def test_every_call_of_the_types_is_measured(report):
    calls = {(call["shape"], call["type"]) for call in report["calls"]}
    floats = "f32", "f16", "bf16"
    assert calls == {*((DECODE, type_) for type_ in (*floats, "q8_0", "q4_0")), *((PREFILL, type_) for type_ in floats)}
    assert all(call["peers"]["fovea"]["least"] <= call["peers"]["fovea"]["seconds"] < 1 for call in report["calls"])
    assert report["versions"]["fovea"].startswith("Fovea")


def test_a_right_peer_is_compared(report):
    floats = [call for call in report["calls"] if call["type"] in ("f32", "f16", "bf16")]
    assert floats and all(call["best"] == "naive" for call in floats)
    for call in floats:
        assert len(call["peers"]["naive"]["ratios"]) >= 3
        assert min(call["peers"]["naive"]["ratios"]) <= call["ratio"] <= max(call["peers"]["naive"]["ratios"])


def test_errors_are_small(report):
    for call in report["calls"]:
        unit = {"f32": 2.0**-18, "f16": 2.0**-11, "bf16": 2.0**-8}.get(call["type"], 2.0**-18)  # of quantised keys, results are f32
        assert call["peers"]["fovea"]["error"] <= unit
    assert not any("wrong" in way for result in report["inputs"] for way in result["peers"]["fovea"]["ways"].values())


def test_a_wrong_peer_is_named_and_not_timed(faulty):
    way = faulty["peers"]["wrong"]["ways"]["zeros"]
    assert way["wrong"] and way["error"] > 0.01 and "seconds" not in way and "seconds" not in faulty["peers"]["wrong"]
    assert faulty["best"] is None


def test_a_peer_without_the_type_says_so(report):
    assert {call["peers"]["naive"]["unsupported"] for call in report["calls"] if call["type"] == "q8_0"} == {"no such type"}


def test_a_peer_that_fails_does_not_end_the_run(faulty):
    assert faulty["peers"]["failing"]["ways"]["division"] == {"unsupported": "division by zero"}
    assert faulty["peers"]["ending"]["failure"] == "its process ended: SIGABRT"
    assert faulty["peers"]["fovea"]["seconds"] > 0


def test_a_row_without_keys_shows_a_peer_that_divides_by_zero(report):
    masked = [result["peers"] for result in report["inputs"] if result["inputs"] == "a row without keys"]
    assert len(masked) == 3
    for peers in masked:
        assert peers["naive"]["ways"]["head by head"] == {"error": None, "wrong": True}
        assert "wrong" not in peers["fovea"]["ways"]["attention"]


def test_memory_does_not_grow_with_the_scores(report):
    assert [result["keys"] for result in report["lengths"]] == [1024, 2048]
    for result in report["lengths"]:
        assert 0 < result["bytes"] < result["keys"] ** 2 * 4 / 2  # of scores in f32


@pytest.mark.parametrize("arguments, text", [
    (("--shape", "1,2,3"), "'1,2,3' is not batch"),
    (("--peers", "nobody"), "'nobody' is none of fovea, torch"),
    (("--types", "f64"), "'f64' is none of f32"),
    (("--threads", "0"), "starts at 1"),
    (("--publish",), "not for a page"),
])
def test_what_is_wrong_on_the_command_line_is_said(arguments, text):
    done = run(ROOT / "bench", *arguments)
    assert (done.returncode, text in done.stderr) == (2, True), done.stderr
