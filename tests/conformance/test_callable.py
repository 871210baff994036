"""The callable backend: conformance in its three forms, and how knobs are told from arguments."""

from __future__ import annotations

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tunesmith import Config, Problem, built
from tunesmith.backends import describe, kernel_of
from tunesmith.backends.call import CallableKernel
from tunesmith.backends.cpu import cpu
from tunesmith.conformance import KernelConformance, ready
from tunesmith.errors import BadInput, SpaceError
from tunesmith.kernel import Kernel


def times(x: list[int], a: int, *, unroll: int, fused: bool = False) -> list[int]:
    if unroll > 8:
        raise ValueError(f"unroll={unroll} needs too many registers")
    return [a * v for v in x]


class TestFunction(KernelConformance):
    def kernel(self) -> Kernel:
        return kernel_of(times, {"unroll", "fused"})

    def changed(self) -> Kernel:
        def times(x: list[int], a: int, *, unroll: int, fused: bool = False) -> list[int]:
            return [a * v + 0 for v in x]

        return kernel_of(times, {"unroll", "fused"})

    def commented(self) -> Kernel:
        # the same text as above, but for what does not count
        def times(x: list[int], a: int, *, unroll: int, fused: bool = False) -> list[int]:
            """A docstring."""

            if unroll > 8:  # a comment
                raise ValueError(f"unroll={unroll} needs too many registers")

            # another
            return [a * v for v in x]

        return kernel_of(times, {"unroll", "fused"})

    def configs(self) -> list[Config]:
        return [Config(unroll=u, fused=f) for u in (1, 2) for f in (True, False)]

    def bad_configs(self) -> list[tuple[Config, str]]:
        return [(Config(fused=True), "knob 'unroll' is missing")]

    def failing(self) -> tuple[Kernel, Config, str]:
        def build(problem: Problem, unroll: int) -> Any:
            raise RuntimeError("no such tile: 3 x 5")

        return built(build, signature_from=["x", "a"]), Config(unroll=1), "no such tile: 3 x 5"

    def args(self) -> list[Any]:
        return [[1, 2, 3], 5]

    def check(self, args: list[Any], result: Any) -> None:
        assert result == [args[1] * v for v in args[0]]


def build_times(problem: Problem, *, unroll: int, fused: bool) -> Any:
    def launch(x: list[int], a: int) -> list[int]:
        return [a * v for v in x]

    return launch


class TestBuilt(TestFunction):
    def kernel(self) -> Kernel:
        return built(build_times, signature_from=["x", "a"])

    def changed(self) -> Kernel:
        def build_times(problem: Problem, *, unroll: int, fused: bool) -> Any:
            return lambda x, a: [a * v for v in x]

        return built(build_times, signature_from=["x", "a"])

    def commented(self) -> Kernel:
        def build_times(problem: Problem, *, unroll: int, fused: bool) -> Any:
            # a comment
            def launch(x: list[int], a: int) -> list[int]:
                return [a * v for v in x]

            return launch

        return built(build_times, signature_from=["x", "a"])

    def bad_configs(self) -> list[tuple[Config, str]]:
        return [(Config(x=1), "unknown knob 'x': known: fused, unroll")]


class Jitted:
    """Looks like a JIT-compiled function."""

    def __init__(self, body: Any, arg_names: list[str]) -> None:
        self.fn, self.arg_names = body, arg_names

    def run(self, *args: Any, **knobs: Any) -> Any:
        known = {name: value for name, value in knobs.items() if name in self.arg_names}
        return self.fn(*args, **known)


