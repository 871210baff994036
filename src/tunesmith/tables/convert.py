"""From our table to another's format, and back; and from one engine's table to another's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.problem import FieldValue, Problem
from tunesmith.errors import BadInput, unknown
from tunesmith.tables import devices, guards, jsontext, names, policy, versions
from tunesmith.tables.ladder_json import VERSION
from tunesmith.tables.names import Engine, Layer
from tunesmith.tables.native import Entry, NativeTable
from tunesmith.tables.sheet import Sheet

#: the order in which engines write knobs; others follow by name
KNOBS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
#: readers that take the version of Triton out of the file; for the others it lies beside it
VERSION_INSIDE = ("vllm-moe", "vllm-mamba")
BESIDE = ".provenance"
TARGETS = ("sglang-moe", "vllm-moe", "sglang-gemm", "vllm-gemm")


@dataclass(frozen=True)
class Exported:
    """A table for an engine.

    Attributes:
        path: where it goes, below the folder that the engine is told.
        beside: what is known of it and its reader would not bear inside; empty for nothing.
        notes: what a user should know.
    """

    path: Path
    document: jsontext.Document
    beside: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def files(self) -> dict[Path, bytes]:
        """What to write, by path."""
        found = {self.path: self.document.data()}
        if self.beside:
            text = json.dumps(dict(self.beside), indent=2, sort_keys=True) + "\n"
            found[self.path.with_name(self.path.name + BESIDE)] = text.encode()
        return found


# --- to an engine -----------------------------------------------------------------------------------


def export_moe(
    engine: Engine, layer: Layer, device: str, rows: Mapping[int, Mapping[str, Any]], *, triton: str,
    down: bool = False, provenance: Mapping[str, str] | None = None,
) -> Exported:  # fmt: skip
    """A fused-MoE table.

    Args:
        device: as the driver reports it.
        rows: knobs by number of tokens.
        triton: the version that it was tuned with: SGLang's folder, vLLM's note.
        provenance: what else is known of it.

    Raises:
        BadInput: for what the engine would not find, or could not read.
    """
    name = names.of_layer(engine, layer, device, down=down)
    format = f"{engine}-moe"
    path = Path("configs", versions.folder(triton), name) if engine == "sglang" else Path(name)
    return _exported(format, path, rows, triton, provenance or {}, layer.block)


def export_gemm(
    engine: Engine, n: int, k: int, device: str, rows: Mapping[int, Mapping[str, Any]], *, triton: str,
    dtype: str = "fp8_w8a8", block: tuple[int, int] = (128, 128), provenance: Mapping[str, str] | None = None,
) -> Exported:  # fmt: skip
    """A table of a GEMM that is quantised in blocks; see `export_moe`."""
    name = names.of_gemm(engine, n, k, device, dtype, block)
    return _exported(f"{engine}-gemm", Path(name), rows, triton, provenance or {}, block)


def _exported(
    format: str, path: Path, rows: Mapping[int, Mapping[str, Any]], triton: str, provenance: Mapping[str, str],
    block: tuple[int, int] | None,
) -> Exported:  # fmt: skip
    if not rows:
        raise BadInput("a table without rows would be found, and serve nothing: not written")
    if min(rows) < 1:
        raise BadInput(f"a row is for {min(rows)} tokens: no call has so few, and readers take keys of digits alone")
    if format.startswith("sglang") and block and all(block):
        for size, knobs in rows.items():
            tile = knobs.get("BLOCK_SIZE_K", block[1])
            if type(tile) is not int or tile < 1 or block[1] % tile:
                raise BadInput(
                    f"row {size}: BLOCK_SIZE_K={tile!r} does not divide the quantisation's {block[1]}: "
                    "SGLang would compute wrong results"
                )
    inside = format in VERSION_INSIDE
    value: dict[str, Any] = {VERSION: triton} if inside else {}
    value |= {str(size): ordered(rows[size]) for size in sorted(rows)}
    beside = dict(provenance) if inside else {**provenance, VERSION: triton}
    notes: list[str] = []
    if min(rows) > 1:
        notes.append(f"sizes below {min(rows)} run with its row: the engine takes the nearest, however far")
    return Exported(path, jsontext.Document(jsontext.members(value), jsontext.indented(4)), beside, tuple(notes))


def ordered(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Knobs in the order that engines write."""
    first = [name for name in KNOBS if name in knobs]
    return {name: knobs[name] for name in [*first, *sorted(set(knobs) - set(first))]}


def with_guards(
    tuned: Mapping[int, Mapping[str, Any]], default: Callable[[int], Mapping[str, Any]], reach: float, upto: int
) -> dict[int, Mapping[str, Any]]:
    """Rows with which a nearest-key reader does what we would: tuned rows for sizes near them, else the default.

    Args:
        tuned: knobs by size.
        default: what the engine does without a table.
        reach: up to which factor a tuned row serves other sizes.
        upto: the largest size that matters.
    """
    ladder = policy.Ladder(policy.RULES["nearest"].within(reach), sorted(tuned))

    def decide(size: int) -> str:
        hit = ladder.find(size)
        return json.dumps(ordered(tuned[hit.key] if hit is not None else default(size)))

    wanted = guards.ranges(decide, upto)
    return {size: json.loads(knobs) for size, knobs in guards.guarded(wanted, prefer=tuned).items()}


