"""What torch is told of tensors that a kernel writes in place, of which it sees nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any


def tell_autograd(tensors: Sequence[Any]) -> None:
    """That these have other content now: where one is saved for a gradient, autograd refuses to compute that."""
    _increment()(tensors)


@cache
def _increment() -> Callable[[Sequence[Any]], None]:
    import torch
    from torch.autograd.graph import increment_version

    probe = torch.empty(0)
    try:
        increment_version((probe, probe))
    except (TypeError, AttributeError):  # an older torch, which takes one, and none of inference mode

        def one_by_one(tensors: Sequence[Any]) -> None:
            for tensor in tensors:
                if not tensor.is_inference():
                    increment_version(tensor)

        return one_by_one
    return increment_version
