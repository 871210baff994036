"""`Sheet`: a table of any format as rows, with its look-up rule, and the text it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tunesmith.core.problem import FieldValue
from tunesmith.errors import BadInput
from tunesmith.tables import csvtext, jsontext
from tunesmith.tables.names import Engine, Name
from tunesmith.tables.policy import Hit, Ladder, Rule

Document: TypeAlias = "jsontext.Document | csvtext.Document"
Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong in a table.

    Attributes:
        code: what kind of thing, one word: `unreachable`, `duplicate`, …
        line: from 1; 0 where it is the file as a whole.
    """

    path: Path
    line: int
    code: str
    severity: Severity
    message: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{place}: {self.severity}: {self.message} [{self.code}]"


@dataclass(frozen=True, slots=True)
class Cells:
    """One row of a table.

    Attributes:
        key: what it is looked up by: `{"M": 64}`.
        config: knobs; `None` where the table says that something else serves this key better (`null`).
        line: from 1.
        place: where it stands in the document: a JSON path, or a CSV row's number.
        us: its time in microseconds as the table has it, whatever that is.
        facts: further cells.
        called: knobs of what calls outside of CUDA graphs are launched with; `None`: the same.
    """

    key: Mapping[str, FieldValue]
    config: Mapping[str, Any] | None
    line: int
    place: jsontext.Path | int
    us: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    called: Mapping[str, Any] | None = None


def microseconds(time: Any, per_unit: float) -> float | None:
    """A table's time in microseconds; `None` for what is no number, or one too large to be a time.

    Args:
        per_unit: how many microseconds one of its units is.
    """
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        return None
    try:
        return float(time) * per_unit
    except OverflowError:  # an integer of hundreds of digits
        return None


