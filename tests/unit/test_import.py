"""`import tunesmith` is light, needs nothing of the machine, and exports what it says."""

import os
import subprocess
import sys

import pytest

import tunesmith

SCRIPT = """
import sys, time
start = time.process_time()  # what else runs on the machine does not count
import tunesmith
tunesmith.Config, tunesmith.Space, tunesmith.policy
took = time.process_time() - start
heavy = {"numpy", "torch", "triton", "ray", "sqlite3", "rich", "typer"} & set(sys.modules)
assert not heavy, heavy
print(took)
import tunesmith.api, tunesmith.cli
heavy = {"numpy", "torch", "triton", "ray"} & set(sys.modules)
assert not heavy, heavy
"""


def test_import_is_light_and_fast_without_compiler_or_home() -> None:
    paths = os.pathsep.join(sys.path)
    took = []
    for _ in range(5):
        environ = {"PATH": "/nowhere", "HOME": "/nowhere", "PYTHONPATH": paths}
        done = subprocess.run([sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        took.append(float(done.stdout))

    assert min(took) < 0.1


def test_exports_are_there_and_nothing_public_is_left_out() -> None:
    assert list(tunesmith.__all__) == sorted(tunesmith.__all__)
    for name in tunesmith.__all__:
        assert getattr(tunesmith, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'autotun'"):
        tunesmith.autotun  # noqa: B018
    assert tunesmith.__version__
