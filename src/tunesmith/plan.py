"""A program's Choices as a file (`Plan`), written while it runs and replayed strictly.

with tunesmith.plan.record("plan.json"):     # or TUNESMITH_PLAN=plan.json
    serve()
with tunesmith.plan.replay("plan.json"):     # or TUNESMITH_REPLAY=plan.json
    serve()                                  # the same Configs, or PlanMiss
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import threading
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from tunesmith import tracks
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice
from tunesmith.errors import BadInput, PlanMiss, TunesmithWarning, unknown
from tunesmith.files import write_whole
from tunesmith.options import Authority, decided_by, decided_everywhere_by
from tunesmith.store.locks import Exclusion, host_folder

FORMAT = "tunesmith-plan/1"
#: fields of a Key that a plan holds: all that decides, and no versions, times or dates, which differ between two runs
FIELDS = ("kernel", "problem", "device", "fingerprint", "protocol", "environment")
Miss: TypeAlias = Literal["error", "default"]
MISSES: tuple[Miss, ...] = ("error", "default")
#: Writing a plan takes milliseconds; who waits longer for another process that writes it is not going to get there.
LOCK_WAIT_S = 30.0


@dataclass(frozen=True, eq=False)
class Plan:
    """Which Config for which Key. Two plans are equal exactly when their text is.

    Attributes:
        called: for calls outside of CUDA graphs, where that is another.
    """

    choices: Mapping[Key, Config]
    called: Mapping[Key, Config] = field(default_factory=dict[Key, Config])

    @cached_property
    def text(self) -> str:
        """The canonical spelling: JSON, sorted, a line for each Choice."""
        lines = sorted(_line(key, config, self.called.get(key)) for key, config in self.choices.items())
        return "\n".join(["{", f'"format": "{FORMAT}",', '"choices": [', ",\n".join(lines), "]}", ""])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Load a plan. Nothing of it is executed.

        Raises:
            BadInput: naming the file and what is wrong with it: a plan is right as a whole, or it is none.
        """
        try:
            data: Any = json.loads(path.read_bytes().decode())
        except OSError as error:
            raise BadInput(f"plan {path} cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path} is not a plan: {error}") from None
        if not isinstance(data, dict) or cast("dict[str, Any]", data).get("format") != FORMAT:
            raise BadInput(f'{path} is not a plan: it has no "format": "{FORMAT}"')
        return cls(*_choices_from(cast("dict[str, Any]", data).get("choices"), path))

    def write(self, path: Path) -> None:
        """Write it, whole or not at all.

        Raises:
            BadInput: naming the file, when it cannot be written.
        """
        try:
            write_whole(path, self.text.encode())
        except OSError as error:
            raise BadInput(f"plan {path} cannot be written: {error.strerror or error}") from error

    def differences(self, other: Plan) -> list[Key]:
        """The Keys of which two plans say something else, one of them perhaps nothing."""
        keys = sorted({*self.choices, *other.choices}, key=_place)
        return [key for key in keys if self.served(key) != other.served(key)]

    def served(self, key: Key) -> tuple[Config | None, Config | None]:
        """The Config of a Key, and that of calls outside of CUDA graphs where it is another; `None` where absent."""
        return self.choices.get(key), self.called.get(key)

    def nearest(self, key: Key) -> Key | None:
        """Of the same kernel's Keys, the one that differs in the fewest fields."""
        same = [known for known in sorted(self.choices, key=_place) if known.kernel == key.kernel]
        return min(same, key=lambda known: len(key.differences(known)), default=None)


def _place(key: Key) -> str:
    return _line(key, Config())


def _line(key: Key, config: Config, called: Config | None = None) -> str:
    data = key.to_data()
    configs = {"config": dict(config), **({} if called is None else {"called": dict(called)})}
    return json.dumps({**{name: data[name] for name in FIELDS}, **configs}, separators=(", ", ": "))


