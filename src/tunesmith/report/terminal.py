"""Where reports are printed: what `watch()` shows on standard error, answers on standard output."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from tunesmith.core.problem import Problem
from tunesmith.events import Event, Summary, watched
from tunesmith.report.compilations import CompilationRow, compilation_table
from tunesmith.report.evidence import evidence_for
from tunesmith.report.explanation import Explanation
from tunesmith.report.hanging import Trimmed
from tunesmith.report.live import answers, asides, put
from tunesmith.report.progress import Detail, Progress
from tunesmith.report.sweeping import sweep_line, sweep_tables, use_lines
from tunesmith.report.table import fact_table, result_table, score_table
from tunesmith.sweep.drive import Outcome

if TYPE_CHECKING:
    from tunesmith.tuned import TunedKernel

#: Stands over what the performance model says.
MODEL_HEADING = "by the performance model"

__all__ = [
    "Progress",
    "print_compilations",
    "print_explanation",
    "print_facts",
    "print_line",
    "print_lines",
    "print_results",
    "print_scores",
    "print_sweep",
    "score_table",
    "watch",
]


@contextmanager
def watch(*, verbose: bool = False) -> Generator[None]:
    """Within this scope, every search of this thread shows its progress and its score table, on standard error.

    Args:
        verbose: each candidate's fate, too.

    >>> with tunesmith.watch():
    ...     matmul(a, b, c)  # doctest: +SKIP
    """
    console = asides()
    detail: Detail = "verbose" if verbose else "usual"
    with Progress(console, detail=detail) as progress:

        def show(event: Event) -> None:
            progress(event)
            if isinstance(event, Summary):
                with suppress(OSError):  # a log that is full is no reason to lose what was measured
                    console.print(Trimmed(score_table(event)))

        with watched(show):
            yield


def print_explanation(
    kernel: TunedKernel, args: Sequence[Any], kwargs: Mapping[str, Any], ncu: str | Path | None = None
) -> None:
    """Say on standard output what a call would use and why.

    Args:
        args, kwargs: the call's. ncu: as of `TunedKernel.predicted`.

    Raises:
        BadInput: as of `TunedKernel.predicted`.
    """
    lines = kernel.predicted(*args, ncu=ncu, **kwargs)
    key, choice, trials = kernel.explanation(*args, **kwargs)
    evidence = evidence_for(kernel.subject(*args, **kwargs), kernel.declared.policy, choice, trials)
    _show(Explanation(key, choice, trials, evidence))
    if lines:
        print_facts(MODEL_HEADING, lines)


def print_scores(summary: Summary, top: int = 10) -> None:
    """Print a search's score table on standard output."""
    _show(score_table(summary, top))


def print_results(results: Sequence[tuple[Problem, Summary | None, str, str]]) -> None:
    """Print a line for each of several searches on standard output: (problem, Summary if any, error if any, change)."""
    _show(result_table(results))


def print_sweep(outcome: Outcome, took_s: float, n_workers: int) -> None:
    """Print on standard output what came of a sweep: a table for each kind of device, and a line about all."""
    told = [Text(line, style="dim") for line in use_lines(outcome.uses)]
    _show(sweep_tables(outcome), Text(sweep_line(outcome, took_s, n_workers)), *told)


def print_lines(text: str) -> None:
    """Print lines on standard output: as they are into a file, so that they can be searched; on a terminal they are
    wrapped between words, and go on further in."""
    put(answers(), text)


def _show(*parts: RenderableType) -> None:
    answers().print(Trimmed(Group(*parts)))


def print_line(text: str) -> None:
    """Print text on standard output as it is."""
    print(text)


def print_facts(heading: str, facts: Sequence[tuple[str, str]]) -> None:
    """Print a heading and named facts below it, on standard output."""
    _show(Text(heading, style="bold"), fact_table(facts, indent=2))


def print_compilations(heading: str, rows: Sequence[CompilationRow]) -> None:
    """Print on standard output what compiling some Configs showed."""
    _show(compilation_table(heading, rows))
