"""`tunesmith.autotune` in the place of `triton.autotune`: what it takes, does and tells. Without a GPU, on stubs.

Behaviour by behaviour what Triton's own autotuner promises (or should: see docs/coming-from-triton.md), and the
public reports R01, R02, R10, R12, R40.
"""

import builtins
import hashlib
import inspect
import os
import pickle
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import ScriptedClock, fresh_process

import tunesmith
from tunesmith import Config, Device, Space
from tunesmith.backends.triton_autotune import run
from tunesmith.errors import BadInput, NoWorkingConfig, TunesmithWarning
from tunesmith.events import Compiled, Event, watched

triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")
Autotuner = triton.runtime.Autotuner
AutotunerError = pytest.importorskip("triton.runtime.errors").AutotunerError
OutOfResources = triton.runtime.errors.OutOfResources


class StubKernel(triton.runtime.jit.KernelInterface):
    """Looks like a jitted function: its body is Python on CPU tensors. Records every launch (arguments by name)."""

    def __init__(self, body: Callable[..., Any]) -> None:
        self.fn = body
        self.arg_names = list(inspect.signature(body).parameters)
        self.launches: list[dict[str, Any]] = []
        self.compiled: list[dict[str, Any]] = []

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        self.launches.append({**named, "grid": grid})
        return self.fn(**{name: value for name, value in named.items() if name in self.arg_names})

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        self.compiled.append({**dict(zip(self.arg_names, args, strict=False)), **kwargs})
        return kwargs.get("BLOCK")


@dataclass
class Bench:
    """A `do_bench`: launches `times`, then answers milliseconds from the BLOCK that was launched last."""

    kernel: StubKernel
    times: int = 2
    ms: Callable[[int], float] = float
    asked: list[int] = field(default_factory=list)

    def __call__(self, kernel_call: Callable[[], None], quantiles: Any) -> list[float]:
        for _ in range(self.times):
            kernel_call()
        block = self.kernel.launches[-1]["BLOCK"]
        self.asked.append(block)
        ms = self.ms(block)
        return [ms, 0.9 * ms, 1.1 * ms]


def blocks(*values: int, **options: Any) -> list[Any]:
    return [triton.Config({"BLOCK": value}, **options) for value in values]


def scale(x, y, n, BLOCK):
    """Scales."""
    torch.add(x, x, out=y)


def tuned(body: Callable[..., Any] = scale, configs: Any = None, key: Any = ("n",), **options: Any) -> Any:
    """A kernel, its stub and its bench, where none is given the smallest BLOCK being fastest."""
    stub = StubKernel(body)
    bench = options.setdefault("do_bench", Bench(stub))
    return tunesmith.autotune(configs or blocks(64, 32, 128), list(key), **options)(stub), stub, bench


def x() -> Any:
    return torch.ones(4)


# --- the decorator and the object ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*differ in arguments that are not in key=")
def test_it_is_one_of_tritons_autotuners_and_picks_the_fastest() -> None:
    kernel, stub, bench = tuned()
    assert isinstance(kernel, Autotuner)
    kernel[(2, 1)](x(), x(), 8)
    assert sorted(bench.asked) == [32, 64, 128]
    assert stub.launches[-1]["BLOCK"] == 32
    assert stub.launches[-1]["grid"] == (2, 1)
    assert (stub.launches[-1]["num_warps"], stub.launches[-1]["num_stages"]) == (4, 3)

    launches = len(stub.launches)
    kernel[(2,)](x(), x(), n=8)
    assert len(stub.launches) == launches + 1


def test_it_takes_stocks_arguments_by_position() -> None:
    ours = list(inspect.signature(tunesmith.autotune).parameters)
    assert ours[:12] == list(inspect.signature(triton.autotune).parameters)
    stub = StubKernel(scale)
    bench = Bench(stub)
    prune = {"early_config_prune": lambda configs, named_args, **_: configs[:2]}
    kernel = tunesmith.autotune(blocks(3, 2, 1), ["n"], prune, None, ["y"], None, None, None, None, False, bench)(stub)
    y = x()
    kernel[(1,)](x(), y, 8)
    assert kernel.best_config.kwargs == {"BLOCK": 2}
    assert y.tolist() == [2.0] * 4


def test_it_tells_what_stock_tells() -> None:
    kernel, stub, bench = tuned(reset_to_zero=["x"], restore_value=["y"])
    for unknown_yet in ("best_config", "configs_timings", "bench_time"):
        assert not hasattr(kernel, unknown_yet)
    kernel[(1,)](x(), x(), 8)
    assert kernel.best_config is kernel.configs[1]
    assert {config.kwargs["BLOCK"]: timings for config, timings in kernel.configs_timings.items()} == {
        64: pytest.approx([64, 57.6, 70.4]), 32: pytest.approx([32, 28.8, 35.2]),
        128: pytest.approx([128, 115.2, 140.8]),
    }  # fmt: skip
    assert list(kernel.cache.values()) == [kernel.best_config]
    assert next(iter(kernel.cache))[:3] == (8, "torch.float32", "torch.float32")
    assert kernel.bench_time > 0
    assert kernel.fn is stub
    assert kernel.base_fn is scale
    assert kernel.keys == ["n"]
    assert kernel.arg_names == ["x", "y", "n", "BLOCK"]
    assert kernel.nargs is None
    assert (kernel.reset_to_zero, kernel.restore_value) == (["x"], ["y"])
    assert (kernel.num_warmups, kernel.num_reps, kernel.use_cuda_graph) == (None, None, False)
    assert (kernel.user_defined_pre_hook, kernel.user_defined_post_hook) == (False, False)
    assert (kernel.perf_model, kernel.early_config_prune, kernel.configs_top_k) == (None, None, 1.0)
    assert kernel.do_bench is bench
    assert str(inspect.signature(kernel)) == "(x, y, n)"
    assert (kernel.__name__, kernel.__doc__, kernel.__module__) == ("scale", "Scales.", __name__)
    with pytest.raises(RuntimeError, match=r"scale\[grid\]"):
        kernel(x(), x(), 8)


