"""A sweep as people read it: what goes on while it runs, and a table of what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tunesmith.core.config import Config
from tunesmith.core.problem import Problem
from tunesmith.report.ends import End, EndTable
from tunesmith.report.live import LiveLines, asides, log_every_s
from tunesmith.report.progress import Detail
from tunesmith.report.units import behind_subject, count, duration, first_line, problem_line, spent
from tunesmith.sweep.drive import Outcome
from tunesmith.sweep.task import Result, Task
from tunesmith.sweep.use import PARTS, Use, mean_shares

#: with more devices than these, only their mean is told
MOST_USES = 16
#: Drawing takes a millisecond or two; more often than this nobody reads it.
REDRAW_S = 0.5


@dataclass
class _Doing:
    """What one worker has in hand."""

    task: Task
    since: float
    best_s: float | None = None
    waits: bool = False


@dataclass
class SweepProgress:
    """A `Watcher` of a sweep, on standard error: live lines on a terminal, a plain line now and then in a log.

    Args:
        total: how many tasks there are.
        now: the clock, in seconds.
        detail: how much is said; `verbose`: each problem's end, too.
    """

    total: int
    console: Console = field(default_factory=asides)
    detail: Detail = "usual"
    now: Callable[[], float] = time.monotonic
    done: int = 0
    resumed_count: int = 0
    failed: int = 0
    trials: int = 0
    looked_at: int = 0
    left_to_look: int = 0
    kinds: set[str] = field(default_factory=set[str])
    doing: dict[str, _Doing] = field(default_factory=dict[str, _Doing])
    _since: float | None = None
    _last: float = float("-inf")
    _lines: LiveLines = field(init=False)

    def __post_init__(self) -> None:
        self._lines = LiveLines(self.console, lambda: self.shown)

    def __enter__(self) -> SweepProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    # --- a Watcher's -----------------------------------------------------------------------------

    def ready(self, name: str, identity: str) -> None:
        self._since = self.now() if self._since is None else self._since
        self.kinds.add(identity)
        self._line(f"{name}: {identity}")

    def resumed(self, count: int) -> None:
        self.done, self.resumed_count = self.done + count, self.resumed_count + count
        self._line(f"{count:,} of an earlier run are done")

    def began(self, name: str, task: Task) -> None:
        self.doing[name] = _Doing(task, self.now())
        self._show()

    def heard(self, name: str, said: Mapping[str, Any]) -> None:
        if name in self.doing:
            self.doing[name].waits = bool(said.get("waits"))
            if said.get("best_s") is not None:
                self.doing[name].best_s = float(said["best_s"])
        self._show()

    def ended(self, name: str, task: Task, result: Result) -> None:
        self.doing.pop(name, None)
        if result.fate == "elsewhere":
            return
        self.done += 1
        self.trials += max(0, result.measured + result.failed - result.known)
        if result.fate == "failed":
            self.failed += 1
            self._line(f"{task.kernel}({problem_line(task.fields)}) failed: {behind_subject(first_line(result.error))}")
        elif self.detail == "verbose":
            self._line(f"{name}: {task.kernel}({problem_line(task.fields)}) {_ended(result)}")
        self._show()

    def looked(self, name: str, task: Task, result: Result, left: int) -> None:
        self.doing.pop(name, None)
        self.looked_at, self.left_to_look = self.looked_at + 1, left
        self._show()

    def put_off(self, name: str, task: Task, left: int) -> None:
        self.doing.pop(name, None)
        self.left_to_look = left
        self._show()

    def trouble(self, name: str, what: str) -> None:
        """Said however quiet it is to be."""
        self._lines.line(f"tunesmith: {name}: {first_line(what)}")

    # --- showing ---------------------------------------------------------------------------------

    @property
    def of_all(self) -> int:
        """Each task is done on each kind of device."""
        return self.total * max(1, len(self.kinds))

    @property
    def state(self) -> str:
        """`120 of 200 done, 1 failed; 48.0 problems and 3,512 trials a minute; 1 min 40 s left`."""
        parts = [f"{self.done:,} of {self.of_all:,} done, {self.failed:,} failed"]
        fresh, took_s = self.done - self.resumed_count, self.now() - (self._since or self.now())
        if fresh > 0 and took_s > 0:
            a_minute = 60 / took_s
            parts.append(f"{fresh * a_minute:.1f} problems and {self.trials * a_minute:,.0f} trials a minute")
            if self.done < self.of_all:
                parts.append(f"{spent((self.of_all - self.done) * took_s / fresh)} left")
        if self.looked_at:
            left = f", {self.left_to_look:,} left" if self.left_to_look else ""
            parts.append(f"{self.looked_at:,} timed again{left}")
        return "; ".join(parts)

    def _show(self) -> None:
        now = self.now()
        if self.detail == "quiet":
            return
        if self._lines.animated:
            if now - self._last >= REDRAW_S:
                self._last = now
                self._lines.redraw()
        elif now - self._last >= log_every_s(now - (self._since or now)):
            self._last = now
            self._line("; ".join([self.state, *self._in_hand()]))

    def _in_hand(self) -> list[str]:
        return [
            f"{name}: {one.task.kernel}({problem_line(one.task.fields)}) for {spent(self.now() - one.since)}"
            + ("" if one.best_s is None else f", best so far {duration(one.best_s)}")
            + (", waits until nobody else is at work on its core" if one.waits else "")
            for name, one in self.doing.items()
        ]

    def _line(self, text: str) -> None:
        if self.detail != "quiet":
            self._lines.line(f"tunesmith: {text}")

    @property
    def shown(self) -> Group:
        """The lines as they are now."""
        bar = Table.grid()  # a bar alone ends without a line's end
        bar.add_row(ProgressBar(max(1, self.of_all), self.done, width=40))
        return Group(
            Text(self.state, style="bold"),
            bar,
            *[Text(f"  {line}", no_wrap=True, overflow="ellipsis") for line in self._in_hand()],
        )


def _ended(result: Result) -> str:
    """`stored: 75.30 µs`, or `in 3.2 s: 75.30 µs, 40 tried`."""
    timed = "" if result.median_s is None else duration(result.median_s)
    tried = result.measured + result.failed
    return f"stored: {timed}" if result.fate == "known" else f"in {spent(result.seconds)}: {timed}, {tried:,} tried"


# --- the end ------------------------------------------------------------------------------------------


def sweep_tables(outcome: Outcome) -> RenderableType:
    """For each kind of device a row for each problem: its time, what it cost, the Config or why there is none."""
    parts: list[RenderableType] = []
    for device in sorted({result.device for _, result in outcome.results}):
        mine = [(task, result) for task, result in outcome.results if result.device == device]
        parts += [Text(device, style="bold"), _table(mine), Text("")]
    for name, why in outcome.given_up:
        parts.append(Text(f"{name} was given up: {first_line(why)}", style="red"))
    if outcome.unkept:
        names, why = count(len(outcome.unkept), "problem"), first_line(outcome.unkept[0][1])
        parts.append(Text(f"of {names} the results are in no store, but here alone: {why}", style="red"))
    if outcome.left:
        parts.append(Text(f"{count(len(outcome.left), 'problem')} not done: {outcome.left[0][1]}", style="red"))
    return Group(*parts)


def _table(results: Sequence[tuple[Task, Result]]) -> EndTable:
    in_order = sorted(results, key=lambda one: (one[0].kernel, tuple(_sortable(one[0].fields))))
    return EndTable(("time", "ties", "tried", "failed", "seconds"), [_end(*one) for one in in_order])


def _end(task: Task, result: Result) -> End:
    took = "stored" if result.fate == "known" else spent(result.seconds).removesuffix(" s")
    timed = "–" if result.median_s is None else duration(result.median_s)
    last = behind_subject(first_line(result.error)) if result.config is None else repr(Config(result.config))
    cells = (timed, f"{result.ties}", f"{result.measured:,}", f"{result.failed:,}", took)
    return End(f"{task.kernel}({problem_line(task.fields)})", cells, last, result.fate == "failed")


def _sortable(problem: Problem) -> list[tuple[str, int, str]]:
    return [(name, value if isinstance(value, int) else 0, str(value)) for name, value in problem.items()]


def use_lines(uses: Sequence[Use]) -> list[str]:
    """What devices did with their time, `gpu:0, 64 problems: 71 % measured, 20 % waited for compilers`: a line for each
    and one for all."""
    lines = [f"{use.device}, {count(use.problems, 'problem')}: {_shares(use.shares)}" for use in uses]
    if len(uses) == 1:
        return lines
    each = lines if len(uses) <= MOST_USES else []
    return [*each, f"all devices: {_shares(mean_shares(uses))}"] if uses else []


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{100 * shares[part]:.0f} % {told}" for part, told in PARTS.items() if shares[part] >= 0.005)


def sweep_line(outcome: Outcome, took_s: float, n_workers: int) -> str:
    """`200 problems on 2 devices in 95.2 s: 198 tuned, 2 failed; 21,403 Configs tried; 60 % of the time measuring`."""
    results = [result for _, result in outcome.results]
    fates = {fate: sum(result.fate == fate for result in results) for fate in ("tuned", "known", "failed")}
    tried = sum(max(0, result.measured + result.failed - result.known) for result in results if result.fate != "known")
    said = ", ".join(f"{number:,} {fate}" for fate, number in fates.items() if number) or "nothing done"
    compiling = sum(result.compile_s for result in results if result.fate == "tuned")
    measuring = sum(result.measure_s for result in results if result.fate == "tuned")
    looked = [result for result in results if result.looks > 1]
    changed = sum(result.changed > 0 for result in looked)
    again = f", {len(looked):,} timed again later ({changed:,} changed)" if looked else ""
    disturbed = sum(result.again for result in results)
    again += f", {disturbed:,} chosen while others used the core" if disturbed else ""
    left = sum(result.open and not result.again for result in results)
    again += f", {left:,} not confirmed in other processes yet" if left else ""
    return (
        f"{count(len(results), 'problem')} on {count(n_workers, 'device')} in {spent(took_s)}: {said}{again}; "
        f"{count(tried, 'Config')} tried, {spent(compiling)} compiling and {spent(measuring)} measuring in all"
    )
