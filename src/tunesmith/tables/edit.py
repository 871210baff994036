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
from tunesmith.tables import aiter_csv, csvtext, formats, jsontext, native
from tunesmith.tables.check_csv import unusable
from tunesmith.tables.convert import BESIDE
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
        columns = aiter_csv.columns_of(document)
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
        knobs = [name for name in {**old, **new} if _said(old, name) != _said(new, name)]
        changes = [f"{name} {_said(old, name)} → {_said(new, name)}" for name in knobs]
        if repr(self.before.us) != repr(self.after.us):
            changes.append(f"us {self.before.us} → {self.after.us}")
        if self.before.called != self.after.called:
            calls = [json.dumps(row.called, default=str) for row in (self.before, self.after)]
            changes.append(f"called {calls[0]} → {calls[1]}")
        if (self.before.config is None) != (self.after.config is None):
            changes = [f"{_config(self.before)} → {_config(self.after)}"]
        return f"~ {spelled(self.key)}: {', '.join(changes)}"


def _config(row: Cells | None) -> str:
    return json.dumps(row.config if row is not None else None, default=str)


def _said(config: Mapping[str, Any], name: str) -> str:
    return json.dumps(config[name], default=str) if name in config else "(none)"


def _same(one: Cells, other: Cells) -> bool:
    """Whether two rows say the same: as text, in which `true` is not 1, and NaN is itself."""
    configs = [json.dumps([row.config, row.called], sort_keys=True, default=str) for row in (one, other)]
    return configs[0] == configs[1] and repr(one.us) == repr(other.us)


def diff(one: Sheet, other: Sheet) -> list[Change]:
    """The rows in which two tables differ, in the order of the first."""
    before, after = {key_of(row): row for row in one.rows}, {key_of(row): row for row in other.rows}
    found: list[Change] = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if old is None or new is None or not _same(old, new):
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
        taken: list[tuple[Cells, Cells | None]] = []
        for change in diff(base, other):
            new = change.after
            if new is None:
                continue
            if unusable(new):
                notes.append(f"{other.path}:{new.line}: left out: {unusable(new)[0][1]}")
            elif change.before is None:
                taken.append((new, None))
                added += 1
            else:
                winner, why = _winner(change.before, new, prefer)
                notes.append(f"{spelled(change.key)}: {base.path.name if winner is not new else other.path.name} {why}")
                taken += [(new, change.before)] if winner is new else []
        base = _with_rows(base, other, taken)
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


def _with_rows(base: Sheet, other: Sheet, taken: Sequence[tuple[Cells, Cells | None]]) -> Sheet:
    """The table with rows of another, each a new one or in the place of one of its own."""
    document = base.document
    if isinstance(document, csvtext.Document):
        changed: Document = _csv_rows(base, document, other, taken)
    else:
        assert isinstance(other.document, jsontext.Document)
        changed = _json_rows(base, document, other.document, taken)
    return formats.parse(base.path, changed.data(), base.format)


def _csv_rows(
    base: Sheet, document: csvtext.Document, other: Sheet, taken: Sequence[tuple[Cells, Cells | None]]
) -> csvtext.Document:  # fmt: skip
    assert isinstance(other.document, csvtext.Document)
    columns, theirs = aiter_csv.columns_of(document), aiter_csv.columns_of(other.document)
    new: list[list[str]] = []
    instead: dict[int, list[str]] = {}
    for row, mine in taken:
        assert isinstance(row.place, int)
        cells = _in_columns(columns, dict(zip(theirs, other.document.rows[row.place], strict=False)), row, other)
        if mine is None:
            new.append(cells)
        else:
            assert isinstance(mine.place, int)
            instead[mine.place] = cells
    return document.with_rows(instead).appended(new)


