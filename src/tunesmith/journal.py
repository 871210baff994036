"""What was tried and did not work, and why: a long list of problems that is tuned again does not try it again.

Everything that did work is in the store. Of a search in which nothing worked the store keeps nothing, as the machine
may have been at fault; so these are noted apart, a line of JSON each, in `journal/KERNEL.jsonl` beside the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tunesmith.core.key import Key
from tunesmith.files import add_line

#: Of a reason so much is kept: a line is written at once, so that processes which add at once don't mix theirs.
LONGEST = 500


@dataclass(frozen=True, slots=True)
class Failure:
    """A problem of which no Config worked.

    Attributes:
        reason: why. at: when, UTC, ISO 8601. soft: under which versions.
    """

    reason: str
    at: str
    soft: Mapping[str, str]


class Journal:
    """The failures of one kernel. What can't be read of it is as if it had never been noted."""

    def __init__(self, folder: Path, kernel: str) -> None:
        """In the folder of the store."""
        name = re.sub(r"[^A-Za-z0-9._=-]", "-", kernel) or "kernel"
        self.path = folder / "journal" / f"{name}.jsonl"

    def failure(self, key: Key) -> Failure | None:
        """Why a Key's problem failed under the versions of now, the last time it was tried; `None` if it did not."""
        found = self._failures().get(key.digest)
        return found if found is not None and not key.stale(found.soft) else None

    def failed(self, key: Key, reason: str) -> None:
        """Note that nothing works.

        Raises:
            OSError: when it cannot be written.
        """
        self._append({"key": key.digest, "problem": key.problem.text, "reason": reason[:LONGEST], **_now(key)})

    def worked(self, key: Key) -> None:
        """Note that what failed before works now.

        Raises:
            OSError: when it cannot be written.
        """
        self._append({"key": key.digest, "problem": key.problem.text, **_now(key)})

    def _append(self, said: Mapping[str, Any]) -> None:
        add_line(self.path, json.dumps(said, sort_keys=True).encode())

    def _failures(self) -> dict[str, Failure]:
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return {}
        found: dict[str, Failure] = {}
        for line in lines:
            try:
                said = json.loads(line)
                digest, reason = str(said["key"]), said.get("reason")
                failure = Failure(str(reason), str(said["at"]), dict(said["soft"]))
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                continue  # torn: its writer was killed
            if reason is None:
                found.pop(digest, None)
            else:
                found[digest] = failure
        return found


def _now(key: Key) -> dict[str, Any]:
    return {"at": datetime.now(timezone.utc).isoformat(timespec="seconds"), "soft": dict(key.soft)}
