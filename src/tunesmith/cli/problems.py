"""--problem and --problems: from what is typed, or stands in a CSV file, to a kernel's Problems."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tunesmith.core.problem import Problem, read_value
from tunesmith.errors import BadInput, ProblemError
from tunesmith.report.units import count as number_of
from tunesmith.untuned import COUNT, FIELD, KERNEL

if TYPE_CHECKING:
    from tunesmith.tuned import TunedKernel

ProblemOption: TypeAlias = Annotated[
    list[str],
    typer.Option("--problem", metavar="M=512,N=512,…", help="Sizes, dtypes and flags of one call; may be repeated."),
]
ProblemsOption: TypeAlias = Annotated[
    list[Path],
    typer.Option("--problems", metavar="FILE.csv", help="A CSV file of problems, a field a column; may be repeated."),
]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to do, each Problem once, and what was left out.

    Attributes:
        typed: how many of them, the first, were given by hand and not by a file.
        others: rows of other kernels, by the kernel's name.
    """

    problems: tuple[Problem, ...]
    typed: int = 0
    others: Mapping[str, int] = field(default_factory=dict[str, int])


def wanted(kernel: TunedKernel, texts: Sequence[str], files: Sequence[Path] = ()) -> Wanted:
    """The Problems of a command: those typed in the order typed, then those of files, the most frequent first.

    Raises:
        BadInput: for a Problem the kernel does not take; in a file the line is named.
    """
    typed = [kernel.problem(text) for text in texts]
    counts: Counter[Problem] = Counter()
    others: Counter[str] = Counter()
    for file in files:
        found = _read(kernel, file)
        counts.update(found.problems)
        others.update(found.others)
    by_count = [problem for problem, _ in counts.most_common()]
    problems = tuple(dict.fromkeys([*typed, *by_count]))
    if not problems and others:
        raise BadInput(f"no row is of {kernel.kernel.name}; {rows_of_others(others)}")
    if not problems:
        raise BadInput(f"no problem is given; write {example(kernel)}")
    return Wanted(problems, len(dict.fromkeys(typed)), others)


def example(kernel: TunedKernel) -> str:
    """A Problem of this kernel to type."""
    sizes = example_sizes(kernel)
    return f"--problem {sizes}" if sizes else "--problem NAME=VALUE,… or --problems FILE.csv"


def example_sizes(kernel: TunedKernel) -> str:
    """Sizes that any machine can hold: `M=512,N=512,K=512`, small ones where there are many."""
    usual = 512 if len(kernel.dims) <= 3 else 8
    return ",".join(f"{dim}={usual}" for dim in kernel.dims)


def rows_of_others(others: Mapping[str, int]) -> str:
    """`rows of other kernels: 3 × softmax`."""
    return "rows of other kernels: " + ", ".join(f"{count} × {name}" for name, count in others.items())


# --- CSV ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _File:
    """What one file has: how often each Problem occurs, and how many rows are of other kernels."""

    problems: Counter[Problem] = field(default_factory=Counter[Problem])
    others: Counter[str] = field(default_factory=Counter[str])


def _read(kernel: TunedKernel, path: Path) -> _File:
    rows = _rows(path)
    nothing: tuple[int, list[str]] = (0, [])
    header_line, header = next(rows, nothing)
    if not header:
        usual = ",".join(kernel.dims) or "NAME,NAME"
        raise BadInput(f"{path} is empty; needed: a header such as {usual}, then a line for each problem")
    for name in header:
        if not name or header.count(name) > 1:
            fault = f"two columns are named {name!r}" if name else "a column has no name"
            raise BadInput(f"{path} line {header_line}: {fault}; needed: each field once, as {', '.join(kernel.dims)}")
    found = _File()
    for line, cells in rows:
        try:
            _add_row(kernel, found, header, cells)
        except ProblemError as error:
            raise ProblemError(f"{path} line {line}: {error}") from None
    if not found.problems and not found.others:
        raise BadInput(f"{path} has a header and no rows; needed: a line for each problem, of {', '.join(header)}")
    return found


def _add_row(kernel: TunedKernel, found: _File, header: Sequence[str], cells: Sequence[str]) -> None:
    if len(cells) != len(header):
        raise ProblemError(f"{number_of(len(cells), 'value')} for the {len(header)} columns {', '.join(header)}")
    row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    whose, count = row.pop(KERNEL, ""), row.pop(COUNT, "")
    times = read_value(count) if count else 1
    if type(times) is not int or times < 0:
        raise ProblemError(f"count is {count!r}; good values: integers from 0")
    if whose and whose != kernel.kernel.name:
        found.others[whose] += 1
        return
    # An empty cell says nothing: a dtype or flag then has its usual value.
    fields = {name.removeprefix(FIELD): read_value(cell) for name, cell in row.items() if cell}
    problem = kernel.problem(Problem(fields))
    found.problems[problem] += times


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of each line that is not blank and no comment."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a BOM
    except FileNotFoundError:
        raise BadInput(f"there is no file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} can't be read as a CSV file: {error}") from None
    for number, line in enumerate(text.split("\n"), 1):  # U+2028 and such may stand in a cell
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                cells = next(csv.reader([line], strict=True))
            except csv.Error as error:
                raise BadInput(f"{path} line {number}: not a line of a CSV file: {error}") from None
            yield number, [cell.strip() for cell in cells]