def _in_columns(columns: Sequence[str], theirs: Mapping[str, str], row: Cells, other: Sheet) -> list[str]:
    """A row's cells in the columns of another table, of which none may be lost that says what the row is."""
    known = {**theirs, "gfx": theirs.get("gfx") or str(row.key.get("gfx", ""))}
    implied = known["gfx"] == aiter_csv.GFX_OF_UNITS.get(str(row.key.get("cu_num")))
    for name, cell in theirs.items():
        if name not in (*columns, *aiter_csv.METRICS) and cell.strip() and not (name == "gfx" and implied):
            raise BadInput(f"{other.path}:{row.line}: {name}={cell.strip()}: the first table has no such column")
    for name in columns:
        if name in aiter_csv.KEYS and name not in (*theirs, "gfx", "_tag"):
            raise BadInput(f"{other.path} has no column {name!r}, by which rows of the first table are told apart")
    return [known.get(name, "") for name in columns]


def _json_rows(
    base: Sheet, document: jsontext.Document, other: jsontext.Document, taken: Sequence[tuple[Cells, Cells | None]]
) -> jsontext.Document:  # fmt: skip
    new: dict[jsontext.Path, list[tuple[str, Any]]] = {}
    for row, mine in taken:
        assert isinstance(row.place, tuple)
        path = row.place[:-1] if base.format == "native" else row.place  # a native row is {"config": …, …}
        value, step = jsontext.at(other.value, path), path[-1]
        if mine is not None:
            assert isinstance(mine.place, tuple)
            document = document.replaced(mine.place[: len(path)], value)
        elif isinstance(step, int):
            raise BadInput(f"{base.path}: rows of {base.format} are a list; a merge of lists is not defined")
        else:
            new.setdefault(path[:-1], []).append((step if isinstance(step, str) else step[0], value))
    for parent, members in new.items():
        try:
            inside = jsontext.at(document.value, parent)
        except StopIteration:
            raise BadInput(
                f"{base.path} has no {'/'.join(map(str, parent))!r} to add rows to: add it by hand"
            ) from None
        document = document.replaced(parent, _in_order(base, inside, members))
    return document


def _in_order(base: Sheet, inside: jsontext.Members, new: Sequence[tuple[str, Any]]) -> jsontext.Members:
    """Members with more of them: rows in order stay so, others get the new ones last."""
    native = base.format == "native"
    heads = [] if native else [member for member in inside if not member[0].isdecimal()]
    rows = [member for member in inside if native or member[0].isdecimal()]

    def place(member: tuple[str, Any]) -> Any:
        return member[0] if native else int(member[0])

    sortable = native or all(key.isdecimal() for key, _ in new)
    if sortable and heads + rows == list(inside) and rows == sorted(rows, key=place):
        return jsontext.Members([*heads, *sorted([*rows, *new], key=place)])
    return jsontext.Members([*inside, *new])


# --- writing ----------------------------------------------------------------------------------------


def refuse_other_reading(path: Path, document: Document, like: Sheet, format: str | None) -> None:
    """See that a table will be read again under a name as what it is: many formats are told by the file's name alone.

    Args:
        like: the table it was made of. format: as the next reader will be told, too.

    Raises:
        BadInput: naming a good name.
    """
    try:
        found = formats.parse(path, document.data(), format).format
        why = f"it would be read as a table of {found}"
    except BadInput as error:
        found, why = "", str(error).removeprefix(f"{path}: ")
    if found != like.format:
        lies = like.path.parent.name or like.path.absolute().parent.name
        folder = "" if not found else f", in a folder whose name says so too, as {lies!r} does"
        given = "" if format else f"; or give --format {like.format} here, and to whatever reads it"
        raise BadInput(
            f"{path} would not be read again as the table of {like.format} that it is: {why}; good names: "
            f"{like.path.name}{folder}, or another of its form{given if found else ''}"
        )


def write(path: Path, data: bytes) -> Path | None:
    """Write a table, or what lies beside one, whole or not at all. What is there is kept beside it if it, or a row of
    it, can't be read.

    Returns:
        Where such a file was kept; `None` where there was none.

    Raises:
        OSError: when it cannot be written.
    """
    kept: Path | None = None
    if path.is_file():
        old = path.read_bytes()
        if not _can_be_read(path, old):
            kept = _free(path)
            write_whole(kept, old)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)
    return kept


def _can_be_read(path: Path, data: bytes) -> bool:
    try:
        if path.suffix == BESIDE:
            return isinstance(json.loads(data), dict)
        return not any(fault.severity == "error" for fault in formats.parse(path, data).faults)
    except (BadInput, ValueError):
        return False


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
