"""The programs that the documentation shows run."""

import re
import subprocess
import sys

import pytest

from conftest import ROOT

PAGES = ["docs/integration/python.md", "bindings/python/README.md"]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


PROGRAMS = [pytest.param(program, id=f"{page}-{i}") for page in PAGES for i, program in enumerate(blocks(page))]


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


def test_pages_have_programs():
    assert len(PROGRAMS) == 8


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run(program):
    if "import torch" in program:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_the_example_of_the_readme():
    program = (ROOT / "examples/attention.py").read_text()
    assert blocks("README.md") == [program]
    assert run(program).stdout == "weights [0.941 0.056 0.003], output [10.622  1.062]\n"
