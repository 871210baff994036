"""What a call's arguments are to Triton's compiler, by Triton's own rules; and with a Config, a Source."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias, cast

from tunesmith.backends.triton.compile import Source
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.dispatch.arguments import is_descriptor, leaves
from tunesmith.errors import BadInput

#: what Triton knows of one argument: its type, and what else the binary may rely on
Part: TypeAlias = "tuple[Any, Any]"
#: computes the value of a constexpr from all arguments and knobs by name
Heuristic: TypeAlias = "Callable[[Mapping[str, Any]], Any]"


def target_of(device: Device) -> Any:
    """A Device as Triton's GPUTarget.

    Raises:
        BadInput: for a device that Triton has no compiler for.
    """
    from triton.backends.compiler import GPUTarget

    sm = re.fullmatch(r"sm_(\d+)a?", device.arch)
    if device.kind == "cuda" and sm:
        return GPUTarget("cuda", int(sm[1]), 32)
    gfx = re.fullmatch(r"gfx(\d+)\w\w", device.arch)
    if device.kind == "hip" and gfx:
        return GPUTarget("hip", device.arch, 32 if int(gfx[1]) >= 10 else 64)
    raise BadInput(f"Triton kernels are not compiled for {device.name} ({device.arch}); good ones: sm_90, gfx942, …")


@cache
def option_names() -> frozenset[str]:
    """Everything that can be asked of Triton's compilers beside a kernel's own parameters, on any GPU."""
    from triton.backends.amd.compiler import HIPOptions
    from triton.backends.nvidia.compiler import CUDAOptions

    own = {"arch", "backend_name", "extern_libs", "instrumentation_mode"}
    return frozenset({*CUDAOptions.__dataclass_fields__, *HIPOptions.__dataclass_fields__} - own)


class Binder:
    """Asks Triton what the arguments of a JIT function are, for one target."""

    def __init__(self, jit: Any, target: Any) -> None:
        from triton.compiler.compiler import make_backend
        from triton.runtime.jit import create_function_from_signature

        self.jit, self.target, self.backend = jit, target, make_backend(target)
        self._bind = create_function_from_signature(jit.signature, jit.params, self.backend)

    def parts(self, arguments: Mapping[str, Any]) -> dict[str, Part]:
        """For each parameter; those that are not given are taken for `None`.

        Raises:
            TypeError: for a value that Triton can't take.
        """
        names = self.jit.arg_names
        found = self._bind(**{name: arguments.get(name) for name in names})[1]
        return dict(zip(names, cast("list[Part]", found), strict=True))

    def source(self, parts: Mapping[str, Part], values: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """(ASTSource, parsed options) of parameters by name: what JITFunction.run would compile."""
        from triton import knobs

        names = self.jit.arg_names
        said = {**options, "debug": options.get("debug", self.jit.debug) or knobs.runtime.debug}
        for knob in ("instrumentation_mode", "fpsan_homomorphic_casts"):  # the second from 3.9 on
            if hasattr(knobs.compilation, knob):
                said[knob] = getattr(knobs.compilation, knob)
        bound = {name: values.get(name) for name in names}
        parsed, signature, constexprs, attributes = self.jit._pack_args(
            self.backend, said, bound, [parts[name] for name in names], None
        )
        return self._source_class()(self.jit, signature, constexprs, attributes), parsed

    def _source_class(self) -> Any:
        if self.jit.is_gluon():
            from triton.experimental.gluon._runtime import GluonASTSource

            return GluonASTSource
        from triton.compiler import ASTSource

        return ASTSource


@dataclass(frozen=True)
class CallTypes:
    """What one call's arguments are. Keeps no tensor alive.

    Attributes:
        index: of the device, `None` where nothing is launched.
        parts: of the runtime arguments.
        values: those that are compiled in: constexprs, `None`, 1; for tuples, these of their items.
        tensors: arguments with an address.
        near: those of them whose storage has under 2 GB, where the binary relies on that (AMD's).
        odd: an argument that the fast launch can't pass on, and why; empty if there is none.
        arguments: gives them all by name, for heuristics, as long as the caller keeps the tensors.
        identity: tells two apart exactly when they need different binaries.
    """

    binder: Binder
    device: Device
    index: int | None
    parts: Mapping[str, Part]
    values: Mapping[str, Any]
    tensors: frozenset[str]
    near: tuple[str, ...]
    odd: str
    arguments: Callable[[], dict[str, Any]] = field(repr=False)
    identity: tuple[Any, ...] = ()

    @classmethod
    def of(cls, binder: Binder, device: Device, index: int | None, arguments: Mapping[str, Any]) -> CallTypes:
        """Of runtime arguments by name."""
        found = binder.parts(arguments)
        parts = {name: found[name] for name in arguments}
        values = {name: _compiled_in(part[0], arguments[name]) for name, part in parts.items()}
        tensors = frozenset(name for name, value in arguments.items() if hasattr(value, "data_ptr"))
        near = tuple(name for name in arguments if name in tensors and "S" in str(parts[name][1] or ""))
        named = tuple((name, _named(part), _named(values[name])) for name, part in parts.items())
        identity = (binder.target, index, named, tensors)
        return cls(
            binder, device, index, parts, values, tensors, near, _odd(parts), _held_weakly(arguments), identity
        )  # fmt: skip

    def source(self, config: Config, computed: Mapping[str, Any]) -> Source:
        """A Config as Triton's compiler takes it.

        Args:
            computed: what heuristics say for it.
        """
        jit = self.binder.jit
        options = {name: value for name, value in config.items() if name not in jit.arg_names and value is not None}
        given = {**{name: value for name, value in config.items() if name in jit.arg_names}, **computed}
        own = self.binder.parts(given)
        parts = {**{name: own[name] for name in given}, **self.parts}
        missing = [name for name in jit.arg_names if name not in parts]
        if missing:
            raise BadInput(f"{jit.__name__}: {missing[0]!r} is neither an argument of the call nor a knob of {config}")
        values = {**{name: _compiled_in(own[name][0], value) for name, value in given.items()}, **self.values}
        ast, parsed = self.binder.source(parts, values, options)
        return Source(ast, self.binder.target, parsed, self.device.shared_bytes_per_block)


def _compiled_in(kind: Any, value: Any) -> Any:
    """What of an argument's value is in the binary."""
    if isinstance(kind, tuple):
        parts = [_compiled_in(k, v) for k, v in zip(cast("tuple[Any, ...]", kind), value, strict=True)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value if kind == "constexpr" else None


def _named(value: Any) -> str:
    """A constant's content in words: two that compile to the same have the same."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_named(part) for part in cast('Sequence[Any]', value))})"
    key = getattr(value, "cache_key", None)  # a JIT function given as an argument
    return f"{type(value).__name__} {key if isinstance(key, str) else repr(value)}"


def _odd(parts: Mapping[str, Part]) -> str:
    for name, (kind, _) in parts.items():
        if isinstance(kind, tuple):
            return f"argument {name!r} is a tuple"
        if str(kind).startswith("tensordesc"):
            return f"argument {name!r} is a tensor descriptor"
    return ""


def _held_weakly(arguments: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    """Gives the arguments back, without keeping tensors alive (which can be all there is of a GPU's memory)."""
    kept = {name: _weakly(value) for name, value in arguments.items()}
    return lambda: {name: get() for name, get in kept.items()}


def _weakly(value: Any) -> Callable[[], Any]:
    if hasattr(value, "data_ptr") or is_descriptor(value):
        return weakref.ref(value)
    if not leaves("", value):
        return lambda: value
    kind: Any = value.__class__
    parts = [_weakly(part) for part in value]
    if hasattr(kind, "_fields"):
        return lambda: kind(*(get() for get in parts))
    return lambda: kind([get() for get in parts])
