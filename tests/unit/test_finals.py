"""A search of several races ends with one in which those that decide it meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.fakes import ScriptedClock

from tunesmith import Config, Measured, Problem, Sample, Space, TunedKernel, Untried, Work, autotune
from tunesmith.backends.call import CallableKernel
from tunesmith.core.device import Device, known_device
from tunesmith.events import LAUNCHES, Event, Racing, Summary, watched
from tunesmith.kernel import Run


def body(x: int, n: int = 0, *, c: int) -> int:
    return c


class Kernel(CallableKernel):
    """A Python function; where a library's call stands in, that one stays unless another is faster beyond doubt."""

    at: Device | None = None

    def __init__(self, stays: Config | None = None) -> None:
        super().__init__(body, frozenset({"c"}), name="many", version="1")
        if stays is not None:
            self.stays = stays

    def device(self, args: Sequence[Any]) -> Device:
        return self.at or super().device(args)


def tuned(clock: ScriptedClock, n: int, stays: Config | None = None, **more: Any) -> TunedKernel:
    return autotune(space=Space(c=list(range(n))), key=["n"], clock=clock, **more)(Kernel(stays))


def c_of(config: Config) -> int:
    return int(str(config["c"]))


def races_of(act: Callable[[], object]) -> int:
    events: list[Event] = []
    with watched(events.append):
        act()
    return sum(isinstance(event, Racing) for event in events)


@pytest.mark.parametrize("strategy", ["random", "evolution", "surrogate", "descent"])
def test_what_stays_is_beaten_by_who_is_found_late(strategy: str) -> None:
    clock = ScriptedClock(lambda config: 1.0 if config["c"] == 0 else 0.7 + abs(c_of(config) - 40) / 1000, noise=0.01)
    f = tuned(clock, 64, Config(c=0), strategy=strategy, candidates=48, default=Config(c=0))
    found = f.tune(1, 64)
    assert found.choice is not None
    assert found.verdict is not None
    assert found.choice.config["c"] != 0
    rounds = {
        trial.config: {sample.round for sample in trial.outcome.samples}
        for trial in found.trials
        if isinstance(trial.outcome, Measured)
    }
    assert len(rounds[found.choice.config] & rounds[Config(c=0)]) >= 2


class DriftingClock(ScriptedClock):
    """From the so many-th sample on, everything takes longer: a GPU that is held back by its power limit."""

    after: int = 0
    factor: float = 1.04

    def sample(self, run: Run) -> Sample:
        sample = super().sample(run)
        return Sample(sample.seconds * self.factor) if len(self.asked) > self.after else sample


@pytest.mark.parametrize("after", range(100, 500, 50))
def test_a_clock_that_falls_between_two_races_leaves_nobody_out(after: int) -> None:
    """A GPU that holds a fifth less from some moment on: who was timed before it looks better, and is not."""
    clock = DriftingClock(lambda config: 0.7 + abs(c_of(config) - 40) / 100, noise=0.002)
    clock.after, clock.factor = after, 1.2
    found = tuned(clock, 64, strategy="random", default=Config(c=0)).tune(1, 64)
    assert found.choice is not None
    assert found.choice.config["c"] == 40


def test_a_later_search_at_another_clock_compares_with_what_is_known() -> None:
    """The first search has left a good one in the store; the second runs at a faster clock, and finds none better."""
    clock = DriftingClock(lambda config: 0.7 + abs(c_of(config) - 40) / 100, noise=0.002)
    clock.after = 10**9
    first = tuned(clock, 64, strategy="random", default=Config(c=40), candidates=30).tune(1, 64)
    assert first.choice is not None
    assert first.choice.config["c"] == 40
    clock.after, clock.factor = 0, 0.8
    second = tuned(clock, 64, strategy="random", default=Config(c=40), candidates=60).tune(1, 64)
    assert second.choice is not None
    assert second.choice.config["c"] == 40
    best = next(trial for trial in second.trials if trial.config["c"] == 40)
    assert sorted(t.config["c"] for t in second.trials if t.level_s and t.level_s <= (best.level_s or 0.0)) == [40]


def met(found: Summary, one: Config, other: Config) -> int:
    """How many rounds both were in."""
    rounds = {
        trial.config: {(trial.at, sample.round) for sample in trial.outcome.samples}
        for trial in found.trials
        if isinstance(trial.outcome, Measured)
    }
    return len(rounds[one] & rounds[other])


