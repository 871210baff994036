"""What a report is about: the Trials of one problem, with what else is known of them; from the store or a recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from tunesmith.core.config import Config
from tunesmith.core.device import Device, device_of, known_devices
from tunesmith.core.key import Key
from tunesmith.core.model import Model
from tunesmith.core.outcome import Choice, Measured, Recording, Trial
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.events import Summary
from tunesmith.measure.failure import attempt
from tunesmith.measure.pick import Verdict, pick
from tunesmith.report.html.predicted import Predicted, predicted
from tunesmith.report.html.rivals import Rival
from tunesmith.report.units import count
from tunesmith.store import Store
from tunesmith.tuned import TunedKernel

#: Problems of one file: of more it takes long to open. --problem asks for others.
PROBLEMS = 500
#: what else decides for a problem, by name: (Key, exact Problem, device) → a Config, or why there is none
Deciders: TypeAlias = "Mapping[str, Callable[[Key, Problem, Device], Config | str]]"
#: of a Search whose kernel is not at hand
NO_MODEL = Predicted(why="which kernel it is has not been said (TARGET), or it has no performance model (model=)")


@dataclass(frozen=True)
class Search:
    """One problem's measurements, as a report shows them.

    Attributes:
        key: of a recording made up: it has no fingerprint.
        exact: the Problem that was measured, where the Key's is a bucket.
        choice: what a call uses; `None` for a recording.
        source: where the Trials come from, in words.
        soft: versions under which the Choice was found.
        facts: machine, versions, date, as a recording tells them.
        library_s: the library's own samples for the same problem, in seconds.
        cut: Configs that constraints left out, by reason, where that is known.
        untried: how many others were not looked at, by reason.
        predicted: what the performance model says, or why it says nothing.
        rivals: what the default and tables would use, and how long that takes.
    """

    key: Key
    exact: Problem
    trials: tuple[Trial, ...]
    choice: Choice | None
    source: str
    soft: Mapping[str, str] = field(default_factory=dict[str, str])
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    library_s: tuple[float, ...] = ()
    cut: Mapping[str, int] = field(default_factory=dict[str, int])
    untried: Mapping[str, int] = field(default_factory=dict[str, int])
    predicted: Predicted = NO_MODEL
    rivals: tuple[Rival, ...] = ()

    @cached_property
    def verdict(self) -> Verdict | None:
        """How the Trials rank; the winner is what a call uses, where that was measured."""
        found = pick(self.trials)
        if found is None or self.choice is None:
            return found
        used = next((trial for trial in self.trials if trial.config == self.choice.config), None)
        if used is None or not isinstance(used.outcome, Measured):
            return found
        why = found.why if used is found.winner else ""
        return Verdict(used, found.ranking, self.choice.ties, within=self.choice.within, why=why)

    @property
    def winner_s(self) -> float | None:
        """The winner's median, in seconds."""
        verdict = self.verdict
        return None if verdict is None else _median(verdict.winner)

    def time_of(self, config: Config) -> float | None:
        """A Config's median in seconds, where it was measured."""
        return next((_median(trial) for trial in self.trials if trial.config == config), None)


def _median(trial: Trial) -> float | None:
    return trial.outcome.median_s if isinstance(trial.outcome, Measured) else None


# --- from where ------------------------------------------------------------------------------------


def from_store(key: Key, store: Store) -> Search:
    """What the store knows of a Key.

    Raises:
        BadInput: when that is nothing.
    """
    trials, stored = tuple(store.trials(key)), store.choice(key)
    if not trials and stored is None:
        raise BadInput(f"the store knows nothing of {key.kernel}({key.problem}); tunesmith tune measures it")
    choice = None if stored is None else stored.choice
    exact = choice.measured_at if choice is not None and choice.measured_at is not None else key.problem
    soft = dict[str, str]() if stored is None else stored.soft
    seen = dict(choice.candidates) if choice is not None else {}
    cut = {"left out by constraints": seen["cut"]} if seen.get("cut") else {}
    untried = {choice.partial or "not looked at": seen["untried"]} if choice is not None and seen.get("untried") else {}
    return Search(key, exact, trials, choice, "the store", soft, cut=cut, untried=untried)


