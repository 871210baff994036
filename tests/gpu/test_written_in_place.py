"""On a GPU: what is written in place is as after one launch of the winner, and wrong Configs never win. R03, R17."""

from __future__ import annotations

from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

import tunesmith  # noqa: E402
from tunesmith import Config, Failed  # noqa: E402
from tunesmith.errors import BadInput, TunesmithWarning  # noqa: E402

ROWS, N = 512, 4096
GIB = 1024**3


@triton.jit
def add_rms_norm(x, residual, w, N: tl.constexpr, BLOCK: tl.constexpr, ORDER: tl.constexpr, FAULT: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(residual + row * N + i).to(tl.float32) + tl.load(x + row * N + i).to(tl.float32)
        tl.store(residual + row * N + i, value.to(tl.float16))
        total += value * value if ORDER == 0 else value * value * 1.0
    scale = 1 / tl.sqrt(tl.sum(total) / N + 1e-6)
    if FAULT == 1:
        scale = tl.where(row == 17, scale * 1.1, scale)
    if FAULT == 2:
        scale = tl.where(row == 17, float("nan"), scale)
    last = N // 2 if FAULT == 3 else N
    for start in range(0, last, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(residual + row * N + i).to(tl.float32) * scale * tl.load(w + i).to(tl.float32)
        tl.store(x + row * N + i, value.to(tl.float16))


def reference(x: Any, residual: Any, w: Any, **_: Any) -> Any:
    total = residual + x
    return total * torch.rsqrt((total**2).mean(1, keepdim=True) + 1e-6) * w, total


def arguments() -> tuple[Any, ...]:
    draw = torch.Generator("cuda").manual_seed(0)
    x, residual = (torch.randn(ROWS, N, device="cuda", dtype=torch.float16, generator=draw) for _ in range(2))
    return x, residual, torch.randn(N, device="cuda", dtype=torch.float16, generator=draw), N


def same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return all(
        torch.equal(one.view(torch.int16), other.view(torch.int16)) for one, other in zip(a[:2], b[:2], strict=True)
    )


def configs(*faults: int) -> list[Config]:
    return [
        Config(BLOCK=block, ORDER=order, FAULT=fault, num_warps=warps, num_stages=stages)
        for block in (64, 128, 256, 512, 1024, 2048, 4096) for order in (0, 1) for warps in (1, 2, 4, 8, 16)
        for stages in (1, 2, 3, 4, 5, 6) for fault in faults
    ]  # fmt: skip


@pytest.mark.timeout(900)
@pytest.mark.parametrize("declared", [True, False])
def test_400_candidates_leave_what_one_launch_of_the_winner_leaves(declared: bool) -> None:
    options: dict[str, Any] = {"restore_value": ["x", "residual"], "reference": reference} if declared else {}
    kernel = tunesmith.autotune(configs=configs(0)[:400], key=["N"], strategy="exhaustive", **options)(add_rms_norm)
    given = arguments()
    if declared:
        kernel[(ROWS,)](*given)
    else:
        with pytest.warns(TunesmithWarning, match="'x' is written in place"):
            kernel[(ROWS,)](*given)
    choice = kernel.choice(*given, grid=(ROWS,))
    assert bool(choice.checked) == declared
    expected = arguments()
    add_rms_norm[(ROWS,)](*expected, **dict(choice.config))
    assert same(given, expected)
    for _ in range(9):
        tenth = arguments()
        kernel[(ROWS,)](*tenth)
    assert same(tenth, expected)


def test_wrong_candidates_never_win() -> None:
    kernel = tunesmith.autotune(
        configs=[Config(BLOCK=512, ORDER=0, FAULT=fault, num_warps=4) for fault in (1, 2, 3, 0)], key=["N"],
        restore_value=["x", "residual"], reference=reference,
    )(add_rms_norm)  # fmt: skip
    given = arguments()
    summary = kernel.tune(*given, grid=(ROWS,))
    said = {config["FAULT"]: failed for config, failed in summary.failures}
    assert {fault: failed.stage for fault, failed in said.items()} == dict.fromkeys((1, 2, 3), "wrong")
    assert "row 17" in said[1].reason
    assert "float16 allows" in said[1].reason
    assert summary.choice.config["FAULT"] == 0
    assert same(given, arguments())


@triton.jit
def add_to_page(pool, page, out, BYTES: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = pool + tl.cast(page, tl.int64) * BYTES + i
    value = tl.load(at) + 1
    tl.store(at, value)
    tl.store(out + i, value)


PAGE = 4096


def paged(**options: Any) -> Any:
    blocks = [{"BLOCK": block, "num_warps": warps} for block in (256, 512, 1024) for warps in (2, 4)]
    return tunesmith.autotune(configs=blocks, key=["BYTES"], outputs=["out"], **options)(add_to_page)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (PAGE // meta["BLOCK"],)


def test_r17_a_pool_of_80_gib_is_refused_whole_and_tuned_by_slice() -> None:
    if not 100 * GIB < torch.cuda.mem_get_info()[0] < 160 * GIB:
        pytest.skip("needs a GPU on which 80 GiB fit once and not twice")
    pool, out = (
        torch.zeros(80 * GIB, dtype=torch.uint8, device="cuda"),
        torch.zeros(PAGE, dtype=torch.uint8, device="cuda"),
    )
    page = 80 * GIB // PAGE - 3

    with pytest.raises(BadInput, match=r"'pool' can't be copied.*needed 85,899,345,920 bytes.*free .* on cuda"):
        paged(restore_value=["pool"], name="whole")[grid](pool, page, out, PAGE)
    assert not pool[-8 * PAGE :].any()

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kernel = paged(restore_value={"pool": lambda pool, page, BYTES: pool[page * BYTES : (page + 1) * BYTES]})
    kernel[grid](pool, page, out, PAGE)
    assert torch.cuda.max_memory_allocated() - before < GIB
    assert (pool[page * PAGE : (page + 1) * PAGE] == 1).all()
    assert int(pool[-8 * PAGE :].sum(dtype=torch.int64)) == PAGE

    torch.cuda.reset_peak_memory_stats()
    with pytest.warns(TunesmithWarning, match="argument 'pool' is written, and differs after each launch"):
        paged(name="undeclared").tune(pool, page, out, PAGE, grid=grid)
    assert torch.cuda.max_memory_allocated() - before < GIB


def test_r03_each_config_in_place_alone_gives_the_same_logits() -> None:
    def given() -> Any:
        return torch.arange(64 * 4096, device="cuda", dtype=torch.float16).reshape(64, 4096) / 4096

    kernel = tunesmith.autotune(configs=[{"BLOCK": 256}, {"BLOCK": 1024}], key=["n"], restore_value=["x"])(scale_logits)
    x, once = given(), given()
    kernel[(64 * 4,)](x, 64 * 4096)
    scale_logits[(64 * 4,)](once, 64 * 4096, BLOCK=1024)
    assert torch.equal(x, once)
    assert not [t for t in kernel.explanation(x, 64 * 4096, grid=(256,))[2] if isinstance(t.outcome, Failed)]


@triton.jit
def scale_logits(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * 1024 + tl.arange(0, BLOCK)
    for start in range(0, 1024, BLOCK):
        tl.store(x + i + start, tl.load(x + i + start, mask=i < n) * 0.5, mask=i < n)
