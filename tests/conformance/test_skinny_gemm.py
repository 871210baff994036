"""The product of few rows in CUDA C++, without a GPU: its source run on the CPU thread by thread, compiled in earnest,
launched on a driver that reads what it is given, and offered where it can be used."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "cuda.bindings.nvrtc", reason="needs cuda-bindings: pip install 'tunesmith[cuda]'", exc_type=ImportError
)
pytest.importorskip("numpy")
pytest.importorskip("torch")
pytest.importorskip("triton")

import numpy as np
import torch
from tests.fake_cuda import H200, FakeDriver, GpuArray, fake_gpu

import tunesmith
from tunesmith import Config, Failed, Problem, ops
from tunesmith.backends import cpu
from tunesmith.chooser import candidates
from tunesmith.cli import main
from tunesmith.core.device import Device, known_device
from tunesmith.errors import BadInput
from tunesmith.kernels import nvidia, skinny_gemm
from tunesmith.kernels.gemm import arguments, skinny
from tunesmith.store import default_store
from tunesmith.tables import NativeTable
from tunesmith.tables.native import Entry
from tunesmith.tracks import known_choice
from tunesmith.workers import compile_all

KERNEL = skinny_gemm.kernel
A100, B200 = known_device("NVIDIA A100-SXM4-80GB"), known_device("NVIDIA B200")
TOO_OLD = Device("cuda", "some GPU", "sm_75", 40), Device("hip", "some GPU", "gfx942", 300, warp=64)
#: M, N, K
SIZES = ((1, 4096, 1024), (4, 1024, 2048), (8, 4096, 14336), (9, 130, 8), (16, 4096, 4096), (16, 28672, 4096),
         (17, 5120, 5120), (32, 2560, 9728), (48, 1, 64), (64, 5120, 25600))  # fmt: skip


def problem(M: int, N: int, K: int, dtype: str = "bfloat16", more: str = "") -> Problem:
    return KERNEL.problem(f"M={M},N={N},K={K},dtype={dtype}{more}")


def knobs(config: Config, *names: str) -> Any:
    return tuple(config[name] for name in names)


# --- where it is used ---


def test_a_default_is_of_its_space_and_every_config_fits() -> None:
    for device in (H200, A100, B200):
        for M, N, K in SIZES:
            space = skinny_gemm.space(problem(M, N, K), device)
            assert skinny_gemm.default(problem(M, N, K), device) in space
            assert 1 <= space.size <= 16, "a search tries all"
            for config in space:
                tiles = skinny.tiles_of(M)
                names = ("GROUPS", "SPREAD", "WARPS", "CLUSTER", "DEPTH")
                assert skinny.shared_bytes(tiles, *knobs(config, *names)) <= device.shared_bytes_per_block
                assert 8 * tiles >= M
                if device is A100:
                    assert knobs(config, "CLUSTER", "DEPENDENT") == (1, 0)


def test_the_sum_is_split_where_columns_are_few_and_its_parts_have_steps() -> None:
    for (M, N, K), cluster in {(8, 1280, 8192): 4, (4, 1024, 2048): 4, (8, 4096, 14336): 1, (8, 64, 64): 1}.items():
        assert skinny_gemm.default(problem(M, N, K), H200)["CLUSTER"] == cluster
    assert skinny_gemm.default(problem(16, 4096, 4096), H200)["DEPENDENT"] == 1
    assert skinny_gemm.default(problem(16, 28672, 4096), H200)["DEPENDENT"] == 0


def test_more_rows_and_older_chips_have_no_config() -> None:
    for device, M in ((TOO_OLD[0], 8), (TOO_OLD[1], 8), (H200, 65), (H200, 4096)):
        asked = problem(M, 4096, 4096)
        assert list(skinny_gemm.space(asked, device)) == []
        assert not skinny_gemm.applies(asked, device)
        with pytest.raises(BadInput, match=r"for one product of up to 64 rows, .* and chips from sm_80"):
            skinny_gemm.default(asked, device)


def test_it_may_be_chosen_for_one_product_of_aligned_rows_in_one_dtype() -> None:
    def applies(M: int, N: int, K: int, more: str = "", dtype: str = "bfloat16") -> bool:
        return skinny_gemm.applies(problem(M, N, K, dtype, more), H200)

    for more in ("", ",bias.dtype=bfloat16,activation=gelu", ",precision=reduced"):
        assert applies(1, 4096, 4096, more)
    assert applies(64, 77, 1000, dtype="float16")
    for more in (",batch=2", ",out=float32", ",bias.dtype=float32", ",b.strides=x1", ",a.strides=1x", ",b.strides=x1x"):
        assert not applies(8, 4096, 4096, more), more
    usual = problem(8, 4096, 4096)
    assert not skinny_gemm.applies(usual.replace(**{"a.dtype": "float32", "b.dtype": "float32"}), H200)
    assert not skinny_gemm.applies(usual.replace(**{"b.dtype": "float16"}), H200)
    assert not any(applies(*sizes) for sizes in ((8, 4096, 1001), (0, 4096, 64), (8, 0, 64), (8, 64, 0)))
    assert applies(1, 2**30, 8)
    assert not any(applies(*sizes) for sizes in ((1, 8, 2**31), (1, 2**31 - 8, 8))), "of more bits than its integers"


def ways(M: int, K: int, device: Device = H200) -> set[Any]:
    chooser = ops.chooser("cuda")
    asked = chooser.problem(f"M={M},N=4096,K={K},dtype=bfloat16")
    assert chooser.declared.default_for("linear_gpu", asked, device)["by"] == "torch"
    return {config["by"] for config in chooser.declared.space_for(asked, device)}


def test_products_have_it_among_their_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {"torch", "torch by cublasLt", "cublasLt", "gemm"}
    assert ways(16, 4096) == {*others, "skinny"} == ways(16, 4096, A100)
    assert ways(65, 4096) == others == ways(16, 4097)
    assert "skinny" not in ways(16, 4096, TOO_OLD[1])
    before = ops.chooser("cuda").kernel.fingerprint()
    assert "cuda-bindings" in ops.chooser("cuda").kernel.versions()
    monkeypatch.setattr(nvidia, "bindings", dict)
    nvidia.missing.cache_clear()
    assert ways(16, 4096) == others
    assert ops.chooser("cuda").kernel.fingerprint() == before
    assert "cuda-bindings" not in ops.chooser("cuda").kernel.versions()
    nvidia.missing.cache_clear()


# --- run on the CPU ---

EMULATION = Path(__file__).parents[1] / "data" / "skinny_gemm"
SOURCE = Path(tunesmith.__file__).parent / "kernels" / "cuda" / "skinny_gemm.cu"
#: GROUPS, SPREAD, WARPS, CLUSTER, DEPTH, DEPENDENT; M_TILES, dtype, activation; M, N, K and a seed each
EMULATED = (
    ((2, 1, 8, 1, 2, 1), (1, "bfloat16", "none"), ((1, 129, 2050, 0), (5, 37, 200, 1), (8, 16, 4, 2), (3, 40, 0, 3))),
    ((1, 1, 4, 4, 4, 1), (1, "float16", "relu"), ((8, 33, 1000, 2), (7, 16, 64, 3))),
    ((1, 1, 8, 8, 2, 0), (1, "bfloat16", "silu"), ((2, 20, 2100, 0), (8, 16, 1096, 1))),
    ((1, 2, 8, 2, 3, 1), (1, "bfloat16", "none"), ((6, 70, 1291, 1), (8, 64, 512, 0))),
    ((2, 2, 8, 2, 3, 1), (2, "bfloat16", "gelu"), ((16, 100, 700, 0), (9, 31, 1291, 1))),
    ((1, 4, 8, 1, 4, 0), (2, "float16", "none"), ((13, 130, 640, 2), (16, 64, 1030, 1))),
    ((1, 4, 4, 4, 4, 1), (4, "bfloat16", "none"), ((32, 100, 700, 0), (25, 31, 1291, 1))),
    ((2, 2, 8, 1, 3, 0), (8, "bfloat16", "none"), ((57, 66, 1000, 1), (64, 64, 128, 2))),
)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++: apt-get install g++")
@pytest.mark.parametrize(("config", "compiled_in", "products"), EMULATED)
def test_the_source_computes_the_product_whoever_comes_first(
    config: tuple[int, ...], compiled_in: tuple[Any, ...], products: tuple[tuple[int, ...], ...], tmp_path: Path
) -> None:
    whole = SOURCE.read_text()
    begin, end = (whole.index(f"// --- {part} ---") for part in ("what the chip does", "a thread's part of x and w"))
    (tmp_path / "kernel.cu").write_text(f'{whole[:begin]}#include "chip.h"\n\n{whole[end:]}')
    tiles, dtype, activation = compiled_in
    macros = {
        **dict(zip(skinny.KNOBS, config, strict=True)), "M_TILES": tiles, "DTYPE": dtype, "ACTIVATION": activation,
        "SHARED_BYTES": skinny.shared_bytes(tiles, *config[:-1]),
    }  # fmt: skip
    defines = [f"-D{name}={value}" for name, value in macros.items()]
    folders = [f"-I{EMULATION}", f"-I{tmp_path}"]
    made = tmp_path / "emulated"
    # -w: the pragmas are NVIDIA's
    command = ["g++", "-std=c++17", "-O1", "-w", *folders, *defines, str(EMULATION / "emulated.cpp"), "-o", str(made)]
    subprocess.run(command, check=True)
    numbers = [str(number) for product in products for number in product]
    result = subprocess.run([str(made), *numbers], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout.count("ok: ")) == (0, len(products)), result.stdout + result.stderr


# --- compiled ---


@pytest.mark.parametrize(
    ("device", "M", "dtype", "more", "config"),
    [
        (H200, 8, "bfloat16", "", (2, 1, 8, 1, 4, 1)),
        (H200, 16, "float16", ",bias.dtype=float16,activation=gelu", (1, 2, 4, 2, 4, 1)),
        (H200, 64, "bfloat16", ",activation=silu", (2, 2, 8, 2, 3, 0)),
        (A100, 32, "bfloat16", "", (1, 4, 4, 1, 4, 0)),
    ],
)
def test_configs_compile_and_spill_nothing(device: Device, M: int, dtype: str, more: str, config: Any) -> None:
    asked, of_config = problem(M, 4096, 4096, dtype, more), Config(dict(zip(skinny.KNOBS, config, strict=True)))
    made = KERNEL.kernel.for_target(lambda: skinny_gemm.make_inputs(asked, device="meta"), device)
    [(_, built)] = compile_all([(of_config, made.compile_job(of_config, asked, device))], 1)
    assert built is not None
    assert not isinstance(built, Failed), built
    found = made.resources_of(of_config, built, device)
    assert found.spills == 0
    assert found.shared_bytes == skinny.shared_bytes(skinny.tiles_of(M), *config[:-1])


# --- launched ---


class Matrix(GpuArray):
    """A tensor that is said to be on a GPU."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, ahead: int = 0) -> None:
        whole = np.zeros(8 * 4096, np.uint16)
        first = -(whole.ctypes.data // 2) % 8 + ahead  # elements to a multiple of 16 bytes, and so many further
        super().__init__(whole[first:])
        self.shape, self.dtype, self.device, self.strides = shape, dtype, torch.device("cuda", 0), strides
        self.ndim = len(shape)

    def data_ptr(self) -> int:
        return int(self.host.ctypes.data)

    def stride(self, dim: int | None = None) -> Any:
        return self.strides if dim is None else self.strides[dim]

    def is_contiguous(self) -> bool:
        return True


def product(M: int, N: int, K: int, gap_a: int = 0, gap_b: int = 0, **more: Any) -> tuple[Any, ...]:
    dtype = more.pop("dtype", torch.bfloat16)
    bias = Matrix((N,), (1,), dtype) if more.pop("bias", False) else None
    a = Matrix((M, K), (K + gap_a, 1), dtype, more.pop("ahead", 0))
    return arguments(a, Matrix((K, N), (1, K + gap_b), dtype), bias, more.get("activation"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    monkeypatch.setattr(cpu, "gpu_at", lambda index: H200)
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: Matrix(shape, (shape[1], 1), dtype))
    with fake_gpu(monkeypatch) as fake:
        fake.takes("skinny_gemm", 9)
        yield fake


def ready(args: tuple[Any, ...], config: Config | None = None) -> Any:
    config = config or skinny_gemm.default(problem(*args[4:7]), H200)
    return KERNEL.kernel.for_call(args).load(config, Problem({}), None).launch


def test_a_launch_has_the_matrices_how_they_lie_and_its_sizes(gpu: FakeDriver) -> None:
    for gap_a, gap_b, bias in ((0, 0, False), (8, 16, True)):
        for dependent in (0, 1):
            args = product(8, 77, 1000, gap_a, gap_b, bias=bias)
            config = Config(GROUPS=1, SPREAD=2, WARPS=8, CLUSTER=4, DEPTH=3, DEPENDENT=dependent)
            c = ready(args, config)(*args)
            launch = gpu.launches[-1]
            assert (launch.grid, launch.block, launch.dependent) == ((12, 1, 1), (256, 1, 1), bool(dependent))
            assert launch.shared_bytes == skinny.shared_bytes(1, 1, 2, 8, 4, 3)
            addresses = [0 if one is None else one.data_ptr() for one in (*args[:3], c)]
            assert [launch.read(i, ctypes.c_uint64) for i in range(4)] == addresses
            assert [launch.read(i, ctypes.c_int64) for i in (4, 5)] == [1000 + gap_a, 1000 + gap_b]
            assert [launch.read(i, ctypes.c_int32) for i in (6, 7, 8)] == [8, 77, 1000]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_calls_whose_matrices_lie_otherwise_are_right_whichever_comes_first(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(skinny, "by_torch", lambda *args: asked.append(args))
    kinds = [product(8, 64, 512), product(8, 64, 512, 8, 24), product(8, 64, 512, gap_b=1)]
    launch = ready(kinds[first])
    for kind in (0, 1, 2, 1, 0, 2):
        before = len(gpu.launches), len(asked)
        launch(*kinds[kind])
        assert (len(gpu.launches) - before[0], len(asked) - before[1]) == ((0, 1) if kind == 2 else (1, 0))
        if kind < 2:
            assert gpu.launches[-1].read(5, ctypes.c_int64) == kinds[kind][1].stride(1)
    shifted = product(8, 64, 512, ahead=1)
    assert KERNEL.kernel.for_call(shifted) != KERNEL.kernel.for_call(kinds[0]) == KERNEL.kernel.for_call(kinds[0])
    assert KERNEL.kernel.for_call(shifted).compile_job(Config(), Problem({}), H200) is None
    ready(shifted)(*shifted)
    assert asked[-1] == shifted


def test_a_matrix_of_one_row_column_or_element_may_lie_anywhere(gpu: FakeDriver) -> None:
    one = torch.bfloat16
    for a, b in (
        (Matrix((1, 64), (63, 1), one), Matrix((64, 1), (1, 3), one)),
        (Matrix((1, 1), (5, 7), one), Matrix((1, 1), (3, 9), one)),
        (Matrix((4, 64), (0, 1), one), Matrix((64, 8), (1, 64), one)),
    ):
        args = arguments(a, b)
        assert skinny.is_readable(args)
        ready(args)(*args)
    assert len(gpu.launches) == 3


def test_products_are_launched_by_it_where_a_table_says_so(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chooser, args = ops.chooser("cuda"), product(16, 4096, 4096, bias=True, activation="silu")
    asked = chooser.problem("M=16,N=4096,K=4096,dtype=bfloat16,bias.dtype=bfloat16,activation=silu")
    config = skinny_gemm.default(problem(16, 4096, 4096), H200).replace(by="skinny")
    fingerprint = chooser.kernel.fingerprint() + chooser.declared.spec_fingerprint
    table = NativeTable("linear_gpu", H200.identity, {asked: Entry(config, 1e-5)}, fingerprint, "cuda-graph-cold/2")
    table.write(tmp_path / "linear.json")
    assert main(["guard", "--static", "tunesmith.ops:gpu", str(tmp_path)]) == 0
    monkeypatch.setattr(candidates, "device_of", lambda args: H200)
    found = known_choice(chooser.subject(*args), default_store(), [table], "lookup")
    assert found is not None
    assert found.config == config
    chooser.kernel.for_call(args).load(found.config, asked, None).launch(*args)
    [launch] = gpu.launches
    assert launch.entry == "skinny_gemm"


def test_nothing_is_launched_for_what_is_empty(gpu: FakeDriver) -> None:
    for sizes in ((0, 64, 64), (8, 0, 64)):
        args = product(*sizes)
        assert ready(args)(*args).shape == sizes[:2]
    assert gpu.launches == []
    args = product(8, 64, 0)
    ready(args)(*args)
    assert len(gpu.launches) == 1, "an empty sum is a bias, or 0"


def test_what_it_does_not_compute_is_refused(gpu: FakeDriver) -> None:
    a, b = Matrix((8, 64), (64, 1), torch.bfloat16), Matrix((64, 32), (1, 64), torch.bfloat16)
    bias, other = Matrix((32,), (1,), torch.float32), Matrix((64, 32), (1, 64), torch.float16)
    plain = arguments(a, b)
    for args in (
        product(65, 32, 64), product(8, 32, 64, dtype=torch.float32), arguments(a, b, bias),
        arguments(a, b, out="float32"), (a, other, *plain[2:]), (*plain[:6], 2**31, *plain[7:]),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=r"needs \(M, K\) and \(K, N\) with M up to 64, .* gemm takes any"):
            KERNEL.kernel.for_call(args)
    with pytest.raises(BadInput, match=r"use kernel\.for_call"):
        KERNEL.kernel.compile_job(Config(), Problem({}), H200)


def test_what_torch_multiplies_has_nothing_to_compile_ahead() -> None:
    for asked, strides in ((problem(8, 64, 1001), r"\(1001, 1\)"), (problem(8, 64, 32, more=",b.strides=x1"), "")):
        with pytest.raises(BadInput, match=f"with strides {strides}.*: torch multiplies them, there is nothing to com"):
            KERNEL.kernel.for_target(lambda asked=asked: skinny_gemm.make_inputs(asked, device="meta"), H200)


def test_what_is_not_on_a_gpu_is_refused() -> None:
    with pytest.raises(BadInput, match="on the CPU; good values: tensors on a GPU"):
        KERNEL(*arguments(torch.randn(3, 8), torch.randn(5, 8).T))


def test_the_emulated_section_is_all_that_the_chip_does() -> None:
    whole = SOURCE.read_text()
    beyond = whole[whole.index("// --- a thread's part of x and w ---") :]
    assert not re.search(r"\basm\b|__cvta|__shfl", beyond)
