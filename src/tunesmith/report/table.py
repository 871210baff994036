"""The score table of a search: who ran how fast, what became of everybody else, and the winner ready to paste."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text

from tunesmith.core.config import Config, KnobValue
from tunesmith.core.outcome import Failed, Measured, Resources, Trial, Untried
from tunesmith.core.problem import Problem
from tunesmith.events import Summary
from tunesmith.measure.pick import Verdict
from tunesmith.report.ends import End, EndTable
from tunesmith.report.hanging import Hanging
from tunesmith.report.units import (
    RESOURCES,
    behind_subject,
    count,
    duration,
    first_line,
    number_in,
    pasteable,
    problem_line,
    spent,
    unit_of,
)

#: Kinds of failure that are listed one by one; the rest is counted.
REASONS = 8
#: Columns that a table's rows need to be lines, however few a terminal says it has.
NARROWEST = 20


def score_table(summary: Summary, top: int = 10) -> RenderableType:
    """A search's result for people, to fit the width of the console it is printed on.

    Args:
        top: how many of the fastest Configs get a row; the winner always has one.
    """
    return _ScoreTable(summary, top)


@dataclass(frozen=True)
class _ScoreTable:
    summary: Summary
    top: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        summary = self.summary
        yield Text.assemble(
            (f"{summary.key.kernel}({problem_line(summary.key.problem)})", "bold"), " on ", summary.key.device
        )  # fmt: skip
        rows = rows_of(summary.verdict, self.top)
        if rows:
            shown = columns_of([row.trial for row in rows])
            yield ""
            yield fitting_table(console, options, rows, shown)
            yield from _below(summary, rows, shown)
        yield ""
        yield from accounting(summary)
        yield Text(footer(summary), style="dim")
        if summary.choice is not None:
            yield ""
            yield Text("the winner, ready to paste:")
            yield Text(pasteable(summary.choice.config, options.max_width), style="bold green")


# --- the rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One measured Config: its rank from 1, how many times longer it takes than number 1 at one clock, its mark."""

    rank: int
    trial: Trial
    measured: Measured
    relative: float
    mark: str  # "winner", "tie" or nothing


def rows_of(verdict: Verdict | None, top: int | None = None) -> list[Row]:
    """The measured Configs in the verdict's order; the winner also where it is not among the `top` first."""
    if verdict is None:
        return []
    marks = {**dict.fromkeys(verdict.ties, "tie"), verdict.winner.config: "winner"}
    measured = [
        (trial, trial.outcome, trial.outcome.median_s / trial.drift)
        for trial in verdict.ranking
        if isinstance(trial.outcome, Measured)
    ]
    rows = [
        Row(rank, trial, outcome, level_s / measured[0][2], marks.get(trial.config, ""))
        for rank, (trial, outcome, level_s) in enumerate(measured, 1)
    ]
    return rows if top is None else [row for row in rows if row.rank <= top or row.mark == "winner"]


@dataclass(frozen=True, slots=True)
class Columns:
    """What differs among the rows, a column each, and what does not, said once."""

    knobs: tuple[str, ...]
    resources: tuple[str, ...]
    constant: tuple[str, ...]


def columns_of(trials: Sequence[Trial]) -> Columns:
    """The knobs and known resources of some Trials, split by whether they differ. Of one Trial all knobs are shown."""
    absent: KnobValue = "–"  # a knob that a Config of added Spaces does not have
    names = list(dict.fromkeys(name for trial in trials for name in trial.config))
    values = {name: [Config({name: trial.config.get(name, absent)}) for trial in trials] for name in names}
    knobs = [name for name in names if len(trials) == 1 or len(set(values[name])) > 1]
    constant = [f"{name}={_show(trials[0].config[name])}" for name in names if name not in knobs]
    resources: list[str] = []
    for name in RESOURCES:
        taken = [getattr(trial.resources, name) for trial in trials]
        said = any([trial.config.get(knob) for trial in trials] == taken for knob in names)  # by a knob
        if said or all(n is None for n in taken):
            continue
        if len(trials) > 1 and len(set(taken)) == 1:
            constant.append(f"{RESOURCES[name][0]}: {RESOURCES[name][1](taken[0])}")
        else:
            resources.append(name)
    return Columns(tuple(knobs), tuple(resources), tuple(constant))


