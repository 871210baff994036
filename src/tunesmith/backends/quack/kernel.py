"""`QuackKernel`: a function under quack's `@autotune` as the tuner sees it, compiled through quack's own cache.

quack compiles inside a call. What would be compiled is found by a call on tensors without memory, in which quack is
told that a pool of workers takes the compilation: it then stops before anything is launched. A child of ours compiles
that into quack's cache, where the real call finds it.
"""

from __future__ import annotations

import base64
import copy
import importlib
import inspect
import os
import pickle
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tunesmith import fingerprint
from tunesmith.backends.artifacts import digest
from tunesmith.backends.cpu import device_of
from tunesmith.backends.cubin import usage
from tunesmith.backends.cuda.compile import target
from tunesmith.backends.cute import compile as cute
from tunesmith.backends.cute.object_file import cubin_in
from tunesmith.backends.quack.configs import config_of, kwargs_of
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.dispatch.arguments import is_array, strides_of
from tunesmith.errors import BadInput, MissingEngine, SpaceError, unknown
from tunesmith.kernel import Built, Specialised, Task

INSTALL = "pip install quack-kernels triton"
#: quack's pool is a variable of its module
_discovering = threading.Lock()


def module(name: str) -> Any:
    """A module of quack's: `quack.rmsnorm` is also a function, by which an import statement may be answered.

    Raises:
        MissingEngine: when it can't be imported.
    """
    try:
        return importlib.import_module(f"quack.{name}")
    except ImportError as error:
        raise MissingEngine(f"quack can't be imported ({error}): {INSTALL}") from error


@dataclass(frozen=True)
class QuackExecutable:
    """A function of quack's with its configuration set."""

    config: Config
    resources: Resources
    launch: Callable[..., Any]


