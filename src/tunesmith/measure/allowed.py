"""Where a call may not measure: inside a CUDA graph's capture, and while torch.compile traces."""

from __future__ import annotations

import sys


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
