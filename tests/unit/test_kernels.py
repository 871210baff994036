"""The shipped C kernels compute what their references do, for any Config, shape and slice, and write nothing else."""

from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith import Problem, TunedKernel
from tunesmith.errors import BadInput, ProblemError
from tunesmith.kernels import cpu, shipped
from tunesmith.kernels.conv2d import conv2d
from tunesmith.kernels.matmul import matmul
from tunesmith.kernels.softmax import softmax

#: odd, smaller than a tile, one, skinny
PROBLEMS = {
    "matmul": ["M=1,N=1,K=1", "M=37,N=65,K=19", "M=130,N=300,K=530", "M=5,N=257,K=1", "M=3,N=2,K=0"],
    "softmax": ["rows=1,n=1", "rows=7,n=33", "rows=3,n=2050", "rows=65,n=5"],
    "conv2d": [
        "N=1,C=1,H=1,W=1,K=1,R=1,S=1",
        "N=2,C=3,H=9,W=11,K=5,R=3,S=3",
        "N=1,C=2,H=23,W=40,K=17,R=7,S=2",
        "N=1,C=1,H=5,W=70,K=3,R=5,S=1",
    ],
}
OUTPUT = {"matmul": "c", "softmax": "y", "conv2d": "y"}
KERNELS = list(PROBLEMS)
GUARD = 64  # floats before and after an output


def guarded(output: Any) -> tuple[Any, Any]:
    """An output full of NaN in the middle of a buffer full of a value that nothing computes."""
    buffer = np.full(output.size + 2 * GUARD, 12345.0, np.float32)
    inner = buffer[GUARD : GUARD + output.size].reshape(output.shape)
    inner[...] = np.nan
    return buffer, inner


def check(kernel: TunedKernel, problem: str) -> None:
    name = kernel.kernel.name
    inputs = kernel.inputs(problem)
    buffer, inputs[OUTPUT[name]] = guarded(inputs[OUTPUT[name]])
    with tunesmith.policy("default"):
        kernel(**inputs)
    reference = kernel.declared.against.reference
    assert reference is not None
    exact = reference(**inputs)
    error = np.abs(inputs[OUTPUT[name]] - exact)
    scale = np.abs(exact).max(initial=1e-30)
    assert error.max(initial=0) <= 2e-5 * max(scale, 1), f"{kernel} {problem}"
    assert (buffer[:GUARD] == 12345.0).all()
    assert (buffer[len(buffer) - GUARD :] == 12345.0).all()


@pytest.mark.parametrize("name", KERNELS)
def test_the_default_is_right_everywhere(name: str) -> None:
    for problem in PROBLEMS[name]:
        check(shipped()[name], problem)


@pytest.mark.parametrize("name", KERNELS)
def test_configs_from_all_over_the_space_are_right(name: str) -> None:
    kernel = shipped()[name]
    problem = kernel.problem(PROBLEMS[name][1])
    device = kernel.kernel.device([])
    for config in kernel.declared.space_for(problem, device).sample(24, seed=7):
        for text in PROBLEMS[name][1:3]:
            check(kernel.fix(**config), text)


@pytest.mark.parametrize("name", KERNELS)
def test_the_space_is_worth_searching_and_holds_its_default(name: str) -> None:
    kernel = shipped()[name]
    problem = kernel.problem(PROBLEMS[name][1])
    device = kernel.kernel.device([])
    space = kernel.declared.space_for(problem, device)

    assert 50 <= space.fix(threads=1).size <= 250
    assert kernel.declared.default_for(name, problem, device) in space


def test_friendly_functions_take_what_numpy_takes() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((17, 9)), rng.standard_normal((30, 9)).T  # float64, and not contiguous
    x, w = rng.standard_normal((2, 3, 8, 9)), rng.standard_normal((4, 3, 3, 2))

    np.testing.assert_allclose(matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(softmax(a).sum(1), np.ones(17), rtol=1e-6)
    assert conv2d(x, w).shape == (2, 4, 6, 8)
    for wrong in (
        lambda: matmul(a, a),
        lambda: softmax(x),
        lambda: conv2d(x, w[:, :2]),
        lambda: conv2d(x[..., :1, :], w),
    ):
        with pytest.raises(ValueError, match=r"dimensions|columns|channels"):
            wrong()


def test_softmax_at_the_extremes() -> None:
    x = np.array([[0, -np.inf, 1e30, -1e30], [-200, -100, 0, 88], [3, 3, 3, 3]], np.float32)

    np.testing.assert_allclose(softmax(x), [[0, 0, 1, 0], [0, 0, 0, 1], [0.25] * 4], atol=1e-30)


def test_memory_is_never_touched_for_a_wrong_argument() -> None:
    kernel = shipped()["matmul"]
    inputs = kernel.inputs("M=4,N=5,K=6")
    for name, bad in [
        ("a", inputs["a"].astype(np.float64)),
        ("a", inputs["a"][:, ::2]),
        ("a", None),
        ("b", inputs["b"][:5]),
        ("c", np.empty((5, 4), np.float32)),
        ("K", 7),
    ]:
        with pytest.raises(BadInput), tunesmith.policy("default"):
            kernel(**{**inputs, name: bad})
    with pytest.raises(ProblemError, match="does not fit an image"):
        shipped()["conv2d"].inputs("N=1,C=1,H=2,W=2,K=1,R=3,S=3")


def test_a_problem_by_hand_and_the_call_have_one_key() -> None:
    kernel = shipped()["matmul"]
    inputs = kernel.inputs("M=4,N=5,K=6")

    assert kernel.problem("M=4,N=5,K=6") == Problem.parse(str(kernel.explanation(**inputs)[0].problem))


@pytest.mark.parametrize("shape", [(3, 5), (7,), (2, 3, 4, 5)])
def test_inputs_begin_at_a_cache_line_wherever_memory_is_free(shape: tuple[int, ...]) -> None:
    between = [np.empty(17 + 16 * i, np.uint8) for i in range(8)]
    for make in (lambda: cpu.normal(*shape, seed=1), lambda: cpu.unwritten(*shape)):
        for array in [make() for _ in range(4)]:
            assert array.ctypes.data % 64 == 0
            assert array.shape == shape
            assert array.flags.c_contiguous
            assert array.flags.writeable
    assert (cpu.normal(*shape, seed=1) == cpu.normal(*shape, seed=1)).all()
    assert np.isnan(cpu.unwritten(*shape)).all()
    assert between
