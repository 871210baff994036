"""The shipped Triton matrix product: right where the interpreter runs it, compiled for a GPU that is not here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from tests.fake_triton import H200, GpuTensor, fake_gpu

from tunesmith import Config, Problem
from tunesmith.core.device import Device, known_device
from tunesmith.errors import BadInput
from tunesmith.kernels import gemm as package
from tunesmith.kernels.gemm import arguments, default, gemm, reference, space

KERNEL = package.kernel.kernel


def problem(m: int, n: int, k: int, dtype: str = "float16", **more: object) -> Problem:
    usual = {"batch": 1, "activation": None, "out": "same", "precision": "ieee", "a.strides": "x1", "b.strides": "x1"}
    return Problem({"M": m, "N": n, "K": k, "a.dtype": dtype, "b.dtype": dtype, **usual, **more})


# --- numerics -----------------------------------------------------------------------------------------------

_INTERPRETED = """
import torch, triton
from triton.runtime import interpreter
if triton.__version__ < "3.9":
    # beside numpy 2.4 the interpreter of Triton 3.6 can't loop to a number that is an argument
    patch = interpreter._patch_lang_tensor
    def with_numbers(tensor, *rest):
        patch(tensor, *rest)
        tensor.__index__ = lambda self: int(self.handle.data.item())
    interpreter._patch_lang_tensor = with_numbers

from tunesmith import Config
from tunesmith.core.device import Device
from tunesmith.kernels.gemm import arguments, device, reference
from tunesmith.kernels.gemm.plan import output_dtype, plan

BASE = dict(BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, GROUP_M=2, SPLIT_K=1, PERSISTENT=False, TMA=False, num_warps=1,
            num_stages=2)
HOW = ({}, {"SPLIT_K": 2}, {"SPLIT_K": 4}, {"PERSISTENT": True})
DEVICE = Device("cuda", "some GPU", "sm_80", 2)
torch.manual_seed(0)

def check(how, a, b, bias=None, activation=None, out="same"):
    args = arguments(a, b, bias, activation, out)
    made = plan(Config({**BASE, **how}), args, DEVICE)
    c = torch.full(made.shape, float("nan"), dtype=output_dtype(args))
    arrays, arrived = [*args[:3], c], None
    if made.program == "gemm":
        arrived = torch.zeros(made.arrived, dtype=torch.int32) if made.arrived else None
        arrays += [torch.full((made.partial,), float("nan")) if made.partial else None, arrived]
    getattr(device, made.program)[made.grid](*arrays, *made.scalars, **made.constants)
    assert arrived is None or not arrived.any(), "counters are not left as they were"
    exact = reference(a, b, bias, activation)
    error = (c.double() - exact).abs().max() / exact.abs().max().clamp(min=0.1)
    assert error < (2e-3 if c.dtype is torch.float16 else 5e-6), (how, a.shape, b.shape, activation, float(error))

def strided(x):  # every second row and column of something larger
    whole = torch.full((2 * x.shape[0], 2 * x.shape[1]), float("nan"), dtype=x.dtype)
    whole[::2, ::2] = x
    return whole[::2, ::2]

for dtype in (torch.float16, torch.float32):
    for how, (m, n, k) in zip(HOW * 2, ((1, 17, 33), (37, 20, 70), (5, 16, 64), (33, 1, 7)) * 2):
        a, b, bias = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.randn(n).to(dtype)
        check(how, a, b, bias, "relu")
        check(how, strided(a), b.T.contiguous().T, bias, "gelu", "float32")
        check(how, a.T.contiguous().T, strided(b), None, "silu")
a, b = torch.randn(3, 9, 40).half(), torch.randn(40, 18).half()
for how in HOW[1:]:
    check(how, a, b)
    check(how, a[:1].expand(3, 9, 40), torch.randn(3, 18, 40).half().mT)
check({}, torch.randn(4, 0), torch.randn(0, 5), torch.ones(5))

# few rows: as the transpose of what they are, and without matrix units
for dtype in (torch.float16, torch.float32):
    for how, m in (({"BLOCK_N": 64}, 5), ({"BLOCK_N": 64, "SPLIT_K": 2}, 19), ({"BLOCK_M": 1, "BLOCK_N": 4}, 1),
                   ({"BLOCK_M": 1, "BLOCK_N": 1, "BLOCK_K": 32}, 1)):
        for n, k in ((70, 33), (64, 64)):
            a, b, bias = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype).T, torch.randn(n).to(dtype)
            check(how, a, b, bias, "silu")
            check(how, strided(a), b.contiguous(), None, None, "float32")
        check(how, a[None].expand(3, m, 64), torch.randn(3, 64, 70).to(dtype), None)

