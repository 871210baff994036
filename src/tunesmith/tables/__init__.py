"""Offline tables: Choices as files that people keep, compare and ship. One file for each format."""

from tunesmith.tables.base import Row, Tables
from tunesmith.tables.native import NativeTable, from_store

__all__ = ["NativeTable", "Row", "Tables", "from_store"]
