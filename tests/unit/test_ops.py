"""`tunesmith.ops` compute what torch does, are operators that torch.compile takes whole, and choose only when asked."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.library import opcheck

import tunesmith
from tunesmith import Config, ops
from tunesmith.core.outcome import Choice
from tunesmith.errors import BadInput
from tunesmith.store import default_store

F = torch.nn.functional
ACTIVATED = {None: lambda y: y, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ops._forget()  # every test has a store of its own
    ops._chooser.cache_clear()
    yield
    torch.set_num_threads(threads)


# --- values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [None, *ops.ACTIVATIONS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_linear_is_torchs(activation: str, dtype: Any) -> None:
    x, w, bias = torch.randn(5, 33).to(dtype), torch.randn(7, 33).to(dtype), torch.randn(7).to(dtype)
    for with_bias in (bias, None):
        expected = ACTIVATED[activation](F.linear(x, w, with_bias))
        for _ in range(2):  # the second call is a remembered one
            torch.testing.assert_close(ops.linear(x, w, with_bias, activation), expected)


def test_matmul_is_torchs_for_every_shape() -> None:
    r = torch.randn
    for a, b in (
        (r(5, 7), r(7, 3)), (r(7, 5).mT, r(3, 7).mT), (r(10, 14)[::2, ::2], r(7, 3)), (r(2, 5, 7), r(7, 3)),
        (r(2, 5, 7), r(2, 7, 3)), (r(1, 5, 7), r(2, 7, 3)), (r(5, 7), r(2, 7, 3)), (r(2, 3, 5, 7), r(7, 4)),
        (r(2, 3, 5, 7), r(2, 3, 7, 4)), (r(7), r(7, 3)), (r(5, 7), r(7)), (r(0, 7), r(7, 3)), (r(5, 0), r(0, 3)),
        (r(5, 7).long(), r(7, 3).long()), (r(1, 1), r(1, 1)), (r(7, 1)[:, 0].expand(4, 7), r(7, 3)),
    ):  # fmt: skip
        torch.testing.assert_close(ops.matmul(a, b), torch.matmul(a, b))
    half = ops.matmul(r(5, 7).half(), r(7, 3).half(), out_dtype=torch.float32)
    assert half.dtype is torch.float32


def test_remembered_calls_are_told_apart() -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    wide = torch.randn(8, 16)
    for x, y in ((a, b), (a.mT, b), (a, b.mT), (wide[:, :8], b), (wide[:, 1:9], b), (a.half(), b.half())) * 2:
        torch.testing.assert_close(ops.matmul(x, y), x @ y)
    with pytest.raises(RuntimeError):
        ops.matmul(a, torch.randn(8, 8, dtype=torch.float64))
    bias = torch.randn(8)
    for one in (bias, None, torch.randn(16)[::2]):
        torch.testing.assert_close(ops.linear(a, b, one), F.linear(a, b, one))


@pytest.mark.parametrize("by_torch", [False, True])
def test_rows_in_several_dimensions_are_remembered_too(by_torch: bool) -> None:
    """As layers of a model are called: (batch, length, features)."""
    w, bias = torch.randn(7, 8), torch.randn(7)
    b = w.mT
    if by_torch:
        chosen, args = ops._call(torch.randn(2, 3, 8), w, None, None, None)
        default_store().put_choice(chosen.key(*args), Choice(Config(by="torch"), "search", "search"), {})
    for x in (torch.randn(2, 3, 8), torch.randn(1, 1, 6, 8), torch.randn(6, 8), torch.randn(49)[1:].view(3, 2, 8)) * 3:
        torch.testing.assert_close(ops.linear(x, w), F.linear(x, w))
        torch.testing.assert_close(ops.linear(x, w, bias, "gelu"), F.gelu(F.linear(x, w, bias)))
        torch.testing.assert_close(ops.matmul(x, b), x @ b)
    assert [len(recent.found) for recent in (ops._layers, ops._biased, ops._products)] == [1, 1, 1]
    for x in (torch.randn(3, 2, 8).transpose(0, 1), torch.randn(2, 3, 16)[..., ::2], torch.randn(2, 4, 8)[:, :3]) * 3:
        torch.testing.assert_close(ops.linear(x, w), F.linear(x, w))
        torch.testing.assert_close(ops.matmul(x, b), x @ b)


def test_a_remembered_call_is_of_the_same_alignment() -> None:
    """Of each tensor: a kernel that is compiled for one that is aligned can't read one that is not."""
    flat, bias = torch.randn(80), torch.randn(8)
    aligned, other = flat[:64].view(8, 8), flat[2:66].view(8, 8)
    assert aligned.data_ptr() % 16 == 0
    assert other.data_ptr() % 16
    for _ in range(2):
        ops.linear(other, aligned, bias, "relu")
    [(name, known)] = ops._known.items()
    ops._known[name] = replace(known, launch=lambda *_: "remembered")
    assert ops.linear(other, aligned, bias, "relu") == "remembered"
    for x, w, b in ((aligned, other, bias), (aligned, aligned, bias), (other, aligned, torch.randn(9)[1:])):
        torch.testing.assert_close(ops.linear(x, w, b, "relu"), F.relu(F.linear(x, w, b)))


