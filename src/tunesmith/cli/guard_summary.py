"""What `tunesmith guard` found, as lines for people, Markdown for a pull request, and data for machines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tunesmith.cli.output import CANNOT_TELL, GOOD, NO
from tunesmith.report.units import count, duration

if TYPE_CHECKING:
    from tunesmith.guard.live import Against
    from tunesmith.guard.rule import Comparison, Drift, Limits
    from tunesmith.guard.sides import Sides
    from tunesmith.guard.static import Finding

#: How the lines are ordered: what needs a reader first.
ORDER = (
    "fault", "worse (fails)", "worse", "cannot tell", "not compared", "only in BASE", "only in NEW", "note", "better",
    "same",
)  # fmt: skip
#: Where so much more of one side's samples was disturbed, a reader should know: a kernel may do it by itself.
MORE_DISTURBED = 0.2
#: Of lines that need no reader so many are printed; they are counted, and in the JSON document.
QUIET = ("better", "same")
MOST_QUIET = 20


@dataclass(frozen=True, slots=True)
class Line:
    """One problem (or file) and what is said of it.

    Attributes:
        status: one of `ORDER`.
        ratio, low, high: NEW ÷ BASE with its interval.
        against: what it is compared with, where that is not BASE.
    """

    status: str
    kernel: str
    problem: str = ""
    base_s: float | None = None
    new_s: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    raw: float | None = None
    note: str = ""
    against: str = ""


@dataclass(frozen=True)
class Summary:
    """The whole answer.

    Attributes:
        head: sentences over the table.
        code: the exit code.
    """

    lines: Sequence[Line]
    code: int
    head: Sequence[str] = ()
    limits: Limits | None = None
    drift: Drift | None = None
    counts: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def answer(self) -> str:
        """In two words."""
        return {GOOD: "good", NO: "worse" if self.limits else "faults found", CANNOT_TELL: "cannot tell"}[self.code]

    def data(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "answer": self.answer,
            "exit_code": self.code,
            "limits": None if self.limits is None else asdict(self.limits),
            "common_drift": None if self.drift is None else asdict(self.drift),
            "counts": dict(self.counts),
            "said": list(self.head),
            "results": [{name: _finite(value) for name, value in asdict(line).items()} for line in self.lines],
        }

    def text(self) -> str:
        """For a terminal."""
        lines = [f"{self.answer}: {_counted(self.counts)}", *self.head]
        for line in self._shown():
            figures = f"  {_ratio(line)}  {_times(line)}" if line.ratio is not None else ""
            where = f"{line.kernel}({line.problem})" if line.problem else line.kernel
            against = f" against {line.against}" if line.against else ""
            note = f": {line.note}" if line.note else ""
            lines.append(f"  {line.status:13} {where}{against}{figures}{note}")
        return "\n".join([*lines, *self._left_out(), ""])

    def markdown(self) -> str:
        """For a pull request."""
        lines = [f"### tunesmith guard: {self.answer}", "", f"{_counted(self.counts)}.", ""]
        lines += [line for said in self.head for line in (f"> {said}", "")]
        shown = list(self._shown())
        if shown:
            lines += ["| | kernel | problem | NEW ÷ BASE | BASE → NEW | |", "|---|---|---|---|---|---|"]
        for line in shown:
            bold = f"**{line.status}**" if line.status in ("fault", "worse (fails)") else line.status
            note = "; ".join(filter(None, [f"against {line.against}" if line.against else "", line.note]))
            cells = [bold, _code(line.kernel), _code(line.problem), _ratio(line), _times(line), _cell(note)]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join([*lines, *self._left_out(), ""])

    def _shown(self) -> Iterator[Line]:
        quiet = 0
        for line in self.lines:
            quiet += line.status in QUIET
            if line.status not in QUIET or quiet <= MOST_QUIET:
                yield line

    def _left_out(self) -> list[str]:
        more = len(self.lines) - len(list(self._shown()))
        return ["", f"… and {more} more that are the same or better"] if more else []


def _finite(value: Any) -> Any:
    """JSON has no infinity: an end of an interval that is not known is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _counted(counts: Mapping[str, int]) -> str:
    said = [
        count(counts[status], status) if status in ("fault", "note") else f"{counts[status]:,} {status}"
        for status in ORDER if counts.get(status)
    ]  # fmt: skip
    return ", ".join(said) or "nothing to say"


def _ratio(line: Line) -> str:
    if line.ratio is None:
        return ""
    if line.high is None or line.high == float("inf"):
        return f"{line.ratio:.3f}"
    return f"{line.ratio:.3f} [{line.low:.3f}, {line.high:.3f}]"


