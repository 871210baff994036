"""Choices that other processes confirm: each process is a sample, and who is chosen is the fastest over all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import ScriptedClock

import tunesmith
from tunesmith import Config, Measured, Resources, Sample
from tunesmith.confirm import FEWEST, MOST, MOST_RIVALS, ROUNDS, Confirmed, Visits, _seconds, _together, rivals_among
from tunesmith.core.outcome import Trial
from tunesmith.core.stopping import BRIEF_ON_CPU
from tunesmith.measure.pace import heard
from tunesmith.measure.pick import ratio_between
from tunesmith.store import default_store
from tunesmith.tuned import TunedKernel

A, B, C = Config(a=1), Config(a=2), Config(a=4)


class Placed(ScriptedClock):
    """In each process another Config is the faster by a little, in all rounds."""

    brief = BRIEF_ON_CPU

    def __post_init__(self) -> None:
        super().__post_init__()
        self.paces: list[float] = []
        self.process: Mapping[Config, float] = {}
        self.pace_s = 1e-7
        self.fails: set[Config] = set()

    def sample(self, run: Any) -> Sample:
        heard(1e-7)
        self.paces.append(self.pace_s)
        if run.config in self.fails:
            raise RuntimeError("an illegal address")
        return super().sample(run)


def made(process: Mapping[Config, float]) -> tuple[TunedKernel, Placed]:
    """A kernel that was tuned in a process in which each Config takes so long, in milliseconds."""
    clock = Placed(lambda config: 1e-3 * clock.process[config], noise=0.002)
    clock.process = process

    @tunesmith.autotune(configs=[dict(config) for config in process], key=["n"], clock=clock, isolate=False)
    def scale(n: int, *, a: int) -> None:
        """What it does is not looked at."""

    scale.tune(n=8)
    return scale, clock


def visited(
    kernel: TunedKernel, clock: Placed, processes: Sequence[Mapping[Config, float]]
) -> list[tuple[Confirmed, Config]]:
    """What each further process has said, and who is chosen then; until none is wanted."""
    visits, found = Visits(tuple(processes[0])), list[tuple[Confirmed, Config]]()
    for process in processes:
        clock.process = process
        said = kernel.confirm(n=8, visits=visits)
        assert said is not None
        visits, chosen = said.visits, kernel.choice(n=8).config
        found.append((said, chosen))
        if not said.open:
            break
    return found


def test_one_process_is_outvoted_by_others_once_they_are_enough() -> None:
    kernel, clock = made({A: 1.0, B: 1.02})
    assert kernel.choice(n=8).config == A
    found = visited(kernel, clock, [{A: 1.03, B: 1.0}, {A: 1.02, B: 1.0}, {A: 1.01, B: 1.0}, {A: 1.02, B: 1.0}])
    assert [chosen for _, chosen in found[:FEWEST]] == [A] * (FEWEST - 1) + [B]
    assert [said.found.fate for said, _ in found[:FEWEST]] == ["kept"] * (FEWEST - 1) + ["changed"]
    assert found[FEWEST - 1][0].found.ratio == pytest.approx(1 / 1.02, abs=4e-3)


def test_a_process_in_which_all_takes_longer_says_no_more_than_another() -> None:
    kernel, clock = made({A: 1.0, B: 1.02})
    found = visited(kernel, clock, [{A: 1.01, B: 1.0}, {A: 3.0, B: 3.03}, {A: 1.02, B: 1.0}, {A: 1.012, B: 1.0}])
    assert found[2][1] == B
    choice = kernel.choice(n=8)
    assert choice.median_s == pytest.approx(1e-3, rel=0.02)


def test_who_is_slower_in_every_process_leaves_and_when_one_is_left_it_is_over() -> None:
    kernel, clock = made({A: 1.0, B: 1.03, C: 1.01})
    found = visited(kernel, clock, [{A: 1.0, B: 1.03, C: 1.0 + shift} for shift in (0.02, -0.02, 0.01, -0.01, 0.0)])
    assert [len(said.visits.rivals) for said, _ in found] == [3, 3, 2, 2, 2]
    assert found[-1][0].visits.rivals == (A, C)
    assert [len(said.visits.seconds) for said, _ in found] == [1, 2, 3, 4, 5]
    kernel, clock = made({A: 1.0, B: 1.03})
    found = visited(kernel, clock, [{A: 1.0, B: 1.03}] * 9)
    assert [said.open for said, _ in found] == [True] * (FEWEST - 1) + [False]
    assert kernel.choice(n=8).doubt == ""


def test_what_so_many_processes_cannot_tell_is_left_and_said() -> None:
    kernel, clock = made({A: 1.0, B: 1.02})
    found = visited(kernel, clock, [{A: 1.0, B: b} for b in (1.04, 0.97, 1.02, 0.96, 1.03, 1.0)])
    assert [said.open for said, _ in found] == [True] * (MOST - 1) + [False]
    choice = kernel.choice(n=8)
    assert f"after {MOST} processes another may still be faster" in choice.doubt
    assert choice.within is not None
    assert choice.within > 0.01


def test_a_disturbed_process_does_not_count_and_leaves_nothing() -> None:
    kernel, clock = made({A: 1.0, B: 1.02})
    before, clock.pace_s = default_store().trials(kernel.key(n=8)), 2e-7
    for said, chosen in visited(kernel, clock, [{A: 1.2, B: 1.0}] * 4):
        assert (said.found.fate, said.found.disturbed, said.open, said.visits.seconds, chosen) == (
            "kept", True, True, (), A
        )  # fmt: skip
    assert default_store().trials(kernel.key(n=8)) == before


def test_where_one_fails_the_choice_stands() -> None:
    kernel, clock = made({A: 1.0, B: 1.02})
    clock.fails = {B}
    [(said, chosen)] = visited(kernel, clock, [{A: 1.2, B: 1.0}])
    assert (said.found.fate, said.open, said.visits.rivals, chosen) == ("kept", False, (A,), A)
    assert "an illegal address" in said.found.why
    clock.fails = {A}
    [(said, chosen)] = visited(kernel, clock, [{A: 1.2, B: 1.0}])
    assert (said.found.fate, said.open, chosen) == ("failed", False, A)
    found = default_store().trials(kernel.key(n=8))
    assert all(isinstance(trial.outcome, Measured) for trial in found)


def test_of_what_is_not_stored_nothing_is_confirmed() -> None:
    kernel, _ = made({A: 1.0, B: 1.02})
    assert kernel.confirm(n=9, visits=Visits((A, B))) is None


def test_what_was_chosen_meanwhile_is_not_overwritten_by_what_was_said_of_others() -> None:
    kernel, clock = made({A: 1.0, B: 1.02, C: 1.5})
    said = Visits((A, B), ((1e-3, 1.02e-3), (1e-3, 1.02e-3)))
    clock.process = {A: 1.0, B: 1.02, C: 0.5}
    assert kernel.tune(n=8, strategy="exhaustive") is not None
    store, key = default_store(), kernel.key(n=8)
    stored = store.choice(key)
    assert stored is not None
    store.put_choice(key, replace(stored.choice, config=C, median_s=0.5e-3), stored.soft)
    store.add_trials(key, [replace(t, outcome=Measured((Sample(0.5e-3),) * 5)) if t.config == C else t
                           for t in store.trials(key)], replace=True)  # fmt: skip
    confirmed = kernel.confirm(n=8, visits=said)
    assert confirmed is not None
    assert (confirmed.found.fate, confirmed.open, confirmed.visits) == ("kept", False, Visits(()))
    after = store.choice(key)
    assert after is not None
    assert after.choice.config == C


def test_what_another_process_has_timed_can_be_compared_with_what_the_search_has() -> None:
    kernel, clock = made({A: 1.0, B: 1.02, C: 1.1})
    visited(kernel, clock, [{A: 1.3, B: 1.33, C: 1.43}] * FEWEST)  # all takes longer there
    levels = {t.config: t.level_s for t in default_store().trials(kernel.key(n=8))}
    assert levels[C] is not None
    assert levels[A] == pytest.approx(levels[C] / 1.1, rel=0.01)


def test_samples_of_other_rounds_are_not_taken_for_those_of_the_same() -> None:
    early, late = trial(A, [1.0] * ROUNDS), trial(B, [2.0] * ROUNDS)
    assert _seconds((A, B), {A: early, B: late}) == pytest.approx((1.0, 2.0))
    samples = tuple(Sample(2.0, round=ROUNDS + n) for n in range(ROUNDS))
    assert _seconds((A, B), {A: early, B: replace(late, outcome=Measured(samples))}) is None
    assert _seconds((A, B), {A: early}) is None


# --- who is near --------------------------------------------------------------------------------------


def trial(config: Config, seconds: Sequence[float]) -> Trial:
    samples = tuple(Sample(s, round=n) for n, s in enumerate(seconds))
    return Trial(config, Measured(samples), Resources(), "2026-12-01T00:00:00+00:00")


def test_rivals_are_those_near_the_fastest_and_what_is_chosen() -> None:
    near, far = trial(B, [1.04] * 5), trial(C, [1.06] * 5)
    assert rivals_among([trial(A, [1.0] * 5), near, far], A) == (A, B)
    assert rivals_among([trial(A, [1.0] * 5), near, far], C) == (A, B, C)
    assert rivals_among([trial(A, [1.0] * 5), far], A) == ()
    assert rivals_among([trial(A, [1.0] * 5), trial(B, [1.0] * 2)], A) == ()  # two samples say nothing
    many = [trial(Config(a=n), [1.0 + n / 1000] * 5) for n in range(20)]
    assert rivals_among(many, Config(a=19)) == tuple(
        sorted([*(Config(a=n) for n in range(MOST_RIVALS - 1)), Config(a=19)], key=lambda config: config.text)
    )


shares = st.floats(0.9, 1.1)


@given(st.lists(st.tuples(shares, shares, shares), min_size=3, max_size=5), st.lists(st.floats(0.5, 2.0), min_size=5))
def test_what_is_common_to_a_process_decides_nothing(seconds: list[tuple[float, ...]], common: list[float]) -> None:
    scaled = [tuple(s * factor for s in mine) for mine, factor in zip(seconds, common, strict=False)]
    trials = {config: trial(config, [1.0] * ROUNDS) for config in (A, B, C)}
    one, other = (_together(Visits((A, B, C), tuple(each)), trials) for each in (seconds, scaled))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        mine, theirs = ratio_between(one[a], one[b]), ratio_between(other[a], other[b])
        assert mine is not None
        assert mine == pytest.approx(theirs, rel=1e-6)
        if len(seconds) < 5:  # nothing is trimmed
            assert mine[0] == pytest.approx(math.prod(s[a] / s[b] for s in seconds) ** (1 / len(seconds)), rel=1e-6)
