"""JSON tables with a member for each size, as serving engines keep them: `{"64": {"BLOCK_SIZE_M": 16, …}, …}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.core.problem import FieldValue
from tunesmith.errors import BadInput
from tunesmith.tables import jsontext, names
from tunesmith.tables.jsontext import Members
from tunesmith.tables.names import Engine
from tunesmith.tables.policy import RULES
from tunesmith.tables.sheet import Cells, Finding, Sheet
from tunesmith.tables.versions import of_folder

VERSION = "triton_version"
STOCK = RULES["nearest-stock"]
_SIZE = re.compile(r"[0-9]{1,18}\Z")


def rows_of(
    path: Path, document: jsontext.Document, place: jsontext.Path, value: Any, size: str,
    group: Mapping[str, FieldValue] | None = None, *, heads: tuple[str, ...] = (), nulls: bool = False,
    words: bool = False,
) -> tuple[list[Cells], list[Finding]]:  # fmt: skip
    """The rows of one object whose keys are sizes.

    A key that is no number, and a value that is no Config, is left out and reported. Of a size that is given twice the
    last counts, in the first's place, as for every reader.

    Args:
        size: the field's name.
        group: further fields of each row's key.
        heads: members that are no rows.
        nulls: whether `null` means something.
        words: whether one word may stand for a Config.
    """
    rows: dict[int, Cells] = {}
    faults: list[Finding] = []
    if not isinstance(value, Members):
        return [], [Finding(path, document.line(place), "shape", "error", "an object of rows was expected")]
    for step, key, config in value.steps():
        here: jsontext.Path = (*place, step)
        line = document.line(here)
        if key in heads:
            continue
        if not _SIZE.match(key):
            faults.append(Finding(path, line, "key", "error", f"key {key!r} is no size; the row is skipped"))
            continue
        if words and isinstance(config, str):
            config = Members([("strategy", config)])
        if not isinstance(config, Members) and not (nulls and config is None):
            faults.append(Finding(path, line, "value", "error", f"row {key!r} is no object of knobs; it is skipped"))
            continue
        if str(int(key)) != key:
            faults.append(Finding(path, line, "key", "warning", f"key {key!r} is read as {int(key)}"))
        if int(key) in rows:
            said = f"size {int(key)} is given twice: line {rows[int(key)].line} is not read, this one is"
            faults.append(Finding(path, line, "duplicate", "error", said))
        plain = None if config is None else jsontext.plain(config)
        rows[int(key)] = Cells({**(group or {}), size: int(key)}, plain, line, here)
    return list(rows.values()), faults


@dataclass(frozen=True)
class LadderFormat:
    """A format whose file's name says what for, and whose members are sizes.

    Attributes:
        needs: fields of the file's name by which it is known.
        without: fields that another format has.
        size: the name of the size.
        nulls: whether `null` is a row.
        heads: members at the top that its reader takes out.
    """

    name: str
    engine: Engine
    needs: frozenset[str]
    size: str = "M"
    rule: str = "nearest-stock"
    without: frozenset[str] = frozenset({"backend"})
    nulls: bool = False
    heads: tuple[str, ...] = ()

    def matches(self, path: Path, engine: Engine | None) -> bool:
        """Whether a file is of this format, by its name and the engine it lies with."""
        try:
            fields = names.read(path.name).fields.keys()
        except BadInput:
            return False
        return self.needs <= fields and not self.without & fields and engine in (None, self.engine)

    def read(self, path: Path, document: jsontext.Document) -> Sheet:
        """The table."""
        name = names.read(path.name)
        rows, faults = rows_of(path, document, (), document.value, self.size, heads=(VERSION,), nulls=self.nulls)
        made = document.value.get(VERSION) if isinstance(document.value, Members) else None
        about: dict[str, FieldValue] = {VERSION: made} if isinstance(made, str) else {}
        folder = of_folder(path.parent.name)
        if folder is not None:
            about["triton_folder"] = folder
        return Sheet(
            self.name, path, document, tuple(rows), ((self.size, RULES[self.rule]),), self.engine, name, about,
            tuple(faults),
        )  # fmt: skip


MOE = frozenset({"E", "N", "device_name"})
GEMM = frozenset({"N", "K", "device_name", "dtype"})
SGLANG_MOE = LadderFormat("sglang-moe", "sglang", MOE, without=frozenset({"K", "N1", "backend"}))
VLLM_MOE = LadderFormat("vllm-moe", "vllm", MOE, without=frozenset({"K", "N1", "backend"}), heads=(VERSION,))
SGLANG_GEMM = LadderFormat("sglang-gemm", "sglang", GEMM, without=frozenset({"E"}), nulls=True)
VLLM_GEMM = LadderFormat("vllm-gemm", "vllm", GEMM, without=frozenset({"E"}))
VLLM_FLYDSL = LadderFormat("vllm-flydsl", "vllm", MOE | {"backend"}, without=frozenset({"K"}))
VLLM_MAMBA = LadderFormat(
    "vllm-mamba", "vllm", frozenset({"headdim", "dstate", "device_name"}), "effective_batch", heads=(VERSION,)
)
SGLANG_CSGMV = LadderFormat("sglang-csgmv", "sglang", frozenset({"K", "R", "S", "device"}), "chunk")
#: vLLM's first: where nothing says whose a file is, its reader takes more
FORMATS = (VLLM_MOE, VLLM_GEMM, VLLM_FLYDSL, VLLM_MAMBA, SGLANG_MOE, SGLANG_GEMM, SGLANG_CSGMV)


def engine_of(path: Path, document: jsontext.Document) -> Engine | None:
    """Whose table a file is, by its name, the folders it lies in and its head; `None` where nothing says."""
    parts = {part.lower() for part in path.parts[:-1]}
    try:
        name = names.read(path.name)
    except BadInput:
        return None
    if name.blank or name.down or "per_channel_quant" in name.fields or "lora_expand" in path.name:
        return "sglang"
    if of_folder(path.parent.name) is not None or any("sglang" in part for part in parts):
        return "sglang"
    says = isinstance(document.value, Members) and document.value.get(VERSION) is not None
    if says or name.block is not None or any("vllm" in part for part in parts):
        return "vllm"
    return "vllm" if {"backend", "headdim"} & name.fields.keys() else None
