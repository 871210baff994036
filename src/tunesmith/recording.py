"""Recordings as files, and other people's measurements as Recordings."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tunesmith.core.config import Config
from tunesmith.core.outcome import (
    Failed,
    Measured,
    Outcome,
    Recording,
    Resources,
    Sample,
    Stage,
    Trial,
    trial_from_data,
    trial_to_data,
)
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.files import write_whole

FORMAT = "tunesmith-recording/1"


def save(recording: Recording, path: Path) -> None:
    """Write a Recording; compressed where the name ends in `.gz`.

    Raises:
        OSError: when the file cannot be written; what was there is untouched.
    """
    text = dumps(recording).encode()
    write_whole(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def dumps(recording: Recording) -> str:
    """A Recording as JSON, a line for each Trial. The same Recording makes the same text."""
    head = {
        "format": FORMAT,
        "kernel": recording.kernel,
        "device": recording.device,
        "problem": recording.problem.text,
        "protocol": recording.protocol,
        "meta": dict(sorted(recording.meta.items())),
        "library_s": list(recording.library_s),
    }
    lines = [f'"{name}": {json.dumps(value)},' for name, value in head.items()]
    trials = [json.dumps(trial_to_data(trial), sort_keys=True) for trial in recording.trials]
    return "\n".join([f"{{{lines[0]}", *lines[1:], '"trials": [', ",\n".join(trials), "]}", ""])


def load(path: Path) -> Recording:
    """Read a Recording.

    Raises:
        BadInput: naming the file and what is wrong with it.
    """
    data = read_json(path)
    if data.get("format") != FORMAT:
        raise BadInput(f'{path} is not a recording: it does not begin with "format": "{FORMAT}"')
    return _readable(path, data, _recording_from)


def convert(path: Path) -> list[Recording]:
    """Read measurements of another format, one Recording for each problem.

    Known are the GEMM and row-kernel files of our H200 (`results` or `spaces`, microseconds) and the caches of
    Kernel Tuner (`cache`, milliseconds). A time that is not finite and above 0 is a failure.

    Raises:
        BadInput: naming the file and what is wrong with it.
    """
    data = read_json(path)
    for name, reader in (("results", _from_gemm), ("spaces", _from_rows), ("cache", _from_kernel_tuner)):
        if name in data:
            return _readable(path, data, reader)
    raise BadInput(f"{path} has none of 'results', 'spaces' and 'cache': not a format that can be converted")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file, compressed or not.

    Raises:
        BadInput: naming the file and what is wrong with it.
    """
    data = read_any_json(path)
    if not isinstance(data, dict):
        raise BadInput(f"{path} is not a JSON object")
    return cast("dict[str, Any]", data)


def read_any_json(path: Path) -> Any:
    """The JSON value in a file, compressed or not.

    Raises:
        BadInput: naming the file and what is wrong with it.
    """
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        return json.loads(text.decode())
    except (OSError, EOFError, ValueError, RecursionError) as error:  # BadGzipFile is an OSError
        raise BadInput(f"{path} cannot be read: {error}") from error


def _readable(path: Path, data: dict[str, Any], reader: Callable[[dict[str, Any]], Any]) -> Any:
    try:
        return reader(data)
    except (KeyError, IndexError) as error:
        raise BadInput(f"{path}: {error} is missing") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise BadInput(f"{path}: {error}") from error


def _recording_from(data: dict[str, Any]) -> Recording:
    return Recording(
        str(data["kernel"]),
        str(data["device"]),
        Problem.parse(data["problem"]),
        tuple(trial_from_data(trial) for trial in data["trials"]),
        str(data.get("protocol", "")),
        tuple(Sample(float(seconds)).seconds for seconds in data.get("library_s", ())),
        {str(name): str(value) for name, value in data.get("meta", {}).items()},
    )


# --- our H200's -------------------------------------------------------------------------------------

#: Samples come in rounds of so many launches, one after the other; Configs were in random order in each round.
LAUNCHES_PER_ROUND = 6
H200_PROTOCOL = (
    "5 rounds of 6 consecutive launches, Configs in random order each round, 256 MB zeroed before every launch "
    "(cold L2), CUDA events; order is the place among the six, of which the first is biased"
)


