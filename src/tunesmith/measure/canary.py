"""Whether a GPU still does what it is told, after a candidate has failed on it. Through torch."""

from __future__ import annotations

import gc
import sys

from tunesmith.measure.failure import attempt


def device_trouble() -> str:
    """Why something small does not come out right on the current GPU; empty if it does, and where that can't be asked.

    An error that stays is found by this, whatever it is called.
    """
    torch = sys.modules.get("torch")  # whatever runs here without it has its own context, of which torch knows nothing
    if torch is None or not (torch.version.cuda or torch.version.hip):
        return ""

    def canary() -> bool:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # after a candidate that found no memory the next is to have all there is
        told = torch.full((256,), 7, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        return bool((told == 7).all().item())

    answers, failure, _ = attempt("launch", canary)
    return failure.reason if failure is not None else "" if answers else "it computes wrong results"


def give_back_memory() -> None:
    """What nobody has any more goes back to the driver: torch keeps it for its own next tensors."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def use_gpu(index: int) -> None:
    """Make a GPU the current one."""
    import torch

    torch.cuda.set_device(index)


def synchronize() -> None:
    """Wait for all that was queued on the current GPU."""
    import torch

    if torch.cuda.is_initialized():  # otherwise nothing was
        torch.cuda.synchronize()
