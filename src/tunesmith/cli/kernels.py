"""`tunesmith kernels`: what is shipped."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from tunesmith.cli.output import AsJson, print_json
from tunesmith.cli.problems import example, example_sizes
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import MissingEngine

if TYPE_CHECKING:
    from tunesmith.tuned import TunedKernel

#: Above so many points a Space is not enumerated for its size.
COUNTED = 100_000
#: Of a knob's values so many are listed in the JSON document (a permutation of 12 items has 479 million).
LISTED = 64


def kernels(json: AsJson = False) -> None:
    """List the kernels that are shipped: what they do, their problems, their knobs, the size of their space."""
    from tunesmith import kernels as package

    shipped = sorted(package.shipped().items())
    if json:
        print_json("kernels", {"kernels": [{"name": name, **describe(name, kernel)} for name, kernel in shipped]})
        return
    from tunesmith.report.terminal import print_facts

    for name, kernel in shipped:
        print_facts(name, list(_lines(name, kernel)))


def describe(name: str, kernel: TunedKernel) -> dict[str, Any]:
    """A shipped kernel in plain words and numbers; what is not known on this machine is `None`."""
    space = _space(kernel)
    axes = {} if space is None else {knob: space.axis(knob).values for knob in space.knobs}
    return {
        "does": _does(name),
        "backend": kernel.kernel.backend,
        "dims": list(kernel.dims),
        "flags": dict(kernel.flags),
        "dtypes": {array: list(good) for array, good in kernel.kernel.dtypes().items()},
        "example": example_sizes(kernel),
        "knobs": {knob: list(islice(values, LISTED)) for knob, values in axes.items()},
        "points": None if space is None else space.cardinality,
        "configs": None if space is None or space.cardinality > COUNTED else space.size,
    }


def _does(name: str) -> str:
    """What stands behind the name in the first line of the kernel's module."""
    first = (import_module(f"tunesmith.kernels.{name}").__doc__ or "").partition("\n")[0]
    return first.partition(": ")[2] or first


def _space(kernel: TunedKernel) -> Space | None:
    """Its Space; where that depends on the problem, for the example and the device at hand, if there is one."""
    if isinstance(kernel.space, Space):
        return kernel.space
    try:
        device = kernel.kernel.device([])
    except MissingEngine:
        return None
    return kernel.space(kernel.problem(example_sizes(kernel)), device)


def _lines(name: str, kernel: TunedKernel) -> Iterator[tuple[str, str]]:
    """What people read of a kernel, by heading."""
    facts, space = describe(name, kernel), _space(kernel)
    yield "does", facts["does"]
    yield "problem", example(kernel)
    if facts["flags"]:
        yield "flags", ", ".join(Problem({name: value}).text for name, value in facts["flags"].items())
    yield "dtypes", "; ".join(f"{array}: {', '.join(good)}" for array, good in facts["dtypes"].items()) or "any"
    if space is None:
        yield "space", "depends on a device that is not here"
        return
    for knob in space.knobs:
        yield f"  {knob}", str(space.axis(knob))
    where = "" if isinstance(kernel.space, Space) else " (for the problem above on this device)"
    legal = "" if facts["configs"] is None else f", {facts['configs']:,} of them legal"
    yield "space", f"{facts['points']:,} points{legal}{where}"
