"""Where a call may not measure (inside a CUDA graph's capture, while torch.compile traces), or must not disturb."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager


def why_not_to_measure() -> str:
    """What this call is in the middle of, in which nothing may be timed or waited for; empty where it may.

    Synchronises nothing, and starts no driver that the program has not started.
    """
    torch = sys.modules.get("torch")  # neither can be where it was never imported
    if torch is None:
        return ""
    if torch.compiler.is_compiling():
        return "while torch.compile was tracing"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "inside a CUDA graph's capture"
    return ""


@contextmanager
def captures_spared() -> Generator[None]:
    """Within this scope this thread may do what would break the CUDA graph that a thread is capturing.

    While any thread captures, CUDA refuses others what could wait for the stream under capture (loading a binary,
    taking memory) and gives the capture up. What is done here waits for streams of its own alone, so this thread
    leaves that guard. Changes nothing where CUDA does not run.
    """
    exchange = _exchange_capture_mode()
    if exchange is None:
        yield
        return
    before = ctypes.c_int(_RELAXED)
    exchange(ctypes.byref(before))
    try:
        yield
    finally:
        exchange(ctypes.byref(before))


#: CU_STREAM_CAPTURE_MODE_RELAXED
_RELAXED = 2
_driver: list[ctypes.CDLL | None] = []


def _exchange_capture_mode() -> Callable[..., int] | None:
    """The driver's function, `None` where CUDA does not run in this process."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or torch.version.cuda is None:
        return None
    if not _driver:
        try:
            _driver.append(ctypes.CDLL("libcuda.so.1" if sys.platform != "win32" else "nvcuda.dll"))
        except OSError:  # a driver by another name: a capture in another thread is not spared
            _driver.append(None)
    found = _driver[0]
    return None if found is None else found.cuThreadExchangeStreamCaptureMode
