"""Child processes that are kept for many calls of a function: this file is both their side and their parent's.

A child is a fresh Python without the parent's modules, threads or GPU context. It reads one request a line (JSON) on
its standard input, and answers one line. What it prints otherwise, a crash's last words included, goes to a file.
A child ends when its parent does, or when nobody has asked anything of it for a while.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any

from tunesmith.core.outcome import Failed
from tunesmith.errors import OutOfResources, one_line

#: an idle child ends after so long: a strategy asks for its next batch within seconds, and memory is given back
IDLE_S = 60.0
#: how long a stop request may go unnoticed by whoever waits for an answer
_TICK_S = 0.05
#: of what a child prints, the first so many bytes are kept
_LOG_BYTES = 256 * 1024
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from tunesmith.children import serve; serve()"


class Stopped(Exception):
    """A child was killed because its caller was told to stop."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call.

    Attributes:
        failed: what the function returned, or what became of the child; `None` when all went well.
        log: what was printed meanwhile.
    """

    failed: Failed | None
    seconds: float
    log: str = ""


def _readable(pipe: int, timeout_s: float) -> bool:
    """Whether there is something to read, or the other end is closed, within this time."""
    with selectors.DefaultSelector() as selector:  # select() knows no file descriptor above 1023
        selector.register(pipe, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))


# --- the parent's side -----------------------------------------------------------------------------


class Child:
    """One child. It serves one call at a time."""

    def __init__(self) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is the parent's: it kills the group, the compiler's children with it
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def call(
        self, function: str, request: Mapping[str, Any], timeout_s: float, stop: threading.Event | None
    ) -> Answer | None:
        """Call `module:name` with keywords. `None` when the child had just ended, unasked, as it was idle.

        Raises:
            Stopped: when `stop` was set; the child is dead then.
        """
        start = time.monotonic()
        line = json.dumps({"function": function, "request": request, "environ": dict(os.environ)}).encode()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
            reply = self._listen(start + timeout_s, stop)
        except BrokenPipeError:
            reply = b""
        except BaseException:
            self.end()
            raise
        seconds = time.monotonic() - start
        if reply is None:
            said = self._said()
            self.end()
            return Answer(Failed("timeout", f"compiler ran past {timeout_s:g} s and was killed", said), seconds, said)
        if not reply.endswith(b"\n"):
            code, said = self._process.wait(), self._said()
            self.end()
            return None if code == 0 and not reply else Answer(_crashed(code, said), seconds, said)
        failed = json.loads(reply)
        return Answer(None if failed is None else Failed(**failed), seconds, self._said())

    def _listen(self, deadline: float, stop: threading.Event | None) -> bytes | None:
        """One line; what there is of it when the child ends before; `None` when the time is up."""
        assert self._process.stdout is not None
        pipe, kept = self._process.stdout.fileno(), b""
        while not kept.endswith(b"\n"):
            if stop is not None and stop.is_set():
                raise Stopped
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            if _readable(pipe, min(_TICK_S, left_s)):
                chunk = os.read(pipe, 65536)
                if not chunk:
                    break
                kept += chunk
        return kept

    def _said(self) -> str:
        """What was printed since the last time."""
        self._log.seek(0)
        text = self._log.read(_LOG_BYTES).decode(errors="replace")
        self._log.seek(0)  # the child writes through the same file offset
        self._log.truncate()
        return text

    def end(self) -> None:
        """Kill it and all that it started."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                with suppress(OSError):  # a request that it never read
                    pipe.close()


def _crashed(code: int, said: str) -> Failed:
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = next((line for line in lines if "ERROR" in line or "Assertion" in line), lines[-1] if lines else "")
    return Failed("crash", f"compiler process died ({how}){': ' + telling if telling else ''}", said)


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


# --- the child's side --------------------------------------------------------------------------------


def serve() -> None:
    """Answer requests until there are none."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a compiler prints is no answer
    while _readable(0, IDLE_S):
        line = sys.stdin.readline()
        if not line:
            return
        asked = json.loads(line)
        os.environ.clear()
        os.environ.update(asked["environ"])
        failed = _answer(asked["function"], asked["request"])
        sys.stdout.flush()
        sys.stderr.flush()
        answers.write(json.dumps(None if failed is None else asdict(failed)) + "\n")
        answers.flush()


def _answer(name: str, request: Mapping[str, Any]) -> Failed | None:
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)(**request)
    except Exception as error:  # noqa: BLE001  a compiler may raise anything, and each is a Config's Failure
        return failed_by(error)


def failed_by(error: BaseException) -> Failed:
    """An exception of a compiler's as an Outcome: a line that begins with its type, and all that it said."""
    if isinstance(error, OutOfResources):
        return Failed("cut", str(error))
    detail = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-4))
    return Failed("compile", one_line(error), detail)
