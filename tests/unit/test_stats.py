"""Medians, intervals and paired ratios, against definitions and by simulation."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.core.stats import (
    geometric_mean,
    median,
    median_interval,
    paired_ratio,
    quantile,
    student_t,
    trimmed_mean,
)

numbers = st.lists(st.floats(0.001, 1000), min_size=1, max_size=40)


@given(numbers)
def test_median_and_quantiles(values: list[float]) -> None:
    assert median(values) == pytest.approx(statistics.median(values))
    assert quantile(values, 0) == min(values)
    assert quantile(values, 1) == max(values)
    low, high = median_interval(values)
    assert min(values) <= low <= median(values) <= high <= max(values)


def test_the_interval_of_the_median_covers_as_often_as_it_says() -> None:
    rng = random.Random(1)
    for n in (6, 15, 30):
        hits = 0
        for _ in range(2000):
            low, high = median_interval([rng.expovariate(1) for _ in range(n)])
            hits += low <= math.log(2) <= high
        assert hits / 2000 >= 0.94


def test_the_paired_ratio_cancels_drift_and_covers_as_often_as_it_says() -> None:
    rng, hits = random.Random(2), 0
    for _ in range(1000):
        drift = [1 + 0.5 * i / 15 for i in range(15)]
        ours = [1.02 * d * rng.lognormvariate(0, 0.01) for d in drift]
        theirs = [d * rng.lognormvariate(0, 0.01) for d in drift]
        ratio, low, high = paired_ratio(ours, theirs)
        assert ratio == pytest.approx(1.02, abs=0.02)
        hits += low <= 1.02 <= high
    assert hits / 1000 == pytest.approx(0.95, abs=0.02)


def test_one_sample_of_ten_that_is_ten_times_too_long_changes_a_paired_ratio_little() -> None:
    rng = random.Random(3)
    ours, theirs = ([rng.lognormvariate(0, 0.01) for _ in range(10)] for _ in range(2))
    plain = paired_ratio(ours, theirs)
    ours[4] *= 10
    ratio, low, high = paired_ratio(ours, theirs)
    assert ratio == pytest.approx(plain[0], abs=0.01)
    assert high - low < 2 * (plain[2] - plain[1])


def test_the_trimmed_mean_of_few_is_the_mean_and_of_many_covers_as_often_as_it_says() -> None:
    assert trimmed_mean([1.0, 2.0, 3.0, 10.0]) == (4.0, pytest.approx(statistics.stdev([1, 2, 3, 10])), 3)
    assert trimmed_mean([5.0]) == (5.0, math.inf, 0)
    rng, hits = random.Random(4), 0
    for _ in range(2000):
        mean, deviation, degrees = trimmed_mean([rng.gauss(0, 1) for _ in range(12)])
        hits += abs(mean) <= student_t(degrees) * deviation / math.sqrt(12)
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)


def test_one_pair_decides_nothing() -> None:
    assert paired_ratio([2.0], [1.0]) == (2.0, 0.0, math.inf)


@pytest.mark.parametrize(("degrees", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (14, 2.145), (100, 1.984)])
def test_students_t_against_the_printed_table(degrees: int, t: float) -> None:
    assert student_t(degrees) == pytest.approx(t, rel=0.01)


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
