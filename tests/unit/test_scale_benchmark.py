"""What measures a sweep on several GPUs does all of it in small on two cores, and its figures mean what they say."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scale(benchmarks: None) -> Any:
    return importlib.import_module("scale")


def row(n: int, wall_s: float, executor: str = "local", **more: Any) -> dict[str, Any]:
    shares = {"measure_s": 0.7, "compile_s": 0.2}
    return {"job": "sweep", "executor": executor, "gpus": n, "problems": 64, "failed": 0, "left": 0, "wall_s": wall_s,
            "start_s": 10.0, "shares": shares, **more}  # fmt: skip


def test_efficiency_is_the_least_over_one_gpu_under_the_same_executor(scale: ModuleType) -> None:
    rows = [row(1, 400.0), row(2, 200.0), row(4, 125.0), row(1, 300.0, "ray"), row(4, 75.0, "ray")]
    summary = scale.summary_of(rows)
    assert (summary["gpus"], summary["efficiency"]) == (4, pytest.approx(0.8))
    assert summary["efficiency_begun"] == pytest.approx(390 / 4 / 115)
    assert scale.summary_of([row(1, 400.0), row(4, 160.0, "ray")])["efficiency"] == pytest.approx(400 / 4 / 160)
    assert scale.summary_of([row(1, 400.0)])["efficiency"] == 1.0


def test_what_differs_beyond_the_margin_and_what_was_left_is_counted(scale: ModuleType) -> None:
    compared = {"job": "compared", "problems": 64, "ratios": {"a": 1.005, "b": 1.02}}
    taken = {"job": "taken", "gpus": 2, "problems": 30, "failed": 1, "left": 1}
    cold = {"job": "cold", "differ": ["a"], "searched": 2, "used": {"a": {"x": 1}, "b": {"x": 1}}}
    warm = {"job": "warm", "differ": [], "searched": 1, "used": {"a": {"x": 1}, "b": {"x": 2}}}
    summary = scale.summary_of([row(1, 400.0), compared, taken, cold, warm])
    assert (summary["disagreements"], summary["worst_ratio"], summary["left_undone"]) == (1, 1.02, 2)
    assert summary["rank_disagreements"] == 3


def test_problems_and_numbers_of_gpus_are_spread(scale: ModuleType) -> None:
    assert len(set(scale.ROWS)) == 128
    sweeps = importlib.import_module("_scale_sweeps")
    assert sweeps.spread(scale.ROWS, 4) == [1, 320, 2816, 8192]
    assert sweeps.spread([5, 7], 4) == [5, 7]
    assert scale.sizes_of(None, 6) == [1, 2, 4]
    assert scale.sizes_of("4,1", 4) == [1, 4]
    with pytest.raises(SystemExit, match="numbers from 1 to 4"):
        scale.sizes_of("1,8", 4)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are held to cores")
def test_all_of_it_runs_on_two_cores_in_as_many_commands_as_it_takes(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two devices need two cores")
    (tmp_path / "tmp").mkdir()  # devices' locks lie there: other tests on this host must not hold these up
    environ = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    script = [sys.executable, str(BENCHMARKS / "scale.py"), "--cpu", "--count", "4", "--executors", "local",
              "--only", "sweeps,taken,compared"]  # fmt: skip
    made = [*script, "--keep", str(tmp_path / "kept"), "--folder", str(tmp_path)]
    none = subprocess.run([*made, "--limit", "1"], env=environ, capture_output=True, text=True)
    assert none.returncode == 1
    assert "With --keep FOLDER the same command goes on" in none.stdout

    ended = subprocess.run(made, env=environ, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    result = json.loads((tmp_path / "scale-cpu.json").read_text())
    rows = {(one["job"], one.get("gpus")): one for one in result["rows"]}
    assert {job for job, _ in rows} == {"sweep", "taken", "compared"}
    assert (rows["sweep", 2]["problems"], rows["taken", 2]["problems"], result["summary"]["left_undone"]) == (4, 4, 0)
    assert [one["device"].partition(":")[0] for one in rows["taken", 2]["given_up"]] == ["cpu"]
    assert (result["summary"]["gpus"], result["summary"]["compared"]) == (2, 4)
