"""CUDA C++ on a GPU: right results, the caller's stream and device, arrays of any library, candidates that fail."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC: pip install 'tunesmith[cuda]'", exc_type=ImportError)

from tests import cuda_candidates

import tunesmith
from tunesmith import Config, Problem, Space
from tunesmith.backends import cuda, describe
from tunesmith.backends.cpu import gpu_at
from tunesmith.backends.cuda import driver
from tunesmith.conformance import KernelConformance, ready
from tunesmith.errors import DeviceError
from tunesmith.kernel import Kernel
from tunesmith.options import options

#: kernels of tests are defined where no worker finds them
pytestmark = pytest.mark.filterwarnings("ignore:.*candidates run in this process")
EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = """
#ifndef BLOCK
#define BLOCK 128
#endif
#ifndef FUSED
#define FUSED 1
#endif
static_assert(BLOCK <= 512, "BLOCK must be at most 512");
extern "C" __global__ void saxpy(const float *x, float *y, float a, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) y[i] = FUSED ? a * x[i] + 1 : 1 + a * x[i];
}
"""


def blocks(n: int, BLOCK: int) -> int:
    return -(-n // BLOCK)


def saxpy(source: str = SOURCE, **more: Any) -> cuda.CudaKernel:
    return cuda.kernel(source, **{"grid": blocks, "block": "BLOCK", **more})


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestCuda(KernelConformance):
    def kernel(self) -> cuda.CudaKernel:
        return saxpy()

    def changed(self) -> Kernel:
        return saxpy(SOURCE.replace("+ 1 :", "+ 2 :"))

    def commented(self) -> Kernel:
        return saxpy(SOURCE.replace("extern", "// a comment\n   extern"))

    def configs(self) -> list[Config]:
        return [Config(BLOCK=b, FUSED=f, maxrregcount=r) for b in (64, 256) for f in (True, False) for r in (None, 16)]

    def bad_configs(self) -> list[tuple[Config, str]]:
        return [(Config(maxrregcount=8), "integers from 16 to 255")]

    def failing(self) -> tuple[Kernel, Config, str]:
        return saxpy(), Config(BLOCK=1024), "BLOCK must be at most 512"

    def args(self) -> list[Any]:
        return [torch.arange(1001, device="cuda", dtype=torch.float32), torch.empty(1001, device="cuda"), 2.0, 1001]

    def check(self, args: list[Any], result: Any) -> None:
        torch.testing.assert_close(args[1], 2 * args[0] + 1)

    def device(self) -> Any:
        return gpu_at(torch.cuda.current_device())


# --- the examples ---


@pytest.mark.parametrize("size", [(64, 64, 64), (129, 130, 131), (256, 512, 1000), (1, 4096, 33)])
def test_the_matrix_product_is_right_in_every_corner_of_its_space(size: tuple[int, int, int]) -> None:
    module = example("cuda_sgemm")
    made = module.inputs(Problem(dict(zip("MNK", size, strict=True))))
    expected = made["a"].double() @ made["b"].double()
    configs = list(module.SPACE)
    for config in [*configs[:: max(1, len(configs) // 12)], module.DEFAULT]:
        made["c"].fill_(float("nan"))
        ready(module.kernel, config, list(made.values())).launch(*made.values())
        torch.testing.assert_close(made["c"].double(), expected, rtol=1e-4, atol=1e-3, msg=str(config))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(5, 1003), (64, 4096), (1000, 8)])
def test_the_sums_are_right_in_every_dtype(dtype: str, shape: tuple[int, int]) -> None:
    module = example("cuda_reduce")
    made = module.inputs(Problem({"rows": shape[0], "n": shape[1], "x.dtype": dtype}))
    expected = made["x"].double().sum(1)
    for config in [c for c in module.SPACE if c["VEC"] * made["x"].element_size() <= 16][::15]:
        made["y"].fill_(float("nan"))
        ready(module.kernel, config, list(made.values())).launch(*made.values())
        torch.testing.assert_close(made["y"].double(), expected, rtol=1e-3, atol=1e-2, msg=str(config))


def test_a_search_finds_and_stores_what_a_call_then_uses() -> None:
    module = example("cuda_reduce")
    tuned = tunesmith.autotune(
        space=Space(TX=[64, 256], TY=[1], VEC=[1, 4], UNROLL=[1]), key=["rows", "n"], make_inputs=module.inputs
    )(module.kernel)
    made = module.inputs(Problem({"rows": 64, "n": 10000}))
    tuned(**made)
    torch.testing.assert_close(made["y"].double(), made["x"].double().sum(1), rtol=1e-3, atol=1e-2)
    assert tuned.choice(**made).source in ("search", "store")


# --- streams, devices, threads ---


def test_a_kernel_runs_in_torchs_current_stream() -> None:
    args = TestCuda().args()
    launch = ready(saxpy(), Config(), args).launch
    launch(*args)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    args[1].fill_(-1)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # cycles: a tenth of a second
        launch(*args)
    assert not side.query()
    assert (args[1][:10].cpu() == -1).all()  # read in the default stream, beside the side stream's sleep
    side.synchronize()
    TestCuda().check(args, None)


def test_a_launch_can_be_captured() -> None:
    args = TestCuda().args()
    tuned = tunesmith.autotune(configs=[{"BLOCK": 128}], key=["n"], default=Config(BLOCK=128))(saxpy())
    tuned(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tuned(*args)
    args[1].fill_(0)
    graph.replay()
    torch.cuda.synchronize()
    TestCuda().check(args, None)


def test_a_thread_that_has_not_used_the_gpu_may_launch() -> None:
    args = TestCuda().args()
    launch = ready(saxpy(), Config(), args).launch
    with ThreadPoolExecutor(1) as pool:
        pool.submit(launch, *args).result()
    TestCuda().check(args, None)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_kernel_runs_on_its_arrays_device() -> None:
    kernel = saxpy()
    for index in (1, 0):
        args = [arg.to(f"cuda:{index}") if hasattr(arg, "to") else arg for arg in TestCuda().args()]
        ready(kernel, Config(), args).launch(*args)
        torch.cuda.synchronize(index)
        TestCuda().check(args, None)


def test_the_driver_describes_a_gpu_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    index = torch.cuda.current_device()
    theirs = gpu_at(index)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    driver.device_at.cache_clear()
    try:
        assert driver.device_at(index) == theirs
    finally:
        driver.device_at.cache_clear()


# --- arrays of other libraries ---


def test_cupys_arrays_and_stream() -> None:
    cupy = pytest.importorskip("cupy")
    x, y = cupy.arange(1001, dtype=cupy.float32), cupy.empty(1001, cupy.float32)
    tuned = tunesmith.autotune(space=Space(BLOCK=[64, 128]), key=["n"])(saxpy())
    with cupy.cuda.Stream():
        tuned(x, y, 2.0, 1001)
        tuned(x, y, 2.0, 1001)
        assert bool((y == 2 * x + 1).all())


def test_an_array_of_one_protocol_alone() -> None:
    args = TestCuda().args()

    class Interface:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    class Exported:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
            self.__dlpack_device__, self.__dlpack__ = tensor.__dlpack_device__, tensor.__dlpack__

    for kind in (Interface, Exported):
        args[1].zero_()
        given = [kind(args[0]), kind(args[1]), *args[2:]]
        ready(saxpy(), Config(), given).launch(*given)
        torch.cuda.synchronize()
        TestCuda().check(args, None)


# --- what the device has, and what fails ---


def test_dynamic_shared_memory_beyond_the_usual_and_clusters() -> None:
    major = torch.cuda.get_device_capability()[0]
    source = """
    extern "C" __global__ void reverse(const float *x, float *y, int n) {
        extern __shared__ float s[];
        for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = x[i];
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = s[n - 1 - i];
    }
    """
    n = 96 * 1024 // 4
    for cluster in (None, *([2] if major >= 9 else [])):
        kernel = cuda.kernel(source, grid=2, block=256, shared=4 * n, cluster=cluster)
        args = [torch.randn(n, device="cuda"), torch.empty(n, device="cuda"), n]
        executable = ready(kernel, Config(), args)
        executable.launch(*args)
        torch.testing.assert_close(args[1], args[0].flip(0))
        assert executable.resources.shared_bytes == 4 * n


def test_what_the_compiler_reports_is_what_the_driver_has() -> None:
    executable = ready(saxpy(), Config(), TestCuda().args())
    api = driver.driver()
    cubin = executable.path.with_suffix(".cubin").read_bytes()
    function = driver.load_function(torch.cuda.current_device(), cubin, executable.artifact.entry, 0, None)
    registers = driver.done(
        api.cuFuncGetAttribute(api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, function), "registers"
    )
    assert executable.resources.registers == registers


def test_a_launch_that_the_driver_refuses_costs_nothing_else() -> None:
    kernel = saxpy(block=lambda n, BLOCK: 2048 if n == 7 else BLOCK)
    args = TestCuda().args()
    launch = ready(kernel, Config(), args).launch
    with pytest.raises(DeviceError, match=r"2048, 1, 1.*CUDA_ERROR_INVALID_VALUE"):
        launch(*args[:3], 7)
    launch(*args)
    TestCuda().check(args, None)


@pytest.mark.skipif(
    set(cuda_candidates.SURVIVES) != {"isolate", "reference", "outputs"}, reason="candidates are not isolated"
)
def test_candidates_that_crash_hang_or_are_wrong_are_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_RUN_TIMEOUT_S", "5")
    options.cache_clear()
    made = cuda_candidates.inputs(Problem({"n": 10000}))
    summary = cuda_candidates.twice.tune(**made)
    assert summary.choice.config["FAULT"] == 0
    assert summary.counts["failed"] == 8
    cuda_candidates.twice(**made)
    torch.testing.assert_close(made["y"], 2 * made["x"])


def test_doctor_sees_it() -> None:
    [state] = [one for one in describe() if one.name == "cuda"]
    assert state.works
    assert f"{torch.cuda.device_count()} GPUs" in state.why
