"""`TritonKernel`: a function under `@triton.jit` (and `@triton.heuristics`) as the tuner sees it."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tunesmith import fingerprint
from tunesmith.backends.cpu import device_of
from tunesmith.backends.triton.launch import TritonExecutable, executable
from tunesmith.backends.triton.resources import resources_in_cache
from tunesmith.backends.triton.types import Binder, CallTypes, Heuristic, option_names, target_of
from tunesmith.backends.triton.written import GRID
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.dispatch.arguments import leaves
from tunesmith.errors import WITHOUT_GPU, BadInput, MissingEngine, SpaceError, unknown
from tunesmith.kernel import Built, Specialised, Task


class TritonKernel:
    """A kernel in Triton.

    Its runtime arguments are `grid` and then the JIT function's, less its knobs and what heuristics compute. The
    grid is a tuple of up to three integers, or a function of all arguments and knobs by name that returns one.

    Args:
        fn: what `@triton.jit` made, perhaps with `@triton.heuristics` around it.
        knobs: which of its parameters, and of the compiler's options (`num_warps`), are knobs.
        name: the JIT function's own, if not given.
        version: stands for its content, where that can't be fingerprinted.
        depends: packages whose versions belong to what is stored with its results.

    Attributes:
        jit: the JITFunction. heuristics: by the constexpr they compute, in the order in which they run.

    Raises:
        BadInput: for something else than a Triton kernel, and a knob that it does not take.
    """

    backend = "triton"
    per_problem = False
    opaque = (GRID,)

    def __init__(
        self,
        fn: Any,
        knobs: Iterable[str] = (),
        *,
        name: str | None = None,
        version: str | None = None,
        depends: Sequence[str] = (),
    ) -> None:
        self.fn, self._version, self._depends = fn, version, tuple(depends)
        self.jit, self.heuristics = _unwrapped(fn)
        self.name: str = name or self.jit.__name__
        self.knobs = frozenset(knobs)
        self._check_knobs()
        self.signature = self._runtime_signature()
        self.specialised = self._specialised()
        self._binders: dict[Any, Binder] = {}
        self._types: CallTypes | None = None

    def _check_knobs(self) -> None:
        names: list[str] = self.jit.arg_names
        if GRID in names:
            raise BadInput(f"{self.name} has a parameter named {GRID!r}, which is what a launch's own size is called")
        for knob in sorted(self.knobs):
            if knob in self.heuristics:
                raise BadInput(f"{self.name}: {knob!r} is computed by a heuristic, so it can't be a knob")
            if knob not in names and knob not in option_names():
                raise BadInput(f"{self.name}: {unknown('knob', knob, [*names, *sorted(option_names())])}")

    def _runtime_signature(self) -> inspect.Signature:
        parameters = self.jit.signature.parameters.values()
        own = [p for p in parameters if p.name not in self.knobs and p.name not in self.heuristics]
        grid = inspect.Parameter(GRID, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return inspect.Signature([grid, *(p.replace(annotation=p.empty) for p in own)])

    def _specialised(self) -> Specialised:
        alignment, divisibility, width, values = list[str](), list[str](), list[str](), list[str]()
        for p in self.jit.params:
            if p.name not in self.signature.parameters:
                continue
            if p.is_constexpr:
                values.append(p.name)
                continue
            if not p.do_not_specialize and not p.do_not_specialize_on_alignment:
                alignment.append(p.name)
            (width if p.do_not_specialize else divisibility).append(p.name)
        return Specialised(tuple(alignment), tuple(divisibility), tuple(width), tuple(values), _where)

    # --- what it is ---

    @cached_property
    def _fingerprint(self) -> str:
        own = fingerprint.of_function(self.jit, version=self._version)
        if not self.heuristics or self._version is not None:
            return own
        computed = [f"{name} {fingerprint.of_function(how)}" for name, how in self.heuristics.items()]
        return hashlib.sha256("\n".join([own, *computed]).encode()).hexdigest()[:32]

    def fingerprint(self) -> str:
        return self._fingerprint

    def versions(self) -> Mapping[str, str]:
        import triton

        return {**fingerprint.versions(self._depends), "triton": str(triton.__version__)}

    def environment(self) -> Mapping[str, str]:
        """Triton's own list of variables that invalidate its cache, and those that set a compiler's option."""
        from triton import knobs
        from triton._C.libtriton import get_cache_invalidating_env_vars

        also = {
            "TRITON_F32_DEFAULT": knobs.language.fp32_default,
            "PTXAS_OPTIONS": knobs.nvidia.ptxas_options,
            "TRITON_LIBDEVICE_PATH": knobs.nvidia.libdevice_path,
            "TRITON_OVERRIDE_ARCH": knobs.runtime.override_arch,
            "TRITON_DEBUG": "1" if knobs.runtime.debug else None,
        }
        return {**get_cache_invalidating_env_vars(), **{name: str(value) for name, value in also.items() if value}}

    def device(self, args: Sequence[Any]) -> Device:
        """The GPU the tensors are on; the current one where there is none.

        Raises:
            BadInput: when they are on several, or on none that Triton can run on.
        """
        found = [leaf for name, value in zip(self.signature.parameters, args, strict=False)
                 if name != GRID for leaf in leaves(name, value)]  # fmt: skip
        places = {name: str(getattr(array, "device", "cpu")) for name, array in found}
        if len(set(places.values())) > 1:
            said = ", ".join(f"{name} on {at}" for name, at in places.items())
            raise BadInput(f"{self.name}: arguments on several devices: {said}")
        for name, array in found[:1]:
            if places[name] == "cpu":
                raise BadInput(
                    f"{self.name} is a Triton kernel, and {name!r} is on the CPU; good values: tensors on a GPU; "
                    f"{WITHOUT_GPU}"
                )
            return device_of({name: array})
        return device_of({"no tensor": _Anywhere(_current_index())})

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {}

    # --- for a call ---

    def for_call(self, args: Sequence[Any], device: Device | None = None) -> TritonKernel:
        """This kernel as a call's argument types need it compiled.

        Args:
            args: by position, in the order of the signature.
            device: to compile for one that is not here; the arguments can be on any then.
        """
        arguments = dict(zip(self.signature.parameters, args, strict=True))
        arguments.pop(GRID)
        chip = device or self.device(args)
        target = target_of(chip)
        binder = self._binders.get(target) or self._binders.setdefault(target, Binder(self.jit, target))
        bound = copy.copy(self)
        bound._types = CallTypes.of(binder, chip, None if device else _index_of(arguments), arguments)
        return bound

    def for_target(self, make_inputs: Callable[[], Mapping[str, Any]], device: Device) -> TritonKernel:
        """This kernel for arguments on a device that need not be here; a grid is not needed.

        Raises:
            BadInput: for arguments that are no call.
        """
        try:
            bound = self.signature.bind(**{GRID: (1,), **make_inputs()})
        except TypeError as error:
            raise BadInput(f"{self.name}: make_inputs does not make what a call takes: {error}") from None
        bound.apply_defaults()
        return self.for_call(tuple(bound.arguments.values()), device)

    def resources_of(self, config: Config, built: Built, device: Device) -> Resources:
        return resources_in_cache(built.path)

    @property
    def types(self) -> CallTypes:
        """What the call's arguments are.

        Raises:
            BadInput: when this is not yet the kernel of a call.
        """
        if self._types is None:
            raise BadInput(f"{self.name} is compiled for the types of a call's arguments: use kernel.for_call(args)")
        return self._types

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TritonKernel) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        types = self._types
        return id(self.jit), tuple(self.heuristics), self.knobs, None if types is None else types.identity

    # --- a Config of it ---

    def check(self, config: Config) -> None:
        """Refuse a Config that can't be compiled, before a compiler sees it.

        Raises:
            SpaceError: naming the knob and the good ones, or the one that is missing.
        """
        for knob in config:
            if knob not in self.knobs:
                raise SpaceError(f"{self.name}: {unknown('knob', knob, sorted(self.knobs))}")
        for knob in self.knobs & set(self.jit.arg_names):
            if knob not in config:
                raise SpaceError(f"{self.name}: knob {knob!r} is missing from {config!r}")

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Task | None:
        self.check(config)
        types = self.types
        return types.source(config, self.computed(config, types.arguments())).task()

    def computed(self, config: Config, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the heuristics say for a Config and a call's arguments; a later one sees what earlier ones said."""
        found: dict[str, Any] = {}
        for name, how in self.heuristics.items():
            found[name] = how({**arguments, **config, **found})
        return found

    def load(self, config: Config, problem: Problem, built: Built | None) -> TritonExecutable:
        """Make a Config ready to launch on the call's device; compiles it here where nothing did before.

        Raises:
            triton.runtime.errors.OutOfResources: when the device does not have what it takes.
        """
        self.check(config)
        return executable(self, self.types, config)


