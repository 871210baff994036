"""The loop: space → cut → compile → race → pick → store. One search for one Key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from time import perf_counter
from typing import Any

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Failed, Measured, Resources, Trial, Untried
from tunesmith.core.problem import Problem
from tunesmith.core.space import ENUMERATED, Space
from tunesmith.errors import BudgetEnded, Busy, NoWorkingConfig
from tunesmith.events import Compiled, Compiling, Racing, Sampled, Started, Summary, say
from tunesmith.kernel import Around, Built, Clock, Executable, Job, Kernel, Run
from tunesmith.measure.failure import all_failed, attempt, is_machines, told_of_failures
from tunesmith.measure.inputs import Snapshot
from tunesmith.measure.pick import Verdict, pick
from tunesmith.measure.race import Race, left_behind, rounds_of
from tunesmith.search import strategy
from tunesmith.store import Store
from tunesmith.workers import compile_all

#: Of a budget, the part that compiling may take before the race begins with what is there.
COMPILE_SHARE = 0.6
#: A Choice's source when its Space holds nothing else.
ONLY = "only candidate"
BUDGET = "the budget ended"
#: Stored Trials that were found under other versions and are timed again: the best of them, an incumbent's rivals.
STALE_RERACED = 8


@dataclass(frozen=True)
class Subject:
    """What a search is about.

    Attributes:
        exact: the Problem that is measured, where the Key's is a bucket.
        args: the call's arguments by position; they are as before when the search ends.
        restore: arguments put back before each launch. zero: arguments zeroed before each launch.
        around: makes what else is done around each launch.
    """

    kernel: Kernel
    key: Key
    exact: Problem
    space: Space
    device: Device
    args: Sequence[Any]
    restore: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    around: Callable[[], Around] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The call's arguments by name."""
        return dict(zip(self.kernel.signature.parameters, self.args, strict=True))


@dataclass(frozen=True)
class Effort:
    """How a search goes about it: strategy's name, seconds at most (`None`: no limit), compilers at once, seed.

    Waiting for another search on the device does not count; it may take `wait_s`.
    """

    strategy: str = "exhaustive"
    budget_s: float | None = None
    jobs: int = 1
    seed: int = 0
    wait_s: float = 600.0


# --- the search --------------------------------------------------------------------------------------

_thread = threading.local()


def is_searching() -> bool:
    """Whether this thread is in the middle of a search (a candidate that calls another tuned kernel)."""
    return getattr(_thread, "depth", 0) > 0


@dataclass
class _State:
    """One search under way. Nothing outlives it but what went to the store."""

    subject: Subject
    store: Store
    clock: Clock
    effort: Effort
    at: str
    deadline: float | None
    trials: dict[Config, Trial] = field(default_factory=dict[Config, Trial])
    stored: dict[Config, Trial] = field(default_factory=dict[Config, Trial])
    next_round: int = 0
    compile_s: float = 0.0
    measure_s: float = 0.0
    first_error: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.deadline is not None and perf_counter() >= self.deadline

    @property
    def compile_deadline(self) -> float | None:
        if self.deadline is None:
            return None
        now = perf_counter()
        return now + COMPILE_SHARE * (self.deadline - now)

    def add(self, config: Config, outcome: Measured | Failed, resources: Resources, compile_s: float | None) -> None:
        self.trials[config] = Trial(config, outcome, resources, self.at, compile_s, dict(self.subject.key.soft))

    def commit(self) -> None:
        """Store the Trials that are new or have changed since the last time."""
        new = [trial for config, trial in self.trials.items() if self.stored.get(config) is not trial]
        self.store.add_trials(self.subject.key, new, replace=True)
        self.stored.update((trial.config, trial) for trial in new)


