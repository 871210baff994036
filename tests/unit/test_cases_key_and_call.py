"""Public reports retold: the key, names that are wrong, what a call may do. R01, R02, R10, R12, R21, R36."""

import builtins
import copy
import hashlib
import inspect
import os
import pickle
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes import ScriptedClock, fresh_process

import tunesmith
from tunesmith import Config, Problem, Space, TunedKernel, autotune, known_device
from tunesmith.errors import BadInput, LookupMiss, TunesmithWarning
from tunesmith.tables import NativeTable
from tunesmith.tables.native import Entry

F32, F16 = np.ones(4, np.float32), np.ones(4, np.float16)


def tuned(key: Any, clock: ScriptedClock, **options: Any) -> TunedKernel:
    @autotune(space=Space(BLOCK=[1, 2]), key=key, clock=clock, **options)
    def f(x, y, m, n, scale=1.0, *, BLOCK):
        return BLOCK

    return f


def by_block() -> ScriptedClock:
    return ScriptedClock(lambda config: float(config["BLOCK"]))  # type: ignore[arg-type]


# --- R01: a kernel called with its keywords in another order ------------------------------------------


def test_r01_every_spelling_of_a_call_has_one_key() -> None:
    clock = by_block()
    f = tuned(["m"], clock)
    f(F32, F16, 7, 5)
    searched = len(clock.asked)
    f(x=F32, y=F16, m=7, n=5)
    f(n=5, y=F16, m=7, x=F32)
    f(F32, n=5, m=7, y=F16)
    f(F32, F16, 7, 5, 1.0)
    f(F32, F16, 7, 5, scale=1.0)
    assert len(clock.asked) == searched

    f(F32, F16, 5, 7)
    assert len(clock.asked) == 2 * searched


# --- R02: a name that is not an argument, or the thing being tuned -----------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": ["n_element"]}, "scale.*key.*'n_element'.*did you mean 'n_elements'"),
        ({"restore_value": ["x"]}, "scale.*restore_value.*'x'"),
        ({"reset_to_zero": ["out_ptr"]}, "scale.*reset_to_zero.*'out_ptr'"),
        ({"key": ["BLOCK"]}, "scale.*'BLOCK'.*knob"),
        ({"strides": ["z"]}, "scale.*strides.*'z'"),
        ({"buckets": {"n": "pow2"}}, "scale.*buckets.*'n'"),
        ({"restore_value": ["x_ptr"], "reset_to_zero": ["x_ptr"]}, "scale.*'x_ptr'.*not both"),
    ],
)
def test_r02_a_wrong_name_is_an_error_at_decoration(options: dict[str, Any], says: str) -> None:
    def scale(x_ptr, n_elements, BLOCK):
        return None

    with pytest.raises(BadInput, match=says):
        autotune(configs=[Config(BLOCK=64)], **options)(scale)


def test_r02_an_empty_key_and_a_name_given_twice_are_fine() -> None:
    clock = ScriptedClock(lambda config: 1.0)

    @autotune(space=Space(BLOCK=[64, 128]), key=[], clock=clock)
    def one(x_ptr, n_elements, *, BLOCK):
        return BLOCK

    @autotune(space=Space(BLOCK=[64, 128]), key=["n_elements", "n_elements"], clock=clock)
    def two(x_ptr, n_elements, *, BLOCK):
        return BLOCK

    assert [one(F32, 10), one(F32, 999)] == [64, 64]
    assert two.explanation(F32, 10)[0].problem == Problem({"n_elements": 10, "x_ptr.dtype": "float32"})


# --- R12: after tuning, a call looks nothing up but one dictionary ------------------------------------


