"""A search's last question where it was asked for: what the calls of those that decide take, made back to back.

What a GPU does in ten microseconds may take its host twelve to ask for. In a CUDA graph the GPU's time is all that
counts; where calls are made one by one, the longer of both. Who takes the library's place is to be slower in neither.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from tunesmith.core.config import Config
from tunesmith.core.outcome import Calls, Failed, Measured, Trial
from tunesmith.evaluate import Evaluation
from tunesmith.events import BUDGET
from tunesmith.measure.calls import call_in_turn, copies, is_host_bound, may_serve, ratio_of_calls
from tunesmith.subject import Effort

#: Where the library takes longer on the device, the host has time to ask.
HOST_MATTERS_S = 100e-6
#: So many are timed beside the library, the fastest first; and where its calls wait for the host, so many others.
AT_ONCE = 6, 24
#: Of a budget, the part that is kept for it, and seconds at most.
SHARE, MOST_S = 0.1, 1.0


@contextmanager
def kept_for_calls(state: Evaluation) -> Generator[None]:
    """Within this scope the budget ends earlier, by what timing calls needs."""
    budget_s = state.effort.budget_s if _may_matter(state) else None
    kept_s = min(MOST_S, SHARE * (budget_s or 0.0))
    state.extend(-kept_s)
    try:
        yield
    finally:
        state.extend(kept_s)


def time_calls(state: Evaluation, known: Mapping[Config, Trial]) -> None:
    """Time calls of the library, of the fastest, and, where these wait for the host, of more that could serve calls.

    Args:
        known: what the store knows; calls that were timed by an earlier search count.

    Raises:
        Busy: when another search has been measuring on the device for too long.
    """
    for most in AT_ONCE if _may_matter(state) else ():
        trials = {**known, **state.trials}
        asked = _serving(list(trials.values()), state.incumbent, state.effort)[:most]
        if not asked:
            return
        why = BUDGET if state.out_of_time else _time_beside(state, trials, asked)
        if why:
            some = " of some" if any(trial.calls for trial in state.trials.values()) else ""
            state.calls_note = f"what calls{some} take was not measured: {why}"
            return


def _may_matter(state: Evaluation) -> bool:
    """Whether it was asked for and the host's time is in no sample yet. On the CPU it is, or is little."""
    return state.effort.eager and state.incumbent is not None and hasattr(state.own_clock, "back_to_back")


def _serving(trials: Sequence[Trial], incumbent: Config | None, effort: Effort) -> list[Config]:
    """Who could serve calls and was not called beside the library yet, the winner and then the fastest first."""
    verdict = effort.verdict(trials, incumbent)
    library = next((t for t in trials if t.config == incumbent and isinstance(t.outcome, Measured)), None)
    if verdict is None or library is None or library.level_s is None or library.level_s >= HOST_MATTERS_S:
        return []
    winner = verdict.winner
    if library.calls is not None and not is_host_bound(library):  # the device decides
        return []
    left = [t for t in verdict.ranking if t is not library and ratio_of_calls(t, library) is None]
    able = [t for t in left if t is winner or may_serve(t, winner, library, effort.margin)]
    return [t.config for t in sorted(able, key=lambda t: (t is not winner, t.level_s or 0.0))]


def _time_beside(state: Evaluation, trials: Mapping[Config, Trial], asked: Sequence[Config]) -> str:
    """Time calls of the library and of these in this process; why that can't be done, empty where it was."""
    subject, library = state.subject, state.incumbent
    assert library is not None
    loaded = state.loaded_here([library, *asked])
    if library not in loaded:
        return f"{library!r} does not load in this process"
    before = trials[library].calls
    earlier = before.seconds if before is not None and before.at == state.at else ()
    with state.alone(), state.arguments_kept():
        many = copies(subject.arguments, subject.hot, getattr(state.own_clock, "cold", False), subject.device.l2_bytes)
        launches = {config: executable.launch for config, executable in loaded.items()}
        found = call_in_turn(
            state.own_clock, launches, library, many, len(earlier), state.at, lambda: state.out_of_time,
            state.effort.seed, state.effort.through,
        )  # fmt: skip
    mine = found.pop(library, None)
    if isinstance(mine, Failed):
        return f"{library!r} can't be called back to back: {mine.reason}"
    if mine is not None:
        found[library] = Calls((*earlier, *mine.seconds), 0, state.at)
    state.keep_calls(found)
    return BUDGET if mine is None and state.out_of_time else ""  # where all others failed, the next are asked
