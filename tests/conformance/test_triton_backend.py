"""Triton kernels without a GPU: compiled in earnest for one, launched through a driver that notes what it is given."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import torch  # noqa: E402
import triton.language as tl  # noqa: E402
from rich.console import Console  # noqa: E402
from tests.fake_triton import H200, FakeDriver, GpuTensor, fake_gpu, launch_args  # noqa: E402
from tests.fakes import ScriptedClock, misbehaving  # noqa: E402
from triton import knobs  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith import Config, Failed, Problem, children  # noqa: E402
from tunesmith.backends.triton.kernel import TritonKernel  # noqa: E402
from tunesmith.backends.triton.launch import TritonExecutable  # noqa: E402
from tunesmith.backends.triton.resources import resources_in_cache  # noqa: E402
from tunesmith.conformance import KernelConformance  # noqa: E402
from tunesmith.core.device import Device, known_device  # noqa: E402
from tunesmith.errors import BadInput, MissingEngine, OutOfResources, SpaceError  # noqa: E402
from tunesmith.events import Compiled, Event, Sampled, watched  # noqa: E402
from tunesmith.kernel import Built, Kernel  # noqa: E402
from tunesmith.report.table import score_table  # noqa: E402
from tunesmith.workers import compile_all  # noqa: E402

NO_FIELDS = Problem({})


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr, ALPHA: tl.constexpr = 1):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + ALPHA * tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def with_option(x, bias, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if bias is not None:
        value += tl.load(bias + at, mask=at < n)
    tl.store(x + at, value, mask=at < n)


FACTOR: tl.constexpr = tl.constexpr(3)


@triton.jit
def scaled(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * FACTOR, mask=at < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def with_heuristic(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(x + at, 0.0)
    else:
        tl.store(x + at, 0.0, mask=at < n)


@triton.jit
def refusing(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK <= 64, "too large a block")
    tl.store(x + tl.arange(0, BLOCK), 0.0)


@triton.jit
def of_a_pair(pair, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(pair[0] + at, tl.load(pair[1] + at, mask=at < n), mask=at < n)


@triton.jit
def gemm(a, b, c, M, N, K, sam, sbk, scm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GM: tl.constexpr):
    pid = tl.program_id(0)
    nm = tl.cdiv(M, BM)
    nn = tl.cdiv(N, BN)
    per = GM * nn
    g = pid // per
    first = g * GM
    size = min(nm - first, GM)
    pm = first + (pid % per) % size
    pn = (pid % per) // size
    rm = (pm * BM + tl.arange(0, BM)) % M
    rn = (pn * BN + tl.arange(0, BN)) % N
    rk = tl.arange(0, BK)
    ap = a + rm[:, None] * sam + rk[None, :]
    bp = b + rk[:, None] * sbk + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(ap, mask=rk[None, :] < K - k * BK, other=0.0)
        y = tl.load(bp, mask=rk[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        ap += BK
        bp += BK * sbk
    om = pm * BM + tl.arange(0, BM)
    on = pn * BN + tl.arange(0, BN)
    tl.store(c + om[:, None] * scm + on[None, :], acc.to(tl.float16), mask=(om[:, None] < M) & (on[None, :] < N))


GEMM_KNOBS = ("BM", "BN", "BK", "GM", "num_warps", "num_stages")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns where it is not set
    for kernel in (add, with_option, scaled, with_heuristic.fn, refusing, of_a_pair, gemm):
        kernel.device_caches.clear()  # what another test's driver has loaded


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    with fake_gpu(monkeypatch) as fake:
        yield fake


def half(*shape: int, **more: Any) -> GpuTensor:
    return GpuTensor(*(shape or (4096,)), **more)


def gemm_args(M: int = 4096, N: int = 4096, K: int = 4096) -> tuple[Any, ...]:
    return ((1,), half(M, K), half(K, N), half(M, N), M, N, K, K, N, N)


def changed_add() -> Any:
    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr, ALPHA: tl.constexpr = 1):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) + 2 * ALPHA * tl.load(y + at, mask=at < n), mask=at < n)

    return add


def commented_add() -> Any:
    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr, ALPHA: tl.constexpr = 1):
        # out = x + ALPHA * y

        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) + ALPHA * tl.load(y + at, mask=at < n), mask=at < n)

    return add


@triton.jit
def add_refusing(x, y, out, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK <= 64, "too large a block")


@pytest.mark.usefixtures("gpu")
class TestTriton(KernelConformance):
    """What a kernel computes is not seen here: nothing runs."""

    def kernel(self) -> Kernel:
        return TritonKernel(add, {"BLOCK", "ALPHA", "num_warps"})

    def changed(self) -> Kernel:
        return TritonKernel(changed_add(), {"BLOCK", "ALPHA", "num_warps"})

    def commented(self) -> Kernel:
        return TritonKernel(commented_add(), {"BLOCK", "ALPHA", "num_warps"})

    def configs(self) -> list[Config]:
        return [Config(BLOCK=block, ALPHA=1, num_warps=warps) for block in (64, 256) for warps in (2, 4)]

    def bad_configs(self) -> list[tuple[Config, str]]:
        return [(Config(BLOCK=64, num_warps=4), "knob 'ALPHA' is missing")]

    def failing(self) -> tuple[Kernel, Config, str]:
        return TritonKernel(add_refusing, {"BLOCK"}), Config(BLOCK=128), "too large a block"

    def args(self) -> list[Any]:
        return [(4,), half(), half(), half(), 4096]

    def check(self, args: list[Any], result: Any) -> None:
        assert result.metadata.name == "add"

    def device(self) -> Device:
        return H200


def printed(table: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(table)
    return out.getvalue()


def compiled(kernel: TritonKernel, config: Config, args: Sequence[Any]) -> Built | Failed:
    """Compile a Config as a search does."""
    bound = kernel.for_call(args)
    [(_, built)] = compile_all([(config, bound.compile_job(config, NO_FIELDS, H200))], 1)
    assert built is not None
    return built


def ready(kernel: TritonKernel, config: Config, args: Sequence[Any]) -> TritonExecutable:
    built = compiled(kernel, config, args)
    assert isinstance(built, Built), built
    return kernel.for_call(args).load(config, NO_FIELDS, built)


ADD = TritonKernel(add, {"BLOCK", "num_warps"})
SMALL = Config(BLOCK=64, num_warps=4)


# --- what it is ---


def test_the_grid_comes_first_and_knobs_are_no_runtime_arguments() -> None:
    assert str(ADD.signature) == "(grid, x, y, out, n, ALPHA=1)"
    assert ADD.specialised.values == ("ALPHA",)
    assert str(TritonKernel(with_heuristic, {"BLOCK"}).signature) == "(grid, x, n)"


def test_what_is_not_specialised_is_said() -> None:
    @triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["y"])
    def weak(x, y, n, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK) + n, tl.load(y))

    said = TritonKernel(weak, {"BLOCK"}).specialised
    assert (said.alignment, said.divisibility, said.width) == (("x",), ("x", "y"), ("n",))


@pytest.mark.parametrize(
    ("fn", "knobs", "says"),
    [
        (add, {"BLOK"}, "did you mean 'BLOCK'"),
        (with_heuristic, {"EVEN"}, "computed by a heuristic"),
        (len, {"BLOCK"}, "no Triton kernel"),
    ],
)
def test_what_is_no_kernel_or_knob_is_refused(fn: Any, knobs: set[str], says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)):
        TritonKernel(fn, knobs)


MODULE = """
import triton
import triton.language as tl
{before}
SCALE: tl.constexpr = tl.constexpr({scale})

