"""What every search strategy must do: one class of tests that each strategy's tests inherit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log2

import pytest

import tunesmith
from tunesmith import Config, Failed, Measured, Problem, Sample, Space, Trial, Untried
from tunesmith.search import STRATEGIES, Solved, strategy


def tiles() -> Space:
    """384 Configs less those that do not fit: three ordered knobs, two without an order."""
    space = Space(
        BLOCK_M=[16, 32, 64, 128, 256, 512], BLOCK_N=[32, 64, 96, 128], warps=[1, 2, 4, 8],
        order=tunesmith.choices("row", "column"), vector=tunesmith.booleans(),
    )  # fmt: skip
    return space.where(lambda BLOCK_M, BLOCK_N: BLOCK_M * BLOCK_N <= 32768, "a tile above 32768 elements")


def seconds(config: Config) -> float | None:
    """Smooth, with one best (64, 96, 4, row, True) at 1 s; tiles of 16 rows fail."""
    m, n, warps = (float(config[knob]) for knob in ("BLOCK_M", "BLOCK_N", "warps"))  # type: ignore[arg-type]
    if m == 16:
        return None
    bad = log2(m / 64) ** 2 + (n / 96 - 1) ** 2 + log2(warps / 4) ** 2
    return 1.0 + 0.2 * bad + 0.3 * (config["order"] == "column") + 0.1 * (config["vector"] is False)


def trial(config: Config, of: Callable[[Config], float | None] = seconds) -> Trial:
    time = of(config)
    return Trial(config, Failed("compile", "no") if time is None else Measured((Sample(time),)))


def near() -> dict[str, object]:
    """A setting with a neighbour whose best is elsewhere, of which a fifth was measured."""
    measured = {config: time for config in list(tiles())[::5] if (time := seconds(config)) is not None}
    other = {config: time * (1.3 if config["order"] == "row" else 0.9) for config, time in measured.items()}
    return {"problem": Problem({"n": 64}), "near": [Solved(Problem({"n": 96}), other)]}


#: `transfer` with a neighbour: what the strategy is told beside the Space
TOLD: dict[str, Callable[[], dict[str, object]]] = {"transfer+near": near}


def batches(
    name: str, space: Space, seed: int = 0, of: Callable[[Config], Trial] = trial, **setting: object
) -> Iterator[list[Config]]:
    """Drive a strategy, and hand out what it asks for."""
    setting = {**TOLD.get(name, dict)(), **setting}
    steps = strategy(name.partition("+")[0], space, seed, **setting)  # type: ignore[arg-type]
    try:
        batch = next(steps)
        while True:
            yield list(batch)
            batch = steps.send([of(config) for config in batch])
    except StopIteration:
        return


def asked(name: str, space: Space, seed: int = 0, **rest: object) -> list[Config]:
    return [config for batch in batches(name, space, seed, **rest) for config in batch]  # type: ignore[arg-type]


class StrategyConformance:
    """Inherit, and name your strategy."""

    name = ""

    def test_what_it_asks_for_is_legal_new_and_not_too_much(self) -> None:
        space = tiles()
        for most in (1, 2, 7, 40):
            seen = asked(self.name, space, most=most)
            assert 1 <= len(seen) <= most
            assert len(set(seen)) == len(seen)
            assert all(config in space for config in seen)

    def test_no_batch_is_empty(self) -> None:
        assert all(batches(self.name, tiles(), most=30))

    def test_the_starts_come_first(self) -> None:
        starts = [Config(BLOCK_M=128, BLOCK_N=32, warps=w, order="row", vector=False) for w in (1, 8)]
        assert asked(self.name, tiles(), most=20, starts=[*starts, Config(elsewhere=1)])[:2] == starts

    def test_equal_seeds_and_answers_make_equal_searches(self) -> None:
        assert asked(self.name, tiles(), 3, most=40) == asked(self.name, tiles(), 3, most=40)

    def test_a_stopped_search_goes_on_where_it_was_when_its_trials_are_replayed(self) -> None:
        first = asked(self.name, tiles(), most=20)
        measured: list[Config] = []

        def known_or_measured(config: Config) -> Trial:
            if config not in first:
                measured.append(config)
            return trial(config)

        again = asked(self.name, tiles(), most=40, starts=first, of=known_or_measured)
        assert again[: len(first)] == first
        assert len(measured) == len(again) - len(first)

    def test_a_widened_space_measures_only_what_is_new(self) -> None:
        narrow = tiles().fix(warps=4)
        first = asked(self.name, narrow, most=200)
        more = asked(self.name, tiles(), most=len(first) + 20, starts=first)
        assert more[: len(first)] == first
        assert any(config["warps"] != 4 for config in more[len(first) :])

    def test_a_small_space_is_never_left_with_the_worst(self) -> None:
        space = Space(c=[1, 2, 3, 4])
        seen = asked(self.name, space, of=lambda config: trial(config, lambda c: float(c["c"])))  # type: ignore[arg-type]
        assert Config(c=1) in seen

    def test_one_config_is_asked_for_once(self) -> None:
        assert asked(self.name, Space(c=[1]), of=lambda c: trial(c, lambda _: 1.0)) == [Config(c=1)]

    @pytest.mark.parametrize("outcome", [Failed("launch", "no"), Untried("the budget ended")])
    def test_it_ends_when_nothing_works(self, outcome: Failed | Untried) -> None:
        seen = asked(self.name, tiles(), most=60, of=lambda config: Trial(config, outcome))
        assert 1 <= len(seen) <= 60

    def test_values_of_any_kind(self) -> None:
        space = Space(
            order=tunesmith.permutations("m", "n", "k"), flag=[None, "-O2", "-O3"], share=[0.25, 0.5, 0.75]
        ) + Space.of([Config(order=("m", "n", "k"), flag="-Os", share=0.5), Config(flag="-O2")])
        seen = asked(self.name, space, most=12, of=lambda c: trial(c, lambda c: 1.0 + len(c)))
        assert seen
        assert all(config in space for config in seen)

    def test_equal_times_are_no_trouble(self) -> None:
        assert asked(self.name, tiles(), most=40, of=lambda config: trial(config, lambda _: 1e-6))


class Searching(StrategyConformance):
    """Of those that learn from what they see: closer to the best than chance, with a fifth of the Space."""

    def test_it_finds_better_than_random_does(self) -> None:
        def best(name: str, seed: int) -> float:
            return min(time for c in asked(name, tiles(), seed, most=60) if (time := seconds(c)) is not None)

        mine, chance = (sorted(best(name, seed) for seed in range(5)) for name in (self.name, "random"))
        assert mine[2] < chance[2]
        assert mine[2] < 1.05


class OnAnySpace:
    """Of those that need no list of all Configs."""

    name = ""

    def test_a_space_too_large_to_enumerate(self) -> None:
        space = Space(a=range(1000), b=range(1000), order=tunesmith.permutations(*range(12)))
        seen = asked(self.name, space, most=24, of=lambda c: trial(c, lambda c: 1.0 + float(c["a"])))  # type: ignore[arg-type]
        assert 1 <= len(seen) <= 24
        assert all(config in space for config in seen)


class TestExhaustive(StrategyConformance):
    name = "exhaustive"


class TestRandom(StrategyConformance, OnAnySpace):
    name = "random"


class TestDescent(Searching, OnAnySpace):
    name = "descent"


class TestEvolution(Searching, OnAnySpace):
    name = "evolution"


class TestSurrogate(Searching, OnAnySpace):
    name = "surrogate"


class TestAuto(Searching, OnAnySpace):
    name = "auto"


class TestTransferFromANeighbour(Searching, OnAnySpace):
    name = "transfer+near"


@pytest.mark.parametrize("sampler", [name for name in STRATEGIES if name.startswith("optuna:")])
class TestOptuna:
    """Each sampler, in short: they take a second or more."""

    def test_what_it_asks_for_is_legal_new_and_not_too_much(self, sampler: str) -> None:
        pytest.importorskip("optuna")
        if sampler == "optuna:cmaes":
            pytest.importorskip("cmaes")
        if sampler == "optuna:gp":
            pytest.importorskip("torch")
        space = tiles()
        start = Config(BLOCK_M=128, BLOCK_N=32, warps=1, order="row", vector=False)
        seen = asked(sampler, space, most=20, starts=[start])
        assert seen[0] == start
        assert len(set(seen)) == len(seen) == 20
        assert all(config in space for config in seen)
        assert seen == asked(sampler, space, most=20, starts=[start])