@dataclass(frozen=True, slots=True)
class Found:
    """The row that serves a look-up, and how each of its fields was met."""

    row: Cells
    hits: Mapping[str, Hit]

    @property
    def exact(self) -> bool:
        """Whether the row is of just the sizes asked for."""
        return not any(hit.distance for hit in self.hits.values())

    def __str__(self) -> str:
        return "; ".join(f"{name}={hit.size}: {hit}" for name, hit in self.hits.items())


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        format: its format's name.
        engine: whose reader it is for, where that matters.
        name: what its file's name says.
        about: further facts of the file as a whole: versions, arch, kernel.
        levels: (field, rule) of the sizes that are not matched exactly, outermost first.
        document: the text; what is written is made from it.
        faults: what no reader should take, found while reading.
        wide: N, where a rule asks for it; `wide_field` where it is a field of the rows.
    """

    format: str
    path: Path
    document: Document
    rows: tuple[Cells, ...] = ()
    levels: tuple[tuple[str, Rule], ...] = ()
    engine: Engine | None = None
    name: Name | None = None
    about: Mapping[str, FieldValue] = field(default_factory=dict[str, FieldValue])
    faults: tuple[Finding, ...] = ()
    wide_field: str = ""

    @property
    def rule(self) -> Rule | None:
        """The rule of the last size."""
        return self.levels[-1][1] if self.levels else None

    def with_rule(self, rule: Rule) -> Sheet:
        """The same, looked up by another rule. Of several sizes those that must be met exactly still must be."""
        one = len(self.levels) == 1
        levels = tuple((name, rule if one or usual.kind != "exact" else usual) for name, usual in self.levels)
        return replace(self, levels=levels)

    @cached_property
    def _groups(self) -> dict[tuple[tuple[str, FieldValue], ...], list[Cells]]:
        sized = {name for name, _ in self.levels}
        groups: dict[tuple[tuple[str, FieldValue], ...], list[Cells]] = {}
        for row in self.rows:
            groups.setdefault(tuple(sorted((n, v) for n, v in row.key.items() if n not in sized)), []).append(row)
        return groups

    @cached_property
    def _indexes(self) -> dict[tuple[tuple[str, FieldValue], ...], _Index]:
        return {}

    @property
    def groups(self) -> Mapping[tuple[tuple[str, FieldValue], ...], Sequence[Cells]]:
        """The rows by the fields that must match exactly."""
        return self._groups

    def find(self, fields: Mapping[str, FieldValue]) -> Found | None:
        """The row that serves a call with these fields; `None` for a miss."""
        for index in self._indexes_for(fields):
            found = index.find(fields)
            if found is not None:
                return found
        return None

    def explain(self, fields: Mapping[str, FieldValue]) -> str:
        """What a look-up does, in words: which row, how far, by which rule; or why there is none."""
        indexes = list(self._indexes_for(fields))
        if not indexes:
            names = sorted({name for group in self._groups for name, _ in group})
            asked = ", ".join(f"{name}={fields.get(name, '(not given)')}" for name in names)
            return f"no row: none is of {asked}" if names else "no row: the table is empty"
        return indexes[0].explain(fields)

    def ladder(self, group: tuple[tuple[str, FieldValue], ...] = ()) -> Ladder:
        """The look-up of the one size of a group of rows.

        Raises:
            BadInput: for a table that is looked up by several sizes, or none.
        """
        if len(self.levels) != 1:
            raise BadInput(f"{self.path}: looked up by {len(self.levels)} sizes, not by one")
        return self._index(group).ladder

    def line_of(self, place: jsontext.Path | int) -> int:
        """The line of a place of the document."""
        document = self.document
        if isinstance(document, csvtext.Document):
            return document.line(place) if isinstance(place, int) else 1
        return document.line(place) if not isinstance(place, int) else 1

    def finding(self, code: str, severity: Severity, message: str, line: int = 0) -> Finding:
        """Something wrong in this table."""
        return Finding(self.path, line, code, severity, message)

    @cached_property
    def _by_names(self) -> dict[tuple[str, ...], dict[tuple[object, ...], tuple[tuple[str, FieldValue], ...]]]:
        """The groups by the names of their fields, which nearly always are the same, then by their values."""
        found: dict[tuple[str, ...], dict[tuple[object, ...], tuple[tuple[str, FieldValue], ...]]] = {}
        for group in self._groups:
            of_these = found.setdefault(tuple(name for name, _ in group), {})
            of_these[tuple(_distinct(value) for _, value in group)] = group
        return found

    def _indexes_for(self, fields: Mapping[str, FieldValue]) -> Iterable[_Index]:
        for names, groups in self._by_names.items():
            if all(name in fields for name in names):
                group = groups.get(tuple(_distinct(fields[name]) for name in names))
                if group is not None:
                    yield self._index(group)

    def _index(self, group: tuple[tuple[str, FieldValue], ...]) -> _Index:
        found = self._indexes.get(group)
        if found is None:
            rows = self._groups.get(group, [])
            found = self._indexes[group] = _Index(rows, self.levels, lambda: self._wide(group))
        return found

    def _wide(self, group: tuple[tuple[str, FieldValue], ...]) -> int:
        value = dict(group).get(self.wide_field, 0)
        return value if isinstance(value, int) else 0


def _distinct(value: FieldValue) -> object:
    """A value that is equal to those alike: `True` is not 1."""
    return (value,) if isinstance(value, bool) else value


class _Index:
    """Rows that differ in sizes alone, a level for each size."""

    def __init__(self, rows: Sequence[Cells], levels: tuple[tuple[str, Rule], ...], wide: Callable[[], int]) -> None:
        self.levels, self.wide = levels, wide
        self.row = rows[-1] if rows else None
        if not levels:
            return
        self.field, rule = levels[0]
        below: dict[int, list[Cells]] = {}
        for row in rows:
            size = row.key.get(self.field)
            if type(size) is int:
                below.setdefault(size, []).append(row)
        self.below = below
        self.inner: dict[int, _Index] = {}
        self.ladder = Ladder(rule, below, wide())

    def find(self, fields: Mapping[str, FieldValue]) -> Found | None:
        if not self.levels:
            return None if self.row is None else Found(self.row, {})
        size = fields.get(self.field)
        if type(size) is not int:
            return None
        hit = self.ladder.find(size)
        if hit is None:
            return None
        found = self._inner(hit.key).find(fields)
        return None if found is None else Found(found.row, {self.field: hit, **found.hits})

    def explain(self, fields: Mapping[str, FieldValue]) -> str:
        if not self.levels:
            return ""
        size = fields.get(self.field)
        if type(size) is not int:
            return f"no row: {self.field} is not given"
        explained = self.ladder.explain(size)
        said = str(explained).replace("M=", f"{self.field}=", 1)
        if explained.hit is None:
            return said
        inner = self._inner(explained.hit.key).explain(fields)
        return f"{said}; {inner}" if inner else said

    def _inner(self, key: int) -> _Index:
        if key not in self.inner:
            self.inner[key] = _Index(self.below[key], self.levels[1:], self.wide)
        return self.inner[key]