@pytest.mark.parametrize("biased", [False, True])
def test_where_torchs_own_call_serves_nothing_but_that_is_called(biased: bool) -> None:
    x, w = torch.randn(5, 8), torch.randn(6, 8)
    bias = torch.randn(6) if biased else None
    chosen, args = ops._call(x, w, bias, None, None)
    default_store().put_choice(chosen.key(*args), Choice(Config(by="torch"), "search", "search"), {})
    for _ in range(5):
        torch.testing.assert_close(ops.linear(x, w, bias), F.linear(x, w, bias))
    [entries] = (ops._biased if biased else ops._layers).found.values()
    assert entries[0][-1] is torch._C._nn.linear
    if not biased:
        b = w.mT
        for _ in range(5):
            torch.testing.assert_close(ops.matmul(x, b), x @ b)
        [entries] = ops._products.found.values()
        assert entries[0][-1] is torch.mm


def test_untuned_calls_are_counted_each_once() -> None:
    x, w = torch.randn(3, 9), torch.randn(11, 9)
    before = {miss.problem: miss.calls for miss in tunesmith.misses()}
    for _ in range(6):
        ops.linear(x, w)
    ops.linear(torch.randn(28)[1:].view(3, 9), w)
    [added] = [m.calls - before.get(m.problem, 0) for m in tunesmith.misses() if m.calls != before.get(m.problem, 0)]
    assert added == 7


def test_mistakes_are_named() -> None:
    x = torch.randn(3, 4)
    with pytest.raises(BadInput, match="unknown activation 'gleu': did you mean 'gelu'"):
        ops.linear(x, x, activation="gleu")
    with pytest.raises(BadInput, match=r"needs \(M, K\) and \(K, N\)"):
        ops.linear(x, torch.randn(3, 5))
    with pytest.raises(BadInput, match="there is nothing to choose"):
        ops.tune(x.double(), x.double())


# --- as torch's operators -----------------------------------------------------------------------------------------


def arguments(**more: Any) -> tuple[Any, Any, Any]:
    return torch.randn(5, 6, **more), torch.randn(6, 3, **more), torch.randn(3, **more)


def test_opcheck() -> None:
    a, b, bias = arguments()
    for args in (
        (a, b, None, None, None), (a, b, bias, "gelu", torch.float64), (*arguments(requires_grad=True), "silu", None),
        (a[None].expand(2, 5, 6), b, None, "relu", None), (a[None], b[None], None, None, None),
    ):  # fmt: skip
        opcheck(torch.ops.tunesmith.gemm, args)


@pytest.mark.parametrize("activation", [None, *ops.ACTIVATIONS])
def test_gradients(activation: str) -> None:
    for shape in ((5, 6), (2, 5, 6)):
        x, w, bias = (torch.randn(*s, requires_grad=True, dtype=torch.float64) for s in (shape, (3, 6), (3,)))
        assert torch.autograd.gradcheck(lambda *args: ops.linear(*args, activation), (x, w, bias))
        assert torch.autograd.gradcheck(lambda *args: ops.linear(*args, activation=activation), (x, w))


