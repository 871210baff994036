"""A clock that says the opposite of what it has seen, or nothing true at all: results must not depend on it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tunesmith.core.device import Device
from tunesmith.core.outcome import Sample
from tunesmith.kernel import Clock, Run
from tunesmith.subjects import Subjects

#: to the processes that a test starts
VARIABLE = "TUNESMITH_CI_CLOCK"
#: by the name of the way: what becomes of a sample's seconds. 1 µs becomes 1 ms, and 1 ms 1 µs.
WAYS: Mapping[str, Callable[[float, random.Random], float]] = {
    "inverted": lambda seconds, rng: 1e-9 / seconds,
    "random": lambda seconds, rng: 10 ** rng.uniform(-6, -3),
}


@dataclass
class UntrueClock:
    """Launches as the true one does; what it answers is another time."""

    true: Clock
    way: str
    rng: random.Random = field(default_factory=random.Random)

    def sample(self, run: Run) -> Sample:
        sample = self.true.sample(run)
        return replace(sample, seconds=WAYS[self.way](sample.seconds, self.rng))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.true, name)


def install(way: str) -> None:
    """From now on every search of this process has an untrue clock."""
    usual = Subjects.clock

    def clock(self: Subjects, device: Device) -> Clock:
        return UntrueClock(usual(self, device), way)

    Subjects.clock = clock  # type: ignore[method-assign]


def install_if_asked() -> None:
    """The same in a process that such a test started."""
    if os.environ.get(VARIABLE):
        install(os.environ[VARIABLE])
