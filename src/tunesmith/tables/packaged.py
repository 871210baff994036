"""`Packaged`: tables that ship inside a Python package, one file for a kernel and a chip, each read when asked for."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, TunesmithWarning
from tunesmith.tables.base import Row, Tables
from tunesmith.tables.native import NativeTable
from tunesmith.tables.near import Near

#: of a package, where its tables lie
FOLDER = "tables"


def file_name(kernel: str, chip: str) -> str:
    """What a table's file is called.

    >>> file_name("gemm", "NVIDIA H200")
    'gemm-NVIDIA_H200.json'
    """
    return f"{re.sub(r'[^A-Za-z0-9.]+', '_', kernel)}-{re.sub(r'[^A-Za-z0-9.]+', '_', chip)}.json"


class Packaged:
    """For `kernel.use_table`: of the package's tables that of this kernel and the chip at hand. None is no table.

    A file is opened when a call on its chip first asks. One that is not sound is one warning, and no table.

    Args:
        package: as it is imported. Its tables lie in `tables/`, named by `file_name`.
        near: sizes in which a row serves its neighbours too: see `Near`.
    """

    def __init__(self, package: str, kernel: str, near: Sequence[str] = ()) -> None:
        self._package, self._kernel, self._near = package, kernel, tuple(near)
        self._found: dict[str, Tables | None] = {}

    def lookup(self, key: Key, exact: Problem, device: Device) -> Row | None:
        """The row for a call."""
        if key.kernel != self._kernel:
            return None
        if key.device not in self._found:
            self._found[key.device] = self._read(device.name)
        table = self._found[key.device]
        return None if table is None else table.lookup(key, exact, device)

    def _read(self, chip: str) -> Tables | None:
        from importlib.resources import as_file, files  # takes some milliseconds

        try:
            there = files(self._package) / FOLDER / file_name(self._kernel, chip)
            if not there.is_file():
                return None
            with as_file(there) as path:
                table = NativeTable.read(Path(path))
        except (BadInput, OSError) as error:
            warnings.warn(
                f"a table that ships with {self._package} is not used: {error}", TunesmithWarning, stacklevel=2
            )
            return None
        return Near(table, self._near) if self._near else table
