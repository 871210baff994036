"""Picking the winner: ties by paired ratios, resources, what is in use, and the other two rules."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.fakes import ScriptedClock

from tunesmith import Config, Measured, Resources, Sample, Trial, autotune
from tunesmith.core.outcome import Choice, choice_from_data, choice_to_data
from tunesmith.core.stopping import Rule
from tunesmith.errors import BadInput
from tunesmith.measure.pick import pick, slowest_pace_s, unfinished
from tunesmith.tuned import TunedKernel


def trial(name: str, seconds: Sequence[float], *, first: int = 0, at: str = "now", **resources: int) -> Trial:
    samples = tuple(Sample(s, first + i, 0) for i, s in enumerate(seconds))
    return Trial(Config(x=name), Measured(samples), Resources(**resources), at)


def alike(n: int, mean: float, seed: int = 0, noise: float = 0.001) -> list[float]:
    rng = random.Random(seed)
    return [mean * rng.lognormvariate(0, noise) for _ in range(n)]


def won(trials: Sequence[Trial], **how: object) -> str:
    verdict = pick(trials, **how)  # type: ignore[arg-type]
    assert verdict is not None
    return str(verdict.winner.config["x"])


def with_spread(median: float, low: float, high: float) -> list[float]:
    """Six samples with these quantiles: 0.5, 0.2, 0.8."""
    return [low, low, median, median, high, high]


EXERCISE = [
    ("128x256x64/8/2", 3.760, 3.686, 3.880, 98304),
    ("256x128x32/8/3", 3.761, 3.683, 3.795, 73728),
    ("256x128x32/8/2", 3.877, 3.765, 3.980, 49152),
    ("128x256x32/8/2", 3.894, 3.838, 4.061, 49152),
]


def test_the_reference_exercises_rule_takes_the_third_row() -> None:
    rows = [trial(name, with_spread(*ms), shared_bytes=shared) for name, *ms, shared in EXERCISE]
    assert won(rows, how="overlap") == "256x128x32/8/2"
    assert won(rows, how="fastest") == "128x256x64/8/2"


def test_overlap_leaves_out_whose_spread_begins_above() -> None:
    rows = [trial("a", with_spread(1.0, 0.9, 1.1), shared_bytes=9), trial("b", with_spread(1.3, 1.2, 1.4))]
    assert won(rows, how="overlap") == "a"


def test_among_ties_shared_memory_decides_then_registers_then_the_spaces_order() -> None:
    a = trial("a", alike(20, 1.0, 1), shared_bytes=64, registers=10)
    b = trial("b", alike(20, 1.001, 2), shared_bytes=32, registers=99)
    c = trial("c", alike(20, 1.002, 3), shared_bytes=32, registers=40)
    d = trial("d", alike(20, 0.999, 4), shared_bytes=32, registers=40)

    assert won([a, b]) == "b"
    assert won([a, b, c]) == "c"
    assert won([a, b, c, d]) == "c"
    assert won([a, b, d, c]) == "d"
    verdict = pick([a, b, c, d])
    assert verdict is not None
    assert {tie["x"] for tie in verdict.ties} == {"a", "b", "d"}
    assert "as fast as number 1" in verdict.why


def test_a_tie_is_proved_by_the_upper_bound_so_that_few_samples_make_none() -> None:
    fast, cheap = alike(30, 1.0, 1, 0.02), alike(30, 1.0, 2, 0.02)
    few = [trial("fast", fast[:4], shared_bytes=9), trial("cheap", cheap[:4])]
    many = [trial("fast", fast * 20, shared_bytes=9), trial("cheap", cheap * 20)]

    assert won(few) == won(few, how="fastest")
    assert won(many) == "cheap"
    slower = [trial("fast", alike(30, 1.0, 1), shared_bytes=9), trial("cheap", alike(30, 1.02, 2))]
    assert won(slower) == "fast"
    assert won(slower, margin=0.03) == "cheap"


def test_of_many_rivals_each_tie_takes_more_proof() -> None:
    fast = trial("fast", alike(30, 1.0, 1, 0.01), shared_bytes=9)
    rivals = [trial(f"rival {i}", alike(30, 1.0, 2, 0.01), shared_bytes=9) for i in range(200)]
    cheap = trial("cheap", alike(30, 1.004, 3, 0.01))
    assert won([fast, cheap]) == "cheap"
    verdict = pick([fast, cheap, *rivals])
    assert verdict is not None
    assert cheap.config not in verdict.ties


def test_drift_makes_and_breaks_no_tie() -> None:
    drift = [1 + i / 30 for i in range(30)]
    fast = [d * s for d, s in zip(drift, alike(30, 1.0, 1), strict=True)]
    same = [d * s for d, s in zip(drift, alike(30, 1.0, 2), strict=True)]
    assert won([trial("fast", fast, shared_bytes=9), trial("cheap", same)]) == "cheap"


def test_who_left_the_race_while_all_was_faster_does_not_win() -> None:
    """A clock that falls in the middle of a race: the one that left early has the smaller median."""
    winner = trial("winner", [1.0] * 5 + [1.3] * 15)
    left = trial("left", [1.1] * 5)
    for how in ("cheapest", "fastest"):
        assert won([left, winner], how=how) == "winner"


def test_what_is_in_use_stays_unless_it_is_beaten_by_more_than_the_margin() -> None:
    in_use, faster = trial("in use", alike(30, 1.0, 1), shared_bytes=9), trial("faster", alike(30, 0.995, 2))
    much_faster = trial("much faster", alike(30, 0.97, 3))

    assert won([faster, in_use], incumbent=in_use.config) == "in use"
    assert won([faster, in_use]) == "faster"
    assert won([faster, in_use, much_faster], incumbent=in_use.config) == "much faster"
    assert won([faster, in_use], incumbent=in_use.config, how="fastest") == "faster"
    assert won([faster, in_use], incumbent=Config(x="gone")) == "faster"


def test_what_is_in_use_is_not_replaced_on_two_samples() -> None:
    in_use, lucky = trial("in use", [1.0, 1.2]), trial("lucky", [0.9, 1.1])
    assert won([in_use, lucky], incumbent=in_use.config) == "in use"


def test_the_verdict_says_within_what_the_best_is_known_or_why_not() -> None:
    known = pick([trial("a", alike(30, 1.0, 1)), trial("b", alike(30, 1.0, 2))])
    rough = pick([trial("a", alike(6, 1.0, 1, 0.1)), trial("b", alike(6, 1.0, 2, 0.1))])
    once = pick([trial("a", [1.0]), trial("b", [1.0])])
    assert known is not None
    assert rough is not None
    assert once is not None

    assert known.within is not None
    assert known.within <= 0.01
    assert known.doubt == ""
    assert rough.within is not None
    assert "after 6 samples another may still be faster by" in rough.doubt
    assert once.within is None
    assert once.doubt == "after 1 sample: too few to say how much faster another may be"


def test_trials_of_a_race_that_was_stopped_are_told_from_those_that_left_it() -> None:
    on = [trial("on", [1.0]), trial("also", [2.9]), trial("three", [1.0, 1.0, 1.0])]
    out = [trial("far", [3.2]), trial("arrived", [11.0], first=-1), trial("two", [1.5, 1.5])]
    as_usual, kinder = Rule(), Rule(screens={1: 3.0, 2: 2.0})
    assert {t.config["x"] for t in unfinished([*on, *out], as_usual)} == {"on", "also", "three"}
    assert {t.config["x"] for t in unfinished([*on, *out], kinder)} == {"on", "also", "three", "two"}


def test_the_slowest_pace_counts_of_those_races_from_which_somebody_is_left_who_may_be_the_fastest() -> None:
    def pace(*others: tuple[float, float | None, int]) -> float | None:
        theirs = [replace(trial(f"{i}", [s] * n, at="then"), pace_s=p) for i, (s, p, n) in enumerate(others)]
        verdict = pick([replace(trial("a", [1.0] * 9), pace_s=1e-6), *theirs])
        assert verdict is not None
        return verdict.pace_s

    assert pace() == 1e-6
    assert pace((1.9, 2e-6, 3), (1.5, 1.5e-6, 3)) == 2e-6
    assert pace((2.1, 2e-6, 3), (1.9, None, 3), (1.1, 2e-6, 2)) == 1e-6  # far behind, not known, of two samples
    verdict = pick([trial("a", [1.0])])
    assert verdict is not None
    assert verdict.pace_s is None


def test_the_pace_of_another_python_says_nothing_of_the_core() -> None:
    mine = replace(trial("a", [1.0] * 9), pace_s=1e-6, soft={"python": "3.11"})
    others = replace(trial("b", [1.5] * 9, at="then"), pace_s=2e-6, soft={"python": "3.10"})
    assert slowest_pace_s(mine, [mine, others]) == 1e-6
    assert slowest_pace_s(mine, [mine, replace(others, soft=mine.soft)]) == 2e-6


def test_bad_options_are_named() -> None:
    for option, value, good in (
        ("pick", "first", "cheapest, fastest, overlap"), ("margin", 0, "0.01"), ("confidence", 1.0, "0.95"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=good):
            autotune(configs=[Config(c=1)], **{option: value})(lambda x, *, c: c)  # type: ignore[arg-type]


# --- in a search -------------------------------------------------------------------------------------


def test_a_search_keeps_what_is_in_use_and_its_choice_says_how_sure_it_is() -> None:
    times = {1: 1.0, 2: 1.2, 3: 0.995, 4: 0.9}
    clock = ScriptedClock(lambda config: 1e-3 * times[config["c"]], noise=0.0005)  # type: ignore[index]

    def tuned(*cs: int) -> TunedKernel:
        return autotune(configs=[Config(c=c) for c in cs], clock=clock, version="in use")(lambda x, *, c: c)

    x = np.ones(2)
    assert tuned(1, 2)(x) == 1
    assert tuned(3, 1, 2)(x) == 1, "the new one is faster by less than the margin, and stands first"
    used = tuned(4, 3, 1, 2)
    assert used(x) == 4
    assert used.choice(x).within == 0.0
    assert (used.choice(x).confidence, used.choice(x).doubt) == (0.95, "")


def test_without_anything_in_use_the_first_of_the_space_wins_among_ties() -> None:
    times = {1: 1.0, 2: 1.2, 3: 0.995}
    clock = ScriptedClock(lambda config: 1e-3 * times[config["c"]], noise=0.0005)  # type: ignore[index]
    for cs, winner in ((3, 1, 2), 3), ((1, 3, 2), 1):
        f = autotune(configs=[Config(c=c) for c in cs], clock=clock, version=str(cs))(lambda x, *, c: c)
        assert f(np.ones(2)) == winner


def test_a_choice_keeps_what_was_said_of_it_as_data() -> None:
    choice = Choice(Config(c=1), "search", "search", within=0.02, confidence=0.9, doubt="after 3", searched_at="then")
    assert choice_from_data(choice_to_data(choice)) == choice