def _from_gemm(data: dict[str, Any]) -> list[Recording]:
    """`configs[i]` with what the compiler said; `results[j]` with a shape (M, N, K) and `times_us[i]`."""
    configs = data["configs"]
    return [
        Recording(
            data["kernel"],
            data["device"],
            Problem({**dict(zip("MNK", result["shape"], strict=True)), "dtype": data["dtype"]}),
            tuple(_h200_trial(c, us) for c, us in zip(configs, result["times_us"], strict=True)),
            H200_PROTOCOL,
            tuple(us / 1e6 for us in result["cublas_us"]),
            {**_meta(data, "arch", "sms", "triton", "torch", "compile_wall_s"), "library": "cuBLAS"},
        )
        for result in data["results"]
    ]


def _from_rows(data: dict[str, Any]) -> list[Recording]:
    """`spaces[j]` with a kernel, a shape (rows × n) and `entries[i]`."""
    return [
        Recording(
            space["kernel"],
            data["device"],
            Problem({**space["shape"], "dtype": data["dtype"]}),
            tuple(_h200_trial(entry, entry["times_us"]) for entry in space["entries"]),
            H200_PROTOCOL,
            tuple(us / 1e6 for us in space["torch_us"]),
            {**_meta(data, "arch", "sms", "triton", "compile_wall_s"), "library": "torch"},
        )
        for space in data["spaces"]
    ]


def _h200_trial(entry: Mapping[str, Any], times_us: Sequence[float]) -> Trial:
    resources = Resources(entry.get("n_regs"), entry.get("n_spills"), entry.get("shared_bytes"))
    error = entry.get("error")
    if error:
        # too much shared memory: known from the compiled kernel, which was never launched
        outcome: Outcome = Failed("cut" if error.startswith("OutOfResources") else "compile", error)
    else:
        outcome = _measured([us / 1e6 for us in times_us], LAUNCHES_PER_ROUND)
    return Trial(Config(entry["config"]), outcome, resources, compile_s=entry.get("compile_s"))


def _meta(data: Mapping[str, Any], *names: str) -> dict[str, str]:
    return {name: str(data[name]) for name in names if name in data}


def _measured(seconds: Sequence[float], per_round: int) -> Outcome:
    """The Outcome of recorded times. One impossible time means that the others cannot be trusted either."""
    wrong = [s for s in seconds if not (math.isfinite(s) and s > 0)]
    if wrong or not seconds:
        return Failed("launch", f"recorded time of {wrong[0]} s" if wrong else "no time was recorded")
    return Measured(tuple(Sample(s, i // per_round, i % per_round) for i, s in enumerate(seconds)))


# --- Kernel Tuner's -----------------------------------------------------------------------------------

#: what Kernel Tuner writes in place of a time
KERNEL_TUNER_STAGES: Mapping[str, Stage] = {
    "InvalidConfig": "cut",
    "CompilationFailedConfig": "compile",
    "RuntimeFailedConfig": "launch",
}
#: older versions of Kernel Tuner write this number of milliseconds for a failure
KERNEL_TUNER_FAILED_MS = 1e20
KERNEL_TUNER_PROTOCOL = "Kernel Tuner: consecutive launches of one Config after the other"


def _from_kernel_tuner(data: dict[str, Any]) -> list[Recording]:
    """`cache`: for each valid Config its knobs, and `time` and `times` in milliseconds or a failure class."""
    size: Any = data["problem_size"]
    sizes = cast("list[Any]", size) if isinstance(size, list) else [size]
    knobs = list(data["tune_params_keys"])
    trials = tuple(_kernel_tuner_trial(entry, knobs) for entry in data["cache"].values())
    problem = Problem(dict(zip("xyz", sizes, strict=False)))
    return [Recording(data["kernel_name"], data["device_name"] or "unknown", problem, trials, KERNEL_TUNER_PROTOCOL)]


def _kernel_tuner_trial(entry: Mapping[str, Any], knobs: Sequence[str]) -> Trial:
    time, compile_ms = entry["time"], entry.get("compile_time")
    if isinstance(time, str):
        kind = re.sub(r"\W", "", time)
        outcome: Outcome = Failed(KERNEL_TUNER_STAGES.get(kind, "launch"), kind)
    elif not time < KERNEL_TUNER_FAILED_MS:
        outcome = Failed("launch", f"recorded time of {time} ms")
    else:
        times_ms = entry.get("times") or [time]
        outcome = _measured([float(ms) / 1e3 for ms in times_ms], len(times_ms))
    compile_s = compile_ms / 1e3 if isinstance(compile_ms, (int, float)) and math.isfinite(compile_ms) else None
    config = Config({name: entry[name] for name in knobs})
    return Trial(config, outcome, at=str(entry.get("timestamp", "")), compile_s=compile_s)
