"""`tunesmith guard` on files and a scripted machine: what is compared and refused, exit codes. R25 (d), (e), (g)."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from table_files import BF16, bf16, csv, ladder
from table_files import put as put_file

from tunesmith.cli import main
from tunesmith.cli.target import find_target
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Measured, Recording, Sample, Trial
from tunesmith.core.problem import Problem
from tunesmith.errors import LookupMiss
from tunesmith.options import options
from tunesmith.recording import save
from tunesmith.store import Store, default_store
from tunesmith.tables import NativeTable
from tunesmith.tables.native import Entry

H100, H200 = "cuda:NVIDIA H100 80GB HBM3:sm_90:132", "cuda:NVIDIA H200:sm_90:132"
USUAL = Config(BLOCK=64)
KERNELS = '''
import random
import tunesmith
from tests.fakes import ScriptedClock
from tunesmith import Space

TIMES = {16: 4.0, 32: 2.0, 64: 1.0, 128: 1.5}
clock = ScriptedClock(lambda config: 1e-3 * TIMES[config["block"]], noise=0.02)

@tunesmith.autotune(space=Space(block=[16, 32, 64, 128]), key=["n"], policy="lookup", clock=clock,
    make_inputs=lambda problem: {"n": problem["n"]})
def scale(n, *, block):
    if n == 13 and block == 64:
        raise RuntimeError("an illegal address")

@tunesmith.autotune(space=Space(block=[16, 32]), key=["n"])
def dreamer(n, *, block):
    """Tunes itself."""
'''


@pytest.fixture
def target(tmp_path: Path) -> Iterator[str]:
    before, file = set(sys.modules), tmp_path / "guarded.py"
    file.write_text(KERNELS)
    yield f"{file}:scale"
    for name in set(sys.modules) - before:
        if name.endswith("guarded"):
            del sys.modules[name]


@pytest.fixture
def guard(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs it with --json: the exit code and the document."""

    def guard(*args: object) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main(["guard", *[str(arg) for arg in args], "--json"])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else {}

    return guard


Guard = Callable[..., "tuple[int, dict[str, Any]]"]


def times(level: float, seed: int, n: int = 15, noise: float = 0.03) -> Measured:
    rng = random.Random(seed)
    return Measured(tuple(Sample(level * rng.lognormvariate(0, noise), i, 0) for i in range(n)))


def put(
    folder: Path,
    levels: Mapping[str, float],
    device: str = H200,
    seed: int = 0,
    protocol: str = "p1",
    noise: float = 0.03,
) -> Path:
    """A store that knows these problems of `gemm`: text → seconds."""
    store = Store.open(folder)
    for number, (text, level) in enumerate(levels.items()):
        key = Key("gemm", "f1", Problem.parse(text), device, protocol)
        outcome = times(level, seed * 1000 + number, noise=noise)
        store.add_trials(key, [Trial(USUAL, outcome, at="2026-01-01")])
        store.put_choice(key, Choice(USUAL, "search", "search", outcome.median_s), {})
    store.close()
    return folder


def statuses(document: Mapping[str, Any]) -> dict[str, str]:
    return {line["problem"]: line["status"] for line in document["results"]}


SHAPES = {f"M={16 * i}": 1e-4 * i for i in range(1, 13)}


# --- BASE and NEW -------------------------------------------------------------------------------------


def test_the_same_twice_is_good(guard: Guard, tmp_path: Path) -> None:
    code, said = guard(put(tmp_path / "a", SHAPES), put(tmp_path / "b", SHAPES, seed=1))
    assert (code, said["answer"], set(statuses(said).values())) == (0, "good", {"same"})


def test_one_that_is_slower_is_named_and_is_exit_code_1(guard: Guard, tmp_path: Path) -> None:
    slower = {**SHAPES, "M=64": SHAPES["M=64"] * 1.3}
    code, said = guard(put(tmp_path / "a", SHAPES), put(tmp_path / "b", slower, seed=1))

    assert (code, said["answer"]) == (1, "worse")
    assert [line["problem"] for line in said["results"] if line["status"] == "worse (fails)"] == ["M=64"]
    assert said["results"][0]["problem"] == "M=64"


