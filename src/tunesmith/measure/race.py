"""The race: every candidate is timed in interleaved rounds, those far behind leave, the rest go on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from time import perf_counter

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Measured, Sample
from tunesmith.core.stats import median
from tunesmith.kernel import Clock, Run
from tunesmith.measure.failure import attempt

#: After so many rounds, who is slower than the fastest by more than this factor leaves, by the least of its samples:
#: whatever else runs on the machine makes a sample longer, never shorter, and may double one, less likely two, four …
CUTS = {1: 3.0, 2: 1.8, 4: 1.35, 7: 1.15, 10: 1.07}
#: Samples of each finalist, unless the Clock has `rounds` of its own (as each sample of it is a median): enough for a
#: 95 % interval of the median that leaves out the three extremes at each end.
ROUNDS = 15


def rounds_of(clock: Clock) -> int:
    """How many samples of each finalist a race with this Clock takes."""
    return int(getattr(clock, "rounds", ROUNDS))


def left_behind(samples: int, least_s: float, best_s: float) -> bool:
    """Whether a candidate is out, with so many samples of which the least is `least_s`, when the best has `best_s`."""
    return any(samples >= rounds and least_s > best_s * factor for rounds, factor in CUTS.items())


class Race:
    """One race. Its `outcomes` are right at any moment: an interrupted race keeps what it has.

    Args:
        runs: the candidates, ready to launch.
        clock: takes one sample.
        deadline: `perf_counter` time after which no new sample is begun, `None` for no limit.
        progress: called after every sample with (config, fastest config, its median in seconds, round).
        first_round: what the first round is called; no two races of one search share a round.
        left: called after a round with the candidates that leave, and after the first with all.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        clock: Clock,
        *,
        deadline: float | None = None,
        progress: Callable[[Config, Config, float, int], None] | None = None,
        seed: int = 0,
        first_round: int = 0,
        left: Callable[[Set[Config]], None] | None = None,
    ) -> None:
        self._tell = left
        self._clock, self._deadline, self._progress, self._first = clock, deadline, progress, first_round
        self._rng = random.Random(seed)
        self._runs = {run.config: run for run in runs}
        self._samples: dict[Config, list[Sample]] = {config: [] for config in self._runs}
        self._failed: dict[Config, Failed] = {}
        self.errors: dict[Config, BaseException] = {}
        self._leader: tuple[Config, float] | None = None

    @property
    def outcomes(self) -> dict[Config, Measured | Failed]:
        """What is known of each candidate; those never timed are left out."""
        done: dict[Config, Measured | Failed] = {c: Measured(tuple(s)) for c, s in self._samples.items() if s}
        return {**done, **self._failed}

    def run(self) -> None:
        """Time until the rounds are done, the deadline passes, or Ctrl-C (which passes through)."""
        alive = list(self._runs)
        for number in range(rounds_of(self._clock)):
            order = list(alive)
            self._rng.shuffle(order)
            for place, config in enumerate(order):
                if self._deadline is not None and perf_counter() >= self._deadline:
                    return
                self._time(config, number, place)
            staying = self._left(alive, number + 1)
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
            self._samples[config].append(replace(sample, round=self._first + number, order=place))
            mine = median([s.seconds for s in self._samples[config]])
            if self._leader is None or mine < self._leader[1] or self._leader[0] == config:
                self._leader = (config, mine)
        if self._progress is not None and self._leader is not None:
            self._progress(config, *self._leader, number)

    def _left(self, alive: list[Config], rounds: int) -> list[Config]:
        """Who goes on to the next round."""
        alive = [config for config in alive if config not in self._failed]
        if not alive:
            return []
        least = {config: min(s.seconds for s in self._samples[config]) for config in alive}
        best = min(least.values())
        return [config for config in alive if not left_behind(rounds, least[config], best)]
