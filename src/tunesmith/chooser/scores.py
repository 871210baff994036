"""The score table of a choice, in the form that users of `max-autotune` know: a line for each candidate, best first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tunesmith.core.config import Config
from tunesmith.core.outcome import Calls, Choice, Failed, Measured, Trial
from tunesmith.dispatch.arguments import is_array
from tunesmith.measure.calls import about_calls
from tunesmith.measure.pick import Verdict

#: characters of a failure's reason that are shown: a line of the terminal, less what stands before it
_REASON = 100


def scores(
    operation: str, arguments: Mapping[str, Any], verdict: Verdict | None, trials: Sequence[Trial], choice: Choice,
    of: Any, library: Config, top: int = 10,
) -> str:  # fmt: skip
    """All that is known of a choice, as text.

    Args:
        arguments: of the call, by name.
        verdict: what the Trials say, `None` where nothing was measured.
        of: from a Config to (candidate, the candidate's own Config).
        library: the Config of the library's call, which always has a line, as has what is chosen.
        top: how many others have one.
    """
    lines = _heading(operation, arguments)
    ranking = () if verdict is None else verdict.ranking
    always = (library, choice.config, choice.called)
    shown = [t for i, t in enumerate(ranking) if i < top or t.config in always]
    if shown:
        lines += _rows(shown, choice, of, library)
    if len(shown) < len(ranking):
        lines.append(f"  and {len(ranking) - len(shown)} slower ones")
    lines += _failures(trials, of)
    lines.append(_conclusion(verdict, choice, of, library))
    return "\n".join(lines)


def _heading(operation: str, arguments: Mapping[str, Any]) -> list[str]:
    """What was called, in three lines."""
    arrays = [value for value in arguments.values() if is_array(value)]
    shapes = ", ".join("x".join(map(str, array.shape)) for array in arrays)
    return [
        f"AUTOTUNE {operation}({shapes})",
        f"strides: {', '.join(str(list(_strides(array))) for array in arrays)}",
        f"dtypes: {', '.join(str(array.dtype) for array in arrays)}",
    ]


def _strides(array: Any) -> tuple[int, ...]:
    """In elements."""
    if callable(getattr(array, "stride", None)):
        return tuple(array.stride())
    return tuple(step // array.itemsize for step in array.strides)


def _rows(trials: Sequence[Trial], choice: Choice, of: Any, library: Config) -> list[str]:
    """Candidate, microseconds with their spread, percent of the best, knobs; what calls take, where that is known."""
    theirs = next((trial.calls for trial in trials if trial.config == library), None)
    best_s = min(level for t in trials if (level := t.level_s) is not None)
    cells: list[tuple[str, ...]] = []
    for trial in trials:
        name, own = of(trial.config)
        assert isinstance(trial.outcome, Measured)
        low, high = trial.outcome.spread_s
        median = trial.outcome.median_s
        mark = "chosen" if trial.config == choice.config else "library" if trial.config == library else ""
        mark = "for calls" if trial.config == choice.called else mark
        knobs = ", ".join(f"{knob}={value}" for knob, value in own.items())
        spread = f"[{1e6 * low:.2f}, {1e6 * high:.2f}]"
        share = f"{best_s * trial.drift / median:.1%}"
        calls = _calls(trial, theirs, trial.config == library)
        cells.append((name, f"{1e6 * median:.2f} us", spread, share, mark, knobs, calls))
    widths = [max(len(row[i]) for row in cells) for i in range(6)]
    sides = "<>>><<"
    return [
        ("  " + "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=False))
         + f"  {row[6]}").rstrip()
        for row in cells
    ]  # fmt: skip


def _calls(trial: Trial, library: Calls | None, is_library: bool) -> str:
    """What a call takes back to back, beside the library's."""
    if trial.calls is None or library is None:
        return ""
    said = f"called: {1e6 * trial.calls.median_s:.1f} us"
    return said if is_library else f"{said}, library {1e6 * library.median_s:.1f}"


def _failures(trials: Sequence[Trial], of: Any) -> list[str]:
    """A line for each reason: how many, of which candidate, what it said."""
    found = Counter(
        (of(trial.config)[0], trial.outcome.stage, trial.outcome.reason.partition("\n")[0][:_REASON])
        for trial in trials
        if isinstance(trial.outcome, Failed)
    )
    return [
        f"  failed: {count} x {name}, {stage}: {reason}"
        for (name, stage, reason), count in sorted(found.items(), key=lambda one: -one[1])
    ]


def _conclusion(verdict: Verdict | None, choice: Choice, of: Any, library: Config) -> str:
    name = of(choice.config)[0]
    calls = "" if choice.called is None else f"calls outside of a CUDA graph are {of(choice.called)[0]}'s"
    if verdict is None:
        told = "; ".join(filter(None, [choice.note or "nothing was measured", calls]))
        return f"{name} serves ({choice.source}): {told}"
    known = {trial.config: trial for trial in verdict.ranking}
    theirs, mine = known.get(library), known.get(choice.config)
    called = None if choice.called is None else known.get(choice.called)
    if mine and theirs and called:
        calls = about_calls(called, mine, theirs, lambda c: of(c)[0]) or calls
    if choice.config == library:
        said = f"the library's call stays, as nothing is faster by more than {verdict.margin:.0%} beyond doubt"
    elif theirs is None or mine is None:
        said = ""
    else:
        said = f"{(theirs.level_s or 0.0) / (mine.level_s or math.inf):.2f} times as fast as {of(library)[0]}"
    told = "; ".join(filter(None, [said, calls]))
    return f"{name} serves ({choice.source})" + (f": {told}" if told else "")
