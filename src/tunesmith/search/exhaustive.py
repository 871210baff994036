"""`exhaustive`: the whole Space in one batch; the race decides how much time each Config gets."""

from __future__ import annotations

from tunesmith.core.space import ENUMERATED
from tunesmith.errors import BadInput
from tunesmith.search.setting import Setting, Strategy


def exhaustive(setting: Setting) -> Strategy:
    """Every legal Config, in the Space's order (the starts before the rest where not all may be asked for).

    Raises:
        BadInput: for a Space that is too large to enumerate.
    """
    space = setting.space
    if space.cardinality > ENUMERATED:
        raise BadInput(
            f"the Space has {space.cardinality:.3g} points, and strategy 'exhaustive' goes through at most "
            f"{ENUMERATED}; use strategy 'auto'"
        )
    legal = list(space)
    if setting.most is not None and setting.most < len(legal):
        legal = list(dict.fromkeys([*setting.starts, *legal]))[: setting.most]
    if legal:
        yield legal
