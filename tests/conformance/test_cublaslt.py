"""cuBLASLt as a candidate: what its functions are given is what they want. On a library of the same functions in C."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tunesmith import Config, Problem
from tunesmith.backends.c_compiler import compiler
from tunesmith.core.device import known_device
from tunesmith.errors import BadInput, DeviceError, MissingEngine, TunesmithWarning
from tunesmith.kernel import sees_captures, settled
from tunesmith.kernels.gemm import arguments, cublaslt, cublaslt_launch, reference
from tunesmith.kernels.gemm.cublaslt_api import DTYPES, KEPT_BIASES, Library, Product, Result, address
from tunesmith.kernels.strides import KEPT_STRIDES

SOURCE = Path(__file__).parents[1] / "data" / "cublaslt.c"
STREAM = 77
WORKSPACE = torch.empty(64)


@pytest.fixture(scope="module")
def dll(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = tmp_path_factory.mktemp("cublaslt") / "libcublasLt.so"
    subprocess.run([*compiler().argv, "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


def computed(dll: Any, args: tuple[Any, ...], number: int = 0) -> torch.Tensor:
    """The product of a call's arguments by an algorithm; c is in the middle of something else."""
    a, b, bias, _, m, n, *_ = args
    product = Product(Library(dll), cublaslt.wanted(args), 8, WORKSPACE.nbytes)
    whole = torch.full((m * n + 16,), 7.0)
    c, algorithm = whole[8:-8], product.algorithms[number]
    workspace = WORKSPACE.data_ptr() if algorithm.workspace_bytes else None
    status = queued(product, algorithm, b.data_ptr(), a.data_ptr(), c.data_ptr(), bias, workspace)
    assert status == 0
    assert (torch.cat([whole[:8], whole[-8:]]) == 7).all()
    return c.view(m, n)


def queued(product: Product, algorithm: Result, a: int, b: int, d: int, bias: Any, workspace: int | None) -> int:
    """The status of a launch of addresses."""
    ready, to = product.ready(algorithm), address(d)
    described = product.described(0 if bias is None else bias.data_ptr())
    return ready.matmul(
        ready.handle, described.argument, ready.one, address(a), ready.of_a, address(b), ready.of_b, ready.zero, to,
        ready.of_d, to, ready.of_d, ready.algorithm, None if workspace is None else address(workspace),
        ready.workspace_bytes, address(STREAM),
    )  # fmt: skip


def test_every_layout_is_the_product(dll: Any) -> None:
    torch.manual_seed(0)
    for m, n, k in ((3, 5, 7), (1, 4, 6), (5, 1, 6), (4, 3, 1), (1, 1, 1)):
        bias = torch.randn(n)
        for a in (
            torch.randn(m, k),
            torch.randn(k, m).T,
            torch.randn(m, k + 3)[:, 2:-1],
            torch.randn(k, m + 2)[:, 2:].T,
        ):
            for b in (torch.randn(k, n), torch.randn(n, k).T, torch.randn(k, n + 2)[:, 1:-1]):
                for more in ((None, None), (bias, None), (bias, "relu"), (None, "relu")):
                    found = computed(dll, arguments(a, b, *more), number=m % 2)
                    torch.testing.assert_close(found.double(), reference(a, b, *more), rtol=1e-5, atol=1e-5)
    assert ctypes.c_int.in_dll(dll, "fake_alive").value == 0, "something that was made is never destroyed"


def test_algorithms_that_the_library_can_not_run_are_left_out(dll: Any) -> None:
    product = Product(Library(dll), cublaslt.wanted(arguments(torch.randn(3, 5), torch.randn(5, 4))), 8, 1 << 20)
    assert [one.algorithm[0] for one in product.algorithms] == [7000, 7002]
    assert [one.workspace_bytes for one in product.algorithms] == [0, 1 << 20]


