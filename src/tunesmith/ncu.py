"""What Nsight Compute counted of a launch, from its CSV file; and what that says beside a Prediction.

ncu --metrics dram__bytes.sum --csv python program.py > counted.csv
ncu --import report.ncu-rep --page raw --csv > counted.csv
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunesmith.core.model import Prediction
from tunesmith.errors import BadInput

#: bytes of one of Nsight Compute's units, which are decimal
_UNITS = {"byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12}
_SECONDS = {
    "second": 1.0, "s": 1.0, "msecond": 1e-3, "ms": 1e-3, "usecond": 1e-6, "us": 1e-6, "nsecond": 1e-9, "ns": 1e-9,
}  # fmt: skip
#: all traffic of device memory; where it was not counted, reads and writes by themselves
_ALL, _PARTS = "dram__bytes.sum", ("dram__bytes_read.sum", "dram__bytes_write.sum")
_TIME = "gpu__time_duration.sum"
_HINT = "collect it with: ncu --metrics dram__bytes.sum,gpu__time_duration.sum --csv"

#: The L2 helps where memory moves less than this part of what the blocks move ...
L2_HELPS = 0.5
#: ... and does nothing for the kernel where it moves more than this part.
L2_IDLE = 0.8


@dataclass(frozen=True, slots=True)
class Counted:
    """One profiled launch.

    Attributes:
        kernel: the function's name.
        memory_bytes: that device memory moved.
        seconds: on the GPU, at the clocks of the profiler; `None` where it was not collected.
    """

    kernel: str
    memory_bytes: float
    seconds: float | None = None


def counters_of(path: str | Path, kernel: str) -> Counted:
    """The last profiled launch of a kernel in a file: those before it may have warmed up.

    Raises:
        BadInput: for a file that can't be read, and as `read_counters`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")  # a kernel's name may be in any encoding
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error.strerror or error}") from error
    try:
        return read_counters(text, kernel)[-1]
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def read_counters(text: str, kernel: str) -> list[Counted]:
    """The profiled launches of a kernel, in order, from a CSV of one line a metric or one line a launch (`--page raw`).

    Args:
        text: the whole file; lines of the profiler or the program around the table are skipped.
        kernel: part of the function's name. Where all launches are of one function, it is that one, whatever its name.

    Raises:
        BadInput: for a text without such a table, without launches of the kernel, without the bytes of device
            memory, and for a number or unit that can't be read.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if re.match(r'"?ID"?,', line)), None)
    if start is None:
        raise BadInput(f"no table of Nsight Compute's in {len(lines)} lines (its first column is ID); {_HINT}")
    table = [row for row in csv.reader(lines[start:]) if row]
    launches = list(_one_a_metric(table) if "Metric Name" in table[0] else _one_a_launch(table))
    names = {name for name, _ in launches}
    named = launches if len(names) == 1 else [one for one in launches if kernel in one[0]]
    if not named:
        raise BadInput(f"no launch of {kernel} was profiled; launches of: {', '.join(sorted(names)) or '(none)'}")
    return [Counted(name, _memory_bytes(name, found), _seconds(found)) for name, found in named]


#: metric → (value, unit), as they are spelled
_Metrics = dict[str, tuple[str, str]]


def _one_a_metric(table: Sequence[Sequence[str]]) -> Iterator[tuple[str, _Metrics]]:
    """Launches of a table with a line for each metric of each launch."""
    header = list(table[0])
    places = {name: header.index(name) if name in header else -1 for name in ("ID", "Kernel Name", "Metric Unit")}
    metric, value = header.index("Metric Name"), header.index("Metric Value")
    launches: dict[str, tuple[str, _Metrics]] = {}
    for row in table[1:]:
        if len(row) != len(header):  # the program's own output after the table
            continue
        name = row[places["Kernel Name"]] if places["Kernel Name"] >= 0 else ""
        unit = row[places["Metric Unit"]] if places["Metric Unit"] >= 0 else ""
        launches.setdefault(row[places["ID"]], (name, {}))[1][row[metric]] = row[value], unit
    yield from launches.values()


def _one_a_launch(table: Sequence[Sequence[str]]) -> Iterator[tuple[str, _Metrics]]:
    """Launches of a table with a column for each metric; its second line has the units."""
    header, rest = list(table[0]), table[1:]
    units: Sequence[str] = [""] * len(header)
    if rest and not rest[0][0].strip():
        units, rest = rest[0], rest[1:]
    name = header.index("Kernel Name") if "Kernel Name" in header else None
    for row in rest:
        if len(row) == len(header) == len(units):
            cells = zip(header, row, units, strict=True)
            yield "" if name is None else row[name], {metric: (value, unit) for metric, value, unit in cells}


def _memory_bytes(kernel: str, found: _Metrics) -> float:
    if _ALL in found:
        return _number(_ALL, *found[_ALL], _UNITS, "byte")
    missing = [name for name in _PARTS if name not in found]
    if missing:
        raise BadInput(f"of {kernel or 'a launch'} neither {_ALL} nor {missing[0]} was counted; {_HINT}")
    return sum(_number(name, *found[name], _UNITS, "byte") for name in _PARTS)


def _seconds(found: _Metrics) -> float | None:
    return _number(_TIME, *found[_TIME], _SECONDS, "nsecond") if _TIME in found else None


def _number(metric: str, value: str, unit: str, units: dict[str, float], usual: str) -> float:
    """A value such as `1,234.5` in a unit such as `Mbyte`."""
    size = units.get((unit or usual).lower())
    if size is None:
        raise BadInput(f"{metric} is in {unit!r}; known units: {', '.join(units)}")
    try:
        return float(value.replace(",", "")) * size
    except ValueError:
        raise BadInput(f"{metric} is {value!r}: not a number; {_HINT}") from None


def compare(counted: Counted, prediction: Prediction) -> list[tuple[str, str]]:
    """(what, its value and what it means): the bytes that memory moved beside those the blocks move."""
    part = counted.memory_bytes / prediction.tiled_bytes if prediction.tiled_bytes else 0.0
    most = prediction.memory_bytes / prediction.tiled_bytes if prediction.tiled_bytes else 0.0
    if most > L2_IDLE:
        meaning = "every byte is used once: there is nothing that the L2 could serve again"
    elif part < L2_HELPS:
        meaning = "far fewer: the L2 helps"
    elif part > L2_IDLE:
        meaning = "close: the L2 serves next to nothing, so the grouped ordering of blocks does not work"
    else:
        meaning = "fewer: the L2 helps a little; a better grouping of blocks may help more"
    lines = [
        ("counted", f"{counted.memory_bytes / 1e6:,.1f} MB moved by memory, {part:.0%} of the tiled bytes. {meaning}")
    ]
    if counted.seconds is not None:
        lines.append(("profiled", f"{counted.seconds * 1e6:,.1f} µs under the profiler and at its clocks"))
    return lines
