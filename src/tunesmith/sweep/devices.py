"""`--devices`: which devices a sweep has, and how a worker is held to one of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def places(text: str, environ: Mapping[str, str]) -> list[Place]:
    """The devices that `--devices` names: `0,1` (GPUs), `cpu:0-3`, `cpu:0,cpu:1`, `cpu` (all cores of this process).

    Raises:
        BadInput: for what is none, is given twice, or is not there.
    """
    found = [_place(part.strip(), environ) for part in text.split(",") if part.strip()]
    if not found:
        raise BadInput(f"--devices {text!r} names none; {_GOOD}")
    seen: set[str] = set()
    for place in found:
        pieces = {f"core {core}" for core in place.cores} or {place.name}
        twice = sorted(seen & pieces)
        if twice:
            raise BadInput(
                f"--devices {text}: {twice[0]} is in two devices, whose measurements would disturb each other"
            )
        seen |= pieces
    return found


_GOOD = "good ones: 0,1 (GPUs), cpu (all cores), cpu:0-3,cpu:4-7 (sets of cores; more ranges in one: cpu:0-3+8-11)"


def _place(text: str, environ: Mapping[str, str]) -> Place:
    kind, _, which = text.partition(":")
    usable = usable_cores()
    if text == "cpu":
        return Place("cpu", usable)
    if kind == "cpu":
        cores = cores_of(which.replace("+", ","))
        missing = [core for core in cores if core not in usable]
        if missing:
            raise BadInput(f"--devices {text}: core {missing[0]} is not one of this process's: {spell_cores(usable)}")
        return Place(f"cpu:{spell_cores(cores)}", cores)
    index = which if kind in ("gpu", "cuda") else text
    if not index.isdecimal():
        raise BadInput(f"--devices {text}: unknown device; {_GOOD}")
    visible = [one.strip() for one in environ.get(VISIBLE, "").split(",") if one.strip()]
    if visible and int(index) >= len(visible):
        raise BadInput(
            f"--devices {text}: {VISIBLE}={environ[VISIBLE]} leaves {len(visible)} GPUs: 0 to {len(visible) - 1}"
        )
    return Place(f"gpu:{int(index)}", (), visible[int(index)] if visible else str(int(index)))


def usual_places(kinds: Sequence[str], n_gpus: int, environ: Mapping[str, str]) -> list[Place]:
    """Where nothing is said: every GPU, if some kernel may run on one and there are any; else all cores as one."""
    if n_gpus and any(kind != "cc" for kind in kinds):
        return places(",".join(map(str, range(n_gpus))), environ)
    return places("cpu", environ)


def usable_cores() -> tuple[int, ...]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def jobs_each(found: Sequence[Place]) -> int:
    """Compilers at once for each of these workers on one host."""
    return max(1, options().jobs // max(1, len(found)))
