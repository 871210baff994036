"""Any Python callable as a kernel: its knobs are keyword arguments, or arguments of a function that builds it."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, cast

from tunesmith import fingerprint
from tunesmith.backends.cpu import device_of
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, SpaceError, unknown
from tunesmith.kernel import Built, Specialised

#: built executors that are kept: as many as a search has candidates, and a few that serve
_KEPT_BUILDS = 256
#: where a built kernel's runtime parameters stand: a callable that has them, or their names
SignatureFrom: TypeAlias = "Callable[..., Any] | inspect.Signature | Sequence[str]"

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class CallExecutable:
    """A callable with its knobs set."""

    config: Config
    launch: Callable[..., Any]
    resources: Resources = field(default_factory=Resources)


class _InPython:
    """What kernels written in Python share: they are compiled by nobody, and identified by their source."""

    backend = "callable"
    specialised = Specialised()

    def __init__(
        self, source: Callable[..., Any], signature: inspect.Signature, version: str | None, depends: Sequence[str]
    ) -> None:
        self._source, self._version, self._depends = source, version, tuple(depends)
        self.signature = signature

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint.of_function(self._source, version=self._version)

    def fingerprint(self) -> str:
        return self._fingerprint

    def environment(self) -> Mapping[str, str]:
        return {}

    def versions(self) -> Mapping[str, str]:
        return fingerprint.versions(self._depends)

    def device(self, args: Sequence[Any]) -> Device:
        return device_of(dict(zip(self.signature.parameters, args, strict=False)))

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {}

    def compile_job(self, config: Config, problem: Problem, device: Device) -> None:
        return None


class CallableKernel(_InPython):
    """A callable whose knobs are keyword arguments.

    >>> def scale(x, a, *, unroll): return [a * v for v in x]
    >>> kernel = CallableKernel(scale, frozenset({"unroll"}))
    >>> kernel.signature
    <Signature (x, a)>
    >>> kernel.load(Config(unroll=4), Problem({}), None).launch([1, 2], 3)
    [3, 6]

    Args:
        fn: a function, or an object that looks like a JIT-compiled one: it has `fn`, `arg_names` and `run`, and is
            launched by `run(*args, **knobs)`.
        knobs: which of its parameters are knobs. `None`: those without a default that can be given by keyword only.
        name: its own, if not given.
        version: stands for its content, where that can't be fingerprinted.
        depends: packages whose versions belong to what is stored with its results.

    Raises:
        BadInput: for a knob that it does not take, and for a signature that can't be called by position.
    """

    per_problem = False

    def __init__(
        self,
        fn: Callable[..., Any],
        knobs: frozenset[str] | None = None,
        *,
        name: str | None = None,
        version: str | None = None,
        depends: Sequence[str] = (),
    ) -> None:
        if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise BadInput(
                f"{_name_of(fn)} is a generator or a coroutine: a call of it does no work that could be timed"
            )
        self._is_jit = looks_jitted(fn)
        self._call: Callable[..., Any] = cast(Any, fn).run if self._is_jit else fn
        self.name = name or _name_of(fn)
        self._whole = _jit_signature(fn) if self._is_jit else _signature_of(fn, self.name)
        self._takes_any = self._is_jit or any(p.kind is p.VAR_KEYWORD for p in self._whole.parameters.values())
        self._knobs = self._default_knobs() if knobs is None else self._checked_knobs(knobs)
        super().__init__(fn, self._runtime_signature(), version, depends)

    def _default_knobs(self) -> frozenset[str]:
        found = self._whole.parameters.values()
        return frozenset(p.name for p in found if p.kind is p.KEYWORD_ONLY and p.default is p.empty)

    def _checked_knobs(self, knobs: frozenset[str]) -> frozenset[str]:
        parameters = self._whole.parameters
        for knob in sorted(knobs):
            if knob not in parameters and not self._takes_any:
                raise BadInput(f"{self.name}: {unknown('knob', knob, parameters)}")
            if knob in parameters and parameters[knob].kind is inspect.Parameter.POSITIONAL_ONLY:
                raise BadInput(f"{self.name}: knob {knob!r} can be given by position only; a knob is given by keyword")
        return knobs

    def _runtime_signature(self) -> inspect.Signature:
        """The parameters that are no knobs, all of them by position."""
        kept: list[inspect.Parameter] = []
        for p in self._whole.parameters.values():
            if p.kind is p.VAR_POSITIONAL:
                raise BadInput(
                    f"{self.name} takes *{p.name}: name each argument, so that a Problem can be told from them"
                )
            if p.name not in self._knobs and p.kind is not p.VAR_KEYWORD:
                kept.append(p.replace(kind=p.kind if p.kind in _POSITIONAL else p.POSITIONAL_OR_KEYWORD))
        required_after = [
            p for i, p in enumerate(kept) if p.default is p.empty and any(q.default is not q.empty for q in kept[:i])
        ]
        if required_after:  # keyword-only ones may be in any order; a signature by position may not
            kept.sort(key=lambda p: p.default is not p.empty)
        return inspect.Signature(kept)

    @property
    def knobs(self) -> frozenset[str] | None:
        return None if self._takes_any else self._knobs

    def for_call(self, args: Sequence[Any]) -> CallableKernel:
        return self

    def load(self, config: Config, problem: Problem, built: Built | None) -> CallExecutable:
        """Set the knobs.

        Raises:
            SpaceError: for a knob that the callable does not take, and one that it needs and the Config lacks.
        """
        parameters = self._whole.parameters
        for knob in config:
            if knob in self.signature.parameters or (knob not in self._knobs and not self._takes_any):
                raise SpaceError(f"{self.name}: {unknown('knob', knob, sorted(self._knobs))}")
        for knob in self._knobs - config.keys():
            if knob in parameters and parameters[knob].default is inspect.Parameter.empty:
                raise SpaceError(f"{self.name}: knob {knob!r} is missing from {config!r}")
        return CallExecutable(config, self._bound(config))

    def _bound(self, config: Config) -> Callable[..., Any]:
        """The callable with its knobs set: a generated lambda, which costs half of what functools.partial does.

        Its parameters are the runtime signature's; each goes on by position as long as no knob stands before it.
        """
        space: dict[str, Any] = {"_call": self._call}
        given, passed, by_position = list[str](), list[str](), True
        for i, p in enumerate(self.signature.parameters.values()):
            given.append(p.name if p.default is p.empty else f"{p.name}=_default{i}")
            space[f"_default{i}"] = p.default
        for p in self._whole.parameters.values():
            if p.name in self.signature.parameters:
                by_position = by_position and p.kind in _POSITIONAL
                passed.append(p.name if by_position else f"{p.name}={p.name}")
            elif p.kind is not p.VAR_KEYWORD:
                by_position = False
        for i, (knob, value) in enumerate(config.items()):
            space[f"_knob{i}"] = value
            # a knob of any other name than Python's reaches a function that takes **knobs all the same
            passed.append(f"{knob}=_knob{i}" if knob.isidentifier() else f"**{{{knob!r}: _knob{i}}}")
        return cast("Callable[..., Any]", eval(f"lambda {', '.join(given)}: _call({', '.join(passed)})", space))


def looks_jitted(fn: object) -> bool:
    """Whether something is, or looks like, a JIT-compiled function: launched through `run`, named by `arg_names`."""
    return all(hasattr(fn, name) for name in ("fn", "arg_names", "run"))


def _jit_signature(fn: Any) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    try:
        own: Mapping[str, inspect.Parameter] = inspect.signature(fn.fn).parameters
    except (TypeError, ValueError):  # arg_names says enough
        own = {}
    found = [
        inspect.Parameter(n, kind, default=own[n].default if n in own else inspect.Parameter.empty)
        for n in fn.arg_names
    ]
    return inspect.Signature(found)


def _signature_of(fn: Callable[..., Any], name: str) -> inspect.Signature:
    if not callable(fn):
        raise BadInput(
            f"{fn!r} of type {type(fn).__name__} is no kernel: "
            "good ones are callables and what tunesmith.cc.kernel returns"
        )
    try:
        found = inspect.signature(fn)
    except (TypeError, ValueError):
        raise BadInput(f"{name} does not say which arguments it takes: wrap it in a function that does") from None
    return found


def _name_of(fn: object) -> str:
    inner = getattr(fn, "fn", None) or getattr(fn, "func", None)  # a JIT-compiled function's, a partial's
    return str(getattr(fn, "__name__", None) or getattr(inner, "__name__", None) or type(fn).__name__)


# --- kernels that are built ------------------------------------------------------------------------


def built(
    build: Callable[..., Callable[..., Any]],
    *,
    signature_from: SignatureFrom,
    name: str | None = None,
    version: str | None = None,
    depends: Sequence[str] = (),
) -> BuiltKernel:
    """A kernel that `build(problem, **knobs)` makes, once for each Config and Problem; what it returns is called.

    Args:
        build: takes the Problem, then its knobs as keywords.
        signature_from: the runtime arguments: a callable that takes them, or their names.
        name: the build function's, if not given.
        version: stands for its content, where that can't be fingerprinted.
        depends: packages whose versions belong to what is stored with its results.
    """
    return BuiltKernel(build, runtime_signature(signature_from), name=name, version=version, depends=depends)


def runtime_signature(source: SignatureFrom) -> inspect.Signature:
    """The runtime parameters that `signature_from=` stands for.

    Raises:
        BadInput: for names that are none.
    """
    if isinstance(source, inspect.Signature):
        return source
    if callable(source):
        return _signature_of(source, _name_of(source))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    try:
        return inspect.Signature([inspect.Parameter(name, kind) for name in source])
    except (TypeError, ValueError) as error:
        raise BadInput(f"signature_from={source!r} are no argument names: {error}") from None


class _Build:
    """One executor, made by whoever comes first while others wait."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.executable: CallExecutable | None = None


