"""Offline tables: Choices as files that people keep, compare and ship. One file for each format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunesmith.tables.base import Row, Tables
from tunesmith.tables.native import NativeTable, from_store
from tunesmith.tables.near import Near
from tunesmith.tables.packaged import Packaged

if TYPE_CHECKING:
    from tunesmith.tables.loading import load

__all__ = ["NativeTable", "Near", "Packaged", "Row", "Tables", "from_store", "load"]


def __getattr__(name: str) -> Any:
    """`load`, with the readers of all formats, is imported when it is first asked for."""
    if name == "load":
        from tunesmith.tables.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
