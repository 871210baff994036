"""`Check`: what a kernel's results are checked against; `Checker`: does so for the candidates of one search.

A candidate is launched on copies of the call's arguments, which alias each other as these do, with its outputs
poisoned. What floats hold differs from one check to the next, where that costs little.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed
from tunesmith.dispatch.arguments import leaves
from tunesmith.errors import BadInput, FingerprintError
from tunesmith.fingerprint import of_function
from tunesmith.kernel import Around, Executable
from tunesmith.measure.expected import BadReference, OtherOutputs, expected, returned_arrays
from tunesmith.measure.failure import attempt
from tunesmith.measure.memory import (
    Twin,
    clusters,
    copied,
    distinct,
    fill,
    first_of_repeated,
    has_content,
    is_torch,
    place_of,
    readable,
    same_bytes,
    span_of,
    too_much,
    write,
)
from tunesmith.measure.verify import (
    RETURNED,
    Allowed,
    Tolerance,
    allowed_for,
    differs,
    is_float,
    poison,
    spelled,
    wrong,
)

#: Inputs and what the reference makes of them are made anew for each check while that takes no longer than this, or
#: than this part of the search so far; then two sets take turns.
FRESH_S, FRESH_PART = 20e-3, 0.1


@dataclass(frozen=True)
class Check:
    """What the results of a kernel are checked against.

    Attributes:
        reference: the same computation in plain code, given the arguments by name; `None`: candidates are compared
            with each other, and none fails by that.
        outputs: arguments that the kernel writes; empty: what it returns, or what is found to be written.
        tolerance: instead of what the dtypes allow.
        deterministic: whether two launches on the same inputs have to give the same bytes.
    """

    reference: Callable[..., Any] | None = None
    outputs: tuple[str, ...] = ()
    tolerance: Tolerance | None = None
    deterministic: bool = False

    @property
    def wanted(self) -> bool:
        """Whether there is anything to check."""
        return self.reference is not None or bool(self.outputs) or self.deterministic

    @cached_property
    def identity(self) -> str:
        """What a Choice that passed was checked against: another reference, tolerance or set of outputs has another.

        Empty without a reference. One whose content can't be identified has another in each process.
        """
        if self.reference is None:
            return ""
        try:
            known = of_function(self.reference)
        except FingerprintError:
            known = f"unidentified {uuid.uuid4().hex[:8]}"
        parts = [f"reference {known}", f"tolerance {spelled(self.tolerance)}"]
        parts += [f"outputs {','.join(self.outputs)}"] if self.outputs else []
        return "; ".join([*parts, *(["deterministic"] if self.deterministic else [])])


@dataclass
class _Set:
    """Inputs by name, and what the reference makes of them, by output."""

    inputs: Twin
    expected: dict[str, Any] | None = None


class Checker:
    """Checks the candidates of one search.

    Args:
        kernel: its name. check: what was declared.
        arguments: the call's, by name. restore, zero: those written in place, and those zeroed before a launch.
        fresh: from a number above 0, arguments by name whose floats have other content; `None` where the author says
            nothing of it.
        around: makes, of arguments by name, what is done around each launch.

    Attributes:
        notes: what a reader of the Choice should know.
        changed: arguments that some candidate has written, and that are no outputs.
    """

    def __init__(
        self, kernel: str, check: Check, arguments: Mapping[str, Any], restore: Sequence[str] = (),
        zero: Sequence[str] = (), fresh: Callable[[int], Mapping[str, Any]] | None = None,
        around: Callable[[Mapping[str, Any]], Around] | None = None,
    ) -> None:  # fmt: skip
        self._kernel, self._check, self._arguments = kernel, check, arguments
        self._restore, self._zero, self._fresh, self._around = restore, zero, fresh, around
        self._names: tuple[str, ...] | None = check.outputs or None  # of arguments that are written
        self._sets: list[_Set] = []
        self._made, self._making_s, self._since = 0, 0.0, perf_counter()
        self._work: Twin | None = None
        self._model: tuple[Config, dict[str, Any]] | None = None  # without a reference: whom the others should equal
        self._skips: str | None = None
        self.notes: list[str] = []
        self.changed: list[str] = []

    def judge(self, executable: Executable, written: Sequence[str] = ()) -> tuple[Failed | None, bool]:
        """Check one candidate.

        The call's arguments must be as the caller left them; they stay so.

        Args:
            written: arguments that were found to be written, for a kernel that does not declare its outputs.

        Returns:
            (what is wrong with it, whether it was compared with the reference's results).

        Raises:
            BadInput: when the reference fails, or does not return what it should.
        """
        if self._skipped():
            return None, False
        result, failure, error = attempt("launch", lambda: self._launched(executable, written))
        if isinstance(error, BadReference):
            raise BadInput(str(error)) from error.__cause__
        if failure is not None or result is None:
            return failure, False
        texts, compared = result
        return (Failed("wrong", texts[0], "\n".join(texts[1:])) if texts else None), compared

    def _skipped(self) -> bool:
        """Whether there is no memory for it, which is said once where the author asked for a check."""
        if self._skips is None:
            self._skips = too_much(self._wanted_bytes())
            if self._skips and self._check.reference is not None:
                self.notes.append(f"results are not checked, there is no memory for it: {self._skips}")
        return bool(self._skips)

    def _wanted_bytes(self) -> list[tuple[str, str, int]]:
        """Two sets of inputs, one to launch on, and the same in float64 for the reference."""
        arrays = [one for name, value in self._arguments.items() for one in readable(name, value)]
        spans = clusters(span_of(array) for _, array in arrays)
        copies = [("copies", span.place, 3 * (span.stop - span.start)) for span in spans]
        wide = [(name, place_of(a), 8 * _elements(a)) for name, a in arrays if self._check.reference and is_float(a)]
        return [*copies, *wide]

    # --- one candidate ---------------------------------------------------------------------------

    def _launched(self, executable: Executable, written: Sequence[str]) -> tuple[list[str], bool]:
        inputs = self._next_set()
        names = self._find_outputs(executable, inputs, written) if self._names is None else self._names
        got, poisoned, can_tell = self._results(executable, inputs, names)
        known = None if inputs.expected is None else set(inputs.expected)
        if not self._check.outputs and (got or can_tell) and known != set(got):
            try:
                inputs.expected = self._expected(inputs, list(got))
            except OtherOutputs as error:
                if got or not self._holds(error.arrays):
                    return [str(error)], False
        if not got:
            self._note_unknown()
            return [], False
        self._names = names  # those of whoever wrote all that the reference does
        texts = self._compared(executable.config, got, inputs, poisoned)
        if self._check.deterministic and not texts:
            first = {name: copied(array) for name, array in got.items()}
            second, *_ = self._results(executable, inputs, names)
            found = [differs(name, first[name], array) for name, array in second.items() if name in first]
            texts = [f"two launches on the same inputs differ: {text}" for text in found if text]
        if not texts:
            self._look_what_changed(inputs, {*names, *self._restore, *self._zero})
        return texts, inputs.expected is not None

    def _compared(self, config: Config, got: Mapping[str, Any], inputs: _Set, poisoned: Mapping[str, Any]) -> list[str]:
        should = inputs.expected
        if should is None:
            self._compare_with_others(config, got)
            return []
        floats = tuple(array for name, value in self._arguments.items() for _, array in leaves(name, value))
        texts: list[str] = []
        for name, array in got.items():
            allowed = allowed_for(name, array, floats, self._check.tolerance)
            texts.append(wrong(name, array, should[name], allowed, poisoned.get(name)))
        return [text for text in texts if text]

    def _compare_with_others(self, config: Config, got: Mapping[str, Any]) -> None:
        """Without a reference: a candidate that disagrees with the first is told of, once."""
        if self._model is None:
            self._model = config, {name: copied(array) for name, array in got.items()}
            return
        first, model = self._model
        if any("disagree" in note for note in self.notes):
            return
        for name, array in got.items():
            allowed = allowed_for(name, array, (), self._check.tolerance)
            text = wrong(name, array, model[name], allowed) if name in model else f"only one of them gives {name}"
            if text:
                self.notes.append(f"candidates disagree, {config!r} with {first!r}: {text}; give a reference=")
                return

    def _find_outputs(self, executable: Executable, inputs: _Set, written: Sequence[str]) -> tuple[str, ...]:
        """The arguments that a launch writes, in the order of the signature, where nobody declared them.

        Found on inputs that differ from the call's: its own outputs may hold the right results already.
        """
        work = self._copies(inputs)
        self._freshen(work.arguments, 1)
        before = {name: copied(array) for name, array in self._named(tuple(self._arguments), work.arguments).items()}
        self._launch(executable, work.arguments)
        after = self._named(tuple(self._arguments), work.arguments)
        found = {name.partition(".")[0] for name in before if not same_bytes(before[name], after[name])}
        found |= {*self._restore, *self._zero, *written}
        return tuple(name for name in self._arguments if name in found)

    def _copies(self, inputs: _Set) -> Twin:
        """The arguments to launch on, as a set has them."""
        if self._work is None:
            self._work = Twin(self._arguments)
        self._work.take(inputs.inputs)
        self._zero_out(self._work.arguments)
        return self._work

    def _results(
        self, executable: Executable, inputs: _Set, names: Sequence[str]
    ) -> tuple[dict[str, Any], dict[str, Any], bool]:
        """Launch on copies: (outputs by name, what those held that are only written, whether others would be seen)."""
        work = self._copies(inputs)
        poisoned: dict[str, Any] = {}
        for name, array in self._named(names, work.arguments).items():
            if name.partition(".")[0] not in (*self._restore, *self._zero):
                poison(array, (inputs.expected or {}).get(name))
                poisoned[name] = copied(array)
        returned = self._launch(executable, work.arguments)
        can_tell = returned is None and bool(self._named(tuple(self._arguments), work.arguments))
        results = [array for array in returned_arrays(returned) if has_content(array)]
        if not self._check.outputs and results:
            alone = not isinstance(returned, (tuple, list))
            return {RETURNED if alone else f"{RETURNED}.{i}": array for i, array in enumerate(results)}, {}, can_tell
        return self._named(names, work.arguments), poisoned, can_tell

    def _look_what_changed(self, inputs: _Set, known: Set[str]) -> None:
        """See what a launch on copies has written beside what is known to be written."""
        assert self._work is not None
        others = [name for name in self._arguments if name not in {*known, *self.changed}]
        before = self._named(others, inputs.inputs.arguments)
        after = self._named(others, self._work.arguments)
        written = [name for name in before if not same_bytes(before[name], after[name])]
        self.changed += dict.fromkeys(name.partition(".")[0] for name in written)

    def _holds(self, arrays: Sequence[Any]) -> bool:
        """Whether arguments hold what a reference returns already, so that writing it once more does not show."""
        mine = self._named(tuple(self._arguments), self._arguments).items()
        return all(any(not wrong(name, array, one, Allowed(0.0, "")) for name, array in mine) for one in arrays)

    def _launch(self, executable: Executable, arguments: Mapping[str, Any]) -> Any:
        args = tuple(arguments.values())
        if self._around is None:
            return executable.launch(*args)
        around = self._around(arguments)
        around.before(executable.config, args)
        try:
            return around.launch_of(executable)(*args)
        finally:
            around.after()

    def _named(self, names: Sequence[str], arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {leaf: array for name in names for leaf, array in readable(name, arguments[name])}

    def _zero_out(self, arguments: Mapping[str, Any]) -> None:
        for array in self._named(self._zero, arguments).values():
            fill(distinct(array), 0)

    def _note_unknown(self) -> None:
        if self._check.reference is not None and not self.notes:
            self.notes.append("results are not checked: which arguments the kernel writes is not known, outputs=[…]")

    # --- inputs and what is expected -----------------------------------------------------------------

    def _next_set(self) -> _Set:
        """Inputs that the check before did not have, made anew where that costs little."""
        usual_s = self._making_s / self._made if self._made else 0.0
        cheap = usual_s <= FRESH_S or self._making_s <= FRESH_PART * (perf_counter() - self._since)
        if self._check.reference is None and self._sets:
            return self._sets[0]  # candidates are compared with each other
        if len(self._sets) == 2 and not cheap:
            self._sets.reverse()
            return self._sets[-1]
        since = perf_counter()
        made = self._sets.pop(0) if len(self._sets) == 2 else _Set(Twin(self._arguments))
        made.inputs.take()
        if self._made:
            self._freshen(made.inputs.arguments, self._made)
        self._zero_out(made.inputs.arguments)
        names = self._check.outputs  # what is returned has to be seen first
        made.expected = self._expected(made, list(self._named(names, self._arguments))) if names else None
        self._sets.append(made)
        self._made, self._making_s = self._made + 1, self._making_s + perf_counter() - since
        return made

    def _freshen(self, arguments: Mapping[str, Any], number: int) -> None:
        """Give floats other content: what the author's make_inputs makes, or their own, times a factor of each array.

        Such a factor keeps signs, zeros, infinities and order; integers and bools, which may be indices, stay.
        """
        made: Mapping[str, Any] = {}
        if self._fresh is not None:
            fresh = self._fresh
            found, failure, _ = attempt("launch", lambda: dict(fresh(number)))
            made = found or {}
            if failure is not None and not any("make_inputs" in note for note in self.notes):
                self.notes.append(
                    f"make_inputs fails with seed={number} ({failure.reason}): inputs differ by factors only"
                )
        for name, value in arguments.items():
            new = dict(readable(name, made.get(name)))
            for leaf, array in readable(name, value):
                if not is_float(array):
                    continue
                other, once = new.get(leaf), distinct(array)
                if other is not None and tuple(other.shape) == tuple(array.shape) and other.dtype == array.dtype:
                    write(once, other[first_of_repeated(array)])
                elif int(array.element_size() if is_torch(array) else array.itemsize) > 1:
                    factor = random.Random(f"{number} {leaf}").uniform(0.5, 1.0)
                    write(once, once * factor if is_torch(once) else once * once.dtype.type(factor))

    def _expected(self, made: _Set, outputs: Sequence[str]) -> dict[str, Any] | None:
        reference = self._check.reference
        if reference is None:
            return None
        return expected(self._kernel, reference, made.inputs.arguments, outputs, bool(self._check.outputs))


def _elements(array: Any) -> int:
    return int(array.numel() if is_torch(array) else array.size)
