"""Stand-ins that tests share: a scripted clock, and a process of its own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunesmith import Config, Failed, Sample
from tunesmith.kernel import Run, Task

#: what a script run by `fresh_process` may assume
PREAMBLE = """
import sys
from tests.fakes import ScriptedClock
from tests.untrue_clock import install_if_asked
install_if_asked()
import tunesmith
from tunesmith import Config, Space, autotune
"""


@dataclass
class ScriptedClock:
    """Launches once, then answers from a table (Config → seconds, or a function). Counts how often it is asked."""

    seconds: Mapping[Config, float] | Callable[[Config], float]
    noise: float = 0.0
    seed: int = 0
    protocol: str = "scripted/1"
    asked: list[Config] = field(default_factory=list)
    overlaps: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._busy = threading.RLock()  # a candidate may itself be in the middle of a search

    def sample(self, run: Run) -> Sample:
        if not self._busy.acquire(blocking=False):
            self.overlaps += 1
            self._busy.acquire()
        try:
            if run.before is not None:
                run.before()
            run()
            self.asked.append(run.config)
            seconds: Any = self.seconds(run.config) if callable(self.seconds) else self.seconds[run.config]
            return Sample(seconds * self._rng.lognormvariate(0, self.noise))
        finally:
            self._busy.release()

    @property
    def timed(self) -> set[Config]:
        """The Configs that were asked for at least once."""
        return set(self.asked)


def fresh_process(
    script: str, folder: Path, env: Mapping[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a script (with PREAMBLE) in a process of its own; its store is the test's unless `env` says otherwise."""
    file = folder / f"script_{len(list(folder.glob('script_*')))}.py"
    file.write_text(PREAMBLE + textwrap.dedent(script))
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, str(file)], env={**os.environ, "PYTHONPATH": path, **(env or {})},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


# --- what a child may be asked to do ---


def behave(how: str, output: str = "") -> Failed | None:
    """What a compiler may do, to its process too."""
    if how == "abort":
        os.write(2, b"LLVM ERROR: Cannot select: intrinsic %llvm.nonsense\n")
        os.abort()
    if how == "exit":
        os._exit(3)
    if how == "hang":
        time.sleep(60)
    if how == "raise":
        raise ValueError("first line\nsecond line")
    if how == "write":
        sys.stdout.write("said meanwhile\n")
        Path(output).write_text("made")
    return Failed("cut", "too large") if how == "refuse" else None


def misbehaving(folder: Path, how: str, timeout_s: float = 30.0) -> Task:
    """A job that does this in a child."""
    return Task("tests.fakes:behave", lambda: {"how": how, "output": str(folder / how)}, folder / how, timeout_s)


def write_variable(name: str, path: str) -> None:
    """Writes down an environment variable."""
    Path(path).write_text(os.environ[name])