def test_best_config_is_that_of_the_latest_call() -> None:
    stub = StubKernel(scale)
    fastest = {8: 32, 9: 128}
    bench = Bench(stub, ms=lambda block: 1.0 if block == fastest[stub.launches[-1]["n"]] else 2.0)
    kernel, *_ = tunesmith.autotune(blocks(32, 128), ["n"], do_bench=bench)(stub), None
    for n in (8, 9, 8, 9, 9, 8):
        kernel[(1,)](x(), x(), n)
        assert kernel.best_config.kwargs["BLOCK"] == fastest[n] == stub.launches[-1]["BLOCK"]
    assert len(kernel.cache) == 2


def test_a_second_process_reads_what_the_first_stored() -> None:
    kernel, *_ = tuned()
    kernel[(1,)](x(), x(), 8)
    again, stub, bench = tuned()
    again[(1,)](x(), x(), 8)
    assert bench.asked == []
    assert stub.launches[-1]["BLOCK"] == 32
    assert again.best_config.kwargs["BLOCK"] == 32
    assert len(again.configs_timings) == 3


def test_run_and_warmup() -> None:
    kernel, stub, bench = tuned()
    assert kernel.run(x(), x(), 8, grid=(1,), warmup=True) == [64, 32, 128]
    assert kernel.warmup(x(), x(), 8, grid=(1,)) == [64, 32, 128]
    assert (bench.asked, stub.launches) == ([], [])
    assert [each["BLOCK"] for each in stub.compiled] == [64, 32, 128] * 2
    kernel.run(x(), x(), grid=(3,), warmup=False, n=8)
    assert (stub.launches[-1]["BLOCK"], stub.launches[-1]["grid"]) == (32, (3,))


def test_our_configs_mappings_and_spaces_do_too() -> None:
    for given in (
        {"configs": [Config(BLOCK=64, num_warps=8), {"BLOCK": 32, "num_warps": 2}]},
        {"space": Space(BLOCK=[64, 32], num_warps=[2, 8])},
    ):
        stub = StubKernel(scale)
        kernel = tunesmith.autotune(key=["n"], do_bench=Bench(stub), **given)(stub)  # type: ignore[arg-type]
        assert all(isinstance(config, triton.Config) for config in kernel.configs)
        kernel[(1,)](x(), x(), 8)
        assert kernel.best_config.kwargs == {"BLOCK": 32}
        assert kernel.best_config.num_warps == 2
        assert stub.launches[-1]["num_warps"] == 2


def test_options_of_a_config_reach_the_launch() -> None:
    configs = [triton.Config({"BLOCK": 1, "enable_fp_fusion": False}, 8, 2, 2, 168, ir_override="x.ttgir")]
    kernel, stub, _ = tuned(configs=configs)
    kernel[(1,)](x(), x(), 8)
    expected = {"num_warps": 8, "num_stages": 2, "num_ctas": 2, "maxnreg": 168, "ir_override": "x.ttgir"}
    assert {**stub.launches[-1], **expected, "enable_fp_fusion": False} == stub.launches[-1]


def test_one_config_or_none_is_never_timed_and_an_option_of_a_config_is_optional() -> None:
    kernel, stub, bench = tuned(configs=blocks(64))
    kernel[(1,)](x(), x(), 8)
    assert (bench.asked, len(stub.launches)) == ([], 1)

    def no_knob(x, n):
        pass

    stub = StubKernel(no_knob)
    kernel = tunesmith.autotune([], ["n"])(stub)
    kernel[(1,)](x(), 8)
    assert len(kernel.configs) == 1
    assert (stub.launches[-1]["num_warps"], len(stub.launches)) == (4, 1)
    assert str(kernel.best_config).startswith("num_warps: 4")


# --- names, conflicts, options -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": ["n_element"]}, "scale.*key.*'n_element'.*did you mean 'n_elements'"),
        ({"key": ["grid"]}, "scale.*key.*'grid'"),
        ({"restore_value": ["x"]}, "scale.*restore_value.*'x'"),
        ({"reset_to_zero": ["out_ptr"]}, "scale.*reset_to_zero.*'out_ptr'"),
        ({"key": ["BLOCK"]}, "scale.*'BLOCK'.*knob"),
        ({"key": "n_elements"}, "one string"),
    ],
)
def test_r02_a_wrong_name_is_an_error_at_decoration(options: dict[str, Any], says: str) -> None:
    def scale(x_ptr, n_elements, BLOCK):
        return None

    with pytest.raises(BadInput, match=says):
        tunesmith.autotune(blocks(1, 2), **{"key": [], **options})(StubKernel(scale))


