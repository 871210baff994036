"""A store as one readable file, and what another store knows added to this one."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any, cast

from tunesmith.core.key import Key
from tunesmith.core.outcome import Trial, Untried, choice_from_data, choice_to_data, trial_from_data, trial_to_data
from tunesmith.errors import StoreError
from tunesmith.files import write_whole
from tunesmith.store import rows
from tunesmith.store.database import Database, Trouble
from tunesmith.store.rows import BadRow, StoredChoice

if TYPE_CHECKING:
    from tunesmith.store.store import Store

FORMAT = "tunesmith-export/1"
_SQLITE = b"SQLite format 3\0"


@dataclass
class Entry:
    """What is known of one Key: its Choice, and its history, oldest first."""

    key: Key
    choice: StoredChoice | None = None
    history: list[Trial] = field(default_factory=list[Trial])


# --- out ------------------------------------------------------------------------------------------


def export(store: Store, path: Path) -> dict[str, int]:
    """Write all that a store reads to one JSON file, whole or not at all.

    Raises:
        StoreError: naming the file, when it cannot be written.
    """
    entries = sorted(_gather(store), key=lambda e: (e.key.kernel, e.key.device, e.key.problem.text, e.key.digest))
    lines = [f'{{"format": {json.dumps(FORMAT)},', '"keys": [']
    lines += [",\n".join(_entry_text(entry) for entry in entries), "]}", ""]
    try:
        write_whole(path, "\n".join(lines).encode())
    except OSError as error:
        raise StoreError(f"cannot export to {path}: {error.strerror or error}") from error
    return {
        "keys": len(entries),
        "choices": sum(entry.choice is not None for entry in entries),
        "trials": sum(len(entry.history) for entry in entries),
    }


def entry_text(store: Store, key: Key) -> str:
    """What one's own store knows of a Key, as one line of an export's `keys`; empty if nothing."""
    found = Entry(key, store.choice(key), store.trials(key))
    return _entry_text(found) if found.choice is not None or found.history else ""


def add_text(store: Store, text: str) -> dict[str, int]:
    """Add what `entry_text` said of another host's store; of two Choices the one that was searched last stays.

    Raises:
        StoreError: for text that is none, or when this store cannot be written.
    """
    try:
        entry = _read_entry(json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise StoreError(f"another host's results cannot be read: {type(error).__name__}: {error}") from None
    try:
        return store.write(lambda connection: _add(connection, [entry], newest=True))
    except Trouble as trouble:
        raise StoreError(f"cannot merge into {trouble}") from trouble


def _gather(store: Store) -> list[Entry]:
    """Every source's rows, those of one Key together; what several sources know, once."""
    found: dict[Key, Entry] = {}
    for entry in (entry for _, entries in store.read(_entries) for entry in entries):
        known = found.setdefault(entry.key, Entry(entry.key))
        seen = {rows.trial_text(trial) for trial in known.history}
        known.history += [trial for trial in entry.history if rows.trial_text(trial) not in seen]
    for entry in found.values():
        entry.choice = store.choice(entry.key)
    return list(found.values())


def _entry_text(entry: Entry) -> str:
    """One Key with a line for each Trial."""
    key = json.dumps(rows.hard_data(entry.key), sort_keys=True)
    choice = None
    if entry.choice is not None:
        choice = {"at": entry.choice.at, "soft": dict(entry.choice.soft), **choice_to_data(entry.choice.choice)}
    trials = ",\n  ".join(json.dumps(trial_to_data(trial), sort_keys=True) for trial in entry.history)
    return f'{{"key": {key},\n "choice": {json.dumps(choice, sort_keys=True)},\n "trials": [\n  {trials}]}}'


# --- in -------------------------------------------------------------------------------------------


def merge(store: Store, path: Path) -> dict[str, int]:
    """Add what an export or another store's file knows; what is here stays.

    Raises:
        StoreError: naming the file and what is wrong with it, or that this store cannot be written.
    """
    entries = read(path, store.bad_row(path))
    try:
        return store.write(lambda connection: _add(connection, entries))
    except Trouble as trouble:
        raise StoreError(f"cannot merge into {trouble}") from trouble


