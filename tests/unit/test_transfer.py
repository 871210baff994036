"""A new Problem starts from what others taught: what is tried, when it is enough, what is saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import ScriptedClock

from tunesmith import Config, Failed, Measured, Problem, Sample, Space, Trial, autotune
from tunesmith.core.device import known_device
from tunesmith.core.model import Model, Tiles
from tunesmith.core.outcome import Choice
from tunesmith.errors import BadInput
from tunesmith.neighbours import from_file, neighbours, prior_of
from tunesmith.search import Solved, plan
from tunesmith.search.forecast import distance, forecast
from tunesmith.store import default_store
from tunesmith.tables import NativeTable
from tunesmith.tables.lines import Entry

H200, H100 = known_device("NVIDIA H200"), known_device("NVIDIA H100 80GB HBM3")
SPACE = Space(
    BLOCK_M=[16, 32, 64, 128, 256], BLOCK_N=[32, 64, 128, 256], BLOCK_K=[32, 64, 128], num_warps=[4, 8],
    num_stages=[2, 3, 4],
)  # fmt: skip
MODEL = Model(Tiles())


def product(m: int, n: int = 4096, k: int = 4096) -> Problem:
    return Problem({"M": m, "N": n, "K": k})


def true_s(problem: Problem, config: Config, device: Any = H200) -> float | None:
    """What the model says, but this kernel likes four stages and wide tiles more than the model knows."""
    found = MODEL.predict(problem, config, device)
    assert found is not None
    quirk = 0.85 if config["num_stages"] == 4 else 1.0
    quirk *= 0.8 if config["BLOCK_N"] == 128 else 1.0
    return None if found.doubts else found.seconds * quirk


def solved(m: int, device: Any = H200, n: int = 4096) -> Solved:
    seconds = {config: s for config in SPACE if (s := true_s(product(m, n), config, device)) is not None}
    return Solved(product(m, n), seconds, device.identity, prior_of(MODEL, product(m, n), device), 5 * len(seconds))


def trials(configs: Any, seconds: Callable[[Config], float | None]) -> list[Trial]:
    found = {config: seconds(config) for config in configs}
    return [Trial(c, Failed("cut", "too much") if s is None else Measured((Sample(s),))) for c, s in found.items()]


def found_by(planned: Any, seconds: Callable[[Config], float | None]) -> tuple[float, int]:
    """(the best of what a plan tries, how many Configs it tries)."""
    batch, done = list(planned.first), list[Trial]()
    while batch:
        done += trials(batch, seconds)
        batch = planned.after(done)
    return min(s for one in done if (s := seconds(one.config)) is not None), len(done)


def best_of(problem: Problem) -> float:
    return min(s for config in SPACE if (s := true_s(problem, config)) is not None)


def test_the_nearest_in_log_shape_space_comes_first_and_other_fields_and_devices_are_further() -> None:
    here = solved(1024)
    near, far = solved(2048), solved(16)
    other = Solved(product(1024).replace(dtype="float32"), here.seconds, here.device)
    elsewhere = solved(1024, H100)
    distances = [distance(here.problem, here.device, one) for one in (here, near, other, elsewhere, far)]
    assert distances[0] == 0
    assert distances == sorted(distances)
    assert [one.problem["M"] for one in plan(product(900), SPACE, here.device, [far, near, here]).near] == [
        1024,
        2048,
        16,
    ]


@pytest.mark.parametrize("m", [1, 96, 700, 8192])
def test_what_a_model_gets_wrong_is_learnt_from_neighbours_on_this_chip_and_on_another(m: int) -> None:
    prior = prior_of(MODEL, product(m), H200)
    for near in ([solved(16), solved(512), solved(2048)], [solved(512, H100), solved(2048, H100)]):
        planned = plan(product(m), SPACE, H200.identity, near, prior)
        best, tried = found_by(planned, lambda config: true_s(product(m), config))
        assert best <= 1.02 * best_of(product(m))
        assert tried <= len(list(SPACE)) // 8


def test_neighbours_of_an_older_source_do_not_crowd_out_those_of_today() -> None:
    clock = ScriptedClock(lambda config: 1.0)
    kernel = autotune(space=Space(a=[1, 2]), key=["n"], clock=clock, version="2", name="crowd")(lambda n, *, a: a)
    kernel.tune(n=100)
    subject, store = kernel.subject(n=4), default_store()
    trial = store.trials(kernel.key(n=100))
    for older in range(20):  # each of the very problem asked for, which is nearer than n=100
        key = replace(subject.key, fingerprint=f"older {older}")
        store.add_trials(key, trial)
        store.put_choice(key, Choice(trial[0].config, "search", "search"), {})
    assert [solved.problem for solved in neighbours(subject, store)] == [Problem({"n": 100})]


def test_without_a_model_neighbours_near_by_are_enough() -> None:
    near = [Solved(one.problem, one.seconds, one.device) for one in (solved(512), solved(1024))]
    best, tried = found_by(plan(product(768), SPACE, H200.identity, near), lambda config: true_s(product(768), config))
    assert best <= 1.02 * best_of(product(768))
    assert tried <= 32


def test_a_table_of_another_gpu_knows_winners_alone_and_its_neighbourhood_is_looked_at() -> None:
    near = [
        Solved(one.problem, {one.winner: one.seconds[one.winner]}, one.device, chosen=one.winner)
        for one in (solved(256, H100), solved(1024, H100))
    ]
    planned = plan(product(1024), SPACE, H200.identity, near)
    assert planned.first[0] == near[1].winner
    best, tried = found_by(planned, lambda config: true_s(product(1024), config))
    assert best <= 1.05 * best_of(product(1024))
    assert tried <= 40


def test_a_neighbour_that_was_searched_in_part_does_not_make_what_it_tried_look_slow() -> None:
    """It tried what looked fast: that the rest was left out says nothing for the rest."""
    whole = solved(1024)
    fastest = sorted(whole.seconds, key=whole.seconds.__getitem__)[:12]
    part = Solved(product(1100), {c: whole.seconds[c] * 1.1 for c in fastest}, whole.device, whole.prior)
    expected = forecast(product(1080), whole.device, list(SPACE), [part, whole], whole.prior)
    assert set(sorted(expected, key=expected.__getitem__)[:3]) <= set(fastest)


def test_it_is_enough_when_the_expected_is_confirmed_and_not_when_it_is_refuted() -> None:
    near, here = [solved(512), solved(2048)], product(1024)
    planned = plan(here, SPACE, H200.identity, near, prior_of(MODEL, here, H200))
    confirmed = trials(planned.first, lambda config: true_s(here, config))
    assert planned.after(confirmed) == []
    rank = {config: i for i, config in enumerate(planned.first)}
    refuted = trials(planned.first, lambda config: (true_s(here, config) or 1.0) * 1.3 ** -rank[config])
    assert planned.after(refuted)
    failed = trials(planned.first, lambda config: None)
    more = planned.after(failed)
    assert more
    assert not set(more) & {trial.config for trial in failed}


def test_nothing_known_and_foreign_configs_are_no_trouble() -> None:
    assert plan(product(64), SPACE, "", []).first == ()
    foreign = Solved(Problem({"rows": 3, "x": None}), {Config(block=3): 1.0, Config(BLOCK_M=7): 2.0})
    planned = plan(product(64), SPACE, "", [foreign, Solved(product(3), {})], prior_of(MODEL, product(64), H200))
    assert len(planned.first) > 3
    assert all(config in SPACE for config in planned.first)
    assert all(math.isfinite(one) for one in planned.expected.values())


# --- in a search -------------------------------------------------------------------------------------


def tuned(best: int, asked: list[ScriptedClock], **more: Any) -> Any:
    """A kernel over n whose best block grows with n."""

    def seconds(config: Config) -> float:
        return 1e-3 * (1 + abs(math.log2(float(str(config["block"])) / best))) * (1 + 0.01 * float(str(config["lane"])))

    asked.append(ScriptedClock(seconds))
    space = Space(block=[1, 2, 4, 8, 16, 32, 64, 128], lane=range(24))

    def scale(n: int, *, block: int, lane: int) -> None: ...

    return autotune(space=space, key=["n"], clock=asked[-1], name="scale", version="1", **more)(scale)


def test_a_second_problem_costs_a_part_of_the_first_and_says_so() -> None:
    clocks: list[ScriptedClock] = []
    tuned(8, clocks).tune(n=1000)
    summary = tuned(16, clocks).tune(n=2000, strategy="transfer")
    assert summary.choice.config == Config(block=16, lane=0)
    first, second = (len(clock.asked) for clock in clocks)
    assert second <= 0.3 * first
    assert summary.choice.note.startswith("started from n=1000: ")
    assert "samples, where one of them had taken " in summary.choice.note
    assert summary.why_untried == "not expected to be faster, by what 1 solved problem taught"
    assert sum(summary.counts.values()) == summary.cardinality


def test_where_nothing_is_near_it_is_the_usual_search() -> None:
    summary = tuned(8, []).tune(n=1000, strategy="transfer")
    assert summary.counts["measured"] == summary.cardinality
    assert summary.choice.note == ""


def test_what_is_stored_of_the_problem_itself_is_not_measured_again() -> None:
    clocks: list[ScriptedClock] = []
    tuned(8, clocks).tune(n=1000)
    kernel = tuned(16, clocks)
    kernel.tune(n=2000, strategy="transfer")
    before = len(clocks[-1].asked)
    kernel.tune(n=2000, strategy="transfer")
    assert len(clocks[-1].asked) == before


def test_another_source_of_the_kernel_teaches_nothing() -> None:
    tuned(8, []).tune(n=1000)
    kernel = tuned(8, [])
    other = autotune(space=kernel.space, key=["n"], clock=kernel.declared.clock, name="scale", version="2")
    summary = other(lambda n, *, block, lane: None).tune(n=2000, strategy="transfer")
    assert summary.counts["measured"] == summary.cardinality


def test_a_table_and_a_recording_seed_a_search(tmp_path: Path) -> None:
    from tunesmith.recording import save

    clocks: list[ScriptedClock] = []
    kernel = tuned(8, clocks)
    save(kernel.record(n=1000, rounds=3), tmp_path / "recorded.json.gz")
    row = Entry(Config(block=16, lane=0), 1e-3)
    table = NativeTable("scale", H100.identity, {kernel.key(n=2000).problem: row})
    table.write(tmp_path / "h100.json")
    notes: list[str] = []
    for file, n in (("h100.json", 2500), ("recorded.json.gz", 1500)):
        clocks.clear()
        summary = tuned(16, clocks).tune(n=n, near=[tmp_path / file])
        assert summary.choice.config == Config(block=16, lane=0)
        assert len(clocks[0].timed) <= 40, file
        notes.append(summary.choice.note)
    assert notes[0].startswith(f"started from n=2000 on {H100.identity}: ")


def test_bad_files_and_strategies_are_named(tmp_path: Path) -> None:
    kernel = tuned(8, [])
    (tmp_path / "other.json").write_text('{"format": "x"}')
    with pytest.raises(BadInput, match=r"other\.json is neither a table of ours nor a recording; good values"):
        kernel.tune(n=1, near=[tmp_path / "other.json"])
    NativeTable("shift", "d", {}).write(tmp_path / "shift.json")
    with pytest.raises(BadInput, match="is of kernel 'shift', not of 'scale'"):
        from_file(tmp_path / "shift.json", "scale")
    with pytest.raises(BadInput, match="strategy 'random' starts from no solved problems"):
        kernel.tune(n=1, strategy="random", near=[Solved(Problem({"n": 2}), {})])
    with pytest.raises(BadInput, match="cannot be read"):
        kernel.tune(n=1, near=[tmp_path / "missing.json"])
    assert default_store().keys() == []
