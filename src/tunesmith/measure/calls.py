"""What a call takes back to back, by the host's clock: a GPU that waits for its host is no faster for a fast kernel."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from tunesmith.core.config import Config
from tunesmith.core.outcome import Calls, Failed, Trial
from tunesmith.core.stats import SHORTEST_S, paired_ratio
from tunesmith.core.stopping import CONFIDENCE
from tunesmith.dispatch import is_array
from tunesmith.kernel import settled
from tunesmith.measure.failure import attempt
from tunesmith.measure.gpu_clock import L2_TIMES, USUAL_L2_BYTES
from tunesmith.measure.memory import Twin, free_bytes, n_bytes, place_of, readable

#: (a launch that takes a call's arrays alone, arrays of calls) → what callers of such calls go through to it
Through: TypeAlias = "Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Callable[..., Any]]"
#: Calls are timed so long at once ...
STRETCH_S = 2e-3
#: ... and are never more than this
MOST_CALLS = 2000
#: So often each is timed beside the others; those that take this many times as long as the library, beyond doubt, leave
#: earlier. Those whose calls seem shorter than the library's by more than that is worth, but not beyond doubt, stay on.
ROUNDS, MOST_ROUNDS, FAR, SHORTER = 10, 40, 1.03, 0.99
#: Rounds below which nothing is sure.
ENOUGH = 3
#: Of arguments that no cache is to hold, copies at most, and the part of the free memory that they may take.
MOST_COPIES, COPIES_MAY_TAKE = 64, 0.25
#: Where calls take so many times as long as the device does, they are bound by the host.
HOST_BOUND = 1.05
#: Who serves calls one by one may take so many times as long on the device as the fastest: a program that keeps the GPU
#: busy with other things waits for it.
MOST_SLOWER = 1.5
#: Of calls as short as each other, within this factor, those of the fastest on the device serve; and who is slower
#: there than the winner serves only where its calls are shorter by more. A host is now fast and now slow, by half and
#: more, with whatever else it does; what the device takes stays.
AS_QUICK = 1.05


def ratio_of_calls(
    one: Trial, other: Trial, confidence: float = CONFIDENCE
) -> tuple[float, float, float] | None:  # fmt: skip
    """How many times as long calls of one take as those of another, with bounds, by the rounds that both were in;
    `None` where they were not timed side by side."""
    if one.calls is None or other.calls is None or one.calls.at != other.calls.at:
        return None
    mine, theirs = one.calls.by_round(), other.calls.by_round()
    shared = sorted(mine.keys() & theirs.keys())
    if len(shared) < ENOUGH:
        return None
    return paired_ratio([mine[r] for r in shared], [theirs[r] for r in shared], confidence)


def quickest_to_call(
    winner: Trial, library: Trial, trials: Sequence[Trial], margin: float, confidence: float = CONFIDENCE,
    reluctant: Collection[Config] = (),
) -> Trial:  # fmt: skip
    """Who is to serve calls one by one: the winner, unless calls of another take less time beyond doubt, and by more
    than the margin; clearly less of one that is slower on the device, where the winner's calls are no longer than the
    library's.

    Args:
        winner: the fastest on the device. library: beside which calls were timed.
        trials: all measured ones, fastest on the device first. Those that are slower than the library and, by far, than
            the winner are left out.
        reluctant: those of which a call disturbs others: the winner if it is one serves where its calls are clearly
            shorter than those of any other, and nobody else of them does.
    """
    if library.calls is None:
        return winner
    # All by the library's calls, which are in every round: others may share none with each other.
    found = {t.config: ratio_of_calls(t, library, confidence) for t in trials if t is not library}
    taken = {library.config: (1.0, 1.0, 1.0), **{config: ratio for config, ratio in found.items() if ratio is not None}}
    timed = [t for t in trials if t.config in taken]
    able = [t for t in timed if t in (library, winner) or may_serve(t, winner, library, margin)]
    able = [t for t in able if t is library or t.config not in reluctant]
    most = min(AS_QUICK * min(taken[t.config][0] for t in able), 1 + margin)  # and nobody is slower than the library
    quick = min((t for t in able if taken[t.config][0] <= most), key=lambda t: (t is not winner, t.level_s or math.inf))
    if quick is winner or winner not in timed:  # nobody knows what calls of the winner take
        return quick
    mine, winners = taken[quick.config], taken[winner.config]
    if winner.config in reluctant:
        others = [taken[t.config] for t in able]
        clearly = all(winners[0] * AS_QUICK < ratio and winners[2] < low for ratio, low, _ in others)
        return winner if clearly else quick
    if winners[0] > 1 + margin and winners[1] > 1:  # than the library's, beyond doubt: `quick` is within the margin
        return quick
    as_fast = (quick.level_s or math.inf) <= (1 + margin) * (winner.level_s or 0.0)
    gain = 1 + margin if as_fast or quick is library else AS_QUICK
    return quick if mine[0] * gain < winners[0] and mine[2] < winners[1] else winner


def may_serve(one: Trial, winner: Trial, library: Trial, margin: float) -> bool:
    """Whether it is fast enough on the device to serve calls that wait for the host."""
    mine_s, best_s, librarys_s = (t.level_s or math.inf for t in (one, winner, library))
    return mine_s <= max(MOST_SLOWER * best_s, (1 + margin) * librarys_s)


def is_host_bound(trial: Trial) -> bool:
    """Whether its calls take clearly longer than the device does."""
    return trial.calls is not None and trial.level_s is not None and trial.calls.median_s > HOST_BOUND * trial.level_s


def about_calls(called: Trial, winner: Trial, library: Trial, name: Callable[[Config], str]) -> str:
    """What calls have decided, in words; empty where the winner serves them too, or they were not timed.

    Args:
        called: who serves them. name: of a Config, to people.
    """
    if called.config == winner.config or called.calls is None:
        return ""
    others = [t for t in dict.fromkeys((winner.config, library.config)) if t != called.config]
    known = {t.config: t.calls for t in (winner, library) if t.calls is not None}
    takes = " and ".join(f"{name(config)} takes {_us(known[config])}" for config in others if config in known)
    said = f"calls outside of a CUDA graph are {name(called.config)}'s: called in {_us(called.calls)} us"
    return f"{said}, where {takes}" if takes else said


def _us(calls: Calls) -> str:
    return f"{1e6 * calls.median_s:.1f}"


# --- measuring ---------------------------------------------------------------------------------------------


def copies(arguments: Mapping[str, Any], hot: Sequence[str], cold: bool, l2_bytes: int) -> list[tuple[Any, ...]]:
    """Arguments by position in memory of their own, which launches may write; where they are to be in no cache, as
    often as it takes that each is gone from it when its turn comes again. The arguments themselves, where there is no
    memory for one copy.

    Args:
        hot: names of those that all copies share.
        l2_bytes: of the cache; 0 if unknown.
    """
    by_place: dict[str, int] = {}
    for name, value in arguments.items():
        for _, array in readable(name, value):
            by_place[place_of(array)] = by_place.get(place_of(array), 0) + n_bytes(array)
    turning = {name: value for name, value in arguments.items() if name not in hot}
    n = sum(n_bytes(array) for name, value in turning.items() for _, array in readable(name, value))
    number = min(MOST_COPIES, math.ceil(L2_TIMES * (l2_bytes or USUAL_L2_BYTES) / n)) if cold and n else 1
    for place, size in by_place.items():
        free = free_bytes(place)
        if free is not None and size:
            number = min(number, int(COPIES_MAY_TAKE * free / size))
    made, _, error = attempt("launch", lambda: _twins(arguments, turning, number))
    del error  # of a copy for which there was no memory all the same
    return made or [tuple(arguments.values())]


def _twins(arguments: Mapping[str, Any], turning: Mapping[str, Any], number: int) -> list[tuple[Any, ...]]:
    made: list[tuple[Any, ...]] = []
    shared: Mapping[str, Any] = arguments
    for _ in range(number):
        twin = Twin(turning if made else arguments)
        twin.take()
        shared = {**shared, **twin.arguments}
        made.append(tuple(shared[name] for name in arguments))
    return made


def call_in_turn(
    clock: Any, launches: Mapping[Config, Callable[..., Any]], library: Config, many: Sequence[Sequence[Any]],
    first: int, at: str, over: Callable[[], bool], seed: int = 0, through: Through | None = None,
) -> dict[Config, Calls | Failed]:  # fmt: skip
    """Time calls of each back to back in several rounds, in random order within a round: of the launch that such calls
    have when they come again.

    Args:
        clock: one with `back_to_back`.
        library: which of them the others are compared with. When it fails, that is all.
        many: arguments by position, alike, gone through in turn.
        first: the first round's number. at: when the search began.
        over: whether the time is up: no new round is begun then.
        through: what callers go through to a launch (`Effort`); all are timed with it.

    Returns:
        What failed; and the others' seconds, unless the time was up before there were enough rounds.
    """
    failed: dict[Config, Calls | Failed] = {}
    taken: dict[Config, list[float]] = {config: [] for config in launches}
    again = {config: _again(launch, many, through) for config, launch in launches.items()}

    def seconds(config: Config, number: int) -> float:
        """0 for one that fails."""
        result, failure, error = attempt("launch", lambda: clock.back_to_back(*again[config], number))
        del error
        if failure is None and (result is None or not math.isfinite(result)):
            failure = Failed("launch", f"calls took {result} s by the clock")
        if failure is not None:
            failed[config] = failure
        return 0.0 if failure is not None else max(float(result or 0.0), SHORTEST_S)

    def staying(configs: Sequence[Config]) -> list[Config]:
        if library in failed:
            return []
        left = [config for config in configs if config not in failed and not _is_far(taken[config], taken[library])]
        return left if len(left) > 1 else []

    for config in launches:
        seconds(config, len(many))  # the first calls take longer
    left = staying(list(launches))
    slowest_s = max([seconds(config, len(many)) for config in left], default=0.0)
    number = max(len(many), min(MOST_CALLS, round(STRETCH_S / max(slowest_s, SHORTEST_S))))
    draw = random.Random(seed)
    for done in range(MOST_ROUNDS):
        if over():
            break
        left = staying(left)
        if done >= ROUNDS:
            doubtful = [config for config in left if config != library and _in_doubt(taken[config], taken[library])]
            left = [library, *doubtful] if doubtful else []
        for config in draw.sample(left, len(left)):
            taken[config].append(seconds(config, number))
    timed = {c: Calls(tuple(mine), first, at) for c, mine in taken.items() if c not in failed and len(mine) >= ENOUGH}
    return {**timed, **failed}


def _again(
    launch: Callable[..., Any], many: Sequence[Sequence[Any]], through: Through | None
) -> tuple[Callable[..., Any], Sequence[Sequence[Any]]]:
    """(the shorter launch for calls that are alike, with what callers go through; the calls' arrays). Everything as it
    is given, where there is neither."""
    places = [place for place, value in enumerate(many[0]) if is_array(value)]
    rest = tuple(many[0][len(places) :])

    def first(*arrays: Any) -> Any:
        return launch(*arrays, *rest)

    def whole(*arrays: Any) -> Any:
        left = iter(arrays)
        return launch(*[next(left) if is_array(value) else value for value in many[0]])

    general = first if places == list(range(len(places))) else whole
    alone = settled(launch, many[0], general)
    if alone is None and through is None:
        return launch, many
    calls = [tuple([args[place] for place in places]) for args in many]
    return (alone or general) if through is None else through(alone or general, calls), calls


def _in_doubt(mine: Sequence[float], librarys: Sequence[float]) -> bool:
    """Whether it seems shorter by enough to serve, and may be none the less."""
    middle, _, high = paired_ratio(mine, librarys[: len(mine)])
    return middle < SHORTER and high >= 1


def _is_far(mine: Sequence[float], librarys: Sequence[float]) -> bool:
    """Whether it is slower beyond doubt, and by far."""
    return len(mine) >= ENOUGH and paired_ratio(mine, librarys[: len(mine)])[1] > FAR
