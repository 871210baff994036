"""Child processes that are kept for many calls of a function: their parent's side; `answering` is theirs.

A child is a fresh Python without the parent's modules, threads or GPU context. It reads one request a line (JSON) on
its standard input, and answers one line. What it prints otherwise, a crash's last words included, goes to a file.
A child ends when its parent does, or when nobody has asked anything of it for a while. One that is `Guarded` also has
its memory watched, and takes whatever it started with it when it ends.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, cast

from tunesmith.answering import MARK, MORE_TIME, TOLD, readable
from tunesmith.core.outcome import Failed
from tunesmith.processes import GONE_S, kill_marked, resident_bytes

#: how long a stop request may go unnoticed by whoever waits for an answer
_TICK_S = 0.05
#: of what a child prints, the first so many bytes are kept
_LOG_BYTES = 256 * 1024
#: a guarded child's memory is looked at so often: 16 cores that write fill a gigabyte meanwhile
_WATCH_S = 0.02
#: a guarded child that has printed so much at once is killed: what it prints is on a disk that others need
_PRINTED_BYTES = 256 * 1024**2
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from tunesmith.answering import {serve}
{serve}()
"""


class Stopped(Exception):
    """A child was killed because its caller was told to stop."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call.

    Attributes:
        failed: the Failed that the function returned, or what became of the child; `None` when all went well.
        log: what was printed meanwhile, of which the first 256 KiB are kept.
        value: what the function returned otherwise, of JSON types.
        printed_bytes: how much was printed.
        died: whether the child ended or had to be ended, other than for its time.
    """

    failed: Failed | None
    seconds: float
    log: str = ""
    value: Any = None
    printed_bytes: int = 0
    died: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """How a child is kept in which code runs that nobody has run before.

    Attributes:
        what: what the child runs, as failures name it.
        environ: its environment, for its whole life. It never ends for being idle.
        memory_bytes: it is killed when more than this is resident.
    """

    what: str
    environ: Mapping[str, str]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Program:
    """How a child is kept that does a program's work: it may start guarded ones itself, and is not watched.

    Attributes:
        what, environ: as of `Guard`.
    """

    what: str
    environ: Mapping[str, str]


