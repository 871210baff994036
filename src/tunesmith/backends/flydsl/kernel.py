"""`FlydslKernel`: a kernel in FlyDSL as the tuner sees it."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from tunesmith import fingerprint
from tunesmith.backends.artifacts import digest, place
from tunesmith.backends.cpu import device_of, gpu_at, is_array
from tunesmith.backends.flydsl import toolkit
from tunesmith.backends.flydsl.compile import Artifact, compiled, looked_at, place_of, write_artifact
from tunesmith.backends.flydsl.reading import HINTS, Parameters, Told, check_config, of_build, of_jit, told_by
from tunesmith.core.config import Config
from tunesmith.core.device import Device, known_devices
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, MissingEngine, OutOfResources, TunesmithWarning
from tunesmith.kernel import Built, Specialised, Task

#: of a block, on every chip of AMD's
MOST_THREADS = 1024
_AHEAD = "to compile for one that is not here: tunesmith compile FILE.py:KERNEL --target gfx942"


@dataclass(frozen=True)
class FlydslExecutable:
    """A compiled kernel, loaded when it is launched first.

    Attributes:
        artifact: what it takes, more than `resources` tells.
    """

    config: Config
    resources: Resources
    launch: Callable[..., None]
    artifact: Artifact


@dataclass(frozen=True, eq=False)
class FlydslKernel:
    """A kernel in FlyDSL; see `tunesmith.flydsl.kernel`.

    Attributes:
        source: what `@flyc.jit` made, or the function that builds such a launcher.
        told: what is known of a call's arguments; `None` for the kernel of no call.
        index: of the GPU that these are on; `None` where they are on none.
    """

    name: str
    source: Any
    is_build: bool
    parameters: Parameters
    version: str | None = None
    told: tuple[Told, ...] | None = None
    index: int | None = None
    backend: str = "flydsl"
    per_problem: bool = False
    _of_calls: dict[object, FlydslKernel] = field(default_factory=dict[object, "FlydslKernel"], repr=False)

    @classmethod
    def of(
        cls, source: Any, name: str | None, knobs: Collection[str] | None, launch: Sequence[str], version: str | None
    ) -> FlydslKernel:
        """A kernel of what `@flyc.jit` made, or, where `launch` names its launcher's arguments, of what builds one.

        Raises:
            BadInput: for anything else.
            MissingEngine: when FlyDSL is not installed.
        """
        toolkit.compiler()
        from flydsl.compiler.jit_function import JitFunction
        from flydsl.expr import typing

        if isinstance(source, JitFunction):
            named = name or str(source.func.__name__)
            if launch:
                raise BadInput(f"{named} is a launcher itself: launch= is for a function that builds one")
            parameters = of_jit(source.func, knobs, named, typing)
            if parameters.stream is None:
                warnings.warn(
                    f"{named} has no parameter of type fx.Stream: it is launched in the default stream, and not in "
                    "torch's current one",
                    TunesmithWarning, stacklevel=3,
                )  # fmt: skip
            return cls(named, source, False, parameters, version)
        named = name or str(getattr(source, "__name__", source))
        if not callable(source) or not launch or knobs is None:
            raise BadInput(
                f"{named} of type {type(source).__name__} is no kernel of FlyDSL's; good ones: what @flyc.jit made, or "
                "a function that builds it, with knobs=[…] and launch=[names of the launcher's arguments]"
            )
        return cls(named, source, True, of_build(source, launch, knobs, named), version)

    # --- what it is ---

    @cached_property
    def _signature(self) -> inspect.Signature:
        return self.parameters.signature

    @property
    def signature(self) -> inspect.Signature:
        return self._signature

    @property
    def knobs(self) -> frozenset[str]:
        return self.parameters.knobs | frozenset(HINTS)

    @property
    def specialised(self) -> Specialised:
        integers = tuple(p.name for p in self.parameters.runtime if "Tensor" not in str(p.annotation))
        return Specialised(width=integers, values=tuple(p.name for p in self.parameters.static))

    @cached_property
    def _fingerprint(self) -> str:
        content = fingerprint.of_function(self.source, version=self.version)
        return digest("tunesmith-flydsl-kernel/1", content, list(self.signature.parameters), sorted(self.knobs))

    def fingerprint(self) -> str:
        return self._fingerprint

    def environment(self) -> Mapping[str, str]:
        return toolkit.environment()

    def versions(self) -> Mapping[str, str]:
        return toolkit.versions()

    def device(self, args: Sequence[Any]) -> Device:
        named = dict(zip(self.signature.parameters, args, strict=False))
        found = device_of(named)
        if found.kind != "hip":
            arrays = ", ".join(name for name, value in named.items() if is_array(value))
            raise MissingEngine(
                f"{self.name} runs on AMD's GPUs, and {arrays or 'no argument'} is on one ({found.identity}); {_AHEAD}"
            )
        return found

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {}

    # --- for a call ---

    def for_call(self, args: Sequence[Any]) -> FlydslKernel:
        """This kernel as it is compiled for such arguments."""
        told, index = told_by(self.parameters, args, self.name), _index_of(args)
        found = self._of_calls.get((told, index))
        return found or self._of_calls.setdefault((told, index), replace(self, told=told, index=index))

    def for_target(self, make_inputs: Callable[[], Mapping[str, Any]], device: Device) -> FlydslKernel:
        """This kernel as it is compiled for a GPU that need not be here.

        Args:
            make_inputs: makes a call's arguments by name.

        Raises:
            BadInput: for arguments that are no call, and for a GPU that is not AMD's.
        """
        if device.kind != "hip":
            good = sorted({known.arch for known in known_devices() if known.kind == "hip"})
            raise BadInput(
                f"{self.name} is compiled for AMD's GPUs, not for {device.arch}; good targets: {', '.join(good)}"
            )
        try:
            bound = self.signature.bind(**make_inputs())
        except TypeError as error:
            raise BadInput(f"{self.name}: make_inputs: {error}") from None
        bound.apply_defaults()
        return self.for_call(tuple(bound.arguments.values()))

    def _known(self) -> tuple[Told, ...]:
        if self.told is None:
            raise BadInput(f"{self.name} is compiled for the types of a call's arguments: use kernel.for_call(args)")
        return self.told

    # --- a Config of it ---

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Task | None:
        """What compiles a Config; `None` for a function that another process can't find: `load` does it then.

        Raises:
            SpaceError: for a Config that can't be compiled.
            MissingEngine: without FlyDSL, torch or a linker.
        """
        check_config(self.name, self.parameters, config)
        told, spot = self._known(), place_of(self.source)
        toolkit.linker()
        if spot is None:
            return None
        launch = [p.name for p in self.parameters.runtime] if self.is_build else []
        said = {"name": self.name, "knobs": sorted(self.parameters.knobs), "launch": launch, "version": self.version}
        output = self._output(config, device)

        def request() -> dict[str, Any]:
            return {
                "place": asdict(spot), "kernel": said, "fingerprint": self.fingerprint(),
                "told": [list(one) for one in told], "config": dict(config), "arch": device.arch, "output": str(output),
            }  # fmt: skip

        return Task("tunesmith.backends.flydsl.compile:compile_config", request, output)

    def _output(self, config: Config, device: Device) -> Any:
        made_of = (
            self.fingerprint(), self._known(), sorted(config.items()), device.arch, sorted(self.versions().items()),
            sorted(self.environment().items()),
        )  # fmt: skip
        return place("flydsl", f"{self.name}-{digest(*made_of)}.json")

    def resources_of(self, config: Config, built: Built, device: Device) -> Resources:
        """What a compiled Config takes of a device, which need not be here.

        Raises:
            OutOfResources: when that is more than a block can have.
        """
        return _checked(Artifact.read(built.path), device)

    def compile_here(self, config: Config, device: Device) -> tuple[Any, Artifact]:
        """Compile a Config in this process, or take it from FlyDSL's own cache: (its CompiledFunction, what it takes).

        Raises:
            CompileFailed: with all that FlyDSL said.
            SpaceError: for a Config that can't be compiled.
            MissingEngine: without FlyDSL, torch or a linker.
        """
        check_config(self.name, self.parameters, config)
        function = compiled(self.source, self.is_build, self.parameters, self._known(), config, device.arch)
        artifact, _ = looked_at(function)
        return function, artifact

    def build_here(self, config: Config, device: Device) -> Built:
        """Compile a Config in this process, unless that was done before, and keep what came of it."""
        output = self._output(config, device)
        if not output.exists():
            write_artifact(self.compile_here(config, device)[0], output)
        return Built(output, 0.0)

    def load(self, config: Config, problem: Problem, built: Built | None) -> FlydslExecutable:
        """Make a Config ready to launch on the call's device. What is in FlyDSL's cache is traced, and not compiled.

        Raises:
            CompileFailed: with all that FlyDSL said.
            OutOfResources: when the device does not have what it takes.
            MissingEngine: without an AMD GPU.
        """
        device = gpu_for(self.name, self.index)
        function, artifact = self.compile_here(config, device)
        return FlydslExecutable(config, _checked(artifact, device), self._launcher(config, device, function), artifact)

    def _launcher(self, config: Config, device: Device, function: Any) -> Callable[..., None]:
        """What a call ends in: FlyDSL's function, in the caller's current stream.

        A binary knows which stride of each array is 1, and a Choice does not: where a call's is another, the Choice
        gets one more binary.
        """
        import torch

        names, others = list(self.signature.parameters), dict[FlydslKernel, Callable[..., None]]()

        def other(*args: Any) -> None:
            kernel = self.for_call(args)
            if kernel not in others:
                others[kernel] = kernel._launcher(config, device, kernel.compile_here(config, device)[0])
            others[kernel](*args)

        same = [
            f"{name}.dim() == {one[2]} and {name}.stride({one[3]}) == 1"
            for name, one in zip(names, self._known(), strict=True) if one[0] == "array"
        ]  # fmt: skip
        text = f"lambda {', '.join(names)}: _call({', '.join(self._passed(names))})"
        if same:
            text += f" if {' and '.join(same)} else _other({', '.join(names)})"
        space = {"_call": function, "_stream": torch.cuda.current_stream, "_other": other}
        launch = cast("Callable[..., None]", eval(text, space))
        return launch if self.index is None or torch.cuda.device_count() < 2 else _on_gpu(self.index, launch)

    def _passed(self, names: Sequence[str]) -> list[str]:
        """What FlyDSL's function is given, by position: what is compiled in has its place there, and is not read."""
        if self.is_build:
            return [*(p.name for p in self.parameters.runtime), "_stream()"]
        stream = self.parameters.stream
        return ["_stream()" if p.name == stream else p.name if p.name in names else "None" for p in self.parameters.all]


