"""What a benchmark of sweeps counts: Choices that are told apart, and what was measured twice."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("sweep_cpu", "_same_choices", "_results")


@pytest.fixture
def sweep_cpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("sweep_cpu")
    for name in MODULES:
        sys.modules.pop(name, None)


def test_processes_in_which_all_takes_longer_do_not_count(sweep_cpu: Any) -> None:
    judged = sys.modules["_same_choices"].judged
    quiet = [(1.05 + 0.001 * n, 1e-5) for n in range(6)]
    apart = judged([*quiet, *[(0.9, 1.6e-5)] * 4])
    assert (apart.processes, apart.ratio) == (6, pytest.approx(1.0525, rel=1e-3))
    assert apart.low > 1.04
    assert apart.low_of_all < 1.01
    apart = judged([(1 / ratio, seconds) for ratio, seconds in quiet])  # whichever is the slower
    assert apart.ratio == pytest.approx(1.0525, rel=1e-3)
    assert apart.low > 1.04


def test_the_same_pair_may_be_faster_by_luck_and_is_a_tie(sweep_cpu: Any) -> None:
    judged = sys.modules["_same_choices"].judged
    assert judged([(ratio, 1e-5) for ratio in (1.03, 0.97, 1.02, 0.99, 1.01, 0.98, 1.02, 0.98)]).low < 1.01


def test_what_is_measured_beyond_what_was_noted_or_cut_short_counts_as_twice(sweep_cpu: Any) -> None:
    at_kill = {1: {"t1": {"a", "b"}}, 2: {"t2": {"a"}}}, {1: 1}  # of 2 a search was under way
    once_each = {1: {"t1": {"a", "b"}}, 2: {"t2": {"a"}, "t3": {"a", "b"}}}, {1: 1, 2: 1}
    assert sweep_cpu.repeated([at_kill, once_each]) == (0, 1)
    again = {1: {"t1": {"a", "b"}, "t4": {"a", "b"}}, 2: {"t2": {"a"}, "t3": {"a", "b"}}}, {1: 1, 2: 1}
    assert sweep_cpu.repeated([at_kill, again]) == (2, 1)
    looked = again[0], {1: 2, 2: 1}  # a later look, which the sweep has noted
    assert sweep_cpu.repeated([at_kill, looked]) == (0, 1)