@triton.jit
def helper(x):
    return x * {factor}{comment}

@triton.jit
def kernel(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, helper(tl.load(x + at)) * SCALE)
"""


def fingerprint_of(folder: Path, name: str, **parts: object) -> str:
    text = MODULE.format(**{"before": "", "scale": 2, "factor": 3, "comment": "", **parts})
    (folder / f"{name}.py").write_text(text)
    module = importlib.import_module(name)
    return TritonKernel(module.kernel, {"BLOCK"}).fingerprint()


def test_the_fingerprint_is_the_content_and_not_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    plain = fingerprint_of(tmp_path, "one_plain")
    assert fingerprint_of(tmp_path, "one_moved", before="\n\n\n", comment="  # why") == plain
    assert fingerprint_of(tmp_path, "one_helper", factor=4) != plain
    assert fingerprint_of(tmp_path, "one_global", scale=5) != plain


def test_a_heuristic_is_part_of_the_fingerprint() -> None:
    other = triton.heuristics({"EVEN": lambda args: False})(with_heuristic.fn)
    assert TritonKernel(other, {"BLOCK"}).fingerprint() != TritonKernel(with_heuristic, {"BLOCK"}).fingerprint()


def test_variables_that_change_code_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(ADD.environment())
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    assert dict(ADD.environment()) == {**before, "DISABLE_LLVM_OPT": "true", "TRITON_F32_DEFAULT": "ieee"}


def test_arguments_on_several_devices_are_refused_by_name(gpu: FakeDriver) -> None:
    with pytest.raises(BadInput, match=r"x on cuda:0, y on cuda:1"):
        ADD.device(((1,), half(), half(index=1), half(), 4096, 1))
    with pytest.raises(BadInput, match=r"x on cuda:0, y on cpu"):  # Triton takes no CPU scalar, as torch does
        ADD.device(((1,), half(), torch.zeros(()), half(), 4096, 1))


def test_without_a_gpu_there_is_one_clear_error() -> None:
    with pytest.raises(BadInput, match="'x' is on the CPU"):
        ADD.device(((1,), torch.zeros(4), torch.zeros(4), torch.zeros(4), 4, 1))

    @triton.jit
    def no_tensor(n):
        tl.device_print("n", n)

    with pytest.raises(MissingEngine, match="GPU"):
        TritonKernel(no_tensor).device(((1,), 4))


# --- compiling ---


def test_a_stock_call_finds_what_was_compiled(gpu: FakeDriver) -> None:
    args = ((4,), half(), half(), half(), 4096, 1)
    ready(ADD, SMALL, args)
    stages: list[Any] = []
    knobs.compilation.listener = lambda **said: stages.append(said["cache_hit"])
    try:
        add[(4,)](*args[1:5], BLOCK=64, num_warps=4)
    finally:
        knobs.compilation.listener = None
    assert stages == [True]


def test_a_binary_serves_what_it_was_specialised_for(gpu: FakeDriver) -> None:
    def identity(*args: Any) -> TritonKernel:
        return ADD.for_call(((1,), *args))

    x, y, out = half(), half(), half()
    usual = identity(x, y, out, 4096, 1)
    assert identity(half(), half(), half(), 32, 1) == usual
    assert hash(identity(half(), half(), half(), 32, 1)) == hash(usual)
    others = [
        identity(half(offset=2), y, out, 4096, 1),
        identity(x, y, out, 4097, 1),
        identity(x, y, out, 1, 1),
        identity(x, y, out, 2**33, 1),
        identity(x, y, out, 2**63, 1),
        identity(x, y, out, 4096, 2),
        identity(x, y, out, 4096, True),
        identity(half(dtype=torch.bfloat16), y, out, 4096, 1),
        identity(half(index=1), half(index=1), half(index=1), 4096, 1),
    ]
    assert len({usual, *others}) == len(others) + 1


def test_none_is_compiled_in(gpu: FakeDriver) -> None:
    kernel = TritonKernel(with_option, {"BLOCK"})
    config, x = Config(BLOCK=64), half()
    without = ready(kernel, config, ((1,), x, None, 4096))
    assert "ld.global" in without.compiled.asm["ptx"]
    assert without.compiled.asm["ptx"] != ready(kernel, config, ((1,), x, half(), 4096)).compiled.asm["ptx"]
    without.launch((1,), x, None, 4096)
    assert launch_args(gpu.launches[-1], with_option.arg_names)["bias"] is None


def test_knobs_that_are_missing_or_unknown_are_named(gpu: FakeDriver) -> None:
    bound = ADD.for_call(((1,), half(), half(), half(), 64, 1))
    with pytest.raises(SpaceError, match="'BLOCK' is missing"):
        bound.compile_job(Config(num_warps=4), NO_FIELDS, H200)
    with pytest.raises(SpaceError, match="did you mean 'num_warps'"):
        bound.compile_job(Config(BLOCK=64, num_warp=4), NO_FIELDS, H200)


def test_what_the_front_end_refuses_is_a_failure_with_its_reason(gpu: FakeDriver) -> None:
    failed = compiled(TritonKernel(refusing, {"BLOCK"}), Config(BLOCK=128), ((1,), half(), 64))
    assert isinstance(failed, Failed)
    assert failed.stage == "compile"
    assert "too large a block" in failed.reason + failed.detail


def test_too_much_shared_memory_is_cut_before_the_last_stages(gpu: FakeDriver) -> None:
    kernel = TritonKernel(gemm, GEMM_KNOBS)
    config = Config(BM=256, BN=128, BK=128, GM=8, num_warps=8, num_stages=4)
    failed = compiled(kernel, config, gemm_args())
    assert failed == Failed("cut", "out of shared memory: needs 393216 bytes, limit 232448 bytes")
    left = [path.suffix for path in Path(knobs.cache.dir).rglob("*.*")]
    assert ".llir" in left
    assert ".cubin" not in left


@pytest.mark.about_time("the winner that its times say is asserted")
def test_a_search_times_what_is_compiled_and_keeps_what_was_cut(gpu: FakeDriver) -> None:
    too_large = {"BM": 256, "BN": 128, "BK": 128, "num_stages": 4, "num_warps": 8}
    small = [{"BM": 16 << i, "BN": 32, "BK": 32, "num_stages": 2, "num_warps": 4} for i in range(4)]
    clock = ScriptedClock(lambda config: 1.0 / config["BM"])  # type: ignore[operator]
    configs = [*small, too_large, {**small[0], "num_warps": 64}]
    f = tunesmith.autotune(configs=[{"GM": 8, **config} for config in configs], key=["M"], clock=clock)(gemm)
    events: list[Event] = []
    with watched(events.append):
        summary = f.tune(*gemm_args()[1:], grid=(1,))

    kinds = [type(event) for event in events]
    assert kinds.index(Sampled) < max(i for i, kind in enumerate(kinds) if kind is Compiled)
    assert summary.choice.config["BM"] == 128
    assert sorted(failed.reason for _, failed in summary.failures) == [
        "out of shared memory: needs 393216 bytes, limit 232448 bytes",
        "out of threads in a block: needs 2048 threads, limit 1024 threads",
    ]
    assert "needs 393216 bytes, limit 232448 bytes" in printed(score_table(summary))
    assert len(gpu.loaded) == 4


def test_a_calls_own_config_is_compiled_without_a_child(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "call", lambda *_: pytest.fail("a child takes a second to start"))
    f = tunesmith.autotune(configs=[{"BLOCK": 64}, {"BLOCK": 128}], key=["n"])(add)
    with tunesmith.policy("lookup"):
        f[(1,)](half(), half(), half(), 4096)
    assert [launch.kernel for launch in gpu.launches] == ["add"]


def test_too_many_warps_are_cut_before_a_child_is_asked(gpu: FakeDriver) -> None:
    kernel = ADD.for_call(((1,), half(), half(), half(), 4096, 1))
    with pytest.raises(OutOfResources, match=r"^out of threads in a block: needs 2048 threads, limit 1024 threads$"):
        kernel.compile_job(Config(BLOCK=4096, num_warps=64), NO_FIELDS, H200)
    with pytest.raises(AssertionError, match="power of 2"):
        kernel.compile_job(Config(BLOCK=4096, num_warps=3), NO_FIELDS, H200)


def test_compiled_here_it_fails_at_loading(gpu: FakeDriver) -> None:
    from triton.runtime.errors import OutOfResources as TritonsOutOfResources

    gpu.max_shared = 1024
    kernel = TritonKernel(gemm, GEMM_KNOBS).for_call(gemm_args())
    with pytest.raises(TritonsOutOfResources):
        kernel.load(Config(BM=32, BN=32, BK=32, GM=8, num_warps=4, num_stages=3), NO_FIELDS, None)


def test_registers_and_spills_are_those_the_driver_reported(gpu: FakeDriver) -> None:
    recording = Path(__file__).parents[1] / "data" / "gemm_h200.json.gz"
    with gzip.open(recording, "rt") as file:
        rows = json.load(file)["configs"]
    measured = [row for row in rows if row["error"] is None]
    chosen = [*[r for r in measured if r["n_spills"]][:1], *[r for r in measured if not r["n_spills"]][:2]]
    recorded = {}
    for row in chosen:
        c = row["config"]
        config = Config(
            BM=c["BLOCK_M"], BN=c["BLOCK_N"], BK=c["BLOCK_K"], GM=8,
            num_warps=c["num_warps"], num_stages=c["num_stages"],
        )  # fmt: skip
        recorded[config] = (row["n_regs"], row["n_spills"], row["shared_bytes"])
    bound = TritonKernel(gemm, GEMM_KNOBS).for_call(gemm_args())
    jobs = [(config, bound.compile_job(config, NO_FIELDS, H200)) for config in recorded]
    found = {}
    for config, built in compile_all(jobs, 2):
        assert isinstance(built, Built)
        r = resources_in_cache(built.path)
        found[config] = (r.registers, r.spills, r.shared_bytes)
        assert bound.load(config, NO_FIELDS, built).resources == r
    if triton.__version__.startswith("3.6."):  # which made the recording
        assert found == recorded
    assert [spills > 0 for _, spills, _ in found.values()].count(True) == 1


@pytest.mark.parametrize("chip", ["NVIDIA A100-SXM4-80GB", "NVIDIA B200", "AMD Instinct MI300X"])
def test_other_chips_are_compiled_for_without_a_gpu(chip: str) -> None:
    device = known_device(chip)
    tensors = [torch.empty(4096, dtype=torch.float16, device="meta") for _ in range(3)]
    bound = ADD.for_call(((1,), *tensors, 4096, 1), device)
    [(_, built)] = compile_all([(SMALL, bound.compile_job(SMALL, NO_FIELDS, device))], 1)
    assert isinstance(built, Built)
    found = resources_in_cache(built.path)
    assert found.registers
    assert found.spills == 0
    assert found.threads == 4 * device.warp


def test_a_kernel_of_a_script_is_compiled_in_a_child(tmp_path: Path) -> None:
    """No importable module, a closure, and no side effect twice: nothing of the user's runs in a child."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import torch, triton, triton.language as tl
        from tunesmith import Config, Problem
        from tunesmith.backends.triton.kernel import TritonKernel
        from tunesmith.core.device import known_device
        from tunesmith.workers import compile_all

        print("ran")

        def make(factor: tl.constexpr):
            @triton.jit
            def inner(x, BLOCK: tl.constexpr):
                tl.store(x + tl.arange(0, BLOCK), factor)
            return inner

        device = known_device("NVIDIA H200")
        x = torch.empty(64, device="meta")
        for number in (2.0, 3.0):
            kernel = TritonKernel(make(tl.constexpr(number)), {"BLOCK"}).for_call(((1,), x), device)
            config = Config(BLOCK=64)
            [(_, built)] = compile_all([(config, kernel.compile_job(config, Problem({}), device))], 1)
            print(built.path.parent)
        """)
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    ran, first, second = ended.stdout.split()
    assert ran == "ran"
    said = [(Path(folder) / "inner.source").read_text() for folder in (first, second)]
    assert ["2.000000e+00" in said[0], "3.000000e+00" in said[1]] == [True, True]


# --- launching ---


def test_the_launcher_gets_every_parameter_in_order_with_integer_pointers(gpu: FakeDriver) -> None:
    gpu.streams[0] = 77
    x, y, out = half(), half(), half()
    executable = ready(ADD, SMALL, ((8,), x, y, out, 4096, 1))
    result = executable.launch((8, 2), x, y, out, 4096, 1)
    [launch] = gpu.launches
    assert launch.args == (x.data_ptr(), y.data_ptr(), out.data_ptr(), 4096, 64, 1)
    assert (launch.grid, launch.stream, launch.function, launch.hooks) == ((8, 2, 1), 77, 1001, (None, None))
    assert result is executable.compiled
    assert executable.slow_reason == ""


def test_the_same_arguments_reach_stocks_launcher(gpu: FakeDriver) -> None:
    x, y, out = half(), half(), half()
    ready(ADD, SMALL, ((8,), x, y, out, 64, 1)).launch((8,), x, y, out, 64, 1)
    add[(8,)](x, y, out, 64, BLOCK=64, num_warps=4)
    ours, stocks = (launch_args(launch, add.arg_names) for launch in gpu.launches)
    assert ours == {n: v.data_ptr() if isinstance(v, GpuTensor) else v for n, v in stocks.items()}


def test_a_grid_function_is_given_arguments_and_knobs_by_name(gpu: FakeDriver) -> None:
    seen: dict[str, Any] = {}

    def grid(meta: dict[str, Any]) -> tuple[int]:
        seen.update(meta)
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    x, y, out = half(), half(), half()
    ready(ADD, SMALL, (grid, x, y, out, 1000, 1)).launch(grid, x, y, out, 1000, 1)
    assert gpu.launches[0].grid == (16, 1, 1)
    assert seen == {"x": x, "y": y, "out": out, "n": 1000, "ALPHA": 1, "BLOCK": 64, "num_warps": 4}


def test_a_kernel_runs_on_its_tensors_device(gpu: FakeDriver) -> None:
    def args() -> tuple[Any, ...]:
        return ((1,), half(index=1), half(index=1), half(index=1), 64, 1)

    gpu.streams[1] = 11
    executable = ready(ADD, SMALL, args())
    assert gpu.loaded == [("add", 1)]
    executable.launch(*args())
    assert (gpu.launches[0].device, gpu.launches[0].stream, gpu.current) == (1, 11, 0)


def test_a_global_that_changed_raises_as_stock_does(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, args = TritonKernel(scaled, {"BLOCK"}), ((1,), half(), 64)
    executable = ready(kernel, Config(BLOCK=64), args)
    executable.launch(*args)
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(4))
    with pytest.raises(RuntimeError, match="Global variable FACTOR has changed"):
        executable.launch(*args)
    assert len(gpu.launches) == 1


def test_launch_hooks_are_called_by_stock(gpu: FakeDriver) -> None:
    args = ((3,), half(), half(), half(), 64, 1)
    executable = ready(ADD, SMALL, args)
    names: list[str] = []

    def hook(metadata: Any) -> None:
        names.append(metadata.get()["name"])

    knobs.runtime.launch_enter_hook.add(hook)
    try:
        assert "launch_enter_hook" in executable.slow_reason
        executable.launch(*args)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    executable.launch(*args)
    assert names == ["add"]
    assert [launch.grid for launch in gpu.launches] == [(3, 1, 1)] * 2
    assert executable.slow_reason == ""


def test_pre_run_hooks_are_called(gpu: FakeDriver) -> None:
    args = ((1,), half(), half(), half(), 64, 1)
    executable = ready(ADD, SMALL, args)
    seen: list[Any] = []
    add.add_pre_run_hook(lambda *_, **kwargs: seen.append(kwargs["BLOCK"]))
    try:
        executable.launch(*args)
        assert executable.slow_reason == "add has pre_run_hooks"
    finally:
        add.pre_run_hooks.clear()
    executable.launch(*args)
    assert seen == [64]


def test_heuristics_are_asked_on_every_call(gpu: FakeDriver) -> None:
    kernel = TritonKernel(with_heuristic, {"BLOCK"})
    executable = ready(kernel, Config(BLOCK=64), ((1,), half(), 128))
    for n in (128, 130, 256, 100):
        executable.launch((1,), half(), n)
    assert [launch_args(launch, kernel.jit.arg_names)["EVEN"] for launch in gpu.launches] == [True, False, True, False]
    assert len({launch.function for launch in gpu.launches}) == 2


def test_a_tuple_argument_goes_the_ordinary_way(gpu: FakeDriver) -> None:
    kernel = TritonKernel(of_a_pair, {"BLOCK"})
    args = ((1,), (half(), half()), 64)
    executable = ready(kernel, Config(BLOCK=64), args)
    assert executable.slow_reason == "argument 'pair' is a tuple"
    executable.launch(*args)
    assert gpu.launches[0].args[0] == args[1]


def test_a_parameter_may_be_named_as_a_variable_of_ours(gpu: FakeDriver) -> None:
    @triton.jit
    def named(_t, _trun, n, BLOCK: tl.constexpr):
        tl.store(_t + tl.arange(0, BLOCK), _trun + n)

    args = ((1,), half(), 7, 9)
    ready(TritonKernel(named, {"BLOCK"}), Config(BLOCK=64), args).launch(*args)
    assert gpu.launches[0].args[1:] == (7, 9, 64)


def test_no_argument_is_kept_alive(gpu: FakeDriver) -> None:
    import gc
    import weakref

    kernel = TritonKernel(with_heuristic, {"BLOCK"})
    x = half()
    bound = kernel.for_call(((1,), x, 128))
    executable = bound.load(Config(BLOCK=64), NO_FIELDS, None)
    executable.launch((1,), x, 128)
    gpu.launches.clear()
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None
    assert executable.slow_reason == ""


def test_a_crash_costs_one_config_and_not_the_next(tmp_path: Path, gpu: FakeDriver) -> None:
    args = ((1,), half(), half(), half(), 4096, 1)
    good = ADD.for_call(args).compile_job(SMALL, NO_FIELDS, H200)
    bad = Config(BLOCK=32, num_warps=4)
    found = dict(compile_all([(bad, misbehaving(tmp_path, "abort")), (SMALL, good)], 1))
    assert isinstance(found[bad], Failed)
    assert isinstance(found[SMALL], Built)
