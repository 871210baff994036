"""The file of `tunesmith sweep`: problems as CSV, as `tune --problems` reads it, or as YAML with axes and products."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tunesmith.cli.problems import rows_of_others, wanted
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, MissingEngine, ProblemError, unknown
from tunesmith.places import is_file
from tunesmith.search import STRATEGIES
from tunesmith.sweep.task import Task
from tunesmith.targets import target_of

if TYPE_CHECKING:
    from tunesmith.tuned import TunedKernel

#: Problems of one file at most: more is a slip of a product, and would fill the memory before anybody notices.
MOST = 100_000
_TOP = ("targets", "problems", "budget", "launches", "strategy")
#: of a block of problems, what is no field of them
_ABOUT = ("kernel", "budget", "launches", "strategy")
#: ways to write an axis that is no list
_AXES = ("pow2", "range")


@dataclass(frozen=True, slots=True)
class Limits:
    """How far the search for one problem goes: `None` where nothing is said."""

    budget_s: float | None = None
    launches: int | None = None
    strategy: str | None = None

    def over(self, other: Limits) -> Limits:
        """These, and where they say nothing the others."""
        return Limits(
            self.budget_s if self.budget_s is not None else other.budget_s,
            self.launches if self.launches is not None else other.launches,
            self.strategy if self.strategy is not None else other.strategy,
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a sweep is to do, and what of the file it leaves out."""

    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()


def targets_in(path: Path) -> list[str]:
    """The targets that a YAML file names; none of a CSV file. A path in it starts from the file's own folder.

    Raises:
        BadInput: for a file that can't be read, and targets that are no list of texts.
    """
    if not _is_yaml(path):
        return []
    found = _document(path).get("targets", [])
    names = cast("list[Any]", [found] if isinstance(found, str) else found if isinstance(found, list) else [None])
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise BadInput(f"{path}: targets is {found!r}; good: a list, as [matmul, my_package.kernels:scale]")
    return [_from_folder(str(name), path.parent) for name in names]


def _from_folder(target: str, folder: Path) -> str:
    """A target whose file is looked for in a folder."""
    place, colon, attribute = target.rpartition(":")
    place, attribute = (place, colon + attribute) if colon and is_file(place) else (target, "")
    return f"{folder / place}{attribute}" if is_file(place) else target


def read(path: Path, kernels: Sequence[TunedKernel], typed: Limits) -> Wanted:
    """The tasks of a file: each problem for each kernel that it is for.

    Args:
        typed: what the command line says, which goes before the file.

    Raises:
        BadInput: naming the file, the place in it, the bad value and the good ones.
    """
    where = cache(target_of)  # it goes through all modules: once for each kernel

    def task(kernel: TunedKernel, problem: Problem, limits: Limits) -> Task:
        target, why = where(kernel)
        if why:
            raise BadInput(f"{kernel.kernel.name} can't be swept: {why}")
        return Task(target, kernel.kernel.name, problem.text, limits.budget_s, limits.launches, limits.strategy)

    found = _read_yaml(path, kernels, typed, task) if _is_yaml(path) else _read_csv(path, kernels, typed, task)
    return replace(found, tasks=tuple(dict.fromkeys(found.tasks)))


#: makes the task of a kernel's problem
_MakeTask: TypeAlias = "Callable[[TunedKernel, Problem, Limits], Task]"


# --- CSV ---------------------------------------------------------------------------------------------


def _read_csv(path: Path, kernels: Sequence[TunedKernel], typed: Limits, task: _MakeTask) -> Wanted:
    tasks: list[Task] = []
    names = [kernel.kernel.name for kernel in kernels]
    whys: list[BadInput] = []
    others: dict[str, int] = {}
    for kernel in kernels:
        try:
            found = wanted(kernel, (), (path,))
        except ProblemError:
            raise
        except BadInput as error:  # no row is of this kernel; one of another may be
            whys.append(error)
            continue
        others = {name: count for name, count in found.others.items() if name not in names}
        tasks += [task(kernel, problem, typed) for problem in found.problems]
    if not tasks:
        raise whys[0]
    return Wanted(tuple(tasks), (f"skipped {rows_of_others(others)}",) if others else ())