def test_r02_an_empty_key_and_a_name_given_twice_are_fine() -> None:
    for key in ([], ["n", "n"], None):
        kernel, _, bench = tuned(key=key or (), version=str(key))
        kernel[(1,)](x(), x(), 8)
        kernel[(1,)](x(), x(), 8)
        assert len(bench.asked) == 3


def test_what_a_config_and_a_call_both_set_is_an_error_that_names_both() -> None:
    kernel, stub, bench = tuned()
    with pytest.raises(ValueError, match=r"Conflicting meta-parameters: BLOCK\..*BLOCK=16.*BLOCK: 64, 32, 128"):
        kernel[(1,)](x(), x(), 8, BLOCK=16)
    with pytest.raises(ValueError, match=r"Conflicting meta-parameters: num_warps\..*num_warps=8"):
        kernel[(1,)](x(), x(), 8, num_warps=8)
    with pytest.raises(BadInput, match="unknown argument 'm'"):
        kernel[(1,)](x(), x(), 8, m=3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'n'"):
        kernel[(1,)](x(), x())
    assert (bench.asked, stub.launches) == ([], [])


def test_an_option_in_a_call_makes_another_kernel_of_it() -> None:
    kernel, stub, bench = tuned()
    kernel[(1,)](x(), x(), 8)
    kernel[(1,)](x(), x(), 8, enable_fp_fusion=False)
    assert len(bench.asked) == 6
    assert stub.launches[-1]["enable_fp_fusion"] is False
    assert kernel.best_config.kwargs["enable_fp_fusion"] is False
    kernel[(1,)](x(), x(), 8)
    kernel[(1,)](x(), x(), 8, enable_fp_fusion=False)
    assert len(bench.asked) == 6
    kernel[(1,)](x(), x(), 8)
    assert "enable_fp_fusion" not in stub.launches[-1]
    assert kernel.best_config is kernel.configs[1]


@pytest.mark.parametrize(
    "option",
    [
        {"prune_configs_by": {}}, {"pre_hook": print}, {"post_hook": print}, {"warmup": 1}, {"rep": 1},
        {"use_cuda_graph": True}, {"do_bench": print}, {"cache_results": True},
    ],
)  # fmt: skip
def test_options_of_tritons_for_another_kernel_are_an_error(option: dict[str, Any]) -> None:
    def plain(x, *, BLOCK):
        return None

    with pytest.raises(BadInput, match=f"{next(iter(option))}= is for Triton kernels, and plain is none"):
        tunesmith.autotune([Config(BLOCK=1)], **option)(plain)
    with pytest.raises(BadInput, match=r"triton.Config.*plain"):
        tunesmith.autotune(blocks(1))(plain)


def test_two_configs_that_differ_in_their_hook_alone_are_an_error() -> None:
    with pytest.raises(BadInput, match="pre_hook alone"):
        tuned(configs=[*blocks(1, pre_hook=print), *blocks(1)])


# --- the key -----------------------------------------------------------------------------------------


def test_r01_every_spelling_of_a_call_has_one_key() -> None:
    def f(x, y, m, n, scale=1.0, BLOCK=1):
        return None

    f32, f16 = torch.ones(4), torch.ones(4, dtype=torch.float16)
    kernel, _, bench = tuned(f, key=("m",))
    kernel[(1,)](f32, f16, 7, 5)
    kernel[(1,)](x=f32, y=f16, m=7, n=5)
    kernel[(1,)](n=5, y=f16, m=7, x=f32)
    kernel[(1,)](f32, n=5, m=7, y=f16)
    kernel[(1,)](f32, f16, 7, 5, 1.0)
    assert (len(bench.asked), len(kernel.cache)) == (3, 1)
    kernel[(1,)](f32, f16, 5, 7)
    assert (len(bench.asked), len(kernel.cache)) == (6, 2)


def test_what_stocks_key_confuses_is_told_apart() -> None:
    kernel, _, bench = tuned(lambda x, y, n, BLOCK: None)
    calls = [(x(), None, 8), (None, x(), 8), (x(), x(), True), (x(), x(), 1), (x(), x(), 1.0), (x(), x(), None)]
    for call in calls:
        kernel[(1,)](*call)
    assert len(bench.asked) == 3 * len(calls)


def test_dtypes_and_tuples_can_be_in_a_key_and_lists_can_not() -> None:
    kernel, _, bench = tuned(lambda x, n, BLOCK: None)
    for value in (torch.float16, triton.language.float16, torch.bfloat16, (1, 2), (1, 3), "a"):
        kernel[(1,)](x(), value)
        kernel[(1,)](x(), value)
    assert len(bench.asked) in (3 * 5, 3 * 6)  # the two float16 may be spelled alike
    with pytest.raises(BadInput, match="list"):
        kernel[(1,)](x(), [1, 2])
    with pytest.raises(BadInput, match="array"):
        kernel[(1,)](x(), x())


@pytest.mark.filterwarnings("ignore:.*differ in arguments that are not in key=")
def test_a_grid_enters_no_key() -> None:
    kernel, _, bench = tuned()
    for grid in ((1,), (2,), [3], lambda meta: (4,)):
        kernel[grid](x(), x(), 8)
    assert len(bench.asked) == 3
    assert kernel.tuned._dispatcher.warm_entries == 1


def test_a_key_that_forgets_an_argument_is_said_once_and_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunesmith.kernel import Specialised

    monkeypatch.setattr(run.WrappedKernel, "specialised", Specialised(divisibility=("m", "n")))
    kernel, *_ = tuned(lambda x, m, n, BLOCK: None)
    kernel[(1,)](x(), 16, 8)
    with pytest.warns(TunesmithWarning, match=r"grid \(\(1,\), then \(2,\)\), m \(16, then 17\)") as seen:
        kernel[(2,)](x(), 17, 8)
    kernel[(2,)](x(), 1, 8)
    assert len(seen) == 1
    _, choice, _ = kernel.explanation(x(), 17, 8)
    assert "grid, m" in choice.note


# --- pruning -------------------------------------------------------------------------------------------


def test_early_config_prune_is_called_as_stock_does() -> None:
    seen: list[Any] = []

    def prune(configs, named_args, **kwargs):
        seen.append((configs, named_args, kwargs))
        return [config for config in configs if config.kwargs["BLOCK"] <= named_args["n"]]

    kernel, _, bench = tuned(configs=blocks(8, 16, 32), prune_configs_by={"early_config_prune": prune})
    a, b = x(), x()
    kernel[(1,)](a, b, 16)
    configs, named, kwargs = seen[0]
    assert configs == kernel.configs
    assert (named["x"] is a, named["y"] is b, named["n"]) == (True, True, 16)
    assert {"grid": (1,), "warmup": False, "n": 16}.items() <= kwargs.items()
    assert sorted(bench.asked) == [8, 16]
    kernel[(1,)](a, b, 16)
    assert len(seen) == 1
    assert kernel.prune_configs({"n": 8}) == kernel.configs[:1]


def test_a_prune_that_leaves_nothing_is_named() -> None:
    kernel, *_ = tuned(prune_configs_by={"early_config_prune": lambda configs, named_args, **kwargs: []})
    with pytest.raises(AutotunerError, match=r"scale.*early_config_prune"):
        kernel[(1,)](x(), x(), 8)


def test_a_prune_that_leaves_one_needs_no_timing() -> None:
    kernel, stub, bench = tuned(prune_configs_by={"early_config_prune": lambda configs, nargs, n: configs[2:]})
    kernel[(1,)](x(), x(), 8)
    assert (bench.asked, len(stub.launches), stub.launches[0]["BLOCK"]) == ([], 1, 128)


@pytest.mark.parametrize(
    ("top_k", "kept"), [(1, []), (2, [1, 2]), (99, [1, 2, 3, 4]), (0.5, [1, 2]), (0.1, []), (1.0, [1, 2, 3, 4])]
)
def test_top_k_counts_after_the_early_prune_and_keeps_at_least_one(top_k: Any, kept: list[int]) -> None:
    def model(x, y, n, grid, warmup, BLOCK, num_warps, **rest):
        assert (n, grid, num_warps) == (8, (1,), 4)
        return BLOCK

    pruning = {
        "early_config_prune": lambda configs, named_args, **_: configs[2:],
        "perf_model": model, "top_k": top_k,
    }  # fmt: skip
    kernel, stub, bench = tuned(configs=blocks(6, 5, 4, 3, 2, 1), prune_configs_by=pruning)
    kernel[(1,)](x(), x(), 8)
    assert sorted(bench.asked) == kept
    assert stub.launches[-1]["BLOCK"] == 1


def test_what_the_model_puts_first_is_compiled_first() -> None:
    kernel, *_ = tuned(configs=blocks(4, 8, 2, 16, 1), prune_configs_by={"perf_model": lambda BLOCK, **_: BLOCK})
    events: list[Event] = []
    with watched(events.append):
        kernel[(1,)](x(), x(), 8)
    assert [event.config["BLOCK"] for event in events if isinstance(event, Compiled)] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("top_k", [0, -1, 1.5, 0.0, "2", None, True])
def test_a_bad_top_k_is_an_error_at_decoration(top_k: Any) -> None:
    with pytest.raises(BadInput, match="top_k"):
        tuned(prune_configs_by={"perf_model": print, "top_k": top_k})
    with pytest.raises(BadInput, match="did you mean 'perf_model'"):
        tuned(prune_configs_by={"perf_modl": print})


# --- arguments that are written, hooks ---------------------------------------------------------------


def test_the_first_call_leaves_what_every_later_one_leaves() -> None:
    seen: list[list[float]] = []

    def accumulate(x, y, n, BLOCK):
        seen.append([float(x[0]), float(y[0])])
        x.add_(1)
        y.add_(1)

    kernel, *_ = tuned(accumulate, reset_to_zero=["x"], restore_value=["y"])
    a, b = torch.full((4,), 5.0), torch.full((4,), 7.0)
    kernel[(1,)](a, b, 8)
    assert seen[:-1] == [[0.0, 7.0]] * (len(seen) - 1)  # in the search
    assert seen[-1] == [5.0, 7.0]  # the winner's launch
    assert (a.tolist(), b.tolist()) == ([6.0] * 4, [8.0] * 4)
    kernel[(1,)](a, b, 8)
    assert (a.tolist(), b.tolist()) == ([7.0] * 4, [9.0] * 4)


def test_none_is_skipped_in_what_is_reset_or_restored() -> None:
    kernel, _, bench = tuned(lambda x, y, n, BLOCK: None, reset_to_zero=["x"], restore_value=["y"])
    kernel[(1,)](None, None, 8)
    assert len(bench.asked) == 3


def test_hooks_of_the_decorator_are_called_around_each_launch_of_the_search_alone() -> None:
    events: list[Any] = []

    def pre_hook(kwargs, reset_only=False):
        events.append(("reset" if reset_only else "pre", kwargs["BLOCK"], kwargs["n"], kwargs["grid"]))

    def post_hook(kwargs, exception):
        events.append(("post", kwargs["BLOCK"], exception))

    kernel, *_ = tuned(
        lambda x, y, n, BLOCK: events.append(("launch", BLOCK)), blocks(2, 1), pre_hook=pre_hook, post_hook=post_hook
    )
    kernel[(1,)](x(), x(), 8)
    watched, first = events[0][1], events[3][1]  # a launch to see what it writes, then the race

    def around(block: int) -> list[Any]:
        return [("pre", block, 8, (1,)), ("launch", block), ("post", block, None)]

    assert events == [
        *around(watched), *around(first) * 2, *around(3 - first) * 2, ("reset", 1, 8, (1,)), ("launch", 1)
    ]  # fmt: skip
    assert (kernel.user_defined_pre_hook, kernel.user_defined_post_hook) == (True, True)
    events.clear()
    kernel[(1,)](x(), x(), 8)
    assert events == [("launch", 1)]


def test_hooks_of_before_they_took_keywords_still_work() -> None:
    events: list[str] = []
    kernel, *_ = tuned(
        lambda x, y, n, BLOCK: events.append("launch"), blocks(2, 1),
        pre_hook=lambda kwargs: events.append("pre"), post_hook=lambda kwargs: events.append("post"),
    )  # fmt: skip
    kernel[(1,)](x(), x(), 8)
    assert events == [*["pre", "launch", "post"] * 5, "pre", "launch"]


def test_post_hook_hears_of_what_a_launch_raised() -> None:
    heard: list[Any] = []

    def fails(x, y, n, BLOCK):
        if BLOCK == 1:
            raise OutOfResources(300000, 232448, "shared memory")

    kernel, *_ = tuned(fails, blocks(1, 2, 3), post_hook=lambda kwargs, exception: heard.append(exception))
    kernel[(1,)](x(), x(), 8)
    assert [type(each) for each in heard if each is not None] == [OutOfResources]
    timings = {config.kwargs["BLOCK"]: each for config, each in kernel.configs_timings.items()}
    assert timings[1] == [float("inf")] * 3
    assert kernel.best_config.kwargs["BLOCK"] == 2


def test_a_hook_of_a_config_runs_before_every_launch_of_it_once() -> None:
    events: list[Any] = []

    def hook(kwargs):
        events.append(("hook", kwargs["BLOCK"]))
        kwargs["x"].fill_(kwargs["BLOCK"])

    def body(x, y, n, BLOCK):
        events.append(("launch", BLOCK, float(x[0])))

    configs = [*blocks(1, pre_hook=hook), *blocks(2, pre_hook=hook), *blocks(3)]
    kernel, *_ = tuned(body, configs)
    kernel[(1,)](x(), x(), 8)
    for i, event in enumerate(events):
        if event[0] == "launch" and event[1] != 3:
            assert events[i - 1] == ("hook", event[1])
            assert event[2] == event[1]
    assert sum(event[0] == "hook" for event in events) == sum(e[0] == "launch" and e[1] != 3 for e in events)
    events.clear()
    kernel[(1,)](x(), x(), 8)
    kernel[(1,)](x(), x(), 8)
    assert events == [("hook", 1), ("launch", 1, 1.0)] * 2

    again, _, bench = tuned(body, configs)  # the store remembers a Config, the code its hook
    events.clear()
    again[(1,)](x(), x(), 8)
    assert (bench.asked, events) == ([], [("hook", 1), ("launch", 1, 1.0)])


# --- failures ------------------------------------------------------------------------------------------


def test_when_every_config_fails_the_error_says_why_and_nothing_is_remembered() -> None:
    def fails(x, y, n, BLOCK):
        raise OutOfResources(BLOCK * 100000, 232448, "shared memory")

    kernel, stub, _ = tuned(fails, blocks(3, 4))
    for _ in range(2):
        launches = len(stub.launches)
        with pytest.raises(NoWorkingConfig, match=r"none of 2 Configs works(.|\n)*300000.*232448(.|\n)*400000"):
            kernel[(1,)](x(), x(), 8)
        assert len(stub.launches) > launches
    assert len(kernel.cache) == 0


# --- how time is taken ---------------------------------------------------------------------------------


def test_the_protocol_of_a_key_names_how_time_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton.testing

    asked: list[Any] = []

    def answers(name: str) -> Any:
        return lambda kernel_call, **options: (kernel_call(), asked.append((name, options)), 1.0)[2]

    monkeypatch.setattr(triton.testing, "do_bench", answers("do_bench"))
    monkeypatch.setattr(triton.testing, "do_bench_cudagraph", answers("graph"))
    quantiles = (0.5, 0.2, 0.8)
    for options, call in (
        ({"warmup": 5}, ("do_bench", {"warmup": 5, "rep": 100, "quantiles": quantiles})),
        ({"rep": 7}, ("do_bench", {"warmup": 25, "rep": 7, "quantiles": quantiles})),
        ({"use_cuda_graph": True, "rep": 9}, ("graph", {"rep": 9, "quantiles": quantiles})),
    ):
        stub = StubKernel(scale)
        kernel = tunesmith.autotune(blocks(1, 2), ["n"], **options)(stub)  # type: ignore[arg-type]
        kernel[(1,)](x(), x(), 8)
        assert asked == [call] * 2
        asked.clear()
        assert all(len(timings) == 3 for timings in kernel.configs_timings.values())
        protocol = kernel.explanation(x(), x(), 8)[0].protocol
        assert all(str(value) in protocol for value in options.values() if value is not True)
    assert "Bench" in tuned()[0].explanation(x(), x(), 8)[0].protocol
    with pytest.raises(BadInput, match="either clock="):
        tuned(clock=ScriptedClock({}))


def test_our_clock_does_for_a_triton_kernel_too() -> None:
    clock = ScriptedClock(lambda config: 1e-3 * config["BLOCK"])  # type: ignore[operator]
    stub = StubKernel(scale)
    kernel = tunesmith.autotune(blocks(2, 1), ["n"], clock=clock)(stub)
    kernel[(1,)](x(), x(), 8)
    assert kernel.best_config.kwargs["BLOCK"] == 1
    assert kernel.configs_timings[kernel.configs[0]] == pytest.approx([2.0] * 3)


def test_printing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kernel, *_ = tuned(configs=blocks(1, 2))
    kernel[(1,)](x(), x(), 7)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")
    kernel[(1,)](x(), x(), 8)
    kernel[(1,)](x(), x(), 8)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Autotuning kernel scale with config BLOCK: 1, num_warps: 4")
    assert lines[2] == "Triton autotuning for function scale,"
    assert lines[3].startswith("with key as (8, 'torch.float32', 'torch.float32'")
    assert lines[4].startswith("finished after ")
    assert lines[5].startswith("best config selected: BLOCK: 1, num_warps: 4")
    assert len(lines) == 6


def test_a_listener_hears_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(triton.knobs.autotuning, "listener", lambda **said: heard.append(said), raising=False)
    kernel, stub, _ = tuned()
    kernel[(1,)](x(), x(), 8)
    kernel[(1,)](x(), x(), 8)
    assert len(heard) == 1
    assert heard[0]["best_config"] is kernel.best_config
    assert heard[0]["fn"] is stub
    assert set(heard[0]) == {"fn", "key", "best_config", "configs_timings", "duration", "cache_hit"}


# --- heuristics ----------------------------------------------------------------------------------------


def test_heuristics_above_are_arguments_and_may_be_in_the_key() -> None:
    stub = StubKernel(lambda x, n, EVEN, BLOCK: None)
    bench = Bench(stub)
    kernel = triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})(
        tunesmith.autotune(blocks(2, 1), ["EVEN"], do_bench=bench)(stub)
    )
    for n in (2, 4, 3):
        kernel[(1,)](x(), n)
        assert stub.launches[-1]["EVEN"] is (n % 2 == 0)
    assert len(bench.asked) == 4


