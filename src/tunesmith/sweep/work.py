"""A sweep worker's side: a process that is held to one device and tunes one problem after the other there.

Each function is one step, asked for through `tunesmith.children` or Ray, and takes and returns JSON types.
"""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tunesmith.backends.cpu import cpu, gpus
from tunesmith.core.device import Device, device_of, spell_cores
from tunesmith.core.key import Key
from tunesmith.core.problem import Problem
from tunesmith.errors import (
    BadInput,
    BudgetEnded,
    Busy,
    MissingEngine,
    NoWorkingConfig,
    TunesmithError,
    TunesmithWarning,
    WorkerLost,
)
from tunesmith.events import Compiled, Event, Sampled, Started, Summary, watched
from tunesmith.journal import Journal
from tunesmith.measure.canary import device_trouble
from tunesmith.measure.failure import attempt
from tunesmith.measure.pace import heard, is_shared, known_least_pace_s, least_at_first_s, quiet_within
from tunesmith.options import options
from tunesmith.remote import end_spare_worker, keep_workers
from tunesmith.store import default_store
from tunesmith.store.exchange import entry_text
from tunesmith.store.place import host
from tunesmith.subject import Subject
from tunesmith.sweep.advice import Advice, Named, advice_for, adviser_at
from tunesmith.sweep.devices import usable_cores
from tunesmith.sweep.looks import is_close, looked_again, opened
from tunesmith.sweep.task import GONE, STILL_SHARED, Result, Task
from tunesmith.tuned import TunedKernel
from tunesmith.worker import kernel_at

#: The driver hears how far a search is at most so often: each time wakes another process.
TELL_EVERY_S = 0.5
#: The driver takes a worker that says nothing for minutes for lost.
MOST_WAIT_S = 60.0
#: From what is said to the driver, nothing is kept.
Tell = Callable[[Any], object]


@dataclass
class _Work:
    """What this process is for, from `begin` on.

    Attributes:
        identity: of its device. kind: of device. device: what is known of it, `None` of a simulated one that is in
            no table.
        retry: whether what failed before is tried again. send: whether the driver has another store.
        warned: what the driver was told once. key: of the latest search.
        is_torchs: whether its device is a GPU that torch sees, which can be asked how it is.
        looks: how many races there had been of what was looked at last.
        patience_s: so long it may still wait for its core to be quiet: as long in all as it has measured. counted: the
            tasks whose measuring that is.
    """

    identity: str
    kind: str
    retry: bool
    adviser: Named | None
    device: Device | None = None
    send: bool = False
    kernels: dict[str, TunedKernel] = field(default_factory=dict[str, TunedKernel])
    warned: set[str] = field(default_factory=set[str])
    key: Key | None = None
    is_torchs: bool = False
    patience_s: float = 0.0
    counted: set[str] = field(default_factory=set[str])
    looks: int = 0

    def kernel(self, target: str) -> TunedKernel:
        if target not in self.kernels:
            self.kernels[target] = kernel_at(target)
        return self.kernels[target]


_work: list[_Work] = []


def begin(cores: Sequence[int], simulates: str, retry: bool, adviser: str, store: Sequence[str]) -> dict[str, Any]:
    """Take up one device.

    Args:
        cores: of a CPU; empty where the environment says which GPU.
        simulates: the identity of a device that recordings stand in for, else empty.
        retry: whether what failed before is tried again.
        adviser: `module:attribute` of an `Adviser`, or empty.
        store: (host, folder) of the driver's store.

    Returns:
        `identity` and `kind` of the device, and `host`; `least_pace_s` of a CPU's core: by that a choice of an earlier
        run, which never saw it quiet, turns out to be disturbed.
    """
    if cores and hasattr(os, "sched_setaffinity"):
        missing = sorted({*cores} - {*usable_cores()})
        if missing:
            raise BadInput(f"core {missing[0]} is not one of this process's on {host()}: {spell_cores(usable_cores())}")
        os.sched_setaffinity(0, cores)
    options.cache_clear()
    keep_workers()
    device = device_of(simulates) if simulates else _device(bool(cores))
    identity = simulates if device is None else device.identity
    mine = default_store()
    shared = [host() if not mine.network else store[0], os.path.realpath(mine.folder)] == list(store)
    advises = adviser_at(adviser) if adviser else None
    work = _Work(
        identity, identity.partition(":")[0], retry, advises, device, send=not shared,
        is_torchs=not cores and not simulates and bool(gpus()),
    )  # fmt: skip
    if trouble := _trouble(work):
        raise BadInput(f"the GPU does not answer: {trouble}")
    _work[:] = [work]
    least_s = least_at_first_s() if cores and not simulates else None
    return {"identity": identity, "kind": work.kind, "host": host(), "least_pace_s": least_s}


