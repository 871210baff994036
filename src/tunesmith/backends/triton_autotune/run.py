"""Triton kernels launched the ordinary way, through `run`: where a Config has a pre-hook, a wrapper is not Triton's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, cast

from tunesmith import fingerprint
from tunesmith.backends.cpu import device_of
from tunesmith.backends.triton.devices import on_device
from tunesmith.backends.triton.written import GRID
from tunesmith.backends.triton_autotune.configs import computed_names, is_interpreted, python_function
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.dispatch.arguments import leaves
from tunesmith.kernel import Built, Job, Kernel, Specialised

#: a Config's pre-hook: given the arguments and knobs by name, it may change what they hold
PreHook: TypeAlias = "Callable[[dict[str, Any]], object]"


@dataclass(frozen=True)
class RunExecutable:
    """One Config of a kernel, launched by `run(…, grid=grid, warmup=False, **config)`.

    Attributes:
        bare: the launch without the Config's pre-hook.
        slow_reason: why it is launched this way.
    """

    config: Config
    launch: Callable[..., Any]
    bare: Callable[..., Any]
    slow_reason: str
    resources: Resources = field(default_factory=Resources)


class WrappedKernel:
    """Anything with `fn`, `arg_names` and `run` as a Kernel. What its `run` does with the arguments is its own.

    Args:
        fn: the wrapper.
        knobs: which arguments and options a Config sets.
        name: the function's own, if not given.
        version: stands for its content, where that can't be fingerprinted.
        depends: packages whose versions belong to what is stored with its results.
    """

    backend = "triton"
    specialised = Specialised()
    per_problem = False

    def __init__(
        self,
        fn: Any,
        knobs: frozenset[str],
        *,
        name: str | None = None,
        version: str | None = None,
        depends: Sequence[str] = (),
    ) -> None:
        self.fn, self._version, self._depends = fn, version, tuple(depends)
        self._python = python_function(fn)
        self.name = name or str(getattr(self._python, "__name__", type(fn).__name__))
        self.knobs: frozenset[str] | None = knobs
        self.signature = runtime_signature(fn, knobs)

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint.of_function(self._python, version=self._version)

    @property
    def why_no_times(self) -> str:
        """Why nothing is measured, and what to do instead; empty where something can be."""
        if not is_interpreted(self.fn):
            return ""
        return (
            "TRITON_INTERPRET is set, and the interpreter's times say nothing of a GPU. `tunesmith verify` checks "
            "results in it; unset it to compile, or to search on a machine with a GPU"
        )

    def fingerprint(self) -> str:
        return self._fingerprint

    def versions(self) -> Mapping[str, str]:
        return fingerprint.versions(("triton", *self._depends))

    def environment(self) -> Mapping[str, str]:
        return {}

    def for_call(self, args: Sequence[Any]) -> WrappedKernel:
        return self

    def device(self, args: Sequence[Any]) -> Device:
        named = zip(self.signature.parameters, args, strict=False)
        return device_of(dict(leaf for name, value in named for leaf in leaves(name, value)))

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {}

    def compile_job(self, config: Config, problem: Problem, device: Device) -> None:
        return None

    def load(self, config: Config, problem: Problem, built: Built | None) -> RunExecutable:
        launch = ordinary_launch(self.fn, self.signature, config)
        return RunExecutable(config, launch, launch, f"{self.name} is no plain function of triton.jit")


@dataclass(frozen=True)
class HookedKernel:
    """A Kernel some of whose Configs have a pre-hook, which may change what the compiler relies on.

    Such a Config is launched the ordinary way, which looks at the arguments after the hook.

    Attributes:
        inner: the Kernel as it is for all other Configs.
        fn: what `run` is asked of.
    """

    inner: Kernel
    fn: Any
    hooks: Mapping[Config, PreHook] = field(hash=False)

    backend = "triton"

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def signature(self) -> inspect.Signature:
        return self.inner.signature

    @property
    def knobs(self) -> frozenset[str] | None:
        return self.inner.knobs

    @property
    def specialised(self) -> Specialised:
        return self.inner.specialised

    @property
    def per_problem(self) -> bool:
        return self.inner.per_problem

    def fingerprint(self) -> str:
        return self.inner.fingerprint()

    def versions(self) -> Mapping[str, str]:
        return self.inner.versions()

    def environment(self) -> Mapping[str, str]:
        return self.inner.environment()

    def for_call(self, args: Sequence[Any]) -> HookedKernel:
        return HookedKernel(self.inner.for_call(args), self.fn, self.hooks)

    def device(self, args: Sequence[Any]) -> Device:
        return self.inner.device(args)

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return self.inner.dtypes()

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Job | None:
        return None if config in self.hooks else self.inner.compile_job(config, problem, device)

    def load(self, config: Config, problem: Problem, built: Built | None) -> Any:
        hook = self.hooks.get(config)
        if hook is None:
            return self.inner.load(config, problem, built)
        names = list(self.signature.parameters)
        bare = ordinary_launch(self.fn, self.signature, config)

        def launch(*args: Any) -> Any:
            hook({**dict(zip(names, args, strict=True)), "warmup": False, **config})
            return bare(*args)

        return RunExecutable(config, launch, bare, "its Config has a pre_hook")


def runtime_signature(fn: Any, knobs: frozenset[str]) -> inspect.Signature:
    """The grid, then the arguments that no Config sets and no heuristic computes, with their defaults."""
    try:
        own: Mapping[str, inspect.Parameter] = inspect.signature(python_function(fn)).parameters
    except (TypeError, ValueError):  # arg_names says enough
        own = {}
    computed = computed_names(fn)
    left = [name for name in fn.arg_names if name not in knobs and name not in computed]
    usual = inspect.Parameter.POSITIONAL_OR_KEYWORD
    found = [own[name].replace(annotation=inspect.Parameter.empty) if name in own else inspect.Parameter(name, usual)
             for name in left]  # fmt: skip
    return inspect.Signature([inspect.Parameter(GRID, usual), *found])


def ordinary_launch(fn: Any, signature: inspect.Signature, config: Config) -> Callable[..., Any]:
    """`fn.run` with a Config: a generated lambda of the runtime arguments, the grid first.

    The leading ones go on by position, as callers of Triton's kernels mostly pass them: `run` binds these faster.

    Args:
        signature: the kernel's, which begins with the grid.
    """
    names = list(signature.parameters)
    space: dict[str, Any] = {"_run": _placed(fn.run)}
    passed: list[str] = []
    for i, name in enumerate(names[1:]):
        by_position = names[1 : i + 2] == list(fn.arg_names[: i + 1])
        by_position = by_position and signature.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
        passed.append(name if by_position else f"{name}={name}")
    passed += [f"{GRID}={GRID}", "warmup=False"]
    for i, (knob, value) in enumerate(config.items()):
        space[f"_knob{i}"] = value
        passed.append(f"{knob}=_knob{i}" if knob.isidentifier() else f"**{{{knob!r}: _knob{i}}}")
    return cast("Callable[..., Any]", eval(f"lambda {', '.join(names)}: _run({', '.join(passed)})", space))


def _placed(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` on the device of the arguments: Triton's own takes the current one."""

    def run_there(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            device = getattr(getattr(value, "base", value), "device", None)
            if getattr(device, "type", "") == "cuda":
                with on_device(cast(Any, device).index):
                    return run(*args, **kwargs)
        return run(*args, **kwargs)

    return run_there
