"""cuBLASLt as a candidate: what its functions are given is what they want. On a library of the same functions in C."""

from __future__ import annotations

import ctypes
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tunesmith import Config, Problem
from tunesmith.backends.c_compiler import compiler
from tunesmith.core.device import known_device
from tunesmith.errors import BadInput, DeviceError, MissingEngine
from tunesmith.kernels.gemm import arguments, cublaslt, reference
from tunesmith.kernels.gemm.cublaslt_api import DTYPES, Library, Product

SOURCE = Path(__file__).parents[1] / "data" / "cublaslt.c"
STREAM = 77
WORKSPACE = torch.empty(64)


@pytest.fixture(scope="module")
def dll(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = tmp_path_factory.mktemp("cublaslt") / "libcublasLt.so"
    subprocess.run([*compiler().argv, "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


def computed(dll: Any, args: tuple[Any, ...], number: int = 0) -> torch.Tensor:
    """The product of a call's arguments by an algorithm; c is in the middle of something else."""
    a, b, bias, _, m, n, *_ = args
    product = Product(Library(dll), cublaslt.wanted(args), 8, WORKSPACE.nbytes)
    whole = torch.full((m * n + 16,), 7.0)
    c, algorithm = whole[8:-8], product.algorithms[number]
    launch = product.launcher(algorithm)
    del product  # a launch keeps what it needs
    workspace = WORKSPACE.data_ptr() if algorithm.workspace_bytes else None
    launch(b.data_ptr(), a.data_ptr(), c.data_ptr(), 0 if bias is None else bias.data_ptr(), workspace, STREAM)
    assert (torch.cat([whole[:8], whole[-8:]]) == 7).all()
    return c.view(m, n)


def test_every_layout_is_the_product(dll: Any) -> None:
    torch.manual_seed(0)
    for m, n, k in ((3, 5, 7), (1, 4, 6), (5, 1, 6), (4, 3, 1), (1, 1, 1)):
        bias = torch.randn(n)
        for a in (
            torch.randn(m, k),
            torch.randn(k, m).T,
            torch.randn(m, k + 3)[:, 2:-1],
            torch.randn(k, m + 2)[:, 2:].T,
        ):
            for b in (torch.randn(k, n), torch.randn(n, k).T, torch.randn(k, n + 2)[:, 1:-1]):
                for more in ((None, None), (bias, None), (bias, "relu"), (None, "relu")):
                    found = computed(dll, arguments(a, b, *more), number=m % 2)
                    torch.testing.assert_close(found.double(), reference(a, b, *more), rtol=1e-5, atol=1e-5)
    assert ctypes.c_int.in_dll(dll, "fake_alive").value == 0, "something that was made is never destroyed"


def test_algorithms_that_the_library_can_not_run_are_left_out(dll: Any) -> None:
    product = Product(Library(dll), cublaslt.wanted(arguments(torch.randn(3, 5), torch.randn(5, 4))), 8, 1 << 20)
    assert [one.algorithm[0] for one in product.algorithms] == [7000, 7002]
    assert [one.workspace_bytes for one in product.algorithms] == [0, 1 << 20]


def test_what_the_library_refuses_is_said(dll: Any) -> None:
    library = Library(dll)
    with pytest.raises(DeviceError, match="cublasLtMatrixLayoutCreate of cuBLASLt 130100 failed with cublasStatus_t 7"):
        library.made("cublasLtMatrixLayoutCreate", DTYPES["float32"], 5, 4, 3)
    for a in (torch.randn(6, 10)[::2, ::2], torch.randn(1, 5).expand(3, 5)):
        with pytest.raises(BadInput, match=r"reads no matrix like a, \(3, 5\) with strides"):
            cublaslt.wanted(arguments(a, torch.randn(5, 4)))
    assert library.version == 130100


class OnGpu:
    """A tensor that is said to be on a GPU."""

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner, self.device, self.is_contiguous = inner, torch.device("cuda", 0), inner.is_contiguous
        self.shape, self.dtype, self.ndim = inner.shape, inner.dtype, inner.ndim
        self.stride, self.data_ptr = inner.stride, inner.data_ptr


def test_a_candidate_for_each_algorithm(dll: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is launched, with torch's CUDA functions replaced."""
    empty = torch.empty
    monkeypatch.setattr(cublaslt, "_dll", lambda: dll)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: empty(shape, dtype=dtype))
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    kernel = cublaslt.CublasLt()
    assert kernel.versions() == {"cublasLt": "130100"}
    a, b, bias = torch.randn(6, 5), torch.randn(4, 5).T, torch.randn(4)
    args = arguments(*map(OnGpu, (a, b, bias)), "relu")
    bound = kernel.for_call(args)
    for number in (0, 1):
        launch = bound.load(Config(ALGORITHM=number), Problem({}), None).launch
        other = torch.randn(6, 8)[:, 3:]
        for mine in (a, other, a, other):
            found = launch(*arguments(OnGpu(mine), *args[1:3], "relu"))
            torch.testing.assert_close(found.double(), reference(mine, b, bias, "relu"), rtol=1e-5, atol=1e-5)
    with pytest.raises(BadInput, match="proposes 2 algorithms for this product: there is no 2"):
        bound.load(Config(ALGORITHM=2), Problem({}), None)


def test_it_applies_to_one_product_with_relu_or_nothing() -> None:
    def problem(**more: object) -> Problem:
        usual = {"M": 8, "N": 8, "K": 8, "activation": None, "out": "same", "a.dtype": "float16", "b.dtype": "float16"}
        return Problem({**usual, "a.strides": "x1", "b.strides": "1x", **more})

    h200 = known_device("NVIDIA H200")
    good = [{}, {"activation": "relu"}, {"bias.dtype": "float16", "activation": "relu"}]
    bad = [{"activation": "gelu"}, {"out": "float32"}, {"bias.dtype": "float32"}, {"a.strides": "xx1"}]
    assert [cublaslt.applies(problem(**more), h200) for more in (*good, *bad)] == [True] * 3 + [False] * 4


def test_without_the_library_it_has_no_version_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda in (None, "99.0"):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        cublaslt._dll.cache_clear()
        assert cublaslt.CublasLt().versions() == {}
        with pytest.raises(MissingEngine, match="pip install torch"):
            cublaslt._dll()
