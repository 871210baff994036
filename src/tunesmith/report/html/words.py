"""What of a report is text: facts, failures, ties, the fastest; it stands in the page without any script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith.core.config import Config
from tunesmith.core.outcome import Measured, Trial
from tunesmith.core.stats import median
from tunesmith.core.units import duration, ratio
from tunesmith.report.explanation import Explanation
from tunesmith.report.html.data import clocks_of, counts_of, failures_of, untried_of
from tunesmith.report.html.gather import Search
from tunesmith.report.table import Reason, columns_of, rows_of
from tunesmith.report.units import RESOURCES, count, number_in, pasteable, problem_line, unit_of

#: Rows of the score table that stand in the page; of a report of many problems, of each. The rest is drawn by script.
TOP, TOP_OF_MANY = 20, 5
#: what a Config that can be pasted is broken to, in signs
WIDTH = 76
#: Ties that are listed.
TIES = 40
Facts = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Scores:
    """The first rows of the score table, as text."""

    headings: list[str]
    rows: list[tuple[str, list[str]]]


@dataclass(frozen=True, slots=True)
class Words:
    """One problem in words."""

    title: str
    kernel: str
    problem: str
    winner: str
    time: str
    sentence: str
    facts: Facts
    machine: Facts
    counts: list[tuple[str, int]]
    failures: list[Reason]
    cut: list[tuple[str, int]]
    untried: list[tuple[str, int]]
    ties: list[tuple[str, str]]
    ties_left: int
    certainty: list[str]
    scores: Scores | None
    model: str


def words_of(search: Search, *, few: bool) -> Words:
    """A Search in words; `few`: as many problems share the page."""
    config, used_s = chosen(search), search.winner_s
    if used_s is None and search.choice is not None:
        used_s = search.choice.median_s
    return Words(
        title=_title(search),
        kernel=search.key.kernel,
        problem=problem_line(search.exact),
        winner="" if config is None else pasteable(config, WIDTH),
        time="" if used_s is None else duration(used_s),
        sentence=sentence(search),
        facts=[] if search.choice is None else Explanation(search.key, search.choice, search.trials).facts(),
        machine=machine(search),
        counts=list(counts_of(search).items()),
        failures=failures_of(search),
        cut=sorted(search.cut.items(), key=lambda one: -one[1]),
        untried=sorted(untried_of(search).items(), key=lambda one: -one[1]),
        ties=_ties(search),
        ties_left=max(0, 0 if search.verdict is None else len(search.verdict.ties) - TIES),
        certainty=_certainty(search),
        scores=_scores(search, TOP_OF_MANY if few else TOP),
        model=search.predicted.why,
    )


def chosen(search: Search) -> Config | None:
    """The Config that a call uses, or that a search would end with."""
    if search.choice is not None:
        return search.choice.config
    return None if search.verdict is None else search.verdict.winner.config


def sentence(search: Search) -> str:
    """What came of it, in a line or two."""
    verdict, winner_s = search.verdict, search.winner_s
    if verdict is None or winner_s is None:
        if not search.trials:
            return "Nothing was tried." if search.choice is None else "Its Trials are not stored, only what was chosen."
        return f"None of {count(len(search.trials), 'Config')} could be measured."
    times = [trial.outcome.median_s for trial in verdict.ranking if isinstance(trial.outcome, Measured)]
    said = (
        f"The fastest of {count(len(times), 'Config')} that ran; the median one takes "
        f"{ratio(median(times) / winner_s)} its time, the slowest {ratio(max(times) / winner_s)}."
    )
    if len(times) == 1:
        said = "The only Config that ran."
    elif verdict.why:
        said = f"Of {count(len(times), 'Config')} that ran. It is not number 1: {verdict.why}."
    if search.library_s:
        library = median(search.library_s)
        name = search.facts.get("library", "The library")
        said += f" {name} takes {duration(library)}, {ratio(library / winner_s)} its time."
    return said


def _certainty(search: Search) -> list[str]:
    verdict, choice = search.verdict, search.choice
    if verdict is None:
        return []
    said = list[str]()
    if verdict.within is not None:
        said.append(
            f"At {verdict.confidence:.3g} confidence nothing that was in the race to its end is faster than the winner "
            f"by more than {verdict.within:.2%}."
        )
    doubt = choice.doubt if choice is not None else verdict.doubt
    if doubt:
        said.append(f"It is not known for sure: {doubt}.")
    if verdict.ties:
        ties = count(len(verdict.ties), "Config")
        said.append(f"{ties} cannot be told from the winner within {verdict.margin:.2%} of its time.")
    else:
        said.append("No other Config ties with it.")
    if choice is not None:
        said.append(f"Its results were checked against its {choice.checked}." if choice.checked else
                    "Its results were compared with nothing (unverified).")  # fmt: skip
    return said


def _ties(search: Search) -> list[tuple[str, str]]:
    """(Config, its time) of those that cannot be told from the winner."""
    if search.verdict is None:
        return []
    times = {trial.config: trial.outcome.median_s for trial in search.trials if isinstance(trial.outcome, Measured)}
    return [(repr(tie), duration(times[tie]) if tie in times else "–") for tie in search.verdict.ties[:TIES]]


def machine(search: Search) -> Facts:
    """Where, how and with what it was measured."""
    facts: Facts = [("device", search.key.device), ("protocol", search.key.protocol), ("Trials from", search.source)]
    facts += sorted(search.facts.items())
    facts += [(f"version of {name}", version) for name, version in sorted(search.soft.items())]
    if search.key.fingerprint:
        facts.append(("fingerprint", search.key.fingerprint))
    facts += [(f"${name}", value) for name, value in search.key.environment]
    if search.choice is not None and search.choice.conditions:
        facts.append(("while it was timed", search.choice.conditions))
    clocks = clocks_of(search)
    if clocks:
        low, middle, high = (f"{hertz / 1e6:,.0f}" for hertz in (min(clocks), median(clocks), max(clocks)))
        facts.append(("clock at the samples", f"{low} to {high} MHz, median {middle} MHz"))
    dates = sorted({trial.at for trial in search.trials if trial.at})
    if dates:
        facts.append(("measured", dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"))
    compiled = [trial.compile_s for trial in search.trials if trial.compile_s is not None]
    if sum(compiled) > 0:
        facts.append(("compiling", f"{sum(compiled):,.1f} s in all, {max(compiled):,.2f} s the longest"))
    return [(name, text) for name, text in facts if text]


def _scores(search: Search, top: int) -> Scores | None:
    rows = rows_of(search.verdict, top)
    if not rows:
        return None
    trials = [row.trial for row in rows]
    shown, unit = columns_of(trials), unit_of(rows[0].measured.median_s)
    headings = ["#", unit, "p20", "p80", "n", "×best", "mark"]
    headings += [RESOURCES[name][0] for name in shown.resources] + list(shown.knobs)
    cells = [
        (
            row.mark,
            [str(row.rank), *(number_in(unit, s) for s in (row.measured.median_s, *row.measured.spread_s)),
             str(len(row.measured.samples)), f"{row.relative:.3f}", row.mark,
             *_resources(row.trial, shown.resources), *(str(row.trial.config.get(name, "–")) for name in shown.knobs)],
        )
        for row in rows
    ]  # fmt: skip
    return Scores(headings, cells)


def _resources(trial: Trial, names: Sequence[str]) -> list[str]:
    taken = [(name, getattr(trial.resources, name)) for name in names]
    return ["?" if number is None else RESOURCES[name][1](number) for name, number in taken]


# --- several problems ----------------------------------------------------------------------------------


def overview(searches: Sequence[Search]) -> dict[str, Any]:
    """A row for each problem: its time, and what the default and the tables lose against it."""
    names = list(dict.fromkeys(rival.name for search in searches for rival in search.rivals))
    devices = {search.key.device for search in searches}
    kernels = {search.key.kernel for search in searches}
    rows = [_overview_row(number, search, names, len(devices) > 1) for number, search in enumerate(searches)]
    return {"rivals": names, "rows": rows, "devices": len(devices) > 1, "kernels": sorted(kernels)}


def _overview_row(number: int, search: Search, names: Sequence[str], device: bool) -> dict[str, Any]:
    config, rivals = chosen(search), {rival.name: rival for rival in search.rivals}
    return {
        "number": number,
        "problem": _title(search) + (f" on {search.key.device}" if device else ""),
        "time": "–" if search.winner_s is None else duration(search.winner_s),
        "ties": 0 if search.verdict is None else len(search.verdict.ties),
        "counts": counts_of(search),
        "rivals": [_rival_text(search, rivals.get(name)) for name in names],
        "config": "nothing works" if config is None else repr(config),
    }


def _title(search: Search) -> str:
    return f"{search.key.kernel}({problem_line(search.exact)})".replace(",", ", ")  # so that it breaks between fields


def _rival_text(search: Search, rival: Any) -> tuple[str, str]:
    """(how many times the winner's time, the Config or why there is none)."""
    if rival is None or rival.config is None:
        return "–", "" if rival is None else rival.why
    if rival.median_s is None or search.winner_s is None:
        return "not measured", repr(rival.config)
    return ratio(rival.median_s / search.winner_s), repr(rival.config)
