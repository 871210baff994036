"""Recordings as files, and other formats as Recordings."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_store import problems, seconds, softs, trials

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Measured, Recording, Sample, Trial, Untried
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.recording import convert, load, save

DATA = Path(__file__).parents[1] / "data"
GEMM, ROWS = DATA / "gemm_h200.json.gz", DATA / "rows_h200.json.gz"
KERNEL_TUNER = DATA / "kernel_tuner_convolution_RTX_3090.json.gz"

untried = st.builds(Trial, st.builds(lambda a: Config(a=a), st.integers()), st.builds(Untried, st.text(max_size=5)))
recordings = st.builds(
    Recording, st.text(max_size=5), st.text(max_size=5), problems, st.lists(trials | untried, max_size=3).map(tuple),
    st.text(max_size=5), st.lists(seconds, max_size=3).map(tuple), softs,
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recording=recordings, name=st.sampled_from(["r.json", "r.json.gz"]))
def test_what_is_saved_loads_equal_and_saves_to_the_same_bytes(tmp_path: Path, recording: Recording, name: str):
    path = tmp_path / name
    save(recording, path)
    first = path.read_bytes()
    assert load(path) == recording
    save(load(path), path)
    assert path.read_bytes() == first


def test_the_file_opens_with_its_format_and_keeps_samples_as_rows(tmp_path: Path):
    recording = convert(GEMM)[0]
    save(recording, tmp_path / "r.json")
    text = (tmp_path / "r.json").read_text()
    assert text.startswith('{"format": "tunesmith-recording/1"')
    assert json.loads(text)["trials"][0]["measured"][7] == [1, 1, None, 0.00196675]
    save(recording, tmp_path / "r.json.gz")
    assert gzip.decompress((tmp_path / "r.json.gz").read_bytes()).decode() == text


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"garbage", "cannot be read"),
        (b"\x1f\x8b garbage", "cannot be read"),
        (gzip.compress(b'{"format": "tunesmith-recording/1"}', mtime=0)[:-9], "cannot be read"),
        (b"[]", "not a JSON object"),
        (b'{"format": "tunesmith-table/1"}', "not a recording"),
        (b'{"format": "tunesmith-recording/1"}', "'kernel' is missing"),
        (
            b'{"format": "tunesmith-recording/1", "kernel": "", "device": "", "problem": "", "trials": [{}]}',
            "not a Trial",
        ),
        (
            b'{"format": "tunesmith-recording/1", "kernel": "", "device": "", "problem": "", "trials": [], '
            b'"library_s": [0]}',
            "a duration is finite and above 0",
        ),
    ],
)
def test_a_file_that_is_no_recording_is_named(tmp_path: Path, content: bytes | None, why: str):
    if content is not None:
        (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(BadInput, match=why) as caught:
        load(tmp_path / "r.json")
    assert "r.json" in str(caught.value)


def test_the_h200_gemm_file_becomes_eight_recordings_of_the_whole_space():
    raw = json.loads(gzip.decompress(GEMM.read_bytes()))
    converted = convert(GEMM)
    assert [(r.problem["M"], r.problem["N"], r.problem["K"]) for r in converted] == [
        tuple(r["shape"]) for r in raw["results"]
    ]
    for recording, result in zip(converted, raw["results"], strict=True):
        assert (recording.kernel, recording.device) == ("gemm", "NVIDIA H200")
        assert recording.library_s == tuple(us / 1e6 for us in result["cublas_us"])
        measured = [t.outcome for t in recording.trials if isinstance(t.outcome, Measured)]
        failed = [t.outcome for t in recording.trials if isinstance(t.outcome, Failed)]
        assert (len(measured), len(failed)) == (424, 56)
        assert {f.stage for f in failed} == {"cut"}
        assert all("shared memory" in f.reason for f in failed)
    first = converted[0].trials[0]
    assert first.config == Config(BLOCK_M=16, BLOCK_N=32, BLOCK_K=32, num_warps=4, num_stages=2)
    assert (first.resources.shared_bytes, first.resources.registers, first.compile_s) == (3072, 36, 1.078)
    assert isinstance(first.outcome, Measured)
    assert [(s.round, s.order) for s in first.outcome.samples] == [(r, o) for r in range(5) for o in range(6)]
    assert first.outcome.samples_s[:2] == (1993.02 / 1e6, 1997.86 / 1e6)


def test_the_h200_row_kernels_become_sixteen_recordings():
    converted = convert(ROWS)
    assert [r.kernel for r in converted] == ["softmax"] * 8 + ["add_rmsnorm"] * 8
    assert converted[3].problem == Problem({"rows": 2048, "n": 8192, "dtype": "float16"})
    assert [len(r.trials) for r in converted[:8]] == [27, 197, 360, 426, 505, 519, 426, 20]
    assert all(isinstance(t.outcome, Measured) for r in converted for t in r.trials)
    assert all(len(r.library_s) == 30 for r in converted)


def test_a_kernel_tuner_cache_becomes_one_recording_with_its_failure_classes():
    (recording,) = convert(KERNEL_TUNER)
    assert (recording.kernel, recording.device) == ("convolution_kernel", "NVIDIA GeForce RTX 3090")
    assert recording.problem == Problem({"x": 4096, "y": 4096})
    stages = [t.outcome.stage if isinstance(t.outcome, Failed) else "measured" for t in recording.trials]
    assert {stage: stages.count(stage) for stage in set(stages)} == {"measured": 24, "compile": 6, "launch": 6}
    first = recording.trials[0]
    assert isinstance(first.outcome, Measured)
    assert len(first.outcome.samples) == 10
    assert first.outcome.samples[1] == Sample(7.513088226318359 / 1e3, 0, 1)
    assert set(first.config) == {
        "block_size_x", "block_size_y", "filter_height", "filter_width", "read_only", "tile_size_x",
        "tile_size_y", "use_padding",
    }  # fmt: skip


def kernel_tuner(tmp_path: Path, **entry: Any) -> Trial:
    cache = {
        "device_name": "",
        "kernel_name": "k",
        "problem_size": 100,
        "tune_params_keys": ["a"],
        "cache": {"1": {"a": 1, **entry}},
    }
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(cache))
    return convert(path)[0].trials[0]


@pytest.mark.parametrize("time_ms", [math.inf, math.nan, 0.0, -1.0, 1e20])
def test_an_impossible_time_is_a_failure(tmp_path: Path, time_ms: float):
    assert isinstance(kernel_tuner(tmp_path, time=time_ms).outcome, Failed)
    assert isinstance(kernel_tuner(tmp_path, time=1.0, times=[1.0, time_ms if time_ms < 1e20 else 0.0]).outcome, Failed)


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("InvalidConfig", "cut"),
        ("CompilationFailedConfig", "compile"),
        ("RuntimeFailedConfig", "launch"),
        ("SomethingNew", "launch"),
    ],
)
def test_each_failure_class_has_its_stage_and_keeps_its_name(tmp_path: Path, name: str, stage: str):
    outcome = kernel_tuner(tmp_path, time=name).outcome
    assert isinstance(outcome, Failed)
    assert (outcome.stage, outcome.reason) == (stage, name)


def test_a_compile_error_in_a_lab_file_is_kept_as_such(tmp_path: Path):
    space = {"kernel": "k", "shape": {"n": 1}, "torch_us": [], "entries": [
        {"config": {"a": 1}, "error": "CompilationError: at 1:1", "times_us": []},
        {"config": {"a": 2}, "error": None, "times_us": []},
    ]}  # fmt: skip
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"device": "d", "dtype": "float16", "spaces": [space]}))
    outcomes = [t.outcome for t in convert(path)[0].trials]
    assert outcomes == [Failed("compile", "CompilationError: at 1:1"), Failed("launch", "no time was recorded")]


def test_a_file_of_another_format_is_named(tmp_path: Path):
    (tmp_path / "x.json").write_text('{"cats": []}')
    with pytest.raises(BadInput, match=r"x\.json has none of 'results', 'spaces' and 'cache'"):
        convert(tmp_path / "x.json")
    (tmp_path / "x.json").write_text('{"cache": {"1": {}}}')
    with pytest.raises(BadInput, match=r"x\.json: 'problem_size' is missing"):
        convert(tmp_path / "x.json")
