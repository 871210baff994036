"""`tunesmith.take_over()`: kernels of made-up packages, decorated with `triton.autotune`, are tuned by tunesmith."""

import gc
import importlib
import inspect
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tunesmith
from tunesmith import takeover
from tunesmith.errors import BadInput, TunesmithWarning

triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")
from tunesmith.backends.triton_autotune.autotuner import TunedAutotuner  # noqa: E402

Autotuner = triton.runtime.Autotuner

#: What a package brings: a kernel whose body is Python on CPU tensors, and what times it. A small BLOCK is fastest.
COMMON = """
import inspect
import triton
from triton.runtime.jit import KernelInterface

class Stub(KernelInterface):
    def __init__(self, fn):
        self.fn, self.arg_names, self.blocks = fn, list(inspect.signature(fn).parameters), []
    def run(self, *args, grid, warmup, **kwargs):
        named = {**dict(zip(self.arg_names, args)), **kwargs}
        self.blocks.append(named["BLOCK"])
        return self.fn(**{name: value for name, value in named.items() if name in self.arg_names})

def bench(kernel_call, quantiles):
    kernel_call()
    return [float(STUBS[-1].blocks[-1])] * 3

def scale(x, y, n, BLOCK):
    y.add_(x)

STUBS = []
def stub():
    STUBS.append(Stub(scale))
    return STUBS[-1]

configs = [triton.Config({"BLOCK": block}) for block in (64, 32, 128)]
"""

DECORATED = "kernel = triton.autotune(configs, ['n'], restore_value=['y'], do_bench=bench)(stub())\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Writes a module of a package and imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}

    def write(text: str, name: str = "others.kernels") -> Any:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(COMMON + text)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    for name in {*sys.modules} - before:
        if name.partition(".")[0] in ("others", "more"):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    """What a test takes over is given back; kernels of earlier tests are not there to be taken."""
    gc.collect()
    yield
    for begun in list(takeover._in_force):
        begun.undo()


def call(kernel: Any, n: Any = 8, **options: Any) -> list[float]:
    y = torch.ones(2)
    kernel[(1,)](torch.ones(2), y, n, **options)
    return y.tolist()


def is_ours(kernel: Any) -> bool:
    return isinstance(kernel, TunedAutotuner)


SPELLINGS = [
    "kernel = triton.autotune(configs, ['n'], do_bench=bench, restore_value=['y'])(stub())",
    "from triton import autotune\nkernel = autotune(configs, ['n'], None, None, ['y'], do_bench=bench)(stub())",
    "from triton.runtime import autotune\nkernel = autotune(configs, key=['n'], restore_value=['y'], do_bench=bench)"
    "(stub())",
    "from triton.runtime.autotuner import autotune as tune\nkernel = tune(configs, ['n'], restore_value=['y'], "
    "do_bench=bench)(stub())",
    "from triton.runtime.autotuner import Autotuner\ninner = stub()\n"
    "kernel = Autotuner(inner, inner.arg_names, configs, ['n'], None, ['y'], do_bench=bench)",
]


@pytest.mark.about_time("the winner that its times say is asserted")
@pytest.mark.parametrize("text", SPELLINGS)
def test_a_kernel_decorated_later_is_ours_however_the_decorator_is_spelled(text: str, module: Any) -> None:
    begun = tunesmith.take_over()
    others = module(text)
    assert is_ours(others.kernel)
    assert begun.taken == ["others.kernels.scale"]
    assert call(others.kernel) == [2.0, 2.0]
    assert others.STUBS[0].blocks[-1] == 32
    assert others.kernel.best_config is others.configs[1]
    assert others.kernel.lookup(torch.ones(2), torch.ones(2), 8).config["BLOCK"] == 32


@pytest.mark.about_time("the winner that its times say is asserted")
def test_what_the_next_process_needs_is_stored(module: Any) -> None:
    tunesmith.take_over()
    others = module(DECORATED)
    call(others.kernel)
    importlib.reload(others)
    assert call(others.kernel) == [2.0, 2.0]
    assert others.STUBS[0].blocks == [32]


