"""Seconds, bytes and counts as people read them: pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tunesmith.core.config import Config
from tunesmith.core.problem import Problem

_SECONDS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
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
    """A duration in the unit that suits it.

    >>> duration(0.00123456), duration(75e-6), duration(0)
    ('1.235 ms', '75.00 µs', '0.000 ns')
    """
    unit = unit_of(seconds)
    return f"{number_in(unit, seconds)} {unit}"


def spent(seconds: float) -> str:
    """A time that someone waited: `0.4 s`, `75.3 s`, `12 min 5 s`, `3 h 2 min`."""
    tenths = round(seconds, 1)
    if tenths < 100:
        return f"{tenths:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count_bytes: int) -> str:
    """A number of bytes; exact where it is a whole number of its unit.

    >>> size(512), size(49152), size(1536)
    ('512 B', '48 KiB', '1.5 KiB')
    """
    power = min(max(count_bytes.bit_length() - 1, 0) // 10, len(_BYTES) - 1)
    value = count_bytes / 1024**power
    return f"{value:g} {_BYTES[power]}" if value == int(value) else f"{value:.1f} {_BYTES[power]}"


def count(n: int, noun: str) -> str:
    """So many of something.

    >>> count(1, "trial"), count(12345, "trial")
    ('1 trial', '12,345 trials')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def ratio(value: float) -> str:
    """How many times: `1.000×`, `12.3×`."""
    return f"{value:.3f}×" if value < 10 else f"{value:.1f}×" if value < 1000 else f"{value:,.0f}×"


def problem_line(problem: Problem) -> str:
    """A Problem as one would type it: sizes first, one `dtype=` when all arrays have the same.

    >>> problem_line(Problem({"M": 8, "causal": True, "a.dtype": "float16", "b.dtype": "float16"}))
    'M=8,dtype=float16,causal=true'
    """
    dtypes = {name: value for name, value in problem.items() if name.endswith(".dtype")}
    collapse = len(set(dtypes.values())) == 1 and "dtype" not in problem
    shared = Problem({"dtype": next(iter(dtypes.values()))}).text if collapse else ""
    sizes = ",".join(Problem({name: problem[name]}).text for name in problem.dims)
    others = [name for name in problem if name not in problem.dims and not (collapse and name in dtypes)]
    rest = ",".join(Problem({name: problem[name]}).text for name in others)
    return ",".join(part for part in (sizes, shared, rest) if part)


def pasteable(config: Config, width: int) -> str:
    """A Config as Python, broken only between knobs: a break within a string would be another string.

    >>> print(pasteable(Config(BLOCK_M=128, flags="-O3 -g", num_warps=4), 38))
    Config(BLOCK_M=128, flags='-O3 -g',
           num_warps=4)
    """
    named = all(name.isidentifier() for name in config)
    opening, closing = ("Config(", ")") if named else ("Config({", "})")
    lines, line = list[str](), opening
    for i, (name, value) in enumerate(config.items()):
        knob = f"{name}={value!r}" if named else f"{name!r}: {value!r}"
        knob += ", " if i < len(config) - 1 else closing
        if line.strip() != opening.strip() and len(line) + len(knob.rstrip()) > width:
            lines.append(line.rstrip())
            line = " " * len(opening)
        line += knob
    return "\n".join([*lines, line if config else opening + closing])


def first_line(text: str, most: int = 200) -> str:
    """The first line of a message, cut where it is very long."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= most else line[: most - 1] + "…"


#: How each field of `Resources` is headed and written.
RESOURCES: Mapping[str, tuple[str, Callable[[int], str]]] = {
    "registers": ("registers", str),
    "spills": ("spills", str),
    "shared_bytes": ("shared", size),
    "threads": ("threads", str),
    "code_bytes": ("code", size),
}
