"""`tunesmith compile`: a whole Space for GPUs that are not here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from tunesmith.backends.ahead import target_device, without_memory  # noqa: E402
from tunesmith.backends.triton.resources import resources_of  # noqa: E402
from tunesmith.cli import main  # noqa: E402
from tunesmith.core.device import known_device  # noqa: E402
from tunesmith.core.model import occupancy  # noqa: E402
from tunesmith.core.outcome import Resources  # noqa: E402
from tunesmith.errors import BadInput  # noqa: E402

KERNELS = """
import torch, triton, triton.language as tl, tunesmith
from tunesmith import Space

def inputs(problem):
    n = problem["n"]
    x = torch.randn(n, n, device="cuda", dtype=torch.float16)
    w = torch.randn(n, n).half().cuda().to("cuda:0").t().contiguous()
    return {"x": x, "w": w, "out": torch.empty_like(x), "n": n}

@tunesmith.autotune(space=Space(BLOCK=[16, 64], STAGES=[2, 16], num_warps=[4]), key=["n"], make_inputs=inputs)
@triton.jit
def product(x, w, out, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    i = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in tl.range(0, n, BLOCK, num_stages=STAGES):
        a = tl.load(x + i[:, None] * n + (k + i)[None, :])
        b = tl.load(w + (k + i)[:, None] * n + i[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(out + i[:, None] * n + i[None, :], acc.to(tl.float16))

@tunesmith.autotune(configs=[{"BLOCK": 8}], key=["n"], make_inputs=inputs)
@triton.jit
def refused(x, w, out, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK > 8, "too small")

@tunesmith.autotune(configs=[{"BLOCK": 8}], key=["n"], make_inputs=lambda p: {"x": torch.randn(4).sum().item()})
@triton.jit
def reads(x, n, BLOCK: tl.constexpr):
    pass

@tunesmith.autotune(
    configs=[{"BLOCK": 64, "STAGES": s, "num_warps": w} for s, w in ((2, 64), (2, 3), (16, 4), (18, 4))],
    key=["n"], make_inputs=inputs,
)
@triton.jit
def hopeless(x, w, out, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    i = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in tl.range(0, n, BLOCK, num_stages=STAGES):
        a = tl.load(x + i[:, None] * n + (k + i)[None, :])
        acc = tl.dot(a, tl.load(w + (k + i)[:, None] * n + i[None, :]), acc)
    tl.store(out + i[:, None] * n + i[None, :], acc.to(tl.float16))

@tunesmith.autotune(configs=[{"a": 1}, {"a": 2}], key=["n"], make_inputs=lambda p: {"n": 1})
def no_triton(n, *, a):
    pass
"""


#: for AMD, Triton 3.9 takes minutes over 16 stages of a loop
ARCHS = ["sm_80", "sm_90", *(["gfx942"] if triton.__version__ < "3.9" else [])]


@pytest.fixture(autouse=True)
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns where it is not set
    (tmp_path / "ahead.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_each_config_takes_and_what_is_cut(arch: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["compile", "ahead.py:product", "--target", arch, "--problem", "n=1024", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    device = target_device(arch)
    assert (document["format"], document["target"], document["device"]) == ("tunesmith-compile/1", arch, device.name)
    [result] = document["results"]
    assert [one["config"]["BLOCK"] for one in result["configs"]] == [16, 16, 64, 64]
    small, _, _, large = result["configs"]
    assert small["failed"] is None
    assert small["registers"] > 0
    assert small["threads"] == 4 * device.warp
    assert 0 < small["occupancy"] <= 1
    assert large["failed"]["stage"] == "cut"
    assert f"limit {device.shared_bytes_per_block} bytes" in large["failed"]["reason"]
    assert result["compiled"] + result["failed"] == 4


def test_the_table_says_the_same(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["compile", "ahead.py:product", "--target", "sm_90", "--problem", "n=1024"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("product(n=1024) for NVIDIA H100 80GB HBM3 (sm_90)\n")
    heading = next(line.split() for line in out.splitlines() if line.startswith("registers"))
    assert heading == ["registers", "spills", "shared", "threads", "occupancy", "BLOCK", "STAGES"]
    assert sum(line.split()[-2:] in (["16", "2"], ["16", "16"], ["64", "2"]) for line in out.splitlines() if line) == 3
    assert "in all rows: num_warps=4" in out
    assert "1 × cut: out of shared memory: needs " in out


def test_each_want_is_said_once_with_need_and_limit(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["compile", "ahead.py:hopeless", "--target", "sm_90", "--problem", "n=1024"]) == 1
    out = capfd.readouterr().out
    assert "1 × cut: out of threads in a block: needs 2048 threads, limit 1024 threads" in out
    assert "1 × compile: AssertionError: num_warps must be a power of 2" in out
    assert re.search(r"2 × cut: out of shared memory: needs \d+ to \d+ bytes, limit 232448 bytes", out)


def test_nothing_compiled_is_the_answer_no(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "ahead.py:refused", "--target", "sm_90", "--problem", "n=16"]) == 1
    assert "1 × compile: CompileTimeAssertionFailure" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("target", "arch", "says"),
    [
        ("product", "sm_75", "good values: gfx942, gfx950, sm_100, sm_80"),
        ("no_triton", "sm_90", "is a callable kernel: only Triton, CUDA, CuTe DSL and FlyDSL"),
        ("reads", "sm_90", "to run without a GPU it has to make its tensors by"),
    ],
)
def test_what_can_not_be_is_one_line(target: str, arch: str, says: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", f"ahead.py:{target}", "--target", arch, "--problem", "n=16"]) == 2
    err = capfd.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_program_around_kernels_is_compiled_where_it_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "gemm", "--target", "sm_90", "--problem", "M=64,N=64,K=64"]) == 2
    assert "gemm is a program around Triton kernels" in capfd.readouterr().err


def test_inputs_take_no_memory() -> None:
    made = without_memory(lambda: torch.ones(1 << 30, 1 << 10, device="cuda").to("cuda", torch.float16))
    assert (made.device.type, made.dtype, made.shape) == ("meta", torch.float16, (1 << 30, 1 << 10))


def test_outside_of_it_torch_is_as_before() -> None:
    without_memory(lambda: torch.ones(4, device="cuda"))
    assert torch.ones(4).device.type == "cpu"


def test_an_unknown_chip_is_refused() -> None:
    with pytest.raises(BadInput, match="sm_90"):
        target_device("sm_9")


def test_a_binary_of_another_kind_tells_nothing_and_breaks_nothing() -> None:
    found = resources_of({"num_warps": 4, "shared": 64, "target": {"warp_size": 32}}, b"not an ELF file")
    assert found == Resources(None, None, 64, 128, 15)


def test_occupancy_is_the_scarcest_of_four() -> None:
    h200 = known_device("NVIDIA H200")

    def busy(**taken: int) -> float | None:
        return occupancy(h200, Resources(**taken))

    assert busy(threads=128, registers=32) == 1.0  # threads: 16 blocks
    assert busy(threads=32, registers=32) == 0.5  # 32 blocks
    assert busy(threads=128, registers=129) == 3 * 128 / 2048  # registers, in eights
    assert busy(threads=128, shared_bytes=116 * 1024) == 128 / 2048  # 117 KiB with what CUDA keeps: one block
    assert busy(threads=128, shared_bytes=300 * 1024) == 0.0
    assert busy(registers=32) is None
