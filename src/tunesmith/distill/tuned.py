"""`Tuned`: what each Config loses on one tuned problem; from recordings, a store and tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunesmith.core.config import Config
from tunesmith.core.device import known_devices
from tunesmith.core.key import Key
from tunesmith.core.outcome import Measured, Recording, Trial
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, unknown
from tunesmith.measure.pick import pick
from tunesmith.recording import FORMAT as RECORDING
from tunesmith.recording import load as load_recording
from tunesmith.recording import read_json
from tunesmith.refresh import side_by_side
from tunesmith.store import Store
from tunesmith.tables.native import FORMAT as TABLE
from tunesmith.tables.native import NativeTable


@dataclass(frozen=True)
class Tuned:
    """One problem.

    Attributes:
        losses: of each Config that ran, the part by which it takes longer than the best: 0.03 for 3 %.
        seconds: their medians.
        doubt: above 0 where a model expects the losses, and nothing was measured: they may be less by so much.
    """

    problem: Problem
    losses: Mapping[Config, float]
    seconds: Mapping[Config, float] = field(default_factory=dict[Config, float])
    doubt: float = 0.0

    def loss(self, config: Config) -> float:
        """What a Config loses; infinite where it was not measured, or failed."""
        return self.losses.get(config, math.inf)

    def surely(self, config: Config) -> float:
        """What it loses beyond doubt."""
        return max(0.0, self.loss(config) - self.doubt)


@dataclass(frozen=True)
class Collection:
    """Many problems of one kernel on one device, and what they were found under.

    Attributes:
        left_out: what was not taken, as it was found under something else, in words.
    """

    kernel: str
    device: str
    tuned: tuple[Tuned, ...]
    fingerprint: str = ""
    protocol: str = ""
    soft: Mapping[str, str] = field(default_factory=dict[str, str])
    left_out: str = ""


def tuned_of(problem: Problem, trials: Sequence[Trial]) -> Tuned | None:
    """The losses of a problem's Trials, `None` where none ran.

    A Config is compared with the best by the rounds that both were in; by the medians, where they share none.
    """
    verdict = pick(trials, how="fastest")
    if verdict is None:
        return None
    best = verdict.winner
    assert isinstance(best.outcome, Measured)
    losses: dict[Config, float] = {}
    seconds: dict[Config, float] = {}
    for trial in trials:
        if isinstance(trial.outcome, Measured):
            paired = side_by_side(trial, best)
            levels = trial.outcome.median_s / trial.drift, best.outcome.median_s / best.drift
            ratio = levels[0] / levels[1] if paired is None else paired
            losses[trial.config], seconds[trial.config] = max(0.0, ratio - 1), trial.outcome.median_s
    losses[best.config] = 0.0
    return Tuned(problem, losses, seconds)


def of_store(store: Store, kernel: str, device: str = "") -> Collection:
    """What is stored of a kernel, in the state in which it was tuned last: of one source, environment and way of
    measuring, under the same versions. `left_out` says what is there besides.

    Args:
        device: `Device.identity`; needed where there are several.

    Raises:
        BadInput: when nothing is stored of it, or of several devices.
    """
    stored = [(key, choice) for key in store.keys(kernel) if (choice := store.choice(key)) is not None]
    devices = sorted({key.device for key, _ in stored})
    if not devices:
        every = store.keys()
        raise BadInput(unknown("kernel", kernel, sorted({key.kernel for key in every})) + "; or give files")
    if device and device not in devices:
        raise BadInput(unknown(f"device of {kernel}", device, devices))
    if len(devices) > 1 and not device:
        raise BadInput(f"{kernel} is stored for several devices: give one, --device {' or '.join(map(repr, devices))}")
    here = [(replace(key, soft=choice.soft), choice) for key, choice in stored if key.device == (device or devices[0])]
    last, _ = max(here, key=lambda pair: pair[1].at)
    others = Counter(why for key, _ in here if (why := _another_state(key, last)))
    found = [
        tuned_of(choice.choice.measured_at or key.problem, [t for t in store.trials(key) if _found_so(t, last)])
        for key, choice in here if not _another_state(key, last)
    ]  # fmt: skip
    left_out = "; ".join(f"{count} × {why}" for why, count in others.items())
    tuned = tuple(one for one in found if one is not None)
    return Collection(kernel, last.device, tuned, last.fingerprint, last.protocol, last.soft, left_out)


def _another_state(key: Key, last: Key) -> str:
    """In what a Key's state differs from that of the one chosen last, in words; empty where it does not."""
    same_problem = replace(key, problem=last.problem)
    return ", ".join([*last.differences(same_problem), *last.stale(key.soft)])


def _found_so(trial: Trial, key: Key) -> bool:
    """Whether a Trial is of a Key's versions; an older store does not say."""
    return not trial.soft or not key.stale(trial.soft)


def of_recording(recording: Recording) -> Collection:
    """A recorded problem.

    Raises:
        BadInput: where none of its Configs ran.
    """
    tuned = tuned_of(recording.problem, recording.trials)
    if tuned is None:
        raise BadInput(f"the recording of {recording.kernel}({recording.problem}) has no Config that ran")
    known = {device.name: device.identity for device in known_devices()}
    return Collection(recording.kernel, known.get(recording.device, recording.device), (tuned,))


def of_table(table: NativeTable) -> Collection:
    """A table: of each problem only the Config that was best is known."""
    tuned = tuple(
        Tuned(problem, {row.config: 0.0}, {} if row.median_s is None else {row.config: row.median_s})
        for problem, row in table.rows.items()
    )
    return Collection(table.kernel, table.device, tuned, table.fingerprint, table.protocol, table.soft)


def of_file(path: Path) -> Collection:
    """A recording, or a table of ours.

    Raises:
        BadInput: naming the file, for anything else.
    """
    format = read_json(path).get("format")
    if format == RECORDING:
        return of_recording(load_recording(path))
    if format == TABLE:
        return of_table(NativeTable.read(path))
    raise BadInput(
        f"{path} is neither a recording nor a table of ours; good values of its format: {RECORDING}, {TABLE}"
    )


def together(parts: Iterable[Collection]) -> Collection:
    """Several as one. Of a problem that is there several times, the one of which most Configs are known counts.

    Raises:
        BadInput: for none, and for several kernels or devices.
    """
    found = list(parts)
    for what in ("kernel", "device"):
        names = sorted({str(getattr(one, what)) for one in found})
        if len(names) != 1:
            raise BadInput(f"a table is of one {what}; these are of {', '.join(map(repr, names)) or 'none'}")
    best: dict[Problem, Tuned] = {}
    for one in (tuned for part in found for tuned in part.tuned):
        if one.problem not in best or len(one.losses) > len(best[one.problem].losses):
            best[one.problem] = one
    same = {(part.fingerprint, part.protocol, tuple(sorted(part.soft.items()))) for part in found}
    fingerprint, protocol, soft = same.pop() if len(same) == 1 else ("", "", ())
    return Collection(found[0].kernel, found[0].device, tuple(best.values()), fingerprint, protocol, dict(soft))