# --- YAML --------------------------------------------------------------------------------------------


def _is_yaml(path: Path) -> bool:
    if path.suffix.lower() not in (".csv", ".yaml", ".yml"):
        raise BadInput(f"{path}: good files of problems end in .csv, .yaml or .yml")
    return path.suffix.lower() != ".csv"


def _document(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise MissingEngine(f"{path} needs PyYAML, which is not installed; pip install 'tunesmith[yaml]'") from error
    try:
        found: Any = _loaded(path.read_text(encoding="utf-8-sig"))
    except BadInput as error:
        raise BadInput(f"{path} {error}") from None
    except FileNotFoundError:
        raise BadInput(f"there is no file {str(path)!r}") from None
    except yaml.YAMLError as error:
        raise BadInput(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: bytes that are no text, a date that is none
        raise BadInput(f"{path} can't be read as a YAML file: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{path} is no mapping; needed: problems, and as wanted {', '.join(_TOP)}")
    document = cast("dict[Any, Any]", found)
    for name in document:
        if name not in _TOP:
            raise BadInput(f"{path}: {unknown('entry', name, _TOP)}")
    return {str(name): value for name, value in document.items()}


def _loaded(text: str) -> Any:
    """What a YAML text says.

    Raises:
        BadInput: for a mapping with a key twice, of which YAML would drop the first.
    """
    import yaml

    loader: Any = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        _refuse_twice(node)
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_twice(top: Any) -> None:
    """Before merges (`<<`) are resolved: what overrides a merged key is not given twice."""
    nodes, seen = [top], set[int]()
    while nodes:
        node = nodes.pop()
        if id(node) in seen or not isinstance(getattr(node, "value", None), list):
            continue
        seen.add(id(node))
        lines: dict[tuple[str, str], int] = {}
        for part in node.value:
            nodes += part if isinstance(part, tuple) else [part]
            if isinstance(part, tuple):
                _note_key(part[0], lines)


def _note_key(key: Any, lines: dict[tuple[str, str], int]) -> None:
    spelled, line = (str(key.tag), str(key.value)), key.start_mark.line + 1
    if spelled in lines:
        raise BadInput(
            f"line {line}: {key.value!r} is given twice, the first time in line {lines[spelled]}; write one of them, "
            "or two blocks"
        )
    lines[spelled] = line


def _read_yaml(path: Path, kernels: Sequence[TunedKernel], typed: Limits, task: _MakeTask) -> Wanted:
    document = _document(path)
    blocks = document.get("problems")
    if not isinstance(blocks, list) or not blocks:
        raise BadInput(f"{path}: problems is {blocks!r}; good: a list of blocks, as - {{M: [1, 16], N: 4096}}")
    usual = typed.over(_limits(document, str(path)))
    tasks: list[Task] = []
    for number, block in enumerate(cast("list[Any]", blocks), 1):
        where = f"{path}, block {number} of problems"
        if not isinstance(block, dict):
            raise BadInput(f"{where} is {block!r}; good: fields and their values, as {{M: [1, 16], N: 4096}}")
        tasks += _of_block(cast("dict[Any, Any]", block), where, kernels, (typed, usual), task)
        if len(tasks) > MOST:
            raise BadInput(f"{where}: more than {MOST:,} problems; is a product of axes wanted here?")
    return Wanted(tuple(tasks))


def _of_block(
    block: Mapping[Any, Any], where: str, kernels: Sequence[TunedKernel], around: tuple[Limits, Limits],
    task: _MakeTask,
) -> Iterator[Task]:  # fmt: skip
    """The tasks of a block.

    Args:
        around: limits that go before the block's own, and after them.
    """
    whose = block.get("kernel")
    names = [kernel.kernel.name for kernel in kernels]
    if whose is not None and whose not in names:
        raise BadInput(f"{where}: {unknown('kernel', whose, names)}")
    typed, usual = around
    limits = typed.over(_limits(block, where)).over(usual)
    mine = [kernel for kernel in kernels if whose in (None, kernel.kernel.name)]
    for fields in _product(block, where):
        for kernel in mine:
            try:
                yield task(kernel, kernel.problem(Problem(fields)), limits)
            except ProblemError as error:
                raise ProblemError(f"{where}: {kernel.kernel.name}: {error}") from None


def _product(block: Mapping[Any, Any], where: str) -> Iterator[dict[str, object]]:
    """Every combination of a block's axes."""
    axes: list[list[dict[str, object]]] = []
    for name, said in block.items():
        if name in _ABOUT:
            continue
        names = [part.strip() for part in str(name).split(",")]
        axes.append(
            _together(names, said, where) if len(names) > 1 else [{names[0]: v} for v in _axis(name, said, where)]
        )
    if not axes:
        raise BadInput(f"{where} has no field; good: {{M: [1, 16], N: 4096}}")
    if math.prod(map(len, axes)) > MOST:
        raise BadInput(f"{where}: {math.prod(map(len, axes)):,} problems; at most {MOST:,}")
    for parts in itertools.product(*axes):
        fields: dict[str, object] = {}
        for part in parts:
            if twice := fields.keys() & part.keys():
                raise BadInput(f"{where}: {sorted(twice)[0]!r} is given twice")
            fields |= part
        yield fields


def _together(names: Sequence[str], said: Any, where: str) -> list[dict[str, object]]:
    """Fields that change together: `N,K: [[4096, 4096], [28672, 4096]]`."""
    if len(set(names)) < len(names):
        raise BadInput(f"{where}: a field is given twice in {','.join(names)}")
    rows = cast("list[Any]", said) if isinstance(said, list) else []
    values = [cast("list[object]", row) if isinstance(row, list) else [] for row in rows]
    if not values or any(len(row) != len(names) for row in values):
        raise BadInput(f"{where}: {','.join(names)} is {said!r}; good: a list of lists of {len(names)} values each")
    return [dict(zip(names, row, strict=True)) for row in values]


def _axis(name: object, said: Any, where: str) -> list[object]:
    """An axis: a value, a list of values, `{pow2: [1, 8192]}` or `{range: [256, 4096, 256]}`, both with their ends."""
    values: list[object] = [said]
    if isinstance(said, list):
        values = list(cast("list[object]", said))
    elif isinstance(said, dict):
        values = list(_spanned(name, cast("dict[Any, Any]", said), where))
    for value in values:
        if not isinstance(value, (int, float, bool, str)):
            raise BadInput(f"{where}: {name} has the value {value!r}; good: numbers, texts, true and false")
    if not values:
        raise BadInput(f"{where}: {name} has no value; good: [1, 16, 64], {{pow2: [1, 8192]}}")
    return values


def _spanned(name: object, said: Mapping[Any, Any], where: str) -> Iterator[int]:
    [(kind, ends), *more] = said.items() if said else [(None, None)]
    numbers = cast("list[Any]", ends) if isinstance(ends, list) else []
    good = all(type(number) is int and number > 0 for number in numbers) and not more and kind in _AXES
    if not good or len(numbers) != (2 if kind == "pow2" else 3) or numbers[0] > numbers[1]:
        raise BadInput(
            f"{where}: {name} is {dict(said)!r}; good: a list of values, {{pow2: [FIRST, LAST]}} or "
            "{range: [FIRST, LAST, STEP]}, of integers above 0"
        )
    first, last, step = (*numbers, 1)[:3]
    value = first
    while value <= last and (value - first) // step <= MOST:
        yield value
        value = 2 * value if kind == "pow2" else value + step


def _limits(said: Mapping[Any, Any], where: str) -> Limits:
    budget, launches, strategy = (said.get(name) for name in ("budget", "launches", "strategy"))
    number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
    if budget is not None and not (number and 0 < budget <= sys.float_info.max):
        raise BadInput(f"{where}: budget is {budget!r}; good values: a number of seconds above 0")
    if launches is not None and (type(launches) is not int or launches < 1):
        raise BadInput(f"{where}: launches is {launches!r}; good values: a number of timed launches from 1")
    if strategy is not None and (not isinstance(strategy, str) or strategy not in STRATEGIES):
        raise BadInput(f"{where}: {unknown('strategy', strategy, STRATEGIES)}")
    return Limits(None if budget is None else float(budget), launches, strategy)
