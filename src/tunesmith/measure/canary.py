"""Whether a GPU still does what it is told, after a candidate has failed on it. Imports torch."""

from __future__ import annotations

from tunesmith.measure.failure import attempt


def device_answers() -> bool:
    """Whether something small comes out right: an error that stays is found by this, whatever it is called."""
    import torch

    def canary() -> bool:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # after a candidate that found no memory the next is to have all there is
        told = torch.full((256,), 7, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        return bool((told == 7).all().item())

    answers, failure, _ = attempt("launch", canary)
    return failure is None and answers is True


def use_gpu(index: int) -> None:
    """Make a GPU the current one."""
    import torch

    torch.cuda.set_device(index)


def synchronize() -> None:
    """Wait for all that was queued on the current GPU."""
    import torch

    if torch.cuda.is_initialized():  # otherwise nothing was
        torch.cuda.synchronize()
