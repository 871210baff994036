"""Further JSON tables of serving engines: rows a level or more below the top, or in a list."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tunesmith.core.problem import FieldValue
from tunesmith.errors import BadInput
from tunesmith.tables import jsontext, names
from tunesmith.tables.jsontext import Members
from tunesmith.tables.ladder_json import STOCK, rows_of
from tunesmith.tables.names import Name
from tunesmith.tables.policy import RULES
from tunesmith.tables.sheet import Cells, Finding, Sheet

#: `moe_sum_reduce_NVIDIA-H200_t8_h2048_bfloat16.json`
_SUM_REDUCE = re.compile(r"(?P<op>[a-z_]+)_(?P<device>[^_]+(?:-[^_]+)*)_t(\d+)_h(\d+)_([a-z0-9]+)\.json\Z")
#: `NVIDIA_H200_SHRINK.json`, `NVIDIA_H200_EXPAND_TRUE.json`
_LORA = re.compile(
    r"(?P<device>.+?)_(?P<op>(?:FUSED_MOE_LORA_\w+_)?(?:SHRINK|EXPAND))(?:_(?P<add>TRUE|FALSE))?\.json\Z"
)
LORA_LEVELS = ("max_loras", "num_slices", "m", "k", "n", "i")
_GEMV_KEY = re.compile(r"(gfx\w+):([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,18})\Z")


@dataclass(frozen=True)
class NestedFormat:
    """A format known by its file's name and its shape.

    Attributes:
        matches: (path, value at the top) → whether it is this format.
        read: the table.
    """

    name: str
    matches: Callable[[Path, Any], bool]
    read: Callable[[Path, jsontext.Document], Sheet]


def _sub(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Members) else None
    return value


def _name(path: Path) -> Name | None:
    try:
        return names.read(path.name)
    except BadInput:
        return None


def _head(value: Any, *skip: str) -> dict[str, FieldValue]:
    """Scalars of an object, for people."""
    pairs = value if isinstance(value, Members) else Members()
    return {key: inner for key, inner in pairs if key not in skip and not isinstance(inner, list)}


def _all(found: Iterator[tuple[list[Cells], list[Finding]]]) -> tuple[tuple[Cells, ...], tuple[Finding, ...]]:
    rows: list[Cells] = []
    faults: list[Finding] = []
    for some, wrong in found:
        rows += some
        faults += wrong
    return tuple(rows), tuple(faults)


# --- SGLang ----------------------------------------------------------------------------------------


def _is_collective(path: Path, value: Any) -> bool:
    return "world" in names_of(path) and isinstance(_sub(value, "configs"), Members)


def names_of(path: Path) -> Mapping[str, Any]:
    """The fields of a file's name; none where it is no such name."""
    name = _name(path)
    return name.fields if name is not None else {}


def _collective(path: Path, document: jsontext.Document) -> Sheet:
    """`configs.<op>.<tokens>`, the row at or below."""
    ops = _sub(document.value, "configs")
    rows, faults = _all(
        rows_of(path, document, ("configs", step), value, "tokens", {"op": op}) for step, op, value in ops.steps()
    )
    about = {**_head(_sub(document.value, "source")), **_head(_sub(document.value, "selection"))}
    levels = (("tokens", RULES["floor"]),)
    return Sheet("sglang-collective", path, document, rows, levels, "sglang", _name(path), about, faults)


def _is_front(path: Path, value: Any) -> bool:
    return "topk" in names_of(path) and isinstance(_sub(value, "configs"), Members) and "world" not in names_of(path)


def _front(path: Path, document: jsontext.Document) -> Sheet:
    """`configs.<tokens>`, exactly that many: knobs, or the name of a strategy."""
    configs = _sub(document.value, "configs")
    rows, faults = rows_of(path, document, ("configs",), configs, "tokens", words=True)
    about, levels = _head(_sub(document.value, "meta")), (("tokens", RULES["exact"]),)
    return Sheet("sglang-front", path, document, tuple(rows), levels, "sglang", _name(path), about, tuple(faults))


def _sum_reduce(path: Path, document: jsontext.Document) -> Sheet:
    """`"8-2048-bfloat16": {"1": {…}}`: top-k, hidden size, dtype, then tokens."""
    match = _SUM_REDUCE.match(path.name)
    assert match is not None
    device, top_k, hidden, dtype = match.group("device", 3, 4, 5)
    fields = {"op": match.group("op"), "device_name": device.replace("-", "_"), "topk": int(top_k)}
    groups = document.value.steps() if isinstance(document.value, Members) else ()
    rows, faults = _all(rows_of(path, document, (step,), value, "M", {"shape": key}) for step, key, value in groups)
    name = Name({**fields, "H": int(hidden), "dtype": dtype})
    return Sheet("sglang-sum-reduce", path, document, rows, (("M", STOCK),), "sglang", name, {}, faults)


