"""What people see: units, the score table at any width, progress in a terminal and in a log, explanations."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.fakes import ScriptedClock

import tunesmith
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Failed, Measured, Outcome, Resources, Sample, Trial, Untried
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.events import Compiled, Compiling, Preparing, Racing, Sampled, Started, Summary
from tunesmith.measure.pick import pick
from tunesmith.report import units
from tunesmith.report.explanation import Explanation
from tunesmith.report.live import LOG_EVERY_S
from tunesmith.report.progress import REDRAW_S, Progress
from tunesmith.report.table import score_table
from tunesmith.report.terminal import watch
from tunesmith.turns import Turns

PROBLEM = Problem({"M": 512, "N": 64, "a.dtype": "float32", "b.dtype": "float32"})
KEY = Key("matmul", "f00d", PROBLEM, "cpu:a chip:avx2:2", "p/1")
ESCAPE = "\x1b"


def measured(seconds: float, resources: Resources | None = None, **knobs: object) -> Trial:
    """A Trial with 15 samples, alike within 0.02 %."""
    samples = tuple(Sample(seconds * (1 + 0.0001 * (i % 3)), i, 0) for i in range(15))
    return Trial(Config(knobs), Measured(samples), resources or Resources(), "then")


def ended(outcome: Outcome, **knobs: object) -> Trial:
    return Trial(Config(knobs), outcome)


def summary_of(trials: Sequence[Trial], cut: dict[str, int] | None = None, more: int = 0, **fields: Any) -> Summary:
    """The Summary of a search with these Trials; `more` points of its Space are no Trials."""
    verdict = pick(trials)
    choice = Choice(verdict.winner.config, "search", "search", median_s=1e-3) if verdict else None
    cut = cut or {}
    rest = {"known": 0, "why_untried": "the budget ended", "compile_s": 2.5, "measure_s": 12.25, **fields}
    return Summary(KEY, choice, verdict, tuple(trials), cut, len(trials) + sum(cut.values()) + more, **rest)


def printed(renderable: Any, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(renderable)
    return out.getvalue()


def words(text: str) -> str:
    """Text without line breaks, as it reads."""
    return " ".join(text.split())


class TestUnits:
    @given(st.floats(1e-9, 1e3, exclude_max=True))
    def test_a_duration_reads_back_within_its_four_digits(self, seconds: float) -> None:
        number, unit = units.duration(seconds).split()
        size = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
        assert float(number) * size == pytest.approx(seconds, rel=0.6e-3)
        if seconds < 999:
            assert 1 <= float(number) < 1000
            assert len(number.replace(".", "")) == 4

    @pytest.mark.parametrize(
        ("seconds", "text"), [(999.96e-6, "1.000 ms"), (1e-9, "1.000 ns"), (4e-10, "0.400 ns"), (2000, "2000 s")]
    )
    def test_a_duration_at_the_edges(self, seconds: float, text: str) -> None:
        assert units.duration(seconds) == text

    @given(st.integers(0, 2**50))
    def test_a_size_reads_back(self, count: int) -> None:
        number, unit = units.size(count).split()
        power = ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
        assert float(number) * 1024**power == pytest.approx(count, rel=0.05)

    @given(st.integers(0, 10**12))
    def test_a_count_has_its_digits_and_the_right_number(self, n: int) -> None:
        text = units.count(n, "trial")
        assert int(text.split()[0].replace(",", "")) == n
        assert text.endswith("trial" if n == 1 else "trials")

    @given(st.floats(0, 1e6))
    def test_a_time_waited_reads_back(self, seconds: float) -> None:
        text = units.spent(seconds)
        size = {"s": 1, "min": 60, "h": 3600}
        parts = [float(n) * size[unit] for n, unit in re.findall(r"([\d.]+) (s|min|h)", text)]
        assert sum(parts) == pytest.approx(seconds, abs=0.06 if seconds < 99 else 60)

    @given(
        st.dictionaries(st.sampled_from("KMN"), st.integers(0, 10**6)),
        st.dictionaries(st.sampled_from(["a.dtype", "b.dtype"]), st.sampled_from(["float16", "int8"])),
        st.dictionaries(st.sampled_from(["causal", "name"]), st.sampled_from([True, False, "a,b", "7", None, 0.5])),
    )
    def test_a_problem_line_can_be_typed_again(self, sizes: Any, dtypes: Any, flags: Any) -> None:
        problem = Problem({**sizes, **dtypes, **flags})
        typed = dict(Problem.parse(units.problem_line(problem)))
        shared = typed.pop("dtype", None)
        assert Problem({**typed, **(dict.fromkeys(dtypes, shared) if shared else {})}) == problem


class TestScoreTable:
    def many(self) -> list[Trial]:
        knobs = [{"BLOCK_SIZE_M": 16 << i % 4, "BLOCK_SIZE_N": 32 << i % 3, "num_stages": i % 5} for i in range(12)]
        return [measured(1e-3 * (1 + 0.05 * i), **knob, march="native") for i, knob in enumerate(knobs)]

    @pytest.mark.parametrize("width", [40, 80, 200])
    def test_fits_the_width_and_shows_every_knob_of_every_row(self, width: int) -> None:
        trials = self.many()
        text = printed(score_table(summary_of(trials)), width)
        assert max(map(len, text.splitlines())) <= width
        rows = words(text[: text.index("more measured")])
        for trial in trials[:10]:
            fold = " ".join(f"{name}={trial.config[name]}" for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_stages"))
            columns = " ".join(str(trial.config[name]) for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_stages"))
            assert re.search(rf"\] 15 \d\.\d+ (winner )?({columns}|{fold})\b", rows)

    def test_what_all_rows_share_is_said_once(self) -> None:
        text = printed(score_table(summary_of(self.many())))
        assert "in all rows: march=native" in text
        assert text.count("native") == 2  # there and in the winner

    def test_rank_time_spread_and_ratio(self) -> None:
        text = printed(score_table(summary_of([measured(1e-3, b=1), measured(2.5e-3, b=2)])), 200)
        assert re.search(r"# +ms +\[p20, p80\] +n +×best", text)
        assert re.search(r"1 +1\.000 +\[1\.000, 1\.000\] +15 +1\.000 +winner +1", text)
        assert re.search(r"2 +2\.500 +\[2\.500, 2\.501\] +15 +2\.500 +2", text)

    @pytest.mark.parametrize("width", [40, 80, 200])
    def test_the_winner_can_be_pasted(self, width: int) -> None:
        trial = measured(1e-3, BLOCK_SIZE_M=128, flags="-O3 -g", order=("i", "j"), a_long_name_of_a_knob=True)
        text = printed(score_table(summary_of([trial])), width)
        assert eval(text[text.index("Config(") :], {"Config": Config}) == trial.config

    def test_ties_and_a_winner_that_is_not_number_one(self) -> None:
        trials = [
            measured(1.0000e-3, Resources(threads=8, registers=64), tile=1),
            measured(1.0001e-3, Resources(threads=2, registers=64), tile=2),
            measured(1.5e-3, Resources(threads=1, registers=32), tile=3),
        ]
        text = printed(score_table(summary_of(trials)), 100)
        assert re.search(r"1 .* tie +64 +8 +1\b", text)
        assert re.search(r"2 .* winner +64 +2 +2\b", text)
        assert re.search(r"3 +1\.500 .* 1\.5\d+ +32 +1 +3\b", text)
        assert "is as fast as number 1" in words(text)
        assert text.endswith("ready to paste:\nConfig(tile=2)\n")

    def test_a_winner_below_the_top_has_a_row_all_the_same(self) -> None:
        trials = [measured(1e-3 + 1e-9 * i, Resources(threads=30 - i), tile=i) for i in range(20)]
        text = printed(score_table(summary_of(trials), top=3), 100)
        ranks = re.findall(r"^ *(\d+) +1\.000", text, re.MULTILINE)
        assert ranks == ["1", "2", "3", "20"]
        assert "and 16 more measured" in text

    def test_a_time_of_few_samples_is_no_rival_and_says_why(self) -> None:
        rough = Trial(Config(tile=1), Measured((Sample(0.5e-3, 0, 0),)), at="then")
        text = printed(score_table(summary_of([rough, measured(1e-3, tile=2), measured(2e-3, tile=3)])), 100)
        assert re.search(r"1 +1\.000 .* 15 +1\.000 +winner +2\n", text)
        assert re.search(r"3 +0\.500 .* 1 +0\.500 +1\n", text)
        assert "left the race before its end" in " ".join(text.split())

    def test_every_point_is_accounted_for(self) -> None:
        trials = [
            *self.many(),
            *[ended(Failed("compile", "error: out of [registers]"), tile=i) for i in range(3)],
            ended(Failed("launch", "RuntimeError: no"), tile=9),
            ended(Untried("the budget ended"), tile=10),
        ]
        summary = summary_of(trials, {"too large for L2": 30, "threads divide M": 12}, more=100)
        text = words(printed(score_table(summary), 100))
        assert "42 cut + 4 failed + 12 measured + 101 untried = 159, the size of the space" in text
        assert summary.cardinality == 159
        assert "failed 3 × compile: error: out of [registers] for example Config(tile=0)" in text
        assert "failed 1 × launch: RuntimeError: no for example Config(tile=9)" in text
        assert text.index("cut 30 × too large for L2") < text.index("cut 12 × threads divide M")
        assert "untried 101 × the budget ended" in text
        assert "2.5 s compiling, 12.2 s measuring; 0 trials came from the store" in text

    def test_many_kinds_of_failure_are_counted_together(self) -> None:
        trials = [measured(1e-3, tile=0), *[ended(Failed("launch", f"reason {i}"), tile=i) for i in range(1, 30)]]
        text = printed(score_table(summary_of(trials)))
        assert text.count("for example") == 8
        assert "failed 21 × for 21 other reasons" in text

    def test_nothing_measured_has_no_winner(self) -> None:
        text = printed(score_table(summary_of([ended(Failed("launch", "TypeError: no"), tile=1)])))
        assert "winner" not in text
        assert "0 cut + 1 failed + 0 measured + 0 untried = 1" in text

    def test_an_answer_from_the_store_says_so(self) -> None:
        text = printed(score_table(summary_of(self.many(), known=12, compile_s=0.0, measure_s=0.0)))
        assert "answered from the store, nothing measured (12 trials known)" in text

    def test_resources_that_are_not_known_have_no_column_and_a_knob_is_not_said_twice(self) -> None:
        trials = [measured(1e-3, Resources(threads=n, shared_bytes=1024 * n), threads=n) for n in (1, 2)]
        heading = printed(score_table(summary_of(trials)), 100).splitlines()[2]
        assert heading.split() == ["#", "ms", "[p20,", "p80]", "n", "×best", "shared", "threads"]

    def test_true_and_one_are_two_values(self) -> None:
        text = printed(score_table(summary_of([measured(1e-3, knob=True), measured(2e-3, knob=1)])))
        assert re.search(r"winner +True\n", text)
        assert re.search(r"2\.000 +1\n", text)

    def test_a_knob_that_only_some_have_is_a_dash(self) -> None:
        text = printed(score_table(summary_of([measured(1e-3, a=1), measured(2e-3, a=1, split=4)])), 100)
        assert re.search(r"winner +–\n", text)
        assert re.search(r"2\.000 +4\n", text)

    def test_without_a_terminal_there_are_no_escape_codes_and_with_one_there_are(self) -> None:
        assert ESCAPE not in printed(score_table(summary_of(self.many())))
        out = io.StringIO()
        Console(file=out, force_terminal=True, width=80).print(score_table(summary_of(self.many())))
        assert ESCAPE in out.getvalue()


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Seconds:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def logged(out: io.StringIO) -> list[str]:
    """The lines of a log, each without the time of day before it."""
    lines = out.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)
    return [line[len("00:00:00 ") :] for line in lines]


def started(budget_s: float | None = 30.0) -> Started:
    return Started("matmul", PROBLEM, 50, {"too large": 10}, 5, budget_s)


class TestProgressInALog:
    @pytest.fixture(autouse=True)
    def closes_them(self) -> Iterator[None]:
        self.made: list[Progress] = []
        yield
        for progress in self.made:
            progress.close()

    def log(self, total: int | None = None) -> tuple[Progress, io.StringIO, Seconds]:
        out, clock = io.StringIO(), Seconds()
        progress = Progress(Console(file=out, width=80), total, clock)
        self.made.append(progress)
        return progress, out, clock

    def test_each_stage_is_a_plain_line_that_is_never_wrapped(self) -> None:
        progress, out, _ = self.log()
        summary = summary_of([measured(1e-3, block=16)])
        for event in (started(), Compiling(2), Compiled(Config(a=1), None), Compiled(Config(a=2), Failed("load", "x"))):
            progress(event)
        for event in (Racing(1), Sampled(Config(a=1), Config(a=1), 1e-3, 0), summary):
            progress(event)
        name = "matmul(M=512,N=64,dtype=float32): "
        lines = logged(out)
        assert lines[:3] == [
            name + "50 points: 10 cut, 5 in the store",
            name + "compiling 2",
            name + "compiled 2/2 (1 failed); measuring 1 candidate",
        ]
        assert lines[3].startswith(name + "done in 0.0 s")
        assert ESCAPE not in out.getvalue()

    def test_a_search_of_several_problems_that_are_prepared_says_which_it_is(self) -> None:
        progress, out, _ = self.log()
        for event in (Preparing("matmul", 1, 3), Preparing("matmul", 2, 3), started(), Preparing("matmul", 3, 3)):
            progress(event)
        for _ in range(2):  # the second is of a call that came later
            progress(started())
        starts = [line.partition("matmul")[0] for line in logged(out)]
        assert starts == ["[2/3] ", "[3/3] ", ""]

    def test_a_long_race_is_a_line_now_and_then(self) -> None:
        progress, out, clock = self.log()
        progress(started())
        progress(Racing(4))
        configs = [Config(a=i) for i in range(4)]
        for number in range(3):
            for config in configs[: 4 - number]:
                clock.now += LOG_EVERY_S / 4
                progress(Sampled(config, configs[1], 2e-3, number))
        lines = logged(out)[2:]
        assert len(lines) == 2
        assert "measuring round 1: 4/4 of the candidates left; best so far 2.000 ms Config(a=1)" in lines[0]
        assert "10.0 s so far, 20.0 s of the budget left" in lines[0]
        assert "measuring round 3: 1/3 of the candidates left" in lines[1]

    def test_while_compilers_go_on_the_best_so_far_is_told(self) -> None:
        progress, out, clock = self.log()
        progress(started())
        progress(Compiling(40))
        progress(Compiled(Config(a=1), None))
        clock.now += LOG_EVERY_S
        progress(Sampled(Config(a=1), Config(a=1), 2e-3, -1))
        line = logged(out)[-1]
        assert "compiled 1/40 (0 failed); best so far 2.000 ms Config(a=1)" in line

    def test_a_log_that_asks_for_colour_still_gets_plain_lines(self) -> None:
        out = io.StringIO()
        progress = Progress(Console(file=out, force_terminal=True))
        progress(started())
        assert ESCAPE not in out.getvalue()

    def test_several_searches_are_numbered_and_an_interrupted_one_is_forgotten(self) -> None:
        progress, out, _ = self.log(total=3)
        progress(started())
        progress(Compiling(7))  # and then Ctrl-C: no Summary
        progress(started())
        progress(Compiling(2))
        progress(Racing(2))
        lines = logged(out)
        assert lines[0].startswith("[1/3] matmul")
        assert lines[-1].endswith("compiled 0/2 (0 failed); measuring 2 candidates")
        assert lines[-1].startswith("[2/3] ")


class TestProgressInATerminal:
    def test_shows_what_it_does_and_leaves_nothing_behind(self) -> None:
        out, clock = Terminal(), Seconds()
        console = Console(file=out, force_terminal=True, width=80, _environ={"TERM": "xterm"})
        with Progress(console, now=clock) as progress:
            progress(started())
            progress(Compiling(4))
            for i in range(4):
                clock.now += 1
                progress(Compiled(Config(a=i), Failed("compile", "x") if i == 3 else None))
            progress(Racing(3))
            for i in range(3):
                clock.now += 1
                progress(Sampled(Config(a=i), Config(a=0), 5e-6, 0))
            clock.now += 1
            progress(Sampled(Config(a=0), Config(a=0), 5e-6, 1))
            shown = out.getvalue()
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
        for part in (
            "matmul(M=512,N=64,dtype=float32)",
            "50 points: 10 cut, 5 in the store",
            "compiled 2/4 (0 failed)",
            "compiled 4/4 (1 failed)",
            "measuring round 1: 3/3 of the candidates left",
            "measuring round 2: 1/3 of the candidates left",
            "best so far 5.000 µs Config(a=0)",
            "8.0 s so far, 22.0 s of the budget left",
        ):
            assert part in plain
        taken_back = out.getvalue()[len(shown) :]
        assert "\x1b[?25h" in taken_back  # the cursor is shown again
        assert taken_back.count("\x1b[2K") >= 5  # and the lines are cleared

    def test_between_compilations_nothing_is_drawn_while_a_kernel_is_timed(self) -> None:
        out, turns = Terminal(), Turns()

        def drawn() -> bool:
            before, end = len(out.getvalue()), time.monotonic() + 3 * REDRAW_S
            while len(out.getvalue()) == before and time.monotonic() < end:
                time.sleep(0.01)
            return len(out.getvalue()) > before

        with Progress(Console(file=out, force_terminal=True, _environ={"TERM": "xterm"})) as progress:
            progress(started())
            progress(Compiling(4, turns))
            assert drawn()
            with turns.timing():
                assert not drawn()

    def test_no_thread_draws_while_kernels_are_timed(self) -> None:
        console = Console(file=Terminal(), force_terminal=True, _environ={"TERM": "xterm"})

        def drawing() -> bool:
            return any(thread.name == "tunesmith-progress" for thread in threading.enumerate())

        with Progress(console) as progress:
            progress(started())
            progress(Compiling(4))
            assert drawing()
            progress(Racing(4))
            assert not drawing()
            progress(Compiling(4))
            assert drawing()
        assert not drawing()


class TestWatch:
    def kernel(self, clock: ScriptedClock) -> tunesmith.TunedKernel:
        @tunesmith.autotune(space=Space(block=[16, 32]), key=["n"], clock=clock)
        def scale(n: int, *, block: int) -> int:
            return n * block

        return scale

    def test_shows_searches_on_standard_error_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        scale = self.kernel(ScriptedClock(lambda config: 1e-3 * config["block"]))
        with watch():
            scale(3)
        out, err = capsys.readouterr()
        assert out == ""
        assert "scale(n=3): 2 points: 0 cut, 0 in the store" in err
        assert err.endswith("Config(block=16)\n")
        assert ESCAPE not in err
        scale(4)
        assert capsys.readouterr().err == ""  # the scope is over

    def test_a_search_within_a_search_lets_the_outer_one_go_on(self, capsys: pytest.CaptureFixture[str]) -> None:
        inner = self.kernel(ScriptedClock(lambda config: 1e-3 * config["block"]))

        @tunesmith.autotune(space=Space(a=[1, 2]), key=["n"], clock=ScriptedClock(lambda config: 1e-3 * config["a"]))
        def outer(n: int, *, a: int) -> int:
            return inner(n) + a

        with watch():
            assert outer(3) == 3 * 16 + 1
        err = capsys.readouterr().err
        assert err.index("outer(n=3): 2 points") < err.index("scale(n=3): 2 points") < err.index("scale(n=3): done in")
        assert err.index("scale(n=3): done in") < err.index("outer(n=3): done in")

    def test_explain_prints_on_standard_output(self, capsys: pytest.CaptureFixture[str]) -> None:
        scale = self.kernel(ScriptedClock(lambda config: 1e-3 * config["block"]))
        scale(3)
        capsys.readouterr()
        scale.explain(3)
        out, err = capsys.readouterr()
        assert err == ""
        assert "Config(block=16)" in out
        assert re.search(r"track +search", out)
        assert re.search(r"time +16\.00 ms", out)
        assert re.search(r"runner-up 2\.000× its time: Config\(block=32\)", words(out))
        assert re.search(r"2 +32\.00 .* 32\n", out)


class TestExplanation:
    def test_says_where_a_choice_comes_from_and_what_is_odd_about_it(self) -> None:
        choice = Choice(
            Config(block=16), "lookup", "table h200.json", 2e-3, Config(block=32), 1.25, (Config(block=8),),
            distance="M: 500, row: 512", measured_at=Problem({"M": 500}), candidates={"measured": 7, "cut": 2},
            note="found under other versions (python: 3.12, was 3.11)",
        )  # fmt: skip
        trials = [measured(1e-3 * i, block=i) for i in range(1, 9)]
        text = words(printed(Explanation(KEY, choice, trials), 100))
        for part in (
            "track lookup", "source table h200.json", "time 2.000 ms", "runner-up 1.250× its time: Config(block=32)",
            "ties Config(block=8)", "distance M: 500, row: 512", "measured at M=500", "was 3.11", "7 measured, 2 cut",
            "stored 8 measured, 0 failed, 0 untried", "the fastest of 8 stored trials",
        ):  # fmt: skip
            assert part in text
        assert re.findall(r" (\d) \d\.000 \[", text) == ["1", "2", "3", "4", "5"]

    def test_a_default_was_never_measured(self) -> None:
        choice = Choice(Config(block=16), "lookup", "default", note="nothing is known of matmul")
        out = words(printed(Explanation(KEY, choice, [])))
        assert "time never measured" in out
        assert "note nothing is known of matmul" in out
        assert "stored" not in out
