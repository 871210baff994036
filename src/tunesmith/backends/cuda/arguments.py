"""A call's arrays as addresses on the GPU, and the stream that the caller works in; for arrays of any library."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tunesmith.backends.cuda.driver import done, driver
from tunesmith.backends.cuda.source import Parameter
from tunesmith.dispatch.arguments import dtype_name, is_array, memory_address
from tunesmith.errors import BadInput

#: DLPack's kinds of memory that a kernel on an NVIDIA GPU can read: CUDA, CUDA managed
_DL_CUDA = (2, 13)
_GOOD = "a torch or cupy array, or one with __cuda_array_interface__ or DLPack"


def index_of(name: str, array: Any) -> int:
    """The GPU that an array is on.

    Raises:
        BadInput: for an array that is on none.
    """
    if _is_torch(array):
        if not array.is_cuda:
            raise _elsewhere(name, array.device)
        return int(array.get_device())
    if _is_cupy(array):
        return int(array.device.id)
    if hasattr(array, "__cuda_array_interface__"):
        address = int(array.__cuda_array_interface__["data"][0])
        cuda = driver()
        ordinal = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(done(cuda.cuPointerGetAttribute(ordinal, address), f"where {name} is")) if address else 0
    if hasattr(array, "__dlpack_device__"):
        kind, index = array.__dlpack_device__()
        if int(kind) not in _DL_CUDA:
            raise _elsewhere(name, "the CPU" if int(kind) == 1 else f"a device of DLPack's kind {int(kind)}")
        return int(index)
    raise BadInput(f"argument {name!r} is of type {type(array).__name__}; expected {_GOOD}")


def address_of(parameter: Parameter, array: Any, index: int) -> int:
    """The address of an array's first element; 0 for `None`.

    Raises:
        BadInput: for an array of another dtype or device than the kernel takes.
    """
    if array is None:
        return 0
    name = parameter.name
    if not is_array(array):
        raise BadInput(f"argument {name!r} is of type {type(array).__name__}; expected {_GOOD} ({parameter})")
    if parameter.dtypes and dtype_name(array) not in parameter.dtypes:
        raise BadInput(
            f"argument {name!r} has dtype {dtype_name(array)}; expected {' or '.join(parameter.dtypes)} ({parameter})"
        )
    found = index_of(name, array)
    if found != index:
        raise BadInput(f"argument {name!r} is on GPU {found}; expected GPU {index}, for which the kernel was loaded")
    return memory_address(name, array)


def stream_of(arrays: Sequence[Any], index: int) -> int:
    """The caller's current stream: torch's if a tensor is among the arrays, else cupy's if an array of its is.

    Without either it is torch's where torch runs on the GPU, else the legacy default stream.
    """
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if not any(map(_is_torch, arrays)) and cupy is not None and any(map(_is_cupy, arrays)):
        return int(cupy.cuda.get_current_stream().ptr)
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_stream(index).cuda_stream)
    return 0


def _is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _is_cupy(array: Any) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


def _elsewhere(name: str, where: object) -> BadInput:
    return BadInput(f"argument {name!r} is on {where}; expected an array on a GPU: a CUDA kernel runs there")
