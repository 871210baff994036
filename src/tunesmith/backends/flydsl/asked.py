"""What FlyDSL's own `autotune` is given, as the tuner takes it: its Configs, and functions of a call's arguments.

Its functions (`configs`, `default`, `prune_configs_by`) are given a call's arguments. Ours are given the Problem, so
that they can be asked where there is no call. So its functions are given stand-ins: of what the Problem knows, which is
what `key` names, dtypes and what is compiled in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from tunesmith.backends.flydsl.kernel import FlydslKernel
from tunesmith.core.config import Config
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput


def config_of(theirs: Any) -> Config:
    """A Config of FlyDSL's, a mapping, or one of ours, as ours.

    Raises:
        BadInput: for one with a hook of its own, and for what is none.
    """
    if isinstance(theirs, Config):
        return theirs
    if isinstance(theirs, Mapping):
        return Config(**cast("Mapping[str, Any]", theirs))
    if not hasattr(theirs, "to_dict") or not hasattr(theirs, "compiler_opts"):
        raise BadInput(f"{theirs!r} is no Config; good ones: flydsl.autotune.Config, tunesmith.Config, a mapping")
    if getattr(theirs, "pre_hook", None) is not None:
        raise BadInput(f"{theirs!r} has a pre_hook, which is not taken: use reset_to_zero= or restore_value=")
    said = dict(theirs.to_dict())
    for value in said.values():
        if isinstance(value, Unknown):
            _refuse(value.name, "its value")
    return Config(**said)


@dataclass(frozen=True)
class Shaped:
    """Stands for an array: what the Problem knows of it."""

    name: str
    dtype: str
    known_shape: tuple[int, ...] | None

    @property
    def shape(self) -> tuple[int, ...]:
        """As the key says."""
        if self.known_shape is None:
            _refuse(self.name, "its shape")
        return self.known_shape

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        _refuse(self.name, f".{attribute}")


class Unknown:
    """Stands for a number that the Problem does not know: whoever uses it is told what to do."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _used(self, *_: object) -> NoReturn:
        _refuse(self.name, "its value")

    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _used
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __truediv__ = __neg__ = __int__ = __index__ = _used
    __bool__ = _used


def _refuse(name: str, what: str) -> NoReturn:
    raise BadInput(
        f"configs=, default= and prune_configs_by= know of a call what key= names, dtypes, and what is compiled in; "
        f"{what} of {name!r} is asked for: add {name!r} to key="
    )


def arguments_of(kernel: FlydslKernel, problem: Problem) -> dict[str, Any]:
    """A call's arguments by name, as far as a Problem tells them."""
    found: dict[str, Any] = {}
    static = {p.name: p.default for p in kernel.parameters.static}
    for name, parameter in kernel.signature.parameters.items():
        dtype = problem.get(f"{name}.dtype")
        if name in problem:
            found[name] = problem[name]
        elif dtype is not None:
            found[name] = Shaped(name, str(dtype), _shape(problem, name))
        elif name in static and parameter.default is not parameter.empty:
            found[name] = parameter.default
        else:
            found[name] = Unknown(name)
    return found


def _shape(problem: Problem, name: str) -> tuple[int, ...] | None:
    sizes: list[int] = []
    while isinstance(size := problem.get(f"{name}.{len(sizes)}"), int):
        sizes.append(size)
    return tuple(sizes) or None


def key_of(kernel: FlydslKernel, names: Sequence[str]) -> Sequence[str] | Callable[..., Mapping[str, object]]:
    """`key=` of FlyDSL's: of an array its shape counts."""
    arrays = [name for name in names if name in array_names(kernel)]
    if not arrays:
        return list(names)

    def key(**arguments: Any) -> dict[str, object]:
        found: dict[str, object] = {name: arguments[name] for name in names if name not in arrays}
        for name in arrays:
            found |= {f"{name}.{i}": int(size) for i, size in enumerate(arguments[name].shape)}
        return found

    return key


def array_names(kernel: FlydslKernel) -> tuple[str, ...]:
    """Launch arguments that are arrays, as far as annotations say."""
    return tuple(p.name for p in kernel.parameters.runtime if getattr(p.annotation, "__name__", "") == "Tensor")


def configs_of(
    kernel: FlydslKernel, configs: Iterable[Any] | Callable[..., Iterable[Any]], prune: Callable[..., Any] | None
) -> Callable[[Problem], list[Config]]:
    """The Configs worth trying for a Problem."""

    def found(problem: Problem) -> list[Config]:
        arguments = arguments_of(kernel, problem)
        theirs = list(configs(**arguments) if callable(configs) else configs)
        return list(dict.fromkeys(config_of(one) for one in (theirs if prune is None else prune(theirs, arguments))))

    return found


def default_of(kernel: FlydslKernel, default: Any) -> Callable[[Problem], Config]:
    """FlyDSL's heuristic, or a Config, asked for a Problem."""
    if not callable(default):
        fixed = config_of(default)
        return lambda problem: fixed
    return lambda problem: config_of(default(**arguments_of(kernel, problem)))


def knobs_among(configs: object, key: Collection[str], compiled_in: Collection[str]) -> list[str]:
    """Which Constexpr parameters tuning decides: those that Configs name; where a function makes them, those that
    `key` does not name."""
    if callable(configs):
        return [name for name in compiled_in if name not in key]
    listed = cast("Iterable[object]", configs)
    named = {name for one in listed for name in config_of(one)}
    return [name for name in compiled_in if name in named]
