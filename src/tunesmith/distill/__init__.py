"""From many tuned problems to a small table, or a rule, with a bounded loss."""

from __future__ import annotations

from tunesmith.distill.between import expecting
from tunesmith.distill.cover import COVERED, Cover, Section, cover
from tunesmith.distill.table import (
    Fill,
    Group,
    HeldBack,
    Table,
    as_they_are,
    by_table,
    by_tree,
    curve,
    groups_of,
    held_back,
    table_of,
    tree_of,
)
from tunesmith.distill.tree import grow
from tunesmith.distill.tuned import Collection, Tuned, of_file, of_recording, of_store, of_table, together, tuned_of

__all__ = [
    "COVERED",
    "Collection",
    "Cover",
    "Fill",
    "Group",
    "HeldBack",
    "Section",
    "Table",
    "Tuned",
    "as_they_are",
    "by_table",
    "by_tree",
    "cover",
    "curve",
    "expecting",
    "groups_of",
    "grow",
    "held_back",
    "of_file",
    "of_recording",
    "of_store",
    "of_table",
    "table_of",
    "together",
    "tree_of",
    "tuned_of",
]  # fmt: skip