def test_thresholds_are_options(guard: Guard, tmp_path: Path) -> None:
    slower = {**SHAPES, "M=64": SHAPES["M=64"] * 1.3}
    a, b = put(tmp_path / "a", SHAPES), put(tmp_path / "b", slower, seed=1)

    code, said = guard(a, b, "--fail", "1.6")
    assert (code, statuses(said)["M=64"]) == (0, "worse")
    assert guard(a, b, "--margin", "1.5", "--warn", "1.6", "--fail", "1.7")[0] == 0
    assert guard(a, b, "--fail", "1.01")[0] == 2


def test_r25_d_another_device_is_refused_with_an_exit_code_of_its_own(guard: Guard, tmp_path: Path) -> None:
    code, said = guard(put(tmp_path / "a", SHAPES, H100), put(tmp_path / "b", SHAPES, H200))
    assert code == 3
    assert set(statuses(said).values()) == {"not compared"}
    assert "H100 80GB HBM3, NEW of NVIDIA H200: another device" in said["results"][0]["note"]


def test_another_way_of_timing_is_refused(guard: Guard, tmp_path: Path) -> None:
    code, said = guard(put(tmp_path / "a", SHAPES), put(tmp_path / "b", SHAPES, protocol="p2"))
    assert code == 3
    assert "another way of timing" in said["results"][0]["note"]


def test_r25_e_what_only_one_side_has_is_listed_and_is_no_pass(guard: Guard, tmp_path: Path) -> None:
    a, b = put(tmp_path / "a", SHAPES), put(tmp_path / "b", {**SHAPES, "M=999": 1e-3}, seed=1)

    code, said = guard(a, b)
    assert (code, statuses(said)["M=999"]) == (3, "only in NEW")
    code, said = guard(b, a)
    assert (code, statuses(said)["M=999"]) == (3, "only in BASE")
    code, said = guard(b, a, "--allow-unmatched")
    assert (code, statuses(said)["M=999"]) == (0, "only in BASE")


def test_nothing_in_common_is_no_pass(guard: Guard, tmp_path: Path) -> None:
    a, b = put(tmp_path / "a", {"M=1": 1e-3}), put(tmp_path / "b", {"M=2": 1e-3})
    assert guard(a, b, "--allow-unmatched")[0] == 3


def test_of_a_store_with_several_devices_each_is_compared_with_its_own(guard: Guard, tmp_path: Path) -> None:
    a = put(put(tmp_path / "a", {"M=1": 1e-3}, H100), {"M=1": 2e-3}, H200)
    code, said = guard(a, put(tmp_path / "b", {"M=1": 2e-3}, H200, seed=1))
    assert (code, statuses(said)) == (0, {"M=1": "same"})


def test_recordings_and_exports_are_sides_too(guard: Guard, tmp_path: Path) -> None:
    for name, level in (("a", 1e-3), ("b", 1.4e-3)):
        trials = [Trial(Config(BLOCK=b), times(level * b / 64, b, 30)) for b in (64, 128)]
        recording = Recording("gemm", "NVIDIA H200", Problem.parse("M=1"), tuple(trials), "p1: 30 rounds")
        save(recording, tmp_path / f"{name}.json.gz")
    put(tmp_path / "store", {"M=1": 1e-3}, seed=3)
    Store.open(tmp_path / "store").export(tmp_path / "export.json")

    assert guard(tmp_path / "a.json.gz", tmp_path / "b.json.gz")[0] == 1
    assert guard(tmp_path / "export.json", tmp_path / "a.json.gz")[0] == 0
    assert guard(tmp_path / "store" / "store.sqlite", tmp_path / "b.json.gz")[0] == 1


def test_tables_have_no_samples_so_how_far_off_a_time_may_be_has_to_be_said(guard: Guard, tmp_path: Path) -> None:
    for name, level in (("a", 1e-3), ("b", 1.4e-3)):
        rows = {Problem.parse("M=1"): Entry(USUAL, level), Problem.parse("M=2"): Entry(USUAL, 1e-3)}
        NativeTable("gemm", H200, rows).write(tmp_path / f"{name}.json")
    a, b = tmp_path / "a.json", tmp_path / "b.json"

    code, said = guard(a, b)
    assert (code, statuses(said)) == (3, {"M=1": "cannot tell", "M=2": "cannot tell"})
    code, said = guard(a, b, "--spread", "0.03")
    assert (code, statuses(said)) == (1, {"M=1": "worse (fails)", "M=2": "same"})


