"""`prune_configs_by` of `triton.autotune`: which Configs are worth trying for one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith.backends.triton.written import GRID
from tunesmith.errors import BadInput, unknown

#: a `top_k` that keeps all
_ALL = 1.0


@dataclass(frozen=True)
class Pruning:
    """`prune_configs_by`: checked when the kernel is decorated, applied once for each key."""

    early: Callable[..., Sequence[Any]] | None = None
    model: Callable[..., Any] | None = None
    top_k: int | float = _ALL

    @classmethod
    def of(cls, asked: Mapping[str, Any] | None, kernel: str) -> Pruning:
        asked = asked or {}
        good = ("early_config_prune", "perf_model", "top_k")
        for name in asked:
            if name not in good:
                raise BadInput(f"kernel {kernel}, prune_configs_by: {unknown('entry', name, good)}")
        top_k = asked.get("top_k", _ALL)
        fits = (type(top_k) is int and top_k >= 1) or (type(top_k) is float and 0 < top_k <= 1)
        if not fits:
            raise BadInput(
                f"kernel {kernel}, prune_configs_by: top_k={top_k!r}; good values: a number of Configs from 1, or a "
                "share of them as a float, above 0 and at most 1.0"
            )
        return cls(asked.get("early_config_prune"), asked.get("perf_model"), top_k)

    @property
    def prunes(self) -> bool:
        """Whether there is anything to do."""
        return self.early is not None or self.model is not None

    def __call__(self, configs: Sequence[Any], arguments: Mapping[str, Any], kernel: str) -> list[Any]:
        """Those of `triton.Config` objects that are worth trying with these arguments, the best by `perf_model` first.

        Raises:
            AutotunerError: when early_config_prune leaves none.
        """
        named = {name: value for name, value in arguments.items() if name not in (GRID, "warmup")}
        call = {**named, GRID: arguments.get(GRID), "warmup": False}
        kept = list(configs)
        if self.early is not None:
            kept = list(self.early(kept, named, **_taken(self.early, call)) or ())
            if not kept:
                from triton.runtime.errors import AutotunerError

                raise AutotunerError(
                    f"No valid autotuner configs after pruning: kernel {kernel}: early_config_prune left none of "
                    f"{len(configs)} Configs. It should return at least one config."
                )
        if self.model is None:
            return kept
        most = max(1, int(len(kept) * self.top_k)) if isinstance(self.top_k, float) else self.top_k
        model = self.model
        times = [(model(**call, **config.all_kwargs()), i) for i, config in enumerate(kept)]
        return [kept[i] for _, i in sorted(times)[:most]]


def _taken(prune: Callable[..., Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """What of a call's arguments a prune function takes as keywords: stock gives it those the caller named."""
    parameters = list(inspect.signature(prune).parameters.values())
    by_position = {p.name for p in parameters[:2]}
    taken = {p.name for p in parameters} - by_position
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        taken = {*call} - by_position
    return {name: value for name, value in call.items() if name in taken}
