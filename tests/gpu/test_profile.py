"""`tunesmith profile` on a GPU: the launches between the marks are the Config's own, and Nsight Compute finds them."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

pytest.importorskip("triton")

from tunesmith.cli import main
from tunesmith.ncu import read_counters

PROBLEM = "rows=512,n=1024"


def test_the_marks_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "row_softmax", "--problem", PROBLEM, "--launches", "2"]) == 0
    out = capsys.readouterr().out
    assert "NVTX range 'tunesmith'" in out
    assert 'ncu --nvtx --nvtx-include "tunesmith/"' in out


@pytest.mark.skipif(shutil.which("ncu") is None, reason="Nsight Compute is not on PATH")
def test_nsight_compute_sees_the_marked_launches_alone() -> None:
    profile = ["-m", "tunesmith", "profile", "row_softmax", "--problem", PROBLEM, "--launches", "2", "-q"]
    ncu = ["ncu", "--nvtx", "--nvtx-include", "tunesmith/", "--clock-control", "none", "--csv", "--metrics"]
    command = [*ncu, "dram__bytes.sum,gpu__time_duration.sum", sys.executable, *profile]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    if "ERR_NVGPUCTRPERM" in ended.stdout or "Failed to initialize the profiler" in ended.stdout:
        pytest.skip("this machine's counters may not be read")
    assert len(read_counters(ended.stdout, "softmax")) == 2
