"""The shipped matrix product and `ops` on a GPU: right for every way of computing it, in graphs, beside the library."""

from __future__ import annotations

import subprocess
import sys
from threading import Thread
from typing import Any

import pytest
import torch
from torch.library import opcheck

import tunesmith
from tunesmith import Config, Problem, ops
from tunesmith.core.outcome import Measured
from tunesmith.kernel import settled
from tunesmith.kernels import gemm as package
from tunesmith.kernels.gemm import arguments, cublaslt, gemm, reference
from tunesmith.kernels.gemm.memory import fresh

KERNEL = package.kernel.kernel
BASE = Config(
    BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, GROUP_M=8, SPLIT_K=1, PERSISTENT=False, TMA=False, num_warps=4, num_stages=3
)  # fmt: skip
#: of a product of no more rows than a tile has, where there is nothing to group
ONE_TILE = {"by": "gemm", **BASE, "GROUP_M": 1}
HOW = (
    {}, {"SPLIT_K": 2}, {"SPLIT_K": 8}, {"PERSISTENT": True}, {"BLOCK_M": 16, "SPLIT_K": 4}, {"TMA": True},
    {"TMA": True, "SPLIT_K": 2}, {"TMA": True, "PERSISTENT": True},
)  # fmt: skip
ALLOWED = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5}


def off(result: Any, exact: Any) -> float:
    return float((result.double() - exact).abs().max() / exact.abs().max())


def normal(*shape: int, dtype: Any) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def launch_of(args: tuple[Any, ...], **knobs: Any) -> Any:
    return KERNEL.for_call(args).load(BASE.replace(**knobs), Problem({}), None).launch


@pytest.mark.parametrize("dtype", list(ALLOWED))
@pytest.mark.parametrize("how", HOW)
def test_every_way_is_right_on_odd_sizes_and_strides(dtype: Any, how: dict[str, Any]) -> None:
    for m, n, k in ((1, 130, 1000), (77, 65, 1024), (300, 1000, 515)):
        bias = normal(n, dtype=dtype)
        for a, b in (
            (normal(m, k, dtype=dtype), normal(n, k, dtype=dtype).mT),
            (normal(m, 2 * k, dtype=dtype)[:, ::2], normal(k, n + 3, dtype=dtype)[:, 3:]),
            (normal(k, m, dtype=dtype).mT, normal(k, n, dtype=dtype)),
            (normal(3, m, k, dtype=dtype), normal(k, n, dtype=dtype)),
        ):
            args = arguments(a, b, bias, "gelu")
            launch = launch_of(args, **how)
            for _ in range(3):
                assert off(launch(*args), reference(a, b, bias, "gelu")) < ALLOWED[dtype], (how, a.shape, a.stride())


#: ways for few rows: on Hopper these begin before the kernel before them has ended
FEW = (
    (1, {"BLOCK_M": 1, "BLOCK_N": 4, "BLOCK_K": 512}), (1, {"BLOCK_M": 1, "BLOCK_N": 1, "BLOCK_K": 1024}),
    (5, {"BLOCK_M": 16}), (5, {"BLOCK_M": 16, "SPLIT_K": 4}), (32, {"BLOCK_M": 32, "BLOCK_N": 128, "SPLIT_K": 2}),
)  # fmt: skip


@pytest.mark.parametrize("dtype", list(ALLOWED))
def test_one_row_without_matrix_units_is_right(dtype: Any) -> None:
    for n, k in ((130, 1000), (512, 4096), (7, 33)):
        bias = normal(n, dtype=dtype)
        for a, b in (
            (normal(1, k, dtype=dtype), normal(n, k, dtype=dtype).mT),
            (normal(1, 2 * k, dtype=dtype)[:, ::2], normal(k, n + 3, dtype=dtype)[:, 3:]),
            (normal(3, 1, k, dtype=dtype), normal(3, n, k, dtype=dtype).mT),
        ):
            args = arguments(a, b, bias, "silu", "float32")
            for m, how in FEW:
                if m == 1:
                    result = launch_of(args, **how)(*args)
                    assert off(result, reference(a, b, bias, "silu")) < ALLOWED[dtype], (how, a.shape, a.stride())