class TestJitted(TestFunction):
    def kernel(self) -> Kernel:
        return kernel_of(Jitted(times, ["x", "a", "unroll", "fused"]), {"unroll", "fused", "num_warps"})

    def changed(self) -> Kernel:
        return kernel_of(Jitted(build_times, ["x", "a", "unroll", "fused"]), {"unroll", "fused"})

    def commented(self) -> Kernel:
        return kernel_of(Jitted(times, ["x", "a", "unroll", "fused"]), {"unroll"})

    def configs(self) -> list[Config]:
        return [Config(unroll=1, num_warps=w) for w in (2, 4)]

    def bad_configs(self) -> list[tuple[Config, str]]:
        return [(Config(x=1, unroll=1), "unknown knob 'x'")]


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ({"changed": lambda self: self.kernel()}, "test_the_fingerprint_follows_the_source_and_not_its_comments"),
        ({"commented": lambda self: self.changed()}, "test_the_fingerprint_follows_the_source_and_not_its_comments"),
        ({"check": lambda self, args, result: self.wrong()}, "test_every_config_of_a_small_space_is_right"),
        ({"kernel": lambda self: kernel_of(times)}, "test_the_signature_has_no_knobs"),
    ],
)
def test_the_suite_finds_what_is_wrong_with_a_language(fault: dict[str, Any], test: str) -> None:
    def wrong(self: object) -> None:
        raise AssertionError("a launch did something else")

    faulty: Any = type("Faulty", (TestFunction,), {**fault, "wrong": wrong})()
    with pytest.raises((AssertionError, BadInput)):
        getattr(faulty, test)()
    getattr(TestFunction(), test)()


# --- knobs and arguments ---


def launch(fn: Any, knobs: set[str] | None, config: Config, *args: Any) -> Any:
    return ready(kernel_of(fn, knobs), config, args).launch(*args)


def test_a_knob_may_stand_between_arguments() -> None:
    def f(x: int, BLOCK: int, y: int = 7, *, eps: int, z: int = 9) -> tuple[int, ...]:
        return x, BLOCK, y, eps, z

    kernel = kernel_of(f, {"BLOCK"})
    assert list(kernel.signature.parameters) == ["x", "eps", "y", "z"]
    assert launch(f, {"BLOCK"}, Config(BLOCK=64), 1, 2, 3, 4) == (1, 64, 3, 2, 4)
    assert launch(f, {"BLOCK"}, Config(BLOCK=64), 1, 2) == (1, 64, 7, 2, 9)


def test_a_function_of_any_knobs_takes_any() -> None:
    def f(x: int, **knobs: Any) -> tuple[int, dict[str, Any]]:
        return x, knobs

    kernel = kernel_of(f, {"A"})
    assert kernel.knobs is None
    assert str(kernel.signature) == "(x: 'int')"
    assert launch(f, {"A"}, Config({"A": 1, "not an identifier": 2}), 5) == (5, {"A": 1, "not an identifier": 2})


def test_without_a_space_required_keywords_are_the_knobs() -> None:
    assert kernel_of(times).knobs == {"unroll"}
    assert list(kernel_of(times).signature.parameters) == ["x", "a", "fused"]


def test_what_cannot_be_a_kernel_is_refused() -> None:
    def positional(x: int, BLOCK: int, /) -> None: ...
    def starred(*xs: int) -> None: ...

    with pytest.raises(BadInput, match="times: unknown knob 'unrol': did you mean 'unroll'"):
        kernel_of(times, {"unrol"})
    with pytest.raises(BadInput, match="'BLOCK' can be given by position only"):
        kernel_of(positional, {"BLOCK"})
    with pytest.raises(BadInput, match=r"starred takes \*xs"):
        kernel_of(starred)
    with pytest.raises(BadInput, match="of type int is no kernel"):
        kernel_of(5)
    with pytest.raises(BadInput, match="must take the Problem first"):
        built(lambda: times, signature_from=["x"])
    with pytest.raises(BadInput, match="no argument names"):
        built(build_times, signature_from=["x", "x"])
    with pytest.raises(BadInput, match="returned 5"):
        built(lambda problem, a: 5, signature_from=["x"]).load(Config(a=1), Problem({}), None)


