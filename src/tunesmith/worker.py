"""The worker's side of an isolated search: a child process that makes a kernel and its inputs anew, and times it.

Each function here is one step, asked for by `tunesmith.remote` through `tunesmith.children`, and returns JSON types or
a Failed. A step that a candidate has failed at ends with a look whether the device still answers.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

from tunesmith.answering import take_time
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Failed
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.kernel import Built, Clock, Executable, Run
from tunesmith.measure.bench import LocalBench
from tunesmith.measure.canary import device_trouble, synchronize, use_gpu
from tunesmith.measure.failure import attempt
from tunesmith.measure.fenced import Fence
from tunesmith.measure.pace import heard, known_least_pace_s, paces_of
from tunesmith.measure.packing import unpacked
from tunesmith.measure.race import limits_of
from tunesmith.options import Authority, decided_everywhere_by, options
from tunesmith.remote import LOAD_S
from tunesmith.subject import Subject, local_bench
from tunesmith.targets import attribute_of, behind, module_of
from tunesmith.tuned import TunedKernel

#: a process that a candidate started and waited for may take so long to be gone
_GONE_S = 0.05


@dataclass
class _Work:
    """What this process is for, from `begin` on.

    Attributes:
        known: processes that were started by the kernel's own module, or to load a candidate.
    """

    subject: Subject
    bench: LocalBench
    clock: Clock
    fences: Mapping[str, Fence]
    loaded: dict[Config, Executable] = field(default_factory=dict[Config, Executable])
    runs: dict[Config, Run] = field(default_factory=dict[Config, Run])
    known: set[int] = field(default_factory=set[int])


class _NothingMeasured(Authority):
    """What candidates call, and what a module calls when it is imported, takes what is known: the search that this
    process is for holds the key and the device, and both would wait for each other."""

    measures = False


_work: list[_Work] = []
#: whether this process has begun a search before
_begun: list[bool] = []


def begin(
    target: str, fixed: Mapping[str, Any], key: Mapping[str, Any], problem: str,
    arguments: Mapping[str, Mapping[str, Any]], device: int | None, argv: Sequence[str], least_pace_s: float | None,
) -> Failed | None:  # fmt: skip
    """Make the kernel and its inputs.

    Args:
        target, fixed, key, problem, arguments, device: see `Recipe`.
        argv: the program's, which its module may read when it is imported.
        least_pace_s: known there, as of `tunesmith.measure.pace`.
    """
    sys.argv[:] = argv
    heard(least_pace_s)
    options.cache_clear()
    if not _begun:
        decided_everywhere_by(_NothingMeasured())
        _begun.append(True)
    _put_away()
    kernel = kernel_at(target)
    if fixed:
        kernel = kernel.fix(**fixed)
    if device is not None:
        use_gpu(device)
    made = kernel.inputs(Problem.parse(problem))
    fences: dict[str, Fence] = {}
    subject = kernel.subject(**unpacked(arguments, made, fences))
    del made
    there = Key.from_data(key)
    if subject.key != there:
        return Failed("load", f"{target} is not the same there: {'; '.join(there.differences(subject.key))}")
    check = replace(subject.check, reference=_unhurried(subject.check.reference))
    bench = local_bench(replace(subject, check=check, fresh=_unhurried(subject.fresh)))
    bench.__enter__()
    _work[:] = [_Work(subject, bench, kernel.clock(subject.device), fences, known=_children())]
    return None


def _put_away() -> None:
    """An earlier search's candidates and inputs leave room for the next one's."""
    for work in _work:
        work.bench.__exit__(None, None, None)
    _work.clear()
    gc.collect()


def _unhurried(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """The same, for which a candidate's deadline does not count: a function of the author's."""
    if function is None:
        return None

    @wraps(function)
    def unhurried(*args: Any, **kwargs: Any) -> Any:
        take_time(LOAD_S)
        try:
            return function(*args, **kwargs)
        finally:
            take_time(None)

    return unhurried


def kernel_at(target: str) -> TunedKernel:
    """The tuned kernel that another process named.

    Raises:
        BadInput: when there is none.
    """
    place, _, attribute = target.rpartition(":")
    found = behind(attribute_of(module_of(place), attribute))
    if not isinstance(found, TunedKernel):
        raise BadInput(f"{target} is of type {type(found).__name__}, not a kernel with @tunesmith.autotune")
    return found


def load(config: Mapping[str, Any], built: str | None) -> Any:
    """Make a compiled Config ready to launch; its Resources."""
    [work], one = _work, Config(config)
    executable, failure, _ = work.bench.load(one, None if built is None else Built(Path(built), 0.0))
    if executable is None or failure is not None:
        return _told(work, failure)
    work.loaded[one] = executable
    work.known |= _children()
    return asdict(executable.resources)


def ready(config: Mapping[str, Any]) -> Any:
    """Check a loaded candidate: whether it was compared with the reference's results, and what was noted."""
    [work], one = _work, Config(config)
    executable = work.loaded[one]
    failure = _fails_on_fenced(work, executable)
    if failure is not None:
        return _told(work, failure)
    try:
        run, failure, _ = work.bench.ready(executable)
    except BadInput as error:  # nobody's fault among the candidates
        return {"bad_input": str(error)}
    failure = failure or _left_over(work)
    if run is None or failure is not None:
        return _told(work, failure)
    work.runs[one] = run
    return {"checked": run.checked, "notes": list(work.bench.notes)}


