"""What compiling a Space showed: a row for each Config that compiled, and why the others did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Resources
from tunesmith.report.table import failure_reasons
from tunesmith.report.units import count, size

#: a Config, why it failed if it did, what it takes, and the part of a unit's threads it can keep busy
CompilationRow: TypeAlias = "tuple[Config, Failed | None, Resources, float | None]"


def compilation_table(heading: str, rows: Sequence[CompilationRow]) -> RenderableType:
    """The Configs in the order given: registers of a thread, spilled registers, shared memory of a block, knobs."""
    compiled = [row for row in rows if row[1] is None]
    knobs = dict.fromkeys(name for config, *_ in compiled for name in config)
    same = {name: {repr(config.get(name)) for config, *_ in compiled} for name in knobs}
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    varying = [name for name in knobs if len(same[name]) > 1 or len(compiled) == 1]
    for name in ("registers", "spills", "shared", "threads", "occupancy", *varying):
        table.add_column(Text(name.replace("_", "_\n")), justify="right", no_wrap=True, vertical="bottom")
    for config, _, resources, busy in compiled:
        shared = None if resources.shared_bytes is None else size(resources.shared_bytes)
        cells = [resources.registers, resources.spills, shared, resources.threads, _percent(busy)]
        cells += [config.get(name) for name in varying]
        table.add_row(*[Text("–" if cell is None else str(cell)) for cell in cells],
                      style="yellow" if resources.spills else "")  # fmt: skip
    reasons = failure_reasons((config, failed) for config, failed, _, _ in rows if failed is not None)
    constant = ", ".join(f"{name}={same[name].pop()}" for name in knobs if name not in varying)
    lines = [Text(f"in all rows: {constant}"), Text()] if constant else []
    lines.append(Text(f"{count(len(compiled), 'Config')} compiled, {len(rows) - len(compiled):,} not"))
    lines += [Text(f"  {r.count:,} × {r.stage}: {r.reason}", style="red") for r in reasons]
    return Group(Text(heading, style="bold"), Text(), *([table, Text()] if compiled else []), *lines)


def _percent(part: float | None) -> str | None:
    return None if part is None else f"{part:.0%}"