def search(subject: Subject, store: Store, clock: Clock, effort: Effort) -> Summary:
    """Find the fastest Config and store it with every Trial.

    What the store knows is not measured again, the incumbent beside something new excepted. The caller holds
    the key's claim. Ctrl-C stores what was measured and passes through.

    Raises:
        NoWorkingConfig: when every Config failed; nothing stays stored then.
        BudgetEnded: when the budget ended before anything was measured.
        Busy: when another search has been measuring on the device for too long.
    """
    cut: dict[str, int] = {}
    legal = _enumerate(subject.space, cut)
    deadline = None if effort.budget_s is None else perf_counter() + effort.budget_s
    state = _State(subject, store, clock, effort, datetime.now(timezone.utc).isoformat(), deadline)
    if legal is not None and len(legal) == 1:
        return _compile_only(state, legal[0], cut)
    stored = store.trials(subject.key)
    known = {t.config: t for t in stored if _believed(t, subject)}
    if not any(isinstance(t.outcome, Measured) for t in known.values()):
        known = {}  # failures alone are not believed: the machine may have been in a bad state
    say(Started(subject.kernel.name, subject.exact, subject.space.cardinality, cut, len(known), effort.budget_s))
    _thread.depth = getattr(_thread, "depth", 0) + 1
    try:
        _follow(state, known, *_to_time_again(known, stored, subject.key, rounds_of(clock)))
    finally:
        _thread.depth -= 1
    done = {**known, **state.trials}
    return _conclude(state, legal if legal is not None else list(done), done, cut, len(known))


def _compile_only(state: _State, config: Config, cut: Mapping[str, int]) -> Summary:
    """A Space of one Config has nothing to choose: it is compiled, to see that it does, and not measured."""
    subject = state.subject
    say(Started(subject.kernel.name, subject.exact, subject.space.cardinality, cut, 0, state.effort.budget_s))
    _compile(state, [config])
    why = "the only Config: compiled, not measured"
    choice = Choice(config, "search", ONLY, space=subject.space.digest)
    trials = (state.trials.get(config, Trial(config, Untried(why))),)
    summary = Summary(
        subject.key, choice, None, trials, cut, subject.space.cardinality, 0, why, state.compile_s, state.measure_s
    )  # fmt: skip
    failed = list(summary.failures)
    say(replace(summary, choice=None) if failed else summary)
    if failed:
        raise all_failed(subject.kernel.name, subject.exact.text, failed, state.first_error)
    return summary


def _enumerate(space: Space, cut: dict[str, int]) -> list[Config] | None:
    """Every legal Config, counting what is cut by reason; `None` when there are too many to list."""
    if space.cardinality > ENUMERATED:
        return None
    return list(space.points(lambda reason, n: cut.update({reason: cut.get(reason, 0) + n})))


def _believed(trial: Trial, subject: Subject) -> bool:
    """Whether a stored Trial counts: a failure under other versions, or one of the machine's, is tried again."""
    failed = trial.outcome if isinstance(trial.outcome, Failed) else None
    again = failed is not None and (bool(subject.key.stale(trial.soft)) or is_machines(failed))
    return trial.config in subject.space and not again


def _to_time_again(
    known: Mapping[Config, Trial], stored: Sequence[Trial], key: Key, rounds: int
) -> tuple[list[Config], bool]:
    """Of the stored Trials, those that go into a race beside what is new; and whether they need one of their own.

    The incumbent, so that new Configs are compared with it side by side. In need of a race: those whose race was
    stopped before it was over, and the best of those found under other versions.
    """
    verdict = pick(list(known.values()))
    if verdict is None:
        return [], False
    stale = [t for t in verdict.ranking if key.stale(t.soft)][:STALE_RERACED]
    unfinished = [trial for trial in _unfinished(stored, rounds) if trial.config in known]
    again = dict.fromkeys(t.config for t in (verdict.ranking[0], *unfinished, *stale))
    return list(again), bool(stale or unfinished)


def _unfinished(trials: Iterable[Trial], rounds: int) -> list[Trial]:
    """Those that would still be in the race they were in, if it had not been stopped."""
    samples = {t.config: t.outcome.samples_s for t in trials if isinstance(t.outcome, Measured)}
    best = min((min(s) for s in samples.values()), default=0.0)
    going_on = {c for c, s in samples.items() if len(s) < rounds and not left_behind(len(s), min(s), best)}
    return [t for t in trials if t.config in going_on]


def _follow(state: _State, known: Mapping[Config, Trial], again: Sequence[Config], needed: bool) -> None:
    """Drive the strategy: hand it the Trials it asks for, from the store or by measuring."""
    steps = strategy(state.effort.strategy, state.subject.space, state.effort.seed, starts=list(known), say=say)
    try:
        batch = next(steps)
        while True:
            new = [c for c in batch if c not in known and c not in state.trials]
            if new or needed:
                _evaluate(state, [*new, *[c for c in again if c not in new]])
                needed, again = False, _leaders(state) or again
            if state.over:
                return
            done = {**known, **state.trials}
            batch = steps.send([done.get(c, Trial(c, Untried(BUDGET))) for c in batch])
    except StopIteration:
        return
    finally:
        steps.close()