def _times(line: Line) -> str:
    if line.base_s is None or line.new_s is None:
        return ""
    return f"{duration(line.base_s)} → {duration(line.new_s)}"


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _summary(
    lines: Sequence[Line], code: int, head: Sequence[str] = (), limits: Limits | None = None, drift: Drift | None = None
) -> Summary:
    ordered = sorted(lines, key=lambda line: (ORDER.index(line.status), -(line.ratio or 0)))
    return Summary(ordered, code, head, limits, drift, Counter(line.status for line in lines))


# --- of each kind of guard ---------------------------------------------------------------------------


def of_sides(sides: Sides, limits: Limits, allow_unmatched: bool) -> Summary:
    """Of two sides: 1 where something fails, 3 where something cannot be told, or only one side has it."""
    from tunesmith.core.stats import median

    lines: list[Line] = []
    for name, compared in sides.judgement.rows.items():
        base, new = sides.base[name], sides.new[name]
        changed = f"Config was {base.config!r}, is {new.config!r}" if base.config != new.config else ""
        lines.append(_line(compared, *_spelled(name), median(base.seconds), median(new.seconds), changed))
    lines += [Line("not compared", *_spelled(name), note=refused.why) for name, refused in sides.refused.items()]
    lines += [Line("only in BASE", *_spelled(name), note="NEW has no time of it") for name in sides.only_base]
    lines += [Line("only in NEW", *_spelled(name), note="there is nothing to compare with") for name in sides.only_new]
    grades = {compared.grade for compared in sides.judgement.rows.values()}
    drift, head = sides.judgement.drift, list[str]()
    if drift is not None:
        head.append(_drift_said(drift, len(sides.judgement.rows)))
    unmatched = bool(sides.only_base or sides.only_new) and not allow_unmatched
    open_ = "unclear" in grades or bool(sides.refused) or unmatched or not grades or (drift is not None and drift.hides)
    return _summary(lines, NO if "fail" in grades else CANNOT_TELL if open_ else GOOD, head, limits, drift)


def _drift_said(drift: Drift, problems: int) -> str:
    how = "slower" if drift.ratio > 1 else "faster"
    said = (
        f"common drift: all {problems} problems together became {how}, NEW ÷ BASE {drift.ratio:.3f} "
        f"[{drift.low:.3f}, {drift.high:.3f}]; it is taken out of each ratio below"
    )
    hint = (
        ". Whether that is the machine or the code cannot be told from two sessions: measure both side by side "
        "(--measure), or judge without it (--no-drift)"
    )
    return said + (hint if drift.hides else "")


def _spelled(name: tuple[str, Any]) -> tuple[str, str]:
    return name[0], name[1].text


def _line(
    compared: Comparison, kernel: str, problem: str, base_s: float, new_s: float, note: str = "", against: str = ""
) -> Line:  # fmt: skip
    status = "worse (fails)" if compared.grade == "fail" else compared.verdict
    base, new = compared.disturbed
    often = f"{new:.0%} of NEW's samples took far longer than the rest, {base:.0%} of BASE's"
    said = "; ".join(filter(None, [compared.why, often if abs(new - base) > MORE_DISTURBED else "", note]))
    return Line(
        status, kernel, problem, base_s, new_s, compared.ratio, compared.low, compared.high, compared.raw, said, against
    )


def of_measured(found: Sequence[Against], limits: Limits, skipped: Sequence[Line]) -> Summary:
    """Of what was timed here: 1 where what is stored is worse than what it is compared with, or fails."""
    lines = [*skipped]
    for row in found:
        where = row.kernel, row.problem.text
        if row.comparison is not None and row.base_s is not None and row.new_s is not None:
            lines.append(_line(row.comparison, *where, row.base_s, row.new_s, row.why, row.other))
        else:
            nothing = row.new is None
            status = "worse (fails)" if row.fails else "cannot tell" if nothing else "same"
            lines.append(Line(status, *where, new_s=row.new_s, note=row.why, against="" if nothing else row.other))
    grades = {row.comparison.grade for row in found if row.comparison is not None}
    fails = "fail" in grades or any(row.fails for row in found)
    open_ = "unclear" in grades or any(line.status == "cannot tell" for line in lines) or not lines
    return _summary(lines, NO if fails else CANNOT_TELL if open_ else GOOD, (), limits)


def of_findings(found: Sequence[Finding], kernels: int, files: int, rows: int) -> Summary:
    """Of what was looked at: 1 where there is a fault."""
    lines = [Line("fault" if finding.fault else "note", finding.where, note=finding.what) for finding in found]
    faults = any(finding.fault for finding in found)
    looked = (
        f"looked at: {count(kernels, 'kernel')} and {count(files, 'path')}; "
        f"checked against their kernel: {count(rows, 'row')}"
    )
    return _summary(lines, NO if faults else GOOD, [looked])
