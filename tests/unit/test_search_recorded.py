"""The recorded spaces are read as they were written, and a search over one is near its best."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
#: name → (legal Configs, those that failed, best time in ms), as their origin has them
SPACES = {
    "conv_A100": (4362, 161, 0.5536),
    "conv_W7800": (4362, 116, 0.81614),
    "dedisp_MI250X": (11130, 0, 49.572),
    "gemm_RTX_3090": (17956, 0, 5.6578),
    "oldconv_RTX_3090": (6768, 1548, 0.52295),
    "pnpoly_RTX_3090": (4092, 318, 8.7142),
}


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import search

    return search


def test_spaces_are_what_was_measured(benchmark: Any) -> None:
    spaces = benchmark.recorded_spaces()
    found = {s.name: (len(s.times), sum(isinstance(t, str) for t in s.times.values()), s.best) for s in spaces}
    assert found == SPACES
    conv = next(space for space in spaces if space.name == "conv_A100")
    best = min(conv.times, key=lambda point: conv.times[point] if not isinstance(conv.times[point], str) else 9e9)
    assert dict(zip(conv.axes, best, strict=True))["block_size_x"] == 32


def test_failures_cost_an_evaluation_and_a_short_run_keeps_what_it_found(benchmark: Any) -> None:
    assert benchmark.ratios([None, 3.0, 2.0], 1.0) == [2.0, 2.0, 2.0, 2.0]
    assert benchmark.ratios([None] * 30 + [2.0], 1.0) == [benchmark.NOTHING, 2.0, 2.0, 2.0]


def test_auto_is_near_the_best_of_a_recorded_space(benchmark: Any) -> None:
    space = next(space for space in benchmark.recorded_spaces() if space.name == "dedisp_MI250X")
    best = {name: [benchmark.ratios(benchmark.ours(space, name, 50)(seed), space.best)[1] for seed in range(3)]
            for name in ("auto", "random")}  # fmt: skip
    assert statistics.median(best["auto"]) <= 1.05 < statistics.median(best["random"])
