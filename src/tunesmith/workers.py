"""Whoever works beside the caller: child processes that compile, and threads that each run a slice of a kernel."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeAlias

from tunesmith import children
from tunesmith.answering import failed_by
from tunesmith.children import Stopped
from tunesmith.claims import LOOK_S, Elsewhere, release
from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed
from tunesmith.errors import CompileFailed, OutOfResources, TunesmithError
from tunesmith.kernel import Built, Command, Job, Task
from tunesmith.turns import Turns

#: what a compiler may print before the rest is dropped: the first errors matter, the thousandth does not
OUTPUT_BYTES = 256 * 1024
#: how long a stop request may go unnoticed by whoever waits for a child
_TICK_S = 0.05
#: scratch folders this old belong to processes that were killed: no compilation takes a day
_ABANDONED_S = 24 * 3600.0
_SCRATCH = ".building-"


@dataclass(frozen=True, slots=True)
class Finished:
    """How a child process ended.

    Attributes:
        code: its exit status; -N when signal N ended it.
        output: standard output and error as one text, cut at the limit.
        timed_out: it was killed at its deadline.
        seconds: how long it ran.
    """

    code: int
    output: str
    timed_out: bool = False
    seconds: float = 0.0


def run_command(
    argv: Sequence[str],
    timeout_s: float,
    *,
    limit_bytes: int = OUTPUT_BYTES,
    environ: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> Finished:
    """Run a command in a process group of its own, and leave none of it behind.

    Args:
        argv: the command; its standard input is empty.
        timeout_s: when the whole group is killed.
        limit_bytes: how much of its output is kept.
        environ: variables it gets beside those of this process.
        stop: once set, the group is killed.

    Raises:
        OSError: when it can't be started.
        Stopped: when `stop` was set.
    """
    start = time.monotonic()
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, **(environ or {})},
    )
    try:
        output, held_open = _listen(child, start + timeout_s, limit_bytes, stop)
        in_time = child.returncode is not None
        if in_time and held_open:  # by somebody it started and left running, so that the group still is ours
            _kill_group(child.pid)
    finally:  # also on KeyboardInterrupt: nothing may outlive its caller
        if child.returncode is None:
            _kill_group(child.pid)
            child.wait()
        if child.stdout is not None:
            child.stdout.close()
    return Finished(child.wait(), output, not in_time, time.monotonic() - start)


def _listen(
    child: subprocess.Popen[bytes], deadline: float, limit_bytes: int, stop: threading.Event | None
) -> tuple[str, bool]:
    """Read a child's output until it has ended or its time is up: (output, whether somebody still holds its pipe)."""
    assert child.stdout is not None
    pipe, kept, size, open_ = child.stdout.fileno(), list[bytes](), 0, True
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if stop is not None and stop.is_set():
                raise Stopped
            left_s = deadline - time.monotonic()
            if open_ and selector.select(max(0.0, min(_TICK_S, left_s))):
                chunk = os.read(pipe, 65536)
                open_ = bool(chunk)
                kept.append(chunk[: max(0, limit_bytes - size)])
                size += len(chunk)
            elif child.poll() is not None or left_s <= 0:  # a grandchild may hold the pipe open for ever
                break
            elif not open_:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(min(_TICK_S, left_s))
    text = b"".join(kept).decode(errors="replace")
    return text + (f"\n… {size - limit_bytes} more bytes" if size > limit_bytes else ""), open_


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it is gone; macOS says so by refusing
        os.killpg(pid, signal.SIGKILL)


# --- compiling -------------------------------------------------------------------------------------


#: a Config and what became of its compilation, `None` where there was nothing to compile
Compiled: TypeAlias = "tuple[Config, Built | Failed | None]"


