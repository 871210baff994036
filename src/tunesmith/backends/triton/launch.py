"""A compiled Triton kernel ready to launch: mostly by a written function that goes straight to Triton's own launcher.

`JITFunction.run` finds out on every call what a warm key has told already: each argument's type, the options, the
binary. What it guards beside that stays guarded here: a captured global that has changed raises, launch hooks and
pre-run hooks are called (by it: with any of them set, and for arguments that need rewriting, it makes the launch),
and kernels are launched on the tensors' device, in its current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tunesmith.backends.triton.devices import on_device
from tunesmith.backends.triton.resources import resources_of
from tunesmith.backends.triton.written import calls, fast_launch
from tunesmith.core.config import Config
from tunesmith.core.outcome import Resources
from tunesmith.dispatch.arguments import exactly

if TYPE_CHECKING:
    from tunesmith.backends.triton.kernel import TritonKernel
    from tunesmith.backends.triton.types import CallTypes


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
    with on_device(types.index):
        compiled._init_handles()
    always_slow = types.odd or _watched()
    launch = _slow_launch(kernel, types, config, computed)
    if not always_slow:
        launch = fast_launch(kernel, types, config, computed, compiled, launch)
    return launch, compiled, always_slow


class _Launches:
    """The launches of a Config by what heuristics say, which depends on each call's arguments."""

    def __init__(self, kernel: TritonKernel, types: CallTypes, config: Config) -> None:
        self._kernel, self._types, self._config = kernel, types, config
        self._known: dict[object, Callable[..., Any]] = {}
        self._names = list(kernel.signature.parameters)[1:]

    def load(self, computed: Mapping[str, Any]) -> tuple[Any, str]:
        launch, compiled, always_slow = _load(self._kernel, self._types, self._config, computed)
        self._known[exactly(tuple(computed.values()))] = launch
        return compiled, always_slow

    def launch(self, grid: Any, *args: Any) -> Any:
        computed = self._kernel.computed(self._config, dict(zip(self._names, args, strict=True)))
        content = exactly(tuple(computed.values()))
        if content not in self._known:
            self.load(computed)
        return self._known[content](grid, *args)


# --- the ordinary way ----------------------------------------------------------------------------------


def _slow_launch(
    kernel: TritonKernel, types: CallTypes, config: Config, computed: Mapping[str, Any]
) -> Callable[..., Any]:
    names = list(kernel.signature.parameters)[1:]
    in_signature = set(kernel.jit.arg_names)
    fixed = {n: v for n, v in {**config, **computed}.items() if v is not None or n in in_signature}

    def launch(grid: Any, *args: Any) -> Any:
        with on_device(types.index):
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
        if calls(getattr(knobs.runtime, hook)):
            return f"triton.knobs.runtime.{hook} is set"
    return f"{jit.__name__} has pre_run_hooks" if jit.pre_run_hooks else ""
