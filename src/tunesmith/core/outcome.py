"""What became of a Config (`Measured`, `Failed`, `Untried`), the `Trial` that says so, the `Choice` made of Trials."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias, cast, get_args

from tunesmith.core import stats
from tunesmith.core.config import Config
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, unknown

Stage: TypeAlias = Literal["cut", "compile", "load", "launch", "timeout", "crash", "wrong"]
STAGES: tuple[str, ...] = get_args(Stage)

Track: TypeAlias = Literal["default", "lookup", "search"]
TRACKS: tuple[str, ...] = get_args(Track)


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed stretch.

    Attributes:
        seconds: the time of one launch.
        round: which pass over all candidates it belongs to, from 0; -1 where it belongs to none, or is not known.
        order: its place within the round, from 0; -1 as for the round.
        clock_hz: the device's clock at the time, where it can be read.
    """

    seconds: float
    round: int = -1
    order: int = -1
    clock_hz: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise BadInput(f"a sample of {self.seconds!r} seconds: a duration is finite and above 0")


@dataclass(frozen=True, slots=True)
class Measured:
    """It ran, this long."""

    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise BadInput("a measured Outcome needs at least one sample")

    @property
    def samples_s(self) -> tuple[float, ...]:
        """Seconds of one launch, in the order they were taken."""
        return tuple(sample.seconds for sample in self.samples)

    @property
    def median_s(self) -> float:
        return stats.median(self.samples_s)

    @property
    def spread_s(self) -> tuple[float, float]:
        """The 20th and the 80th percentile."""
        return stats.quantile(self.samples_s, 0.2), stats.quantile(self.samples_s, 0.8)


@dataclass(frozen=True, slots=True)
class Failed:
    """It did not work, where and why.

    Attributes:
        stage: `cut` by compiled facts, `compile`, `load`, `launch`, `timeout`, `crash`, or `wrong` result.
        reason: one line that starts with the kind of error, for counting and for people.
        detail: the whole message, where there is more (a compiler's output).
    """

    stage: Stage
    reason: str
    detail: str = ""

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise BadInput(unknown("stage", self.stage, STAGES))

    @property
    def kind(self) -> str:
        """What failures that are counted as one have in common: for want of the same thing, whatever each Config
        needed of it; in the same output, wherever and however far.

        >>> Failed("wrong", "y, row 17, at (17, 3): error 2.3e-01 where float16 allows 3.9e-03").kind
        'wrong y'
        """
        if self.stage == "wrong":
            return f"wrong {re.split(r',| at |:', self.reason)[0]}"
        return f"{self.stage} {re.sub(r'[0-9]+', '#', self.reason) if self.stage == 'cut' else self.reason}"


@dataclass(frozen=True, slots=True)
class Untried:
    """It was not looked at, and why (a budget ended, the user stopped)."""

    reason: str


Outcome: TypeAlias = "Measured | Failed | Untried"


