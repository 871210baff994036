"""Kernels that a worker can import, for tests of isolation. Most raise where something is not as it should be."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

import tunesmith
from tests.fakes import ScriptedClock
from tunesmith import Config, Device, Problem
from tunesmith.answering import MARK, is_guarded
from tunesmith.backends.call import CallableKernel
from tunesmith.core.outcome import Sample
from tunesmith.kernel import Run


def scripted() -> ScriptedClock:
    """The least `a` is the fastest."""
    return ScriptedClock(lambda config: 1e-3 * (1 + int(config.get("a", 1))))


def gather_inputs(problem: Problem) -> dict[str, Any]:
    n = problem.dims["n"]
    return {
        "x": np.full(n, 0.5, np.float32), "index": np.zeros(n, np.int64), "y": np.zeros((n, n), np.float32),
        "scale": 1.0, "pair": (1, 2), "n": n,
    }  # fmt: skip


@tunesmith.autotune(
    configs=[{"a": 1}, {"a": 2}], key=["n"], strides=["y"], clock=scripted(), make_inputs=gather_inputs, isolate=True
)
def gather(x: Any, index: Any, y: Any, scale: float, pair: Any, n: int, z: Any = None, *, a: int) -> None:
    """Takes just what the test's call gives it, and writes all over it."""
    assert is_guarded()
    assert (x == 0.5).all()  # as make_inputs makes it, whatever the caller's holds
    assert index.tolist() == list(range(n))[::-1]
    assert y.strides == (4, 4 * n)
    assert (scale, pair) == (0.25, (3, [4.0, None, "five"]))
    assert z is y
    y[...] = 3.0


def n_inputs(problem: Problem) -> dict[str, Any]:
    return {"n": problem["n"]}


@tunesmith.autotune(configs=[{"a": i} for i in range(1, 5)], key=["n"], clock=scripted(), make_inputs=n_inputs)
def loud(n: int, *, a: int) -> None:
    """Says things wherever an answer might be expected, and once forks."""
    assert is_guarded()
    sys.stdout.write('{"value": 7}\n')
    sys.stderr.write("{}\n")
    os.write(1, b'{"value": {"seconds": 1e-9}}\n')
    if a == 2:
        os.fork()  # both come back


class Settling(ScriptedClock):
    """A clock whose device comes under load, which is then told as what holds it back."""

    screens: ClassVar[Mapping[int, float]] = {1: 50.0}

    def __init__(self) -> None:
        super().__init__(lambda config: 1e-3 * int(config["a"]))
        self.limits: set[str] = set()

    def settle(self, run: Run, seconds: float, over: Callable[[], bool]) -> None:
        assert is_guarded()
        if run.config["a"] == 1:
            os._exit(3)
        while not over():
            time.sleep(0.01)
        self.limits.add(f"a={run.config['a']} for {seconds:.0e} s")


def x_inputs(problem: Problem) -> dict[str, Any]:
    return {"x": np.zeros(problem["n"], np.float32), "n": problem["n"]}


@tunesmith.autotune(
    configs=[{"a": 1}, {"a": 2}, {"a": 40}], key=["n"], clock=Settling(), make_inputs=x_inputs, isolate=True
)
def loads(x: Any, n: int, *, a: int) -> None:
    """Its fastest candidate ends the process under load; the next one stays under it as long as it may. The last is 20
    times as slow."""


class Means(ScriptedClock):
    """Each sample is the mean of a hundred launches."""

    def sample(self, run: Run) -> Sample:
        run.state["launches"] = 100
        return super().sample(run)


@tunesmith.autotune(
    configs=[{"a": a} for a in range(1, 9)], key=["n"], clock=Means(lambda config: 1e-3 * int(config["a"])),
    make_inputs=n_inputs, isolate=True,
)  # fmt: skip
def averaged(n: int, *, a: int) -> None:
    """What it does is not looked at."""


@tunesmith.autotune(configs=[{"a": 2}, {"a": 3}], key=["n"], clock=Settling(), make_inputs=x_inputs, isolate=True)
def bears(x: Any, n: int, *, a: int) -> None:
    """Its candidates stay alive under load."""


