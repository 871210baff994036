"""`tunesmith tune`: search for one kernel's fastest Configs, for one problem or many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tunesmith.cli.into_table import IntoTable
from tunesmith.cli.not_stored import NotStored, why_not_stored
from tunesmith.cli.output import GOOD, INTERRUPTED, NO, USAGE, AsJson, answers_only, complain, detail, note, print_json
from tunesmith.cli.problems import ProblemOption, ProblemsOption, rows_of_others, wanted
from tunesmith.cli.target import TargetArgument, find_target
from tunesmith.core.problem import Problem, read_value
from tunesmith.errors import BadInput, BudgetEnded, Busy, NoWorkingConfig, unknown
from tunesmith.journal import Journal
from tunesmith.options import options

if TYPE_CHECKING:
    from tunesmith.core.key import Key
    from tunesmith.core.outcome import Choice
    from tunesmith.events import Summary
    from tunesmith.report.terminal import Progress
    from tunesmith.tuned import TunedKernel

#: Rows of a score table: of the only problem, and of each of several.
ROWS, ROWS_OF_SEVERAL = 10, 3


BudgetOption: TypeAlias = Annotated[
    float | None, typer.Option("--budget", metavar="SECONDS", help="How long the search for one problem may take.")
]
LaunchesOption: TypeAlias = Annotated[
    int | None, typer.Option("--launches", metavar="N", help="How many timed launches the search for one problem has.")
]
StrategyOption: TypeAlias = Annotated[
    str | None, typer.Option("--strategy", metavar="NAME", help="How the space is gone through: auto, descent, …")
]
IsolateOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--isolate/--no-isolate",
        help="Run candidates in a worker process that may crash or hang. Where not given, if that is possible.",
    ),
]
FixOption: TypeAlias = Annotated[
    list[str], typer.Option("--fix", metavar="KNOB=VALUE", help="Hold a knob at one value; may be repeated.")
]
RetryOption: TypeAlias = Annotated[
    bool, typer.Option("--retry", help="Try problems of a file again of which nothing worked the last time.")
]
TableOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--table", metavar="OUT.json",
        help="Write what is found into a table, beside the rows that are there; one is replaced by what is faster.",
    ),
]  # fmt: skip


NearOption: TypeAlias = Annotated[
    list[Path],
    typer.Option(
        "--near", metavar="FILE",
        help="Start from what a table of ours (of another GPU, say) or a recording knows, by strategy transfer; may be "
        "repeated.",
    ),
]  # fmt: skip


def tune(
    target: TargetArgument,
    problem: ProblemOption = [],
    problems: ProblemsOption = [],
    budget: BudgetOption = None,
    launches: LaunchesOption = None,
    strategy: StrategyOption = None,
    fix: FixOption = [],
    retry: RetryOption = False,
    isolate: IsolateOption = None,
    table: TableOption = None,
    near: NearOption = [],
    json: AsJson = False,
) -> None:
    """Find the fastest configuration of a kernel, and store it with every trial.

    What the store knows is not measured again. Ctrl-C keeps what was measured; a later run measures the rest. Problems
    of a file of which nothing worked are not tried again unless asked, or under other versions.
    """
    with answers_only(json):
        kernel = find_target(target)
        todo = wanted(kernel, problem, problems)
        kernel = hold(kernel, fix)
        check_limits(budget, launches, strategy)
        if todo.others:
            note(f"skipped {rows_of_others(todo.others)}")
        by_hand = len(todo.problems) if retry else todo.typed
        into = None if table is None else IntoTable.at(table)
        unkept = NotStored(kernel.kernel.name)
        session = _Session(
            kernel, todo.problems, budget, launches, strategy, by_hand, isolate, json, into, near, unkept
        )
        code = session.run()
        session.not_stored.say()
        if into is not None:
            into.write()
    if json:
        print_json("tune", session.data())
    raise typer.Exit(code)


def hold(kernel: TunedKernel, fixed: Sequence[str]) -> TunedKernel:
    """The kernel with knobs held as `--fix KNOB=VALUE` says.

    Raises:
        BadInput: for text that is no such pair, an unknown knob or a value that is not of its axis.
    """
    knobs: dict[str, object] = {}
    for text in fixed:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise BadInput(f"--fix {text}: write KNOB=VALUE, as --fix threads=2")
        if name.strip() in knobs:
            raise BadInput(f"--fix {text}: {name.strip()!r} is given twice")
        knobs[name.strip()] = read_value(value.strip())
    return kernel.fix(**knobs) if knobs else kernel


def isolated(kernel: TunedKernel, asked: bool | None, arguments: Mapping[str, Any]) -> bool:
    """Whether candidates run in a worker: as asked, else where that is possible; says why not where it isn't."""
    if asked is not None:
        return asked
    why = kernel.why_not_isolated(**arguments)
    if why:
        note(f"candidates run in this process, as {why}")
    return not why


