"""Copies of a call's cold inputs: what they look like, how many, for whom there are none."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any, cast

import pytest

from tunesmith import Config, Space, autotune
from tunesmith.kernel import Run
from tunesmith.measure import rotation
from tunesmith.measure.bench import LocalBench
from tunesmith.measure.rotation import Rotation
from tunesmith.subject import local_bench

torch = pytest.importorskip("torch")

MIB = 1 << 20


def tensor(n_bytes: int = MIB) -> Any:
    return torch.arange(n_bytes // 4, dtype=torch.float32)


def lies(array: Any) -> tuple[Any, ...]:
    return array.shape, array.stride(), array.dtype, array.device, array.data_ptr() % 256, type(array)


LAYOUTS = {
    "contiguous": lambda: tensor(4096),
    "transposed": lambda: tensor(4096).view(32, 32).mT,
    "with gaps": lambda: tensor(4096).view(32, 32)[:, 3:17],
    "misaligned": lambda: tensor(4096)[1:],
    "at 16 bytes": lambda: tensor(4096)[4:],
    "repeated": lambda: tensor(128).expand(8, 32),
    "overlapping": lambda: tensor(4096).as_strided((100, 16), (8, 1)),
    "bfloat16": lambda: tensor(4096).bfloat16()[3:],
    "bool": lambda: tensor(4096) > 7,
    "scalar": lambda: torch.tensor(3.0),
    "parameter": lambda: torch.nn.Parameter(tensor(4096)),
    "frozen parameter": lambda: torch.nn.Parameter(tensor(4096), requires_grad=False),
    "needs a gradient": lambda: tensor(4096).requires_grad_(),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_copy_has_the_same_content_and_lies_as_the_original_does_in_other_memory(name: str) -> None:
    x, w = tensor(64), LAYOUTS[name]()
    sets = Rotation({"x": x, "n": 3, "w": w, "none": None}, ["x"]).sets(MIB)
    assert len(sets) == rotation.MOST_COPIES
    assert sets[0] == (x, 3, w, None)
    seen = set[int]()
    for args in sets:
        assert args[0] is x
        assert args[1::2] == (3, None)
        assert lies(args[2]) == lies(w)
        assert args[2].requires_grad == w.requires_grad
        assert torch.equal(args[2], w)
        seen.add(args[2].data_ptr())
    assert len(seen) == len(sets)


def test_arguments_that_share_memory_share_it_in_each_copy() -> None:
    packed = tensor().view(2, -1)
    for _, q, both in Rotation({"n": 1, "q": packed[0], "both": (packed, packed[1])}).sets(MIB):
        assert q.data_ptr() == both[0].data_ptr()
        assert both[1].data_ptr() == both[0].data_ptr() + q.numel() * 4


@pytest.mark.parametrize(
    ("set_bytes", "cache_bytes", "copies", "again"),
    [(MIB, MIB, 4, True), (3 * MIB, 4 * MIB, 6, True), (16 * MIB, MIB, 2, True), (4096, MIB, 64, False)],
)
def test_so_many_that_none_is_in_the_cache_when_its_turn_comes_again(
    set_bytes: int, cache_bytes: int, copies: int, again: bool
) -> None:
    made = Rotation({"w": tensor(set_bytes)})
    assert len(made.sets(cache_bytes)) == copies
    assert made.sets(cache_bytes) is made.sets(cache_bytes)
    assert made.again(cache_bytes) == again


@pytest.mark.parametrize(
    ("free", "copies"),
    [(1 << 40, 8), (28 * MIB, 8), (24 * MIB, 7), (20 * MIB, 6), (16 * MIB, 0), (0, 0)],
)
def test_copies_take_a_quarter_of_the_free_memory_at_most(
    free: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "free_bytes", lambda place: free)
    made = Rotation({"w": tensor()})
    assert len(made.sets(2 * MIB)) == copies
    assert bool(made.note) == (copies == 0)
    if not copies:
        assert "(1.0 MiB) are more than a quarter of what is free" in made.note


def test_memory_that_runs_out_all_the_same_is_a_note_and_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(arguments: Mapping[str, Any]) -> Any:
        raise MemoryError("CUDA out of memory")

    monkeypatch.setattr(rotation, "Twin", none_left)
    made = Rotation({"w": tensor()})
    assert made.sets(MIB) == ()
    assert "CUDA out of memory" in made.note


class Packed:
    """An object of the author's that holds weights."""

    def __init__(self, w: Any) -> None:
        self.w = w


