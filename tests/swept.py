"""Kernels that a sweep's workers can import: what each problem's best Config is can be told from its size alone."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tunesmith
from tests.fakes import ScriptedClock
from tunesmith import Config, Problem
from tunesmith.core.stopping import BRIEF_ON_CPU
from tunesmith.measure import pace
from tunesmith.subject import Subject
from tunesmith.sweep.advice import Advice, Solved

#: the size at which inputs kill whoever makes them: each time, once, or only by failing
DEADLY, DEADLY_ONCE, IMPOSSIBLE = 13, 14, 15


def clock() -> ScriptedClock:
    """The larger `a` is the faster."""
    return ScriptedClock(lambda config: 1e-3 / int(config["a"]))


def inputs(problem: Problem) -> Mapping[str, Any]:
    n = problem.dims["n"]
    once = Path(os.environ["TUNESMITH_CACHE_DIR"]) / "killed-once"
    if n == DEADLY or (n == DEADLY_ONCE and not once.exists()):
        once.parent.mkdir(parents=True, exist_ok=True)
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if n == IMPOSSIBLE:
        raise ValueError("no inputs of this size")
    return {"n": n}


@tunesmith.autotune(configs=[{"a": a} for a in (1, 2, 4)], key=["n"], clock=clock(), make_inputs=inputs, isolate=False)
def scale(n: int, *, a: int) -> None:
    """What it does is not looked at."""


@tunesmith.autotune(
    configs=[{"a": a} for a in (1, 2, 4)], key=["n"], clock=clock(), make_inputs=inputs, isolate=False,
    buckets={"n": "pow2"},
)  # fmt: skip
def bucketed(n: int, *, a: int) -> None:
    """Sizes share a search up to the next power of two."""


@tunesmith.autotune(configs=[{"a": a} for a in (1, 2, 4)], key=["n"], clock=clock(), make_inputs=inputs, isolate=False)
def slow(n: int, *, a: int) -> None:
    """A sweep over some of these takes a second."""
    time.sleep(0.01)


@tunesmith.autotune(configs=[{"a": a} for a in (1, 2, 4)], key=["n"], clock=clock(), make_inputs=inputs)
def apart(n: int, *, a: int) -> None:
    """Its candidates run in a process of their own, which one of them ends."""
    with open(Path(os.environ["TUNESMITH_CACHE_DIR"]) / f"launched-{n}", "a") as file:
        file.write(f"{os.getpid()}\n")
    if n == 2 and a == 4:
        os._exit(1)


@tunesmith.autotune(
    configs=[{"a": a} for a in (1, 2, 4)], key=["n"], default=Config(a=1), make_inputs=inputs, isolate=False
)
def struggling(n: int, *, a: int) -> None:
    """What is tried first takes its time, and fails."""
    if a == 1:
        time.sleep(0.3)
        raise ValueError("not with a=1")


class LateClock(ScriptedClock):
    """Each sample takes so long that a race of three is not over for half a minute."""

    def sample(self, run: Any) -> Any:
        time.sleep(1.5)
        with open(Path(os.environ["TUNESMITH_CACHE_DIR"]) / "sampled", "a") as file:
            file.write("x")
        return super().sample(run)


@tunesmith.autotune(
    configs=[{"a": a} for a in (1, 2, 4)], key=["n"], clock=LateClock(lambda config: 1e-3), make_inputs=inputs,
    isolate=False,
)  # fmt: skip
def late(n: int, *, a: int) -> None:
    """What it does is not looked at."""


#: less than any machine reads
QUIET_PACE_S = 1e-7
#: of `disturbed`, the size in hand, how often each was looked at, and by size which looks are disturbed: how many times
#: as long the loop takes then that says so, and which Config is the fastest
IN_HAND: list[int] = []
LOOKS: dict[int, int] = {}
DISTURBED = {
    1: {1: (2.0, 2)}, 3: {1: (2.0, 2), 2: (2.0, 1)}, 4: {1: (2.0, 2), 2: (1.7, 4), 3: (2.0, 1)}, 6: {1: (1.2, 4)},
}  # fmt: skip


def disturbance() -> tuple[float, int]:
    [n] = IN_HAND
    return DISTURBED.get(n, {}).get(LOOKS[n], (1.0, 4))


if "pytest" not in sys.modules:  # in a worker: beside that its core would never be quiet
    pace.pace_s = lambda: QUIET_PACE_S


class QuietClock(ScriptedClock):
    """Its samples are brief and never disturbed."""

    brief = BRIEF_ON_CPU

    def __post_init__(self) -> None:
        super().__post_init__()
        self.paces: list[float] = []

    def pace_s(self) -> float:
        return QUIET_PACE_S

    def sample(self, run: Any) -> Any:
        pace.heard(QUIET_PACE_S)
        self.paces.append(self.pace_s())
        return super().sample(run)


class DisturbedClock(QuietClock):
    """Of its samples, those of some looks say that another is the fastest; its paces give them away."""

    def pace_s(self) -> float:
        return QUIET_PACE_S * disturbance()[0]


def looked_at(problem: Problem) -> Mapping[str, Any]:
    n = problem.dims["n"]
    IN_HAND[:], LOOKS[n] = [n], LOOKS.get(n, 0) + 1
    return {"n": n}


def disturbed_s(config: Config) -> float:
    """`a=4` is the fastest by 10 %, another where it is disturbed, and all take longer then."""
    pace, fastest = disturbance()
    return pace * (1e-3 if config["a"] == fastest else 1.1e-3)


@tunesmith.autotune(
    configs=[{"a": a} for a in (1, 2, 4)], key=["n"], clock=DisturbedClock(disturbed_s), make_inputs=looked_at,
    isolate=False,
)  # fmt: skip
def disturbed(n: int, *, a: int) -> None:
    """What it does is not looked at."""


def placed_s(config: Config) -> float:
    """In the process of the search `a=2` seems to be the fastest; `a=4` is, by 2 %, in all others. `a=1` never is."""
    [n] = IN_HAND
    return {1: 1.04e-3, 2: 1e-3, 4: 1.01e-3 if LOOKS[n] == 1 else 0.98e-3}[int(config["a"])]


@tunesmith.autotune(
    configs=[{"a": a} for a in (1, 2, 4)], key=["n"], clock=DisturbedClock(placed_s), make_inputs=looked_at,
    isolate=False,
)  # fmt: skip
def placed(n: int, *, a: int) -> None:
    """What it does is not looked at."""


def processes() -> Path:
    return Path(os.environ["TUNESMITH_CACHE_DIR"]) / "processes"


def alike_s(config: Config) -> float:
    """In every other process `a=2` takes 3 % more than `a=1`, and in those between 3 % less."""
    odd = len({line.split()[1] for line in processes().read_text().splitlines()}) % 2
    return 1e-3 * (1.0 if config["a"] == 1 else 1.03 if odd else 0.97)


@tunesmith.autotune(
    configs=[{"a": a} for a in (1, 2)], key=["n"], clock=QuietClock(alike_s, noise=1e-3), make_inputs=inputs
)
def alike(n: int, *, a: int) -> None:
    """Its processes say who they are."""
    with open(processes(), "a") as file:
        file.write(f"{n} {os.getpid()}\n")


def advise(subject: Subject, solved: Sequence[Solved]) -> Advice | None:
    """The neighbour's choice and one launch: nothing else has its turn. The first problem has no neighbour."""
    if not solved:
        return None
    return Advice(first=(solved[0].winner,), launches=1)


def advise_wrongly(subject: Subject, solved: Sequence[Solved]) -> Any:
    """An adviser with a fault of each kind."""
    n = subject.exact["n"]
    if n == 1:
        raise KeyError("n")
    return 5 if n == 2 else Advice(launches=0) if n == 3 else None


def advise_badly(subject: Subject, solved: Sequence[Solved]) -> Advice:
    """Starts with the slowest."""
    return Advice(first=(Config(a=1),), launches=1)
