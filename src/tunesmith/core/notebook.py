"""How Choices and Trials look in a notebook: tables as HTML, every text in them escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tunesmith.core.outcome import Choice, Failed, Measured, Trial
from tunesmith.core.units import duration, ratio

#: Rows of a table: what is left out is said, and `to_pandas` has it all.
ROWS = 20


def html_table(headings: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table: a notebook's own style sheet gives it lines and, in the dark, light text.

    >>> html_table(["a"], [["<b>"]])
    '<table><thead><tr><th scope="col">a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{_caption(caption)}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_facts(facts: Iterable[tuple[str, str]], caption: str = "") -> str:
    """Named facts, a row each; one that is empty is left out."""
    left = ' style="text-align:left"'
    body = "".join(
        f'<tr><th scope="row"{left}>{escape(name)}</th><td{left}>{escape(said)}</td></tr>'
        for name, said in facts
        if said
    )
    return f"<table>{_caption(caption)}<tbody>{body}</tbody></table>"


def _caption(text: str) -> str:
    return f"<caption>{escape(text)}</caption>" if text else ""


def choice_html(choice: Choice) -> str:
    """A Choice: its Config, its time, and how sure it is."""
    rival = "" if choice.runner_up is None else repr(choice.runner_up)
    if rival and choice.ratio is not None:
        rival = f"{ratio(choice.ratio)} its time: {rival}"
    sure = ""
    if choice.within is not None and choice.confidence is not None:
        sure = f"nothing is faster by more than {choice.within:.1%}, at {choice.confidence:.3g} confidence"
    return html_facts(
        [
            ("Config", repr(choice.config)),
            ("calls outside of CUDA graphs", "" if choice.called is None else repr(choice.called)),
            ("time", "never measured" if choice.median_s is None else duration(choice.median_s)),
            ("track", choice.track),
            ("source", choice.source),
            ("runner-up", rival),
            ("known", sure),
            ("doubt", choice.doubt),
            ("ties", "; ".join(map(repr, choice.ties))),
            ("distance", choice.distance),
            ("searched", ", ".join(f"{number:,} {fate}" for fate, number in choice.candidates.items())),
            ("conditions", choice.conditions),
            ("checked against", choice.checked),
            ("note", choice.note),
        ]
    )


def trials_html(trials: Iterable[Trial], caption: str = "") -> str:
    """Trials, the measured first and among them the fastest: a column a knob, what became of it, its time."""
    measured = [(trial, trial.outcome) for trial in trials if isinstance(trial.outcome, Measured)]
    others = [(trial, trial.outcome) for trial in trials if not isinstance(trial.outcome, Measured)]
    ordered = [*sorted(measured, key=lambda one: one[1].median_s), *others]
    knobs = list(dict.fromkeys(name for trial, _ in ordered for name in trial.config))
    rows = [[*[trial.config.get(name, "–") for name in knobs], *_cells(outcome)] for trial, outcome in ordered[:ROWS]]
    said = f"{len(measured):,} measured, {len(others):,} not"
    if len(ordered) > ROWS:
        said += f"; the first {ROWS} of {len(ordered):,}"
    return html_table([*knobs, "time", "samples", "outcome"], rows, f"{caption}: {said}" if caption else said)


def _cells(outcome: object) -> tuple[str, str, str]:
    """Time, samples, outcome."""
    if isinstance(outcome, Measured):
        return duration(outcome.median_s), str(len(outcome.samples)), "measured"
    if isinstance(outcome, Failed):
        return "–", "0", f"{outcome.stage}: {outcome.reason}"
    return "–", "0", f"untried: {getattr(outcome, 'reason', '')}"


class Trials(tuple[Trial, ...]):
    """Trials that a notebook shows as a table. A tuple in all else."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return trials_html(self)