def test_r12_the_warm_path_touches_no_file_hash_clock_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"a{i}" for i in range(24)]
    scope: dict[str, Any] = {}
    exec(f"def f({', '.join(names)}, *, BLOCK):\n    return a23", scope)
    f = autotune(space=Space(BLOCK=[1, 2]), key=["a1", "a2"], clock=by_block(), version="1")(scope["f"])
    for m in range(4):
        f(F32, m, 2, *range(21))

    def forbidden(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a warm call went to the world")

    with monkeypatch.context() as patch:
        for owner, name in [
            (builtins, "open"),
            (os, "stat"),
            (os, "getenv"),
            (time, "time"),
            (time, "perf_counter"),
            (hashlib, "sha256"),
        ]:
            patch.setattr(owner, name, forbidden)
        for _ in range(5000):
            for m in range(4):
                assert f(F32, m, 2, *range(21)) == 20


@pytest.mark.filterwarnings("ignore:.*differ in arguments that are not in key=")
def test_r12_memory_stays_flat_over_many_warm_calls() -> None:
    f = tuned(["m"], by_block())
    for m in range(4):
        f(F32, F16, m, 5)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for i in range(20_000):
        f(F32, F16, i % 4, i)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert grown < 50_000  # two bytes a call


# --- R10: everything but a call works without a device ------------------------------------------------


def test_r10_a_module_of_tuned_kernels_imports_fast_and_light(tmp_path: Path) -> None:
    kernels = "\n".join(
        f'''
@autotune(space=Space(BLOCK=[1, 2]), key=["n"])
def k{i}(x, n, *, BLOCK):
    """Kernel {i}."""
    return BLOCK
'''
        for i in range(50)
    )
    table = tmp_path / "k7.json"
    NativeTable("k7", known_device("NVIDIA H200").identity, {Problem({"n": 4}): Entry(Config(BLOCK=2))}).write(table)
    script = f"""
import time, inspect, pickle
start = time.perf_counter()
{kernels}
print(time.perf_counter() - start)
assert pickle.loads(pickle.dumps(k7)) is k7
assert list(inspect.signature(k7).parameters) == ["x", "n"]
assert k7.__doc__ == "Kernel 7."
assert list(k7.space) == [Config(BLOCK=1), Config(BLOCK=2)]
k7.use_table({str(table)!r})

class Gpu:
    type, index = "cuda", 0
    def __str__(self): return "cuda:0"

class Tensor:
    dtype, shape, device = "torch.float32", (4,), Gpu()

try:
    k7(Tensor(), 4)
except tunesmith.errors.MissingEngine as error:
    assert str(error).endswith("pip install 'tunesmith[torch]'"), error
else:
    raise AssertionError("a GPU kernel ran without a GPU")
heavy = {{"numpy", "torch", "triton", "ray"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = fresh_process(script.replace("from tests.fakes import ScriptedClock", ""), tmp_path)

    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.5


def test_r10_copies_of_a_tuned_kernel_are_itself() -> None:
    f = tuned(["m"], by_block())

    assert copy.copy(f) is f
    assert copy.deepcopy({"f": f})["f"] is f
    with pytest.raises((pickle.PicklingError, AttributeError)):  # a local function has no name to be found by
        pickle.dumps(f)


# --- R21: a mode that forbids tuning, and that says what is missing -----------------------------------


def test_r21_frozen_after_warm_up() -> None:
    clock = by_block()

    @autotune(space=Space(BLOCK=[1, 2]), key=["n"], clock=clock)
    def gate(x, offs, n, bias=None, *, BLOCK):
        return BLOCK

    i64, i32 = np.arange(4), np.arange(4, dtype=np.int32)
    gate(F32, i64, 4)
    asked = len(clock.asked)
    with tunesmith.policy("lookup", strict=True):
        with pytest.raises(LookupMiss, match=r"offs\.dtype: int32, known: int64"):
            gate(F32, i32, 4)
        with pytest.raises(LookupMiss, match="bias"):
            gate(F32, i64, 4, F32)
        assert gate(F32, i64, 4) == 1
        assert gate.lookup(F32, i32, 4) is None
        assert gate.lookup(F32, i64, 4) is not None
    with tunesmith.policy("lookup"):
        assert [gate(F32, i32, 4) for _ in range(3)] == [1, 1, 1]

    assert len(clock.asked) == asked
    ours = [miss for miss in tunesmith.misses() if miss.kernel == "gate"]
    assert [(miss.problem["offs.dtype"], miss.calls) for miss in ours] == [("int32", 3)]


# --- R36: a size that is another at every call --------------------------------------------------------


def lengths(buckets: Any, sizes: Any) -> tuple[int, list[int]]:
    """How many searches, and the T that the body saw."""
    clock, seen = by_block(), []

    @autotune(space=Space(BLOCK=[1, 2]), key=["T", "D"], buckets=buckets, clock=clock, version="1")
    def f(x, T, D, *, BLOCK):
        seen.append(T)

    keys = set()
    for T, D in sizes:
        f(F32, T, D)
        assert seen[-1] == T
        keys.add(f.explanation(F32, T, D)[0].digest)
    return len(keys), seen


@pytest.mark.parametrize(("bucket", "most"), [("pow2", 28), ([256, 1024, 4096], 8)])
def test_r36_buckets_bound_the_searches(bucket: Any, most: int) -> None:
    rng = np.random.default_rng(0)
    sizes = [(int(rng.integers(1, 8193)), int(rng.choice([64, 128]))) for _ in range(500)]
    searches, _ = lengths({"T": bucket}, sizes)

    assert searches <= most


def test_r36_zero_and_beyond_the_edges_are_served() -> None:
    assert lengths({"T": [256, 1024]}, [(0, 64), (5, 64), (10**9, 64), (10**10, 64)])[0] == 2
    assert lengths({"T": "pow2"}, [(0, 64), (1, 64)])[0] == 2


def test_r36_a_field_with_many_values_is_named_once() -> None:
    with pytest.warns(
        TunesmithWarning, match=r"key field 'T' has had 24 different values.*buckets=\{'T': 'pow2'\}"
    ) as seen:
        lengths({}, [(T, 64) for T in range(1, 40)])
    assert len(seen) == 1


def test_r36_what_was_measured_for_a_bucket_is_shown() -> None:
    f = tuned(["m"], by_block(), buckets={"m": "pow2"})
    f(F32, F16, 100, 5)
    choice = f.choice(F32, F16, 90, 5)

    assert choice.measured_at is not None
    assert choice.measured_at["m"] == 100
    assert inspect.signature(f).parameters.keys() == {"x", "y", "m", "n", "scale"}


# --- what a user writes by hand --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"key": "MN"}, {"restore_value": "x"}, {"strides": "x"}, {"dims": "M"}])
def test_one_string_is_not_a_list_of_names(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="is one string; give a list of names"):
        autotune(space=Space(BLOCK=[1, 2]), **options)


def test_a_dtype_that_inputs_do_not_have_is_refused() -> None:
    def make(problem: Problem) -> dict[str, Any]:
        return {"x": np.ones(problem["n"], str(problem.get("dtype", "float32"))), "n": problem["n"]}  # type: ignore[call-overload]

    def stubborn(problem: Problem) -> dict[str, Any]:
        return {"x": np.ones(problem["n"], np.float32), "n": problem["n"]}  # type: ignore[call-overload]

    def kernel(make_inputs: Any) -> TunedKernel:
        return autotune(space=Space(c=[1, 2]), key=["n"], make_inputs=make_inputs)(lambda x, n, *, c: c)

    assert kernel(make).inputs("n=4,dtype=float16")["x"].dtype == np.float16
    with pytest.raises(BadInput, match="dtype=float16 was asked for, and make_inputs made float32"):
        kernel(stubborn).inputs("n=4,dtype=float16")
    with pytest.raises(BadInput, match="dtype cannot be int4"):
        kernel(make).inputs("n=4,dtype=int4")
    with pytest.raises(BadInput, match=r"make_inputs\(n=4\) failed: (_ArrayMemoryError|MemoryError|ValueError)"):
        kernel(lambda problem: {"x": np.ones((10**9, 10**9))}).inputs("n=4")


def test_a_million_sizes_neither_grow_nor_search_where_buckets_are_asked_for() -> None:
    clock = by_block()
    f = tuned(["m"], clock, buckets={"m": "pow2"})
    for m in range(1, 10**6, 97):  # every bucket, ten thousand sizes
        f(F32, F16, m, 5)
    searched = len({f.explanation(F32, F16, m, 5)[0].digest for m in (2**e for e in range(20))})

    assert len(clock.timed) == 2
    assert searched == 20
    assert f._dispatcher.warm_entries <= 21


def test_fixed_knobs_are_a_kernel_of_their_own() -> None:
    f = tuned(["m"], by_block())
    one = f.fix(BLOCK=2)

    assert one(F32, F16, 3, 4) == 2
    assert f(F32, F16, 3, 4) == 1
    with tunesmith.policy("lookup", strict=True):
        assert [f(F32, F16, 3, 4), one(F32, F16, 3, 4)] == [1, 2]


def test_read_only_measures_nothing_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunesmith.options import options

    monkeypatch.setenv("TUNESMITH_READ_ONLY", "1")
    options.cache_clear()
    clock = by_block()
    f = tuned(["m"], clock)

    assert f(F32, F16, 3, 4) == 1
    with pytest.raises(BadInput, match="TUNESMITH_READ_ONLY"):
        f.tune(F32, F16, 3, 4)
    assert clock.asked == []
