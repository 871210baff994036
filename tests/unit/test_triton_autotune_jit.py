"""`tunesmith.autotune` on real `@triton.jit` kernels, compiled for an H200 that is not there; nothing runs."""

import gc
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes import ScriptedClock

import tunesmith
from tunesmith.core.device import known_device
from tunesmith.errors import BadInput, TunesmithWarning

triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")
from tests.fake_triton import FakeDriver, GpuTensor, fake_gpu  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.errors import AutotunerError  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

tl = triton.language
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[FakeDriver]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    with fake_gpu(monkeypatch) as fake:
        yield fake
        gc.collect()  # Triton 3.9 asks the driver to unload a kernel that goes


class At(GpuTensor):
    """A tensor at an address of the test's."""

    def __init__(self, address: int = 4096, dtype: Any = torch.float32, index: int = 0) -> None:
        super().__init__(8, dtype=dtype, index=index)
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def add_body(x, y, out, n, step, BLOCK: tl.constexpr, ACT: tl.constexpr = None):
    """Adds."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sum = tl.load(x + i * step, mask=i < n) + tl.load(y + i, mask=i < n)
    if ACT == "relu":
        sum = tl.maximum(sum, 0.0)
    tl.store(out + i, sum, mask=i < n)


def by_block() -> ScriptedClock:
    return ScriptedClock(lambda config: 1e-6 * config["BLOCK"])  # type: ignore[operator]


def configs(**options: Any) -> list[Any]:
    return [triton.Config({"BLOCK": block}, num_warps=1, **options) for block in (64, 32)]


X = At()


def test_a_jit_function_is_tuned_compiled_and_launched(gpu: FakeDriver) -> None:
    clock = by_block()
    add = tunesmith.autotune(configs(), ["n"], clock=clock)(triton.jit(add_body))
    compiled = add[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](X, X, X, 100, 1)
    assert gpu.launches[-1].grid == (4, 1, 1)
    assert gpu.launches[-1].args == (4096, 4096, 4096, 100, 1, 32, None)
    assert compiled.metadata.num_warps == 1
    assert add.best_config is add.configs[1]
    searched = len(clock.asked)

    add[(2,)](X, X, X, n=100, step=1, ACT="relu")  # another binary of the same Choice
    assert gpu.launches[-1].args == (4096, 4096, 4096, 100, 1, 32, "relu")
    add[(2, 3, 4)](X, X, At(address=4100), 100, 1)
    assert gpu.launches[-1].grid == (2, 3, 4)
    assert len(clock.asked) == searched

    add[(2,)](X, X, At(dtype=torch.float16), 100, 1)
    assert len(clock.asked) > searched


def test_heuristics_below_are_computed_for_each_call(gpu: FakeDriver) -> None:
    jit = triton.heuristics({"ACT": lambda args: "relu" if args["step"] == args["BLOCK"] else None})(
        triton.jit(add_body)
    )
    add = tunesmith.autotune(configs(), ["n"], clock=by_block())(jit)
    with pytest.warns(TunesmithWarning, match=r"step \(1, then 32\)"):
        [add[(1,)](X, X, X, 100, step) for step in (1, 32)]
    assert gpu.launches[-1].args[-3:] == (32, 32, "relu")
    add[(1,)](X, X, X, 100, 1, ACT="ignored")
    assert gpu.launches[-1].args[-3:] == (1, 32, None)


def test_a_key_that_forgets_an_argument_is_told_once(gpu: FakeDriver, capsys: pytest.CaptureFixture[str]) -> None:
    add = tunesmith.autotune(configs(), [], clock=by_block(), isolate=False)(triton.jit(add_body))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            add[lambda meta: (meta["n"],)](X, X, X, 1024, 16)
        with pytest.raises(TunesmithWarning, match=r"n \(1024, then 2048\)"):  # alike for the compiler
            add[lambda meta: (meta["n"],)](X, X, X, 2048, 16)
        for n in range(4096, 4096 + 64 * 16, 16):
            add[lambda meta: (meta["n"],)](X, X, X, n, 16)
    assert add.tuned._dispatcher.warm_entries < 64  # what varies is looked at, not listed
    add.explain(X, X, X, 1024, 16)
    assert "not in it: n" in " ".join(capsys.readouterr().out.split())


def test_a_grid_that_varies_within_a_key_is_told(gpu: FakeDriver) -> None:
    add = tunesmith.autotune(configs(), ["n"], clock=by_block())(triton.jit(add_body))
    add[(4,)](X, X, X, 1024, 16)
    with pytest.warns(TunesmithWarning, match=r"grid \(\(4,\), then \(8,\)\)"):
        add[(8,)](X, X, X, 1024, 16)
    assert gpu.launches[-1].grid == (8, 1, 1)


def test_what_a_bucket_makes_one_is_not_forgotten(gpu: FakeDriver) -> None:
    add = tunesmith.autotune(
        configs(), ["n"], buckets={"n": "pow2"}, clock=by_block(), isolate=False
    )(triton.jit(add_body))  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1000, 1016):
            add[(n // 8,)](X, X, X, n, n)


def test_a_hook_of_a_config_may_change_what_the_compiler_relies_on(gpu: FakeDriver) -> None:
    def hook(kwargs: dict[str, Any]) -> None:
        kwargs["out"].address = 4096 if kwargs["BLOCK"] == 64 else 4100

    jit = triton.jit(add_body)
    add = tunesmith.autotune(configs(pre_hook=hook), ["n"], clock=by_block())(jit)
    out = At(address=1)
    add[(1,)](X, X, out, 100, 1)
    assert (gpu.launches[-1].args[2].data_ptr(), gpu.launches[-1].args[-2]) == (4100, 32)
    out.address = 1
    add[(1,)](X, X, out, 100, 1)
    assert gpu.launches[-1].args[2].data_ptr() == 4100


def refuses_body(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK > 32, "too small")


def test_hooks_hear_of_what_does_not_compile_too(gpu: FakeDriver) -> None:
    heard: list[tuple[str, Any]] = []
    refuses = tunesmith.autotune(
        configs(), ["n"], clock=by_block(), pre_hook=lambda kwargs, **_: heard.append(("before", kwargs["BLOCK"])),
        post_hook=lambda kwargs, exception: heard.append(("after", exception)),
    )(triton.jit(refuses_body))  # fmt: skip
    refuses[(1,)](X, 100)
    raised = [said for what, said in heard if what == "after" and said is not None]
    assert len(raised) == 1
    assert "too small" in str(raised[0])
    assert heard.count(("before", 32)) == 1
    assert len([1 for what, _ in heard if what == "after"]) == sum(what == "before" for what, _ in heard) - 1


def test_options_in_a_call_reach_the_compiler(gpu: FakeDriver) -> None:
    add = tunesmith.autotune(configs(), ["n"], clock=by_block())(triton.jit(add_body))
    compiled = add[(1,)](X, X, X, 100, 1, enable_fp_fusion=False)
    assert compiled.metadata.enable_fp_fusion is False
    assert add[(1,)](X, X, X, 100, 1).metadata.enable_fp_fusion is not False
    with pytest.raises(BadInput, match="unknown argument 'enable_fp_fusio'"):
        add[(1,)](X, X, X, 100, 1, enable_fp_fusio=False)


def test_warmup_compiles_every_config_from_dtypes(gpu: FakeDriver) -> None:
    add = tunesmith.autotune(configs(), ["n"], clock=by_block())(triton.jit(add_body))
    compiled = add.warmup(torch.float32, torch.float32, torch.float32, 100, 1, grid=(1,))
    assert [one.metadata.num_warps for one in compiled] == [1, 1]
    assert gpu.launches == []


def test_r40_a_launch_is_on_the_arguments_device(gpu: FakeDriver) -> None:
    add = tunesmith.autotune(configs(), ["n"], clock=by_block())(triton.jit(add_body))
    gpu.streams.update({0: 10, 1: 11})
    there = At(index=1)
    add[(1,)](there, there, there, 100, 1)
    assert {(launch.device, launch.stream) for launch in gpu.launches} == {(1, 11)}
    assert gpu.current == 0
    launches = len(gpu.launches)
    add[(1,)](X, X, X, 100, 1)
    assert (gpu.launches[-1].device, gpu.launches[-1].stream) == (0, 10)
    assert len(gpu.launches) == launches + 1  # the same kind of device: its Choice is known
    with pytest.raises(BadInput, match=r"x on cuda:0, y on cuda:1|y on cuda:1"):
        add[(1,)](X, there, X, 100, 1)
    assert len(gpu.launches) == launches + 1


@triton.jit
def at_an_address(address, optional, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(address.to(tl.pointer_type(tl.float32)) + i, 1.0, mask=i < n)


def test_a_call_without_a_tensor_is_launched_on_the_current_device(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: gpu.current)
    gpu.streams = {0: 10, 1: 11}
    kernel = tunesmith.autotune(configs(), [], clock=by_block())(at_an_address)
    for optional in (None, X, None):
        for current in (0, 0, 1, 1, 0):
            gpu.current = current
            kernel[(1,)](1 << 40, optional, 5)
            there = 0 if optional is X else current
            assert (gpu.launches[-1].device, gpu.launches[-1].stream) == (there, 10 + there)


def test_names_that_are_wrong_are_an_error_at_decoration() -> None:
    for key, says in ((["m"], "add_body.*key.*'m'"), (["BLOCK"], "knob")):
        with pytest.raises(BadInput, match=says):
            tunesmith.autotune(configs(), key)(triton.jit(add_body))


def test_torch_compile_traces_it_without_a_graph_break(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import torch._dynamo.variables.builder as builder

    for module in [m for name, m in sys.modules.items() if name.startswith("torch.") and hasattr(m, "has_triton")]:
        monkeypatch.setattr(module, "has_triton", lambda: True)  # that is: a GPU is there
    assert builder.has_triton() if hasattr(builder, "has_triton") else True
    graphs: list[Any] = []
    add = tunesmith.autotune(configs(), ["n"], clock=by_block())(triton.jit(add_body))

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return lambda *args: (args[0],)

    @torch.compile(backend=backend, fullgraph=True)
    def f(x, y):
        out = torch.empty_like(x)
        add[(2,)](x, y, out, 100, 1)
        return out

    f(torch.ones(100), torch.ones(100))
    assert [node for node in graphs[0].graph.nodes if "triton_kernel_wrapper_mutation" in str(node.target)]


# --- constants, and what else decides a binary ---


@triton.jit
def by_constant(x, C: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0 if C is True else 2.0)


@triton.jit
def by_length(x, len, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, 1.0, mask=i < len)


@triton.heuristics({"H": lambda arguments: (True,) if arguments["n"] > 10 else (1,)})
@triton.jit
def by_tuple(x, n, BLOCK: tl.constexpr, H: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0 if H[0] is True else 2.0)


@triton.heuristics({"H": lambda arguments: -0.0 if arguments["n"] > 10 else 0.0})
@triton.jit
def by_zero(x, n, BLOCK: tl.constexpr, H: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), H)


def constants_of(compiled: Any, index: int) -> Any:
    return compiled.src.constants[index,]


def spelled(value: Any) -> Any:
    """A constant with its class, without Triton's wrapping."""
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    return [spelled(part) for part in value] if isinstance(value, tuple) else (type(value), repr(value))


