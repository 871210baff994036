"""Why a call uses the Config it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.text import Text

from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Failed, Measured, Trial
from tunesmith.measure.pick import Verdict, pick
from tunesmith.report.evidence import Evidence, runner_up_of
from tunesmith.report.sections import runner_up_line, sections
from tunesmith.report.table import Row, columns_of, fact_table, fitting_table, rows_of
from tunesmith.report.units import duration, pasteable, problem_line

#: Stored Trials that get a row.
TOP = 5
#: What may have become of a Config in a search, in the order in which it is said.
FATES = ("measured", "failed", "cut", "untried")


@dataclass(frozen=True)
class Explanation:
    """A renderable: the Choice, the Trials it was made of, and what else speaks for it and against it."""

    key: Key
    choice: Choice
    trials: Sequence[Trial]
    evidence: Evidence | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(pasteable(self.choice.config, options.max_width), style="bold green")
        yield fact_table(self.facts())
        rows = stored_rows(self.choice, self.trials)
        if rows:
            shown = columns_of([row.trial for row in rows])
            yield ""
            yield Text(f"the fastest of {len(self.trials):,} stored trials", style="bold")
            table = fitting_table(console, options.update(width=options.max_width - 2), rows, shown)
            yield Padding(table, (0, 0, 0, 2), expand=False)
            if shown.constant:
                yield Text(f"  in all rows: {', '.join(shown.constant)}")
        if self.evidence is not None:
            for heading, facts in sections(self.key, self.choice, self.trials, self.evidence):
                yield ""
                yield Text(heading, style="bold")
                yield fact_table(facts, indent=2)

    def facts(self) -> list[tuple[str, str]]:
        """What is known of the Choice, by name; what is not known is left out."""
        choice = self.choice
        of_the_store = self.evidence is not None and choice.source in ("store", "search")
        stored_at = self.evidence.stored_at if self.evidence is not None and of_the_store else ""
        facts = [
            ("kernel", self.key.kernel),
            ("problem", problem_line(self.key.problem)),
            ("device", self.key.device),
            ("track", choice.track),
            ("source", f"{choice.source}, stored {stored_at}" if stored_at else choice.source),
            ("time", "never measured" if choice.median_s is None else duration(choice.median_s)),
        ]
        if choice.conditions:
            facts.append(("conditions", choice.conditions))
        second = runner_up_of(choice, self.trials) if self.evidence is None else self.evidence.runner_up
        if second is not None:
            facts.append(("runner-up", runner_up_line(second)))
        if choice.within is not None and choice.confidence is not None:
            facts.append(("known", f"nothing in the race is faster by more than {choice.within:.1%}, "
                                   f"at {choice.confidence:.3g} confidence"))  # fmt: skip
        if choice.doubt:
            facts.append(("doubt", choice.doubt))
        if choice.ties:
            facts.append(("ties", "; ".join(repr(tie) for tie in choice.ties)))
        if choice.distance:
            facts.append(("distance", choice.distance))
        if choice.measured_at is not None:
            facts.append(("measured at", problem_line(choice.measured_at)))
        if choice.checked or choice.median_s is not None:
            facts.append(("checked", f"against its {choice.checked}" if choice.checked else "unverified"))
        if choice.calls or choice.called is not None:
            facts.append(("calls", choice.calls or f"calls outside of a CUDA graph are {choice.called!r}'s"))
        if choice.note:
            facts.append(("note", choice.note))
        if choice.candidates:
            fates_seen = [fate for fate in FATES if fate in choice.candidates]
            facts.append(("searched", ", ".join(f"{choice.candidates[fate]:,} {fate}" for fate in fates_seen)))
        if self.trials:
            facts.append(("stored", ", ".join(f"{number:,} {fate}" for fate, number in fates(self.trials).items())))
        return facts


def stored_rows(choice: Choice, trials: Sequence[Trial]) -> list[Row]:
    """The first of the stored Trials, marked as the Choice has it: what a call uses is the winner where a search found
    it, else just used."""
    verdict = pick(trials)
    used = next((trial for trial in trials if trial.config == choice.config), None)
    if verdict is None or used is None or not isinstance(used.outcome, Measured):
        return [] if verdict is None else [replace(row, mark="") for row in rows_of(verdict, TOP)]
    rows = rows_of(Verdict(used, verdict.ranking, choice.ties), TOP)
    won = choice.source in ("store", "search")
    return rows if won else [replace(row, mark="used" if row.mark == "winner" else row.mark) for row in rows]


def fates(trials: Sequence[Trial]) -> dict[str, int]:
    """How many Trials ended how."""
    kinds = [type(trial.outcome) for trial in trials]
    counts = {"measured": kinds.count(Measured), "failed": kinds.count(Failed)}
    return {**counts, "untried": len(trials) - sum(counts.values())}
