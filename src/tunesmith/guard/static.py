"""What can be found wrong with kernels, tables and stores without a device: what CI runs on each change."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tunesmith import recording
from tunesmith.core.config import Config
from tunesmith.core.device import Device, known_devices
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import BadInput, MissingEngine, TunesmithError, TunesmithWarning
from tunesmith.guard.sides import entries, kind_of
from tunesmith.kernel import missing
from tunesmith.measure.failure import attempt
from tunesmith.store import exchange
from tunesmith.tables import NativeTable, native
from tunesmith.tables import check as table_check

if TYPE_CHECKING:
    from tunesmith.tuned import TunedKernel


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, or (`fault` false) something that was not looked at or that a reader should know.

    Attributes:
        where: a file, or a kernel.
        what: what is wrong, naming the row.
        fault: whether the guard fails for it.
    """

    where: str
    what: str
    fault: bool = True


@dataclass(frozen=True, slots=True)
class Stored:
    """One row of a table or a store, for the checks that all formats share.

    Attributes:
        problem: what was measured, where the row stands for a bucket.
        history: whether rows of earlier sources are kept beside it, which no call uses.
        called: what calls outside of a CUDA graph use, where that is another one.
    """

    kernel: str
    problem: Problem
    device: str
    config: Config
    fingerprint: str = ""
    soft: Mapping[str, str] = field(default_factory=dict[str, str])
    resources: Resources = field(default_factory=Resources)
    history: bool = False
    called: Config | None = None


def check(
    kernels: Sequence[TunedKernel], files: Sequence[Path], *, allow_search: bool = False
) -> tuple[list[Finding], int]:  # fmt: skip
    """Look at kernels, and at tables and stores of theirs. Nothing is launched, and no device is needed.

    Args:
        allow_search: a kernel that tunes itself where nothing is known is no fault.

    Returns:
        What was found, and how many rows were checked against a kernel.
    """
    by_name = {kernel.declared.name_for(kernel.kernel.name): kernel for kernel in kernels}
    found = [finding for name, kernel in by_name.items() for finding in _of_kernel(name, kernel, allow_search)]
    checked, others = 0, list[Path]()
    for path in _files(files):
        rows = _read(path, found, others)
        checked += sum(row.kernel in by_name for row in rows)
        found += _of_rows(str(path), rows, by_name)
    return [*found, *_of_others(others, [path for path in files if path.is_dir()])], checked


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """The paths, folders replaced by what may be a table or a store in them."""
    for path in paths:
        if path.is_dir():
            yield from sorted(p for p in path.rglob("*") if p.name.endswith((".json", ".json.gz", ".csv", ".sqlite")))
        else:
            yield path


# --- kernels -----------------------------------------------------------------------------------------


def _of_kernel(name: str, kernel: TunedKernel, allow_search: bool) -> Iterator[Finding]:
    policy = kernel.declared.policy or "search"
    if policy == "search" and not allow_search:
        yield Finding(name, 'it tunes itself where nothing is known: write policy="lookup" in its autotune')
    _, failure, error = attempt("load", kernel.fingerprint)
    if failure is not None:
        yield Finding(name, f"its source cannot be identified: {error or failure.reason}")


# --- files -------------------------------------------------------------------------------------------


