"""The clock of launches in CUDA graphs, on a scripted torch.cuda: in a row on other inputs, or behind flushes."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.fake_gpu import H200, KERNEL_S, Gpu, Launched, fake_torch, tensor

from tunesmith.kernel import Run
from tunesmith.measure import gpu_clock, graph_clock
from tunesmith.measure.clock import clock_for


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setitem(sys.modules, "torch", fake_torch(made))
    monkeypatch.setattr(gpu_clock, "perf_counter", lambda: made.host_s)
    return made


@pytest.mark.parametrize("name", ["graph", "graph-hot"])
@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("launch_s", [4e-6, 500e-6])
def test_a_graph_times_the_kernel_alone(gpu: Gpu, name: str, restores: bool, launch_s: float) -> None:
    before = (lambda: gpu.queue("restore", 2e-6)) if restores else None
    clock, run = clock_for(H200, name), Run(Launched(gpu, launch_s), (tensor(0),), before=before)
    for _ in range(3):
        assert clock.sample(run).seconds == pytest.approx(KERNEL_S)
    gpu.log.clear()
    clock.sample(run)
    flushes, kernels = gpu.log.count("flush"), gpu.log.count("kernel on 0")
    assert kernels == math.ceil(graph_clock.GRAPH_S / KERNEL_S)
    assert flushes - (2 if name == "graph" or restores else 1) == (2 * kernels if name == "graph" else 0)


def test_a_kernel_that_cannot_be_captured_fails_and_leaves_no_capture(gpu: Gpu) -> None:
    launched, calls = Launched(gpu), []

    def launch(*args: Any) -> None:
        calls.append(gpu.graph is not None)
        if gpu.graph is not None:
            raise RuntimeError("operation not permitted when stream is capturing")

    launched.launch = launch  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="capturing"):
        clock_for(H200, "graph").sample(Run(launched, (tensor(0),)))
    assert gpu.graph is None
    assert calls[-1]


def test_graphs_that_live_share_the_memory_of_what_is_launched_in_them(gpu: Gpu) -> None:
    clock = clock_for(H200, "graph")
    first, second = (Run(Launched(gpu), (tensor(0),)) for _ in range(2))
    clock.sample(first)
    clock.sample(second)
    graphs = [graph for run in (first, second) for graph in run.state["graphs"][:2]]
    assert len(graphs) == 4
    assert len({graph.pool() for graph in graphs}) == 1
    first.state.clear()
    graphs.clear()
    again = Run(Launched(gpu), (tensor(0),))
    clock.sample(again)
    assert again.state["graphs"][0].pool() == second.state["graphs"][0].pool()
    elsewhere = Run(Launched(gpu), (tensor(1),))
    clock.sample(elsewhere)
    assert elsewhere.state["graphs"][0].pool() != second.state["graphs"][0].pool()


def test_a_capture_that_fails_is_no_trouble_for_who_comes_after(gpu: Gpu) -> None:
    class Waiting(Launched):
        def launch(self, *args: Any) -> None:
            self.gpu.invalid = self.gpu.graph is not None

    clock, first = clock_for(H200, "graph"), Run(Launched(gpu), (tensor(0),))
    clock.sample(first)
    with pytest.raises(RuntimeError, match="previous error during capture"):
        clock.sample(Run(Waiting(gpu), (tensor(0),)))
    for run in (Run(Launched(gpu), (tensor(0),)), first):
        assert clock.sample(run).seconds == pytest.approx(KERNEL_S)


# --- in a row on other inputs ---

FLUSHED_S, COLD_S, HOT_S = 2.5e-6, 4e-6, 1e-6


@dataclass
class Copies:
    """The same inputs so many times (`kernel.Others`)."""

    n: int
    set_bytes: int
    pace_s: float | None = None
    refused: bool = False

    def sets(self, cache_bytes: int) -> list[tuple[Any, ...]]:
        return [] if self.refused else [(f"w{i}", tensor(0)) for i in range(self.n)]

    def again(self, cache_bytes: int) -> bool:
        return self.n * self.set_bytes >= 3 * cache_bytes


@dataclass
class Cached(Launched):
    """A kernel that reads its first argument: longer where that is not in the cache, or nothing ran just before it."""

    set_bytes: int = 0
    cost_s: float = 5e-6
    read: list[str] = field(default_factory=list)
    captured: list[str] = field(default_factory=list)

    def launch(self, *args: Any) -> None:
        if self.gpu.graph is not None:
            self.captured.append(args[0])
        self.gpu.host_s += self.host_s
        self.gpu.queue(f"read {args[0]}", lambda: self._seconds(args[0]))

    def _seconds(self, name: str) -> float:
        since = self.gpu.log[:-1][::-1]
        till = next((i for i, what in enumerate(since) if what in ("flush", f"read {name}")), len(since))
        there = bool(since) and till < len(since) and since[till] != "flush" and till * self.set_bytes < H200.l2_bytes
        behind = bool(since) and not since[0].startswith("read")
        return self.cost_s + (HOT_S if there else COLD_S) + (FLUSHED_S if behind else 0.0)


def row(gpu: Gpu, others: Copies, cost_s: float = 5e-6, **more: Any) -> Run:
    args = ("w0", tensor(0, gpu))
    return Run(Cached(gpu, cost_s=cost_s, set_bytes=others.set_bytes), args, others=others, **more)


def test_a_row_finds_no_input_in_the_cache_and_what_a_flush_adds_is_lost_in_it(gpu: Gpu) -> None:
    others = Copies(8, H200.l2_bytes // 2)
    clock, run = clock_for(H200, "graph"), row(gpu, others)
    for _ in range(2):
        assert clock.sample(run).seconds == pytest.approx(5e-6 + COLD_S, rel=0.01)
    gpu.log.clear()
    clock.sample(run)
    launches = run.state["launches"]
    assert gpu.log == ["flush", "event", *[f"read w{i % 8}" for i in range(launches)], "event"]
    assert launches % 8 == 0  # each copy as often
    assert launches * (5e-6 + COLD_S) >= 0.7 * graph_clock.ROW_S  # by the time of a launch alone


def test_the_argument_of_a_row_that_is_refused_later_is_timed_behind_flushes(gpu: Gpu) -> None:
    others = Copies(8, H200.l2_bytes // 2)
    clock, run = clock_for(H200, "graph"), row(gpu, others)
    clock.sample(run)
    others.refused = True
    assert clock.sample(run).seconds == pytest.approx(5e-6 + COLD_S + FLUSHED_S)


def test_something_ahead_of_a_launch_and_a_hot_clock_keep_their_way(gpu: Gpu) -> None:
    for name, more in (("graph", {"before": lambda: None}), ("graph-hot", {})):
        run = row(gpu, Copies(8, H200.l2_bytes // 2), **more)
        clock_for(H200, name).sample(run)
        assert set(run.executable.captured) == {"w0"}  # type: ignore[attr-defined]


def test_few_small_copies_are_gone_through_once(gpu: Gpu) -> None:
    run = row(gpu, Copies(40, 1 << 20))
    assert clock_for(H200, "graph").sample(run).seconds == pytest.approx(5e-6 + COLD_S, rel=0.02)
    assert 32 <= run.state["launches"] <= 40


def test_a_long_kernel_is_launched_once_and_a_short_one_not_without_end(gpu: Gpu) -> None:
    long, short = row(gpu, Copies(4, H200.l2_bytes), 1e-3), row(gpu, Copies(4, H200.l2_bytes), 0.0)
    clock = clock_for(H200, "graph")
    assert clock.sample(long).seconds == pytest.approx(1e-3, rel=0.02)
    clock.sample(short)
    assert long.state["launches"] == 1
    assert short.state["launches"] <= graph_clock.MOST_IN_ROW


def test_candidates_of_one_call_have_rows_of_one_length_but_those_far_behind(gpu: Gpu) -> None:
    others, clock = Copies(8, H200.l2_bytes // 2), clock_for(H200, "graph")
    slow, fast, alike, far = (row(gpu, others, cost_s) for cost_s in (100e-6, 10e-6, 25e-6, 300e-6))
    clock.sample(slow)
    first = slow.state["launches"]
    for run in (fast, alike, far, slow):
        clock.sample(run)
    assert fast.state["launches"] == alike.state["launches"] > first  # who came first set no pace for who is far faster
    assert slow.state["launches"] == first
    assert far.state["launches"] < first
    near = row(gpu, others, 22e-6)
    clock.sample(near)
    assert near.state["launches"] == fast.state["launches"]


def test_who_came_before_a_much_faster_one_is_timed_in_rows_as_long_from_then_on(gpu: Gpu) -> None:
    others, clock = Copies(8, H200.l2_bytes // 2), clock_for(H200, "graph")
    first, middle, fast = (row(gpu, others, cost_s) for cost_s in (100e-6, 30e-6, 12e-6))
    for run in (first, middle, fast, middle):
        clock.sample(run)
    assert middle.state["launches"] == fast.state["launches"]


def test_what_is_hot_is_the_same_in_all_and_read_before_a_row(gpu: Gpu) -> None:
    x = tensor(0, gpu)
    run = row(gpu, Copies(4, H200.l2_bytes), hot=(x,))
    clock = clock_for(H200, "graph")
    clock.sample(run)
    gpu.log.clear()
    clock.sample(run)
    assert gpu.log[:3] == ["flush", "read", "event"]


def test_a_row_that_takes_the_host_long_to_queue_has_the_gpu_busy_for_as_long(gpu: Gpu) -> None:
    gpu.node_s = 4e-6
    run = row(gpu, Copies(8, H200.l2_bytes // 2))
    assert clock_for(H200, "graph").sample(run).seconds == pytest.approx(5e-6 + COLD_S, rel=0.01)


def test_what_fails_on_other_inputs_fails_with_its_reason_and_leaves_no_capture(gpu: Gpu) -> None:
    run = row(gpu, Copies(8, H200.l2_bytes // 2))
    launched = run.executable.launch

    def launch(*args: Any) -> None:
        if args[0] == "w3":
            raise RuntimeError("misaligned address")
        launched(*args)

    run.executable.launch = launch  # type: ignore[misc]
    with pytest.raises(RuntimeError, match="misaligned"):
        clock_for(H200, "graph").sample(run)
    assert gpu.graph is None