def test_heuristics_below_see_the_config_and_overwrite_what_a_caller_says() -> None:
    stub = StubKernel(lambda x, n, DOUBLE, BLOCK: None)
    bench = Bench(stub)
    inner = triton.heuristics({"DOUBLE": lambda args: 2 * args["BLOCK"]})(stub)
    with pytest.warns(TunesmithWarning, match="DOUBLE is computed by @triton.heuristics"):
        kernel = tunesmith.autotune(blocks(2, 1), ["n", "DOUBLE"], do_bench=bench)(inner)
    assert str(inspect.signature(kernel)) == "(x, n)"
    kernel[(1,)](x(), 8)
    kernel[(1,)](x(), 8, DOUBLE=77)
    assert all(each["DOUBLE"] == 2 * each["BLOCK"] for each in stub.launches)
    assert len(bench.asked) == 2


# --- where a call may not measure ----------------------------------------------------------------------


def capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("synchronised"))


def test_inside_a_capture_a_cold_call_takes_the_default_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, stub, bench = tuned()
    with monkeypatch.context() as patch:
        capturing(patch)
        with pytest.warns(TunesmithWarning, match="inside a CUDA graph's capture") as seen:
            [kernel[(1,)](x(), x(), n) for n in (8, 8, 9)]
        assert len(seen) == 1
        assert bench.asked == []
        assert [each["BLOCK"] for each in stub.launches] == [64] * 3
    kernel[(1,)](x(), x(), 8)
    assert stub.launches[-1]["BLOCK"] == 32

    again, stub, bench = tuned()
    capturing(monkeypatch)
    again[(1,)](x(), x(), 8)  # cold in memory, known to the store
    kernel[(1,)](x(), x(), 8)  # warm
    assert (bench.asked, [each["BLOCK"] for each in stub.launches]) == ([], [32])


