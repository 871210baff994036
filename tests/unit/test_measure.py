"""The race, the pick, the snapshot and the wall clock, on numbers and small arrays."""

import random
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from tunesmith import Config, Failed, Measured, Resources, Sample, Trial
from tunesmith.errors import BadInput
from tunesmith.kernel import Run
from tunesmith.measure.clock import WallClock
from tunesmith.measure.inputs import Snapshot
from tunesmith.measure.pick import pick
from tunesmith.measure.race import Race


@dataclass
class Stub:
    """An Executable that does nothing, or raises."""

    config: Config
    resources: Resources = field(default_factory=Resources)
    error: BaseException | None = None
    launches: int = 0

    def launch(self, *args: Any) -> None:
        self.launches += 1
        if self.error is not None:
            raise self.error


@dataclass
class TableClock:
    """Launches once and answers from a table, with noise and drift."""

    times: dict[int, float]
    noise: float = 0.0
    drift: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    calls: int = 0
    protocol: str = "table/1"

    def sample(self, run: Run) -> Sample:
        run()
        self.calls += 1
        x = self.times[run.config["x"]]  # type: ignore[index]
        return Sample(x * (1 + self.drift * self.calls) * self.rng.lognormvariate(0, self.noise))


def race_of(times: dict[int, float], clock: TableClock | None = None, **raising: BaseException) -> Race:
    runs = [Run(Stub(Config(x=x), error=raising.get(f"x{x}")), ()) for x in times]
    race = Race(clock or TableClock(times))
    for run in runs:
        race.enter(run)
    return race


def trials(race: Race, **resources: Resources) -> list[Trial]:
    return [Trial(c, o, resources.get(f"x{c['x']}", Resources()), "now") for c, o in race.outcomes.items()]


def test_the_fastest_wins_and_the_slow_are_dropped_early() -> None:
    times = {i: 1.0 + i for i in range(20)}
    clock = TableClock(times, noise=0.01)
    race = race_of(times, clock)
    race.run()
    verdict = pick(trials(race))

    assert verdict is not None
    assert verdict.winner.config == Config(x=0)
    assert len(race.outcomes) == 20
    assert clock.calls < 40


def test_drift_in_the_middle_of_a_race_does_not_change_the_winner() -> None:
    for seed in range(20):
        times = {i: 1.0 if i == 7 else 1.05 for i in range(12)}
        race = race_of(times, TableClock(times, noise=0.01, drift=0.001, rng=random.Random(seed)))
        race.run()
        verdict = pick(trials(race))
        assert verdict is not None
        assert verdict.winner.config == Config(x=7)


class BoostedClock(TableClock):
    """A device whose order of candidates is another until it has been under load."""

    settled: float = 0.0

    def sample(self, run: Run) -> Sample:
        cold = {1: 0.8, 2: 1.0, 3: 9.0}
        return super().sample(run) if self.settled else Sample(cold[run.config["x"]])  # type: ignore[index]

    def settle(self, run: Run, seconds: float, over: Any) -> None:
        assert not over()
        run()
        self.settled = seconds


@pytest.mark.parametrize("arriving", [True, False])
def test_candidates_are_compared_under_load(arriving: bool) -> None:
    clock = BoostedClock({1: 1.06, 2: 1.03, 3: 9.0}, noise=0.003)
    race = Race(clock)
    for x in (1, 2, 3):
        run = Run(Stub(Config(x=x)), ())
        race.welcome(run) if arriving else race.enter(run)
    race.run()
    outcomes = race.outcomes
    medians = {x: outcome.median_s for x in (1, 2) if isinstance(outcome := outcomes[Config(x=x)], Measured)}
    assert clock.settled == 0.8  # by the one that was the fastest until then
    assert medians[2] < medians[1]
    assert race.ended


def test_a_candidate_that_fails_under_load_is_out() -> None:
    clock = BoostedClock({1: 1.0, 2: 1.1, 3: 9.0})
    race, failing = Race(clock), Stub(Config(x=1))
    race.welcome(Run(failing, ()))
    race.welcome(Run(Stub(Config(x=2)), ()))
    failing.error = RuntimeError("too hot")
    race.run()
    failed = race.outcomes[Config(x=1)]
    assert isinstance(failed, Failed)
    assert "too hot" in failed.reason
    assert isinstance(race.outcomes[Config(x=2)], Measured)


