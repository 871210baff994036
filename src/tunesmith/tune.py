"""The loop: space → cut → compile → race → pick → store. One search for one Key."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from time import perf_counter

from tunesmith.calls import kept_for_calls, time_calls
from tunesmith.core.config import Config
from tunesmith.core.outcome import Choice, Failed, Measured, Trial, Untried
from tunesmith.core.space import ENUMERATED, Space
from tunesmith.core.stats import median
from tunesmith.errors import BudgetEnded, NoWorkingConfig, TunesmithWarning
from tunesmith.evaluate import Evaluation
from tunesmith.events import BUDGET, STOPPED, Started, Summary, say
from tunesmith.finals import kept_back, last_race
from tunesmith.kernel import Clock
from tunesmith.measure.calls import about_calls
from tunesmith.measure.failure import all_failed, is_machines
from tunesmith.measure.pace import heard, is_shared
from tunesmith.measure.pick import Verdict, unfinished
from tunesmith.measure.race import limits_of
from tunesmith.neighbours import neighbours, prior_of, saved
from tunesmith.order import most_promising_first, promising
from tunesmith.search import strategy
from tunesmith.store import Store
from tunesmith.subject import Effort, Subject

#: A Choice's source when its Space holds nothing else.
ONLY = "only candidate"
BOUND = "as many candidates as were allowed had been tried"
#: The strategy that starts from what is known of other Problems; it spends no launches on proving ties.
TRANSFER = "transfer"
#: Stored Trials that were found under other versions and are timed again: the best of them, an incumbent's rivals.
STALE_RERACED = 8


_thread = threading.local()


def is_searching() -> bool:
    """Whether this thread is in the middle of a search (a candidate that calls another tuned kernel)."""
    return getattr(_thread, "depth", 0) > 0


@contextmanager
def searching() -> Generator[None]:
    """Within this scope, this thread is in the middle of a search: what it calls waits for nobody."""
    _thread.depth = getattr(_thread, "depth", 0) + 1
    try:
        yield
    finally:
        _thread.depth -= 1


def search(subject: Subject, default: Callable[[], Config], store: Store, clock: Clock, effort: Effort) -> Summary:
    """Find the fastest Config and store it with every Trial.

    What the store knows is not measured again, the incumbent beside something new excepted. The default is among
    what is measured, and so are the winners of near Problems, whatever the strategy. The caller holds the key's
    claim. Ctrl-C stores what was measured and passes through.

    Raises:
        NoWorkingConfig: when every Config failed; nothing stays stored then.
        BudgetEnded: when the budget ended before anything was measured, and Configs are left that may work.
        Busy: when another search has been measuring on the device for too long.
        BadInput, WorkerLost: when candidates have to run in a worker and it can't be had.
    """
    cut: dict[str, int] = {}
    legal = _enumerate(subject.space, cut)
    deadline = None if effort.budget_s is None else perf_counter() + effort.budget_s
    at = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    near = neighbours(subject, store, effort.near) if effort.strategy == TRANSFER else []
    effort = replace(effort, near=tuple(near), ties=effort.ties and not near)
    state = Evaluation(subject, store, clock, effort, at, deadline)
    if legal is not None and len(legal) == 1:
        return _compile_only(state, legal[0], cut)
    stored = store.trials(subject.key)
    known = {t.config: t for t in stored if _believed(t, subject)}
    if not any(isinstance(t.outcome, Measured) for t in known.values()):
        known = {}  # failures alone are not believed: the machine may have been in a bad state
    state.known = known
    for trial in known.values():
        if trial.soft.get("python") == subject.key.soft.get("python"):
            heard(trial.pace_s)  # by a process, perhaps, that has seen the core quiet
    before = store.choice(subject.key)
    concluded = before.choice if before is not None and before.choice.partial not in STOPPED else None
    if concluded is not None and isinstance(getattr(known.get(concluded.config), "outcome", None), Measured):
        state.incumbent = concluded.config
    state.incumbent = getattr(subject.kernel, "stays", None) or state.incumbent
    say(Started(subject.kernel.name, subject.exact, subject.space.cardinality, cut, len(known), effort.budget_s))
    with searching(), closing(state):
        first = promising(subject, default, store, effort.first) if legal != [] else []
        since = "" if concluded is None else concluded.searched_at
        again, needed = _to_time_again(state, known, stored, since)
        ranks = legal is not None and _is_ranked(state)
        with kept_for_calls(state):
            with kept_back(state):
                _follow(state, known, first, again, needed, ranks)
            last_race(state, known)
        _check_winner(state, known)
        time_calls(state, known)
        _check_winner(state, known)
    done = {**known, **state.trials}
    return _conclude(state, legal if legal is not None else list(done), done, cut, len(known))


def _compile_only(state: Evaluation, config: Config, cut: Mapping[str, int]) -> Summary:
    """A Space of one Config has nothing to choose: it is compiled, to see that it does, and not measured."""
    subject = state.subject
    say(Started(subject.kernel.name, subject.exact, subject.space.cardinality, cut, 0, state.effort.budget_s))
    for _ in state.compile([config], set()):
        pass
    why = "the only Config: compiled, not measured"
    choice = Choice(config, "search", ONLY, space=subject.space.digest)
    trials = (state.trials.get(config, Trial(config, Untried(why))),)
    summary = Summary(
        subject.key, choice, None, trials, cut, subject.space.cardinality, 0, why, state.compile_s, state.measure_s
    )  # fmt: skip
    failed = list(summary.failures)
    say(replace(summary, choice=None) if failed else summary)
    if failed:
        raise all_failed(subject.kernel.name, subject.exact.text, failed, state.first_error)
    return summary


def _enumerate(space: Space, cut: dict[str, int]) -> list[Config] | None:
    """Every legal Config, counting what is cut by reason; `None` when there are too many to list."""
    if space.cardinality > ENUMERATED:
        return None
    return list(space.points(lambda reason, n: cut.update({reason: cut.get(reason, 0) + n})))


def _believed(trial: Trial, subject: Subject) -> bool:
    """Whether a stored Trial counts: a failure under other versions, or one of the machine's, is tried again."""
    failed = trial.outcome if isinstance(trial.outcome, Failed) else None
    again = failed is not None and (bool(subject.key.stale(trial.soft)) or is_machines(failed))
    wanted = subject.check.identity
    if failed is not None and failed.stage == "wrong" and wanted and trial.checked != wanted:
        again = True  # by another reference or tolerance
    return trial.config in subject.space and not again