def _device(is_cpu: bool) -> Device:
    if is_cpu:
        return cpu()
    found = gpus()
    if found:
        return found[0]
    from tunesmith.backends.cuda.driver import device_at

    try:
        return device_at(0)
    except MissingEngine as error:
        raise BadInput(
            f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}: no such GPU: {error}"
        ) from error


def _trouble(work: _Work) -> str:
    """Why this worker's GPU can't be used (any more): it fell off its bus, or a kernel has left an error that stays."""
    return device_trouble() if work.is_torchs else ""


def still_known(entries: Sequence[Mapping[str, Any]]) -> list[int]:
    """Of what an earlier run of a sweep has finished, which needs not be looked at again: indices of `entries`.

    An entry holds as long as kernel, Space, reference, environment and versions are those of now and the store has the
    Choice.
    """
    [work] = _work
    return [number for number, entry in enumerate(entries) if _holds(work, entry)]


def _holds(work: _Work, entry: Mapping[str, Any]) -> bool:
    try:
        return work.device is not None and work.kernel(entry["target"]).of_today(
            Key.from_data(entry["key"]), work.device
        )
    except (TunesmithError, ValueError, TypeError, LookupError, AttributeError):
        return False  # it is looked at, and the search says what is wrong


def tune(task: Mapping[str, Any], before: Mapping[str, Any] | None = None, tell: Tell | None = None) -> dict[str, Any]:
    """Tune one problem: a `Result` as JSON types.

    Args:
        before: what came of it before: it is only looked at again.
        tell: hears how far it is, now and then; of a child process, its parent.

    Returns:
        That; or `GONE` and why, where the device does not answer any more: what came of the problem is no fault of its
        own, and this process is of no more use; or `STILL_SHARED` and the seconds that were waited.
    """
    from tunesmith import answering

    [work] = _work
    start = time.monotonic()
    tells = tell or answering.tell
    seen = None if before is None else Result.from_data(before)
    quiet, waited_s = (True, 0.0) if seen is None else _quiet_core(work, Task(**task), seen, tells)
    if not quiet:
        return {STILL_SHARED: waited_s}
    with warnings.catch_warnings(record=True) as said:
        result, failure, error = attempt("launch", lambda: _tuned(work, Task(**task), tells, seen))
    if result is None or result.fate == "failed":
        why = result.error if result is not None else failure.reason if failure is not None else ""
        if trouble := _trouble(work):
            return {GONE: f"the GPU does not answer any more: {trouble} (after: {why})"}
    if result is None:
        assert error is not None
        raise error
    gc.collect()  # the inputs leave their memory to the next problem's
    new = [text for text in dict.fromkeys(str(one.message) for one in said) if text not in work.warned]
    work.warned.update(new)
    least_s = known_least_pace_s() if result.pace_s is not None else None
    spent = {"seconds": time.monotonic() - start, "wait_s": result.wait_s + waited_s}
    return {**asdict(replace(result, least_pace_s=least_s, **spent)), "warnings": new}


def _quiet_core(work: _Work, task: Task, seen: Result, tell: Tell) -> tuple[bool, float]:
    """Wait for the core to be quiet: (whether it came to that, the seconds that were waited)."""
    if task.digest not in work.counted:  # another worker's, or of an earlier run
        work.counted.add(task.digest)
        work.patience_s += seen.measure_s
    heard(seen.least_pace_s)  # of all workers
    tell({"waits": True})
    quiet, waited_s = quiet_within(min(MOST_WAIT_S, work.patience_s))
    work.patience_s -= waited_s
    tell({})
    return quiet, waited_s


def in_hand() -> str:
    """What this worker's store has of the latest search, which was stopped; empty where the driver has the same."""
    [work] = _work
    return "" if work.key is None else _row(work, work.key)


def _row(work: _Work, key: Key) -> str:
    """What the driver is to put into its store: where that is another one, or this one could not be written."""
    store = default_store()
    return entry_text(store, key) if work.send or store.uncached is not None else ""


