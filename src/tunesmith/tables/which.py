"""Which of several tables is a call's: what a table is for beside sizes and the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from tunesmith.tables import names
from tunesmith.tables.sheet import Sheet

#: What a file's name says beside sizes and the device: absent where it is the usual.
KINDS = frozenset({"dtype", "block_shape", "per_channel_quant", "backend", "cache_dtype", "down"})
#: The types that names of files have no dtype for.
SIXTEEN_BITS = frozenset({"bfloat16", "float16", "bf16", "fp16", "torch.bfloat16", "torch.float16"})
#: Formats whose rows say themselves what they are for.
CSV = ("aiter-gemm", "aiter-fmoe")


def plain(value: object) -> str:
    """What a file's name says, however it is spelled: `[128, 128]` is `[128,128]`, and what is usual is empty."""
    if value is None or value is False or (isinstance(value, str) and value in SIXTEEN_BITS):
        return ""
    return str(list(cast("Iterable[object]", value)) if isinstance(value, (list, tuple)) else value).replace(" ", "")


def sizes(sheet: Sheet) -> dict[str, object]:
    """The sizes that a table as a whole is for."""
    if sheet.format == "aiter-triton":
        return {name: sheet.about[name] for name in ("N", "K") if name in sheet.about}
    if sheet.name is None:
        return {}
    return {name: sheet.name.fields[name] for name in sorted(names.SIZES & sheet.name.fields.keys())}


def says(sheet: Sheet) -> dict[str, str]:
    """What a table is for beside sizes and device."""
    if sheet.format == "aiter-triton":
        kernel = str(sheet.about.get("kernel", ""))
        # a folder for each kernel, or a file whose name begins with the architecture
        return {"kernel": kernel if "arch" in sheet.about else sheet.path.parent.name}
    if sheet.name is None:
        return {}
    fields = {name: plain(value) for name, value in sheet.name.fields.items() if name not in names.SIZES}
    return {name: said for name, said in fields.items() if said and name not in ("device_name", "device")} | (
        {"down": "True"} if sheet.name.down else {}
    )


def kind(sheet: Sheet) -> str:
    """What two tables differ in that are not for the same calls. CSV tables of a kind have the same key columns."""
    keys = sorted({name for group in sheet.groups for name, _ in group}) if sheet.format in CSV else ()
    return f"{sheet.format} {sorted(says(sheet).items())} {keys}"
