"""What the performance model says of each Config of a problem, and the ceilings of the chip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.model import Model, Prediction, Work
from tunesmith.core.outcome import Trial
from tunesmith.core.problem import Problem
from tunesmith.measure.failure import attempt


@dataclass(frozen=True, slots=True)
class Point:
    """A Config as the model sees it.

    Attributes:
        flops: of the whole launch, of full tiles.
    """

    prediction: Prediction
    flops: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the chip can do at most: FLOP/s of the dtype, bytes/s of memory and of the L2 to all units."""

    dtype: str
    peak: float
    bandwidth: float
    l2_bandwidth: float


@dataclass(frozen=True)
class Predicted:
    """Of each Config that the model knows something of, a Point; or why there is none."""

    points: Mapping[Config, Point] = field(default_factory=dict[Config, Point])
    ceilings: Ceilings | None = None
    device: Device | None = None
    why: str = ""


def predicted(model: Model, problem: Problem, device: Device | None, trials: Sequence[Trial]) -> Predicted:
    """What a model says of the Trials' Configs: by the compiled kernel's resources where they are known."""
    if device is None:
        return Predicted(why="the model knows too little of this device: its bandwidth and peaks are in no table")
    points = dict[Config, Point]()
    dtype, why = "", ""
    for trial in trials:
        made, failure, _ = attempt("launch", lambda t=trial: _point(model, problem, t, device))
        if failure is not None:
            why = f"the model says nothing of this problem: {failure.reason}"
            break
        if made is None:
            return Predicted(why=f"the model knows too little of {device.name}: its limits, bandwidth and peaks")
        points[trial.config], dtype = made
    if why or not points:
        return Predicted(why=why or "nothing was tried")
    known = model.constants
    vector = not any(point.flops for point in points.values())
    ceilings = Ceilings(
        "float32" if vector else dtype,
        device.peak.get("float32" if vector else dtype, device.peak.get("float32", 0.0)),
        device.bandwidth,
        known.port_bytes_s * device.units,
    )
    return Predicted(points, ceilings, device)


def _point(model: Model, problem: Problem, trial: Trial, device: Device) -> tuple[Point, str] | None:
    found = model.predict(problem, trial.config, device, trial.resources)
    if found is None:
        return None
    work: Work = model.work(problem, trial.config)
    return Point(found, work.blocks * work.steps * (work.flops or work.operations)), work.dtype
