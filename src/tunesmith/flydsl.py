"""FlyDSL: kernels for AMD's GPUs; its own `autotune`'s arguments, its artifacts and aiter's rows, as ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tunesmith.api import TunedKernel
from tunesmith.api import autotune as tuned_by
from tunesmith.backends.flydsl import FlydslKernel, kernel
from tunesmith.backends.flydsl.asked import array_names, config_of, configs_of, default_of, key_of, knobs_among
from tunesmith.backends.flydsl.tables import Artifacts, aiter_rows, artifacts, knobs_of
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import BadInput

__all__ = [
    "Artifacts", "FlydslKernel", "aiter_rows", "artifacts", "autotune", "config_of", "kernel", "knobs_of",
]  # fmt: skip

#: the folder of FlyDSL's own offline configurations
_FOLDER = "FLYDSL_AUTOTUNE_CONFIG_DIR"
#: options of FlyDSL's that are not taken → what to say instead
_INSTEAD: Mapping[str, str] = {
    "pre_hook": "use reset_to_zero= or restore_value=, or do it in a function that calls the kernel",
    "post_hook": "do it in a function that calls the kernel",
    "do_bench": "give clock=, an object or the name of a way of timing",
    "validate_hook": "give reference=: the same computation in plain code, with which each candidate is compared",
    "select_config": "give margin=, within which Configs are as good, and pick=, which of them wins",
}


def autotune(
    configs: Iterable[Any] | Callable[..., Iterable[Any]],
    key: Sequence[str] | None = None,
    warmup: int = 5,
    rep: int = 25,
    prune_configs_by: Callable[..., Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    do_bench: Callable[..., Any] | None = None,
    default: Callable[..., Any] | None = None,
    artifact_name: str | None = None,
    validate_hook: Callable[..., Any] | None = None,
    select_config: Callable[..., Any] | None = None,
    *,
    knobs: Sequence[str] | None = None,
    strides: Sequence[str] | None = None,
    name: str | None = None,
    version: str | None = None,
    **ours: Any,
) -> Callable[[Any], TunedKernel]:
    """`flydsl.autotune.autotune`, tuned by us: for what `@flyc.jit` made.

    Args:
        configs: its Configs, ours, or a function of a call's arguments that returns some.
        key: as there; of an array its shape counts. What the Key has besides: source, chip, compiler, environment,
            dtypes and stride classes of all arrays.
        warmup, rep: taken and not needed: candidates are raced until one has won.
        default: a function of a call's arguments, or a Config: what is used where nothing is known and nothing may be
            measured; a search tries it too. Functions of arguments are given stand-ins, which know what `key` says.
        artifact_name: of FlyDSL's offline configurations: those in `$FLYDSL_AUTOTUNE_CONFIG_DIR` are read as a table.
        knobs: which Constexpr parameters are knobs, where `configs` is a function: those not in `key` if not given.
        strides: arrays whose stride classes count; all if not given.
        name, version: as of `kernel`.
        ours: what `tunesmith.autotune` takes beside.

    Raises:
        BadInput: for an option that is not taken: says what to give instead.
    """
    given = {
        "pre_hook": pre_hook, "post_hook": post_hook, "do_bench": do_bench, "validate_hook": validate_hook,
        "select_config": select_config,
    }  # fmt: skip
    for option, value in given.items():
        if value is not None:
            raise BadInput(f"{option}= of FlyDSL's autotune is not taken: {_INSTEAD[option]}")
    listed = configs if callable(configs) else list(configs)
    names = tuple(key or ())

    def decorate(fn: Any) -> TunedKernel:
        whole = kernel(fn)
        chosen = knobs if knobs is not None else knobs_among(listed, names, sorted(whole.parameters.knobs))
        made = kernel(fn, knobs=chosen, name=name, version=version)
        tried = configs_of(made, listed, prune_configs_by)

        heuristic = None if default is None else default_of(made, default)

        def space(problem: Problem, device: Device) -> Space:
            found = tried(problem)
            usual = [] if heuristic is None else [heuristic(problem)]  # which need not be among the others
            return Space.of(found + [config for config in usual if config not in found])

        def usual_for(problem: Problem, device: Device) -> Config:
            assert heuristic is not None
            return heuristic(problem)

        tuned = tuned_by(
            space=space, key=key_of(made, names), default=None if heuristic is None else usual_for,
            reset_to_zero=reset_to_zero, restore_value=restore_value,
            strides=array_names(made) if strides is None else strides, knobs=sorted(made.knobs), **ours,
        )(made)  # fmt: skip
        folder = os.environ.get(_FOLDER)
        if artifact_name is not None and folder:
            tuned.use_table(artifacts(folder, artifact_name))
        return tuned

    return decorate