@pytest.mark.parametrize(("m", "how"), FEW)
def test_a_product_waits_for_what_the_kernel_before_it_writes(m: int, how: dict[str, Any]) -> None:
    first = normal(m, 2048, dtype=torch.bfloat16)
    w, scale = normal(2048, 2048, dtype=torch.bfloat16) / 45, normal(2048, 2048, dtype=torch.bfloat16)
    launch = launch_of(arguments(first, w.mT), **how)

    def chain(between: Any) -> Any:
        x, other = first, torch.empty_like(w)
        for i in range(24):
            torch.mul(w, scale if i % 2 else 1, out=other)  # torch writes b,
            between()
            x = launch(*arguments(x, other.mT))  # and the product before wrote a, or its memory was another's
            between()
            x = launch(*arguments(x, w.mT))
            between()
        return x

    expected = chain(torch.cuda.synchronize)
    assert expected.isfinite().all()
    assert expected.any()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(lambda: None)
    for _ in range(20):
        assert torch.equal(chain(lambda: None), expected)
        graph.replay()
        assert torch.equal(captured, expected)


def test_a_split_sum_has_the_same_bits_each_time() -> None:
    args = arguments(normal(16, 8192, dtype=torch.bfloat16), normal(512, 8192, dtype=torch.bfloat16).mT)
    launch = launch_of(args, BLOCK_M=16, SPLIT_K=16)
    first = launch(*args)
    assert all(torch.equal(first, launch(*args)) for _ in range(200))


def test_graphs_and_streams_do_not_share_counters() -> None:
    args = arguments(normal(16, 8192, dtype=torch.bfloat16), normal(512, 8192, dtype=torch.bfloat16).mT)
    launch = launch_of(args, BLOCK_M=16, SPLIT_K=16)
    expected = launch(*args)
    graphs = []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = [launch(*args) for _ in range(20)]
        graphs.append((graph, results))
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(50):
        for (graph, _), stream in zip(graphs, streams, strict=False):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            eager = launch(*args)
    torch.cuda.synchronize()
    assert torch.equal(eager, expected)
    assert all(torch.equal(result, expected) for _, results in graphs for result in results)


@pytest.mark.parametrize("persistent", [False, True])
def test_descriptors_are_right_for_large_tiles_in_graphs_and_streams(persistent: bool) -> None:
    """The tiles that win for many rows; with more tiles than units, and a last step that is not whole."""
    for turned in (False, True):
        a, b = normal(1000, 1048, dtype=torch.bfloat16), normal(1048, 8200, dtype=torch.bfloat16)
        b = b.mT.contiguous().mT if turned else b
        args, exact = arguments(a, b), reference(a, b)
        launch = launch_of(
            args, BLOCK_M=128, BLOCK_N=256, num_warps=8, num_stages=4, TMA=True, PERSISTENT=persistent
        )  # fmt: skip
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        assert off(launch(*args), exact) < ALLOWED[torch.bfloat16]
        with torch.cuda.graph(graph):
            results = [launch(*args) for _ in range(10)]
        torch.cuda.synchronize()
        for _ in range(20):
            graph.replay()
            with torch.cuda.stream(stream):
                beside = launch(*args)
        torch.cuda.synchronize()
        for result in (*results, beside):
            assert torch.equal(result, results[0])
        assert off(results[0], exact) < ALLOWED[torch.bfloat16]


def test_more_than_2_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 24 * 1024**3:
        pytest.skip("needs 24 GiB of free memory")
    rows = 2**31 // 4096 + 64
    a, b = torch.zeros(rows, 4096, device="cuda", dtype=torch.float16), normal(4096, 64, dtype=torch.float16)
    a[-64:] = normal(64, 4096, dtype=torch.float16)
    args = arguments(a, b)
    for how in ({}, {"PERSISTENT": True}, {"TMA": True}):
        result = launch_of(args, **how)(*args)
        assert off(result[-64:], reference(a[-64:], b)) < ALLOWED[torch.float16]
        assert not result[:-64].any()


@pytest.mark.parametrize("dtype", list(ALLOWED))
def test_every_algorithm_of_cublaslt_is_right(dtype: Any) -> None:
    for m, n, k in ((1, 128, 1000), (77, 64, 1024), (300, 1000, 520)):
        bias = normal(n, dtype=dtype)
        for a, b in (
            (normal(m, k, dtype=dtype), normal(n, k, dtype=dtype).mT),
            (normal(m, k + 8, dtype=dtype)[:, 8:], normal(k, n, dtype=dtype)),
            (normal(k, m, dtype=dtype).mT, normal(k, n + 8, dtype=dtype)[:, :-8]),
        ):
            for more in ((None, None), (bias, "relu")):
                args = arguments(a, b, *more)
                bound, found = cublaslt.CublasLt().for_call(args), 0
                for number in range(len(bound._listed.algorithms)):
                    launch = bound.load(Config(ALGORITHM=number), Problem({}), None).launch
                    graph, found = torch.cuda.CUDAGraph(), found + 1
                    assert off(launch(*args), reference(a, b, *more)) < ALLOWED[dtype], (number, a.shape, a.stride())
                    torch.cuda.synchronize()
                    with torch.cuda.graph(graph):
                        result = launch(*args)
                    graph.replay()
                    torch.cuda.synchronize()
                    assert off(result, reference(a, b, *more)) < ALLOWED[dtype], (number, a.shape, a.stride())
                assert found


