"""`to_pandas`: results as a data frame, a row a Config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tunesmith.core.outcome import Choice, Failed, Measured, Recording, Trial
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, MissingEngine
from tunesmith.events import Summary
from tunesmith.report.table import rows_of

if TYPE_CHECKING:
    from tunesmith.report.html import Report

#: What stands before a knob whose name is that of a column.
KNOB = "knob."
_WHOSE = ("kernel", "device", "problem")
_CHOICE = ("track", "source", "median_s", "ratio", "within", "confidence", "doubt", "distance", "checked", "note")


def to_pandas(results: Choice | Trial | Summary | Recording | Report | Iterable[Trial | Choice]) -> Any:
    """Results as a pandas DataFrame: a row for each Config, a column for each knob, times in seconds.

    A knob that is named as one of the other columns is has `knob.` before its name. What is not known is NaN or None.

    Args:
        results: a Choice, Trials (`kernel.trials(key)`, a list), what `tune` or `record` returned, a Report.

    Returns:
        Of a Summary and a Report `rank`, `relative` (times the fastest's time) and `mark` too; of several problems
        `kernel`, `device` and `problem`.

    Raises:
        MissingEngine: without pandas.
        BadInput: for anything else.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingEngine(
            "to_pandas needs pandas, which is not installed; pip install 'tunesmith[pandas]'"
        ) from error
    rows = list(_rows(results))
    own = dict.fromkeys(name for row, _ in rows for name in row)
    records = [
        {**{KNOB + knob if knob in own else knob: value for knob, value in knobs.items()}, **row} for row, knobs in rows
    ]
    return pandas.DataFrame.from_records(records)


def _rows(results: Any) -> Iterable[tuple[dict[str, Any], Mapping[str, Any]]]:
    """(columns, knobs) of each row."""
    from tunesmith.report.html import Report, Search, from_recording, from_summary

    if isinstance(results, Choice):
        yield {name: getattr(results, name) for name in _CHOICE}, results.config
    elif isinstance(results, Trial):
        yield _columns(results), results.config
    elif isinstance(results, Search):
        yield from _ranked(results)
    elif isinstance(results, Summary):
        yield from _ranked(from_summary(results))
    elif isinstance(results, Recording):
        yield from _ranked(from_recording(results))
    elif isinstance(results, Report):
        for search in results.searches:
            yield from _rows(search)
    elif isinstance(results, Iterable) and not isinstance(results, (str, bytes, Mapping)):
        for one in results:  # pyright: ignore[reportUnknownVariableType]
            yield from _rows(one)
    else:
        good = "a Choice, Trials, what tune or record returned, a Report"
        raise BadInput(f"{results!r} is no result; good ones: {good}")


def _ranked(search: Any) -> Iterable[tuple[dict[str, Any], Mapping[str, Any]]]:
    ranked = {row.trial.config: row for row in rows_of(search.verdict)}
    problem: Problem = search.exact
    whose = dict(zip(_WHOSE, (search.key.kernel, search.key.device, problem.text), strict=True))
    in_order = [*[row.trial for row in ranked.values()], *[t for t in search.trials if t.config not in ranked]]
    for trial in in_order:
        row = ranked.get(trial.config)
        place = {
            "rank": None if row is None else row.rank,
            "relative": None if row is None else row.relative,
            "mark": "" if row is None else row.mark,
        }
        yield {**whose, **place, **_columns(trial)}, trial.config


def _columns(trial: Trial) -> dict[str, Any]:
    one = trial.outcome
    median_s = low = high = None
    samples, reason, fate = 0, "", "measured"
    if isinstance(one, Measured):
        median_s, (low, high), samples = one.median_s, one.spread_s, len(one.samples)
    else:
        fate, reason = one.stage if isinstance(one, Failed) else "untried", one.reason
    return {
        "outcome": fate, "reason": reason, "median_s": median_s, "p20_s": low, "p80_s": high, "samples": samples,
        **asdict(trial.resources), "compile_s": trial.compile_s, "at": trial.at, "checked": trial.checked,
    }  # fmt: skip
