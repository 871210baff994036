"""The shipped decode attention: right where the interpreter runs it, compiled for a GPU that is not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from tests.fake_triton import H200, GpuTensor, fake_gpu
from tests.programs import interpreted

from tunesmith import Problem
from tunesmith.core.device import Device
from tunesmith.errors import BadInput
from tunesmith.kernels import decode_attention as package
from tunesmith.kernels.decode_attention import arguments, decode_attention, default, make_inputs, reference, space

KERNEL = package.kernel.kernel


def problem(B: int, HQ: int, HKV: int, D: int, S: int, page_size: int = 0, dtype: str = "float16") -> Problem:
    dtypes = {f"{array}.dtype": dtype for array in "qkv"}
    return Problem({"B": B, "HQ": HQ, "HKV": HKV, "D": D, "S": S, "page_size": page_size, **dtypes})


def test_it_is_right_on_odd_sizes_lengths_and_pages() -> None:
    interpreted("""
import torch
from tests.programs import run
from tunesmith import Config
from tunesmith.kernels.decode_attention import arguments, device, reference
from tunesmith.kernels.decode_attention.launch import PARAMETERS, plan

BASE = dict(BLOCK_N=16, BLOCK_H=16, SPLITS=1, num_warps=1, num_stages=1)
torch.manual_seed(0)