def _to_time_again(
    state: Evaluation, known: Mapping[Config, Trial], stored: Sequence[Trial], since: str
) -> tuple[list[Config], bool]:
    """Of the stored Trials, those that go into a race beside what is new; and whether they need one of their own.

    The fastest and the incumbent, so that new Configs are compared with them side by side. In need of a race: those
    whose race was stopped before it was over, and the best of those found under other versions.

    Args:
        since: when the last search began that was not cut short.
    """
    verdict = state.effort.verdict(list(known.values()))
    if verdict is None:
        return [], False
    key = state.subject.key
    stale = [t for t in verdict.ranking if key.stale(t.soft)][:STALE_RERACED]
    since_then = [trial for trial in stored if trial.at > since]
    stopped = [t for t in unfinished(since_then, state.rule) if t.config in known]
    in_use = [] if state.incumbent is None else [state.incumbent]
    again = dict.fromkeys([*in_use, *(t.config for t in (verdict.ranking[0], *stopped, *stale))])
    return list(again), bool(stale or stopped)


def _follow(
    state: Evaluation, known: Mapping[Config, Trial], first: Sequence[Config], again: Sequence[Config], needed: bool,
    ranks: bool,
) -> None:  # fmt: skip
    """Drive the strategy: hand it the Trials it asks for, from the store or by measuring.

    Args:
        ranks: whether the model chooses which of the whole Space are tried, and not the strategy.
    """
    subject, effort = state.subject, state.effort
    seed, predict = (None, None) if subject.ranked else (effort.seed, subject.predict)
    bound = effort.candidates if ranks else None
    limited = effort.budget_s is not None or effort.launches is not None
    in_reach = min(ENUMERATED, effort.launches or ENUMERATED) if limited else None
    most = None if ranks else effort.candidates or in_reach
    starts = [*first, *[config for config in known if config not in first]]
    steps = strategy(
        "exhaustive" if ranks else effort.strategy, subject.space, effort.seed, starts=starts, most=most, say=say,
        problem=subject.exact, device=subject.device.identity, near=effort.near, margin=effort.margin,
        prior=None if subject.model is None else prior_of(subject.model, subject.exact, subject.device),
    )  # fmt: skip
    try:
        batch = next(steps)
        while True:
            ordered = most_promising_first([*first, *batch], first, seed, predict, bound)
            new = [c for c in ordered if c not in known and c not in state.trials]
            if new or needed:
                state.evaluate([*again, *[c for c in new if c not in again]])
                needed, again = False, state.leaders or again
            if state.over:
                return
            done = {**known, **state.trials}
            batch = steps.send([done.get(c, Trial(c, Untried(state.ended_by or BUDGET))) for c in batch])
    except StopIteration:
        return
    finally:
        steps.close()


