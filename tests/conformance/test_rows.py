"""The shipped Triton kernels over rows: their numerics in Triton's interpreter, the rest as for a GPU not here."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from rich.console import Console
from tests.fake_triton import H200, GpuTensor, fake_gpu
from tests.fakes import ScriptedClock

import tunesmith
from tunesmith import Config, Problem, TunedKernel
from tunesmith.core.device import Device
from tunesmith.errors import BadInput
from tunesmith.events import watched
from tunesmith.kernels import add_rmsnorm, layernorm, rmsnorm, rmsnorm_backward, row_softmax, shipped, silu_and_mul
from tunesmith.kernels.rows import launch
from tunesmith.report.progress import Progress

KERNELS = ("row_softmax", "rmsnorm", "rmsnorm_backward", "add_rmsnorm", "layernorm", "silu_and_mul")

# --- numerics -----------------------------------------------------------------------------------------------

_INTERPRETED = """
import math, torch, triton
from triton.runtime import interpreter
if triton.__version__ < "3.9":
    # beside numpy 2.4 the interpreter of Triton 3.6 can't loop to a number that is an argument
    patch = interpreter._patch_lang_tensor
    def with_numbers(tensor, *rest):
        patch(tensor, *rest)
        tensor.__index__ = lambda self: int(self.handle.data.item())
    interpreter._patch_lang_tensor = with_numbers

from tunesmith.kernels import add_rmsnorm, layernorm, rmsnorm, rmsnorm_backward, row_softmax, silu_and_mul
from tunesmith.kernels.rows import device, gradient, layernorm as centred, softmax

HOW = (  # rows of a tile, its columns, whether programs stay, stages
    (1, 64, 0, 1), (4, 64, 1, 2), (2, 16, 0, 1), (4, 32, 1, 3),
)
ALLOWED = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 5e-6}
torch.manual_seed(0)

