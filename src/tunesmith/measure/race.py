"""The race: every candidate is timed in interleaved rounds, those worse beyond doubt leave, the rest go on."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace
from typing import Any, cast

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Measured, Sample
from tunesmith.core.stats import median
from tunesmith.core.stopping import APART, Brief, Look, Rule
from tunesmith.kernel import Clock, Run
from tunesmith.measure.failure import attempt
from tunesmith.measure.pace import pace_of_most, paces_of

_ARRIVAL = -1


def of_races(clock: Clock) -> dict[str, Any]:
    """What a Clock says of races of its samples, as fields of `Rule`; what it has of another type is something else."""
    rounds, screens, brief = (getattr(clock, name, None) for name in ("rounds", "screens", "brief"))
    return {
        **({} if rounds is None else {"rounds": int(rounds)}),
        **({"screens": screens} if isinstance(screens, Mapping) else {}),
        **({"brief": brief} if isinstance(brief, Brief) else {}),
    }


def limits_of(clock: Clock) -> set[str]:
    """What a Clock says held the device's clock back in its samples so far."""
    limits = getattr(clock, "limits", ())
    if not isinstance(limits, (set, frozenset, list, tuple)):
        return set()
    return {str(limit) for limit in cast("Collection[object]", limits)}


def rule_for(clock: Clock, rule: Rule) -> Rule:
    """The rule of a race with this Clock: one that has `rounds` of its own (each sample of it is a median) is asked
    no more often, and one that has `screens`, or others for `brief` samples, knows how far they may be off."""
    return rule if rule.everybody else replace(rule, **of_races(clock))


