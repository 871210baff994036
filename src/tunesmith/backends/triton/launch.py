"""A compiled Triton kernel ready to launch: a generated function that goes straight to Triton's own launcher.

`JITFunction.run` finds out on every call what a warm key has told already: each argument's type, the options, the
binary. What it guards beside that stays guarded here: a captured global that has changed raises, launch hooks and
pre-run hooks are called (by it: with any of them set, and for arguments that need rewriting, it makes the launch),
and kernels are launched on the tensors' device, in its current stream.
"""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from tunesmith.backends.triton.grids import names_read
from tunesmith.backends.triton.resources import resources_of
from tunesmith.core.config import Config
from tunesmith.core.outcome import Resources

if TYPE_CHECKING:
    from tunesmith.backends.triton.kernel import TritonKernel
    from tunesmith.backends.triton.types import CallTypes

#: the parameter that stands before the JIT function's own: how many programs run
GRID = "grid"
_NOT_THERE = object()
_numbers = itertools.count()


@dataclass(frozen=True)
class TritonExecutable:
    """One compiled Config.

    Attributes:
        compiled: Triton's CompiledKernel; of a kernel with heuristics, the one for the call it was loaded for.
        always_slow: why JITFunction.run makes every launch; empty if it need not.
    """

    config: Config
    resources: Resources
    launch: Callable[..., Any]
    compiled: Any
    always_slow: str
    _jit: Any = field(repr=False)

    @property
    def slow_reason(self) -> str:
        """Why a launch would go through JITFunction.run at this moment; empty if it would not."""
        return self.always_slow or _hooked(self._jit)


def executable(kernel: TritonKernel, types: CallTypes, config: Config) -> TritonExecutable:
    """Load a Config on a call's device.

    Raises:
        triton.runtime.errors.OutOfResources: when the device does not have what it takes.
    """
    computed = kernel.computed(config, types.arguments())
    if kernel.heuristics:
        launches = _Launches(kernel, types, config)
        compiled, always_slow = launches.load(computed)
        launch: Callable[..., Any] = launches.launch
    else:
        launch, compiled, always_slow = _load(kernel, types, config, computed)
    metadata = {**compiled.metadata._asdict(), "target": {"warp_size": compiled.metadata.target.warp_size}}
    resources = resources_of(metadata, compiled.kernel, compiled.asm.get("amdgcn"))
    return TritonExecutable(config, resources, launch, compiled, always_slow, kernel.jit)


def _load(
    kernel: TritonKernel, types: CallTypes, config: Config, computed: Mapping[str, Any]
) -> tuple[Callable[..., Any], Any, str]:
    """(launch, CompiledKernel, why every launch is slow) for one set of compiled-in values."""
    compiled = types.source(config, computed).compile_here()
    with _on(types.index):
        compiled._init_handles()
    always_slow = types.odd or _watched()
    launch = _slow_launch(kernel, types, config, computed)
    if not always_slow:
        launch = _fast_launch(kernel, types, config, computed, compiled, launch)
    return launch, compiled, always_slow


class _Launches:
    """The launches of a Config by what heuristics say, which depends on each call's arguments."""

    def __init__(self, kernel: TritonKernel, types: CallTypes, config: Config) -> None:
        self._kernel, self._types, self._config = kernel, types, config
        self._known: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._names = list(kernel.signature.parameters)[1:]

    def load(self, computed: Mapping[str, Any]) -> tuple[Any, str]:
        launch, compiled, always_slow = _load(self._kernel, self._types, self._config, computed)
        self._known[_content(computed)] = launch
        return compiled, always_slow

    def launch(self, grid: Any, *args: Any) -> Any:
        computed = self._kernel.computed(self._config, dict(zip(self._names, args, strict=True)))
        content = _content(computed)
        if content not in self._known:
            self.load(computed)
        return self._known[content](grid, *args)


