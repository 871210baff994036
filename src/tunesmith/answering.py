"""A child process's side: it answers the calls of the process that started it (`children`), one after the other.

A request is a line of JSON on standard input, its answer another one, and what is said meanwhile (`tell`, `take_time`)
lines too. What a called function prints goes elsewhere.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from tunesmith.core.outcome import Failed
from tunesmith.errors import OutOfResources, one_line

#: an idle child ends after so long: a strategy asks for its next batch within seconds, and memory is given back
IDLE_S = 60.0
#: how a line begins by which a child asks for time
MORE_TIME = b'{"more_s"'
#: how a line begins by which a child says how far it is
TOLD = b'{"told"'
#: A child's requests and answers go through file descriptors from here on: code that closes, reads or writes one of the
#: first few, which are always in use, does not hit them.
_FIRST_PIPE = 100
#: names a guarded child, after its parent's process, in its environment and so in that of whatever it starts
MARK = "_TUNESMITH_CHILD"
#: of linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def readable(pipe: int, timeout_s: float) -> bool:
    """Whether there is something to read, or the other end is closed, within this time."""
    with selectors.DefaultSelector() as selector:  # select() knows no file descriptor above 1023
        selector.register(pipe, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))


def is_guarded() -> bool:
    """Whether this process is a guarded child, or was started by one."""
    return MARK in os.environ


def serve() -> None:
    """Answer requests until there are none for a while."""
    _answer_requests(IDLE_S)


def serve_program() -> None:
    """Answer requests for as long as the parent lives."""
    if sys.platform != "linux" or _dies_with_its_parent():
        _answer_requests(None)


def _dies_with_its_parent() -> bool:
    """See to it; whether the parent lives."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # who hangs reads no end of file
    return os.getppid() == parent


def serve_guarded() -> None:
    """Answer requests for as long as the parent lives."""
    if sys.platform == "linux":
        import resource

        if not _dies_with_its_parent():
            return
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a candidate leaves behind stays ours to find
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # of all processes this is the one to lose
    _answer_requests(None)


_answers: list[IO[str]] = []


def take_time(seconds: float | None) -> None:
    """Within a call: what comes now is no fault of whom the deadline is for, and may take so long; `None`: the call's
    own deadline begins anew."""
    for answers in _answers:
        answers.write(json.dumps({"more_s": seconds}) + "\n")
        answers.flush()


def tell(said: Any) -> None:
    """Within a call: say something of JSON types to the caller while it goes on."""
    for answers in _answers:
        answers.write(json.dumps({"told": said}) + "\n")
        answers.flush()


def _answer_requests(idle_s: float | None) -> None:
    requests, answers, myself = os.fdopen(_moved(0)), os.fdopen(_moved(1), "w"), os.getpid()
    _answers[:] = [answers]
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # who reads standard input reads no request
    os.dup2(2, 1)  # what a compiler prints is no answer
    while idle_s is None or readable(requests.fileno(), idle_s):
        line = requests.readline()
        if not line:
            return
        asked = json.loads(line)
        if "environ" in asked:
            os.environ.clear()
            os.environ.update(asked["environ"])
        returned = _answer(asked["function"], asked["request"])
        if os.getpid() != myself:  # a candidate has forked, and its child has come here
            os._exit(0)
        for printed in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a candidate has closed it
                printed.flush()
        said = {"failed": asdict(returned)} if isinstance(returned, Failed) else {"value": returned}
        answers.write(json.dumps({**said, "number": asked["number"]}) + "\n")
        answers.flush()


def _moved(pipe: int) -> int:
    """A pipe's end under a number where nothing else is looked for; child processes do not inherit it."""
    try:
        import fcntl

        return fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, _FIRST_PIPE)
    except (ImportError, OSError):  # Windows; no process here may have so many files open
        return os.dup(pipe)


def _answer(name: str, request: Mapping[str, Any]) -> Any:
    """What the function returns: a Failed, or something of JSON types."""
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
