"""aiter's CSV tables: the bf16, a8w8, blockscale, batched, mx and fused-MoE headers, tuned and untuned."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tunesmith.core.problem import FieldValue, read_value
from tunesmith.errors import ProblemError
from tunesmith.tables import csvtext
from tunesmith.tables.policy import RULES
from tunesmith.tables.sheet import Cells, Finding, Sheet

#: columns that say for what a row is, as we spell them; `_tag` tells apart rows for different paths of the same shape
KEYS = (
    "gfx", "cu_num", "B", "M", "N", "K", "bias", "dtype", "outdtype", "scaleAB", "bpreshuffle", "q_dtype_w",
    "a_dtype", "b_dtype", "token",
    "model_dim", "inter_dim", "expert", "topk", "act_type", "q_dtype_a", "q_type", "use_g1u1", "doweight_stage1",
    "gate_mode", "_tag",
)  # fmt: skip
#: columns that say how long it took and how well it did
METRICS = ("us", "us1", "us2", "err1", "err2", "err_ratio", "errRatio", "tflops", "bw")
#: columns that hold a truth value
FLAGS = ("run_1stage", "flat", "xbf16", "use_g1u1", "doweight_stage1", "bias", "scaleAB", "bpreshuffle")
#: columns that hold a whole number
SIZES = ("cu_num", "B", "M", "N", "K", "token", "model_dim", "inter_dim", "expert", "topk")
_SPELLED = {name.lower(): name for name in (*KEYS, *METRICS, *FLAGS)}
_TRUTHS = frozenset({"0", "1", "true", "false", "0.0", "1.0", ""})
#: how far `tflops` may be from what the time says
AGREES = 0.05
#: columns that tell such a table from any other CSV
GEMM, FMOE = frozenset("MNK"), frozenset({"token", "model_dim", "inter_dim", "expert", "topk"})
#: compute units of the chips of which a table without `gfx` can only mean one
GFX_OF_UNITS = {"80": "gfx942", "304": "gfx942"}
_INT = re.compile(r"[+-]?\d+\Z")


def columns_of(document: csvtext.Document) -> list[str]:
    """The header without blanks; known names as we spell them, whatever their case."""
    header = next((row for row in document.rows if row), ())
    return [_SPELLED.get(cell.strip().lower(), cell.strip()) for cell in header]


def matches(document: csvtext.Document) -> bool:
    """Whether a CSV is one of these."""
    columns = set(columns_of(document))
    return columns.issuperset(GEMM) or columns.issuperset(FMOE)


def read(path: Path, document: csvtext.Document) -> Sheet:
    """The table. Rows that do not fit the header are faults, with their line; cells are never shifted."""
    header_at = next((i for i, row in enumerate(document.rows) if row), 0)
    columns = columns_of(document)
    fmoe, tuned = FMOE.issubset(columns), bool({"us", "kernelName", "kernelId", "solidx"} & set(columns))
    rows: list[Cells] = []
    faults = _header_faults(path, document, columns, header_at)
    for i, cells in enumerate(document.rows):
        if i <= header_at or not cells or cells[0].lstrip().startswith("#"):
            continue
        fitted, fault = _fitted(path, document, i, columns)
        if fault is not None:
            faults.append(fault)
        if fitted is None:
            continue
        row = _row(document, i, columns, fitted)
        if "cu_num" in row.key and "gfx" not in row.key:
            said = f"no gfx column, and {row.key['cu_num']} units are those of more than one chip: the row is skipped"
            faults.append(Finding(path, row.line, "device", "error", said))
        else:
            rows.append(row)
    kind = ("aiter-fmoe" if fmoe else "aiter-gemm") + ("" if tuned else "-untuned")
    size = "token" if fmoe else "M"
    rule = RULES["aiter-fmoe" if fmoe else "aiter-gemm"]
    about: dict[str, FieldValue] = {"columns": ",".join(columns)}
    return Sheet(
        kind, path, document, tuple(rows), ((size, rule),), None, None, about, tuple(faults),
        wide_field="" if fmoe else "N",
    )  # fmt: skip


def _header_faults(path: Path, document: csvtext.Document, columns: Sequence[str], header_at: int) -> list[Finding]:
    line = document.line(header_at)
    header = document.rows[header_at] if document.rows else ()
    found = [
        Finding(path, line, "blanks", "error", f"column {cell!r} has blanks: its reader makes another column of it")
        for cell in header if cell != cell.strip()
    ]  # fmt: skip
    twice = sorted({name for name in columns if name and list(columns).count(name) > 1})
    return found + [Finding(path, line, "duplicate", "error", f"column {name!r} is there twice") for name in twice]


def _fitted(
    path: Path, document: csvtext.Document, i: int, columns: Sequence[str]
) -> tuple[tuple[str, ...] | None, Finding | None]:
    """The cells of a row, as many as there are columns; and what is wrong with it.

    One cell too few at the end is an empty last cell, where what is there still fits its columns; otherwise the row
    cannot be read: which cell is missing is anyone's guess.
    """
    cells, line = tuple(cell.strip() for cell in document.rows[i]), document.line(i)
    more = len(cells) - len(columns)
    if more > 0 and not any(cells[len(columns) :]):  # an empty trailing column
        cells, more = cells[: len(columns)], 0
    if not more:
        wrong = _misfits(cells, columns)
        if wrong:
            return None, Finding(path, line, "shifted", "error", f"{wrong}; the row is skipped")
        return cells, None
    counted = f"{len(cells)} cells of {len(columns)}"
    if more == -1 and not _misfits(cells, columns) and _only_the_last_is_missing(cells, columns):
        said = f"{counted}: the last, {columns[-1]!r}, is taken as empty"
        return (*cells, ""), Finding(path, line, "ragged", "warning", said)
    return None, Finding(path, line, "ragged", "error", f"{counted}: the row is skipped, cells are never shifted")


def _misfits(cells: Sequence[str], columns: Sequence[str]) -> str:
    """What shows that cells stand in another's column: a time that is no number, a size that is no integer."""
    for name, cell in zip(columns, cells, strict=False):
        if name in SIZES and not _INT.match(cell):
            return f"{name} is {cell!r}, not an integer"
        if name in METRICS and cell and number(cell) is None:
            return f"{name} is {cell!r}, not a number"
        if name in FLAGS and cell.lower() not in _TRUTHS:
            return f"{name} is {cell!r}, not a truth value"
    return ""