def test_after_undo_stock_is_in_place_and_what_is_ours_works(module: Any) -> None:
    stock = Autotuner.__init__
    signature = inspect.signature(Autotuner)
    with tunesmith.take_over() as begun:
        ours = module(DECORATED)
        assert inspect.signature(Autotuner) == signature
        assert "in force: 1 kernels ours, 0 left to stock" in repr(begun)
    assert Autotuner.__init__ is stock
    others = module(DECORATED, "others.later")
    assert type(others.kernel) is Autotuner
    assert call(others.kernel) == call(ours.kernel) == [2.0, 2.0]
    assert is_ours(ours.kernel)
    assert "undone" in repr(begun)


def test_twice_is_harmless_and_each_is_undone_on_its_own(module: Any) -> None:
    stock = Autotuner.__init__
    first, second = tunesmith.take_over(), tunesmith.take_over()
    first.undo()
    first.undo()
    assert is_ours(module(DECORATED).kernel)
    assert (first.taken, second.taken) == ([], ["others.kernels.scale"])
    second.undo()
    assert Autotuner.__init__ is stock


def test_packages_are_named_by_prefix(module: Any) -> None:
    tunesmith.take_over(only=["others"], but=["others.slow"])
    assert is_ours(module(DECORATED).kernel)
    assert type(module(DECORATED, "others.slow").kernel) is Autotuner
    assert type(module(DECORATED, "more.kernels").kernel) is Autotuner
    with pytest.raises(BadInput, match=r"only='others' is one string; .*: only=\['others'\]"):
        tunesmith.take_over(only="others")


@pytest.mark.about_time("the winner that its times say is asserted")
def test_kernels_that_exist_become_ours_wherever_they_are_held(module: Any) -> None:
    held = "held = triton.heuristics({'BLOCK2': lambda args: 1})(kernel)\ncall = [lambda: kernel]\n"
    others = module(DECORATED + held)
    before = others.kernel
    assert call(before) == [2.0, 2.0]
    begun = tunesmith.take_over(only=["others"])
    assert begun.taken == ["others.kernels.scale"]
    assert others.kernel is others.held.fn is others.call[0]() is before
    assert is_ours(before)
    assert isinstance(before, Autotuner)
    assert before.best_config.kwargs == {"BLOCK": 32}  # stock's tuning, until ours has one
    launches = len(others.STUBS[0].blocks)
    assert call(before, 16) == [2.0, 2.0]
    assert len(others.STUBS[0].blocks) > launches + 1
    assert before.lookup(torch.ones(2), torch.ones(2), 16).config["BLOCK"] == 32


def test_a_name_imported_before_decorates_ours_afterwards(module: Any) -> None:
    others = module("from triton import autotune\ndef make():\n    return autotune(configs, ['n'])(stub())\n")
    tunesmith.take_over()
    assert is_ours(others.make())


def test_what_torch_decorates_for_itself_stays_stocks(module: Any) -> None:
    begun = tunesmith.take_over()
    others = module("")
    inside = {"__name__": "torch._higher_order_ops.made_up", "triton": triton, "others": others}
    exec("kernel = triton.autotune(others.configs, ['n'])(others.stub())", inside)
    assert type(inside["kernel"]) is Autotuner
    assert begun.taken == []


def test_our_own_decorator_is_as_ever() -> None:
    begun = tunesmith.take_over()

    @triton.jit
    def stub(x, n):
        pass

    with pytest.raises(BadInput, match="unknown argument 'm'"):
        tunesmith.autotune([triton.Config({})], ["m"])(stub)
    assert type(tunesmith.autotune([triton.Config({})], ["n"])(stub)) is TunedAutotuner
    assert begun.taken == []