def test_a_kernel_stays_itself() -> None:
    kernel = CallableKernel(times)
    assert kernel_of(kernel, {"unroll"}) is kernel


def test_a_jit_function_becomes_a_triton_kernel() -> None:
    triton = pytest.importorskip("triton")

    @triton.jit
    def kernel(x, n, BLOCK):
        pass

    made = kernel_of(kernel, {"BLOCK", "num_warps"}, name="mine")
    assert (made.backend, made.name, list(made.signature.parameters)) == ("triton", "mine", ["grid", "x", "n"])
    with pytest.raises(BadInput, match="unknown knob 'BLOCKS'"):
        kernel_of(kernel, {"BLOCKS"})


def test_a_build_is_made_once_for_each_config_and_problem() -> None:
    made: list[tuple[Any, ...]] = []
    started = threading.Barrier(4)

    def build(problem: Problem, a: int) -> Any:
        made.append((problem, a))
        return lambda x: a * x

    kernel = built(build, signature_from=lambda x: x, version="1")

    def load(_: int) -> Any:
        started.wait()
        return kernel.load(Config(a=2), Problem({"M": 1}), None)

    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(load, range(4)))
    assert len({id(one) for one in loaded}) == 1
    assert loaded[0].launch(21) == 42
    kernel.load(Config(a=2), Problem({"M": 2}), None)
    kernel.load(Config(a=3), Problem({"M": 1}), None)
    assert len(made) == 3


def test_a_build_that_failed_is_tried_again() -> None:
    tries: list[int] = []

    def build(problem: Problem, a: int) -> Any:
        tries.append(a)
        if len(tries) == 1:
            raise MemoryError("out of memory")
        return abs

    kernel = built(build, signature_from=["x"])
    with pytest.raises(MemoryError):
        kernel.load(Config(a=1), Problem({}), None)
    assert kernel.load(Config(a=1), Problem({}), None).launch(-1) == 1


def test_a_version_stands_for_what_cannot_be_fingerprinted() -> None:
    handle = object()
    kernel = CallableKernel(lambda x: handle, version="7")
    assert kernel.fingerprint() == CallableKernel(lambda x: x, version="7").fingerprint()
    assert kernel.fingerprint() != CallableKernel(lambda x: x, version="8").fingerprint()


def test_devices() -> None:
    torch = pytest.importorskip("torch")
    np = pytest.importorskip("numpy")
    kernel = kernel_of(lambda x, y, n: None)
    here, nowhere = torch.zeros(4), torch.zeros(4, device="meta")
    assert kernel.device([here, np.zeros(3), 5]) == cpu()
    assert kernel.device([1, None, "x"]) == cpu()
    with pytest.raises(BadInput, match="arguments on several devices: x on cpu, y on meta"):
        kernel.device([here, nowhere, 5])
    with pytest.raises(BadInput, match="argument 'x' is on meta; good values: cpu, cuda:N"):
        kernel.device([nowhere, torch.tensor(1.0), 5])


def test_every_language_is_described() -> None:
    states = {state.name: state for state in describe()}
    assert list(states) == ["cc", "callable", "triton", "cuda", "cute", "flydsl"]
    assert states["callable"].works


def test_the_signature_of_a_jitted_function_has_its_defaults() -> None:
    def body(x: int, n: int = 3, BLOCK: int = 1) -> tuple[int, int, int]:
        return x, n, BLOCK

    kernel = kernel_of(Jitted(body, ["x", "n", "BLOCK"]), {"BLOCK"})
    assert kernel.signature.parameters["n"].default == 3
    assert kernel.signature.parameters["x"].default is inspect.Parameter.empty
    assert kernel.load(Config(BLOCK=8), Problem({}), None).launch(1) == (1, 3, 8)
    with pytest.raises(SpaceError, match="unknown knob 'n'"):
        kernel.load(Config(n=8), Problem({}), None)