class Descriptor:
    def __init__(self, base: Any) -> None:
        self.base, self.block_shape = base, [16, 16]


@pytest.mark.parametrize(
    ("arguments", "hot", "why"),
    [
        (lambda: {"n": 3, "x": tensor()}, ["x"], "all are hot"),
        (lambda: {"n": 3}, [], "no argument is a tensor"),
        (lambda: {"w": tensor()[:0]}, [], "empty"),
        (lambda: {"w": tensor(), "p": Packed(tensor())}, [], "'p' is a Packed"),
        (lambda: {"w": tensor(), "f": lambda: 1}, [], "'f' is a function"),
        (lambda: {"w": (tensor(), [Packed(1)])}, [], "'w' is a Packed"),
        (lambda: {"w": {"a": tensor()}}, [], "'w' is a dict"),
        (lambda: {"w": Descriptor(tensor().view(512, 512))}, [], "descriptor"),
        (lambda: {"w": tensor().to_sparse()}, [], "'w' is a Tensor that can't be copied"),
        (lambda: {"w": torch.empty(4, device="meta")}, [], "can't be copied"),
        (lambda: {"w": cast(Any, torch.Tensor)._make_subclass(type("Own", (torch.Tensor,), {}), tensor())}, [], "Own"),
        (lambda: dict(zip("xw", tensor().view(2, -1), strict=True)) | {"w2": tensor()}, [], ""),
    ],
)
def test_inputs_that_a_kernel_would_not_take_for_the_originals_are_not_copied(
    arguments: Any, hot: list[str], why: str
) -> None:
    made = Rotation(arguments(), hot)
    sets = made.sets(MIB)
    assert bool(sets) == (not why)
    assert why in made.why
    assert not made.note  # nothing that a user could change


def test_what_shares_memory_with_something_hot_is_not_copied() -> None:
    packed = tensor().view(2, -1)
    assert not Rotation({"x": packed, "w": packed[1]}, ["x"]).sets(MIB)
    assert Rotation({"x": packed[0], "w": packed[1]}, ["x"]).sets(MIB)


def test_dtypes_strings_and_numbers_are_passed_on() -> None:
    rest = (torch.bfloat16, "relu", 1.5, True, None)
    for args in Rotation({"w": tensor(), **{f"p{i}": value for i, value in enumerate(rest)}}).sets(MIB):
        assert args[1:] == rest


# --- whose launches may follow each other, as a Bench knows it ---


def bench_of(kernel: Any, *args: Any) -> LocalBench:
    return local_bench(kernel.subject(*args))


def runs(bench: LocalBench, *configs: Config) -> list[Run]:
    made: list[Run] = []
    for config in configs:
        executable, failure, error = bench.load(config, None)
        assert executable is not None, (failure, error)
        run, failure, error = bench.ready(executable)
        assert run is not None, (failure, error)
        made.append(run)
    return made


def copies_of(run: Run) -> int:
    if run.before is not None or run.others is None:
        return 0
    return len(run.others.sets(MIB))


ONE, TWO = Config(k=1), Config(k=2)
SPACE = Space(k=[1, 2])


def test_candidates_of_one_search_share_their_copies_and_these_go_with_it() -> None:
    @autotune(space=SPACE, hot=["x"])
    def scaled(x: Any, w: Any, k: int) -> Any:
        return x * w

    x, w = tensor(), tensor()
    bench = bench_of(scaled, x, w)
    with bench:
        first, second = runs(bench, ONE, TWO)
        assert first.others is not None
        assert second.others is first.others
        sets = first.others.sets(MIB)
        assert len(sets) == 4
        assert {args[0].data_ptr() for args in sets} == {x.data_ptr()}
        assert torch.equal(first.executable.launch(*sets[1]), x * w)
        gone = weakref.ref(sets[1][1])
        del sets
    bench.close()
    gc.collect()
    assert gone() is None


