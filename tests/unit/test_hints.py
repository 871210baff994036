"""Hints make a Space and a first Config from sizes and a chip, close to the best of spaces recorded on an H200."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tunesmith import Config, Device, Failed, Measured, Problem, Sample, Trial, known_device, pointwise, rowwise
from tunesmith.core.stats import median
from tunesmith.errors import BadInput
from tunesmith.search import Step, strategy

H200 = known_device("NVIDIA H200")
RECORDED = json.loads(gzip.decompress((Path(__file__).parents[1] / "data" / "rows_h200.json.gz").read_bytes()))[
    "spaces"
]


def seconds_of(space: Any) -> dict[Config, float]:
    """The fastest of the recorded Configs with these knobs: a loop had stages beside, which made no difference."""
    found: dict[Config, float] = {}
    for entry in space["entries"]:
        knobs = entry["config"]
        if entry["times_us"] and knobs["LOOP"] == (knobs["BLOCK"] < space["shape"]["n"]):
            config = Config({knob: knobs[knob] for knob in ("ROWS", "BLOCK", "num_warps")})
            found[config] = min(found.get(config, 1.0), 1e-6 * median(entry["times_us"]))
    return found


@pytest.mark.parametrize("space", RECORDED, ids=lambda s: f"{s['kernel']}-{s['shape']['rows']}x{s['shape']['n']}")
def test_a_climb_over_recorded_rows_ends_near_the_best(space: Any) -> None:
    times = seconds_of(space)
    hints, problem = rowwise(loops=True, tall="ROWS"), Problem({**space["shape"], "x.dtype": "float16"})
    start, said = hints.default(problem, H200), list[Step]()
    assert times[start] < 1.1 * min(times.values())
    climb = strategy("descent", hints.space(problem, H200), starts=[start], say=said.append)
    batch, tried = next(climb), 0
    try:
        while True:
            tried += len(batch)
            batch = climb.send([
                Trial(c, Measured((Sample(times[c]),)) if c in times else Failed("cut", "not recorded")) for c in batch
            ])  # fmt: skip
    except StopIteration:
        pass
    assert said[0].config == start
    assert said[-1].seconds < 1.015 * min(times.values())
    assert tried <= 20


def test_a_space_has_what_the_kernel_has() -> None:
    problem = Problem({"M": 100, "N": 300})
    assert rowwise("M", "N").knobs == ("BLOCK", "num_warps")
    assert rowwise("M", "N").space(problem, H200).axis("BLOCK").values == (512,)
    assert rowwise("M", "N", block="B", warps="W").default(problem, H200) == Config(B=512, W=1)
    looped = rowwise("M", "N", loops=True, tall="T", per_unit="P", stages="S").space(
        Problem({"M": 9000, "N": 99000}), H200
    )
    assert {config["P"] for config in looped} == {0}  # who loops does not stay
    assert {config["S"] for config in looped} == {1, 2, 3}
    assert max(pointwise("N").space(problem, H200).axis("BLOCK").values) == 512
    assert pointwise("N").default(Problem({"N": 3}), H200) == Config(BLOCK=4, num_warps=1)


@pytest.mark.parametrize("chip", [H200, Device("cuda", "some GPU", "sm_75", 40), Device("cpu", "a CPU", "avx2", 4)])
def test_a_default_is_always_of_its_space(chip: Device) -> None:
    for hints in (
        rowwise(), rowwise(loops=True), rowwise(tall="T"), pointwise("n", "rows", tall="T"), pointwise(),
        rowwise(loops=True, tall="T", per_unit="P", stages="S", reads=3),
    ):  # fmt: skip
        for rows in (1, 3, 4096):
            for n in (0, 1, 17, 4096, 50257, 1_000_003):
                problem = Problem({"rows": rows, "n": n})
                assert hints.default(problem, chip) in hints.space(problem, chip)


def test_sizes_that_are_not_there_are_named() -> None:
    with pytest.raises(BadInput, match="unknown field 'n'"):
        rowwise(1, "n").default(Problem({"N": 4}), H200)
    with pytest.raises(BadInput, match="'n' as a size, not 'many'"):
        pointwise("n").space(Problem({"n": "many"}), H200)
