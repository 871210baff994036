"""What else could decide for a problem, and how its Config compares with the winner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.heuristic import Heuristic
from tunesmith.tables.loading import load


@dataclass(frozen=True, slots=True)
class Rival:
    """What somebody else would use.

    Attributes:
        name: `default`, or the file's name.
        config: `None` where it says nothing.
        median_s: of that Config in the same measurements, in seconds; `None` where it was not measured.
        why: there is no Config, in words.
    """

    name: str
    config: Config | None
    median_s: float | None
    why: str = ""


def decider(path: Path, kernel: str) -> Callable[[Key, Problem, Device], Config | str]:
    """A file's answer for a problem: a table of any format, or a heuristic as `tunesmith distill` writes it.

    Raises:
        BadInput: for a file that is neither.
    """
    try:
        head = path.read_bytes()[:400] if path.is_file() else b""
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from error
    if b'"tunesmith-heuristic/' in head:
        tree = Heuristic.read(path)
        return lambda key, exact, device: tree(exact, device)
    table = load(path, kernel=kernel)

    def look_up(key: Key, exact: Problem, device: Device) -> Config | str:
        row = table.lookup(key, exact, device)
        return "says nothing of it" if row is None else row.config

    return look_up