def test_while_torch_compile_traces_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    kernel, stub, bench = tuned()
    with pytest.warns(TunesmithWarning, match="while torch.compile was tracing"):
        kernel[(1,)](x(), x(), 8)
    assert (bench.asked, stub.launches[-1]["BLOCK"]) == ([], 64)


@pytest.mark.parametrize("track", ["lookup", "default"])
def test_under_lookup_and_default_the_first_config_that_pruning_leaves_serves(track: str) -> None:
    prune = {"early_config_prune": lambda configs, named_args, **_: configs[1:]}
    kernel, stub, bench = tuned(prune_configs_by=prune)
    with tunesmith.policy(track):
        kernel[(1,)](x(), x(), 8)
    assert (bench.asked, stub.launches[-1]["BLOCK"]) == ([], 32)


INTERPRETED = """
import torch, triton, triton.language as tl

def refuse(*args, **kwargs):
    raise AssertionError("measured")

@tunesmith.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], ["n"], do_bench=refuse,
                    prune_configs_by={"early_config_prune": lambda configs, named_args, **_: configs[1:]})
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)

@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
@tunesmith.autotune([triton.Config({}, num_warps=w) for w in (4, 8)], ["n", "BLOCK"], do_bench=refuse)
@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr, SCALE: tl.constexpr = 2):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, SCALE * tl.load(x + i, mask=i < n), mask=i < n)

x, y, out = torch.randn(200), torch.randn(200), torch.zeros(200)
for _ in range(2):
    add[(2,)](x, y, out, n=200)
    assert torch.equal(out, x + y)
assert add.best_config.kwargs == {"BLOCK": 128}, add.best_config
copy[(1,)](x, out, 200)
assert torch.equal(out, 2 * x)
copy[(1,)](x, out, 200, SCALE=3)
assert torch.equal(out, 3 * x)
from triton.runtime import driver
assert "_active" not in vars(driver) or driver._active is None
for measure in add.tune, add.tuned.record:
    try:
        measure(grid=(2,), x=x, y=y, out=out, n=200)
    except tunesmith.errors.BadInput as error:
        assert "TRITON_INTERPRET is set" in str(error), error
    else:
        raise AssertionError("the interpreter was timed")
"""