def _content(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """Values of constexprs, of which `True`, `1` and `1.0` are three."""
    return tuple([(type(value), value) for value in values.values()])


# --- the fast way ------------------------------------------------------------------------------------


def _fast_launch(
    kernel: TritonKernel, types: CallTypes, config: Config, computed: Mapping[str, Any], compiled: Any,
    slow: Callable[..., Any],
) -> Callable[..., Any]:  # fmt: skip
    """Write the function for one signature: no loop, no `inspect`, nothing looked up that can't change."""
    from triton import knobs
    from triton.runtime import driver

    jit, runtime = kernel.jit, list(kernel.signature.parameters)[1:]
    p = "_t"  # every name below begins with it, and no parameter does
    while any(name.startswith(p) for name in runtime):
        p += "_"
    run, middle = _launcher(compiled, p)
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    space: dict[str, Any] = {
        f"{p}run": run, f"{p}function": compiled.function, f"{p}packed": compiled.packed_metadata,
        f"{p}compiled": compiled, f"{p}runtime": knobs.runtime, f"{p}enter": enter, f"{p}exit": leave,
        f"{p}enter_calls": _calls(enter), f"{p}exit_calls": _calls(leave), f"{p}before": jit.pre_run_hooks,
        f"{p}slow": slow, f"{p}stream": driver.active.get_current_stream,
    }  # fmt: skip
    constants: dict[str, str] = {}
    for i, (name, value) in enumerate({**config, **computed}.items()):
        constants[name] = f"{p}{i}"
        space[f"{p}{i}"] = value
    words = {**{n: f"{n}.data_ptr()" if n in types.tensors else n for n in runtime}, **constants}
    passed = ", ".join(words[n] for n in jit.arg_names)
    named = {**{name: name for name in runtime}, **constants}
    arguments = ", ".join([GRID, *runtime])
    guards = f"""
    if ({p}runtime.launch_enter_hook is not {p}enter or {p}enter_calls
            or {p}runtime.launch_exit_hook is not {p}exit or {p}exit_calls or {p}before):
        return {p}slow({arguments})"""
    if jit.used_global_vals:
        space[f"{p}check_globals"] = _globals_check(jit.used_global_vals)
        guards += f"\n    {p}check_globals()"
    if not _only_device():
        space.update({f"{p}device": _current_device(), f"{p}on": _on})
        guards += f"""
    if {p}device() != {types.index}:
        with {p}on({types.index}):
            return {p}launch({arguments})"""
    text = f"""def {p}launch({arguments}):{guards}
    if grid.__class__ is {p}function_type:
        if grid.__code__ is {p}known_grid:
            grid = grid({{{p}WANTED}})
        else:
            grid = {p}new_grid(grid)({{{p}ALL}})
    elif callable(grid):
        grid = grid({{{p}ALL}})
    {p}n = len(grid)
    {p}run(grid[0], grid[1] if {p}n > 1 else 1, grid[2] if {p}n > 2 else 1, {p}stream({types.index}), {p}function,
        {middle}, None, None, None, {passed})
    return {p}compiled
"""
    return _Source(kernel.name, text, p, named, space).launch


class _Source:
    """The source of one launch. It is written anew for the first grid function that comes.

    A grid function gets all arguments and knobs by name, of which it reads a few. To gather all of them costs more
    than anything else here, so the dictionary for a function of which it is known what it reads has these alone.
    """

    def __init__(self, kernel: str, text: str, p: str, named: Mapping[str, str], space: dict[str, Any]) -> None:
        self._text, self._p, self._named, self._space = text, p, named, space
        self._filename = f"<tunesmith: launch of {kernel}, {next(_numbers)}>"
        space.update({f"{p}function_type": FunctionType, f"{p}known_grid": None, f"{p}new_grid": self._new_grid})
        self._known: Any = None
        self.launch = space[f"{p}launch"] = self._written(named)
        weakref.finalize(self.launch, linecache.cache.pop, self._filename, None).atexit = False

    def _written(self, wanted: Mapping[str, str]) -> FunctionType:
        p = self._p
        text = self._text
        for mark, names in ((f"{p}WANTED", wanted), (f"{p}ALL", self._named)):
            text = text.replace(mark, ", ".join(f"{name!r}: {word}" for name, word in names.items()))
        made: dict[str, Any] = {}
        exec(compile(text, self._filename, "exec"), self._space, made)
        linecache.cache[self._filename] = (len(text), None, text.splitlines(keepends=True), self._filename)
        return cast("FunctionType", made[f"{p}launch"])

    def _new_grid(self, grid: FunctionType) -> FunctionType:
        """Another grid function than the one the launch is written for: the first is the one."""
        if self._known is None:
            names = names_read(grid)
            wanted = self._named if names is None else {n: w for n, w in self._named.items() if n in names}
            self.launch.__code__ = self._written(wanted).__code__
            self._known = self._space[f"{self._p}known_grid"] = grid.__code__
        return grid


def _launcher(compiled: Any, p: str) -> tuple[Callable[..., Any], str]:
    """What is called, and its arguments between the function and launch metadata.

    In Triton 3.6 the launcher is a Python method around a C function, there to allocate scratch memory: a kernel
    that needs none is launched by the C function itself.
    """
    run = compiled.run
    needs_scratch = getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1)
    if type(run).__name__ != "CudaLauncher" or needs_scratch or not _is_3_6():
        return run, f"{p}packed"
    return run.launch, f"{bool(run.launch_cooperative_grid)}, {bool(run.launch_pdl)}, None, None, {p}packed"


