"""Reads a FlyDSL function's parameters: what a call gives, what is compiled in, what tuning decides; and its types."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tunesmith.core.config import Config, KnobValue
from tunesmith.dispatch.arguments import dtype_name, is_array, strides_of
from tunesmith.errors import BadInput, SpaceError, unknown

#: knobs that are hints to the compiler, with what they are when a Config does not name them
HINTS: Mapping[str, KnobValue] = {"waves_per_eu": None, "fast_fp_math": False, "unsafe_fp_math": False}
#: of a SIMD: the most that any chip has
MOST_WAVES = 16
#: What a binary has to know of one argument: `["array", dtype, rank, dimension whose stride is 1]`,
#: `["number", "int"]`, or `["value", what is compiled in]`.
Told: TypeAlias = "tuple[Any, ...]"
_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameters:
    """Those of a launcher, each in the order of its own.

    Attributes:
        all: every parameter of the FlyDSL function, or of the function that builds one.
        runtime: arrays and numbers that a launch is given.
        static: values that are compiled in and are no knobs.
        stream: of these the one that is the stream; `None` for none.
    """

    all: tuple[inspect.Parameter, ...]
    runtime: tuple[inspect.Parameter, ...]
    static: tuple[inspect.Parameter, ...]
    knobs: frozenset[str]
    stream: str | None = None

    @property
    def signature(self) -> inspect.Signature:
        """What a call takes: launch arguments and what is compiled in, as they stand in the function."""
        called = {p.name for p in (*self.runtime, *self.static)}
        order = [p.name for p in self.all if p.name in called]
        known = {p.name: p for p in (*self.static, *self.runtime)}
        names = [*(name for name in known if name not in order), *order] if self._is_built else order
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        found = [inspect.Parameter(name, kind, default=known[name].default) for name in names]
        found.sort(key=lambda p: p.default is not _EMPTY)  # those with a default last; the order is kept otherwise
        return inspect.Signature(found)

    @property
    def _is_built(self) -> bool:
        return not {p.name for p in self.runtime} <= {p.name for p in self.all}


def of_jit(function: Callable[..., Any], knobs: Collection[str] | None, name: str, typing: Any) -> Parameters:
    """Those of a `@flyc.jit` function: its Constexpr parameters are knobs, or compiled in as the call says.

    Args:
        knobs: which of them are knobs; all if not given.
        typing: `flydsl.expr.typing`.

    Raises:
        BadInput: for a knob that is none of them.
    """
    found = tuple(_signature(function).parameters.values())
    for p in found:
        if isinstance(p.annotation, str):
            raise BadInput(
                f"{name}: {p.name!r} is annotated {p.annotation!r}, which means nothing where the module is read: "
                "import what it names at the top of the module, or leave out `from __future__ import annotations`"
            )
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise BadInput(f"{name} takes *{p.name}: name each argument, so that a Problem can be told from them")
    stream = next((p.name for p in found if getattr(p.annotation, "_is_stream_param", False)), None)
    compiled_in = [p for p in found if p.annotation is not _EMPTY and _is_compiled_in(p.annotation, typing)]
    names = [p.name for p in compiled_in]
    chosen = _checked_knobs(names if knobs is None else knobs, names, name)
    runtime = tuple(p for p in found if p.name not in names and p.name != stream)
    static = tuple(p for p in compiled_in if p.name not in chosen)
    return Parameters(found, runtime, static, chosen, stream)


def of_build(build: Callable[..., Any], runtime: Sequence[str], knobs: Collection[str], name: str) -> Parameters:
    """Those of a function that builds a launcher: what is no knob of it, a call says.

    Args:
        runtime: the names of what the launcher is given, less the stream.
    """
    found = tuple(_signature(build).parameters.values())
    for p in found:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            raise BadInput(f"{name}: parameter {p.name!r} can't be given by name; name each, so that knobs are known")
    names = [p.name for p in found]
    chosen = _checked_knobs(knobs, names, name)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    twice = [one for one in runtime if one in names]
    if twice:
        raise BadInput(
            f"{name}: {twice[0]!r} is a parameter of the build function and of its launcher; name the launcher's "
            "otherwise in launch="
        )
    given = tuple(inspect.Parameter(one, kind) for one in runtime)
    return Parameters(found, given, tuple(p for p in found if p.name not in chosen), chosen)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:  # FlyDSL could not evaluate its annotations either
        return inspect.signature(function)


def _is_compiled_in(annotation: Any, typing: Any) -> bool:
    is_type = annotation is type or getattr(annotation, "__origin__", None) is type
    return is_type or bool(typing.Constexpr.is_constexpr_annotation(annotation))


def _checked_knobs(knobs: Collection[str], good: Collection[str], name: str) -> frozenset[str]:
    for knob in knobs:
        if knob not in good and knob not in HINTS:
            raise BadInput(f"{name}: {unknown('knob', knob, [*good, *HINTS])}")
    return frozenset(knobs) - (frozenset(HINTS) - frozenset(good))


# --- what a call says ------------------------------------------------------------------------------------


def told_by(parameters: Parameters, args: Sequence[Any], name: str) -> tuple[Told, ...]:
    """What a binary for a call has to know of each argument, in the order of the signature.

    Raises:
        BadInput: for an argument that FlyDSL takes not, or that can't be compiled in.
    """
    static = {p.name for p in parameters.static}
    kinds = {p.name: p.annotation for p in parameters.runtime}
    names = list(parameters.signature.parameters)
    return tuple(
        _value(name, one, value) if one in static else _launched(name, one, value, kinds[one])
        for one, value in zip(names, args, strict=True)
    )


def _value(kernel: str, name: str, value: Any) -> Told:
    if not (value is None or isinstance(value, (bool, int, float, str))):
        raise BadInput(
            f"{kernel}: {name!r} is compiled in and is {value!r} of type {type(value).__name__}; expected an integer, "
            "a float, a bool, a text or None"
        )
    return "value", value


def _launched(kernel: str, name: str, value: Any, annotation: Any) -> Told:
    if is_array(value):
        strides = strides_of(name, value)
        if 1 not in strides:
            raise BadInput(
                f"{kernel}: {name!r} has strides {strides}; FlyDSL takes arrays one stride of which is 1: give "
                f"{name}.contiguous()"
            )
        return "array", dtype_name(value), len(strides), strides.index(1)
    if not isinstance(value, (bool, int, float)):
        raise BadInput(
            f"{kernel}: {name!r} is of type {type(value).__name__}; expected a torch tensor, an int, a float or a bool"
        )
    is_wide = "64" in str(getattr(annotation, "__name__", annotation))
    if isinstance(value, int) and not is_wide and not -(1 << 31) <= value < 1 << 31:
        raise BadInput(f"{kernel}: {name!r} is {value}, which has more than 32 bits; annotate it fx.Int64")
    return "number", type(value).__name__


# --- what a Config says ----------------------------------------------------------------------------------


def check_config(name: str, parameters: Parameters, config: Config) -> None:
    """Refuse a Config that can't be compiled, before a compiler sees it.

    Raises:
        SpaceError: naming the knob, its bad value and the good ones.
    """
    known = {*parameters.knobs, *HINTS}
    for knob, value in config.items():
        if knob not in known:
            raise SpaceError(f"{name}: {unknown('knob', knob, sorted(known))}")
        if knob in HINTS and knob not in parameters.knobs:
            _check_hint(knob, value)
    required = {p.name for p in parameters.all if p.default is _EMPTY}
    for knob in sorted(parameters.knobs & required - set(config)):
        raise SpaceError(f"{name}: knob {knob!r} is missing from {config!r}")


def _check_hint(knob: str, value: KnobValue) -> None:
    if knob == "waves_per_eu":
        good = f"None, integers from 0 to {MOST_WAVES}"
        fine = value is None or (type(value) is int and 0 <= value <= MOST_WAVES)
    else:
        good, fine = "True, False", isinstance(value, bool)
    if not fine:
        raise SpaceError(f"knob {knob!r} cannot be {value!r}; good values: {good}")


def hints_of(parameters: Parameters, config: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
    """The part of a Config that is for the compiler. A function that has a parameter of that name gets it itself."""
    return {knob: value for knob, value in config.items() if knob in HINTS and knob not in parameters.knobs and value}
