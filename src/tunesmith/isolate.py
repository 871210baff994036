"""Whether the candidates of a search can run in a worker, and the `Recipe` by which one makes them anew."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from typing import Any

from tunesmith.answering import is_guarded
from tunesmith.core.problem import Problem
from tunesmith.declaration import Declaration
from tunesmith.dispatch import dtype_name, is_array
from tunesmith.errors import BadInput, ProblemError, TunesmithWarning
from tunesmith.inputs import problem_of
from tunesmith.measure.packing import why_not_packed
from tunesmith.options import options
from tunesmith.remote import Recipe
from tunesmith.subject import Subject
from tunesmith.targets import target_of


class Isolation:
    """Of one kernel: where it is found by another process, and what is said where it is not.

    Args:
        kernel: the tuned kernel that a target names. declared: what its author said, knobs held at one value included.
    """

    def __init__(self, kernel: object, declared: Declaration) -> None:
        self._kernel, self._declared = kernel, declared
        self._target: tuple[str, str] | None = None
        self._warned = False

    def of_fixed(self, declared: Declaration) -> Isolation:
        """That of the kernel with more knobs held at one value: it is found as this one is."""
        return Isolation(self._kernel, declared)

    def of(self, subject: Subject, wanted: bool | None = None) -> Subject:
        """A Subject whose candidates run in a worker where that is wanted and can be, which is decided when a search
        begins.

        Args:
            wanted: as of `autotune`; what was said there if not given.
        """
        asked = self._declared.isolate if wanted is None else wanted
        return replace(subject, recipe=lambda: self.recipe(subject, asked))

    def recipe(self, subject: Subject, wanted: bool | None) -> Recipe | None:
        """What a worker needs for a search; `None` where candidates run in this process.

        Args:
            wanted: required, not wanted, or (`None`) for a GPU where possible, with one warning where it is not.

        Raises:
            BadInput: when it is required and can't be: says why.
        """
        if wanted is False or (wanted is None and subject.device.kind == "cpu") or is_guarded():
            return None
        why = self.why_not(subject)
        if not why:
            return self._recipe(subject, required=wanted is True)
        name = self._declared.name_for(subject.kernel.name)
        if wanted:
            raise BadInput(
                f"{name} can't be tuned in a worker: {why}; isolate=False (--no-isolate) runs candidates here"
            )
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{name}: candidates run in this process, as {why}. One that hangs stops the program, and one that "
                "reads or writes where it may not ends it or leaves the GPU unusable; isolate=False accepts that",
                TunesmithWarning, stacklevel=2,
            )  # fmt: skip
        return None

    def why_not(self, subject: Subject) -> str:
        """Why no worker can make this search's candidates; empty if one can."""
        if sys.platform == "win32":
            return "workers need POSIX signals"
        if self._declared.make_inputs is None:
            return "it has no make_inputs="
        if self._target is None:
            self._target = target_of(self._kernel)
        _, why = self._target
        if why:
            return why
        try:
            problem, made = self._asked(subject), self._declared.make_inputs
        except ProblemError as error:
            return f"make_inputs can't be asked for this call: {error}"
        for name, value in subject.arguments.items():
            # only what can't be sent is a reason to make inputs here just to see what there is
            why = why_not_packed(name, value, made_there=False)
            if why and name not in made(problem):
                return why
        return ""

    def _recipe(self, subject: Subject, required: bool) -> Recipe:
        assert self._target is not None
        memory_gb = options().memory_gb
        return Recipe(
            self._target[0], self._declared.fixed, subject.key, self._asked(subject), subject.arguments,
            _current_gpu(subject), options().run_timeout_s,
            None if memory_gb is None else int(memory_gb * 1024**3), required,
        )  # fmt: skip

    def _asked(self, subject: Subject) -> Problem:
        """A call's Problem as `make_inputs` is asked for it: dimensions, dtypes, flags."""
        declared, arguments = self._declared, subject.arguments
        known = {**arguments, **subject.exact}
        fields: dict[str, Any] = {name: known[name] for name in (*declared.dims, *declared.flags) if name in known}
        arrays = {name: dtype_name(value) for name, value in arguments.items() if is_array(value)}
        fields |= {f"{name}.dtype": dtype for name, dtype in arrays.items()}
        floats = {dtype for dtype in arrays.values() if "float" in dtype}
        if len(floats) == 1 and not subject.kernel.dtypes():
            fields["dtype"] = floats.pop()
        return problem_of(subject.kernel, declared, Problem(fields))


def _current_gpu(subject: Subject) -> int | None:
    torch = sys.modules.get("torch")
    if subject.device.kind == "cpu" or torch is None or not torch.cuda.is_available():
        return None
    return int(torch.cuda.current_device())
