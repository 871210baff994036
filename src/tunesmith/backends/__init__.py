"""Kernel languages, one file each: which one a kernel is of, and which of them work here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tunesmith.errors import BadInput, MissingEngine
from tunesmith.kernel import Kernel

#: what a Kernel has and no other object of a user's
_KERNEL_METHODS = ("compile_job", "load", "fingerprint", "device", "signature")


@dataclass(frozen=True, slots=True)
class BackendState:
    """Whether a kernel language works here.

    Attributes:
        why: what was found, or what is missing.
        command: what to type to make it work; empty if it does, or nothing helps.
    """

    name: str
    works: bool
    why: str
    command: str = ""


def kernel_of(
    obj: object,
    knobs: Iterable[str] | None = None,
    *,
    name: str | None = None,
    version: str | None = None,
    depends: Sequence[str] = (),
) -> Kernel:
    """The Kernel that an object is, or that a callable becomes.

    Args:
        obj: a Kernel, what `@triton.jit` or `@flyc.jit` made, or any callable.
        knobs: which of its parameters are knobs: those of its Space. Of a Triton kernel compiler options too.
        name: its own if not given.
        version: stands for a callable's content, where that can't be fingerprinted.
        depends: packages whose versions belong to what is stored with a callable's results.

    Raises:
        BadInput: for an object that can't be launched, or a knob that it does not take.
    """
    from tunesmith.backends.call import CallableKernel

    if all(hasattr(obj, name) for name in _KERNEL_METHODS) and not isinstance(obj, type):
        kernel: Kernel = obj  # pyright: ignore[reportAssignmentType]
        for said, what in ((name, "name"), (version, "version"), (depends, "depends")):
            if said:
                raise BadInput(f"{kernel.name} is a {kernel.backend} kernel: give {what}= where it is made")
        return kernel
    if type(obj).__module__.startswith("triton."):
        from tunesmith.backends.triton.kernel import TritonKernel

        return TritonKernel(obj, frozenset(knobs or ()), name=name, version=version, depends=depends)
    if type(obj).__module__.startswith("flydsl."):
        from tunesmith.backends.flydsl.kernel import FlydslKernel

        return FlydslKernel.of(obj, name, knobs if knobs is None else list(knobs), (), version)
    if hasattr(obj, "_dsl_cls"):
        from tunesmith.backends import cute

        if cute.is_host_function(obj):
            host = cast("Callable[..., Any]", obj)
            known = None if knobs is None else tuple(knobs)
            return cute.kernel(host, knobs=known, name=name, version=version, depends=depends)
    if not callable(obj) and not hasattr(obj, "run"):
        raise BadInput(
            f"{obj!r} of type {type(obj).__name__} is no kernel; "
            "good ones: a Python callable, what @triton.jit, @cute.jit, tunesmith.cc.kernel, tunesmith.cuda.kernel or "
            "tunesmith.flydsl.kernel returns"
        )
    own = None if knobs is None else frozenset(knobs)
    return CallableKernel(cast("Callable[..., Any]", obj), own, name=name, version=version, depends=depends)


def describe() -> list[BackendState]:
    """Every kernel language and whether it works here. Asks the C compiler for its version."""
    from tunesmith.backends.c_compiler import compiler

    try:
        found = compiler()
        cc = BackendState("cc", True, f"{found.version} ({' '.join(found.argv)})")
    except MissingEngine as error:
        why, _, command = str(error).rpartition(": ")
        cc = BackendState("cc", False, why, command)
    return [
        cc,
        BackendState("callable", True, "Python"),
        _triton(),
        _cuda(),
        _cute(),
        _flydsl(),
    ]


def _triton() -> BackendState:
    """Whether Triton is there; a GPU is needed only to launch. Imports neither it nor torch."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str] = {}
    for package in ("triton", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            return BackendState("triton", False, f"{package} is not installed", f"pip install {package}")
    return BackendState("triton", True, ", ".join(f"{package} {number}" for package, number in found.items()))


def _cute() -> BackendState:
    """Whether CuTe DSL is there; a GPU is needed only to launch. Does not import it."""
    from tunesmith.backends.cute.compile import versions

    try:
        found = ", ".join(f"{package} {number}" for package, number in versions().items())
    except MissingEngine as error:
        why, _, command = str(error).rpartition(": ")
        return BackendState("cute", False, why, command)
    return BackendState("cute", True, f"{found}{_launches()}")


def _launches() -> str:
    """What is said of a language that compiles here, where nothing can be launched; empty where it can."""
    from tunesmith.backends.cuda.driver import device_count, driver

    try:
        driver()
        return f", {device_count()} GPUs"
    except MissingEngine as error:
        return f"; compiles, and launches nothing: {str(error).partition('; ')[0]}"


def _cuda() -> BackendState:
    """Whether NVRTC is there, which compiles; a driver and a GPU are needed only to launch."""
    from tunesmith.backends.cuda.compile import nvrtc_version

    try:
        compiles = f"NVRTC {nvrtc_version()}"
    except MissingEngine as error:
        why, _, command = str(error).rpartition(": ")
        return BackendState("cuda", False, why, command)
    return BackendState("cuda", True, f"{compiles}{_launches()}")


def _flydsl() -> BackendState:
    """Whether FlyDSL is there, and what links its binaries; a GPU is needed only to launch. Imports neither it nor
    torch."""
    from importlib.metadata import PackageNotFoundError, version

    from tunesmith.backends.flydsl.toolkit import INSTALL, linker

    found: list[str] = []
    for package in ("flydsl", "torch"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            return BackendState("flydsl", False, f"{package} is not installed", INSTALL)
    try:
        how, _ = linker()
    except MissingEngine as error:
        why, _, command = str(error).rpartition(": ")
        return BackendState("flydsl", False, why, command)
    return BackendState("flydsl", True, f"{', '.join(found)}, linked by {how}; launching needs an AMD GPU")
