"""Calls that are told from others by torch's guards: what is remembered of one is not used for another."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from tunesmith import ops, policy
from tunesmith.chooser.recent import Recent


class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Own(torch.Tensor):
    pass


A, B = torch.randn(4, 8), torch.randn(6, 8).mT
SETTING: list[object] = [False]


@pytest.fixture
def recent() -> Recent[str]:
    made = Recent[str]()
    for _ in range(2):  # what comes once is not remembered
        assert made.find((A, B), None) is None
        made.note((A, B), None, lambda: SETTING[0], "name", "known")
    assert made.find((A, B), None) == "known"
    return made


@pytest.mark.parametrize(
    "other",
    [
        lambda: (torch.randn(5, 8), B), lambda: (A.half(), B), lambda: (A.clone().requires_grad_(), B),
        lambda: (A.as_subclass(Own), B), lambda: (torch.nn.Parameter(A), B), lambda: (torch.randn(8, 4).mT, B),
        lambda: (A.to("meta"), B), lambda: (A.to_sparse(), B), lambda: ("no tensor", B),
    ],
)  # fmt: skip
def test_other_tensors_are_another_call(recent: Recent[str], other: Callable[[], Any]) -> None:
    assert recent.find(other(), None) is None
    assert recent.find((A, B), None) == "known"


def test_a_tensor_that_is_changed_in_place_is_another(recent: Recent[str]) -> None:
    w = torch.randn(8, 8)
    for _ in range(2):
        recent.note((A, w), None, lambda: 0, "square", "as it lies")
    assert recent.find((A, w), None) == "as it lies"
    w.t_()
    assert recent.find((A, w), None) is None


def test_other_arguments_settings_and_policies_are_told_apart(recent: Recent[str]) -> None:
    assert recent.find((A, B), torch.float64) is None
    SETTING[0] = True
    assert recent.find((A, B), None) is None
    SETTING[0] = False
    with policy("search"):
        assert recent.find((A, B), None) is None
    assert recent.find((A, B), None) == "known"


def test_who_else_sees_a_call_is_told(recent: Recent[str]) -> None:
    found: list[object] = []
    with torch.autocast("cpu"):
        found.append(recent.find((A, B), None))
    for mode in (Seen(), FakeTensorMode(allow_non_fake_inputs=True)):  # torch's own guards don't tell of its own modes
        with mode:
            found.append(recent.find((A, B), None))
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of what it imports for this
        found.append(recent.find((forward_ad.make_dual(A, torch.ones_like(A)), B), None))

    def inside(x: Any) -> Any:
        found.append(recent.find((x, B), None))
        return x.sum()

    torch.vmap(inside)(torch.randn(2, 4, 8))
    torch.func.grad(inside)(A)
    assert found == [None] * 6
    assert recent.find((A, B), None) == "known"


def test_what_was_remembered_without_gradients_is_not_used_where_they_are_wanted() -> None:
    made, w = Recent[str](), torch.nn.Parameter(torch.randn(8, 6))
    for _ in range(3):
        made.note((A, w), None, lambda: 0, "name", "seen by autograd")
    assert made.find((A, w), None) is None
    with torch.no_grad():
        for _ in range(2):
            made.note((A, w), None, lambda: 0, "name", "known")
        assert made.find((A, w), None) == "known"
    assert made.find((A, w), None) is None
    with torch.inference_mode():
        assert made.find((A, w), None) in (None, "known")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_end_no_process_however_warm_a_layer_is() -> None:
    w, x = torch.randn(8, 8), torch.randn(4, 8)
    for _ in range(4):
        ops.linear(x, w)
    nested = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)])
    with pytest.raises(RuntimeError, match="nested"):  # as torch.matmul says
        ops.linear(nested, w)


def test_what_is_read_with_the_other_sign_is_another_call() -> None:
    complex_, w = torch.randn(8, 8, dtype=torch.complex64), torch.randn(6, 8)
    plain, turned = (z.imag.as_strided((4, 8), (8, 1)) for z in (complex_, complex_.conj()))
    assert turned.is_neg()
    for _ in range(4):
        torch.testing.assert_close(ops.linear(plain, w), plain @ w.mT)
        torch.testing.assert_close(ops.linear(turned, w), turned @ w.mT)


def test_kinds_of_calls_that_alternate_are_remembered() -> None:
    made, rows = Recent[int](), [torch.randn(m, 8) for m in (1, 7, 32)]
    for _ in range(2):
        for a in rows:
            made.note((a, B), None, lambda: 0, len(a), len(a))
    assert [made.find((a, B), None) for a in rows] == [1, 7, 32]


def test_of_too_many_weights_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.chooser.recent._WEIGHTS", 4)
    made, weights = Recent[int](), [torch.randn(8, 6) for _ in range(6)]
    for i, w in enumerate(weights):
        for _ in range(2):
            made.note((A, w), None, lambda: 0, i, i)
    assert [made.find((A, w), None) for w in weights] == [None, None, 2, 3, 4, 5]


def test_a_traced_call_is_one_of_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.randn(6, 8)
    for _ in range(3):
        ops.linear(A, w)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is on its way out
        traced: Any = torch.jit.trace(lambda x: ops.linear(x, w), (A,), check_trace=False)
    other = torch.randn(4, 8)
    torch.testing.assert_close(traced(other), other @ w.mT)


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_what_is_traced_into_a_graph_is_our_operator_however_warm_its_weights_are(pre_dispatch: bool) -> None:
    """What a kernel writes, no trace sees."""
    w, b, turned = torch.randn(6, 8), torch.randn(6), torch.randn(6, 8).mT

    def calls(x: Any) -> Any:
        return ops.linear(x, w) + ops.linear(x, w, b) + ops.matmul(x, turned)

    for _ in range(4):
        calls(A)
    graph: Any = make_fx(calls, pre_dispatch=pre_dispatch)(A)
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert called.count("tunesmith.gemm.default") == 3
    assert not {"aten.mm.default", "aten.addmm.default"} & {*called}
    other = torch.randn(4, 8)
    torch.testing.assert_close(graph(other), calls(other))


def test_layers_without_memory_and_sparse_inputs_are_torchs() -> None:
    layer = torch.nn.Linear(8, 6, device="meta")
    assert ops.linear(torch.empty(2, 8, device="meta"), layer.weight, layer.bias).shape == (2, 6)
    w = torch.randn(6, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a beta state
        sparse = A.to_sparse_csr()
    for _ in range(3):
        torch.testing.assert_close(ops.matmul(sparse, w.mT), A @ w.mT)


def test_a_layers_kinds_of_calls_are_bounded() -> None:
    made = Recent[int]()
    for rows in range(1, 40):
        for _ in range(2):
            made.note((torch.randn(rows, 8), B), None, lambda: 0, rows, rows)
    assert made.find((torch.randn(39, 8), B), None) == 39
    assert made.find((torch.randn(1, 8), B), None) is None


@pytest.mark.parametrize("call", [lambda x, w, b: ops.linear(x, w), lambda x, w, b: ops.linear(x, w, b, "relu"),
                                  lambda x, w, b: ops.matmul(x, w.mT)])  # fmt: skip
def test_a_call_again_and_again_is_right_whatever_comes_between(call: Callable[..., Any]) -> None:
    w, b = torch.randn(6, 8), torch.randn(6)
    expected = call(A.double(), w.double(), b.double())
    for _ in range(4):
        torch.testing.assert_close(call(A, w, b).double(), expected, atol=1e-5, rtol=1e-5)
        assert call(A.bfloat16(), w.bfloat16(), b.bfloat16()).dtype is torch.bfloat16
        grown = A.clone().requires_grad_()
        call(grown, w, b).sum().backward()
        assert grown.grad is not None
        with torch.autocast("cpu", torch.bfloat16):
            assert call(A, w, b).dtype is torch.bfloat16
        mapped = torch.vmap(lambda x: call(x, w, b))(A.expand(2, 4, 8))
        torch.testing.assert_close(mapped[1].double(), expected, atol=1e-5, rtol=1e-5)
    layer = torch.nn.Parameter(w.clone())  # as models have them
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(call(A, layer, b).double(), expected, atol=1e-5, rtol=1e-5)
    call(A, layer, b).sum().backward()
    assert layer.grad is not None
    w.zero_()  # what is remembered is how, and not what
    torch.testing.assert_close(call(A, w, b), call(A, torch.zeros(6, 8), b))
