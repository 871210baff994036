"""Timers too coarse for a kernel: seen in the samples, told in the Choice, made up for where that is possible."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tunesmith import Config, Measured, Resources, Sample, Trial, autotune
from tunesmith.core.stats import SHORTEST_S, timer_step
from tunesmith.kernel import Run
from tunesmith.measure.clock import WallClock
from tunesmith.measure.pick import Verdict, pick

#: what the events of some GPUs resolve
HALF_US = 0.5e-6


def quantised(true_s: float, step_s: float, n: int, noise: float = 0.02, seed: int = 0) -> list[float]:
    """What a timer of such steps makes of n samples; each begins somewhere within a step."""
    rng = random.Random(seed)
    return [
        step_s * math.floor(true_s * rng.lognormvariate(0, noise) / step_s + rng.random()) or SHORTEST_S
        for _ in range(n)
    ]


# --- seen in samples ----------------------------------------------------------------------------------


@pytest.mark.parametrize("true_s", [2.2e-6, 5e-6, 9.3e-6])
def test_the_step_shows_where_many_samples_have_few_values(true_s: float) -> None:
    assert timer_step(quantised(true_s, HALF_US, 30)) == pytest.approx(HALF_US)


def test_no_step_shows_in_few_samples_in_a_fine_timers_or_in_equal_ones() -> None:
    rng = random.Random(1)
    assert timer_step(quantised(5e-6, HALF_US, 5)) == 0.0
    assert timer_step([5e-6 * rng.lognormvariate(0, 0.02) for _ in range(60)]) == 0.0
    assert timer_step(quantised(5e-3, 1e-9, 60)) == 0.0
    assert timer_step([1.0] * 30) == 0.0
    assert timer_step([0.1 + 0.2, 0.3] * 10) == 0.0, "that is rounding"
    assert timer_step([1.0, 2.0, 2.7] * 10) == 0.0, "these are no steps"


def test_a_kernel_that_the_timer_does_not_see_has_no_time() -> None:
    assert timer_step([SHORTEST_S] * 5 + [HALF_US]) == math.inf


# --- told ---------------------------------------------------------------------------------------------


def verdict(step_s: float, *true_s: float) -> Verdict:
    trials = [
        Trial(
            Config(c=c), Measured(tuple(Sample(s, i) for i, s in enumerate(quantised(t, step_s, 40, seed=c)))), at="now"
        )
        for c, t in enumerate(true_s)
    ]
    found = pick(trials)
    assert found is not None
    return found


def test_a_timer_too_coarse_for_the_winner_is_a_doubt_that_says_what_to_do() -> None:
    doubt = verdict(HALF_US, 5e-6, 8e-6).doubt
    assert "its samples are 0.5 µs apart or equal, 10.0% of its time: the timer is too coarse" in doubt
    assert "clock='graph'" in doubt
    assert "no time could be seen" in verdict(HALF_US, 1e-8, 8e-6).doubt


def test_steps_within_the_margin_are_no_doubt() -> None:
    assert verdict(HALF_US, 300e-6, 400e-6).doubt == ""


@dataclass
class Coarse:
    """A clock of half a microsecond."""

    true_s: Callable[[Config], float]
    protocol: str = "coarse/1"
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def sample(self, run: Run) -> Sample:
        run()
        seconds = self.true_s(run.config) * self.rng.lognormvariate(0, 0.02)
        return Sample(max(HALF_US * math.floor(seconds / HALF_US + self.rng.random()), SHORTEST_S))


@pytest.mark.parametrize(("unit_s", "doubts"), [(2e-6, True), (1e-3, False)])
def test_a_choice_keeps_the_doubt(unit_s: float, doubts: bool) -> None:
    clock = Coarse(lambda config: unit_s * (1 + config["c"] / 50))  # type: ignore[operator]
    f = autotune(configs=[Config(c=c) for c in range(3)], clock=clock, version=str(unit_s))(lambda x, *, c: c)
    f([1.0])
    assert ("too coarse" in f.choice([1.0]).doubt) is doubts


# --- made up for --------------------------------------------------------------------------------------


@dataclass
class World:
    """Host time, which launches and looking at the clock take."""

    kernel_s: float
    step_s: float
    now_s: float = 0.0
    launches: int = 0
    config: Config = field(default_factory=Config)
    resources: Resources = field(default_factory=Resources)

    def timer(self) -> float:
        self.now_s += 50e-9
        return math.floor(self.now_s / self.step_s) * self.step_s

    def launch(self, *_: Any) -> None:
        self.launches += 1
        self.now_s += self.kernel_s


@pytest.mark.parametrize("step_s", [1e-9, 1e-6, 100e-6, 1e-3])
@pytest.mark.parametrize("kernel_s", [300e-9, 20e-6, 3e-3])
def test_the_wall_clock_launches_more_where_its_timer_is_coarse(kernel_s: float, step_s: float) -> None:
    world = World(kernel_s, step_s)
    clock, run = WallClock(world.timer), Run(world, ())
    clock.sample(run)
    times = [clock.sample(run).seconds for _ in range(5)]
    assert times == pytest.approx([kernel_s] * 5, rel=0.02)


def test_a_fine_timer_costs_no_more_launches_than_it_did() -> None:
    world = World(20e-6, 1e-9)
    clock, run = WallClock(world.timer), Run(world, ())
    clock.sample(run)
    assert world.launches < 60
    before = world.launches
    clock.sample(run)
    assert world.launches - before == 50


def test_a_kernel_that_has_to_be_restored_is_not_launched_without_end() -> None:
    world = World(1e-9, 1e-3)
    run = Run(world, (), lambda: None)
    WallClock(world.timer).sample(run)
    assert world.launches <= 4 * 4096
