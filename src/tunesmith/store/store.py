"""`Store`: what is known of a Key, from one's own file, other hosts' files and read-only layers."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path
from sqlite3 import Connection
from typing import Any, TypeVar

from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Failed, Measured, Trial, Untried
from tunesmith.errors import TunesmithWarning
from tunesmith.options import options
from tunesmith.store import exchange, rows, upkeep
from tunesmith.store.database import Database, MemoryDatabase, Trouble, inode_of, present, rename_aside
from tunesmith.store.locks import Locks
from tunesmith.store.place import file_name, is_network
from tunesmith.store.rows import BadRow, StoredChoice

T = TypeVar("T")
#: A Key that is used is marked so at most once in this time: `gc` thinks in days, and a look-up should not write.
TOUCH_AFTER_S = 86_400.0
#: `nearest` compares with so many Keys, those used last (10 µs each): an explanation need not see them all.
NEAREST_AMONG = 2_000
#: One process moves a broken file aside in milliseconds; who waits longer than this works uncached.
ASIDE_WAIT_S = 10.0


class Store:
    """What was measured and chosen, for all processes of a user.

    Nothing it does raises because of a file: what cannot be read is a miss, and what cannot be written is kept in
    memory for this process, with one warning. Only `gc`, `export` and `merge`, which a person asks for, raise.

    Threads and processes: any number of both, at once. After a fork, parent and child may both go on.
    """

    def __init__(
        self, folder: Path, *, read_only: bool = False, layers: Sequence[Path] = (), network: bool | None = None
    ) -> None:
        """See `open`."""
        self.folder = Path(os.path.abspath(folder))
        self.read_only, self.layers = read_only, tuple(layers)
        self.network = is_network(self.folder) if network is None else network
        self.path = self.folder / file_name(self.network)
        #: why results stay in memory; `None` while the file can be written
        self.uncached: str | None = "it was opened read-only" if read_only else None
        self._warned: dict[str, object] = {}
        self._databases: dict[Path, Database] = {}
        self._own = Database(self.path, "read" if read_only else "rollback" if self.network else "wal")
        self._memories: dict[int, MemoryDatabase] = {}  # by process: a forked child begins with nothing
        self._locks = Locks(Path(os.path.realpath(self.folder)) / "locks", not read_only, self._locks_unusable)

    @classmethod
    def open(
        cls, folder: Path, *, read_only: bool = False, layers: Sequence[Path] = (), network: bool | None = None
    ) -> Store:
        """The store of a folder. Nothing is made there before something is written.

        Args:
            read_only: write no file; what is added is kept in memory.
            layers: folders of stores that are read after one's own, and never written.
            network: whether several hosts see the folder; found out where not given.
        """
        return cls(folder, read_only=read_only, layers=layers, network=network)

    def close(self) -> None:
        """Close this thread's connections. The store can still be used: it opens them again."""
        for database in (self._own, *self._databases.values()):
            database.close()

    # --- reading ---------------------------------------------------------------------------------

    def trials(self, key: Key) -> list[Trial]:
        """One Trial for each Config ever tried, in the order in which they were first seen.

        Of a Config's Trials the newest counts. One's own come before those of other hosts and layers, except that
        what was measured elsewhere counts more than an own failure.
        """
        answers = self.read(lambda connection, bad: rows.history_of(connection, key, bad))
        best = rows.newest(trial for own, history in answers if own for trial in history)
        theirs = [trial for own, history in reversed(answers) if not own for trial in rows.newest(history).values()]
        for config, trial in rows.newest(sorted(theirs, key=lambda trial: trial.at)).items():
            if config not in best or (isinstance(trial.outcome, Measured) and isinstance(best[config].outcome, Failed)):
                best[config] = trial
        return list(best.values())

    def choice(self, key: Key) -> StoredChoice | None:
        """The Choice of just this Key: one's own, else the newest of other hosts and layers."""
        found = self.read(lambda connection, bad: rows.choice_of(connection, key, bad))
        answers = [(own, *answer) for own, answer in found if answer is not None]
        mine = [(stored, touched) for own, stored, touched in answers if own]
        if not mine:
            return max((stored for _, stored, _ in answers), key=lambda stored: stored.at, default=None)
        stored, touched = mine[-1]
        if self.uncached is None and time.time() - touched > TOUCH_AFTER_S:
            self._write(lambda c: c.execute("UPDATE keys SET touched = ? WHERE digest = ?", (time.time(), key.digest)))
        return stored

    def keys(self, kernel: str | None = None) -> list[Key]:
        """Every Key of which something is known, the last used first; their soft part is empty."""
        return self._keys(kernel, chosen=False, limit=-1)

    def nearest(self, key: Key) -> Key | None:
        """Of the Keys of the same kernel that have a Choice, another one that differs in the fewest fields.

        Among equals, the one whose dimensions are nearest as ratios, then the last used.
        """
        return next(iter(self._by_distance(key)), None)

    def near(self, key: Key, n: int, *, anywhere: bool = False, alike: bool = False) -> list[Key]:
        """The same, up to `n` of them that are of the same kind of device, or of any.

        Args:
            alike: only those of the same source, measured in the same way.
        """
        mine = (key.fingerprint, key.protocol)
        return [
            known for known in self._by_distance(key)
            if (anywhere or known.device == key.device)
            and (not alike or (known.fingerprint, known.protocol) == mine)
        ][:n]  # fmt: skip

    def _by_distance(self, key: Key) -> list[Key]:
        others = (known for known in self._keys(key.kernel, chosen=True, limit=NEAREST_AMONG) if known != key)
        return sorted(others, key=lambda known: (len(key.differences(known)), _log_distance(key, known)))

    def _keys(self, kernel: str | None, chosen: bool, limit: int) -> list[Key]:
        found = self.read(lambda connection, bad: rows.read_keys(connection, kernel, chosen, limit, bad))
        return list(dict.fromkeys(key for _, keys in reversed(found) for key in keys))

    # --- writing ---------------------------------------------------------------------------------

    def add_trials(self, key: Key, trials: Iterable[Trial], *, replace: bool = False) -> None:
        """Append Trials; when this returns they are committed. Untried ones are left out: nothing is known of them.

        Args:
            replace: a Trial of the same Config and the same `at` is the same one, of which more is known now.
        """
        new = [trial for trial in trials if not isinstance(trial.outcome, Untried)]
        if new:
            self._write(lambda c: rows.put_trials(c, rows.put_key(c, key, time.time()), new, replace))

    def put_choice(self, key: Key, choice: Choice, soft: Mapping[str, str]) -> None:
        """Set a Key's Choice, found under these versions."""
        stored = StoredChoice(choice, dict(soft), datetime.now(timezone.utc).isoformat(timespec="seconds"))
        self._write(lambda c: rows.put_choice(c, rows.put_key(c, key, time.time()), stored))

    def forget_failures(self, key: Key) -> None:
        """Drop a Key's Failed Trials: where every Config failed, the machine may have been at fault."""
        forget = "DELETE FROM trials WHERE kind = 'failed' AND key = (SELECT id FROM keys WHERE digest = ?)"
        if self.sources():
            self._write(lambda c: c.execute(forget, (key.digest,)))

    # --- locks -----------------------------------------------------------------------------------

    def claim(self, key: Key, wait_s: float) -> AbstractContextManager[bool]:
        """Single flight: whether this thread alone, of all processes, may search the key.

        False: another has been at it for more than `wait_s`. A thread that holds a claim or a device's lock never
        waits for another claim, and is told False for a key that it is searching itself.
        """
        return self._locks.claim(key.digest, wait_s)

    def device_lock(self, device: str | Sequence[str], wait_s: float | None) -> AbstractContextManager[bool]:
        """One measurement at a time on a device of this host, or on several that are one (a CPU's cores). Re-entrant
        within a thread.

        Args:
            device: its name, or those of its parts, all of which are taken.

        Yields:
            Whether it is held: False after `wait_s` in vain (`None`: no limit), and at once when this thread holds
            another device's lock, or only some of these, and this one, or another of these, is taken.
        """
        return self._locks.devices((device,) if isinstance(device, str) else device, wait_s)

    def _locks_unusable(self, what: str) -> None:
        if self.uncached is None:
            self._warn("locks", f"lock files cannot be used ({what}); only threads of this process exclude each other")

    # --- for people ------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """What is in the store and in which state it is: for `tunesmith store info`."""
        return upkeep.info(self)

    def gc(self, older_than_days: float, now: float | None = None) -> dict[str, int]:
        """Drop what was not used for so many days, and superseded history; how many of what.

        Raises:
            StoreError: when the store cannot be written.
            BadInput: for a negative number of days.
        """
        return upkeep.gc(self, older_than_days, time.time() if now is None else now)

    def export(self, path: Path) -> dict[str, int]:
        """Write all that is known to one JSON file, whole or not at all; how many of what.

        Raises:
            StoreError: naming the file, when it cannot be written.
        """
        return exchange.export(self, path)

    def merge(self, path: Path) -> dict[str, int]:
        """Add what an export or another store's file knows. What is here stays; doing it twice adds nothing.

        Returns:
            How many keys, choices and trials were added.

        Raises:
            StoreError: naming the file and what is wrong with it, or that this store cannot be written.
        """
        return exchange.merge(self, path)

    # --- files -----------------------------------------------------------------------------------

    def sources(self) -> list[tuple[bool, Database]]:
        """What is read, the weakest first: layers, other hosts' files, one's own, memory; each marked own or not."""
        others: list[Path] = []
        for folder in (*reversed(self.layers), self.folder):
            others += [path for path in self._store_files(folder) if path != self.path]
        found = [(False, self._databases.setdefault(path, Database(path, "read"))) for path in others]
        if present(self.path):
            found.append((True, self._own))
        if os.getpid() in self._memories:
            found.append((True, self._memories[os.getpid()]))
        return found

    def _store_files(self, folder: Path) -> list[Path]:
        try:
            names = os.listdir(folder)
        except OSError as error:
            if folder != self.folder:  # one's own may not be there yet, or complains when it is used
                self._warn(f"unreadable {folder}", f"the layer {folder} cannot be read ({error}); it is left out")
            return []
        return [folder / name for name in sorted(names) if name.startswith("store") and name.endswith(".sqlite")]

    def write(self, change: Callable[[Connection], T]) -> T:
        """Commit a change to one's own file.

        Raises:
            Trouble: when it cannot be written.
        """
        if self.uncached is not None:
            raise Trouble("access", self.path, self.uncached)
        try:
            return self._own.change(change)
        except Trouble as trouble:
            if trouble.kind != "corrupt" or not self._move_aside(trouble):
                raise
        return self._own.change(change)

    def _write(self, change: Callable[[Connection], T]) -> T:
        """Commit a change to one's own file, or where that is impossible to memory."""
        if self.uncached is None:
            try:
                return self.write(change)
            except Trouble as trouble:
                self._work_uncached(trouble)
        memory = self._memories.get(os.getpid()) or self._memories.setdefault(os.getpid(), MemoryDatabase())
        return memory.change(change)

    def read(self, question: Callable[[Connection, BadRow], T]) -> list[tuple[bool, T]]:
        """The answers of all sources that can be read, the weakest first, and whether each is one's own."""
        answers: list[tuple[bool, T]] = []
        for own, source in self.sources():
            try:
                answers.append((own, self._ask(source, question)))
            except Trouble as trouble:
                if not own or self.read_only:
                    self._warn(f"unreadable {source.path}", f"{trouble}; it is left out")
                elif self.uncached is None and not (trouble.kind == "corrupt" and self._move_aside(trouble)):
                    self._work_uncached(trouble)
                    answers += self._last_try(question)
        return answers

    def _ask(self, source: Database, question: Callable[[Connection, BadRow], T]) -> T:
        bad = self.bad_row(source.path)
        return source.ask(lambda connection: question(connection, bad))

    def _last_try(self, question: Callable[[Connection, BadRow], T]) -> list[tuple[bool, T]]:
        """What one's own file says when it is opened for reading only, if it can be."""
        try:
            return [(True, self._ask(self._own, question))]
        except Trouble:
            return []  # the warning has been given

    def bad_row(self, path: Path) -> BadRow:
        """What is told of a row that cannot be used: one warning for a file."""
        return lambda what: self._warn(f"row {path}", f"{path}: {what}; such rows are skipped")

    def _work_uncached(self, trouble: Trouble) -> None:
        self.uncached = trouble.what
        self._own.close()
        self._own = Database(self.path, "read")
        self._warn("uncached", f"{trouble}; results are kept in memory for this process alone")

    def _move_aside(self, trouble: Trouble) -> bool:
        """Rename a broken file so that a new one can begin; whether it is out of the way, by us or another process."""
        broken = self._own.inode
        self._own.close()
        with self._locks.file("store.lock", ASIDE_WAIT_S) as held:
            try:
                if not held or broken is None:
                    return False
                if inode_of(self.path) != broken:
                    return True
                aside = rename_aside(self.path)
            except OSError:
                return False  # the caller reports the trouble itself
        self._warn(f"aside {aside}", f"{trouble}; it was moved to {aside.name}, and a new store is begun")
        return True

    def _warn(self, topic: str, message: str) -> None:
        """One warning for a topic, whichever thread is first."""
        token = object()
        if self._warned.setdefault(topic, token) is token:
            warnings.warn(f"tunesmith's store: {message}", TunesmithWarning, stacklevel=4)


# --- one for the process -----------------------------------------------------------------------------

_default: dict[tuple[object, ...], Store] = {}


def default_store() -> Store:
    """The store that `options()` names, one object for a process."""
    asked = options()
    name = (asked.cache_dir, asked.read_only, asked.store_layers, os.getpid())
    found = _default.get(name)
    if found is None:
        found = _default.setdefault(
            name, Store.open(asked.cache_dir, read_only=asked.read_only, layers=asked.store_layers)
        )
    return found


def _log_distance(key: Key, other: Key) -> float:
    """How far apart the dimensions of two Keys are: the sum of the logarithms of their ratios."""
    mine, known = key.problem.dims, other.problem.dims
    return math.fsum(abs(math.log((abs(mine[name]) + 1) / (abs(known[name]) + 1))) for name in mine if name in known)
