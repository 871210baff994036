"""What the store knows of a kernel as problems that can be asked for again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunesmith.core.key import Key
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput

if TYPE_CHECKING:
    from tunesmith.tuned import TunedKernel


def stored_problems(kernel: TunedKernel) -> tuple[list[Problem], list[tuple[Key, str]]]:
    """The problems of a kernel that have a Choice for its source of today, and those that can't be asked for, and why.

    What is stored for other sources is history, and in neither list.
    """
    from tunesmith.store import default_store

    store, now = default_store(), fingerprint(kernel)
    found: list[Problem] = []
    left: list[tuple[Key, str]] = []
    for key in store.keys(name(kernel)):
        stored = store.choice(key)
        if stored is None or key.fingerprint != now:
            continue
        try:
            problem = typed(kernel, stored.choice.measured_at or key.problem)
            differences = key.differences(key_of(kernel, kernel.inputs(problem)))
        except BadInput as error:
            left.append((key, f"make_inputs cannot make its arguments: {error}"))
            continue
        if not differences:
            found.append(problem)
        elif not _of_another_device(differences):
            left.append((key, f"what make_inputs makes is another key: {'; '.join(differences)}"))
    return found, left


def _of_another_device(differences: list[str]) -> bool:
    return any(difference.startswith("device: ") for difference in differences)


def name(kernel: TunedKernel) -> str:
    """The kernel's name in a Key."""
    return kernel.declared.name_for(kernel.kernel.name)


def fingerprint(kernel: TunedKernel) -> str:
    """Its source, as a Key names it."""
    return kernel.kernel.fingerprint() + kernel.declared.spec_fingerprint


def key_of(kernel: TunedKernel, arguments: Mapping[str, Any]) -> Key:
    """The Key of a call."""
    key, _, _ = kernel.explanation(**arguments)
    return key


def typed(kernel: TunedKernel, problem: Problem) -> Problem:
    """A Key's Problem as one would type it: without what follows from the arguments (strides, alignment).

    Raises:
        ProblemError: for one that the kernel does not take (a bucket that is no number).
    """
    mine = {name: value for name, value in problem.items() if name in kernel.dims or name in kernel.flags}
    dtypes = {name: value for name, value in problem.items() if name.endswith(".dtype")}
    return kernel.problem(Problem({**mine, **dtypes}))
