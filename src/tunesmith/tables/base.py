"""What every format of table answers: `lookup` of a Key, a `Row`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.problem import Problem


@dataclass(frozen=True, slots=True)
class Row:
    """What a table says about a Key.

    Attributes:
        config: what to launch.
        source: `table FILE`.
        distance: what separates the row from what was asked; empty for an exact hit.
        median_s: its time when it was measured, where the table tells.
        note: what a reader should know (made for another source or other versions).
        called: what to launch where calls are made one by one, outside of a CUDA graph; `None`: the same.
    """

    config: Config
    source: str
    distance: str = ""
    median_s: float | None = None
    note: str = ""
    called: Config | None = None


class Tables(Protocol):
    """One table, or several that are asked as one. Looking up reads no file and measures nothing."""

    def lookup(self, key: Key, exact: Problem, device: Device) -> Row | None:
        """The row for a call; `None` where the table is silent.

        Args:
            key: with the Problem bucketed as the kernel's author asked.
            exact: the call's own Problem: a table that has its own rule for sizes goes by it.
            device: with all that is known of the chip.
        """
        ...