def rows_by_size(
    table: NativeTable, size: str, fields: Mapping[str, FieldValue], rename: Mapping[str, str]
) -> dict[int, Mapping[str, Any]]:
    """Of our table, the knobs by one size, for Problems with the given other fields.

    Raises:
        BadInput: when no Problem has them, naming one that is there; when two differ in a field that is not given.
    """
    found: dict[int, Mapping[str, Any]] = {}
    for problem, entry in table.rows.items():
        value = problem.get(size)
        if type(value) is not int or any(problem.get(name) != wanted for name, wanted in fields.items()):
            continue
        if value in found:
            raise BadInput(f"several rows are of {size}={value}: say which, with further fields of {problem}")
        found[value] = {rename.get(name, name): knob for name, knob in entry.config.items()}
    if not found:
        raise BadInput(f"no row has {dict(fields)} and a size {size!r}; a row there: {next(iter(table.rows), 'none')}")
    return found


def rows_of_layer(table: NativeTable, layer: Layer) -> dict[str, FieldValue]:
    """The fields by which a table that names a layer's sizes, as `fused_moe`'s do, has the rows of this one."""
    known: dict[str, FieldValue] = {"E": layer.experts, "N": layer.shard}
    if layer.hidden is not None:
        known["K"] = layer.hidden
    return {name: size for name, size in known.items() if any(name in problem for problem in table.rows)}


def collisions(layers: Iterable[tuple[Engine, Layer, str]]) -> list[str]:
    """Layers that differ and share a file: the names know nothing of the hidden size.

    Args:
        layers: (engine, layer, device).
    """
    seen: dict[tuple[Engine, str], Layer] = {}
    found: list[str] = []
    for engine, layer, device in layers:
        name = names.of_layer(engine, layer, device)
        other = seen.setdefault((engine, name), layer)
        if other != layer:
            found.append(f"{name} would serve two layers: {other} and {layer}")
    return found


# --- between engines --------------------------------------------------------------------------------


def convert(sheet: Sheet, target: str, *, triton: str = "") -> Exported:
    """One engine's table for another, under the name that it looks for.

    Args:
        target: one of `TARGETS`.
        triton: the version, where the table does not say.

    Raises:
        BadInput: for what the other engine has no name for, or could not read.
    """
    if target not in TARGETS:
        raise BadInput(unknown("target", target, TARGETS))
    if sheet.name is None or sheet.format not in TARGETS or sheet.format.split("-")[1] != target.split("-")[1]:
        raise BadInput(f"{sheet.path} is a table of {sheet.format}: it cannot become one of {target}")
    made = triton or str(sheet.about.get(VERSION, sheet.about.get("triton_folder", "")))
    if not made:
        raise BadInput(f"{sheet.path} does not say which Triton it is for: say it with triton=")
    engine: Engine = "sglang" if target.startswith("sglang") else "vllm"
    if any(row.config is None for row in sheet.rows):
        raise BadInput(f"{sheet.path} has null rows, where another kernel is better: {target} cannot say that")
    rows = {int(str(row.key["M"])): row.config or {} for row in sheet.rows}
    fields, block = sheet.name.fields, sheet.name.block
    dtype, device = str(fields.get("dtype", "")), sheet.name.device
    if target.endswith("gemm"):
        n, k = int(str(fields["N"])), int(str(fields["K"]))
        if block is None:
            raise BadInput(f"{sheet.path.name} names no block_shape, and {target} has tables of blocks alone")
        return export_gemm(engine, n, k, device, rows, triton=made, dtype=dtype, block=block)
    packed = names.INT4_PACK if dtype == "int4_w4a16" and sheet.engine == "sglang" else 1
    per_channel = fields.get("per_channel_quant") == "True"
    layer = Layer(int(str(fields["E"])), int(str(fields["N"])) * packed, 1, dtype, block, per_channel)
    return export_moe(engine, layer, device, rows, triton=made, down=sheet.name.down)


# --- to our own ---------------------------------------------------------------------------------------


def native(
    sheets: Sequence[Sheet], kernel: str, device: Device, given: Mapping[str, FieldValue], rename: Mapping[str, str]
) -> tuple[NativeTable, list[str]]:
    """Tables of another format as one of ours: a row for each key, with the sizes of the file's name.

    Args:
        kernel: its name with us.
        device: whose it is.
        given: further fields of each Problem.
        rename: their name of a knob → ours.

    Returns:
        The table, and what was left out and why.

    Raises:
        BadInput: when nothing could be taken, and for a table of another device.
    """
    rows: dict[Problem, Entry] = {}
    left: list[str] = []
    for sheet in sheets:
        if sheet.name is not None and devices.of_table(device.name, sheet.format, sheet.name.device).name is None:
            raise BadInput(f"{sheet.path} is for {sheet.name.device!r}, not for {device.name}")
        fixed = {
            name: value
            for name, value in (sheet.name.fields.items() if sheet.name is not None else ())
            if name in names.SIZES or name == "dtype"
        }
        for row in sheet.rows:
            place = f"{sheet.path}:{row.line}"
            if row.config is None:
                left.append(f"{place}: null: no Config")
                continue
            try:
                problem = Problem({**fixed, **row.key, **given})
                config = Config({rename.get(name, name): value for name, value in row.config.items()})
                beside = {rename.get(name, name): value for name, value in (row.called or {}).items()}
                called = Config(beside) if beside else None
            except BadInput as error:
                left.append(f"{place}: {error}")
                continue
            seconds = row.us / 1e6 if row.us is not None and 0 < row.us < float("inf") else None
            if problem in rows:
                left.append(f"{place}: {problem} is there already")
            rows.setdefault(problem, Entry(config, seconds, {"from": f"{sheet.path.name}:{row.line}"}, called))
    if not rows:
        raise BadInput(f"no row could be taken: {'; '.join(left[:3]) or 'the tables are empty'}")
    made = {str(sheet.about[name]) for sheet in sheets for name in (VERSION, "triton_folder") if name in sheet.about}
    soft = {"triton": made.pop()} if len(made) == 1 else {}
    return NativeTable(kernel, device.identity, rows, soft=soft), left
