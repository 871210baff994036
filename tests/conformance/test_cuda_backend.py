"""Kernels in CUDA C++ without a GPU: compiled in earnest, launched through a driver that reads what it is given."""

from __future__ import annotations

import concurrent.futures
import ctypes
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

for package in ("cuda.bindings.nvrtc", "numpy"):
    pytest.importorskip(package, reason=f"needs {package}: pip install 'tunesmith[cuda,cpu]'", exc_type=ImportError)

import numpy as np  # noqa: E402
from tests.fake_cuda import H200, Code, FakeDriver, GpuArray, Launch, fake_gpu  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith import Config, Failed, Problem, Resources, children  # noqa: E402
from tunesmith.backends import cuda, describe  # noqa: E402
from tunesmith.backends.cuda import driver  # noqa: E402
from tunesmith.backends.cuda.compile import Artifact, cubin_beside, nvrtc_version, target  # noqa: E402
from tunesmith.backends.cuda.launch import LAUNCH_CONFIG  # noqa: E402
from tunesmith.cli import main  # noqa: E402
from tunesmith.conformance import KernelConformance, ready  # noqa: E402
from tunesmith.core.device import known_device  # noqa: E402
from tunesmith.errors import (  # noqa: E402
    BadInput,
    CompileFailed,
    DeviceError,
    MissingEngine,
    OutOfResources,
    SpaceError,
)  # fmt: skip
from tunesmith.inputs import problem_of  # noqa: E402
from tunesmith.kernel import Built, Kernel  # noqa: E402
from tunesmith.workers import compile_all  # noqa: E402

SOURCE = """
#ifndef BLOCK
#define BLOCK 128
#endif
#ifndef FUSED
#define FUSED 1
#endif
static_assert(BLOCK <= 512, "BLOCK must be at most 512");

extern "C" __global__ void __launch_bounds__(BLOCK) saxpy(const float *__restrict__ x, float *y, float a, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) y[i] = FUSED ? a * x[i] + 1 : 1 + a * x[i];
}
"""
A100 = known_device("NVIDIA A100-SXM4-80GB")
NO_FIELDS = Problem({})