def test_the_interpreter_runs_the_first_config_without_a_driver(tmp_path: Path) -> None:
    done = fresh_process(INTERPRETED, tmp_path, {"TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr


# --- R10: a machine without a GPU ----------------------------------------------------------------------

WITHOUT_GPU = """
import inspect, json, pickle, sys, time, types
import torch, triton, triton.language as tl
from triton.runtime import driver

class NoDriver:
    def __getattr__(self, name):
        raise AssertionError("driver asked for " + name)

start = time.perf_counter()
module = types.ModuleType("kernels")
sys.modules["kernels"] = module
kernels = []
for i in range(50):
    def body(x, n, BLOCK: "tl.constexpr"):
        "Does nothing."
    body.__name__ = body.__qualname__ = f"kernel_{i}"
    body.__module__ = "kernels"
    class Stub(triton.runtime.jit.KernelInterface):
        fn, arg_names = staticmethod(body), ["x", "n", "BLOCK"]
        def run(self, *args, **kwargs):
            raise RuntimeError("0 active drivers ([]). There should only be one.")
    tuned = tunesmith.autotune([triton.Config({"BLOCK": 1}), triton.Config({"BLOCK": 2})], ["n"])(Stub())
    setattr(module, body.__name__, tuned)
    kernels.append(tuned)
assert time.perf_counter() - start < 2
one = kernels[7]
assert pickle.loads(pickle.dumps(one)) is one
assert str(inspect.signature(one)) == "(x, n)"
assert one.__doc__ == "Does nothing."
assert [c.kwargs["BLOCK"] for c in one.configs] == [1, 2]
assert "_active" not in vars(driver) or driver._active is None
try:
    one[(1,)](torch.ones(1), 3)
except tunesmith.errors.TunesmithError as error:
    assert "active drivers" in str(error), error
else:
    raise AssertionError("ran")
"""


def test_r10_all_but_a_call_works_without_a_driver(tmp_path: Path) -> None:
    done = fresh_process(WITHOUT_GPU, tmp_path)
    assert done.returncode == 0, done.stderr


def test_r10_taking_the_decorator_imports_no_triton(tmp_path: Path) -> None:
    script = """
    autotune([Config(BLOCK=1)], ["n"])(lambda n, *, BLOCK: None)
    assert "triton" not in sys.modules and "torch" not in sys.modules
    """
    done = fresh_process(script, tmp_path)
    assert done.returncode == 0, done.stderr


@tunesmith.autotune(blocks(1, 2), ["n"])
@StubKernel
def at_module_level(x, n, BLOCK):
    """Pickled by name."""


def test_it_is_pickled_and_copied_by_name() -> None:
    import copy

    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    assert copy.deepcopy(at_module_level) is copy.copy(at_module_level) is at_module_level


# --- R12: the steady state -----------------------------------------------------------------------------


def test_r12_a_warm_launch_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"a{i}" for i in range(24)]
    space: dict[str, Any] = {}
    exec(f"def f({', '.join(names)}, BLOCK): pass", space)
    kernel, stub, bench = tuned(space["f"], key=["a3", "a4"], version="1")
    stub.run = lambda *args, **kwargs: None  # type: ignore[method-assign]
    args = [x(), x(), x(), *range(21)]
    other = [x(), x(), x(), *range(1, 22)]
    bench.kernel.launches.append({"BLOCK": 1})
    kernel[(1,)](*args)
    kernel[(1,)](*other)
    kernel[(1,)](*args)  # the other's search had every warm key asked again
    asked = len(bench.asked)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("touched in the steady state")

    with monkeypatch.context() as patch:
        for owner, name in ((builtins, "open"), (os, "stat"), (hashlib, "sha256"), (inspect, "signature")):
            patch.setattr(owner, name, refuse)
        start = time.perf_counter()
        for _ in range(10_000):
            kernel[(1,)](*args)
            kernel[(1,)](*other)
        seconds = time.perf_counter() - start
    assert len(bench.asked) == asked
    assert kernel.tuned._dispatcher.warm_entries == 2
    assert seconds / 20_000 < 100e-6  # some microseconds; a busy machine stops a test now and then


# --- R40: two devices ----------------------------------------------------------------------------------


def test_r40_two_devices_are_tuned_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    at = {"here": Device("cuda", "NVIDIA H200", "sm_90", 132)}
    monkeypatch.setattr(run.WrappedKernel, "device", lambda self, args: at["here"])

    def body(x, y, n, BLOCK):
        if BLOCK == 200 and at["here"].name == "NVIDIA L4":
            raise OutOfResources(200 * 1024, 99 * 1024, "shared memory")

    stub = StubKernel(body)
    bench = Bench(stub, ms=lambda block: 1.0 if block == 200 else 2.0)
    decorate = tunesmith.autotune(blocks(200, 16), ["n"], do_bench=bench, version="1")
    kernel = decorate(stub)
    kernel[(1,)](x(), x(), 8)
    assert stub.launches[-1]["BLOCK"] == 200
    at["here"] = Device("cuda", "NVIDIA L4", "sm_89", 58)
    kernel.tuned._dispatcher.clear()  # on real devices the tensors' device is in the warm key
    kernel[(1,)](x(), x(), 8)
    assert stub.launches[-1]["BLOCK"] == 16
    assert {key[-1] for key in kernel.cache} == {"cuda:NVIDIA H200:sm_90:132", "cuda:NVIDIA L4:sm_89:58"}

    again = decorate(stub)  # a new process: both are stored apart
    asked = len(bench.asked)
    again[(1,)](x(), x(), 8)
    at["here"] = Device("cuda", "NVIDIA H200", "sm_90", 132)
    again.tuned._dispatcher.clear()
    again[(1,)](x(), x(), 8)
    assert len(bench.asked) == asked
    assert [each["BLOCK"] for each in stub.launches[-2:]] == [16, 200]


def test_arguments_on_two_devices_are_an_error_before_any_launch() -> None:
    kernel, stub, bench = tuned()
    with pytest.raises(BadInput, match=r"x on meta.*y on cpu"):
        kernel[(1,)](torch.ones(4, device="meta"), x(), 8)
    assert (stub.launches, bench.asked) == ([], [])


def test_nothing_warns_at_decoration() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned(warmup=5, do_bench=None)


# --- what is checked, and what is written in place -------------------------------------------------------


def test_a_triton_kernel_is_checked_with_its_hooks_on_copies() -> None:
    def body(x, y, n, BLOCK):
        y.add_(2 * x if BLOCK > 32 else x)  # adds to what pre_hook has zeroed

    hooked: list[Any] = []

    def pre_hook(kwargs, reset_only=False):
        hooked.append(kwargs["y"])
        kwargs["y"].zero_()

    kernel, *_ = tuned(
        body, blocks(32, 64, 128), pre_hook=pre_hook, reference=lambda x, **_: 2 * x, outputs=["y"], tolerance=1e-6
    )
    given = x(), torch.full((4,), 7.0)
    kernel[(1,)](*given, 8)
    choice = kernel.choice(*given, 8, grid=(1,))
    assert (choice.config["BLOCK"], bool(choice.checked)) == (64, True)
    assert kernel.configs_timings[blocks(32)[0]] == [float("inf")] * 3
    assert any(array is not given[1] for array in hooked)
    assert kernel.verify(*given, 8, grid=(1,)).checked


def test_a_slice_of_a_triton_kernels_argument_is_restored() -> None:
    def body(x, y, n, BLOCK):
        y[n] += 1

    kernel, *_ = tuned(body, restore_value={"y": lambda y, n: y[n : n + 1]})
    y = torch.zeros(16)
    kernel[(1,)](x(), y, 8)
    assert y.tolist() == [0.0] * 8 + [1.0] + [0.0] * 7
    assert kernel.restore_value == ["y"]
