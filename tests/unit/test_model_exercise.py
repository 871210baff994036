"""The figures of the reference exercise, to the digit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tunesmith.core.config import Config
from tunesmith.core.device import known_device
from tunesmith.core.model import Model, Prediction, Tiles, rank
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space

#: as the exercise has it: 46 SMs, 99 KiB of shared memory a block and 100 KiB an SM, 448 GB/s, and 40 TFLOP/s
RTX_3070 = replace(known_device("NVIDIA GeForce RTX 3070"), peak={"float16": 40e12})
SPACE = Space(
    BLOCK_M=[32, 64, 128, 256], BLOCK_N=[32, 64, 128, 256], BLOCK_K=[32, 64], num_warps=[4, 8], num_stages=[2, 3, 4]
)  # fmt: skip
EXERCISE = Model(Tiles(dtype="float16"), rules="exercise")


def all_of(m: int, n: int, k: int) -> dict[Config, Prediction]:
    found = {config: EXERCISE.predict(Problem({"M": m, "N": n, "K": k}), config, RTX_3070) for config in SPACE}
    return {config: one for config, one in found.items() if one is not None}


def test_of_192_configs_34_are_cut_for_shared_memory_and_12_for_registers() -> None:
    found = all_of(4096, 4096, 4096)
    assert len(found) == 192
    fates = Counter(one.cut.partition(":")[0] for one in found.values())
    assert fates == {"shared memory": 34, "registers": 12, "": 146}


def test_the_first_eight_of_the_ranking_are_level() -> None:
    found = {config: one for config, one in all_of(4096, 4096, 4096).items() if not one.cut}
    first = rank(found)[0]
    assert len(first) == 8
    for config in first:
        assert round(found[config].seconds * 1e3, 3) == 3.709
        assert config["num_warps"] == 8
        assert {config["BLOCK_M"], config["BLOCK_N"]} == {128, 256}
        assert found[config].resident == 1


@pytest.mark.parametrize(("m", "waves", "milliseconds"), [(128 * 92, 1, 0.442), (128 * 93, 2, 0.622)])
def test_one_block_more_than_a_wave_holds_costs_a_wave(m: int, waves: int, milliseconds: float) -> None:
    two_an_sm = [
        one
        for config, one in all_of(m, 128, 4096).items()
        if (config["BLOCK_M"], config["BLOCK_N"]) == (128, 128) and not one.cut and one.resident == 2
    ]
    assert two_an_sm
    assert {one.waves for one in two_an_sm} == {waves}
    assert {round(one.seconds * 1e3, 3) for one in two_an_sm} == {milliseconds}


def test_tiles_that_are_mostly_padding_are_cut() -> None:
    found = all_of(100, 4096, 4096)
    padded = {config["BLOCK_M"]: one.cut for config, one in found.items() if one.cut.startswith("padding")}
    assert set(padded) == {256}
    assert padded[256].startswith("padding: 61%")


def test_without_the_l2_a_128_by_128_tile_is_bound_by_memory() -> None:
    found = all_of(4096, 4096, 4096)
    tiles = [one for config, one in found.items() if [config[f"BLOCK_{side}"] for side in "MNK"] == [128, 128, 32]]
    assert {one.bound for one in tiles} == {"memory"}