def test_what_a_clock_kept_for_candidates_goes_with_the_search() -> None:
    @autotune(space=SPACE)
    def scaled(x: Any, k: int) -> Any:
        return x * k

    bench = bench_of(scaled, tensor())
    with bench:
        first, second = runs(bench, ONE, TWO)
    first.state["graph"] = object()
    del second
    bench.close()
    assert not first.state


@pytest.mark.parametrize(("message", "times"), [("Triton Error [CUDA]: out of memory", 2), ("no such symbol", 1)])
def test_what_finds_no_memory_is_loaded_again(monkeypatch: pytest.MonkeyPatch, message: str, times: int) -> None:
    @autotune(space=SPACE)
    def scaled(x: Any, k: int) -> Any:
        return x * k

    bench, asked = bench_of(scaled, tensor()), list[Config]()
    load = type(scaled.kernel).load

    def scarce(self: Any, config: Config, *rest: Any) -> Any:
        asked.append(config)
        if len(asked) == 1:
            raise RuntimeError(message)
        return load(self, config, *rest)

    monkeypatch.setattr(type(scaled.kernel), "load", scarce)
    with bench:
        executable, failure, _ = bench.load(ONE, None)
    assert len(asked) == times
    assert (executable is None) == (times == 1)
    assert (failure is None) == (times == 2)


def test_memory_that_can_not_be_given_back_is_a_failure_of_the_candidate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    @autotune(space=SPACE)
    def scaled(x: Any, k: int) -> Any:
        return x * k

    def lacking(self: Any, *given: Any) -> Any:
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    def stuck() -> None:
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    bench = bench_of(scaled, tensor())
    monkeypatch.setattr(type(scaled.kernel), "load", lacking)
    monkeypatch.setattr("tunesmith.measure.bench.give_back_memory", stuck)
    with bench:
        executable, failure, _ = bench.load(ONE, None)
    assert executable is None
    assert failure is not None
    assert "captures_underway" in failure.reason


@pytest.mark.parametrize("declared", [{}, {"outputs": ["y"]}, {"restore_value": ["y"]}, {"reset_to_zero": ["y"]}])
def test_a_kernel_that_writes_an_argument_has_none(declared: Any) -> None:
    @autotune(space=SPACE, **declared)
    def into(x: Any, y: Any, k: int) -> None:
        y.copy_(x + 1)

    bench = bench_of(into, tensor(), torch.zeros(MIB // 4))
    with bench:
        assert [copies_of(run) for run in runs(bench, ONE, TWO)] == [0, 0]


def test_what_only_the_second_one_writes_takes_them_from_the_first_as_well() -> None:
    @autotune(space=SPACE, reference=lambda x, y: x + 1)
    def sometimes(x: Any, y: Any, k: int) -> Any:
        if k == 2:
            y += 1
        return x + 1

    bench = bench_of(sometimes, tensor(), torch.zeros(MIB // 4))
    with bench:
        (first,) = runs(bench, ONE)
        assert copies_of(first) == 2
        (second,) = runs(bench, TWO)
        assert [copies_of(run) for run in (first, second)] == [0, 0]


def test_a_check_at_the_first_launch_is_nothing_ahead_of_each() -> None:
    from tunesmith import choose

    choice = choose(
        "scaled", {"torch": lambda x, w: x * w, "ours": lambda x, w: w * x}, args=["x", "w"],
        reference=lambda x, w: x.double() * w.double(), make_inputs=lambda problem: {"x": tensor(), "w": tensor()},
    )  # fmt: skip
    bench = bench_of(choice, tensor(), tensor())
    with bench:
        for run in runs(bench, *choice.subject(tensor(), tensor()).space):
            assert copies_of(run) == 2
            assert run.others is not None
            for args in run.others.sets(MIB):
                run.executable.launch(*args)
