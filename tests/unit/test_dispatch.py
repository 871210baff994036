"""From a call to its Problem and its launch: what tells calls apart, what is remembered, and for how long."""

import gc
import inspect
import linecache
import random
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunesmith.core.problem import Problem
from tunesmith.dispatch import WARM_ENTRIES, Call, Dispatcher, KeySpec, check_key_spec
from tunesmith.errors import BadInput
from tunesmith.kernel import Specialised
from tunesmith.options import policy

F16, F32 = np.ones(4, np.float16), np.ones(4, np.float32)


class Kernel:
    """A kernel whose launch returns the Call it was resolved for, and its arguments."""

    def __init__(self, f: Callable[..., Any], names: Any = (), remember: bool = True, **spec: Any) -> None:
        self.resolved: list[Call] = []
        self.remember = remember
        self.dispatcher = Dispatcher(inspect.signature(f), KeySpec(names, **spec), self.resolve, name=f.__name__)

    def resolve(self, call: Call) -> tuple[Callable[..., Any], bool]:
        self.resolved.append(call)
        return lambda *args: (call, args), self.remember

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Call, tuple[Any, ...]]:
        return self.dispatcher.call(*args, **kwargs)

    def problem(self, *args: Any, **kwargs: Any) -> Problem:
        return self.dispatcher.problem_of(*args, **kwargs).problem


class Tensor:
    """What torch's tensors tell, for machines without torch."""

    def __init__(self, dtype: str = "float32", device: str = "cuda:0", stride: Any = (4, 1), address: int = 0) -> None:
        self.dtype, self.device, self.shape = f"torch.{dtype}", device, (4, 4)
        self.stride, self.data_ptr, self.get_device = lambda: stride, lambda: address, lambda: 0


def scaled(x, y, m, n, scale=1.0, *, flag=False):
    """A kernel's signature."""


def one(x):
    """A kernel's signature."""


# --- a call's Problem ------------------------------------------------------------------------------


def test_every_spelling_of_a_call_is_one_problem_and_one_warm_key() -> None:
    k = Kernel(scaled, ("m", "scale"))
    k(F32, F16, 7, 5)
    k(x=F32, y=F16, m=7, n=5)
    k(n=5, y=F16, m=7, x=F32)
    k(F32, n=5, m=7, y=F16)
    k(F32, F16, 7, 5, 1.0)
    k(F32, F16, 7, 5, flag=False, scale=1.0)

    assert [call.problem.text for call in k.resolved] == ["m=7,scale=1.0,x.dtype=float32,y.dtype=float16"]
    k(F32, F16, 5, 7)
    assert len(k.resolved) == 2
    assert k(F32, F16, flag=True, n=2, m=5)[1] == (F32, F16, 5, 2, 1.0, True)


def test_arguments_that_do_not_fit_are_told_as_python_tells_it() -> None:
    k = Kernel(scaled)
    with pytest.raises(TypeError, match=r"scaled\(\) missing 2 required positional arguments: 'm' and 'n'"):
        k(F32, F16)
    with pytest.raises(TypeError, match=r"scaled\(\) got an unexpected keyword argument 'k'"):
        k(F32, F16, 1, 2, k=3)


@pytest.mark.parametrize("seen_first", [0, 1, 2, 3, 4, 5, 6])
def test_none_dtype_and_class_tell_keys_apart_whichever_came_first(seen_first: int) -> None:
    values = [None, F32, F16, 1, 1.0, True, np.float32(1)]
    k = Kernel(lambda x, y: None)
    for x in [values[seen_first], *values]:
        for y in [None, F32]:
            call, args = k(x, y)
            assert call.problem == k.problem(x, y)
            assert args == (x, y) or args[0] is x
    assert k.problem(None, F32).text == "x=none,y.dtype=float32"
    assert k.problem(F32, None) != k.problem(None, F32)


