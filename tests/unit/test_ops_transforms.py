"""`tunesmith.ops` under torch's transforms, forward-mode derivatives and subclasses are what torch's own calls are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from tunesmith import ops
from tunesmith.errors import BadInput

#: of torch's own, when it is first asked for a forward-mode derivative
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
F = torch.nn.functional
torch.manual_seed(0)
W, BIAS, SCALE = torch.randn(5, 4), torch.randn(5), torch.randn(4)
MANY = torch.randn(2, 3, 4)
ONE = MANY[0]
#: name → (ours, torch's), of x (…, 4)
CALLS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "matmul": (lambda x: ops.matmul(x, W.mT), lambda x: x @ W.mT),
    "linear": (lambda x: ops.linear(x, W, BIAS, "gelu"), lambda x: F.gelu(F.linear(x, W, BIAS))),
    "softmax": (ops.softmax, lambda x: torch.softmax(x, -1)),
    "rms_norm": (lambda x: ops.rms_norm(x, SCALE), lambda x: F.rms_norm(x, (4,), SCALE, 1e-6)),
    "layer_norm": (lambda x: ops.layer_norm(x, SCALE), lambda x: F.layer_norm(x, (4,), SCALE)),
    "silu_and_mul": (ops.silu_and_mul, lambda x: F.silu(x[..., :2]) * x[..., 2:]),
}


def squares(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: call(x).square().sum()


#: name → what of a call is compared
SEEN: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "vmap": lambda call: vmap(call)(MANY),
    "vmap over columns": lambda call: vmap(call, in_dims=1)(MANY),
    "grad": lambda call: grad(squares(call))(ONE),
    "a gradient for each of many": lambda call: vmap(grad(squares(call)))(MANY),
    "a gradient's gradient": lambda call: grad(lambda x: grad(squares(call))(x).square().sum())(ONE),
    "jvp": lambda call: jvp(call, (ONE,), (ONE + 1,)),
    "jacfwd": lambda call: jacfwd(call)(ONE),
    "a dual level": lambda call: dual(call, ONE),
    "a dual level and autograd": lambda call: dual(call, ONE.clone().requires_grad_()),
}


def dual(call: Callable[[Any], Any], x: Any) -> Any:
    with forward_ad.dual_level():
        made = forward_ad.unpack_dual(call(forward_ad.make_dual(x, ONE + 1)))
        assert made.tangent is not None
        return made.primal, made.tangent


@pytest.mark.parametrize("seen", list(SEEN))
@pytest.mark.parametrize("name", list(CALLS))
def test_what_a_transform_sees_is_torchs(name: str, seen: str) -> None:
    for ours, theirs in (CALLS[name],) * 2:  # the second time a warm call stands ready
        ours(ONE)
        torch.testing.assert_close(SEEN[seen](ours), SEEN[seen](theirs))


def test_weights_are_seen_too() -> None:
    weights = torch.randn(2, 5, 4)
    torch.testing.assert_close(vmap(lambda w: ops.linear(ONE, w))(weights), torch.einsum("mk,bnk->bmn", ONE, weights))
    made = grad(lambda w: ops.rms_norm(ONE, w).square().sum())(SCALE)
    torch.testing.assert_close(made, grad(lambda w: F.rms_norm(ONE, (4,), w, 1e-6).square().sum())(SCALE))
    both = jvp(lambda w: ops.rms_norm(ONE, w), (SCALE,), (SCALE,))[1]
    torch.testing.assert_close(both, ops.rms_norm(ONE, SCALE))


def test_in_place_under_a_transform() -> None:
    x, residual = MANY.clone(), MANY + 1
    ours = vmap(lambda x, residual: ops.add_rms_norm_(x, residual, SCALE))(x, residual)
    torch.testing.assert_close(residual, 2 * MANY + 1)
    torch.testing.assert_close(x, F.rms_norm(2 * MANY + 1, (4,), SCALE, 1e-6))
    torch.testing.assert_close(ours, (x, residual))
    with forward_ad.dual_level():
        x, residual = (forward_ad.make_dual(ONE.clone(), ONE + 1), ONE.clone())
        ops.add_rms_norm_(x, residual, SCALE)
        tangent = forward_ad.unpack_dual(x).tangent
    torch.testing.assert_close(tangent, jvp(lambda x: F.rms_norm(x + ONE, (4,), SCALE, 1e-6), (ONE,), (ONE + 1,))[1])


@pytest.mark.parametrize("seen", ["vmap", "a gradient for each of many"])
def test_a_compiled_transform_is_torchs(seen: str) -> None:
    ours, theirs = CALLS["rms_norm"]
    transform = {"vmap": vmap, "a gradient for each of many": lambda call: vmap(grad(squares(call)))}[seen]

    def model(x: Any) -> Any:
        return transform(ours)(x) + ours(x)

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(MANY), transform(theirs)(MANY) + theirs(MANY))


def test_what_has_no_derivative_says_so() -> None:
    weights, ids = ops.route(torch.randn(3, 4), 2)
    w1, w2 = torch.randn(4, 6, 4), torch.randn(4, 4, 3)
    cache, lens = torch.randn(2, 5, 1, 4), torch.tensor([3, 5])
    mistakes: dict[str, Callable[[Any], Any]] = {
        "fused_moe": lambda x: ops.fused_moe(x, w1, w2, weights, ids),
        "decode_attention": lambda x: ops.decode_attention(x[:2, None], cache, cache, lens),
    }
    for name, call in mistakes.items():
        for lost in (lambda call=call: dual(call, ONE), lambda call=call: jvp(call, (ONE,), (ONE,))):
            with pytest.raises(BadInput, match=f"{name} has no derivative"):
                lost()
        with forward_ad.dual_level():
            torch.testing.assert_close(call(ONE), call(ONE))


# --- subclasses and unusual tensors -------------------------------------------------------------------------------


class Doubled(torch.Tensor):
    """Knows functions of torch by name, as a quantised weight does; of ours it knows nothing."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "tunesmith" not in str(func)
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
            return 2 * made if func in (torch.matmul, F.rms_norm, torch.softmax) else made


def test_a_subclass_is_asked_for_torchs_functions() -> None:
    x = ONE.as_subclass(Doubled)
    torch.testing.assert_close(ops.matmul(x, W.mT), 2 * (ONE @ W.mT))
    torch.testing.assert_close(ops.rms_norm(x, SCALE), 2 * F.rms_norm(ONE, (4,), SCALE, 1e-6))
    torch.testing.assert_close(ops.softmax(x), 2 * torch.softmax(ONE, -1))


def test_a_tensor_that_is_read_with_the_other_sign() -> None:
    numbers = torch.complex(ONE, ONE)
    x = numbers.conj().imag
    assert x.is_neg()
    for ours, theirs in CALLS.values():
        for _ in range(2):
            ours(numbers.imag)
            torch.testing.assert_close(ours(x), theirs(-ONE))


def test_sparse_products_are_torchs() -> None:
    sparse, w = torch.eye(4).to_sparse(), torch.randn(4, 5, requires_grad=True)
    for b in (w.detach(), w):
        torch.testing.assert_close(ops.matmul(sparse, b), w)


def test_a_mode_sees_the_operator() -> None:
    seen: list[str] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Seeing():
        ops.linear(ONE, W)
    assert "tunesmith.gemm.default" in seen
