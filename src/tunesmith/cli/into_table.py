"""`tunesmith tune --table OUT`: what was found goes into one of our own tables, beside the rows that are there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunesmith.cli.not_stored import why_not_stored
from tunesmith.cli.output import note
from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, Busy
from tunesmith.measure.pick import pick
from tunesmith.report.units import count
from tunesmith.tables import edit
from tunesmith.tables.native import PROTOCOL, Entry, NativeTable, entry_of_choice

if TYPE_CHECKING:
    from tunesmith.core.key import Key
    from tunesmith.core.outcome import Choice
    from tunesmith.events import Summary
    from tunesmith.tuned import TunedKernel


@dataclass
class IntoTable:
    """A table that a command adds to.

    Attributes:
        there: what stood in the file when the command began; `None` where there was none.
        rows: to be written. became: `new`, `kept` or `changed`, for each Problem.
    """

    path: Path
    there: NativeTable | None
    rows: dict[Problem, Entry] = field(default_factory=dict[Problem, Entry])
    became: dict[Problem, str] = field(default_factory=dict[Problem, str])
    _key: Key | None = None

    @classmethod
    def at(cls, path: Path) -> IntoTable:
        """The table of a file that is there or not.

        Raises:
            BadInput: for a file that is no table of ours, and a folder.
        """
        if path.is_dir():
            raise BadInput(f"--table {path} is a folder; give a file, as {path / 'kernel.json'}")
        return cls(path, NativeTable.read(path) if path.exists() else None)

    def admit(self, key: Key) -> None:
        """See that the table is for this kernel and device, before anything is measured.

        Raises:
            BadInput: when it is for another.
        """
        there = self.there
        if there is not None and (there.kernel, there.device) != (key.kernel, key.device):
            raise BadInput(
                f"--table {self.path} is for {there.kernel} on {there.device}, not for {key.kernel} on {key.device}: "
                "give another file"
            )

    def take(
        self, kernel: TunedKernel, key: Key, arguments: Mapping[str, Any], summary: Summary, before: Choice | None,
        isolate: bool,
    ) -> None:  # fmt: skip
        """Decide a Problem's row: the table's stays unless what was found is faster by more than the margin.

        Args:
            before: what was stored ahead of the search, which raced it to the end.
        """
        from tunesmith.store import default_store

        stored, choice, row = default_store().choice(key), summary.choice, self._row(key)
        assert choice is not None
        if stored is None:  # a Space of one Config is not measured, and nothing is stored
            note(f"{key.kernel}({key.problem}): {choice.config!r} is all there is to choose from, and gets no row")
            return
        self._key = key
        new = entry_of_choice(stored)
        raced = choice.source != "store" and before is not None and row is not None and before.config == row.config
        if row is None:
            self._put(key.problem, new, "new")
        elif row.config == choice.config:
            of_now = (
                self.there is not None and self.there.fingerprint == key.fingerprint and PROTOCOL not in row.provenance
            )
            same = row.called == new.called
            kept = row if choice.source == "store" and of_now and same else new
            self._put(key.problem, kept, "kept" if same else "changed")
        elif raced or _beaten(kernel, arguments, row.config, choice.config, isolate):
            self._put(key.problem, new, "changed")
        else:
            self._put(key.problem, row, "kept")

    def write(self) -> None:
        """Write the table whole, or not at all; nothing where no Problem had a result.

        Raises:
            BadInput: when it can't be written.
        """
        if self._key is None:
            return
        key = self._key
        table = NativeTable(key.kernel, key.device, self.rows, key.fingerprint, key.protocol, dict(key.soft))
        try:
            whole = edit.add(self.path, table)
        except OSError as error:
            stored = (
                "; what was found is in the store, and the same command with another file does not measure it again"
            )
            said = f"--table {self.path} cannot be written: {error.strerror or error}"
            raise BadInput(said + ("" if why_not_stored() else stored)) from error
        counts = ", ".join(f"{n} {what}" for what, n in sorted(Counter(self.became.values()).items()))
        note(f"wrote {self.path}: {count(len(whole.rows), 'row')}, of these problems {counts}")

    def data(self) -> dict[str, Any]:
        """For `--json`."""
        return {"path": str(self.path), "rows": {problem.text: what for problem, what in self.became.items()}}

    def _row(self, key: Key) -> Entry | None:
        """What is there for a Problem; a row that was timed in another way says so, under any head."""
        row = None if self.there is None else self.there.rows.get(key.problem)
        if self.there is None or row is None:
            return None
        _, protocol, _ = self.there.of_row(row)
        own = {PROTOCOL: protocol} if protocol and protocol != key.protocol else {}
        return replace(row, provenance={**{n: text for n, text in row.provenance.items() if n != PROTOCOL}, **own})

    def _put(self, problem: Problem, entry: Entry, became: str) -> None:
        self.rows[problem], self.became[problem] = entry, became


def _beaten(kernel: TunedKernel, arguments: Mapping[str, Any], row: Config, found: Config, isolate: bool) -> bool:
    """Whether what a search found is faster than a table's row by more than the margin, timed side by side."""
    effort = kernel.declared.effort
    try:
        recording = kernel.record(**arguments, only=[row, found], isolate=isolate)
    except Busy as busy:
        note(f"{busy}: the table's row stays, as it could not be timed beside what was found")
        return False
    for trial in recording.trials:
        if trial.config == row and isinstance(trial.outcome, Failed):
            note(f"{recording.kernel}({recording.problem}): the table's {row!r} is replaced: {trial.outcome.reason}")
    verdict = pick(recording.trials, effort.margin, effort.confidence, incumbent=row)
    return verdict is not None and verdict.winner.config != row