def read(path: Path, bad: BadRow) -> list[Entry]:
    """What an export or a store's file says.

    Args:
        bad: told of a store's rows that cannot be used; in an export, which people write, they are errors.

    Raises:
        StoreError: naming the file and what is wrong with it.
    """
    try:
        with open(path, "rb") as file:
            if file.read(len(_SQLITE)) == _SQLITE:
                return Database(path, "read").ask(lambda connection: _entries(connection, bad))
            file.seek(0)
            return _read_export(path, file.read())
    except Trouble as trouble:
        raise StoreError(str(trouble)) from trouble
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def _read_export(path: Path, text: bytes) -> list[Entry]:
    try:
        data: Any = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is neither a store nor an export of one: {error}") from None
    if not isinstance(data, dict) or cast("dict[str, Any]", data).get("format") != FORMAT:
        raise StoreError(f'{path} is not an export of a store: it does not begin with "format": "{FORMAT}"')
    entries: list[Entry] = []
    keys = cast("dict[str, Any]", data).get("keys", ())
    where = "keys"
    try:
        for number, entry in enumerate(keys):
            where = f"keys[{number}]"
            entries.append(_read_entry(entry))
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise StoreError(f"{path}, {where}: {type(error).__name__}: {error}; nothing was merged") from None
    return entries


def _read_entry(data: Any) -> Entry:
    entry = Entry(Key.from_data(data["key"]))
    choice = data.get("choice")
    if choice is not None:
        soft = {str(name): str(value) for name, value in choice["soft"].items()}
        entry.choice = StoredChoice(choice_from_data(choice), soft, str(choice["at"]))
    for number, trial_data in enumerate(data["trials"]):
        trial = trial_from_data(trial_data)
        if isinstance(trial.outcome, Untried):
            raise ValueError(f"trials[{number}] was never tried")
        entry.history.append(trial)
    return entry


def _entries(connection: Connection, bad: BadRow) -> list[Entry]:
    """All of a store's file."""
    entries: list[Entry] = []
    for row, digest, text in connection.execute("SELECT id, digest, data FROM keys ORDER BY id").fetchall():
        key = rows.read_key(text, digest, bad)
        if key is not None:
            history = [trial for _, trial in rows.read_trials(connection, row, bad)]
            entries.append(Entry(key, rows.read_choice(connection, row, bad), history))
    return entries


def _add(connection: Connection, entries: Sequence[Entry], newest: bool = False) -> dict[str, int]:
    """Add what is not there.

    Args:
        newest: a Choice takes the place of one that was searched before.
    """
    added = {"keys": 0, "choices": 0, "trials": 0}
    for entry in entries:
        known = rows.key_id(connection, entry.key, lambda what: None)  # data that is not this Key's gives way below
        row = rows.put_key(connection, entry.key, time.time())
        here = {text for (text,) in connection.execute("SELECT data FROM trials WHERE key = ?", (row,)).fetchall()}
        new = [trial for trial in entry.history if rows.trial_text(trial) not in here]
        rows.put_trials(connection, row, new, replace=False)
        added_choice = entry.choice is not None and _takes_its_place(connection, row, entry.choice, newest)
        if entry.choice is not None and added_choice:
            rows.put_choice(connection, row, entry.choice)
        added["keys"] += known is None
        added["trials"] += len(new)
        added["choices"] += added_choice
    return added


def _takes_its_place(connection: Connection, row: int, choice: StoredChoice, newest: bool) -> bool:
    """Whether a Choice is to be put where there may be one."""
    if connection.execute("SELECT 1 FROM choices WHERE key = ?", (row,)).fetchone() is None:
        return True
    there = rows.read_choice(connection, row, lambda what: None)
    return newest and (there is None or there.choice.searched_at < choice.choice.searched_at)
