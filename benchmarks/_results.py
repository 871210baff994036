"""Writes a benchmark's results to `benchmarks/results/NAME-DEVICE.json`, whole or not at all."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

FORMAT = "tunesmith-result/1"
FOLDER = Path(__file__).parent / "results"


def write(
    name: str,
    device: str,
    *,
    protocol: str | Mapping[str, Any],
    command: str,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, float],
    versions: Mapping[str, str] | None = None,
    gpu: bool = False,
    folder: Path = FOLDER,
) -> Path:
    """Write one benchmark's results, in place of those of its last run.

    Args:
        name: the benchmark, `dispatch`.
        device: where it ran, `cpu` or `h200`.
        protocol: how it was measured.
        command: what to type to run it again.
        rows: the measurements.
        summary: name → finite number: what is compared from run to run.
        versions: of the packages that matter; Python and tunesmith are added.
        gpu: say which GPU and driver the machine has.

    Returns:
        The file's path.

    Raises:
        ValueError: for a name that is no word, and a summary that is not flat and finite. Nothing is written.
    """
    for word in (name, device):
        if not re.fullmatch(r"[A-Za-z0-9_]+", word):
            raise ValueError(f"{word!r} in a result's file name: letters, digits and _ only")
    for key, value in summary.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"summary[{key!r}] is {value!r}: a summary holds finite numbers")
    result = {
        "format": FORMAT,
        "benchmark": name,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(gpu=gpu),
        "versions": {"python": platform.python_version(), "tunesmith": version("tunesmith"), **(versions or {})},
        "protocol": protocol,
        "command": command,
        "rows": list(rows),
        "summary": dict(summary),
    }
    text = json.dumps(result, indent=2, allow_nan=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{device}.json"
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}-", suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp's files are for their owner alone
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def typed(paths: Sequence[Path], usual: Sequence[Path]) -> str:
    """Files as one would type them: nothing for the usual ones, a pattern for all recordings of a folder."""
    if list(paths) == list(usual):
        return ""
    folders = {path.parent for path in paths}
    if len(folders) == 1 and set(paths) == set((folder := folders.pop()).glob("*.json.gz")):
        return f" {folder}/*.json.gz"
    return "".join(f" {path}" for path in paths)


def version(package: str) -> str:
    """An installed package's version; `source` for one that runs from its source tree."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "source"


def machine(*, gpu: bool = False) -> dict[str, Any]:
    """What a number was measured on: CPU model, usable cores, operating system; GPU and driver if asked."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    told: dict[str, Any] = {"cpu": _cpu_model(), "cores": cores, "os": platform.platform()}
    if gpu:
        told["gpus"] = _gpus()
    return told


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if found:
            return found.group(1).strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[dict[str, str]]:
    """Each NVIDIA GPU's name and driver.

    Raises:
        OSError, subprocess.CalledProcessError: where there is none: a GPU's result must say which.
    """
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    return [dict(zip(("name", "driver"), map(str.strip, line.split(",")), strict=True)) for line in lines]
