"""What is known of other Problems, for a search that starts from them: from the store, tables and recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tunesmith.core.config import Config
from tunesmith.core.device import Device, device_of, known_devices
from tunesmith.core.model import Model
from tunesmith.core.outcome import Measured, Recording, Trial
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.recording import FORMAT as RECORDING
from tunesmith.recording import load as load_recording
from tunesmith.recording import read_json
from tunesmith.search import Prior, Solved, nearest
from tunesmith.store import Store
from tunesmith.subject import Subject
from tunesmith.tables.native import FORMAT as TABLE
from tunesmith.tables.native import NativeTable

#: So many of the store's nearest Problems are read: each further one says less, and takes as long to read.
NEAREST = 8


def neighbours(subject: Subject, store: Store, more: Sequence[Solved] = ()) -> list[Solved]:
    """Solved Problems of the same kernel's source, measured alike, on any device, the nearest first.

    Args:
        more: from elsewhere.
    """
    found: list[Solved] = []
    for other in store.near(subject.key, 2 * NEAREST, anywhere=True, alike=True):
        if len(found) == NEAREST:
            break
        stored = store.choice(other)
        seconds, samples = seconds_of(store.trials(other))
        if stored is None or not seconds:
            continue
        problem = stored.choice.measured_at or other.problem
        chosen = stored.choice.config if stored.choice.config in seconds else None
        found.append(Solved(problem, seconds, other.device, None, samples, chosen))
    ordered = nearest(subject.exact, subject.device.identity, [*found, *more])
    return [with_prior(solved, subject.model) for solved in ordered]


def with_prior(solved: Solved, model: Model | None) -> Solved:
    """The same with what a model says of its Configs, where it has not got that and the device is known."""
    device = device_of(solved.device)
    if solved.prior is not None or model is None or device is None:
        return solved
    return replace(solved, prior=prior_of(model, solved.problem, device))


def prior_of(model: Model, problem: Problem, device: Device) -> Prior | None:
    """What a model says of a Config in seconds; `None` for a Problem that it can't be asked of, and a chip too little
    known."""

    def prior(config: Config) -> float | None:
        try:
            found = model.predict(problem, config, device)
        except BadInput:  # a Config of another Space, without the model's knobs
            return None
        return None if found is None or found.cut else found.seconds

    return prior


def seconds_of(trials: Sequence[Trial]) -> tuple[dict[Config, float], int]:
    """(seconds of what was measured, as they can be compared, how many samples that took)."""
    seconds = {trial.config: level for trial in trials if (level := trial.level_s) is not None}
    return seconds, sum(len(trial.outcome.samples) for trial in trials if isinstance(trial.outcome, Measured))


def saved(problem: Problem, device: str, near: Sequence[Solved], trials: Sequence[Trial]) -> str:
    """What a search spent that started from others, and what one of them did, in words; empty where nothing was timed.

    Args:
        trials: of the search.
    """
    spent = seconds_of(trials)[1]
    if not near or not spent:
        return ""
    first, most = nearest(problem, device, near)[0], max(solved.samples for solved in near)
    where = "" if first.device == device else f" on {first.device}"
    others = f" and {len(near) - 1} more" if len(near) > 1 else ""
    instead = f", where one of them had taken {most}" if most > spent else ""
    return f"started from {first.problem}{where}{others}: {len(trials)} Configs and {spent} samples{instead}"


# --- from files --------------------------------------------------------------------------------------


def known_from(sources: Sequence[str | Path | Solved], kernel: str) -> list[Solved]:
    """Solved Problems, and those of files.

    Raises:
        BadInput: naming a file that can't be used.
    """
    return [s for one in sources for s in ([one] if isinstance(one, Solved) else from_file(Path(one), kernel))]


def from_file(path: Path, kernel: str) -> list[Solved]:
    """What one of our tables, or a recording, knows of a kernel.

    Raises:
        BadInput: naming the file, for one that is neither, or of another kernel.
    """
    format = read_json(path).get("format")
    if format == TABLE:
        table = NativeTable.read(path)
        name, found = table.kernel, from_table(table)
    elif format == RECORDING:
        recording = load_recording(path)
        name, found = recording.kernel, [from_recording(recording)]
    else:
        raise BadInput(
            f"{path} is neither a table of ours nor a recording; good values of its format: {TABLE} (a table of an "
            f"engine becomes one by `tunesmith table import`), {RECORDING}"
        )
    if name != kernel:
        raise BadInput(f"{path} is of kernel {name!r}, not of {kernel!r}")
    return found


def from_table(table: NativeTable) -> list[Solved]:
    """The rows of a table, of any device: of each Problem its Config alone; one second where the row has no time."""
    return [
        Solved(problem, {entry.config: entry.median_s or 1.0}, table.device, chosen=entry.config)
        for problem, entry in table.rows.items()
    ]


def from_recording(recording: Recording) -> Solved:
    """A recorded Problem."""
    seconds, samples = seconds_of(recording.trials)
    if not seconds:
        raise BadInput(f"the recording of {recording.kernel}({recording.problem}) has no Config that ran")
    devices: Mapping[str, str] = {device.name: device.identity for device in known_devices()}
    return Solved(recording.problem, seconds, devices.get(recording.device, recording.device), samples=samples)