def _show(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


# --- the table -------------------------------------------------------------------------------------------


def fitting_table(console: Console, options: ConsoleOptions, rows: Sequence[Row], shown: Columns) -> RenderableType:
    """Rows as a table that fits the width.

    A column for each knob is easiest to compare, so first the gaps give way, then the size of the code, then the
    headings are broken at underscores; when that does not help, each row's knobs stand below it.
    """
    lean = replace(shown, resources=tuple(name for name in shown.resources if name != "code_bytes"))
    whole, broken = {name: name for name in shown.knobs}, {name: name.replace("_", "_\n") for name in shown.knobs}
    for columns, gap, headings in ((shown, 2, whole), (shown, 1, whole), (lean, 1, whole), (lean, 1, broken)):
        table = _table(rows, columns, gap, headings)
        if Measurement.get(console, options.update(width=10_000), table).maximum <= options.max_width:
            return table
    room = options.update(width=max(options.max_width, NARROWEST))  # in less, rows are no lines any more
    lines = console.render_lines(_table(rows, lean, 1, {}), room, pad=False)
    heading = len(lines) - len(rows)
    parts: list[RenderableType] = [SegmentLines(lines[:heading], new_lines=True)]
    for row, line in zip(rows, lines[heading:], strict=True):
        knobs = " ".join(f"{name}={_show(row.trial.config[name])}" for name in shown.knobs if name in row.trial.config)
        parts += [SegmentLines([line], new_lines=True), Hanging(Text("   "), Text(knobs))]
    return Group(*parts)


def _table(rows: Sequence[Row], shown: Columns, gap: int, headings: Mapping[str, str]) -> Table:
    """One way to draw it: a column for each knob that has a heading."""
    table = Table(box=None, header_style="bold", padding=(0, gap, 0, 0), pad_edge=False)
    unit = unit_of(rows[0].measured.median_s)
    resources = [RESOURCES[name][0] for name in shown.resources]
    for heading in ("#", unit, "[p20, p80]", "n", "×best", "", *resources, *headings.values()):
        table.add_column(Text(heading), justify="right" if heading else "left", no_wrap=True, vertical="bottom")
    for row in rows:
        style = {"winner": "bold green", "tie": "green"}.get(row.mark, "")
        table.add_row(*[Text(cell) for cell in _cells(row, unit, shown, headings)], style=style)
    return table


def _cells(row: Row, unit: str, shown: Columns, knobs: Iterable[str]) -> list[str]:
    low, high = row.measured.spread_s
    samples = len(row.measured.samples)
    return [
        str(row.rank), number_in(unit, row.measured.median_s), f"[{number_in(unit, low)}, {number_in(unit, high)}]",
        str(samples), f"{row.relative:.3f}", row.mark, *_resource_cells(row.trial.resources, shown.resources),
        *[_show(row.trial.config.get(name, "–")) for name in knobs],
    ]  # fmt: skip


def _resource_cells(resources: Resources, names: Iterable[str]) -> list[str]:
    taken = [(name, getattr(resources, name)) for name in names]
    return ["?" if n is None else RESOURCES[name][1](n) for name, n in taken]


def _below(summary: Summary, rows: Sequence[Row], shown: Columns) -> Iterable[RenderableType]:
    """What the rows do not say: how many more there are, what all share, why the winner is not the fastest."""
    assert summary.verdict is not None
    more = len(summary.verdict.ranking) - len(rows)
    if more:
        yield Text(f"and {more:,} more measured", style="dim")
    if shown.constant:
        whom = "all rows" if more or len(rows) > 2 else "both rows"
        yield Text(f"in {whom}: {', '.join(shown.constant)}")
    if any(row.relative < before.relative for before, row in pairwise(rows)):
        yield Text("Who left the race before its end, with fewer samples (n), ranks after the others.")
    if summary.verdict.why:
        yield Text(f"The winner is not number 1: {summary.verdict.why}.")
    elif summary.verdict.ties:
        ties = count(len(summary.verdict.ties), "Config")
        yield Text(f"{ties} cannot be told from the winner within {summary.verdict.margin:.3g} of its time (tie).")
    if summary.verdict.doubt:
        yield Text(f"It is not known for sure: {summary.verdict.doubt}.")
    if summary.choice is not None and summary.choice.conditions:
        yield Text(f"While it was timed: {summary.choice.conditions}.")


# --- everybody else -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reason:
    """Configs that failed alike."""

    stage: str
    reason: str
    count: int
    example: Config


def failure_reasons(failures: Iterable[tuple[Config, Failed]]) -> list[Reason]:
    """Failures by stage and reason, the commonest first, each with the first Config it befell.

    What was cut for want of the same thing is one reason, whatever each Config needed of it.
    """
    groups: dict[str, list[tuple[Config, Failed]]] = {}
    for config, failed in failures:
        groups.setdefault(failed.kind, []).append((config, failed))
    reasons = [
        Reason(first.stage, _merged([f.reason for _, f in group]) if first.stage == "cut" else first.reason,
               len(group), config)
        for group in groups.values() for config, first in group[:1]
    ]  # fmt: skip
    return sorted(reasons, key=lambda reason: -reason.count)


def _merged(texts: Sequence[str]) -> str:
    """Texts that differ in their numbers alone as one: `needs 1024 to 4096 bytes, limit 512 bytes`."""
    numbers = zip(*[[int(n) for n in re.findall(r"\d+", text)] for text in texts], strict=True)
    spans = (f"{min(column)} to {max(column)}" if len(set(column)) > 1 else str(column[0]) for column in numbers)
    return texts[0] if len(set(texts)) == 1 else re.sub(r"\d+", lambda _: next(spans), texts[0])


def untried_reasons(summary: Summary) -> dict[str, int]:
    """Configs that were not looked at, by reason, the commonest first."""
    reasons: dict[str, int] = {}
    for trial in summary.trials:
        if isinstance(trial.outcome, Untried):
            reasons[trial.outcome.reason] = reasons.get(trial.outcome.reason, 0) + 1
    rest = summary.counts["untried"] - sum(reasons.values())
    if rest > 0:  # points of a Space too large to list, which are no Trials
        reasons[summary.why_untried] = reasons.get(summary.why_untried, 0) + rest
    return dict(sorted(reasons.items(), key=lambda pair: -pair[1]))


def accounting(summary: Summary) -> Iterable[RenderableType]:
    """Every point of the Space accounted for: the sum, then each addend by reason."""
    counts = summary.counts
    addends = " + ".join(f"{counts[fate]:,} {fate}" for fate in ("cut", "failed", "measured", "untried"))
    yield Text.assemble((addends, "bold"), f" = {summary.cardinality:,}, the size of the space")
    failures = failure_reasons(summary.failures)
    for reason in failures[:REASONS]:
        yield _item(f"failed {reason.count:,} × {reason.stage}: {first_line(reason.reason)}", "red")
        yield Hanging(Text(" " * 6), Text(f"for example {reason.example!r}", style="dim"))
    if len(failures) > REASONS:
        left = sum(reason.count for reason in failures[REASONS:])
        yield _item(f"failed {left:,} × for {count(len(failures) - REASONS, 'other reason')}", "red")
    for reason, number in _by_count(summary.cut):
        yield _item(f"cut {number:,} × {reason}", "")
    for reason, number in _by_count(untried_reasons(summary)):
        yield _item(f"untried {number:,} × {reason}", "")


def _by_count(reasons: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(reasons.items(), key=lambda pair: -pair[1])


def _item(text: str, style: str) -> Hanging:
    return Hanging(Text("  "), Text(text, style=style))


def nothing_measured(summary: Summary) -> bool:
    """Whether the store knew it all."""
    return summary.compile_s == 0 and summary.measure_s == 0


def footer(summary: Summary) -> str:
    """Where the time went."""
    if nothing_measured(summary):
        return f"answered from the store, nothing measured ({count(summary.known, 'trial')} known)"
    return (
        f"{spent(summary.compile_s)} compiling, {spent(summary.measure_s)} measuring; "
        f"{count(summary.known, 'trial')} came from the store"
    )


# --- several searches -------------------------------------------------------------------------------------


def result_table(results: Sequence[tuple[Problem, Summary | None, str, str]]) -> RenderableType:
    """One row for each search: what was asked, the time, what changed, what it cost, and the Config."""
    return EndTable(("time", "change", "measured", "failed", "seconds"), [_end(*result) for result in results])


def _end(problem: Problem, summary: Summary | None, error: str, change: str) -> End:
    counts = {"measured": 0, "failed": 0} if summary is None else summary.counts
    took, time, last = "–", "–", behind_subject(first_line(error))
    if summary is not None:
        took = "stored" if nothing_measured(summary) else f"{summary.compile_s + summary.measure_s:.1f}"
    if summary is not None and summary.choice is not None and summary.choice.median_s is not None:
        time, last = duration(summary.choice.median_s), repr(summary.choice.config)
    cells = (time, change, f"{counts['measured']:,}", f"{counts['failed']:,}", took)
    return End(problem_line(problem), cells, last, bool(error))


def fact_table(facts: Sequence[tuple[str, str]], indent: int = 0) -> RenderableType:
    """Named facts, one a line."""
    wide = max((len(name) for name, _ in facts), default=0) + 2
    return Group(*[Hanging(Text(" " * indent + name.ljust(wide), style="bold"), Text(text)) for name, text in facts])