def test_tables_of_other_tuners_are_sides_as_far_as_they_tell_times(guard: Guard, tmp_path: Path) -> None:
    for side, us in (("main", 10.0), ("change", 20.0)):
        timings = [[{"kwargs": {"B": 64}, "num_warps": 4}, [us / 1e3, 0.0, 0.0]], [{"kwargs": {"B": 16}}, [9.0, 0, 0]]]
        put_file(tmp_path / side, "bf16_tuned_gemm.csv", csv(BF16, bf16(16, us), bf16(64, 8.0), bf16(64, 0)))
        put_file(tmp_path / side, "add.autotune.json", json.dumps({"key": [512], "configs_timings": timings}).encode())

    code, said = guard(tmp_path / "main", tmp_path / "change", "--spread", "0.02")

    lines = {(line["kernel"], line["problem"].partition(",")[0]): line for line in said["results"]}
    assert code == 1
    assert lines["add", "of=[512]"]["status"] == "worse (fails)"
    of_csv = {line["ratio"]: line["status"] for line in said["results"] if line["kernel"] == "bf16_tuned_gemm"}
    assert of_csv == {2.0: "worse (fails)", 1.0: "same"}
    assert guard(tmp_path / "main", tmp_path / "change")[0] == 3  # how far off a time may be was not said


def test_of_one_file_the_kernel_is_the_formats_and_another_chip_is_refused(guard: Guard, tmp_path: Path) -> None:
    one = put_file(tmp_path, "one.csv", csv(BF16, bf16(16, 10.0)))
    other = put_file(tmp_path, "other.csv", csv(BF16, bf16(16, 10.1)))
    code, said = guard(one, other, "--spread", "0.02")
    assert (code, said["results"][0]["kernel"]) == (0, "aiter-gemm")
    chip = put_file(tmp_path, "chip.csv", csv(BF16, bf16(16, 10.0, gfx="gfx950", units=256)))
    assert guard(one, chip, "--spread", "0.02")[0] == 3


