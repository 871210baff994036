"""Problems that a user writes by hand, and the arguments that a kernel's `make_inputs` makes of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tunesmith.core.problem import Problem, complete
from tunesmith.declaration import Declaration
from tunesmith.dispatch import Dispatcher, dtype_name, is_array
from tunesmith.errors import WITHOUT_GPU, BadInput, unknown
from tunesmith.kernel import Kernel
from tunesmith.measure.failure import attempt


def problem_of(kernel: Kernel, declared: Declaration, text: str | Problem) -> Problem:
    """A Problem written by hand (`M=512,N=512,K=512,dtype=float32`), checked and completed.

    Raises:
        ProblemError: naming the bad field and the good ones.
    """
    given = Problem.parse(text) if isinstance(text, str) else text
    dtypes = kernel.dtypes()
    return complete(given, declared.dims, tuple(dtypes), dtypes, declared.flags)


def typed(kernel: Kernel, declared: Declaration, problem: Problem) -> Problem:
    """A call's Problem as one would type it: without what is no dimension, flag or dtype that can be asked for
    (strides, alignment, arguments that are `None`)."""
    arrays = kernel.dtypes()

    def can_be_asked_for(name: str) -> bool:
        array, dot, last = name.rpartition(".")
        return name in declared.dims or name in declared.flags or bool(
            dot and last == "dtype" and (not arrays or array in arrays)
        )  # fmt: skip

    return Problem({name: value for name, value in problem.items() if can_be_asked_for(name)})


def make_inputs(
    kernel: Kernel, declared: Declaration, dispatcher: Dispatcher, problem: str | Problem
) -> dict[str, Any]:
    """Arguments by name for a Problem.

    Raises:
        BadInput: when the kernel was declared without `make_inputs`, or it makes the wrong arguments.
    """
    if declared.make_inputs is None:
        raise BadInput(
            f"{kernel.name} has no inputs of its own: pass make_inputs= to autotune, "
            "a function from a Problem to the arguments by name"
        )
    make, asked = declared.make_inputs, problem_of(kernel, declared, problem)
    made, failure, error = attempt("launch", lambda: dict(make(asked)))
    if isinstance(error, BadInput):
        raise error
    if made is None or failure is not None:
        assert failure is not None
        hint = f"; {WITHOUT_GPU}" if kernel.backend == "triton" and _no_gpu() else ""
        raise BadInput(f"{kernel.name}: make_inputs({asked}) failed: {failure.reason}{hint}") from error
    parameters = kernel.signature.parameters
    for given in made:
        if given not in parameters:
            raise BadInput(f"{kernel.name}: make_inputs made {unknown('argument', given, parameters)}")
    opaque = dict.fromkeys(declared.spec.opaque)  # a grid may be the caller's to give
    _check(kernel.name, dispatcher, asked, made, opaque)
    return made


def _no_gpu() -> bool:
    """Whether a program that has torch has no GPU for it."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and not torch.cuda.is_available()


def _check(
    kernel: str, dispatcher: Dispatcher, asked: Problem, made: Mapping[str, Any], opaque: Mapping[str, None]
) -> None:
    """Refuse inputs that are not those asked for: they would be tuned under a wrong name."""
    try:
        exact = dispatcher.problem_of(**{**opaque, **made}).exact
    except TypeError as error:
        raise BadInput(f"{kernel}: what make_inputs made is no call of it: {error}") from None
    for name in asked:
        if name in exact and exact[name] != asked[name]:
            raise BadInput(f"{kernel}: {name}={asked[name]} was asked for, and make_inputs made {name}={exact[name]}")
    got = {name: dtype_name(value) for name, value in made.items() if is_array(value)}
    for field, dtype in asked.items():
        name, dot, last = field.rpartition(".")
        mine = [got[name]] if dot and name in got else list(got.values()) if field == "dtype" else []
        if last == "dtype" and mine and dtype not in mine:
            raise BadInput(f"{kernel}: {field}={dtype} was asked for, and make_inputs made {', '.join(mine)}")
