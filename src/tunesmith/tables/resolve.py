"""Several CSV tables as one: bad rows out, and of two rows of one shape one, whatever the order of the files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from tunesmith.errors import BadInput
from tunesmith.tables.check_csv import Identity, family, identity, unusable
from tunesmith.tables.sheet import Cells, Sheet

#: Which of two valid rows of one shape is used: the faster, or that of the table given first.
Prefer: TypeAlias = Literal["fastest", "first"]


def resolved(
    sheets: Sequence[Sheet], *, prefer: Prefer = "fastest", strict: bool = False, warn: Callable[[str], None]
) -> list[Sheet]:
    """The tables without rows that must not be used, and with one row for each shape. The files stay as they are.

    Args:
        warn: is told once for each table what was left out, and once of all rivals.

    Raises:
        BadInput: under `strict`, for two valid rows of one shape that differ.
    """
    kept: list[list[Cells]] = []
    for sheet in sheets:
        bad = [(row, why) for row in sheet.rows for _, why in unusable(row)[:1]]
        if bad:
            lines = ", ".join(f"line {row.line} ({why})" for row, why in bad[:5])
            warn(f"{sheet.path}: {len(bad)} rows are not used: {lines}{', …' if len(bad) > 5 else ''}")
        left_out = {id(row) for row, _ in bad}
        kept.append([row for row in sheet.rows if id(row) not in left_out])
    return _one_each(sheets, kept, prefer, strict, warn)


def _one_each(
    sheets: Sequence[Sheet], kept: Sequence[Iterable[Cells]], prefer: Prefer, strict: bool, warn: Callable[[str], None]
) -> list[Sheet]:
    rivals: defaultdict[tuple[str, Identity], list[tuple[int, Cells]]] = defaultdict(list)
    for i, rows in enumerate(kept):
        for row in rows:
            rivals[family(sheets[i]), identity(row)].append((i, row))
    used: list[list[Cells]] = [[] for _ in sheets]
    said: list[str] = []
    for found in rivals.values():
        i, row = found[0] if prefer == "first" else min(found, key=lambda one: _rank(*one, sheets))
        used[i].append(row)
        others = [one for one in found if one[1] is not row and (one[1].config, one[1].us) != (row.config, row.us)]
        if others:
            losers = ", ".join(f"{_place(sheets[j], other)} ({other.us} us)" for j, other in others)
            said.append(f"{_place(sheets[i], row)} ({row.us} us) is used, not {losers}")
    if said and strict:
        raise BadInput(f"rows of one shape and chip that differ: {'; '.join(sorted(said))}")
    if said:
        shown = "; ".join(sorted(said)[:5])
        warn(f"{len(said)} shapes have several rows: {shown}{'; …' if len(said) > 5 else ''}")
    return [replace(sheet, rows=tuple(sorted(rows, key=_at))) for sheet, rows in zip(sheets, used, strict=True)]


def _at(row: Cells) -> int:
    return row.line


def _rank(i: int, row: Cells, sheets: Sequence[Sheet]) -> tuple[float, str, str, int]:
    """By time; what is equally fast by what it is, so that the order of files does not matter."""
    return (row.us if row.us is not None else float("inf"), str(row.config), str(sheets[i].path), row.line)


def _place(sheet: Sheet, row: Cells) -> str:
    return f"{sheet.path.name}:{row.line}"
