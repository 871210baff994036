"""What a benchmark of sweeps counts: Choices that are told apart, and what was measured twice."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tunesmith.measure import pace

pytestmark = pytest.mark.usefixtures("benchmarks")


@pytest.fixture(autouse=True)
def least() -> None:
    pace.heard(1e-6)


def judged(found: list[tuple[float, float]]) -> Any:
    return importlib.import_module("_same_choices").judged(found)


def test_processes_whose_core_was_shared_do_not_count() -> None:
    quiet = [(1.05 + 0.001 * n, 1.2e-6) for n in range(6)]
    apart = judged([*quiet, *[(0.9, 1.8e-6)] * 4])
    assert (apart.processes, apart.ratio) == (6, pytest.approx(1.0525, rel=1e-3))
    assert apart.low > 1.04
    assert apart.low_of_all < 1.01
    apart = judged([(1 / ratio, pace_s) for ratio, pace_s in quiet])  # whichever is the slower
    assert apart.ratio == pytest.approx(1.0525, rel=1e-3)
    assert apart.low > 1.04


def test_of_too_few_processes_that_were_not_disturbed_all_count() -> None:
    apart = judged([(1.0, 1e-6), *[(1.05 + 0.001 * n, 1.6e-6) for n in range(10)]])
    assert apart.processes == 11
    assert apart.low > 1.01


def test_the_same_pair_may_be_faster_by_luck_and_is_a_tie() -> None:
    assert judged([(ratio, 1e-6) for ratio in (1.03, 0.97, 1.02, 0.99, 1.01, 0.98, 1.02, 0.98)]).low < 1.01


def test_what_is_measured_beyond_what_was_noted_or_cut_short_counts_as_twice() -> None:
    repeated = importlib.import_module("sweep_cpu").repeated
    at_kill = {1: {"t1": {"a", "b"}}, 2: {"t2": {"a"}}}, {1: 1}  # of 2 a search was under way
    once_each = {1: {"t1": {"a", "b"}}, 2: {"t2": {"a"}, "t3": {"a", "b"}}}, {1: 1, 2: 1}
    assert repeated([at_kill, once_each]) == (0, 1)
    again = {1: {"t1": {"a", "b"}, "t4": {"a", "b"}}, 2: {"t2": {"a"}, "t3": {"a", "b"}}}, {1: 1, 2: 1}
    assert repeated([at_kill, again]) == (2, 1)
    looked = again[0], {1: 2, 2: 1}  # a later look, which the sweep has noted
    assert repeated([at_kill, looked]) == (0, 1)
