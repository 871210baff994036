"""JSON of other tuners: Triton's `.autotune.json`, Kernel Tuner's cache, the T4 format, Inductor's look-up table.

Each holds measured Configs of one problem, or of many; which sizes serve others they do not say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Measured, Recording
from tunesmith.core.problem import FieldValue
from tunesmith.tables import jsontext
from tunesmith.tables.jsontext import Document, Members
from tunesmith.tables.sheet import Cells, Finding, Sheet, microseconds

#: what Kernel Tuner writes for a failure, by the stage at which it happened
KERNEL_TUNER_FAILURES = {"cut": "InvalidConfig", "compile": "CompilationFailedConfig"}
#: what T4 calls a failure, by stage
T4_INVALID = {"cut": "constraints", "compile": "compile", "wrong": "correctness", "timeout": "timeout"}
#: fields of a Triton Config beside its knobs
TRITON_OPTIONS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")


def is_triton_autotune(value: Any) -> bool:
    """Whether a JSON is Triton's."""
    return isinstance(value, Members) and isinstance(value.get("configs_timings"), list)


def read_triton_autotune(path: Path, document: Document) -> Sheet:
    """`key` and `configs_timings`: `[{kwargs, num_warps, …}, [median, p20, p80]]` in milliseconds each."""
    rows: list[Cells] = []
    faults: list[Finding] = []
    for i, entry in enumerate(cast("list[Any]", document.value.get("configs_timings"))):
        line, pair = document.line(("configs_timings", i)), jsontext.plain(entry)
        if not _is_timed(pair):
            faults.append(Finding(path, line, "value", "error", "not a Config and its times; it is skipped"))
            continue
        said, times = cast("tuple[dict[str, Any], Any]", tuple(cast("list[Any]", pair)))
        knobs = {
            **said.get("kwargs", {}),
            **{name: said[name] for name in TRITON_OPTIONS if said.get(name) is not None},
        }
        us = microseconds(cast("list[Any]", times)[0] if isinstance(times, list) and times else times, 1e3)
        rows.append(Cells({"i": i}, knobs, line, ("configs_timings", i), us))
    about = {"key": str(jsontext.plain(document.value.get("key"))), "kernel": path.name.partition(".autotune")[0]}
    return Sheet("triton-autotune", path, document, tuple(rows), (), None, None, about, tuple(faults))


def _is_timed(pair: Any) -> bool:
    """Whether it is a Config and its times."""
    if not isinstance(pair, list) or len(cast("list[Any]", pair)) != 2 or not isinstance(pair[0], dict):
        return False
    return isinstance(cast("dict[str, Any]", pair[0]).get("kwargs", {}), dict)


def triton_autotune(key: Sequence[object], timings: Iterable[tuple[Config, tuple[float, float, float]]]) -> Document:
    """A file as Triton writes it: on one line.

    Args:
        key: the values of the kernel's key arguments.
        timings: Configs with median, 20th and 80th percentile, in seconds.
    """
    entries = [[_triton_config(config), [seconds * 1e3 for seconds in times]] for config, times in timings]
    value = jsontext.members({"key": list(key), "configs_timings": entries})
    return Document(value, jsontext.Style((), after=""))


