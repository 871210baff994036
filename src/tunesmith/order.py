"""In which order a search compiles Configs: the likely fast come first, as a budget may end before the rest.

1. What is known already and is raced beside what is new.
2. The kernel's default: what its author says, and what serves until something better is known.
3. What searches of the nearest Problems of this kernel chose, on this kind of device.
4. The others: in the order of a performance model where there is one, else shuffled, so that a search which is cut
   short has seen something of every part of the Space, and not the first values of its first axis.

No GPU is asked, and nothing is left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from tunesmith.core.config import Config
from tunesmith.core.model import queue
from tunesmith.store import Store
from tunesmith.subject import Predict, Subject

#: The nearest Problem may be far off in another direction than the second: a few compilations, to begin among the best.
NEIGHBOURS = 3


def promising(
    subject: Subject, default: Callable[[], Config], store: Store, advised: Sequence[Config] = ()
) -> list[Config]:
    """The Configs to begin with: those that were advised, the default, and the winners of the nearest Problems, as far
    as the Space has them."""
    near = [store.choice(key) for key in store.near(subject.key, NEIGHBOURS)]
    found = dict.fromkeys([*advised, default(), *[stored.choice.config for stored in near if stored is not None]])
    return [config for config in found if config in subject.space]


def most_promising_first(
    batch: Iterable[Config], first: Sequence[Config], seed: int | None, predict: Predict | None = None,
    bound: int | None = None,
) -> list[Config]:  # fmt: skip
    """A batch in the order in which it is compiled.

    Args:
        first: those that come first, where they are of the batch.
        seed: shuffles the others; `None` leaves them in their order.
        predict: puts the others in a model's order. What it cuts comes last, what it calls equal stays shuffled.
        bound: with a model, how many Configs to compile; `None` for all.
    """
    others = dict.fromkeys(batch)
    ahead = [config for config in first if config in others]
    rest = [config for config in others if config not in ahead]
    if seed is not None:
        random.Random(seed).shuffle(rest)
    if predict is not None:
        predictions = {config: predict(config, None) for config in rest}
        ranked = queue(predictions, None if bound is None else max(1, bound - len(ahead)))
        rest = [*ranked.tried, *[config for config, found in predictions.items() if found is not None and found.cut]]
    return [*ahead, *rest]
