"""BASE and NEW of `tunesmith guard`: recordings, stores and tables, read into what each says of each problem."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from tunesmith import recording
from tunesmith.core.config import Config
from tunesmith.core.outcome import Measured, Recording, Trial
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, StoreError, TunesmithWarning
from tunesmith.guard import others
from tunesmith.guard.rule import Judgement, Limits, Pair, judge
from tunesmith.measure.pick import pick
from tunesmith.store import exchange
from tunesmith.tables import NativeTable, formats, native

#: (kernel, Problem)
Name: TypeAlias = "tuple[str, Problem]"
_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Timed:
    """What one side says of one problem.

    Attributes:
        device: `Device.identity`, or its name alone where no more is known.
        protocol: how it was timed; empty where that is not known.
        seconds: samples in the order they were taken; of a table the median alone, or nothing.
        sampled: whether these are samples.
        at: when, ISO 8601; of several of one problem the latest counts.
    """

    kernel: str
    problem: Problem
    device: str
    protocol: str
    config: Config
    seconds: tuple[float, ...]
    sampled: bool = True
    at: str = ""

    @property
    def chip(self) -> str:
        """The device's name: all that a recording knows of it."""
        kind, colon, rest = self.device.partition(":")
        return rest.partition(":")[0] if colon and kind in ("cuda", "hip", "cpu") else self.device


@dataclass(frozen=True, slots=True)
class Refused:
    """A problem that both sides know and that can't be compared."""

    why: str


@dataclass(frozen=True)
class Sides:
    """Two sides, compared.

    Attributes:
        judgement: of the problems that both have.
        base, new: what was compared, by problem.
        refused: problems that both sides know and that were not compared, and why.
        only_base, only_new: problems of one side.
    """

    judgement: Judgement[Name]
    base: Mapping[Name, Timed]
    new: Mapping[Name, Timed]
    refused: Mapping[Name, Refused]
    only_base: Sequence[Name]
    only_new: Sequence[Name]


def compare(
    base: Sequence[Timed], new: Sequence[Timed], limits: Limits, *, drift: bool = True, spread: float | None = None
) -> Sides:
    """Compare what two sides say of the same problems on the same device.

    Args:
        spread: how much a table's time may be off, as a part of it; without it such times tell nothing.
    """
    known, wanted = _by_name(base), _by_name(new)
    pairs: dict[Name, tuple[Timed, Timed]] = {}
    refused: dict[Name, Refused] = {}
    for name in known.keys() & wanted.keys():
        found = _match(known[name], wanted[name])
        if isinstance(found, Refused):
            refused[name] = found
        else:
            pairs[name] = found
    order = sorted(pairs, key=_text)
    seconds = {n: Pair(pairs[n][0].seconds, pairs[n][1].seconds, spread=_spread(pairs[n], spread)) for n in order}
    judged = judge(seconds, limits, drift=drift)
    bare = [n for n in order if _spread(pairs[n], 1.0) is not None and spread is None]
    rows = {**judged.rows, **{n: replace(judged.rows[n], why=ONE_TIME) for n in bare}}
    return Sides(
        replace(judged, rows=rows), {n: pairs[n][0] for n in order}, {n: pairs[n][1] for n in order},
        {n: refused[n] for n in sorted(refused, key=_text)},
        sorted(known.keys() - wanted.keys(), key=_text), sorted(wanted.keys() - known.keys(), key=_text),
    )  # fmt: skip


def _text(name: Name) -> tuple[str, str]:
    return name[0], name[1].text


#: why nothing can be told of a table's time
ONE_TIME = "a table has one time and no samples; say how far off it may be, as --spread 0.03"


def _spread(pair: tuple[Timed, Timed], spread: float | None) -> float | None:
    return None if all(side.sampled for side in pair) else spread


def _by_name(rows: Sequence[Timed]) -> dict[Name, dict[str, Timed]]:
    """Problem → chip → what is said; of several the latest."""
    found: dict[Name, dict[str, Timed]] = {}
    for row in sorted(rows, key=lambda row: row.at):
        found.setdefault((row.kernel, row.problem), {})[row.chip] = row
    return found


def _match(base: Mapping[str, Timed], new: Mapping[str, Timed]) -> tuple[Timed, Timed] | Refused:
    """The two that can be compared: of one device, timed in one way."""
    chips = sorted(base.keys() & new.keys())
    if not chips:
        return Refused(f"BASE is of {', '.join(sorted(base))}, NEW of {', '.join(sorted(new))}: another device")
    before, after = base[chips[0]], new[chips[0]]
    whole = {before.device, after.device} - {before.chip}
    if len(whole) > 1:
        return Refused(f"BASE is of {before.device}, NEW of {after.device}: another device")
    if before.protocol and after.protocol and before.protocol != after.protocol:
        return Refused(f"BASE was timed by {before.protocol}, NEW by {after.protocol}: another way of timing")
    if not before.seconds or not after.seconds:
        return Refused(f"{'NEW' if before.seconds else 'BASE'} has no time of it")
    return before, after


