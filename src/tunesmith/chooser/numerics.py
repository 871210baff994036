"""Are a candidate's numbers the library's? Its error against a float64 reference beside the library's own.

No tolerance has to be guessed: a candidate that computes in TF32 is out where the library computes in float32, and in
where the library is allowed to, as it is then.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed
from tunesmith.dispatch.arguments import dtype_name
from tunesmith.kernel import Executable
from tunesmith.measure.failure import FailedElsewhere
from tunesmith.measure.memory import copied

#: A candidate may be off by so many times what the library is off by: sums in another order are, by up to four times;
#: those of another precision by hundreds.
FACTOR = 8.0
#: ... or by so many units in the last place of the result's dtype, where the library happens to be exact.
ULPS = 4.0
#: distance from 1 to the next number; integers have to be equal
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
#: Elements compared at once: half a gigabyte in float64, with what is computed of them.
_AT_ONCE = 1 << 24


class WrongResult(FailedElsewhere):
    """A candidate's numbers are not the library's; says how far off they are, and how far they may be."""

    def __init__(self, reason: str) -> None:
        super().__init__(Failed("wrong", reason))


class Checked:
    """Checks each candidate of a search at its first launch, which no clock takes; what is wrong fails.

    Args:
        reference: the operation in float64 on arguments by name.
        library: the library's call, on arguments by position.
        arguments: of the search, by name.
        writes: names of those that are written in place.
    """

    def __init__(
        self, reference: Callable[..., Any], library: Callable[..., Any], arguments: Mapping[str, Any],
        writes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._writes = frozenset(writes)
        self._reference, self._library, self._arguments = reference, library, arguments
        self._exact: list[Any] | None = None
        self._allowed: list[float] = []

    @property
    def acts(self) -> bool:
        return False

    def launch_of(self, executable: Executable) -> Callable[..., Any]:
        launch, seen = executable.launch, False

        def checked(*args: Any) -> Any:
            nonlocal seen
            if seen:
                return launch(*args)
            self._prepare()
            with _fresh_memory_is_nan():
                result = launch(*args)
            self._check(result)
            seen = True
            return result

        return checked

    def before(self, config: Config, args: Any) -> None:
        pass

    def after(self) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        pass

    def _prepare(self) -> None:
        """See to the reference's result, and to how far the library's is off."""
        if self._exact is not None:
            return
        exact = _arrays(self._reference(**self._arguments))
        own = [copied(value) if name in self._writes else value for name, value in self._arguments.items()]
        theirs = _arrays(self._library(*own))
        self._allowed = [
            max(FACTOR * error(mine, right), ULPS * EPS.get(dtype_name(mine), 0.0))
            for mine, right in zip(theirs, exact, strict=True)
        ]
        self._exact = exact

    def _check(self, result: Any) -> None:
        exact, found = cast("list[Any]", self._exact), _arrays(result)
        if len(found) != len(exact):
            raise WrongResult(f"{len(found)} results where the reference has {len(exact)}")
        for mine, right, allowed in zip(found, exact, self._allowed, strict=True):
            if tuple(mine.shape) != tuple(right.shape):
                raise WrongResult(f"shape {tuple(mine.shape)} where the reference has {tuple(right.shape)}")
            off = error(mine, right)
            if not off <= allowed:  # NaN too
                raise WrongResult(
                    f"off by {off:.1e} of a row's mean; by the library's own error {allowed:.1e} is allowed"
                )


@contextmanager
def _fresh_memory_is_nan() -> Generator[None]:
    """Within this scope what torch allocates holds NaN: an old result in reused memory can't stand in for what a
    candidate does not write. Of the process, for one launch."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    settings, filling = torch.utils.deterministic, torch.utils.deterministic.fill_uninitialized_memory
    asked, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that an operation has no deterministic form: none was asked for
        torch.use_deterministic_algorithms(True, warn_only=True)
        settings.fill_uninitialized_memory = True
        try:
            yield
        finally:
            settings.fill_uninitialized_memory = filling
            torch.use_deterministic_algorithms(asked, warn_only=warns)


def error(result: Any, exact: Any) -> float:
    """The largest |result - exact| / (|exact| + the mean |exact| of its row); NaN where one of them alone is.

    The row's mean, since where terms cancel what is left is as uncertain as the terms were.
    """
    worst = 0.0
    for mine, right in _pieces(result, exact):
        size = abs(right)
        scale = size + size.mean(axis=-1, keepdims=True) if right.ndim else size
        off = abs(_wide(mine) - right) / (scale + 1e-300)
        largest = float(off.max())
        worst = largest if not largest <= worst else worst
        if worst != worst:
            return worst
    return worst


def _pieces(result: Any, exact: Any) -> Iterator[tuple[Any, Any]]:
    """Both, row by row as many as are compared at once; nothing of what is empty."""
    if not all(exact.shape):
        return
    if exact.ndim < 2:
        yield result, _wide(exact)
        return
    width = int(exact.shape[-1])
    mine, right = result.reshape(-1, width), exact.reshape(-1, width)
    rows = max(1, _AT_ONCE // width)
    for start in range(0, int(right.shape[0]), rows):
        yield mine[start : start + rows], _wide(right[start : start + rows])


def _wide(array: Any) -> Any:
    """In float64, torch's and numpy's alike."""
    return array.double() if hasattr(array, "double") else array.astype("float64")


def _arrays(result: Any) -> list[Any]:
    return list(cast("tuple[Any, ...]", result)) if isinstance(result, (tuple, list)) else [result]
