"""What other processes of this host are compiling: who wants the same compiles something else meanwhile.

Workers of a sweep that share a cache of compiled kernels begin with much the same candidates, in the same order.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from tunesmith.kernel import Job
from tunesmith.store.locks import host_folder

try:
    import fcntl
except ImportError:  # Windows: everybody compiles for himself
    fcntl = None

#: how often it is looked whether others are done
LOOK_S = 0.05
#: A process has one open file of these locks for its life: closing any would let go of all that it holds.
_open: list[int] = []


def claim(output: Path) -> bool:
    """Whether this process may compile something; not while another one does. Let go of when this process ends."""
    return _lock(output, take=True)


def release(output: Path) -> None:
    """Compiled, or not; where nothing was claimed, nothing happens."""
    _lock(output, take=False)


def _lock(output: Path, take: bool) -> bool:
    """One byte of a file that all processes share stands for an output, by its digest."""
    if fcntl is None:
        return True
    digest = hashlib.sha256(os.path.abspath(output).encode(errors="surrogatepass")).digest()
    how = fcntl.LOCK_EX | fcntl.LOCK_NB if take else fcntl.LOCK_UN
    try:
        if not _open:
            path = host_folder() / "compiling.lock"
            path.parent.mkdir(parents=True, exist_ok=True)
            _open.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        fcntl.lockf(_open[0], how, 1, int.from_bytes(digest[:7], "big"))
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # no such folder, no such locks: as without them
        return True
    return True


class Elsewhere:
    """Jobs of one batch that others are compiling. Not for threads."""

    def __init__(self) -> None:
        self._jobs: dict[Path, tuple[Job, float]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def takes(self, job: Job) -> bool:
        """Whether another process is at it; where not, it is this one's to compile."""
        if job.output.exists() or claim(job.output):
            return False
        self._jobs[job.output] = job, time.monotonic()
        return True

    def ended(self) -> list[Job]:
        """Those that others have compiled; and those that they have not, and are not compiling any more, or for longer
        than a compiler may take: these are this process's."""
        now = time.monotonic()
        found = [
            job
            for output, (job, since) in self._jobs.items()
            if output.exists() or now - since > job.timeout_s or claim(output)
        ]
        for job in found:
            del self._jobs[job.output]
        return found

    def drop(self) -> list[Path]:
        """Nobody waits for them any more."""
        outputs = list(self._jobs)
        self._jobs.clear()
        return outputs
