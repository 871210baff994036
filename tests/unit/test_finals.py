"""A search of several races ends with one in which those that decide it meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.fakes import ScriptedClock

from tunesmith import Config, Measured, Problem, Space, TunedKernel, Untried, Work, autotune
from tunesmith.backends.call import CallableKernel
from tunesmith.core.device import Device, known_device
from tunesmith.events import Event, Racing, Summary, watched


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