def test_what_the_library_refuses_is_said(dll: Any) -> None:
    library = Library(dll)
    with pytest.raises(DeviceError, match="cublasLtMatrixLayoutCreate of cuBLASLt 130100 failed with cublasStatus_t 7"):
        library.made("cublasLtMatrixLayoutCreate", DTYPES["float32"], 5, 4, 3)
    for a in (torch.randn(6, 10)[::2, ::2], torch.randn(1, 5).expand(3, 5)):
        with pytest.raises(BadInput, match=r"reads no matrix like a, \(3, 5\) with strides"):
            cublaslt.wanted(arguments(a, torch.randn(5, 4)))
    assert library.version == 130100


class OnGpu:
    """A tensor that is said to be on a GPU."""

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner, self.device, self.is_contiguous = inner, torch.device("cuda", 0), inner.is_contiguous
        self.shape, self.dtype, self.ndim = inner.shape, inner.dtype, inner.ndim
        self.stride, self.data_ptr = inner.stride, inner.data_ptr


@pytest.fixture
def captured() -> list[bool]:
    """Whether torch captures a graph."""
    return [False]


@pytest.fixture
def kernel(dll: Any, captured: list[bool], monkeypatch: pytest.MonkeyPatch) -> cublaslt.CublasLt:
    """As it is launched, with torch's CUDA functions replaced."""
    empty = torch.empty
    monkeypatch.setattr(cublaslt, "_dll", lambda: dll)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: empty(shape, dtype=dtype))
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: captured[0], raising=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: None)
    monkeypatch.setattr(cublaslt_launch, "_thread", threading.local())
    for name in ("mm", "addmm"):
        monkeypatch.setattr(torch, name, on_inner(getattr(torch, name)))
    for cached in (cublaslt._library, cublaslt_launch._workspace):
        cached.cache_clear()
    return cublaslt.CublasLt()


def on_inner(function: Any) -> Any:
    return lambda *args: function(*[one.inner if isinstance(one, OnGpu) else one for one in args])


def launched(dll: Any, launch: Any, a: torch.Tensor, b: torch.Tensor, *more: Any) -> int:
    """Which algorithm a launch used, 0 for none of them; the product is checked."""
    last = ctypes.c_int.in_dll(dll, "last_algorithm")
    last.value = 0
    on = [OnGpu(one) if isinstance(one, torch.Tensor) else one for one in (a, b, *more)]
    found = launch(*arguments(*on))
    torch.testing.assert_close(found.double(), reference(a, b, *more), rtol=1e-5, atol=1e-5)
    return last.value


def test_a_candidate_for_each_algorithm(dll: Any, kernel: cublaslt.CublasLt) -> None:
    assert kernel.versions() == {"cublasLt": "130100"}
    a, b, bias = torch.randn(6, 5), torch.randn(4, 5).T, torch.randn(4)
    bound = kernel.for_call(arguments(*map(OnGpu, (a, b, bias)), "relu"))
    for number, algorithm in ((0, 7000), (1, 7002)):
        launch = bound.load(Config(ALGORITHM=number), Problem({}), None).launch
        other = torch.randn(6, 8)[:, 3:]
        for mine in (a, other, a, other):
            assert launched(dll, launch, mine, b, bias, "relu") == algorithm
    for number in (2, -1):
        with pytest.raises(BadInput, match=f"proposes 2 algorithms for this product: there is no {number}"):
            bound.load(Config(ALGORITHM=number), Problem({}), None)


def overlapping(rows: int, columns: int) -> torch.Tensor:
    return torch.as_strided(torch.randn(rows + columns), (rows, columns), (1, 1))


