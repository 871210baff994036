"""Writes the launch of one compiled Triton kernel as Python source: from a call's arguments to Triton's own launcher.

No loop, no `inspect`, and nothing is looked up that can't change. What JITFunction.run guards on every call stays
guarded: hooks, captured globals, the current device and stream.
"""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from tunesmith.backends.triton.devices import current_device, on_device, only_device
from tunesmith.backends.triton.grids import names_read
from tunesmith.core.config import Config

if TYPE_CHECKING:
    from tunesmith.backends.triton.kernel import TritonKernel
    from tunesmith.backends.triton.types import CallTypes

#: the parameter that stands before the JIT function's own: how many programs run
GRID = "grid"
_NOT_THERE = object()
_numbers = itertools.count()


def fast_launch(
    kernel: TritonKernel, types: CallTypes, config: Config, computed: Mapping[str, Any], compiled: Any,
    slow: Callable[..., Any],
) -> Callable[..., Any]:  # fmt: skip
    """The function for one signature. It takes the grid, the arguments, and the addresses of `takes_addresses`.

    Args:
        slow: launches by JITFunction.run, where a hook wants to see it.
    """
    jit, runtime = kernel.jit, list(kernel.signature.parameters)[1:]
    p = "_t"  # every name below begins with it, and no parameter does
    while any(name.startswith(p) for name in runtime):
        p += "_"
    tensors = tuple(name for name in runtime if name in types.tensors)
    constants = {**config, **computed}
    words = {name: f"{p}{i}" for i, name in enumerate(constants)}
    space = {**_space(jit, compiled, slow, p), **{words[name]: value for name, value in constants.items()}}
    guards = _guards(jit, types, [GRID, *runtime], space, p)
    passed = {**{name: f"{p}at_{name}" if name in tensors else name for name in runtime}, **words}
    text = _text(_launcher(compiled, p, space), guards, runtime, tensors, [passed[n] for n in jit.arg_names], types, p)
    launch = _Source(kernel.name, text, p, {**{name: name for name in runtime}, **words}, space).launch
    cast(Any, launch).takes_addresses = tensors
    return launch


def _space(jit: Any, compiled: Any, slow: Callable[..., Any], p: str) -> dict[str, Any]:
    """The names that the source reads."""
    from triton import knobs
    from triton.runtime import driver

    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return {
        f"{p}function": compiled.function, f"{p}packed": compiled.packed_metadata, f"{p}compiled": compiled,
        f"{p}runtime": knobs.runtime, f"{p}enter": enter, f"{p}exit": leave, f"{p}enter_calls": calls(enter),
        f"{p}exit_calls": calls(leave), f"{p}before": jit.pre_run_hooks, f"{p}slow": slow,
        f"{p}stream": driver.active.get_current_stream, f"{p}len": len, f"{p}callable": callable,
    }  # fmt: skip


def _guards(jit: Any, types: CallTypes, parameters: Sequence[str], space: dict[str, Any], p: str) -> str:
    """What has to hold before the launch, each time."""
    arguments = ", ".join(parameters)
    guards = f"""
    if ({p}runtime.launch_enter_hook is not {p}enter or {p}enter_calls
            or {p}runtime.launch_exit_hook is not {p}exit or {p}exit_calls or {p}before):
        return {p}slow({arguments})"""
    if types.near:  # a warm key does not tell how large a tensor's storage is
        space[f"{p}near"] = types.binder.backend.is_within_2gb
        guards += f"""
    if not ({" and ".join(f"{p}near({name})" for name in types.near)}):
        return {p}slow({arguments})"""
    if jit.used_global_vals:
        space[f"{p}check_globals"] = _globals_check(jit.used_global_vals)
        guards += f"\n    {p}check_globals()"
    if not only_device():
        space.update({f"{p}device": current_device(), f"{p}on": on_device})
        guards += f"""
    if {p}device() != {types.index}:
        with {p}on({types.index}):
            return {p}launch({arguments})"""
    return guards


def _text(
    launcher: str, guards: str, runtime: Sequence[str], tensors: Sequence[str], passed: Sequence[str],
    types: CallTypes, p: str,
) -> str:  # fmt: skip
    addresses = "".join(f", {p}at_{name}=None" for name in tensors)
    read = "".join(f"\n        {p}at_{name} = {name}.data_ptr()" for name in tensors)
    read = f"\n    if {p}at_{tensors[0]} is None:{read}" if tensors else ""
    return f"""def {p}launch({", ".join([GRID, *runtime])}{addresses}):{guards}{read}
    if grid.__class__ is {p}function_type:
        if grid.__code__ is {p}known_grid:
            grid = grid({{{p}WANTED}})
        else:
            grid = {p}new_grid(grid)({{{p}ALL}})
    elif {p}callable(grid):
        grid = grid({{{p}ALL}})
    {p}n = {p}len(grid)
    {p}run(grid[0], grid[1] if {p}n > 1 else 1, grid[2] if {p}n > 2 else 1, {p}stream({types.index}), {p}function,
        {launcher}, None, None, None, {", ".join(passed)})
    return {p}compiled
"""


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


def _launcher(compiled: Any, p: str, space: dict[str, Any]) -> str:
    """The launcher's arguments between the function and launch metadata; the launcher goes among the names.

    In Triton 3.6 the launcher is a Python method around a C function, there to allocate scratch memory: a kernel
    that needs none is launched by the C function itself.
    """
    run = compiled.run
    needs_scratch = getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1)
    if type(run).__name__ != "CudaLauncher" or needs_scratch or not _is_3_6():
        space[f"{p}run"] = run
        return f"{p}packed"
    space[f"{p}run"] = run.launch
    return f"{bool(run.launch_cooperative_grid)}, {bool(run.launch_pdl)}, None, None, {p}packed"


def _is_3_6() -> bool:
    import triton

    return str(triton.__version__).startswith("3.6.")


def calls(hook: Any) -> Any:
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
