"""`random`: Configs drawn at random: what every other strategy has to beat."""

from __future__ import annotations

from tunesmith.search.setting import Setting, Strategy

#: Configs in all when nothing else is said; the best of 100 random ones is, with 95 % probability,
#: among the best 3 % of any space (0.97 ** 100 < 0.05).
MOST = 100


def random(setting: Setting) -> Strategy:
    """Up to `most` (else `MOST`) different legal Configs, a batch at a time."""
    most = setting.most or max(MOST, len(setting.starts))
    drawn = list(dict.fromkeys([*setting.starts, *setting.space.sample(most, setting.seed)]))[:most]
    for start in range(0, len(drawn), setting.batch):
        yield drawn[start : start + setting.batch]
