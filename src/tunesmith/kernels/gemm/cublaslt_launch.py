"""A launch by cuBLASLt, in as few steps as Python can: products of ten microseconds wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from tunesmith.backends.triton.devices import only_device
from tunesmith.kernel import seeing_captures
from tunesmith.kernels.gemm.cublaslt_api import Product, Result, address
from tunesmith.kernels.gemm.memory import fresh

#: Of workspace that an algorithm may take: what NVIDIA recommends for Hopper, and torch gives cuBLAS there.
WORKSPACE_BYTES = 32 << 20


def launcher(
    product: Product, algorithm: Result, shape: tuple[int, int], dtype: Any, device: Any,
    otherwise: Callable[..., Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """A function that queues the product of a, b and a bias, which lie as the Product has it, and returns it.

    Of b nothing but the address is read: it may as well be its transpose.

    Args:
        shape: of the result.
        otherwise: is given what is not aligned to 16 bytes, and calls while another device is current or a stream is
            captured; without it these are the caller's business.
    """
    import torch

    (matmul, handle, one, of_a, of_b, zero, of_d, how, size), index = product.ready(algorithm), device.index
    mask, elsewhere = 15 if otherwise else 0, bool(otherwise) and not only_device()
    output, here, stream_of = fresh(shape, dtype, device), torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream
    at, described, capturing = address, product.described, torch._C._cuda_isCurrentStreamCapturing
    usual = None if product.biased else described(0).argument

    def plain(a: Any, b: Any, bias: Any = None) -> Any:
        at_a, at_b = a.data_ptr(), b.data_ptr()
        if otherwise is not None and ((at_a | at_b) & mask or (elsewhere and here() != index)):
            return otherwise(a, b, bias)
        stream = stream_of(index)
        if stream and otherwise is not None and capturing():  # the default stream, 0, never is
            return otherwise(a, b, bias)
        c = output()
        to = at(c.data_ptr())
        while status := matmul(
            handle, usual, one, at(at_b), of_a, at(at_a), of_b, zero, to, of_d, to, of_d, how, None, size,
            at(stream) if stream else None,
        ):  # fmt: skip
            if not entered(index):
                raise product.failure(status)
        return c

    if usual is not None and not algorithm.workspace_bytes:
        return seeing_captures(plain) if otherwise else plain
    needed, kept = algorithm.workspace_bytes, _workspace(index)
    whole_space, streams_space = (fresh((size,), torch.int8, device) for size in (WORKSPACE_BYTES, needed))

    def whole(a: Any, b: Any, bias: Any = None) -> Any:
        at_a, at_b, at_bias = a.data_ptr(), b.data_ptr(), 0 if bias is None else bias.data_ptr()
        if otherwise is not None and ((at_a | at_b | at_bias) & mask or (elsewhere and here() != index)):
            return otherwise(a, b, bias)
        stream = stream_of(index)
        if stream and otherwise is not None and capturing():
            return otherwise(a, b, bias)
        c, mine = output(), described(at_bias)
        to, workspace = at(c.data_ptr()), None
        if needed:
            workspace = streams_space() if stream else kept.pop(stream, None)
            if workspace is None:
                workspace = whole_space()
        while status := matmul(
            handle, mine.argument, one, at(at_b), of_a, at(at_a), of_b, zero, to, of_d, to, of_d, how,
            None if workspace is None else at(workspace.data_ptr()), size, at(stream) if stream else None,
        ):  # fmt: skip
            if not entered(index):
                raise product.failure(status)
        if needed and not stream:
            kept[stream] = workspace
        return c

    return seeing_captures(whole) if otherwise else whole


_thread = threading.local()


def entered(index: int) -> bool:
    """Make a GPU's context this thread's; whether that is new, and a launch that failed may go well now.

    Until a thread has used the GPU in some other way it has none, and the library fails: memory for a result that
    torch had at hand is no such way.
    """
    import torch

    mine = _thread.__dict__.setdefault("entered", set[int]())
    if index in mine:
        return False
    mine.add(index)
    torch.cuda.mem_get_info(index)  # by the runtime, which sees to it; allowed while a graph is captured
    return True


@cache
def _workspace(index: int) -> dict[int, Any]:
    """Of a device's default stream, 0, the workspace that its next launch takes, and puts back when it is queued.

    Launches of one stream follow each other, and so may use one. Who takes it while another thread has it finds none,
    and makes one: what two launches of a stream that are queued at once use is not the same.

    Other streams' launches have one each. A graph may be captured there, or called for the first time in the memory of
    graphs to come, as torch.compile does with `reduce-overhead`: that fails where anything stays in it. The graph's
    launches may run beside the stream's, too.
    """
    return {}