def _only_the_last_is_missing(cells: Sequence[str], columns: Sequence[str]) -> bool:
    """Of a row that is one short. Where the last column is a number like those before it, the others must agree."""
    if columns[-1] not in METRICS:
        return True
    found = dict(zip(columns, cells, strict=False))
    said, meant = number(found.get("tflops", "")), tflops(found)
    return said is not None and meant is not None and abs(said - meant) < AGREES * meant


def tflops(cells: Mapping[str, object]) -> float | None:
    """What a GEMM's time makes of its sizes, in TFLOP/s; `None` where they are not there."""
    try:
        m, n, k, us = (float(str(cells[name])) for name in ("M", "N", "K", "us"))
        batch = float(str(cells.get("B", 1)))
    except (KeyError, ValueError):
        return None
    return 2 * batch * m * n * k / us / 1e6 if us > 0 and math.isfinite(us) else None


def number(cell: str) -> float | None:
    """A cell's number; a percentage is a part of 1. `None` for text that is none."""
    text, part = (cell[:-1], 0.01) if cell.endswith("%") else (cell, 1.0)
    try:
        return float(text) * part
    except ValueError:
        return None


def _row(document: csvtext.Document, i: int, columns: Sequence[str], cells: Sequence[str]) -> Cells:
    key: dict[str, FieldValue] = {}
    config: dict[str, FieldValue] = {}
    facts: dict[str, str] = {}
    for name, cell in zip(columns, cells, strict=True):
        if name in KEYS:
            key[name] = _value(cell)
        elif name in METRICS:
            facts[name] = cell
        elif name:
            config[name] = _value(cell)
    if "gfx" not in key and str(key.get("cu_num")) in GFX_OF_UNITS:
        key["gfx"] = GFX_OF_UNITS[str(key["cu_num"])]
    us = number(facts["us"]) if facts.get("us") else None
    return Cells(key, config, document.line(i), i, us, facts)


def _value(cell: str) -> FieldValue:
    try:
        value = read_value(cell)
    except ProblemError:
        return cell
    return cell if isinstance(value, float) and not math.isfinite(value) else value