def test_a_table_without_times_is_no_side(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = put_file(tmp_path, "E=8,N=512,device_name=NVIDIA_H200.json", ladder([1, 64]))
    assert main(["guard", str(path), str(path)]) == 2
    assert "no times to compare; `tunesmith table diff`" in capsys.readouterr().err


def test_common_drift_is_said_once(guard: Guard, tmp_path: Path) -> None:
    all_slower = {text: level * 1.06 for text, level in SHAPES.items()}
    code, said = guard(put(tmp_path / "a", SHAPES), put(tmp_path / "b", all_slower, seed=1))
    assert (code, set(statuses(said).values())) == (0, {"same"})
    assert said["common_drift"]["ratio"] == pytest.approx(1.06, rel=0.02)
    assert len(said["said"]) == 1

    much_slower = {text: level * 1.4 for text, level in SHAPES.items()}
    assert guard(tmp_path / "a", put(tmp_path / "c", much_slower, seed=2))[0] == 3
    assert guard(tmp_path / "a", tmp_path / "c", "--no-drift")[0] == 1


def test_the_summary_for_a_pull_request(guard: Guard, tmp_path: Path) -> None:
    slower = {**SHAPES, "M=64": SHAPES["M=64"] * 1.3}
    file = tmp_path / "guard.md"
    guard(put(tmp_path / "a", SHAPES), put(tmp_path / "b", slower, seed=1), "--markdown", file)

    text = file.read_text()
    assert text.startswith("### tunesmith guard: worse\n")
    assert "| **worse (fails)** | `gemm` | `M=64` | 1." in text
    assert text.count("\n| same |") == 11


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "0 paths given; write: tunesmith guard BASE NEW"),
        (("one.json",), "1 path given"),
        (("nowhere.json", "nowhere.json"), "there is no file 'nowhere.json'"),
        (("--static",), "nothing is given"),
        (("--static", "nowhere.json"), "there is no file 'nowhere.json'"),
        (("--static", "--measure", "matmul"), "give one of them"),
        (("a", "b", "--spread", "3"), "--spread 3: good values"),
        (("--measure", "matmul", "a", "b"), "there is one at most"),
    ],
)
def test_bad_usage_is_one_line(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], said: str) -> None:
    assert main(["guard", *args]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": "other/1"}', b"\xff\xfe", b"SQLite format 3\0junk"])
def test_a_file_that_is_no_side_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad").write_bytes(content)
    assert main(["guard", str(tmp_path / "bad"), str(tmp_path / "bad")]) == 2
    assert str(tmp_path / "bad") in capsys.readouterr().err


# --- --static -----------------------------------------------------------------------------------------


def table_of(kernel: Any, rows: Mapping[str, Config], **more: Any) -> NativeTable:
    fields = {"fingerprint": kernel.kernel.fingerprint(), **more}
    return NativeTable("scale", H200, {Problem.parse(text): Entry(config) for text, config in rows.items()}, **fields)


def kernel_of(target: str) -> Any:
    return find_target(target)


def faults(document: Mapping[str, Any]) -> list[str]:
    return [line["note"] for line in document["results"] if line["status"] == "fault"]


def test_static_of_a_sound_table(guard: Guard, target: str, tmp_path: Path) -> None:
    table_of(kernel_of(target), {"n=8": Config(block=64)}).write(tmp_path / "t.json")
    code, said = guard("--static", target, tmp_path / "t.json")
    assert (code, faults(said)) == (0, [])
    assert said["said"][0].endswith("checked against their kernel: 1 row")


def test_static_finds_a_config_that_the_kernel_refuses(guard: Guard, target: str, tmp_path: Path) -> None:
    table_of(kernel_of(target), {"n=8": Config(block=65), "n=9": Config(blok=64)}).write(tmp_path / "t.json")
    code, said = guard("--static", target, tmp_path / "t.json")
    assert code == 1
    assert len(faults(said)) == 2
    assert "Config(block=65) is refused by the kernel's Space" in faults(said)[0]


def test_static_finds_what_calls_one_by_one_would_be_refused(guard: Guard, target: str, tmp_path: Path) -> None:
    table = table_of(kernel_of(target), {"n=8": Config(block=64), "n=9": Config(block=64)})
    [first, second] = table.rows
    rows = {
        first: replace(table.rows[first], called=Config(block=66)),
        second: replace(table.rows[second], called=table.rows[second].config),
    }
    replace(table, rows=rows).write(tmp_path / "t.json")
    _, said = guard("--static", target, tmp_path / "t.json")
    assert len(faults(said)) == 1
    assert "Config(block=66) is refused by the kernel's Space" in faults(said)[0]


def test_static_finds_a_table_of_another_source(guard: Guard, target: str, tmp_path: Path) -> None:
    table_of(kernel_of(target), {"n=8": Config(block=64)}, fingerprint="old").write(tmp_path / "t.json")
    code, said = guard("--static", target, tmp_path / "t.json")
    assert code == 1
    assert "made for another source (old, now " in faults(said)[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        (json.dumps({"format": "tunesmith-table/1", "kernel": "scale", "device": H200, "rows": {}}), "no rows"),
        (
            json.dumps({"format": "tunesmith-table/1", "kernel": "scale", "device": H200,
                        "rows": {"n=1": {"config": {"block": 64}, "median_s": 0}}}),
            "1 of 1 rows are left out: n=1: 'median_s' is 0",
        ),
    ],
)  # fmt: skip
def test_static_finds_a_file_that_cannot_be_used(guard: Guard, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "t.json").write_text(content)
    code, document = guard("--static", tmp_path)
    assert code == 1
    assert any(said in fault for fault in faults(document))


def test_static_finds_a_kernel_that_tunes_itself(guard: Guard, target: str) -> None:
    file = target.rpartition(":")[0]
    code, said = guard("--static", file)
    assert code == 1
    assert [line["kernel"] for line in said["results"]] == ["dreamer"]
    assert guard("--static", file, "--allow-search")[0] == 0


