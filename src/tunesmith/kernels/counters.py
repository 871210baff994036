"""Counters on the GPU that are zero when a launch begins, for programs that have to know who of them is the last."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from tunesmith.measure.allowed import captures_spared

#: counters taken at once: 4 MiB. A product whose sum is split has hundreds of tiles at most, a softmax a few thousand
#: rows that are.
ARENA = 1 << 20
#: in elements: what is taken begins at an address divisible by 16, as kernels are compiled for
_UNIT = 4

_arenas: dict[object, tuple[Any, int]] = {}  # by device: counters that are all zero, how many of them are taken
_taken: dict[tuple[object, int, int, int, str], Any] = {}  # by device, stream, capture, number and use
_lock = threading.Lock()


def counters(device: Any, number: int, use: str = "") -> Any:
    """So many int32 that are zero when a launch in the current stream begins, provided that each launch leaves them so.

    Args:
        use: names those that a kind of launches has for itself, which may leave there what suits them.

    Launches in one stream follow each other, and share theirs. Those that are captured into a CUDA graph have others:
    the graph may be replayed beside anything. What is taken stays taken.
    """
    import torch

    stream = torch._C._cuda_getCurrentRawStream(device.index)
    capture = _capture(stream) if torch.cuda.is_current_stream_capturing() else 0
    name = device, stream, capture, number, use
    known = _taken.get(name)
    if known is None:
        with _lock:
            known = _taken[name] = _take(device, number)
    return known


def counters_of(device: Any, number: int) -> Callable[[], Any]:
    """A function that does what `counters` does, for a launch that always asks for as many: in a stream that has asked
    before it takes a third of a microsecond."""
    import torch

    stream_of, is_captured = torch._C._cuda_getCurrentRawStream, torch.cuda.is_current_stream_capturing
    index, known = device.index, dict[int, Any]()

    def take() -> Any:
        stream = stream_of(index)
        if stream and is_captured():  # the default stream, 0, never is
            return counters(device, number)
        found = known.get(stream)
        if found is None:
            found = known[stream] = counters(device, number)
        return found

    return take


def _take(device: Any, number: int) -> Any:
    import torch

    arena, used = _arenas.get(device, (None, 0))
    if arena is None or used + number > arena.numel():
        # In a stream of its own: what is queued in one that is captured runs when the graph is replayed, not now.
        side = torch.cuda.Stream(device)
        with captures_spared(), torch.cuda.stream(side):
            arena, used = torch.zeros(max(ARENA, number), dtype=torch.int32, device=device), 0
            side.synchronize()
    _arenas[device] = arena, used + -(-number // _UNIT) * _UNIT
    return arena[used : used + number]


def _capture(stream: int) -> int:
    """Names the capture that a stream is in: launches of one capture in one stream follow each other when replayed."""
    ask = _stream_capture_info()
    status, number = ctypes.c_int(), ctypes.c_uint64()
    if ask is None or ask(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number)) != 0:
        return _unnamed()
    return int(number.value) or _unnamed()


@cache
def _stream_capture_info() -> Any:
    """CUDA's own function, `None` where there is none (AMD's GPUs)."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo
    except (OSError, AttributeError):
        return None


_last = [0]


def _unnamed() -> int:
    """A name for a capture of which nothing is known: no two launches share one."""
    _last[0] -= 1
    return _last[0]
