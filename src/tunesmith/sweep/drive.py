"""The driver of a sweep: a thread for each worker, which gives it tasks and takes what comes of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tunesmith.confirm import FEWEST
from tunesmith.errors import StoreError
from tunesmith.store import Store
from tunesmith.store.exchange import add_text
from tunesmith.sweep.done import Done
from tunesmith.sweep.looks import MOST_LOOKS
from tunesmith.sweep.queue import TRIES, Queue
from tunesmith.sweep.task import GONE, SECONDS, STILL_SHARED, Result, Task
from tunesmith.sweep.use import Use
from tunesmith.sweep.workers import STOP_S, Lost, Refused, Worker

#: A device on which so many workers in a row could not begin has something wrong that no other worker will mend.
STARTS = 3
#: where another look comes to nothing
STANDS = "what was chosen before stands"
#: how long Ctrl-C may go unheard
_TICK_S = 0.2


class Watcher(Protocol):
    """Is told what happens, by one thread at a time."""

    def ready(self, name: str, identity: str) -> None:
        """A worker is ready on a device."""
        ...

    def resumed(self, count: int) -> None:
        """So many tasks were done by an earlier run."""
        ...

    def began(self, name: str, task: Task) -> None:
        """A worker has taken a task."""
        ...

    def heard(self, name: str, said: Mapping[str, Any]) -> None:
        """How far it is: `best_s` and `config` once something was measured, `waits` until its core is quiet."""
        ...

    def ended(self, name: str, task: Task, result: Result) -> None:
        """A task has come to an end."""
        ...

    def looked(self, name: str, task: Task, result: Result, left: int) -> None:
        """Another look at a task has come to an end; so many are left on devices of its kind, as far as is known."""
        ...

    def put_off(self, name: str, task: Task, left: int) -> None:
        """There was no quiet moment for another look at a task; so many are left, as of `looked`."""
        ...

    def trouble(self, name: str, what: str) -> None:
        """Something went wrong that the sweep goes on after."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a sweep.

    Attributes:
        results: of each task on each kind of device, in the order in which they came to an end first.
        left: tasks that came to no end on some kind of device, each with why.
        given_up: devices on which nothing runs (any more), each with why.
        interrupted: whether Ctrl-C ended it.
        unkept: tasks whose results could not be put into the store, each with why.
        uses: what each device did with its time.
    """

    results: tuple[tuple[Task, Result], ...]
    left: tuple[tuple[Task, str], ...]
    given_up: tuple[tuple[str, str], ...] = ()
    interrupted: bool = False
    unkept: tuple[tuple[Task, str], ...] = ()
    uses: tuple[Use, ...] = ()

    @property
    def good(self) -> bool:
        """Whether every problem is done, its result stored, and every device served."""
        return not (
            self.left or self.given_up or self.unkept or any(result.fate == "failed" for _, result in self.results)
        )


#: what problems of one key have in common
_OF_THE_KEY = "config", "median_s", "ties", "pace_s", "rivals", "visits", "open"


def _left(result: Result) -> Result:
    """It is not looked at any more in this run."""
    return replace(result, again=False, open=False)


class Sweep:
    """One run of a sweep.

    Args:
        workers: by the name of their device, what makes one: more than once where one dies.
        store: the driver's; what workers with another store found is added to it.
        done: where to note what is done.
        before: what an earlier run has done, by device's identity.
        retry: whether what killed its workers then is tried again.
        looks: races at most of a problem with brief samples on a CPU, the search's own counted.
    """

    def __init__(
        self, tasks: Sequence[Task], workers: Mapping[str, Callable[[], Worker]], store: Store, done: Done,
        watcher: Watcher, before: Mapping[str, Mapping[Task, Result]], retry: bool = False,
        looks: int = MOST_LOOKS,
    ) -> None:  # fmt: skip
        self._queue, self._makers, self._store, self._done = Queue(tasks), dict(workers), store, done
        self._watcher, self._before, self._retry, self._looks = watcher, before, retry, looks
        self._lock = threading.Lock()
        self._alive: dict[str, Worker] = {}
        self._results: dict[tuple[Task, str], Result] = {}  # by device's identity; in the order in which they ended
        self._gone: dict[str, str] = {}
        self._unkept: dict[Task, str] = {}
        self._stopping = threading.Event()
        self._uses = {name: Use(name) for name in workers}

    def run(self) -> Outcome:
        """Do all that can be done. Ctrl-C stores what was measured, and says what is left."""
        start, interrupted = time.monotonic(), False
        pool = ThreadPoolExecutor(len(self._makers), thread_name_prefix="tunesmith-sweep")
        serving = [pool.submit(self._serve, number, name) for number, name in enumerate(self._makers)]
        try:
            while wait(serving, timeout=_TICK_S, return_when=FIRST_EXCEPTION).not_done:
                pass  # in ticks, so that Ctrl-C is heard
        except KeyboardInterrupt:
            interrupted = True
            self.stop()
            wait(serving, timeout=2 * STOP_S)
        finally:
            pool.shutdown(wait=False)
        for one in serving:
            one.result()
        for use in self._uses.values():
            use.close(time.monotonic() - start)
        results = [
            (
                task,
                replace(
                    result, again=result.again and self._queue.is_disturbed(result), open=self._bounded(result).open
                ),
            )
            for (task, _), result in self._results.items()
        ]
        return Outcome(
            tuple(results), tuple(self._left(interrupted)),
            tuple(self._gone.items()), interrupted, tuple(self._unkept.items()), tuple(self._uses.values()),
        )  # fmt: skip

    def stop(self) -> None:
        """End all workers; each keeps what it has measured."""
        self._stopping.set()
        self._queue.stop()
        with self._lock:
            alive = list(self._alive.values())
        for worker in alive:
            worker.interrupt()

    # --- one worker's thread ---------------------------------------------------------------------

    def _serve(self, number: int, name: str) -> None:
        ended_well = False
        try:
            self._serve_until_done(number, name)
            ended_well = True
        finally:
            self._queue.leave(number)
            if not ended_well:  # a bug of ours, which who waits raises: nobody goes on beside it
                self.stop()

    def _serve_until_done(self, number: int, name: str) -> None:
        """One worker after the other, until nothing is left to do or none can begin."""
        failed_starts = 0
        while not self._stopping.is_set():
            worker = self._makers[name]()
            with self._lock:
                self._alive[name] = worker
            try:
                identity = self._begin(name, worker)
                failed_starts = 0
                if self._work(number, name, identity, worker):
                    return
            except Refused as error:  # another one would say the same
                self._give_up(name, str(error))
                return
            except Lost as error:
                failed_starts += 1
                if failed_starts >= STARTS:
                    self._give_up(name, f"{STARTS} workers could not begin, the last: {error}")
                    return
            finally:
                worker.end()

    def _begin(self, name: str, worker: Worker) -> str:
        """The identity of a new worker's device."""
        start = time.monotonic()
        try:
            hello = worker.begin()
            identity, kind = str(hello["identity"]), str(hello["kind"])
            before = self._believed(worker, self._before.get(identity, {}))
        finally:
            self._uses[name].start_s += time.monotonic() - start
        bounded = {task: self._bounded(result) for task, result in before.items()}
        resumed = self._queue.join(identity, kind, bounded, hello.get("least_pace_s"))
        with self._lock:
            self._results.update(((task, identity), before[task]) for task, _ in resumed)
        self._tell("ready", name, identity)
        if resumed:
            self._tell("resumed", len(resumed))
        return identity

    def _believed(self, worker: Worker, before: Mapping[Task, Result]) -> dict[Task, Result]:
        """Of what an earlier run has done, what holds today, and what its workers died of. What failed otherwise is
        left to the journal of failures."""
        deadly = {task: result for task, result in before.items() if result.deadly and not self._retry}
        asked = [(task, result) for task, result in before.items() if result.key is not None]
        entries = [{"target": task.target, "key": result.key} for task, result in asked]
        held = worker.still_known(entries) if entries else []
        return {**deadly, **{asked[number][0]: replace(asked[number][1], fate="known") for number in held}}

    def _bounded(self, result: Result) -> Result:
        """It is looked at no more often than is wanted."""
        wanted = max(1, FEWEST - len(result.visits))  # fewer processes decide nothing
        more = result.looks < self._looks
        return replace(result, again=result.again and more, open=result.open and result.looks + wanted <= self._looks)

    def _work(self, number: int, name: str, identity: str, worker: Worker) -> bool:
        """Give a worker tasks until there are none; `False` when it is lost."""
        while True:
            task = self._queue.take(number, identity)
            if task is None:
                return True
            before = self._results.get((task, identity))
            if before is not None:
                if not self._queue.is_doubtful(before):  # what shares its key was looked at meanwhile
                    self._queue.done(number, identity, _left(before))
                    continue
                before = replace(before, least_pace_s=self._queue.least_pace_s(identity))
            self._tell("began", name, task)
            start = time.monotonic()
            try:
                said: dict[str, Any] = dict(worker.tune(task, before, lambda said: self._tell("heard", name, said)))
                if GONE in said:
                    raise Lost(str(said[GONE]))
                if before is not None and STILL_SHARED in said:
                    self._put_off(number, name, task, before, float(said[STILL_SHARED]), time.monotonic() - start)
                    continue
            except Refused as error:
                said = {"fate": "failed", "device": identity, "error": str(error)}
            except Lost as error:
                self._uses[name].lose(time.monotonic() - start)
                self._lost(number, name, identity, task, error)
                return self._stopping.is_set()
            for warning in said.pop("warnings", []):
                self._tell("trouble", name, warning)
            result = Result.from_data(said)
            self._uses[name].ended(result, time.monotonic() - start, anew=before is None)
            self._keep(name, task, result.row)
            if before is not None and result.fate == "failed":  # it may come to something when the sweep goes on
                self._tell("trouble", name, f"{task.title}: {result.error}; {STANDS}")
                result = _left(before)
            else:
                result = result if before is None else result.after(before)
                self._note(name, task, result)
            self._queue.done(number, identity, self._bounded(result))
            if before is None:
                self._tell("ended", name, task, result)
            else:
                self._tell("looked", name, task, result, self._queue.to_look(identity))

    def _put_off(self, number: int, name: str, task: Task, before: Result, waited_s: float, took_s: float) -> None:
        """A worker's core was never quiet: what was chosen stands, until the sweep goes on."""
        waited = replace(before, **{**dict.fromkeys(SECONDS, 0.0), "wait_s": waited_s})
        self._uses[name].ended(waited, took_s, anew=False)
        self._queue.done(number, before.device, _left(before))
        self._tell("put_off", name, task, self._queue.to_look(before.device))

    def _lost(self, number: int, name: str, identity: str, task: Task, error: Lost) -> None:
        """A worker died, of its task perhaps."""
        self._keep(name, task, error.row)
        if self._stopping.is_set():
            return
        looked = (task, identity) in self._results
        self._tell("trouble", name, f"{task.title}: the worker is lost: {error}{f'; {STANDS}' if looked else ''}")
        if self._queue.lost(number, identity) is not None:
            why = f"{TRIES} workers were lost with it, the last: {error}"
            result = Result("failed", identity, error=why, deadly=True)
            self._note(name, task, result)
            self._tell("ended", name, task, result)

    def _keep(self, name: str, task: Task, row: str) -> None:
        """Into the driver's store, what a worker has found that has another one, or could not write its own."""
        if not row:
            return
        try:
            add_text(self._store, row)
        except StoreError as error:
            with self._lock:
                first = not self._unkept
                self._unkept[task] = str(error)
            if first:  # the next ones have the same to say
                self._tell("trouble", name, str(error))
        else:
            with self._lock:
                self._unkept.pop(task, None)  # each time all that is known of it comes

    def _note(self, name: str, task: Task, result: Result) -> None:
        if result.fate == "elsewhere":
            return
        with self._lock:
            self._results[task, result.device] = replace(result, row="")
            alike = [] if result.looks == 1 else self._of_the_same_key(task, result)
        for other, now in [(task, result), *alike]:
            try:
                self._done.add(other, now)
            except OSError as error:
                self._tell("trouble", name, f"{self._done.path} cannot be written ({error}); --resume will look again")

    def _of_the_same_key(self, task: Task, result: Result) -> list[tuple[Task, Result]]:
        """What else, of the same bucket say, has the Choice that was looked at again: it has this one now."""
        now: dict[str, Any] = {name: getattr(result, name) for name in _OF_THE_KEY}
        found = [
            (other, replace(old, **now)) for (other, device), old in self._results.items()
            if other != task and device == result.device and old.key == result.key
        ]  # fmt: skip
        self._results.update(((other, result.device), changed) for other, changed in found)
        return found

    def _give_up(self, name: str, why: str) -> None:
        with self._lock:
            self._gone[name] = why
        if not self._stopping.is_set():
            self._tell("trouble", name, f"given up: {why}")

    def _tell(self, what: str, *args: Any) -> None:
        with self._lock:
            getattr(self._watcher, what)(*args)

    # --- the end ---------------------------------------------------------------------------------

    def _left(self, interrupted: bool) -> list[tuple[Task, str]]:
        if interrupted:
            return [(task, "interrupted") for task in self._queue.unfinished()]
        kinds, gone = self._queue.kinds, "; ".join(f"{name}: {why}" for name, why in self._gone.items())
        return [
            (task, gone or f"it runs on none of the devices of this sweep ({', '.join(sorted(kinds))})")
            for task in self._queue.unfinished()
        ]
