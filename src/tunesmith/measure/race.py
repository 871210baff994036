"""The race: every candidate is timed in interleaved rounds, those far behind leave, the rest go on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Measured, Sample
from tunesmith.core.stats import median
from tunesmith.kernel import Clock, Run
from tunesmith.measure.failure import attempt

#: After so many rounds, who is slower than the fastest by more than this factor leaves, by the least of its samples:
#: whatever else runs on the machine makes a sample longer, never shorter, and may double one, less likely two, four …
CUTS = {1: 3.0, 2: 1.8, 4: 1.35, 7: 1.15, 10: 1.07}
#: Timed apart, each when it was compiled, candidates are told apart by no less than this factor: the clock of a GPU
#: that had nothing to do may be a sixth of what it is at work.
APART = 10.0
_ARRIVAL = -1
#: Samples of each finalist, unless the Clock has `rounds` of its own (as each sample of it is a median): enough for a
#: 95 % interval of the median that leaves out the three extremes at each end.
ROUNDS = 15


def rounds_of(clock: Clock) -> int:
    """How many samples of each finalist a race with this Clock takes."""
    return int(getattr(clock, "rounds", ROUNDS))


def left_behind(samples: Sequence[Sample], best_s: float) -> bool:
    """Whether a candidate with these samples is out, when the least of all is `best_s`."""
    least_s = min((sample.seconds for sample in samples), default=0.0)
    count = sum(sample.round >= 0 for sample in samples)
    if not count:
        return least_s > best_s * APART
    return any(count >= rounds and least_s > best_s * factor for rounds, factor in CUTS.items())


class Race:
    """One race. Its `outcomes` are right at any moment: an interrupted race keeps what it has.

    Candidates `enter` before the rounds. Those that come one by one, as they are compiled, are `welcome`: each is
    timed once at its arrival, which says what is hopeless and who leads, and no more: in the rounds all are timed side
    by side, and these samples take the place of the first.

    Args:
        clock: takes one sample.
        over: whether the time is up: no new sample is begun then.
        progress: called after every sample with (config, fastest config, its median in seconds, round); round -1 is
            an arrival.
        first_round: what the first round is called; no two races of one search share a round.
        left: called after a round with the candidates that leave, and after the first with all.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        over: Callable[[], bool] = lambda: False,
        progress: Callable[[Config, Config, float, int], None] | None = None,
        seed: int = 0,
        first_round: int = 0,
        left: Callable[[Set[Config]], None] | None = None,
    ) -> None:
        self._tell = left
        self._clock, self._over, self._progress, self._first = clock, over, progress, first_round
        self._rng = random.Random(seed)
        self._runs: dict[Config, Run] = {}
        self._samples: dict[Config, list[Sample]] = {}
        self._failed: dict[Config, Failed] = {}
        self.errors: dict[Config, BaseException] = {}
        self._leader: tuple[Config, float] | None = None

    @property
    def candidates(self) -> int:
        """How many have entered and not failed."""
        return len(self._runs) - len(self._failed)

    @property
    def outcomes(self) -> dict[Config, Measured | Failed]:
        """What is known of each candidate; those never timed are left out."""
        done: dict[Config, Measured | Failed] = {c: Measured(tuple(s)) for c, s in self._samples.items() if s}
        return {**done, **self._failed}

    def enter(self, run: Run) -> None:
        """Let a candidate in that is ready to launch."""
        self._runs[run.config] = run
        self._samples[run.config] = []

    def welcome(self, run: Run) -> None:
        """Let a candidate in and time it, while others are still being made."""
        self.enter(run)
        if not self._over():
            self._time(run.config, _ARRIVAL, -1)

    def run(self) -> None:
        """Time until the rounds are done, the time is up, or Ctrl-C (which passes through)."""
        alive = self._left(list(self._runs))
        for number in range(rounds_of(self._clock)):
            order = list(alive)
            self._rng.shuffle(order)
            for place, config in enumerate(order):
                if self._over():
                    return
                self._time(config, number, place)
            staying = self._left(alive)
            leaving = set(alive) if number == 0 else set(alive) - set(staying)
            if self._tell is not None and leaving:
                self._tell(leaving)
            alive = staying

    def _time(self, config: Config, number: int, place: int) -> None:
        sample, failure, error = attempt("launch", lambda: self._clock.sample(self._runs[config]))
        if sample is None or failure is not None:
            assert failure is not None and error is not None
            self._failed[config], self.errors[config] = failure, error
            self._samples[config].clear()
            if self._leader is not None and self._leader[0] == config:
                self._leader = None
        else:
            in_rounds = [s for s in self._samples[config] if s.round >= 0]
            taken = replace(sample, round=number if number == _ARRIVAL else self._first + number, order=place)
            self._samples[config] = [*in_rounds, taken]
            mine = median([s.seconds for s in self._samples[config]])
            if self._leader is None or mine < self._leader[1] or self._leader[0] == config:
                self._leader = (config, mine)
        if self._progress is not None and self._leader is not None:
            self._progress(config, *self._leader, number)

    def _left(self, alive: list[Config]) -> list[Config]:
        """Who goes on to the next round."""
        samples = {config: self._samples[config] for config in alive if config not in self._failed}
        best_s = min((s.seconds for mine in samples.values() for s in mine), default=0.0)
        return [config for config, mine in samples.items() if not left_behind(mine, best_s)]