def _is_ranked(state: Evaluation) -> bool:
    """Whether a model chooses the Configs, so many as are allowed, out of a Space that can be listed."""
    subject, effort = state.subject, state.effort
    modelled = subject.predict is not None and not subject.ranked
    return modelled and effort.candidates is not None and effort.strategy in ("auto", "exhaustive")


def _check_winner(state: Evaluation, known: Mapping[Config, Trial]) -> None:
    """See that who wins, and who serves calls, has been compared with today's reference: what the store knows was
    perhaps not, or with another. Whoever turns out to be wrong has failed, and the next in line is looked at."""
    wanted = state.subject.check.identity
    looked: set[Config] = set()
    while wanted and not state.over:
        verdict = state.effort.verdict(list({**known, **state.trials}.values()), state.incumbent)
        serving = () if verdict is None else (verdict.winner, verdict.called or verdict.winner)
        unchecked = next((t for t in serving if t.checked != wanted and t.config not in looked), None)
        if unchecked is None:
            return
        looked.add(unchecked.config)
        state.check(unchecked)


def _conclude(
    state: Evaluation, legal: Sequence[Config], done: Mapping[Config, Trial], cut: Mapping[str, int], known: int
) -> Summary:
    """Pick, store, report."""
    subject = state.subject
    bounded = state.effort.candidates is not None and len(state.trials) >= state.effort.candidates
    usual = _not_promising(state.effort) if state.effort.near else f"not drawn by {state.effort.strategy}"
    why = state.stopped or state.ended_by or (BOUND if bounded else usual)
    trials = tuple(done.get(config, Trial(config, Untried(why))) for config in legal)
    verdict = state.effort.verdict(trials, state.incumbent)
    summary = Summary(
        subject.key, None, verdict, trials, cut, subject.space.cardinality, known, why,
        state.compile_s, state.measure_s, state.store_s, state.waited_s,
    )  # fmt: skip
    if verdict is not None:
        stored = state.store.choice(subject.key)
        _warn_of(state)
        if not state.trials and stored is not None and _says_the_same(stored.choice, verdict, subject):
            summary = replace(summary, choice=replace(stored.choice, source="store"))
        else:
            choice = _choice(summary, verdict, state)
            with state.storing():
                state.store.put_choice(subject.key, choice, dict(subject.key.soft))
            summary = replace(summary, choice=choice, store_s=state.store_s)
    say(summary)
    if verdict is None:
        state.store.forget_failures(subject.key)
        raise _nothing_works(summary, state)
    return summary


def _not_promising(effort: Effort) -> str:
    n = len(effort.near)
    return f"not expected to be faster, by what {n} solved problem{'s' if n > 1 else ''} taught"


def _says_the_same(choice: Choice, verdict: Verdict, subject: Subject) -> bool:
    same = (
        (choice.config, choice.called) == (verdict.winner.config, called_by(verdict))
        and choice.space == subject.space.digest
        and not choice.partial
    )
    return same and (not subject.check.identity or choice.checked == subject.check.identity)