class BuiltKernel(_InPython):
    """See `built`."""

    per_problem = True

    def __init__(
        self,
        build: Callable[..., Callable[..., Any]],
        signature: inspect.Signature,
        *,
        name: str | None,
        version: str | None,
        depends: Sequence[str],
    ) -> None:
        super().__init__(build, signature, version, depends)
        self._build, self.name = build, name or _name_of(build)
        parameters = list(_signature_of(build, self.name).parameters.values())
        if not parameters or parameters[0].kind not in _POSITIONAL:
            raise BadInput(f"{self.name} must take the Problem first: build(problem, **knobs)")
        self._parameters = parameters[1:]
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._builds: OrderedDict[tuple[Config, Problem], _Build] = OrderedDict()
        self._choosing = threading.Lock()

    @property
    def knobs(self) -> frozenset[str] | None:
        return None if self._takes_any else frozenset(p.name for p in self._parameters)

    def for_call(self, args: Sequence[Any]) -> BuiltKernel:
        return self

    def load(self, config: Config, problem: Problem, built: Built | None) -> CallExecutable:
        """Build a Config for a Problem, or take what was built before. What `build` raises passes through.

        Raises:
            SpaceError: for a knob that `build` does not take.
            BadInput: when it returns something that can't be called.
        """
        known = self.knobs
        for knob in config:
            if known is not None and knob not in known:
                raise SpaceError(f"{self.name}: {unknown('knob', knob, sorted(known))}")
        with self._choosing:
            one = self._builds.setdefault((config, problem), _Build())
            self._builds.move_to_end((config, problem))
            while len(self._builds) > _KEPT_BUILDS:
                self._builds.popitem(last=False)
        with one.lock:
            if one.executable is None:
                launch = self._build(problem, **config)
                if not callable(launch):
                    raise BadInput(
                        f"{self.name} returned {launch!r} for {config!r}; expected something that can be called"
                    )
                one.executable = CallExecutable(config, launch)
            return one.executable
