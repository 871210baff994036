"""Seconds and ratios as people read them: pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping

_SECONDS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
#: Medians of a good measurement differ in the third digit; the fourth shows that two rows are not the same.
DIGITS = 4


def unit_of(seconds: float) -> str:
    """The unit in which a duration has one to three digits before the point.

    >>> [unit_of(s) for s in (12.0, 0.00123, 999.96e-6, 3e-9)]
    ['s', 'ms', 'ms', 'ns']
    """
    rounded = float(f"{seconds:.{DIGITS}g}")
    return next((unit for unit, size in _SECONDS.items() if rounded >= size), "ns")


def number_in(unit: str, seconds: float) -> str:
    """How many of a unit a duration is, to four digits.

    >>> number_in("ms", 0.00123456), number_in("µs", 0.5)
    ('1.235', '500000')
    """
    value = float(f"{seconds / _SECONDS[unit]:.{DIGITS}g}")
    before = math.floor(math.log10(value)) + 1 if value > 0 else 1
    return f"{value:.{min(DIGITS - 1, max(0, DIGITS - before))}f}"


def duration(seconds: float) -> str:
    """A duration in the unit that suits it; what is no duration as it is.

    >>> duration(0.00123456), duration(75e-6), duration(0), duration(float("inf"))
    ('1.235 ms', '75.00 µs', '0.000 ns', 'inf s')
    """
    if not math.isfinite(seconds):
        return f"{seconds} s"
    unit = unit_of(seconds)
    return f"{number_in(unit, seconds)} {unit}"


def ratio(value: float) -> str:
    """How many times: `1.000×`, `12.3×`."""
    return f"{value:.3f}×" if value < 10 else f"{value:.1f}×" if value < 1000 else f"{value:,.0f}×"
