"""How the benchmarks page tells a result: the type of an entry, and figures as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]
Table = Sequence[Sequence[str]]  # the first row is the head


@dataclass(frozen=True)
class Wording:
    """How one benchmark is told: `says` gives sentences, `table` rows of text below a head."""

    title: str
    says: Callable[[Result], Sequence[str]]
    table: Callable[[Result], Table] | None = None


def percent(value: float, digits: int = 1) -> str:
    """A share in percent; what rounds to 0 has no sign."""
    text = f"{100 * value:.{digits}f} %"
    return text if any(digit in text for digit in "123456789") else text.lstrip("-")


def duration(seconds: float) -> str:
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
