"""FlyDSL and CuTe DSL each bring MLIR's Python bindings, and a process that loads both aborts: so FlyDSL's tests run in
a process of their own.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("flydsl_backend.py")


@pytest.mark.timeout(300)  # 40 tests, some of which compile
def test_kernels_in_flydsl() -> None:
    for package in ("torch", "flydsl"):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install 'tunesmith[flydsl]'")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", str(TESTS)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
