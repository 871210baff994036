"""Checks of serving engines' JSON tables: names, keys, ranges, tiles and what they ask of a chip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tunesmith.core.config import Config
from tunesmith.errors import BadInput, unknown
from tunesmith.tables import aiter_triton, devices, jsontext, names, resources
from tunesmith.tables.jsontext import Members
from tunesmith.tables.ladder_json import VERSION
from tunesmith.tables.sheet import Cells, Finding, Severity, Sheet

MOE = ("sglang-moe", "vllm-moe")
GEMM = ("sglang-gemm", "vllm-gemm")
#: other formats whose rows are launched by Triton, with its options beside the kernel's own knobs
LAUNCHED_BY_TRITON = ("aiter-triton", "triton-autotune", "inductor")
#: A table whose smallest size is above this serves decoding from a row made for something else.
LOW = 16
#: and one whose largest is below this, prefill.
HIGH = 256
#: of a block, on every chip: a warp has 32 threads or more
MOST_WARPS = resources.MOST_THREADS // 32
#: up to which size the tables of up and down projection are compared
DOWN_UPTO = 8192
#: knobs that a row can't do without, and all that the engines' own kernels and Triton take: any other ends the launch
TILES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
TAKEN = (
    *TILES, "GROUP_SIZE_M", "SPLIT_K", "SWAP_AB", "USE_TMA", "num_warps", "num_stages", "num_ctas", "maxnreg",
    "waves_per_eu", "matrix_instr_nonkdim", "kpack", "grf_mode",
)  # fmt: skip
#: fields that FlashInfer compares before it reads a cache
FLASHINFER_METADATA = (
    "flashinfer_version", "cuda_version", "cublas_version", "cudnn_version", "cudnn_frontend_version",
    "cutlass_dsl_version", "gpu",
)  # fmt: skip


def of_sheet(sheet: Sheet, device: str, upto: int) -> list[Finding]:
    """What is wrong in one table; see `check.Options`."""
    if sheet.format in LAUNCHED_BY_TRITON:
        return [*_launches(sheet), *(_bounds(sheet) if sheet.format == "aiter-triton" else [])]
    if sheet.format in ("flashinfer", "tensorrt-llm"):
        return _cache(sheet, device)
    if sheet.name is None or sheet.engine is None or sheet.format not in (*MOE, *GEMM, "vllm-flydsl", "vllm-mamba"):
        return []
    found = [*_name(sheet, sheet.name), *_heads(sheet), *_range(sheet, upto), *_order(sheet)]
    target = device or sheet.name.device
    chip = resources.chip(target)
    own = device in ("", sheet.name.device)
    judged = own or _vendor(device) == _vendor(sheet.name.device)
    for row in sheet.rows:
        if row.config is not None:
            found += _row(sheet, sheet.name, row, row.config)
            wanted = resources.faults(row.config, str(sheet.name.fields.get("dtype", "")), target, chip, own)
            found += [
                sheet.finding(code, severity, _of(row, why), row.line)
                for code, severity, why in wanted
                if judged or code == "threads"
            ]
    return found


def _vendor(device: str) -> str:
    """Whose compiler a table's rows go through: Intel's chips have shared memory as NVIDIA's do."""
    return "AMD" if device.startswith(("AMD", "gfx")) else "others"


def _of(row: Cells, why: str) -> str:
    return f"row {', '.join(str(value) for value in row.key.values())}: {why}"


# --- names ------------------------------------------------------------------------------------------


def _name(sheet: Sheet, name: names.Name) -> list[Finding]:
    """Names that no run ever looks for, or perhaps none."""
    return [
        sheet.finding("unreachable", severity, f"never looked for: {why}" if severity == "error" else why)
        for severity, why in [*_device(sheet, name.device), *_dtype(sheet, name), *_spelling(sheet, name)]
    ]


