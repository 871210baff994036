"""What a sweep asks of a worker, wherever it runs; and `LocalWorker`, a child process on this host."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tunesmith.children import Child, Program, Stopped
from tunesmith.core.outcome import Failed
from tunesmith.options import options
from tunesmith.remote import OPEN_S
from tunesmith.store import Store
from tunesmith.store.place import host
from tunesmith.sweep.devices import Place
from tunesmith.sweep.task import Result, Task

#: How long a worker that is told to stop may take to put away what it has measured.
STOP_S = 10.0
_MODULE = "tunesmith.sweep.work"


class Lost(Exception):
    """A worker is no more, or does not answer any more; the message says what became of it.

    Args:
        row: what its store has of the problem it had in hand, where that is not the driver's and it could still say so.
    """

    def __init__(self, message: str, row: str = "") -> None:
        super().__init__(message)
        self.row = row


class Refused(Exception):
    """A worker lives and says that it can't do what it is for; the message is its own."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What every worker of a sweep is told.

    Attributes:
        retry: whether what failed before is tried again.
        adviser: `module:attribute` of an `Adviser`, or empty.
        store: (host, folder) of the driver's store.
        simulates: the identity of a device that recordings stand in for, else empty.
    """

    retry: bool = False
    adviser: str = ""
    store: tuple[str, str] = ("", "")
    simulates: str = ""

    @staticmethod
    def of(store: Store, retry: bool = False, adviser: str = "", simulates: str = "") -> Orders:
        return Orders(retry, adviser, (host(), os.path.realpath(store.folder)), simulates)


class Worker(Protocol):
    """Does one task after the other on one device. One thread uses it; any may interrupt it.

    Every method but the last two raises `Lost` when it is no more, and `Refused` for what it says is impossible.
    """

    def begin(self) -> Mapping[str, Any]:
        """Start it; what `work.begin` returns."""
        ...

    def still_known(self, entries: Sequence[Mapping[str, Any]]) -> list[int]:
        """As of `work`."""
        ...

    def tune(self, task: Task, before: Result | None, heard: Callable[[Any], object]) -> Mapping[str, Any]:
        """As of `work`; `heard` is told how far it is."""
        ...

    def interrupt(self) -> None:
        """It keeps what it has measured, and ends within `STOP_S`."""
        ...

    def end(self) -> None:
        """Nothing is left of it."""
        ...


class LocalWorker:
    """A child process of this one. It dies with the thread that begins it.

    Args:
        place: its device. jobs: compilers at once.
    """

    def __init__(self, place: Place, orders: Orders, jobs: int) -> None:
        self._place, self._orders, self._jobs = place, orders, jobs
        self._child: Child | None = None
        self._stop = threading.Event()

    def begin(self) -> Mapping[str, Any]:
        environ = {**os.environ, **self._place.environ(self._jobs)}
        if not self._place.gpu and not self._place.cores:
            environ = dict(os.environ)
        try:
            self._child = Child(Program("worker", environ))
        except OSError as error:  # no process can be started
            raise Lost(f"no process can be started: {error}") from error
        asked = {"cores": list(self._place.cores), **asdict(self._orders)}
        return self._call("begin", asked, OPEN_S)

    def still_known(self, entries: Sequence[Mapping[str, Any]]) -> list[int]:
        return self._call("still_known", {"entries": list(entries)}, OPEN_S)

    def tune(self, task: Task, before: Result | None, heard: Callable[[Any], object]) -> Mapping[str, Any]:
        # between two words of a search may lie what is longest of: inputs that are made, another search of the key
        request = {"task": asdict(task), "before": before and asdict(before)}
        return self._call("tune", request, OPEN_S + options().wait_s, heard)

    def _call(
        self, function: str, request: Mapping[str, Any], silent_s: float, heard: Callable[[Any], object] | None = None
    ) -> Any:
        if self._child is None:
            raise Lost("it was not begun")
        try:
            answer = self._child.call(f"{_MODULE}:{function}", request, silent_s, self._stop, heard or _ignored)
        except Stopped:
            raise Lost("it was told to stop") from None
        assert answer is not None  # a child of this kind never ends for being idle
        if answer.failed is None:
            return answer.value
        self._raise(answer.failed)

    def _raise(self, failed: Failed) -> None:
        assert self._child is not None
        if self._child.is_alive:
            raise Refused(failed.reason)
        raise Lost(failed.reason)

    def interrupt(self) -> None:
        if self._child is None:
            self._stop.set()
            return
        self._child.interrupt()
        last_call = threading.Timer(STOP_S, self._stop.set)
        last_call.daemon = True  # nobody waits for it once the worker is gone
        last_call.start()

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


def _ignored(_: Any) -> None:
    """Nobody wants to hear it."""
