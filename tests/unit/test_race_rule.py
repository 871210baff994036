"""The rule of a race, on numbers alone; and that a race follows it."""

import random
from typing import Any

import pytest
from tests.fakes import ScriptedClock
from tests.unit.test_measure import Stub, TableClock

from tunesmith import Config, Measured
from tunesmith.core.stopping import (
    BRIEF_ON_CPU,
    CAPS,
    EARLY,
    FEW,
    FINALS,
    ROUNDS,
    ROUNDS_FOR_TIES,
    SCREENS_OF_CPU,
    Brief,
    Rule,
)
from tunesmith.kernel import Run
from tunesmith.measure.clock import WallClock
from tunesmith.measure.pick import pick
from tunesmith.measure.race import Race, limits_of, rule_for


def noisy(seed: int, rounds: int, noise: float, **means: float) -> dict[str, list[float]]:
    """Samples of each, side by side; each round has a drift that all share."""
    rng = random.Random(seed)
    drift = [1 + 0.1 * rng.random() for _ in range(rounds)]
    return {name: [mean * d * rng.lognormvariate(0, noise) for d in drift] for name, mean in means.items()}


def test_one_round_drops_the_hopeless_alone_and_two_rounds_a_few_more() -> None:
    assert Rule().look({"a": [1.0], "b": [2.9], "c": [3.1]}).staying == ("a", "b")
    assert Rule().look({"a": [1.0, 1.0], "b": [9.0, 1.3], "c": [1.5, 1.5]}).staying == ("a", "b")


def test_three_rounds_are_enough_for_a_gap_far_above_the_noise_and_not_for_one_within_it() -> None:
    samples = {"a": [1.0, 1.1, 1.05], "b": [1.01, 1.09, 1.06], "c": [1.2, 1.31, 1.27]}
    look = Rule(ties=False).look(samples)
    assert look.staying == ("a", "b")
    assert not look.decided
    assert Rule().look(samples).staying == ("a", "b", "c"), "of so few nobody leaves that early where ties matter"


@pytest.mark.parametrize("rounds", [5, 10, 40])
def test_a_sample_ten_times_too_long_throws_nobody_out(rounds: int) -> None:
    for seed in range(50):
        samples = noisy(seed, rounds, 0.005, best=1.0, other=1.05, third=1.06)
        samples["best"][seed % rounds] *= 10
        look = Rule().look(samples)
        assert "best" in look.staying


def test_the_best_is_known_when_nobody_can_be_faster_by_the_margin_and_all_ties_are_proved() -> None:
    alike = noisy(3, 40, 0.005, a=1.0, b=1.0005)
    look = Rule().look(alike)
    assert look.decided
    assert look.within <= 0.01
    assert set(look.staying) == {"a", "b"}
    assert not Rule(margin=0.001).look(alike).decided
    assert not Rule().look({name: mine[:5] for name, mine in alike.items()}).decided


def test_more_confidence_takes_more_rounds() -> None:
    samples = noisy(4, 20, 0.005, a=1.0, b=1.001)
    halves = [Rule(confidence=c).look(samples).within for c in (0.8, 0.95, 0.999)]
    assert halves == sorted(halves)
    assert halves[0] < halves[2]


def test_of_many_alike_only_so_many_go_on_and_who_has_to_stay_stays() -> None:
    samples = noisy(5, 28, 0.02, **{f"c{i}": 1.0 for i in range(30)}, slow=3.0)
    look = Rule().look(samples, stays={"slow"})
    assert len(look.staying) == CAPS[28] + 1
    assert "slow" in look.staying
    assert look.leader != "slow"


def test_only_one_left_is_decided() -> None:
    look = Rule().look({"a": [1.0] * 3})
    assert (look.staying, look.within, look.decided) == (("a",), 0.0, True)


def test_long_kernels_are_not_timed_as_often() -> None:
    assert [Rule(ties=False).most_rounds(s) for s in (1e-6, 0.02, 0.05, 1.0)] == [ROUNDS, 50, 20, FEW]
    assert [Rule().most_rounds(s) for s in (1e-6, 0.02, 1.0)] == [ROUNDS_FOR_TIES, 50, FEW]


def test_where_ties_matter_nobody_leaves_who_may_be_as_good() -> None:
    near = noisy(6, 20, 0.001, a=1.0, b=1.005, c=1.05)
    assert Rule().look(near).staying == ("a", "b")
    assert Rule(ties=False).look(near).staying == ("a",)


def test_where_ties_do_not_matter_the_best_is_known_before_they_are_proved() -> None:
    alike = noisy(7, 14, 0.006, a=1.0, b=1.004)
    assert not Rule().look(alike).decided
    assert Rule(ties=False).look(alike).decided


def test_the_confidence_holds_where_the_truth_is_known() -> None:
    """At most 5 % of races may end with one that is slower than the best by more than the margin."""
    wrong = 0
    for seed in range(200):
        rng = random.Random(seed)
        times = {i: 1 + 0.1 * rng.random() for i in range(12)}
        clock = TableClock(times, noise=0.02, rng=rng)
        race = Race(clock, seed=seed)
        for i in times:
            race.enter(Run(Stub(Config(x=i)), ()))
        race.run()
        verdict = pick([_trial(c, o) for c, o in race.outcomes.items()], how="fastest")
        assert verdict is not None
        wrong += times[verdict.winner.config["x"]] > 1.01 * min(times.values())  # type: ignore[index]
    assert wrong / 200 <= 0.05


