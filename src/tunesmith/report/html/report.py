"""`Report`: some Searches as one file that opens anywhere, or in a notebook's cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from tunesmith import recording as recordings
from tunesmith.core.outcome import Recording
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.events import Summary
from tunesmith.files import write_whole
from tunesmith.report.html.gather import (
    Deciders,
    Search,
    from_recording,
    from_store,
    from_summary,
    informed,
    of_kernel,
    of_store,
    with_rivals,
)
from tunesmith.report.html.page import page
from tunesmith.report.html.rivals import decider
from tunesmith.report.units import count
from tunesmith.store import default_store
from tunesmith.targets import behind
from tunesmith.tuned import TunedKernel

#: what a notebook gives a report of room
_FRAME = 'style="width:100%;height:85vh;border:0" sandbox="allow-scripts allow-downloads allow-modals"'


@dataclass(frozen=True)
class Report:
    """What was tried, what won, why, and how sure that is; a page in a notebook, and a file with `save`.

    Attributes:
        searches: a problem each.
        notes: what a reader should know of what is not there.
    """

    searches: tuple[Search, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, *what: Summary | Recording | str | Path | TunedKernel, problems: Iterable[str | Problem] = (),
        tables: Iterable[str | Path] = (),
    ) -> Report:  # fmt: skip
        """A report of searches, recordings, recorded files, and of what is stored of a kernel.

        Args:
            what: what `tune` and `record` returned, paths of recordings, a tuned kernel. With a kernel among them,
                the others get its performance model, and its default beside their winner.
            problems: of the kernel, what is stored of these alone.
            tables: files whose Configs are compared with the winners: tables of any format, heuristics.

        Raises:
            BadInput: when there is nothing to show, for a file that is no recording or table, and for several kernels.
        """
        given = [behind(one) for one in what]
        kernels = [one for one in given if isinstance(one, TunedKernel)]
        if len(kernels) > 1:
            raise BadInput(f"{len(kernels)} kernels are given: make a report of each, or of what the store knows")
        kernel = kernels[0] if kernels else None
        searches, notes = [search for one in given for search in _searches(one)], list[str]()
        asked = list(problems)
        if kernel is not None and (asked or not searches):
            found, notes = _stored(kernel, asked)
            searches += found
        if not searches:
            raise BadInput("there is nothing to report: give a Summary, a recording, or a kernel that was tuned")
        return cls(tuple(searches), tuple(notes))._informed(kernel, tables)

    @classmethod
    def of_store(cls, *, tables: Iterable[str | Path] = ()) -> Report:
        """A report of all that the store knows, of whichever kernel.

        Raises:
            BadInput: when that is nothing, and for a file that is no table.
        """
        searches, notes = of_store(default_store())
        if not searches:
            raise BadInput("the store knows nothing; tunesmith tune TARGET measures, tunesmith store info says where")
        return cls(tuple(searches), tuple(notes))._informed(None, tables)

    def _informed(self, kernel: TunedKernel | None, tables: Iterable[str | Path]) -> Report:
        """With what a kernel's model says, and what its default and others would use."""
        name = self.searches[0].key.kernel
        others: Deciders = {Path(path).name: decider(Path(path), name) for path in tables}
        if kernel is not None:
            return replace(self, searches=tuple(informed(one, kernel, others) for one in self.searches))
        return replace(self, searches=tuple(with_rivals(one, others) for one in self.searches)) if others else self

    def html(self) -> str:
        """The page.

        Raises:
            MissingEngine: without jinja2 or plotly.
        """
        return page(self.searches, self.notes)

    def save(self, path: str | Path) -> None:
        """Write the page, whole or not at all.

        Raises:
            MissingEngine: without jinja2 or plotly.
            OSError: when the file cannot be written.
        """
        write_whole(Path(path), self.html().encode())

    def __repr__(self) -> str:
        """A line for a terminal: the samples are in the page, and in `to_pandas`."""
        trials = sum(len(one.trials) for one in self.searches)
        of = ", ".join(dict.fromkeys(one.key.kernel for one in self.searches))
        problems = count(len(self.searches), "problem")
        return f"<Report of {of}: {problems}, {count(trials, 'trial')}; save('report.html') writes the page>"

    def _repr_html_(self) -> str:
        return f'<iframe title="tunesmith report" {_FRAME} srcdoc="{escape(self.html())}"></iframe>'


def _searches(what: Any) -> list[Search]:
    """Those that something other than the store has."""
    if isinstance(what, TunedKernel):
        return []
    if isinstance(what, Summary):
        return [from_summary(what)]
    if isinstance(what, Recording):
        return [from_recording(what)]
    if isinstance(what, (str, Path)):
        return read(Path(what))
    good = "what tune or record returned, the path of a recording, a kernel that is tuned"
    raise BadInput(f"{what!r} can't be reported; good ones: {good}")


def read(path: Path) -> list[Search]:
    """The recordings in a file: ours, or measurements of another format that can be converted.

    Raises:
        BadInput: naming the file and what is wrong with it.
    """
    ours = recordings.read_json(path).get("format") == recordings.FORMAT
    found = [recordings.load(path)] if ours else recordings.convert(path)
    return [from_recording(one, path.name) for one in found]


def _stored(kernel: TunedKernel, problems: list[str | Problem]) -> tuple[list[Search], list[str]]:
    store = default_store()
    if problems:
        return [from_store(kernel.key(**kernel.inputs(one)), store) for one in problems], []
    found, notes = of_kernel(kernel, store)
    if not found:
        why = f" ({notes[0]})" if notes else ""
        raise BadInput(f"the store knows nothing of {kernel.kernel.name}{why}; tunesmith tune measures it")
    return found, notes
