"""tunesmith's own table: one JSON file for a kernel on a device, a line for each Problem."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, TunesmithWarning, unknown
from tunesmith.files import write_whole
from tunesmith.tables.base import Row
from tunesmith.tables.lines import Entry, checked_before, note_checked, row_of

FORMAT = "tunesmith-table/1"
#: what a table cannot do without, and its type
REQUIRED = {"format": str, "kernel": str, "device": str, "rows": dict}

#: in a row's provenance, where it differs from the table's: a row that stayed when others were made anew
FINGERPRINT, PROTOCOL, VERSIONS = OF_ROW = ("fingerprint", "protocol", "versions")

#: Rows that were asked for and are kept ready: more than a server's shapes, a bound all the same.
SERVED = 65_536


@dataclass(frozen=True)
class NativeTable:
    """Configs of one kernel on one device, by exact Problem.

    Attributes:
        device: `Device.identity`.
        rows: what to use for which Problem.
        fingerprint: of the kernel's source it was made for; empty where not known.
        protocol: how its times were measured.
        soft: versions it was made under.
        path: the file it was read from.
    """

    kernel: str
    device: str
    rows: Mapping[Problem, Entry]
    fingerprint: str = ""
    protocol: str = ""
    soft: Mapping[str, str] = field(default_factory=dict[str, str])
    path: Path | None = None
    _served: dict[tuple[Problem, str], tuple[Mapping[str, str], Row]] = field(
        default_factory=dict[tuple[Problem, str], tuple[Mapping[str, str], Row]], repr=False, compare=False
    )

    def lookup(self, key: Key, exact: Problem, device: Device) -> Row | None:
        """The row of just this kernel, device and Problem.

        A table is its user's explicit word: made for another source of the kernel, or under other versions, it is
        used all the same, and the Row's note says so.
        """
        if key.kernel != self.kernel or key.device != self.device:
            return None
        asked = (key.problem, key.fingerprint)
        known = self._served.get(asked)
        if known is not None and known[0] == key.soft:
            return known[1]
        entry = self.rows.get(key.problem)
        if entry is None:
            return None
        source, note = f"table {self.path or '(in memory)'}", self._note(key, entry)
        row = Row(entry.config, source, "", entry.median_s, note, entry.called)
        if len(self._served) >= SERVED:
            self._served.clear()
        self._served[asked] = (key.soft, row)
        return row

    def of_row(self, entry: Entry) -> tuple[str, str, str]:
        """(source's fingerprint, protocol, versions) that a row was made for: its own where it has them."""
        own = entry.provenance
        usual = {FINGERPRINT: self.fingerprint, PROTOCOL: self.protocol, VERSIONS: spelled(self.soft)}
        fingerprint, protocol, versions = (own.get(name, value) for name, value in usual.items())
        return fingerprint, protocol, versions

    def _note(self, key: Key, entry: Entry) -> str:
        notes: list[str] = []
        fingerprint, _, versions = self.of_row(entry)
        if fingerprint and fingerprint != key.fingerprint:
            notes.append(f"made for another source of {key.kernel} ({fingerprint}, now {key.fingerprint})")
        own = VERSIONS in entry.provenance
        stale = [] if own or not self.soft else key.stale(self.soft)
        if own and versions != spelled(key.soft):
            stale = [f"{spelled(key.soft)}; was {versions}"]
        if stale:
            notes.append(f"made under other versions ({'; '.join(stale)})")
        return "; ".join(notes)

    @classmethod
    def read(cls, path: Path) -> NativeTable:
        """Load a table. Rows that make no sense are left out, with one warning that names them.

        Raises:
            BadInput: naming the file and what is wrong, for one that is not a table.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise BadInput(f"table {path} cannot be read: {error.strerror or error}") from error
        try:
            known = checked_before(content)
            if known is not None:
                return _table_of(known.head, known.rows, path)
            data: Any = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_no_name_twice)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path} is not a table: {error}") from None
        table, whole = _table_from(data, path)
        if whole:
            note_checked(content, [problem.text for problem in table.rows])
        return table

    def write(self, path: Path) -> None:
        """Write it, whole or not at all.

        Raises:
            OSError: when the file cannot be written.
        """
        write_whole(path, self.data())

    def data(self) -> bytes:
        """The file's content: rows sorted by Problem (M=200 before M=1000), one a line."""
        head = {
            "format": FORMAT,
            "kernel": self.kernel,
            "fingerprint": self.fingerprint,
            "device": self.device,
            "protocol": self.protocol,
            "soft": dict(self.soft),
        }
        lines = [f'  "{name}": {_spell(value)},' for name, value in head.items() if value or name in REQUIRED]
        rows = [f"    {_spell(p.text)}: {_spell(_entry_data(e))}" for p, e in sorted(self.rows.items(), key=_in_order)]
        return "\n".join(["{", *lines, '  "rows": {', ",\n".join(rows), "  }", "}", ""]).encode()


def spelled(soft: Mapping[str, str]) -> str:
    """Versions as one text: `python 3.11, triton 3.6.0`."""
    return ", ".join(f"{name} {version}" for name, version in sorted(soft.items()))


def _in_order(row: tuple[Problem, Entry]) -> list[tuple[str, float, str]]:
    """Numbers by their size, not by their digits: rules that take the first of two equal rows mean the smaller size."""
    return [
        (name, value if isinstance(value, (int, float)) else math.inf, str(value)) for name, value in row[0].items()
    ]


def _spell(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=True)


def _entry_data(entry: Entry) -> dict[str, Any]:
    called = None if entry.called is None else dict(entry.called)
    more = {"called": called, "median_s": entry.median_s, "provenance": dict(entry.provenance)}
    return {"config": dict(entry.config), **{name: value for name, value in more.items() if value}}


# --- reading ----------------------------------------------------------------------------------------


def _no_name_twice(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a name given twice is an error (two edits merged: which is meant?)."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is given twice")
        found[name] = value
    return found


def _table_from(data: Any, path: Path) -> tuple[NativeTable, bool]:
    """The table, and whether each of its rows makes sense."""
    if not isinstance(data, dict) or cast("dict[str, Any]", data).get("format") != FORMAT:
        raise BadInput(f'{path} is not a table: it does not begin with "format": "{FORMAT}"')
    head = cast("dict[str, Any]", data)
    for name, kind in REQUIRED.items():
        if not isinstance(head.get(name), kind):
            raise BadInput(f"{path} is not a table: {name!r} is {head.get(name)!r}, not a {kind.__name__}")
    if not isinstance(head.get("soft", {}), dict):
        raise BadInput(f"{path} is not a table: 'soft' is {head['soft']!r}, not versions by name")
    rows: dict[Problem, Entry] = {}
    bad: list[str] = []
    for text, row in cast("dict[str, Any]", head["rows"]).items():
        try:
            problem, entry = row_of(text, row)
            if problem in rows:
                raise ValueError(f"the same Problem as a row before it ({problem})")
            rows[problem] = entry
        except ValueError as error:
            bad.append(f"{text}: {error}")
    if bad:
        warnings.warn(
            f"table {path}: {len(bad)} of {len(head['rows'])} rows are left out: {'; '.join(bad[:5])}"
            + ("; …" if len(bad) > 5 else ""),
            TunesmithWarning,
            stacklevel=4,
        )
    return _table_of(head, rows, path), not bad


def _table_of(head: Mapping[str, Any], rows: Mapping[Problem, Entry], path: Path) -> NativeTable:
    versions = {str(name): str(value) for name, value in head.get("soft", {}).items()}
    fingerprint, protocol = str(head.get("fingerprint", "")), str(head.get("protocol", ""))
    return NativeTable(head["kernel"], head["device"], rows, fingerprint, protocol, versions, path)


# --- from a store -----------------------------------------------------------------------------------


class StoredChoice(Protocol):
    """A Choice as a store keeps it."""

    @property
    def choice(self) -> Choice: ...
    @property
    def soft(self) -> Mapping[str, str]: ...
    @property
    def at(self) -> str: ...


class Source(Protocol):
    """What a table is made from: a `Store`."""

    def keys(self, kernel: str | None = None) -> Sequence[Key]: ...
    def choice(self, key: Key) -> StoredChoice | None: ...


def from_store(store: Source, kernel: str, device: str) -> NativeTable:
    """The table of everything chosen for a kernel on a device.

    Of several states of the kernel (source, environment, way of measuring) the one counts that was chosen for
    last; a table never mixes two.

    Raises:
        BadInput: when nothing is known of them, naming what is.
    """
    known = [(key, stored) for key in store.keys(kernel) if (stored := store.choice(key)) is not None]
    here = [(key, stored) for key, stored in known if key.device == device]
    if not here:
        everything = store.keys()
        kernels = sorted({other.kernel for other in everything})
        devices = sorted({key.device for key, _ in known})
        raise BadInput(unknown(f"device of {kernel}", device, devices) if known else unknown("kernel", kernel, kernels))
    last, newest = max(here, key=lambda pair: pair[1].at)
    rows: dict[Problem, Entry] = {}
    for key, stored in here:
        if (key.fingerprint, key.environment, key.protocol) == (last.fingerprint, last.environment, last.protocol):
            rows[key.problem] = entry_of_choice(stored)
    return NativeTable(kernel, device, rows, last.fingerprint, last.protocol, dict(newest.soft))


def entry_of_choice(stored: StoredChoice) -> Entry:
    """The row of a stored Choice: when it was found, and for which size where it serves a bucket."""
    provenance = {"at": stored.at}
    if stored.choice.measured_at is not None:
        provenance["measured_at"] = stored.choice.measured_at.text
    return Entry(stored.choice.config, stored.choice.median_s, provenance, stored.choice.called)
