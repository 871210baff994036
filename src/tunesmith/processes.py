"""Other processes, as /proc tells of them: their memory, and those that a guarded child has started."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from tunesmith.answering import MARK

#: who is killed, or has closed all that it talks by, is gone within so long
GONE_S = 5.0


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM; 0 where that can't be told."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):  # it is gone, or this is no Linux
        return 0


def marked(mark: str) -> list[int]:
    """Processes that guarded children are, or have started: of one by its mark, or of all of a parent by `PID.`."""
    wanted = f"{MARK}={mark}".encode()
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/environ")
        if any(variable.startswith(wanted) for variable in _environ(path))
    ]


def kill_marked(mark: str) -> None:
    """Kill what a guarded child started and is not of its process group any more, where /proc tells."""
    until = time.monotonic() + GONE_S
    while (found := marked(mark)) and time.monotonic() < until:  # one of them may have started another meanwhile
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _environ(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return []