class Child:
    """One child. It serves one call at a time.

    Args:
        kept: how, for one that runs more than a compiler. It ends with the thread that started it.

    Raises:
        OSError: when no process can be started.
    """

    def __init__(self, kept: Guard | Program | None = None) -> None:
        if getattr(sys, "frozen", False) or not sys.executable:  # a frozen program would start itself, and so on
            raise OSError("this program is not run by a Python that could be started for another process")
        guard = kept if isinstance(kept, Guard) else None
        self._kept, self._guard, self._mark = kept, guard, f"{os.getpid()}.{secrets.token_hex(8)}"
        self._early = b""  # of an answer, read with the line before it
        self._number = 0  # of the latest request
        self._what = "compiler" if kept is None else kept.what
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        start = _START.format(serve="serve" if kept is None else "serve_program" if guard is None else "serve_guarded")
        environ = {} if kept is None else {**kept.environ, **({MARK: self._mark} if guard is not None else {})}
        self._process = subprocess.Popen(
            [sys.executable, "-c", start, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environ or None,
            start_new_session=True,  # Ctrl-C is the parent's: it kills the group, the compiler's children with it
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def call(
        self, function: str, request: Mapping[str, Any], timeout_s: float, stop: threading.Event | None = None,
        heard: Callable[[Any], object] | None = None,
    ) -> Answer | None:  # fmt: skip
        """Call `module:name` with keywords. `None` when the child had just ended, unasked, as it was idle.

        Args:
            timeout_s: it is killed after so long; with `heard`, after so long without a word.
            heard: is given what the function says (`tell`) while it runs.

        Raises:
            Stopped: when `stop` was set; the child is dead then.
        """
        start = time.monotonic()
        try:
            reply = self._reply(function, request, start + timeout_s, timeout_s, stop, heard)
            if isinstance(reply, bytes) and not reply.endswith(b"\n"):
                reply = self._ended(idle=self._kept is None and not reply)
        except BaseException:
            self.end()
            raise
        if reply is None:
            self.end()
            return None
        seconds = time.monotonic() - start
        answer = {} if isinstance(reply, Failed) else _parsed(reply)
        if not isinstance(reply, Failed) and answer.get("number") != self._number:
            reply = Failed("crash", f"{self._what} wrote where its process's answers are read, and was killed")
        said, printed_bytes = self._said()
        if isinstance(reply, Failed):
            self.end()
            failed = _crashed(reply, said) if reply.stage == "crash" else Failed(reply.stage, reply.reason, said)
            return Answer(failed, seconds, said, died=reply.stage != "timeout")
        failed = answer.get("failed")
        return Answer(
            None if failed is None else Failed(**failed), seconds, said, answer.get("value"), printed_bytes
        )  # fmt: skip

    def _reply(
        self, function: str, request: Mapping[str, Any], deadline: float, timeout_s: float,
        stop: threading.Event | None, heard: Callable[[Any], object] | None,
    ) -> bytes | Failed:  # fmt: skip
        """The line that answers a request; what `_listen` says otherwise."""
        self._number += 1
        asked = {"function": function, "request": request, "number": self._number}
        if self._kept is None:
            asked["environ"] = dict(os.environ)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return b""
        reply = self._listen(deadline, timeout_s, stop)
        while isinstance(reply, bytes) and reply.startswith((MORE_TIME, TOLD)):
            said = _parsed(reply)
            if heard is not None and "told" in said:
                heard(said["told"])
            more_s = said.get("more_s") or timeout_s
            reply = self._listen(time.monotonic() + more_s, more_s, stop)
        return reply

    def _ended(self, idle: bool) -> Failed | None:
        """Why a child answers no more; `None` for one that ended of itself, which is no failure where it was idle."""
        try:
            code = self._process.wait(GONE_S)
        except subprocess.TimeoutExpired:
            return Failed("crash", f"{self._what} closed its process's files and was killed")
        if idle and code == 0:
            return None
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return Failed("crash", f"{self._what} process died ({how})")

    def _listen(self, deadline: float, timeout_s: float, stop: threading.Event | None) -> bytes | Failed:
        """One line; what there is of it when the child ends before; why it has to be killed."""
        assert self._process.stdout is not None
        pipe, kept = self._process.stdout.fileno(), self._early
        tick_s = _TICK_S if self._guard is None else _WATCH_S
        while b"\n" not in kept:
            if stop is not None and stop.is_set():
                raise Stopped
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return Failed("timeout", f"{self._what} ran past {timeout_s:g} s and was killed")
            if readable(pipe, min(tick_s, left_s)):
                chunk = os.read(pipe, 65536)
                if not chunk:
                    break
                kept += chunk
            elif self._process.poll() is not None and not readable(pipe, 0):
                break  # dead, and somebody whom it started holds its end of the pipe
            elif self._guard is not None and (too_much := self._too_much(self._guard)):
                return Failed("crash", too_much)
        line, end, self._early = kept.partition(b"\n")
        return line + end

    def _too_much(self, guard: Guard) -> str:
        """What a guarded child has taken too much of; empty if nothing."""
        resident = resident_bytes(self._process.pid)
        if resident > guard.memory_bytes:
            return (
                f"memory: {self._what} took more than {guard.memory_bytes / 1024**3:.3g} GiB and was killed"
            )  # fmt: skip
        if os.fstat(self._log.fileno()).st_size > _PRINTED_BYTES:
            return f"output: {self._what} printed more than {_PRINTED_BYTES >> 20} MiB and was killed"
        return ""

    def _said(self) -> tuple[str, int]:
        """What was printed since the last time: (its beginning, how many bytes)."""
        size = os.fstat(self._log.fileno()).st_size
        if not size:
            return "", 0
        self._log.seek(0)
        text = self._log.read(_LOG_BYTES).decode(errors="replace")
        self._log.seek(0)  # the child writes through the same file offset
        self._log.truncate()
        return text, size

    def interrupt(self) -> None:
        """Ctrl-C for it: it puts away what it has in hand, and ends."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGINT)

    def end(self) -> None:
        """Kill it and all that it started."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._guard is not None:
            kill_marked(self._mark)
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                with suppress(OSError):  # a request that it never read
                    pipe.close()


def _parsed(line: bytes) -> dict[str, Any]:
    """An answer; empty for a line that is none."""
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _crashed(failed: Failed, said: str) -> Failed:
    """The same with the most telling line of what was printed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = next((line for line in lines if "ERROR" in line or "Assertion" in line), lines[-1] if lines else "")
    is_told = telling and "process died" in failed.reason
    return Failed("crash", f"{failed.reason}: {telling}" if is_told else failed.reason, said)


_spare: list[Child] = []
_lock = threading.Lock()


def call(function: str, request: Mapping[str, Any], timeout_s: float, stop: threading.Event | None = None) -> Answer:
    """Call a function in a child: a spare one, else a new one.

    Raises:
        Stopped: when `stop` was set.
        OSError: when no process can be started.
    """
    while True:
        with _lock:
            child = _spare.pop() if _spare else None
        if child is None:
            child = Child()
        answer = child.call(function, request, timeout_s, stop)
        if child.is_alive:
            with _lock:
                _spare.append(child)
        if answer is not None:
            return answer


def end_spare() -> None:
    """Kill the children that wait for a call."""
    with _lock:
        children, _spare[:] = list(_spare), []
    for child in children:
        child.end()


def _forget_after_fork() -> None:
    """Children belong to the process that started them."""
    global _lock
    _lock = threading.Lock()
    _spare.clear()


atexit.register(end_spare)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
