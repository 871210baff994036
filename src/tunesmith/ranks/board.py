"""`Board`: one Key's corner of a job's key-value store; `Lease`: who is at work there, and whether they still live."""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

from tunesmith.errors import NoAgreement
from tunesmith.store.place import host

#: Between two signs of life of whoever holds a lease.
BEAT_S = 1.0
#: Without a sign of life for so long, a holder counts as dead. Longer than a process is ever held up by a compiler that
#: does not let other threads run; a holder that was only slow finds out, and the first Choice counts all the same.
LEASE_S = 8.0
#: What a lease says that nobody holds any more.
FREE = "free"


class KeyValueStore(Protocol):
    """What is needed of a `torch.distributed.Store`. No call of these waits for another rank."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def get(self, key: str, /) -> bytes: ...
    def set(self, key: str, value: str, /) -> Any: ...
    def add(self, key: str, amount: int, /) -> int: ...


def default_store() -> KeyValueStore:
    """The store of the process group that the program has initialised.

    Raises:
        NoAgreement: when there is none.
    """
    distributed = cast(Any, sys.modules.get("torch.distributed"))
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        raise NoAgreement(
            "ranks are to agree, and there is no torch.distributed process group: call init_process_group before the "
            "first tuned kernel, or give agree(…) a store=torch.distributed.TCPStore(…)"
        )
    return distributed.distributed_c10d._get_default_store()


def who() -> str:
    """This rank, for people."""
    distributed = cast(Any, sys.modules.get("torch.distributed"))
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return f"rank {distributed.get_rank()}"
    return f"process {os.getpid()} of {host()}"


class Board:
    """Names and values under one prefix of a store.

    Raises:
        NoAgreement: by every method, when the store does not answer (its host has died, or the job was torn down).
    """

    def __init__(self, store: KeyValueStore, prefix: str) -> None:
        self._prefix = prefix
        with _answering():
            self._store = _own_connection(store)

    @property
    def place(self) -> tuple[int, str]:
        """What tells it from other boards of this process."""
        return id(self._store), self._prefix

    def first(self, name: str, value: str) -> str:
        """Set a value unless there is one; what is there now."""
        with _answering():
            return self._store.compare_set(self._prefix + name, "", value).decode()

    def swap(self, name: str, expected: str | None, value: str) -> bool:
        """Set a value if the present one (`None`: none yet) is as expected; whether it was. Values are never reused."""
        with _answering():
            return self._store.compare_set(self._prefix + name, expected or "", value).decode() == value

    def read(self, name: str) -> str | None:
        """A value, `None` where there is none yet."""
        with _answering():
            # `get` alone would wait for somebody to set it, and keep this process's other threads off the store.
            known = self._store.check([self._prefix + name])
            return self._store.get(self._prefix + name).decode() if known else None

    def write(self, name: str, value: str) -> None:
        """Set a value that nobody else sets."""
        with _answering():
            self._store.set(self._prefix + name, value)

    def count(self, name: str, more: int = 1) -> int:
        """A counter, after so many were added; all ranks get different numbers from 1."""
        with _answering():
            return self._store.add(self._prefix + name, more)


#: by store, as long as the job keeps that (held longer, its port would be): the process that connected, and how
_connections = WeakKeyDictionary[KeyValueStore, "tuple[int, KeyValueStore]"]()


def _own_connection(store: KeyValueStore) -> KeyValueStore:
    """The store by a connection that no other thread's wait blocks, where it can be had (torch 2.5 and later)."""
    pid, own = _connections.get(store, (0, store))
    if pid != os.getpid():  # the first, or the parent's before a fork
        store.check(["tunesmith"])  # fails at once where the store is gone; a new connection to it is tried for long
        clone = getattr(store, "clone", None)
        if clone is None:
            return store
        own = clone()
        _connections[store] = os.getpid(), own
    return own


@contextmanager
def _answering() -> Generator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's DistError among them
        text = str(error).partition("\n")[0]
        raise NoAgreement(
            f"the job's key-value store does not answer ({type(error).__name__}: {text}): ranks cannot agree. The "
            "process that serves it, mostly rank 0, may have died"
        ) from error


class Lease:
    """Says that somebody is at work, and goes on saying it from a thread of its own until the work is done."""

    def __init__(self, board: Board, name: str) -> None:
        self._board, self._name = board, name
        self._owner = f"{who()} {secrets.token_hex(8)}"
        self._value = f"{self._owner} 0"
        self._done = threading.Event()

    def take(self, seen: str | None) -> bool:
        """Take it from whoever was seen to hold it (`None`: nobody ever); whether that worked."""
        return self._board.swap(self._name, seen, self._value)

    @contextmanager
    def held(self) -> Generator[None]:
        """While this scope lasts, it is renewed; then it is free."""
        beat = threading.Thread(target=self._beat, name="tunesmith-lease", daemon=True)
        beat.start()
        try:
            yield
        finally:
            self._done.set()
            beat.join()
            self._board.swap(self._name, self._value, f"{FREE} {secrets.token_hex(8)}")

    def _beat(self) -> None:
        number = 0
        while not self._done.wait(BEAT_S):
            number += 1
            value = f"{self._owner} {number}"
            try:
                if not self._board.swap(self._name, self._value, value):
                    return  # taken over; what was found here counts if it is the first
            except NoAgreement:
                return  # who works here will find out when it has something to say
            self._value = value


class Watch:
    """Notices that a lease is not renewed any more, by this process's own clock alone."""

    def __init__(self) -> None:
        self._seen: str | None = None
        self._since = monotonic()

    def may_be_taken(self, value: str | None) -> bool:
        """Whether nobody is at work: nobody ever was, it was given back, or its holder shows no sign of life."""
        if value != self._seen:
            self._seen, self._since = value, monotonic()
        return value is None or value.startswith(FREE) or monotonic() - self._since > LEASE_S
