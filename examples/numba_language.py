"""Numba as a kernel language: functions on the CPU, whose knobs are global constants and Numba's own flags."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import numba

from tunesmith import Config, Device, Problem, Resources, fingerprint
from tunesmith.backends.cpu import device_of
from tunesmith.errors import SpaceError, unknown
from tunesmith.kernel import Built, Job, Specialised

FLAGS = ("boundscheck", "fastmath")


@dataclass(frozen=True)
class Executable:
    config: Config
    launch: Callable[..., Any]
    resources: Resources


@dataclass(frozen=True)
class NumbaKernel:
    """`function` with the named globals as knobs. `types` are those of a call's arguments, once there is a call."""

    function: FunctionType
    constants: tuple[str, ...] = ()
    types: tuple[Any, ...] = ()
    backend = "numba"
    per_problem = False
    specialised = Specialised()  # nothing beside the arguments' types decides the binary

    name = property(lambda self: self.function.__name__)
    signature = property(lambda self: inspect.signature(self.function))
    knobs = property(lambda self: frozenset({*self.constants, *FLAGS}))

    def fingerprint(self) -> str:
        return fingerprint.of_function(self.function)

    def environment(self) -> Mapping[str, str]:
        return {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")}

    def versions(self) -> Mapping[str, str]:
        return {"numba": numba.__version__}

    def device(self, args: Sequence[Any]) -> Device:
        return device_of(dict(zip(self.signature.parameters, args, strict=False)))

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {}  # it takes any

    def for_call(self, args: Sequence[Any]) -> NumbaKernel:
        return replace(self, types=tuple(map(numba.typeof, args)))

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Job | None:
        for name, value in config.items():
            if name not in self.knobs:
                raise SpaceError(f"{self.name}: {unknown('knob', name, sorted(self.knobs))}")
            if name in FLAGS and not isinstance(value, bool):
                raise SpaceError(f"knob {name!r} cannot be {value!r}; good values: True, False")
        return None  # Numba compiles in the process that launches: `load` does

    def load(self, config: Config, problem: Problem, built: Built | None) -> Executable:
        self.compile_job(config, problem, device_of({}))
        constants = {name: config[name] for name in self.constants if name in config}
        mine = FunctionType(self.function.__code__, {**self.function.__globals__, **constants}, self.name)
        compiled = numba.njit(nogil=True, **{name: config[name] for name in FLAGS if name in config})(mine)
        compiled.compile(self.types)
        return Executable(config, compiled, Resources(threads=1))
