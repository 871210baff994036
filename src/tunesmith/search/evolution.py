"""`evolution`: children of the fastest, a few knobs changed or mixed. Needs no package and no enumerable Space."""

from __future__ import annotations

import random

from tunesmith.core.config import Config
from tunesmith.core.outcome import Trial
from tunesmith.core.space import Space
from tunesmith.search.setting import Setting, Strategy, seconds_of

#: The first generation: random Configs beside the starts.
FOUNDERS = 16
#: The fastest so many have children.
PARENTS = 8
#: A child mixes two parents with this probability, else it is one parent changed.
MIXED = 0.3
#: A changed child takes one step with probability 1/2, two with 1/4, …, up to this many.
STEPS = 4
#: Children tried for each that is wanted; where none is new, random Configs take their places.
TRIES = 40
#: Configs in all when nothing else is said.
MOST = 256


def evolution(setting: Setting) -> Strategy:
    """The fastest so far have children until `most` (else `MOST`) Configs were asked for or nothing new is found."""
    rng = random.Random(setting.seed)
    most = setting.most or max(MOST, len(setting.starts))
    trials: dict[Config, Trial] = {}
    founders = setting.space.sample(FOUNDERS, setting.seed)
    batch = list(dict.fromkeys([*setting.starts, *founders]))[:most]
    while batch:
        trials.update(zip(batch, (yield batch), strict=True))
        batch = _children(setting, trials, min(setting.batch, most - len(trials)), rng)


def _children(setting: Setting, trials: dict[Config, Trial], wanted: int, rng: random.Random) -> list[Config]:
    timed = sorted((seconds, i, t.config) for i, t in enumerate(trials.values()) if (seconds := seconds_of(t)))
    parents = [config for _, _, config in timed[:PARENTS]]
    found: dict[Config, None] = {}
    for _ in range(TRIES * max(wanted, 0)):
        if len(found) == wanted or not parents:
            break
        child = _child(setting.space, parents, rng)
        if child not in trials:
            found[child] = None
    if len(found) < wanted:
        drawn = setting.space.sample(len(trials) + wanted, rng.randrange(1 << 30))
        found.update(dict.fromkeys(c for c in drawn if c not in trials))
    return list(found)[: max(wanted, 0)]


def _child(space: Space, parents: list[Config], rng: random.Random) -> Config:
    """One parent with a few steps taken, or two mixed; the parent itself where that is not legal."""
    # the smaller of two ranks: the fastest parent is drawn most often
    parent = parents[min(rng.randrange(len(parents)), rng.randrange(len(parents)))]
    if rng.random() < MIXED:
        other = rng.choice(parents)
        mixed = Config({knob: other[knob] if knob in other and rng.random() < 0.5 else parent[knob] for knob in parent})
        return mixed if mixed in space else parent
    child = parent
    for _ in range(STEPS):
        near = space.neighbours(child)
        if not near:
            break
        child = rng.choice(near)
        if rng.random() < 0.5:
            break
    return child
