"""A launch by cuBLASLt, in as few steps as Python can: products of ten microseconds wait for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tunesmith.backends.triton.devices import only_device
from tunesmith.kernels.gemm.cublaslt_api import Product, Result, address
from tunesmith.kernels.gemm.memory import fresh

#: Of workspace that an algorithm may take: what NVIDIA recommends for Hopper, and torch gives cuBLAS there.
WORKSPACE_BYTES = 32 << 20
#: Streams of a device whose workspace is kept.
KEPT_WORKSPACES = 8


def launcher(
    product: Product, algorithm: Result, shape: tuple[int, int], dtype: Any, device: Any,
    otherwise: Callable[..., Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """A function that queues the product of a, b and a bias, which lie as the Product has it, and returns it.

    Of b nothing but the address is read: it may as well be its transpose.

    Args:
        shape: of the result.
        otherwise: is given what is not aligned to 16 bytes, and calls while another device is current; without it
            these are the caller's business.
    """
    import torch

    (matmul, handle, one, of_a, of_b, zero, of_d, how, size), index = product.ready(algorithm), device.index
    mask, elsewhere = 15 if otherwise else 0, bool(otherwise) and not only_device()
    output, here, stream_of = fresh(shape, dtype, device), torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream
    at, described = address, product.described
    usual = None if product.biased else described(0).argument

    def plain(a: Any, b: Any, bias: Any = None) -> Any:
        at_a, at_b = a.data_ptr(), b.data_ptr()
        if otherwise is not None and ((at_a | at_b) & mask or (elsewhere and here() != index)):
            return otherwise(a, b, bias)
        c = output()
        to, stream = at(c.data_ptr()), stream_of(index)
        status = matmul(
            handle, usual, one, at(at_b), of_a, at(at_a), of_b, zero, to, of_d, to, of_d, how, None, size,
            at(stream) if stream else None,
        )  # fmt: skip
        if status:
            raise product.failure(status)
        return c

    if usual is not None and not algorithm.workspace_bytes:
        return plain
    needed, capturing = algorithm.workspace_bytes, torch._C._cuda_isCurrentStreamCapturing
    kept, whole_space = _workspaces(index), fresh((WORKSPACE_BYTES,), torch.int8, device)
    graphs_space = fresh((needed,), torch.int8, device)

    def whole(a: Any, b: Any, bias: Any = None) -> Any:
        at_a, at_b, at_bias = a.data_ptr(), b.data_ptr(), 0 if bias is None else bias.data_ptr()
        if otherwise is not None and ((at_a | at_b | at_bias) & mask or (elsewhere and here() != index)):
            return otherwise(a, b, bias)
        c, mine = output(), described(at_bias)
        to, stream, workspace, mine_alone = at(c.data_ptr()), stream_of(index), None, False
        if needed:
            # The default stream, 0, is never captured. Who replays a graph may do so beside this stream's launches.
            mine_alone = stream and capturing()
            workspace = graphs_space() if mine_alone else kept.pop(stream, None)
            if workspace is None:
                workspace = whole_space()
        status = matmul(
            handle, mine.argument, one, at(at_b), of_a, at(at_a), of_b, zero, to, of_d, to, of_d, how,
            None if workspace is None else at(workspace.data_ptr()), size, at(stream) if stream else None,
        )  # fmt: skip
        if status:
            raise product.failure(status)
        if needed and not mine_alone:
            if len(kept) >= KEPT_WORKSPACES:
                kept.clear()
            kept[stream] = workspace
        return c

    return whole


@cache
def _workspaces(index: int) -> dict[int, Any]:
    """Of a device's streams, the workspace that their next launch takes, and puts back when it is queued.

    Launches of one stream follow each other, and so may use one. Who takes it while another thread has it finds none,
    and makes one: what two launches of a stream that are queued at once use is not the same.
    """
    return {}