@pytest.mark.parametrize("dtype", list(ALLOWED))
def test_an_algorithm_of_cublaslt_serves_calls_that_lie_otherwise(dtype: Any) -> None:
    """By the algorithm that is configured alike, another, or torch: never an error."""
    m, n, k = 64, 256, 512
    plain, b, bias = normal(m, k, dtype=dtype), normal(n, k, dtype=dtype).mT, normal(n + 1, dtype=dtype)
    flat = normal(m * (k + 8), dtype=dtype)
    views = [
        plain,
        flat[1 : 1 + m * k].view(m, k),
        normal(m, k + 1, dtype=dtype)[:, 1:],
        normal(m, k + 64, dtype=dtype)[:, :k],
        torch.as_strided(flat, (m, k), (8, 1)),
        flat[:k].expand(m, k),
        normal(2 * m, 2 * k, dtype=dtype)[::2, ::2],
    ]
    for more in ((None, None), (bias[:-1], "relu"), (bias[1:], "relu")):
        for first in (views[0], views[1], views[4]):
            bound = cublaslt.CublasLt().for_call(arguments(first, b, *more))
            for number in range(len(bound._listed.algorithms)):
                launch = bound.load(Config(ALGORITHM=number), Problem({}), None).launch
                for a in views if first is views[1] else views[:1] + views[3:]:  # of one alignment, as calls of it are
                    assert off(launch(*arguments(a, b, *more)), reference(a, b, *more)) < ALLOWED[dtype], number


