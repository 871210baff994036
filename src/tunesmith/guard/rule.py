"""Better, same, worse or cannot tell: the rule of `tunesmith guard`, which is fed seconds and knows nothing else.

A fixed band around the point estimate cries wolf on a noisy machine and sleeps on a quiet one. So what counts is an
interval of the ratio NEW ÷ BASE, as wide as the samples' own spread makes it:

    worse         it lies above `margin`, and above 1 even when all problems are looked at together; and the fastest
                  quarter of the samples is slower too
    same          it does not reach `warn`
    better        it lies below 1 ÷ `margin`
    cannot tell   none of these: a slowdown of `warn` is possible, and so is none
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, Literal, TypeAlias, TypeVar

from tunesmith.core.stats import median, quantile, student_t, trimmed_mean
from tunesmith.core.stopping import CONFIDENCE, LEAST_SPREAD
from tunesmith.errors import BadInput

K = TypeVar("K")
Verdict: TypeAlias = Literal["better", "same", "worse", "cannot tell"]
#: What a row does to the whole: `fail` by more than the limit beyond doubt; `unclear` where that cannot be told.
Grade: TypeAlias = Literal["ok", "warn", "fail", "unclear"]

#: From so many problems on, what all have in common is the machine's, not the kernels'.
DRIFT_FROM = 5
#: A common drift below this is left in: it decides nothing.
LEAST_DRIFT = 0.01
#: A sample so many standard deviations from where they are densest was disturbed. Of few samples the shortest half
#: is shorter than that of many, so this is more than one would take for many.
FAR_OFF = 5.0
#: The standard error of a median is larger than that of a mean by this factor, of normal values.
OF_A_MEDIAN = math.sqrt(math.pi / 2)
#: From a median absolute deviation to a standard deviation, of normal values.
OF_A_MAD = 1.4826


@dataclass(frozen=True, slots=True)
class Limits:
    """Ratios NEW ÷ BASE.

    Attributes:
        margin: a slowdown has to be shown to be larger than this to be called one.
        warn: a slowdown of this size must not go unnoticed: `same` is said where the interval excludes it.
        fail: a slowdown that is shown to be larger than this is a failure.
        confidence: of each end of a problem's interval, as a verdict rests on one of them.
    """

    margin: float = 1.05
    warn: float = 1.10
    fail: float = 1.15
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        if not 1 <= self.margin <= self.warn <= self.fail < math.inf:
            raise BadInput(
                f"margin {self.margin:g}, warn {self.warn:g}, fail {self.fail:g}: "
                "good values: ratios from 1, each at least the one before"
            )
        if not 0.5 <= self.confidence < 1:
            raise BadInput(f"confidence {self.confidence:g}: good values: from 0.5 to below 1, as 0.95")


@dataclass(frozen=True, slots=True)
class Pair:
    """The seconds of one problem on both sides, in the order they were taken.

    Attributes:
        paired: the i-th samples of both were taken side by side, in one round.
        spread: how much a single number may be off, as a part of it, where a side is a median without samples.
    """

    base_s: Sequence[float]
    new_s: Sequence[float]
    paired: bool = False
    spread: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is said of one problem.

    Attributes:
        ratio: NEW ÷ BASE, with what all problems have in common taken out. low, high: its interval.
        raw: NEW ÷ BASE as measured.
        disturbed: which part of BASE's and of NEW's samples lies far off the others, and does not count.
        why: what the verdict rests on, where the figures do not say it.
    """

    verdict: Verdict
    grade: Grade
    ratio: float
    low: float
    high: float
    raw: float
    disturbed: tuple[float, float] = (0.0, 0.0)
    why: str = ""


@dataclass(frozen=True, slots=True)
class Drift:
    """What all problems have in common: a ratio with its interval, and whether it may hide a slowdown of `warn`."""

    ratio: float
    low: float
    high: float
    hides: bool


@dataclass(frozen=True, slots=True)
class Judgement(Generic[K]):
    """All problems together."""

    rows: Mapping[K, Comparison]
    drift: Drift | None


@dataclass(frozen=True, slots=True)
class _Estimate:
    """The logarithm of a ratio, its standard error, and how well that is known."""

    log: float
    error: float
    degrees: int

    def half(self, confidence: float) -> float:
        """Half the width of its interval: each of its ends holds with this confidence."""
        if self.degrees < 1 or math.isinf(self.error):
            return math.inf
        return student_t(self.degrees, 2 * confidence - 1) * self.error


