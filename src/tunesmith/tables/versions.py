"""Folders for each version of a compiler: which one a table is read from when there is none for this version."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tunesmith.errors import BadInput

#: `lower`: the highest version below this one. `newest`: the highest of all. `text`: the same, compared as text.
#: `strict`: none.
Fallback: TypeAlias = Literal["lower", "newest", "text", "strict"]
FOLDER = re.compile(r"triton_(\d+_\d+_\d+)\Z")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


def numbers(version: str) -> tuple[int, ...]:
    """`3.10.0+git12` → (3, 10, 0).

    Raises:
        BadInput: for text that does not begin with a number.
    """
    match = _NUMBERS.match(version)
    if match is None:
        raise BadInput(f"{version!r} is no version; good ones: 3.6.0")
    return tuple(int(part) for part in match.group().split("."))


def folder(version: str) -> str:
    """The folder of a Triton version: `triton_3_6_0`.

    Raises:
        BadInput: for anything but three numbers: readers split the folder's name and end on other parts.
    """
    name = "triton_" + version.replace(".", "_")
    if not FOLDER.match(name):
        raise BadInput(
            f"no folder for Triton {version!r}: readers take three numbers alone, as 3.6.0, and end on others"
        )
    return name


def of_folder(name: str) -> str | None:
    """The version that a folder is for; `None` for other folders."""
    match = FOLDER.match(name)
    return match.group(1).replace("_", ".") if match else None


@dataclass(frozen=True, slots=True)
class Found:
    """A version to read from.

    Attributes:
        version: `None` where there is none.
        note: what a user should know; empty for just this version.
    """

    version: str | None
    note: str = ""


def choose(running: str, there: Iterable[str], fallback: Fallback = "lower") -> Found:
    """Which of the versions that are there serves the running one."""
    known = list(there)
    if running in known:
        return Found(running)
    if fallback in ("lower", "strict"):  # for us 3.6.0+git12 is 3.6.0; other readers compare the text
        same = [version for version in known if numbers(version) == numbers(running)]
        if same:
            return Found(same[0])
    order = known if fallback == "text" else sorted(known, key=numbers)
    order = sorted(order) if fallback == "text" else order
    if fallback == "strict":
        order = []
    elif fallback == "lower":
        order = [version for version in order if numbers(version) < numbers(running)]
    if not order:
        listed = ", ".join(sorted(known, key=numbers)) or "none"
        return Found(None, f"no table for Triton {running} (there are: {listed})")
    return Found(order[-1], f"made for Triton {order[-1]}, running {running}: may be stale")