def test_values_that_python_takes_for_equal_are_told_apart() -> None:
    k = Kernel(one, ("x",))
    for x in [1, True, 1.0, "1", None, 0, False, 0.0, np.int64(1), np.bool_(True), np.float64(1)] * 2:
        assert k(x)[0].problem == k.problem(x)
    assert len({call.problem for call in k.resolved}) == 8
    assert k.problem(-0.0) == k.problem(0.0) == k(-0.0)[0].problem


def test_scalars_outside_the_key_are_told_apart_by_class_alone() -> None:
    k = Kernel(scaled, ("m",))
    for n in range(1000):
        k(F32, F32, 1, n, scale=float(n))
    assert len(k.resolved) == 1
    k(F32, F32, 1, 2.0)
    assert len(k.resolved) == 2


def test_strides_and_alignment_are_fields_where_asked() -> None:
    k = Kernel(one, strides=("x",), alignment=("x",))
    a = np.ones((8, 8), np.float32)
    for x, text in [(a, "x1"), (a.T, "1x"), (a[:, ::2], "xx"), (np.broadcast_to(a[0], (8, 8)), '"01"')]:
        assert f"x.strides={text}" in k(x)[0].problem.text
        assert k(x)[0].problem == k.problem(x)
    b = np.zeros(64, np.float32)
    start = -(b.ctypes.data // 4) % 4
    assert k(b[start:])[0].problem["x.align"] == 16
    assert k(b[start + 1 :])[0].problem["x.align"] == 1


def test_device_tells_warm_keys_apart_and_is_no_field() -> None:
    k = Kernel(lambda x, y: None, strides=("x",))
    for device in ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]:
        k(Tensor(device=device), None)
        k(None, Tensor(device=device, dtype="float16"))
    # dropped when a new kind of argument turns up, so ask again
    before = len(k.resolved)
    for device in ["cuda:0", "cuda:1"]:
        k(Tensor(device=device), None)
        k(None, Tensor(device=device, dtype="float16"))
    assert len(k.resolved) == before
    assert len({call.problem for call in k.resolved}) == 2
    assert k.problem(Tensor(), None) == k.problem(Tensor(device="cuda:1"), None)


class NumberedDevice:
    """As cupy's: equal to another of its number, and without a hash."""

    def __init__(self, id: int) -> None:
        self.id = id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberedDevice) and self.id == other.id


class CupyLike:
    """An array of neither torch nor the host."""

    shape, strides, dtype = (4,), (4,), np.dtype("float32")

    def __init__(self, device: int) -> None:
        self.device, self.__cuda_array_interface__ = NumberedDevice(device), {"data": (256, False)}

    def __setitem__(self, *_: Any) -> None: ...


def test_a_device_without_a_hash_is_told_by_its_number() -> None:
    kernel = Kernel(one)
    first, again, other = CupyLike(0), CupyLike(0), CupyLike(1)
    kernel(first)
    kernel(again)
    assert len(kernel.resolved) == 1
    kernel(other)
    assert len(kernel.resolved) == 2


def test_a_key_function_is_given_what_it_names() -> None:
    k = Kernel(scaled, lambda x, m: {"rows": x.shape[0], "big": m > 10}, buckets={"rows": "pow2"})
    call, _ = k(F32, F16, 7, 5)
    assert call.problem.text == "big=false,rows=4,x.dtype=float32,y.dtype=float16"
    k(np.ones(3, np.float32), F16, 8, 5)
    assert len(k.resolved) == 1
    k(np.ones(3, np.float32), F16, 11, 5)
    assert len(k.resolved) == 2
    assert k.resolved[1].exact["rows"] == 3


def test_a_key_function_that_takes_the_rest_is_given_all() -> None:
    k = Kernel(scaled, lambda **rest: {"names": ",".join(sorted(rest))})
    assert k.problem(F32, F16, 1, 2)["names"] == "flag,m,n,scale,x,y"


def test_a_key_function_tells_true_one_and_one_point_nought_apart() -> None:
    k = Kernel(one, lambda x: {"v": x})
    for x in [1, True, 1.0] * 2:
        assert k(x)[0].problem == k.problem(x)
    assert len({call.problem for call in k.resolved}) == 3


