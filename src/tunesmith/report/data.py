"""Reports as JSON types, for `--json`: durations in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Trial, choice_to_data
from tunesmith.events import Summary
from tunesmith.report.explanation import fates, stored_rows
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
        "failed_by_reason": [
            {"stage": r.stage, "reason": r.reason, "count": r.count, "example": dict(r.example)}
            for r in failure_reasons(summary.failures)
        ],
        "cut_by_reason": dict(summary.cut),
        "untried_by_reason": untried_reasons(summary),
    }


def explanation_data(key: Key, choice: Choice, trials: Sequence[Trial]) -> dict[str, Any]:
    """What a call would use, why, and the fastest of the stored Trials."""
    return {
        "key": key.to_data(),
        "choice": choice_to_data(choice),
        "stored": fates(trials),
        "scores": [_row_data(row) for row in stored_rows(choice, trials)],
    }


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
