"""Every exception tunesmith raises on purpose.

TunesmithError
├── BadInput (ValueError)          what was asked for makes no sense; says the bad value and the good ones
│   ├── SpaceError                 an axis, a constraint or a Config that does not belong to a Space
│   └── ProblemError               a dimension, dtype or flag that is unknown, missing or out of range
├── FingerprintError               a kernel reads something whose content cannot be identified
├── MissingEngine (ImportError)    a package, compiler or device is not there; ends with the command to type
├── CompileFailed                  a compiler refused; carries what it said
├── OutOfResources                 a Config wants more of something than the device has; says both
├── DeviceError (RuntimeError)     a GPU's driver refused to load or launch a kernel; says its own words
├── NoWorkingConfig                every Config of a search failed; lists the reasons with counts
├── BudgetEnded                    a search ended before any Config was measured
├── WorkerLost                 the process in which candidates run can't be started, or not any more
├── LookupMiss (LookupError)       `policy("lookup", strict=True)` and nothing is known; names the nearest key
│   └── PlanMiss                   a plan is replayed strictly and has nothing for a call; names the nearest key
├── NoAgreement                    ranks that must use one Config cannot be told which; names kernel and key
├── NotPrepared                some problems given to `prepare` could not be; names each with its reason
├── Busy                           someone else has been searching the same key for longer than one may wait
└── StoreError                     a store that was named explicitly cannot be used

TunesmithWarning (UserWarning)     something was seen that a user should know; says what was done about it
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class TunesmithError(Exception):
    """Base of everything raised on purpose."""


class TunesmithWarning(UserWarning):
    """Something was seen that a user should know; the message says what was done about it."""


class BadInput(TunesmithError, ValueError):
    """A value that makes no sense where it stands."""


class SpaceError(BadInput):
    """An axis, a constraint, or a Config that does not belong to a Space."""


class ProblemError(BadInput):
    """A dimension, dtype or flag that is unknown, missing or out of range."""


class FingerprintError(TunesmithError):
    """A kernel depends on something whose content cannot be identified."""


class MissingEngine(TunesmithError, ImportError):
    """A package, a compiler or a device is missing; the message ends with the command that brings it."""


class CompileFailed(TunesmithError):
    """A compiler refused a Config.

    Attributes:
        output: what the compiler printed, whole.
    """

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output

    def __reduce__(self) -> tuple[type[CompileFailed], tuple[str, str]]:
        return CompileFailed, (str(self), self.output)


class OutOfResources(TunesmithError):
    """A Config wants more of something than a block can have on the device: known before it is compiled whole.

    >>> OutOfResources("shared memory", 393216, 232448, "bytes")
    OutOfResources('out of shared memory: needs 393216 bytes, limit 232448 bytes')
    """

    def __init__(self, what: str, needs: int, limit: int, unit: str) -> None:
        super().__init__(f"out of {what}: needs {needs} {unit}, limit {limit} {unit}")


class DeviceError(TunesmithError, RuntimeError):
    """A GPU's driver refused to load or launch a kernel; the message has its own words."""


class NoWorkingConfig(TunesmithError):
    """Every Config of a search failed."""


class BudgetEnded(TunesmithError):
    """A search ended before any Config was measured; nothing can be said of those that were left."""


class WorkerLost(TunesmithError):
    """The process in which candidates run can't be started, or not any more: nothing more can be measured."""


class LookupMiss(TunesmithError, LookupError):
    """Nothing is known for a call that was told to use only what is known."""


class PlanMiss(LookupMiss):
    """A plan that is replayed has no Config for a call, one for another source, or one that the kernel refuses."""


class NoAgreement(TunesmithError):
    """Ranks of a job that must use one Config cannot be told which: no store, no time, or it is none of this rank's."""


class Busy(TunesmithError):
    """Someone else has been searching the same key for longer than one may wait: what is best cannot be told yet."""


class NotPrepared(TunesmithError):
    """Some of the problems given to `prepare` could not be; what was found for the others is stored and loaded."""


class StoreError(TunesmithError):
    """A store that was named explicitly cannot be read or written."""


#: What to do with a Triton kernel where torch has no GPU to use.
WITHOUT_GPU = (
    "without a GPU, `tunesmith compile TARGET --target sm_90 --problem …` says what each Config takes, and "
    "TRITON_INTERPRET=1 runs the kernel on the CPU"
)


def unknown(what: str, bad: object, good: Iterable[object]) -> str:
    """One line that names the bad value, the nearest good one and all good ones.

    >>> unknown("knob", "BLOK_M", ["BLOCK_M", "BLOCK_N"])
    "unknown knob 'BLOK_M': did you mean 'BLOCK_M'? known: BLOCK_M, BLOCK_N"
    """
    names = [str(name) for name in good]
    near = get_close_matches(str(bad), names, n=1)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {str(bad)!r}:{hint} known: {', '.join(names) if names else '(none)'}"


def one_line(error: BaseException) -> str:
    """`RuntimeError: pass pipeline failed`; with need and limit where an out-of-resources error carries them."""
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:  # noqa: BLE001  someone's exception, which can't even be printed, is what is being reported
        lines = ["an error that can't be printed"]
    text = lines[0] if lines else ""
    said = getattr(error, "error_message", None)  # Triton's: what is wrong, apart from the lines where
    if isinstance(said, str) and said.strip():
        text = f"{said.strip().splitlines()[0]} ({text.rstrip(':')})"
    elif text.endswith(":") and error.__cause__ is not None:
        text = f"{text} {one_line(error.__cause__)}"
    name = "" if isinstance(error, TunesmithError) else type(error).__name__
    required, limit = getattr(error, "required", None), getattr(error, "limit", None)
    if isinstance(required, int) and isinstance(limit, int) and str(required) not in text:
        text = f"{text + ': ' if text else ''}needs {required}, limit {limit}"
    return f"{name}: {text}" if name and text else name or text
