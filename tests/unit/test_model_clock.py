"""A Clock that makes times up: seeded, and never taken for a measurement."""

from __future__ import annotations

from statistics import stdev
from types import SimpleNamespace
from typing import Any

import pytest

from tunesmith import Config, ModelClock, Resources, Space, Tiles, autotune, known_device
from tunesmith.core.model import Model
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.kernel import Run

H200 = known_device("NVIDIA H200")
PROBLEM = Problem({"M": 4096, "N": 4096, "K": 4096})
SPACE = Space(BLOCK_M=[64, 128], BLOCK_N=[64, 256], BLOCK_K=[64], num_warps=[8], num_stages=[3, 4])


def run_of(config: Config, resources: Resources | None = None) -> Run:
    executable: Any = SimpleNamespace(config=config, resources=resources or Resources(), launch=lambda *_: None)
    return Run(executable, ())


def clock(seed: int = 0, noise: float = 0.02) -> ModelClock:
    return ModelClock(Tiles(), PROBLEM, H200, noise=noise, seed=seed)


def test_a_configs_samples_depend_on_the_seed_alone() -> None:
    a, b = list(SPACE)[:2]
    one, other = clock(), clock()
    alone = [one.sample(run_of(a)).seconds for _ in range(5)]
    between: list[float] = []
    for _ in range(5):
        other.sample(run_of(b))
        between.append(other.sample(run_of(a)).seconds)
    assert alone == between
    assert len(set(alone)) == 5
    assert clock(seed=1).sample(run_of(a)).seconds != alone[0]


def test_the_noise_is_what_was_asked_for_around_the_prediction() -> None:
    config = next(iter(SPACE))
    exact = Model.of(Tiles()).predict(PROBLEM, config, H200)
    assert exact is not None
    assert clock(noise=0).sample(run_of(config)).seconds == exact.seconds
    noisy = clock(noise=0.05)
    off = [noisy.sample(run_of(config)).seconds / exact.seconds for _ in range(400)]
    assert 0.04 < stdev(off) < 0.06
    assert abs(sum(off) / 400 - 1) < 0.01


def test_what_can_not_run_there_is_no_time_of() -> None:
    config = next(iter(SPACE))
    with pytest.raises(BadInput, match=r"can't run on NVIDIA H200: shared memory"):
        clock().sample(run_of(config, Resources(32, 0, 300_000, 128)))
    with pytest.raises(BadInput, match="noise=-1"):
        clock(noise=-1)


def test_a_search_over_made_up_times_finds_the_models_best() -> None:
    """On any machine; and what it stores says that the chip was pretended."""

    @autotune(space=SPACE, key=["M", "N", "K"], policy="search", clock=clock(), version="1")
    def gemm(M: int, N: int, K: int, **knobs: Any) -> None:
        pass

    gemm(4096, 4096, 4096)
    model = Model.of(Tiles())
    predicted = {config: model.predict(PROBLEM, config, H200) for config in SPACE}
    found = gemm.choice(4096, 4096, 4096)
    assert found.source == "search"
    seconds = {config: one.seconds for config, one in predicted.items() if one is not None}
    assert seconds[found.config] < 1.02 * min(seconds.values())
    assert "model(NVIDIA H200" in gemm.explanation(4096, 4096, 4096)[0].protocol