def judge(pairs: Mapping[K, Pair], limits: Limits, *, drift: bool = True) -> Judgement[K]:
    """Compare both sides of every problem.

    Args:
        drift: take out what all problems have in common, where there are enough and they were not timed side by side.
    """
    correlation = _usual_correlation(pairs)
    estimates = {name: _estimate(pair, correlation) for name, pair in pairs.items()}
    apart = [estimates[name] for name, pair in pairs.items() if not pair.paired]
    found = _drift(apart, limits) if drift else None
    several = 1 - (1 - limits.confidence) / 2 / max(1, len(pairs))
    rows = {
        name: replace(
            _compare(estimate, _fastest(pairs[name]), found if not pairs[name].paired else None, limits, several),
            disturbed=(_far_off(pairs[name].base_s), _far_off(pairs[name].new_s)),
        )
        for name, estimate in estimates.items()
    }
    return Judgement(rows, found[1] if found is not None else None)


def _compare(
    estimate: _Estimate, fastest: float | None, drift: tuple[_Estimate, Drift] | None, limits: Limits, several: float
) -> Comparison:  # fmt: skip
    """One problem's verdict; `fastest` is the logarithm of the ratio of the fastest quarters."""
    raw = _exp(estimate.log)
    common = drift[0] if drift is not None else None
    if common is not None:
        error = math.hypot(estimate.error, common.error)
        relative = replace(estimate, log=estimate.log - common.log, error=error)
    else:
        relative = estimate
    half = relative.half(limits.confidence)
    low, high = _exp(relative.log - half), _exp(relative.log + half)
    sure = relative.log - relative.half(several) > 0
    row = Comparison("cannot tell", "unclear", _exp(relative.log), low, high, raw)
    if math.isinf(half):
        return replace(row, why="too few samples")
    if low > limits.margin and sure:
        if fastest is not None and fastest - (common.log if common else 0.0) < math.log(limits.margin) / 2:
            return replace(row, why="its fastest samples are as fast as before: more of the others were disturbed")
        if common is not None and common.log < 0 and estimate.log - estimate.half(limits.confidence) <= 0:
            return replace(row, why="it did not become slower, the others became faster")
        grade: Grade = "fail" if low > limits.fail else "unclear" if high >= limits.fail else "warn"
        why = f"whether by more than {limits.fail:g} cannot be told" if grade == "unclear" else ""
        return replace(row, verdict="worse", grade=grade, why=why)
    if high < 1 / limits.margin and (common is None or raw < 1):
        return replace(row, verdict="better", grade="ok")
    if high < limits.warn:
        return replace(row, verdict="same", grade="ok")
    return replace(row, why=f"the spread is too large: a slowdown of {limits.warn:g} can be neither shown nor excluded")


# --- from seconds to a ratio -------------------------------------------------------------------------


def _estimate(pair: Pair, correlation: float) -> _Estimate:
    if pair.spread is not None and (len(pair.base_s) == 1 or len(pair.new_s) == 1):
        # a median without samples: all that is known is how far off such a number may be
        log = math.log(median(pair.new_s)) - math.log(median(pair.base_s))
        return _Estimate(log, math.log1p(pair.spread) / student_t(_MANY, CONFIDENCE), _MANY)
    if pair.paired:
        logs = [math.log(new) - math.log(base) for base, new in zip(pair.base_s, pair.new_s, strict=True)]
        log, error, degrees = _mean(logs, correlation)
        return _Estimate(log, error, int(degrees))
    base, new = (_mean([math.log(s) for s in seconds], correlation) for seconds in (pair.base_s, pair.new_s))
    error = math.hypot(base[1], new[1])
    if math.isinf(error):
        return _Estimate(new[0] - base[0], math.inf, 0)
    # Welch and Satterthwaite's degrees of freedom: the two sides need not spread alike
    degrees = error**4 / (base[1] ** 4 / base[2] + new[1] ** 4 / new[2])
    return _Estimate(new[0] - base[0], error, max(1, int(degrees)))


#: Degrees of freedom that are as good as infinitely many.
_MANY = 10_000