CONSTANTS = [True, 1, 1.0, 0.0, -0.0, None, (0.0,), (-0.0,), (1,), (True,), "fp16", tl.float16, ("fp16",)]
CONSTANTS.append((tl.float16,))


@pytest.mark.parametrize("wrap", [lambda value: value, tl.constexpr])
def test_a_constant_is_compiled_in_as_it_is_given(gpu: FakeDriver, wrap: Any) -> None:
    kernel = tunesmith.autotune(configs()[:1], [])(by_constant)
    for constant in (*CONSTANTS, *CONSTANTS):
        for _ in range(3):
            compiled = kernel[(1,)](X, wrap(constant))
        assert spelled(constants_of(compiled, 1)) == spelled(constant)


def test_triton_s_wrapping_compiles_in_the_value_of_any_argument(gpu: FakeDriver) -> None:
    kernel = tunesmith.autotune(configs()[:1], [])(by_length)
    for value in (5, 7, True, 1, 5, 7):
        for _ in range(3):
            compiled = kernel[(1,)](X, tl.constexpr(value))
        assert spelled(constants_of(compiled, 1)) == spelled(value)
    assert (1,) not in kernel[(1,)](X, 5).src.constants


@pytest.mark.parametrize("kernel", [by_tuple, by_zero])
def test_heuristics_that_compute_equal_constants_compute_different_binaries(gpu: FakeDriver, kernel: Any) -> None:
    tuned = tunesmith.autotune(configs()[:1], [])(kernel)
    few, many, index = tuned[(1,)](X, 5), tuned[(1,)](X, 15), tuned.arg_names.index("H")
    assert spelled(constants_of(few, index)) != spelled(constants_of(many, index))
    assert tuned[(1,)](X, 5) is few


