"""The command line: one line for every bad input, one JSON document, exit codes, CSV files, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunesmith.cli import main

KERNELS = '''
import tunesmith
from tests.fakes import ScriptedClock
from tunesmith import Space

CLOCK = ScriptedClock(lambda config: 1e-3 * (1 + 64 / config["block"] + config["unroll"]))
launches = []

@tunesmith.autotune(
    space=Space(block=[16, 32, 64], unroll=[1, 2, 4], mode=["fast", "safe"]).where(
        lambda block, unroll: block // unroll >= 8, "a block holds eight of its steps"),
    key=["M", "N"], flags={"causal": False}, clock=CLOCK,
    make_inputs=lambda problem: {"M": problem["M"], "N": problem["N"]},
)
def scale(M, N, *, block, unroll, mode):
    """Scale a matrix."""
    launches.append(M)
    if mode == "safe":
        raise RuntimeError("out of registers")

@tunesmith.autotune(configs=[{"a": 1}, {"a": 2}], key=["n"], make_inputs=lambda problem: {"n": problem["n"]})
def broken(n, *, a):
    raise TypeError("a bug in the kernel")

@tunesmith.autotune(
    configs=[{"a": i} for i in range(6)], key=["n"], clock=ScriptedClock(lambda config: 1e-3 + config["a"]),
    make_inputs=lambda problem: {"n": problem["n"]})
def stopped(n, *, a):
    launches.append(a)
    if len(launches) == 4:
        raise KeyboardInterrupt

@tunesmith.autotune(configs=[{"a": 1}, {"a": 2}], key=["n"], clock=ScriptedClock(lambda config: 1e-3),
    make_inputs=lambda problem: {"n": problem["n"]})
def loud(n, *, a):
    print("the kernel says hello")

@tunesmith.autotune(configs=[{"a": 1}, {"a": 2}], key=["n"])
def without_inputs(n, *, a):
    pass

print("the module says hello")
not_a_kernel = 3
'''

#: of `scale`: 18 points, 4 cut (16 // 4 = 4 < 8 with 2 modes, and no other), half of the rest fails
SCALE = ("--problem", "M=512,N=64")


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """From a kernel's name to its TARGET in a throw-away file."""
    before = set(sys.modules)
    file = tmp_path / "some_kernels.py"
    file.write_text(KERNELS)
    yield lambda name: f"{file}:{name}"
    for name in set(sys.modules) - before:
        if name.endswith("some_kernels"):
            del sys.modules[name]