def _mean(logs: Sequence[float], correlation: float) -> tuple[float, float, float]:
    """(mean, its standard error, degrees of freedom) of samples in the order they were taken.

    Samples that follow each other are alike: together they are worth fewer that are independent.
    """
    low, high = _usual(logs)
    inside = [x for x in logs if low <= x <= high]
    mean, deviation, degrees = trimmed_mean(inside)
    if degrees < 1:
        return mean, math.inf, degrees
    own = _correlation(logs)
    clear = 3 / math.sqrt(len(logs))  # independent samples hardly ever seem to be correlated by more
    rho = min(0.95, max(correlation, own if own > clear else 0.0))
    worth = (1 + rho) / (1 - rho)  # so many samples are worth one that is independent
    independent = len(inside) / worth
    # a short stretch of correlated samples also spreads less than the machine does
    error = max(deviation, LEAST_SPREAD) / math.sqrt(max(0.5, independent - (1 - 1 / worth)))
    return mean, error, max(1.0, min(degrees, independent - 1))


def _usual(logs: Sequence[float]) -> tuple[float, float]:
    """Between which values samples lie that nobody disturbed.

    On a shared machine up to half of all samples may take several times as long, as another process had its turn. What
    the kernel takes is where samples are densest: their shortest half, and what is not far from it.
    """
    ordered, half = sorted(logs), len(logs) // 2 + 1
    start = min(range(len(ordered) - half + 1), key=lambda i: ordered[i + half - 1] - ordered[i])
    low, high = ordered[start], ordered[start + half - 1]
    reach = FAR_OFF * max(OF_A_MAD * (high - low) / 2, LEAST_SPREAD)
    return (low + high) / 2 - reach, (low + high) / 2 + reach


def _fastest(pair: Pair) -> float | None:
    """How the fastest quarters compare: a slowdown of the code is in them too, what others did to it is not."""
    if len(pair.base_s) == 1 or len(pair.new_s) == 1:
        return None
    return math.log(quantile(pair.new_s, 0.25)) - math.log(quantile(pair.base_s, 0.25))


def _far_off(seconds: Sequence[float]) -> float:
    """The part of samples that were disturbed."""
    logs = [math.log(s) for s in seconds]
    low, high = _usual(logs)
    return sum(not low <= x <= high for x in logs) / len(logs)


def _correlation(logs: Sequence[float]) -> float:
    """The correlation of a sample with the next, disturbed ones left out, with the bias of short series taken out."""
    low, high = _usual(logs)
    inside = [x for x in logs if low <= x <= high]
    n, mean = len(inside), math.fsum(inside) / len(inside)
    squares = math.fsum([(x - mean) ** 2 for x in inside])
    products = [(a - mean) * (b - mean) for a, b in pairwise(logs) if low <= min(a, b) and max(a, b) <= high]
    if n < 5 or squares == 0 or not products:
        return 0.0
    rho = (math.fsum(products) / len(products)) / (squares / n) * (n - 1) / n
    return min(1.0, (n * rho + 1) / (n - 3))


def _usual_correlation(pairs: Mapping[K, Pair]) -> float:
    """What most series have: of one alone it is known badly."""
    found: list[float] = []
    for pair in pairs.values():
        if pair.paired:
            ratios = [math.log(new) - math.log(base) for base, new in zip(pair.base_s, pair.new_s, strict=True)]
            found.append(_correlation(ratios))
        else:
            found += [_correlation([math.log(s) for s in side]) for side in (pair.base_s, pair.new_s) if len(side) > 1]
    return max(0.0, median(found)) if found else 0.0


def _drift(estimates: Sequence[_Estimate], limits: Limits) -> tuple[_Estimate, Drift] | None:
    """The ratio that the middle of all problems has, if there is one beyond doubt."""
    known = [e for e in estimates if e.degrees >= 1 and not math.isinf(e.error)]
    if len(known) < DRIFT_FROM:
        return None
    middle = median([e.log for e in known])
    scatter = OF_A_MAD * median([abs(e.log - middle) for e in known])
    error = OF_A_MEDIAN * max(scatter, median([e.error for e in known])) / math.sqrt(len(known))
    common = _Estimate(middle, error, len(known) - 1)
    half = common.half(limits.confidence)
    if abs(middle) - half <= 0 or abs(middle) < LEAST_DRIFT:
        return None
    low, high = _exp(middle - half), _exp(middle + half)
    return common, Drift(_exp(middle), low, high, hides=high >= limits.warn)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
