"""`descent`: from a good start, one knob a step at a time, for as long as it gets faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from tunesmith.core.config import Config
from tunesmith.core.outcome import Trial
from tunesmith.core.space import Space
from tunesmith.search.setting import Setting, Step, Strategy, fastest, seconds_of

#: Where no start is given or none runs: so many random Configs, until one does. 64 draws miss a tenth of a
#: space with probability 0.1 %.
DRAWN = 8
DRAWS = 8


def descent(setting: Setting) -> Strategy:
    """Steepest descent: all neighbours of the best are looked at, the fastest of them is the next best.

    A neighbour differs in one knob: a step up or down an ordered axis, another value of an unordered one. Where no
    such neighbour is faster, two ordered knobs are moved together (a wider and lower tile of the same area is two
    steps away, and each alone may be slow). Nothing is asked for twice, so that failures are remembered.
    """
    trials: dict[Config, Trial] = {}
    yield from _look(setting, setting.starts, trials)
    drawn = setting.space.sample(DRAWN * DRAWS, setting.seed)
    while fastest(trials.values()) is None:
        batch, drawn = drawn[:DRAWN], drawn[DRAWN:]
        if not batch or _left(setting, trials) == 0:
            return
        yield from _look(setting, batch, trials)
    here = fastest(trials.values())
    assert here is not None
    setting.say(Step(here.config, seconds_of(here) or 0.0, tried=len(trials), note="start"))
    yield from _climb(setting, here, trials)


def _climb(setting: Setting, here: Trial, trials: dict[Config, Trial]) -> Strategy:
    while True:
        for near in (setting.space.neighbours(here.config), list(paired(setting.space, here.config))):
            yield from _look(setting, near, trials)
            best = fastest(trials.values())
            assert best is not None
            if best.config != here.config:
                break
        before_s, after_s = seconds_of(here) or 0.0, seconds_of(best) or 0.0
        if best.config == here.config:
            over = "the budget ended" if _left(setting, trials) == 0 else "no neighbour faster"
            setting.say(Step(here.config, before_s, tried=len(trials), note=over))
            return
        setting.say(Step(best.config, after_s, before_s / after_s, changed(here.config, best.config), len(trials)))
        here = best


def _look(setting: Setting, configs: list[Config] | tuple[Config, ...], trials: dict[Config, Trial]) -> Strategy:
    """Ask for those that have not been asked for, as far as one may."""
    new = [config for config in dict.fromkeys(configs) if config not in trials]
    new = new[: _left(setting, trials)]
    if new:
        answers = yield new
        trials.update(zip(new, answers, strict=True))


def _left(setting: Setting, trials: Mapping[Config, Trial]) -> int | None:
    """How many more may be asked for, `None` for no limit."""
    return None if setting.most is None else setting.most - len(trials)


def paired(space: Space, config: Config) -> Iterator[Config]:
    """The legal Configs where two ordered knobs have each moved one step, up or down."""
    steps = {
        knob: axis.neighbours(value)
        for knob, value in config.items()
        if (axis := space.axis(knob)).ordered and len(axis.values) > 1
    }
    for one, other in combinations(steps, 2):
        for first in steps[one]:
            for second in steps[other]:
                moved = config.replace(**{one: first, other: second})
                if moved in space:
                    yield moved


def changed(old: Config, new: Config) -> tuple[tuple[str, object, object], ...]:
    """(knob, value before, value now) of each knob that differs; a knob that is not there counts as `None`."""
    return tuple(
        (knob, old.get(knob), new.get(knob))
        for knob in sorted({*old, *new})
        if Config({knob: old.get(knob)}) != Config({knob: new.get(knob)})
    )