def _choices_from(rows: Any, path: Path) -> tuple[dict[Key, Config], dict[Key, Config]]:
    if not isinstance(rows, list):
        raise BadInput(f'{path} is not a plan: its "choices" are not a list')
    choices: dict[Key, Config] = {}
    called: dict[Key, Config] = {}
    for number, row in enumerate(cast("list[Any]", rows), 1):
        try:
            missing = [name for name in (*FIELDS, "config") if name not in row]
            if missing:
                raise BadInput(f"{missing[0]!r} is missing")
            key, config = Key.from_data({**row, "soft": {}}), Config(row["config"])
            beside = None if row.get("called") is None else Config(row["called"])
        except (TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"{path}: choice {number} makes no sense: {error}") from None
        if key in choices:
            raise BadInput(f"{path}: choice {number} is the second for {key.kernel}({key.problem})")
        choices[key] = config
        if beside is not None:
            called[key] = beside
    return choices, called


# --- writing one --------------------------------------------------------------------------------------


def said(plan: Plan, key: Key) -> str:
    """What a plan has for a Key, for people."""
    config, called = plan.served(key)
    if config is None:
        return "(absent)"
    return repr(config) if called is None else f"{config!r} (calls outside of CUDA graphs: {called!r})"


class Recorder(Authority):
    """Notes the Choices that are made, to make a Plan of them. Has no say in them."""

    def __init__(self) -> None:
        self._choices: dict[Key, Choice] = {}
        self._lock = threading.Lock()

    @property
    def plan(self) -> Plan:
        """What was noted so far."""
        with self._lock:
            found = self._choices.items()
            called = {key: choice.called for key, choice in found if choice.called not in (None, choice.config)}
            return Plan({key: choice.config for key, choice in found}, called)

    def witness(self, asked: tracks.Asked, choice: Choice) -> None:
        """Note a Choice. Of a Key the latest counts; a default that stood in never replaces what was found."""
        key = asked.subject.key
        with self._lock:
            before = self._choices.get(key)
            if before is None or _stood_in(before) or not _stood_in(choice):
                self._choices[key] = choice


def _stood_in(choice: Choice) -> bool:
    return choice.source in (tracks.DEFAULT, tracks.MEANWHILE)


@contextmanager
def record(path: str | Path | None = None) -> Generator[Recorder]:
    """Within this scope, the Choices of this thread's calls are noted: `.plan` of what it yields.

    Args:
        path: written when the scope ends without an exception; what was there is replaced.

    Raises:
        BadInput: when the file cannot be written.
    """
    recorder = Recorder()
    with decided_by(recorder):
        yield recorder
    if path is not None:
        recorder.plan.write(Path(path))


