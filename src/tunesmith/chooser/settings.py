"""What torch allows its libraries to compute in, where a result of more precision is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def tf32_state() -> Callable[[], object]:
    """What tells whether a product of float32 may be computed in TF32 on a GPU, in torch's own words."""
    import torch

    getter = getattr(torch._C, "_get_fp32_precision_getter", None)  # since torch 2.9, whatever API it was set by
    return torch._C._get_cublas_allow_tf32 if getter is None else partial(getter, "cuda", "matmul")


def allows_tf32() -> bool:
    """Whether a product of float32 may be computed in TF32 on a GPU."""
    return tf32_state()() in (True, "tf32")


def allows_reduced(dtype: object) -> bool:
    """Whether partial sums of a product of float16 or bfloat16 may be rounded to that."""
    import torch

    name = "fp16" if dtype is torch.float16 else "bf16"
    found: Any = getattr(torch._C, f"_get_cublas_allow_{name}_reduced_precision_reduction")()
    return bool(found if isinstance(found, bool) else found[0])  # a pair in newer versions


def torch_settings() -> dict[str, str]:
    """All of it by name."""
    import torch

    return {
        "torch.allow_tf32": str(allows_tf32()),
        "torch.allow_fp16_reduced_precision": str(allows_reduced(torch.float16)),
        "torch.allow_bf16_reduced_precision": str(allows_reduced(torch.bfloat16)),
    }