@dataclass(frozen=True)
class _Shape:
    """A tensor as it is compiled for."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


@dataclass
class Pending:
    """Stands for quack's pool of workers: notes what it is to compile."""

    jobs: list[tuple[Any, tuple[Any, ...], dict[str, Any], Path]] = field(default_factory=list[Any])

    def poll(self, sha: str) -> tuple[str, None]:
        return "new", None

    def submit(self, sha: str, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> bool:
        self.jobs.append((fn, args, kwargs, Path(output)))
        return True

    def mark_external(self, sha: str, output: str, lock: str) -> None:
        """Somebody compiles this already: so may we, under quack's lock."""


class QuackKernel:
    """A kernel of quack's.

    Args:
        tuner: what quack's `@autotune` made.

    Raises:
        BadInput: for one that can't be called by position, or whose configurations are no values of ours.
    """

    backend = "quack"
    per_problem = False
    specialised = Specialised()  # quack's own call tells binaries apart

    def __init__(self, tuner: Any) -> None:
        self.tuner, self.function = tuner, tuner.fn
        self.name = str(tuner.fn.__name__)
        self.like = tuner.configs[0]
        self.knobs = frozenset(config_of(self.like))
        kept: list[inspect.Parameter] = []
        for p in inspect.signature(tuner.fn).parameters.values():
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise BadInput(f"quack's {self.name} takes *{p.name}, which can't be named")
            if p.name not in self.like.kwargs:
                kept.append(p.replace(kind=p.POSITIONAL_OR_KEYWORD))
        kept.sort(key=lambda p: p.default is not p.empty)
        self.signature = inspect.Signature([p.replace(annotation=p.empty) for p in kept])
        self.tensors = tuple(p.name for p in kept if _is_tensor(p.annotation))
        self._given: dict[str, Any] | None = None

    @cached_property
    def _fingerprint(self) -> str:
        source = module("cache.jit")._compute_source_fingerprint()
        return digest("tunesmith-quack/1", self.function.__module__, self.name, source)

    def fingerprint(self) -> str:
        return self._fingerprint

    def environment(self) -> Mapping[str, str]:
        arch = os.environ.get("QUACK_ARCH")
        return {**cute.environment(), **({} if arch is None else {"QUACK_ARCH": arch})}

    def versions(self) -> Mapping[str, str]:
        return {**fingerprint.versions(["quack-kernels", "torch"]), **cute.versions()}

    def device(self, args: Sequence[Any]) -> Device:
        return device_of(dict(zip(self.signature.parameters, args, strict=False)))

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {}

    def for_call(self, args: Sequence[Any]) -> QuackKernel:
        bound = copy.copy(self)
        bound._given = {
            name: _Shape(tuple(value.shape), strides_of(name, value), value.dtype) if is_array(value) else value
            for name, value in zip(self.signature.parameters, args, strict=True)
        }
        return bound

    def for_target(self, make_inputs: Callable[[], Mapping[str, Any]], device: Device) -> QuackKernel:
        """This kernel for arguments on a device that need not be here.

        Raises:
            BadInput: for arguments that are no call.
        """
        try:
            bound = self.signature.bind(**make_inputs())
        except TypeError as error:
            raise BadInput(f"{self.name}: make_inputs does not make what a call takes: {error}") from None
        bound.apply_defaults()
        return self.for_call(tuple(bound.arguments.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuackKernel) and (self.tuner, self._given) == (other.tuner, other._given)

    def __hash__(self) -> int:
        return hash(id(self.tuner))

    def check(self, config: Config) -> dict[str, Any]:
        """What quack's function is given for a Config.

        Raises:
            SpaceError: for a Config that is none of quack's.
        """
        for knob in config:
            if knob not in self.knobs:
                raise SpaceError(f"{self.name}: {unknown('knob', knob, sorted(self.knobs))}")
        try:
            return kwargs_of(config, self.like)
        except BadInput as error:
            raise SpaceError(f"{self.name}: {error}") from None

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Task | None:
        """What compiles a Config; `None` where quack has it already, or compiles in the call itself.

        Raises:
            SpaceError: for a Config that is none of quack's.
        """
        kwargs = self.check(config)
        if self._given is None:
            raise BadInput(f"{self.name} is compiled for the types of a call's arguments: use kernel.for_call(args)")
        arch = target(device.arch)
        with _pending(arch) as pending:
            self._try(kwargs)
        if len(pending.jobs) != 1:
            return None
        fn, args, named, output = pending.jobs[0]
        # To a process of our own, as quack's pool does it: CuTe's types are no JSON.
        key = base64.b64encode(pickle.dumps((args, named))).decode()
        request = {"module": fn.__module__, "name": fn.__qualname__, "key": key, "output": str(output), "arch": arch}
        return Task("tunesmith.backends.quack.child:compile_key", lambda: request, output, timeout_s=cute.TIMEOUT_S)

    def _try(self, kwargs: Mapping[str, Any]) -> None:
        """Call quack's function on tensors without memory: it says what it would compile, and can launch nothing."""
        import torch

        waiting = module("cache.async_compile")
        given = {
            name: torch.empty_strided(one.sizes, one.strides, dtype=one.dtype, device="meta")
            if isinstance(one, _Shape)
            else one
            for name, one in (self._given or {}).items()
        }
        # What else it raises: it has been compiled, and such tensors are refused; or quack looks at their content, and
        # what is wrong with it the real call says.
        refused = (RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError, AttributeError)
        with suppress(waiting.CompilePending, *refused):
            self.function(**given, **kwargs)

    def resources_of(self, config: Config, built: Built, device: Device) -> Resources:
        found = usage(cubin_in(built.path.read_bytes()))
        return Resources(found.registers, found.stack_words)

    def load(self, config: Config, problem: Problem, built: Built | None) -> QuackExecutable:
        """Set the configuration. What was not compiled ahead is when it is first launched."""
        names = list(self.signature.parameters)
        space = {"_function": self.function, **{f"_{name}": value for name, value in self.check(config).items()}}
        passed = [*(f"{n}={n}" for n in names), *(f"{n}=_{n}" for n in self.like.kwargs)]
        launch = cast("Callable[..., Any]", eval(f"lambda {', '.join(names)}: _function({', '.join(passed)})", space))
        resources = Resources() if built is None else self.resources_of(config, built, device_of({}))
        return QuackExecutable(config, resources, launch)


def _is_tensor(annotation: Any) -> bool:
    spelled = str(annotation)
    return "Tensor" in spelled and "float" not in spelled and "int" not in spelled


@contextmanager
def _pending(arch: str) -> Generator[Pending]:
    """Within this scope quack, on tensors that are nowhere, compiles for a chip, and what it compiles is noted."""
    waiting, pending = module("cache.async_compile"), Pending()
    with _discovering:
        pool, own = waiting._active_pool, os.environ.get("QUACK_ARCH")
        waiting._active_pool = pending
        os.environ.setdefault("QUACK_ARCH", arch.removeprefix("sm_").rstrip("a"))
        try:
            yield pending
        finally:
            waiting._active_pool = pool
            if own is None:
                del os.environ["QUACK_ARCH"]
