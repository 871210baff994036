"""The time of one launch in a CUDA graph: as kernels run in a model's decode graph, one right after the other.

Measured on an H200 (torch 2.11): a launch behind a flush of the cache takes 2.5 µs longer than one in a row of
launches (14.5 and 11.8 µs for a product of few rows), whatever is launched; and a kernel that begins while the one
before it ends (programmatic dependent launch) gains nothing there. So launches are timed in a row, where they can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple
from weakref import WeakSet

from tunesmith.core.device import Device
from tunesmith.kernel import Others, Run
from tunesmith.measure.gpu_clock import MOST_FLUSHES, SPARE, GpuClock

#: A row's launches take together at least this on the GPU: what a replay takes to begin, some microseconds, is lost in
#: it, and so is what the first launch takes longer behind the flush.
ROW_S = 400e-6
#: ... but are no more than this, so that capturing them costs a few milliseconds
MOST_IN_ROW = 256
#: Candidates have rows of as many launches, so that what a row takes to begin is spread over as many; those that take
#: so many times longer than another, and can't win, have shorter ones.
FAR = 4.0
#: Behind flushes a graph's launches take together at least this, so that the events' half microsecond is lost.
GRAPH_S = 100e-6
#: ... but are never more than this
MOST_IN_GRAPH = 64


class _Row(NamedTuple):
    """A graph of launches one after the other; the inputs' copies live as long as it does."""

    graph: Any
    launches: int
    flushes: int
    sets: Sequence[Sequence[Any]]


