"""`kernel.prepare`: tuned and loaded from shapes alone, so that the first real call finds everything in memory."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import ScriptedClock

import tunesmith
from tunesmith import Config, Problem, Shaped, Space, TunedKernel, autotune, binaries, policy, tracks
from tunesmith.core.problem import DTYPES
from tunesmith.errors import BadInput, LookupMiss, NotPrepared, TunesmithWarning
from tunesmith.events import Preparing, Started, watched
from tunesmith.measure.arrays import layout_of, outline_of
from tunesmith.store import default_store


def by_block() -> ScriptedClock:
    return ScriptedClock(lambda config: float(config["BLOCK"]))  # type: ignore[arg-type]


def tuned(body: Callable[..., Any] | None = None, **options: Any) -> tuple[TunedKernel, ScriptedClock]:
    clock = by_block()

    def scale(x, n, out=None, *, BLOCK):
        return BLOCK

    declared = {"space": Space(BLOCK=[2, 1]), "key": ["n"], "clock": clock, "version": "1", **options}
    return autotune(**declared)(body or scale), clock


def vector(n: int, dtype: str = "float32") -> dict[str, Any]:
    return {"x": Shaped((n,), dtype), "n": n}


@contextmanager
def in_memory(kernel: TunedKernel, monkeypatch: pytest.MonkeyPatch, *, warm: bool = True) -> Iterator[None]:
    """Within this scope nothing may be read, compiled or measured; `warm`: nor a call's device be asked for."""

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a prepared call went further than memory")

    with monkeypatch.context() as patch:
        patch.setattr(type(default_store()), "choice", forbidden)
        patch.setattr(type(default_store()), "trials", forbidden)
        patch.setattr(binaries, "compile_all", forbidden)
        patch.setattr(tracks, "search", forbidden)
        if warm:
            patch.setattr(type(kernel.kernel), "device", forbidden)
        yield


# --- a later call hits ---------------------------------------------------------------------------------


@pytest.mark.about_time("the winner that its times say is asserted")
def test_every_problem_is_warm_whatever_the_others_were(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, clock = tuned()
    problems = [vector(8), vector(16, "float16"), {"n": 32, "x": None}, {**vector(64), "out": Shaped((4, 4), "int8")}]
    choices = kernel.prepare(problems)
    assert [choice.source for choice in choices] == ["search"] * 4
    asked = len(clock.asked)
    with in_memory(kernel, monkeypatch):
        assert kernel(np.ones(8, np.float32), 8) == 1
        assert kernel(n=16, x=np.ones(16, np.float16)) == 1
        assert kernel(None, 32) == 1
        assert kernel(np.ones(64, np.float32), 64, np.ones((4, 4), np.int8)) == 1
    assert len(clock.asked) == asked


@pytest.mark.about_time("the winner that its times say is asserted")
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["float32", "float64", "uint8"])), max_size=8))
def test_any_list_of_problems_is_warm(shapes: list[tuple[int, str]]) -> None:
    kernel, _ = tuned(strides=["x"], alignment=["x"])
    kernel.prepare([vector(n, dtype) for n, dtype in shapes])
    with pytest.MonkeyPatch.context() as monkeypatch, in_memory(kernel, monkeypatch):
        for n, dtype in shapes:
            layout = layout_of(Shaped((n,), dtype), "cpu", "numpy")
            assert kernel(layout.allocate(), n) == 1


def test_strides_and_alignment_are_those_of_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = tuned(strides=["x"], alignment=["x"])
    kernel.prepare([{"x": Shaped((4, 8), strides=(1, 4)), "n": 1}])
    with in_memory(kernel, monkeypatch):
        kernel(layout_of(Shaped((8, 4)), "cpu", "numpy").allocate().T, 1)
    key, _, trials = kernel.explanation(np.ones((8, 4), np.float32).T, 1)
    assert key.problem["x.strides"] == "1x"
    assert len(trials) == 2


@pytest.mark.about_time("the winner that its times say is asserted")
def test_text_and_problems_need_make_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"x": np.ones(8, np.float32)}
    kernel, _ = tuned(make_inputs=lambda problem: {**made, "n": problem["n"]})
    assert [c.config for c in kernel.prepare(["n=8", Problem({"n": 16})])] == [Config(BLOCK=1)] * 2
    with in_memory(kernel, monkeypatch):
        [kernel(made["x"], n) for n in (8, 16)]

    without, _ = tuned()
    with pytest.raises(NotPrepared, match=r"problem 1 \(n=8\): .* pass make_inputs="):
        without.prepare(["n=8"])


