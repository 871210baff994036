"""What a benchmark has measured so far, in a folder: each row is written as it comes, and a run that was cut short goes
on where it was."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from tunesmith.errors import TunesmithError

#: of the 600 seconds that one command may take: no case is begun later
LIMIT_S = 540.0


class Unfinished(Exception):
    """A case that has no time left, and has kept what it has: the next run goes on with it."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say where rows are kept, and for how long cases are begun."""
    parser.add_argument(
        "--keep", type=Path, help="a folder for what was found so far: the same command goes on from it"
    )
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds after which no case is begun")


def once(path: Path, make: Callable[[], Any]) -> Any:
    """What is made, or was by an earlier run."""
    if not path.exists():
        made = json.dumps(make())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".tmp").write_text(made)
        path.with_suffix(".tmp").replace(path)
    return json.loads(path.read_text())


@contextmanager
def caches(keep: Path | None) -> Generator[Path]:
    """A folder, to keep or for this run alone; our store and the compilers' caches lie in it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if keep is None else keep.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TUNESMITH_CACHE_DIR"] = str(folder / "ours")
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        yield folder


@dataclass
class Cases:
    """Measures one case after the other.

    Attributes:
        left: cases for which there was no time. failed: those that raised; what they said was printed.
    """

    folder: Path
    limit_s: float = LIMIT_S
    left: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])
    _begun: float = field(default_factory=perf_counter)

    @property
    def left_s(self) -> float:
        """Seconds until no case is begun."""
        return self.limit_s - (perf_counter() - self._begun)

    def rows(self, cases: Mapping[str, Callable[[], Any]]) -> Iterator[dict[str, Any]]:
        """The row of each case, by name: measured now, or by an earlier run."""
        none = True
        for name, make in cases.items():
            path = self.folder / "rows" / f"{name}.json"
            if not path.exists() and self.left_s < 0:
                self.left.append(name)
                continue
            try:
                row = once(path, make)
            except Unfinished as error:
                print(f"{name}: {error}", flush=True)
                self.left.append(name)
            except (TunesmithError, RuntimeError, ValueError, AssertionError, *_compilers_errors()):  # others may work
                print(f"{name} failed:", flush=True)
                traceback.print_exc(file=sys.stdout)
                self.failed.append(name)
            else:
                none = False
                yield row
        if self.left:
            print(
                f"{len(self.left)} of {len(cases)} are left: {self.limit_s:g} s are over. With --keep FOLDER the same "
                "command goes on with them",
                flush=True,
            )
        if none:
            sys.exit("nothing was measured")


def _compilers_errors() -> tuple[type[Exception], ...]:
    try:
        from triton.errors import TritonError
    except ImportError:
        return ()
    return (TritonError,)


def judge(summary: Mapping[str, float], wanted: Mapping[str, str], cases: Cases | None = None) -> None:
    """End with `missed: …` where a figure is not what it has to be, a case failed or was left.

    Args:
        wanted: figure → a bound, `<= 1.02` or `>= 40`.
    """
    missed = [
        f"{name} {summary[name]:.4g}, wanted {bound}"
        for name, bound in wanted.items()
        if not _holds(summary[name], bound)
    ]
    if cases is not None:
        missed += [f"{name} failed" for name in cases.failed] + ([f"{len(cases.left)} left"] if cases.left else [])
    if missed:
        sys.exit(f"missed: {'; '.join(missed)}")


def _holds(value: float, bound: str) -> bool:
    sign, _, limit = bound.partition(" ")
    return value <= float(limit) if sign == "<=" else value >= float(limit)