class _ToFile(Recorder):
    """Adds what a process chose to a file, at its end. Several processes may share the file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._pid = path, 0

    def witness(self, asked: tracks.Asked, choice: Choice) -> None:
        if self._pid != os.getpid():  # the first Choice of this process, which may be a fork of one that has chosen
            if self._path.exists():
                Plan.read(self._path)  # better said now than when all is over
            self._pid = os.getpid()
            atexit.register(self._add)
        super().witness(asked, choice)

    def _add(self) -> None:
        if self._pid != os.getpid():
            return  # registered before a fork: the parent's to write
        name = f"plan-{hashlib.sha256(str(self._path).encode(errors='surrogatepass')).hexdigest()[:16]}.lock"
        lock = Exclusion(host_folder() / name, True, _complain)
        try:
            if not lock.acquire(LOCK_WAIT_S):
                raise BadInput(f"plan {self._path} has been locked by another process for {LOCK_WAIT_S:g} s")
            try:
                before = Plan.read(self._path) if self._path.exists() else Plan({})
                self._warn_of_conflicts(before)
                plan = self.plan
                stays = {key: config for key, config in before.called.items() if key not in plan.choices}
                Plan({**before.choices, **plan.choices}, {**stays, **plan.called}).write(self._path)
            finally:
                lock.release()
        except BadInput as error:
            _complain(f"the Choices of this process are not in its plan: {error}")

    def _warn_of_conflicts(self, before: Plan) -> None:
        plan = self.plan
        for key in plan.choices:
            if key in before.choices and before.served(key) != plan.served(key):
                known, used = said(before, key), said(plan, key)
                _complain(
                    f"plan {self._path}: {key.kernel}({key.problem}) had {known}, this process used {used}: the "
                    "latter is kept. Processes that run together and must agree want TUNESMITH_RANKS"
                )


def _complain(what: str) -> None:
    warnings.warn(what, TunesmithWarning, stacklevel=3)


# --- replaying one ------------------------------------------------------------------------------------


class Replay(Authority):
    """Gives every call what a Plan says, and nothing else; nothing is measured.

    Args:
        load: makes the Plan, when it is first needed.
        miss: what becomes of a call that the Plan does not know: an `error`, or the `default`.
        name: of the Plan, for people.

    Raises:
        BadInput: for another `miss`.
    """

    measures = False

    def __init__(self, load: Callable[[], Plan], miss: str, name: str) -> None:
        if miss not in MISSES:
            raise BadInput(unknown("miss", miss, MISSES))
        self._load, self._miss, self._name = load, miss, name

    @cached_property
    def _plan(self) -> Plan:
        return self._load()

    def decide(self, asked: tracks.Asked) -> tracks.Decided:
        """The Plan's Config.

        Raises:
            PlanMiss: when the Plan's is for another source of the kernel; where a miss is an error, also when it has
                none, or one that the kernel's Space refuses.
        """
        subject, source = asked.subject, f"plan {self._name}"
        call = f"{subject.kernel.name}({subject.key.problem})"
        config, called = self._plan.served(subject.key)
        for one in (config, called) if self._miss == "error" else ():
            fault = None if one is None else subject.space.fault(one)
            if fault is not None:
                raise PlanMiss(f"{call}: {source} has {one!r}, which the kernel's Space refuses: {fault}")
        if config is not None and tracks.legal(subject, config, source):
            choice = Choice(config, asked.policy.track, source, called=called)
            return tracks.called_legally(choice, subject, source), None
        why = self._why(subject.key)
        if config is None and self._miss == "error":
            raise PlanMiss(f"{call} is not in {source}, and it is replayed strictly: {why}")
        return tracks.default_choice(asked.default(), subject.space, asked.policy.track, note=f"{source}: {why}"), None

    def _why(self, key: Key) -> str:
        """Why there is no Config: the nearest Key it has, and the fields in which that differs.

        Raises:
            PlanMiss: when the kernel's source is all that differs.
        """
        if key in self._plan.choices:
            return "its Config is refused"
        nearest = self._plan.nearest(key)
        if nearest is None:
            return f"it has nothing of {key.kernel}"
        differs = key.differences(nearest)
        if [line.split(":")[0] for line in differs] == ["fingerprint"]:
            raise PlanMiss(
                f"{key.kernel}({key.problem}): plan {self._name} was made for another source of the kernel "
                f"({differs[0]}); export it anew"
            )
        return "the nearest key it has differs in " + "; ".join(differs)

    def foresee(self, asked: tracks.Asked) -> Choice:
        return self.decide(asked)[0]

    def __repr__(self) -> str:
        return f"<replay of plan {self._name}, a miss is {self._miss}>"


@lru_cache(maxsize=64)
def _replay_of(plan: Plan, miss: str, name: str) -> Replay:
    """One object for a Plan: a scope that is opened again finds its calls warm."""
    return Replay(lambda: plan, miss, name)


@contextmanager
def replay(plan: Plan | str | Path, *, miss: Miss = "error") -> Generator[None]:
    """Within this scope, calls of this thread use the Configs of a plan; nothing is measured.

    Args:
        plan: or the file that holds it.
        miss: what becomes of a call that the plan does not know: `error` raises `PlanMiss`, `default` takes the
            kernel's heuristic (and counts in `tunesmith.misses()`). A plan made for another source of a kernel is an
            error whatever is said here.

    Raises:
        BadInput: for a file that is not a plan.
    """
    name = "(in memory)" if isinstance(plan, Plan) else str(plan)
    loaded = plan if isinstance(plan, Plan) else Plan.read(Path(plan))
    with decided_by(_replay_of(loaded, miss, name)):
        yield


# --- the whole process --------------------------------------------------------------------------------


def record_process(path: Path) -> None:
    """From now on, what this process chooses is added to a plan at its end (`TUNESMITH_PLAN`)."""
    decided_everywhere_by(_ToFile(path))


def replay_process(path: Path, miss: str) -> None:
    """From now on, this process uses the Configs of a plan (`TUNESMITH_REPLAY`), read at its first call.

    Raises:
        BadInput: for a bad `miss`.
    """
    if miss not in MISSES:
        raise BadInput(f"TUNESMITH_REPLAY_MISS={miss}: good values: {', '.join(MISSES)}")
    decided_everywhere_by(Replay(lambda: Plan.read(path), miss, str(path)))
