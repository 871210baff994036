"""tunesmith's own table as a `Sheet`: for checks, comparisons and conversions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tunesmith.core.problem import FieldValue, Problem
from tunesmith.tables import jsontext
from tunesmith.tables.jsontext import Document, Members
from tunesmith.tables.lines import row_of
from tunesmith.tables.native import FORMAT
from tunesmith.tables.sheet import Cells, Finding, Sheet


def matches(value: Any) -> bool:
    """Whether a JSON is one of ours."""
    return isinstance(value, Members) and value.get("format") == FORMAT


def read(path: Path, document: Document) -> Sheet:
    """The table: a row for each Problem."""
    value = document.value
    about: dict[str, FieldValue] = {key: inner for key, inner in value if isinstance(inner, str)}
    rows: list[Cells] = []
    faults: list[Finding] = []
    seen: dict[Problem, int] = {}
    listed = value.get("rows")
    for step, text, entry in listed.steps() if isinstance(listed, Members) else ():
        place: jsontext.Path = ("rows", step)
        line = document.line(place)
        try:
            problem, said = row_of(text, jsontext.plain(entry))
        except ValueError as error:
            faults.append(Finding(path, line, "value", "error", f"{text}: {error}; the row is left out"))
            continue
        if problem in seen:
            again = f"{problem} is there twice, the first time in line {seen[problem]}"
            faults.append(Finding(path, line, "duplicate", "error", again))
            continue
        seen[problem] = line
        us = None if said.median_s is None else said.median_s * 1e6
        called = None if said.called is None else dict(said.called)
        rows.append(Cells(dict(problem), dict(said.config), line, (*place, "config"), us, called=called))
    return Sheet("native", path, document, tuple(rows), (), None, None, about, tuple(faults))