def from_summary(summary: Summary) -> Search:
    """What a search found."""
    choice = summary.choice
    exact = choice.measured_at if choice is not None and choice.measured_at is not None else summary.key.problem
    looked_at = sum(summary.cut.values()) + len(summary.trials)
    rest = {summary.why_untried or "not looked at": summary.cardinality - looked_at}
    untried = rest if summary.cardinality > looked_at else {}
    soft, cut = summary.key.soft, summary.cut
    return Search(summary.key, exact, summary.trials, choice, "a search", soft, cut=cut, untried=untried)


def from_recording(recording: Recording, name: str = "a recording") -> Search:
    """What was recorded. Nothing is chosen: the winner is what a search of these Trials would choose."""
    device = recording.device
    known = next((one.identity for one in known_devices() if one.name == device), device)
    soft = next((dict(trial.soft) for trial in recording.trials if trial.soft), dict[str, str]())
    key = Key(recording.kernel, "", recording.problem, known, recording.protocol, soft=soft)
    return Search(key, recording.problem, recording.trials, None, name, soft, dict(recording.meta), recording.library_s)


# --- what else is known ------------------------------------------------------------------------------


def with_model(search: Search, model: Model | None) -> Search:
    """With what a performance model says of each Config."""
    if model is None:
        return replace(search, predicted=Predicted(why=f"{search.key.kernel} has no performance model (model=)"))
    return replace(search, predicted=predicted(model, search.exact, device_of(search.key.device), search.trials))


def with_rivals(search: Search, deciders: Deciders) -> Search:
    """With the Configs that others would use for the problem, and their times where they were measured."""
    device = device_of(search.key.device) or _bare(search.key.device)
    if device is None:
        return search
    found = list[Rival]()
    for name, decide in deciders.items():
        made, failure, _ = attempt("launch", lambda d=decide: d(search.key, search.exact, device))
        if isinstance(made, Config):
            found.append(Rival(name, made, search.time_of(made)))
        else:
            found.append(Rival(name, None, None, failure.reason if failure is not None else made or "says nothing"))
    return replace(search, rivals=tuple(found))


def _bare(identity: str) -> Device | None:
    """A chip that is in no table, as far as a Key names it."""
    kind, _, rest = identity.partition(":")
    name, _, arch_units = rest.partition(":")
    arch, _, units = arch_units.rpartition(":")
    made, _, _ = attempt("launch", lambda: Device(kind, name, arch, int(units)))
    return made


def of_kernel(kernel: TunedKernel, store: Store) -> tuple[list[Search], list[str]]:
    """What is stored of a kernel as it is now, and what is left out, in words."""
    now = kernel.kernel.fingerprint() + kernel.declared.spec_fingerprint
    keys = store.keys(kernel.declared.name_for(kernel.kernel.name))
    mine = [key for key in keys if key.fingerprint == now]
    old = len(keys) - len(mine)
    left = [f"{count(old, 'problem')} measured of another source of the kernel: left out"] if old else []
    return [from_store(key, store) for key in mine[:PROBLEMS]], [*left, *_too_many(mine)]


def informed(search: Search, kernel: TunedKernel, others: Deciders) -> Search:
    """With the kernel's own model and default, and what others would use."""

    def default(key: Key, exact: Problem, device: Device) -> Config:
        return kernel.declared.default_for(kernel.kernel.name, exact, device)

    return with_rivals(with_model(search, kernel.declared.model), {"default": default, **others})


def of_store(store: Store) -> tuple[list[Search], list[str]]:
    """All that is stored, the last used first, and what is left out, in words."""
    keys = [key for key in store.keys(None) if store.choice(key) is not None or store.trials(key)]
    return [from_store(key, store) for key in keys[:PROBLEMS]], _too_many(keys)


def _too_many(keys: Sequence[Key]) -> list[str]:
    more = len(keys) - PROBLEMS
    said = f"{count(more, 'problem')} more are stored: left out are those that were used longest ago"
    return [said] if more > 0 else []