@tunesmith.autotune(configs=[{"a": 1}, {"a": 2}, {"a": 3}], key=["n"], clock=scripted(), make_inputs=n_inputs)
def ends(n: int, *, a: int) -> None:
    """One of its candidates ends the process it runs in."""
    if a == 1:
        os._exit(3)


def closes_files(first: int, last: int) -> None:
    os.closerange(first, last)


def writes_everywhere(text: bytes) -> None:
    for pipe in range(3, 256):
        with suppress(OSError):
            os.write(pipe, text)


def hangs_on() -> None:
    while True:
        time.sleep(1)


def leaves_holder() -> None:
    """Dies, and a process that holds all its files does not."""
    if os.fork() == 0:
        hangs_on()
    os.abort()


#: what one candidate does to the pipes of its worker
MEDDLINGS: Mapping[str, Callable[[], object]] = {
    "no standard files": lambda: closes_files(0, 3),
    "no files": lambda: closes_files(0, 256),
    "no files, and hangs": lambda: (closes_files(3, 256), hangs_on()),
    "another standard input": lambda: os.dup2(os.open(os.devnull, os.O_RDONLY), 0),
    "reads": lambda: os.read(0, 100),
    "writes": lambda: writes_everywhere(b"garbage\n"),
    "writes half a line": lambda: writes_everywhere(b'{"value": '),
    "answers": lambda: writes_everywhere(b'{"value": {"seconds": 1e-9, "checked": true, "notes": []}}\n'),
    "leaves its holder": leaves_holder,
    "exits later": lambda: threading.Timer(0.01, os._exit, [0]).start(),
}


@tunesmith.autotune(configs=[{"a": i} for i in range(1, 5)], key=["n"], clock=scripted(), make_inputs=n_inputs)
def meddles(n: int, *, a: int) -> None:
    """One of its candidates does something to its process, not to its results."""
    if a == 1:
        list(MEDDLINGS.values())[n]()


@tunesmith.autotune(
    space=tunesmith.Space(a=[1, 2], b=[1, 2]), key=["n"], clock=scripted(), make_inputs=n_inputs
)  # fmt: skip
def two_knobs(n: int, *, a: int, b: int) -> None:
    assert is_guarded()


class OnGpu(CallableKernel):
    """In Python, and said to run on a GPU."""

    def device(self, args: Sequence[Any]) -> Device:
        return Device("cuda", "a GPU of paper", "sm_90", 4)


def fails_once(n: int, *, a: int) -> None:
    if a == 1:
        raise RuntimeError("CUDA error: by whatever name")


def without_inputs(n: int, *, a: int) -> None:
    assert not is_guarded()


_ON_GPU: Mapping[str, Any] = {"configs": [{"a": i} for i in range(1, 5)], "key": ["n"]}
poisons = tunesmith.autotune(**_ON_GPU, clock=scripted(), make_inputs=n_inputs)(
    OnGpu(fails_once, frozenset({"a"}), name="poisons")
)
unprotected = tunesmith.autotune(**_ON_GPU, clock=scripted())(
    OnGpu(without_inputs, frozenset({"a"}), name="unprotected")
)
accepted = tunesmith.autotune(**_ON_GPU, clock=scripted(), isolate=False)(
    OnGpu(without_inputs, frozenset({"a"}), name="accepted")
)


def lost_inputs(problem: Problem) -> dict[str, Any]:
    if MARK in os.environ:
        raise RuntimeError("no memory for them there")
    return n_inputs(problem)


lost = tunesmith.autotune(**_ON_GPU, clock=scripted(), make_inputs=lost_inputs)(
    OnGpu(without_inputs, frozenset({"a"}), name="lost")
)


@tunesmith.autotune(configs=[Config(a=1), Config(a=2)], key=["n"], clock=scripted(), make_inputs=n_inputs, isolate=True)
def hangs(n: int, *, a: int) -> None:
    """All its candidates do."""
    while True:
        pass


@tunesmith.autotune(configs=[{"a": 1}, {"a": 2}, {"a": 3}], key=["n"], clock=scripted(), make_inputs=n_inputs)
def corrupts(n: int, *, a: int) -> None:
    """What one candidate does to its process another dies of."""
    if a == 2:
        os.environ["CORRUPTED"] = "1"
    if a == 1 and "CORRUPTED" in os.environ:
        os.abort()