def _read(path: Path, found: list[Finding], others: list[Path]) -> list[Stored]:
    """The rows of a file of ours; what is wrong with it is added to what was found, one of no format of ours to the
    others."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", TunesmithWarning)
        try:
            reader = READERS.get(kind_of(path))
            if reader is None:
                others.append(path)
                return []
            rows = reader(path)
        except BadInput as error:
            found.append(Finding(str(path), str(error)))
            return []
    found += [Finding(str(path), str(one.message)) for one in heard if issubclass(one.category, TunesmithWarning)]
    if not rows:
        found.append(Finding(str(path), "it has no rows"))
    return rows


def _of_others(files: Sequence[Path], folders: Sequence[Path]) -> Iterator[Finding]:
    """What `tunesmith table check` finds in tables of other engines and tuners."""
    report = table_check.check(files, among_others=True)
    for one in [*report.findings, *(finding for folder in folders for finding in table_check.bad_folders(folder))]:
        where = f"{one.path}:{one.line}" if one.line else str(one.path)
        yield Finding(where, f"{one.message} [{one.code}]", fault=one.severity == "error")
    for path, why in report.passed_over:
        yield Finding(str(path), f"not read: {why}", fault=False)


def _of_table(path: Path) -> list[Stored]:
    table = NativeTable.read(path)
    return [
        Stored(
            table.kernel,
            Problem.parse(row.provenance.get("measured_at", problem.text)),
            table.device,
            row.config,
            table.of_row(row)[0],
            table.soft,
            called=row.called,
        )
        for problem, row in table.rows.items()
    ]


def _of_store(path: Path) -> list[Stored]:
    """The Choices that are stored; their keys of earlier sources are history, and no fault."""
    rows: list[Stored] = []
    for entry in entries(path):
        if entry.choice is not None:
            choice, key = entry.choice.choice, entry.key
            resources = next((t.resources for t in reversed(entry.history) if t.config == choice.config), Resources())
            rows.append(Stored(
                key.kernel, choice.measured_at or key.problem, key.device, choice.config, key.fingerprint,
                entry.choice.soft, resources, history=True, called=choice.called,
            ))  # fmt: skip
    return rows


def _of_recording(path: Path) -> list[Stored]:
    """A recording has no row that is used: it is read, to see that it can be."""
    found = recording.load(path)
    return [Stored("", found.problem, found.device, trial.config) for trial in found.trials[:1]]


#: format → its rows. A reader raises BadInput for a file that can't be used, and warns of rows that can't.
READERS: Mapping[str, Callable[[Path], list[Stored]]] = {
    "store": _of_store,
    exchange.FORMAT: _of_store,
    native.FORMAT: _of_table,
    recording.FORMAT: _of_recording,
}


# --- rows --------------------------------------------------------------------------------------------


def _of_rows(path: str, rows: Sequence[Stored], kernels: Mapping[str, TunedKernel]) -> Iterator[Finding]:
    for name in dict.fromkeys(row.kernel for row in rows):
        mine = [row for row in rows if row.kernel == name]
        if name in kernels:
            yield from _of_kernels_rows(path, kernels[name], mine)
        elif name:
            yield Finding(path, f"{len(mine)} rows of {name} were not checked: give its file too", fault=False)


def _of_kernels_rows(path: str, kernel: TunedKernel, rows: Sequence[Stored]) -> Iterator[Finding]:
    now, failure, _ = attempt("load", kernel.fingerprint)
    if now is None or failure is not None:
        return  # said of the kernel
    now += kernel.declared.spec_fingerprint
    name, history = rows[0].kernel, rows[0].history
    for fingerprint in dict.fromkeys(row.fingerprint for row in rows):
        count = sum(row.fingerprint == fingerprint for row in rows)
        if not fingerprint:
            yield Finding(path, f"{count} rows of {name} do not say for which source they were made", fault=False)
        elif fingerprint != now:
            what = f"{count} rows of {name} were made for another source ({fingerprint}, now {now})"
            hint = "no call uses them" if history else "tune again, and write the table anew"
            yield Finding(path, f"{what}: {hint}", fault=not history)
    current = [row for row in rows if row.fingerprint in ("", now)] if history else rows
    for row in current:
        yield from _of_row(path, kernel, row)
    versions = _versions(kernel)
    for soft in {tuple(sorted(row.soft.items())) for row in current}:
        was = [f"{n}: {versions[n]}, was {v}" for n, v in soft if n in versions and versions[n] != v]
        if was:
            yield Finding(path, f"rows of {name} were found under other versions ({'; '.join(was)})", fault=False)


def _versions(kernel: TunedKernel) -> Mapping[str, str]:
    """Those at hand; none where the language is not installed."""
    try:
        return attempt("load", kernel.kernel.versions)[0] or {}
    except MissingEngine:
        return {}


def _of_row(path: str, kernel: TunedKernel, row: Stored) -> Iterator[Finding]:
    where = f"{row.kernel}({row.problem}) on {row.device}"
    device, failure, error = attempt("load", lambda: device_of(row.device))
    if device is None:
        yield Finding(path, f"{where}: {error or failure}")
        return
    space, failure, error = attempt("load", lambda: kernel.declared.space_for(row.problem, device))
    if space is None:
        yield Finding(path, f"{where}: its Space cannot be made: {_said(error)}")
        return
    for config in [row.config] if row.called is None else [row.config, row.called]:
        fault = _fault(space, config)
        lacking = fault and missing(kernel.kernel, config)
        if lacking:
            yield Finding(path, f"{where}: {config!r} was not checked: {lacking}", fault=False)
        elif fault:
            yield Finding(path, f"{where}: {config!r} is refused by the kernel's Space: {fault}")
    limit, needs = device.shared_bytes_per_block, row.resources.shared_bytes
    if limit and needs and needs > limit:
        yield Finding(path, f"{where}: {row.config!r} needs {needs} bytes of shared memory, limit {limit}")


def _fault(space: Space, config: Config) -> str | None:
    found, failure, error = attempt("load", lambda: space.fault(config) or "")
    return f"a constraint failed: {_said(error)}" if failure is not None else found


def _said(error: BaseException | None) -> str:
    return str(error) if isinstance(error, TunesmithError) else f"{type(error).__name__}: {error}"


def device_of(identity: str) -> Device:
    """The chip of an identity (`cuda:NVIDIA H200:sm_90:132`), with all that is known of it.

    Raises:
        BadInput: for text that is no identity.
    """
    known = next((device for device in known_devices() if identity in (device.identity, device.name)), None)
    if known is not None:
        return known
    kind, _, rest = identity.partition(":")
    parts = rest.rsplit(":", 2)
    if len(parts) != 3 or not parts[2].isdecimal():
        raise BadInput(f"{identity!r} is no device; good ones: KIND:NAME:ARCH:UNITS, as cuda:NVIDIA H200:sm_90:132")
    return Device(kind, parts[0], parts[1], int(parts[2]))
