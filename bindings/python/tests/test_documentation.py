"""The programs that the documentation shows run."""

import re
import subprocess
import sys

import pytest

from conftest import ROOT

PAGES = ["docs/integration/python.md", "docs/integration/pytorch.md", "docs/integration/transformers.md", "bindings/python/README.md"]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


PROGRAMS = [pytest.param(program, id=f"{page}-{i}") for page in PAGES for i, program in enumerate(blocks(page))]


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


def test_pages_have_programs():
    assert len(PROGRAMS) == 11


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run(program):
    for package in "torch", "transformers":
        if re.search(rf"^(import|from) {package}\b", program, re.MULTILINE):
            pytest.importorskip(package, reason=f"{package} is not installed")
    done = run(program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("position, name, printed", [
    (0, "attention", "weights [0.941 0.056 0.003], output [10.622  1.062]\n"),
    (1, "pytorch", "{'calls': 1, 'fallbacks': {}}\n"),
], ids=["numpy", "pytorch"])
def test_the_examples_of_the_readme(position, name, printed):
    if name == "pytorch":
        pytest.importorskip("torch", reason="torch is not installed")
    program = (ROOT / f"examples/{name}.py").read_text()
    assert blocks("README.md")[position] == program
    assert run(program).stdout == printed
