"""`CudaKernel`: a kernel in CUDA C++ as the tuner sees it; knobs are macros, sizes of a launch, and compiler flags."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tunesmith import fingerprint
from tunesmith.backends.artifacts import digest
from tunesmith.backends.c_source import macro_knobs, macro_value, normalised, quoted_includes
from tunesmith.backends.cuda import driver
from tunesmith.backends.cuda.arguments import index_of
from tunesmith.backends.cuda.compile import ENVIRONMENT, Artifact, Program, cubin_beside, nvrtc_version
from tunesmith.backends.cuda.launch import launcher
from tunesmith.backends.cuda.sizes import DEVICE, Extent, Resolved, names_read, resolved, three
from tunesmith.backends.cuda.source import Prototype
from tunesmith.core.config import Config, KnobValue
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.dispatch.arguments import dtype_name, is_array
from tunesmith.errors import BadInput, OutOfResources, SpaceError, unknown
from tunesmith.kernel import Built, Specialised, Task

#: knobs that are the compiler's flags, with what they are when a Config does not name them
FLAG_DEFAULTS: Mapping[str, KnobValue] = {"maxrregcount": None, "fast_math": False}
#: the most of a thread and of a block, on every chip that NVRTC compiles for
MOST_REGISTERS, MOST_THREADS = 255, 1024


@dataclass(frozen=True)
class CudaExecutable:
    """A kernel of a cubin, loaded on a device.

    Attributes:
        artifact: what the compiler said of it.
        path: where that lies, the cubin beside it.
    """

    config: Config
    resources: Resources
    launch: Callable[..., None]
    artifact: Artifact
    path: Path


@dataclass(frozen=True, eq=False)
class CudaKernel:
    """A kernel in CUDA C++; see `tunesmith.cuda.kernel`.

    Attributes:
        text: the source. path: of the file it came from.
        headers: those it includes in quotes, with their text.
        index: of the GPU a call's arrays are on; `None` for the kernel of no call.
    """

    name: str
    text: str
    path: Path | None
    prototype: Prototype
    grid: Extent
    block: Extent
    shared: Extent
    cluster: Extent | None
    dependent: Extent | None
    headers: Mapping[Path, str]
    options: tuple[str, ...]
    index: int | None = None
    backend: str = "cuda"
    per_problem: bool = False
    _of_calls: dict[object, CudaKernel] = field(default_factory=dict[object, "CudaKernel"], repr=False)

    # --- what it is ---

    @cached_property
    def signature(self) -> inspect.Signature:
        return self.prototype.signature

    @cached_property
    def specialised(self) -> Specialised:
        # No binary depends on an alignment. But who looks at it has each array's address, and hands it on.
        return Specialised(alignment=self.prototype.arrays, where=_where)

    @cached_property
    def macros(self) -> dict[str, str | None]:
        """Macros that a knob may set, with the source's own defaults."""
        return macro_knobs(*self.headers.values(), self.text)

    @cached_property
    def host_knobs(self) -> frozenset[str]:
        """Knobs of the launch alone: sizes read them, and the source does not."""
        known = {*self.signature.parameters, *self.macros, *FLAG_DEFAULTS, DEVICE}
        return frozenset(name for extent in self._extents.values() for name in names_read(extent)) - known

    @cached_property
    def knobs(self) -> frozenset[str]:
        return frozenset({*self.macros, *FLAG_DEFAULTS, *self.host_knobs})

    @property
    def _extents(self) -> dict[str, Extent]:
        found = {"grid": self.grid, "block": self.block, "shared": self.shared}
        return {**found, **self._of_knobs}

    @property
    def _of_knobs(self) -> dict[str, Extent]:
        """Those of its extents that are given and read no argument."""
        given = {"cluster": self.cluster, "dependent": self.dependent}
        return {what: extent for what, extent in given.items() if extent is not None}

    def check_declaration(self) -> None:
        """Refuse sizes that can't be known when they are needed.

        Raises:
            BadInput: naming the one.
        """
        for what, extent in self._of_knobs.items():
            for name in set(names_read(extent)) & set(self.signature.parameters):
                raise BadInput(f"{self.name}: {what}= reads {name!r}, an argument; good ones: knobs and {DEVICE!r}")
        for name in self.signature.parameters:
            if name in self.macros:
                raise BadInput(f"{self.name}: {name!r} is an argument and a macro that the source gives a default")

    @cached_property
    def _fingerprint(self) -> str:
        sizes = {what: _spelled(extent) for what, extent in self._extents.items()}
        headers = [[path.name, normalised(text)] for path, text in self.headers.items()]
        said = str(self.prototype)
        return digest("tunesmith-cuda-kernel/1", normalised(self.text), headers, said, sizes, list(self.options))

    def fingerprint(self) -> str:
        return self._fingerprint

    def environment(self) -> Mapping[str, str]:
        from os import environ

        return {name: environ[name] for name in ENVIRONMENT if environ.get(name)}

    def versions(self) -> Mapping[str, str]:
        return {"nvrtc": nvrtc_version()}

    def device(self, args: Sequence[Any]) -> Device:
        return driver.device_at(self._index_of(args))

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {p.name: p.dtypes for p in self.prototype.parameters if p.is_array}

    # --- for a call ---

    def for_call(self, args: Sequence[Any]) -> CudaKernel:
        """This kernel on the GPU of a call's arrays, with the types that they decide."""
        return self._bound(self._index_of(args), dict(zip(self.signature.parameters, args, strict=True)))

    def for_target(self, make_inputs: Callable[[], Mapping[str, Any]], device: Device) -> CudaKernel:
        """This kernel as it is compiled for a GPU that need not be here.

        Args:
            make_inputs: makes a call's arguments by name; asked only where their dtypes decide a type.
        """
        return self._bound(None, make_inputs() if self.prototype.deduced else {})

    def _bound(self, index: int | None, arguments: Mapping[str, Any]) -> CudaKernel:
        prototype = self.prototype
        if prototype.deduced:
            dtypes = {name: dtype_name(value) if is_array(value) else None for name, value in arguments.items()}
            prototype = prototype.of_dtypes(dtypes)
        key = index, prototype.expression
        found = self._of_calls.get(key)
        return found or self._of_calls.setdefault(key, replace(self, prototype=prototype, index=index))

    def _index_of(self, args: Sequence[Any]) -> int:
        """The GPU that a call's arrays are on; the current one where there is none.

        Raises:
            BadInput: when they are on several, or on none.
        """
        named = zip(self.prototype.parameters, args, strict=False)
        found = {p.name: index_of(p.name, array) for p, array in named if p.is_array and array is not None}
        if len(set(found.values())) > 1:
            said = ", ".join(f"{name} on GPU {index}" for name, index in found.items())
            raise BadInput(f"{self.name}: arguments on several devices: {said}")
        return next(iter(found.values())) if found else driver.current_index()

    # --- a Config of it ---

    def check(self, config: Config) -> None:
        """Refuse a Config that can't be compiled, before a compiler sees it.

        Raises:
            SpaceError: naming the knob, its bad value and the good ones.
        """
        for name, value in config.items():
            if name in FLAG_DEFAULTS:
                _check_flag(name, value)
            elif name in self.macros:
                macro_value(name, value)
            elif name not in self.host_knobs:
                raise SpaceError(
                    f"{self.name}: {unknown('knob', name, sorted(self.knobs))}; "
                    f"a macro is one where the source says `#ifndef {name}`, `#define {name} default`, `#endif`"
                )
        for name in sorted(self.host_knobs - set(config)):
            where = next(what for what, extent in self._extents.items() if name in names_read(extent))
            raise SpaceError(f"{self.name}: {name!r}, which {where}= reads, is neither an argument, a macro nor a knob")
        for name, usual in self.macros.items():
            if usual is None and name not in config:
                raise SpaceError(f"{self.name}: knob {name!r} is missing, and the source has no default for it")

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Task:
        """What compiles a Config. Configs that differ in the launch alone share a binary.

        Raises:
            SpaceError: for a Config that can't be compiled.
            OutOfResources: for one that no block of the device can be launched with.
            MissingEngine: when there is no NVRTC.
        """
        program = self._program(config, device)
        self._check_limits(config, device, None)
        return program.task()

    def _program(self, config: Config, device: Device) -> Program:
        self.check(config)
        if self.prototype.deduced:
            names = ", ".join(self.prototype.deduced)
            raise BadInput(
                f"{self.name} is compiled for the dtypes of a call's arrays ({names}): use kernel.for_call(args)"
            )
        defines = [f"--define-macro={name}={macro_value(name, config[name])}" for name in config if name in self.macros]
        limit, fast = config.get("maxrregcount"), config.get("fast_math")
        flags = [*([f"--maxrregcount={limit}"] if limit else []), *(["--use_fast_math"] if fast else [])]
        file = str(self.path) if self.path is not None else f"{self.name}.cu"
        return Program(
            self.prototype.name, file, self.text, self._by_name, [*defines, *flags, *self.options], device.arch,
            self.prototype.expression,
        )  # fmt: skip

    @cached_property
    def _by_name(self) -> dict[str, str]:
        """Headers as the `#include`s of the source and of each other call them."""
        names = [name for text in (self.text, *self.headers.values()) for name in quoted_includes(text)]
        found: dict[str, str] = {}
        for name in names:
            parts = Path(name).parts
            found[name] = next(text for path, text in self.headers.items() if path.parts[-len(parts) :] == parts)
        return found

    def resources_of(self, config: Config, built: Built, device: Device) -> Resources:
        """What a compiled Config takes of a device, which need not be here.

        Raises:
            OutOfResources: when that is more than a block can have.
        """
        return self._check_limits(config, device, Artifact.read(built.path))

    def load(self, config: Config, problem: Problem, built: Built | None) -> CudaExecutable:
        """Make a Config ready to launch on the call's device; compiles it here where `built` is `None`.

        Raises:
            CompileFailed: with all the compiler said.
            OutOfResources: when the device does not have what it takes.
            DeviceError: when the driver does not take the binary.
            MissingEngine: without a driver, or a GPU.
        """
        index = driver.current_index() if self.index is None else self.index
        device = driver.device_at(index)
        program = self._program(config, device)
        self._check_limits(config, device, None)
        path = (built or program.compile_here()).path
        try:
            artifact, cubin = Artifact.read(path), cubin_beside(path).read_bytes()
        except (OSError, ValueError):  # cut short by a crash of the machine, or removed: make it anew, once
            path.unlink(missing_ok=True)
            path = program.compile_here().path
            artifact, cubin = Artifact.read(path), cubin_beside(path).read_bytes()
        resources = self._check_limits(config, device, artifact)
        grid, block, shared = (self._size(what, config, device) for what in ("grid", "block", "shared"))
        most = shared.value() if shared.constant else device.shared_bytes_per_block - artifact.shared_bytes
        cluster = None if self.cluster is None else three(self._size("cluster", config, device).value(), "cluster")
        function = driver.load_function(index, cubin, artifact.entry, max(0, most), cluster)
        dependent = self.dependent is not None and bool(self._size("dependent", config, device).value())
        launch = launcher(self.prototype, function, index, grid, block, shared, self.name, dependent)
        return CudaExecutable(config, resources, launch, artifact, path)

    def _size(self, what: str, config: Config, device: Device) -> Resolved:
        """A size of the launch, with knobs, the source's defaults that are plain integers, and the device filled in."""
        usual = {
            name: int(text.strip("() "), 0)
            for name, text in self.macros.items()
            if text and re.fullmatch(r"\(*\s*\d+\s*\)*", text)
        }
        fixed = {DEVICE: device, **FLAG_DEFAULTS, **usual, **config}
        known = {name: value for name, value in fixed.items() if name not in self.signature.parameters}
        return resolved(self._extents[what], known, f"{self.prototype.prefix}{what}_of_")

    def _check_limits(self, config: Config, device: Device, artifact: Artifact | None) -> Resources:
        """What a Config takes, as far as it is known without a call; before it is compiled, of its launch alone."""
        block, shared = self._size("block", config, device), self._size("shared", config, device)
        threads = _product(three(block.value(), "block")) if block.constant else None
        dynamic = int(shared.value()) if shared.constant else 0
        static = 0 if artifact is None else artifact.shared_bytes
        if threads is not None and threads > MOST_THREADS:
            raise OutOfResources("threads in a block", threads, MOST_THREADS, "threads")
        if device.shared_bytes_per_block and static + dynamic > device.shared_bytes_per_block:
            raise OutOfResources("shared memory", static + dynamic, device.shared_bytes_per_block, "bytes")
        if artifact is None:
            return Resources(threads=threads, shared_bytes=dynamic)
        registers, limit = artifact.registers, device.registers_per_unit
        if registers and threads and limit and registers * threads > limit:
            raise OutOfResources("registers of a block", registers * threads, limit, "registers")
        spills = None if artifact.spilled_bytes is None else artifact.spilled_bytes // 4
        return Resources(registers, spills, static + dynamic, threads, artifact.code_bytes)


def _where() -> int:
    """The current device, for the key of a call without an array."""
    return driver.current_index()


def _product(sizes: Sequence[int]) -> int:
    x, y, z = sizes
    return x * y * z


def _spelled(extent: Any) -> Any:
    """An extent as JSON types, functions by their content."""
    if isinstance(extent, (tuple, list)):
        return [_spelled(part) for part in extent]  # pyright: ignore[reportUnknownVariableType]
    return fingerprint.of_function(extent) if callable(extent) else json.loads(json.dumps(extent))


def _check_flag(name: str, value: KnobValue) -> None:
    if name == "fast_math":
        good, fine = "True, False", isinstance(value, bool)
    else:
        good = f"None, integers from 16 to {MOST_REGISTERS}"
        fine = value is None or (type(value) is int and 16 <= value <= MOST_REGISTERS)
    if not fine:
        raise SpaceError(f"knob {name!r} cannot be {value!r}; good values: {good}")