def check_limits(budget: float | None, launches: int | None, strategy: str | None) -> None:
    """Refuse limits of a search that make no sense.

    Raises:
        BadInput: naming the good ones.
    """
    from tunesmith.search import STRATEGIES

    if budget is not None and not (budget > 0 and math.isfinite(budget)):
        raise BadInput(f"--budget {budget:g}: good values: a number of seconds above 0")
    if launches is not None and launches < 1:
        raise BadInput(f"--launches {launches}: good values: a number of timed launches from 1")
    if strategy is not None and strategy not in STRATEGIES:
        raise BadInput(unknown("strategy", strategy, STRATEGIES))


# --- one after the other -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Result:
    """What came of one problem: a Summary, an error when nothing works, or neither when Ctrl-C ended it.

    Attributes:
        bad: the fault is the user's. hopeless: nothing works, and nothing was left untried.
        before: what was stored for it.
    """

    problem: Problem
    summary: Summary | None
    error: str = ""
    bad: bool = False
    hopeless: bool = False
    before: Choice | None = None

    @property
    def change(self) -> str:
        """`new`, `kept`, or how the new Config's time compares with that of the one before it."""
        now = None if self.summary is None else self.summary.choice
        if now is None:
            return "–"
        if self.before is None:
            return "new"
        if now.config == self.before.config:
            return "kept" if now.called == self.before.called else "changed for calls"
        ratio = self.ratio
        return "changed" if ratio is None else f"×{ratio:.3f}"

    @property
    def ratio(self) -> float | None:
        """The time of the Config used now over that of the one used before, if they were timed side by side."""
        from tunesmith.refresh import side_by_side

        if self.summary is None or self.summary.choice is None or self.before is None:
            return None
        trials = {trial.config: trial for trial in self.summary.trials}
        now = trials.get(self.summary.choice.config)
        return None if now is None else side_by_side(now, trials.get(self.before.config))