def _unwrapped(fn: Any) -> tuple[Any, dict[str, Heuristic]]:
    """The JITFunction inside, and the heuristics around it, outermost first."""
    from triton.runtime.autotuner import Heuristics
    from triton.runtime.jit import JITFunction

    inner, heuristics = fn, dict[str, Heuristic]()
    while isinstance(inner, Heuristics):
        heuristics.update(inner.values)
        inner = inner.fn
    if not isinstance(inner, JITFunction):
        raise BadInput(
            f"{getattr(fn, '__name__', fn)!r} of type {type(inner).__name__} is no Triton kernel; "
            "good ones: what @triton.jit returns, with or without @triton.heuristics"
        )
    return inner, heuristics


class _Anywhere:
    """Stands for a tensor on a device, for a call that has none."""

    dtype, shape = None, (1,)

    def __init__(self, index: int) -> None:
        self.device = f"cuda:{index}"


def _current_index() -> int:
    import torch

    if not torch.cuda.is_available():
        raise MissingEngine("a Triton kernel needs a GPU that torch can use: torch.cuda.is_available() is False")
    return int(torch.cuda.current_device())


def _where() -> int | None:
    """The current device, for the key of a call without a tensor; what is wrong with it is said by who launches."""
    import torch

    return int(torch.cuda.current_device()) if torch.cuda.is_available() else None


def _index_of(arguments: Mapping[str, Any]) -> int:
    for name, value in arguments.items():
        for _, array in leaves(name, value):
            _, _, index = str(array.device).partition(":")
            return int(index) if index else _current_index()
    return _current_index()
