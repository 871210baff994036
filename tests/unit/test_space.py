"""A Space enumerates, samples, gives neighbours, and says why a Config is not one of its own."""

import math
from itertools import permutations as all_orders
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith import Config, Space, booleans, choices, integers, permutations, powers_of_two
from tunesmith.errors import BadInput, SpaceError

axes = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), min_size=1, max_size=4
)
limits = st.integers(0, 30)


def limited(grid: dict[str, list[int]], limit: int) -> Space:
    return Space(grid).where(lambda config: sum(config.values()) <= limit, "sum above the limit")


@given(axes, limits)
def test_enumeration_is_the_product_less_what_is_cut(grid: dict[str, list[int]], limit: int) -> None:
    space, cut = limited(grid, limit), []
    found = list(space.points(lambda reason, count: cut.append(count)))
    expected = [Config(dict(zip(grid, point, strict=True))) for point in product(*grid.values()) if sum(point) <= limit]

    assert found == expected
    assert len(found) + sum(cut) == space.cardinality == math.prod(map(len, grid.values()))


@given(axes, limits, st.integers(1, 20), st.integers(0, 5))
def test_samples_are_legal_distinct_and_as_many_as_there_are(
    grid: dict[str, list[int]], limit: int, n: int, seed: int
) -> None:
    space = limited(grid, limit)
    drawn = space.sample(n, seed)

    assert len(set(drawn)) == len(drawn) == min(n, space.size)
    assert all(config in space for config in drawn)
    assert drawn == space.sample(n, seed)


@given(axes, limits)
def test_neighbours_are_legal_and_differ_in_one_knob(grid: dict[str, list[int]], limit: int) -> None:
    space = limited(grid, limit)
    for config in list(space)[:5]:
        for near in space.neighbours(config):
            assert near in space
            assert sum(near[name] != config[name] for name in config) == 1
            assert config in space.neighbours(near)


def test_a_step_on_an_ordered_axis_goes_to_the_next_value() -> None:
    space = Space(BLOCK=powers_of_two(16, 128), kind=choices("a", "b", "c"))
    near = space.neighbours(Config(BLOCK=32, kind="a"))

    assert near == [
        Config(BLOCK=16, kind="a"),
        Config(BLOCK=64, kind="a"),
        Config(BLOCK=32, kind="b"),
        Config(BLOCK=32, kind="c"),
    ]


def test_permutations_count_read_back_and_swap() -> None:
    axis = permutations("m", "n", "k")

    assert list(axis.values) == list(all_orders(("m", "n", "k")))
    assert [axis.index(order) for order in axis.values] == list(range(6))
    assert axis.neighbours(("m", "n", "k")) == [("n", "m", "k"), ("m", "k", "n")]
    assert ("m", "m", "k") not in axis


def test_a_huge_space_is_sampled_without_being_enumerated() -> None:
    space = Space(a=integers(1, 10**9), order=permutations(*range(12)), flag=booleans())
    space = space.where(lambda a: a % 2 == 0, "odd")

    assert space.cardinality == 10**9 * math.factorial(12) * 2
    assert len(space.sample(50)) == 50
    assert all(config["a"] % 2 == 0 for config in space.sample(50))


def test_a_needle_is_found_by_backtracking() -> None:
    space = Space({f"x{i}": integers(0, 63) for i in range(4)})
    for i in range(4):
        space = space.where(eval(f"lambda x{i}: x{i} == 7"), "not seven")

    assert space.sample(1) == [Config({f"x{i}": 7 for i in range(4)})]


def test_explicit_lists_and_sums() -> None:
    listed = Space.of([Config(x=1, y=1), Config(x=9, y=9), Config(x=1, y=1)])
    both = Space(x=[1, 2], y=[1]) + listed

    assert list(listed) == [Config(x=1, y=1), Config(x=9, y=9)]
    assert list(both) == [Config(x=1, y=1), Config(x=2, y=1), Config(x=9, y=9)]
    cut: list[int] = []
    assert len(list(both.points(lambda reason, count: cut.append(count)))) + sum(cut) == both.cardinality == 4


def test_the_digest_names_the_set_and_not_the_order() -> None:
    a, b, c = Config(x=1), Config(x=2), Config(x=3)

    assert Space.of([a, b]).digest == Space.of([b, a]).digest == Space(x=[1, 2]).digest
    assert Space.of([a, b]).digest != Space.of([a, b, c]).digest


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (Config(BLOK=64, num_warps=4), r"unknown knob 'BLOK': did you mean 'BLOCK'\? known: BLOCK, num_warps"),
        (Config(BLOCK=64), r"'num_warps' is missing; good values: 4, 8"),
        (Config(BLOCK=65, num_warps=4), r"'BLOCK' cannot be 65; good values: 64, 128"),
        (Config(BLOCK=64.0, num_warps=4), r"'BLOCK' cannot be 64.0"),
        (Config(BLOCK=64, num_warps=True), r"'num_warps' cannot be True"),
        (Config(BLOCK=64, num_warps=8), r"a warp needs 16 elements"),
    ],
)
def test_a_config_that_does_not_belong_is_told_why(config: Config, says: str) -> None:
    space = Space(BLOCK=powers_of_two(64, 128), num_warps=[4, 8])
    space = space.where(lambda BLOCK, num_warps: 16 * num_warps <= BLOCK, "a warp needs 16 elements")

    with pytest.raises(SpaceError, match=says):
        space.check(config)


@pytest.mark.parametrize(
    "make",
    [
        lambda: powers_of_two(3, 8),
        lambda: powers_of_two(16, 8),
        lambda: integers(3, 2),
        lambda: Space(x=[]),
        lambda: Space(x=[1, 1]),
        lambda: Space(x="abc"),
        lambda: Space(x=[1]).where(lambda z: z, "no such knob"),
        lambda: Space.of([]),
        lambda: permutations("a", "a"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(make: object) -> None:
    with pytest.raises(BadInput):
        make()  # type: ignore[operator]


def test_fixing_knobs() -> None:
    space = Space(a=[1, 2], b=[1, 2])

    assert list(space.fix(a=2)) == [Config(a=2, b=1), Config(a=2, b=2)]
    with pytest.raises(SpaceError, match="good values: 1, 2"):
        space.fix(a=3)
    with pytest.raises(SpaceError, match="did you mean"):
        space.fix(aa=3)


def test_the_values_of_a_knob_are_those_of_all_parts() -> None:
    grid = Space(BLOCK=powers_of_two(64, 256), pack=[True])
    assert grid.axis("BLOCK") == powers_of_two(64, 256)
    both = grid + Space.of([{"BLOCK": 64}, {"BLOCK": 96, "pack": 1}])
    assert both.axis("BLOCK").values == (64, 128, 256, 96)
    assert list(map(repr, both.axis("pack").values)) == ["True", "1"]
    with pytest.raises(SpaceError, match="did you mean 'BLOCK'"):
        both.axis("BLOK")


def test_a_constraint_of_a_config_by_another_name_is_told_how_to_ask_for_it() -> None:
    with pytest.raises(SpaceError, match=r"unknown knob 'c'.*by their names, or the whole `config`"):
        Space(a=[1, 2]).where(lambda c: c["a"] == 1, "only one")
