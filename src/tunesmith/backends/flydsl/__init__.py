"""Kernels in FlyDSL, for AMD's GPUs: compiled without one, in child processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

from tunesmith.backends.flydsl.kernel import FlydslExecutable, FlydslKernel

__all__ = ["FlydslExecutable", "FlydslKernel", "kernel"]


@overload
def kernel(
    source: Any, *, knobs: Sequence[str] | None = None, launch: Sequence[str] = (), name: str | None = None,
    version: str | None = None,
) -> FlydslKernel: ...  # fmt: skip
@overload
def kernel(
    *, knobs: Sequence[str] | None = None, launch: Sequence[str] = (), name: str | None = None,
    version: str | None = None,
) -> Callable[[Any], FlydslKernel]: ...  # fmt: skip
def kernel(
    source: Any = None, *, knobs: Sequence[str] | None = None, launch: Sequence[str] = (), name: str | None = None,
    version: str | None = None,
) -> FlydslKernel | Callable[[Any], FlydslKernel]:  # fmt: skip
    """A kernel in FlyDSL: what `@flyc.jit` made, or a function that builds it.

    A call gives the launcher's arguments, less the stream, which is torch's current one, and values that are compiled
    in and are no knobs: Constexpr parameters of the launcher, parameters of the build function. `waves_per_eu`,
    `fast_fp_math` and `unsafe_fp_math` are knobs of every kernel.

    Args:
        source: may be left out, to be used as a decorator.
        knobs: which Constexpr parameters are knobs, all if not given; which parameters of a build function are.
        launch: of a build function, the names of its launcher's arguments, less the stream, which is the last.
        name: the function's, if not given.
        version: stands for its content, where that can't be fingerprinted.

    Raises:
        BadInput: for what is no kernel of FlyDSL's, and for a knob that it does not have.
        MissingEngine: when FlyDSL, or torch, which it needs, is not installed.
    """
    if source is None:
        return lambda found: FlydslKernel.of(found, name, knobs, tuple(launch), version)
    return FlydslKernel.of(source, name, knobs, tuple(launch), version)
