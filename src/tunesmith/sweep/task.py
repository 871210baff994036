"""`Task`: one problem of one kernel; `Result`: what came of it on one kind of device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from types import NoneType
from typing import Any, Literal, TypeAlias, get_args

from tunesmith.core.problem import Problem

#: `tuned`: something was measured. `known`: all was in the store. `failed`: nothing works, or it could not be tried.
#: `elsewhere`: the kernel runs on another kind of device.
Fate: TypeAlias = Literal["tuned", "known", "failed", "elsewhere"]
#: what a worker answers in place of a Result: why it has no device any more ...
GONE = "gone"
#: ... or how long it waited in vain for its core to be quiet: another look would see no more than the one before
STILL_SHARED = "still_shared_s"


@dataclass(frozen=True, slots=True)
class Task:
    """One problem of one kernel, to be tuned on each kind of device of a sweep.

    Attributes:
        target: where another process finds the kernel: `module:attribute` or `/path.py:attribute`.
        kernel: its name.
        problem: as text, complete.
        budget_s, launches, strategy: as of `TunedKernel.tune`.
    """

    target: str
    kernel: str
    problem: str
    budget_s: float | None = None
    launches: int | None = None
    strategy: str | None = None

    @property
    def digest(self) -> str:
        """Short and the same in every process: what a journal knows it by."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """`matmul(M=512,N=512)`."""
        return f"{self.kernel}({self.problem})"

    @property
    def fields(self) -> Problem:
        return Problem.parse(self.problem)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a task on one kind of device. Of JSON types, as it comes from another process.

    Attributes:
        device: the identity, `cuda:NVIDIA H200:sm_90:132`.
        config, median_s, ties: of the Choice; none of a failure.
        measured, failed, known: how many Configs were timed or did not work, and how many Trials the store had.
        seconds: from the task's begin to its end, making inputs included.
        compile_s, measure_s, store_s, wait_s: of these, waiting for what is compiled, measuring, writing to the store,
            and waiting for whoever else measures on the device.
        pace_s: how fast the CPU's core was around most samples of the race that named the Config, as of
            `tunesmith.measure.pace`. least_pace_s: the least that its worker knew.
        looks: how many races have named the Config, the search's own counted. changed: how many of the others named
            another than the race before. again: whether one more may, if others were at work on the core.
        rivals: of which Configs one may be the fastest in other processes, and another one in this. visits: of each
            process that has timed them since, what each took. open: whether one more is to.
        error: why it failed. deadly: whether its workers died of it.
        key: of the Choice. soft: the versions it was found under.
        row: what the worker's store has of the key, where that is not the driver's.
    """

    fate: Fate
    device: str
    config: Mapping[str, Any] | None = None
    median_s: float | None = None
    ties: int = 0
    partial: str = ""
    measured: int = 0
    failed: int = 0
    known: int = 0
    seconds: float = 0.0
    compile_s: float = 0.0
    measure_s: float = 0.0
    store_s: float = 0.0
    wait_s: float = 0.0
    pace_s: float | None = None
    least_pace_s: float | None = None
    looks: int = 1
    changed: int = 0
    again: bool = False
    rivals: Sequence[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    visits: Sequence[Sequence[float]] = field(default_factory=list[Sequence[float]])
    open: bool = False
    error: str = ""
    deadly: bool = False
    key: Mapping[str, Any] | None = None
    soft: Mapping[str, str] = field(default_factory=dict[str, str])
    row: str = ""

    def after(self, before: Result) -> Result:
        """What came of both looks, where this one was after another."""
        spent = {part: getattr(self, part) + getattr(before, part) for part in SECONDS}
        return replace(self, looks=before.looks + 1, **spent)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Result:
        """What another process said; what is more is left out.

        Raises:
            TypeError: when something is missing, or is not what it should be.
        """
        found = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        for name, value in found.items():
            good = _TYPES[name]
            if not isinstance(value, good) or (isinstance(value, bool) and bool not in good):
                raise TypeError(f"{name} is {value!r}; expected {' or '.join(kind.__name__ for kind in good)}")
        if found.get("fate") not in get_args(Fate):
            raise TypeError(f"fate is {found.get('fate')!r}; good ones: {', '.join(get_args(Fate))}")
        return cls(**found)


#: fields of a Result that say what it took
SECONDS = "seconds", "compile_s", "measure_s", "store_s", "wait_s"
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("fate", "device", "partial", "error", "row"), (str,)),
    **dict.fromkeys(("ties", "measured", "failed", "known", "looks", "changed"), (int,)),
    **dict.fromkeys(SECONDS, (int, float)),
    "config": (dict, NoneType), "key": (dict, NoneType), "soft": (dict,),
    **dict.fromkeys(("median_s", "pace_s", "least_pace_s"), (int, float, NoneType)),
    **dict.fromkeys(("deadly", "again", "open"), (bool,)),
    **dict.fromkeys(("rivals", "visits"), (list,)),
}  # fmt: skip
