"""Kernels that write their arguments: put back before each launch and after the search. Reports R03, R05, R17."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.fakes import ScriptedClock

from tunesmith import Config, Space, TunedKernel, autotune
from tunesmith.errors import BadInput, TunesmithWarning
from tunesmith.measure import memory
from tunesmith.measure.inputs import Snapshot
from tunesmith.measure.memory import Twin, checksum, span_of
from tunesmith.measure.mutation import find_mutations

torch = pytest.importorskip("torch")


def clock() -> ScriptedClock:
    return ScriptedClock(lambda config: 1.0 + config["c"])  # type: ignore[operator]


def tuned(body: Callable[..., Any], n: int = 2, **options: Any) -> TunedKernel:
    return autotune(space=Space(c=list(range(n))), clock=clock(), version="1", **options)(body)


def increment(x, *, c):
    x += 1


# --- R03 ------------------------------------------------------------------------------------------------


def test_r03_restored_and_zeroed_is_refused_when_the_kernel_is_decorated() -> None:
    with pytest.raises(BadInput, match="'x' is in restore_value and in reset_to_zero"):
        tuned(increment, restore_value=["x"], reset_to_zero=["x"])


@pytest.mark.parametrize(
    "options", [{"restore_value": ["x"]}, {"reset_to_zero": ["x"]}, {"restore_value": {"x": None}}]
)
def test_r03_the_first_call_and_the_tenth_do_the_same(options: dict[str, Any]) -> None:
    kernel = tuned(increment, **options)
    results = []
    for _ in range(10):
        x = np.array([5.0])
        kernel(x)
        results.append(x.item())
    assert results == [6.0] * 10


def test_r03_a_candidate_that_raises_half_way_leaves_what_one_launch_of_the_winner_leaves() -> None:
    def body(x, *, c):
        x[:2] += 1
        if c == 0:
            raise RuntimeError("half way")
        x[2:] += 1

    x = np.full(4, 5.0)
    tuned(body, restore_value=["x"])(x)
    assert x.tolist() == [6.0] * 4


# --- R05 ------------------------------------------------------------------------------------------------


def step(x, state, acc, *, c):
    if state is not None:
        state += x.sum()
    if acc is not None:
        acc += 1


def r05() -> TunedKernel:
    return tuned(step, restore_value=["state"], reset_to_zero=["acc"])


def test_r05_none_is_skipped_and_a_number_is_refused_by_name() -> None:
    x = torch.ones(3)
    r05()(x, None, None)
    state, acc = torch.full((2,), 7.0), torch.full((2,), 3.0)
    r05()(x, state, acc)
    assert (state.tolist(), acc.tolist()) == ([10.0, 10.0], [4.0, 4.0])
    with pytest.raises(BadInput, match="argument 'state' is listed in restore_value or reset_to_zero and is float"):
        tuned(step, restore_value=["state"])(x, 1.5, None)


def test_r05_one_array_under_two_names_is_restored_once() -> None:
    def body(x, state, acc, *, c):
        state += x  # doubles it: x is state

    x = torch.arange(4.0)
    tuned(body, restore_value=["x", "state"])(x, x, None)
    assert x.tolist() == [0, 2, 4, 6]
    assert len(Snapshot({"x": x, "y": x}, ["x", "y"], [])._restored) == 1


def test_r05_around_a_view_nothing_is_touched() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    state = whole[1:3, ::2]
    snapshot = Snapshot({"state": state}, ["state"], [])
    whole.fill_(-1)
    snapshot.put_back()
    assert whole[1:3, ::2].tolist() == [[6, 8, 10], [12, 14, 16]]
    assert int((whole == -1).sum()) == 24 - 6

    x = torch.ones(2)
    before = torch.arange(24.0).reshape(4, 6)
    whole = before.clone()
    r05()(x, whole[1:3, ::2], None)
    before[1:3, ::2] += 2
    assert torch.equal(whole, before)


def test_r05_repeated_elements_are_restored() -> None:
    one = torch.tensor([[5.0]])

    def body(x, state, acc, *, c):
        state[0, 0] += 1

    tuned(body, restore_value=["state"])(torch.ones(1), one.expand(3, 4), None)
    assert one.item() == 6


# --- views, aliases -------------------------------------------------------------------------------------


def test_overlapping_views_of_one_storage_are_copied_once_and_restored() -> None:
    for whole in (np.arange(100.0), torch.arange(100.0)):
        names = {"a": whole[:60], "b": whole[40:], "c": whole[10:20], "d": whole[5:90:3], "e": whole[50:51]}
        snapshot = Snapshot(names, list(names), [])
        assert sum(memory.n_bytes(piece.target) for piece in snapshot._restored) == whole.nbytes
        whole[:] = -1
        assert snapshot.before_launch is not None
        snapshot.before_launch()
        assert whole.tolist() == list(range(100))


def test_zeroing_a_part_of_what_is_restored_is_both() -> None:
    x = torch.arange(6.0)
    snapshot = Snapshot({"x": x, "tail": x[4:]}, ["x"], ["tail"])
    x.fill_(9)
    assert snapshot.before_launch is not None
    snapshot.before_launch()
    assert x.tolist() == [0, 1, 2, 3, 0, 0]
    snapshot.put_back()
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_the_arrays_of_a_tuple_are_restored() -> None:
    def body(states, *, c):
        for state in states:
            state += 1

    states = (np.zeros(2), None, np.ones(3))
    tuned(lambda states, *, c: body([s for s in states if s is not None], c=c), restore_value=["states"])(states)
    assert states[0].tolist() == [1, 1]  # type: ignore[union-attr]
    assert states[2].tolist() == [2, 2, 2]  # type: ignore[union-attr]


def test_copies_alias_each_other_as_the_originals_do() -> None:
    whole = torch.randn(8, 8)
    args = {"x": whole, "t": whole[2:, 1:5].t(), "e": torch.ones(3, 1).expand(3, 4), "n": 3, "parts": (whole, None)}
    host = {"r": np.arange(9.0)[::-1], "s": np.arange(10, dtype=np.uint8)[3:7]}
    for given in (args, host):
        twin = Twin(given)
        twin.take()
        for name, value in given.items():
            if hasattr(value, "shape"):
                copy = twin.arguments[name]
                assert np.array_equal(np.asarray(value), np.asarray(copy))
                assert span_of(copy).first % 128 == span_of(value).first % 128
                assert copy.stride() == value.stride() if hasattr(value, "stride") else copy.strides == value.strides
                assert not span_of(copy).meets(span_of(value))
        if given is args:
            twin.arguments["x"].zero_()
            assert not twin.arguments["t"].any()
            assert twin.arguments["parts"][0] is twin.arguments["x"]
    assert whole.any()


# --- memory: R17 ----------------------------------------------------------------------------------------


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 1 MB to spare."""
    monkeypatch.setattr(memory, "free_bytes", lambda place: 1_000_000)