def test_sizes_of_a_bucket_share_what_the_first_was_measured_at(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, clock = tuned(buckets={"n": "pow2"})
    first, second = kernel.prepare([vector(300), vector(400)])
    assert first is second
    assert first.measured_at is not None
    assert first.measured_at["n"] == 300
    asked = len(clock.asked)
    with in_memory(kernel, monkeypatch):
        kernel(np.ones(511, np.float32), 511)
    assert len(clock.asked) == asked


@pytest.mark.about_time("the winner that its times say is asserted")
def test_what_a_search_finds_serves_lookup_without_reading_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = tuned(policy="lookup")
    with policy("search"):
        kernel.prepare([vector(n) for n in (8, 16)])
    x = np.ones(8, np.float32)
    with in_memory(kernel, monkeypatch):
        assert [kernel(x, n) for n in (8, 16)] == [1, 1]  # the kernel's own policy
    with in_memory(kernel, monkeypatch, warm=False), policy("lookup", strict=True):
        assert [kernel(x, n) for n in (8, 16)] == [1, 1]


@pytest.mark.about_time("the winner that its times say is asserted")
def test_a_kernel_of_one_config_and_one_built_for_each_problem_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = tuned(space=Space(BLOCK=[7]))
    assert one.prepare([vector(8)])[0].source == "only candidate"
    with in_memory(one, monkeypatch):
        assert one(np.ones(8, np.float32), 8) == 7

    builds: list[str] = []

    def build(problem: Problem, BLOCK: int) -> Callable[..., int]:
        builds.append(problem.text)
        return lambda x, n: n * BLOCK

    made = tunesmith.built(build, signature_from=["x", "n"], version="1")
    kernel, _ = tuned(made, version=None, buckets={"n": "pow2"})
    kernel.prepare([vector(n) for n in (300, 400)])
    built = len(builds)
    with in_memory(kernel, monkeypatch, warm=False):
        assert [kernel(np.ones(9, np.float32), n) for n in (300, 400)] == [300, 400]
    assert len(builds) == built


def test_a_c_kernel_is_compiled_and_loaded_under_lookup_and_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
#ifndef UNROLL
#define UNROLL 1
#endif
#include <stdint.h>
void fill(float *x, int64_t n) { for (int64_t i = 0; i < n; i++) x[i] = UNROLL; }
"""
    kernel = autotune(space=Space(UNROLL=[1, 2, 4]), key=["n"], policy="lookup", default=Config(UNROLL=4))(
        tunesmith.cc.kernel(source)
    )
    x = np.zeros(8, np.float32)
    with pytest.warns(TunesmithWarning, match=r"nothing is known of 1 of 1 problems.*problem 1 \(n=8"):
        [choice] = kernel.prepare([{"x": x, "n": 8}])
    assert (choice.source, choice.config, x.any()) == ("default", Config(UNROLL=4), False)
    with in_memory(kernel, monkeypatch):
        kernel(x, 8)
    assert x.tolist() == [4.0] * 8


# --- how far it goes -----------------------------------------------------------------------------------


def test_what_is_known_allocates_and_launches_nothing() -> None:
    launches: list[Any] = []

    def body(x, n, *, BLOCK):
        launches.append(x)

    first, _ = tuned(body)
    first.prepare([vector(8)])
    launches.clear()
    again, _ = tuned(body)  # another process, as far as memory goes
    [choice] = again.prepare([vector(8)])
    assert choice.source == "store"
    with policy("default"):
        assert again.prepare([vector(1 << 50)])[0].source == "default"
    assert launches == []


def test_a_strict_lookup_names_each_miss_and_loads_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = tuned()
    kernel.prepare([vector(8)])
    fresh, clock = tuned()
    with policy("lookup", strict=True):
        with pytest.raises(LookupMiss, match=r"2 of 3 problems(.|\n)*problem 1 \(n=4.*\n.*problem 3 \(n=16"):
            fresh.prepare([vector(n) for n in (4, 8, 16)])
        with in_memory(fresh, monkeypatch):
            fresh(np.ones(8, np.float32), 8)
    assert clock.asked == []


@pytest.mark.about_time("the winner that its times say is asserted")
def test_one_that_fails_stops_no_other_and_keeps_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[weakref.ref[Any]] = []

    def body(x, n, *, BLOCK):
        seen.append(weakref.ref(x))
        if n == 2:
            raise ValueError("not of two")
        return BLOCK

    kernel, _ = tuned(body)
    enormous = vector(1 << 50)
    with pytest.raises(NotPrepared) as raised:
        kernel.prepare([vector(1), vector(2), enormous, {"y": 1}, {"x": Shaped((3,), "bfloat16"), "n": 3}, vector(4)])
    lines = str(raised.value)
    assert "4 of 6 problems are not prepared" in lines
    assert "problem 2 (n=2,x.dtype=float32): scale" not in lines
    assert "problem 2 (n=2,x.dtype=float32)" in lines
    assert "not of two" in lines
    assert "x needs 4,503,599,627,370,496 bytes (4096.0 TiB)" in lines
    assert "unknown argument 'y'" in lines
    assert "numpy has no bfloat16" in lines
    assert all(ref() is None for ref in seen)
    with in_memory(kernel, monkeypatch):
        assert [kernel(np.ones(1, np.float32), n) for n in (1, 4)] == [1, 1]


def test_a_problems_arrays_are_gone_before_the_next_ones_are_made() -> None:
    alive: list[weakref.ref[Any]] = []

    def fill(array: Any, arguments: Any) -> None:
        assert not any(ref() is not None for ref in alive), arguments
        alive.append(weakref.ref(array))
        array[...] = arguments["n"]

    kernel, _ = tuned()
    kernel.prepare([vector(n) for n in (8, 16, 32)], fill={"x": fill})
    assert len(alive) == 3


def test_ctrl_c_keeps_what_was_measured() -> None:
    def body(x, n, *, BLOCK):
        if n == 16:
            raise KeyboardInterrupt

    kernel, _ = tuned(body)
    with pytest.raises(KeyboardInterrupt):
        kernel.prepare([vector(8), vector(16), vector(32)])
    assert kernel.lookup(np.ones(8, np.float32), 8) is not None
    assert kernel.lookup(np.ones(8, np.float32), 32) is None


def test_inside_a_capture_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, clock = tuned()
    monkeypatch.setattr("tunesmith.prepare.why_not_to_measure", lambda: "inside a CUDA graph's capture")
    with pytest.raises(BadInput, match="inside a CUDA graph's capture"):
        kernel.prepare([vector(8)])
    assert clock.asked == []


@pytest.mark.parametrize(
    ("problems", "options", "says"),
    [
        ("n=8", {}, "is one problem"),
        ({"n": 8}, {}, "is one problem"),
        ([8], {}, "8 is no problem"),
        ([], {"device": "gpu"}, "device='gpu'; good values: cpu, cuda, cuda:N"),
        ([], {"fill": {"y": 0}}, "fill: unknown argument 'y'"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(problems: Any, options: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        tuned()[0].prepare(problems, **options)


def test_watchers_hear_whose_turn_it_is() -> None:
    heard: list[Any] = []
    kernel, _ = tuned()
    with watched(heard.append):
        kernel.prepare([vector(8), vector(8), vector(16)])
    turns = [event for event in heard if isinstance(event, Preparing | Started)]
    assert [type(event).__name__ for event in turns] == ["Preparing", "Started", "Preparing", "Preparing", "Started"]
    assert turns[2] == Preparing("scale", 2, 3)


# --- what the arrays hold ------------------------------------------------------------------------------


def launched_on(kernel_arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def body(x, y=None, n=1, *, BLOCK):
        seen.update(x=x, y=y)

    tuned(body)[0].prepare([kernel_arguments], **options)
    return seen


def test_floats_are_random_and_arguments_differ() -> None:
    seen = launched_on({"x": Shaped((64, 64), "float16"), "y": Shaped((64, 64), "complex64")})
    assert seen["x"].std() == pytest.approx(1, abs=0.1)
    assert seen["y"].real.std() == pytest.approx(1, abs=0.1)
    assert seen["y"].imag.std() == pytest.approx(1, abs=0.1)
    assert (seen["x"] == seen["y"].real.astype(np.float16)).mean() < 0.1
    assert seen["x"].ctypes.data % 16 == seen["y"].ctypes.data % 16 == 0


def test_integers_that_may_be_indices_need_real_values() -> None:
    with pytest.raises(NotPrepared, match=r"y is only described.*fill=\{'y': 0\} says that zeros are right"):
        launched_on({"x": Shaped((99,), "uint8"), "y": Shaped((99,), "int32")})
    seen = launched_on({"x": Shaped((99,), "uint8"), "y": Shaped((99,), "int32")}, fill={"y": 0})
    assert not seen["y"].any()
    assert len(set(seen["x"].tolist())) > 20

    def lengths(array: Any, arguments: Any) -> None:
        array[...] = np.arange(array.size) + arguments["n"]

    seen = launched_on({"x": Shaped((9,), "int64"), "y": Shaped((3,), "int32"), "n": 5}, fill={"x": 0, "y": lengths})
    assert (seen["x"].any(), seen["y"].tolist()) == (False, [5, 6, 7])


def test_shapes_that_are_none_are_refused() -> None:
    for bad, says in (
        ({"shape": (-1,)}, r"shape=\(-1,\)"),
        ({"shape": (1,), "dtype": "float33"}, "unknown dtype 'float33': did you mean 'float32'"),
        ({"shape": (1, 2), "strides": (1,)}, "a stride for each dimension"),
    ):
        with pytest.raises(BadInput, match=says):
            Shaped(**bad)  # type: ignore[arg-type]
    assert Shaped((2,), np.float16) == Shaped((2,), np.dtype("float16")) == Shaped((2,), "float16")  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=4),
    st.sampled_from([d for d in DTYPES if "bfloat" not in d and "float8" not in d]),
)
def test_an_array_lies_as_described_and_its_outline_too(axes: list[tuple[int, int]], dtype: str) -> None:
    shape, strides = tuple(size for size, _ in axes), tuple(step for _, step in axes)
    layout = layout_of(Shaped(shape, dtype, strides), "cpu", "numpy")
    array = layout.allocate()
    for one in (array, layout.outline(), outline_of(array)):
        assert (one.shape, one.dtype, one.ctypes.data % 16) == (shape, np.dtype(dtype), 0)
        assert one.strides == tuple(step * array.itemsize for step in strides)
        assert isinstance(one, np.ndarray)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        np.asarray(layout.outline()).max()
    assert array.tobytes() == layout.allocate().tobytes()  # every element is inside, and the same each time
