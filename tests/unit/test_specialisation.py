"""Two keys, never mixed: alignment and divisibility pick the binary of a Choice, and never search again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Parameter, Signature
from typing import Any

import numpy as np
import pytest
from tests.fakes import ScriptedClock

from tunesmith import Config, Device, Problem, Resources, Space, TunedKernel, autotune
from tunesmith.backends.cpu import cpu
from tunesmith.kernel import Built, Specialised


@dataclass(frozen=True)
class Loaded:
    config: Config
    launch: Callable[..., Any]
    resources: Resources = field(default_factory=Resources)


@dataclass(frozen=True)
class Assembler:
    """A language that compiles for the facts of a call: a binary says which facts it was made for."""

    made: list[tuple[int, tuple[str, ...]]] = field(compare=False, repr=False)
    facts: tuple[str, ...] = ()
    name: str = "assembled"
    backend: str = "assembler"
    per_problem: bool = False
    knobs: frozenset[str] | None = frozenset({"c"})
    specialised: Specialised = field(default_factory=lambda: Specialised(alignment=("x",), divisibility=("n",)))
    signature: Signature = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("x", "n", "m")])  # noqa: RUF009

    def fingerprint(self) -> str:
        return "v1"

    def versions(self) -> Mapping[str, str]:
        return {}

    def environment(self) -> Mapping[str, str]:
        return {"ASSEMBLER_FLAGS": "-O3"}

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {}

    def device(self, args: Sequence[Any]) -> Device:
        return cpu()

    def for_call(self, args: Sequence[Any]) -> Assembler:
        x, n, _ = args
        aligned = x.__array_interface__["data"][0] % 16 == 0
        facts = ("x aligned" if aligned else "x anywhere", "n is 1" if n == 1 else f"n % 16: {n % 16 == 0}")
        return replace(self, facts=facts)

    def compile_job(self, config: Config, problem: Problem, device: Device) -> None:
        return None

    def load(self, config: Config, problem: Problem, built: Built | None) -> Loaded:
        self.made.append((config["c"], self.facts))  # type: ignore[arg-type]
        return Loaded(config, lambda x, n, m: (config["c"], self.facts))


def assembled() -> tuple[TunedKernel, ScriptedClock, list[tuple[int, tuple[str, ...]]]]:
    made: list[tuple[int, tuple[str, ...]]] = []
    clock = ScriptedClock(lambda config: 3.0 - config["c"])  # type: ignore[operator]
    kernel = autotune(space=Space(c=[1, 2]), key=["m"], clock=clock)(Assembler(made))
    return kernel, clock, made


def at_offset(bytes_: int) -> Any:
    buffer = np.zeros(128, np.uint8)
    start = -buffer.ctypes.data % 16 + bytes_
    return buffer[start : start + 64].view(np.float32)


@pytest.mark.filterwarnings("ignore:.*differ in arguments that are not in key=")
def test_a_misaligned_view_and_another_divisibility_recompile_and_never_search() -> None:
    kernel, clock, made = assembled()
    assert kernel(at_offset(0), 32, 5) == (2, ("x aligned", "n % 16: True"))
    asked, searched = len(clock.asked), len(made)

    assert kernel(at_offset(4), 32, 5) == (2, ("x anywhere", "n % 16: True"))
    assert kernel(at_offset(0), 33, 5) == (2, ("x aligned", "n % 16: False"))
    assert kernel(at_offset(0), 1, 5) == (2, ("x aligned", "n is 1"))
    assert len(clock.asked) == asked
    assert made[searched:] == [
        (2, ("x anywhere", "n % 16: True")),
        (2, ("x aligned", "n % 16: False")),
        (2, ("x aligned", "n is 1")),
    ]


@pytest.mark.filterwarnings("ignore:.*differ in arguments that are not in key=")
def test_binaries_are_reused_whatever_the_key_and_the_key_is_searched_whatever_the_binary() -> None:
    kernel, clock, made = assembled()
    for n in (32, 48, 64, 33, 35, 1):
        kernel(at_offset(0), n, 5)
    binaries = len(made)
    for n in (80, 37, 1):
        assert kernel(at_offset(0), n, 5)[0] == 2
    assert len(made) == binaries
    asked = len(clock.asked)
    kernel(at_offset(0), 32, 6)
    assert len(clock.asked) == 2 * asked


def test_the_environment_of_a_compiler_is_in_the_key() -> None:
    kernel, _, _ = assembled()

    assert kernel.explanation(at_offset(0), 32, 5)[0].environment == (("ASSEMBLER_FLAGS", "-O3"),)
