"""Seconds, bytes and counts as people read them: pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tunesmith.core.config import Config
from tunesmith.core.problem import Problem
from tunesmith.core.units import duration, number_in, ratio, unit_of

__all__ = [
    "RESOURCES", "behind_subject", "count", "duration", "first_line", "number_in", "pasteable", "problem_line", "ratio",
    "size", "spent", "unit_of",
]  # fmt: skip

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


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


def behind_subject(text: str) -> str:
    """A message without the call that it begins with, where that stands beside it.

    >>> behind_subject("matmul(M=8,N=8): none of 2 Configs works")
    'none of 2 Configs works'
    """
    return re.sub(r"^[^\s(:]+\([^\s()]*\): ", "", text)


#: How each field of `Resources` is headed and written.
RESOURCES: Mapping[str, tuple[str, Callable[[int], str]]] = {
    "registers": ("registers", str),
    "spills": ("spills", str),
    "shared_bytes": ("shared", size),
    "threads": ("threads", str),
    "code_bytes": ("code", size),
}
