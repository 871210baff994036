"""A Search as the JSON that a report embeds: durations in seconds, exactly as they were measured."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tunesmith.core import stats
from tunesmith.core.config import Config
from tunesmith.core.model import explain
from tunesmith.core.outcome import Failed, Measured, Trial, Untried, choice_to_data
from tunesmith.measure.pick import compared
from tunesmith.report.explanation import fates
from tunesmith.report.html.gather import Search
from tunesmith.report.html.rivals import Rival
from tunesmith.report.table import Reason, Row, failure_reasons, rows_of
from tunesmith.report.units import RESOURCES

FORMAT = "tunesmith-report-data/1"
#: Trials of all problems together that get a row: a file of more takes seconds to open.
ROWS = 30_000
#: ... and of one problem at least, whatever the others have.
FEWEST = 20
#: How many of the fastest are compared with the fastest, and drawn round by round.
BESIDE, LINES = 20, 10
#: Rounds of one line at most: of more, every second, third, … is drawn.
POINTS = 400
#: Integers beyond it are text: JavaScript would round them.
EXACT = 2**53


def report_data(searches: Sequence[Search], made: Mapping[str, str], notes: Sequence[str]) -> dict[str, Any]:
    """All that a report shows."""
    each = max(FEWEST, ROWS // max(1, len(searches)))
    return {
        "format": FORMAT,
        "made": dict(made),
        "notes": list(notes),
        "searches": [search_data(search, each) for search in searches],
    }


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that can stand in a `<script>`: no sign in it ends the element or begins a comment, all is ASCII."""
    text = json.dumps(plain(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plain(value: Any) -> Any:
    """JSON types that every reader takes alike: a number that is none, or that JavaScript would round, is text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) <= EXACT else str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def search_data(search: Search, most: int) -> dict[str, Any]:
    """One problem. Of more than `most` Trials, the fastest half of these and every so many-th of the others."""
    ranked = {row.trial.config: row for row in rows_of(search.verdict)}
    ordered = [row.trial for row in ranked.values()]
    ordered += [trial for trial in search.trials if trial.config not in ranked]
    kept = {row.trial.config for row in ranked.values() if row.mark}
    shown = sampled(ordered, most, kept)
    place = {trial.config: number for number, trial in enumerate(shown)}
    return {
        "kernel": search.key.kernel,
        "problem": search.exact.text,
        "fields": dict(search.exact),
        "key": search.key.to_data(),
        "source": search.source,
        "versions": dict(search.soft),
        "facts": dict(search.facts),
        "counts": counts_of(search),
        "choice": None if search.choice is None else choice_to_data(search.choice),
        "winner": None if search.verdict is None else place[search.verdict.winner.config],
        "knobs": knobs_of(shown),
        "rows": _columns(search, shown, ranked),
        "rows_left_out": len(ordered) - len(shown),
        "failed_by_reason": [reason_data(reason) for reason in failures_of(search)],
        "cut_by_reason": dict(search.cut),
        "untried_by_reason": untried_of(search),
        "race": race_data(search, place),
        "beside": _beside(search, place),
        "library_s": stats.median(search.library_s) if search.library_s else None,
        "model": _model_data(search),
        "rivals": [_rival_data(rival) for rival in search.rivals],
    }


def sampled(ordered: Sequence[Trial], most: int, kept: Collection[Config]) -> list[Trial]:
    """The first half of `most`, those that are to be kept, and of the rest, evenly spread, what there is room for."""
    if len(ordered) <= most:
        return list(ordered)
    first = most // 2
    must = [trial for trial in ordered[first:] if trial.config in kept]
    rest = [trial for trial in ordered[first:] if trial.config not in kept]
    wanted = min(len(rest), max(0, most - first - len(must)))
    return [*ordered[:first], *must, *[rest[number * len(rest) // wanted] for number in range(wanted)]]


def counts_of(search: Search) -> dict[str, int]:
    """How many Configs met which fate."""
    told = {"cut": sum(search.cut.values()), "untried": sum(untried_of(search).values())}
    return {**fates(search.trials), **told}


def knobs_of(trials: Sequence[Trial]) -> list[str]:
    """The knobs that differ, then those that are the same everywhere."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.config))
    seen = {name: {repr(trial.config.get(name, ...)) for trial in trials} for name in names}
    return sorted(names, key=lambda name: len(seen[name]) == 1)


def failures_of(search: Search) -> list[Reason]:
    """Failures by reason, the commonest first."""
    return failure_reasons((t.config, t.outcome) for t in search.trials if isinstance(t.outcome, Failed))


def reason_data(reason: Reason) -> dict[str, Any]:
    """As JSON types."""
    return {
        "stage": reason.stage, "reason": reason.reason, "count": reason.count, "example": dict(reason.example),
    }  # fmt: skip


def _columns(search: Search, shown: Sequence[Trial], ranked: Mapping[Config, Row]) -> dict[str, Any]:
    """A list for each column, a place in it for each Trial."""
    rows = [ranked.get(trial.config) for trial in shown]
    measured = [trial.outcome if isinstance(trial.outcome, Measured) else None for trial in shown]
    spreads = [(None, None) if one is None else one.spread_s for one in measured]
    points = [search.predicted.points.get(trial.config) for trial in shown]
    resources = [asdict(trial.resources) for trial in shown]
    predicted = {
        "predicted_s": [None if one is None else one.prediction.seconds for one in points],
        "bound": [None if one is None else one.prediction.bound for one in points],
        "flops": [None if one is None else one.flops for one in points],
        "tiled_bytes": [None if one is None else one.prediction.tiled_bytes for one in points],
        "memory_bytes": [None if one is None else one.prediction.memory_bytes for one in points],
        "occupancy": [None if one is None else one.prediction.occupancy for one in points],
    }
    began = None if search.verdict is None else search.verdict.winner.at
    known = [name for name in RESOURCES if any(one[name] is not None for one in resources)]
    return {
        "config": {name: [t.config.get(name) for t in shown] for name in knobs_of(shown)},
        "texts": _texts(shown),
        "absent": {
            name: missing for name in knobs_of(shown)
            if (missing := [number for number, trial in enumerate(shown) if name not in trial.config])
        },
        "outcome": ["measured" if one is not None else _fate(t) for one, t in zip(measured, shown, strict=True)],
        "rank": [None if row is None else row.rank for row in rows],
        "median_s": [None if one is None else one.median_s for one in measured],
        "p20_s": [low for low, _ in spreads],
        "p80_s": [high for _, high in spreads],
        "samples": [0 if one is None else len(one.samples) for one in measured],
        "last_round": [None if one is None else max(s.round for s in one.samples) for one in measured],
        "in_race": [row is not None and row.trial.at == began for row in rows],
        "relative": [None if row is None else row.relative for row in rows],
        "mark": ["" if row is None else row.mark for row in rows],
        "resources": {name: [one[name] for one in resources] for name in known},
        "compile_s": [trial.compile_s for trial in shown],
        "clock_hz": [None if one is None else _clock(one) for one in measured],
        **(predicted if search.predicted.points else {}),
    }  # fmt: skip


def _texts(shown: Sequence[Trial]) -> dict[str, list[str]]:
    """Of knobs that have values which JavaScript takes for the same (1, 1.0 and "1"), each as Python spells it."""
    found = dict[str, list[str]]()
    for name in knobs_of(shown):
        values = [trial.config.get(name) for trial in shown]
        if len({repr(value) for value in values}) > len({_label(value) for value in values}):
            found[name] = [repr(value) for value in values]
    return found


def _label(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _fate(trial: Trial) -> str:
    return trial.outcome.stage if isinstance(trial.outcome, Failed) else "untried"


def _clock(one: Measured) -> float | None:
    seen = [sample.clock_hz for sample in one.samples if sample.clock_hz is not None]
    return stats.median(seen) if seen else None


def clocks_of(search: Search) -> list[float]:
    """The device's clock at each sample, in Hz, where it was read."""
    return [
        sample.clock_hz for trial in search.trials if isinstance(trial.outcome, Measured)
        for sample in trial.outcome.samples if sample.clock_hz is not None
    ]  # fmt: skip


# --- the race ----------------------------------------------------------------------------------------


def race_data(search: Search, place: Mapping[Config, int]) -> dict[str, Any] | None:
    """The race that the winner was in: how many were in each round, and the fastest round by round.

    `in_round[i]` Configs were timed in round `first + i`; `alone` were timed once when compiled, and in no round.
    """
    verdict = search.verdict
    if verdict is None:
        return None
    together = [
        (trial, trial.outcome) for trial in verdict.ranking
        if isinstance(trial.outcome, Measured) and trial.at == verdict.winner.at
    ]  # fmt: skip
    counts: dict[int, int] = {}
    for _, one in together:
        for number in {sample.round for sample in one.samples if sample.round >= 0}:
            counts[number] = counts.get(number, 0) + 1
    if not counts:
        return None
    first, last = min(counts), max(counts)
    lines = [
        {"row": place[trial.config], **_line(one)} for trial, one in together[:LINES] if trial.config in place
    ]  # fmt: skip
    return {
        "first": first,
        "in_round": [counts.get(number, 0) for number in range(first, last + 1)],
        "alone": sum(all(sample.round < 0 for sample in one.samples) for _, one in together),
        "other_races": len(verdict.ranking) - len(together),
        "lines": lines,
    }


def _line(one: Measured) -> dict[str, list[Any]]:
    rounds: dict[int, list[float]] = {}
    for sample in one.samples:
        if sample.round >= 0:
            rounds.setdefault(sample.round, []).append(sample.seconds)
    step = -(-len(rounds) // POINTS) or 1
    kept = sorted(rounds)[::step]
    return {"rounds": kept, "seconds": [stats.median(rounds[number]) for number in kept]}


def _beside(search: Search, place: Mapping[Config, int]) -> list[dict[str, Any]]:
    """The fastest, each beside the fastest of all: the ratio and its bounds."""
    if search.verdict is None:
        return []
    return [
        {"row": place[one.trial.config], "ratio": one.ratio, "low": one.low, "high": one.high, "rounds": one.rounds}
        for one in compared(search.verdict, BESIDE)
        if one.trial.config in place
    ]


# --- the model, and who else decides -------------------------------------------------------------------


def _model_data(search: Search) -> dict[str, Any]:
    said = search.predicted
    if said.ceilings is None or said.device is None:
        return {"why": said.why}
    point = None if search.verdict is None else said.points.get(search.verdict.winner.config)
    facts = [] if point is None else explain(point.prediction, said.device)
    return {"ceilings": asdict(said.ceilings), "device": said.device.name, "winner": facts}


def _rival_data(rival: Rival) -> dict[str, Any]:
    config = None if rival.config is None else dict(rival.config)
    return {"name": rival.name, "config": config, "median_s": rival.median_s, "why": rival.why}


def untried_of(search: Search) -> dict[str, int]:
    """Trials that were not looked at, by reason."""
    reasons = dict(search.untried)
    for trial in search.trials:
        if isinstance(trial.outcome, Untried):
            reasons[trial.outcome.reason] = reasons.get(trial.outcome.reason, 0) + 1
    return reasons