def test_a_parameter_may_be_called_as_a_function_of_python_s(gpu: FakeDriver) -> None:
    kernel = tunesmith.autotune(configs()[:1], [])(by_length)
    for grid in ((3,), lambda meta: (meta["len"],)):
        kernel[grid](X, 3)
        kernel[grid](X, len=3)
        assert gpu.launches[-1].grid == (3, 1, 1)


def test_no_tensor_in_a_tuple_or_under_a_descriptor_is_kept_alive(gpu: FakeDriver) -> None:
    @triton.jit
    def fill(pair, d, BLOCK: tl.constexpr):
        tl.store(pair[0] + tl.arange(0, BLOCK), pair[1])
        d.store([0, 0], tl.zeros([16, 16], tl.float16))

    kernel = tunesmith.autotune(configs()[:1], [])(fill)
    first, base = GpuTensor(64), GpuTensor(64, 64)
    descriptor = TensorDescriptor(base, [64, 64], [64, 1], [16, 16])
    for _ in range(3):
        kernel[(1,)]((first, 5), descriptor)
    alive = [weakref.ref(first), weakref.ref(base)]
    del first, base, descriptor
    gpu.launches.clear()
    gc.collect()
    assert [one() for one in alive] == [None, None]


class Sized(GpuTensor):
    def __init__(self, n_bytes: int) -> None:
        super().__init__(64)
        self.n_bytes = n_bytes

    def ptr_range(self) -> int:
        return self.n_bytes


