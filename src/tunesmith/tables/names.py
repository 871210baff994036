"""File names that engines look for: read into fields, and made from a logical shape by the engine's own rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tunesmith.core.problem import FieldValue
from tunesmith.errors import BadInput, unknown
from tunesmith.tables import devices

Engine: TypeAlias = Literal["sglang", "vllm"]
ENGINES: tuple[Engine, ...] = ("sglang", "vllm")
#: what each engine can ask for; "" is bfloat16 and float16
MOE_DTYPES: Mapping[Engine, tuple[str, ...]] = {
    "sglang": ("", "fp8_w8a8", "int8_w8a8", "int8_w8a16", "int4_w4a16", "float32"),
    "vllm": ("", "fp8_w8a8", "fp8_w8a16", "int8_w8a16", "int4_w4a16", "float32"),
}
#: Two 4-bit weights lie in one byte.
INT4_PACK = 2

_PART = re.compile(r"(?:^|,)([A-Za-z_][A-Za-z_0-9]*)=((?:\[[^\]]*\]|[^,\[\]]|\[(?![^\]]*\]))*)")
_INT = re.compile(r"\d+\Z")
_BLOCK = re.compile(r"\[\s*(\d+)\s*,\s*(\d+)\s*\]\Z")
#: Fields that are sizes: a name with one of these empty is no table's.
SIZES = frozenset({"E", "N", "K", "N1", "N2", "H", "R", "S", "headdim", "dstate", "world", "topk"})
DOWN = "_down"


@dataclass(frozen=True)
class Name:
    """A file's name, read.

    Attributes:
        fields: by name, in the file's order; sizes and the two parts of `block_shape` as integers.
        down: whether it is for the down projection.
        blank: whether `block_shape` is spelled with a blank, as SGLang does.
    """

    fields: Mapping[str, FieldValue | tuple[int, int]]
    down: bool = False
    blank: bool = False

    @property
    def device(self) -> str:
        """The device it is for, as it is spelled."""
        return str(self.fields.get("device_name", self.fields.get("device", "")))

    @property
    def block(self) -> tuple[int, int] | None:
        """The block of the quantisation, (N, K)."""
        found = self.fields.get("block_shape")
        return found if isinstance(found, tuple) else None


def read(name: str) -> Name:
    """Read `E=8,N=1024,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128]_down.json`.

    Raises:
        BadInput: saying what is missing, given twice or no number.
    """
    stem = Path(name).name.removesuffix(".json")
    down = stem.endswith(DOWN)
    stem = stem.removesuffix(DOWN)
    fields: dict[str, FieldValue | tuple[int, int]] = {}
    end, blank = 0, False
    for part in _PART.finditer(stem):
        if part.start() != end and fields:
            break
        field, value = part.groups()
        if field in fields:
            raise BadInput(f"{name!r} names {field} twice")
        fields[field] = _field(name, field, value)
        blank = blank or (field == "block_shape" and ", " in value)
        end = part.end()
    if end != len(stem) or not fields:
        raise BadInput(f"{name!r} is no table's name: good ones are NAME=VALUE with commas between, as in E=8,N=1024,…")
    if not {"device_name", "device"} & fields.keys():
        raise BadInput(f"{name!r} names no device")
    return Name(fields, down, blank)


def _field(name: str, field: str, value: str) -> FieldValue | tuple[int, int]:
    if field == "block_shape":
        block = _BLOCK.match(value)
        if block is None:
            raise BadInput(f"{name!r}: block_shape is {value!r}; good ones: [128, 128]")
        return int(block.group(1)), int(block.group(2))
    if field in SIZES:
        if not _INT.match(value):
            raise BadInput(f"{name!r}: {field} is {value!r}, not a number")
        return int(value)
    return value


@dataclass(frozen=True)
class Layer:
    """A mixture-of-experts layer by its logical shape: what a model's configuration and a server's flags say.

    Attributes:
        experts: on one device, shared ones that are fused among them.
        intermediate: the size between the two projections, of the whole layer.
        tp: over how many devices it is split.
        dtype: as the engines spell a quantisation, `fp8_w8a8`; empty for bfloat16 and float16.
        block: of a block-wise quantisation, (N, K).
        per_channel: whether the scales are per channel.
        hidden: the model's; no engine has it in a name.
    """

    experts: int
    intermediate: int
    tp: int = 1
    dtype: str = ""
    block: tuple[int, int] | None = None
    per_channel: bool = False
    hidden: int | None = None

    def __post_init__(self) -> None:
        for name in ("experts", "intermediate", "tp"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise BadInput(f"a layer's {name} is {getattr(self, name)!r}; good ones: whole numbers from 1")
        if self.block is not None and any(type(part) is not int or part < 0 for part in self.block):
            raise BadInput(f"a layer's block is {self.block!r}; good ones: (128, 128), and 0 where it has no such side")
        if type(self.per_channel) is not bool:
            raise BadInput(f"a layer's per_channel is {self.per_channel!r}; good ones: true, false")
        if self.intermediate % self.tp:
            raise BadInput(f"intermediate={self.intermediate} cannot be split over tp={self.tp} devices")

    @property
    def shard(self) -> int:
        """The intermediate size on one device."""
        return self.intermediate // self.tp

    def n(self, engine: Engine) -> int:
        """N as the engine reads it off its weights: SGLang's of int4 weights counts packed bytes, vLLM's does not.

        Raises:
            BadInput: for an odd size that cannot be packed.
        """
        if self.dtype != "int4_w4a16" or engine == "vllm":
            return self.shard
        if self.shard % INT4_PACK:
            raise BadInput(f"{self.shard} int4 weights in a row cannot be packed in pairs")
        return self.shard // INT4_PACK


def of_layer(engine: Engine, layer: Layer, device: str, *, down: bool = False) -> str:
    """The file name that an engine looks for.

    Args:
        device: as the driver reports it, with blanks.

    Raises:
        BadInput: for what the engine has no name for.
    """
    if engine not in ENGINES:
        raise BadInput(unknown("engine", engine, ENGINES))
    if layer.dtype not in MOE_DTYPES[engine]:
        raise BadInput(f"{engine}: {unknown('dtype', layer.dtype, MOE_DTYPES[engine])}")
    _check_device(engine, device)
    head = f"E={layer.experts},N={layer.n(engine)},device_name="
    block = layer.block if layer.block and all(layer.block) else None
    if block and not layer.dtype:
        raise BadInput(f"{engine} quantises in blocks with a dtype alone; good ones: fp8_w8a8, int8_w8a8, …")
    if engine == "sglang":
        quantised = f",dtype={layer.dtype}" if layer.dtype else ""
        blocks = f",block_shape=[{block[0]}, {block[1]}]" if block else ""
        channels = ",per_channel_quant=True" if layer.per_channel else ""
        return f"{head}{devices.sglang(device)}{quantised}{blocks}{channels}{DOWN if down else ''}.json"
    if down:
        raise BadInput("vLLM has no tables of the down projection alone")
    if layer.per_channel:
        raise BadInput("vLLM's tables know no per-channel scales: such a layer reads the table of per-tensor scales")
    quantised = f",dtype={layer.dtype}" if layer.dtype else ""
    blocks = f",block_shape=[{block[0]},{block[1]}]" if block else ""
    return f"{head}{devices.vllm_moe(device)}{quantised}{blocks}.json"


def _check_device(engine: Engine, device: str) -> None:
    if not device.strip():
        raise BadInput("a table for a device without a name would never be found; say which")
    if not device.isprintable() or (engine == "sglang" and "/" in device):
        raise BadInput(f"the device {device!r} has signs that no file's name can hold")


def of_gemm(engine: Engine, n: int, k: int, device: str, dtype: str, block: tuple[int, int]) -> str:
    """The file name that an engine looks for of a block-wise quantised GEMM."""
    if engine not in ENGINES:
        raise BadInput(unknown("engine", engine, ENGINES))
    _check_device(engine, device)
    spelled = devices.sglang(device) if engine == "sglang" else devices.vllm(device)
    comma = ", " if engine == "sglang" else ","
    return f"N={n},K={k},device_name={spelled},dtype={dtype},block_shape=[{block[0]}{comma}{block[1]}].json"


_MISSED = re.compile(r"[Cc]onfig file not found at ([^\n]*?\.json)")


def missed(log: str) -> list[Name]:
    """The tables that an engine's log says it looked for and did not find, each once, in order."""
    found: dict[str, Name] = {}
    for said in _MISSED.finditer(log):
        file = Path(said.group(1)).name
        if file not in found:
            try:
                found[file] = read(file)
            except BadInput:  # another kind of file: not a table's
                continue
    return list(found.values())