@dataclass(frozen=True, slots=True)
class Resources:
    """What one compiled Config takes, `None` where unknown."""

    registers: int | None = None  # per thread
    spills: int | None = None  # registers' worth of spilled bytes per thread, as the compiler counts them
    shared_bytes: int | None = None  # per block
    threads: int | None = None  # per block; on a CPU: of the process
    code_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls made back to back, by the host's clock: what the host does for one counts.

    Attributes:
        seconds: of one call, in each round in turn.
        first: the number of the first round. All who were in a round were timed side by side.
        at: when the search began whose rounds they are, UTC, ISO 8601.
    """

    seconds: tuple[float, ...]
    first: int = 0
    at: str = ""

    @property
    def median_s(self) -> float:
        return stats.median(self.seconds)

    def by_round(self) -> dict[int, float]:
        """Seconds by the number of the round."""
        return dict(enumerate(self.seconds, self.first))


@dataclass(frozen=True, slots=True)
class Trial:
    """A Config, what became of it, and when.

    Attributes:
        at: UTC, ISO 8601.
        compile_s: seconds the compiler took, `None` where nothing was compiled for it.
        soft: versions of language, compiler, driver and Python under which it was found.
        checked: what its results were compared with, empty where they were not (see `Choice`).
        drift: how many times as long launches took in its race as in the first of its search, by who was in both.
        calls: what calls of it take back to back, `None` where that was not measured.
        pace_s: how fast the CPU's core was around most samples of its race, or of the part before the process was
            killed; measured as of a Choice.
    """

    config: Config
    outcome: Outcome
    resources: Resources = Resources()
    at: str = ""
    compile_s: float | None = None
    soft: Mapping[str, str] = field(default_factory=dict[str, str])
    checked: str = ""
    drift: float = 1.0
    calls: Calls | None = None
    pace_s: float | None = None

    @property
    def level_s(self) -> float | None:
        """Its median at the clock of the search's first race: what Trials of different races are compared by; `None`
        where it was not measured."""
        return self.outcome.median_s / self.drift if isinstance(self.outcome, Measured) else None

    def _repr_html_(self) -> str:
        from tunesmith.core.notebook import trials_html

        return trials_html([self])


@dataclass(frozen=True, slots=True)
class Choice:
    """The Config a call uses, and why.

    Attributes:
        config: what is launched.
        track: how far the call was allowed to go.
        source: where it comes from: `default`, `only candidate`, `search`, `store`, or `table FILE`.
        median_s: its time when it was measured, `None` if it never was.
        runner_up: the next best Config of the same search.
        ratio: the runner-up's median over this one's.
        ties: Configs that its samples cannot tell from it.
        distance: what separates the row used from the row asked for; empty for an exact hit.
        measured_at: the exact Problem that was measured, where the key's is a bucket.
        candidates: how many Configs the search saw, by fate: measured, failed, cut, untried.
        space: the digest of the Space it was chosen from.
        partial: why the search was not finished, empty where it was.
        budget_s: what the search was given, `None` for no limit.
        most: how many Configs the search was allowed, `None` for no limit.
        launches: how many timed launches, `None` for no limit.
        within: no rival in the race is faster by more than this part, as sure as `confidence`; `None` if unknown.
        confidence: how sure `within` is.
        doubt: why the best is not known within the asked margin; empty where it is.
        searched_at: when the search that found it began: UTC, ISO 8601.
        conditions: the device's clock while it was timed, and what held that back, where it can be read.
        checked: what its results were compared with: the reference's fingerprint, the tolerance; empty: unverified.
        note: anything else a reader should know (stale versions, why a search was not allowed).
        called: what calls one by one are launched with, outside of a CUDA graph, where something else than `config`
            makes the host wait less; `None` where `config` serves both.
        calls: what it had to do with it what calls take back to back, in words; empty where that decided nothing.
        pace_s: how fast the CPU's core was around most of the samples: what a fixed loop of Python took there at most
            (see `tunesmith.measure.pace`), in the slowest of the races that decided; `None` where that is not read.
    """

    config: Config
    track: Track
    source: str
    median_s: float | None = None
    runner_up: Config | None = None
    ratio: float | None = None
    ties: tuple[Config, ...] = ()
    distance: str = ""
    measured_at: Problem | None = None
    candidates: Mapping[str, int] = field(default_factory=dict[str, int])
    space: str = ""
    partial: str = ""
    budget_s: float | None = None
    most: int | None = None
    launches: int | None = None
    within: float | None = None
    confidence: float | None = None
    doubt: str = ""
    searched_at: str = ""
    conditions: str = ""
    checked: str = ""
    note: str = ""
    called: Config | None = None
    calls: str = ""
    pace_s: float | None = None

    def _repr_html_(self) -> str:
        from tunesmith.core.notebook import choice_html

        return choice_html(self)


# --- as plain data ---------------------------------------------------------------------------------


def trial_to_data(trial: Trial) -> dict[str, Any]:
    """A Trial as JSON types. Samples are rows `[round, order, clock_hz, seconds]`."""
    outcome: dict[str, Any]
    match trial.outcome:
        case Measured(samples):
            outcome = {"measured": [[s.round, s.order, s.clock_hz, s.seconds] for s in samples]}
        case Failed(stage, reason, detail):
            outcome = {"failed": {"stage": stage, "reason": reason, "detail": detail}}
        case Untried(reason):
            outcome = {"untried": reason}
    resources = {name: value for name, value in asdict(trial.resources).items() if value is not None}
    return {
        "config": dict(trial.config),
        **outcome,
        "resources": resources,
        "at": trial.at,
        "compile_s": trial.compile_s,
        "soft": dict(trial.soft),
        **({"checked": trial.checked} if trial.checked else {}),
        **({"drift": trial.drift} if trial.drift != 1.0 else {}),
        **({"calls": asdict(trial.calls)} if trial.calls is not None else {}),
        **({"pace_s": trial.pace_s} if trial.pace_s is not None else {}),
    }


def trial_from_data(data: Mapping[str, Any]) -> Trial:
    """The inverse of `trial_to_data`.

    Raises:
        BadInput: for anything that is not a Trial.
    """
    try:
        if "measured" in data:
            outcome: Outcome = Measured(
                tuple(
                    Sample(float(s), int(r), int(o), None if c is None else float(c)) for r, o, c, s in data["measured"]
                )
            )
        elif "failed" in data:
            failed = data["failed"]
            outcome = Failed(failed["stage"], str(failed["reason"]), str(failed.get("detail", "")))
        else:
            outcome = Untried(str(data["untried"]))
        known = {f.name for f in fields(Resources)}
        resources = Resources(
            **{name: int(value) for name, value in data.get("resources", {}).items() if name in known}
        )
        compile_s = data.get("compile_s")
        soft = {str(name): str(value) for name, value in cast("dict[Any, Any]", data.get("soft", {})).items()}
        return Trial(
            Config(data["config"]),
            outcome,
            resources,
            str(data.get("at", "")),
            None if compile_s is None else float(compile_s),
            soft,
            str(data.get("checked", "")),
            Sample(float(data.get("drift", 1.0))).seconds,
            None if data.get("calls") is None else _calls_from(data["calls"]),
            None if data.get("pace_s") is None else Sample(float(data["pace_s"])).seconds,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"not a Trial: {type(error).__name__}: {error}") from error


def _calls_from(data: Mapping[str, Any]) -> Calls:
    seconds = tuple(Sample(float(s)).seconds for s in data["seconds"])
    if not seconds:
        raise ValueError("calls of no round")
    return Calls(seconds, int(data["first"]), str(data["at"]))


def choice_to_data(choice: Choice) -> dict[str, Any]:
    """A Choice as JSON types."""
    return {
        "config": dict(choice.config),
        "track": choice.track,
        "source": choice.source,
        "median_s": choice.median_s,
        "runner_up": None if choice.runner_up is None else dict(choice.runner_up),
        "ratio": choice.ratio,
        "ties": [dict(tie) for tie in choice.ties],
        "distance": choice.distance,
        "measured_at": None if choice.measured_at is None else choice.measured_at.text,
        "candidates": dict(choice.candidates),
        "space": choice.space,
        "partial": choice.partial,
        "budget_s": choice.budget_s,
        "most": choice.most,
        "launches": choice.launches,
        "within": choice.within,
        "confidence": choice.confidence,
        "doubt": choice.doubt,
        "searched_at": choice.searched_at,
        "conditions": choice.conditions,
        "checked": choice.checked,
        "note": choice.note,
        **({} if choice.pace_s is None else {"pace_s": choice.pace_s}),
        **({} if choice.called is None else {"called": dict(choice.called)}),
        "calls": choice.calls,
    }


def choice_from_data(data: Mapping[str, Any]) -> Choice:
    """The inverse of `choice_to_data`.

    Raises:
        BadInput: for anything that is not a Choice.
    """
    try:
        runner_up, measured_at, track = data.get("runner_up"), data.get("measured_at"), data["track"]
        called = data.get("called")
        if track not in TRACKS:
            raise BadInput(unknown("track", track, TRACKS))
        return Choice(
            config=Config(data["config"]),
            track=track,
            source=str(data["source"]),
            median_s=None if data.get("median_s") is None else float(data["median_s"]),
            runner_up=None if runner_up is None else Config(runner_up),
            ratio=None if data.get("ratio") is None else float(data["ratio"]),
            ties=tuple(Config(tie) for tie in data.get("ties", ())),
            distance=str(data.get("distance", "")),
            measured_at=None if measured_at is None else Problem.parse(measured_at),
            candidates={
                str(name): int(count) for name, count in cast("dict[Any, Any]", data.get("candidates", {})).items()
            },
            space=str(data.get("space", "")),
            partial=str(data.get("partial", "")),
            budget_s=None if data.get("budget_s") is None else float(data["budget_s"]),
            most=None if data.get("most") is None else int(data["most"]),
            launches=None if data.get("launches") is None else int(data["launches"]),
            within=None if data.get("within") is None else float(data["within"]),
            confidence=None if data.get("confidence") is None else float(data["confidence"]),
            doubt=str(data.get("doubt", "")),
            searched_at=str(data.get("searched_at", "")),
            conditions=str(data.get("conditions", "")),
            pace_s=None if data.get("pace_s") is None else float(data["pace_s"]),
            checked=str(data.get("checked", "")),
            note=str(data.get("note", "")),
            called=None if called is None else Config(called),
            calls=str(data.get("calls", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"not a Choice: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Recording:
    """Every Trial of a whole Space with all its samples: replayed, it stands in for the device.

    Attributes:
        kernel: its name.
        device: the device's name.
        problem: what was measured.
        trials: one for each Config, in the Space's order.
        protocol: how it was measured, in words.
        library_s: the library's own samples for the same problem, in seconds, where recorded.
        meta: machine, versions, date; `pace_s`, how fast the CPU's core was, as of a Choice.
    """

    kernel: str
    device: str
    problem: Problem
    trials: tuple[Trial, ...]
    protocol: str = ""
    library_s: tuple[float, ...] = ()
    meta: Mapping[str, str] = field(default_factory=dict[str, str])

    def _repr_html_(self) -> str:
        from tunesmith.core.notebook import trials_html

        return trials_html(self.trials, f"{self.kernel}({self.problem}) on {self.device}")