def _is_3_6() -> bool:
    import triton

    return str(triton.__version__).startswith("3.6.")


def _calls(hook: Any) -> Any:
    """The list of a hook chain, which is changed in place; of a plain hook, that there is one."""
    return getattr(hook, "calls", hook is not None)


def _globals_check(used: Mapping[tuple[str, int], tuple[Any, dict[str, Any]]]) -> Callable[[], None]:
    """What raises, as JITFunction.run does, once a global that is compiled in has another value."""
    compiled_in = [(name, value, space) for (name, _), (value, space) in used.items()]

    def check() -> None:
        for name, value, space in compiled_in:
            now = space.get(name, _NOT_THERE)
            if now is not value and now != value:
                raise RuntimeError(
                    f"Global variable {name} has changed since we compiled this kernel, from {value} to {now}"
                )

    return check


# --- the ordinary way ----------------------------------------------------------------------------------


def _slow_launch(
    kernel: TritonKernel, types: CallTypes, config: Config, computed: Mapping[str, Any]
) -> Callable[..., Any]:
    names = list(kernel.signature.parameters)[1:]
    in_signature = set(kernel.jit.arg_names)
    fixed = {n: v for n, v in {**config, **computed}.items() if v is not None or n in in_signature}

    def launch(grid: Any, *args: Any) -> Any:
        with _on(types.index):
            return kernel.jit.run(grid=grid, warmup=False, **dict(zip(names, args, strict=True)), **fixed)

    return launch


def _watched() -> str:
    """Whether someone in this process is to be told of each compilation through a JIT function."""
    from triton import knobs

    for hook in ("jit_cache_hook", "jit_post_compile_hook"):
        if getattr(knobs.runtime, hook) is not None:
            return f"triton.knobs.runtime.{hook} is set"
    return ""


def _hooked(jit: Any) -> str:
    from triton import knobs

    for hook in ("launch_enter_hook", "launch_exit_hook"):
        if _calls(getattr(knobs.runtime, hook)):
            return f"triton.knobs.runtime.{hook} is set"
    return f"{jit.__name__} has pre_run_hooks" if jit.pre_run_hooks else ""


# --- devices -------------------------------------------------------------------------------------------


def _only_device() -> bool:
    """Whether there is one GPU, so that it is always the current one."""
    import torch

    return torch.cuda.is_available() and torch.cuda.device_count() == 1


def _current_device() -> Callable[[], int]:
    """What tells the current device, past torch's Python where that is what Triton would ask."""
    import torch
    from triton.runtime import driver

    asked = driver.active.get_current_device
    return cast("Callable[[], int]", torch._C._cuda_getDevice if asked is torch.cuda.current_device else asked)


@contextmanager
def _on(index: int | None) -> Generator[None]:
    """Within this scope a device is the current one."""
    from triton.runtime import driver

    before = driver.active.get_current_device()
    if index is None or index == before:
        yield
        return
    driver.active.set_current_device(index)
    try:
        yield
    finally:
        driver.active.set_current_device(before)
