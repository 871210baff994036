"""Reports as JSON types, for `--json`: durations in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Failed, Trial, choice_to_data
from tunesmith.events import Summary
from tunesmith.report.evidence import Evidence
from tunesmith.report.explanation import fates, stored_rows
from tunesmith.report.racing import Heat, median_s
from tunesmith.report.table import Row, failure_reasons, nothing_measured, rows_of, untried_reasons


def summary_data(summary: Summary) -> dict[str, Any]:
    """A search: its Key, its Choice, every measured Config by rank, everybody else by reason."""
    return {
        "key": summary.key.to_data(),
        "choice": None if summary.choice is None else choice_to_data(summary.choice),
        "from_store": nothing_measured(summary),
        "space_size": summary.cardinality,
        **summary.counts,
        "known_before": summary.known,
        "compile_s": summary.compile_s,
        "measure_s": summary.measure_s,
        "scores": [_row_data(row) for row in rows_of(summary.verdict)],
        "failed_by_reason": _reasons(summary.failures),
        "cut_by_reason": dict(summary.cut),
        "untried_by_reason": untried_reasons(summary),
    }


def explanation_data(key: Key, choice: Choice, trials: Sequence[Trial], evidence: Evidence) -> dict[str, Any]:
    """What a call would use, why, the fastest of the stored Trials, and what speaks for it and against it."""
    second, nearest = evidence.runner_up, evidence.nearest
    return {
        "key": key.to_data(),
        "choice": choice_to_data(choice),
        "stored": fates(trials),
        "stored_at": evidence.stored_at or None,
        "scores": [_row_data(row) for row in stored_rows(choice, trials)],
        "runner_up": None if second is None else {**asdict(second), "config": dict(second.config)},
        "nearest": None if nearest is None else {"key": nearest.to_data(), "differs": _fields(key.differing(nearest))},
        "stale": {"soft": list(evidence.soft), "hard": [_fields(one) for one in evidence.hard]},
        "races": [_race_data(race) for race in evidence.races],
        "failed_by_reason": _reasons((t.config, t.outcome) for t in trials if isinstance(t.outcome, Failed)),
        "ceiling": _ceiling_data(evidence, choice),
    }


def _fields(differing: Sequence[tuple[str, str, str]]) -> list[dict[str, str]]:
    return [{"field": name, "asked": mine, "stored": known} for name, mine, known in differing]


def _race_data(race: Heat) -> dict[str, Any]:
    left = [{"rounds": one.rounds, "trials": _timed(one.trials)} for one in race.left]
    return {
        "at": race.at, "timed": race.timed, "rounds": race.rounds, "hopeless": _timed(race.hopeless), "left": left,
        "stayed": _timed(race.stayed),
    }  # fmt: skip


def _timed(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    return [{"config": dict(trial.config), "median_s": median_s(trial)} for trial in trials]


def _ceiling_data(evidence: Evidence, choice: Choice) -> dict[str, Any]:
    most = evidence.ceiling
    if most is None:
        return {"why_unknown": evidence.no_ceiling}
    reached = None if choice.median_s is None else most.reached(choice.median_s)
    return {**asdict(most), "bound": most.bound, "seconds": most.seconds, "reached": reached}


def _reasons(failures: Iterable[tuple[Config, Failed]]) -> list[dict[str, Any]]:
    return [
        {"stage": r.stage, "reason": r.reason, "count": r.count, "example": dict(r.example)}
        for r in failure_reasons(failures)
    ]


def _row_data(row: Row) -> dict[str, Any]:
    low, high = row.measured.spread_s
    return {
        "rank": row.rank,
        "config": dict(row.trial.config),
        "median_s": row.measured.median_s,
        "p20_s": low,
        "p80_s": high,
        "samples": len(row.measured.samples),
        "relative": row.relative,
        "mark": row.mark,
        "resources": {name: n for name, n in asdict(row.trial.resources).items() if n is not None},
    }
