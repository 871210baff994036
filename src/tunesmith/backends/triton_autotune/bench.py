"""Timing as `triton.autotune` takes it: `do_bench`, `use_cuda_graph`, `warmup` and `rep`, as a Clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from tunesmith.core.config import Config
from tunesmith.core.outcome import Sample
from tunesmith.core.stats import SHORTEST_S
from tunesmith.errors import BadInput, TunesmithError
from tunesmith.kernel import Clock, Run

#: what stock's `configs_timings` gives for each Config: the median and the 20th and 80th percentile
_QUANTILES = (0.5, 0.2, 0.8)


class TimingAsked(Protocol):
    """The arguments of the decorator that are about timing; durations in milliseconds."""

    @property
    def clock(self) -> Clock | str | None: ...
    @property
    def do_bench(self) -> Callable[..., Any] | None: ...
    @property
    def use_cuda_graph(self) -> bool: ...
    @property
    def warmup(self) -> float | None: ...
    @property
    def rep(self) -> float | None: ...


class BenchClock:
    """A user's `do_bench(kernel_call, quantiles=…)` as a Clock: one call of it is one sample, and one is enough.

    Hooks and restoring run inside what it times, as with stock: only it knows when it launches.

    Args:
        bench: returns milliseconds: one number, or one for each quantile. protocol: names it in the Key.

    Attributes:
        told: what it answered last for each Config.
    """

    rounds = 1

    def __init__(self, bench: Callable[..., Any], protocol: str) -> None:
        self._bench, self.protocol = bench, protocol
        self.told: dict[Config, list[float]] = {}

    def sample(self, run: Run) -> Sample:
        def kernel_call() -> None:
            if run.before is not None:
                run.before()
            run()

        answer = self._bench(kernel_call, quantiles=_QUANTILES)
        numbers = [float(answer)] * 3 if isinstance(answer, (int, float)) else [float(n) for n in answer]
        if not numbers or not math.isfinite(numbers[0]):
            raise BenchRefused(f"do_bench answered {answer!r}")
        self.told[run.config] = numbers
        return Sample(max(numbers[0] * 1e-3, SHORTEST_S))


class BenchRefused(TunesmithError):
    """A user's do_bench answered with no time."""


def clock_asked_for(asked: TimingAsked, kernel: str) -> Clock | str | None:
    """The Clock that `do_bench`, `use_cuda_graph`, `warmup` and `rep` ask for; `None` for the device's own."""
    timing = asked.use_cuda_graph or asked.warmup is not None or asked.rep is not None
    if asked.clock is not None and (timing or asked.do_bench is not None):
        raise BadInput(f"kernel {kernel}: give either clock= or Triton's do_bench=, use_cuda_graph=, warmup=, rep=")
    rep = 100 if asked.rep is None else asked.rep
    if asked.use_cuda_graph:
        return BenchClock(_graph_bench(rep), f"triton-do_bench_cudagraph-{rep}ms/1")
    if timing:
        warmup = 25 if asked.warmup is None else asked.warmup
        return BenchClock(_stock_bench(warmup, rep), f"triton-do_bench-{warmup}ms-{rep}ms/1")
    if asked.do_bench is not None:
        bench: Any = asked.do_bench
        name = f"{getattr(bench, '__module__', '')}.{getattr(bench, '__qualname__', type(bench).__qualname__)}"
        return BenchClock(asked.do_bench, f"do_bench {name}")
    return asked.clock


def _stock_bench(warmup: float, rep: float) -> Callable[..., Any]:
    def bench(kernel_call: Callable[[], None], quantiles: Sequence[float]) -> Any:
        from triton.testing import do_bench

        return do_bench(kernel_call, warmup=warmup, rep=rep, quantiles=quantiles)

    return bench


def _graph_bench(rep: float) -> Callable[..., Any]:
    def bench(kernel_call: Callable[[], None], quantiles: Sequence[float]) -> Any:
        from triton.testing import do_bench_cudagraph

        return do_bench_cudagraph(kernel_call, rep=cast(int, rep), quantiles=quantiles)

    return bench
