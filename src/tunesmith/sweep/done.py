"""`Done`: what a sweep has finished, a line of JSON each, so that one that was killed goes on where it stopped.

What was measured is in the store. This only says which problems need not be looked at: their inputs are not made again.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

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

    def forget(self) -> None:
        """Begin anew."""
        self.path.unlink(missing_ok=True)

    def add(self, task: Task, result: Result) -> None:
        """Note that a task is done.

        Raises:
            OSError: when it cannot be written.
        """
        said: Mapping[str, Any] = {"task": task.digest, "result": {**asdict(result), "row": ""}}
        with self._lock:
            add_line(self.path, json.dumps(said, sort_keys=True).encode())
