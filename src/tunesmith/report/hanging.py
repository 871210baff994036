"""Text that is wrapped behind a prefix, without blanks at the ends of its lines: it may be piped, and pasted."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

#: A line holds this much text, however long the prefix is.
_LEAST_WIDTH = 20


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
