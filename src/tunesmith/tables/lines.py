"""Rows of our own table that are parsed when they are asked for: a table of 100 000 is there in a tenth of a second.

A file is read whole once, and each row looked at. If all make sense and stand as `write` puts them, its digest is noted
in the cache directory. A file of that digest is then cut into lines alone. Nothing but the digest is kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tunesmith.core.config import Config
from tunesmith.core.problem import Problem
from tunesmith.files import write_whole
from tunesmith.options import options

#: Below this a table is read in no time anyway.
WORTH_NOTING_BYTES = 100_000
_ROWS = b'\n  "rows": {\n'
_END = [b"  }", b"}", b""]
_INDENT = len(b'    "')


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a table.

    Attributes:
        median_s: its time when it was measured.
        provenance: where it comes from (when it was found, on which exact Problem), for people.
        called: for calls one by one, outside of a CUDA graph; `None`: the same.
    """

    config: Config
    median_s: float | None = None
    provenance: Mapping[str, str] = field(default_factory=dict[str, str])
    called: Config | None = None


def row_of(text: str, row: Any) -> tuple[Problem, Entry]:
    """A row's Problem and what it says.

    Raises:
        ValueError: for a row that makes no sense.
    """
    try:
        text.encode()  # half of a surrogate pair is no text
        return Problem.parse(text), entry_of(row)
    except (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def entry_of(row: Any) -> Entry:
    """What a row says; see `row_of`."""
    if not isinstance(row, dict) or not isinstance(cast("dict[str, Any]", row).get("config"), dict):
        raise ValueError("it has no 'config' of knobs")
    row = cast("dict[str, Any]", row)
    median_s = row.get("median_s")
    if median_s is not None and not (type(median_s) in (int, float) and 0 < median_s < math.inf):
        raise ValueError(f"'median_s' is {median_s!r}: a duration is finite and above 0")
    provenance = {str(name): str(value) for name, value in row.get("provenance", {}).items()}
    called = row.get("called")
    if called is not None and not isinstance(called, dict):
        raise ValueError(f"'called' is {called!r}, not knobs")
    seconds = None if median_s is None else float(median_s)
    return Entry(Config(row["config"]), seconds, provenance, None if called is None else Config(cast("Any", called)))


class LineRows(Mapping[Problem, Entry]):
    """The rows of a file that was looked at before, by the text of their Problems."""

    def __init__(self, lines: dict[bytes, bytes]) -> None:
        self._lines = lines

    def __getitem__(self, problem: Problem) -> Entry:
        key = problem.text.encode()
        return entry_of(json.loads(self._lines[key][_INDENT + len(key) + len(b'": ') :].rstrip(b",")))

    def __iter__(self) -> Iterator[Problem]:
        return (Problem.parse(key.decode()) for key in self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def are(self, texts: Sequence[str]) -> bool:
        """Whether these are the rows, each on a line that begins with just this key."""
        keys = [text.encode() for text in texts]
        return keys == list(self._lines) and all(self._lines[key].startswith(b'    "%b": {' % key) for key in keys)


@dataclass(frozen=True, slots=True)
class Checked:
    """A file that was looked at before: its head, and its rows as lines."""

    head: Mapping[str, Any]
    rows: LineRows


def checked_before(content: bytes) -> Checked | None:
    """The table of a file of which every row is known to make sense; `None` where that is not known."""
    if len(content) < WORTH_NOTING_BYTES or not _mark(content).exists():
        return None
    split = _split(content)
    return None if split is None else Checked(*split)


def note_checked(content: bytes, texts: Sequence[str]) -> None:
    """Note that every row of a file makes sense.

    Args:
        texts: the Problems, as they are spelled when they are looked up.
    """
    if len(content) < WORTH_NOTING_BYTES or options().read_only:
        return
    split = _split(content)
    if split is None or not split[1].are(texts):
        return  # edited by hand: it is read whole each time
    mark = _mark(content)
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        write_whole(mark, b"")
    except OSError:  # a cache that cannot be written: the next start reads the file whole again
        return


def _split(content: bytes) -> tuple[Mapping[str, Any], LineRows] | None:
    start = content.find(_ROWS)
    lines = content.split(b"\n")
    if start < 0 or lines[-len(_END) :] != _END:
        return None
    try:
        head: dict[str, Any] = json.loads(content[:start].rstrip(b",") + b"\n}")
    except ValueError:  # what was taken for the rows stands within something else
        return None
    first = content.count(b"\n", 0, start) + _ROWS.count(b"\n")
    keyed = {line[_INDENT : line.find(b'"', _INDENT)]: line for line in lines[first : -len(_END)]}
    return (head, LineRows(keyed)) if len(keyed) == len(lines) - len(_END) - first else None


def _mark(content: bytes) -> Path:
    return options().cache_dir / "tables" / f"{hashlib.sha256(content).hexdigest()}.checked"
