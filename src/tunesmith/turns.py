"""`Turns`: in one process whoever times a kernel and whoever works beside take turns, as Python has one lock.

A thread that waits for Python's lock between two events of the GPU times its own waiting: up to 5 ms, the switch
interval, which is a hundred launches of a small kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager


class Turns:
    """Of one search. Whoever times goes first; whoever works beside waits for the end of a sample."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nobody_times = threading.Event()
        self._nobody_times.set()

    @contextmanager
    def timing(self) -> Generator[None]:
        """Within this scope nobody works beside. Waits for one piece of work at most, whatever else is in line."""
        self._nobody_times.clear()
        try:
            with self._lock:
                yield
        finally:
            self._nobody_times.set()

    @contextmanager
    def beside(self) -> Generator[None]:
        """A piece of work: some milliseconds of Python."""
        self._nobody_times.wait()
        with self._lock:
            yield

    @contextmanager
    def at_once(self) -> Generator[bool]:
        """The same for work that can be left out: whether it is this thread's turn. Never waits."""
        mine = self._lock.acquire(blocking=False)
        try:
            yield mine
        finally:
            if mine:
                self._lock.release()