def test_launches_that_share_a_workspace_follow_each_other_and_graphs_have_their_own() -> None:
    """Of every algorithm that takes one: two graphs on streams of their own and two threads on the default stream, each
    with other matrices."""
    b = normal(256, 16384, dtype=torch.bfloat16).mT
    lefts = [normal(64, 16384, dtype=torch.bfloat16) for _ in range(4)]
    args, exact = arguments(lefts[0], b), [reference(a, b) for a in lefts]
    bound, found = cublaslt.CublasLt().for_call(args), 0
    for number, algorithm in enumerate(bound._listed.algorithms):
        launch = bound.load(Config(ALGORITHM=number), Problem({}), None).launch
        alone = settled(launch, args, lambda a, b, bias, launch=launch: launch(a, b, bias, *args[3:]))  # where captured
        assert alone is not None
        graphs, found = list[Any](), found + (algorithm.workspace_bytes > 0)
        streams = [torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.default_stream()]
        for a in lefts[:2]:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                made = [alone(a, b) for _ in range(10)]
            graphs.append((graph, made))
        torch.cuda.synchronize()
        eager: dict[int, list[Any]] = {}

        def call(which: int, alone: Any = alone, stream: Any = streams[2], eager: Any = eager) -> None:
            with torch.cuda.stream(stream):
                eager[which] = [alone(lefts[which], b) for _ in range(200)]

        threads = [Thread(target=call, args=(which,)) for which in (2, 3)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            for (graph, _), stream in zip(graphs, streams, strict=False):
                with torch.cuda.stream(stream):
                    graph.replay()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        for which, results in enumerate((graphs[0][1], graphs[1][1], eager[2], eager[3])):
            worst = max(off(result, exact[which]) for result in results)
            assert worst < ALLOWED[torch.bfloat16], (number, which, worst)
    assert found, "no algorithm takes a workspace: nothing was tested"


def test_a_call_leaves_nothing_in_the_memory_of_graphs_to_come() -> None:
    """torch.compile with `reduce-overhead` makes the first call there, on a stream of its own, and looks."""
    a, b = normal(64, 16384, dtype=torch.bfloat16), normal(256, 16384, dtype=torch.bfloat16).mT
    bound = cublaslt.CublasLt().for_call(arguments(a, b))
    for number in range(len(bound._listed.algorithms)):
        launch, pool = bound.load(Config(ALGORITHM=number), Problem({}), None).launch, torch.cuda.MemPool()
        with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.use_mem_pool(pool):
            launch(*arguments(a, b))
        torch.cuda.synchronize()
        blocks = [block for segment in pool.snapshot() for block in segment["blocks"]]
        assert blocks, "it took nothing of it: nothing was tested"
        assert not [block for block in blocks if block["state"] == "active_allocated"], number


def test_the_library_says_how_its_algorithms_are_configured() -> None:
    bound = cublaslt.CublasLt().for_call(
        arguments(normal(64, 512, dtype=torch.bfloat16), normal(512, 256, dtype=torch.bfloat16))
    )
    listed = bound._listed
    configuration = listed._library.configuration
    assert None not in configuration(listed.algorithms[0])
    for place, one in enumerate(listed.algorithms):
        found = listed.like(one, 0)
        assert found is not None
        assert configuration(found) == configuration(one)
        assert listed.like(one, place) is one


def test_the_default_is_right_without_a_search() -> None:
    for m, n, k in ((1, 4096, 4096), (33, 1000, 4097), (1024, 1024, 1024)):
        a, b = normal(m, k, dtype=torch.bfloat16), normal(n, k, dtype=torch.bfloat16).mT
        assert off(gemm(a, b), reference(a, b)) < ALLOWED[torch.bfloat16]


# --- case R16 -----------------------------------------------------------------------------------------------------


def test_tf32_wins_only_where_torch_allows_it() -> None:
    a, b = normal(1024, 1024, dtype=torch.float32), normal(1024, 1024, dtype=torch.float32)
    mm = tunesmith.choose(
        "r16",
        {
            "torch.mm": lambda a, b, n: torch.mm(a, b),
            "ieee": lambda a, b, n: gemm(a, b, precision="ieee"),
            "tf32": lambda a, b, n: gemm(a, b, precision="tf32"),
        },
        reference=lambda a, b, n: a.double() @ b.double(), key=["n"], strides=["a", "b"],
    )  # fmt: skip
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        failed = {config["by"]: failure.reason for config, failure in mm.tune(a, b, 1024).failures}
        assert set(failed) == {"tf32"}
        assert "by the library's own error" in failed["tf32"]
        assert off(mm(a, b, 1024), reference(a, b)) < 1e-5
        transposed = b.T.contiguous().T
        assert mm.lookup(a, transposed, 1024) is None
        torch.set_float32_matmul_precision("high")
        assert mm.lookup(a, b, 1024) is None
        assert not list(mm.tune(a, b, 1024).failures)
    finally:
        torch.set_float32_matmul_precision(before)


def test_ops_search_choose_and_stay_right() -> None:
    x, w, bias = (normal(*size, dtype=torch.bfloat16) for size in ((16, 2048), (1024, 2048), (1024,)))
    exact = torch.nn.functional.gelu(x.double() @ w.double().mT + bias.double())
    summary = ops.tune(x, w, bias, "gelu")
    assert summary.choice is not None
    tried = {trial.config["by"] for trial in summary.trials}
    assert {"torch", "gemm", "torch, then epilogue"} <= tried
    by = [trial for trial in ops.tune(x, w).trials if trial.config["by"] == "cublasLt"]
    assert any(isinstance(trial.outcome, Measured) for trial in by), [trial.outcome for trial in by]
    for _ in range(2):
        assert off(ops.linear(x, w, bias, "gelu"), exact) < ALLOWED[torch.bfloat16]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = ops.linear(x, w, bias, "gelu")
    graph.replay()
    torch.cuda.synchronize()
    assert off(result, exact) < ALLOWED[torch.bfloat16]
    opcheck(torch.ops.tunesmith.gemm, (x, w.mT, bias, "gelu", None))


def test_graphs_get_what_is_fastest_there_and_calls_what_is_quickest_to_call() -> None:
    x, w = normal(128, 1024, dtype=torch.bfloat16), normal(6144, 1024, dtype=torch.bfloat16)
    before = x.clone(), w.clone()
    summary = ops.tune(x, w)
    assert summary.choice is not None
    trials = {trial.config: trial for trial in summary.trials}
    theirs = trials[Config(by="torch")]
    assert "not measured" not in summary.choice.calls
    serving = trials[summary.choice.called or summary.choice.config]
    if serving.calls is not None and theirs.calls is not None:
        assert serving.calls.median_s <= 1.05 * theirs.calls.median_s
    exact = x.double() @ w.double().mT
    for _ in range(3):
        assert off(ops.linear(x, w), exact) < 1e-2
    graph, made = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        made.append(ops.linear(x, w))
    graph.replay()
    assert off(made[0], exact) < 1e-2
    if theirs.calls is not None:
        assert "called: " in ops.scores(x, w)
        assert all(second > 1e-6 for second in theirs.calls.seconds)
    assert torch.equal(x, before[0])
    assert torch.equal(w, before[1])


FRESH = """
import torch
from tunesmith import Config, ops
from tunesmith.core.outcome import Choice
from tunesmith.store import default_store

x, w = (torch.randn(n, 1024, device="DEVICE", dtype=torch.bfloat16) for n in (64, 512))
chosen, args = ops._call(x, w, None, None, None)
stored = Choice(Config(KNOBS), "search", "search", called=Config(by="torch"))
default_store().put_choice(chosen.key(*args), stored, {})
exact = x.double() @ w.double().mT
assert torch.equal(ops.linear(x, w), ops.linear(x, w))
assert chosen.choice(*args).called == Config(by="torch")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    made = ops.linear(x, w)
made.zero_()
graph.replay()
torch.cuda.synchronize()
assert (made.double() - exact).abs().max() < 1e-2 * exact.abs().max()
"""


@pytest.mark.parametrize("knobs", [ONE_TILE, {"by": "torch by cublasLt"}, {"by": "cublasLt", "ALGORITHM": 0}])
def test_what_serves_graphs_alone_is_ready_for_the_first(knobs: dict[str, Any]) -> None:
    """In a process that has launched nothing else, after one call."""
    script = FRESH.replace("KNOBS", repr(knobs)).replace("DEVICE", "cuda")
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr


ALIKE = """
import torch
from threading import Thread
from tunesmith import Config, ops
from tunesmith.core.outcome import Choice
from tunesmith.store import default_store

x, w = (torch.randn(n, 1024, device="DEVICE", dtype=torch.bfloat16) for n in (64, 512))
biases = [torch.randn(512, device="DEVICE", dtype=torch.bfloat16) for _ in range(3)]
for bias in (None, biases[0]):
    chosen, args = ops._call(x, w, bias, None, None)
    stored = Choice(Config(KNOBS), "search", "search", called=CALLED)
    default_store().put_choice(chosen.key(*args), stored, {})
    assert chosen.choice(*args).config == Config(KNOBS)


def close(made, x, bias=None):
    exact = x.double() @ w.double().mT
    exact = exact if bias is None else exact + bias.double()
    assert made.shape == exact.shape
    assert (made.double() - exact).abs().max() < 1e-2 * exact.abs().max()


def calls():
    for _ in range(6):
        x = torch.randn(64, 1024, device="DEVICE", dtype=torch.bfloat16)
        close(ops.linear(x, w), x)
        close(ops.matmul(x, turned), x)
        for bias in biases:
            close(ops.linear(x, w, bias), x, bias)
        flat = torch.randn(64 * 1024 + 1, device="DEVICE", dtype=torch.bfloat16)
        close(ops.linear(flat[1:].view(64, 1024), w), flat[1:].view(64, 1024))
        close(ops.linear(flat[1:].view(64, 1024), w, biases[0]), flat[1:].view(64, 1024), biases[0])


turned = w.mT
calls()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    calls()
torch.cuda.synchronize()
failed = []


def thread():
    try:
        calls()
    except BaseException as error:
        failed.append(error)
        raise


threads = [Thread(target=thread) for _ in range(3)]
for one in threads:
    one.start()
for one in threads:
    one.join()
assert not failed
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    made = [ops.linear(x, w), ops.matmul(x, turned), ops.linear(x, w, biases[1])]
for one in made:
    one.zero_()
for _ in range(3):
    graph.replay()
    ops.linear(x, w)
torch.cuda.synchronize()
close(made[0], x)
close(made[1], x)
close(made[2], x, biases[1])
with torch.enable_grad():
    layer = torch.nn.Parameter(w)
    ops.linear(x, layer).sum().backward()
    assert layer.grad is not None
print("remembered:", len(ops._layers.found), len(ops._products.found), len(ops._biased.found))
assert ops._layers.found and ops._products.found and ops._biased.found
"""


@pytest.mark.parametrize("called", [None, {"by": "torch"}, {"by": "cublasLt", "ALGORITHM": 0}])
@pytest.mark.parametrize("knobs", [ONE_TILE, {"by": "torch"}, {"by": "cublasLt", "ALGORITHM": 0}])
def test_calls_that_are_alike_are_right_wherever_they_are_made(knobs: dict[str, Any], called: Any) -> None:
    script = ALIKE.replace("KNOBS", repr(knobs)).replace("DEVICE", "cuda")
    script = script.replace("CALLED", "None" if called is None else f"Config({called!r})")
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr


def test_memory_is_on_the_arguments_device_whichever_is_current() -> None:
    places = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    for current in places:
        with torch.cuda.device(current):
            for place in places:
                taken = fresh((3, 5), torch.float16, place)()
                assert (taken.device, taken.shape, taken.stride()) == (place, (3, 5), (5, 1))