def test_a_binary_for_small_tensors_is_not_launched_on_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpu(monkeypatch, known_device("AMD Instinct MI300X")) as fake:
        monkeypatch.setattr(fake, "get_current_target", lambda: GPUTarget("hip", "gfx942", 64), raising=False)
        kernel = tunesmith.autotune(configs()[:1], [])(by_length)
        for n_bytes in (1 << 20, 1 << 20, 1 << 32, 1 << 32, 1 << 20):
            compiled = kernel[(1,)](Sized(n_bytes), 5)
            relies = [name for name, _ in compiled.src.attrs.get((0,), [])]
            assert ("tt.pointer_range" in relies) == (n_bytes < 1 << 31)


def test_debug_may_be_asked_for_in_a_call(gpu: FakeDriver) -> None:
    kernel = tunesmith.autotune(configs()[:1], [])(by_length)
    for debug in (False, True, False, True):
        assert kernel[(1,)](X, 5, debug=debug).metadata.debug is debug


def test_explain_says_why_a_launch_is_slow(gpu: FakeDriver, capsys: pytest.CaptureFixture[str]) -> None:
    @triton.jit
    def of_a_pair(pair, BLOCK: tl.constexpr):
        tl.store(pair[0] + tl.arange(0, BLOCK), pair[1])

    def said(kernel: Any, *args: Any) -> str:
        kernel[(1,)](*args)
        capsys.readouterr()
        kernel.explain(*args)
        return " ".join(capsys.readouterr().out.split())

    hooked = configs(pre_hook=lambda arguments: None)
    assert "argument 'pair' is a tuple" in said(tunesmith.autotune(configs()[:1], [])(of_a_pair), (X, 5))
    assert "its Config has a pre_hook" in said(tunesmith.autotune(hooked, [], clock=by_block())(by_length), X, 5)
    plain = tunesmith.autotune(configs()[:1], [])(by_length)
    assert "slower" not in said(plain, X, 5)
    triton.knobs.runtime.launch_enter_hook.add(print)
    try:
        assert "launch_enter_hook is set" in said(plain, X, 5)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(print)