def check(lens, HQ, HKV, D, S, page=0, dtype=torch.float16, scale=None, max_len=None, **how):
    B, lens = len(lens), torch.tensor(lens)
    many = -(-S // page) if page else 0
    shape = (B * many + 1, page, HKV, D) if page else (B, S, HKV, D)
    q, k, v = (torch.randn(s).to(dtype) for s in ((B, HQ, D), shape, shape))
    pages = torch.randperm(B * many).view(B, many) if page else None
    if page:
        k[-1], v[-1] = float("nan"), float("nan")  # nobody's page
        v = v.transpose(1, 2).contiguous().transpose(1, 2)  # heads outside, as some caches have it
    else:
        for x in (k, v):
            for b, n in enumerate(lens.tolist()):
                x[b, n:] = float("nan")
    args = arguments(q, k, v, lens, pages, scale, max_len)
    named = dict(zip(PARAMETERS, args))
    out = run(device, plan(Config({**BASE, **how}), named), named)["out"]
    error = float((out.double() - reference(**named)).abs().max())
    assert error < (4e-3 if dtype is torch.float16 else 1e-5), (lens, HQ, HKV, D, S, page, how, error)

check([1, 7, 33, 0], 4, 2, 20, 40)
check([1, 7, 33, 0], 4, 2, 20, 40, SPLITS=4)
check([40, 17], 6, 1, 16, 40, page=3, SPLITS=2)
check([40, 17], 2, 1, 16, 40, page=32, SPLITS=8, dtype=torch.float32, scale=0.3)
check([40], 40, 2, 32, 40, page=16, SPLITS=2, BLOCK_N=32)
check([60, 17], 4, 4, 16, 60, max_len=50, SPLITS=2)

q, k, v = torch.randn(1, 2, 16), torch.randn(1, 40, 1, 16), torch.randn(1, 40, 1, 16)
k[0, 3] = float("nan")
for splits in (1, 4):
    named = dict(zip(PARAMETERS, arguments(q, k, v, torch.tensor([40]), None, None, None)))
    assert run(device, plan(Config({**BASE, "SPLITS": splits}), named), named)["out"].isnan().all(), splits
print("right")
""")


@pytest.mark.parametrize(
    "sizes", [(1, 32, 8, 128, 131072), (64, 64, 8, 128, 4096, 16), (3, 5, 5, 80, 7), (1, 8, 1, 256, 1), (1, 1, 1, 1, 0)]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_default_is_of_its_space_on_any_chip(sizes: tuple[int, ...], dtype: str) -> None:
    for chip in (H200, Device("cuda", "some GPU", "sm_75", 40)):
        legal = space(problem(*sizes, dtype=dtype), chip)
        assert default(problem(*sizes, dtype=dtype), chip) in legal
        assert 2 <= legal.size <= 2500


def test_sequences_are_split_where_they_are_few_and_not_where_they_are_many() -> None:
    assert default(problem(1, 32, 8, 128, 32768), H200)["SPLITS"] >= 16
    assert default(problem(256, 32, 8, 128, 4096), H200)["SPLITS"] == 1
    assert default(problem(1, 32, 8, 128, 40), H200)["SPLITS"] == 1


def test_arguments_that_do_not_fit_are_refused() -> None:
    q, k, lens = torch.empty(2, 4, 8), torch.empty(2, 10, 2, 8), torch.tensor([3, 4])
    pages = torch.zeros(2, 5, dtype=torch.int32)
    for wrong, said in (
        (lambda: arguments(q, k, k[:, :5], lens), "needs q"),
        (lambda: arguments(q[:, :3], k, k, lens), "3 heads of queries cannot share 2 heads of keys"),
        (lambda: arguments(q, k[:1], k[:1], lens), "have B=2 first"),
        (lambda: arguments(q, k, k, lens[:1]), r"lens is \(B,\)"),
        (lambda: arguments(q, k, k, lens, pages[:1]), "have B=2 first"),
        (lambda: arguments(q, k.half(), k.half(), lens), "one dtype"),
        (lambda: arguments(q, k, k, lens.float()), "lens is torch.float32; needs int32 or int64"),
        (lambda: arguments(q, k.mT.contiguous().mT, k, lens), "must lie one after the other"),
        (lambda: arguments(q, k, k, lens, max_len=-1), "max_len=-1"),
        (lambda: make_inputs(problem(2, 3, 2, 8, 10), device="cpu"), "HQ a multiple of HKV"),
        (lambda: decode_attention(q, k, k, lens), r"on the CPU; .* tunesmith\.ops\.decode_attention"),
    ):
        with pytest.raises(BadInput, match=said):
            wrong()


def test_inputs_are_sequences_in_earnest() -> None:
    made = make_inputs(problem(16, 4, 2, 8, 100, page_size=8), device="cpu")
    assert made["lens"].max() == 100
    assert made["lens"].min() >= 50
    assert made["lens"].unique().numel() > 4
    assert sorted(made["pages"].flatten().tolist()) == list(range(16 * 13))
    assert reference(**made).isfinite().all()


# --- compiled and launched for a GPU that is not here ------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What the GPU was asked to run; what is passed on is allocated nowhere."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns where it is not set
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: GpuTensor(*shape, dtype=dtype))
    with fake_gpu(monkeypatch) as fake:
        yield fake


def gpu_arguments(B: int, HQ: int, HKV: int, D: int, S: int, scale: float = 0.125) -> tuple[Any, ...]:
    cache = GpuTensor(B, S, HKV, D), GpuTensor(B, S, HKV, D)
    return GpuTensor(B, HQ, D), *cache, GpuTensor(B, dtype=torch.int32), None, scale, B, HQ, HKV, D, S, 0


def test_a_call_launches_its_programs_and_gives_them_its_scale(launched: Any) -> None:
    package.kernel(*gpu_arguments(2, 8, 2, 64, 1024))
    package.kernel(*gpu_arguments(2, 8, 2, 64, 1024, scale=0.25))
    first, _, second, _ = launched.launches
    splits = default(problem(2, 8, 2, 64, 1024), H200)["SPLITS"]
    assert [launch.kernel for launch in launched.launches] == ["attend", "merge"] * 2
    assert first.grid == second.grid == (4, splits, 1)
    assert 0.125 in first.args
    assert 0.25 in second.args
    assert first.function == second.function  # one binary for every scale


def test_sequences_of_any_number_of_keys_share_a_binary(launched: Any, tmp_path: Path) -> None:
    args = gpu_arguments(2, 8, 2, 64, 1024)
    for S in (1024, 1001, 999):  # of one bucket, divisible by 16 or not
        package.kernel(*args[:-2], S, 0)
    assert len(list((tmp_path / "triton").rglob("attend.cubin"))) == 1
    assert 999 in launched.launches[-2].args