class Race:
    """One race. Its `outcomes` are right at any moment: an interrupted race keeps what it has.

    Candidates `enter` before the rounds. Those that come one by one, as they are compiled, are `welcome`: each is
    timed once at its arrival, which says what is hopeless and who leads, and no more: in the rounds all are timed side
    by side, and these samples take the place of the first. When the rule has seen enough, those who are left are timed
    a few rounds more; if it has not, by these, the race goes on.

    Args:
        clock: takes one sample.
        rule: says who leaves and when the race is over.
        over: whether the time is up: no new sample is begun then.
        progress: called after every sample with (config, fastest config, its median in seconds, round); round -1 is
            an arrival.
        first_round: what the first round is called; no two races of one search share a round.
        left: called after a round with the candidates to keep, those that leave and after the first all, and with those
            of them that leave.

    Attributes:
        samples: how many were taken.
        rounds: how many were gone through, with everybody who was in.
        launches: how many launches they are the means of.
        pace_s: how fast the core was around most of them, as of `tunesmith.measure.pace`; `None` where the Clock does
            not read that.
        look: what the rule said last.
        ended: whether it ran to its end.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        rule: Rule | None = None,
        over: Callable[[], bool] = lambda: False,
        progress: Callable[[Config, Config, float, int], None] | None = None,
        seed: int = 0,
        first_round: int = 0,
        left: Callable[[Set[Config], Set[Config]], None] | None = None,
    ) -> None:
        self._tell = left
        self._rule = rule_for(clock, rule or Rule())
        self._clock, self._over, self._progress, self._first = clock, over, progress, first_round
        self._rng = random.Random(seed)
        self._paces_before = len(paces_of(clock))
        self._runs: dict[Config, Run] = {}
        self._stays: set[Config] = set()
        self._arrivals: dict[Config, Sample] = {}
        self._samples: dict[Config, list[Sample]] = {}
        self._seconds: dict[Config, list[float]] = {}  # of `_samples`: what the rule is fed
        self._failed: dict[Config, Failed] = {}
        self.errors: dict[Config, BaseException] = {}
        self._leader: tuple[Config, float] | None = None
        self.samples = self.launches = self.rounds = 0
        self.look: Look[Config] | None = None
        self.ended = False

    @property
    def pace_s(self) -> float | None:
        return pace_of_most(paces_of(self._clock)[self._paces_before :])

    @property
    def candidates(self) -> int:
        """How many have entered and not failed."""
        return len(self._runs) - len(self._failed)

    @property
    def outcomes(self) -> dict[Config, Measured | Failed]:
        """What is known of each candidate; those never timed are left out."""
        arrived = {config: Measured((sample,)) for config, sample in self._arrivals.items()}
        timed = {config: Measured(tuple(mine)) for config, mine in self._samples.items() if mine}
        return {**arrived, **timed, **self._failed}

    def enter(self, run: Run, *, stays: bool = False) -> None:
        """Let a candidate in that is ready to launch.

        Args:
            stays: it is timed to the end, however slow: what is in use today, a library's call.
        """
        self._runs[run.config] = run
        self._samples[run.config], self._seconds[run.config] = [], []
        if stays:
            self._stays.add(run.config)

    def welcome(self, run: Run, *, stays: bool = False) -> None:
        """Let a candidate in and time it, while others are still being made."""
        self.enter(run, stays=stays)
        if not self._over():
            self._time(run.config, _ARRIVAL, -1)

    def run(self) -> None:
        """Time until the rule has seen enough, the time is up, or Ctrl-C (which passes through)."""
        settled = self._settle(self._arrivals)
        alive = self._not_hopeless()
        number, most, final = 0, self._rule.rounds, 0  # `final`: the round after the last, once all is decided
        while alive and number < (final or most + self._rule.finals):
            if not self._round(number, alive):
                return
            number = self.rounds = number + 1
            alive = [config for config in alive if config not in self._failed]
            settled = settled or self._settle({c: mine[0] for c in alive if (mine := self._samples[c])})
            if number > most or (final and number < final):
                continue
            staying, decided = self._judged(alive, number, last=bool(final))
            leaving = set(alive) - set(staying)
            if self._tell is not None and (leaving or number == 1):
                self._tell(set(alive) if number == 1 else leaving, leaving)
            alive = staying
            if self._leader is not None:
                most = self._rule.most_rounds(self._leader[1])
            final = (final or number + self._rule.finals) if decided else 0
        self.ended = True

    def _settle(self, samples: Mapping[Config, Sample]) -> bool:
        """Let a Clock that knows how bring the device under the fastest one's load; whether that has been done.

        What follows is compared under it: a GPU at work clocks lower than one that had nothing to do, and not all
        candidates are slowed alike.
        """
        settle = getattr(self._clock, "settle", None)
        running = [config for config in samples if config not in self._failed]
        if settle is None or not running:
            return settle is None
        fastest = min(running, key=lambda config: samples[config].seconds)
        _, failure, error = attempt("launch", lambda: settle(self._runs[fastest], samples[fastest].seconds, self._over))
        if failure is not None and error is not None:
            self._failed[fastest], self.errors[fastest] = failure, error
        return failure is None

    def _round(self, number: int, alive: list[Config]) -> bool:
        """Time everybody once, in random order; whether there was time for all."""
        order = list(alive)
        self._rng.shuffle(order)
        for place, config in enumerate(order):
            if self._over():
                return False
            self._time(config, number, place)
        return True

    def _judged(self, alive: list[Config], rounds: int, *, last: bool) -> tuple[list[Config], bool]:
        """Who goes on after so many rounds, and whether the rule has seen enough; the last ones may have changed it."""
        if not alive or not (last or self._rule.looks_after(rounds)):
            return alive, False
        self.look = look = self._rule.look({config: self._seconds[config] for config in alive}, self._stays)
        self._leader = look.leader, median(self._seconds[look.leader])
        return list(look.staying), look.decided

    def _time(self, config: Config, number: int, place: int) -> None:
        run, clock = self._runs[config], self._clock
        sample, failure, error = attempt("launch", lambda: clock.sample(run))
        self.samples += 1
        self.launches += int(run.state.get("launches", 1))
        if sample is None or failure is not None:
            assert failure is not None and error is not None
            self._failed[config], self.errors[config] = failure, error
            if self._leader is not None and self._leader[0] == config:
                self._leader = None
        elif number == _ARRIVAL:
            self._arrivals[config] = sample
        else:
            self._samples[config].append(replace(sample, round=self._first + number, order=place))
            self._seconds[config].append(sample.seconds)
        if self._progress is not None:
            self._report(config, number)

    def _report(self, config: Config, number: int) -> None:
        assert self._progress is not None
        arrived = self._arrivals.get(config)
        mine = self._seconds[config] or ([arrived.seconds] if arrived is not None else [])
        if mine and config not in self._failed:
            middle = median(mine)
            if self._leader is None or middle < self._leader[1] or self._leader[0] == config:
                self._leader = (config, middle)
        if self._leader is not None:
            self._progress(config, *self._leader, number)

    def _not_hopeless(self) -> list[Config]:
        """Who goes into the rounds: all but those whose arrival was far behind."""
        best_s = min((sample.seconds for sample in self._arrivals.values()), default=0.0)
        return [
            config
            for config in self._runs
            if config not in self._failed
            and (
                config not in self._arrivals
                or config in self._stays
                or self._arrivals[config].seconds <= best_s * APART
            )
        ]
