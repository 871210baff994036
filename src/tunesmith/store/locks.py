"""Who may search a key, and who may measure on a device: locks between threads and between processes.

The order, from outside in: claim of a key, lock of a device, transaction of a file. A thread that holds a claim or a
device never *waits* for another claim, and one that holds a device never waits for another device; so nobody waits
in a circle, whatever kernels call each other while they are measured. All are released by the operating system when
the process that holds them is killed.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from tunesmith.store.place import host

if TYPE_CHECKING:
    from filelock import BaseFileLock


#: How long a thread waits for another of its own process that measures: a kernel that is being measured may itself be
#: waiting for this thread (autograd runs backward passes in threads of its own), and nobody would ever end that.
OTHER_THREAD_S = 20.0


class Exclusion:
    """One lock file: excludes other threads and other processes, and is re-entrant within a thread.

    Args:
        writable: without, no file is touched and only threads of this process exclude each other.
        complain: told when the file cannot be locked; threads still exclude each other then.
    """

    def __init__(self, path: Path, writable: bool, complain: Callable[[str], None]) -> None:
        self._path, self._writable, self._complain = path, writable, complain
        self._threads = threading.RLock()
        self._depth = 0
        self._pid = os.getpid()
        self._file: BaseFileLock | None = None

    def acquire(self, wait_s: float | None, threads_s: float = threading.TIMEOUT_MAX) -> bool:
        """Wait for it so long (`None`: for ever), for other threads of this process `threads_s`; whether it is held."""
        end = None if wait_s is None else monotonic() + wait_s
        if not self._threads.acquire(timeout=min(threads_s if wait_s is None else wait_s, threads_s)):
            return False
        try:
            if self._depth == 0 and not self._acquire_file(None if end is None else max(0.0, end - monotonic())):
                self._threads.release()
                return False
        except BaseException:
            self._threads.release()
            raise
        self._depth += 1
        return True

    def release(self) -> None:
        """Give it back, once for each `acquire`."""
        if self._pid != os.getpid():
            return  # inherited through a fork: it is the parent's to release
        self._depth -= 1
        try:
            if self._depth == 0 and self._file is not None:
                self._file.release()
        finally:
            self._threads.release()

    def _acquire_file(self, wait_s: float | None) -> bool:
        if not self._writable:
            return True
        from filelock import FileLock, Timeout  # 50 ms, and a call that finds its Choice never needs it

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._file is None:
                self._file = FileLock(str(self._path), thread_local=False)
            self._file.acquire(timeout=-1 if wait_s is None else wait_s)  # pyright: ignore[reportUnknownMemberType]
            os.utime(self._path)  # when it was last used, for `gc`
        except Timeout:
            return False
        except (OSError, NotImplementedError) as error:
            self._complain(f"{type(error).__name__}: {error}")
        return True


# --- one Exclusion for a path in each process --------------------------------------------------------

_exclusions = WeakValueDictionary[Path, Exclusion]()
_guard = threading.Lock()


class _Held(threading.local):
    """What this thread holds."""

    def __init__(self) -> None:
        self.claims: list[Path] = []
        self.devices: list[Path] = []


_held = _Held()


def _forget_after_fork() -> None:
    global _exclusions, _guard, _held
    _exclusions, _guard, _held = WeakValueDictionary[Path, Exclusion](), threading.Lock(), _Held()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


class Locks:
    """The locks of one store.

    Args:
        folder: of the lock files.
        writable, complain: as for `Exclusion`.
    """

    def __init__(self, folder: Path, writable: bool, complain: Callable[[str], None]) -> None:
        self._folder, self._writable, self._complain = folder, writable, complain

    def _exclusion(self, name: str, folder: Path | None = None) -> Exclusion:
        """The lock of a file: the same one for all threads of this process."""
        path = (folder or self._folder) / name
        with _guard:
            found = _exclusions.get(path)
            if found is None:
                found = _exclusions[path] = Exclusion(path, self._writable, self._complain)
            return found

    @contextmanager
    def claim(self, digest: str, wait_s: float) -> Generator[bool]:
        """Whether this thread alone may search the key. A thread that is searching it already is told no."""
        held = _held
        lock = self._exclusion(f"claim-{digest}.lock")
        name = self._folder / digest
        if name in held.claims or not lock.acquire(0.0 if held.claims or held.devices else wait_s):
            yield False
            return
        held.claims.append(name)
        try:
            yield True
        finally:
            held.claims.remove(name)
            lock.release()

    @contextmanager
    def devices(self, names: Sequence[str], wait_s: float | None) -> Generator[bool]:
        """Whether this thread alone measures on devices of this host, whatever store a process uses.

        They are taken in one order by everybody, so that of two who want some of the same nobody waits in a circle. A
        thread that holds some already has had its turn: for more it does not wait.
        """
        held, wanted = _held, sorted(set(names))
        mine = [self._folder / name for name in wanted]
        wait_s = 0.0 if held.devices and any(name not in held.devices for name in mine) else wait_s
        end = None if wait_s is None else monotonic() + wait_s
        with ExitStack() as taken:
            for name in wanted:
                lock = self._exclusion(device_lock_name(name), host_folder())
                if not lock.acquire(None if end is None else max(0.0, end - monotonic()), OTHER_THREAD_S):
                    taken.close()
                    yield False
                    return
                taken.callback(lock.release)
            held.devices += mine
            try:
                yield True
            finally:
                for path in mine:
                    held.devices.remove(path)

    @contextmanager
    def file(self, name: str, wait_s: float) -> Generator[bool]:
        """Whether this thread alone may rename or delete a file of the store."""
        lock = self._exclusion(name)
        if not lock.acquire(wait_s):
            yield False
            return
        try:
            yield True
        finally:
            lock.release()


def host_folder() -> Path:
    """Where locks lie that all processes of a user on this host share, whatever their stores."""
    return Path(tempfile.gettempdir()) / f"tunesmith-{os.getuid() if hasattr(os, 'getuid') else 'locks'}"


def device_lock_name(identity: str) -> str:
    """One file a host and device: hosts that share a folder do not share their devices."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", identity).strip("-")[:60]
    return f"device-{host()}-{readable}-{hashlib.sha256(identity.encode(errors='surrogatepass')).hexdigest()[:8]}.lock"


def remove_unused(folder: Path, before: float) -> int:
    """Delete lock files not used since `before` (seconds since 1970) that nobody holds; how many.

    A file is deleted by whoever holds its lock. Who opened it before and locks it after finds that it is gone, and
    opens the new one (filelock looks at the link count).
    """
    from filelock import FileLock, Timeout

    removed = 0
    for path in sorted(folder.glob("*.lock")):
        try:
            if path.stat().st_mtime >= before:
                continue
            lock = FileLock(str(path), thread_local=False)
            with lock.acquire(timeout=0):  # pyright: ignore[reportUnknownMemberType]
                path.unlink()
                removed += 1
        except (Timeout, OSError):  # in use, or gone already: not for us
            continue
    return removed
