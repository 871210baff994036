"""Operations over rows compute what torch does, are operators that torch.compile takes whole, and have gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.library import opcheck

from tunesmith import choose, ops
from tunesmith.core.outcome import Failed
from tunesmith.errors import BadInput
from tunesmith.row_ops.ways import way_of

F = torch.nn.functional
SHAPES = ((5, 33), (2, 3, 16), (7,), (1, 1), (0, 4), (3, 0))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def operands(*shape: int, dtype: Any = torch.float32, **more: Any) -> tuple[Any, Any, Any]:
    """x, and what stands along its rows."""
    made = [torch.randn(size, **more) for size in (shape, shape[-1:], shape[-1:])]
    x, w, b = (one.to(dtype).detach().requires_grad_(one.requires_grad) for one in made)
    return x, w, b


# --- values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_torchs(shape: tuple[int, ...], dtype: Any) -> None:
    x, w, b = operands(*shape, dtype=dtype)
    for _ in range(2):  # the second call is a warm one
        same(ops.softmax(x), torch.softmax(x, -1))
        same(ops.rms_norm(x, w), F.rms_norm(x, shape[-1:], w, 1e-6))
        same(ops.rms_norm(x, eps=1e-3), F.rms_norm(x, shape[-1:], None, 1e-3))
        if shape[-1]:
            same(ops.layer_norm(x, w, b), F.layer_norm(x, shape[-1:], w, b))
        both = torch.cat([x, x + 1], -1)
        same(ops.silu_and_mul(both), F.silu(x) * (x + 1))


def same(made: Any, expected: Any) -> None:
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("layout", ["plain", "gaps", "transposed", "batch of gaps"])
def test_add_rms_norm_writes_both_and_nothing_else(layout: str) -> None:
    def laid_out() -> tuple[Any, Any]:
        if layout == "transposed":
            whole = torch.randn(9, 6)
            return whole, whole.mT
        if layout == "batch of gaps":
            whole = torch.randn(2, 4, 20)
            return whole, whole[:, 1:3, 3:12]
        whole = torch.randn(6, 12)
        return whole, whole[:, 2:11] if layout == "gaps" else whole

    (around_x, x), (around_residual, residual) = laid_out(), laid_out()
    w = torch.randn(x.shape[-1])
    inside = [view.clone() for view in (x, residual)]
    before = [around.clone() for around in (around_x, around_residual)]
    total = x + residual
    made = ops.add_rms_norm_(x, residual, w)
    assert made[0] is x
    assert made[1] is residual
    same(residual, total)
    same(x, F.rms_norm(total, x.shape[-1:], w, 1e-6))
    x.copy_(inside[0])
    residual.copy_(inside[1])
    assert torch.equal(around_x, before[0])
    assert torch.equal(around_residual, before[1])


def test_other_dimensions_dtypes_and_weights_are_torchs() -> None:
    x = torch.randn(4, 6)
    same(ops.softmax(x, 0), torch.softmax(x, 0))
    same(ops.softmax(x, 1), torch.softmax(x, 1))
    w = torch.randn(12)[::2]
    same(ops.rms_norm(x, w), F.rms_norm(x, (6,), w, 1e-6))
    same(ops.softmax(x.expand(2, 4, 6)), torch.softmax(x.expand(2, 4, 6), -1))
    same(ops.rms_norm(x.mT), F.rms_norm(x.mT, (4,), None, 1e-6))


def test_an_integer_eps_is_the_number_and_no_constant_of_a_binary() -> None:
    x = torch.randn(3, 5)
    for eps in (1, 2):
        assert all(
            type(way_of(name).arguments(*arrays, eps=eps)[-1]) is float
            for name, arrays in (("rms_norm", (x,)), ("layer_norm", (x,)), ("add_rms_norm_", (x, x.clone())))
        )
        same(ops.rms_norm(x, None, eps), F.rms_norm(x, (5,), None, eps))


def test_mistakes_are_named() -> None:
    x = torch.randn(3, 5)
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: ops.silu_and_mul(x), "needs an even last dimension"),
        (lambda: ops.silu_and_mul(torch.tensor(1.0)), "needs an even last dimension"),
        (lambda: ops.rms_norm(x, torch.randn(4)), r"weight is \(4,\); needs \(5,\)"),
        (lambda: ops.add_rms_norm_(x, torch.randn(3, 4)), "needs one shape and one dtype"),
        (lambda: ops.add_rms_norm_(x[:1].expand(3, 5), x), "its elements share memory"),
        (lambda: ops.add_rms_norm_(x, torch.as_strided(x.clone(), (3, 5), (2, 1))), "its elements share memory"),
        (lambda: ops.layer_norm(x, eps=None), "eps is None; good values: numbers"),
        (lambda: ops.add_rms_norm_(x.clone().requires_grad_(), x), r"call it under torch.no_grad\(\)"),
        (lambda: ops.rows.tune("softmx", x), "unknown operation 'softmx': did you mean 'softmax'"),
        (lambda: ops.rows.tune("softmax", x.double()), "there is nothing to choose"),
        (lambda: ops.rows.tune("silu_and_mul", x), "needs an even last dimension"),
        (lambda: ops.rows.scores("add_rms_norm_", x, torch.randn(3, 4)), "needs one shape and one dtype"),
        (lambda: ops.rows.tune("add_rms_norm_", x[:1].expand(3, 5), x), "its elements share memory"),
        (lambda: ops.rows.tune("rms_norm", x, torch.randn(4)), r"weight is \(4,\); needs \(5,\)"),
        (lambda: ops.rows.scores("rms_norm", x, None, None), "eps is None"),
        (lambda: ops.rows.scores("softmax", x, 0), r"softmax takes \(x\), and was given \(Tensor, int\)"),
        (lambda: ops.rows.tune("softmax"), r"softmax takes \(x\), and was given \(\)"),
    ]
    for mistake, said in mistakes:
        with pytest.raises(BadInput, match=said):
            mistake()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_without_an_eps_rms_norm_is_torchs_whoever_sees_it(dtype: Any) -> None:
    x, w, _ = operands(5, 8, dtype=dtype)
    x = x / 1e3  # so that it matters
    expected = F.rms_norm(x, (8,), w, None)
    seen = [ops.rms_norm(x, w, None), ops.rms_norm(x.clone().requires_grad_(), w, None).detach()]
    compiled = torch.compile(lambda x: ops.rms_norm(x, w, None), fullgraph=True, backend="aot_eager")
    for made in (*seen, compiled(x)):
        assert torch.equal(made, expected)
    made = ops.add_rms_norm_(x.clone(), torch.zeros_like(x), w, None)
    same(made, (expected, x))


def test_autograd_notices_what_is_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a kernel too, of which torch sees nothing."""
    from tunesmith.kernels import add_rmsnorm

    weight = torch.randn(5, requires_grad=True)
    for which in (0, 1):
        both = torch.randn(3, 5), torch.randn(3, 5)
        product = (weight * both[which]).sum()
        add_rmsnorm.in_place(lambda *_: None, *both, None, 1e-6)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()
    with torch.inference_mode():
        ops.add_rms_norm_(torch.randn(3, 5), torch.randn(3, 5))