def _leaders(state: _State) -> list[Config]:
    """The fastest so far: raced beside the next batch."""
    verdict = pick(list(state.trials.values()))
    return [] if verdict is None else [verdict.ranking[0].config]


def _evaluate(state: _State, batch: Sequence[Config]) -> None:
    """Compile, load and race a batch; its Trials are stored even when Ctrl-C ends it.

    Under a budget, part of the time goes to compiling and the rest to the race; what the compilers did not get to
    has its turn when time is left, beside the fastest so far.
    """
    left = list(batch)
    try:
        while left and not state.over:
            executables, compile_s, seen = _compile(state, left)
            if not seen:
                return
            _race(state, executables, compile_s)
            rest = [config for config in left if config not in seen]
            left = [*rest, *[c for c in _leaders(state) if c not in rest]] if rest else []
    finally:
        state.commit()


def _compile(state: _State, batch: Sequence[Config]) -> tuple[list[Executable], dict[Config, float], set[Config]]:
    """(what can be launched, seconds the compiler took, what was looked at before time was up)."""
    subject, start = state.subject, perf_counter()
    jobs: list[tuple[Config, Job | None]] = []
    seen: set[Config] = set()
    for config in batch:
        job, failure, error = attempt(
            "compile", lambda c=config: subject.kernel.compile_job(c, subject.exact, subject.device)
        )
        if failure is not None:
            _fail(state, config, failure, error)
            seen.add(config)
        else:
            jobs.append((config, job))
    say(Compiling(len(jobs)))
    executables: list[Executable] = []
    seconds: dict[Config, float] = {}
    stop, deadline = threading.Event(), state.compile_deadline
    for config, built in compile_all(jobs, state.effort.jobs, stop=stop):
        seen.add(config)
        if isinstance(built, Failed):
            _fail(state, config, built, None)
        else:
            _load(state, config, built, executables)
            if built is not None:
                seconds[config] = built.seconds
        failed = state.trials.get(config)
        say(Compiled(config, failed.outcome if failed and isinstance(failed.outcome, Failed) else None))
        if deadline is not None and perf_counter() >= deadline:
            stop.set()
    state.compile_s += perf_counter() - start
    state.commit()
    return executables, seconds, seen


def _load(state: _State, config: Config, built: Built | None, executables: list[Executable]) -> None:
    subject = state.subject
    executable, failure, error = attempt("load", lambda: subject.kernel.load(config, subject.exact, built))
    if failure is not None or executable is None:
        assert failure is not None
        _fail(state, config, failure, error)
    else:
        executables.append(executable)


def _fail(state: _State, config: Config, failure: Failed, error: BaseException | None) -> None:
    state.first_error = state.first_error or error
    state.add(config, failure, Resources(), None)


def _race(state: _State, executables: Sequence[Executable], compile_s: Mapping[Config, float]) -> None:
    subject = state.subject
    snapshot = Snapshot(subject.arguments, subject.restore, subject.zero)
    around = subject.around() if subject.around is not None else None
    runs = [_candidate(executable, subject, snapshot, around) for executable in executables]
    say(Racing(len(runs)))
    asked = perf_counter()
    with state.store.device_lock(subject.device.place, state.effort.wait_s) as alone:
        if not alone:
            raise Busy(f"{subject.device.name} has been measured on by another search for more than one may wait")
        start = perf_counter()
        if state.deadline is not None:
            state.deadline += start - asked  # waiting is not searching

        def keep(configs: Set[Config]) -> None:
            _keep(state, race, executables, compile_s, configs)

        race = Race(
            runs, state.clock, deadline=state.deadline, seed=state.effort.seed, first_round=state.next_round, left=keep,
            progress=lambda config, leader, leader_s, number: say(Sampled(config, leader, leader_s, number)),
        )  # fmt: skip
        state.next_round += rounds_of(state.clock)
        _run(state, race, snapshot, around, executables, compile_s)
        state.measure_s += perf_counter() - start


def _run(
    state: _State,
    race: Race,
    snapshot: Snapshot,
    around: Around | None,
    executables: Sequence[Executable],
    compile_s: Mapping[Config, float],
) -> None:
    """Run a race to its end, or to where Ctrl-C ends it, and note what became of everyone."""
    try:
        race.run()
    finally:
        _keep(state, race, executables, compile_s, {executable.config for executable in executables})
        if around is not None:
            around.after()
        snapshot.put_back()
        state.first_error = state.first_error or next(iter(race.errors.values()), None)