def near_the_best(config: Config) -> float:
    return 1.0 if config["c"] == 0 else 0.7 + abs(c_of(config) - 40) / 1000


def test_launches_are_kept_for_it() -> None:
    clock = ScriptedClock(near_the_best, noise=0.001)
    f = tuned(clock, 64, Config(c=0), strategy="random", launches=600, default=Config(c=0))
    found = f.tune(1, 64)
    assert found.choice is not None
    assert len(clock.asked) <= 600
    assert found.choice.config["c"] != 0
    assert found.choice.partial == LAUNCHES
    assert met(found, found.choice.config, Config(c=0)) >= 2


def test_a_last_race_that_is_cut_short_counts_from_a_few_rounds_on() -> None:
    clock = ScriptedClock(near_the_best, noise=0.05)  # too noisy to end within what is left
    f = tuned(clock, 64, Config(c=0), strategy="random", launches=500, default=Config(c=0))
    found = f.tune(1, 64)
    assert found.choice is not None
    assert len(clock.asked) == 500
    assert found.choice.config["c"] != 0


def test_a_strategy_that_was_cut_short_is_not_made_whole_by_the_last_race() -> None:
    clock = ScriptedClock(lambda config: 1 + c_of(config) / 1000, noise=0.02)
    f = tuned(clock, 12, strategy="exhaustive", launches=40)  # three rounds, and nobody is told apart
    found = f.tune(1, 64)
    assert found.choice is not None
    assert found.counts["untried"] == 0
    assert found.choice.partial == LAUNCHES


def test_what_another_search_found_meets_what_stays() -> None:
    """A second search goes on at a lower clock: of those that the first left near its best, one looks fastest."""
    clock = DriftingClock(near_the_best, noise=0.002)
    clock.after = 10**9
    tuned(clock, 64, Config(c=0), strategy="random", candidates=40, default=Config(c=0)).tune(1, 64)
    clock.after = 0
    f = tuned(clock, 64, Config(c=0), strategy="random", candidates=60, default=Config(c=0))
    found = f.tune(1, 64)
    assert found.choice is not None
    assert found.choice.config["c"] != 0
    assert found.verdict is not None
    assert met(found, found.choice.config, Config(c=0)) >= 2


def test_nothing_new_is_no_race() -> None:
    clock = ScriptedClock(near_the_best, noise=0.01)
    f = tuned(clock, 64, Config(c=0), strategy="random", candidates=48, default=Config(c=0))
    f.tune(1, 64)
    asked = len(clock.asked)
    f.tune(1, 64)
    assert len(clock.asked) == asked


def test_who_fails_in_the_last_race_does_not_win() -> None:
    late: list[Config] = []

    def seconds(config: Config) -> float:
        if config["c"] != 0 and f.kernel.name == "many" and len(set(clock.asked)) >= 48 and config in late:
            raise RuntimeError("gone")
        late.append(config) if config["c"] == 40 else None
        return near_the_best(config)

    clock = ScriptedClock(seconds, noise=0.01)
    f = tuned(clock, 64, Config(c=0), strategy="random", candidates=64, default=Config(c=0))
    found = f.tune(1, 64)
    assert found.choice is not None
    assert found.choice.config["c"] not in (0, 40)


def test_one_race_has_no_last_one() -> None:
    f = tuned(ScriptedClock(lambda config: 1.0 + c_of(config)), 8)
    assert races_of(lambda: f.tune(1, 64)) == 1


def test_a_model_that_chooses_makes_one_race() -> None:
    def work(problem: Problem, config: Config) -> Work:
        return Work(blocks=132, threads=128, flops=1e6 * (1 + abs(c_of(config) - 30)), dtype="float16")

    kernel = Kernel()
    kernel.at = known_device("NVIDIA H200")
    f = autotune(
        space=Space(c=list(range(2000))), key=["n"], clock=ScriptedClock(lambda config: 1 + c_of(config) / 10),
        model=work, candidates=40,
    )(kernel)  # fmt: skip
    found: list[Summary] = []
    assert races_of(lambda: found.append(f.tune(1, 64))) == 1
    assert 40 <= sum(not isinstance(trial.outcome, Untried) for trial in found[0].trials) <= 44