@pytest.mark.usefixtures("little")
def test_r17_what_does_not_fit_is_refused_by_name_before_anything_is_launched() -> None:
    launched: list[int] = []

    def body(pool, page, *, c):
        launched.append(c)

    pool = np.zeros((100, 4096), np.float32)
    with pytest.raises(BadInput, match=r"'pool' can't be copied.*needed 1,638,400 bytes.*free 1,000,000 bytes.*on cpu"):
        tuned(body, restore_value=["pool"])(pool, 7)
    assert launched == []


@pytest.mark.usefixtures("little")
def test_r17_of_a_pool_only_the_slice_that_is_written_is_copied() -> None:
    def body(pool, page, *, c):
        pool[page] += 1

    pool = np.zeros((100, 4096), np.float32)
    kernel = tuned(body, restore_value={"pool": lambda pool, page: pool[page]})
    kernel(pool, 7)
    kernel(pool, 8)
    assert (pool[7] == 1).all()
    assert (pool[8] == 1).all()
    assert pool.sum() == 2 * 4096


def test_a_slice_that_is_a_copy_or_of_something_else_is_refused() -> None:
    pool, index = np.zeros((100, 8)), np.array([3, 4])
    for part, says in (
        (lambda pool, index: pool[index], "shares no memory with 'pool', a copy"),
        (lambda pool, index: 3, "returned int; expected a view of 'pool'"),
        (lambda pool, index: pool[1000], "failed: IndexError"),
    ):
        with pytest.raises(BadInput, match=rf"restore_value\['pool'\].*{says}"):
            tuned(lambda pool, index, *, c: None, restore_value={"pool": part})(pool, index)
    with pytest.raises(BadInput, match=r"function in restore_value\['pool'\].*unknown argument 'page'"):
        tuned(lambda pool, index, *, c: None, restore_value={"pool": lambda page: page})
    with pytest.raises(BadInput, match=r"'pol'.*did you mean 'pool'"):
        tuned(lambda pool, index, *, c: None, restore_value={"pol": lambda pool: pool})


def test_what_is_free_is_the_least_of_the_machine_and_the_group(tmp_path: Any) -> None:
    proc, group = tmp_path / "meminfo", tmp_path / "group"
    group.mkdir()
    proc.write_text("MemTotal: 100 kB\nMemAvailable:    50 kB\n")
    assert memory._host_free(proc, group) == 50 * 1024
    for name, text in (
        ("memory.max", "40000"),
        ("memory.current", "30000"),
        ("memory.stat", "anon 1\ninactive_file 99"),
    ):
        (group / name).write_text(text)
    assert memory._host_free(proc, group) == 10_099
    (group / "memory.max").write_text("max")
    assert memory._host_free(proc, group) == 50 * 1024
    assert memory._host_free(tmp_path / "none", tmp_path / "none") is None


# --- what nobody declared -------------------------------------------------------------------------------