def _is_compact(path: Path, value: Any) -> bool:
    return isinstance(_sub(value, "tokens"), Members) and _sub(value, "experts") is not None


def _compact(path: Path, document: jsontext.Document) -> Sheet:
    """`tokens.<M>`, the nearest, below a head with the model's sizes."""
    rows, faults = rows_of(path, document, ("tokens",), _sub(document.value, "tokens"), "tokens")
    about = _head(document.value)
    levels = (("tokens", STOCK),)
    return Sheet("sglang-compact-moe", path, document, tuple(rows), levels, "sglang", None, about, tuple(faults))


def _is_gemv(path: Path, value: Any) -> bool:
    return isinstance(value, Members) and bool(value) and all(_GEMV_KEY.match(key) for key, _ in value)


def _gemv(path: Path, document: jsontext.Document) -> Sheet:
    """`"gfx950:N:K:M": "w16s1r16t16k"`, the next M at or above."""
    rows: list[Cells] = []
    for step, key, value in document.value.steps():
        match = _GEMV_KEY.match(key)
        assert match is not None
        arch, *sizes = match.groups()
        n, k, m = map(int, sizes)
        fields: dict[str, FieldValue] = {"arch": arch, "N": n, "K": k, "M": m}
        rows.append(Cells(fields, {"packed": value}, document.line((step,)), (step,)))
    return Sheet("sglang-gemv", path, document, tuple(rows), (("M", RULES["ceil"]),), "sglang")


# --- vLLM ------------------------------------------------------------------------------------------


def _is_helion(path: Path, value: Any) -> bool:
    entries = cast("list[Any]", value) if isinstance(value, list) and not isinstance(value, Members) else []
    return bool(entries) and all(isinstance(_sub(entry, "key"), Members) for entry in entries)


def _helion(path: Path, document: jsontext.Document) -> Sheet:
    """A list of keys with their Configs; which sizes serve others is the kernel's own affair."""
    rows: list[Cells] = []
    faults: list[Finding] = []
    for i, entry in enumerate(document.value):
        config = _sub(entry, "config")
        if not isinstance(config, Members):
            faults.append(Finding(path, document.line((i,)), "value", "error", "an entry without a config; skipped"))
            continue
        key = _head(_sub(entry, "key"))
        rows.append(Cells(key, jsontext.plain(config), document.line((i, "key")), (i, "config")))
    about: dict[str, FieldValue] = {"kernel": path.parent.name}
    name = Name({"device_name": path.stem})
    return Sheet("vllm-helion", path, document, tuple(rows), (), "vllm", name, about, tuple(faults))


def _is_lora(path: Path, value: Any) -> bool:
    return _LORA.match(path.name) is not None and isinstance(value, Members)


def _lora(path: Path, document: jsontext.Document) -> Sheet:
    """Six sizes within each other, each the nearest, the number of slices exactly."""
    match = _LORA.match(path.name)
    assert match is not None
    rows, faults = _all(_lora_rows(path, document, (), document.value, {}))
    levels = tuple((level, RULES["exact"] if level == "num_slices" else STOCK) for level in LORA_LEVELS)
    name = Name({"device_name": match.group("device"), "op": match.group("op"), "add_inputs": match.group("add")})
    return Sheet("vllm-lora", path, document, rows, levels, "vllm", name, {}, faults)


def _lora_rows(
    path: Path, document: jsontext.Document, place: jsontext.Path, value: Any, group: dict[str, FieldValue]
) -> Iterator[tuple[list[Cells], list[Finding]]]:
    level = LORA_LEVELS[len(group)]
    rows, faults = rows_of(path, document, place, value, level, group)
    if level == LORA_LEVELS[-1]:
        yield rows, faults
        return
    yield [], faults
    inner = {step: below for step, _, below in value.steps()} if rows else {}
    for row in rows:
        assert isinstance(row.place, tuple)
        yield from _lora_rows(path, document, row.place, inner[row.place[-1]], dict(row.key))


FORMATS = (
    NestedFormat("sglang-collective", _is_collective, _collective),
    NestedFormat("sglang-front", _is_front, _front),
    NestedFormat("sglang-sum-reduce", lambda path, _: _SUM_REDUCE.match(path.name) is not None, _sum_reduce),
    NestedFormat("sglang-compact-moe", _is_compact, _compact),
    NestedFormat("sglang-gemv", _is_gemv, _gemv),
    NestedFormat("vllm-lora", _is_lora, _lora),
    NestedFormat("vllm-helion", _is_helion, _helion),
)