@triton.jit
def by_keyword(x, *, n, a, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, a, mask=i < n)


def test_what_goes_by_keyword_alone_is_not_taken_by_position(gpu: FakeDriver) -> None:
    hooked = configs(pre_hook=lambda arguments: None)
    for some in (configs()[:1], hooked):
        kernel = tunesmith.autotune(some, ["a"], clock=by_block())(by_keyword)
        with pytest.raises(TypeError, match="positional"):
            kernel[(1,)](X, 5, 3)
        if str(triton.__version__) < "3.9":  # which compiles no such kernel
            continue
        for debug in ({}, {"debug": True}):
            kernel[(1,)](X, a=3, n=7, **debug)
            assert gpu.launches[-1].args[1:3] == (7, 3)
            kernel[(1,)](X, n=7, a=5, **debug)
            assert gpu.launches[-1].args[1:3] == (7, 5)


# --- Configs that pruning makes ---


def test_a_config_that_pruning_makes_has_its_hook_run_before_each_launch(gpu: FakeDriver) -> None:
    seen: list[int] = []
    made = triton.Config({"BLOCK": 16}, num_warps=1, pre_hook=lambda arguments: seen.append(arguments["BLOCK"]))
    prune = {"early_config_prune": lambda configs, named_args, **_: [made]}
    kernel = tunesmith.autotune(configs(), [], prune_configs_by=prune, clock=by_block())(by_length)
    for launches in (1, 2, 3):
        kernel[(1,)](X, 5)
        assert len(seen) == launches
    assert kernel.best_config is made
    assert gpu.launches[-1].args == (X, 5, 16)


def test_a_config_that_pruning_changes_is_launched_as_changed(gpu: FakeDriver) -> None:
    def prune(configs: list[Any], named_args: Any) -> list[Any]:
        for config in configs:
            config.kwargs["BLOCK"] = min(config.kwargs["BLOCK"], named_args["len"])
        return configs

    kernel = tunesmith.autotune(configs(), ["len"], prune_configs_by={"early_config_prune": prune})(by_length)
    with tunesmith.policy("default"):
        kernel[(1,)](X, 16)
    assert gpu.launches[-1].args == (4096, 16, 16)


def test_pruning_that_returns_nothing_is_named(gpu: FakeDriver) -> None:
    prune = {"early_config_prune": lambda configs, named_args: None}
    with pytest.raises(AutotunerError, match="by_length: early_config_prune left none of 2"):
        tunesmith.autotune(configs(), [], prune_configs_by=prune)(by_length)[(1,)](X, 5)


def test_pruning_may_not_give_a_known_config_another_hook(gpu: FakeDriver) -> None:
    def prune(configs: list[Any], named_args: Any) -> list[Any]:
        return [triton.Config({"BLOCK": 32}, num_warps=1, pre_hook=lambda arguments: None)]

    kernel = tunesmith.autotune(configs(), ["len"], prune_configs_by={"early_config_prune": prune})(by_length)
    kernel[(1,)](X, 5)
    with pytest.raises(BadInput, match="differ in their pre_hook alone"):
        kernel[(1,)](X, 6)
