"""From an exception to a `Failed` with a stage and a reason; the place where a candidate's error stops."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Stage
from tunesmith.errors import CompileFailed, MissingEngine, NoWorkingConfig, OutOfResources, WorkerLost, one_line
from tunesmith.kernel import Around

T = TypeVar("T")


class FailedElsewhere(Exception):
    """A candidate has failed, and what it met knows how: another process, or a check of its results."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.reason)
        self.failed = failed


def attempt(stage: Stage, act: Callable[[], T]) -> tuple[T | None, Failed | None, BaseException | None]:
    """Do something that a candidate may fail at.

    A candidate may raise anything, `sys.exit` included: only the user's Ctrl-C passes, and an engine that is
    missing or a worker that can't be had, which are no candidate's fault.

    Returns:
        (result, None, None), or (None, what became of it, the exception).
    """
    try:
        return act(), None, None
    except (MissingEngine, WorkerLost):
        raise
    except (Exception, SystemExit) as error:
        return None, failed(stage, error), error


def failed(stage: Stage, error: BaseException) -> Failed:
    """An exception as an Outcome: one line that begins with its type, and the last frames for who wants more."""
    if isinstance(error, FailedElsewhere):
        return error.failed
    if isinstance(error, CompileFailed):
        return Failed("compile", one_line(error), error.output)
    if isinstance(error, OutOfResources):
        return Failed("cut", one_line(error))
    detail = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-4))
    return Failed(stage, one_line(error), detail)


#: how failures begin, or what they say, that are the machine's at the time and not the Config's
_NO_MEMORY = ("MemoryError", "out of memory")
_MACHINES = (*_NO_MEMORY, "OSError", "No space left", "killed by", "ran past", "Cannot allocate", "disk full")


def is_machines(failure: Failed) -> bool:
    """Whether the machine may be to blame (memory, disk, load): such a failure is tried again by the next search."""
    return failure.stage == "timeout" or any(sign in failure.reason for sign in _MACHINES)


def is_out_of_memory(failure: Failed) -> bool:
    """Whether there was no memory, of the host or of the device."""
    return any(sign in failure.reason for sign in _NO_MEMORY)


def name_the_config(launch: Callable[..., Any], kernel: str, config: Config) -> Callable[..., Any]:
    """A launch whose error says which Config it was: for the first launch of a Config that nothing has tried."""

    def first_launch(*args: Any) -> Any:
        result, failure, error = attempt("launch", lambda: launch(*args))
        if failure is not None:
            raise NoWorkingConfig(f"{kernel}: its only Config does not run: {config!r}: {failure.reason}") from error
        return result

    return first_launch


def told_of_failures(launch: Callable[..., Any], around: Around) -> Callable[..., Any]:
    """A launch that tells `around` of what it raises, which passes."""

    def launch_and_tell(*args: Any) -> Any:
        try:
            return launch(*args)
        except Exception as error:
            around.failed(error)
            raise

    return launch_and_tell


def all_failed(
    kernel: str, problem: str, failures: Sequence[tuple[Config, Failed]], error: BaseException | None
) -> NoWorkingConfig:
    """The error of a search in which nothing worked: the distinct reasons with counts, each with its Configs.

    When every Config failed alike, that is most likely a fault of the call and not of the Configs: it says so.
    """
    groups: dict[str, tuple[Failed, list[Config]]] = {}
    for config, failure in failures:
        groups.setdefault(failure.kind, (failure, []))[1].append(config)
    lines = [f"{kernel}({problem}): none of {len(failures)} Configs works"]
    for first, configs in sorted(groups.values(), key=lambda group: -len(group[1])):
        shown = "; ".join(repr(config) for config in configs[:3]) + ("; …" if len(configs) > 3 else "")
        lines.append(f"  {len(configs)} × {first.stage}: {first.reason}  [{shown}]")
    if len(groups) == 1 and len(failures) > 1:
        lines.append("  All failed alike: the fault is likely in the kernel or the call, not in the Configs.")
    failure = NoWorkingConfig("\n".join(lines))
    failure.__cause__ = error
    return failure
