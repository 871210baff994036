"""Medians, intervals, paired comparison: pure functions on numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

#: Of samples in order, this part is left out at each end of a trimmed mean: one sample in ten may be off by any
#: factor (an interrupt, a clock that changes), and the mean of the rest is nearly as sharp as the mean of all.
TRIMMED = 0.2
#: What a clock says of a time that it can't tell from nothing, in seconds.
SHORTEST_S = 1e-9
#: A timer's step shows where so many samples have at most this part of as many values; never in fewer.
SAMPLES_FOR_STEP, FEW_VALUES = 8, 1 / 3


def median(values: Sequence[float]) -> float:
    """The middle value; the mean of the two middle ones for an even count."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile with linear interpolation between order statistics (numpy's default)."""
    if not values:
        raise ValueError("a quantile of nothing")
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """A confidence interval of the median from order statistics: no assumption on the distribution.

    The ranks come from the binomial distribution with p = 1/2. With fewer samples than the confidence
    needs (6 for 95 %), it is the whole range.
    """
    ordered, n = sorted(values), len(values)
    if n == 0:
        raise ValueError("an interval of nothing")
    tail, below = 0.0, -1
    for k in range(n // 2):
        tail += math.comb(n, k) / 2**n
        if tail > (1 - confidence) / 2:
            break
        below = k
    return (ordered[below], ordered[n - 1 - below]) if below >= 0 else (ordered[0], ordered[-1])


def paired_ratio(
    ours: Sequence[float], theirs: Sequence[float], confidence: float = 0.95
) -> tuple[float, float, float]:
    """How many times longer `ours` takes than `theirs`, from samples taken side by side.

    The i-th samples of both were taken in the same round, so that drift cancels.

    Returns:
        (ratio, low, high): the trimmed mean of the paired ratios' logarithms, as a ratio, and its interval by
        Student's t; the interval is infinite below two pairs.
    """
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    if not logs:
        raise ValueError("a ratio of nothing")
    mean, deviation, degrees = trimmed_mean(logs)
    if degrees < 1:
        return math.exp(mean), 0.0, math.inf
    half = student_t(degrees, confidence) * deviation / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), _exp(mean + half)


def trimmed_mean(values: Sequence[float]) -> tuple[float, float, int]:
    """The mean without the extremes at both ends, and how sure it is (Tukey and McLaughlin's interval, after Yuen).

    Returns:
        (mean, deviation, degrees): the mean's standard error is deviation ÷ √n, with so many degrees of freedom.
        Below 5 values nothing is left out, and it is the plain mean and standard deviation.
    """
    n = len(values)
    out = int(TRIMMED * n)
    kept = sorted(values)[out : n - out]
    total = math.fsum(kept)
    mean, degrees = total / len(kept), n - 2 * out - 1
    if degrees < 1:
        return mean, math.inf, degrees
    low, high = kept[0], kept[-1]  # stand in for those left out, where the deviation is concerned
    middle = (total + out * (low + high)) / n
    squares = math.fsum([(x - middle) ** 2 for x in kept])
    squares += out * ((low - middle) ** 2 + (high - middle) ** 2)
    return mean, math.sqrt(squares / (n - 1)) * n / (n - 2 * out), degrees


def timer_step(seconds: Sequence[float]) -> float:
    """The step of the timer, where samples show it: many samples of few values, which are whole steps apart.

    Samples that are all equal show none: those of an exact clock may be.

    Returns:
        Seconds; 0 where no step shows, infinity where nothing at all was seen.
    """
    if median(seconds) <= SHORTEST_S:
        return math.inf
    values = sorted(set(seconds))
    gaps = [high - low for low, high in pairwise(values) if high - low > 1e-6 * high]  # less is rounding
    if not gaps or len(seconds) < SAMPLES_FOR_STEP or len(gaps) + 1 > FEW_VALUES * len(seconds):
        return 0.0
    step = min(gaps)
    return step if all(abs(gap / step - round(gap / step)) < 0.1 for gap in gaps) else 0.0


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


@lru_cache(maxsize=4096)
def student_t(degrees: int, confidence: float = 0.95) -> float:
    """The two-sided quantile of Student's t, by the Cornish-Fisher expansion (within 1 % from 3 degrees up).

    Exact for one and two degrees of freedom.
    """
    p = (1 + confidence) / 2
    if degrees == 1:
        return math.tan(math.pi * (p - 0.5))
    if degrees == 2:
        return (2 * p - 1) / math.sqrt(2 * p * (1 - p))
    z, v = NormalDist().inv_cdf(p), float(degrees)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))
