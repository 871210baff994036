"""Text wrapped behind a prefix, and lines without blanks at their ends: they may be piped, and pasted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

#: A line holds this much text, however long the prefix is.
_LEAST_WIDTH = 20
#: Columns by which a line goes on further in than it began.
_FURTHER_IN = 4


@dataclass(frozen=True)
class Hanging:
    """A renderable: a prefix, then the text; its further lines begin below its first one."""

    prefix: Text
    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width - self.prefix.cell_len, _LEAST_WIDTH)
        below = Text(" " * self.prefix.cell_len)
        for number, line in enumerate(self.text.wrap(console, width, overflow="fold")):
            line.rstrip()
            yield Text.assemble(below if number else self.prefix, line)


@dataclass(frozen=True)
class Trimmed:
    """A renderable: another one, without blanks at the ends of its lines."""

    whole: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.whole, options, pad=False):
            yield from _trimmed(line)
            yield Segment.line()


def fitting(console: Console, line: str) -> Iterator[Text]:
    """A line as one or more that fit a console: broken between words, and going on further in."""
    if cell_len(line) <= console.width:
        yield Text(line)
        return
    blanks = len(line) - len(line.lstrip())
    further = Text(" " * (blanks + _FURTHER_IN))
    width = max(console.width - further.cell_len, _LEAST_WIDTH)
    for number, part in enumerate(Text(line[blanks:]).wrap(console, width, overflow="fold")):
        part.rstrip()
        yield (further if number else further[:blanks]) + part


def _trimmed(line: list[Segment]) -> Iterator[Segment]:
    kept = len(line)
    while kept and not line[kept - 1].text.strip():
        kept -= 1
    yield from line[: kept - 1] if kept else ()
    if kept:
        last = line[kept - 1]
        yield Segment(last.text.rstrip(), last.style)