def _triton_config(config: Config) -> dict[str, object]:
    kwargs = {name: value for name, value in config.items() if name not in TRITON_OPTIONS}
    usual: dict[str, object] = {"num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None}
    options = {name: config.get(name, value) for name, value in usual.items()}
    return {"kwargs": kwargs, **options, "pre_hook": None, "ir_override": config.get("ir_override")}


# --- Kernel Tuner ----------------------------------------------------------------------------------


def is_kernel_tuner(value: Any) -> bool:
    """Whether a JSON is a cache of Kernel Tuner's."""
    return isinstance(value, Members) and isinstance(value.get("cache"), Members)


def read_kernel_tuner(path: Path, document: Document) -> Sheet:
    """`cache`: for each Config its knobs and `time` in milliseconds, or the kind of its failure."""
    head = jsontext.plain(document.value)
    listed = head.get("tune_params_keys", [])
    knobs = [str(name) for name in cast("list[Any]", listed)] if isinstance(listed, list) else []
    rows: list[Cells] = []
    faults: list[Finding] = []
    for step, key, entry in document.value.get("cache").steps():
        place: jsontext.Path = ("cache", step)
        found = jsontext.plain(entry)
        if not isinstance(found, dict) or not all(name in found for name in knobs):
            faults.append(Finding(path, document.line(place), "value", "error", f"{key!r} lacks knobs; it is skipped"))
            continue
        entry_of = cast("dict[str, Any]", found)
        config = {name: entry_of[name] for name in knobs}
        facts = {"failure": str(entry_of["time"])} if isinstance(entry_of.get("time"), str) else {}
        us = microseconds(entry_of.get("time"), 1e3)
        rows.append(Cells({"config": key}, config, document.line(place), place, us, facts))
    about: dict[str, FieldValue] = {
        "kernel": str(head.get("kernel_name", "")), "device": str(head.get("device_name", "")),
        "problem_size": str(head.get("problem_size", "")),
    }  # fmt: skip
    return Sheet("kernel-tuner", path, document, tuple(rows), (), None, None, about, tuple(faults))


def kernel_tuner(recording: Recording) -> Document:
    """A Recording as a cache of Kernel Tuner's."""
    knobs = sorted({name for trial in recording.trials for name in trial.config})
    cache: dict[str, object] = {}
    for trial in recording.trials:
        values = {name: trial.config.get(name) for name in knobs}
        match trial.outcome:
            case Measured(samples):
                times = [sample.seconds * 1e3 for sample in samples]
                result: dict[str, object] = {"time": trial.outcome.median_s * 1e3, "times": times}
            case Failed(stage):
                result = {"time": KERNEL_TUNER_FAILURES.get(stage, "RuntimeFailedConfig")}
            case _:
                continue
        compile_ms = {} if trial.compile_s is None else {"compile_time": trial.compile_s * 1e3}
        cache[",".join(str(value) for value in values.values())] = {
            **values, **result, **compile_ms, "timestamp": trial.at,
        }  # fmt: skip
    values_of = {name: sorted({str(t.config.get(name)) for t in recording.trials}) for name in knobs}
    value = {
        "device_name": recording.device, "kernel_name": recording.kernel,
        "problem_size": list(recording.problem.dims.values()), "tune_params_keys": knobs,
        "tune_params": values_of, "objective": "time", "cache": cache,
    }  # fmt: skip
    return Document(jsontext.members(value), jsontext.indented(4, after="\n"))


# --- T4 ---------------------------------------------------------------------------------------------


def is_t4(value: Any) -> bool:
    """Whether a JSON is T4 results."""
    results = value.get("results") if isinstance(value, Members) else None
    return isinstance(results, list) and all(_has_configuration(entry) for entry in cast("list[Any]", results))


def _has_configuration(entry: Any) -> bool:
    return isinstance(entry, Members) and isinstance(entry.get("configuration"), Members)


def read_t4(path: Path, document: Document) -> Sheet:
    """`results`: for each Config its `configuration`, `invalidity` and `measurements` with a unit."""
    rows: list[Cells] = []
    for i, entry in enumerate(document.value.get("results")):
        found = cast("dict[str, Any]", jsontext.plain(entry))
        facts = {"invalidity": str(found.get("invalidity", "correct")), "timestamp": str(found.get("timestamp", ""))}
        line = document.line(("results", i))
        place: jsontext.Path = ("results", i, "configuration")
        rows.append(Cells({"i": i}, found["configuration"], line, place, _t4_us(found), facts))
    return Sheet("t4", path, document, tuple(rows), (), None, None, {}, ())


_PER_UNIT = {"s": 1e6, "seconds": 1e6, "ms": 1e3, "milliseconds": 1e3, "us": 1.0, "microseconds": 1.0, "ns": 1e-3}


def _t4_us(found: Mapping[str, Any]) -> float | None:
    listed = found.get("measurements")
    for measured in cast("list[Any]", listed) if isinstance(listed, list) else ():
        if isinstance(measured, dict) and str(cast("Any", measured).get("name")) == "time":
            one = cast("dict[str, Any]", measured)
            return microseconds(one.get("value"), _PER_UNIT.get(str(one.get("unit", "ms")), math.nan))
    return None


def t4(recording: Recording) -> Document:
    """A Recording as T4 results."""
    results: list[object] = []
    for trial in recording.trials:
        times = [seconds * 1e3 for seconds in trial.outcome.samples_s] if isinstance(trial.outcome, Measured) else []
        stage = trial.outcome.stage if isinstance(trial.outcome, Failed) else ""
        invalid = "correct" if times else T4_INVALID.get(stage, "runtime" if stage else "untried")
        median = [{"name": "time", "value": trial.outcome.median_s * 1e3, "unit": "ms"}] if isinstance(
            trial.outcome, Measured
        ) else []  # fmt: skip
        results.append({
            "timestamp": trial.at, "configuration": dict(trial.config),
            "times": {"compilation": None if trial.compile_s is None else trial.compile_s * 1e3, "runtimes": times},
            "invalidity": invalid, "correctness": 1 if times else 0, "measurements": median, "objectives": ["time"],
        })  # fmt: skip
    head = {"schema_version": "1.0.0", "metadata": {"kernel": recording.kernel, "device": recording.device}}
    return Document(jsontext.members({**head, "results": results}), jsontext.indented(2))


# --- Inductor --------------------------------------------------------------------------------------


def is_inductor(value: Any) -> bool:
    """Whether a JSON is a look-up table of Inductor's: lists of template choices by device, inputs and operation."""
    entries = [inner for _, inner in value] if isinstance(value, Members) else []
    return bool(entries) and all(
        isinstance(entry, list) and all(_has_template(choice) for choice in cast("list[Any]", entry))
        for entry in entries
    )


def _has_template(choice: Any) -> bool:
    return isinstance(choice, Members) and choice.get("template_id") is not None


def read_inductor(path: Path, document: Document) -> Sheet:
    """`"DEVICE+INPUTS+OP": [{template_id, knobs…}, …]`; the device may be missing."""
    rows: list[Cells] = []
    for step, key, choices in document.value.steps():
        device, inputs, op = _three("+" + key if key.startswith("(") else key)
        for i, choice in enumerate(choices):
            fields: dict[str, FieldValue] = {"inputs": inputs, "op": op, "choice": i}
            if device:
                fields["device"] = device
            rows.append(Cells(fields, jsontext.plain(choice), document.line((step, i)), (step, i)))
    return Sheet("inductor", path, document, tuple(rows), (), None, None, {}, ())


def _three(key: str) -> tuple[str, str, str]:
    """(device, inputs, operation) of a key."""
    device, _, rest = key.partition("+")
    inputs, _, op = rest.rpartition("+")
    return device, inputs, op


def inductor(device: str, inputs: Sequence[tuple[str, Sequence[int], Sequence[int]]], op: str) -> str:
    """The key Inductor looks for.

    Args:
        device: its architecture's name as torch reports it; empty for a row that holds on any.
        inputs: dtype as `torch.float16`, shape and strides of each.
        op: `mm`, `addmm`, …
    """
    described = ", ".join(f"({dtype}, {list(shape)}, {list(strides)})" for dtype, shape, strides in inputs)
    described = f"({described},)" if len(inputs) == 1 else f"({described})"
    return "+".join([*([device] if device else []), described, op])
