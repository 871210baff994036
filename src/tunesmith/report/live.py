"""Lines that are redrawn in place on a terminal and in a notebook; in a log, plain ones with the time of day."""

from __future__ import annotations

import errno
import io
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from tunesmith.report.hanging import fitting
from tunesmith.report.signs import harmless, showable

#: In a log, a line at most this often at first, between those that say something new ...
LOG_EVERY_S = 10.0
#: ... then whenever the time has grown by this part, and at least this often.
LOG_PART, LOG_SELDOM_S = 0.1, 60.0
#: Columns of a notebook's output, which says no width.
NOTEBOOK_WIDTH = 110


class _Console(Console):
    """One whose broken pipe is an error like any other: rich's own ends the process, and standard output with it.

    Of what it is given to print nothing commands the terminal.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else harmless(text), style, control)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def answers() -> Console:
    """The console of answers: standard output."""
    return _Console(file=showable(sys.stdout))


def asides() -> Console:
    """The console of progress: standard error."""
    return _Console(file=showable(sys.stderr), stderr=True)


def put(console: Console, text: str) -> None:
    """Print lines: as they are into a file, wrapped between words on a terminal."""
    for line in text.splitlines() or [""]:
        for part in fitting(console, line) if console.is_terminal else (Text(line),):
            console.print(part, soft_wrap=True)


def log_every_s(gone_s: float) -> float:
    """How long a log is silent where nothing new is to be said, after so many seconds.

    >>> [log_every_s(s) for s in (1, 200, 36000)]
    [10.0, 20.0, 60.0]
    """
    return max(LOG_EVERY_S, min(LOG_SELDOM_S, LOG_PART * gone_s))


class LiveLines:
    """Some lines in place, and lines above them that stay.

    What they tell of goes on where they cannot be written any more: a log on a full disk, a terminal that was closed.

    Args:
        console: where to.
        render: what the lines are now.
    """

    def __init__(self, console: Console, render: Callable[[], RenderableType]) -> None:
        self._console, self._render = console, render
        self._live: Live | None = None
        self._cell: Any = None  # a notebook's display, which is replaced
        self._mute = False

    @property
    def animated(self) -> bool:
        """Whether lines can be redrawn in place. A log stays plain, even one that asked for colours."""
        return self._in_notebook or (self._console.is_interactive and self._console.file.isatty())

    @property
    def shown(self) -> bool:
        """Whether there are any in place."""
        return self._live is not None or self._cell is not None

    @property
    def _in_notebook(self) -> bool:
        return self._console.is_jupyter and "IPython" in sys.modules

    def redraw(self) -> None:
        """Show what the lines are now; not in a log."""
        if not self._mute:
            with self._muted_by_failure():
                self._redraw()

    def line(self, text: str) -> None:
        """A line that stays; in a log with the time of day before it."""
        if not self._mute:
            with self._muted_by_failure():
                self._line(text)

    def close(self) -> None:
        """Take the lines away."""
        with self._muted_by_failure():
            self._close()

    @contextmanager
    def _muted_by_failure(self) -> Generator[None]:
        """Within this scope, a stream that can't be written to is the end of what is said: nobody is left to tell."""
        try:
            yield
        except OSError:
            self._mute = True

    def _redraw(self) -> None:
        if self._in_notebook:
            self._show_in_cell()
            return
        if self._live is None:
            # What a kernel prints goes above the lines, unless standard output leads elsewhere.
            self._live = Live(
                get_renderable=self._render, console=self._console, auto_refresh=False, transient=True,
                redirect_stdout=sys.stdout.isatty(), redirect_stderr=True,
            )  # fmt: skip
            self._live.start()
        self._live.refresh()

    def _line(self, text: str) -> None:
        if self._in_notebook:
            sys.stdout.write(f"{text}\n")  # such lines are joined in one output, where displays are one each
            return
        if self.animated:
            put(self._console, text)
        else:  # text as it is: of a str rich makes `:a:` a sign
            self._console.print(Text(f"{time.strftime('%H:%M:%S')} {text}"), soft_wrap=True)

    def _close(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
        if self._cell is not None:
            self._cell.update({"text/plain": ""}, raw=True)
            self._cell = None

    def _show_in_cell(self) -> None:
        """Plain text in the cell's output: a display that can be replaced knows no control codes."""
        out = io.StringIO()
        plain = Console(file=out, width=NOTEBOOK_WIDTH, force_jupyter=False, force_terminal=False, color_system=None)
        plain.print(self._render())
        said = {"text/plain": out.getvalue().rstrip("\n")}
        if self._cell is None:
            self._cell = import_module("IPython.display").display(said, raw=True, display_id=True)
        else:
            self._cell.update(said, raw=True)