def launch(program, how, arrays, strides, rows, n, *more, held=1, vector=None):
    tall, block, stays, stages = how
    tiles, knobs = -(-rows // tall), {"ROWS": tall, "BLOCK": block}
    knobs["VECTOR"] = math.gcd(n, 16, *strides) if vector is None else vector
    if program in (softmax.row_softmax, centred.layernorm):
        knobs["HELD"] = held
    if program is softmax.row_softmax:
        knobs["SPLIT"], knobs["PATIENCE"], arrays = 1, 0, (*arrays, None, None)
    if program is device.silu_and_mul:
        programs = tiles * -(-n // block)
    else:
        loops = held * block < n
        knobs |= {"PER_UNIT": stays, "STAGES": stages, "LOOP": loops}
        summed = program is gradient.rmsnorm_backward
        programs = min(2, tiles) if summed or (stays and not loops) else tiles
    program[(programs,)](*arrays, *strides, rows, n, *more, **knobs)

def close(made, exact, *what):
    error = (made.double() - exact).abs().max() / exact.abs().max().clamp(min=0.1)
    assert error < ALLOWED[made.dtype], (what, float(error))

def gapped(x):  # its rows lie apart in something larger
    whole = torch.full((x.shape[0], x.shape[1] + 5), float("nan"), dtype=x.dtype)
    whole[:, 2:-3] = x
    return whole[:, 2:-3]

def check(dtype, how, rows, n, weighted):
    x, residual, dy = (gapped(torch.randn(rows, n).to(dtype)) for _ in range(3))
    w, b = (torch.randn(n).to(dtype) if weighted else None for _ in range(2))
    y = torch.full((rows, n), float("nan"), dtype=dtype)
    apart = x.stride()[:1]
    launch(softmax.row_softmax, how, (x, y), apart, rows, n)
    close(y, row_softmax.reference(x), "softmax", how, rows, n)
    launch(device.rmsnorm, how, (x, w, y), apart, rows, n, 1e-6)
    close(y, rmsnorm.reference(x, w), "rmsnorm", how, rows, n)
    launch(centred.layernorm, how, (x, w, b, y), apart, rows, n, 1e-5)
    close(y, layernorm.reference(x, w, b), "layernorm", how, rows, n)
    launch(centred.layernorm, how, (x, w, b, y), apart, rows, n, 1e-5, held=-(-n // how[1]))
    close(y, layernorm.reference(x, w, b), "layernorm held", how, rows, n)
    dw = torch.ones(n, dtype=torch.float32) if weighted else None
    launch(gradient.rmsnorm_backward, how, (dy, x, w, y, dw), apart * 2, rows, n, 1e-6)
    of_x, of_w = rmsnorm_backward.reference(dy, x, w)
    close(y, of_x, "dx", how, rows, n)
    assert dw is None or (dw - 1 - of_w).abs().max() < 5e-5 * of_w.abs().max().clamp(min=1), ("dw", how, rows, n)
    exact = add_rmsnorm.reference(x, residual, w)
    launch(device.add_rmsnorm, how, (x, residual, w), apart * 2, rows, n, 1e-6)
    close(x, exact[0], "add_rmsnorm", how, rows, n)
    close(residual, exact[1], "sum", how, rows, n)
    both = gapped(torch.randn(rows, 2 * n).to(dtype))
    launch(device.silu_and_mul, how, (both, y), both.stride()[:1], rows, n)
    close(y, silu_and_mul.reference(both, n), "silu_and_mul", how, rows, n)

for how, (rows, n) in zip(HOW, ((1, 1), (5, 33), (5, 37), (6, 64))):
    check(torch.float16, how, rows, n, True)
    check(torch.float32, how, rows, n + 7, how[0] == 4)
check(torch.bfloat16, HOW[2], 2, 50, True)

x = torch.randn(3, 40)
x[0, :20], x[1], x[2, 3] = -float("inf"), -float("inf"), float("nan")
far = torch.randn(2, 40) + 1e4
for how in HOW[1:3]:
    y = torch.zeros(3, 40)
    launch(softmax.row_softmax, how, (x, y), (40,), 3, 40)
    torch.testing.assert_close(y, x.softmax(-1), equal_nan=True)
    launch(centred.layernorm, how, (far, None, None, y), (40,), 2, 40, 1e-5)
    torch.testing.assert_close(y[:2], torch.nn.functional.layer_norm(far, (40,)), atol=3e-3, rtol=3e-3)

guard = torch.full((3, 3, 300), float("nan"))
for dtype in (torch.float32, torch.bfloat16):  # blocks in registers, blocks behind them, rows that begin anywhere
    for n, more in ((5, 0), (57, 8), (129, 0)) if dtype == torch.bfloat16 else ((40, 0), (75, 3), (100, 0)):
        whole, tall = guard.to(dtype)[:, :, : n + more].clone(), 2
        x, y = whole[0, :, :n], whole[1].flatten()[: 3 * n].view(3, n)
        x[0], x[1] = 4 * torch.randn(n), torch.finfo(dtype).min
        x[2] = 4 * torch.randn(n)
        x[2, : n // 2] = -float("inf")
        at_once = math.gcd(n, n + more, 16)
        for vector in {at_once, 0 if more % 8 == 0 else at_once}:
            for held, stages in ((1, 1), (1, 2), (2, 2), (-(-n // 32), 1)):
                y.fill_(float("nan"))
                launch(softmax.row_softmax, (2, 32, 0, stages), (x, y), (n + more,), 3, n, held=held, vector=vector)
                close(y, x.double().softmax(-1), "softmax", n, more, vector, held, stages)
        assert whole[2].isnan().all() and whole[1].flatten()[3 * n :].isnan().all()

# Programs run one after the other here: all of a row but the last give up waiting, and compute it all; the last reads
# what they have said.
for dtype in (torch.float32, torch.bfloat16):
    for n, split, block in ((200, 3, 32), (131, 2, 64)):
        x = 4 * torch.randn(4, n)
        x[1], x[2, : n // 2], x[3] = torch.finfo(dtype).min, -float("inf"), -float("inf")
        x[3, n // 2] = 0.0
        x, arrived = x.to(dtype), torch.tensor([0, split, 0, split, 7], dtype=torch.int32)
        for vector, more in ((0, True), (math.gcd(n, 16), False)):
            whole = torch.full((2, 4, n), float("nan"), dtype=dtype)
            partial = torch.full((4, split, 2), float("nan"))
            part = -(-n // (64 * split)) * 64
            softmax.row_softmax[(4 * split,)](
                x, whole[0], partial, arrived, n, 4, n, ROWS=1, BLOCK=block, PER_UNIT=0, STAGES=1, SPLIT=split,
                PATIENCE=2, HELD=-(-part // block), LOOP=False, VECTOR=vector,
            )
            close(whole[0], x.double().softmax(-1), "split", n, split, vector)
            assert arrived.tolist() == ([split, 0, split, 0, 7] if more else [0, split, 0, split, 7])
            assert partial.isfinite().all() and whole[1].isnan().all()
x = torch.randn(3, 200)
x[0], x[1, 150], x[2, 10] = -float("inf"), float("nan"), float("inf")
y, arrived, partial = torch.zeros(3, 200), torch.zeros(3, dtype=torch.int32), torch.zeros(3, 2, 2)
softmax.row_softmax[(6,)](
    x, y, partial, arrived, 200, 3, 200, ROWS=1, BLOCK=64, PER_UNIT=0, STAGES=1, SPLIT=2, PATIENCE=0, HELD=2,
    LOOP=False, VECTOR=8,
)
torch.testing.assert_close(y, x.softmax(-1), equal_nan=True)

x, dy, w = torch.randn(3, 40), torch.randn(3, 40), torch.randn(40)
for how in HOW:  # without eps a row of zeros, which pads a block of rows, has an infinite scale
    y, dw = torch.zeros(3, 40), torch.zeros(40)
    launch(gradient.rmsnorm_backward, how, (dy, x, w, y, dw), (40, 40), 3, 40, 0.0)
    for mine, exact in zip((y, dw), rmsnorm_backward.reference(dy, x, w, 0.0), strict=True):
        torch.testing.assert_close(mine.double(), exact, atol=1e-4, rtol=1e-4)
print("right")
"""


def test_every_way_of_computing_them_is_right_on_odd_sizes_and_strides() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ended = subprocess.run([sys.executable, "-c", _INTERPRETED], env=environment, capture_output=True, text=True)
    assert ended.stdout.strip() == "right", ended.stderr


# --- what is known without a GPU -----------------------------------------------------------------------------


def problem(kernel: TunedKernel, rows: int, n: int, dtype: str = "bfloat16") -> Problem:
    return kernel.problem(f"rows={rows},n={n},dtype={dtype}")


@pytest.mark.parametrize("name", KERNELS)
def test_a_default_is_of_its_space_on_any_chip(name: str) -> None:
    kernel = shipped()[name]
    for chip in (H200, Device("cuda", "some GPU", "sm_75", 40), Device("hip", "some GPU", "gfx942", 300, warp=64)):
        for rows, n in ((1, 1), (1, 151936), (16, 7168), (8192, 4096), (65537, 100), (3, 33000)):
            space = kernel.declared.space_for(problem(kernel, rows, n), chip)
            assert kernel.declared.default_for(name, problem(kernel, rows, n), chip) in space
            assert 1 <= space.size <= 700


def test_short_rows_share_a_program_and_long_ones_are_gone_over_twice() -> None:
    kernel = shipped()["rmsnorm"]
    assert rmsnorm.default(problem(kernel, 65536, 128), H200)["ROWS"] == 16
    assert rmsnorm.default(problem(kernel, 8192, 4096), H200)["BLOCK"] == 4096
    assert rmsnorm.default(problem(kernel, 8192, 128256), H200)["BLOCK"] < 128256
    assert rmsnorm.default(problem(kernel, 4, 64), H200)["ROWS"] == 1  # few rows are spread


def test_defaults_of_long_rows_are_what_was_fastest_and_share_rows_that_are_few() -> None:
    kernel = shipped()["row_softmax"]
    for rows, n, expected in (
        (4096, 12288, Config(SPLIT=1, ROWS=1, BLOCK=4096, PER_UNIT=0, STAGES=1, num_warps=8)),
        (1024, 50257, Config(SPLIT=1, ROWS=1, BLOCK=8192, PER_UNIT=0, STAGES=2, num_warps=8)),
        (512, 128256, Config(SPLIT=1, ROWS=1, BLOCK=16384, PER_UNIT=0, STAGES=2, num_warps=32)),
        (16, 128256, Config(SPLIT=8, ROWS=1, BLOCK=4096, PER_UNIT=0, STAGES=1, num_warps=8)),
    ):
        asked = problem(kernel, rows, n)
        assert row_softmax.default(asked, H200) == expected
        splits = {config["SPLIT"] for config in kernel.declared.space_for(asked, H200)}
        assert (splits > {1}) == (rows == 16), "where there are multiprocessors to spare"
    assert layernorm.default(problem(shipped()["layernorm"], 8192, 5376), H200)["BLOCK"] == 1024
    assert layernorm.default(problem(shipped()["layernorm"], 8192, 4096), H200)["BLOCK"] == 4096


def test_blocks_of_a_row_that_a_program_holds_have_no_stages_and_are_not_read_again() -> None:
    kernel = shipped()["row_softmax"]
    for n, loops in ((5000, False), (151936, True)):
        asked = problem(kernel, 2048, n)
        space = kernel.declared.space_for(asked, H200)
        held = Config(
            SPLIT=1, ROWS=1, BLOCK=2048 if n == 5000 else 16384, PER_UNIT=0, STAGES=1, num_warps=8 if n == 5000 else 32
        )
        assert held in space
        assert (Config({**held, "STAGES": 2}) in space) == loops
        moved = kernel.declared.model.work(asked, held)
        assert (moved.blocks * moved.steps * moved.step_bytes > 5 * 2048 * n) == loops  # 4 bytes once, 6 where again


@pytest.mark.parametrize("name", KERNELS)
def test_inputs_and_references_fit(name: str) -> None:
    kernel = shipped()[name]
    made, other = (kernel.declared.make_inputs(problem(kernel, 6, 20), "cpu", seed=seed) for seed in (0, 1))
    assert list(made) == list(kernel.kernel.signature.parameters)
    assert not torch.equal(made["x"], other["x"])
    results = kernel.declared.against.reference(**made)
    for result in results if isinstance(results, tuple) else (results,):
        assert result.dtype is torch.float64
        assert result.isfinite().all()


def test_the_gradients_formula_is_autograds() -> None:
    x, w, slope = (torch.randn(*size, dtype=torch.float64) for size in ((5, 9), (9,), (5, 9)))
    x.requires_grad_()
    w.requires_grad_()
    expected = torch.autograd.grad(rmsnorm.reference(x, w), (x, w), slope)
    for mine, right in zip(rmsnorm_backward.reference(slope, x, w), expected, strict=True):
        torch.testing.assert_close(mine, right)


def test_arguments_that_do_not_fit_are_refused() -> None:
    x = torch.randn(3, 5)
    for wrong, said in (
        (lambda: rmsnorm.rmsnorm(x), "on the CPU"),
        (lambda: rmsnorm.rmsnorm(x, torch.randn(4)), r"w is \(4,\); needs \(5,\)"),
        (lambda: row_softmax.softmax(torch.tensor(1.0)), "has no dimensions"),
        (lambda: silu_and_mul.silu_and_mul(x), "even last dimension"),
        (lambda: add_rmsnorm.add_rmsnorm_(x, x.double()), "one shape and one dtype"),
        (lambda: rmsnorm_backward.rmsnorm_backward(x, x[:2]), "one shape and one dtype"),
        (lambda: rmsnorm_backward.rmsnorm_backward(x, x, dw=torch.zeros(4)), r"needs \(5,\) torch.float32"),
        (lambda: layernorm.layernorm(x, None, x), r"b is \(3, 5\)"),
    ):
        with pytest.raises(BadInput, match=said):
            wrong()


# --- compiled and launched for a GPU that is not here ------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What the GPU was asked to run; outputs are allocated nowhere."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns where it is not set
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: GpuTensor(*torch.Size(shape), dtype=dtype))
    with fake_gpu(monkeypatch) as fake:
        yield fake


class Matrix(GpuTensor):
    """A GPU's tensor whose rows begin so many elements apart."""

    def __init__(self, rows: int, n: int, apart: int, dtype: torch.dtype) -> None:
        super().__init__(rows, n, dtype=dtype)
        self._strides = (apart, 1)

    def stride(self, dim: int | None = None) -> Any:
        return self._strides if dim is None else self._strides[dim]


def arguments(name: str, rows: int, n: int, apart: int, dtype: torch.dtype = torch.bfloat16) -> list[Any]:
    """A kernel's."""
    made: list[Any] = []
    for parameter in shipped()[name].kernel.signature.parameters:
        if parameter in ("w", "b", "dw"):
            made.append(GpuTensor(n, dtype=torch.float32 if parameter == "dw" else dtype))
        elif parameter in ("x", "residual", "dy", "dx"):
            made.append(Matrix(rows, n, apart, dtype))
        else:
            made.append({"rows": rows, "n": n, "eps": 1e-6}[parameter])
    return made


@pytest.mark.parametrize("name", KERNELS)
def test_calls_without_a_table_launch_the_default(launched: Any, name: str) -> None:
    kernel = shipped()[name]
    n = 1792  # of which no table has a row
    args = arguments(name, 500, n, n)
    result = kernel(*args)
    kernel(*args)
    first, second = launched.launches
    expected = kernel.declared.default_for(name, kernel.dispatcher.problem_of(*args).problem, H200)
    tiles = -(-500 // expected["ROWS"]) * (-(-n // expected["BLOCK"]) if name == "silu_and_mul" else 1)
    stays = expected.get("PER_UNIT", 0)
    assert first.grid == second.grid == (min(tiles, 132 * stays) if stays else tiles, 1, 1)
    assert first.kernel == name
    if name == "add_rmsnorm":
        assert result == (args[0], args[1])
    elif name == "rmsnorm_backward":
        assert result is None
    else:
        assert tuple(result.shape) == (500, n)


def test_rows_that_begin_elsewhere_get_a_binary_of_their_own(launched: Any) -> None:
    kernel = shipped()["rmsnorm"]
    for apart in (1024, 1001, 2048, 1024):
        kernel(*arguments("rmsnorm", 500, 1000, apart))
    functions = [launch.function for launch in launched.launches]
    assert functions[0] == functions[2] == functions[3] != functions[1]
    assert 1001 in launched.launches[1].args


def test_rows_that_are_no_multiple_of_16_are_read_and_written_16_bytes_at_a_time(launched: Any) -> None:
    for name in KERNELS:
        for n in (1000, 5000):
            compiled = built(name, 300, n)
            assert re.search(r"ld\.global\S*\.v4\.b32", compiled), (name, n)
            assert re.search(r"st\.global\S*\.v4\.b32", compiled), (name, n)
            assert not re.search(r"(ld|st)\.global\S*\.b16", compiled), (name, n)


def test_a_softmax_of_odd_rows_reads_and_writes_16_bytes_at_a_time_but_at_their_ends(launched: Any) -> None:
    compiled = built("row_softmax", 300, 50257)
    assert len(re.findall(r"ld\.global\S*\.b16", compiled)) == len(re.findall(r"st\.global\S*\.b16", compiled)) == 1
    assert len(re.findall(r"ld\.global\S*\.v4\.b32", compiled)) > 3


def built(name: str, rows: int, n: int) -> str:
    """What the default's Config is compiled to, in PTX."""
    kernel, args = shipped()[name], arguments(name, rows, n, 2 * n if name == "silu_and_mul" else n)
    config = kernel.declared.default_for(name, kernel.dispatcher.problem_of(*args).problem, H200)
    bound = kernel.kernel.for_call(args).bound
    return bound.program.load(bound.plan(config)[0], Problem({}), None).compiled.asm["ptx"]


def test_programs_that_share_a_row_get_a_workspace_and_the_streams_counters(
    launched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(launch, "counters", lambda *what: asked.append(what) or GpuTensor(1024, dtype=torch.int32))
    kernel, config = shipped()["row_softmax"], Config(
        SPLIT=4, ROWS=1, BLOCK=8192, PER_UNIT=0, STAGES=1, num_warps=16
    )  # fmt: skip
    for n in (128256, 128257):
        args = arguments("row_softmax", 60, n, n)
        assert config in kernel.declared.space_for(kernel.dispatcher.problem_of(*args).problem, H200)
        bound = kernel.kernel.for_call(args)
        assert tuple(bound.load(config, Problem({}), None).launch(*args).shape) == (60, n)
        assert launched.launches[-1].grid == (240, 1, 1)
        ptx = bound.bound.split.load(bound.bound.plan(config)[0], Problem({}), None).compiled.asm["ptx"]
        ends = 1 if n % 2 else 0
        assert len(re.findall(r"ld\.global\S*\.b16", ptx)) == len(re.findall(r"st\.global\S*\.b16", ptx)) == ends
        assert len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)) >= len(re.findall(r"st\.global\S*\.v4\.b32", ptx)) == 8
        assert not re.search(r"(ld|st)\.local", ptx)
    assert asked == [(torch.device("cuda", 0), 64, "rows in 4")] * 2


def test_nothing_is_launched_for_what_is_empty(launched: Any) -> None:
    for rows, n in ((0, 128), (128, 0)):
        made = shipped()["row_softmax"](*arguments("row_softmax", rows, n, n))
        assert tuple(made.shape) == (rows, n)
    assert launched.launches == []


def test_programs_that_stay_are_as_many_as_a_multiprocessor_is_asked_to_hold(launched: Any) -> None:
    config = Config(ROWS=2, BLOCK=1024, PER_UNIT=4, STAGES=2, num_warps=4)
    for rows, programs in ((5000, 528), (100, 50)):
        args = arguments("layernorm", rows, 1024, 1024)
        kernel = shipped()["layernorm"].kernel
        kernel.for_call(args).load(config, Problem({}), None).launch(*args)
        assert launched.launches[-1].grid == (programs, 1, 1)


def test_configs_from_all_over_the_space_compile(launched: Any) -> None:
    for i, name in enumerate(KERNELS):
        args = arguments(name, 3000, (100, 40000)[i % 2], 40000, (torch.float16, torch.float32)[i % 2])
        kernel = shipped()[name]
        space = kernel.declared.space_for(kernel.dispatcher.problem_of(*args).problem, H200)
        for config in space.sample(2, seed=i):
            kernel.kernel.for_call(args).load(config, Problem({}), None).launch(*args)
    assert len(launched.launches) == 12


def test_vectors_that_are_not_given_compile(launched: Any) -> None:
    """The interpreter takes what the compiler does not: code after the return of a case that does not hold."""
    made = 0
    for name in KERNELS:
        kernel = shipped()[name]
        names = list(kernel.kernel.signature.parameters)
        absent = [name for name in ("w", "b", "dw") if name in names]
        given = arguments(name, 300, 1000, 1000)
        for missing in [absent, *([one] for one in absent if len(absent) > 1)]:
            args = [None if name in missing else arg for name, arg in zip(names, given, strict=True)]
            kernel(*args)
            made += 1
    assert len(launched.launches) == made


# --- other people's kernels: no list of Configs, hints instead -----------------------------------------------------


@triton.jit
def center(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n
    value = tl.load(x + at, mask=inside, other=0.0)
    tl.store(y + at, value - tl.sum(value) / n, mask=inside)


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def climbed(kernel: Any, hints: tunesmith.Hints, seconds: Any, grid: Any, n: int) -> tuple[Config, list[str]]:
    """(what a descent ends with, what it says on its way)."""
    tuned = tunesmith.autotune(
        space=hints.space, default=hints.default, knobs=hints.knobs, key=["n"], strategy="descent",
        clock=ScriptedClock(seconds), isolate=False,
    )(kernel)  # fmt: skip
    console = Console(file=io.StringIO(), width=200)
    with Progress(console) as progress, watched(progress):
        summary = tuned.tune(GpuTensor(64, n), GpuTensor(64, n), n, grid=grid)
    said = console.file.getvalue().splitlines()
    return summary.choice.config, [line.partition(": ")[2] for line in said if "×" in line]


def test_a_rowwise_kernel_climbs_from_its_heuristic_one_knob_at_a_time_and_says_so(launched: Any) -> None:
    hints = tunesmith.rowwise(64, "n")
    start = hints.default(Problem({"n": 5000}), H200)
    assert start == Config(BLOCK=8192, num_warps=16)
    best, said = climbed(center, hints, lambda config: 1e-6 * (1 + abs(config["num_warps"] - 4)), (64,), 5000)
    assert best == Config(BLOCK=8192, num_warps=4)
    assert said == [
        "1.000×, start: 13.00 µs Config(BLOCK=8192, num_warps=16)",
        "2.600× num_warps 16 → 8: 5.000 µs Config(BLOCK=8192, num_warps=8)",
        "5.000× num_warps 8 → 4: 1.000 µs Config(BLOCK=8192, num_warps=4)",
        "1.000×, no neighbour faster: 1.000 µs Config(BLOCK=8192, num_warps=4)",
    ]


def test_a_pointwise_kernel_does_too(launched: Any) -> None:
    def seconds(config: Config) -> float:
        return 1e-6 * (abs(config["BLOCK"] - 4096) / 1024 + abs(config["num_warps"] - 8) + 1)

    best, said = climbed(
        double, tunesmith.pointwise("n"), seconds, lambda meta: (-(-100_000 // meta["BLOCK"]),), 100_000
    )
    assert best == Config(BLOCK=4096, num_warps=8)
    assert said[0].startswith("1.000×, start: 8.000 µs Config(BLOCK=1024, num_warps=4)")
    assert all("→" in line and ", " not in line.partition(":")[0] for line in said[1:-1])
