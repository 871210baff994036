"""The tables of a store's file, their version, and the way from older versions to this one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

FORMAT = "tunesmith-store/1"
#: Counts migrations. A reader of version N reads N alone: older files are migrated, newer ones left as they are.
VERSION = 1

#: What every file holds. `keys.data` is the Key's hard part; `trials` keeps history, the newest row last.
_CREATE = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT NOT NULL UNIQUE, value TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS keys (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, kernel TEXT NOT NULL, data TEXT NOT NULL,
        touched REAL NOT NULL DEFAULT 0)""",
    """CREATE TABLE IF NOT EXISTS trials (
        id INTEGER PRIMARY KEY, key INTEGER NOT NULL REFERENCES keys(id) ON DELETE CASCADE,
        kind TEXT NOT NULL, config TEXT NOT NULL, at TEXT NOT NULL, data TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS trials_of_key ON trials (key)",
    """CREATE TABLE IF NOT EXISTS choices (
        key INTEGER PRIMARY KEY REFERENCES keys(id) ON DELETE CASCADE,
        at TEXT NOT NULL, soft TEXT NOT NULL, data TEXT NOT NULL)""",
)
#: Compiled when a file is opened: a table or a column that is missing shows then, not in the middle of a call.
_PROBES = (
    "SELECT id, digest, kernel, data, touched FROM keys LIMIT 0",
    "SELECT id, key, kind, config, at, data FROM trials LIMIT 0",
    "SELECT key, at, soft, data FROM choices LIMIT 0",
)


def _add_date_of_last_use(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE keys ADD COLUMN touched REAL NOT NULL DEFAULT 0")
    connection.execute("UPDATE keys SET touched = CAST(strftime('%s', 'now') AS REAL)")  # as if used just now


#: version → the step to the next one. A step runs in a transaction, and is kept for ever.
MIGRATIONS: Mapping[int, Callable[[sqlite3.Connection], None]] = {0: _add_date_of_last_use}


class Foreign(Exception):
    """A database, and not one of ours."""


class OtherVersion(Exception):
    """A store of a schema version that cannot be used as it is."""


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """All that is executed within, or none of it; the right to write is taken at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back when the disk is full
            connection.execute("ROLLBACK")
        raise


def refuse_others(connection: sqlite3.Connection) -> None:
    """Look before anything is changed, the journal included.

    Raises:
        Foreign: for a database that is not a store.
        OtherVersion: for a store of a newer version.
    """
    version = _version(connection)
    if version is not None and version > VERSION:
        raise OtherVersion(f"schema version {version}, this tunesmith knows {VERSION} and older")


def prepare(connection: sqlite3.Connection) -> None:
    """Make a writable file's tables, or bring them to this version.

    Raises:
        Foreign, OtherVersion: as `refuse_others`; the file is left as it is.
        sqlite3.Error: when it cannot be read or written.
    """
    if _version(connection) != VERSION:
        with transaction(connection):
            refuse_others(connection)
            version = _version(connection)  # another process may have been faster
            if version is None:
                _create(connection)
            else:
                for step in range(version, VERSION):
                    MIGRATIONS[step](connection)
                connection.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (str(VERSION),))
    _probe(connection)


def check(connection: sqlite3.Connection) -> None:
    """Say whether a file that may not be written can be read.

    Raises:
        Foreign: for a database that is not a store, and for an empty one.
        OtherVersion: for a store of an older or newer version.
    """
    version = _version(connection)
    if version is None:
        raise Foreign("an empty database")
    if version != VERSION:
        hint = "" if version > VERSION else "; opened once with write access it is migrated"
        raise OtherVersion(f"schema version {version}, this tunesmith reads {VERSION}{hint}")
    _probe(connection)


def _create(connection: sqlite3.Connection) -> None:
    for statement in _CREATE:
        connection.execute(statement)
    connection.executemany(
        "INSERT INTO meta (name, value) VALUES (?, ?)", [("format", FORMAT), ("schema", str(VERSION))]
    )


def _version(connection: sqlite3.Connection) -> int | None:
    """The schema's version; `None` for a database without any tables."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if not tables:
        return None
    if "meta" not in tables:
        raise Foreign(f"a database with other tables: {', '.join(map(str, tables[:5]))}")
    try:
        meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    except sqlite3.OperationalError as error:
        if "no such column" in str(error):
            raise Foreign("a database with another table 'meta'") from None
        raise
    kind, version = str(meta.get("format")), str(meta.get("schema"))
    if not kind.startswith("tunesmith-store/") or not version.isdecimal():
        raise Foreign(f"format {kind}, schema {version}")
    if kind != FORMAT:
        raise OtherVersion(f"format {kind}, this tunesmith reads {FORMAT}")
    return int(version)


def _probe(connection: sqlite3.Connection) -> None:
    for probe in _PROBES:
        try:
            connection.execute(probe)
        except sqlite3.OperationalError as error:
            if "no such" in str(error):
                raise Foreign(str(error)) from None
            raise
