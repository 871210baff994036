"""Caches that online autotuners keep: FlashInfer's and TensorRT-LLM's. Keys are the text of a Python tuple."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path
from typing import Any, cast

from tunesmith.core.problem import FieldValue
from tunesmith.errors import BadInput
from tunesmith.tables import jsontext
from tunesmith.tables.jsontext import Document, Members
from tunesmith.tables.sheet import Cells, Finding, Sheet, microseconds

#: (operator, runner, shapes, extras)
FLASHINFER_KEY = 4
#: (operator, runner, its id, shapes)
TENSORRT_KEY = 4
#: What text raises that is no Python literal: a set of lists, an integer of thousands of digits, a million brackets.
NOT_LITERAL = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)


def is_flashinfer(value: Any) -> bool:
    """Whether a JSON is a cache of FlashInfer's."""
    return isinstance(value, Members) and isinstance(value.get("_metadata"), Members)


def read_flashinfer(path: Path, document: Document) -> Sheet:
    """`"(op, runner, shapes, extras)": [runner, tactic]` beside `_metadata`."""
    about = {f"metadata.{key}": value for key, value in document.value.get("_metadata") if isinstance(value, str)}
    rows: list[Cells] = []
    faults: list[Finding] = []
    for step, key, entry in document.value.steps():
        if key.startswith("_"):
            continue
        said = jsontext.plain(entry)
        fine = isinstance(said, list) and len(cast("list[Any]", said)) == 2
        row, fault = _row(path, document.line((step,)), (step,), key, FLASHINFER_KEY)
        if row is None or not fine:
            what = fault or Finding(path, document.line((step,)), "value", "error", f"{key}: not [runner, tactic]")
            faults.append(what)
            continue
        runner, tactic = cast("list[Any]", said)
        rows.append(Cells(row, {"runner": runner, "tactic": tactic}, document.line((step,)), (step,)))
    fields = cast("dict[str, FieldValue]", about)
    return Sheet("flashinfer", path, document, tuple(rows), (), None, None, fields, tuple(faults))


def is_tensorrt(value: Any) -> bool:
    """Whether a JSON is a cache of TensorRT-LLM's."""
    return isinstance(value, Members) and isinstance(value.get("metadata"), Members) and value.get("shared") is not None


def read_tensorrt(path: Path, document: Document) -> Sheet:
    """`shared` and `rank_N`: `"(op, runner, id, shapes)": {runner_id, tactic, min_time}` beside `metadata`."""
    about: dict[str, FieldValue] = {
        f"metadata.{key}": str(jsontext.plain(value)) for key, value in document.value.get("metadata")
    }
    rows: list[Cells] = []
    faults: list[Finding] = []
    for step, part, entries in document.value.steps():
        for inner, key, entry in entries.steps() if part != "metadata" and isinstance(entries, Members) else ():
            place: jsontext.Path = (step, inner)
            fields, fault = _row(path, document.line(place), place, key, TENSORRT_KEY)
            config = jsontext.plain(entry)
            if fields is None or not isinstance(config, dict):
                what = fault or Finding(path, document.line(place), "value", "error", f"{key}: no object")
                faults.append(what)
                continue
            knobs = cast("dict[str, Any]", config)
            us = microseconds(knobs.get("min_time"), 1e3)
            rows.append(Cells({**fields, "part": part}, knobs, document.line(place), place, us))
    return Sheet("tensorrt-llm", path, document, tuple(rows), (), None, None, about, tuple(faults))


def _row(
    path: Path, line: int, place: jsontext.Path, key: str, parts: int
) -> tuple[dict[str, FieldValue] | None, Finding | None]:
    try:
        found = _parts(key)
    except NOT_LITERAL:
        return None, Finding(path, line, "key", "error", f"key {key[:60]!r} is no tuple")
    if len(found) != parts:
        said = f"key {key[:60]!r} has {len(found)} parts, its reader makes keys of {parts}: never found"
        return None, Finding(path, line, "unreachable", "error", said)
    return {"op": found[0], "runner": found[1], "rest": f"[{', '.join(found[2:])}]"}, None


def _parts(text: str) -> list[str]:
    """A key's parts as text, none of what is no tuple. Literals alone are read: nothing is run.

    Raises:
        ValueError, SyntaxError, TypeError, RecursionError, MemoryError: see `NOT_LITERAL`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the parser's, of odd escapes in strings
        found: Any = ast.literal_eval(text)
    items: list[Any] = list(cast("tuple[Any, ...]", found)) if isinstance(found, tuple) else []
    return [*map(str, items[:2]), *map(repr, items[2:])]


def read_bundled(path: Path, source: str) -> tuple[list[tuple[Any, ...]], list[Finding]]:
    """The keys of a table that FlashInfer ships as Python source, and those that its reader never makes.

    The source is parsed, never run.

    Raises:
        BadInput: for source that does not parse.
    """
    try:
        tree = ast.parse(source)
    except NOT_LITERAL as error:
        raise BadInput(f"{path} is not Python: {error}") from None
    keys: list[tuple[Any, ...]] = []
    faults: list[Finding] = []
    for node in ast.walk(tree):
        for key in node.keys if isinstance(node, ast.Dict) else ():
            try:
                found: Any = ast.literal_eval(key) if key is not None else None
            except NOT_LITERAL:
                continue
            if not isinstance(found, tuple):
                continue
            items = cast("tuple[Any, ...]", found)
            keys.append(items)
            if len(items) != FLASHINFER_KEY:
                said = f"a key of {len(items)} parts, its reader makes keys of {FLASHINFER_KEY}: never found"
                faults.append(Finding(path, getattr(key, "lineno", 0), "unreachable", "error", said))
    return keys, faults