def gpu_for(name: str, index: int | None) -> Device:
    """The AMD GPU that a call's arrays are on; where none is said, the one that torch is at.

    Raises:
        MissingEngine: when there is none.
    """
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.version, "hip", None) is None or not torch.cuda.is_available():
        raise MissingEngine(f"{name} runs on AMD's GPUs, and torch finds none here; {_AHEAD}")
    return gpu_at(int(torch.cuda.current_device()) if index is None else index)


def _index_of(args: Sequence[Any]) -> int | None:
    """The GPU of the first array that is on one."""
    arrays = (one for one in args if is_array(one))
    return next((int(one.get_device()) for one in arrays if getattr(one, "is_cuda", False)), None)


def _on_gpu(index: int, launch: Callable[..., None]) -> Callable[..., None]:
    """A launch for which a GPU is the current one, where there are several."""
    import torch

    def launch_there(*args: Any) -> None:
        if torch.cuda.current_device() == index:
            return launch(*args)
        with torch.cuda.device(index):
            return launch(*args)

    return launch_there


def _checked(artifact: Artifact, device: Device) -> Resources:
    if artifact.threads is not None and artifact.threads > MOST_THREADS:
        raise OutOfResources("threads in a block", artifact.threads, MOST_THREADS, "threads")
    if device.shared_bytes_per_block and artifact.shared_bytes > device.shared_bytes_per_block:
        raise OutOfResources("shared memory", artifact.shared_bytes, device.shared_bytes_per_block, "bytes")
    return Resources(
        artifact.registers, artifact.spills, artifact.shared_bytes, artifact.threads, artifact.code_bytes
    )  # fmt: skip