def test_static_takes_what_a_store_has_of_earlier_sources_for_history(
    guard: Guard, target: str, tmp_path: Path
) -> None:
    store = Store.open(tmp_path / "s")
    for fingerprint, block in (("old", 65), (kernel_of(target).kernel.fingerprint(), 64)):
        key = Key("scale", fingerprint, Problem.parse("n=8"), H200, "p1")
        store.put_choice(key, Choice(Config(block=block), "search", "search"), {})
    store.close()
    code, said = guard("--static", target, tmp_path / "s")
    assert (code, faults(said)) == (0, [])
    assert "no call uses them" in said["results"][0]["note"]


def test_static_finds_what_is_wrong_in_tables_of_other_engines(guard: Guard, tmp_path: Path) -> None:
    (tmp_path / "E=8,N=1,device_name=.json").write_bytes(ladder([1, 64]))
    (tmp_path / "bf16_tuned_gemm.csv").write_bytes(csv(BF16, bf16(16, 7.9), bf16(64, 0)))
    code, said = guard("--static", tmp_path)
    assert code == 1
    found = faults(said)
    assert any("[unreachable]" in fault for fault in found)
    assert any("us=0: a time is finite and above 0 [time]" in fault for fault in found)
    assert any(line["kernel"].endswith("bf16_tuned_gemm.csv:3") for line in said["results"])


def test_static_passes_sound_tables_of_other_engines_and_notes_what_is_no_table(guard: Guard, tmp_path: Path) -> None:
    (tmp_path / "bf16_tuned_gemm.csv").write_bytes(csv(BF16, bf16(16, 7.9)))
    (tmp_path / "package.json").write_text("[1]")
    code, said = guard("--static", tmp_path)
    assert (code, faults(said)) == (0, [])
    assert [line["note"] for line in said["results"] if line["kernel"].endswith("package.json")]


# --- --measure ----------------------------------------------------------------------------------------


def tuned(target: str, *problems: str) -> None:
    assert main(["tune", target, *[arg for text in problems for arg in ("--problem", text)], "--json"]) == 0


def test_measure_finds_that_what_is_stored_is_better_than_the_default(guard: Guard, target: str) -> None:
    tuned(target, "n=8", "n=9")
    code, said = guard("--measure", target)
    assert (code, statuses(said)) == (0, {"n=8": "better", "n=9": "better"})
    assert {line["against"] for line in said["results"]} == {"the default"}


def test_measure_finds_that_what_is_stored_is_no_longer_the_best(guard: Guard, target: str, tmp_path: Path) -> None:
    tuned(target, "n=8")
    NativeTable("scale", kernel_of(target).explanation(n=8)[0].device, {Problem.parse("n=8"): Entry(Config(block=128))}
                ).write(tmp_path / "base.json")  # fmt: skip
    sys.modules["guarded"].TIMES[64] = 2.0  # the machine has changed

    code, said = guard("--measure", target, tmp_path / "base.json")
    assert code == 1
    assert {line["against"]: line["status"] for line in said["results"]} == {
        "the default": "better", "BASE": "worse (fails)",
    }  # fmt: skip


def test_measure_finds_that_what_is_stored_does_not_run(guard: Guard, target: str) -> None:
    kernel = kernel_of(target)
    key = kernel.explanation(n=13)[0]
    default_store().put_choice(key, Choice(Config(block=64), "search", "search"), key.soft)
    code, said = guard("--measure", target)
    assert code == 1
    assert "what is stored fails: RuntimeError: an illegal address" in said["results"][0]["note"]


def test_measure_with_nothing_stored_cannot_tell(guard: Guard, target: str) -> None:
    assert guard("--measure", target)[0] == 3
    code, said = guard("--measure", target, "--problem", "n=8")
    assert (code, said["results"][0]["note"]) == (3, "nothing is stored")


# --- R25 (g) ------------------------------------------------------------------------------------------


def test_r25_g_where_tuning_is_forbidden_a_kernel_that_would_tune_itself_fails_and_is_named(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    kernel_of(target)
    monkeypatch.setenv("TUNESMITH_POLICY", "strict-lookup")
    options.cache_clear()
    with pytest.raises(LookupMiss, match=r"dreamer\(n=8\) on .* is not known"):
        sys.modules["guarded"].dreamer(8)
