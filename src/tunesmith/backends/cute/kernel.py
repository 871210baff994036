"""`CuteKernel`: a host function of CuTe DSL, or what makes one, as the tuner sees it."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from tunesmith import fingerprint
from tunesmith.backends.artifacts import digest
from tunesmith.backends.cuda import driver
from tunesmith.backends.cuda.arguments import index_of
from tunesmith.backends.cute.arguments import Given, Role, given_to, roles_of
from tunesmith.backends.cute.compile import Artifact, Program, environment, object_beside, versions
from tunesmith.backends.cute.launch import launcher, load_module
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.dispatch.arguments import is_array
from tunesmith.errors import BadInput, OutOfResources, SpaceError, unknown
from tunesmith.kernel import Built, Specialised, Task
from tunesmith.places import place_of

#: the most of a block, on every chip
MOST_THREADS = 1024


@dataclass(frozen=True)
class CuteExecutable:
    """One compiled Config, loaded."""

    config: Config
    resources: Resources
    launch: Callable[..., Any]
    artifact: Artifact


class CuteKernel:
    """A kernel in CuTe DSL; see `tunesmith.cute.kernel` and `tunesmith.cute.built`.

    Attributes:
        function: the host function, or what makes one of knobs (`is_built`).
        roles: what each of its parameters is for; of one that is built, each of the call's arguments.
    """

    backend = "cute"
    per_problem = False

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        signature: inspect.Signature,
        roles: Mapping[str, Role],
        knobs: Iterable[str] | None,
        is_built: bool,
        divisible: Mapping[str, int],
        options: Sequence[str],
        name: str,
        version: str | None,
        depends: Sequence[str],
    ) -> None:
        self.function, self.signature, self.roles, self.is_built = function, signature, dict(roles), is_built
        self.knobs = None if knobs is None else frozenset(knobs)
        self.name, self._divisible, self._options = name, dict(divisible), tuple(options)
        self._version, self._depends = version, tuple(depends)
        values = tuple(name for name, role in self.roles.items() if role == "value")
        rest = tuple(name for name in signature.parameters if name not in values)
        self.specialised = Specialised(alignment=rest, width=rest, values=values, where=_where, layout=rest)
        self._given: dict[str, Given] | None = None
        self._index: int | None = None
        for array in self._divisible:
            if array not in signature.parameters:
                raise BadInput(f"{name}: divisible: {unknown('argument', array, signature.parameters)}")

    # --- what it is ---

    @cached_property
    def source(self) -> str:
        """The function's fingerprint."""
        return fingerprint.of_function(self.function, version=self._version)

    @cached_property
    def _fingerprint(self) -> str:
        return digest("tunesmith-cute-kernel/1", self.source, self.is_built, self._divisible, list(self._options))

    def fingerprint(self) -> str:
        return self._fingerprint

    def environment(self) -> Mapping[str, str]:
        return environment()

    def versions(self) -> Mapping[str, str]:
        return {**fingerprint.versions(self._depends), **versions()}

    def device(self, args: Sequence[Any]) -> Device:
        return driver.device_at(self._index_of(args))

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {}

    def defaults(self) -> Config | None:
        """The knobs' defaults in the host function's signature; `None` where one has none."""
        parameters = inspect.signature(self.function).parameters
        found = {name: parameters[name].default for name in sorted(self.knobs or ()) if name in parameters}
        return None if not found or inspect.Parameter.empty in found.values() else Config(**found)

    # --- for a call ---

    def for_call(self, args: Sequence[Any]) -> CuteKernel:
        return self._bound(args, self._index_of(args))

    def for_target(self, make_inputs: Callable[[], Mapping[str, Any]], device: Device) -> CuteKernel:
        """This kernel for arguments on a device that need not be here.

        Raises:
            BadInput: for arguments that are no call.
        """
        try:
            bound = self.signature.bind(**make_inputs())
        except TypeError as error:
            raise BadInput(f"{self.name}: make_inputs does not make what a call takes: {error}") from None
        bound.apply_defaults()
        return self._bound(tuple(bound.arguments.values()), None)

    def _bound(self, args: Sequence[Any], index: int | None) -> CuteKernel:
        bound = copy.copy(self)
        bound._given = given_to(self.name, self.roles, list(self.signature.parameters), args, self._divisible)
        bound._index = index
        return bound

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CuteKernel) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        given = None if self._given is None else tuple(self._given.items())
        own = self.function, self.is_built, self.knobs, tuple(self._divisible.items()), self._options
        return *own, given, self._index

    def _index_of(self, args: Sequence[Any]) -> int:
        """The GPU that a call's arrays are on; the current one where there is none.

        Raises:
            BadInput: when they are on several, or on none.
        """
        named = zip(self.signature.parameters, args, strict=False)
        found = {name: index_of(name, array) for name, array in named if is_array(array)}
        if len(set(found.values())) > 1:
            said = ", ".join(f"{name} on GPU {index}" for name, index in found.items())
            raise BadInput(f"{self.name}: arguments on several devices: {said}")
        return next(iter(found.values())) if found else driver.current_index()

    # --- a Config of it ---

    def check(self, config: Config) -> None:
        """Refuse a Config that can't be compiled, before a compiler sees it.

        Raises:
            SpaceError: naming the knob and the good ones, or the one that is missing.
        """
        parameters = inspect.signature(self.function).parameters
        for knob in config:
            if self.knobs is not None and knob not in self.knobs:
                raise SpaceError(f"{self.name}: {unknown('knob', knob, sorted(self.knobs))}")
        for knob in sorted(self.knobs or ()):
            if knob not in config and knob in parameters and parameters[knob].default is inspect.Parameter.empty:
                raise SpaceError(f"{self.name}: knob {knob!r} is missing from {config!r}, and has no default")

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Task | None:
        """What compiles a Config; `None` where no other process finds the function: then `load` does it.

        Raises:
            SpaceError: for a Config that can't be compiled.
            MissingEngine: without CuTe DSL.
        """
        return self._program(config, device).task()

    def _program(self, config: Config, device: Device) -> Program:
        self.check(config)
        if self._given is None:
            raise BadInput(f"{self.name} is compiled for the types of a call's arguments: use kernel.for_call(args)")
        given = {name: asdict(one) for name, one in self._given.items()}
        source = "" if self._version is not None else self.source
        return Program(
            self.name, self.function, self.is_built, self._where, source, self._fingerprint, given, dict(config),
            self._options, device.arch,
        )  # fmt: skip

    @cached_property
    def _where(self) -> str:
        """`place:name`, where another process finds the function; empty where it can't."""
        inner = inspect.unwrap(self.function)
        name = str(getattr(inner, "__qualname__", ""))
        module = sys.modules.get(str(getattr(inner, "__module__", "")))
        place = "" if module is None or not name or "<" in name else place_of(module)[0]
        return f"{place}:{name}" if place else ""

    def resources_of(self, config: Config, built: Built, device: Device) -> Resources:
        """What a compiled Config takes of a device, which need not be here.

        Raises:
            OutOfResources: when that is more than a block can have.
        """
        return _within(device, Artifact.read(built.path))

    def load(self, config: Config, problem: Problem, built: Built | None) -> CuteExecutable:
        """Make a Config ready to launch; compiles it here where `built` is `None`.

        Raises:
            CompileFailed: with all that CuTe DSL said.
            OutOfResources: when the device does not have what it takes.
            MissingEngine: without CuTe DSL, or a GPU.
        """
        device = driver.device_at(driver.current_index() if self._index is None else self._index)
        program = self._program(config, device)
        path = (built or program.compile_here()).path
        try:
            artifact = Artifact.read(path)
            object_beside(path).stat()
        except (OSError, ValueError):  # cut short by a crash of the machine, or removed: make it anew, once
            path.unlink(missing_ok=True)
            path = program.compile_here().path
            artifact = Artifact.read(path)
        resources = _within(device, artifact)
        launch = launcher(load_module(object_beside(path)), list(self.signature.parameters), artifact.takes)
        return CuteExecutable(config, resources, launch, artifact)


