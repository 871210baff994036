"""Evaluating Configs for one search: compile, load, race; what became of each is kept as a Trial and stored.

On the CPU all are compiled, then all are raced. For a GPU, which has nothing to do meanwhile, each candidate is loaded
and timed once as soon as it is compiled, and the race proper, side by side, begins when the compilers are done.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter

from tunesmith.core.config import Config
from tunesmith.core.outcome import Calls, Failed, Measured, Resources, Trial
from tunesmith.core.stopping import Rule
from tunesmith.errors import Busy, CompileFailed, TunesmithWarning, WorkerLost
from tunesmith.events import BUDGET, LAUNCHES, Compiled, Compiling, Racing, Sampled, Tried, fate, say
from tunesmith.kernel import Built, Clock, Executable, Job
from tunesmith.measure.bench import Bench
from tunesmith.measure.drift import drift
from tunesmith.measure.failure import attempt
from tunesmith.measure.pick import ENOUGH
from tunesmith.measure.race import Race, rule_for
from tunesmith.remote import RemoteBench, RemoteClock
from tunesmith.store import Store
from tunesmith.subject import Effort, Subject, local_bench
from tunesmith.turns import Turns
from tunesmith.workers import compile_all

#: Of a budget, the part that compiling and checking may take before the race begins with what is there.
COMPILE_SHARE = 0.6
#: First samples of candidates that are still being compiled are stored together: so much may be lost with the process.
STORE_EVERY_S = 0.5


@dataclass
class Evaluation:
    """What one search has found out so far. Nothing outlives it but what went to the store.

    Attributes:
        at: when the search began, UTC, ISO 8601.
        deadline: `perf_counter` time at which the budget ends, `None` for no limit.
        trials: of this search, by Config.
        known: of earlier ones.
        incumbent: what is in use today: it is timed to the end of each race it is in.
        first_error: what the first failure raised: the cause of the error when nothing works.
        compile_s, measure_s, store_s, waited_s: spent waiting for what is compiled, with the device's lock held, on
            writing to the store, and waiting for the device's lock.
        cut_short: whether the latest race was stopped before its end.
        stopped: what ended before the strategy did, `BUDGET` or `LAUNCHES`; empty for none.
        kept_s, kept_launches: of those that may be spent, so many are not for now, once there was a race.
        own_clock: of this process, wherever candidates run.
        calls_note: why it is not known what calls take, where that was asked for.
        held: whether Trials are kept from the store for now; `commit` stores them afterwards.
    """

    subject: Subject
    store: Store
    clock: Clock
    effort: Effort
    at: str
    deadline: float | None
    incumbent: Config | None = None
    trials: dict[Config, Trial] = field(default_factory=dict[Config, Trial])
    known: Mapping[Config, Trial] = field(default_factory=dict[Config, Trial])
    compile_s: float = 0.0
    measure_s: float = 0.0
    store_s: float = 0.0
    waited_s: float = 0.0
    first_error: BaseException | None = None
    cut_short: bool = False
    stopped: str = ""
    kept_s: float = 0.0
    kept_launches: int = 0
    own_clock: Clock = field(init=False)
    calls_note: str = ""
    held: bool = False
    _anew: bool = False
    _stored: dict[Config, Trial] = field(default_factory=dict[Config, Trial])
    _stored_at: float = field(default_factory=perf_counter)
    _bench: Bench = field(init=False)
    _decided: bool = False  # whether candidates run here or in a worker
    #: of the race under way: what is launched for a Config, and the seconds its compiler took
    _ready: dict[Config, tuple[Executable, float | None]] = field(
        default_factory=dict[Config, "tuple[Executable, float | None]"]
    )
    _checked: set[Config] = field(default_factory=set[Config])
    _turns: Turns = field(default_factory=Turns)
    _next_round: int = 0
    _launches: int = 0  # of races that are over
    _racing: Race | None = None
    _levels: dict[Config, float] = field(default_factory=dict[Config, float])  # before the race under way
    _told: set[Config] = field(default_factory=set[Config])  # of whose fate in the race under way was told

    def __post_init__(self) -> None:
        self._bench, self.own_clock = local_bench(self.subject), self.clock

    @property
    def notes(self) -> Sequence[str]:
        """What launching candidates has shown that a user should know."""
        return self._bench.notes

    @property
    def over(self) -> bool:
        """Whether the budget has ended."""
        return bool(self.ended_by)

    @property
    def ended_by(self) -> str:
        """What has ended: `BUDGET`, `LAUNCHES`, or nothing."""
        most = self.effort.launches
        spent = self._launches + (self._racing.launches if self._racing else 0)
        if most is not None and spent + (self.kept_launches if self._launches else 0) >= most:
            return LAUNCHES
        return BUDGET if self.out_of_time else ""

    @property
    def out_of_time(self) -> bool:
        """Whether the budget's seconds have ended."""
        return self.left_s <= 0

    def extend(self, seconds: float) -> None:
        """Let the budget end so much later."""
        if self.deadline is not None:
            self.deadline += seconds

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        kept_s = self.kept_s if self._launches else 0.0
        return math.inf if self.deadline is None else self.deadline - kept_s - perf_counter()

    @property
    def _for_the_race_s(self) -> float | None:
        """Of what is left now, the part that belongs to the race."""
        return None if self.deadline is None else (1 - COMPILE_SHARE) * self.left_s

    @property
    def leaders(self) -> list[Config]:
        """The fastest so far and what is in use today: raced beside what is new."""
        verdict = self.effort.verdict(list(self.trials.values()))
        if verdict is None:
            return []
        in_use = [t.config for t in verdict.ranking if t.config == self.incumbent]
        return list(dict.fromkeys([verdict.ranking[0].config, *in_use]))

    @property
    def rule(self) -> Rule:
        """Who leaves a race, and when it is over."""
        if self.effort.rounds is not None:
            return Rule(rounds=self.effort.rounds, everybody=True)
        ties = self.effort.pick == "cheapest" and self.effort.ties
        return rule_for(self.clock, Rule(self.effort.margin, self.effort.confidence, ties=ties))

    @property
    def overlaps(self) -> bool:
        """Whether candidates are timed while others are still being compiled.

        Not on the CPU, where compilers and kernels would slow each other down; nor for a Clock of one round
        (`do_bench`): its only sample is not to be taken apart from the others'. Nor where everybody is timed anyway.
        """
        return self.subject.device.kind != "cpu" and self.rule.rounds > 1 and not self.rule.everybody

    def _isolate(self) -> None:
        """From the first candidate on they run in a worker, where the subject has a recipe for one.

        Raises:
            BadInput, WorkerLost: when they have to and it can't be had; otherwise that is a warning.
        """
        if self._decided or self.subject.recipe is None:
            return
        self._decided, recipe = True, self.subject.recipe()
        if recipe is None:
            return
        remote = RemoteBench(recipe, tells=self.subject.around is not None)
        try:
            remote.begin()
        except BaseException as lost:
            remote.close()
            if recipe.required or not isinstance(lost, WorkerLost):
                raise
            warnings.warn(f"{self.subject.kernel.name}: {lost}. They do now", TunesmithWarning, stacklevel=2)
        else:
            self._bench, self.clock = remote, RemoteClock(remote, self.clock, self)

    def close(self) -> None:
        """The search is over: its worker goes."""
        self._bench.close()

    def evaluate(self, batch: Sequence[Config], *, anew: bool = False) -> None:
        """Compile, load and race a batch, in its order; its Trials are stored even when Ctrl-C ends it.

        Under a budget, part of the time goes to compiling and the rest to the race; what the compilers did not get
        to has its turn when time is left, beside the fastest so far.

        Args:
            anew: what a race of the whole batch finds takes the place of what is known, though it be fewer samples;
                of one that was stopped, once it had a few rounds.

        Raises:
            Busy: when another search has been measuring on the device for too long.
            BadInput, WorkerLost: when candidates have to run in a worker and it can't be had.
        """
        left = list(batch)
        self._isolate()
        self._anew = anew
        try:
            while left and not self.over:
                seen = self._evaluate_once(left)
                if not seen:
                    return
                rest = [config for config in left if config not in seen]
                left = [*[c for c in self.leaders if c not in rest], *rest] if rest else []
        finally:
            self._anew = False
            self.commit()

    def _evaluate_once(self, batch: Sequence[Config]) -> set[Config]:
        """Compile what there is time for and race it; what was looked at."""
        seen: set[Config] = set()
        waiting: list[Executable] = []
        for_the_race_s = self._for_the_race_s
        with self._race() as race, closing(self.compile(batch, seen)) as loaded:

            def has_its_turn_later(config: Config) -> bool:
                """Whether it is checked after the race of those that are in: of one sample each nothing is known.
                Who has to meet all others does not wait."""
                there_is_time = self._anew or for_the_race_s is None or self.left_s > for_the_race_s
                if there_is_time or race.candidates < 2 or config == self.incumbent:
                    return False
                seen.discard(config)
                return True

            for executable in loaded:
                if has_its_turn_later(executable.config):
                    continue
                if self.overlaps:
                    with self.alone(), self._turns.timing():
                        self._admit(race, executable, race.welcome)
                    self._keep(race, {executable.config}, at_once=False)
                else:
                    waiting.append(executable)
            self.cut_short = True
            with self.alone():
                if waiting:  # compiling had its part: as large a part of the rest is for checking
                    for_the_race_s = self._for_the_race_s
                for executable in waiting:
                    if not has_its_turn_later(executable.config):
                        self._admit(race, executable, race.enter)
                say(Racing(race.candidates))
                race.run()
            self.cut_short = not race.ended
        return seen

    def _admit(self, race: Race, executable: Executable, admit: Callable[..., None]) -> None:
        """Let a loaded candidate into a race, unless it turns out that it can't be timed."""
        config = executable.config
        run, failure, error = self._bench.ready(executable)
        if run is not None:
            if run.checked:
                self._checked.add(config)
            admit(run, stays=config == self.incumbent)
        else:
            assert failure is not None
            self.first_error = self.first_error or error
            self._add(config, failure, executable.resources, self._ready[config][1])

    def check(self, known: Trial, times: int = 1) -> None:
        """Compare a Config's results with the reference's, without timing it: its Trial says what came of that.

        Args:
            times: on so many inputs.
        """
        config = known.config
        self._isolate()
        with self._bench, self.alone(), closing(self.compile([config], set())) as loaded:
            for executable in loaded:
                for _ in range(times):
                    run, failure, error = self._bench.ready(executable)
                    self.first_error = self.first_error or error
                    if failure is not None:
                        self._add(config, failure, executable.resources, known.compile_s)
                        break
                    if run is not None and run.checked:
                        self.trials[config] = replace(known, checked=self.subject.check.identity)
        self._ready.clear()
        self.commit()

    # --- what calls take -------------------------------------------------------------------------

    def loaded_here(self, configs: Sequence[Config]) -> dict[Config, Executable]:
        """Configs ready to launch in this process, wherever candidates run; who is not has failed."""
        bench, self._bench = self._bench, local_bench(self.subject)
        try:
            with closing(self.compile(configs, set())) as loaded:
                return {executable.config: executable for executable in loaded}
        finally:
            self._bench = bench
            self._ready.clear()

    @contextmanager
    def arguments_kept(self) -> Generator[None]:
        """Within this scope launches may write what they are declared to write; afterwards it is as before."""
        with local_bench(self.subject):
            yield

    def keep_calls(self, found: Mapping[Config, Calls | Failed]) -> None:
        """Note and store what calls of some Configs take, or what became of them."""
        for config, one in found.items():
            trial = self.trials.get(config) or self.known[config]
            if isinstance(one, Failed):
                self._add(config, one, trial.resources, trial.compile_s)
            else:
                self.trials[config] = replace(trial, calls=one)
        self.commit()

    # --- compiling -------------------------------------------------------------------------------

    def compile(self, batch: Sequence[Config], seen: set[Config]) -> Generator[Executable]:
        """Compile Configs in their order until they are done or time is up, and yield each that is ready to launch.

        Args:
            seen: what was looked at is added to it.
        """
        stop, since = threading.Event(), perf_counter()
        for_the_race_s = self._for_the_race_s
        say(Compiling(len(batch), self._turns))
        jobs = self._jobs(batch)
        with closing(compile_all(jobs, self.effort.jobs, stop=stop, turns=self._turns)) as compiled:
            for config, built in compiled:
                seen.add(config)
                executable, failure = self._load(config, built)
                say(Compiled(config, failure))
                if executable is not None:
                    self.compile_s += perf_counter() - since
                    self._ready[config] = executable, built.seconds if isinstance(built, Built) else None
                    yield executable
                    since = perf_counter()
                if for_the_race_s is not None and self.left_s <= for_the_race_s:
                    stop.set()
        self.compile_s += perf_counter() - since
        self.commit()

    def _jobs(self, batch: Sequence[Config]) -> Iterator[tuple[Config, Job | Failed | None]]:
        """What the compilers are given; made when one of them is free."""
        kernel, problem, device = self.subject.kernel, self.subject.exact, self.subject.device
        for config in batch:
            prediction = None if self.subject.predict is None else self.subject.predict(config, None)
            if prediction is not None and prediction.cut:
                yield config, Failed("cut", prediction.cut)
                continue
            job, failure, error = attempt("compile", lambda c=config: kernel.compile_job(c, problem, device))
            self.first_error = self.first_error or error
            yield config, failure or job

    def _load(self, config: Config, built: Built | Failed | None) -> tuple[Executable | None, Failed | None]:
        """What came of a compilation, ready to launch; or why it is not."""
        if isinstance(built, Failed):
            executable, failure, error = None, built, None
        else:
            executable, failure, error = self._bench.load(config, built)
            self.first_error = self.first_error or error
        if failure is not None:
            self._add(config, failure, Resources(), None)
            self._bench.tell(config, error or CompileFailed(failure.reason, failure.detail))
        return executable, failure

    # --- racing ----------------------------------------------------------------------------------

    @contextmanager
    def _race(self) -> Generator[Race]:
        """A race. However it ends, what became of everyone is noted, and the arguments are as they were."""
        held: list[Race] = []

        def keep(configs: Set[Config], gone: Set[Config]) -> None:
            self._keep(held[0], configs)
            self._tell(gone, "left after")

        race = Race(
            self.clock, rule=self.rule, over=lambda: self.over, seed=self.effort.seed, first_round=self._next_round,
            left=keep,
            progress=lambda config, leader, leader_s, number: say(Sampled(config, leader, leader_s, number)),
        )  # fmt: skip
        held.append(race)
        self._racing = race
        before = {**self.known, **self.trials}
        self._levels = {config: level for config, trial in before.items() if (level := trial.level_s) is not None}
        self._next_round += self.rule.rounds + self.rule.finals
        try:
            with self._bench:
                yield race
        finally:
            self._keep(race, race.outcomes.keys(), whole=race.ended or race.rounds >= ENOUGH)
            self._tell(race.outcomes.keys(), "to the end," if race.ended else "stopped after")
            self._told.clear()
            self._ready.clear()
            self.first_error = self.first_error or next(iter(race.errors.values()), None)
            self._racing = None
            self._launches += race.launches
            held.clear()  # or the race and `keep` hold each other, and with them the call's arrays

    @contextmanager
    def alone(self) -> Generator[None]:
        """Within this scope nobody else measures on the device; waiting for that is not searching.

        Held for one arrival, or for all rounds of a race, and never while compilers are waited for: they may take
        minutes, in which another search can measure.
        """
        asked = perf_counter()
        wait_s = max(0.0, self.effort.wait_s - self.waited_s)
        with self.store.device_lock(self.subject.device.places, wait_s) as alone:
            start, stored_s = perf_counter(), self.store_s
            if not alone:
                name = self.subject.device.name
                raise Busy(f"{name} has been measured on by another search for more than one may wait")
            self.waited_s += start - asked
            if self.deadline is not None:
                self.deadline += start - asked
            try:
                yield
            finally:
                self.measure_s += perf_counter() - start - (self.store_s - stored_s)

    # --- what became of them ---------------------------------------------------------------------

    def _keep(self, race: Race, configs: Iterable[Config], *, at_once: bool = True, whole: bool = False) -> None:
        """Store what is known of some candidates: a process that dies loses no more than the samples since.

        Args:
            at_once: otherwise they may wait for others, as each writing waits for the disk.
            whole: it is over, and long enough to be compared by.
        """
        outcomes, pace_s = race.outcomes, race.pace_s
        for config in configs:
            if config in outcomes and not self._known_better(config, outcomes[config], whole):
                executable, compile_s = self._ready[config]
                before = self.trials.get(config)  # compiled then, and found now
                seconds = (before and before.compile_s) or compile_s
                self._add(config, outcomes[config], executable.resources, seconds, outcomes, pace_s)
        if at_once or perf_counter() - self._stored_at >= STORE_EVERY_S:
            self.commit()

    def _tell(self, configs: Iterable[Config], how: str) -> None:
        """Say what became of some candidates of a race, of each once."""
        for config in configs:
            trial = self.trials.get(config)
            if trial is not None and config not in self._told:
                self._told.add(config)
                say(Tried(self.subject.kernel.name, self.subject.exact, trial, fate(trial, how)))

    def _known_better(self, config: Config, outcome: Measured | Failed, whole: bool) -> bool:
        """Whether an earlier race of this search has more samples of it: this one has only begun, or was cut short."""
        before = self.trials.get(config)
        if self._anew and (whole or (before is not None and isinstance(outcome, Measured))):
            return not whole  # all of this race or nothing: parts of two cannot be compared
        if before is None or not isinstance(before.outcome, Measured) or not isinstance(outcome, Measured):
            return False
        return len(before.outcome.samples) > len(outcome.samples)

    def _add(
        self, config: Config, outcome: Measured | Failed, resources: Resources, compile_s: float | None,
        race: Mapping[Config, Measured | Failed] | None = None, pace_s: float | None = None,
    ) -> None:  # fmt: skip
        judged = config in self._checked or (isinstance(outcome, Failed) and outcome.stage == "wrong")
        checked = self.subject.check.identity if judged else ""
        slower = drift(outcome, race or {}, self._levels) if isinstance(outcome, Measured) else 1.0
        before = self.trials.get(config)
        self.trials[config] = Trial(
            config, outcome, resources, self.at, compile_s, dict(self.subject.key.soft), checked, slower,
            before.calls if before is not None else None, pace_s,
        )  # fmt: skip
        if isinstance(outcome, Failed):
            self._tell([config], "")

    @contextmanager
    def storing(self) -> Generator[None]:
        """Within this scope the store writes; how long that takes is noted."""
        start = perf_counter()
        try:
            yield
        finally:
            self.store_s += perf_counter() - start

    def commit(self) -> None:
        """Store the Trials that are new or have changed since the last time."""
        if self.held:
            return
        new = [trial for config, trial in self.trials.items() if self._stored.get(config) is not trial]
        with self.storing():
            self.store.add_trials(self.subject.key, new, replace=True)
        self._stored.update((trial.config, trial) for trial in new)
        self._stored_at = perf_counter()
