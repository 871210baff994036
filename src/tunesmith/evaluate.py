"""Evaluating Configs for one search: compile, load, race; what became of each is kept as a Trial and stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.outcome import Failed, Measured, Resources, Trial
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import Busy
from tunesmith.events import Compiled, Compiling, Racing, Sampled, say
from tunesmith.kernel import Around, Built, Clock, Executable, Job, Kernel, Run
from tunesmith.measure.failure import attempt, told_of_failures
from tunesmith.measure.inputs import Snapshot
from tunesmith.measure.pick import pick
from tunesmith.measure.race import Race, rounds_of
from tunesmith.store import Store
from tunesmith.workers import compile_all

#: Of a budget, the part that compiling may take before the race begins with what is there.
COMPILE_SHARE = 0.6


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


@dataclass
class Evaluation:
    """What one search has found out so far. Nothing outlives it but what went to the store.

    Attributes:
        at: when the search began, UTC, ISO 8601.
        deadline: `perf_counter` time at which the budget ends, `None` for no limit.
        trials: of this search, by Config.
        first_error: what the first failure raised: the cause of the error when nothing works.
    """

    subject: Subject
    store: Store
    clock: Clock
    effort: Effort
    at: str
    deadline: float | None
    trials: dict[Config, Trial] = field(default_factory=dict[Config, Trial])
    compile_s: float = 0.0
    measure_s: float = 0.0
    first_error: BaseException | None = None
    _stored: dict[Config, Trial] = field(default_factory=dict[Config, Trial])
    _next_round: int = 0

    @property
    def over(self) -> bool:
        """Whether the budget has ended."""
        return self.deadline is not None and perf_counter() >= self.deadline

    @property
    def leaders(self) -> list[Config]:
        """The fastest so far: raced beside what is new."""
        verdict = pick(list(self.trials.values()))
        return [] if verdict is None else [verdict.ranking[0].config]

    def evaluate(self, batch: Sequence[Config]) -> None:
        """Compile, load and race a batch; its Trials are stored even when Ctrl-C ends it.

        Under a budget, part of the time goes to compiling and the rest to the race; what the compilers did not get
        to has its turn when time is left, beside the fastest so far.

        Raises:
            Busy: when another search has been measuring on the device for too long.
        """
        left = list(batch)
        try:
            while left and not self.over:
                executables, compile_s, seen = self.compile(left)
                if not seen:
                    return
                self._race(executables, compile_s)
                rest = [config for config in left if config not in seen]
                left = [*rest, *[c for c in self.leaders if c not in rest]] if rest else []
        finally:
            self._commit()

    # --- compiling -------------------------------------------------------------------------------

    def compile(self, batch: Sequence[Config]) -> tuple[list[Executable], dict[Config, float], set[Config]]:
        """(what can be launched, seconds the compiler took, what was looked at before time was up)."""
        subject, start = self.subject, perf_counter()
        jobs: list[tuple[Config, Job | None]] = []
        seen: set[Config] = set()
        for config in batch:
            job, failure, error = attempt(
                "compile", lambda c=config: subject.kernel.compile_job(c, subject.exact, subject.device)
            )
            if failure is not None:
                self._fail(config, failure, error)
                seen.add(config)
            else:
                jobs.append((config, job))
        say(Compiling(len(jobs)))
        executables: list[Executable] = []
        seconds: dict[Config, float] = {}
        stop, deadline = threading.Event(), self._compile_deadline
        for config, built in compile_all(jobs, self.effort.jobs, stop=stop):
            seen.add(config)
            if isinstance(built, Failed):
                self._fail(config, built, None)
            else:
                self._load(config, built, executables)
                if built is not None:
                    seconds[config] = built.seconds
            failed = self.trials.get(config)
            say(Compiled(config, failed.outcome if failed and isinstance(failed.outcome, Failed) else None))
            if deadline is not None and perf_counter() >= deadline:
                stop.set()
        self.compile_s += perf_counter() - start
        self._commit()
        return executables, seconds, seen

    @property
    def _compile_deadline(self) -> float | None:
        if self.deadline is None:
            return None
        now = perf_counter()
        return now + COMPILE_SHARE * (self.deadline - now)

    def _load(self, config: Config, built: Built | None, executables: list[Executable]) -> None:
        subject = self.subject
        executable, failure, error = attempt("load", lambda: subject.kernel.load(config, subject.exact, built))
        if failure is not None or executable is None:
            assert failure is not None
            self._fail(config, failure, error)
        else:
            executables.append(executable)

    # --- racing ----------------------------------------------------------------------------------

    def _race(self, executables: Sequence[Executable], compile_s: Mapping[Config, float]) -> None:
        subject = self.subject
        snapshot = Snapshot(subject.arguments, subject.restore, subject.zero)
        around = subject.around() if subject.around is not None else None
        runs = [_candidate(executable, subject, snapshot, around) for executable in executables]
        say(Racing(len(runs)))
        asked = perf_counter()
        with self.store.device_lock(subject.device.place, self.effort.wait_s) as alone:
            if not alone:
                raise Busy(f"{subject.device.name} has been measured on by another search for more than one may wait")
            start = perf_counter()
            if self.deadline is not None:
                self.deadline += start - asked  # waiting is not searching

            def keep(configs: Set[Config]) -> None:
                self._keep(race, executables, compile_s, configs)

            race = Race(
                runs, self.clock, deadline=self.deadline, seed=self.effort.seed, first_round=self._next_round,
                left=keep,
                progress=lambda config, leader, leader_s, number: say(Sampled(config, leader, leader_s, number)),
            )  # fmt: skip
            self._next_round += rounds_of(self.clock)
            self._run(race, snapshot, around, executables, compile_s)
            self.measure_s += perf_counter() - start

    def _run(
        self,
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
            self._keep(race, executables, compile_s, {executable.config for executable in executables})
            if around is not None:
                around.after()
            snapshot.put_back()
            self.first_error = self.first_error or next(iter(race.errors.values()), None)

    # --- what became of them ---------------------------------------------------------------------

    def _keep(
        self,
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
                self._add(config, outcomes[config], executable.resources, compile_s.get(config))
        self._commit()

    def _fail(self, config: Config, failure: Failed, error: BaseException | None) -> None:
        self.first_error = self.first_error or error
        self._add(config, failure, Resources(), None)

    def _add(self, config: Config, outcome: Measured | Failed, resources: Resources, compile_s: float | None) -> None:
        self.trials[config] = Trial(config, outcome, resources, self.at, compile_s, dict(self.subject.key.soft))

    def _commit(self) -> None:
        """Store the Trials that are new or have changed since the last time."""
        new = [trial for config, trial in self.trials.items() if self._stored.get(config) is not trial]
        self.store.add_trials(self.subject.key, new, replace=True)
        self._stored.update((trial.config, trial) for trial in new)


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