def test_among_ties_the_cheapest_is_picked_the_same_one_every_time() -> None:
    picked = set()
    for seed in range(50):
        times = {0: 10.0, 1: 10.02, 2: 15.0}
        race = race_of(times, TableClock(times, noise=0.003, rng=random.Random(seed)))
        race.run()
        verdict = pick(trials(race, x0=Resources(threads=4), x1=Resources(threads=1)))
        assert verdict is not None
        picked.add(verdict.winner.config)
        assert verdict.ties == (Config(x=0),)

    assert picked == {Config(x=1)}


def test_too_few_samples_make_no_tie() -> None:
    one = [Trial(Config(x=i), Measured((Sample(1.0 + i / 1000, round=0),)), at="now") for i in range(2)]
    verdict = pick(one)

    assert verdict is not None
    assert verdict.ties == ()
    assert pick([]) is None


def test_candidates_that_raise_are_kept_with_their_reason() -> None:
    times = {0: 1.0, 1: 0.5, 2: 0.4, 3: 0.3}
    race = race_of(times, x1=RuntimeError("pass pipeline failed\nmore"), x2=SystemExit(3), x3=MemoryError())
    race.run()

    assert race.outcomes[Config(x=1)].reason == "RuntimeError: pass pipeline failed"  # type: ignore[union-attr]
    assert race.outcomes[Config(x=2)].reason == "SystemExit: 3"  # type: ignore[union-attr]
    assert race.outcomes[Config(x=3)].reason == "MemoryError"  # type: ignore[union-attr]
    assert isinstance(race.outcomes[Config(x=0)], Measured)


def test_need_and_limit_of_an_out_of_resources_error_are_shown() -> None:
    class OutOfResources(Exception):
        required, limit = 300000, 232448

    race = race_of({0: 1.0}, x0=OutOfResources("shared memory"))
    race.run()

    assert race.outcomes[Config(x=0)].reason == "OutOfResources: shared memory: needs 300000, limit 232448"  # type: ignore[union-attr]


def test_ctrl_c_passes_and_what_was_measured_is_kept() -> None:
    times = dict.fromkeys(range(5), 1.0)
    race = race_of(times, x2=KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        race.run()
    assert Config(x=2) not in race.outcomes
    assert all(isinstance(outcome, Measured) for outcome in race.outcomes.values())


def test_a_deadline_ends_the_race() -> None:
    times = dict.fromkeys(range(5), 1.0)
    clock = TableClock(times)
    race = Race(clock, over=lambda: clock.calls == 3)
    for i in times:
        race.enter(Run(Stub(Config(x=i)), ()))
    race.run()

    assert clock.calls == 3


def test_the_wall_clock_tells_the_time_of_one_launch() -> None:
    class Busy(Stub):
        def launch(self, *args: Any) -> None:
            end = perf_counter() + 200e-6
            while perf_counter() < end:
                pass

    run, clock = Run(Busy(Config()), ()), WallClock()
    best = min(clock.sample(run).seconds for _ in range(5))

    assert 200e-6 <= best < 400e-6


def test_what_must_be_put_back_is_put_back_before_every_launch_and_outside_the_timed_stretch() -> None:
    x, seen = np.full(4, 5.0), []

    class Increment(Stub):
        def launch(self, *args: Any) -> None:
            seen.append(args[0][0])
            args[0][:] += 1

    snapshot = Snapshot({"x": x}, ["x"], [])
    run = Run(Increment(Config()), (x,), snapshot.before_launch)
    WallClock().sample(run)
    snapshot.put_back()

    assert set(seen) == {5.0}
    assert x.tolist() == [5.0] * 4


def test_snapshots_skip_none_and_copy_an_alias_once_and_zero() -> None:
    x = np.arange(6.0).reshape(2, 3)
    view, acc = x[:, ::2], np.ones(3)
    snapshot = Snapshot({"x": x, "same": x, "v": view, "none": None, "acc": acc}, ["x", "same", "none"], ["acc"])
    assert snapshot.before_launch is not None
    x[:] = -1
    snapshot.before_launch()
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert acc.tolist() == [0, 0, 0]
    snapshot.put_back()
    assert acc.tolist() == [1, 1, 1]
    with pytest.raises(BadInput, match="'scale'"):
        Snapshot({"scale": 1.5}, ["scale"], [])