def compile_all(
    jobs: Iterable[tuple[Config, Job | Failed | None]],
    n_workers: int,
    *,
    stop: threading.Event | None = None,
    turns: Turns | None = None,
) -> Generator[Compiled]:
    """Compile in parallel child processes and yield each job as it finishes.

    Jobs start in the order given. They are taken in the caller's thread and only as they are needed: at most twice
    as many as there are workers wait or lie finished, so that no worker idles while the caller looks at a result.
    Jobs of the same output are compiled once, by whichever process of the host comes first: what another one is at
    comes back when that is done. Closing the generator, or an exception in it, kills the children and leaves no
    temporary file.

    Args:
        jobs: most promising first; a Failed, for a Config of which no job could be made, comes back as it is.
        n_workers: children at once.
        stop: once set, children are killed and the iteration ends with what had finished.
        turns: taken for what a job asks of this process (`Task.request`), where kernels are timed meanwhile.
    """
    turns = turns or Turns()
    halt, finished = threading.Event(), SimpleQueue[tuple[Path, "Future[Built | Failed]"]]()
    source, waiting, done = iter(jobs), dict[Path, list[Config]](), dict[Path, "Built | Failed"]()
    elsewhere = Elsewhere()
    pool = ThreadPoolExecutor(n_workers, thread_name_prefix="tunesmith-compile")

    def stopped() -> bool:
        return stop is not None and stop.is_set()

    def start(job: Job) -> None:
        future = pool.submit(_compile, job, _Either(halt, stop), turns)
        future.add_done_callback(partial(ended, job.output))

    def ended(output: Path, future: Future[Built | Failed]) -> None:
        release(output)
        finished.put((output, future))

    try:
        exhausted = False
        while waiting or not exhausted:
            while not exhausted and not stopped() and len(waiting) - len(elsewhere) < 2 * n_workers:
                taken = next(source, None)
                if taken is None:
                    exhausted = True
                    break
                config, job = taken
                if job is None or isinstance(job, Failed):
                    yield config, job
                elif job.output in waiting:
                    waiting[job.output].append(config)
                elif job.output in done:
                    yield config, _again(done[job.output])
                else:
                    waiting[job.output] = [config]
                    if not elsewhere.takes(job):
                        start(job)
            if stopped():
                exhausted = True
                for output in elsewhere.drop():
                    del waiting[output]
            if waiting:
                try:  # never without end: a wait that begins just after Ctrl-C came does not hear it
                    output, future = finished.get(timeout=LOOK_S)
                except Empty:
                    for job in elsewhere.ended():
                        start(job)
                    continue
                configs = waiting.pop(output)
                if isinstance(future.exception(), Stopped):
                    continue
                done[output] = result = future.result()
                yield configs[0], result
                for config in configs[1:]:
                    yield config, _again(result)
    except BaseException:  # Ctrl-C, or a caller who wants no more
        children.end_spare()
        raise
    finally:
        halt.set()
        pool.shutdown(wait=True, cancel_futures=True)


class _Either(threading.Event):
    """Set as soon as its own caller or the user's stop is."""

    def __init__(self, ours: threading.Event, theirs: threading.Event | None) -> None:
        super().__init__()
        self._events = [ours] if theirs is None else [ours, theirs]

    def is_set(self) -> bool:
        return any(event.is_set() for event in self._events)


def job_or_failure(make: Callable[[], Job | None]) -> Job | Failed | None:
    """What a Config needs compiled, or why it can't be; a request that makes no sense for any Config is raised."""
    try:
        return make()
    except Exception as error:
        if isinstance(error, TunesmithError) and not isinstance(error, OutOfResources):
            raise
        return failed_by(error)


def compile_one(job: Job) -> Built:
    """Compile here and now.

    Raises:
        CompileFailed: with all that the compiler said.
    """
    result = _compile(job, None, Turns())
    if isinstance(result, Failed):
        raise CompileFailed(f"{result.reason}\n{result.detail}".rstrip(), result.detail)
    return result


def _again(result: Built | Failed) -> Built | Failed:
    return Built(result.path, 0.0, result.log) if isinstance(result, Built) else result


def _compile(job: Job, stop: threading.Event | None, turns: Turns) -> Built | Failed:
    if stop is not None and stop.is_set():
        raise Stopped
    if job.output.exists():
        return Built(job.output, 0.0)
    return _run_task(job, stop, turns) if isinstance(job, Task) else _run_compiler(job, stop)


def _run_task(task: Task, stop: threading.Event | None, turns: Turns) -> Built | Failed:
    """One job in a kept child."""
    start = time.monotonic()
    try:
        with turns.beside():
            request = task.request()
    except Exception as error:
        return failed_by(error)
    try:
        answer = children.call(task.function, request, task.timeout_s, stop)
    except OSError as error:  # no process can be started
        return failed_by(error)
    if answer.failed is not None:
        return answer.failed
    if not task.output.exists():
        return Failed("compile", f"{task.function} succeeded without writing its output", answer.log)
    return Built(task.output, time.monotonic() - start, answer.log)