@pytest.mark.parametrize("first", ["plain", "overlapping"])
def test_what_it_can_not_read_is_torchs_whichever_call_comes_first(
    dll: Any, kernel: cublaslt.CublasLt, first: str
) -> None:
    b, bias = torch.randn(5, 4), torch.randn(4)
    plain, views = torch.randn(6, 5), [overlapping(6, 5), torch.randn(1, 5).expand(6, 5), torch.randn(12, 10)[::2, ::2]]
    args = arguments(*map(OnGpu, (plain if first == "plain" else views[0], b)))
    launch = kernel.for_call(args).load(Config(ALGORITHM=0), Problem({}), None).launch
    for _ in range(2):
        assert [launched(dll, launch, a, b) for a in (*views, plain)] == [0, 0, 0, 7000]
    assert launched(dll, launch, plain, overlapping(5, 4)) == 0
    launch = kernel.for_call(arguments(*map(OnGpu, (plain, b, bias)), "relu")).load(
        Config(ALGORITHM=0), Problem({}), None
    ).launch  # fmt: skip
    assert [launched(dll, launch, a, b, bias, "relu") for a in (*views, plain)] == [0, 0, 0, 7000]


def test_an_algorithm_is_what_it_is_and_not_its_place_in_a_list(dll: Any, kernel: cublaslt.CublasLt) -> None:
    """Each Config is one algorithm where a call's list has it in another place, else that list's first, else torch."""
    a, b, bias = torch.randn(6, 5), torch.randn(5, 4), torch.randn(4)
    misaligned = torch.randn(5 * 6 + 4)[1:31].view(6, 5)
    assert misaligned.data_ptr() % 16
    for number, algorithm in ((0, 7000), (1, 7002)):
        for at in (misaligned, a):
            for more in ((), (bias,)):
                bound = kernel.for_call(arguments(*map(OnGpu, (at, b, *more))))
                launch = bound.load(Config(ALGORITHM=number), Problem({}), None).launch
                assert launched(dll, launch, at, b, *more) == algorithm
        assert launched(dll, launch, torch.randn(6, 600)[:, :5], b, bias) == 7100
        assert launched(dll, launch, torch.randn(6, 800)[:, :5], b, bias) == 0
        far = torch.randn(6, 1000)[:, :5]
        with pytest.warns(TunesmithWarning, match="failed with cublasStatus_t 15: torch multiplies"):
            assert launched(dll, launch, far, b, bias) == 0
        assert launched(dll, launch, far, b, bias) == 0  # warned of once: a warning fails a test


def test_launches_for_strides_do_not_pile_up(dll: Any, kernel: cublaslt.CublasLt) -> None:
    wide, b = torch.randn(6, 400), torch.randn(5, 4)
    launch = kernel.for_call(arguments(*map(OnGpu, (wide[:, :5], b)))).load(
        Config(ALGORITHM=0), Problem({}), None
    ).launch  # fmt: skip
    alive = ctypes.c_int.in_dll(dll, "fake_alive")
    before = alive.value
    for pitch in range(6, 6 + 3 * KEPT_STRIDES):
        assert launched(dll, launch, torch.randn(6, pitch)[:, :5], b) == 7000
    assert alive.value - before <= 4 * (KEPT_STRIDES + 1)


# --- shorter launches for calls that are alike -------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])  # without a workspace, with one
@pytest.mark.parametrize("biased", [False, True])
def test_calls_that_are_alike_are_launched_by_their_addresses(
    dll: Any, kernel: cublaslt.CublasLt, captured: list[bool], number: int, biased: bool
) -> None:
    w, more = torch.randn(4, 8), (torch.randn(4),) if biased else ()
    args = arguments(*map(OnGpu, (torch.randn(6, 8), w.T, *more)))
    launch = kernel.for_call(args).load(Config(ALGORITHM=number), Problem({}), None).launch
    for given, turned in ((w, True), (w.T, False)):
        alone = settled(launch, args, lambda *_: "otherwise", turned)
        assert alone is not None
        for _ in range(3):
            x, others = torch.randn(6, 8), tuple(torch.randn(4) for _ in more)  # each bias is another
            found = alone(*map(OnGpu, (x, given, *others)))
            torch.testing.assert_close(found.double(), reference(x, w.T, *others), rtol=1e-5, atol=1e-5)
            assert ctypes.c_int.in_dll(dll, "last_algorithm").value == 7000 + 2 * number
        misaligned = torch.randn(6 * 8 + 1)[1:].view(6, 8)
        assert alone(*map(OnGpu, (misaligned, given, *more))) == "otherwise"
        if biased:
            assert alone(*map(OnGpu, (torch.randn(6, 8), given, torch.randn(5)[1:]))) == "otherwise"
        captured[0] = True  # where a Choice may have another Config
        assert alone(*map(OnGpu, (torch.randn(6, 8), given, *more))) == "otherwise"
        captured[0] = False
        assert sees_captures(alone)


