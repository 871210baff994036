"""Checks of aiter's CSV tables: times, errors, derived columns, duplicates, and rows that nothing reads."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from tunesmith.core.problem import FieldValue
from tunesmith.tables import aiter_csv, csvtext
from tunesmith.tables.sheet import Cells, Finding, Sheet

Identity: TypeAlias = tuple[tuple[str, FieldValue], ...]
#: Results further off than this part are wrong rather than rounded.
MOST_ERROR = 0.2
#: no chip does more TFLOP/s: a time that says so was never measured
MOST_TFLOPS = 40_000
#: what is printed with two decimals is off by so much
ROUNDING = 0.01
#: tables whose rows are one table for the runtime, by the end of the file's name, the longest first
FAMILIES = tuple(sorted((
    "bf16_tuned_gemm", "a8w8_tuned_gemm", "a8w8_bpreshuffle_tuned_gemm", "a8w8_blockscale_tuned_gemm",
    "a8w8_blockscale_bpreshuffle_tuned_gemm", "a4w4_blockscale_tuned_gemm", "a8w8_tuned_batched_gemm",
    "bf16_tuned_batched_gemm", "tuned_fmoe", "tuned_fhmoe", "tuned_grouped_fmoe",
), key=len, reverse=True))  # fmt: skip


def of_sheet(sheet: Sheet, upto: int, kernels: Collection[str] | None) -> list[Finding]:
    """What is wrong in one table; see `check.Options`. Rows name their chips themselves."""
    found = [*_unread(sheet), *_uncovered(sheet, upto)]
    if sheet.format.endswith("-untuned"):
        return found + _untidy(sheet)
    for row in sheet.rows:
        found += [sheet.finding(code, "error", why, row.line) for code, why in unusable(row, kernels)]
        found += [sheet.finding("derived", "warning", why, row.line) for why in _derived(row)]
    return found


def unusable(row: Cells, kernels: Collection[str] | None = None) -> list[tuple[str, str]]:
    """(code, why) a row must not be used: its time is none, its results were wrong, its kernel is not there."""
    found: list[tuple[str, str]] = []
    for name in ("us", "us1", "us2"):
        cell = row.facts.get(name)
        time = aiter_csv.number(cell) if cell else None
        if cell and (time is None or not math.isfinite(time) or time < 0 or (time == 0 and name == "us")):
            found.append(("time", f"{name}={cell}: a time is finite and above 0"))
    if row.facts.get("us") == "":
        found.append(("time", "us is empty: it was never measured"))
    for name in ("err_ratio", "errRatio", "err1", "err2"):
        cell = row.facts.get(name)
        error = aiter_csv.number(cell) if cell else None
        if error is not None and not error <= MOST_ERROR:
            found.append(("wrong", f"{name}={cell}: more than {MOST_ERROR:g} of the results were wrong"))
    for name in ("kernelName", "kernelName1", "kernelName2") if kernels is not None else ():
        kernel = (row.config or {}).get(name)
        if kernel and str(kernel) not in (kernels or ()):
            found.append(("kernel", f"kernel {kernel!r} is not compiled in"))
    return found


def _derived(row: Cells) -> list[str]:
    cells = {**{name: str(value) for name, value in row.key.items()}, **row.facts}
    meant, cell = aiter_csv.tflops(cells), row.facts.get("tflops", "")
    said = aiter_csv.number(cell) if cell else None
    if meant is None:
        return []
    if meant > MOST_TFLOPS:
        return [f"us={row.facts['us']} would be {meant:.0f} TFLOP/s: no chip does that"]
    if said is None or abs(said - meant) <= max(ROUNDING, aiter_csv.AGREES * meant):
        return []
    return [f"tflops={cell}, and its time says {meant:.2f}"]


def _unread(sheet: Sheet) -> list[Finding]:
    """Rows of sizes that the runtime pads to others before it looks."""
    found: list[Finding] = []
    size = sheet.levels[0][0]
    for group, rows in sheet.groups.items():
        unread = sheet.ladder(group).unread()
        for row in rows:
            value = row.key.get(size)
            if isinstance(value, int) and value in unread:
                instead = unread[value]
                said = f"{size}={value} is never looked for: the runtime pads it to {instead}"
                tune = f"; tune {instead} in its place" if sheet.format.endswith("-untuned") else ""
                found.append(sheet.finding("unreachable", "error", said + tune, row.line))
    return found


def _uncovered(sheet: Sheet, upto: int) -> list[Finding]:
    found: list[Finding] = []
    if not upto or sheet.format.endswith("-untuned"):
        return found
    size = sheet.levels[0][0]
    for group, rows in sheet.groups.items():
        runs = ", ".join(f"{first}…{last}" for first, last in sheet.ladder(group).uncovered(upto))
        if runs:
            of = ", ".join(f"{name}={value}" for name, value in group)
            said = f"{size} {runs} of 1…{upto} finds no row ({of})"
            found.append(sheet.finding("uncovered", "warning", said, rows[0].line))
    return found


def _untidy(sheet: Sheet) -> list[Finding]:
    """What tuners stumble over in a list of shapes."""
    document = sheet.document
    assert isinstance(document, csvtext.Document)
    found: list[Finding] = []
    blank = [document.line(i) for i, row in enumerate(document.rows) if not row]
    padded = [document.line(i) for i, row in enumerate(document.rows) if any(cell != cell.strip() for cell in row)]
    if blank:
        found.append(sheet.finding("blanks", "warning", f"{len(blank)} blank lines", blank[0]))
    if padded:
        found.append(sheet.finding("blanks", "warning", f"blanks around cells in {len(padded)} lines", padded[0]))
    if document.rows and document.style.ends.get(len(document.rows) - 1, "x") == "":
        said = "no line end after the last row: what is appended to the file joins it"
        found.append(sheet.finding("line-end", "warning", said, document.line(len(document.rows) - 1)))
    return found


def family(sheet: Sheet) -> str:
    """What a table's rows are merged under at run time."""
    stem = sheet.path.stem
    return next((name for name in FAMILIES if stem.endswith(name)), str(sheet.path))


def identity(row: Cells) -> Identity:
    """What the runtime looks a row up by: nothing of how it was found, or how fast it is."""
    return tuple(sorted((name, value) for name, value in row.key.items() if value != ""))


def across(sheets: Sequence[Sheet]) -> list[Finding]:
    """Rows of one shape and chip in one table, or in several that the runtime merges."""
    seen: defaultdict[str, dict[Identity, tuple[Sheet, Cells]]] = defaultdict(dict)
    found: list[Finding] = []
    for sheet in sheets:
        if not sheet.format.startswith(("aiter-gemm", "aiter-fmoe")):
            continue
        rows = seen[family(sheet)]
        for row in sheet.rows:
            key = identity(row)
            if key not in rows:
                rows[key] = (sheet, row)
                continue
            first, same = rows[key]
            where = f"{first.path.name + ' ' if first is not sheet else ''}line {same.line}"
            said = f"the same shape and chip as {where}" + _difference(same, row)
            severity = "warning" if _equal(same, row) else "error"
            found.append(sheet.finding("duplicate", severity, said, row.line))
    return found


def _equal(one: Cells, other: Cells) -> bool:
    return one.config == other.config and one.us == other.us


def _difference(one: Cells, other: Cells) -> str:
    if _equal(one, other):
        return ", and the same row"
    return f": {_what(one.facts)} there, {_what(other.facts)} here"


def _what(facts: Mapping[str, str]) -> str:
    return f"us={facts.get('us', '?')}"
