import os
import pathlib
import re

import numpy as np
import pytest
from hypothesis import settings

import fovea

settings.register_profile("quick", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=10000, deadline=None)
settings.load_profile("long" if os.environ.get("FOVEA_TEST_LONG") == "1" else "quick")

def pytest_collection_modifyitems(config, items):
    """FOVEA_TEST_FILTER: a regular expression of the names of tests, which begin with "python/"."""
    pattern = os.environ.get("FOVEA_TEST_FILTER")
    if pattern:
        items[:] = [item for item in items if re.search(pattern, f"python/{item.nodeid}")]


ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def rng():
    return np.random.default_rng(1)


@pytest.fixture
def qkv(rng):
    """Two entries, eight heads on two, thirteen queries, seventeen keys."""
    shapes = (2, 8, 13, 32), (2, 2, 17, 32), (2, 2, 17, 64)
    return tuple(rng.standard_normal(shape, np.float32) for shape in shapes)


@pytest.fixture(params=[name for name, refusal in fovea.info()["levels"].items() if not refusal])
def level(request):
    """A context of each level that this machine has."""
    return fovea.Context(isa=request.param, threads=2)
