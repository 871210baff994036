"""What compiling a Space showed: a row for each Config that compiled, and why the others did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Resources
from tunesmith.report.hanging import Hanging
from tunesmith.report.table import failure_reasons
from tunesmith.report.units import count, size

#: a Config, why it failed if it did, what it takes, and the part of a unit's threads it can keep busy
CompilationRow: TypeAlias = "tuple[Config, Failed | None, Resources, float | None]"


def compilation_table(heading: str, rows: Sequence[CompilationRow]) -> RenderableType:
    """The Configs in the order given: registers of a thread, spilled registers, shared memory of a block, knobs."""
    compiled = [row for row in rows if row[1] is None]
    knobs = dict.fromkeys(name for config, *_ in compiled for name in config)
    same = {name: {repr(config.get(name)) for config, *_ in compiled} for name in knobs}
    varying = [name for name in knobs if len(same[name]) > 1 or len(compiled) == 1]
    reasons = failure_reasons((config, failed) for config, failed, _, _ in rows if failed is not None)
    constant = ", ".join(f"{name}={same[name].pop()}" for name in knobs if name not in varying)
    lines: list[RenderableType] = [Text(f"in all rows: {constant}"), Text()] if constant else []
    lines.append(Text(f"{count(len(compiled), 'Config')} compiled, {len(rows) - len(compiled):,} not"))
    lines += [Hanging(Text("  "), Text(f"{r.count:,} × {r.stage}: {r.reason}", style="red")) for r in reasons]
    table = [_Rows(compiled, varying), Text()] if compiled else []
    return Group(Text(heading, style="bold"), Text(), *table, *lines)


@dataclass(frozen=True)
class _Rows:
    """A renderable: a row for each Config, a column for each knob where the width allows that, else one for all."""

    compiled: Sequence[CompilationRow]
    varying: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._table(apart=True)
        fits = Measurement.get(console, options.update(width=10_000), whole).maximum <= options.max_width
        yield whole if fits else self._table(apart=False)

    def _table(self, apart: bool) -> Table:
        table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
        where = "bottom" if apart else "top"
        for name in ("registers", "spills", "shared", "threads", "occupancy", *(self.varying if apart else ())):
            table.add_column(Text(name.replace("_", "_\n")), justify="right", no_wrap=True, vertical=where)
        if not apart:
            table.add_column("Config", overflow="fold")
        for config, _, resources, busy in self.compiled:
            shared = None if resources.shared_bytes is None else size(resources.shared_bytes)
            cells = [resources.registers, resources.spills, shared, resources.threads, _percent(busy)]
            knobs = [config.get(name) for name in self.varying]
            cells += knobs if apart else [" ".join(f"{n}={v}" for n, v in zip(self.varying, knobs, strict=True))]
            table.add_row(*[Text("–" if cell is None else str(cell)) for cell in cells],
                          style="magenta" if resources.spills else "")  # fmt: skip
        return table


def _percent(part: float | None) -> str | None:
    return None if part is None else f"{part:.0%}"
