"""Recorded spaces of other people's kernels: knobs and mean times of every legal Config (`tests/data`)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "kernel_tuner_spaces"


@dataclass(frozen=True)
class RecordedSpace:
    """One exhaustively measured space.

    Attributes:
        name: kernel and device.
        axes: knob → its values.
        times: (values in the axes' order) → mean milliseconds, or the stage at which it failed.
    """

    name: str
    axes: Mapping[str, tuple[Any, ...]]
    times: Mapping[tuple[Any, ...], float | str]

    @classmethod
    def read(cls, path: Path) -> RecordedSpace:
        """`steps` are the distances between legal points in the product of the axes, last axis fastest."""
        data = json.loads(gzip.decompress(path.read_bytes()))
        axes = {knob: tuple(values) for knob, values in data["axes"].items()}
        times: dict[tuple[Any, ...], float | str] = {}
        rank = -1
        for step, time in zip(data["steps"], data["ms"], strict=True):
            rank += step
            left, point = rank, []
            for values in reversed(axes.values()):
                left, at = divmod(left, len(values))
                point.append(values[at])
            times[tuple(reversed(point))] = time
        return cls(path.name.removesuffix(".json.gz"), axes, times)

    @cached_property
    def best(self) -> float:
        """The shortest time, in milliseconds."""
        return min(time for time in self.times.values() if not isinstance(time, str))


def recorded_spaces(folder: Path = FOLDER) -> list[RecordedSpace]:
    """All of a folder, by name."""
    return [RecordedSpace.read(path) for path in sorted(folder.glob("*.json.gz"))]
