"""CUDA's driver through `cuda.bindings`: devices, contexts, binaries, streams. Nothing here needs torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from uuid import UUID

from tunesmith.backends.cpu import gpu_at
from tunesmith.backends.cuda.compile import INSTALL
from tunesmith.core.device import Device, known_devices
from tunesmith.errors import DeviceError, MissingEngine

#: what a thread that has never used CUDA is told
INVALID_CONTEXT = 201
_AHEAD = "to compile for a GPU that is not here: tunesmith compile FILE.py:KERNEL --target sm_90"


@cache
def driver() -> Any:
    """The driver's functions, ready to use.

    Raises:
        MissingEngine: without its Python bindings, a driver, or a GPU.
    """
    try:
        found: Any = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise MissingEngine(f"CUDA kernels are launched through cuda-bindings ({error}): {INSTALL}") from None
    try:
        (code,) = found.cuInit(0)
    except (RuntimeError, OSError) as error:  # its loader's own errors are RuntimeErrors
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise MissingEngine(f"no NVIDIA driver can be loaded, which launching needs ({line}); {_AHEAD}") from None
    if int(code):
        raise MissingEngine(f"the NVIDIA driver finds no GPU to launch on ({code.name}); {_AHEAD}")
    return found


def done(answer: Sequence[Any], what: str) -> Any:
    """What a function of the driver's returned beside its code.

    Raises:
        DeviceError: when the code is not success, with the driver's words for it.
    """
    if int(answer[0]):
        raise DeviceError(f"{what}: {said(answer[0])}")
    return answer[1] if len(answer) > 1 else None


def said(code: Any) -> str:
    """`CUDA_ERROR_INVALID_VALUE (invalid argument)`."""
    cuda = driver()
    words = [part[1].decode() for part in (cuda.cuGetErrorName(code), cuda.cuGetErrorString(code)) if not int(part[0])]
    return f"{words[0]} ({words[1]})" if len(words) == 2 else str(code)


# --- devices -----------------------------------------------------------------------------------------


@cache
def device_count() -> int:
    """GPUs that this process may use."""
    return int(done(driver().cuDeviceGetCount(), "counting GPUs"))


@cache
def device_at(index: int) -> Device:
    """A GPU, as torch describes it where that is in use; the driver says the same.

    Raises:
        MissingEngine: without a driver or a GPU.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return gpu_at(index)
    cuda = driver()
    handle = done(cuda.cuDeviceGet(index), f"GPU {index}")

    def read(name: str) -> int:
        attribute = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(done(cuda.cuDeviceGetAttribute(attribute, handle), name))

    name = done(cuda.cuDeviceGetName(256, handle), "a GPU's name").split(b"\0")[0].decode()
    arch = f"sm_{read('COMPUTE_CAPABILITY_MAJOR')}{read('COMPUTE_CAPABILITY_MINOR')}"
    units = read("MULTIPROCESSOR_COUNT")
    known = next((d for d in known_devices() if d.name == name and d.arch == arch), None)
    uid = _uid(handle, index)
    if known is not None:
        return replace(known, units=units, uid=uid)
    return Device(
        "cuda", name, arch, units, uid=uid,
        registers_per_unit=read("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        shared_bytes_per_block=read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        shared_bytes_per_unit=read("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        threads_per_unit=read("MAX_THREADS_PER_MULTIPROCESSOR"), warp=read("WARP_SIZE"), l2_bytes=read("L2_CACHE_SIZE"),
        memory_bytes=int(done(cuda.cuDeviceTotalMem(handle), "a GPU's memory")),
    )  # fmt: skip


def _uid(handle: Any, index: int) -> str:
    """Which of a host's GPUs it is, as torch says it; not the index, which CUDA_VISIBLE_DEVICES changes."""
    read = getattr(driver(), "cuDeviceGetUuid", None)
    return str(index) if read is None else str(UUID(bytes=done(read(handle), "a GPU's UUID").bytes))


def current_index() -> int:
    """The current device: torch's where that is in use."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    cuda = driver()
    code, handle = cuda.cuCtxGetDevice()
    return 0 if int(code) else int(handle)


@cache
def _context(index: int) -> Any:
    """A GPU's primary context: the one that torch and cupy use. Kept for the life of the process."""
    cuda = driver()
    return done(cuda.cuDevicePrimaryCtxRetain(done(cuda.cuDeviceGet(index), f"GPU {index}")), f"GPU {index}'s context")


@contextmanager
def on_device(index: int) -> Generator[None]:
    """Within this scope a device is the current one of this thread."""
    cuda = driver()
    done(cuda.cuCtxPushCurrent(_context(index)), f"GPU {index}")
    try:
        yield
    finally:
        done(cuda.cuCtxPopCurrent(), f"GPU {index}")


def enter_device(index: int) -> bool:
    """Make a device the current one of a thread that has none; whether it had none."""
    cuda = driver()
    if int(done(cuda.cuCtxGetCurrent(), "the current context") or 0):
        return False
    done(cuda.cuCtxSetCurrent(_context(index)), f"GPU {index}")
    return True


# --- kernels -----------------------------------------------------------------------------------------


def load_function(index: int, cubin: bytes, entry: str, shared_bytes: int, cluster: tuple[int, int, int] | None) -> Any:
    """A kernel of a cubin on a device, allowed to use so much dynamic shared memory, in clusters of such a shape.

    Raises:
        DeviceError: when the driver takes it not.
    """
    cuda = driver()
    with on_device(index):
        module = done(cuda.cuModuleLoadData(cubin), f"loading {entry}")
        function = done(cuda.cuModuleGetFunction(module, entry.encode()), f"finding {entry}")
        wanted = {"MAX_DYNAMIC_SHARED_SIZE_BYTES": shared_bytes} if shared_bytes else {}
        if cluster is not None:
            sizes = zip(("WIDTH", "HEIGHT", "DEPTH"), cluster, strict=True)
            wanted.update({f"REQUIRED_CLUSTER_{side}": size for side, size in sizes})
            if cluster[0] * cluster[1] * cluster[2] > PORTABLE_CLUSTER:
                wanted["NON_PORTABLE_CLUSTER_SIZE_ALLOWED"] = 1
        for name, value in wanted.items():
            attribute = getattr(cuda.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
            done(cuda.cuFuncSetAttribute(function, attribute, value), f"{entry}: {name} = {value}")
    return function


#: blocks of a cluster that every chip with clusters can have
PORTABLE_CLUSTER = 8


@cache
def dependent_attribute() -> Any:
    """What says that a launch may begin before the kernel ahead of it in its stream has ended."""
    cuda = driver()
    made = cuda.CUlaunchAttribute()
    made.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    made.value.programmaticStreamSerializationAllowed = 1
    return made
