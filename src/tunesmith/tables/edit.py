"""Changes to tables: a value, a comparison, several made one, and writing without losing what was there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from tunesmith.core.problem import FieldValue, Problem
from tunesmith.errors import BadInput, unknown
from tunesmith.files import write_whole
from tunesmith.tables import csvtext, formats, jsontext, native
from tunesmith.tables.check_csv import unusable
from tunesmith.tables.native import Entry, NativeTable
from tunesmith.tables.resolve import Prefer
from tunesmith.tables.sheet import Cells, Document, Sheet

Key = tuple[tuple[str, FieldValue], ...]


def key_of(row: Cells) -> Key:
    """What a row is for, as one value."""
    return tuple(sorted(row.key.items()))


def spelled(key: Key) -> str:
    """`M=64,K=128`."""
    return ",".join(f"{name}={value}" for name, value in key)


def set_value(sheet: Sheet, row: Cells, knob: str, value: Any) -> Sheet:
    """The table with one knob of one row set: the bytes of that value change, and no others.

    Raises:
        BadInput: for a column that a CSV does not have, naming those it has; for a format that keeps knobs elsewhere.
    """
    document = sheet.document
    if isinstance(document, csvtext.Document):
        assert isinstance(row.place, int)
        columns = str(sheet.about["columns"]).split(",")
        if knob not in columns:
            raise BadInput(unknown("column", knob, columns))
        changed: Document = document.replaced(row.place, columns.index(knob), str(value))
    else:
        assert isinstance(row.place, tuple)
        knobs, new = jsontext.at(document.value, row.place), jsontext.members(value)
        if not isinstance(knobs, jsontext.Members) or (knob in (row.config or {}) and knobs.get(knob) is None):
            raise BadInput(f"{sheet.path}: rows of {sheet.format} are no objects of knobs: set it in the document")
        there = any(name == knob for name, _ in knobs)
        changed = document.replaced((*row.place, knob), new) if there else document.inserted(row.place, knob, new)
    return formats.parse(sheet.path, changed.data(), sheet.format)


# --- comparing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A row in which two tables differ.

    Attributes:
        before: `None` where it is only in the second.
        after: `None` where it is only in the first.
    """

    key: Key
    before: Cells | None
    after: Cells | None

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {spelled(self.key)}: {_config(self.after)}"
        if self.after is None:
            return f"- {spelled(self.key)}: {_config(self.before)}"
        old, new = self.before.config or {}, self.after.config or {}
        knobs = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        changes = [f"{name} {_said(old, name)} → {_said(new, name)}" for name in knobs]
        if self.before.us != self.after.us:
            changes.append(f"us {self.before.us} → {self.after.us}")
        if (self.before.config is None) != (self.after.config is None):
            changes = [f"{_config(self.before)} → {_config(self.after)}"]
        return f"~ {spelled(self.key)}: {', '.join(changes)}"


def _config(row: Cells | None) -> str:
    return json.dumps(row.config if row is not None else None, default=str)


def _said(config: Mapping[str, Any], name: str) -> str:
    return json.dumps(config[name], default=str) if name in config else "(none)"


def diff(one: Sheet, other: Sheet) -> list[Change]:
    """The rows in which two tables differ, in the order of the first."""
    before, after = {key_of(row): row for row in one.rows}, {key_of(row): row for row in other.rows}
    found: list[Change] = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if old is None or new is None or (old.config, old.us) != (new.config, new.us):
            found.append(Change(key, old, new))
    return found


# --- merging ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Merged:
    """One table of several.

    Attributes:
        notes: what was decided where two had a row of one key.
    """

    document: Document
    added: int
    notes: tuple[str, ...]


def merge(sheets: Sequence[Sheet], prefer: Prefer = "first") -> Merged:
    """The first table with the rows that only the others have, its own bytes as they are.

    Args:
        prefer: of two rows of one key that differ, that of the table given first, or the fastest.

    Raises:
        BadInput: for tables of different formats or for different things, and for times that cannot be compared.
    """
    base, notes, added = sheets[0], list[str](), 0
    for other in sheets[1:]:
        _mergeable(base, other)
        for change in diff(base, other):
            new = change.after
            if new is None:
                continue
            if unusable(new):
                notes.append(f"{other.path}:{new.line}: left out: {unusable(new)[0][1]}")
            elif change.before is None:
                base, added = _with_row(base, other, new), added + 1
            else:
                winner, why = _winner(change.before, new, prefer)
                notes.append(f"{spelled(change.key)}: {base.path.name if winner is not new else other.path.name} {why}")
                base = _with_row(base, other, new, change.before) if winner is new else base
    return Merged(base.document, added, tuple(notes))


def _mergeable(base: Sheet, other: Sheet) -> None:
    if base.format != other.format:
        raise BadInput(f"{other.path} is a table of {other.format}, {base.path} of {base.format}; convert one first")
    if (base.name and base.name.fields) != (other.name and other.name.fields):
        raise BadInput(f"{other.path.name} is for something else than {base.path.name}")
    heads = [{k: sheet.about.get(k) for k in ("kernel", "device", "key", "arch")} for sheet in (base, other)]
    if heads[0] != heads[1]:
        raise BadInput(f"{other.path} is for {heads[1]}, {base.path} for {heads[0]}")


