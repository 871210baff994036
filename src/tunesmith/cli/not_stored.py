"""What a command has found and could not put into the store: said whole, as it is nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tunesmith.cli.output import complain
from tunesmith.report.units import count, duration, problem_line

if TYPE_CHECKING:
    from tunesmith.core.outcome import Choice
    from tunesmith.core.problem import Problem


def why_not_stored() -> str:
    """Why what this process finds stays in its memory, with the file's name; empty where it is stored."""
    from tunesmith.store import default_store

    store = default_store()
    return "" if store.uncached is None else f"{store.path}: {store.uncached}"


@dataclass
class NotStored:
    """The Choices of one kernel that a command has found and that are in no store."""

    kernel: str
    found: list[tuple[Problem, Choice, str]] = field(default_factory=list["tuple[Problem, Choice, str]"])

    def look_at(self, problem: Problem, choice: Choice | None) -> None:
        """Note what has just been found, unless it is stored or came from the store."""
        why = why_not_stored()
        if why and choice is not None and choice.source != "store":
            self.found.append((problem, choice, why))

    def say(self) -> None:
        """Say what it is and what to do, on standard error."""
        if not self.found:
            return
        for problem, choice, _ in self.found:
            timed = "" if choice.median_s is None else f"{duration(choice.median_s)} "
            complain(f"not stored: {self.kernel}({problem_line(problem)}): {timed}{choice.config!r}")
        complain(
            f"what was found of {count(len(self.found), 'problem')} is in no store, as it cannot be written "
            f"({self.found[0][2]}): make room or give permission there, or name another folder by TUNESMITH_CACHE_DIR, "
            "and run the same command again"
        )

    def data(self) -> list[dict[str, Any]]:
        """For `--json`."""
        return [
            {"kernel": self.kernel, "problem": problem.text, "config": dict(choice.config), "why": why}
            for problem, choice, why in self.found
        ]
