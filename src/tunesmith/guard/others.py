"""Tables of other engines and tuners as sides of `tunesmith guard`, as far as they tell times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from tunesmith.core.config import Config
from tunesmith.core.problem import FieldValue, Problem
from tunesmith.errors import BadInput
from tunesmith.tables import formats
from tunesmith.tables.check_csv import unusable
from tunesmith.tables.sheet import Cells, Sheet

#: a file of one problem with many Configs: their keys only number them
OF_ONE_PROBLEM = ("triton-autotune", "kernel-tuner", "t4")
#: fields of a row that name its device
DEVICE = ("gfx", "cu_num", "device")
#: what stands among a row's knobs and is a time
TIMES = ("min_time",)


def fastest(path: Path, kernel: str = "") -> Iterator[tuple[str, Problem, str, Config, float]]:
    """(kernel, Problem, device, Config, seconds) of the fastest row for each Problem and device.

    Args:
        kernel: what it is called where the file does not say; its format's name if not given.

    Raises:
        BadInput: for a file of no known format, and for a table without times.
    """
    sheet = formats.read(path)
    name = str(sheet.about.get("kernel") or kernel or sheet.format)
    best: dict[tuple[Problem, str], Cells] = {}
    for row in sheet.rows:
        us = row.us
        if us is None or not (math.isfinite(us) and us > 0) or row.config is None or unusable(row):
            continue
        key = (_problem(sheet, row), _device(sheet, row.key))
        known = best.get(key)
        if known is None or known.us is None or us < known.us:
            best[key] = row
    if not best:
        raise BadInput(
            f"{path}: a table of {sheet.format} with no times to compare; `tunesmith table diff` says what differs"
        )
    for (problem, device), row in best.items():
        assert row.us is not None
        knobs = {knob: value for knob, value in (row.config or {}).items() if knob not in TIMES}
        try:
            yield name, problem, device, Config(knobs), row.us / 1e6
        except BadInput as error:
            raise BadInput(f"{path}:{row.line}: {error}") from error


def _problem(sheet: Sheet, row: Cells) -> Problem:
    if sheet.format in OF_ONE_PROBLEM:
        said = sheet.about.get("problem_size") or sheet.about.get("key") or sheet.path.name.partition(".")[0]
        return Problem({"of": str(said)})
    return Problem({name: value for name, value in row.key.items() if name not in DEVICE})


def _device(sheet: Sheet, key: Mapping[str, FieldValue]) -> str:
    """As the table names it; empty where it does not."""
    own = ":".join(str(key[name]) for name in DEVICE if name in key)
    return own or str(sheet.about.get("device") or sheet.about.get("metadata.device_name") or "")
