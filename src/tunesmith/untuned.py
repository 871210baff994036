"""A list of problems to tune, as a CSV file that many processes add to: kernel, count, and a column for each field."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.files import write_whole

#: columns that are about a row and not part of its Problem
KERNEL, COUNT = "kernel", "count"
#: before the name of a field that is called as one of these columns: no field's name can hold it
FIELD = "="
#: digits of the largest count that is believed
LONGEST_COUNT = 18
#: one row's cells by column, those that say nothing left out
_Row: TypeAlias = "dict[str, str]"


def add(path: Path, counts: Mapping[tuple[str, Problem], int], wait_s: float) -> None:
    """Add to the counts of (kernel, Problem) in a file, which is made if there is none.

    The file is replaced whole, while its lock `FILE.lock` is held: a reader never sees a part of it, and of two
    processes that add at once neither loses what the other added.

    Raises:
        BadInput: when what lies there is no such list; it is left as it is.
        OSError: when it cannot be written, or others hold the lock for longer than `wait_s`.
    """
    from filelock import FileLock, Timeout  # 50 ms, and most processes never miss anything

    try:
        with FileLock(path.with_name(path.name + ".lock"), timeout=wait_s):
            comments, header, rows = _read(path)
            found = {_identity(row): row for row in rows}
            for (kernel, problem), count in counts.items():
                cells = {KERNEL: kernel, **{column_of(name): _cell(name, problem) for name in problem}}
                row = found.setdefault(_identity(cells), cells)
                row[COUNT] = str(int(row.get(COUNT) or 0) + count)
            columns = dict.fromkeys([*header, KERNEL, COUNT, *(name for row in found.values() for name in row)])
            write_whole(path, _spelled(comments, list(columns), found.values()).encode())
    except Timeout:
        raise OSError(f"its lock was held by others for more than {wait_s:g} s") from None
    except NotImplementedError as error:  # filelock, of a file system that knows no locks
        raise OSError(str(error)) from None


def column_of(field: str) -> str:
    """The column of a Problem's field."""
    return FIELD + field if field in (KERNEL, COUNT) else field


def _identity(row: _Row) -> frozenset[tuple[str, str]]:
    return frozenset((name, cell) for name, cell in row.items() if name != COUNT)


def _cell(name: str, problem: Problem) -> str:
    """A field's value as a Problem's text spells it."""
    return Problem({name: problem[name]}).text.partition("=")[2]


def _spelled(comments: Sequence[str], columns: Sequence[str], rows: Iterable[_Row]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[row.get(column, "") for column in columns] for row in rows])
    return "".join(f"{line}\n" for line in comments) + out.getvalue()


def _read(path: Path) -> tuple[list[str], list[str], list[_Row]]:
    """(comments, header, rows) of the file that is there; nothing of one that is not, or is empty."""
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is no file: a list of problems is read before it is added to")
    try:
        # no other ends of lines: U+2028 and such may stand in a cell
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        return [], [], []
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is no list of problems: {error}") from None
    comments = [line for line in lines if line.lstrip().startswith("#")]
    try:
        cells = [
            [cell.strip() for cell in next(csv.reader([line], strict=True))]
            for line in lines
            if line.strip() and not line.lstrip().startswith("#")
        ]
    except csv.Error as error:
        raise BadInput(f"{path} is no list of problems: {error}") from None
    if not cells:
        return comments, [], []
    header, *rest = cells
    if KERNEL not in header or len(set(header)) < len(header) or any(len(row) != len(header) for row in rest):
        raise BadInput(f"{path} is no list of problems: needed is a header with {KERNEL!r}, and as many cells a line")
    rows = [{name: cell for name, cell in zip(header, row, strict=True) if cell} for row in rest]
    counts = [row.get(COUNT, "0") for row in rows]
    if any(not count.isdecimal() or len(count) > LONGEST_COUNT for count in counts):
        raise BadInput(f"{path} is no list of problems: a {COUNT} is no number")
    return comments, header, rows
