"""Times functions side by side on a GPU: as CUDA graphs that are replayed, and called one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from time import perf_counter
from typing import Any

from tunesmith.core.stats import median, paired_ratio

#: of weights that are gone through one after the other: far more than any cache holds
COLD_BYTES = 400 * 1024**2
GRAPH_S, MOST_IN_GRAPH = 800e-6, 64
EAGER_S, MOST_CALLS = 4e-3, 2000

Calls = Sequence[Callable[[], Any]]


def copies(w: Any) -> list[Any]:
    """A tensor as often as it takes that each is gone from the cache when its turn comes again."""
    number = max(1, min(MOST_IN_GRAPH, -(-COLD_BYTES // (w.numel() * w.element_size()))))
    return [w, *[w.clone() for _ in range(number - 1)]]


def replayed(ways: Mapping[str, Calls], rounds: int) -> dict[str, list[float]]:
    """Seconds of one call in a graph of many, for each way in each round; the ways in random order.

    Every way's graph holds as many calls: what a replay takes to begin is spread over as many.
    """
    import torch

    number = _number(ways, GRAPH_S, MOST_IN_GRAPH)
    graphs: dict[str, Any] = {}
    for name, calls in ways.items():
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for call in islice(cycle(calls), number):
                call()
        graphs[name].replay()
    busy = torch.empty(64 * 1024**2, dtype=torch.int8, device="cuda")

    def sample(name: str) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        busy.zero_()  # until the replay is queued
        begin.record()
        graphs[name].replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / number

    return _rounds(list(ways), sample, rounds)


def called(ways: Mapping[str, Calls], rounds: int) -> dict[str, list[float]]:
    """Seconds of one call by the host's clock, back to back, the GPU's work waited for at the end of each stretch."""
    number = _number(ways, EAGER_S, MOST_CALLS)

    def sample(name: str) -> float:
        start = perf_counter()
        for call in islice(cycle(ways[name]), number):
            call()
        _wait()
        return (perf_counter() - start) / number

    return _rounds(list(ways), sample, rounds)


def _number(ways: Mapping[str, Calls], seconds: float, most: int) -> int:
    """How many calls of each way are timed at once: so many seconds of the slowest, and each call at least once."""
    each_s: list[float] = []
    for calls in ways.values():
        for call in calls:
            call()
        _wait()
        start = perf_counter()
        for call in calls:
            call()
        _wait()
        each_s.append((perf_counter() - start) / len(calls))
    return max(max(map(len, ways.values())), min(most, round(seconds / max(each_s))))


def _wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _rounds(names: list[str], sample: Callable[[str], float], rounds: int) -> dict[str, list[float]]:
    draw, times = random.Random(0), {name: list[float]() for name in names}
    for name in names:
        sample(name)  # not counted
    for _ in range(rounds):
        for name in draw.sample(names, len(names)):
            times[name].append(sample(name))
    return times


def compared(times: Mapping[str, Sequence[float]], ours: str, theirs: str) -> dict[str, float]:
    """Medians in microseconds, and how many times longer ours takes, with its 95 % interval."""
    ratio, low, high = paired_ratio(times[ours], times[theirs])
    return {
        f"{ours}_us": 1e6 * median(times[ours]), f"{theirs}_us": 1e6 * median(times[theirs]), "ratio": ratio,
        "low": low, "high": high,
    }  # fmt: skip