@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
def test_a_gradient_in_half_precision_is_rounded_once(activation: str) -> None:
    x, w = torch.randn(64, 32).bfloat16().requires_grad_(), torch.eye(32).bfloat16()  # so that a product is exact
    made = torch.autograd.grad(ops.linear(x, w, None, activation), x, torch.ones(64, 32).bfloat16())[0]
    wide = x.detach().double().requires_grad_()
    exact = torch.autograd.grad(ACTIVATED[activation](wide).sum(), wide)[0]
    assert (made != exact.bfloat16()).double().mean() < 1e-2


def test_torch_compile_takes_them_whole() -> None:
    x, w, bias = torch.randn(5, 6), torch.randn(3, 6), torch.randn(3)

    def model(x: Any, w: Any, bias: Any) -> Any:
        return ops.matmul(ops.linear(x, w, bias, "relu") + 1, w)

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w, bias), (F.relu(F.linear(x, w, bias)) + 1) @ w)
    w.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its compiler
        compiled(x, w, bias).sum().backward()
    assert w.grad is not None


def test_fake_tensors_and_autocast_are_seen() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert ops.linear(torch.empty(4, 5, 6), torch.empty(3, 6)).shape == (4, 5, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.linear(torch.randn(4, 6), torch.randn(3, 6)).dtype is torch.bfloat16


# --- choosing -----------------------------------------------------------------------------------------------------


def test_what_the_ways_on_a_gpu_read_can_be_identified() -> None:
    pytest.importorskip("triton")
    chooser = ops.chooser("cuda")
    assert len(chooser.kernel.fingerprint()) == 32
    assert chooser.declared.effort.eager


def test_nothing_is_measured_unless_asked_for() -> None:
    a, b = torch.randn(40, 40), torch.randn(40, 40)
    ops.matmul(a, b)
    chosen = ops.chooser("cpu")
    assert chosen.lookup(*ops._arguments(a, b, None, None, None)[0]) is None


def test_a_search_is_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(40, 40), torch.randn(40, 40)
    ops.matmul(a, b)
    ops.matmul(a, b)
    c_kernel = Config(
        by="C", VEC=8, MR=6, NR=16, MC=48, NC=256, KC=512, PACK_A=1, PACK_B=1, threads=1
    )  # fmt: skip
    chosen = ops.chooser("cpu")
    monkeypatch.setattr(chosen._decider, "_decide", lambda subject, policy: (_searched(c_kernel), None))
    chosen._decider.found(
        chosen._subjects.of(chosen.dispatcher.problem_of(*ops._arguments(a, b, None, None, None)[0])).key
    )
    assert not ops._known
    torch.testing.assert_close(ops.matmul(a, b), a @ b)
    torch.testing.assert_close(ops.matmul(a, b), a @ b)
    [known] = ops._known.values()
    assert known.bare is None  # it is not torch's call any more


def _searched(config: Config) -> Any:
    return Choice(config, "search", "search")


def test_the_c_kernel_takes_part_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_BUDGET_S", "6")
    tunesmith.options.options.cache_clear()
    a, w = torch.randn(32, 48), torch.randn(48, 48)
    with tunesmith.policy("search"):
        torch.testing.assert_close(ops.linear(a, w.mT.contiguous()), a @ w)
    text = ops.scores(a, w.mT.contiguous())
    assert text.startswith("AUTOTUNE linear_cpu(32x48, 48x48)")
    assert any(line.split()[0] == "torch" for line in text.splitlines()[3:])
    assert "serves (store)" in text
    torch.testing.assert_close(ops.linear(a, w.mT.contiguous()), a @ w)


def test_a_problem_by_hand_is_the_calls() -> None:
    chosen = ops.chooser("cpu")
    text = "M=5,N=3,K=7,dtype=bfloat16,bias.dtype=bfloat16,activation=gelu"
    made = chosen.inputs(text)
    assert made["b"].stride() == (1, 7)  # as linear layers have it
    call = chosen.dispatcher.problem_of(**made).problem
    x, w, bias = torch.randn(5, 7).bfloat16(), torch.randn(3, 7).bfloat16(), torch.randn(3).bfloat16()
    assert call == chosen.dispatcher.problem_of(*ops._arguments(x, w.mT, bias, "gelu", None)[0]).problem
