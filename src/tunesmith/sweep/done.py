"""`Done`: what a sweep has finished, a line of JSON each, so that one that was killed goes on where it stopped.

What was measured is in the store. This only says which problems need not be looked at: their inputs are not made again.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from tunesmith.files import add_line
from tunesmith.sweep.task import Result, Task


class Done:
    """The file of one sweep: the same tasks are the same sweep. What can't be read of it is as if it were not there.

    Threads: any may add.
    """

    def __init__(self, folder: Path, tasks: Sequence[Task]) -> None:
        """In the folder of the store."""
        digest = hashlib.sha256("\n".join(sorted(task.digest for task in tasks)).encode()).hexdigest()[:16]
        self.path = folder / "sweeps" / f"{digest}.jsonl"
        self._tasks = {task.digest: task for task in tasks}
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def results(self) -> dict[str, dict[Task, Result]]:
        """By device's identity, what came of each task that is done."""
        found: dict[str, dict[Task, Result]] = {}
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return found
        for line in lines:
            try:
                said = json.loads(line)
                task, result = self._tasks[said["task"]], Result.from_data(said["result"])
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                continue  # torn: its writer was killed
            found.setdefault(result.device, {})[task] = result
        return found

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Within this scope no other driver of this sweep forgets what this one notes."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("ab")
        except OSError:  # nothing can be noted either, which `add` says
            yield
            return
        with file:
            self._file = file
            _lock(file, exclusive=False)
            try:
                yield
            finally:
                self._file = None

    def forget(self) -> bool:
        """Begin anew; whether that may be: not while another driver is in the midst of this sweep."""
        if self._file is None:
            return False
        alone = _lock(self._file, exclusive=True)
        if alone:
            self._file.truncate(0)
        _lock(self._file, exclusive=False)  # asking for it alone has let go of it
        return alone

    def add(self, task: Task, result: Result) -> None:
        """Note that a task is done.

        Raises:
            OSError: when it cannot be written.
        """
        said: Mapping[str, Any] = {"task": task.digest, "result": {**asdict(result), "row": ""}}
        with self._lock:
            add_line(self.path, json.dumps(said, sort_keys=True).encode())


def _lock(file: IO[bytes], exclusive: bool) -> bool:
    """Lock a file with whoever else has it, or alone; whether that is possible. It is let go when it is closed."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nobody else can be told of
        return True
    return True
