"""The performance model: what it predicts, what it cuts, and in which words it says why."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.core.config import Config
from tunesmith.core.device import Device, known_device
from tunesmith.core.model import FITTED, Model, Prediction, Rows, Tiles, Work, explain, fault, predict, residency
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput

H200 = known_device("NVIDIA H200")
SQUARE = Problem({"M": 4096, "N": 4096, "K": 4096})
TILE = Config(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, num_warps=8, num_stages=3)
DATA = Path(__file__).parents[1] / "data"


def of(problem: Problem, config: Config, resources: Resources | None = None) -> Prediction:
    found = predict(Tiles()(problem, config), H200, resources)
    assert found is not None
    return found


def gemm_problem(m: int, n: int, k: int) -> Problem:
    return Problem({"M": m, "N": n, "K": k})


# --- residency ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "blocks", "by"),
    [
        (Resources(threads=1024, registers=16), 2, "threads"),
        (Resources(threads=32, registers=16), 32, "blocks"),
        (Resources(threads=256, registers=129), 1, "registers"),  # given in units of 8: 136 each
        (Resources(threads=128, registers=32, shared_bytes=75 * 1024), 3, "shared memory"),  # 1 KiB of each is kept
        (Resources(threads=128, registers=32, shared_bytes=76 * 1024), 2, "shared memory"),
        (Resources(threads=128, shared_bytes=228 * 1024), 0, "shared memory"),
    ],
)
def test_the_scarcest_resource_says_how_many_blocks_are_resident(taken: Resources, blocks: int, by: str) -> None:
    held = residency(H200, taken)
    assert held is not None
    assert (held.blocks, held.by) == (blocks, by)


def test_nothing_is_said_of_a_chip_of_which_too_little_is_known() -> None:
    unknown = Device("cuda", "some chip", "sm_999", 10)
    assert predict(Tiles()(SQUARE, TILE), unknown) is None
    assert Model(Tiles()).predict(SQUARE, TILE, Device("cpu", "some CPU", "avx2", 8)) is None
    assert Model(Tiles(), rules="exercise").predict(SQUARE, TILE, unknown) is None


# --- prediction --------------------------------------------------------------------------------------


def test_a_partial_wave_costs_a_whole_one() -> None:
    one_block_a_unit = Resources(registers=200, spills=0, shared_bytes=147456, threads=256)
    full = of(gemm_problem(128 * 132, 256, 4096), TILE, one_block_a_unit)
    more = of(gemm_problem(128 * 133, 256, 4096), TILE, one_block_a_unit)
    assert (full.waves, more.waves) == (1, 2)
    assert more.compute_s == 2 * full.compute_s
    assert more.seconds > 1.5 * full.seconds  # all but the launch, and the memory's 1 % more


def test_bounds_are_named_after_what_takes_longest() -> None:
    assert of(gemm_problem(8192, 8192, 8192), TILE).bound == "compute"
    deep = Config(BLOCK_M=16, BLOCK_N=64, BLOCK_K=128, num_warps=4, num_stages=5)
    assert of(gemm_problem(16, 65536, 16384), deep).bound == "memory"
    assert of(gemm_problem(64, 64, 16384), Config(BLOCK_M=64, BLOCK_N=32, BLOCK_K=32, num_stages=2)).bound == "latency"


def test_spilled_registers_and_estimates_that_do_not_fit_cost_time() -> None:
    kept, spilled = (Resources(255, spills, 147456, 256) for spills in (0, 400))
    assert of(SQUARE, TILE, spilled).seconds > 1.2 * of(SQUARE, TILE, kept).seconds
    too_large = TILE.replace(num_stages=5)  # 245,760 bytes
    doubted = of(SQUARE, too_large)
    assert not doubted.cut
    assert "shared memory" in doubted.doubts[0]
    assert doubted.seconds > 1.5 * of(SQUARE, TILE).seconds


def test_far_more_registers_than_there_are_is_a_doubt_a_few_are_not() -> None:
    """A tile of 256×128 for 4 warps spills, and took 0.9 ms where 8 warps take 0.2."""
    assert "an estimated 296 a thread of 255" in of(SQUARE, TILE.replace(num_warps=4, num_stages=2)).doubts[0]
    row = Rows()(Problem({"rows": 1024, "n": 32768}), Config(ROWS=1, BLOCK=32768, num_warps=32))
    assert row.registers == 65  # 1024 threads have 64 each; the compiler keeps to that, and it is the fastest
    found = predict(row, H200)
    assert found is not None
    assert not found.doubts


def test_only_compiled_facts_cut() -> None:
    """28 recorded Configs need more than 255 registers by the estimate, and run: the compiler spilled or did better."""
    recording = json.loads(gzip.decompress((DATA / "gemm_h200.json.gz").read_bytes()))
    ran = [entry for i, entry in enumerate(recording["configs"]) if recording["results"][0]["times_us"][i]]
    over = [entry for entry in ran if Tiles()(SQUARE, Config(entry["config"])).registers > 255]
    assert len(over) == 28
    failed = [entry for entry in recording["configs"] if entry["error"]]
    for entry, runs in [*((one, True) for one in ran), *((one, False) for one in failed)]:
        config = Config(entry["config"])
        assert not of(SQUARE, config).cut
        compiled = Resources(entry.get("n_regs"), entry.get("n_spills"), entry["shared_bytes"])
        assert bool(of(SQUARE, config, compiled).cut) is not runs, config


def test_what_is_cut_says_what_was_asked_for_and_what_there_is() -> None:
    assert fault(H200, Resources(200, 0, 240000, 128)) == (
        "shared memory: 240,000 bytes a block, NVIDIA H200 has 232,448"
    )
    assert "2,048 a block" in str(fault(H200, Resources(threads=2048)))
    assert "65,536" in str(fault(H200, Resources(registers=128, threads=1024)))
    assert fault(H200, Resources()) is None


def test_every_number_is_explained() -> None:
    found = of(gemm_problem(300, 5120, 3072), TILE)
    told = dict(explain(found, H200))
    assert set(told) == {
        "predicted", "bound by", "compute", "memory", "latency", "occupancy", "waves", "tiled bytes", "memory bytes",
    }  # fmt: skip
    assert told["waves"].startswith("1: 60 blocks, 132 at once")
    assert "estimates from the knobs" in told["predicted"]
    assert "compiled" in dict(explain(of(SQUARE, TILE, Resources(200, 0, 147456, 256)), H200))["predicted"]
    assert "not cut" in dict(explain(of(SQUARE, TILE.replace(num_stages=5)), H200))["doubt"]


# --- declaring the work ------------------------------------------------------------------------------


def test_tiles_count_blocks_steps_and_bytes() -> None:
    work = Tiles(split="SPLIT_K", batch="B")(
        Problem({"M": 300, "N": 500, "K": 1000, "B": 3, "a.dtype": "float32"}),
        Config(BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, SPLIT_K=2, num_warps=4, num_stages=2),
    )
    assert work.blocks == 3 * 4 * 2 * 3
    assert work.steps == 16  # 1000 / (32 · 2), the last one partly empty
    assert work.dtype == "float32"
    assert work.step_bytes == (128 + 128) * 32 * 4
    assert work.shared_bytes == 2 * work.step_bytes
    assert work.once_bytes == 3 * (300 * 1000 + 1000 * 500 + 2 * 300 * 500) * 4


def test_rows_are_read_again_only_where_the_columns_do_not_fit_at_once() -> None:
    norm = Rows(reads=2, writes=2, again=1)
    problem = Problem({"rows": 1024, "n": 8192})
    at_once = norm(problem, Config(ROWS=2, BLOCK=8192, num_warps=8))
    looped = norm(problem, Config(ROWS=2, BLOCK=1024, num_warps=8))
    assert (at_once.blocks, at_once.steps, at_once.again_bytes) == (512, 1, 0)
    assert (looped.steps, looped.again_bytes) == (8, 1024 * 8192 * 2)
    assert looped.tiled_bytes == at_once.tiled_bytes * 5 / 4
    masked = norm(Problem({"rows": 1024, "n": 5000}), Config(ROWS=2, BLOCK=8192, num_warps=8))
    assert masked.tiled_bytes == 1024 * 5000 * 4 * 2  # masked lanes move nothing


def test_rows_that_no_longer_fit_the_l2_come_from_memory_twice() -> None:
    config = Config(ROWS=1, BLOCK=4096, num_warps=4)
    within, beyond = (predict(Rows()(Problem({"rows": 256, "n": n}), config), H200) for n in (16384, 131072))
    assert within is not None
    assert beyond is not None
    assert within.memory_bytes == 256 * 16384 * 2 * 2
    assert beyond.memory_bytes == 256 * 131072 * 2 * 3


def test_any_function_may_say_what_a_launch_does() -> None:
    def copies(problem: Problem, config: Config) -> Work:
        n, block = problem["n"], config["BLOCK"]
        assert isinstance(n, int)
        assert isinstance(block, int)
        return Work(blocks=-(-n // block), threads=128, step_bytes=8 * block, once_bytes=8 * n, dtype="float32")

    found = Model.of(copies).predict(Problem({"n": 2**28}), Config(BLOCK=1024), H200)
    assert found is not None
    assert found.bound == "memory"
    assert found.seconds > 8 * 2**28 / 4.8e12
    one_problem = Model(copies).predictor(Problem({"n": 2**28}), H200)
    assert one_problem(Config(BLOCK=1024), None) == found


def test_what_can_not_be_read_is_named() -> None:
    with pytest.raises(BadInput, match=r"unknown knob 'BLOCK_M': did you mean 'BLOCK_N'"):
        Tiles()(SQUARE, Config(BLOCK_N=64, BLOCK_K=64))
    with pytest.raises(BadInput, match=r"unknown field 'K'"):
        Tiles()(Problem({"M": 1, "N": 1}), TILE)
    with pytest.raises(BadInput, match=r"'BLOCK_M' as a size, not 'big'"):
        Tiles()(SQUARE, TILE.replace(BLOCK_M="big"))
    with pytest.raises(BadInput, match=r"says nothing of a launch"):
        Model(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match=r"unknown rules 'exersise'"):
        Model(Tiles(), rules="exersise")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match=r"expected a Work"):
        Model(lambda problem, config: 3).predict(SQUARE, TILE, H200)  # pyright: ignore[reportArgumentType]


def test_an_empty_problem_costs_a_launch() -> None:
    nothing = of(gemm_problem(0, 4096, 4096), TILE)
    assert (nothing.blocks, nothing.waves) == (0, 0)
    assert nothing.seconds < 50e-6
    assert nothing.seconds >= FITTED.launch_s


def test_a_faster_chip_is_never_predicted_slower() -> None:
    slower = replace(H200, bandwidth=H200.bandwidth / 2, peak={name: peak / 2 for name, peak in H200.peak.items()})
    for problem in (SQUARE, gemm_problem(16, 4096, 4096)):
        work = Tiles()(problem, TILE)
        fast, slow = predict(work, H200), predict(work, slower)
        assert fast is not None
        assert slow is not None
        assert slow.seconds > fast.seconds


@given(
    st.integers(0, 20000), st.integers(1, 20000), st.integers(1, 20000),
    st.sampled_from([16, 64, 128, 256]), st.sampled_from([32, 256]), st.sampled_from([32, 128]),
    st.sampled_from([4, 8]), st.integers(1, 5),
)  # fmt: skip
def test_a_prediction_is_no_shorter_than_any_part_of_it(
    m: int, n: int, k: int, tile_m: int, tile_n: int, tile_k: int, warps: int, stages: int
) -> None:
    config = Config(BLOCK_M=tile_m, BLOCK_N=tile_n, BLOCK_K=tile_k, num_warps=warps, num_stages=stages)
    found = of(gemm_problem(m, n, k), config)
    parts = found.compute_s, found.memory_s, found.latency_s
    assert found.seconds >= max(parts) * (1 - 1e-9)
    assert found.seconds <= sum(parts) * 2 ** len(found.doubts) + found.memory_bytes / (H200.bandwidth * 0.5)
    assert found.waves * max(1, found.resident) * H200.units >= found.blocks