# --- reading -----------------------------------------------------------------------------------------


def read(path: Path, called: str = "") -> list[Timed]:
    """What a recording, a store, an export of one, a table of any format, or a folder of these says.

    Args:
        called: a kernel that its table does not name; of a folder's files, that is the file's name.

    Raises:
        BadInput: naming the file and what is wrong with it.
    """
    if path.is_dir():
        files = [file for ending in ("sqlite", "json", "json.gz", "csv") for file in sorted(path.glob(f"*.{ending}"))]
        rows = [row for file in files for row in read(file, file.name.partition(".")[0])]
        if not files:
            raise BadInput(f"{path} has no recording, store or table in it (*.json, *.json.gz, *.csv, *.sqlite)")
        return rows
    kind = kind_of(path)
    if kind in ("store", exchange.FORMAT):
        return list(_of_store(path))
    if kind == recording.FORMAT:
        return list(_of_recording(recording.load(path)))
    if kind == native.FORMAT:
        return list(_of_table(NativeTable.read(path)))
    try:
        found = list(others.fastest(path, called))
    except formats.UnknownFormat:
        raise BadInput(
            f"{path} is of the format {kind or '(none)'}; good ones: a store, {exchange.FORMAT}, {recording.FORMAT}, "
            f"{native.FORMAT}, a table of another engine or tuner with times"
        ) from None
    return [
        Timed(kernel, problem, device, "", config, (seconds,), sampled=False)
        for kernel, problem, device, config, seconds in found
    ]


def kind_of(path: Path) -> str:
    """`store` for a store's file, else what stands in `format` of a JSON object; empty where nothing does, and of a
    CSV file.

    Raises:
        BadInput: for a file that can't be read, or is none of these.
    """
    try:
        with open(path, "rb") as file:
            if file.read(len(_SQLITE)) == _SQLITE:
                return "store"
    except FileNotFoundError:
        raise BadInput(f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from error
    value: Any = None if path.suffix == ".csv" else recording.read_any_json(path)
    return str(cast("dict[str, Any]", value).get("format", "")) if isinstance(value, dict) else ""


def _of_store(path: Path) -> Iterator[Timed]:
    """The Choices of a store's file, with the samples of the Trials they were made of."""
    for entry in entries(path):
        if entry.choice is None:
            continue
        key, choice = entry.key, entry.choice.choice
        latest = {trial.config: trial for trial in entry.history if isinstance(trial.outcome, Measured)}
        trial = latest.get(choice.config)
        samples = _seconds(trial) if trial is not None else ()
        median = () if choice.median_s is None else (choice.median_s,)
        yield Timed(
            key.kernel, key.problem, key.device, key.protocol, choice.config, samples or median, bool(samples),
            entry.choice.at,
        )  # fmt: skip


def entries(path: Path) -> list[exchange.Entry]:
    """All of a store's file or an export.

    Raises:
        BadInput: naming the file and what is wrong with it.
    """

    def bad(what: str) -> None:
        warnings.warn(f"{path}: {what}; such rows are skipped", TunesmithWarning, stacklevel=2)

    try:
        return exchange.read(path, bad)
    except StoreError as error:
        raise BadInput(str(error)) from error


def _of_recording(found: Recording) -> Iterator[Timed]:
    """What would be picked of a recording."""
    verdict = pick(found.trials, how="fastest")
    if verdict is not None:
        winner = verdict.winner
        protocol = found.protocol.partition(":")[0]
        yield Timed(
            found.kernel, found.problem, found.device, protocol, winner.config, _seconds(winner),
            at=found.meta.get("at", ""),
        )  # fmt: skip


def _of_table(table: NativeTable) -> Iterator[Timed]:
    for problem, row in table.rows.items():
        seconds = () if row.median_s is None else (row.median_s,)
        _, protocol, _ = table.of_row(row)
        yield Timed(table.kernel, problem, table.device, protocol, row.config, seconds, sampled=False)


def _seconds(trial: Trial) -> tuple[float, ...]:
    """A Trial's samples by round, as far as they belong to one."""
    assert isinstance(trial.outcome, Measured)
    samples = trial.outcome.samples
    in_rounds = [sample for sample in samples if sample.round >= 0] or list(samples)
    return tuple(sample.seconds for sample in in_rounds)
