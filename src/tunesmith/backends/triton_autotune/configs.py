"""What Triton's decorators made, without importing Triton: which objects are its kernels, its Configs as ours."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from tunesmith.core.config import Config

#: what a `triton.Config` holds beside its `kwargs`
LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")


def is_triton_kernel(obj: object) -> bool:
    """Whether it is launched as Triton's kernels are: a JIT function, or any wrapper with one inside."""
    return all(hasattr(obj, name) for name in ("fn", "arg_names", "run")) and any(map(_is_tritons, layers(obj)))


def layers(kernel: Any) -> Iterator[Any]:
    """A kernel, what it wraps, and so on, down to the Python function (left out)."""
    while kernel is not None and not inspect.isfunction(kernel):
        yield kernel
        kernel = getattr(kernel, "fn", None)


def python_function(kernel: Any) -> Any:
    """The function under all wrappers."""
    return getattr(list(layers(kernel))[-1], "fn", kernel)


def is_interpreted(kernel: Any) -> bool:
    """Whether it was decorated under `TRITON_INTERPRET=1`."""
    return any(type(layer).__name__ == "InterpretedFunction" for layer in layers(kernel))


def is_jit(kernel: Any) -> bool:
    """Whether it is a JIT function of Triton's, or one under nothing but `@triton.heuristics`."""
    *wrappers, innermost = layers(kernel)
    return type(innermost).__name__ in ("JITFunction", "GluonJITFunction") and all(
        type(wrapper).__name__ == "Heuristics" for wrapper in wrappers
    )


def computed_names(kernel: Any) -> tuple[str, ...]:
    """The arguments that `@triton.heuristics` under this wrapper computes, whatever the caller says."""
    found: dict[str, None] = {}
    for layer in layers(kernel):
        values = getattr(layer, "values", None)
        if _is_tritons(layer) and isinstance(values, Mapping):
            found.update(dict.fromkeys(values))  # pyright: ignore[reportUnknownArgumentType]
    return tuple(found)


def is_triton_config(obj: object) -> bool:
    """Whether it is a `triton.Config`."""
    return _is_tritons(obj) and hasattr(obj, "all_kwargs")


def config_of(triton_config: Any) -> Config:
    """A `triton.Config` as ours: its `kwargs` and those of its options that are set. Hooks are not knobs.

    Raises:
        BadInput: for a value that no knob can have.
    """
    return Config({name: _unwrapped(value) for name, value in triton_config.all_kwargs().items()})


def _unwrapped(value: Any) -> Any:
    return value.value if type(value).__name__ == "constexpr" and _is_tritons(value) else value


def triton_options() -> set[str]:
    """The names of every installed backend's compile options, which a call may set by keyword. Asks no driver."""
    from triton.backends import backends

    modules = [inspect.getmodule(backend.compiler) for backend in backends.values()]
    found = [value for module in modules for name, value in vars(module).items() if name.endswith("Options")]
    names = {name for options in found for name in getattr(options, "__dataclass_fields__", ())}
    return names | {"debug", "instrumentation_mode"}


def _is_tritons(obj: object) -> bool:
    return any(c.__module__.partition(".")[0] == "triton" for c in type(obj).__mro__)
