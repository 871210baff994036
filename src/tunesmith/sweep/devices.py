"""`--devices`: which devices a sweep has, and how a worker is held to one of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path

from tunesmith.core.device import cores_of, spell_cores
from tunesmith.errors import BadInput
from tunesmith.options import options

#: who says which GPUs a process sees
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Place:
    """One device for one worker.

    Attributes:
        name: `cpu:0-3`, `gpu:0`.
        cores: of a CPU; a worker runs on these alone.
        gpu: what CUDA_VISIBLE_DEVICES is set to, empty for a CPU.
    """

    name: str
    cores: tuple[int, ...] = ()
    gpu: str = ""

    def environ(self, jobs: int) -> dict[str, str]:
        """What a worker's environment says of it; `jobs` compilers at once."""
        return {VISIBLE: self.gpu, "TUNESMITH_JOBS": str(min(jobs, len(self.cores)) if self.cores else jobs)}


def places(text: str, environ: Mapping[str, str], cores: Sequence[int] | None = None) -> list[Place]:
    """The devices that `--devices` names: `0,1` (GPUs), `cpu:0-3`, `cpu:0,cpu:1`, `cpu` (all cores of this process).

    Args:
        cores: those that there are; `None` where that is not known here, of other hosts.

    Raises:
        BadInput: for what is none, is given twice, or is not there.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for before, part in pairwise(parts):
        if before.startswith("cpu:") and part[0].isdecimal():
            raise BadInput(
                f"--devices {text}: is {part} a core or a GPU? Write {before}+{part} for a device of all these cores, "
                f"{before},cpu:{part} for two devices, {before},gpu:{part} for a GPU"
            )
    found = [_place(part, environ, cores) for part in parts]
    if not found:
        raise BadInput(f"--devices {text!r} names none; {_GOOD}")
    seen: set[str] = set()
    for place in found:
        pieces = {f"core {core}" for core in place.cores} or {f"GPU {place.gpu}"}
        twice = sorted(seen & pieces)
        if twice:
            raise BadInput(
                f"--devices {text}: {twice[0]} is in two devices, whose measurements would disturb each other"
            )
        seen |= pieces
    return found


_GOOD = "good ones: 0,1 (GPUs), cpu (all cores), cpu:0-3,cpu:4-7 (sets of cores; more ranges in one: cpu:0-3+8-11)"


def _place(text: str, environ: Mapping[str, str], usable: Sequence[int] | None) -> Place:
    kind, _, which = text.partition(":")
    if text == "cpu" and usable is None:
        raise BadInput("--devices cpu: a cluster's nodes have cores of their own; name some that each has, as cpu:0-3")
    if text == "cpu":
        return Place("cpu", tuple(usable or ()))
    if kind == "cpu":
        cores = cores_of(which.replace("+", ","))
        missing = [core for core in cores if usable is not None and core not in usable]
        if missing:
            raise BadInput(
                f"--devices {text}: core {missing[0]} is not one of this process's: {spell_cores(usable or ())}"
            )
        return Place(f"cpu:{spell_cores(cores)}", cores)
    index = which if kind in ("gpu", "cuda") else text
    if not index.isdecimal():
        raise BadInput(f"--devices {text}: unknown device; {_GOOD}")
    visible = visible_gpus(environ)
    if visible is not None and int(index) >= len(visible):
        left = f"{len(visible)} GPUs: 0 to {len(visible) - 1}" if visible else "no GPU; unset it"
        raise BadInput(f"--devices {text}: {VISIBLE}={environ[VISIBLE]} leaves {left}")
    return Place(f"gpu:{int(index)}", (), visible[int(index)] if visible else str(int(index)))


def visible_gpus(environ: Mapping[str, str]) -> list[str] | None:
    """Which GPUs a process sees, as CUDA reads it: those before the first that is none (-1); `None` for all."""
    if VISIBLE not in environ:
        return None
    named = [one.strip() for one in environ[VISIBLE].split(",")]
    good = [str(int(one)) if one.isdecimal() else one for one in named]
    return list(takewhile(lambda one: one.isdecimal() or one.startswith(("GPU-", "MIG-")), good))


def usual_places(
    kinds: Sequence[str], n_gpus: int, environ: Mapping[str, str], cores: Sequence[int] | None
) -> list[Place]:
    """Where nothing is said: every GPU, if some kernel may run on one and there are any; else all cores as one."""
    if n_gpus and any(kind != "cc" for kind in kinds):
        return places(",".join(map(str, range(n_gpus))), environ)
    return places("cpu", environ, cores)


def usable_cores() -> tuple[int, ...]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def on_one_core(found: Sequence[Place], folder: Path = Path("/sys/devices/system/cpu")) -> list[str]:
    """What two devices have that would disturb each other all the time, in words: the two threads of one core.

    Args:
        folder: where Linux says which threads are one core's; nothing is known where it does not.
    """
    said: list[str] = []
    whose = {core: place.name for place in found for core in place.cores}
    for core, name in whose.items():
        try:
            threads = cores_of((folder / f"cpu{core}/topology/thread_siblings_list").read_text().strip())
        except (OSError, BadInput):
            continue
        said += [
            f"{name} and {whose[other]} have the two threads of one core ({core} and {other}): what one times, the "
            "other disturbs; lscpu -e says which cores there are"
            for other in threads if other > core and whose.get(other, name) != name
        ]  # fmt: skip
    return said


def jobs_each(found: Sequence[Place]) -> int:
    """Compilers at once for each of these workers on one host."""
    return max(1, options().jobs // max(1, len(found)))