def _where() -> int:
    """The current device, for the key of a call without an array."""
    return driver.current_index()


def _within(device: Device, artifact: Artifact) -> Resources:
    """What an artifact takes.

    Raises:
        OutOfResources: when that is more than a block of the device can have.
    """
    threads, shared, registers = artifact.threads, artifact.shared_bytes, artifact.registers
    if threads and threads > MOST_THREADS:
        raise OutOfResources("threads in a block", threads, MOST_THREADS, "threads")
    if shared and device.shared_bytes_per_block and shared > device.shared_bytes_per_block:
        raise OutOfResources("shared memory", shared, device.shared_bytes_per_block, "bytes")
    if registers and threads and device.registers_per_unit and registers * threads > device.registers_per_unit:
        raise OutOfResources("registers of a block", registers * threads, device.registers_per_unit, "registers")
    return Resources(registers, artifact.stack_words, shared, threads, artifact.code_bytes)


def host_kernel(
    function: Callable[..., Any], knobs: Iterable[str] | None, *, divisible: Mapping[str, int], options: Sequence[str],
    name: str | None, version: str | None, depends: Sequence[str],
) -> CuteKernel:  # fmt: skip
    """See `tunesmith.cute.kernel`."""
    own = name or function.__name__
    if not is_host_function(function):
        raise BadInput(f"{own} is no host function of CuTe DSL: put @cute.jit before it, or see tunesmith.cute.built")
    roles = roles_of(own, function, knobs)
    kept = [
        p.replace(kind=p.POSITIONAL_OR_KEYWORD, annotation=p.empty)
        for p in inspect.signature(function).parameters.values()
        if roles[p.name] in ("argument", "value")
    ]
    kept.sort(key=lambda p: p.default is not p.empty)
    return CuteKernel(
        function, signature=inspect.Signature(kept), roles=roles, is_built=False, divisible=divisible, options=options,
        knobs=[one for one, role in roles.items() if role == "knob"], name=own, version=version, depends=depends,
    )  # fmt: skip


def is_host_function(value: object) -> bool:
    """Whether something is what `@cute.jit` made; imports nothing."""
    kind = getattr(value, "_dsl_cls", None)
    return inspect.isfunction(value) and kind is not None and str(kind.__module__).partition(".")[0] == "cutlass"
