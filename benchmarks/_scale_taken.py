"""Takes a device away from a sweep, for `scale.py`: an adviser that has nothing to say of searches, but by which each
worker is known, and dies before it begins where its device is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from tunesmith.subject import Subject
from tunesmith.sweep.advice import Advice, Solved
from tunesmith.sweep.devices import VISIBLE

#: names the folder in which workers note who they are
FOLDER = "SCALE_TAKEN"


def name(gpu: str, cores: Sequence[int]) -> str:
    """Of a device, the file that its worker notes its process in."""
    return f"gpu-{gpu.replace('/', '_')}" if gpu else f"cpu-{'-'.join(map(str, sorted(cores)))}"


def gone(file: Path) -> Path:
    """The file that says that a device is gone."""
    return file.with_suffix(".gone")


def advise(subject: Subject, solved: Sequence[Solved]) -> Advice | None:
    """As usual."""
    return None


if FOLDER in os.environ:  # in a worker, which is held to its device by now, or in the driver
    _mine = Path(os.environ[FOLDER]) / name(os.environ.get(VISIBLE, ""), tuple(os.sched_getaffinity(0)))
    if gone(_mine).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    _mine.with_suffix(".new").write_text(str(os.getpid()))
    _mine.with_suffix(".new").replace(_mine)  # whoever finds it finds all of it
