"""The clock of launches in a graph on a real GPU: in a row as in a model's graph, and what it holds meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import pytest
import torch

from tunesmith import Space, autotune, ops
from tunesmith.core.stats import median
from tunesmith.kernel import Run
from tunesmith.kernels import gemm
from tunesmith.measure.bench import LocalBench
from tunesmith.measure.clock import clock_for
from tunesmith.subject import local_bench


def product(m: int, n: int, k: int) -> tuple[LocalBench, Run, Any]:
    """torch's product of a linear layer, as a search of `ops` times it: (bench, run, clock)."""
    x, w = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (n, k)))
    chooser = ops.chooser("cuda")
    subject = chooser.subject(*gemm.arguments(x, w.mT, precision="reduced"))
    bench = local_bench(subject)
    with bench:
        executable, failure, _ = bench.load(chooser.alternatives.stays, None)
        assert executable is not None, failure
        run, failure, _ = bench.ready(executable)
        assert run is not None, failure
    return bench, run, clock_for(subject.device, "graph")


def sampled(clock: Any, run: Run) -> float:
    return median([clock.sample(run).seconds for _ in range(15)])


def in_a_row(run: Run, sets: Sequence[Sequence[Any]], number: int) -> float:
    """Seconds of one launch in a graph of so many, by hand."""
    graph, busy = torch.cuda.CUDAGraph(), torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    with torch.cuda.graph(graph):
        for args in islice(cycle(sets), number):
            run.executable.launch(*args)
    took: list[float] = []
    for _ in range(15):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        busy.zero_()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) * 1e-3 / number)
    return median(took)


@pytest.mark.parametrize("shape", [(16, 4096, 4096), (4, 1024, 2048), (512, 3072, 2048)])
def test_a_launch_takes_what_it_takes_in_a_row_and_less_than_behind_a_flush(shape: tuple[int, int, int]) -> None:
    bench, run, clock = product(*shape)
    assert run.before is None
    assert run.others is not None
    took, flushed = sampled(clock, run), sampled(clock, replace(run, others=None, state={}))
    w = run.args[1]
    copies = [w.mT.clone().mT for _ in range(min(100, -(-(400 << 20) // (w.numel() * 2))))]
    sets = [(run.args[0], copy, *run.args[2:]) for copy in copies]
    truth = in_a_row(run, sets, -(-200 // len(sets)) * len(sets))
    bench.close()
    assert took == pytest.approx(truth, rel=0.05), (took, truth, flushed)
    assert took < 1.03 * flushed  # and by up to 3 µs less, but for torch's own launches of two kernels


def test_copies_go_with_the_bench_and_take_what_they_should() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    bench, run, clock = product(16, 4096, 4096)
    of_inputs = torch.cuda.memory_allocated() - before
    clock.sample(run)
    assert run.others is not None
    copies = len(run.others.sets(clock._cache_bytes()))
    assert 150 << 20 <= copies * (32 << 20) <= 300 << 20
    held = torch.cuda.memory_allocated() - before
    assert (copies - 1) * (32 << 20) <= held <= (copies + 1) * (32 << 20) + of_inputs + (320 << 20)  # with the flush's
    bench.close()
    del bench, run, clock
    gc.collect()
    assert torch.cuda.memory_allocated() - before <= 64 << 20  # the workspaces of cuBLAS for two streams


def test_candidates_whose_results_are_large_share_the_memory_of_their_graphs() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()

    @autotune(space=Space(k=list(range(12))), clock="graph")
    def made(x: Any, k: int) -> Any:
        return torch.add(x, k)

    x = torch.randn(256 << 20, device="cuda")  # 1 GiB, as each result
    subject = made.subject(x)
    bench, clock = local_bench(subject), clock_for(subject.device, "graph")
    with bench:
        runs: list[Run] = []
        for config in subject.space:
            executable, failure, _ = bench.load(config, None)
            assert executable is not None, failure
            run, failure, _ = bench.ready(executable)
            assert run is not None, failure
            runs.append(run)
            clock.sample(run)
    del executable, run
    assert torch.cuda.memory_allocated() - before < 9 << 30  # x, its copies and two or three results, and not twelve
    bench.close()
    gc.collect()
    assert torch.cuda.memory_allocated() - before <= 2 << 30  # whoever still has the runs
    assert len(runs) == 12


def test_a_kernel_that_writes_its_arguments_is_timed_behind_a_flush() -> None:
    @autotune(space=Space(k=[1]), clock="graph")
    def into(x: Any, y: Any, k: int) -> None:
        torch.add(x, 1, out=y)

    x, y = torch.randn(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda")
    subject = into.subject(x, y)
    with local_bench(subject) as bench:
        executable, _, _ = bench.load(next(iter(subject.space)), None)
        assert executable is not None
        run, _, _ = bench.ready(executable)
        assert run is not None
        assert clock_for(subject.device, "graph").sample(run).seconds > 0
        assert "row" not in run.state