# --- as torch's operators -----------------------------------------------------------------------------------------


def test_opcheck() -> None:
    x, w, _ = operands(4, 6)
    grown = operands(4, 6, requires_grad=True)
    library = torch.ops.tunesmith
    opcheck(library.softmax, (grown[0],))
    opcheck(library.silu_and_mul, (x[None].expand(2, 4, 6),))
    for args in ((x.mT, None, 1e-6), (*grown[:2], 1e-6)):
        opcheck(library.rms_norm, args)
    opcheck(library.layer_norm, (*grown, 1e-5))
    opcheck(library.add_rms_norm_, (x, torch.randn(4, 6), w, 1e-6))
    opcheck(library.rms_norm_backward, (torch.randn(4, 6), x, w, 1e-6))
    opcheck(library.rms_norm_backward, (torch.randn(4, 6, requires_grad=True), *grown[:2], 1e-6))


def test_gradients() -> None:
    x, w, b = operands(2, 4, dtype=torch.float64, requires_grad=True)
    library, check = torch.ops.tunesmith, torch.autograd.gradcheck
    for weight, bias in ((w, b), (None, None)):
        assert check(lambda x, w: library.rms_norm(x, w, 1e-6), (x, weight))
        assert check(lambda x, w, b: library.layer_norm(x, w, b, 1e-5), (x, weight, bias))
    assert check(library.softmax, (x,))
    assert check(library.silu_and_mul, (x,))


