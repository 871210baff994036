"""Checking the Choice that is known for a Problem: a stored one, a table's, or the default."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone

from tunesmith.core.outcome import Choice, Failed, Trial, Untried
from tunesmith.errors import BadInput
from tunesmith.evaluate import Evaluation
from tunesmith.kernel import Clock
from tunesmith.store import Store
from tunesmith.subject import Effort, Subject

#: Inputs on which a Choice is checked: the call's own, and others.
TIMES = 3


@dataclass(frozen=True)
class Verification:
    """What came of checking a Choice.

    Attributes:
        failure: why it is wrong or does not run, `None` where it is right or could not be told.
        checked: whether its results were compared with the reference's, on each of several inputs.
        notes: what else a user should know.
    """

    choice: Choice
    failure: Failed | None = None
    checked: bool = False
    notes: tuple[str, ...] = ()


def verify(subject: Subject, choice: Choice, store: Store, clock: Clock, effort: Effort) -> Verification:
    """Compare the results of a Choice with the reference's, and keep what came of it where the Choice is stored.

    Raises:
        BadInput: for a kernel without a reference.
        Busy: when another search has been measuring on the device for too long.
    """
    identity = subject.check.identity
    if not identity:
        raise BadInput(
            f"{subject.kernel.name} has nothing to compare its results with: pass reference= to autotune, the same "
            "computation in plain code"
        )
    at = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    state = Evaluation(subject, store, clock, replace(effort, budget_s=None), at, None)
    trials = {trial.config: trial for trial in store.trials(subject.key)}
    failure, checked = None, True
    for config in [choice.config] if choice.called is None else [choice.config, choice.called]:
        state.check(trials.get(config, Trial(config, Untried("not measured"))), TIMES)
        found = state.trials.get(config)
        checked = checked and found is not None and found.checked == identity
        if failure is None and found is not None and isinstance(found.outcome, Failed):
            which = "" if config is choice.config else f"{config!r}, which serves calls outside of CUDA graphs: "
            failure = replace(found.outcome, reason=which + found.outcome.reason)
    checked = checked and failure is None
    stored = store.choice(subject.key)
    here = None if stored is None else (stored.choice.config, stored.choice.called)
    if stored is not None and here == (choice.config, choice.called) and (checked or failure):
        note = "" if failure is None else f"its results are wrong: {failure.reason}"
        told = replace(stored.choice, checked=identity if checked else "", note=note)
        store.put_choice(subject.key, told, stored.soft)
    return Verification(replace(choice, checked=identity if checked else ""), failure, checked, tuple(state.notes))
