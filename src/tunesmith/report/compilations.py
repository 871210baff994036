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
    """The Configs in the order given: registers of a thread, spilled registers, shared memory of a block."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("registers", "spills", "shared", "threads", "occupancy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Config", ratio=1, overflow="fold")
    for config, failed, resources, busy in rows:
        if failed is not None:
            continue
        shared = None if resources.shared_bytes is None else size(resources.shared_bytes)
        cells = [resources.registers, resources.spills, shared, resources.threads, _percent(busy), config]
        table.add_row(*[Text("–" if cell is None else str(cell)) for cell in cells],
                      style="yellow" if resources.spills else "")  # fmt: skip
    reasons = failure_reasons((config, failed) for config, failed, _, _ in rows if failed is not None)
    not_compiled = sum(reason.count for reason in reasons)
    compiled = len(rows) - not_compiled
    lines = [Text(f"{count(compiled, 'Config')} compiled, {not_compiled:,} not")]
    lines += [Text(f"  {r.count:,} × {r.stage}: {r.reason}", style="red") for r in reasons]
    return Group(Text(heading, style="bold"), Text(), *([table, Text()] if compiled else []), *lines)


def _percent(part: float | None) -> str | None:
    return None if part is None else f"{part:.0%}"
