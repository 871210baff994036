"""Who else sees a call: where no compiler, autograd, autocast, transform or mode does, it need not be an operator."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

from tunesmith.errors import BadInput

PLAIN = (torch.Tensor, torch.nn.Parameter)
#: of what traces a program, which takes any operator
_TRACED = (FakeTensor, FunctionalTensor)
#: How many dispatch modes are on. Those of torch's own, as of `make_fx` and fake tensors, no guard of its tells.
modes = torch._C._len_torch_dispatch_stack
_autocast = torch._C._is_any_autocast_enabled
#: whether one sees operators before autograd does: they are on a stack of their own
_earlier = partial(torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.PreDispatch)
dual: Any = forward_ad  # whose level is not in torch's own types
_STRIDED, _tracing = torch.strided, torch._C._get_tracing_state
_grad, _transform = torch.is_grad_enabled, torch._C._functorch.peek_interpreter_stack
compiling = torch.compiler.is_compiling
#: Whether torch.compile reads this program, in half the time. Who runs it with tensors of its own makes none that pass
#: for a caller's.
traced = torch.compiler.is_dynamo_compiling


def is_eager(*tensors: Any) -> bool:
    """Whether nobody but the caller sees this call of these tensors (`None` among them is none)."""
    if compiling():
        return False
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in PLAIN or tensor.layout is not _STRIDED or tensor.is_nested):
            return False
    if _grad():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return False
    return not (modes() or _autocast() or _transform() or _tracing() or _earlier()) and dual._current_level < 0


def is_torchs(*tensors: Any) -> bool:
    """Whether this call has to be torch's own calls, as an operator of ours would fail or lose what they keep: under
    `torch.vmap`, `torch.func` and forward-mode derivatives, for subclasses that know torch's operators alone, and for
    what is sparse or nested."""
    return _is_transformed() or not all(tensor is None or _is_usual(tensor) for tensor in tensors)


def _is_usual(tensor: Any) -> bool:
    known = type(tensor) in PLAIN or isinstance(tensor, _TRACED)
    return known and tensor.layout is torch.strided and not tensor.is_nested


def _is_transformed() -> bool:
    return _transform() is not None or dual._current_level >= 0


# What torch.compiler.assume_constant_result does, which imports the compiler. A trace goes through a transform by
# entering it, and what is traced there is guarded by it.
cast(Any, _is_transformed)._dynamo_marked_constant = True


def refuse_tangents(name: str, *tensors: Any) -> None:
    """For an operation without a forward-mode derivative, which torch would take for one whose derivative is zero.

    Raises:
        BadInput: for a tensor with a tangent.
    """
    if dual._current_level >= 0 and any(dual.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise BadInput(f"{name} has no derivative, and was given a tensor with a tangent: detach it first")