@pytest.mark.about_time("the winner that its times say is asserted")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("['n', 'm']", "key: 'm' is no argument; dropped"),
        ("['n', 'BLOCK']", "key: 'BLOCK' is a knob; dropped"),
        ("['n'], reset_to_zero=['z']", "reset_to_zero: 'z' is no argument; dropped"),
        ("['n'], restore_value=['y', 'z']", "restore_value: 'z' is no argument; dropped"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*argument 'y' is written in place")
def test_names_that_stock_drops_are_dropped_with_a_warning(text: str, said: str, module: Any) -> None:
    tunesmith.take_over()
    with pytest.warns(TunesmithWarning, match=rf"kernel others\.kernels\.scale, {said}"):
        others = module(f"kernel = triton.autotune(configs, key={text}, do_bench=bench)(stub())")
    assert is_ours(others.kernel)
    call(others.kernel)
    assert others.STUBS[0].blocks[-1] == 32


def test_an_argument_restored_and_zeroed_is_zeroed_as_by_stock(module: Any) -> None:
    tunesmith.take_over()
    others = module("kernel = triton.autotune(configs, ['n'], None, ['y'], ['y'], do_bench=bench)(stub())")
    assert is_ours(others.kernel)
    assert call(others.kernel) == [2.0, 2.0]


def test_a_kernel_that_ours_refuses_is_left_to_stock_and_said_why(module: Any) -> None:
    begun = tunesmith.take_over()
    text = "configs += [triton.Config({'BLOCK': 64}, pre_hook=lambda nargs: None)]\n" + DECORATED
    with pytest.warns(TunesmithWarning, match=r"kernel others\.kernels\.scale is left to triton\.autotune: .*pre_hook"):
        others = module(text)
    assert type(others.kernel) is Autotuner
    assert [*begun.left] == ["others.kernels.scale"]
    assert call(others.kernel) == [2.0, 2.0]


def test_a_call_that_only_stock_takes_leaves_the_kernel_to_it_with_one_warning(module: Any) -> None:
    begun = tunesmith.take_over()
    kernel = module(DECORATED).kernel
    size = torch.ones(3)
    with pytest.warns(TunesmithWarning, match=r"others\.kernels\.scale is left to .*'n' is an array") as said:
        assert call(kernel, size) == [2.0, 2.0]
    assert len(said) == 1
    assert (begun.taken, [*begun.left]) == ([], ["others.kernels.scale"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call(kernel, size) == call(kernel, 8) == [2.0, 2.0]
    assert kernel.best_config.kwargs == {"BLOCK": 32}


def test_a_call_that_stock_refuses_too_fails_and_leaves_nothing(module: Any) -> None:
    begun = tunesmith.take_over()
    kernel = module(DECORATED).kernel
    with pytest.raises(ValueError, match="Conflicting meta-parameters"):
        call(kernel, BLOCK=64)
    assert begun.left == {}
    assert call(kernel) == [2.0, 2.0]
    assert is_ours(kernel)


def test_pruning_that_reads_positional_arguments_works_where_a_call_goes_to_stock(module: Any) -> None:
    tunesmith.take_over()
    prune = "{'early_config_prune': lambda configs, named, **rest: configs[: len(named['n'])]}"
    text = f"kernel = triton.autotune(configs, ['n'], {prune}, restore_value=['y'], do_bench=bench)(stub())"
    others = module(text)
    with pytest.warns(TunesmithWarning, match="left to"):
        call(others.kernel, torch.ones(1))
    assert {*others.STUBS[0].blocks} == {64}


# --- subclasses of stock's -------------------------------------------------------------------------------

SUBCLASS = '''
from triton.runtime.autotuner import Autotuner

class CachedAutotuner(Autotuner):
    """As flash-linear-attention has one: it may know a Config, else it asks its base."""
    def __init__(self, fn, arg_names, configs, key, reset_to_zero, restore_value, **kwargs):
        super().__init__(fn, arg_names, configs, key, reset_to_zero, restore_value, **kwargs)
        self.kernel_name, self.runs = fn.fn.__name__, 0
        self.pre_hook = lambda kw, reset_only=False: None
    def run(self, *args, **kwargs):
        self.runs += 1
        n = dict(zip(self.arg_names, args))["n"]
        if n == 99:
            self.cache[n, "torch.float32", "torch.float32"] = configs[2]
        return super().run(*args, **kwargs)

inner = stub()
kernel = CachedAutotuner(inner, inner.arg_names, configs, ["n"], None, ["y"], do_bench=bench)
'''


@pytest.mark.about_time("the winner that its times say is asserted")
def test_a_subclass_keeps_its_own_run_and_ours_is_below_it(module: Any) -> None:
    begun = tunesmith.take_over()
    others = module(SUBCLASS)
    kernel = others.kernel
    assert begun.taken == ["others.kernels.scale"]
    assert isinstance(kernel, others.CachedAutotuner)
    assert is_ours(kernel)
    assert call(kernel) == call(kernel) == [2.0, 2.0]
    assert (kernel.runs, kernel.kernel_name) == (2, "scale")
    assert others.STUBS[0].blocks[-1] == 32
    assert kernel.lookup(torch.ones(2), torch.ones(2), 8).config["BLOCK"] == 32


@pytest.mark.about_time("the winner that its times say is asserted")
def test_a_config_that_a_subclass_has_in_its_cache_is_used_as_by_stock(module: Any) -> None:
    tunesmith.take_over()
    others = module(SUBCLASS)
    call(others.kernel)
    launches = len(others.STUBS[0].blocks)
    assert call(others.kernel, 99) == [2.0, 2.0]
    assert others.STUBS[0].blocks[launches:] == [128]
    assert others.kernel.best_config is others.configs[2]
    call(others.kernel)
    assert others.STUBS[0].blocks[-1] == 32


def test_an_existing_object_of_a_subclass_becomes_ours_too(module: Any) -> None:
    others = module(SUBCLASS)
    tunesmith.take_over(only=["others"])
    assert is_ours(others.kernel)
    assert call(others.kernel, 99) == [2.0, 2.0]
    assert others.STUBS[0].blocks == [128]


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("def _bench(self, *args, **kwargs):\n        return super()._bench(*args, **kwargs)", "a _bench of its own"),
        ("def run(self, *args, **kwargs):\n        return self.fn.run(*args, BLOCK=128, **kwargs)", "not call super"),
    ],
)
def test_a_subclass_that_ours_can_not_stand_below_is_left_to_stock(method: str, reason: str, module: Any) -> None:
    begun = tunesmith.take_over()
    text = f"class Own(triton.runtime.Autotuner):\n    {method}\n\ninner = stub()\n"
    made = "kernel = Own(inner, inner.arg_names, configs, ['n'], None, ['y'], do_bench=bench)\n"
    with pytest.warns(TunesmithWarning, match=f"left to .* class Own has .*{reason}"):
        others = module(text + made)
    assert type(others.kernel) is others.Own
    assert call(others.kernel) == [2.0, 2.0]
    assert [*begun.left] == ["others.kernels.scale"]


# --- without code ----------------------------------------------------------------------------------------


def run_python(arguments: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=60
    )


BOTH_ORDERS = """
import {first}, {second}
import triton
@triton.autotune([triton.Config({{}})], ["n"])
@triton.jit
def kernel(x, n):
    pass
print(type(kernel).__name__, [type(finder).__name__ for finder in sys.meta_path].count("_Awaited"))
"""


@pytest.mark.parametrize(("value", "expected"), [("1", "TakenAutotuner"), ("0", "Autotuner"), ("", "Autotuner")])
@pytest.mark.parametrize("order", [("triton", "tunesmith"), ("tunesmith", "triton")])
def test_the_environment_variable_works_whichever_comes_first(
    order: tuple[str, str], value: str, expected: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\n" + BOTH_ORDERS.format(first=order[0], second=order[1]))
    done = run_python([str(script)], {"TUNESMITH_TAKE_OVER": value})
    assert done.stdout.split() == [expected, "0"], done.stderr


def test_with_the_variable_importing_tunesmith_imports_no_triton() -> None:
    check = "import sys, tunesmith; print([m for m in ('triton', 'torch', 'sqlite3', 'rich') if m in sys.modules])"
    done = run_python(["-c", check], {"TUNESMITH_TAKE_OVER": "1"})
    assert done.stdout.strip() == "[]", done.stderr


def test_another_value_of_the_variable_is_an_error() -> None:
    done = run_python(["-c", "import tunesmith"], {"TUNESMITH_TAKE_OVER": "yes"})
    assert "TUNESMITH_TAKE_OVER=yes: good values: 0, 1" in done.stderr