def _fails_on_fenced(work: _Work, executable: Executable) -> Failed | None:
    """Launch a candidate on the arguments themselves, ahead of its checks: these are on copies, beside which lies what
    others need. The first one is launched so anyway, to see what it writes."""
    if not work.bench.has_watched:
        return None
    run = work.bench.run_of(executable)

    def launch() -> None:
        if run.before is not None:
            run.before()
        run()
        if work.subject.device.kind != "cpu":
            synchronize()

    _, failure, _ = attempt("launch", launch)
    return failure or _broken_fence(work)


def sample(config: Mapping[str, Any]) -> Any:
    """Time a candidate that is ready; the `sample`, the `launches` it is of, the Clock's `limits` so far, and where it
    reads that, its `pace`: how fast the core was around this sample, and the least reading so far."""
    [work] = _work
    run = work.runs[Config(config)]
    taken, failure, _ = attempt("launch", lambda: work.clock.sample(run))
    failure = failure or _left_over(work)
    if taken is None or failure is not None:
        return _told(work, failure)
    launches = int(run.state.get("launches", 1))
    return {
        "sample": asdict(taken), "launches": launches, "limits": sorted(limits_of(work.clock)),
        "pace": [paces[-1], known_least_pace_s()] if (paces := paces_of(work.clock)) else None,
    }  # fmt: skip


def settle(config: Mapping[str, Any], seconds: float, within_s: float) -> Any:
    """Bring the device under the load of a candidate that is ready, and a launch of which takes so long, as this
    process's Clock knows how, in no more than `within_s`."""
    [work] = _work
    run, bring = work.runs[Config(config)], getattr(work.clock, "settle", None)
    if not callable(bring):  # a Clock of the caller's that was given it after the import
        return None
    end = time.monotonic() + within_s
    _, failure, _ = attempt("launch", lambda: bring(run, seconds, lambda: time.monotonic() >= end))
    return _told(work, failure or _left_over(work))


def tell(config: Mapping[str, Any], why: str) -> None:
    """A Config never came to its launch: whatever stands around launches hears of it."""
    [work] = _work
    attempt("launch", lambda: work.bench.tell(Config(config), RuntimeError(why)))


# --- what a candidate has left --------------------------------------------------------------------------


def _told(work: _Work, failure: Failed | None) -> Any:
    """A candidate's failure, and whether the device does not answer any more after it."""
    if failure is None:
        return None
    gc.collect()  # what the exception's frames held, memory of the device among it
    if work.subject.device.kind == "cpu" or not device_trouble():
        return failure
    return {"poisoned": asdict(failure)}


def _left_over(work: _Work) -> Failed | None:
    return _broken_fence(work) or _left_behind(work)


def _broken_fence(work: _Work) -> Failed | None:
    broken = [name for name, fence in work.fences.items() if fence.broken()]
    return Failed("wrong", f"wrote past the end of {', '.join(map(repr, broken))}") if broken else None


def _left_behind(work: _Work) -> Failed | None:
    """Ends the processes that a candidate has left running, and says so.

    Not for kernels in Python, whose libraries start compilers of their own that stay: these end with the worker.
    """
    if work.subject.kernel.backend == "callable":
        return None
    left, until = _children() - work.known, time.monotonic() + _GONE_S
    while left and time.monotonic() < until:
        time.sleep(0.005)
        left = _children() - work.known
    for pid in left:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return Failed("launch", "left a child process running") if left else None


def _children() -> set[int]:
    """Processes that this one has started, or that came to it when their own parent ended; not those that ended."""
    if sys.platform != "linux":
        return set()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # none at all: what this costs where there are none is one call of the system
        return set()
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.add(int(path.parent.name))
    return found
