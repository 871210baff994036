"""`auto`: the default; picks a strategy by the size of the Space and the budget."""

from __future__ import annotations

import warnings

from tunesmith.core.space import ENUMERATED
from tunesmith.errors import MissingEngine, TunesmithWarning
from tunesmith.search.evolution import evolution
from tunesmith.search.exhaustive import exhaustive
from tunesmith.search.setting import Setting, Strategy
from tunesmith.search.surrogate import surrogate

#: A Space of so many Configs is raced whole where nothing limits the search: minutes of compiling, and no doubt left.
WHOLE = 512


def auto(setting: Setting) -> Strategy:
    """`exhaustive` where the whole Space is in reach, else `surrogate`, or `evolution` where numpy is not there."""
    space, reach = setting.space, setting.most if setting.most is not None else WHOLE
    if space.cardinality <= ENUMERATED and space.size <= reach:
        return exhaustive(setting)
    try:
        return surrogate(setting)
    except MissingEngine as error:
        warnings.warn(f"{error}; the Space is searched by 'evolution' meanwhile", TunesmithWarning, stacklevel=2)
        return evolution(setting)
