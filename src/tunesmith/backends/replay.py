"""A kernel and a clock over a Recording: what a search would do on that device, without it."""

from __future__ import annotations

import hashlib
import inspect
import keyword
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith.core.config import Config
from tunesmith.core.device import Device, known_devices
from tunesmith.core.outcome import Failed, Measured, Recording, Resources, Sample, Trial, Untried
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, CompileFailed, OutOfResources, TunesmithError
from tunesmith.kernel import Built, Run, Specialised
from tunesmith.recording import dumps


class ReplayedFailure(TunesmithError):
    """A launch that failed when it was recorded, or is made to fail."""


class ReplayedCut(OutOfResources):
    """A Config that could not be launched when it was recorded, for want of something."""

    def __init__(self, reason: str) -> None:
        TunesmithError.__init__(self, reason)


@dataclass(frozen=True)
class Disturbance:
    """What goes wrong in a replay that went well when it was recorded. All of it is drawn from the seed.

    Attributes:
        drift: launches become slower by this part, and faster again, every `drift_s` seconds of the device's time.
        outliers: this part of the samples is longer, `outlier_factor` times.
        failures: this part of the Configs fails at its first launch.
    """

    drift: float = 0.0
    drift_s: float = 1.0
    outliers: float = 0.0
    outlier_factor: float = 10.0
    failures: float = 0.0

    def __post_init__(self) -> None:
        for name in ("drift", "outliers", "failures"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(f"{name}={getattr(self, name)}; good values: a part between 0 and 1")
        for name in ("drift_s", "outlier_factor"):
            if not getattr(self, name) > 0:
                raise BadInput(f"{name}={getattr(self, name)}; good values: above 0")


class ReplayClock:
    """Answers with recorded samples: of each candidate one of each recorded round in turn, then the next ones.

    The k-th samples of two candidates were recorded in the same round, so that they can be compared as pairs. When all
    have been given they come again.

    Args:
        seconds: of each Config, its samples in the order in which they are given.
        overhead_s: of each launch: what clears the cache and puts arguments back. It is in no sample.
        warm_up: whether the first launch of each candidate is not timed.
        disturbance: what goes wrong. seed: decides what of it, and when.

    Attributes:
        spent_s: what the device would have been busy for.
    """

    protocol = "replay/1"

    def __init__(
        self,
        seconds: Mapping[Config, Sequence[float]],
        *,
        overhead_s: float = 0.0,
        warm_up: bool = False,
        disturbance: Disturbance | None = None,
        seed: int = 0,
    ) -> None:
        self._seconds, self._overhead_s, self._warm_up = seconds, overhead_s, warm_up
        self._disturbance = disturbance
        self._rng = random.Random(seed)
        self._phase = self._rng.random()
        chance = disturbance.failures if disturbance is not None else 0.0
        self._failing = {config for config in seconds if self._rng.random() < chance} if chance else set[Config]()
        self.spent_s = 0.0

    @classmethod
    def of(cls, recording: Recording, *, disturbance: Disturbance | None = None, seed: int = 0) -> ReplayClock:
        """The clock of a Recording; rounds come in an order drawn from the seed."""
        measured = {t.config: t.outcome for t in recording.trials if isinstance(t.outcome, Measured)}
        seconds = {config: _in_turn(outcome, seed) for config, outcome in measured.items()}
        return cls(seconds, disturbance=disturbance, seed=seed)

    def sample(self, run: Run) -> Sample:
        """The next recorded sample of a candidate.

        Raises:
            ReplayedFailure: where the recorded launch failed, or this one is made to.
            BadInput: for a candidate that was not recorded.
        """
        config = run.executable.config
        if run.before is not None:
            run.before()
        run()
        if config in self._failing:
            raise ReplayedFailure("made to fail")
        mine = self._seconds.get(config)
        if not mine:
            raise BadInput(f"no time was recorded of {config!r}")
        at = int(run.state.get("replayed", 0))
        run.state["replayed"] = at + 1
        seconds = mine[at % len(mine)]
        if self._disturbance is not None:
            seconds = self._disturbed(seconds, self._disturbance)
        if self._warm_up and not at:
            self.spent_s += seconds
        self.spent_s += seconds + self._overhead_s
        return Sample(seconds)

    def _disturbed(self, seconds: float, how: Disturbance) -> float:
        wave = math.sin(math.pi * (self.spent_s / how.drift_s + self._phase)) ** 2
        factor = how.outlier_factor if self._rng.random() < how.outliers else 1.0
        return seconds * (1 + how.drift * wave) * factor


def _in_turn(outcome: Measured, seed: int) -> list[float]:
    """Samples of a round each, rounds and their samples in an order that the seed alone decides."""
    rounds: dict[int, list[float]] = {}
    for sample in outcome.samples:
        rounds.setdefault(sample.round, []).append(sample.seconds)
    rng = random.Random(seed)
    order = sorted(rounds)
    rng.shuffle(order)
    for number in sorted(rounds):  # each is shuffled alike for all candidates that have as many samples of it
        random.Random(seed * 1_000_003 + number).shuffle(rounds[number])
    deepest = max(map(len, rounds.values()))
    return [rounds[number][i] for i in range(deepest) for number in order if i < len(rounds[number])]


@dataclass(frozen=True)
class _Replayed:
    """A recorded Config, ready to launch: that does nothing, or fails as it did."""

    config: Config
    resources: Resources
    launch: Callable[..., None]


class ReplayKernel:
    """A recorded kernel: what could be compiled and launched can be, what failed fails.

    Its parameters are the Problem's sizes and flags, and have the recorded values where they are not given. Fields that
    no parameter can be named by (`x.dtype`) are as recorded.

    >>> from tunesmith.core.outcome import Measured, Recording, Sample, Trial
    >>> trial = Trial(Config(BLOCK=64), Measured((Sample(1e-3, 0, 0),)))
    >>> kernel = ReplayKernel(Recording("scale", "NVIDIA H200", Problem({"n": 8}), (trial,)))
    >>> kernel.signature, kernel.configs
    (<Signature (n=8)>, (Config(BLOCK=64),))
    """

    backend = "replay"
    specialised = Specialised()
    per_problem = False

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._trials = {t.config: t for t in recording.trials if not isinstance(t.outcome, Untried)}
        if not self._trials:
            raise BadInput(f"the recording of {recording.kernel}({recording.problem}) has no trial")
        self.name = recording.kernel
        self.signature = inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value)
                for name, value in recording.problem.items()
                if name.isidentifier() and not keyword.iskeyword(name)
            ]
        )
        self._device = next(
            (known for known in known_devices() if known.name == recording.device),
            Device("cuda", recording.device or "unknown", "recorded", 1),
        )

    @property
    def key(self) -> tuple[str, ...]:
        """The parameters' names, for `autotune(key=…)`."""
        return tuple(self.signature.parameters)

    @property
    def configs(self) -> tuple[Config, ...]:
        """The recorded Configs, in the Space's order."""
        return tuple(self._trials)

    @property
    def knobs(self) -> frozenset[str] | None:
        return frozenset(next(iter(self._trials)))

    def fingerprint(self) -> str:
        return hashlib.sha256(dumps(self._recording).encode()).hexdigest()

    def environment(self) -> Mapping[str, str]:
        return {}

    def versions(self) -> Mapping[str, str]:
        return {}

    def device(self, args: Sequence[Any]) -> Device:
        """The device that was recorded on; one that is not known is taken for a GPU."""
        return self._device

    def for_call(self, args: Sequence[Any]) -> ReplayKernel:
        return self

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {}

    def compile_job(self, config: Config, problem: Problem, device: Device) -> None:
        return None

    def load(self, config: Config, problem: Problem, built: Built | None) -> _Replayed:
        """A recorded Config.

        Raises:
            CompileFailed, OutOfResources: as when it was recorded.
            BadInput: for a Config or a Problem that was not.
        """
        if problem != Problem({name: self._recording.problem[name] for name in self.key}):
            raise BadInput(f"{self.name} was recorded for {self._recording.problem}, not for {problem}")
        trial = self._trials.get(config)
        if trial is None:
            raise BadInput(f"{config!r} was not recorded of {self.name}({problem})")
        return _Replayed(config, trial.resources, _launch_of(trial))


def _launch_of(trial: Trial) -> Callable[..., None]:
    outcome = trial.outcome
    if not isinstance(outcome, Failed):
        return _nothing
    if outcome.stage == "compile":
        raise CompileFailed(outcome.reason, outcome.detail)
    if outcome.stage == "cut":
        raise ReplayedCut(outcome.reason)

    def fail(*args: Any) -> None:
        raise ReplayedFailure(outcome.reason)

    return fail


def _nothing(*args: Any) -> None:
    pass
