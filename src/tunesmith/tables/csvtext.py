"""CSV that is written back as it was read: cells as text, and beside them a record of quotes and line ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tunesmith.errors import BadInput

BOM = "\ufeff"
#: A cell in quotes, with blanks around it, up to the comma or the line's end.
_QUOTED = re.compile(r'[ \t]*"((?:[^"]|"")*)"[ \t]*(?=[,\r\n]|\Z)')
_PLAIN = re.compile(r"[^,\r\n]*")
_END = re.compile(r"\r?\n|\r|\Z")


@dataclass(frozen=True)
class Style:
    """How rows are spelled.

    Attributes:
        newline: the usual line end.
        ends: the others, by row; the last row's is often empty.
        quoted: (cell, text) of the cells that stand in quotes, by (row, column).
        bom: whether the file begins with a byte order mark.
    """

    newline: str = "\n"
    ends: Mapping[int, str] = field(default_factory=dict[int, str])
    quoted: Mapping[tuple[int, int], tuple[str, str]] = field(default_factory=dict[tuple[int, int], tuple[str, str]])
    bom: bool = False


@dataclass(frozen=True)
class Document:
    """A CSV text.

    Attributes:
        rows: cells as text, blanks around them among it; a blank line is a row of no cells.
        lines: each row's line in the file, from 1.
    """

    rows: tuple[tuple[str, ...], ...]
    style: Style = Style()
    lines: tuple[int, ...] = field(default=(), compare=False)

    def line(self, row: int) -> int:
        """The line of a row, from 1."""
        return self.lines[row] if row < len(self.lines) else row + 1

    def replaced(self, row: int, column: int, text: str) -> Document:
        """The same with one cell set."""
        cells = list(self.rows[row])
        cells += [""] * (column + 1 - len(cells))  # a row may be short of its last cell
        cells[column] = text
        return self.with_rows({row: cells})

    def with_rows(self, rows: Mapping[int, Sequence[str]]) -> Document:
        """The same with some rows set, by number."""
        return replace(self, rows=tuple(tuple(rows[i]) if i in rows else row for i, row in enumerate(self.rows)))

    def appended(self, rows: Sequence[Sequence[str]]) -> Document:
        """The same with rows at the end. A last line without its end gets one."""
        ends = {row: end for row, end in self.style.ends.items() if row != len(self.rows) - 1 or end}
        return replace(self, rows=(*self.rows, *map(tuple, rows)), style=replace(self.style, ends=ends))

    def without(self, rows: set[int]) -> Document:
        """The same without some rows."""
        kept = [i for i in range(len(self.rows)) if i not in rows]
        new = {old: i for i, old in enumerate(kept)}
        ends = {new[row]: end for row, end in self.style.ends.items() if row in new}
        quoted = {(new[row], column): cell for (row, column), cell in self.style.quoted.items() if row in new}
        lines = tuple(self.lines[i] for i in kept if i < len(self.lines))
        style = replace(self.style, ends=ends, quoted=quoted)
        return Document(tuple(self.rows[i] for i in kept), style, lines)

    def data(self) -> bytes:
        """The text, encoded."""
        parts = [BOM] if self.style.bom else []
        for i, row in enumerate(self.rows):
            parts.append(",".join(self._spelled(i, j, cell) for j, cell in enumerate(row)))
            parts.append(self.style.ends.get(i, self.style.newline))
        return "".join(parts).encode()

    def _spelled(self, row: int, column: int, cell: str) -> str:
        known = self.style.quoted.get((row, column))
        if known is not None and known[0] == cell:
            return known[1]
        return '"' + cell.replace('"', '""') + '"' if re.search(r'[,\r\n]|^[ \t]*"', cell) else cell


def read(data: bytes) -> Document:
    """Parse CSV. A quote means something at the start of a cell alone.

    Raises:
        BadInput: naming the line, for text that is not UTF-8 and for a quote that is not closed.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"line {data.count(10, 0, error.start) + 1}: not UTF-8 text") from None
    bom = text.startswith(BOM)
    at, line = int(bom), 1
    rows: list[tuple[str, ...]] = []
    ends: list[str] = []
    lines: list[int] = []
    quoted: dict[tuple[int, int], tuple[str, str]] = {}
    while at < len(text):
        cells: list[str] = []
        lines.append(line)
        while True:
            cell, spelled, at = _cell(text, at, line)
            if spelled is not None:
                quoted[len(rows), len(cells)] = (cell, spelled)
                line += spelled.count("\n")
            cells.append(cell)
            if not text.startswith(",", at):
                break
            at += 1
        end = _END.match(text, at)
        assert end is not None
        at = end.end()
        line += 1
        rows.append(() if cells == [""] and (len(rows), 0) not in quoted else tuple(cells))
        ends.append(end.group())
    newline = Counter(ends[:-1] if ends and not ends[-1] else ends).most_common(1)
    usual = newline[0][0] if newline else "\n"
    return Document(
        tuple(rows), Style(usual, {i: end for i, end in enumerate(ends) if end != usual}, quoted, bom), tuple(lines)
    )


def _cell(text: str, at: int, line: int) -> tuple[str, str | None, int]:
    """(cell, its spelling where it stands in quotes, where it ends)."""
    match = _QUOTED.match(text, at)
    if match is not None:
        return match.group(1).replace('""', '"'), match.group(), match.end()
    plain = _PLAIN.match(text, at)
    assert plain is not None
    if plain.group().lstrip(" \t").startswith('"'):
        raise BadInput(f"line {line}: a quote is not closed, or something stands behind it")
    return plain.group(), None, plain.end()
