"""One SQLite file of a store: a connection for each thread and process, and what can be wrong with a file."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar
from urllib.parse import quote

from tunesmith.store import schema

#: A writer waits so long for the others. A commit takes milliseconds, a VACUUM of a gigabyte some seconds.
BUSY_S = 30.0

#: `wal`: one's own file on a local disk. `rollback`: on a network file system. `read`: someone else's, or one's own
#: where it cannot be written
Access: TypeAlias = Literal["wal", "rollback", "read"]
T = TypeVar("T")


@dataclass(eq=False)
class Trouble(Exception):
    """A file that cannot be used: `corrupt` (one's own is moved aside), `version`, or `access` (disk, permission)."""

    kind: Literal["corrupt", "version", "access"]
    path: Path
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class _Handle:
    """A connection that is closed with its thread, and never by a process that only inherited it."""

    def __init__(self, connection: sqlite3.Connection, inode: tuple[int, int] | None) -> None:
        self.connection, self.inode, self.pid = connection, inode, os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        if getpid() == self.pid:
            self.connection.close()
        else:
            _inherited.append(self.connection)  # closing it would let go of the parent's locks


_inherited: list[sqlite3.Connection] = []


class Database:
    """One file of a store.

    Threads: any may call; each has its own connection.

    Every method raises `Trouble`, and nothing else, when the file cannot be used.
    """

    def __init__(self, path: Path, access: Access) -> None:
        self.path = path
        self.access: Access = access
        self._local = threading.local()

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """What `question` finds."""
        with self._translated():
            return question(self._connection())

    def change(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Commit all of `change`, or nothing. On return it is in the file, whatever kills this process."""
        with self._translated():
            connection = self._connection()
            with schema.transaction(connection):
                return change(connection)

    def close(self) -> None:
        """Close this thread's connection."""
        self._local.handle = None

    @property
    def inode(self) -> tuple[int, int] | None:
        """Which file this thread used or tried to use last; `None` for none."""
        return getattr(self._local, "inode", None)

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except schema.Foreign as error:
            raise Trouble("corrupt", self.path, f"not a store ({error})") from error
        except schema.OtherVersion as error:
            raise Trouble("version", self.path, str(error)) from error
        except (OSError, sqlite3.OperationalError) as error:
            raise Trouble("access", self.path, str(error)) from error
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:
                raise  # a constraint or a misuse: ours to mend
            raise Trouble("corrupt", self.path, str(error)) from error

    def _connection(self) -> sqlite3.Connection:
        """This thread's connection to the file that lies at the path now."""
        self._local.inode = inode = inode_of(self.path)
        handle: _Handle | None = getattr(self._local, "handle", None)
        if handle is None or handle.pid != os.getpid() or handle.inode != inode or inode is None:
            self._local.handle = None  # closes
            self._local.handle = handle = self._open()
        return handle.connection

    def _open(self) -> _Handle:
        if self.access == "read":
            return self._open_to_read()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = _connect(self.path, "mode=rwc")
        try:
            schema.refuse_others(connection)
            _set_journal(connection, self.access)
            schema.prepare(connection)
        except BaseException:
            connection.close()
            raise
        return _Handle(connection, inode_of(self.path))

    def _open_to_read(self) -> _Handle:
        connection = _connect(self.path, "mode=ro")
        try:
            try:
                schema.check(connection)
            except sqlite3.OperationalError as error:
                if os.access(self.path.parent, os.W_OK) or not os.access(self.path, os.R_OK):
                    raise
                # A file in WAL mode needs a shared-memory file beside it. In a folder where nobody can make one,
                # nobody writes either: so the file is read as it stands.
                connection.close()
                connection = _connect(self.path, "immutable=1")
                try:
                    schema.check(connection)
                except sqlite3.OperationalError:
                    raise error from None
        except BaseException:
            connection.close()
            raise
        return _Handle(connection, inode_of(self.path))


class MemoryDatabase(Database):
    """The same in memory, for this process alone: where results go when no file can be written."""

    def __init__(self) -> None:
        super().__init__(Path(":memory:"), "wal")
        self._one = _Handle(_connect(Path(":memory:"), "mode=memory"), None)
        schema.prepare(self._one.connection)
        self._lock = threading.RLock()  # one connection for all threads: transactions must not interleave

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            return super().ask(question)

    def change(self, change: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            return super().change(change)

    def close(self) -> None:
        """It lives as long as this object."""

    def _connection(self) -> sqlite3.Connection:
        return self._one.connection


def inode_of(path: Path) -> tuple[int, int] | None:
    """Which file lies there; `None` for none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _connect(path: Path, parameters: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?{parameters}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    connection.execute("PRAGMA foreign_keys=ON")
    return connection


def _text(raw: bytes) -> str:
    """Text that is not UTF-8 reads as empty, which is no JSON: the row is skipped like any that was tampered with."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return ""


def _set_journal(connection: sqlite3.Connection, access: Access) -> None:
    """WAL where the file system shares memory between processes, a rollback journal elsewhere.

    Synchronous NORMAL in WAL mode: what is committed survives the death of any process; a power cut may take the
    last commits, never the file. A rollback journal needs FULL for the latter.
    """
    wanted = "wal" if access == "wal" else "delete"
    end = time.monotonic() + BUSY_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != wanted:
        try:
            if connection.execute(f"PRAGMA journal_mode={wanted}").fetchone()[0] == wanted:
                break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
        if time.monotonic() > end:
            raise sqlite3.OperationalError(f"journal mode {wanted} is refused")
        time.sleep(0.01)  # others open the new file at the same time; SQLite does not wait for this lock itself
    connection.execute(f"PRAGMA synchronous={'NORMAL' if access == 'wal' else 'FULL'}")


def present(path: Path) -> bool:
    """Whether something lies at the path that has to be dealt with."""
    try:
        return inode_of(path) is not None
    except NotADirectoryError:
        return False
    except OSError:
        return True  # using it will say what is wrong


def rename_aside(path: Path) -> Path:
    """Move a broken file and its logs out of the way; where the file is now.

    Raises:
        OSError: when the folder cannot be written.
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    for suffix in ("-wal", "-shm", "-journal", ""):  # a log left beside a new file would be taken for its own
        part = path.with_name(path.name + suffix)
        if part.exists():
            os.replace(part, aside.with_name(aside.name + suffix))
    return aside
