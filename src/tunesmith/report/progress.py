"""What a search says while it works: live lines on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tunesmith.core.config import Config
from tunesmith.core.outcome import Measured
from tunesmith.events import Compiled, Compiling, Decided, Event, Preparing, Racing, Sampled, Started, Summary, Tried
from tunesmith.report.hanging import Hanging
from tunesmith.report.live import LiveLines, asides, log_every_s
from tunesmith.report.units import count, duration, first_line, problem_line, spent
from tunesmith.search import Step
from tunesmith.tune import is_searching
from tunesmith.turns import Turns

#: Drawing takes a millisecond or two; more often than this nobody reads it.
REDRAW_S = 0.2
#: Columns of a bar, where there are so many.
BAR = 24
#: How much is said: nothing, where a search stands, or each candidate's fate too.
Detail: TypeAlias = Literal["quiet", "usual", "verbose"]


@dataclass
class _View:
    """One search as far as it was heard of."""

    begun: Started
    at: float  # seconds on the Progress's clock
    compiling: bool = False
    to_compile: int = 0
    compiled: int = 0
    failed: int = 0
    alive: int = 0  # candidates of the last full round
    round: int = 0
    in_round: set[Config] = field(default_factory=set[Config])
    best: tuple[float, Config] | None = None

    def hear(self, event: Compiling | Compiled | Racing | Sampled) -> None:
        match event:
            case Compiling(total):
                self.compiling, self.to_compile = True, self.to_compile + total
            case Compiled(_, failure):
                self.compiled += 1
                self.failed += failure is not None
            case Racing(total):
                self.compiling, self.alive, self.round = False, total, 0
                self.in_round.clear()
            case Sampled(_, leader, leader_s, number) if number < 0:
                self.best = (leader_s, leader)
            case Sampled(config, leader, leader_s, number):
                if number != self.round:
                    self.round, self.alive = number, len(self.in_round)
                    self.in_round.clear()
                self.in_round.add(config)
                self.best = (leader_s, leader)

    @property
    def name(self) -> str:
        return f"{self.begun.kernel}({problem_line(self.begun.problem)})"

    @property
    def space(self) -> str:
        """`288 points: 100 cut, 20 in the store`."""
        cut = sum(self.begun.cut.values())
        return f"{count(self.begun.cardinality, 'point')}: {cut:,} cut, {self.begun.known:,} in the store"

    @property
    def compilation(self) -> str:
        return f"compiled {self.compiled:,}/{self.to_compile:,} ({self.failed:,} failed)"

    @property
    def race(self) -> str:
        return f"measuring round {self.round + 1}: {len(self.in_round):,}/{self.alive:,} of the candidates left"

    @property
    def leader(self) -> str:
        return "" if self.best is None else f"best so far {duration(self.best[0])} {self.best[1]!r}"

    def budget(self, now: float) -> str:
        gone_s = now - self.at
        if self.begun.budget_s is None:
            return f"{spent(gone_s)} so far, no budget set"
        return f"{spent(gone_s)} so far, {spent(max(0.0, self.begun.budget_s - gone_s))} of the budget left"


class Progress:
    """A watcher for `events.watched`: shows what every search of the scope does.

    It draws between samples, and while compilers run from a thread of its own too: never while a kernel is timed.

    Args:
        console: where to; standard error where not given.
        total: how many searches there will be, where that is known.
        now: the clock, in seconds.
        detail: how much is said.
    """

    def __init__(
        self, console: Console | None = None, total: int | None = None, now: Callable[[], float] = time.monotonic,
        detail: Detail = "usual",
    ) -> None:  # fmt: skip
        self._lines = LiveLines(console or asides(), self._render)
        self._total, self._now, self._detail = total, now, detail
        self._number = 0
        self._views: list[_View] = []
        self._last = self._began = now()
        self._ticker: tuple[threading.Thread, threading.Event] | None = None
        self._showing = threading.Lock()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, event: Event) -> None:
        if self._detail == "quiet" or isinstance(event, Decided):
            return
        if isinstance(event, Started):
            self._start(event)
            return
        if isinstance(event, Preparing):
            if not is_searching():  # the search that may follow is this one of so many
                self._number, self._total = event.number - 1, event.total
            return
        if not self._views:  # entered in the middle of a search
            return
        view = self._views[-1]
        if isinstance(event, Summary):
            self._finish(view, event)
        elif isinstance(event, Step):
            self._line(view, f"{event}: {duration(event.seconds)} {event.config!r}")
        elif isinstance(event, Tried):
            if self._detail == "verbose":
                self._line(view, _tried(event))
        else:
            view.hear(event)
            self._staged(view, event)

    def close(self) -> None:
        """Take the live lines off the terminal."""
        self._stop_ticking()
        self._views.clear()
        self._lines.close()

    # --- one search ------------------------------------------------------------------------------

    def _start(self, event: Started) -> None:
        if not is_searching():  # not inside another: whatever is still open was interrupted
            self.close()
            self._number += 1
            if self._total is not None and self._number > self._total:  # all that were announced are done
                self._total = None
        view = _View(event, self._now())
        self._views.append(view)
        self._show(view, view.space)

    def _staged(self, view: _View, event: Compiling | Compiled | Racing | Sampled) -> None:
        if isinstance(event, Racing):
            self._stop_ticking()
            self._show(view, f"{view.compilation}; measuring {count(event.count, 'candidate')}")
        elif isinstance(event, Compiling):
            self._show(view, f"compiling {event.count:,}" if event.count else None)
            self._tick(event.turns)
        else:
            self._show(view, None)

    def _finish(self, view: _View, summary: Summary) -> None:
        self._stop_ticking()
        took = spent(self._now() - view.at)
        if summary.choice is None:
            self._show(view, f"nothing works, after {took}")
        elif summary.choice.median_s is not None:
            self._show(view, f"done in {took}: {duration(summary.choice.median_s)} {summary.choice.config!r}")
        self._views.pop()
        if not self._views:
            self.close()

    # --- showing ---------------------------------------------------------------------------------

    def _show(self, view: _View, milestone: str | None) -> None:
        """Redraw, or in a log write a line: the milestone's, or the state's when the last line is a while ago."""
        with self._showing:  # the ticker shows too
            now = self._now()
            if self._lines.animated:
                if milestone is not None or now - self._last >= REDRAW_S:
                    self._lines.redraw()
                    self._last = now
            elif milestone is not None:
                self._line(view, milestone)
                self._last = now
            elif now - self._last >= log_every_s(now - self._began):
                self._line(view, "; ".join(part for part in self._state(view) if part))
                self._last = now

    def _state(self, view: _View) -> tuple[str, ...]:
        return (view.compilation if view.compiling else view.race, view.leader, view.budget(self._now()))

    @property
    def _which(self) -> str:
        return f"[{self._number}/{self._total}] " if self._total is not None and self._total > 1 else ""

    def _line(self, view: _View, text: str) -> None:
        self._lines.line(f"{self._which}{view.name}: {text}")

    def _render(self) -> Group:
        if not self._views:
            return Group()
        view = self._views[-1]
        lines: list[Text | Table | Hanging] = [
            _one_line(f"{self._which}{view.name}", "bold"),
            _one_line(f"  {view.space}", "dim"),
            self._bar(view),
        ]
        if view.alive:
            lines.append(_one_line(f"  {view.race}"))
        if view.best is not None:
            lines.append(Hanging(Text("  "), Text(view.leader, style="green")))
        lines.append(_one_line(f"  {view.budget(self._now())}", "dim"))
        return Group(*lines)

    @staticmethod
    def _bar(view: _View) -> Table:
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True, overflow="ellipsis")
        row.add_column(ratio=1)
        row.add_row(f"  {view.compilation}", ProgressBar(max(1, view.to_compile), view.compiled, width=BAR))
        return row

    # --- while compilers run ---------------------------------------------------------------------

    def _tick(self, turns: Turns) -> None:
        """Show from a thread how it stands until the compilers are done, as one Config may take minutes; in between
        the samples where kernels are timed meanwhile."""
        if self._ticker is not None:
            return
        done = threading.Event()

        def show() -> None:
            while not done.wait(REDRAW_S):
                with turns.at_once() as mine:
                    if mine and self._views:
                        self._show(self._views[-1], None)

        thread = threading.Thread(target=show, name="tunesmith-progress", daemon=True)
        self._ticker = (thread, done)
        thread.start()

    def _stop_ticking(self) -> None:
        """Returns when the thread has ended: from here on kernels may be timed."""
        if self._ticker is not None:
            thread, done = self._ticker
            done.set()
            thread.join()
            self._ticker = None


def _one_line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _tried(event: Tried) -> str:
    """`75.30 µs, left after 3 rounds: Config(…)`; without a time what failed."""
    outcome = event.trial.outcome
    timed = f"{duration(outcome.median_s)}, " if isinstance(outcome, Measured) else ""
    return f"{timed}{first_line(event.why)}: {event.trial.config!r}"