# by descriptors: either way round, odd sizes, a part of something larger; and what can't be described
def aligned(rows, columns, part):
    whole = torch.full((rows, -(-columns // 8) * 8 + 8), float("nan")).half()
    whole[:, :columns] = torch.randn(rows, columns)
    return whole[:, :columns] if part else torch.randn(rows, -(-columns // 8) * 8).half()

described = set()
for how in ({"TMA": True}, {"TMA": True, "SPLIT_K": 2}, {"TMA": True, "PERSISTENT": True}):
    for part in (False, True):
        w, x = aligned(17, 40, part), aligned(37, 40, part)
        for a, b in ((x, w.T), (aligned(40, 37, part).T, w.T), (x, aligned(40, 23, part)), (x[:, 1:], w[:, 1:].T)):
            check(how, a, b, None, "relu")
            described.add(plan(Config({**BASE, **how}), arguments(a, b), DEVICE).constants["DESCRIBED"])
assert described == {True, False}
print("right")
"""


def test_every_way_of_computing_it_is_right_on_odd_sizes_and_strides() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ended = subprocess.run([sys.executable, "-c", _INTERPRETED], env=environment, capture_output=True, text=True)
    assert ended.stdout.strip() == "right", ended.stderr


# --- what is known without a GPU -----------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1, 4096, 4096), (16, 151936, 4096), (300, 5, 7), (8192, 8192, 8192), (1, 1, 1)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_default_is_of_its_space_on_any_chip(sizes: tuple[int, int, int], dtype: str) -> None:
    unknown = Device("cuda", "some GPU", "sm_75", 40)
    for chip in (H200, unknown):
        legal = space(problem(*sizes, dtype), chip)
        assert default(problem(*sizes, dtype), chip) in legal
        assert 2 <= legal.size <= 2500


def test_the_sum_is_split_where_tiles_are_few_and_not_where_they_are_many() -> None:
    assert default(problem(1, 4096, 16384), H200)["SPLIT_K"] > 1
    assert default(problem(8192, 8192, 8192), H200)["SPLIT_K"] == 1
    bound = KERNEL.for_call(arguments(torch.empty(8, 64), torch.empty(64, 8)), H200)
    both = Config({**default(problem(8, 8, 64), H200), "PERSISTENT": True, "SPLIT_K": 2})
    with pytest.raises(BadInput, match="does not split its sum"):
        bound.compile_job(both, problem(8, 8, 64), H200)


def test_descriptors_are_tried_where_the_chip_and_the_strides_allow_them() -> None:
    def tried(chip: Device, *sizes: int, dtype: str = "bfloat16", **more: object) -> bool:
        legal = list(space(problem(*sizes, dtype, **more), chip))
        assert len(legal) <= 2500
        return any(config["TMA"] for config in legal)

    a100, b200 = known_device("NVIDIA A100-SXM4-80GB"), known_device("NVIDIA B200")
    assert tried(H200, 2048, 2048, 2048, **{"b.strides": "1x"})
    assert tried(b200, 2048, 2048, 2048)
    assert not tried(a100, 2048, 2048, 2048)
    assert not tried(H200, 16, 2048, 2048)  # few rows
    assert not tried(H200, 2048, 2044, 2048)  # rows of b begin at addresses that are not divisible by 16
    assert not tried(H200, 2048, 2048, 2044, **{"b.strides": "1x"})
    assert not tried(H200, 2048, 2048, 2048, **{"a.strides": "xx"})
    assert not tried(H200, 2048, 2048, 2048, batch=3, **{"a.strides": "xx1"})
    assert not tried(H200, 2048, 2048, 2048, dtype="float32")


def test_a_program_for_each_unit_is_tried_where_there_are_more_tiles() -> None:
    for size in (512, 4096):
        legal = [config for config in space(problem(size, size, size), H200) if config["PERSISTENT"]]
        assert all(size**2 > 132 * config["BLOCK_M"] * config["BLOCK_N"] for config in legal)
        assert bool(legal) == (size == 4096)


def test_arguments_that_do_not_fit_are_refused() -> None:
    a, b = torch.empty(4, 8), torch.empty(8, 5)
    for wrong, said in (
        (lambda: arguments(a, a), r"needs \(M, K\) and \(K, N\)"),
        (lambda: arguments(a, b.half()), "of one dtype"),
        (lambda: arguments(torch.empty(2, 4, 8), torch.empty(3, 8, 5)), "different sizes"),
        (lambda: arguments(a, b, torch.empty(4)), r"needs \(5,\)"),
        (lambda: arguments(a, b, activation="gleu"), "unknown activation 'gleu': did you mean 'gelu'"),
        (lambda: gemm(a, b), "on the CPU"),
    ):
        with pytest.raises(BadInput, match=said):
            wrong()
    assert reference(a, b).shape == (4, 5)


# --- compiled and launched for a GPU that is not here ------------------------------------------------------------


class Matrix(GpuTensor):
    """A GPU's tensor with strides of its own."""

    def __init__(self, *shape: int, strides: tuple[int, ...] | None = None, **more: Any) -> None:
        super().__init__(*shape, **more)
        self._strides, self.ndim = strides, len(shape)

    def stride(self, dim: int | None = None) -> Any:
        strides = self._strides or super().stride()
        return strides if dim is None else strides[dim]

    def is_contiguous(self) -> bool:
        return self._strides is None


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What the GPU was asked to run; outputs are allocated nowhere."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns where it is not set
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: Matrix(*shape, dtype=dtype))
    monkeypatch.setattr(
        "tunesmith.kernels.gemm.launch.counters_of", lambda device, n: lambda: Matrix(n, dtype=torch.int32)
    )
    with fake_gpu(monkeypatch) as fake:
        yield fake


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_calls_without_a_table_launch_the_default(launched: Any, dtype: torch.dtype) -> None:
    name = str(dtype).rpartition(".")[2]
    for m, n, k in ((1, 4096, 4096), (2048, 2048, 2048)):
        a, b = Matrix(m, k, dtype=dtype), Matrix(k, n, dtype=dtype, strides=(1, k))
        gemm(a, b)
        gemm(a, b)
        first, second = launched.launches[-2:]
        expected = default(problem(m, n, k, name, **{"b.strides": "1x"}), H200)
        tiles = -(-m // expected["BLOCK_M"]) * -(-n // expected["BLOCK_N"])
        assert first.grid == second.grid == (tiles * expected["SPLIT_K"], 1, 1)
        assert first.kernel == ("gemv" if m == 1 else "gemm")


def test_other_strides_of_one_problem_get_their_own_binary(launched: Any) -> None:
    a, b = Matrix(64, 128), Matrix(128, 64)
    gemm(a, b)
    gemm(Matrix(64, 128, strides=(1001, 1)), b)  # the same class, not divisible by 16
    gemm(a, b)
    kernels = [launch.function for launch in launched.launches]
    assert kernels[0] == kernels[2] != kernels[1]
    assert 1001 in launched.launches[1].args
    assert 1001 not in launched.launches[2].args


def test_an_empty_product_launches_nothing(launched: Any) -> None:
    assert gemm(Matrix(0, 128), Matrix(128, 64)).shape == (0, 64)
    assert launched.launches == []


def test_a_persistent_product_has_as_many_programs_as_run_at_once(launched: Any) -> None:
    config = Config(
        BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, GROUP_M=8, SPLIT_K=1, PERSISTENT=True, TMA=False, num_warps=4, num_stages=3
    )  # fmt: skip
    args = arguments(Matrix(4096, 256), Matrix(256, 4096))
    KERNEL.for_call(args).load(config, problem(4096, 4096, 256), None).launch(*args)
    assert launched.launches[-1].kernel == "gemm_persistent"
    assert launched.launches[-1].grid == (132, 1, 1)


@pytest.mark.parametrize("persistent", [False, True])
def test_the_copy_engine_reads_both_matrices_on_hopper(launched: Any, persistent: bool) -> None:
    from triton.runtime import _allocation

    config = Config(
        BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP_M=8, SPLIT_K=1, PERSISTENT=persistent, TMA=True, num_warps=4,
        num_stages=3,
    )  # fmt: skip
    given: list[Any] = []
    launched.launches = _Watched(lambda: given.append(_allocation._allocator.get()))
    for b, described in ((Matrix(512, 4096, strides=(1, 512)), True), (Matrix(512, 4096, strides=(1, 516)), False)):
        args = arguments(Matrix(4096, 512), b)
        bound = KERNEL.for_call(args)
        kernel, wanted = bound._compiled(config)
        compiled = kernel.load(wanted.constants, problem(4096, 4096, 512), None).compiled
        assert ("cp.async.bulk.tensor" in compiled.asm["ptx"]) == described
        assert "wgmma.mma_async" in compiled.asm["ptx"]
        before = _allocation._allocator.get()
        bound.load(config, problem(4096, 4096, 512), None).launch(*args)
        assert _allocation._allocator.get() is before
        assert (given[-1] is not before) == described, "descriptors need memory"
        if described:
            assert given[-1](256, 128, None).shape == (256,)


def test_few_rows_are_multiplied_the_other_way_round_and_all_begin_before_the_kernel_before_has_ended(
    launched: Any,
) -> None:
    def compiled(m: int, device: Device | None = None, **how: object) -> Any:
        usual = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 1, "SPLIT_K": 1, "PERSISTENT": False}
        config = Config({**usual, "TMA": False, "num_warps": 4, "num_stages": 3, **how})
        args = arguments(Matrix(m, 4096), Matrix(4096, 512, strides=(1, 4096)))
        kernel, wanted = KERNEL.for_call(args, device)._compiled(config)
        return kernel.load(wanted.constants, problem(m, 512, 4096), None).compiled if device is None else wanted

    for m, how in ((1, {"BLOCK_M": 1, "BLOCK_N": 4}), (7, {}), (32, {"BLOCK_M": 32, "SPLIT_K": 4})):
        made = compiled(m, **how)
        code = made.asm["ptx"].partition(".visible .entry")[2]
        reads = [code.index(word) for word in ("cp.async.cg", "ld.global") if word in code]
        assert code.index("griddepcontrol.wait") < min(reads), "memory that may still be written to"
        assert code.index("prefetch.global.L2") < code.index("griddepcontrol.wait")
        sums = [code.rindex(word) for word in ("mma_async", "fma.rn") if word in code]
        begun = code.find("griddepcontrol.launch_dependents")
        assert begun > max(sums) if "SPLIT_K" not in how else begun < 0, "what is read afterwards may be another's"
        assert made.metadata.launch_pdl
        assert ("wgmma.mma_async" in code) == (m > 1)
    for how in ({"TMA": True}, {"TMA": True, "PERSISTENT": True}):
        code = compiled(640, BLOCK_M=64, **how).asm["ptx"].partition(".visible .entry")[2]
        first = min(
            code.index(word) for word in ("st.global", "ld.global", "cp.async.bulk", "tensormap") if word in code
        )
        assert code.index("griddepcontrol.wait") < first
    elsewhere = compiled(7, known_device("NVIDIA A100-SXM4-80GB")).constants
    assert not elsewhere["DEPENDENT"]
    assert "launch_pdl" not in elsewhere


def test_a_tile_of_one_row_is_for_one_row_alone() -> None:
    one = default(problem(1, 4096, 4096, **{"b.strides": "1x"}), H200)
    assert one["BLOCK_M"] == 1
    assert all(
        config["BLOCK_M"] > 1
        for other in (problem(2, 4096, 4096, **{"b.strides": "1x"}), problem(1, 4096, 4096))
        for config in space(other, H200)
    )
    for wrong, (m, n, k) in ((one, (2, 64, 64)), (one.replace(SPLIT_K=2), (1, 64, 64))):
        bound = KERNEL.for_call(arguments(torch.empty(m, k), torch.empty(n, k).T), H200)
        with pytest.raises(BadInput, match=r"BLOCK_M=1 is for one row, and a has 2|does not split its sum"):
            bound.compile_job(wrong, problem(m, n, k), H200)


class _Watched(list[Any]):
    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__()
        self._told = told

    def append(self, one: Any) -> None:
        self._told()
        super().append(one)


def test_sizes_beyond_32_bits_are_compiled_for(launched: Any) -> None:
    narrow = KERNEL.for_call(arguments(Matrix(64, 4096), Matrix(4096, 64)))
    wide = KERNEL.for_call(arguments(Matrix(64, 4096, strides=(2**26, 1)), Matrix(4096, 64)))
    config = default(problem(64, 64, 4096), H200)
    constants = [kernel._compiled(config)[1].constants for kernel in (narrow, wide)]
    assert [made["WIDE"] for made in constants] == [False, True]
    assert wide.load(config, problem(64, 64, 4096), None).resources.registers