class GraphClock(GpuClock):
    """Time of one launch in a CUDA graph: for kernels that are shorter than a launch, or will run in graphs.

    Cold: a graph of launches in a row, each on other inputs than the one before, so many that none is in the cache when
    its turn comes again; those that are hot are the same for all. Where that can't be (`Run.others` has none: the
    kernel writes its arguments, something is done ahead of a launch, there is no memory for copies), a graph of so many
    times flush and launch, less a graph of as many flushes; it is the same for all candidates that share arguments.
    Hot: a graph of launches in a row on the same inputs. Graphs are made once for each Run; what has to be put back
    before a launch is in both of two. A kernel that can't be captured fails, and says so.
    """

    def __init__(self, device: Device, *, cold: bool = True) -> None:
        super().__init__(device, cold=cold)
        #: by the GPU's index, graphs that somebody still has
        self._living: dict[int, WeakSet[Any]] = {}
        #: ... and the stream they are captured on: cuBLAS takes 32 MiB for each that it sees
        self._streams: dict[int, Any] = {}

    @classmethod
    def protocol_of(cls, cold: bool) -> str:
        return "cuda-graph-cold/2" if cold else "cuda-graph-hot/1"

    def _seconds(self, run: Run) -> float:
        others = run.others if self.cold and run.before is None else None
        sets = others.sets(self._cache_bytes()) if others is not None else ()
        if others is None or not sets:
            return self._behind_flushes(run)
        return self._in_a_row(run, others, sets)

    # --- in a row --------------------------------------------------------------------------------

    def _in_a_row(self, run: Run, others: Others, sets: Sequence[Sequence[Any]]) -> float:
        if "alone_s" not in run.state:
            self._launch_alone(run)
            run.executable.launch(*sets[1])  # what a launch on others brings with it must not come under capture
            run.state["alone_s"] = self._alone_s(run)
        launches = self._launches(run.state["alone_s"], others, len(sets))
        row: _Row | None = run.state.get("row")
        if row is None or row.launches != launches:  # a candidate has come since that is much faster
            run.state["row"] = row = self._row(run, sets, launches)
            run.state["launches"] = launches
        for _ in range(row.flushes):
            self._flush()[0].zero_()  # the GPU is busy until the replay is queued
        self._warm(run)
        return self._between(row.graph.replay) / launches

    def _launches(self, alone_s: float, others: Others, copies: int) -> int:
        """How many launches make a row: as many for all candidates, but for those far behind."""
        if others.pace_s is None or alone_s < others.pace_s / FAR:
            others.pace_s = alone_s
        one_s = alone_s if alone_s > FAR * others.pace_s else others.pace_s
        wanted = min(MOST_IN_ROW, math.ceil(ROW_S / one_s))
        if wanted <= copies:  # each is cold without the others, behind the flush
            return wanted
        return math.ceil(wanted / copies) * copies if others.again(self._cache_bytes()) else copies

    def _row(self, run: Run, sets: Sequence[Sequence[Any]], launches: int) -> _Row:
        launch = run.executable.launch
        graph = self._captured(partial(launch, *args) for args in islice(cycle(sets), launches))
        graph.replay()  # the first replay uploads it
        self._cuda.current_stream().synchronize()
        queued_s, flush_s = self._queue_s(graph.replay), self._flush()[1]
        flushes = max(1, min(MOST_FLUSHES, math.ceil(SPARE * queued_s / flush_s)))
        return _Row(graph, launches, flushes, sets)

    # --- behind flushes --------------------------------------------------------------------------

    def _behind_flushes(self, run: Run) -> float:
        if "graphs" not in run.state:
            run.state["graphs"] = self._graphs(run)
        whole, without, launches = run.state["graphs"]
        run.state["launches"] = launches
        self._flush()[0].zero_()  # the GPU is busy until the replay is queued
        seconds = self._between(whole.replay)
        if without is not None:
            self._flush()[0].zero_()
            seconds -= self._between(without.replay)
        return seconds / launches

    def _graphs(self, run: Run) -> tuple[Any, Any | None, int]:
        """(with the launches, the same without them where there is something else in it, how many launches)."""
        buffer, _ = self._flush()
        self._launch_alone(run)
        launches = max(1, min(MOST_IN_GRAPH, math.ceil(GRAPH_S / self._alone_s(run))))
        others = self.cold or run.before is not None

        def before() -> None:
            if run.before is not None:
                run.before()
            if self.cold:
                buffer.zero_()
                self._warm(run)

        def with_it() -> None:
            before()
            run()

        whole = self._captured([with_it] * launches)
        without = self._captured([before] * launches) if others else None
        for graph in (whole, without):
            if graph is not None:
                graph.replay()  # the first replay uploads it
        return whole, without, launches

    # --- graphs ----------------------------------------------------------------------------------

    def _alone_s(self, run: Run) -> float:
        """About what one launch takes, at least a microsecond."""
        single, (buffer, _) = self._captured([run]), self._flush()

        def once() -> float:
            if run.before is not None:
                run.before()
            buffer.zero_()
            return self._between(single.replay)

        return max(min(once() for _ in range(3)), 1e-6)  # the first replay uploads it

    def _captured(self, acts: Iterable[Callable[[], object]]) -> Any:
        """A graph of what these queue, captured on the clock's own stream and in this thread alone.

        What launches allocate under capture stays the graph's as long as it lives. All graphs share it: they are
        replayed one after the other, and nobody reads what a launch returned. Each with memory of its own, 50
        candidates with results of 640 MB fill an H200.
        """
        index = int(self._cuda.current_device())
        living = self._living.setdefault(index, WeakSet())
        shared = next((one.pool() for one in living), None)
        if index not in self._streams:
            self._streams[index] = self._cuda.Stream()
        graph, stream = self._cuda.CUDAGraph(), self._streams[index]
        stream.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(stream), self._cupy_follows():
            graph.capture_begin(pool=shared, capture_error_mode="thread_local")
            try:
                for act in acts:
                    act()
            finally:
                self._end(graph, living)
        self._cuda.current_stream().wait_stream(stream)
        living.add(graph)
        return graph

    @staticmethod
    def _end(graph: Any, living: WeakSet[Any]) -> None:
        try:
            graph.capture_end()
        except BaseException:
            living.clear()  # torch takes their memory for what is still captured to, and refuses it to the next graph
            raise
