"""`load`: a table of any format, to be asked by a kernel while it runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.problem import FieldValue, Problem
from tunesmith.errors import BadInput, TunesmithWarning
from tunesmith.tables import aiter_triton, devices, formats, names, policy, versions, which
from tunesmith.tables.base import Row, Tables
from tunesmith.tables.native import FORMAT, NativeTable
from tunesmith.tables.policy import Rule
from tunesmith.tables.resolve import Prefer, resolved
from tunesmith.tables.sheet import Cells, Found, Sheet
from tunesmith.tables.versions import Fallback

#: Rows that were asked for and are kept ready.
SERVED = 65_536
#: (number, table, note, fields to look up by)
_Candidate: TypeAlias = "tuple[int, Sheet, str, Mapping[str, FieldValue]]"
#: names of sizes → their values → (rank, number, table, note)
_BySizes: TypeAlias = "dict[tuple[str, ...], dict[tuple[object, ...], list[tuple[int, int, Sheet, str]]]]"


def load(
    path: str | Path, *, kernel: str = "", size: str = "M", given: Mapping[str, FieldValue] | None = None,
    rename: Mapping[str, str] | None = None, rule: str | None = None, triton: str = "", fallback: Fallback = "lower",
    format: str | None = None, strict: bool = False,
    prefer: Prefer = "fastest",
) -> Tables:  # fmt: skip
    """Read a table, or a folder of them, for `kernel.use_table`. Files are never modified.

    Args:
        path: a file of any known format, or a folder.
        kernel: the kernel it is for; where not given, any that asks.
        size: the kernel's name of the size that rows are looked up by.
        given: what the file's name says and the kernel's Problem does not: `{"E": 8, "N": 1024}`. Of tables that differ
            in more than sizes (`dtype`, `block_shape`, `per_channel_quant`, `backend`, aiter's `kernel`) it says which
            one; otherwise none is used, with one warning. Tables of a folder for the down projection need
            `{"down": True}`.
        rename: the table's name of a knob → the kernel's.
        rule: by which to look up: `nearest` (the usual: up to a factor of two), `nearest-stock` (as serving engines do,
            however far), …; see `policy.RULES`. A table of ours is exact where nothing is said, other formats keep
            their own rule.
        triton: the running version, for folders that have a folder for each.
        fallback: where there is none for this version: the highest `lower` one, the `newest`, or none (`strict`).
        format: the files' format, where they do not say.
        strict: two valid rows of one shape are an error; otherwise one is used, and both are named.
        prefer: which one, the `fastest` or the `first` by the files' names.

    Raises:
        BadInput: for a path that is no table, and of a folder when no file in it is one.
    """
    root = Path(path)
    try:
        if rule is None and root.is_file() and root.suffix == ".json" and _is_native(root):
            return NativeTable.read(root)
    except OSError as error:
        raise BadInput(f"{root} cannot be read: {error.strerror or error}") from error
    sheets, ours, note = _sheets(root, format), list[Tables](), ""
    if rule is None:  # exact, and by the Problem as the kernel's author buckets it
        ours = [NativeTable.read(sheet.path) for sheet in sheets if sheet.format == "native"]
        sheets = [sheet for sheet in sheets if sheet.format != "native"]
    if not sheets:
        return ours[0] if len(ours) == 1 else Several(ours)
    if root.is_dir():
        sheets, note = _of_version(sheets, triton, fallback)
    ruled = [_ruled(sheet, None if rule is None else policy.rule(rule), size) for sheet in sheets]
    usable = _usable(ruled, strict, prefer)
    others = SheetTables(root, usable, kernel, size, dict(given or {}), dict(rename or {}), note)
    return Several([*ours, others]) if ours else others


def _ruled(sheet: Sheet, rule: Rule | None, size: str) -> Sheet:
    """A table of ours has no rule of its own, an engine's can be looked up by another; others keep theirs.

    Where nothing is said, a row of an engine's that takes the nearest, however far, serves what is near alone.
    """
    if sheet.format == "native":
        return replace(sheet, levels=((size, rule or policy.RULES["exact"]),))
    if sheet.engine is None or (rule is None and all(usual.kind != "nearest" for _, usual in sheet.levels)):
        return sheet
    if rule is not None:
        return sheet.with_rule(rule)
    near = policy.RULES["nearest"]
    return replace(sheet, levels=tuple((n, near if usual.kind == "nearest" else usual) for n, usual in sheet.levels))


def _is_native(path: Path) -> bool:
    with open(path, "rb") as file:
        return f'"{FORMAT}"'.encode() in file.read(200)


def _sheets(root: Path, format: str | None) -> list[Sheet]:
    if not root.exists():
        raise BadInput(f"there is no {str(root)!r}; give a table or a folder of tables")
    sheets: list[Sheet] = []
    passed: list[str] = []
    for file in formats.files(root):
        try:
            sheets.append(formats.read(file, format))
        except BadInput as error:
            if not root.is_dir():
                raise
            passed.append(str(error))
    if not sheets:
        raise BadInput(f"{root} has no table: {'; '.join(passed[:3]) or 'no .json and no .csv'}")
    if passed:
        _warn(f"{root}: {len(passed)} files are left out: {'; '.join(passed[:3])}{'; …' if len(passed) > 3 else ''}")
    return sheets


def _of_version(sheets: Sequence[Sheet], triton: str, fallback: Fallback) -> tuple[list[Sheet], str]:
    """Of tables that lie in a folder for each version, those that serve the running one: for each name its own."""
    there = {str(sheet.about["triton_folder"]) for sheet in sheets if "triton_folder" in sheet.about}
    if not there:
        return list(sheets), ""
    if not triton:
        listed = ", ".join(sorted(there, key=versions.numbers))
        raise BadInput(f"the tables are for Triton {listed}: say which one runs, with triton=VERSION")
    kept = [sheet for sheet in sheets if "triton_folder" not in sheet.about]
    by_name: dict[tuple[Path, str], dict[str, Sheet]] = {}
    for sheet in sheets:
        if "triton_folder" in sheet.about:
            by_name.setdefault((sheet.path.parent.parent, sheet.path.name), {})[str(sheet.about["triton_folder"])] = (
                sheet
            )
    others: dict[str, int] = {}
    for same in by_name.values():
        found = versions.choose(triton, same, fallback)
        if found.version is not None:
            kept.append(same[found.version])
            if found.note:
                others[found.version] = others.get(found.version, 0) + 1
    if not others:
        return kept, ""
    listed = ", ".join(f"{version} ({others[version]})" for version in sorted(others, key=versions.numbers))
    note = f"made for another Triton than {triton}: {listed}"
    _warn(f"{sum(others.values())} tables are {note}; they may be stale")
    return kept, note


def _usable(sheets: Sequence[Sheet], strict: bool, prefer: Prefer) -> list[Sheet]:
    """Without rows that must not be used; each table that had some gets one warning, with lines."""
    for sheet in sheets:
        for fault in [fault for fault in sheet.faults if fault.severity == "error"][:1]:
            more = sum(other.severity == "error" for other in sheet.faults) - 1
            _warn(f"{fault.path}:{fault.line}: {fault.message}" + (f" (and {more} more)" if more else ""))
    tables = [sheet for sheet in sheets if sheet.format in which.CSV]
    others = [sheet for sheet in sheets if sheet.format not in which.CSV]
    return [*others, *resolved(tables, prefer=prefer, strict=strict, warn=_warn)]


def _warn(text: str) -> None:
    warnings.warn(text, TunesmithWarning, stacklevel=4)


class Several:
    """Tables that are asked one after the other."""

    def __init__(self, tables: Sequence[Tables]) -> None:
        self.tables = tuple(tables)

    def lookup(self, key: Key, exact: Problem, device: Device) -> Row | None:
        """The row of the first that has one."""
        return next((row for t in self.tables if (row := t.lookup(key, exact, device)) is not None), None)


class SheetTables:
    """Tables of one or many files, asked as one.

    Args:
        note: what a user should know of every row.
    """

    def __init__(
        self, root: Path, sheets: Sequence[Sheet], kernel: str, size: str, given: Mapping[str, FieldValue],
        rename: Mapping[str, str], note: str,
    ) -> None:  # fmt: skip
        self.root, self.sheets = root, tuple(sheets)
        self._kernel, self._size, self._given, self._rename, self._note = kernel, size, given, rename, note
        self._served: dict[tuple[Problem, str, str], Row | None] = {}
        self._configs: dict[tuple[int, int], Config | None] = {}
        self._for_device: dict[str, _BySizes] = {}
        self._kinds: dict[int, str] = {}
        self._warned: set[frozenset[str]] = set()

    def lookup(self, key: Key, exact: Problem, device: Device) -> Row | None:
        """The row for a call, by the table's own rule for sizes."""
        if self._kernel and key.kernel != self._kernel:
            return None
        asked = (exact, key.kernel, key.device)
        if asked in self._served:
            return self._served[asked]
        row = self._found(key.kernel, exact, device)
        if len(self._served) >= SERVED:
            self._served.clear()
        self._served[asked] = row
        return row

    def explain(self, problem: Problem, device: Device) -> str:
        """Which row serves a Problem, how far it is, by which rule; or why none does."""
        candidates = list(self._candidates(problem, device))
        if not candidates:
            shipped = sorted({sheet.name.device for sheet in self.sheets if sheet.name is not None})
            return devices.match(device.name, shipped).note or f"{self.root} has no table for {problem}"
        unclear = self._unclear(candidates)
        if unclear:
            return unclear[0]
        serving = (one for one in candidates if self._row(one[1], one[3]) is not None)
        _, sheet, note, fields = next(serving, candidates[0])
        if sheet.format == "aiter-triton":
            return f"{sheet.path}: {self._bound(sheet, fields)}"
        return f"{sheet.path}: {sheet.explain(fields)}" + (f"; {note}" if note else "")

    def _found(self, kernel: str, exact: Problem, device: Device) -> Row | None:
        candidates = [
            one for one in self._candidates(exact, device)
            if one[1].format != "native" or one[1].about.get("kernel") == kernel
        ]  # fmt: skip
        unclear = self._unclear(candidates)
        if unclear:
            if unclear[1] not in self._warned:
                self._warned.add(unclear[1])
                _warn(unclear[0])
            return None
        for i, sheet, note, fields in candidates:
            found = self._row(sheet, fields)
            if found is None:
                continue
            config = self._config(i, sheet, found.row)
            if config is None:
                continue
            distance = "" if found.exact else str(found)
            seconds = found.row.us / 1e6 if found.row.us is not None and found.row.us > 0 else None
            notes = "; ".join(filter(None, (note, self._note)))
            called = None if found.row.called is None else Config(self._renamed(found.row.called))
            return Row(config, f"table {sheet.path}:{found.row.line}", distance, seconds, notes, called)
        return None

    def _row(self, sheet: Sheet, fields: Mapping[str, FieldValue]) -> Found | None:
        if sheet.format != "aiter-triton":
            return sheet.find(fields)
        row = self._bound(sheet, fields).row
        return None if row is None else Found(row, {})

    def _bound(self, sheet: Sheet, fields: Mapping[str, FieldValue]) -> aiter_triton.Bound:
        size = fields.get(self._size)
        if type(size) is not int:
            return aiter_triton.Bound(0, None, f"no row: {self._size} is not given")
        return aiter_triton.find(sheet, size)

    def _unclear(self, candidates: Sequence[_Candidate]) -> tuple[str, frozenset[str]] | None:
        """Why it cannot be said which of several tables is the call's, and of what kinds they are; `None` if it can."""
        first = [one for one in candidates if not one[2]] or candidates  # those of just the device's name
        kinds: dict[str, Sheet] = {}
        for i, sheet, _, fields in first:
            if sheet.format not in which.CSV or self._row(sheet, fields) is not None:
                if i not in self._kinds:
                    self._kinds[i] = which.kind(sheet)
                kinds.setdefault(self._kinds[i], sheet)
        if len(kinds) < 2:
            return None
        files = ", ".join(sheet.path.name for sheet in list(kinds.values())[:4])
        said = f"{self.root}: {len(kinds)} tables are for such a call ({files}): none is used; say which with given="
        return said, frozenset(kinds)

    def _candidates(self, exact: Problem, device: Device) -> Iterable[_Candidate]:
        """(number, table, note, fields to look up by) of the tables that could serve a Problem."""
        problem: dict[str, FieldValue] = {**exact, **self._given, "gfx": device.arch, "cu_num": device.units}
        found: list[tuple[int, int, Sheet, str]] = []
        for sizes, by_value in self._of(device).items():
            if all(name in problem for name in sizes):
                found += by_value.get(tuple(problem[name] for name in sizes), ())
        for _, i, sheet, note in sorted(found, key=lambda one: one[0]):
            fields = dict(problem)
            if sheet.levels and self._size in problem:
                fields.setdefault(sheet.levels[-1][0], problem[self._size])
            yield i, sheet, note, fields

    def _of(self, device: Device) -> _BySizes:
        """The tables for a device and for what was given, those of just its name first, by the sizes they are for."""
        if device.identity not in self._for_device:
            fitting = ((i, sheet, self._note_for(sheet, device)) for i, sheet in enumerate(self.sheets))
            found = [(i, sheet, note) for i, sheet, note in fitting if note is not None]
            # of aiter's, those for one size before those for all
            found.sort(key=lambda one: (bool(one[2]), one[1].about.get("tuned") is False))
            index: _BySizes = {}
            for rank, (i, sheet, note) in enumerate(found):
                sizes = which.sizes(sheet)
                by_value = index.setdefault(tuple(sizes), {})
                by_value.setdefault(tuple(sizes.values()), []).append((rank, i, sheet, note))
            self._for_device[device.identity] = index
        return self._for_device[device.identity]

    def _note_for(self, sheet: Sheet, device: Device) -> str | None:
        """What to know of a table on a device; `None` where it is not for it, or not for what was given."""
        says = which.says(sheet)
        asked = {name: value for name, value in self._given.items() if name not in names.SIZES}
        if sheet.name is None:
            known: Iterable[str] = says
            if sheet.format == "native" and sheet.about.get("device") != device.identity:
                return None
            if sheet.format == "aiter-triton" and sheet.about.get("arch", device.arch) != device.arch:
                return None
        else:
            known = which.KINDS | says.keys()
            if sheet.name.down and self.root.is_dir():
                asked.setdefault("down", False)
        if any(which.plain(value) != says.get(name, "") for name, value in asked.items() if name in known):
            return None
        if sheet.name is None:
            return ""
        match = devices.of_table(device.name, sheet.format, sheet.name.device)
        return None if match.name is None else match.note

    def _renamed(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        return {self._rename.get(name, name): value for name, value in knobs.items()}

    def _config(self, i: int, sheet: Sheet, row: Cells) -> Config | None:
        """The row's Config; of one that makes no sense a warning, once."""
        place = (i, row.line)
        if place not in self._configs:
            try:
                self._configs[place] = None if row.config is None else Config(self._renamed(row.config))
            except BadInput as error:
                _warn(f"{sheet.path}:{row.line}: {error}; the row is not used")
                self._configs[place] = None
        return self._configs[place]