def test_calls_on_another_device_and_what_is_misaligned_get_no_shorter_launch(
    kernel: cublaslt.CublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, b = torch.randn(6, 8), torch.randn(8, 4)
    args = arguments(*map(OnGpu, (x, b)))
    launch = kernel.for_call(args).load(Config(ALGORITHM=0), Problem({}), None).launch
    alone = settled(launch, args, lambda *_: "otherwise")
    assert alone is not None
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1, raising=False)
    alone = settled(launch, args, lambda *_: "otherwise")
    assert alone is not None
    assert alone(OnGpu(x), OnGpu(b)) == "otherwise"
    misaligned = arguments(*map(OnGpu, (torch.randn(49)[1:].view(6, 8), b)))
    launch = kernel.for_call(misaligned).load(Config(ALGORITHM=0), Problem({}), None).launch
    assert settled(launch, misaligned, lambda *_: "otherwise") is None
    apart = arguments(*map(OnGpu, (torch.randn(12, 16)[::2, ::2], b)))
    assert settled(launch, apart, lambda *_: "otherwise") is None  # torch's


@pytest.mark.parametrize("number", [0, 1])
def test_a_thread_that_has_not_used_the_gpu_yet_is_given_its_context(
    dll: Any, kernel: cublaslt.CublasLt, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library fails without one, and memory for the result that torch has at hand makes none."""
    x, w = torch.randn(6, 8), torch.randn(4, 8)
    args = arguments(*map(OnGpu, (x, w.T)))
    launch = kernel.for_call(args).load(Config(ALGORITHM=number), Problem({}), None).launch
    alone = settled(launch, args, lambda *_: "otherwise")
    assert alone is not None
    missing, made = ctypes.c_int.in_dll(dll, "no_context"), list[Any]()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: setattr(missing, "value", 0))

    def in_thread(run: Any) -> None:
        try:
            made.append(run())
        except DeviceError as error:
            made.append(error)

    try:
        for run in (lambda: alone(*args[:2]), lambda: launch(*args)):
            missing.value = 1
            thread = threading.Thread(target=in_thread, args=(run,))
            thread.start()
            thread.join()
            torch.testing.assert_close(made.pop(), x @ w.T)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: None)
        missing.value = 1
        in_thread(lambda: launch(*args))  # what fails all the same is said, and not tried for ever
        assert "cublasStatus_t 13" in str(made.pop())
    finally:
        missing.value = 0


class Taken:
    """Sizes of the workspaces that are allocated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes, empty = list[int](), torch.empty

        def counting(shape: Any, dtype: Any, device: Any) -> torch.Tensor:
            if dtype is torch.int8:
                self.sizes.append(shape[0])
            return empty(shape, dtype=dtype, device=device)

        monkeypatch.setattr(torch, "empty", counting)


def test_launches_of_the_default_stream_share_a_workspace_and_on_others_each_has_its_own(
    kernel: cublaslt.CublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On others torch may be about to capture a graph, in whose memory nothing may stay."""
    taken, kept, stream = Taken(monkeypatch), cublaslt_launch._workspace(0), [STREAM]
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: stream[0], raising=False)
    args = arguments(*map(OnGpu, (torch.randn(6, 8), torch.randn(8, 4))))
    launches = [kernel.for_call(args).load(Config(ALGORITHM=1), Problem({}), None).launch for _ in range(2)]
    alone = settled(launches[0], args, lambda *_: "otherwise")
    assert alone is not None
    for _ in range(2):
        alone(*args[:2])
        launches[0](*args)
    whole = cublaslt_launch.WORKSPACE_BYTES
    assert (taken.sizes, kept) == ([whole] * 4, {})  # this library's algorithm needs all that there may be
    stream[0] = 0
    for launch in launches * 2:
        launch(*args)
    alone(*args[:2])
    assert (taken.sizes, len(kept)) == ([whole] * 5, 1)


def test_two_threads_on_one_stream_have_a_workspace_each(
    dll: Any, kernel: cublaslt.CublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is queued at once may run in any order."""
    taken = Taken(monkeypatch)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    args = arguments(*map(OnGpu, (torch.randn(6, 8), torch.randn(8, 4))))
    first = True

    class Meanwhile(dict[int, Any]):
        """Another thread launches as soon as one has its workspace."""

        def pop(self, *given: Any) -> Any:
            nonlocal first
            mine = super().pop(*given)
            if first:
                first = False
                launch(*args)
            return mine

    kept = Meanwhile()
    monkeypatch.setattr(cublaslt_launch, "_workspace", lambda index: kept)
    launch = kernel.for_call(args).load(Config(ALGORITHM=1), Problem({}), None).launch
    launch(*args)
    assert len(taken.sizes) == 2


def test_biases_do_not_pile_up(dll: Any) -> None:
    a, b, bias = torch.randn(6, 5), torch.randn(5, 4), torch.randn(4)
    product, alive = Product(Library(dll), cublaslt.wanted(arguments(a, b, bias)), 8, 0), "fake_alive"
    before = ctypes.c_int.in_dll(dll, alive).value
    for place in range(2 * KEPT_BIASES + 10):
        product.described(4096 + 16 * place)
    assert ctypes.c_int.in_dll(dll, alive).value - before <= KEPT_BIASES
    del product
    assert ctypes.c_int.in_dll(dll, alive).value < before


def test_a_launch_that_fails_is_said(dll: Any, kernel: cublaslt.CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments(*map(OnGpu, (torch.randn(6, 8), torch.randn(8, 4))))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM + 1, raising=False)
    for number in (0, 1):
        launch = kernel.for_call(args).load(Config(ALGORITHM=number), Problem({}), None).launch
        with pytest.raises(DeviceError, match="cublasLtMatmul of cuBLASLt 130100 failed with cublasStatus_t 7"):
            launch(*args)


def test_a_bias_that_is_refused_is_said(dll: Any) -> None:
    a, b, bias = torch.randn(6, 5), torch.randn(5, 4), torch.randn(4)
    product = Product(Library(dll), cublaslt.wanted(arguments(a, b, bias)), 8, 0)
    refuses = ctypes.c_int.in_dll(dll, "refuses_bias")
    refuses.value = 1
    try:
        with pytest.raises(DeviceError, match=r"cublasLtMatmulDescSetAttribute .* failed with cublasStatus_t 13"):
            product.described(bias.data_ptr())
    finally:
        refuses.value = 0


def test_it_applies_to_one_product_with_relu_or_nothing() -> None:
    def problem(**more: object) -> Problem:
        usual = {"M": 8, "N": 8, "K": 8, "activation": None, "out": "same", "a.dtype": "float16", "b.dtype": "float16"}
        return Problem({**usual, "a.strides": "x1", "b.strides": "1x", **more})

    h200 = known_device("NVIDIA H200")
    good = [{}, {"activation": "relu"}, {"bias.dtype": "float16", "activation": "relu"}]
    bad = [
        {"a.strides": "01"},
        {"b.strides": "10"},
        {"b.strides": "xx"},
        {"activation": "gelu"},
        {"out": "float32"},
        {"bias.dtype": "float32"},
        {"a.strides": "xx1"},
    ]
    assert [cublaslt.applies(problem(**more), h200) for more in (*good, *bad)] == [True] * 3 + [False] * 7


def test_without_the_library_it_has_no_version_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda in (None, "99.0"):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        cublaslt._dll.cache_clear()
        assert cublaslt.CublasLt().versions() == {}
        with pytest.raises(MissingEngine, match="pip install torch"):
            cublaslt._dll()
