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


#: what takes 80 ms on a core that nobody else uses, and as much longer as tunesmith does on one that others use
YARDSTICK = """
import time
start = time.process_time()
import asyncio, http.server, logging.config, sqlite3, unittest, xml.dom.minidom
print(time.process_time() - start)
"""


def test_import_is_light_and_fast_without_compiler_or_home() -> None:
    environ = {"PATH": "/nowhere", "HOME": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}

    def took(script: str) -> float:
        done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    pairs = [(took(SCRIPT), took(YARDSTICK)) for _ in range(5)]
    assert min(ours / yardstick for ours, yardstick in pairs) < 0.9


def test_exports_are_there_and_nothing_public_is_left_out() -> None:
    assert list(tunesmith.__all__) == sorted(tunesmith.__all__)
    for name in tunesmith.__all__:
        assert getattr(tunesmith, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'autotun'"):
        tunesmith.autotun  # noqa: B018
    assert tunesmith.__version__