def _device(sheet: Sheet, device: str) -> list[tuple[Severity, str]]:
    if not device:
        return [("error", "the name of the device is empty")]
    if not devices.is_known(device):
        near = get_close_matches(device, devices.all_known(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return [("warning", f"{device} is in no list of chips that we know: a new one, or a slip of the hand{hint}")]
    if device in devices.NEVER_REPORTED:
        return [("error", f"public drivers report no {device}, but a longer name")]
    if device in devices.RENAMED and sheet.engine == "vllm":
        return [("error", f"the device is called {devices.RENAMED[device]} now")]
    if sheet.format == "vllm-moe" and devices.vllm_moe(device) != device:
        return [("error", f"vLLM asks for {devices.vllm_moe(device)} on this chip")]
    return []


def _dtype(sheet: Sheet, name: names.Name) -> list[tuple[Severity, str]]:
    if sheet.format not in MOE or sheet.engine is None:
        return []
    dtype, good = str(name.fields.get("dtype", "")), names.MOE_DTYPES[sheet.engine]
    found: list[tuple[Severity, str]] = []
    if dtype not in good:
        known = ", ".join(filter(None, good))
        found.append(("error", f"{sheet.engine} has no dtype={dtype}; it asks for {known}, or none for 16-bit floats"))
    if name.block is not None and not dtype:
        found.append(("error", "block_shape without dtype: what is quantised in blocks has one"))
    return found


def _spelling(sheet: Sheet, name: names.Name) -> list[tuple[Severity, str]]:
    found: list[tuple[Severity, str]] = []
    if name.block is not None and name.blank != (sheet.engine == "sglang"):
        good = "[128, 128], with a blank" if sheet.engine == "sglang" else "[128,128], without a blank"
        found.append(("error", f"{sheet.engine} spells block_shape as {good}"))
    if sheet.engine == "vllm" and (name.down or "per_channel_quant" in name.fields):
        found.append(("error", "vLLM has no tables of the down projection, and none per channel"))
    return found


def _heads(sheet: Sheet) -> list[Finding]:
    """Members that end the engine's reader."""
    value: Any = sheet.document.value if isinstance(sheet.document, jsontext.Document) else None
    if not isinstance(value, Members) or sheet.format in ("vllm-moe", "vllm-mamba"):
        return []
    if any(key == VERSION for key, _ in value):
        said = f"the reader takes every key for a size and ends on {VERSION!r}; keep it beside the file"
        return [sheet.finding("head", "error", said, sheet.line_of((VERSION,)))]
    return []


# --- ranges -----------------------------------------------------------------------------------------


def _range(sheet: Sheet, upto: int) -> list[Finding]:
    sizes = sorted(size for row in sheet.rows if isinstance(size := row.key[sheet.levels[0][0]], int))
    if not sizes:
        return []
    found: list[Finding] = []
    if sizes[0] > LOW:
        said = f"no row below {sizes[0]}: sizes 1…{sizes[0] - 1} run with it all the same"
        found.append(sheet.finding("range", "warning", said))
    if sizes[-1] < HIGH:
        said = f"no row above {sizes[-1]}: all larger sizes run with it all the same"
        found.append(sheet.finding("range", "warning", said))
    for first, last in sheet.ladder().uncovered(upto) if upto else ():
        found.append(sheet.finding("uncovered", "warning", f"sizes {first}…{last} are served by no row"))
    return found


def _order(sheet: Sheet) -> list[Finding]:
    sizes = [row.key[sheet.levels[0][0]] for row in sheet.rows]
    if sizes == sorted(sizes, key=lambda size: int(str(size))):
        return []
    said = "sizes are not in order: of two equally far the first in the file counts, so sorting it changes look-ups"
    return [sheet.finding("order", "warning", said)]


# --- rows -------------------------------------------------------------------------------------------


def _row(sheet: Sheet, name: names.Name, row: Cells, config: Mapping[str, Any]) -> list[Finding]:
    wrong = [
        *_values(config, _vendor(name.device)),
        *(_knobs(config, sheet.format in MOE) if sheet.format in (*MOE, *GEMM) else ()),
    ]
    found: list[tuple[str, Severity, str]] = [(code, "error", why) for code, why in wrong]
    block, k = name.block, config.get("BLOCK_SIZE_K")
    if block is not None and all(block) and type(k) is int and k > 0:
        found += _quantised(sheet, k, block[1])
    return [sheet.finding(code, severity, _of(row, why), row.line) for code, severity, why in found]


def _values(config: Mapping[str, Any], vendor: str) -> list[tuple[str, str]]:
    """Knobs that Triton can't take: it computes with powers of two. And values that are none of a knob's."""
    found: list[tuple[str, str]] = []
    try:
        Config(config)
    except BadInput as error:
        found.append(("value", f"no call can use it: {error}"))
    for knob, value in config.items():
        if not (knob.startswith("BLOCK_SIZE_") or knob == "num_warps"):
            continue
        if type(value) is not int or not 1 <= value <= resources.MOST_KNOB or value & (value - 1):
            found.append(("value", f"{knob}={repr(value)[:40]} is no power of two (below 2^30)"))
    # Triton's compiler for AMD once took 0 stages for a loop that is not pipelined
    for knob, least in (("GROUP_SIZE_M", 1), ("num_stages", 0 if vendor == "AMD" else 1), ("SPLIT_K", 1)):
        value = config.get(knob, least)
        if type(value) is not int or not least <= value <= resources.MOST_KNOB:
            found.append(("value", f"{knob}={repr(value)[:40]} is no integer from {least} on (to 2^30)"))
    return found


def _knobs(config: Mapping[str, Any], grouped: bool) -> list[tuple[str, str]]:
    """Knobs that are missing, and names that no kernel of the engine takes: either ends the first launch."""
    missing = [knob for knob in (*TILES, *(["GROUP_SIZE_M"] if grouped else [])) if knob not in config]
    found = [("knob", f"{knob} is missing") for knob in missing]
    return found + [("knob", unknown("knob", knob, TAKEN)) for knob in config if knob not in TAKEN]


def _quantised(sheet: Sheet, k: int, block_k: int) -> list[tuple[str, Severity, str]]:
    """A tile's depth against the quantisation's: what spans two scales uses the wrong one."""
    if sheet.engine == "vllm":
        if block_k % k and k % block_k:
            return [("block", "error", f"BLOCK_SIZE_K={k} and the quantisation's {block_k}: neither divides the other")]
        return []
    if block_k % k == 0:
        return []
    said = f"BLOCK_SIZE_K={k} does not divide the quantisation's {block_k}"
    if sheet.format == "sglang-gemm":
        return [("block", "warning", f"{said}: the reader may change it")]
    return [("block", "error", f"{said}: results are wrong")]


# --- other formats ----------------------------------------------------------------------------------


def _launches(sheet: Sheet) -> list[Finding]:
    """Values that Triton's launcher takes for no kernel; the kernel's own knobs may have any."""
    vendor = "AMD" if sheet.format == "aiter-triton" else "others"
    known = (*TILES, "GROUP_SIZE_M", "num_warps", "num_stages") if vendor == "AMD" else ("num_warps", "num_stages")
    found: list[Finding] = []
    for row in sheet.rows:
        options = {knob: value for knob, value in (row.config or {}).items() if knob in known}
        wrong = _values(options, vendor)
        warps = options.get("num_warps", 1)
        if type(warps) is int and warps > MOST_WARPS and not wrong:
            wrong = [("value", f"num_warps={warps}: a block has at most {MOST_WARPS}")]
        found += [sheet.finding(code, "error", _of(row, why), row.line) for code, why in wrong]
    return found


def _bounds(sheet: Sheet) -> list[Finding]:
    found = [
        sheet.finding("unreachable", "error", f"{row.key['bound']}: {why}", row.line)
        for row, why in aiter_triton.dead(sheet)
    ]
    if sheet.rows and not any(row.key["bound"] == "any" for row in sheet.rows):
        found.append(sheet.finding("fallback", "error", "no 'any': sizes beyond the bounds have no row"))
    if sheet.path.name.startswith("GEMM-") and not (sheet.path.parent / "DEFAULT.json").exists():
        found.append(sheet.finding("unreachable", "error", "no DEFAULT.json beside it: the folder is not looked into"))
    if "_note" in sheet.about:
        found.append(sheet.finding("note", "warning", f"its authors say: {sheet.about['_note']}"))
    return found


def _cache(sheet: Sheet, device: str) -> list[Finding]:
    said = {key.removeprefix("metadata."): str(value) for key, value in sheet.about.items()}
    found: list[Finding] = []
    if sheet.format == "flashinfer":
        missing = [name for name in FLASHINFER_METADATA if name not in said]
        if missing:
            why = f"_metadata lacks {', '.join(missing)}: what can't be compared is not trusted"
            found.append(sheet.finding("metadata", "error", why))
    made = said.get("gpu", said.get("device_name", ""))
    if device and made and devices.vllm(made) != device:
        why = f"made on {made}, not on {device}: its tactics mean something else there"
        found.append(sheet.finding("device", "error", why))
    return found


# --- across tables ----------------------------------------------------------------------------------


def across(sheets: Sequence[Sheet]) -> list[Finding]:
    """Tables of the down projection against those of the up projection."""
    ups = {(sheet.path.parent, sheet.path.name): sheet for sheet in sheets if sheet.format == "sglang-moe"}
    found: list[Finding] = []
    for (folder, name), down in ups.items():
        if not name.endswith("_down.json"):
            continue
        up = ups.get((folder, name.replace("_down.json", ".json")))
        if up is None:
            up = _other_version(down.path, ups)
        if up is None or not up.rows or not down.rows:
            continue
        wrong = _first_difference(up, down)
        if wrong:
            found.append(down.finding("down", "warning", wrong))
    return found


def _other_version(path: Path, ups: Mapping[tuple[Path, str], Sheet]) -> Sheet | None:
    name = path.name.replace("_down.json", ".json")
    return next((sheet for (_, other), sheet in ups.items() if other == name), None)


def _first_difference(up: Sheet, down: Sheet) -> str:
    """The two kernels share one sorting of the tokens, so their tiles must have the same M."""
    ups, downs = _tiles(up), _tiles(down)
    for i, (mine, other) in enumerate(zip(downs, ups, strict=True)):
        if mine != other:
            said = f"BLOCK_SIZE_M is {mine} for size {i + 1}, that of the up projection's table {other}"
            return f"{said}: the reader overwrites it"
    return ""


def _tiles(sheet: Sheet) -> list[object]:
    """BLOCK_SIZE_M for each size."""
    of = {row.key["M"]: None if row.config is None else row.config.get("BLOCK_SIZE_M") for row in sheet.rows}
    return [of.get(key) for first, last, key in sheet.ladder().runs(DOWN_UPTO) for _ in range(first, last + 1)]