def _run_compiler(command: Command, stop: threading.Event | None) -> Built | Failed:
    """One job: into a scratch folder beside its output, then in one move to its place."""
    scratch = None
    try:
        command.output.parent.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(command.output.parent)
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=command.output.parent))
        made = scratch / command.output.name
        argv = [part.replace("{output}", str(made)) for part in command.argv]
        # TMPDIR: a killed compiler leaves its own temporary files behind, and they go with the scratch folder
        ended = run_command(
            argv, command.timeout_s, environ={"TMPDIR": str(scratch), **dict(command.environ)}, stop=stop
        )
        if ended.timed_out:
            return Failed("timeout", f"compiler ran past {command.timeout_s:g} s and was killed", ended.output)
        if ended.code != 0:
            return Failed("compile", _reason(ended), ended.output)
        if not made.exists():
            return Failed("compile", f"{argv[0]} succeeded without writing its output", ended.output)
        os.replace(made, command.output)
        return Built(command.output, ended.seconds, ended.output)
    except OSError as error:  # no such compiler, no space, no permission
        return Failed("compile", f"{type(error).__name__}: {error}")
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _reason(ended: Finished) -> str:
    """The line that says why a compiler failed, without the place: the same mistake is to be counted as one."""
    if ended.code < 0:
        return f"compiler killed by {signal.Signals(-ended.code).name}"
    found = re.search(r"\b(?:error: .*|undefined reference to .*)", ended.output)
    if found is not None:
        return found.group().strip()
    lines = [line.strip() for line in ended.output.splitlines() if line.strip()]
    return lines[-1] if lines else f"compiler ended with exit status {ended.code} and said nothing"


def _clear_abandoned(folder: Path) -> None:
    """Remove scratch folders of processes that were killed."""
    for entry in islice(folder.glob(f"{_SCRATCH}*"), 64):
        with suppress(OSError):  # another process may be at it
            if time.time() - entry.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(entry, ignore_errors=True)


# --- slices ----------------------------------------------------------------------------------------


class _Slice:
    """One call that a thread of the team makes for somebody who waits for it."""

    __slots__ = ("begin", "call", "done", "end", "error")

    def __init__(self, call: Callable[[int, int], object], begin: int, end: int) -> None:
        self.call, self.begin, self.end = call, begin, end
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            self.call(self.begin, self.end)
        except BaseException as error:  # raised again by the one who waits
            self.error = error
        finally:
            self.done.release()


class _Team:
    """Threads that wait for slices: one team a process, grown when asked for more."""

    def __init__(self) -> None:
        self.slices: SimpleQueue[_Slice] = SimpleQueue()
        self.size = 0
        self._growing = threading.Lock()

    def grow(self, size: int) -> None:
        with self._growing:
            while self.size < size:
                threading.Thread(
                    target=_serve, args=(self.slices,), name=f"tunesmith-slice-{self.size}", daemon=True
                ).start()
                self.size += 1


def _serve(slices: SimpleQueue[_Slice]) -> None:
    while True:
        slices.get().run()


_team = _Team()


def _new_team() -> None:
    global _team
    _team = _Team()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_team)  # threads don't survive a fork


def run_slices(call: Callable[[int, int], object], work: int, n_threads: int) -> None:
    """Call `call(begin, end)` for up to `n_threads` slices of `range(work)` at once; the caller runs the first.

    Returns, or raises what a slice raised, when all of them have ended: what they write to is not in use any more.
    """
    n = max(1, min(n_threads, work))
    if n == 1:
        call(0, work)
        return
    if _team.size < n - 1:
        _team.grow(n - 1)
    slices = [_Slice(call, work * i // n, work * (i + 1) // n) for i in range(1, n)]
    for one in slices:
        _team.slices.put(one)
    interrupt: BaseException | None = None
    try:
        call(0, work // n)
    finally:
        for one in slices:
            while True:
                try:
                    one.done.acquire()
                    break
                except KeyboardInterrupt as error:  # memory is still being written: first wait, then stop
                    interrupt = error
    raised = interrupt or next((one.error for one in slices if one.error is not None), None)
    if raised is not None:
        raise raised
