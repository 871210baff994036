"""Compiling a kernel for a GPU that is not here: arguments without memory, and a whole Space compiled for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

from tunesmith.core.config import Config
from tunesmith.core.device import Device, known_devices
from tunesmith.core.outcome import Failed, Resources
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, MissingEngine, OutOfResources
from tunesmith.kernel import Built, Job, Kernel
from tunesmith.workers import compile_all, job_or_failure

T = TypeVar("T")


class AheadKernel(Kernel, Protocol):
    """A Kernel that can be compiled for a GPU that is not here."""

    def for_target(self, make_inputs: Callable[[], Mapping[str, Any]], device: Device) -> AheadKernel:
        """What `for_call` returns for a call on such a device.

        Args:
            make_inputs: makes the call's arguments by name; of arrays dtype, shape and strides count.

        Raises:
            BadInput: for arguments that are no call.
        """
        ...

    def resources_of(self, config: Config, built: Built, device: Device) -> Resources:
        """What a compiled Config takes, read from its artifact.

        Raises:
            OutOfResources: when that is more than the device has.
        """
        ...


@dataclass(frozen=True)
class Compilation:
    """What came of one Config. Its artifacts lie in its language's cache, where a launch finds them."""

    config: Config
    failed: Failed | None
    resources: Resources
    seconds: float | None = None


def target_device(arch: str) -> Device:
    """A chip by its architecture: the first known one that has it.

    Raises:
        BadInput: for an architecture that no known chip has.
    """
    known = {device.arch: device for device in reversed(known_devices()) if device.kind != "cpu"}
    if arch not in known:
        raise BadInput(f"no chip of architecture {arch!r} is known; good values: {', '.join(sorted(known))}")
    return known[arch]


def without_memory(make: Callable[[], T]) -> T:
    """Call something that makes tensors, wherever it wants them, so that they have shapes, dtypes and no content.

    Raises:
        BadInput: where it does something that needs content or a GPU.
        MissingEngine: without torch.
    """
    if find_spec("torch") is None:
        raise MissingEngine(
            "make_inputs is called with torch's meta device, without a GPU: pip install 'tunesmith[torch]'"
        )
    import torch
    from torch.overrides import TorchFunctionMode

    class Meta(TorchFunctionMode):
        """Whatever is made on a device, or moved to one, is on none."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = dict(kwargs or {})
            name = getattr(func, "__name__", "")
            if name in ("cuda", "cpu", "hip", "pin_memory"):
                return args[0].to(device="meta")
            given.pop("generator", None)
            if "device" in given or name in _FACTORIES:
                given["device"] = "meta"
            if name == "to":
                args = tuple("meta" if _is_place(a) else a for a in args)
            given.pop("pin_memory", None)
            return func(*args, **given)

    def _is_place(value: Any) -> bool:
        return isinstance(value, torch.device) or (
            isinstance(value, str) and re.fullmatch(r"(cuda|cpu|hip)(:\d+)?", value) is not None
        )

    try:
        with Meta():
            return make()
    except (BadInput, RuntimeError, NotImplementedError, AssertionError) as error:
        if isinstance(error, BadInput) and error.__cause__ is None:  # not for want of content
            raise
        raise BadInput(
            f"{(str(error) or repr(error)).splitlines()[0]}; to run without a GPU it has to make its tensors by "
            "torch's functions (empty, randn, …) and read none of their content"
        ) from error


#: what makes a tensor of nothing: without `device=` it would take memory here
_FACTORIES = frozenset({
    "empty", "empty_strided", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace",
    "eye", "tensor", "normal",
})  # fmt: skip


def compile_space(
    kernel: AheadKernel,
    configs: Iterable[Config],
    make_inputs: Callable[[], Mapping[str, Any]],
    device: Device,
    jobs: int,
) -> Iterator[Compilation]:
    """Compile Configs for a device that need not be here, and yield each as it is done.

    Args:
        make_inputs: makes arguments by name, wherever it wants them; a grid is not needed.

    Raises:
        BadInput: for arguments that are no call, or that can't be made without a GPU.
    """
    return _compiled(kernel.for_target(lambda: without_memory(make_inputs), device), configs, device, jobs)


def _compiled(kernel: AheadKernel, configs: Iterable[Config], device: Device, jobs: int) -> Iterator[Compilation]:
    def tasks() -> Iterator[tuple[Config, Job | Failed | None]]:
        for config in configs:
            yield config, job_or_failure(lambda c=config: kernel.compile_job(c, Problem({}), device))

    for config, built in compile_all(tasks(), jobs):
        if isinstance(built, Failed):
            yield Compilation(config, built, Resources())
        elif isinstance(built, Built):
            try:
                yield Compilation(config, None, kernel.resources_of(config, built, device), built.seconds)
            except OutOfResources as error:
                yield Compilation(config, Failed("cut", str(error)), Resources(), built.seconds)
        else:
            raise BadInput(
                "Triton is set to report its compilations to this process, or to another cache: "
                "compile without triton.knobs.compilation.listener and TRITON_CACHE_MANAGER"
            )
