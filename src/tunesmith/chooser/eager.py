"""Who else sees a call: no compiler, autograd, autocast or mode, and it need not be an operator of torch's."""

from __future__ import annotations

from typing import Any

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_modes, _autocast = torch._C._len_torch_dispatch_stack, torch._C._is_any_autocast_enabled


def is_eager(*tensors: Any) -> bool:
    """Whether nobody but the caller sees this call of these tensors (`None` among them is none)."""
    if torch.compiler.is_compiling():
        return False
    for tensor in tensors:
        if tensor is not None and type(tensor) not in _PLAIN:
            return False
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        return False
    return not (_modes() or _autocast())