def _warn_of(state: Evaluation) -> None:
    """Say once what launching candidates has shown that a user should know."""
    if state.notes:
        warnings.warn(
            f"{state.subject.kernel.name}({state.subject.exact}): {'; '.join(state.notes)}",
            TunesmithWarning, stacklevel=2,
        )  # fmt: skip


def _nothing_works(summary: Summary, state: Evaluation) -> NoWorkingConfig | BudgetEnded:
    kernel, problem, failures = state.subject.kernel.name, state.subject.exact.text, list(summary.failures)
    if failures and not summary.cut_short:
        return all_failed(kernel, problem, failures, state.first_error)
    if not summary.trials:
        reasons = "; ".join(f"{count} × {reason}" for reason, count in summary.cut.items())
        return NoWorkingConfig(f"{kernel}({problem}): the constraints cut every Config of the Space: {reasons}")
    found = BudgetEnded(
        f"{kernel}({problem}): {summary.why_untried} before any of {len(summary.trials)} Configs was measured "
        f"({state.compile_s:.1f} s were spent compiling{_failed_so_far(failures)}); give it a larger budget"
    )
    found.__cause__ = state.first_error
    return found


def _failed_so_far(failures: Sequence[tuple[Config, Failed]]) -> str:
    if not failures:
        return ""
    first = failures[0][1]
    return f", and {len(failures)} did not work, the first: {first.stage}: {first.reason}"


def _choice(summary: Summary, verdict: Verdict, state: Evaluation) -> Choice:
    subject, budget_s = state.subject, state.effort.budget_s
    instead = saved(subject.exact, subject.device.identity, state.effort.near, list(state.trials.values()))
    cut_short = summary.why_untried in STOPPED and (summary.counts["untried"] > 0 or state.cut_short)
    bounded = summary.why_untried == BOUND and summary.counts["untried"] > 0
    partial = summary.why_untried if cut_short else BOUND if bounded else ""
    winner = verdict.winner
    others = [trial for trial in verdict.ranking if trial is not winner]
    assert isinstance(winner.outcome, Measured)
    runner_up = others[0] if others else None
    levels = (runner_up and runner_up.level_s, winner.level_s)
    ratio = levels[0] / levels[1] if levels[0] and levels[1] else None
    return Choice(
        config=winner.config, track="search", source="search", median_s=winner.outcome.median_s,
        runner_up=runner_up.config if runner_up else None, ratio=ratio, ties=verdict.ties,
        measured_at=subject.exact if subject.exact != subject.key.problem else None,
        candidates=summary.counts, space=subject.space.digest, partial=partial, budget_s=budget_s,
        most=state.effort.candidates, launches=state.effort.launches, within=verdict.within,
        confidence=verdict.confidence, doubt=verdict.doubt, searched_at=state.at, called=called_by(verdict),
        conditions=conditions(verdict, state), pace_s=verdict.pace_s, checked=verdict.checked,
        note="; ".join(filter(None, [*state.notes, instead])), calls=of_calls(verdict, state),
    )  # fmt: skip


def called_by(verdict: Verdict) -> Config | None:
    """Who serves calls one by one, where that is not the winner."""
    called = verdict.called
    return None if called is None or called is verdict.winner else called.config


def of_calls(verdict: Verdict, state: Evaluation) -> str:
    """What calls of the Configs have decided, in words; or why it is not known what they take."""
    theirs = next((trial for trial in verdict.ranking if trial.config == state.incumbent), None)
    called = verdict.called
    said = "" if theirs is None or called is None else about_calls(called, verdict.winner, theirs, repr)
    return "; ".join(filter(None, [state.calls_note, said]))


def conditions(verdict: Verdict, state: Evaluation) -> str:
    """`1605 MHz, held back by the power limit`; empty where nothing is known."""
    assert isinstance(verdict.winner.outcome, Measured)
    hz = [sample.clock_hz for sample in verdict.winner.outcome.samples if sample.clock_hz is not None]
    limits = [*sorted(limits_of(state.clock)), *(["others at work on its core"] if is_shared(verdict.pace_s) else [])]
    facts = [f"{median(hz) / 1e6:.0f} MHz"] if hz else []
    return ", ".join([*facts, *([f"held back by {' and '.join(limits)}"] if limits else [])])