def _tuned(work: _Work, task: Task, tell: Tell, seen: Result | None) -> Result:
    failed = Result("failed", work.identity)
    try:
        kernel = work.kernel(task.target)
        problem = Problem.parse(task.problem)
        arguments = kernel.inputs(problem)
        subject = kernel.subject(**arguments)
    except (BadInput, MissingEngine) as error:
        return replace(failed, error=_first_lines(error))
    there = subject.device
    if there.kind != work.kind:
        return Result("elsewhere", work.identity, error=f"{task.kernel} runs on {there.kind}")
    if there.identity != work.identity:
        return replace(failed, error=f"its inputs lie on {there.identity}, and this worker's device is {work.identity}")
    if seen is not None:
        work.key = subject.key
        if seen.looks != work.looks:  # all that is looked at for the second time meets in one process, and so on
            work.looks = seen.looks
            end_spare_worker()
        with watched(_Listener(subject.key, tell, [])):
            found = looked_again(kernel, arguments, seen, task.budget_s, _isolated(kernel, arguments))
        return replace(found, row=_row(work, subject.key))
    journal = Journal(options().cache_dir, kernel.declared.name_for(kernel.kernel.name))
    before = journal.failure(subject.key)
    if before is not None and not work.retry:
        return replace(failed, error=f"{before.reason} (on {before.at[:10]}; --retry tries again)")
    return _searched(work, task, kernel, subject, arguments, journal, tell)


def _searched(
    work: _Work, task: Task, kernel: TunedKernel, subject: Subject, arguments: Mapping[str, Any], journal: Journal,
    tell: Tell,
) -> Result:  # fmt: skip
    """Search; what does not work at all is noted, so that it is not tried again."""
    ended: list[Summary] = []
    work.key = subject.key
    key, error, hopeless, summary = subject.key, "", False, None
    try:
        advice = Advice() if work.adviser is None else advice_for(subject, default_store(), work.adviser)
        with watched(_Listener(key, tell, ended)):
            summary = kernel.tune(
                budget_s=advice.budget_s or task.budget_s, launches=advice.launches or task.launches,
                strategy=advice.strategy or task.strategy, isolate=_isolated(kernel, arguments),
                first=advice.first, **arguments,
            )  # fmt: skip
    except (NoWorkingConfig, BudgetEnded, Busy, BadInput, WorkerLost) as failure:
        error, hopeless = _first_lines(failure), isinstance(failure, NoWorkingConfig) and not _trouble(work)
    seen = summary or (ended[-1] if ended else None)
    try:
        if hopeless and seen is not None and any(seen.failures):
            journal.failed(key, error)
        elif summary is not None and journal.failure(key) is not None:
            journal.worked(key)
    except OSError as trouble:  # what was found is in the store all the same
        warnings.warn(
            f"{journal.path} cannot be written ({trouble}); what failed will be tried again",
            TunesmithWarning,
            stacklevel=2,
        )
    result = _result(work, summary, seen, error, _row(work, key))
    work.patience_s += result.measure_s
    work.counted.add(task.digest)
    if result.fate != "tuned" or summary is None or summary.choice is None:
        return result
    if not is_close(summary.choice, kernel.clock(subject.device)):
        return result
    result = replace(result, again=True)
    return result if is_shared(result.pace_s) else opened(result, default_store().trials(key))


def _isolated(kernel: TunedKernel, arguments: Mapping[str, Any]) -> bool:
    """Whether candidates run in a process of their own: where that is possible, and the author has not said no."""
    return kernel.declared.isolate is not False and not kernel.why_not_isolated(**arguments)


def _result(work: _Work, summary: Summary | None, seen: Summary | None, error: str, row: str) -> Result:
    result = Result("failed", work.identity, error=error, row=row)
    if seen is not None:
        result = replace(
            result, measured=seen.counts["measured"], failed=seen.counts["failed"], known=seen.known,
            compile_s=seen.compile_s, measure_s=seen.measure_s, store_s=seen.store_s, wait_s=seen.wait_s,
        )  # fmt: skip
    if summary is None or summary.choice is None:
        return result
    choice = summary.choice
    return replace(
        result, fate="tuned" if result.compile_s or result.measure_s else "known", config=dict(choice.config),
        median_s=choice.median_s, ties=len(choice.ties), partial=choice.partial, pace_s=choice.pace_s,
        key=summary.key.to_data(), soft=dict(summary.key.soft),
    )  # fmt: skip


def _first_lines(error: BaseException) -> str:
    """What went wrong and the commonest reason."""
    return ": ".join(line.strip() for line in str(error).splitlines()[:2])


@dataclass
class _Listener:
    """Hears a search of a Key and says now and then how far it is. What its candidates search is not heard."""

    key: Key
    tell: Tell
    heard: list[Summary]
    told_at: float = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Summary) and event.key == self.key:
            self.heard.append(event)
        if not isinstance(event, (Started, Compiled, Sampled)):
            return
        now = time.monotonic()
        if now - self.told_at >= TELL_EVERY_S:
            self.told_at = now
            best = {"best_s": event.leader_s, "config": dict(event.leader)} if isinstance(event, Sampled) else {}
            self.tell(best)