class Ended:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on standard output."""
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    def run(*args: object) -> Ended:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        return Ended(code, *capsys.readouterr())

    return run


Run = Callable[..., Ended]
Target = Callable[[str], str]


# --- bad input: one line, the good values, exit code 2, no traceback ---------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((*SCALE, "--fix", "block=17"), "knob 'block' cannot be 17; good values: 16, 32, 64"),
        ((*SCALE, "--fix", "mode=quick"), "knob 'mode' cannot be 'quick'; good values: 'fast', 'safe'"),
        ((*SCALE, "--fix", "blok=16"), "did you mean 'block'? known: block, unroll, mode"),
        ((*SCALE, "--fix", "block"), "write KNOB=VALUE"),
        ((*SCALE, "--fix", "block=16", "--fix", "block=32"), "'block' is given twice"),
        (("--problem", "M=512,N=64,Q=3"), "unknown problem field 'Q': known: M, N, dtype, causal"),
        (("--problem", "M=512"), "dimension 'N' is missing; needed: M, N"),
        (("--problem", "M=-512,N=64"), "dimension 'M' is -512; good values: integers from 0"),
        (("--problem", "M=big,N=64"), "dimension 'M' is big; good values: integers"),
        (("--problem", "M=512,N=64,causal=perhaps"), "flag 'causal' is perhaps; good values: true, false"),
        (("--problem", "M=512,64"), "'64' in 'M=512,64' is not NAME=VALUE"),
        (("--problem", "M=512,M=64"), "'M' is given twice"),
        (("--problem", ""), "dimension 'M' is missing"),
        ((), "no problem is given; write --problem M=512,N=512"),
        ((*SCALE, "--strategy", "gready"), "unknown strategy 'gready': known: auto, descent, evolution, exhaustive"),
        ((*SCALE, "--budget", "-1"), "--budget -1: good values: a number of seconds above 0"),
        ((*SCALE, "--budget", "nan"), "--budget nan: good values"),
        ((*SCALE, "--budget", "much"), "'--budget'"),
        ((*SCALE, "--launches", "0"), "--launches 0: good values: a number of timed launches from 1"),
        ((*SCALE, "--problm", "M=1"), "did you mean '--problem'?"),
        (("--problems", "no-such.csv"), "there is no file 'no-such.csv'"),
    ],
)
@pytest.mark.parametrize("mode", [(), ("--json",)], ids=["text", "json"])
def test_a_bad_option_is_one_line(
    run: Run, target: Target, args: tuple[str, ...], said: str, mode: tuple[str, ...]
) -> None:
    assert_refused(run("tune", target("scale"), *args, *mode), said)


def assert_refused(ended: Ended, said: str) -> None:
    lines = [line for line in ended.err.splitlines() if line != "the module says hello"]
    assert ended.code == 2
    assert len(lines) == 1
    assert lines[0].startswith("tunesmith: ")
    assert said in lines[0]
    assert ended.out.replace("the module says hello\n", "") == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scal", "has no attribute 'scal'; tuned kernels there: scale, broken"),
        ("not_a_kernel", "is of type int, not a kernel with @tunesmith.autotune; tuned kernels there: scale"),
        ("without_inputs", "without_inputs has no inputs of its own: pass make_inputs= to autotune"),
    ],
)
def test_a_target_that_is_no_kernel_to_tune(run: Run, target: Target, name: str, said: str) -> None:
    assert_refused(run("tune", target(name), "--problem", "n=1"), said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("some notes, no Python", "cannot be imported: SyntaxError"),
        ("x = 1\ny = x / 0\n", "cannot be imported: ZeroDivisionError: division by zero (line 2)"),
        ("import no_such_module_at_all\n", "No module named 'no_such_module_at_all' (line 1)"),
        ("raise SystemExit(0)\n", "cannot be imported: SystemExit: 0 (line 1)"),
        ("\0\1\2", "cannot be imported: "),
        ("x = 1\n", "has no attribute 'kernel'; tuned kernels there: (none)"),
    ],
)
def test_a_file_that_is_not_a_kernel(run: Run, tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "no_kernels_here.py"
    file.write_text(content)
    assert_refused(run("tune", f"{file}:kernel", "--problem", "n=1"), said)
    sys.modules.pop("no_kernels_here", None)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no_such_file.py:kernel", "there is no file 'no_such_file.py'"),
        ("no_such_module_at_all:kernel", "No module named 'no_such_module_at_all'"),
        ("no_such_kernel", "unknown kernel 'no_such_kernel'"),
        (":kernel", "write matmul, module:attribute or path.py:attribute"),
        ("json:", "write matmul, module:attribute or path.py:attribute"),
        ("json:dumps", "json:dumps is of type function, not a kernel"),
        ("./setup.cfg:x", "there is no file 'setup.cfg'"),
    ],
)
def test_a_target_that_is_not_there(run: Run, what: str, said: str) -> None:
    assert_refused(run("tune", what, "--problem", "n=1"), said)


def test_a_file_without_attribute_says_what_is_in_it(run: Run, target: Target) -> None:
    path = target("").removesuffix(":")
    assert_refused(run("tune", path, "--problem", "n=1"), f"write {path}:attribute; tuned kernels there: scale, broken")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ("tun",),
            "unknown command 'tun': did you mean 'tune'? known: tune, sweep, explain, profile, verify, record, ",
        ),
        (("store", "inf"), "unknown command 'inf': did you mean 'info'? known: info, gc, export, merge, refresh"),
        (("store",), "good ones: info, gc, export, merge, refresh"),
        (("tune",), "TARGET"),
        (("store", "merge", "no-such.json"), "no-such.json"),
        (("store", "gc", "--days", "-1"), "-1"),
    ],
)
def test_a_bad_command_is_one_line(run: Run, args: tuple[str, ...], said: str) -> None:
    assert_refused(run(*args), said)


def test_a_bad_environment_variable_is_one_line(run: Run, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_POLICY", "fast")
    assert_refused(run("doctor"), "TUNESMITH_POLICY=fast: good values: default, lookup, search, strict-lookup")


# --- CSV ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "shapes.csv is empty; needed: a header such as M,N"),
        ("# nothing\n\n", "shapes.csv is empty"),
        ("M,N\n", "shapes.csv has a header and no rows"),
        ("M,N\n1,2\n\n# so far\n3,\n", "shapes.csv line 5: dimension 'N' is missing; needed: M, N"),
        ("M,N\n1,2\n3,4,5\n", "shapes.csv line 3: 3 values for the 2 columns M, N"),
        ("M,N\n1,-2\n", "shapes.csv line 2: dimension 'N' is -2; good values: integers from 0"),
        ("M,N,Q\n1,2,3\n", "shapes.csv line 2: unknown problem field 'Q'"),
        ("M,M\n1,2\n", "shapes.csv line 1: two columns are named 'M'"),
        ("M,N,\n1,2,3\n", "shapes.csv line 1: a column has no name"),
        ("M,N,count\n1,2,often\n", "shapes.csv line 2: count is 'often'; good values: integers from 0"),
        ("M,N,causal\n1,2,perhaps\n", "shapes.csv line 2: flag 'causal' is perhaps"),
        ("kernel,M,N\nsoftmax,1,2\nsoftmax,1,3\n", "no row is of scale; rows of other kernels: 2 × softmax"),
        ('M,N\n1,"2\n', "shapes.csv line 2: "),
    ],
)
def test_a_bad_csv_file_is_named_by_line(run: Run, target: Target, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "shapes.csv"
    file.write_text(text)
    assert_refused(run("tune", target("scale"), "--problems", file), said)


def test_a_csv_file_that_is_no_text(run: Run, target: Target, tmp_path: Path) -> None:
    file = tmp_path / "shapes.csv"
    file.write_bytes(b"M,N\n\xff\xfe1,2\n")
    assert_refused(run("tune", target("scale"), "--problems", file), "can't be read as a CSV file")


def test_a_csv_file_as_a_spreadsheet_writes_it(run: Run, target: Target, tmp_path: Path) -> None:
    file = tmp_path / "shapes.csv"
    lines = [
        "kernel,count,M,N,causal",
        "scale,3,512,64,",
        '# a "comment',
        "",
        "softmax,9,1,1,",
        'scale,7,"128",64,true',
        ",5,512,64,false",
    ]
    file.write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    ended = run("tune", target("scale"), "--problems", file, "--problem", "M=8,N=8", "--json")
    assert ended.code == 0
    asked = [result["problem"] for result in ended.document["results"]]
    # typed ones first, then by count: 3 + 5 of the one that stands there twice, 7 of the other
    assert asked == ["M=8,N=8,causal=false", "M=512,N=64,causal=false", "M=128,N=64,causal=true"]
    assert "tunesmith: skipped rows of other kernels: 1 × softmax" in ended.err


# --- tune -----------------------------------------------------------------------------------------------


def test_tune_prints_a_score_table_and_then_answers_from_the_store(run: Run, target: Target) -> None:
    first = run("tune", target("scale"), *SCALE)
    assert first.code == 0
    assert "2 cut + 8 failed + 8 measured + 0 untried = 18, the size of the space" in first.out
    assert "failed 8 × launch: RuntimeError: out of registers" in first.out
    assert first.out.endswith("Config(block=64, mode='fast', unroll=1)\n")
    again = run("tune", target("scale"), *SCALE)
    assert again.code == 0
    assert "answered from the store, nothing measured (16 trials known)" in again.out
    assert again.out.endswith("Config(block=64, mode='fast', unroll=1)\n")


def test_progress_is_plain_text_on_standard_error(run: Run, target: Target) -> None:
    ended = run("tune", target("scale"), *SCALE)
    assert "scale(M=512,N=64): 18 points: 2 cut, 0 in the store\n" in ended.err
    assert "\x1b" not in ended.err + ended.out


def test_fixed_knobs_are_held(run: Run, target: Target) -> None:
    ended = run("tune", target("scale"), *SCALE, "--fix", "block=16", "--fix", "mode=fast", "--json")
    configs = [score["config"] for score in ended.document["results"][0]["scores"]]
    assert configs == [{"block": 16, "mode": "fast", "unroll": unroll} for unroll in (1, 2)]


def test_several_problems_end_with_one_table(run: Run, target: Target) -> None:
    ended = run("tune", target("scale"), *SCALE, "--problem", "M=8,N=8", "--fix", "mode=fast")
    assert ended.code == 0
    assert "[2/2] scale(M=8,N=8): " in ended.err
    table = ended.out[ended.out.index("problem ") :].splitlines()
    assert table[0].split() == ["problem", "time", "change", "measured", "failed", "seconds", "Config"]
    assert re.match(r"M=512, N=64,.* 3\.000 ms +new +8 +0 +\d\.\d +Config\(block=64,", table[1])
    assert any(line.startswith("M=8, N=8, ") for line in table)


def test_nothing_works_is_exit_code_1_and_other_problems_go_on(run: Run, target: Target) -> None:
    ended = run("tune", target("broken"), "--problem", "n=1", "--problem", "n=2")
    assert ended.code == 1
    assert "Traceback" not in ended.err
    assert "tunesmith: broken(n=1): none of 2 Configs works" in ended.err
    assert "2 × launch: TypeError: a bug in the kernel" in ended.err
    assert "broken(n=2): none of 2 Configs works" in ended.err
    in_json = run("tune", target("broken"), "--problem", "n=1", "--json")
    result = in_json.document["results"][0]
    assert in_json.code == 1
    assert result["error"].startswith("broken(n=1): none of 2 Configs works")
    assert result["failed_by_reason"][0]["count"] == 2
    assert result["choice"] is None


def test_ctrl_c_keeps_what_was_measured(run: Run, target: Target) -> None:
    ended = run("tune", target("stopped"), "--no-isolate", "--problem", "n=1", "--problem", "n=2", "--json")
    assert ended.code == 130
    assert "interrupted: 3 trials of stopped(n=1) are kept" in ended.err
    assert "0 of 2 problems are done" in ended.err
    assert ended.document["interrupted"] == {"problem": "n=1", "trials_kept": 3}
    rest = run("tune", target("stopped"), "--no-isolate", "--problem", "n=1", "--json")
    assert rest.code == 0
    assert rest.document["results"][0]["known_before"] == 3
    assert rest.document["results"][0]["measured"] == 6


def test_json_is_one_document_whatever_is_printed(run: Run, target: Target) -> None:
    ended = run("tune", target("loud"), "--no-isolate", "--problem", "n=1", "--json")
    assert next(iter(ended.document)) == "format"
    assert ended.document["format"] == "tunesmith-tune/1"
    assert "the module says hello" in ended.err
    assert "the kernel says hello" in ended.err


def test_json_accounts_for_every_point_and_is_in_seconds(run: Run, target: Target) -> None:
    result = run("tune", target("scale"), *SCALE, "--json").document["results"][0]
    assert result["cut"] + result["failed"] + result["measured"] + result["untried"] == result["space_size"] == 18
    assert result["cut_by_reason"] == {"a block holds eight of its steps": 2}
    assert [score["rank"] for score in result["scores"]] == list(range(1, 9))
    assert result["scores"][0]["median_s"] == pytest.approx(3e-3)
    assert result["choice"]["config"] == {"block": 64, "mode": "fast", "unroll": 1}
    assert result["from_store"] is False


def test_a_module_on_the_path_and_a_file_named_like_a_loaded_module(
    run: Run, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("explain", target("scale"), *SCALE).code == 0
    assert run("explain", "some_kernels:scale", *SCALE).code == 0
    (tmp_path / "json.py").write_text(KERNELS)
    assert run("explain", "json.py:scale", *SCALE).code == 0
    assert json.dumps([]) == "[]"
    assert str(tmp_path) not in sys.path


# --- explain, kernels, doctor, store --------------------------------------------------------------------


def test_explain_measures_nothing_and_says_what_is_known(run: Run, target: Target) -> None:
    before = run("explain", target("scale"), *SCALE, "--json").document
    assert before["format"] == "tunesmith-explain/1"
    assert before["results"][0]["choice"]["source"] == "default"
    assert before["results"][0]["choice"]["note"] == "nothing is known of scale; a call would search"
    run("tune", target("scale"), *SCALE)
    after = run("explain", target("scale"), *SCALE, "--json").document["results"][0]
    assert after["choice"]["source"] == "store"
    assert after["stored"] == {"measured": 8, "failed": 8, "untried": 0}
    assert len(after["scores"]) == 5
    text = run("explain", target("scale"), *SCALE).out
    assert "Config(block=64, mode='fast', unroll=1)" in text
    assert "the fastest of 16 stored trials" in text


def test_explain_compares_one_profiled_launch_with_a_kernels_model(run: Run, target: Target, tmp_path: Path) -> None:
    file = str(tmp_path / "counted.csv")
    found = run("explain", target("scale"), *SCALE, "--ncu", file)
    assert found.code == 2
    assert f"nothing to compare {file} with: its autotune has no model=" in found.err
    twice = run("explain", target("scale"), *SCALE, "--problem", "M=8,N=8", "--ncu", file)
    assert twice.code == 2
    assert "is of one launch, and 2 problems are given" in twice.err


def test_kernels_lists_what_is_shipped(run: Run) -> None:
    listed = run("kernels", "--json").document
    assert listed["format"] == "tunesmith-kernels/1"
    matmul = {kernel["name"]: kernel for kernel in listed["kernels"]}["matmul"]
    assert set(matmul["dims"]) == {"M", "N", "K"}
    assert matmul["does"]
    assert matmul["knobs"]
    assert matmul["configs"] > 1
    text = run("kernels").out
    assert "matmul" in text
    assert matmul["does"].split()[0] in text


def test_doctor_says_what_works_and_where_the_store_is(run: Run, tmp_path: Path) -> None:
    found = run("doctor", "--json").document
    assert found["format"] == "tunesmith-doctor/1"
    assert found["store"]["path"].startswith(str(tmp_path))
    assert found["isolation"].startswith("works: a worker was started in ")
    assert (found["options"]["ranks"], found["options"]["replay_miss"]) == ("", "error")
    assert found["device"].startswith("cpu:")
    assert found["from_environment"] == ["cache_dir"]
    assert {backend["name"]: backend["works"] for backend in found["backends"]}["callable"]
    lines = run("doctor").out.splitlines()
    assert any(line.startswith("  isolation  ") for line in lines)
    assert [line for line in lines if line != line.rstrip()] == []  # what is pasted and piped has no blanks at its ends


def test_help_says_in_a_whole_sentence_what_each_command_does(run: Run) -> None:
    for group in ([], ["store"], ["plan"]):
        assert "..." not in run(*group, "--help").out.split("Commands:")[1]


def test_doctor_without_a_compiler_says_what_to_type(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tunesmith import backends
    from tunesmith.options import options

    monkeypatch.setenv("TUNESMITH_CC", str(tmp_path / "no-such-compiler"))
    for name in ("triton", "cuda", "cute", "flydsl"):
        monkeypatch.setattr(backends, f"_{name}", lambda name=name: backends.BackendState(name, False, "not installed"))
    options.cache_clear()
    ended = run("doctor")
    assert ended.code == 1
    assert "cc" in ended.out
    assert "does not work" in ended.out
    assert "pip install" in ended.out
    assert not run("doctor", "--json").document["healthy"]


def test_the_store_goes_from_one_machine_to_another(
    run: Run, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunesmith.options import options

    run("tune", target("scale"), *SCALE)
    file = tmp_path / "known.json"
    assert run("store", "export", file).code == 0
    assert json.loads(file.read_text())["format"].startswith("tunesmith-")
    monkeypatch.setenv("TUNESMITH_CACHE_DIR", str(tmp_path / "elsewhere"))
    options.cache_clear()
    assert run("store", "info", "--json").document["store"]["kernels"] == {}
    merged = run("store", "merge", file, "--json").document
    assert merged["format"] == "tunesmith-store-merge/1"
    assert merged["trials"] == 16
    assert "answered from the store" in run("tune", target("scale"), *SCALE).out
    assert "scale" in run("store", "info").out
    gone = run("store", "gc", "--days", "0", "--json").document
    assert gone["format"] == "tunesmith-store-gc/1"
    assert gone["keys"] == 1


# --- the process ----------------------------------------------------------------------------------------


def in_a_process(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    script = "import sys; from tunesmith.cli import main; code = main(sys.argv[1:]); " + (
        "print('LOADED', *sys.modules) if sys.argv[1] == '--help' else None; sys.exit(code)"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *args], env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_help_loads_nothing_heavy() -> None:
    ended = in_a_process("--help")
    loaded = set(ended.stdout[ended.stdout.index("LOADED") :].split())
    assert ended.returncode == 0
    assert "tune " in ended.stdout
    assert not loaded & {"numpy", "torch", "triton", "rich", "sqlite3", "tunesmith.tuned", "tunesmith.tune"}


def test_an_old_encoding_and_a_failure_end_as_they_should(target: Target) -> None:
    ended = in_a_process("tune", target("broken"), "--problem", "n=1", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert ended.returncode == 1
    assert "failed 2 x launch: TypeError" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_our_own_warnings_are_one_line(target: Target, tmp_path: Path) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    ended = in_a_process("tune", target("scale"), *SCALE, "--json", TUNESMITH_CACHE_DIR=str(blocked / "folder"))
    assert ended.returncode == 1
    assert json.loads(ended.stdout)["results"][0]["measured"] == 8
    warned = [line for line in ended.stderr.splitlines() if "warning:" in line]
    assert warned
    assert all(line.startswith("tunesmith: warning: ") for line in warned)


def test_version(run: Run) -> None:
    ended = run("--version")
    assert ended.code == 0
    assert ended.out.startswith("tunesmith ")


def test_a_problem_whose_inputs_cannot_be_made_does_not_lose_the_others(run: Run, tmp_path: Path) -> None:
    good, bad = "N=1,C=1,H=4,W=4,K=1,R=2,S=2", "N=1,C=1,H=2,W=2,K=1,R=3,S=3"
    ended = run("tune", "conv2d", "--fix", "VEC=8", "--fix", "KB=8", "--problem", good, "--problem", bad, "--json")

    assert ended.code == 2
    assert [bool(result["error"]) for result in ended.document["results"]] == [False, True]
    assert "does not fit an image" in ended.err
    assert run("store", "export", tmp_path / "known.json", "--json").document["format"] == "tunesmith-store-export/1"
