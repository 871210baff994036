"""`tunesmith kernels`: what is shipped."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from tunesmith.cli.output import AsJson, print_json
from tunesmith.cli.problems import example
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space

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
        print_json("kernels", {"kernels": [{"name": name, **describe(kernel)} for name, kernel in shipped]})
        return
    from tunesmith.report.terminal import print_facts

    for name, kernel in shipped:
        print_facts(name, list(_lines(kernel)))


def _lines(kernel: TunedKernel) -> Iterator[tuple[str, str]]:
    """What people read of a kernel, by heading."""
    facts = describe(kernel)
    yield "does", facts["does"] or "–"
    yield "problem", example(kernel)
    if facts["flags"]:
        yield "flags", Problem(facts["flags"]).text
    yield "dtypes", "; ".join(f"{array}: {', '.join(good)}" for array, good in facts["dtypes"].items()) or "any"
    if isinstance(kernel.space, Space):
        for knob in kernel.space.knobs:
            yield f"  {knob}", str(kernel.space.axis(knob))
    yield "space", _size(facts)


def describe(kernel: TunedKernel) -> dict[str, Any]:
    """A kernel in plain words and numbers; what depends on the problem is `None` or empty."""
    space = kernel.space if isinstance(kernel.space, Space) else None
    does = inspect.cleandoc(kernel.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return {
        "does": does,
        "backend": kernel.kernel.backend,
        "dims": list(kernel.dims),
        "flags": dict(kernel.flags),
        "dtypes": {array: list(good) for array, good in kernel.kernel.dtypes().items()},
        "knobs": {} if space is None else {knob: list(islice(space.axis(knob).values, LISTED)) for knob in space.knobs},
        "points": None if space is None else space.cardinality,
        "configs": None if space is None or space.cardinality > COUNTED else space.size,
    }


def _size(fact: dict[str, Any]) -> str:
    if fact["points"] is None:
        return "depends on the problem"
    if fact["configs"] is None:
        return f"{fact['points']:,} points"
    return f"{fact['points']:,} points, {fact['configs']:,} of them legal"
