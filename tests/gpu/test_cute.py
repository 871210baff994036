"""CuTe DSL on a GPU: right results, the caller's stream and device, threads, and what a launch refuses."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass.cute", reason="needs CuTe DSL: pip install 'tunesmith[cute]'", exc_type=ImportError)
pytest.importorskip("tvm_ffi", reason="needs TVM-FFI: pip install 'tunesmith[cute]'", exc_type=ImportError)

from tests import cute_kernels

import tunesmith
from tunesmith import Config, Problem, Space
from tunesmith.backends import cute, describe
from tunesmith.backends.cpu import gpu_at
from tunesmith.conformance import KernelConformance, ready
from tunesmith.kernel import Kernel

pytestmark = pytest.mark.filterwarnings("ignore:.*candidates run in this process")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("cute_rmsnorm")


class TestCute(KernelConformance):
    def kernel(self) -> cute.CuteKernel:
        return cute.kernel(cute_kernels.saxpy)

    def changed(self) -> Kernel:
        return cute.kernel(cute_kernels.Changed.saxpy)

    def commented(self) -> Kernel:
        return cute.kernel(cute_kernels.Commented.saxpy)

    def configs(self) -> list[Config]:
        return [*cute_kernels.SPACE]

    def bad_configs(self) -> list[tuple[Config, str]]:
        return [(Config(BLOCK=64), "knob 'EACH' is missing")]

    def failing(self) -> tuple[Kernel, Config, str]:
        return self.kernel(), Config(BLOCK=33, EACH=1), "BLOCK must be a multiple of 32, not 33"

    def args(self) -> list[Any]:
        return [torch.arange(1001, device="cuda", dtype=torch.float32), torch.empty(1001, device="cuda"), 2.0]

    def check(self, args: list[Any], result: Any) -> None:
        torch.testing.assert_close(args[1], 2 * args[0] + 1)

    def device(self) -> Any:
        return gpu_at(torch.cuda.current_device())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(5, 1000), (64, 4096), (1000, 8 * 33)])
def test_the_norm_is_right_all_over_its_space(example: Any, dtype: str, shape: tuple[int, int]) -> None:
    problem = Problem({"M": shape[0], "N": shape[1], "x.dtype": dtype})
    made = example.inputs(problem)
    expected = example.reference(made["x"].double(), made["w"].double(), made["eps"])
    for config in [*example.space(problem, None)][::17]:
        made["y"].fill_(float("nan"))
        ready(example.kernel, config, [*made.values()]).launch(*made.values())
        torch.testing.assert_close(made["y"].double(), expected, rtol=2e-2, atol=2e-2, msg=str(config))


def test_a_search_finds_and_stores_what_a_call_then_uses(example: Any) -> None:
    space = Space(THREADS=[128, 256], ROWS=[1], VEC=[4, 8], KEEP=[True])
    tuned = tunesmith.autotune(
        space=space, key=example.key, make_inputs=example.inputs, reference=example.reference, outputs=["y"]
    )(example.kernel)
    made = example.inputs(Problem({"M": 512, "N": 4096}))
    tuned(**made)
    expected = example.reference(made["x"].double(), made["w"].double(), made["eps"])
    torch.testing.assert_close(made["y"].double(), expected, rtol=2e-2, atol=2e-2)
    assert tuned.choice(**made).source in ("search", "store")


def test_what_is_built_and_what_its_own_tuner_takes() -> None:
    x, y = torch.arange(1001, device="cuda", dtype=torch.float32), torch.empty(1001, device="cuda")
    ready(cute_kernels.shifted, Config(BLOCK=64), [x, y, 2.0, 3.0]).launch(x, y, 2.0, 3.0)
    torch.testing.assert_close(y, 2 * x + 3)
    cute_kernels.tuned(x, y, 1001)
    torch.testing.assert_close(y, 2 * x + 1)


def test_a_kernel_runs_in_torchs_current_stream() -> None:
    args = TestCute().args()
    launch = ready(TestCute().kernel(), Config(BLOCK=128, EACH=1), args).launch
    launch(*args)
    args[1].fill_(-1)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # cycles: a tenth of a second
        launch(*args)
    assert not side.query()
    assert (args[1][:10].cpu() == -1).all()  # read in the default stream, beside the side stream's sleep
    side.synchronize()
    TestCute().check(args, None)


def test_a_launch_can_be_captured() -> None:
    args = TestCute().args()
    launch = ready(TestCute().kernel(), Config(BLOCK=128, EACH=1), args).launch
    launch(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(*args)
    args[1].fill_(0)
    graph.replay()
    torch.cuda.synchronize()
    TestCute().check(args, None)


def test_calls_of_another_layout_get_their_own_binary() -> None:
    tuned = tunesmith.autotune(space=Space(BLOCK=[128], EACH=[1]), key=lambda x: {"n": x.shape[0]})(
        cute.kernel(cute_kernels.saxpy)
    )
    wide = torch.arange(4000, device="cuda", dtype=torch.float32)
    for x in (wide[:1000], wide[::4], wide[1:1001]):
        y = torch.empty(1000, device="cuda")
        tuned(x, y, 2.0)
        torch.testing.assert_close(y, 2 * x + 1)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_kernel_runs_on_its_arrays_device() -> None:
    for index in (1, 0):
        args = [arg.to(f"cuda:{index}") if hasattr(arg, "to") else arg for arg in TestCute().args()]
        ready(TestCute().kernel(), Config(BLOCK=128, EACH=1), args).launch(*args)
        torch.cuda.synchronize(index)
        TestCute().check(args, None)


def test_doctor_sees_it() -> None:
    [state] = [one for one in describe() if one.name == "cute"]
    assert state.works
    assert f"{torch.cuda.device_count()} GPUs" in state.why
