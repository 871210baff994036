"""The CPU at hand as a Device, and which device a call's arguments live on."""

from __future__ import annotations

import os
import platform
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tunesmith.core.device import Device, known_devices, spell_cores
from tunesmith.errors import BadInput, MissingEngine
from tunesmith.options import usable_cores
from tunesmith.workers import run_command

#: instruction sets that decide which Config is best, widest first: as /proc/cpuinfo names them
_LEVELS = ("amx_tile", "avx512f", "avx2", "avx", "fma", "sve2", "sve", "asimd", "rvv")


@cache
def cpu() -> Device:
    """This machine's CPU, with the cores that this process may use."""
    facts = _facts()
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    levels = [level for level in _LEVELS if level in flags and not (level == "avx" and "avx2" in flags)]
    uid = spell_cores(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ""
    return Device("cpu", _name(facts), " ".join([platform.machine(), *levels]), usable_cores(), uid=uid)


def cpu_flags() -> str:
    """Everything that `native` may mean on this machine, for naming what was compiled for it."""
    facts = _facts()
    return f"{_name(facts)} {facts.get('flags', facts.get('Features', ''))}"


@cache
def _facts() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; empty where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _name(facts: Mapping[str, str]) -> str:
    if "model name" in facts:
        return " ".join(facts["model name"].split())
    if "CPU implementer" in facts:  # Linux on Arm gives numbers instead of a name
        return f"{platform.machine()} implementer {facts['CPU implementer']} part {facts.get('CPU part', '?')}"
    if sys.platform == "darwin":
        return run_command(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], timeout_s=10).output.strip()
    return platform.processor() or platform.machine() or "unknown CPU"


def is_array(value: object) -> bool:
    """Whether a value is an array of some library (numpy, torch, cupy, jax)."""
    return hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, type)


def place(array: Any) -> str:
    """Where an array lives, as torch spells it: `cpu`, `cuda:0`."""
    device = getattr(array, "device", "cpu")  # numpy has it from 2.0 on
    return str(device)


def device_of(args: Mapping[str, Any]) -> Device:
    """The device of a call's arrays; the CPU when there is none.

    A CPU array without dimensions goes with any device, as in torch.

    Args:
        args: by parameter name.

    Raises:
        BadInput: when they live on several, or on one of a kind that is not known here.
    """
    arrays = {name: value for name, value in args.items() if is_array(value)}
    places = {name: place(array) for name, array in arrays.items()}
    deciding = {name: at for name, at in places.items() if at != "cpu" or len(arrays[name].shape) > 0}
    if len(set(deciding.values())) > 1:
        raise BadInput(f"arguments on several devices: {', '.join(f'{name} on {at}' for name, at in deciding.items())}")
    for name, at in deciding.items():
        if at != "cpu":
            return _gpu(name, at)
    return cpu()


def _gpu(argument: str, at: str) -> Device:
    kind, _, index = at.partition(":")
    if kind != "cuda":  # torch calls AMD's GPUs cuda too
        raise BadInput(f"argument {argument!r} is on {at}; good values: cpu, cuda:N")
    return gpu_at(int(index or 0))


def gpus() -> list[Device]:
    """The GPUs that torch can use; none where it is not installed. Imports torch."""
    try:
        import torch
    except ImportError:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old driver: none that torch can use
        return [gpu_at(index) for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]


@cache
def gpu_at(index: int) -> Device:
    """A GPU as torch, which must have been imported, describes it.

    Raises:
        MissingEngine: where torch was not.
    """
    torch = sys.modules.get("torch")  # the array at hand came from somewhere
    if torch is None:
        raise MissingEngine("a GPU's properties are read through torch: pip install 'tunesmith[torch]'")
    found = torch.cuda.get_device_properties(index)
    hip = getattr(torch.version, "hip", None) is not None
    arch = re.sub(":.*", "", found.gcnArchName) if hip else f"sm_{found.major}{found.minor}"
    known = next((d for d in known_devices() if d.name == found.name and d.arch == arch), None)
    # not the index, which says something else where CUDA_VISIBLE_DEVICES leaves others out
    uid = str(getattr(found, "uuid", index))
    if known is not None:
        return replace(known, units=found.multi_processor_count, uid=uid)
    return Device(
        "hip" if hip else "cuda", found.name, arch, found.multi_processor_count, uid=uid,
        registers_per_unit=getattr(found, "regs_per_multiprocessor", 0),
        # torch before 2.5 tells what a block gets without asking: less than it can have, and no limit
        shared_bytes_per_block=getattr(found, "shared_memory_per_block_optin", 0),
        shared_bytes_per_unit=getattr(found, "shared_memory_per_multiprocessor", 0),
        threads_per_unit=getattr(found, "max_threads_per_multi_processor", 0),
        warp=getattr(found, "warp_size", 0), l2_bytes=getattr(found, "L2_cache_size", 0),
        memory_bytes=found.total_memory,
    )  # fmt: skip
