"""The rule of `tunesmith guard` on numbers: how often it cries wolf, how often it sees one. R25 (a), (b), (c), (f)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunesmith.errors import BadInput
from tunesmith.guard.rule import Comparison, Judgement, Limits, Pair, judge

LIMITS = Limits()
KERNELS, SAMPLES, RUNS = 12, 15, 200


def series(
    rng: random.Random, n: int = SAMPLES, level: float = 1e-3, noise: float = 0.03, rho: float = 0.0,
    outliers: float = 0.0, drift: float = 0.0,
) -> list[float]:  # fmt: skip
    """Seconds as a machine gives them: correlated in time, with a drift over the session, now and then far off."""
    x = rng.gauss(0, 1)
    found: list[float] = []
    for i in range(n):
        x = rho * x + math.sqrt(1 - rho * rho) * rng.gauss(0, 1)
        off = rng.uniform(1.2, 4) if rng.random() < outliers else 1.0
        found.append(level * math.exp(noise * x) * (1 + drift * i / n) * off)
    return found


def session(
    rng: random.Random, slow: Mapping[int, float] = {}, noises: Mapping[int, float] = {}, common: float = 1.0
) -> Judgement[int]:
    """Twelve kernels, two sessions; of the second some are slower."""
    pairs = {
        k: Pair(
            series(rng, noise=noises.get(k, 0.03)),
            series(rng, noise=noises.get(k, 0.03), level=1e-3 * common * slow.get(k, 1.0)),
        )
        for k in range(KERNELS)
    }
    return judge(pairs, LIMITS)


def worse(judgement: Judgement[int]) -> set[int]:
    return {name for name, row in judgement.rows.items() if row.verdict == "worse"}


# --- R25 ----------------------------------------------------------------------------------------------


def test_r25_a_of_200_runs_with_nothing_changed_at_most_4_are_flagged() -> None:
    rng = random.Random(1)
    found = [session(rng) for _ in range(RUNS)]

    assert sum(bool(worse(one)) for one in found) <= 4
    assert sum(all(row.verdict in ("same", "better") for row in one.rows.values()) for one in found) >= 0.9 * RUNS


def test_r25_b_one_kernel_10_percent_slower_is_flagged_and_no_other() -> None:
    rng = random.Random(2)

    assert sum(worse(session(rng, slow={5: 1.10})) == {5} for _ in range(RUNS)) >= 190


def test_r25_c_all_slower_by_6_percent_is_one_common_drift() -> None:
    rng = random.Random(3)
    found = [session(rng, common=1.06) for _ in range(RUNS)]

    drifts = [one.drift for one in found if one.drift is not None]
    assert len(drifts) >= 0.99 * RUNS
    assert all(drift.low < 1.09 and drift.high > 1.03 and not drift.hides for drift in drifts)
    assert sum(bool(worse(one)) for one in found) <= 4


def test_r25_f_a_kernel_with_noise_of_its_own_gets_a_wider_band() -> None:
    rng = random.Random(4)
    found = [session(rng, slow={7: 1.10}, noises={7: 0.25}) for _ in range(RUNS)]

    def width(row: Comparison) -> float:
        return math.log(row.high / row.low)

    assert sum(width(one.rows[7]) > 2 * width(one.rows[0]) for one in found) >= 0.98 * RUNS
    assert sum(one.rows[7].verdict == "cannot tell" for one in found) >= 0.75 * RUNS
    assert sum(bool(worse(one) - {7}) for one in found) <= 4


# --- false alarms and true ones -----------------------------------------------------------------------


@pytest.mark.parametrize("kernels", [1, 12])
@pytest.mark.parametrize("noise", [0.03, 0.1, 0.25])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_identical_samples_raise_a_false_alarm_in_5_percent_of_the_runs_at_most(
    kernels: int, noise: float, rho: float
) -> None:
    rng, runs, alarms = random.Random(f"{kernels} {noise} {rho}"), 300 if kernels == 1 else 150, 0
    for _ in range(runs):
        pairs = {
            k: Pair(*[series(rng, 20, noise=noise, rho=rho, outliers=0.05, drift=0.05) for _ in "ab"])
            for k in range(kernels)
        }
        alarms += bool(worse(judge(pairs, LIMITS)))

    assert alarms <= 0.05 * runs


@pytest.mark.parametrize(
    ("noise", "rho", "outliers"), [(0.01, 0.0, 0.0), (0.03, 0.0, 0.1), (0.05, 0.0, 0.05), (0.02, 0.3, 0.05)]
)
def test_a_slowdown_of_20_percent_is_found_in_95_percent_of_the_runs(noise: float, rho: float, outliers: float) -> None:
    rng, runs = random.Random(f"{noise} {rho}"), 300

    def slower() -> bool:
        base, new = (
            series(rng, 30, level=level, noise=noise, rho=rho, outliers=outliers, drift=0.02) for level in (1.0, 1.2)
        )
        return judge({0: Pair(base, new)}, LIMITS).rows[0].verdict == "worse"

    assert sum(slower() for _ in range(runs)) >= 0.95 * runs


def shared_machine(rng: random.Random, level: float, disturbed: float) -> list[float]:
    """Samples of a machine on which others work: so many take five times as long."""
    return [s * (5 if rng.random() < disturbed else 1) for s in series(rng, 40, level, noise=0.02)]


def test_a_third_of_the_samples_disturbed_is_neither_an_alarm_nor_a_hiding_place() -> None:
    rng = random.Random(11)
    runs, verdicts = 200, {1.0: list[str](), 1.2: list[str]()}
    for slower, found in verdicts.items():
        for _ in range(runs):
            base, new = shared_machine(rng, 1e-3, 0.15), shared_machine(rng, slower * 1e-3, 0.35)
            found.append(judge({0: Pair(base, new)}, LIMITS).rows[0].verdict)

    assert verdicts[1.0].count("worse") <= 0.01 * runs
    assert verdicts[1.0].count("same") >= 0.90 * runs
    assert verdicts[1.2].count("worse") >= 0.95 * runs


def test_how_many_samples_were_disturbed_is_said() -> None:
    rng = random.Random(12)
    base, new = series(rng, 40, 1.0), series(rng, 40, 1.0)
    row = judge({0: Pair(base, [s * (5 if i % 4 == 0 else 1) for i, s in enumerate(new)])}, LIMITS).rows[0]
    assert row.disturbed[0] <= 0.05
    assert 0.25 <= row.disturbed[1] <= 0.3


def test_what_both_sides_share_in_a_round_cancels_when_they_were_timed_side_by_side() -> None:
    rng = random.Random(5)
    machine = [math.exp(rng.gauss(0, 0.2)) for _ in range(30)]
    base = [m * math.exp(rng.gauss(0, 0.005)) for m in machine]
    new = [1.08 * m * math.exp(rng.gauss(0, 0.005)) for m in machine]

    apart = judge({0: Pair(base, list(reversed(new)))}, LIMITS).rows[0]
    together = judge({0: Pair(base, new, paired=True)}, LIMITS).rows[0]
    assert apart.verdict == "cannot tell"
    assert together.verdict == "worse"
    assert together.grade == "warn"
    assert together.ratio == pytest.approx(1.08, rel=0.01)


# --- what is said -------------------------------------------------------------------------------------


def quiet(ratio: float, noise: float = 0.001, n: int = 20) -> Pair:
    rng = random.Random(6)
    return Pair(series(rng, n, 1.0, noise), series(rng, n, ratio, noise))


@pytest.mark.parametrize(
    ("ratio", "verdict", "grade"),
    [
        (0.80, "better", "ok"), (0.97, "same", "ok"), (1.00, "same", "ok"), (1.04, "same", "ok"),
        (1.08, "worse", "warn"), (1.14, "worse", "warn"), (1.17, "worse", "fail"), (3.00, "worse", "fail"),
    ],
)  # fmt: skip
def test_where_samples_hardly_spread_the_limits_decide(ratio: float, verdict: str, grade: str) -> None:
    row = judge({0: quiet(ratio)}, LIMITS).rows[0]
    assert (row.verdict, row.grade) == (verdict, grade)


def test_the_limits_are_options() -> None:
    assert judge({0: quiet(1.04)}, Limits(1.01, 1.02, 1.03)).rows[0].grade == "fail"
    assert judge({0: quiet(1.3)}, Limits(1.4, 1.5, 1.6)).rows[0].verdict == "same"


def test_worse_for_sure_by_who_knows_how_much_is_no_pass() -> None:
    rng = random.Random(7)
    row = judge({0: Pair(series(rng, 20, 1.0, 0.1), series(rng, 20, 1.2, 0.1))}, LIMITS).rows[0]

    assert row.low < LIMITS.fail < row.high
    assert (row.verdict, row.grade) == ("worse", "unclear")
    assert "1.15 cannot be told" in row.why


@pytest.mark.parametrize(("base", "new"), [(1, 1), (1, 30), (30, 1)])
def test_a_single_sample_tells_nothing(base: int, new: int) -> None:
    row = judge({0: Pair([1.0] * base, [2.0] * new)}, LIMITS).rows[0]
    assert (row.verdict, row.why) == ("cannot tell", "too few samples")


def test_a_median_without_samples_is_as_good_as_it_is_said_to_be() -> None:
    def verdict(ratio: float, spread: float) -> str:
        return judge({0: Pair([1.0], [ratio], spread=spread)}, LIMITS).rows[0].verdict

    assert [verdict(ratio, 0.05) for ratio in (0.9, 1.0, 1.08, 1.2)] == ["better", "same", "cannot tell", "worse"]
    assert verdict(1.2, 0.3) == "cannot tell"


def test_two_groups_are_no_common_drift() -> None:
    rng = random.Random(8)
    found = session(rng, slow=dict.fromkeys(range(5), 1.3))
    assert found.drift is None
    assert worse(found) == set(range(5))


def test_a_drift_that_may_hide_a_slowdown_says_so_and_can_be_left_in() -> None:
    rng = random.Random(9)
    found = session(rng, common=1.3)
    assert found.drift is not None
    assert found.drift.hides
    assert not worse(found)

    pairs = {k: Pair(series(rng), series(rng, level=1.3e-3)) for k in range(KERNELS)}
    assert worse(judge(pairs, LIMITS, drift=False)) == set(range(KERNELS))


def test_who_stays_as_it_is_while_all_others_become_faster_is_not_called_worse() -> None:
    rng = random.Random(10)
    row = session(rng, slow={3: 1 / 0.8}, common=0.8).rows[3]
    assert row.verdict == "cannot tell"
    assert "the others became faster" in row.why


times = st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=40)


@settings(max_examples=200)
@given(st.dictionaries(st.integers(), st.builds(Pair, times, times), max_size=14), st.booleans())
def test_any_seconds_get_a_verdict_and_an_interval_around_the_ratio(pairs: dict[int, Pair], drift: bool) -> None:
    found = judge(pairs, LIMITS, drift=drift)
    assert found.rows.keys() == pairs.keys()
    for row in found.rows.values():
        assert 0 <= row.low <= row.ratio * (1 + 1e-9)
        assert row.ratio <= row.high * (1 + 1e-9)
        assert (row.grade == "fail") <= (row.verdict == "worse")


@settings(max_examples=100)
@given(st.integers(0, 1 << 32), st.integers(3, 40), st.floats(0.01, 100))
def test_a_slower_clock_on_both_sides_changes_nothing(seed: int, n: int, factor: float) -> None:
    rng = random.Random(seed)
    base, new = series(rng, n, outliers=0.2), series(rng, n, outliers=0.2)
    one = judge({0: Pair(base, new)}, LIMITS).rows[0]
    other = judge({0: Pair([s * factor for s in base], [s * factor for s in new])}, LIMITS).rows[0]
    assert other.ratio == pytest.approx(one.ratio)
    assert other.low == pytest.approx(one.low, rel=1e-6)


@pytest.mark.parametrize("bad", [{"margin": 0.9}, {"warn": 1.01}, {"fail": 1.0}, {"fail": math.nan}, {"confidence": 1}])
def test_limits_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(BadInput, match="good values"):
        Limits(**bad)


@pytest.mark.parametrize("paired", [True, False])
def test_seconds_at_the_ends_of_what_can_be_written_are_judged(paired: bool):
    small, large = [5e-324] * 5, [1.7e308] * 5
    rows = judge({"up": Pair(small, large, paired), "down": Pair(large, small, paired)}, Limits()).rows
    assert (rows["up"].verdict, rows["down"].verdict) == ("worse", "better")
    single = judge({"one": Pair(small[:1], large[:1], spread=0.03)}, Limits()).rows
    assert single["one"].verdict == "worse"
