"""`@autotune`: makes a kernel find its own fastest Config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from tunesmith.backends import kernel_of
from tunesmith.core.config import Config
from tunesmith.core.problem import Bucket
from tunesmith.core.space import Space, space_from
from tunesmith.declaration import Declaration, MakeInputs, SpaceLike
from tunesmith.dispatch import KeySpec
from tunesmith.errors import BadInput
from tunesmith.kernel import Clock, Default
from tunesmith.tune import Effort
from tunesmith.tuned import TunedKernel

__all__ = ["TunedKernel", "autotune"]


def autotune(
    *,
    space: SpaceLike | None = None,
    configs: Iterable[Config | Mapping[str, object]] | None = None,
    key: Sequence[str] | Callable[..., Mapping[str, object]] = (),
    default: Default | None = None,
    buckets: Mapping[str, Bucket] | None = None,
    strides: Sequence[str] = (),
    alignment: Sequence[str] = (),
    restore_value: Sequence[str] = (),
    reset_to_zero: Sequence[str] = (),
    knobs: Sequence[str] | None = None,
    dims: Sequence[str] | None = None,
    flags: Mapping[str, object] | None = None,
    make_inputs: MakeInputs | None = None,
    reference: Callable[..., Any] | None = None,
    policy: Literal["default", "lookup", "search"] | None = None,
    strategy: str = "exhaustive",
    budget_s: float | None = None,
    clock: Clock | None = None,
    version: str | None = None,
    depends: Sequence[str] = (),
    name: str | None = None,
) -> Callable[[Any], TunedKernel]:
    """Make a kernel find its own fastest Config.

    Args:
        space: the Configs worth trying, or a function of (problem, device) that returns them.
        configs: an explicit list instead of a Space.
        key: names of the arguments that decide which Config is best (sizes and flags), or a function that is
            given the call's arguments by name and returns a mapping. The dtypes of all arrays and the device
            always count.
        default: the Config (or a function of (problem, device)) used where nothing is known and nothing may
            be measured; the Space's first where not given.
        buckets: for names in `key`: `"pow2"`, a list of upper edges, or a function; sizes in one bucket share
            a Config, which was measured on the first of them that came.
        strides: arrays whose stride classes (0, 1, other) count too.
        alignment: arrays whose alignment to 16 bytes counts too.
        restore_value: arrays the kernel writes in place: put back before every launch of a search, and after it.
        reset_to_zero: arrays the kernel adds to: zeroed before every launch of a search, and as the caller left
            them when the winner runs. (triton.autotune leaves them zeroed on the call that tunes, and on no other.)
        knobs: the knobs' names, where `space` is a function and the kernel cannot say.
        dims: what a Problem written by hand needs; the names in `key` where not given.
        flags: further fields of such a Problem, with their usual values.
        make_inputs: from a Problem to the kernel's arguments by name, real random values (same ones each time).
        reference: the same computation in plain code, given the arguments by name.
        policy: this kernel's own policy; a scope or the environment overrides it.
        strategy: how a search goes through the Space.
        budget_s: seconds one search may take.
        clock: what takes the time; the device's own where not given.
        version: stands for the kernel's source in the Key, for a kernel whose source cannot be identified.
        depends: packages whose versions are compared when a stored Config is used.
        name: the kernel's name in the store and in tables; the function's own where not given.

    Returns:
        A decorator. What it returns is called like the kernel, without the knobs.

    Raises:
        BadInput: for a name that is not an argument, a Space and a list at once, contradictory lists.
    """
    if callable(space) and not isinstance(space, Space):
        if configs is not None:
            raise BadInput("give either space= or configs=, not both")
        spaces: SpaceLike = space
    else:
        spaces = space_from(space, configs)

    for what, given in (
        ("key", key), ("strides", strides), ("alignment", alignment), ("restore_value", restore_value),
        ("reset_to_zero", reset_to_zero), ("knobs", knobs), ("dims", dims), ("depends", depends),
    ):  # fmt: skip
        if isinstance(given, str):
            raise BadInput(f"{what}={given!r} is one string; give a list of names: {what}=[{given!r}]")

    def decorate(fn: Any) -> TunedKernel:
        known = tuple(knobs) if knobs is not None else spaces.knobs if isinstance(spaces, Space) else None
        kernel = kernel_of(fn, known, version=version, depends=depends, name=name)
        spec = KeySpec(
            key if callable(key) else tuple(key),
            dict(buckets or {}), tuple(strides), tuple(alignment), kernel.specialised,
        )  # fmt: skip
        declared = Declaration(
            spaces, spec, default,
            restore=tuple(restore_value), zero=tuple(reset_to_zero),
            dims=tuple(dims) if dims is not None else () if callable(key) else tuple(dict.fromkeys(key)),
            flags=dict(flags or {}), make_inputs=make_inputs, reference=reference,
            policy=policy, effort=Effort(strategy, budget_s), clock=clock,
        )  # fmt: skip
        return TunedKernel(kernel, declared, fn)

    return decorate