@dataclass
class _Session:
    """The searches of one command.

    Attributes:
        by_hand: so many of the problems, the first, are tried whatever the journal says.
    """

    kernel: TunedKernel
    problems: Sequence[Problem]
    budget_s: float | None
    launches: int | None
    strategy: str | None
    by_hand: int
    isolate: bool | None
    quiet: bool
    into: IntoTable | None
    near: Sequence[Path]
    not_stored: NotStored
    results: list[_Result] = field(default_factory=list[_Result])
    interrupted: dict[str, Any] | None = None

    def run(self) -> int:
        """Search for every problem; the exit code."""
        from tunesmith.report.terminal import Progress

        with Progress(total=len(self.problems), detail=detail()) as progress:
            for number, problem in enumerate(self.problems):
                try:
                    arguments = self.kernel.inputs(problem)
                    key = self.kernel.key(**arguments)
                except BadInput as error:
                    if len(self.problems) == 1:
                        raise
                    self._done(_Result(problem, None, str(error), bad=True))
                    continue
                failed = None if number < self.by_hand else self._journal.failure(key)
                if failed is not None:
                    self._done(_Result(problem, None, f"{failed.reason} (on {failed.at[:10]}; --retry tries again)"))
                    continue
                try:
                    result = self._search(problem, key, arguments, progress)
                except KeyboardInterrupt:
                    progress.close()
                    self._keep(problem, arguments)
                    break
                self._note(key, result)
                self._done(result)
        if not self.quiet and len(self.problems) > 1:
            from tunesmith.report.terminal import print_results

            print()
            print_results([(r.problem, r.summary, r.error, r.change) for r in self.results])
        if self.interrupted is not None:
            return INTERRUPTED
        if any(result.bad for result in self.results):
            return USAGE
        return NO if self.not_stored.found or any(result.error for result in self.results) else GOOD

    @property
    def _journal(self) -> Journal:
        return Journal(options().cache_dir, self.kernel.declared.name_for(self.kernel.kernel.name))

    def _done(self, result: _Result) -> None:
        self.results.append(result)
        self._show(result)

    def _search(self, problem: Problem, key: Key, arguments: Mapping[str, Any], progress: Progress) -> _Result:
        from tunesmith.events import Event, Summary, watched
        from tunesmith.store import default_store

        heard: list[Summary] = []  # also of a search that ends with an error

        def listen(event: Event) -> None:
            progress(event)
            if isinstance(event, Summary) and event.key == key:
                heard.append(event)

        if self.into is not None:
            self.into.admit(key)
        stored = default_store().choice(key)
        before = None if stored is None else stored.choice
        isolate = isolated(self.kernel, self.isolate, arguments)
        try:
            with watched(listen):
                summary = self.kernel.tune(
                    budget_s=self.budget_s, launches=self.launches, strategy=self.strategy, isolate=isolate,
                    near=self.near, **arguments,
                )  # fmt: skip
        except (NoWorkingConfig, BudgetEnded, Busy) as error:
            seen = heard[-1] if heard else None
            failed = seen is not None and any(seen.failures)
            if len(self.problems) == 1 and not failed and not isinstance(error, NoWorkingConfig):
                raise
            progress.close()
            hopeless = failed and isinstance(error, NoWorkingConfig)
            return _Result(problem, seen, str(error), hopeless=hopeless, before=before)
        self.not_stored.look_at(problem, summary.choice)
        if self.into is not None:
            self.into.take(self.kernel, key, arguments, summary, before, isolate)
        return _Result(problem, summary, before=before)

    def _note(self, key: Key, result: _Result) -> None:
        """Keep in the journal what failed, and what failed before and works now."""
        journal = self._journal
        try:
            if result.hopeless:
                journal.failed(key, ": ".join(line.strip() for line in result.error.splitlines()[:2]))
            elif not result.error and journal.failure(key) is not None:
                journal.worked(key)
        except OSError as error:
            complain(f"warning: {journal.path} cannot be written ({error}); what failed will be tried again")

    def _show(self, result: _Result) -> None:
        from tunesmith.report.terminal import print_scores

        if not self.quiet and result.summary is not None:
            if len(self.results) > 1:
                print()
            print_scores(result.summary, ROWS if len(self.problems) == 1 else ROWS_OF_SEVERAL)
        if result.error:
            complain(result.error.splitlines()[0] if self.quiet else result.error)

    def _keep(self, problem: Problem, arguments: Mapping[str, Any]) -> None:
        """Say what Ctrl-C left: every finished Trial is in the store already, where that can be written."""
        from tunesmith.report.units import count, problem_line

        key, _, trials = self.kernel.explanation(**arguments)
        why, of = why_not_stored(), f"{count(len(trials), 'trial')} of {key.kernel}({problem_line(problem)})"
        self.interrupted = {"problem": key.problem.text, "trials_kept": 0 if why else len(trials)}
        done = f"; {len(self.results)} of {len(self.problems)} problems are done" if len(self.problems) > 1 else ""
        fate = f"lost ({why})" if why else "kept, and the same command measures only the rest"
        complain(f"interrupted: {of} are {fate}{done}")

    def data(self) -> dict[str, Any]:
        from tunesmith.report.data import summary_data

        results = [
            {
                "problem": r.problem.text, "error": r.error or None, "change": r.change, "ratio": r.ratio,
                "before": None if r.before is None else {"config": dict(r.before.config)},
                **(summary_data(r.summary) if r.summary else {}),
            }
            for r in self.results
        ]  # fmt: skip
        table = None if self.into is None else self.into.data()
        return {
            "kernel": self.kernel.kernel.name, "interrupted": self.interrupted, "results": results, "table": table,
            "not_stored": self.not_stored.data(),
        }  # fmt: skip
