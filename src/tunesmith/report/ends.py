"""How several searches ended: a row for each, broken between fields and knobs however narrow the terminal is."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

#: Where a table is broken, the gaps between its columns are two wide from so many columns on.
_WIDE = 100


@dataclass(frozen=True, slots=True)
class End:
    """One search: what was asked, a cell for each heading, and the Config or why there is none."""

    asked: str
    cells: Sequence[str]
    last: str
    failed: bool


@dataclass(frozen=True)
class EndTable:
    """A renderable. What was asked has at most a quarter of the width, but no field of it is broken for that."""

    headings: Sequence[str]
    ends: Sequence[End]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._table(2, 10_000)
        if Measurement.get(console, options.update(width=10_000), whole).maximum <= options.max_width:
            yield whole
        else:
            yield self._table(2 if options.max_width >= _WIDE else 1, options.max_width // 4)

    def _table(self, gap: int, asked_width: int) -> Table:
        table = Table(box=None, header_style="bold", padding=(0, gap, 0, 0), pad_edge=False)
        table.add_column("problem", no_wrap=True)
        for heading in self.headings:
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("Config", overflow="fold")
        for end in self.ends:
            asked = _broken(end.asked.replace(",", ", "), asked_width)
            table.add_row(*map(Text, (asked, *end.cells, end.last)), style="red" if end.failed else "")
        return table


def _broken(text: str, width: int) -> str:
    """Broken at blanks; within a word only where that is longer than half as much again."""
    longest = max((len(word) for word in text.split()), default=0)
    return textwrap.fill(text, min(max(width, longest), width * 3 // 2), break_on_hyphens=False)
