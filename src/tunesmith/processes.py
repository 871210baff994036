"""Other processes: a program in our place; as /proc tells, their memory, and those that a guarded child has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tunesmith.answering import MARK

#: who is killed, or has closed all that it talks by, is gone within so long
GONE_S = 5.0
#: a signal is heard within so long
_TICK_S = 0.2
#: signals that somebody sends to a command and means for the program that it runs
_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT")
#: these a terminal sends to both
_OF_THE_TERMINAL = ("SIGINT", "SIGQUIT")


def run_in_our_place(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a program whose streams, terminal and signals are ours, and wait for it.

    Args:
        environ: variables that it gets beside ours.

    Returns:
        Its exit code; where a signal ended it, 128 and the signal's number, as shells say.

    Raises:
        OSError: when it can't be started.
    """
    running: list[subprocess.Popen[bytes]] = []
    at_terminal = sys.platform != "win32" and _has_the_terminal()

    def pass_on(number: int, frame: object) -> None:
        theirs_already = at_terminal and signal.Signals(number).name in _OF_THE_TERMINAL
        for child in () if theirs_already else running:
            child.send_signal(number)

    handled = [getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)]
    before = {one: signal.getsignal(one) for one in handled}
    try:
        for one, handler in before.items():
            if handler is not signal.SIG_IGN:  # what is ignored here (nohup) is by the program, too
                signal.signal(one, pass_on)
        running.append(subprocess.Popen(command, env={**os.environ, **environ}))
        code = _ended(running[0])
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    return code if code >= 0 else 128 - code


def _ended(child: subprocess.Popen[bytes]) -> int:
    """A child's exit code, waited for in ticks: a wait that begins just after a signal came does not hear it."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(_TICK_S)


def _has_the_terminal() -> bool:
    """Whether Ctrl-C at a terminal reaches this process, and what it starts."""
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


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