def test_second_gradients() -> None:
    x, w, b = operands(2, 4, dtype=torch.float64, requires_grad=True)
    library, check = torch.ops.tunesmith, torch.autograd.gradgradcheck
    for weight, bias in ((w, b), (None, None)):
        assert check(lambda x, w: library.rms_norm(x, w, 1e-6), (x, weight))
        assert check(lambda x, w, b: library.layer_norm(x, w, b, 1e-5), (x, weight, bias))
    assert check(lambda x: library.rms_norm(x, w.detach(), 1e-6), (x,))
    assert check(library.softmax, (x,))
    assert check(library.silu_and_mul, (x,))
    slope = torch.autograd.grad(ops.rms_norm(x, w).pow(3).sum(), x, create_graph=True)[0]
    third = torch.autograd.grad(torch.autograd.grad(slope.pow(2).sum(), x, create_graph=True)[0].sum(), (x, w))
    expected = torch.autograd.grad(F.rms_norm(x, (4,), w, 1e-6).pow(3).sum(), x, create_graph=True)[0]
    same(third, torch.autograd.grad(torch.autograd.grad(expected.pow(2).sum(), x, create_graph=True)[0].sum(), (x, w)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gradient_of_half_precision_is_rounded_once(dtype: Any) -> None:
    """Nearly everywhere the nearest number; it was off in every third element where each step was rounded."""
    both = (3 * torch.randn(40, 64)).to(dtype).requires_grad_()
    slope = torch.randn(40, 32).to(dtype)
    made = torch.autograd.grad(ops.silu_and_mul(both), both, slope)[0]
    wide = both.detach().double().requires_grad_()
    exact = torch.autograd.grad(F.silu(wide[:, :32]) * wide[:, 32:], wide, slope.double())[0]
    assert (made != exact.to(dtype)).double().mean() < 1e-3


def test_where_torch_is_to_be_deterministic_nothing_is_added_in_any_order() -> None:
    from tunesmith.kernels import rmsnorm_backward

    x, w, slope = operands(5, 8)
    into = torch.ones(8)
    torch.use_deterministic_algorithms(True)
    try:
        made = rmsnorm_backward.rmsnorm_backward(slope.expand(5, 8), x, w, dw=into)  # a kernel would want a GPU
    finally:
        torch.use_deterministic_algorithms(False)
    exact = rmsnorm_backward.reference(slope.expand(5, 8), x, w)
    assert made[1] is into
    same(made[0], exact[0].float())
    same(into, 1 + exact[1].float())


def test_a_gradient_in_half_precision_is_torchs() -> None:
    x, w, _ = operands(5, 32, dtype=torch.bfloat16, requires_grad=True)
    slope = torch.randn(5, 32, dtype=torch.bfloat16)
    ours = torch.autograd.grad(ops.rms_norm(x, w), (x, w), slope)
    theirs = torch.autograd.grad(F.rms_norm(x.double(), (32,), w.double(), 1e-6), (x, w), slope.double())
    for mine, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, right.to(mine.dtype), atol=2e-2, rtol=2e-2)


def test_torch_compile_takes_them_whole() -> None:
    x, w, b = operands(5, 6)

    def model(x: Any, w: Any, b: Any) -> Any:
        y, residual = ops.add_rms_norm_(x + 1, x + 0, w)
        y = ops.layer_norm(ops.softmax(y), w, b)
        return ops.silu_and_mul(ops.rms_norm(y, w)) + residual.sum()

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w, b), model(x, w, b))

    def trained(x: Any, w: Any) -> Any:
        return ops.rms_norm(x, w).sum()

    w.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its compiler
        torch.compile(trained, fullgraph=True, backend="aot_eager")(x, w).backward()
    expected = torch.autograd.grad(F.rms_norm(x, (6,), w, 1e-6).sum(), w)[0]
    torch.testing.assert_close(w.grad, expected)


def test_fake_tensors_and_autocast_are_seen() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert ops.silu_and_mul(torch.empty(4, 5, 6)).shape == (4, 5, 3)
    x = torch.randn(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.softmax(x).dtype is torch.softmax(x, -1).dtype
        assert ops.rms_norm(x).dtype is F.rms_norm(x, (6,)).dtype


# --- choosing -----------------------------------------------------------------------------------------------------


def test_a_problem_by_hand_is_the_calls() -> None:
    chosen = ops.rows.chooser("layer_norm", "cpu")
    made = chosen.inputs("rows=5,n=7,dtype=bfloat16")
    x, w, b = operands(5, 7, dtype=torch.bfloat16)
    call = chosen.dispatcher.problem_of(**made).problem
    assert call == chosen.dispatcher.problem_of(x, w, b, 5, 7, 1e-5).problem
    assert ops.rows.softmax_cpu is ops.rows.chooser("softmax", "cpu")
    assert ops.rows.chooser("add_rms_norm_", "cuda").kernel.name == "add_rms_norm_gpu"


def test_c_takes_part_in_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_BUDGET_S", "1.5")
    from tunesmith.options import options

    options.cache_clear()
    x = torch.randn(16, 64)
    summary = ops.rows.tune("softmax", x)
    assert {trial.config["by"] for trial in summary.trials} == {"torch", "C"}
    assert "AUTOTUNE softmax_cpu(16x64)" in ops.rows.scores("softmax", x)
    torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))


def in_place(x: Any, y: Any, n: int) -> Any:
    y += x
    x *= 2
    return x, y


def other(x: Any, y: Any, n: int) -> Any:
    y.add_(x)
    return x.mul_(2), y


def wrong(x: Any, y: Any, n: int) -> Any:
    y.add_(x, alpha=1.01)
    return x.mul_(2), y


def exact(x: Any, y: Any, n: int) -> Any:
    return 2 * x.double(), x.double() + y.double()


def test_candidates_that_write_in_place_are_compared_on_the_same_values() -> None:
    chosen = choose(
        "in_place", {"torch": in_place, "other": other, "wrong": wrong}, reference=exact, key=["n"],
        writes=["x", "y"], settings=None, clock="wall",
    )  # fmt: skip
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    first, second = x.clone(), y.clone()
    summary = chosen.tune(x, y, 16)
    assert torch.equal(x, first)
    assert torch.equal(y, second)
    failed = {config["by"]: failure for config, failure in summary.failures}
    assert set(failed) == {"wrong"}
    assert isinstance(failed["wrong"], Failed)
    assert failed["wrong"].stage == "wrong"
    chosen(x, y, 16)
    assert torch.equal(x, 2 * first)
    assert torch.equal(y, first + second)
