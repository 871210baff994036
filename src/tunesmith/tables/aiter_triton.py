"""aiter's JSON tables for its Triton kernels: bounds on M, `M_LEQ_64`, `M_GEQ_4096`, `any`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.core.problem import FieldValue
from tunesmith.tables import jsontext
from tunesmith.tables.jsontext import Members
from tunesmith.tables.sheet import Cells, Finding, Sheet

#: The bounds that the reader asks for, one after the other; no other is ever read.
BOUNDS = (1, 4, 8, *(2**i for i in range(4, 14)))
#: As the reader spells a bound: no zeros before it, ASCII digits, no longer than any size.
_KEY = re.compile(r"M_(LEQ|GEQ)_(0|[1-9][0-9]{0,17})\Z")
#: `gfx950-GEMM-A16W16-N=128-K=5120.json`, `GEMM-AFP4WFP4-N=8192-K=1024.json`
_NAME = re.compile(
    r"(?:(?P<arch>gfx\w+?)-)?(?P<kernel>[A-Z0-9_]+(?:-[A-Z0-9_]+)*?)(?:-N=(?P<N>[0-9]+)-K=(?P<K>[0-9]+))?\.json\Z"
)


def matches(path: Path, value: Any) -> bool:
    """Whether a JSON is one of these."""
    return isinstance(value, Members) and any(key == "any" or _KEY.match(key) for key, _ in value)


def read(path: Path, document: jsontext.Document) -> Sheet:
    """The table: rows by `bound`. Members that are text are notes."""
    rows: list[Cells] = []
    faults: list[Finding] = []
    about: dict[str, FieldValue] = {}
    match = _NAME.match(path.name)
    if match:
        sizes = {name: int(match.group(name)) for name in "NK" if match.group(name)}
        about |= {"kernel": match.group("kernel"), "tuned": bool(sizes), **sizes}
        if match.group("arch"):
            about["arch"] = match.group("arch")
    for step, key, value in document.value.steps():
        line = document.line((step,))
        if isinstance(value, str) and key.startswith("_"):
            about[key] = value
        elif not isinstance(value, Members):
            faults.append(Finding(path, line, "value", "error", f"{key!r} is no object of knobs; it is skipped"))
        elif key != "any" and not _KEY.match(key):
            faults.append(Finding(path, line, "key", "error", f"{key!r} is no bound: M_LEQ_64, M_GEQ_64 or any"))
        else:
            rows.append(Cells({"bound": key}, jsontext.plain(value), line, (step,)))
    return Sheet("aiter-triton", path, document, tuple(rows), (), None, None, about, tuple(faults))


@dataclass(frozen=True, slots=True)
class Bound:
    """Which row a size gets, and why: `str` of it."""

    size: int
    row: Cells | None
    why: str

    def __str__(self) -> str:
        return f"M={self.size} → {self.why}"


def find(sheet: Sheet, size: int) -> Bound:
    """The row of a size, as the reader finds it: the known upper bounds in order, the lower ones falling, `any`."""
    rows: Mapping[FieldValue, Cells] = {row.key["bound"]: row for row in sheet.rows}
    for bound in BOUNDS:
        if size <= bound and f"M_LEQ_{bound}" in rows:
            return Bound(size, rows[f"M_LEQ_{bound}"], f"M_LEQ_{bound}")
    lower = sorted((edge for edge in map(_lower, rows) if edge is not None), reverse=True)
    for bound in lower:
        if size >= bound:
            return Bound(size, rows[f"M_GEQ_{bound}"], f"M_GEQ_{bound}")
    if "any" in rows:
        return Bound(size, rows["any"], "any")
    return Bound(size, None, "no row: no bound holds, and there is no 'any'")


def _lower(key: FieldValue) -> int | None:
    match = _KEY.match(str(key))
    return int(match.group(2)) if match and match.group(1) == "GEQ" else None


def dead(sheet: Sheet) -> list[tuple[Cells, str]]:
    """Rows that no size leads to, and why."""
    found: list[tuple[Cells, str]] = []
    for row in sheet.rows:
        match = _KEY.match(str(row.key["bound"]))
        if match is None:
            continue
        bound = int(match.group(2))
        if match.group(1) == "LEQ" and bound not in BOUNDS:
            found.append((row, f"its reader asks for the bounds {', '.join(map(str, BOUNDS))} alone"))
        elif match.group(1) == "GEQ" and _shadowed(sheet, bound):
            found.append((row, "upper bounds and larger lower ones answer first for all its sizes"))
    return found


def _shadowed(sheet: Sheet, bound: int) -> bool:
    """Whether upper bounds, or a larger lower one, take every size from `bound` on."""
    probes = [bound, *(edge + 1 for edge in BOUNDS if edge >= bound), 2 * max(bound, BOUNDS[-1])]
    return all(find(sheet, size).why != f"M_GEQ_{bound}" for size in probes)
