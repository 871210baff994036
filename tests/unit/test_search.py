"""What each strategy promises beyond the common contract. Case R13 is here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes import ScriptedClock, fresh_process

import tunesmith
from tunesmith import Config, Failed, Measured, Sample, Space, Trial, TunedKernel, autotune, events
from tunesmith.core.outcome import choice_from_data, choice_to_data
from tunesmith.errors import BadInput, MissingEngine, TunesmithWarning
from tunesmith.search import STRATEGIES, Step, strategy
from tunesmith.search.columns import Encoder


def drive(name: str, space: Space, times: dict[Config, float] | None = None, **setting: object) -> list[list[Config]]:
    """All batches; `times` in seconds, what is not in it fails."""
    steps, batches = strategy(name, space, **setting), list[list[Config]]()  # type: ignore[arg-type]
    try:
        batch = next(steps)
        while True:
            batches.append(list(batch))
            batch = steps.send(
                [
                    Trial(c, Measured((Sample((times or {}).get(c, 1.0)),)) if not times or c in times else FAILED)
                    for c in batch
                ]
            )
    except StopIteration:
        return batches


FAILED = Failed("compile", "no")


# --- descent ------------------------------------------------------------------------------------------


def line(**times: float) -> tuple[Space, dict[Config, float]]:
    """A Space of one ordered knob `c` in 1, 2, …; `c3=0.5` is Config(c=3) at 0.5 s."""
    return Space(c=[1, 2, 3, 4, 5, 6]), {Config(c=int(name[1:])): seconds for name, seconds in times.items()}


def test_descent_says_every_step_and_why_it_stops() -> None:
    space, times = line(c1=4.0, c2=2.0, c3=1.6, c4=1.7, c5=0.1)
    said: list[Step] = []
    batches = drive("descent", space, times, starts=[Config(c=1)], say=said.append)

    assert batches == [[Config(c=1)], [Config(c=2)], [Config(c=3)], [Config(c=4)]]
    assert [str(step) for step in said] == [
        "1.000×, start",
        "2.000× c 1 → 2",
        "1.250× c 2 → 3",
        "1.000×, no neighbour faster",
    ]
    assert said[-1].config == Config(c=3)
    assert said[-1].tried == 4


def test_descent_remembers_failures_and_what_it_has_seen() -> None:
    space, times = line(c2=2.0, c3=1.0, c4=3.0)  # 1, 5 and 6 fail
    asked = [c["c"] for batch in drive("descent", space, times, starts=[Config(c=2)]) for c in batch]
    assert asked == [2, 1, 3, 4]


def test_descent_moves_two_tile_knobs_at_once_where_neither_alone_helps() -> None:
    space = Space(BLOCK_M=[32, 64, 128], BLOCK_N=[32, 64, 128])
    times = dict.fromkeys(space, 5.0)
    times[Config(BLOCK_M=64, BLOCK_N=64)] = 2.0
    times[Config(BLOCK_M=128, BLOCK_N=32)] = 1.0
    said: list[Step] = []
    drive("descent", space, times, starts=[Config(BLOCK_M=64, BLOCK_N=64)], say=said.append)
    assert str(said[1]) == "2.000× BLOCK_M 64 → 128, BLOCK_N 64 → 32"


def test_descent_starts_from_the_best_start_and_draws_where_none_works() -> None:
    space, times = line(c4=2.0, c6=1.0, c5=9.0)
    said: list[Step] = []
    drive("descent", space, times, starts=[Config(c=4), Config(c=6)], say=said.append)
    assert said[0].config == Config(c=6)
    drive("descent", space, times, starts=[Config(c=1)], say=said.append)
    assert said[-1].config in (Config(c=4), Config(c=6))


def test_descent_says_that_its_budget_ended() -> None:
    space, times = line(c1=4.0, c2=2.0, c3=1.6, c4=1.7)
    said: list[Step] = []
    drive("descent", space, times, starts=[Config(c=1)], most=2, say=said.append)
    assert str(said[-1]) == "1.000×, the budget ended"


R13 = """
from math import log2
from tunesmith import powers_of_two, integers

def seconds(config):  # one best, three steps from the seed
    wanted = dict(BLOCK=128, warps=4, stages=3, split=2)
    return 1.0 + sum(abs(log2(config[k] / v)) for k, v in wanted.items())

clock = ScriptedClock(seconds)

@autotune(
    space=Space(
        BLOCK=powers_of_two(16, {widest}), warps=powers_of_two(1, 16), stages=integers(1, 5), split=powers_of_two(1, 8)
    ),
    default=Config(BLOCK=64, warps=8, stages=2, split=2), key=["n"], clock=clock, strategy="descent", version="1",
)
def f(x, n, *, BLOCK, warps, stages, split):
    return BLOCK, warps, stages, split

