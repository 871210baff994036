"""What a person asks of a store: what is in it, and to drop what is no longer used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any

from tunesmith.errors import BadInput, StoreError
from tunesmith.store import locks, rows, schema
from tunesmith.store.database import Database, Trouble, present
from tunesmith.store.rows import BadRow

if TYPE_CHECKING:
    from tunesmith.store.store import Store

DAY_S = 86_400.0
#: the folder beside the store in which the cc backend keeps what it compiled
COMPILED = "cc"


def info(store: Store) -> dict[str, Any]:
    """What is in a store's own file, in which state it is, and what is read beside it."""
    own: dict[str, Any] = {}
    beside: list[dict[str, Any]] = []
    for mine, database in store.sources():
        try:
            found = database.ask(_count)
        except Trouble as trouble:
            found = {"problem": trouble.what}
        if mine and database.path == store.path:
            own = found
        else:
            beside.append({"path": str(database.path), **found})
    return {
        "path": str(store.path),
        "format": own.get("format", schema.FORMAT),
        "schema": own.get("schema"),
        "size_bytes": _size(store.path),
        "journal": own.get("journal"),
        "network": store.network,
        "kernels": own.get("kernels", {}),
        "problem": own.get("problem"),
        "uncached": store.uncached,
        "layers": [str(layer) for layer in store.layers],
        "beside": beside,
    }


def _count(connection: Connection) -> dict[str, Any]:
    meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    kernels: dict[str, dict[str, int]] = {}
    for what in ("keys", "trials", "choices"):
        join = "" if what == "keys" else f"JOIN {what} ON {what}.key = keys.id"
        count = f"SELECT kernel, COUNT(*) FROM keys {join} GROUP BY kernel ORDER BY kernel"
        for kernel, number in connection.execute(count).fetchall():
            kernels.setdefault(str(kernel), {"keys": 0, "trials": 0, "choices": 0})[what] = number
    journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
    return {"format": meta.get("format"), "schema": int(meta["schema"]), "journal": journal, "kernels": kernels}


def _size(path: Path) -> int:
    """Of a file with its logs, in bytes; what is not there or can't be reached takes none."""
    taken = 0
    for suffix in ("", "-wal", "-journal"):
        with suppress(OSError):  # a log may go at any time; of a file that can't be reached, `ask` says why
            taken += path.with_name(path.name + suffix).stat().st_size
    return taken


def gc(store: Store, older_than_days: float, now: float) -> dict[str, int]:
    """Drop what was not used since, and history that is superseded.

    Raises:
        StoreError: when the store cannot be written.
        BadInput: for a negative number of days.
    """
    if not older_than_days >= 0:
        raise BadInput(f"older than {older_than_days} days; good values: a number of at least 0")
    if store.uncached is not None:
        raise StoreError(f"the store cannot be cleaned up: {store.path}: {store.uncached}")
    if store.folder.exists() and not store.folder.is_dir():
        raise StoreError(f"the store cannot be cleaned up: {store.folder} is a file, not a folder")
    before, dropped = now - older_than_days * DAY_S, {"keys": 0, "choices": 0, "trials": 0}
    size = _size(store.path)
    try:
        if present(store.path):
            bad = store.bad_row(store.path)
            dropped = store.write(lambda connection: _drop(connection, before, bad))
            _vacuum(store)
    except Trouble as trouble:
        raise StoreError(f"the store cannot be cleaned up: {trouble}") from trouble
    return {
        **dropped,
        "artifacts": sum(_delete(path) for path in _unused(store.folder / COMPILED, before)),
        "moved_aside": sum(_delete(path) for path in _moved_aside(store.path) if _last_use(path) < before),
        "locks": locks.remove_unused(store.folder / "locks", before),
        "bytes_freed": max(0, size - _size(store.path)),
    }


def _drop(connection: Connection, before: float, bad: BadRow) -> dict[str, int]:
    old = "SELECT id FROM keys WHERE touched < ?"
    count = {
        "keys": connection.execute(f"SELECT COUNT(*) FROM ({old})", (before,)).fetchone()[0],
        "choices": connection.execute(f"DELETE FROM choices WHERE key IN ({old})", (before,)).rowcount,
        "trials": connection.execute(f"DELETE FROM trials WHERE key IN ({old})", (before,)).rowcount,
    }
    connection.execute("DELETE FROM keys WHERE touched < ?", (before,))
    for (key,) in connection.execute("SELECT DISTINCT key FROM trials").fetchall():
        history = rows.read_trials(connection, key, bad)
        kept = {id(trial) for trial in rows.newest(trial for _, trial in history).values()}
        superseded = [(number,) for number, trial in history if id(trial) not in kept]
        connection.executemany("DELETE FROM trials WHERE id = ?", superseded)
        count["trials"] += len(superseded)
    return count


def _vacuum(store: Store) -> None:
    Database(store.path, "rollback" if store.network else "wal").ask(_shrink)


def _shrink(connection: Connection) -> None:
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # else the smaller file stays in the log


def _unused(folder: Path, before: float) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and _last_use(path) < before:
            yield path


def _moved_aside(path: Path) -> list[Path]:
    return [aside for aside in path.parent.glob(f"{path.name}.corrupt-*") if aside.is_file()]


def _last_use(path: Path) -> float:
    """Read or written last. File systems note reads once a day at best, which is enough here."""
    try:
        status = os.stat(path)
    except OSError:
        return float("inf")  # gone meanwhile
    return max(status.st_mtime, status.st_atime)


def _delete(path: Path) -> int:
    try:
        path.unlink()
    except OSError:
        return 0  # in use (Windows) or gone: it is not counted
    return 1