def blocks(n: int, BLOCK: int) -> int:
    return -(-n // BLOCK)


def saxpy(source: str | Path = SOURCE, **more: Any) -> cuda.CudaKernel:
    return cuda.kernel(source, **{"grid": blocks, "block": "BLOCK", **more})


def act_saxpy(launch: Launch) -> None:
    n = launch.read(3, ctypes.c_int32)
    a = launch.read(2, ctypes.c_float)
    assert launch.grid[0] * launch.block[0] >= n
    launch.array(1, n, ctypes.c_float)[:] = a * launch.array(0, n, ctypes.c_float) + 1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    with fake_gpu(monkeypatch) as fake:
        fake.takes("saxpy", 4, act_saxpy)
        yield fake


def arguments(n: int = 1001) -> list[Any]:
    return [GpuArray(np.arange(n, dtype=np.float32)), GpuArray(np.empty(n, np.float32)), 2.0, n]


@pytest.mark.usefixtures("gpu")
class TestCuda(KernelConformance):
    def kernel(self) -> cuda.CudaKernel:
        return saxpy()

    def changed(self) -> Kernel:
        return saxpy(SOURCE.replace("+ 1 :", "+ 2 :"))

    def commented(self) -> Kernel:
        return saxpy(SOURCE.replace("extern", "/* one\n\n two */ // three\n\n   extern"))

    def configs(self) -> list[Config]:
        return [*(Config(BLOCK=b, FUSED=f) for b in (64, 256) for f in (True, False)),
                Config(BLOCK="0x80", maxrregcount=32, fast_math=True)][:4]  # fmt: skip

    def bad_configs(self) -> list[tuple[Config, str]]:
        return [
            (Config(maxrregcount=8), "integers from 16 to 255"),
            (Config(maxrregcount=True), "integers from 16 to 255"),
            (Config(fast_math="yes"), "True, False"),
            (Config(BLOCK="4;system()"), "a C name or number"),
            (Config(BLOCK=None), "a C name or number"),
        ]

    def failing(self) -> tuple[Kernel, Config, str]:
        return saxpy(), Config(BLOCK=1024), "BLOCK must be at most 512"

    def args(self) -> list[Any]:
        return arguments()

    def check(self, args: list[Any], result: Any) -> None:
        assert result is None
        np.testing.assert_array_equal(args[1].host, 2 * args[0].host + 1)

    def device(self) -> Any:
        return H200


def compiled(kernel: cuda.CudaKernel, config: Config, device: Any = H200) -> Built | Failed:
    [(_, built)] = compile_all([(config, kernel.compile_job(config, NO_FIELDS, device))], 1)
    assert built is not None
    return built


# --- what is read of the source ---


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("float **x", r"the CUDA source:1: parameter `float \*\*x` of f is not supported; good pointers to: float"),
        ("Params p", r"`Params p` of f is not supported; good scalars: bool.* types="),
        ("const float *x,\n  int n,\n\n  thing *y", "the CUDA source:4: parameter `thing"),
        ("int lambda", "'lambda' of f is a word of Python's"),
    ],
)
def test_a_parameter_that_cannot_be_passed_is_refused_with_its_line(parameters: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        cuda.kernel(f"__global__ void f({parameters}) {{}}", grid=1, block=32)


def test_attributes_and_qualifiers_are_read_over() -> None:
    source = """
    template <typename T, int N = 4>
    __global__ void __launch_bounds__(max(BLOCK, 32), MIN_BLOCKS) __cluster_dims__(2, 1, 1)
    f(const T *__restrict__ x, std::uint32_t *const y, const __grid_constant__ unsigned long long int n, void *raw) {}
    """
    kernel = cuda.kernel(source, entry="f<float, 8>", grid=1, block=32)
    assert str(kernel.prototype) == (
        "__global__ void f<float, 8>(const float *x, uint32_t *y, unsigned long long n, void *raw)"
    )
    assert kernel.dtypes() == {"x": ("float32",), "y": ("uint32",), "raw": ()}


@pytest.mark.parametrize(
    ("source", "entry", "message"),
    [
        ("int x;", None, "defines no `__global__ void"),
        ("__global__ void f() {} __global__ void g() {}", None, "defines f, g: say which with entry="),
        ("__global__ void f() {}", "ff", "unknown entry 'ff': did you mean 'f'"),
        ("template <class T, int N> __global__ void f(T *x) {}", "f", "entry='f<T, N>'"),
        (
            "template <class T> __global__ void f(int n) {}",
            "f<T>",
            r"no array of f is a `T \*`: say what it is in types=",
        ),
        ("template <class T> __global__ void f(T *x, T a) {}", "f<T>", "the scalar `T a` of f"),
    ],
)
def test_the_entry_has_to_be_one_kernel(source: str, entry: str | None, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        cuda.kernel(source, entry=entry, grid=1, block=32)


def test_options_that_bring_in_files_are_refused() -> None:
    with pytest.raises(BadInput, match="headers are named in headers="):
        saxpy(options=["-I/opt/include"])
    with pytest.raises(BadInput, match="give a list"):
        saxpy(options="-G")


def test_sizes_name_what_they_read(gpu: FakeDriver) -> None:
    with pytest.raises(SpaceError, match="'BLOK', which block= reads, is neither an argument, a macro nor a knob"):
        ready(saxpy(block="BLOK"), Config(BLOCK=64), arguments())
    with pytest.raises(BadInput, match="cluster= reads 'n', an argument"):
        saxpy(cluster="n")
    with pytest.raises(BadInput, match="dependent= reads 'n', an argument; good ones: knobs and 'device'"):
        saxpy(dependent=lambda n: n > 7)
    with pytest.raises(SpaceError, match="'EARLY', which dependent= reads, is neither"):
        ready(saxpy(dependent="EARLY"), Config(BLOCK=64), arguments())
    with pytest.raises(BadInput, match="one to three"):
        saxpy(grid=(1, 2, 3, 4)).knobs  # noqa: B018


# --- compiling ---


def test_a_whole_space_for_chips_that_are_not_here(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scale.cu").write_text(SOURCE)
    file = tmp_path / "kernels_in_cuda.py"
    file.write_text(
        "from pathlib import Path\nimport tunesmith\n"
        "def grid(n, BLOCK):\n    return -(-n // BLOCK)\n"
        "kernel = tunesmith.cuda.kernel(Path(__file__).with_name('scale.cu'), grid=grid, block='BLOCK', "
        "shared=lambda BLOCK: BLOCK * 512)\n"
        "tuned = tunesmith.autotune(space=tunesmith.Space(BLOCK=[32, 64, 512, 1024, 2048], FUSED=[0, 1]), "
        "key=['n'])(kernel)\n"
    )
    for arch, limit in (("sm_80", 166912), ("sm_90", 232448)):
        assert main(["compile", f"{file}:tuned", "--target", arch, "--problem", "n=1000", "--json"]) == 0
        [result] = json.loads(capfd.readouterr().out)["results"]
        small = result["configs"][0]
        assert small["failed"] is None
        assert small["registers"] > 4
        assert (small["spills"], small["threads"], small["shared_bytes"]) == (0, 32, 32 * 512)
        assert small["occupancy"] > 0
        failed = [one["failed"] for one in result["configs"] if one["failed"]]
        assert {one["stage"] for one in failed} == {"cut"}
        assert any(f"limit {limit} bytes" in one["reason"] for one in failed)
        assert any("needs 2048 threads, limit 1024" in one["reason"] for one in failed)


def test_registers_spills_and_shared_memory_are_the_compilers() -> None:
    source = """
    extern "C" __global__ void work(const float *x, float *y, int n) {
        __shared__ float tile[256];
        float kept[96];
        tile[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        for (int k = 0; k < 96; k++) kept[k] = x[k * n] + tile[k];
        for (int i = 0; i < n; i++) for (int k = 0; k < 96; k++) kept[k] = kept[k] * x[i] + kept[(k + 1) % 96];
        for (int k = 0; k < 96; k++) y[k * n] = kept[k];
    }
    """
    kernel = cuda.kernel(source, grid=1, block=256, shared=4096)
    for device in (A100, H200):
        found: dict[object, Resources] = {}
        for limit in (None, 32):
            config = Config(maxrregcount=limit)
            built = compiled(kernel, config, device)
            assert isinstance(built, Built)
            found[limit] = kernel.resources_of(config, built, device)
        assert found[None].registers is not None
        assert found[None].registers > 96
        assert found[32].registers == 32
        assert (found[None].spills, found[None].shared_bytes, found[None].threads) == (0, 1024 + 4096, 256)
        assert (found[32].spills or 0) > 60


def test_a_failure_shows_the_line_of_the_users_file(tmp_path: Path) -> None:
    file = tmp_path / "broken.cu"
    file.write_text('extern "C" __global__ void f(int n) {\n    nothing(n);\n}\n')
    failed = compiled(cuda.kernel(file, grid=1, block=32), Config())
    assert isinstance(failed, Failed)
    assert (failed.stage, failed.reason) == ("compile", 'error: identifier "nothing" is undefined')
    assert f"{file}(2): error" in failed.detail
    assert "nothing(n);" in failed.detail


def test_templates_are_instantiated_by_macros_and_dtypes(gpu: FakeDriver) -> None:
    source = """
    #include <stdint.h>
    #include <cuda_fp16.h>
    #ifndef WIDTH
    #define WIDTH 4
    #endif
    template <typename T, int N>
    __global__ void fill(T *x, int64_t n) { for (int k = 0; k < N; k++) x[threadIdx.x + k * n] = T(N); }
    """
    kernel = cuda.kernel(source, entry="fill<T, WIDTH>", grid=1, block=32)
    gpu.takes("_Z4fill", 2)
    entries = set()
    for dtype in (np.float32, np.float16):
        for width in (2, 8):
            args = [GpuArray(np.zeros(512, dtype)), 64]
            executable = ready(kernel, Config(WIDTH=width), args)
            executable.launch(*args)
            entries.add(executable.artifact.entry)
    assert entries == {f"_Z4fillI{t}Li{w}EEvPT_l" for t in ("f", "6__half") for w in (2, 8)}
    with pytest.raises(BadInput, match=r"use kernel\.for_call"):
        kernel.compile_job(Config(), NO_FIELDS, H200)
    with pytest.raises(BadInput, match="unknown dtype for T 'complex64'"):
        kernel.for_call([GpuArray(np.zeros(4, np.complex64)), 1])


def test_a_header_beside_the_source_is_part_of_the_kernel(tmp_path: Path, gpu: FakeDriver) -> None:
    file, header = tmp_path / "saxpy.cu", tmp_path / "one.h"
    file.write_text('#include "one.h"\n' + SOURCE.replace("+ 1 :", "+ ONE :"))
    header.write_text("#define ONE 1\n")
    before = saxpy(file)
    args = arguments()
    ready(before, Config(), args).launch(*args)
    header.write_text("#define ONE 2\n")
    after = saxpy(file)
    assert before.fingerprint() != after.fingerprint()
    jobs = [kernel.compile_job(Config(), NO_FIELDS, H200).output for kernel in (before, after)]
    assert jobs[0] != jobs[1]
    file.write_text('#include "two.h"\n' + SOURCE)
    with pytest.raises(BadInput, match=r'includes "two.h", which is not beside it'):
        saxpy(file)


def test_the_fingerprint_covers_the_declaration() -> None:
    names = {
        saxpy(**more).fingerprint()
        for more in (
            {},
            {"block": 128},
            {"grid": 7},
            {"shared": 64},
            {"cluster": 2},
            {"dependent": 1},
            {"options": ["-G"]},
        )
    }
    assert len(names) == 7


def test_flags_of_the_environment_name_the_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = saxpy().compile_job(Config(), NO_FIELDS, H200).output
    monkeypatch.setenv("NVRTC_APPEND_FLAGS", "-G")
    assert saxpy().environment() == {"NVRTC_APPEND_FLAGS": "-G"}
    assert saxpy().compile_job(Config(), NO_FIELDS, H200).output != usual


def test_configs_that_differ_in_the_launch_alone_share_a_binary() -> None:
    kernel = saxpy(grid=lambda n, BLOCK, PARTS: PARTS)
    outputs = {kernel.compile_job(Config(BLOCK=64, PARTS=p), NO_FIELDS, H200).output for p in (1, 2)}
    assert len(outputs) == 1


def test_a_binary_that_was_cut_short_is_made_anew(gpu: FakeDriver) -> None:
    kernel, args = saxpy(), arguments()
    built = compiled(kernel, Config())
    assert isinstance(built, Built)
    for spoil in (lambda: built.path.write_text('{"entry'), lambda: cubin_beside(built.path).unlink()):
        spoil()
        kernel.for_call(args).load(Config(), NO_FIELDS, built).launch(*args)
        assert Artifact.read(built.path).entry == "saxpy"
    np.testing.assert_array_equal(args[1].host, 2 * args[0].host + 1)


def test_a_compiler_that_dies_costs_one_config(monkeypatch: pytest.MonkeyPatch) -> None:
    children.end_spare()
    task = saxpy().compile_job(Config(), NO_FIELDS, H200)
    answer = children.call("os:_exit", {"status": 139}, 10)
    assert answer.failed is not None
    assert answer.failed.stage == "crash"
    [(_, built)] = compile_all([(Config(), task)], 1)
    assert isinstance(built, Built)


def test_a_chip_of_its_own_instructions_is_compiled_for() -> None:
    assert [target(arch) for arch in ("sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")] == [
        "sm_80", "sm_89", "sm_90a", "sm_90a", "sm_100a", "sm_120a",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["cuda_sgemm", "cuda_reduce"])
def test_the_examples_compile_for_both_chips(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    module = importlib.import_module(name)
    configs = list(module.SPACE)
    [tuned] = [value for value in vars(module).values() if isinstance(value, tunesmith.TunedKernel)]
    assert tuned.declared.default in configs
    for device in (A100, H200):
        kernel = module.kernel.for_target(lambda: {"x": np.zeros(1, np.float16)}, device)
        built = compiled(kernel, tuned.declared.default, device)
        assert isinstance(built, Built)
        assert kernel.resources_of(tuned.declared.default, built, device).spills == 0
    few = [(config, kernel.compile_job(config, NO_FIELDS, H200)) for config in configs[:: len(configs) // 4]]
    assert all(isinstance(built, Built) for _, built in compile_all(few, 1))


def test_the_dtype_of_a_template_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    module = importlib.import_module("cuda_reduce")
    asked = problem_of(module.kernel, module.row_sums.declared, "rows=4,n=8,x.dtype=float16")
    assert asked.text == "n=8,rows=4,x.dtype=float16,y.dtype=float32"


# --- launching ---


def test_a_launch_is_what_was_declared(gpu: FakeDriver) -> None:
    kernel = saxpy(
        grid=lambda n, BLOCK, device: (min(-(-n // BLOCK), device.units), 2),
        block=("BLOCK", 2),
        shared=60000,
        cluster=(2,),
    )
    args = arguments(64 * 50)
    executable = ready(kernel, Config(BLOCK=64), args)
    executable.launch(*args)
    [launch] = gpu.launches
    assert (launch.grid, launch.block, launch.shared_bytes) == ((50, 2, 1), (64, 2, 1), 60000)
    assert executable.resources.shared_bytes == 60000
    assert executable.resources.threads == 128
    assert dict(gpu.attributes) == {
        "MAX_DYNAMIC_SHARED_SIZE_BYTES": 60000, "REQUIRED_CLUSTER_WIDTH": 2, "REQUIRED_CLUSTER_HEIGHT": 1,
        "REQUIRED_CLUSTER_DEPTH": 1,
    }  # fmt: skip


def test_a_launch_that_may_begin_early_says_so(gpu: FakeDriver) -> None:
    kernel = saxpy(dependent="EARLY", shared=lambda n: 4 * n)
    args = arguments(320)
    for early in (1, 0, True, False):
        ready(kernel, Config(BLOCK=64, EARLY=early), args).launch(*args)
        launch = gpu.launches[-1]
        assert launch.dependent == bool(early)
        assert (launch.grid, launch.block, launch.shared_bytes) == ((5, 1, 1), (64, 1, 1), 1280)
        np.testing.assert_array_equal(args[1].host, 2 * args[0].host + 1)
    launch_of = ready(kernel, Config(BLOCK=64, EARLY=1), args).launch
    with pytest.raises(BadInput, match="argument 'a' is None"):
        launch_of(*args[:2], None, 320)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        each = [arguments(n) for n in range(1, 200)]
        list(pool.map(lambda args: launch_of(*args), each))
    for args in each:
        np.testing.assert_array_equal(args[1].host, 2 * args[0].host + 1)


def test_the_drivers_own_structures_are_as_they_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    api = importlib.import_module("cuda.bindings.driver")
    config = api.CUlaunchConfig()
    memory = (ctypes.c_char * LAUNCH_CONFIG.size).from_address(config.getPtr())
    LAUNCH_CONFIG.pack_into(memory, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    sizes = [getattr(config, f"{what}Dim{axis}") for what in ("grid", "block") for axis in "XYZ"]
    assert [*sizes, config.sharedMemBytes, int(config.hStream), config.numAttrs] == [2, 3, 4, 5, 6, 7, 8, 9, 11]
    monkeypatch.setattr(driver, "driver", lambda: api)
    attribute = driver.dependent_attribute.__wrapped__()
    assert attribute.id == api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert attribute.value.programmaticStreamSerializationAllowed == 1


def test_sizes_may_depend_on_a_call(gpu: FakeDriver) -> None:
    kernel = saxpy(block=lambda n: n // 2, shared=lambda n, BLOCK: 4 * n + BLOCK, grid=lambda x: x.shape[0])
    args = arguments(64)
    ready(kernel, Config(BLOCK=64), args).launch(*args)
    [launch] = gpu.launches
    assert (launch.grid, launch.block, launch.shared_bytes) == ((64, 1, 1), (32, 1, 1), 4 * 64 + 64)
    assert dict(gpu.attributes) == {"MAX_DYNAMIC_SHARED_SIZE_BYTES": H200.shared_bytes_per_block}


def test_every_scalar_arrives_as_the_kernel_sees_it(gpu: FakeDriver) -> None:
    types = {"bool": (True, ctypes.c_bool), "char": (-3, ctypes.c_int8), "unsigned short": (65535, ctypes.c_uint16),
             "double": (2.5, ctypes.c_double), "int": (-7, ctypes.c_int32), "size_t": (2**63, ctypes.c_uint64),
             "float": (np.float32(1.5), ctypes.c_float), "long long": (np.int32(-9), ctypes.c_int64)}  # fmt: skip
    parameters = ", ".join(f"{ctype} v{i}" for i, ctype in enumerate(types))
    kernel = cuda.kernel(f'extern "C" __global__ void take({parameters}) {{}}', grid=1, block=32)
    gpu.takes(
        "take", len(types), lambda launch: seen.extend(launch.read(i, c) for i, (_, c) in enumerate(types.values()))
    )
    seen: list[object] = []
    args = [value for value, _ in types.values()]
    ready(kernel, Config(), args).launch(*args)
    assert seen == args


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({3: 2**31}, r"argument 'n' is 2147483648 of type int; expected a number that fits \(int n\)"),
        ({2: "a"}, r"argument 'a' is 'a' of type str; expected a number that fits \(float a\)"),
        ({2: None}, r"argument 'a' is None; expected a number"),
        (
            {0: GpuArray(np.zeros(8, np.float64))},
            r"argument 'x' has dtype float64; expected float32 \(const float \*x\)",
        ),
        ({0: 3}, r"argument 'x' is of type int; expected a torch or cupy array"),
        ({0: np.zeros(8, np.float32)}, r"argument 'x' is on the CPU; expected an array on a GPU"),
    ],
)
def test_a_wrong_argument_is_named(gpu: FakeDriver, change: dict[int, Any], message: str) -> None:
    args = arguments()
    launch = ready(saxpy(), Config(), args).launch
    with pytest.raises(BadInput, match=message):
        launch(*[change.get(i, arg) for i, arg in enumerate(args)])
    launch(*args)  # and the next call is as good as ever


def test_an_array_that_is_not_given_is_a_null_pointer(gpu: FakeDriver) -> None:
    kernel = cuda.kernel('extern "C" __global__ void maybe(float *x, const float *bias) {}', grid=1, block=32)
    gpu.takes("maybe", 2, lambda launch: seen.append(launch.read(1, ctypes.c_uint64)))
    seen: list[int] = []
    args = [GpuArray(np.zeros(4, np.float32)), None]
    ready(kernel, Config(), args).launch(*args)
    assert seen == [0]


def test_an_array_of_dlpack_alone_is_taken(gpu: FakeDriver) -> None:
    host = np.arange(10, dtype=np.float32)[2:]

    class Exported:
        dtype, shape = host.dtype, host.shape

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, stream: int | None = None) -> Any:
            assert stream == -1
            return host.__dlpack__()

    args = arguments(8)
    args[0] = Exported()
    ready(saxpy(), Config(), args).launch(*args)
    np.testing.assert_array_equal(args[1].host, 2 * host + 1)


def test_no_work_is_no_launch(gpu: FakeDriver) -> None:
    args = arguments()
    launch = ready(saxpy(), Config(), args).launch
    launch(*args[:3], 0)
    assert not gpu.launches
    with pytest.raises(BadInput, match="grid came to -2"):
        launch(*args[:3], -256)


def test_a_thread_without_a_context_is_given_the_kernels(gpu: FakeDriver) -> None:
    args = arguments()
    launch = ready(saxpy(), Config(), args).launch
    stacks: list[list[int]] = []
    thread = threading.Thread(target=lambda: (launch(*args), stacks.append(gpu.stack)))
    thread.start()
    thread.join()
    assert stacks == [[1]]
    np.testing.assert_array_equal(args[1].host, 2 * args[0].host + 1)


def test_a_kernel_is_launched_on_its_arrays_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpu(monkeypatch, n_devices=2) as gpu:
        gpu.takes("saxpy", 4, act_saxpy)
        monkeypatch.setattr(gpu, "cuPointerGetAttribute", lambda name, address: (Code.CUDA_SUCCESS, 1))
        args = arguments()
        executable = ready(saxpy(), Config(), args)
        gpu.stack.append(1)  # device 0 is current
        executable.launch(*args)
        assert gpu.stack == [1]
        np.testing.assert_array_equal(args[1].host, 2 * args[0].host + 1)
        monkeypatch.setattr(gpu, "cuPointerGetAttribute", lambda name, address: (Code.CUDA_SUCCESS, 0))
        with pytest.raises(BadInput, match="'x' is on GPU 0; expected GPU 1"):
            executable.launch(*args)


def test_what_the_driver_refuses_is_said_in_its_words(gpu: FakeDriver) -> None:
    args = arguments()
    executable = ready(saxpy(), Config(), args)
    gpu.refuses = Code.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DeviceError, match=r"saxpy: launching a grid of \(8, 1, 1\) .* CUDA_ERROR_INVALID_VALUE"):
        executable.launch(*args)


# --- in use ---


def test_a_call_searches_stores_and_is_warm(gpu: FakeDriver) -> None:
    from tests.fakes import ScriptedClock

    clock = ScriptedClock({Config(BLOCK=64): 2e-6, Config(BLOCK=256): 1e-6})
    tuned = tunesmith.autotune(space=tunesmith.Space(BLOCK=[64, 256]), key=["n"], clock=clock)(saxpy())
    args = arguments()
    tuned(*args)
    assert gpu.launches[-1].block == (256, 1, 1)
    np.testing.assert_array_equal(args[1].host, 2 * args[0].host + 1)
    asked = len(clock.asked)
    tuned(*args)
    assert len(clock.asked) == asked
    assert tuned.choice(*args).config == Config(BLOCK=256)


def test_the_documentation_runs(gpu: FakeDriver) -> None:
    text = (Path(__file__).parents[2] / "docs" / "cuda-kernels.md").read_text()
    [block] = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    space: dict[str, Any] = {}
    exec(block, space)
    gpu.takes("_Z5scale", 4)
    x, y = (GpuArray(np.ones(1000, np.float16)) for _ in range(2))
    with tunesmith.policy("default"):
        space["tuned"](x, y, 2.0, 1000)
    assert gpu.launches[-1].grid == (4, 1, 1)


# --- what is missing ---


def test_importing_it_brings_in_no_package_of_nvidias() -> None:
    script = "import sys, tunesmith.backends.cuda; assert not {'cuda', 'cupy', 'numpy', 'torch'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True
    )


def test_a_machine_without_a_gpu_says_what_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpu(monkeypatch) as gpu:
        monkeypatch.setattr(gpu, "cuInit", lambda flags: (Code.CUDA_ERROR_INVALID_VALUE,))
        with pytest.raises(MissingEngine, match=r"finds no GPU .*tunesmith compile FILE.py:KERNEL --target sm_90"):
            ready(saxpy(), Config(), arguments())
        [state] = [one for one in describe() if one.name == "cuda"]
        assert state.works
        assert state.why.startswith(f"NVRTC {nvrtc_version()}")
        assert "compiles, and launches nothing" in state.why


def test_doctor_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunesmith.backends.cuda import compile as compiling

    monkeypatch.setattr(compiling, "nvrtc", lambda: (_ for _ in ()).throw(MissingEngine(f"none: {compiling.INSTALL}")))
    compiling.nvrtc_version.cache_clear()
    try:
        [state] = [one for one in describe() if one.name == "cuda"]
        assert (state.works, state.command) == (False, "pip install 'tunesmith[cuda]'")
    finally:
        compiling.nvrtc_version.cache_clear()


def test_a_failed_compilation_names_the_whole_message(gpu: FakeDriver) -> None:
    with pytest.raises(CompileFailed, match=r"(?s)BLOCK must be at most 512.*saxpy\.cu\(8\): error"):
        saxpy().for_call(arguments()).load(Config(BLOCK=1024), NO_FIELDS, None)
    with pytest.raises(OutOfResources, match="needs 2048 threads"):
        saxpy().compile_job(Config(BLOCK=2048), NO_FIELDS, H200)
