"""Kernels in CuTe DSL: knobs are `cutlass.Constexpr` parameters of a host function, or what builds one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunesmith.backends.call import SignatureFrom, runtime_signature
from tunesmith.backends.cute.arguments import Role, is_stream
from tunesmith.backends.cute.kernel import CuteExecutable, CuteKernel, host_kernel, is_host_function
from tunesmith.errors import BadInput, unknown

__all__ = ["CuteExecutable", "CuteKernel", "built", "is_host_function", "kernel"]


def kernel(
    function: Callable[..., Any],
    *,
    knobs: Sequence[str] | None = None,
    divisible: Mapping[str, int] | None = None,
    options: Sequence[str] = (),
    name: str | None = None,
    version: str | None = None,
    depends: Sequence[str] = (),
) -> CuteKernel:
    """A kernel in CuTe DSL, by its host function, which `@cute.jit` made.

    A call gives arrays (torch's, or of DLPack) and numbers. Each array is compiled in with its dtype, its number of
    dimensions, which of its strides are 0 or 1, and 16 bytes of alignment where its address has that; sizes and other
    strides are not known to the compiler. A parameter for the stream is given the caller's current one.

    Args:
        function: its parameters that are `cutlass.Constexpr` are knobs, or arguments whose value is compiled in.
        knobs: the knobs. If not given: those `Constexpr` that have a default or can be given by keyword only.
        divisible: array → how many elements its row length and its strides are a multiple of. Every call has to keep
            to that, and TVM-FFI checks it; loads wider than an element need it.
        options: further options of `cute.compile`.
        name: the function's, if not given.
        version: stands for its content, where that can't be fingerprinted.
        depends: packages whose versions belong to what is stored with its results.

    Raises:
        BadInput: for something else than a host function, and for a knob that it does not take.
    """
    return host_kernel(
        function, knobs, divisible=divisible or {}, options=_checked(options), name=name, version=version,
        depends=depends,
    )  # fmt: skip


def built(
    build: Callable[..., Any],
    *,
    signature_from: SignatureFrom,
    values: Sequence[str] = (),
    divisible: Mapping[str, int] | None = None,
    options: Sequence[str] = (),
    name: str | None = None,
    version: str | None = None,
    depends: Sequence[str] = (),
) -> CuteKernel:
    """A kernel in CuTe DSL whose host function `build(given, **knobs)` makes: an object with `@cute.jit __call__`.

    It is called in a child process, once for each Config, and so has to stand at the top of a module.

    Args:
        build: is given a mapping argument → CuTe's type of an array (`cutlass.BFloat16`), the value of what is
            compiled in; and knobs as keywords. What it returns takes arguments and the stream by these names.
        signature_from: the arguments of a call: a callable that takes them, or their names.
        values: arguments whose value is compiled in.
        divisible, options, name, version, depends: see `kernel`.
    """
    own = name or build.__name__
    found = runtime_signature(signature_from)
    kept = [p.replace(annotation=p.empty) for p in found.parameters.values() if not is_stream(p)]
    parameters = list(inspect.signature(build).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise BadInput(f"{own} must take the arguments' types first: build(given, **knobs)")
    for one in values:
        if one not in found.parameters:
            raise BadInput(f"{own}: values: {unknown('argument', one, found.parameters)}")
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    roles: dict[str, Role] = {p.name: "value" if p.name in values else "argument" for p in kept}
    return CuteKernel(
        build, signature=inspect.Signature(kept), roles=roles, is_built=True, divisible=divisible or {},
        knobs=None if takes_any else [p.name for p in parameters[1:]], options=_checked(options), name=own,
        version=version, depends=depends,
    )  # fmt: skip


def _checked(options: Sequence[str]) -> Sequence[str]:
    if isinstance(options, str):
        raise BadInput(f"options={options!r} is one string; give a list: options=[{options!r}]")
    for option in options:
        if option.startswith(("--gpu-arch", "--enable-tvm-ffi", "--dump-dir")):
            raise BadInput(f"option {option!r}: the architecture is that of the device, and tunesmith sets the others")
    return options