@pytest.mark.parametrize(
    ("names", "value", "says"),
    [
        (("x",), F32, "one, key: 'x' is an array .float32, .4,..: name a size"),
        (("x",), [1, 2], "'x' is .1, 2. of type list"),
        (("x",), float("nan"), "'x' is nan"),
        (lambda x: {"v": x}, F32, "'v' is an array"),
        (lambda x: {"x.dtype": 1}, F32, "'x.dtype', a field already"),
        (lambda x: [x], 1, r"returned \[1\], not a mapping"),
    ],
)
def test_what_cannot_be_a_field_is_an_error_each_time(names: Any, value: Any, says: str) -> None:
    k = Kernel(one, names)
    for _ in range(2):
        with pytest.raises(BadInput, match=says):
            k(value)
    assert k.resolved == []


def test_dtypes_that_cannot_be_part_of_a_key_are_an_error() -> None:
    k = Kernel(one)
    x, y = Tensor(), Tensor()
    x.dtype, y.dtype = ["float32"], ["float16"]  # type: ignore[assignment]
    k(x)
    with pytest.raises(BadInput, match="kernel one: an array's dtype or device"):
        k(y)


# --- at decoration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (KeySpec(("n_element",)), "kernel scale, key: unknown argument 'n_element': did you mean 'n_elements'"),
        (KeySpec(strides=("x",)), "kernel scale, strides: unknown argument 'x'"),
        (KeySpec(alignment=("out",)), "kernel scale, alignment: unknown argument 'out'"),
        (KeySpec(specialised=Specialised(divisibility=("k",))), "specialised.divisibility: unknown argument 'k'"),
        (KeySpec(("BLOCK",)), "kernel scale, key: 'BLOCK' is a knob"),
        (KeySpec("n_elements"), r"key: 'n_elements' is one string; write \['n_elements'\]"),  # type: ignore[arg-type]
        (KeySpec(("x_ptr",), {"n_elements": "pow2"}), "kernel scale, buckets: unknown name of key 'n_elements'"),
        (KeySpec(("n_elements",), {"n_elements": "pow3"}), "bucket of 'n_elements': unknown bucket 'pow3'"),
        (KeySpec(("n_elements",), {"n_elements": [4, 2]}), "bucket of 'n_elements': bucket edges"),
        (KeySpec(lambda n: {}), "kernel scale, key function: unknown argument 'n'"),
        (KeySpec(lambda BLOCK: {}), "key function: 'BLOCK' is a knob"),
    ],
)
def test_a_wrong_name_is_an_error_that_names_kernel_list_and_name(spec: KeySpec, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        check_key_spec("scale", ["x_ptr", "n_elements"], spec, ["BLOCK"])


def test_an_empty_key_and_a_name_given_twice_are_fine() -> None:
    check_key_spec("scale", ["x_ptr", "n"], KeySpec(()), ["BLOCK"])
    check_key_spec("scale", ["x_ptr", "n"], KeySpec(("n", "n"), {"n": "pow2"}), ["BLOCK"])
    assert Kernel(one, ("x", "x")).problem(3).text == "x=3"


def test_variadic_parameters_and_a_policy_that_does_not_exist_are_errors() -> None:
    with pytest.raises(BadInput, match=r"\*\*rest"):
        Kernel(lambda x, **rest: None)
    with pytest.raises(BadInput, match="'serch': did you mean 'search'"):
        Dispatcher(inspect.signature(one), KeySpec(), lambda call: (print, True), "serch")


# --- buckets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "most"),
    [("pow2", 28), ([256, 1024, 4096], 8), (lambda t: min(t // 1000, 3), 8)],
)
def test_buckets_bound_the_problems_and_the_body_sees_the_exact_value(how: Any, most: int) -> None:
    rng = random.Random(0)
    k = Kernel(lambda x, T, D: None, ("T", "D"), buckets={"T": how})
    sizes = [0, 1, 8192, *(rng.randint(1, 8192) for _ in range(500))]
    for T in sizes:
        call, args = k(F32, T, rng.choice([64, 128]))
        assert args[1] == T
        assert call.problem == k.problem(F32, T, args[2])
    assert len(k.resolved) <= most + 2 * (how == "pow2")  # T=0 is a bucket of its own
    assert k.dispatcher.problem_of(F32, 300, 64).exact["T"] == 300


def test_a_bucketed_size_may_be_none_or_numpys_and_nothing_but_an_integer() -> None:
    k = Kernel(one, ("x",), buckets={"x": "pow2"})
    for x, bucket in [(3, 4), (None, None), (np.int32(3), 4), (5, 8), (0, 0), (1, 1), (2, 2)] * 2:
        assert k(x)[0].problem["x"] == bucket
    for x in [1.5, True, "3"]:
        with pytest.raises(BadInput, match="buckets are for integers"):
            k(x)


def test_a_bucket_function_may_return_what_python_takes_for_equal() -> None:
    k = Kernel(one, ("x",), buckets={"x": lambda n: [1, True, 1.0][n]})
    for n in [0, 1, 2] * 2:
        assert k(n)[0].problem == k.problem(n)
    assert len(k.resolved) == 3


# --- the binary ------------------------------------------------------------------------------------


def test_specialisation_tells_warm_keys_apart_and_is_no_part_of_the_problem() -> None:
    k = Kernel(scaled, specialised=Specialised(alignment=("x",), divisibility=("m",)))
    aligned, off = Tensor(address=256), Tensor(address=260)
    cases = [
        (aligned, 32, ("x % 16 == 0", "m % 16 == 0")),
        (aligned, 1, ("x % 16 == 0", "m == 1")),
        (off, 33, ()),
        (off, 2**40, ("m % 16 == 0", "m needs 64 bits")),
        (off, 2.0, ()),
        (off, None, ()),
        (None, np.int64(16), ("m % 16 == 0",)),
    ]
    for x, m, facts in cases * 2:
        assert k(x, F32, m, 5)[0].specialisation == facts
    assert len({call.problem for call in k.resolved if call.args[0] is not None and call.args[2] is not None}) == 1
    before = len(k.resolved)
    k(aligned, F32, 64, 5)
    k(off, F32, 35, 5)
    assert len(k.resolved) == before


# --- what is remembered ----------------------------------------------------------------------------


def test_addresses_that_the_guard_has_read_are_handed_on_to_launches_that_take_them() -> None:
    def launch_of(*takes: str) -> Any:
        def launch(x: Any, y: Any, *addresses: int) -> Any:
            return addresses

        launch.takes_addresses = takes  # type: ignore[attr-defined]
        return launch

    makes = {"float32": launch_of("x", "y"), "float16": launch_of("x")}
    spec = KeySpec(specialised=Specialised(alignment=("x", "y")))
    call = Dispatcher(
        inspect.signature(lambda x, y: None), spec, lambda call: (makes[str(call.args[0].dtype).split(".")[1]], True)
    ).call
    args, others = (Tensor(address=32), Tensor(address=64)), (Tensor("float16"), Tensor("float16"))
    for tensors, read in (
        (args, (32, 64)),
        ((Tensor(address=160), args[1]), (160, 64)),
        ((Tensor(address=8), args[1]), ()),  # another form, which asks each whether it is aligned
    ):
        call(*tensors)
        assert call(*tensors) == read
    for _ in range(2):
        assert call(*others) == ()  # what takes other addresses gets none
        assert call(*args) == ()


def test_a_policy_scope_takes_effect_at_once() -> None:
    k = Kernel(one)
    k(1)
    with policy("default"):
        k(1)
        k(1)
        with policy("lookup", strict=True):
            k(1)
    k(1)
    assert len(k.resolved) == 3


def test_a_resolve_that_raises_or_says_so_is_not_remembered() -> None:
    k = Kernel(one, remember=False)
    k(1)
    k(1)
    assert len(k.resolved) == 2

    def refuse(call: Call) -> Any:
        raise LookupError("nothing known")

    k.dispatcher = Dispatcher(inspect.signature(one), KeySpec(), refuse)
    for _ in range(2):
        with pytest.raises(LookupError, match="nothing known") as caught:
            k(1)
        assert caught.value.__context__ is None


def test_an_error_of_the_launch_is_not_taken_for_a_miss() -> None:
    resolved: list[Call] = []

    def broken(x: Any) -> None:
        raise KeyError(x)

    def resolve(call: Call) -> Any:
        resolved.append(call)
        return broken, True

    d = Dispatcher(inspect.signature(one), KeySpec(), resolve)
    for _ in range(3):
        with pytest.raises(KeyError):
            d.call(1)
    assert len(resolved) == 1


def test_clear_forgets_what_is_warm_and_what_other_threads_are_resolving() -> None:
    k = Kernel(one)
    k(1)
    k.dispatcher.clear()
    k(1)
    assert len(k.resolved) == 2

    def cleared_meanwhile(call: Call) -> Any:
        if len(k.resolved) == 2:
            other = threading.Thread(target=k.dispatcher.clear)
            other.start()
            other.join()
        return k.resolve(call)

    k.dispatcher = Dispatcher(inspect.signature(one), KeySpec(), cleared_meanwhile)
    for _ in range(3):
        k(1)
    assert len(k.resolved) == 4


def test_a_resolve_that_clears_is_remembered() -> None:
    k = Kernel(one, ("x",))

    def search(call: Call) -> Any:
        k.dispatcher.clear()
        return k.resolve(call)

    k.dispatcher = Dispatcher(inspect.signature(one), KeySpec(("x",)), search)
    for x in [1, 1, 2, 2]:
        k(x)
    assert len(k.resolved) == 2
    k(1)
    assert len(k.resolved) == 3


def test_a_kind_that_turns_up_while_another_call_resolves_does_not_lose_it() -> None:
    k = Kernel(one)

    def reenter(call: Call) -> Any:
        if call.args == (1,) and len(k.resolved) == 0:
            k.resolved.append(call)
            k(None)
            k(1.0)
        return k.resolve(call)

    k.dispatcher = Dispatcher(inspect.signature(one), KeySpec(), reenter)
    assert k(1)[0].problem == k.problem(1)
    before = len(k.resolved)
    assert k(1)[0].args == (1,)
    assert k(1.0)[0].args == (1.0,)
    assert len(k.resolved) == before


def test_the_warm_keys_are_bounded_and_the_newest_stay() -> None:
    k = Kernel(lambda x, n: None, ("n",), strides=("x",))
    for n in range(2 * WARM_ENTRIES):
        k(Tensor(stride=(n, 1)), n)
    assert WARM_ENTRIES // 2 <= k.dispatcher.warm_entries <= WARM_ENTRIES
    before = len(k.resolved)
    for n in range(2 * WARM_ENTRIES - WARM_ENTRIES // 4, 2 * WARM_ENTRIES):
        k(Tensor(stride=(n, 1)), n)
    assert len(k.resolved) == before


def test_arguments_are_not_kept_alive() -> None:
    k = Kernel(lambda x, f: None)
    k.resolve = lambda call: (lambda *args: None, True)  # type: ignore[method-assign]
    k.dispatcher = Dispatcher(inspect.signature(lambda x, f: None), KeySpec(), k.resolve)
    x = Tensor()
    gone = weakref.ref(x)
    k(x, 1)
    del x
    gc.collect()
    assert gone() is None


def test_call_is_one_function_that_can_stand_for_a_method() -> None:
    k = Kernel(one, ("x",))
    stored = k.dispatcher.call
    made = type("Tuned", (), {"__call__": staticmethod(stored)})()
    for x in [1, None, 2.0, "a"]:
        assert made(x)[1] == stored(x)[1] == (x,)
    assert stored is k.dispatcher.call
    assert len(k.resolved) >= 4


def test_a_traceback_shows_the_written_source_and_it_goes_with_the_dispatcher() -> None:
    def resolve(call: Call) -> Any:
        raise RuntimeError("no")

    d = Dispatcher(inspect.signature(one), KeySpec(), resolve, name="one")
    with pytest.raises(RuntimeError) as caught:
        d.call(1)
    text = "".join(traceback.format_exception(caught.value))
    assert "return _t_miss((x, ))" in text
    filenames = [name for name in linecache.cache if name.startswith("<tunesmith: call of one,") and name in text]
    assert len(filenames) == 1
    del d, caught
    gc.collect()
    assert filenames[0] not in linecache.cache


# --- whatever is called ----------------------------------------------------------------------------

_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.sampled_from([0.0, 1.0, 2.0, -0.0]),
    st.sampled_from(["", "1", "None", "float32"]),
    st.sampled_from([np.int64(1), np.int32(16), np.float32(1), np.bool_(True), np.float64(2)]),
)
_arrays = st.one_of(
    st.builds(
        Tensor,
        st.sampled_from(["float32", "float16"]),
        st.sampled_from(["cuda:0", "cuda:1", "cpu"]),
        st.sampled_from([(4, 1), (1, 4), (0, 1), (8, 2)]),
        st.sampled_from([0, 4, 16]),
    ),
    st.sampled_from([F32, F16, np.ones((4, 4), np.float32)[:, ::2], np.ones(4, ">f4")]),
)
_calls = st.lists(st.tuples(_arrays | _values, st.none() | _arrays, _values, _values), min_size=1, max_size=25)


@settings(max_examples=150, deadline=None)
@given(_calls)
def test_no_call_ever_gets_the_launch_of_another_problem(calls: list[tuple[Any, ...]]) -> None:
    k = Kernel(
        lambda x, y, m, n: None,
        ("m",),
        strides=("y",),
        specialised=Specialised(alignment=("x",), divisibility=("m", "n")),
    )
    for args in [*calls, *calls]:
        call, given = k(*args)
        fresh = k.dispatcher.problem_of(*args)
        assert (call.problem, call.exact, call.specialisation) == (fresh.problem, fresh.exact, fresh.specialisation)
        assert all(a is b for a, b in zip(given, args, strict=True))
        devices = [getattr(a, "device", None) if isinstance(a, Tensor) else None for a in args[:2]]
        assert devices == [getattr(a, "device", None) if isinstance(a, Tensor) else None for a in call.args[:2]]
    before = len(k.resolved)
    for args in calls:
        k(*args)
    assert len(k.resolved) == before  # all kinds are known: everything is warm


def test_threads_that_bring_new_kinds_at_once_get_their_own_launches() -> None:
    k = Kernel(lambda x, m: None, ("m",))
    values = [None, F32, F16, Tensor(), Tensor("float16"), Tensor(device="cuda:1"), 1, 1.0, True, "s", np.float32(2)]
    barrier = threading.Barrier(8)
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        barrier.wait()
        for i in range(400):
            x, m = rng.choice(values), rng.choice([1, 2, True, 1.0, None])
            try:
                call, args = k(x, m)
            except Exception as error:  # noqa: BLE001  # shown by the assertion
                wrong.append(error)
                return
            same_device = getattr(call.args[0], "device", None) == getattr(x, "device", None)
            if call.problem != k.problem(x, m) or args[0] is not x or not same_device:
                wrong.append((x, m, call))
            if i % 50 == 0:
                k.dispatcher.clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- torch -----------------------------------------------------------------------------------------


def test_torch_tensors_parameters_and_devices() -> None:
    torch = pytest.importorskip("torch")
    k = Kernel(lambda x, y: None, strides=("x",), alignment=("y",))
    x = torch.empty(4, 4)
    calls = [
        (x, None),
        (x.half(), None),
        (x.t(), x),
        (x, x.view(-1)[1:]),
        (x.to("meta"), None),
        (torch.nn.Parameter(x), None),
        (x.numpy(), None),
        (torch.tensor(3), x.expand(4, 4, 4)),
    ]
    for args in calls * 2:
        call, _ = k(*args)
        assert call.problem == k.problem(*args)
        assert str(getattr(call.args[0], "device", "")) == str(getattr(args[0], "device", ""))
    assert k.problem(x, None) == k.problem(torch.nn.Parameter(x), None) == k.problem(x.numpy(), None)
    assert Kernel(one, ("x",)).problem(torch.tensor(3)).text == "x=3"