print(f([1.0], 5), len(clock.timed), sorted({{c["BLOCK"] for c in clock.timed}}), f.choice([1.0], 5).source)
"""


def r13(folder: Path, widest: int = 256) -> str:
    done = fresh_process(R13.format(widest=widest), folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_r13_a_stored_descent_is_not_run_again_and_a_wider_space_times_only_new_neighbours(tmp_path: Path) -> None:
    first = r13(tmp_path)
    assert first.startswith("(128, 4, 3, 2)")
    for _ in range(3):
        assert r13(tmp_path) == "(128, 4, 3, 2) 0 [] store"
    timed = int(r13(tmp_path, widest=512).split(") ")[1].split()[0])
    assert timed < int(first.split(") ")[1].split()[0])


def test_r13_the_winner_survives_json() -> None:
    clock = ScriptedClock(lambda config: float(abs(config["c"] - 5)) + 1.0)  # type: ignore[operator]
    f: TunedKernel = autotune(
        space=Space(c=list(range(1, 20))), default=Config(c=9), clock=clock, strategy="descent", version="1"
    )(lambda x, *, c: c)
    heard: list[events.Event] = []
    with events.watched(heard.append):
        assert f([1.0]) == 5
    choice = f.choice([1.0])

    assert choice_from_data(choice_to_data(choice)) == choice
    steps = [event for event in heard if isinstance(event, Step)]
    assert steps[0].note == "start"
    assert str(steps[-1]) == "1.000×, no neighbour faster"
    assert steps[-1].config == choice.config


# --- auto ---------------------------------------------------------------------------------------------


def many() -> Space:
    return Space(a=list(range(1, 41)), b=list(range(1, 41)))


def test_auto_takes_a_space_whole_that_is_in_reach_and_else_what_the_budget_allows() -> None:
    small = Space(c=list(range(400)))
    assert [len(batch) for batch in drive("auto", small)] == [400]
    assert sum(map(len, drive("auto", small, most=30))) == 30
    assert [len(batch) for batch in drive("auto", Space(c=list(range(30))), most=30)] == [30]
    assert len(drive("auto", many(), most=40)) > 1


def test_auto_goes_on_without_numpy_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.warns(TunesmithWarning, match=r"pip install 'tunesmith\[search\]'; .* searched by 'evolution'"):
        assert sum(map(len, drive("auto", many(), most=40))) == 40


@pytest.mark.parametrize(("name", "engine"), [("surrogate", "numpy"), ("optuna:tpe", "optuna")])
def test_a_missing_engine_ends_with_what_to_type(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    with pytest.raises(MissingEngine, match=r"pip install 'tunesmith\[\w+\]'$"):
        strategy(name, many())


def test_bad_names_and_budgets_are_refused() -> None:
    with pytest.raises(BadInput, match="unknown strategy 'optuna:tpee': did you mean 'optuna:tpe'"):
        strategy("optuna:tpee", many())
    with pytest.raises(BadInput, match="most=0: good values: 1 and more"):
        strategy("random", many(), most=0)


def test_no_strategy_is_loaded_with_numpy() -> None:
    script = "import sys, tunesmith.search; print('numpy' in sys.modules or 'optuna' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert set(STRATEGIES) >= {"auto", "descent", "evolution", "exhaustive", "random", "surrogate", "optuna:tpe"}


# --- what a model sees --------------------------------------------------------------------------------


def rows(space: Space) -> dict[Config, list[float]]:
    encoder = Encoder(space, list(space))
    return {config: encoder.row(config)[0] for config in space}


def test_sizes_are_seen_by_their_ratio_and_names_all_equally_far() -> None:
    sizes = rows(Space(BLOCK=[16, 32, 64, 256]))
    assert list(sizes.values()) == [[0.0], [0.25], [0.5], [1.0]]
    names = list(rows(Space(layout=tunesmith.choices("nn", "nt", "tt"))).values())
    apart = {sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for a in names for b in names if a is not b}
    assert [round(far, 6) for far in apart] == [1.0]


def test_values_share_a_code_exactly_where_they_are_equal() -> None:
    space = Space.of([Config(a=1), Config(a=True), Config(a=1.0), Config(a=(1, "x")), Config(b=1), Config(a=1, b=1)])
    encoder = Encoder(space, list(space))
    codes = [encoder.row(config)[1] for config in space]
    assert [code[0] for code in codes] == [0, 1, 2, 3, 4, 0]
    assert len({tuple(encoder.row(config)[0]) for config in space}) == 6


def test_variants_numbered_from_0_are_names() -> None:
    assert len(rows(Space(method=[0, 1, 2]))[Config(method=0)]) == 3
    assert len(rows(Space(stages=[1, 2, 3]))[Config(stages=1)]) == 1


def test_how_often_a_size_can_be_halved_is_seen() -> None:
    seen = rows(Space(BLOCK=[32, 48, 64, 80, 96, 112, 128]))
    assert seen[Config(BLOCK=96)][1] > seen[Config(BLOCK=80)][1]
    assert seen[Config(BLOCK=96)][1] == seen[Config(BLOCK=32)][1]