def _trial(config: Config, outcome: object) -> object:
    from tunesmith import Trial

    return Trial(config, outcome, at="now")  # type: ignore[arg-type]


# --- the race ----------------------------------------------------------------------------------------


def raced(times: dict[int, float], stays: int | None = None, **clock: float) -> Race:
    race = Race(TableClock(times, **clock))  # type: ignore[arg-type]
    for i in times:
        race.enter(Run(Stub(Config(x=i)), ()), stays=i == stays)
    race.run()
    return race


def rounds_in(race: Race, x: int) -> list[int]:
    outcome = race.outcomes[Config(x=x)]
    assert isinstance(outcome, Measured)
    return [sample.round for sample in outcome.samples]


def test_what_is_in_use_is_timed_beside_the_winner_to_the_end() -> None:
    race = raced({0: 1.0, 1: 5.0, 2: 5.0}, stays=1, noise=0.01)
    assert rounds_in(race, 1) == rounds_in(race, 0)
    assert rounds_in(race, 2) == [0]


def test_the_finalists_are_timed_a_few_rounds_more_when_all_is_decided() -> None:
    race = raced({0: 1.0, 1: 5.0})
    assert race.ended
    assert rounds_in(race, 0) == list(range(1 + FINALS))


def test_a_race_that_cannot_tell_ends_all_the_same() -> None:
    race = raced(dict.fromkeys(range(6), 1e-4), noise=0.1)
    assert race.ended
    assert race.look is not None
    assert not race.look.decided
    assert max(len(rounds_in(race, x)) for x in range(6)) == ROUNDS_FOR_TIES + FINALS


def test_a_clock_that_takes_medians_itself_is_asked_once() -> None:
    clock = TableClock({0: 1.0, 1: 1.0})
    clock.rounds = 1  # type: ignore[attr-defined]
    race = Race(clock)
    for i in (0, 1):
        race.enter(Run(Stub(Config(x=i)), ()))
    race.run()
    assert clock.calls == 2
    assert race.ended


def test_a_race_that_the_time_ends_says_so() -> None:
    clock = TableClock({0: 1.0, 1: 1.0})
    race = Race(clock, over=lambda: clock.calls == 5)
    for i in (0, 1):
        race.enter(Run(Stub(Config(x=i)), ()))
    race.run()
    assert not race.ended
    assert race.samples == 5


def test_on_a_cpu_two_long_samples_are_no_proof() -> None:
    twice = {"fast": [8.0, 8.1], "disturbed": [13.9, 13.0], "slow": [17.0, 17.0]}
    assert Rule().look(twice).staying == ("fast",)
    assert Rule(screens=SCREENS_OF_CPU).look(twice).staying == ("fast", "disturbed")


def test_brief_samples_are_screened_by_what_may_have_met_them() -> None:
    def scaled(by: float, **samples: list[float]) -> dict[str, list[float]]:
        return {name: [s * by for s in mine] for name, mine in samples.items()}

    rule, milli = Rule(screens=SCREENS_OF_CPU, brief=BRIEF_ON_CPU), 1e-3
    first = {"fast": [1.0], "disturbed": [6.0], "slow": [11.0]}
    twice = {"fast": [1.0, 1.8], "disturbed": [2.4, 6.0], "slow": [3.1, 3.2]}
    for samples in (first, twice):
        assert rule.look(scaled(milli, **samples)).staying == ("fast", "disturbed")
        assert rule.look(scaled(10 * milli, **samples)).staying == ("fast",)


def test_few_brief_samples_that_agree_are_no_proof_either() -> None:
    seconds = {"fast": 8.0, "near": 8.3, "far": 10.0, **{f"other {i}": 20.0 for i in range(4)}}

    def staying(rule: Rule, rounds: int, scale: float = 1e-6) -> list[str]:
        samples = {name: [s * scale * (1 + 1e-4 * (i % 2)) for i in range(rounds)] for name, s in seconds.items()}
        return [name for name in rule.look(samples).staying if name != "fast"]

    brief = Rule(brief=BRIEF_ON_CPU)
    assert staying(Rule(), 3) == []
    assert staying(brief, 3) == ["near"]
    assert staying(brief, 3, scale=1e-3) == []
    assert staying(brief, EARLY) == []


def test_a_clock_says_how_far_its_samples_may_be_off() -> None:
    own = rule_for(WallClock(), Rule())
    assert (own.rounds, own.screens, own.brief) == (ROUNDS, SCREENS_OF_CPU, BRIEF_ON_CPU)
    assert rule_for(ScriptedClock({}), Rule()) == Rule()
    assert rule_for(WallClock(), Rule(everybody=True)) == Rule(everybody=True)


class Odd(ScriptedClock):
    """Has attributes of a Clock's names that are something else, or of other types."""

    rounds = "30"
    brief = True
    screens = None
    limits: Any = None


def test_what_a_clock_of_other_types_has_is_left_alone() -> None:
    clock = Odd({})
    assert rule_for(clock, Rule()) == Rule(rounds=30)
    assert limits_of(clock) == limits_of(ScriptedClock({})) == set()
    clock.limits = (0.5, "the power limit")
    assert limits_of(clock) == {"0.5", "the power limit"}


def test_screens_of_brief_samples_need_not_be_of_the_same_rounds() -> None:
    rule = Rule(screens={1: 3.0, 3: 1.5}, brief=Brief(5e-3, {2: 4.0}, 0.03))
    for rounds in (1, 2, 3):
        for scale in (1e-3, 1.0):
            assert "fast" in rule.look({"fast": [scale] * rounds, "slow": [2 * scale] * rounds}).staying
