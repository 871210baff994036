"""Knobs that change the order of a sum, held at one value for all Problems that differ in some dimensions alone.

A row of a batch then has the same bits whatever else is in the batch. The first Problem of such a family that is tuned
decides the values; they stand in the store under a Key of the family's own, and every other search, look-up and default
of the family keeps to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, SpaceError, unknown
from tunesmith.store import Store
from tunesmith.subject import Subject

T = TypeVar("T")


@dataclass(frozen=True)
class Invariance:
    """What `autotune(invariant_over=…, summation=…)` said.

    Attributes:
        over: fields of the Problem in which the members of a family differ.
        summation: knobs that have the same value for all of them.
    """

    over: tuple[str, ...]
    summation: tuple[str, ...]

    def family(self, key: Key) -> Key:
        """The Key under which the family's values stand."""
        shared = Problem({name: value for name, value in key.problem.items() if name not in self.over})
        return replace(key, kernel=f"{key.kernel}: {', '.join(self.summation)}", problem=shared)

    def decided(self, key: Key, store: Store) -> Config | None:
        """The family's values; `None` before its first Problem was tuned."""
        stored = store.choice(self.family(key))
        return stored.choice.config if stored is not None and stored.choice.config else None

    def told(self, key: Key, store: Store) -> str:
        """What is known of the family, in words."""
        stored = store.choice(self.family(key))
        if stored is None or not stored.choice.config:
            return f"no problem of its family has decided {', '.join(self.summation)} yet"
        values = ", ".join(f"{name}={value}" for name, value in stored.choice.config.items())
        return f"{values} for all {', '.join(self.over)}, as {stored.choice.note} decided"

    def within(self, subject: Subject, values: Config) -> Subject:
        """The same with the part of its Space that has the family's values.

        Raises:
            BadInput: when there is no such part.
        """
        try:
            return replace(subject, space=subject.space.fix(**values))
        except SpaceError as error:
            raise BadInput(
                f"{subject.kernel.name}({subject.key.problem}): another problem of its family decided {values!r}, "
                f"which this one's Space does not have ({error}); give both Spaces these values, or let the family "
                "decide anew: kernel.undecide(…)"
            ) from error

    def decide(self, subject: Subject, choice: Choice, store: Store) -> Choice:
        """Keep a Choice's values as the family's; the Choice as one of the part of its Space that is left.

        The caller holds the claim of the family.
        """
        for name in self.summation:
            if name not in choice.config:
                raise BadInput(f"{subject.kernel.name}, summation: {unknown('knob', name, choice.config)}")
        values = Config({name: choice.config[name] for name in self.summation})
        soft = dict(subject.key.soft)
        kept = replace(choice, space=self.within(subject, values).space.digest)
        store.put_choice(self.family(subject.key), Choice(values, "search", "search", note=subject.exact.text), soft)
        store.put_choice(subject.key, kept, soft)
        return kept

    def undecide(self, key: Key, store: Store) -> None:
        """Let the family's next search decide anew."""
        store.put_choice(self.family(key), Choice(Config(), "search", "search", note="undecided"), {})


def settled(
    invariance: Invariance | None, subject: Subject, store: Store, wait_s: float,
    search: Callable[[Subject], T], choice_of: Callable[[T], Choice | None], busy: Callable[[], T],
    sources: Sequence[str],
) -> T:  # fmt: skip
    """Search for a member of a family within its values; where there are none yet, what is found decides them.

    Args:
        search: finds a Choice for a Subject. choice_of: reads it off what that returns; only one whose source is
            none of `sources` decides.
        busy: what to return when another process has been deciding for too long.
    """
    if invariance is None or subject.space.only is not None:
        return search(subject)
    values = invariance.decided(subject.key, store)
    if values is not None:
        return search(invariance.within(subject, values))
    with store.claim(invariance.family(subject.key), wait_s) as claimed:
        values = invariance.decided(subject.key, store)
        if values is not None:
            return search(invariance.within(subject, values))
        if not claimed:
            return busy()
        found = search(subject)
        choice = choice_of(found)
        if choice is not None and choice.source not in sources:
            invariance.decide(subject, choice, store)
        return found