def mutations(body: Callable[..., Any], arguments: dict[str, Any], declared: tuple[str, ...] = ()) -> Any:
    snapshot = Snapshot(arguments, declared, [])
    return find_mutations(lambda: body(**arguments), snapshot.put_back, arguments, declared)


def test_an_argument_written_in_place_is_told_from_an_output() -> None:
    def body(x, y, out, state, n):
        out[:] = x * 2
        y += x
        state += 1

    given = {"x": np.ones(3), "y": np.ones(3), "out": np.zeros(3), "state": np.zeros(2, np.int64), "n": 3}
    found = mutations(body, given)
    assert (found.written, found.in_place) == (("y", "out", "state"), ("y", "state"))
    assert given["y"].tolist() == [1, 1, 1]  # put back
    assert given["state"].tolist() == [0, 0]
    found = mutations(body, given, declared=("state",))
    assert (found.written, found.in_place) == (("y", "out"), ("y",))


def test_what_a_second_launch_does_not_change_is_as_if_it_ran_once() -> None:
    def relu(x):
        x[x < 0] = 0

    assert mutations(relu, {"x": np.array([-1.0, 2.0])}).in_place == ()


def test_the_order_of_additions_is_no_mutation_and_chance_is_none() -> None:
    draw = np.random.default_rng(0)

    def atomics(out):
        out[:] = np.float32(1) + draw.standard_normal(out.shape).astype(np.float32) * np.float32(1e-7)

    def chance(out):
        out[:] = draw.standard_normal(out.shape)

    for body in (atomics, chance):
        found = mutations(body, {"out": np.zeros(64, np.float32)})
        assert (found.written, found.in_place) == (("out",), ())


def test_an_alias_of_what_is_declared_is_not_reported() -> None:
    x = torch.ones(8)
    assert mutations(lambda x, view: x.add_(1), {"x": x, "view": x[2:]}, declared=("x",)).written == ()


def test_a_large_array_is_compared_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.measure.mutation.COPIED_BYTES", 100)
    pool = torch.zeros(1000)

    def body(pool, out):
        pool[17] += 1
        out[0] = 5

    found = mutations(body, {"pool": pool, "out": torch.zeros(500)})
    assert (found.written, found.in_place, found.unsure) == (("pool", "out"), (), ("pool",))


@pytest.mark.parametrize("array", [
    torch.randn(100), torch.randn(10, 10)[:, ::2], torch.zeros(13, dtype=torch.uint8)[1:], np.random.rand(7, 7).T[1:],
    torch.zeros(64, dtype=torch.bfloat16),
])  # fmt: skip
def test_a_checksum_sees_one_element(array: Any) -> None:
    before = checksum(array)
    assert checksum(array) == before
    last = tuple(n - 1 for n in array.shape)
    array[last] += 1
    assert checksum(array) != before


def test_what_is_found_is_put_back_and_said_once_with_the_name_to_declare() -> None:
    x = np.full(4, 5.0)
    kernel = tuned(increment, 20)
    with pytest.warns(
        TunesmithWarning, match=r"argument 'x' is written in place.*declare restore_value=\['x'\]"
    ) as told:
        kernel(x)
    assert len(told) == 1
    assert x.tolist() == [6.0] * 4
    assert "restore_value=['x']" in kernel.choice(x).note


def test_where_nothing_can_be_compared_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda place: 1000)
    with pytest.warns(TunesmithWarning, match="whether arguments are written was not looked at: needed 24,000 bytes"):
        tuned(lambda x, *, c: None)(np.zeros(1000))


def test_outputs_that_are_declared_are_not_reported() -> None:
    def counting(out, *, c):
        out += 1

    tuned(counting, outputs=["out"], deterministic=False)(np.zeros(3))


def test_a_launch_that_fails_while_it_is_watched_fails_that_candidate_alone() -> None:
    def body(x, *, c):
        x[0] = 99
        if c == 0:
            raise RuntimeError("no")
        x[0] = 1

    x = np.zeros(2)
    kernel = tuned(body, 3)
    summary = kernel.tune(x)
    assert [config for config, _ in summary.failures] == [Config(c=0)]


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_copies_of_empty_arrays_lie_nowhere_in_particular(shape: tuple[int, ...]) -> None:
    x = torch.ones(5)
    twin = Twin({"x": x, "none": torch.empty(shape), "nor": np.empty(shape), "flags": torch.empty(shape).bool()})
    twin.take()
    assert torch.equal(twin.arguments["x"], x)
    assert twin.arguments["none"].shape == twin.arguments["flags"].shape == twin.arguments["nor"].shape == shape


@pytest.mark.parametrize("n", [0, 1])
def test_one_element_has_bytes_whatever_its_stride(n: int) -> None:
    x = torch.arange(4, dtype=torch.float16)[1 : 1 + 2 * n : 2]

    def add(x, *, c):
        x += 1

    tuned(add, restore_value=["x"])(x)
    assert x.tolist() == [2.0][:n]
    assert memory.as_bytes(x.as_strided((n,), (2,))).shape == (2 * n,)
