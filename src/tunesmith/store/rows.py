"""The rows of a store: Keys, Trials and Choices, as JSON in SQL. What was tampered with is reported and skipped."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import (
    Choice,
    Measured,
    Trial,
    Untried,
    choice_from_data,
    choice_to_data,
    trial_from_data,
    trial_to_data,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredChoice:
    """A Choice, the versions it was found under, and when (UTC, ISO 8601)."""

    choice: Choice
    soft: Mapping[str, str]
    at: str


#: told of a row that cannot be used, in words
BadRow: TypeAlias = Callable[[str], None]


def hard_data(key: Key) -> dict[str, Any]:
    """The part of a Key that is its identity, as JSON types."""
    return {name: value for name, value in key.to_data().items() if name != "soft"}


def to_json(data: object) -> str:
    """The one spelling of stored data: ASCII, so that any text can be stored, and compared byte by byte."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def _parse(text: object, what: str, read: Callable[[Any], T], bad: BadRow) -> T | None:
    """What a stored text says; a text that was tampered with is reported and skipped."""
    try:
        return read(json.loads(text if isinstance(text, str) else ""))
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        bad(f"{what}: {type(error).__name__}: {error}")
        return None


@lru_cache(maxsize=4096)
def _key_from(text: str) -> Key:
    return Key.from_data(json.loads(text))


def read_key(text: object, digest: object, bad: BadRow) -> Key | None:
    """A stored Key, if its data is what its digest says."""
    key = _parse(text, f"key {digest}", lambda _: _key_from(str(text)), bad)
    if key is not None and key.digest != digest:
        bad(f"key {digest}: its data belongs to {key.digest}")
        return None
    return key


def key_id(connection: sqlite3.Connection, key: Key, bad: BadRow) -> tuple[int, float] | None:
    """A Key's row and when it was last touched; nothing if the stored data is not this Key's."""
    row = connection.execute("SELECT id, data, touched FROM keys WHERE digest = ?", (key.digest,)).fetchone()
    if row is None:
        return None
    if row[1] != to_json(hard_data(key)):
        bad(f"key {key.digest}: its data is not that of the Key asked for")
        return None
    return int(row[0]), float(row[2]) if isinstance(row[2], (int, float)) else 0.0


def put_key(connection: sqlite3.Connection, key: Key, now: float) -> int:
    """A Key's row, made if there is none; touched now.

    A row whose data is not this Key's gives way, with all it holds.
    """
    values = (key.digest, key.kernel, to_json(hard_data(key)))
    connection.execute("DELETE FROM keys WHERE digest = ? AND NOT (kernel = ? AND data = ?)", values)
    connection.execute(
        "INSERT INTO keys (digest, kernel, data, touched) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (digest) DO UPDATE SET touched = excluded.touched",
        (*values, now),
    )
    return int(connection.execute("SELECT id FROM keys WHERE digest = ?", (key.digest,)).fetchone()[0])


def trial_text(trial: Trial) -> str:
    """How a Trial is stored; two Trials are the same when it is equal."""
    return to_json(trial_to_data(trial))


def put_trials(connection: sqlite3.Connection, row: int, trials: Sequence[Trial], replace: bool) -> None:
    """Append Trials to a Key's history, or `replace` those of the same Config and moment. Untried ones don't belong."""
    if replace:
        gone = [(row, to_json(dict(t.config)), t.at) for t in trials]
        connection.executemany("DELETE FROM trials WHERE key = ? AND config = ? AND at = ?", gone)
    values = [
        (row, "measured" if isinstance(t.outcome, Measured) else "failed", to_json(dict(t.config)), t.at, trial_text(t))
        for t in trials
    ]
    connection.executemany("INSERT INTO trials (key, kind, config, at, data) VALUES (?, ?, ?, ?, ?)", values)


def newest(history: Iterable[Trial]) -> dict[Config, Trial]:
    """The last Trial of each Config: one that was measured once and fails now does not work."""
    best: dict[Config, Trial] = {}
    for trial in history:
        best[trial.config] = trial
    return best


def read_trials(connection: sqlite3.Connection, row: int, bad: BadRow) -> list[tuple[int, Trial]]:
    """A Key's whole history in the order it was written, with row numbers."""
    found: list[tuple[int, Trial]] = []
    for number, text in connection.execute("SELECT id, data FROM trials WHERE key = ? ORDER BY id", (row,)).fetchall():
        trial = _parse(text, f"trial {number}", trial_from_data, bad)
        if trial is not None and isinstance(trial.outcome, Untried):
            bad(f"trial {number}: untried")
        elif trial is not None:
            found.append((number, trial))
    return found


def put_choice(connection: sqlite3.Connection, row: int, stored: StoredChoice) -> None:
    """Set a Key's Choice."""
    connection.execute(
        "INSERT OR REPLACE INTO choices (key, at, soft, data) VALUES (?, ?, ?, ?)",
        (row, stored.at, to_json(dict(stored.soft)), to_json(choice_to_data(stored.choice))),
    )


def read_choice(connection: sqlite3.Connection, row: int, bad: BadRow) -> StoredChoice | None:
    """A Key's Choice."""
    found = connection.execute("SELECT at, soft, data FROM choices WHERE key = ?", (row,)).fetchone()
    if found is None:
        return None
    at, soft_text, text = found
    choice = _parse(text, f"choice of key {row}", choice_from_data, bad)
    soft = _parse(soft_text, f"versions of the choice of key {row}", _read_soft, bad)
    return None if choice is None or soft is None else StoredChoice(choice, soft, str(at))


def _read_soft(data: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in data.items()}


def read_keys(connection: sqlite3.Connection, kernel: str | None, chosen: bool, limit: int, bad: BadRow) -> list[Key]:
    """The Keys of a kernel (or of all), the last touched first; of `chosen` ones, those that have a Choice."""
    where = "(:kernel IS NULL OR kernel = :kernel) AND (NOT :chosen OR id IN (SELECT key FROM choices))"
    query = f"SELECT data, digest FROM keys WHERE {where} ORDER BY touched DESC, id LIMIT :limit"
    rows = connection.execute(query, {"kernel": kernel, "chosen": chosen, "limit": limit}).fetchall()
    return [key for text, digest in rows if (key := read_key(text, digest, bad)) is not None]


def history_of(connection: sqlite3.Connection, key: Key, bad: BadRow) -> list[Trial]:
    """All Trials of a Key, oldest first."""
    row = key_id(connection, key, bad)
    return [] if row is None else [trial for _, trial in read_trials(connection, row[0], bad)]


def choice_of(connection: sqlite3.Connection, key: Key, bad: BadRow) -> tuple[StoredChoice, float] | None:
    """A Key's Choice, and when the Key was last touched."""
    row = key_id(connection, key, bad)
    stored = None if row is None else read_choice(connection, row[0], bad)
    return None if row is None or stored is None else (stored, row[1])