def _winner(mine: Cells, theirs: Cells, prefer: Prefer) -> tuple[Cells, str]:
    if prefer == "first":
        return mine, "is given first"
    if mine.us is None or theirs.us is None:
        raise BadInput(f"{spelled(key_of(mine))}: no times to compare; give prefer='first'")
    if unusable(mine):
        return theirs, f"is used: {unusable(mine)[0][1]} in the other"
    winner = theirs if theirs.us < mine.us else mine
    return winner, f"is faster: {min(mine.us, theirs.us):g} us against {max(mine.us, theirs.us):g}"


def _with_row(base: Sheet, other: Sheet, row: Cells, instead: Cells | None = None) -> Sheet:
    document = base.document
    if isinstance(document, csvtext.Document):
        changed: Document = _csv_row(base, document, other, row, instead)
    else:
        assert isinstance(other.document, jsontext.Document)
        changed = _json_row(base, document, other.document, row, instead)
    return formats.parse(base.path, changed.data(), base.format)


def _csv_row(base: Sheet, document: csvtext.Document, other: Sheet, row: Cells, instead: Cells | None) -> Document:
    assert isinstance(other.document, csvtext.Document)
    assert isinstance(row.place, int)
    theirs = dict(zip(str(other.about["columns"]).split(","), other.document.rows[row.place], strict=False))
    cells = [theirs.get(name, "") for name in str(base.about["columns"]).split(",")]
    if instead is None:
        return document.appended([cells])
    assert isinstance(instead.place, int)
    for column, cell in enumerate(cells):
        document = document.replaced(instead.place, column, cell)
    return document


def _json_row(
    base: Sheet, document: jsontext.Document, other: jsontext.Document, row: Cells, instead: Cells | None
) -> Document:
    assert isinstance(row.place, tuple)
    path = row.place[:-1] if base.format == "native" else row.place  # a native row is {"config": …, …}
    value, step = jsontext.at(other.value, path), path[-1]
    if instead is not None:
        assert isinstance(instead.place, tuple)
        return document.replaced(instead.place[: len(path)], value)
    if not isinstance(step, str):
        raise BadInput(f"{base.path}: rows of {base.format} are a list; a merge of lists is not defined")
    inside = jsontext.at(document.value, path[:-1])
    return document.inserted(path[:-1], step, value, _behind(base, inside, step, row))


def _behind(base: Sheet, inside: Any, step: str, row: Cells) -> str | None:
    """The member that a new one goes before: rows in order stay so, others get it last."""
    names = [key for key, _ in inside]
    if base.format == "native":
        return next((name for name in names if name > step), None) if names == sorted(names) else None
    sizes = [int(name) for name in names if name.isdigit()]
    if sizes != sorted(sizes) or not step.isdigit():
        return None
    return next((name for name in names if name.isdigit() and int(name) > int(step)), None)


# --- writing ----------------------------------------------------------------------------------------


def write(path: Path, data: bytes) -> Path | None:
    """Write a table whole or not at all. What is there and is no table is kept beside it.

    Returns:
        Where a file that could not be read was kept; `None` where there was none.

    Raises:
        OSError: when it cannot be written.
    """
    kept: Path | None = None
    if path.exists():
        old = path.read_bytes()
        try:
            formats.parse(path, old)
        except BadInput:
            kept = _free(path)
            write_whole(kept, old)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)
    return kept


def add(path: Path, table: NativeTable) -> NativeTable:
    """Add rows to a table of ours, one process after the other; of a Problem that is there already the new row counts.

    Rows that stay and were made for another source, or under other versions, say so in their provenance.

    Returns:
        What stands in the file now.

    Raises:
        BadInput: for a file of another kernel or device.
        OSError: when it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(path.with_name(f".{path.name}.lock"))):
        try:
            there = NativeTable.read(path) if path.exists() else None
        except BadInput:
            there = None  # `write` keeps it
        if there is not None and (there.kernel, there.device) != (table.kernel, table.device):
            raise BadInput(f"{path} is for {there.kernel} on {there.device}, not for {table.kernel} on {table.device}")
        whole = table if there is None else replace(table, rows={**_as_made(there, table), **table.rows})
        write(path, whole.data())
    return whole


def _as_made(there: NativeTable, now: NativeTable) -> dict[Problem, Entry]:
    """The rows of a table whose head becomes another's: what they were made for goes with them."""
    head = (now.fingerprint, now.protocol, native.spelled(now.soft))
    rows: dict[Problem, Entry] = {}
    for problem, entry in there.rows.items():
        own = zip(native.OF_ROW, there.of_row(entry), head, strict=True)
        plain = {name: text for name, text in entry.provenance.items() if name not in native.OF_ROW}
        rows[problem] = replace(
            entry, provenance={**plain, **{name: was for name, was, is_ in own if was and was != is_}}
        )
    return rows


def _free(path: Path) -> Path:
    for number in range(1, 1000):
        candidate = path.with_name(f"{path.name}.kept-{number}")
        if not candidate.exists():
            return candidate
    raise BadInput(f"{path}: 999 files that could not be read lie beside it; clear some away")