def _keep(
    state: _State,
    race: Race,
    executables: Sequence[Executable],
    compile_s: Mapping[Config, float],
    configs: Set[Config],
) -> None:
    """Store what is known of some candidates: a process that dies loses no more than the samples since."""
    outcomes = race.outcomes
    for executable in executables:
        config = executable.config
        if config in configs and config in outcomes:
            state.add(config, outcomes[config], executable.resources, compile_s.get(config))
    state.commit()


def _candidate(executable: Executable, subject: Subject, snapshot: Snapshot, around: Around | None) -> Run:
    """A candidate with all that is done ahead of its launches."""
    prepare, config = snapshot.before_launch, executable.config
    if around is None:
        return Run(executable, subject.args, prepare)

    def before() -> None:
        around.after()
        if prepare is not None:
            prepare()
        around.before(config, subject.args)

    launch = told_of_failures(around.launch_of(executable), around)
    return Run(_Candidate(config, launch, executable.resources), subject.args, before)


@dataclass(frozen=True)
class _Candidate:
    """An Executable whose launch is another one."""

    config: Config
    launch: Callable[..., Any]
    resources: Resources


def _conclude(
    state: _State, legal: Sequence[Config], done: Mapping[Config, Trial], cut: Mapping[str, int], known: int
) -> Summary:
    """Pick, store, report."""
    subject = state.subject
    why = BUDGET if state.over else f"not drawn by {state.effort.strategy}"
    trials = tuple(done.get(config, Trial(config, Untried(why))) for config in legal)
    verdict = pick(trials)
    summary = Summary(
        subject.key, None, verdict, trials, cut, subject.space.cardinality, known, why, state.compile_s, state.measure_s
    )  # fmt: skip
    if verdict is not None:
        stored = state.store.choice(subject.key)
        if not state.trials and stored is not None and _says_the_same(stored.choice, verdict, subject):
            summary = replace(summary, choice=replace(stored.choice, source="store"))
        else:
            choice = _choice(summary, verdict, state)
            summary = replace(summary, choice=choice)
            state.store.put_choice(subject.key, choice, dict(subject.key.soft))
    say(summary)
    if verdict is None:
        state.store.forget_failures(subject.key)
        raise _nothing_works(summary, state)
    return summary


def _says_the_same(choice: Choice, verdict: Verdict, subject: Subject) -> bool:
    return choice.config == verdict.winner.config and choice.space == subject.space.digest and not choice.partial


def _nothing_works(summary: Summary, state: _State) -> NoWorkingConfig | BudgetEnded:
    kernel, problem, failures = state.subject.kernel.name, state.subject.exact.text, list(summary.failures)
    if failures:
        return all_failed(kernel, problem, failures, state.first_error)
    if not summary.trials:
        reasons = "; ".join(f"{count} × {reason}" for reason, count in summary.cut.items())
        return NoWorkingConfig(f"{kernel}({problem}): the constraints cut every Config of the Space: {reasons}")
    return BudgetEnded(
        f"{kernel}({problem}): {summary.why_untried} before any of {len(summary.trials)} Configs was measured "
        f"({state.compile_s:.1f} s were spent compiling); give it a larger budget"
    )


def _choice(summary: Summary, verdict: Verdict, state: _State) -> Choice:
    subject, budget_s = state.subject, state.effort.budget_s
    cut_short = summary.why_untried == BUDGET and (
        summary.counts["untried"] > 0 or _unfinished(summary.trials, rounds_of(state.clock))
    )
    partial = BUDGET if cut_short else ""
    winner = verdict.winner
    others = [trial for trial in verdict.ranking if trial is not winner]
    assert isinstance(winner.outcome, Measured)
    runner_up = others[0] if others else None
    ratio = (
        runner_up.outcome.median_s / winner.outcome.median_s
        if runner_up and isinstance(runner_up.outcome, Measured)
        else None
    )
    return Choice(
        config=winner.config, track="search", source="search", median_s=winner.outcome.median_s,
        runner_up=runner_up.config if runner_up else None, ratio=ratio, ties=verdict.ties,
        measured_at=subject.exact if subject.exact != subject.key.problem else None,
        candidates=summary.counts, space=subject.space.digest, partial=partial, budget_s=budget_s,
    )  # fmt: skip
