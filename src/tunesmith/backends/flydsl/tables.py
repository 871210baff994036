"""Tables of others for kernels in FlyDSL: FlyDSL's own offline configurations, and aiter's rows of FlyDSL kernels.

aiter keeps a kernel's knobs in its name, `flydsl_bpreshuflle_16x64x512_F8_F8_B16_2x0x0x2x0_default` (that is how it
spells it). A name that is read wrongly would be another kernel, so a name has to be read to its last letter.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from tunesmith.core.config import Config, KnobValue
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.problem import FieldValue, Problem
from tunesmith.errors import BadInput, TunesmithWarning
from tunesmith.tables.base import Row, Tables
from tunesmith.tables.loading import load

# --- aiter -------------------------------------------------------------------------------------------

_TILE = r"(?P<tile_m>\d+)x(?P<tile_n>\d+)x(?P<tile_k>\d+)"
_DTYPES = r"(?P<in_dtype>[A-Z]+\d+)_(?P<w_dtype>[A-Z]+\d+)_(?P<out_dtype>[A-Z]+\d+)"
#: aiter's families of names: family → how it spells its knobs
_NAMES: Mapping[str, re.Pattern[str]] = {
    "bpreshuffle": re.compile(
        rf"flydsl_bpreshuflle_{_TILE}_{_DTYPES}_(?P<lds_stage>\d+)x(?P<use_cshuffle_epilog>[01])x"
        r"(?P<use_async_copy>[01])x(?P<waves_per_eu>\d+)(?:x(?P<xcd_swizzle>\d+))?_(?P<scheduler>[a-z0-9]+)"
        r"(?:_spk(?P<split_k>\d+))?"
    ),
    "mxpreshuffle": re.compile(rf"flydsl_mxpsh_{_TILE}_{_DTYPES}_w(?P<waves_per_eu>\d+)_x(?P<xcd_swizzle>\d+)"),
    "hgemm": re.compile(
        r"flydsl_hgemm_a(?P<in_dtype>bf16|fp16|f16)_w(?P<w_dtype>bf16|fp16|f16)_(?P<out_dtype>bf16|fp16|f16|fp32)_"
        r"t(?P<block_m>\d+)x(?P<block_n>\d+)x(?P<block_k>\d+)x(?P<stages>\d+)_ks(?P<split_k>\d+)_"
        r"w(?P<m_waves>\d+)x(?P<n_waves>\d+)x(?P<k_waves>\d+)_bias(?P<has_bias>[01])_ktail(?P<has_k_tail>[01])_"
        r"gm(?P<group_m>\d+)_p(?P<policy>ft|ht|hti)_(?P<arch>gfx[0-9a-z]+)"
    ),
    "gemm2": re.compile(
        r"flydsl_gemm2_a(?P<in_dtype>\w+?)_w(?P<w_dtype>\w+?)_(?P<out_dtype>[a-z0-9]+)_"
        r"t(?P<tile_m>\d+)x(?P<tile_n>\d+)x(?P<tile_k>\d+)_split_k(?P<split_k>\d+)_"
        r"block_m_warp(?P<block_m_warps>\d+)_block_n_warp(?P<block_n_warps>\d+)_async_copy(?P<async_copy>True|False)_"
        r"b_to_lds(?P<b_to_lds>True|False)_b_preshuffle(?P<b_preshuffle>True|False)_"
        r"c_to_lds(?P<c_to_lds>True|False)_(?P<arch>gfx[0-9a-z]+)"
    ),
}
#: what a name says that is no knob: the row's key says it too, or the chip does
_NO_KNOBS = frozenset({"in_dtype", "w_dtype", "out_dtype", "arch", "has_bias", "has_k_tail"})
#: knobs that a name leaves out where they are usual
_USUAL: Mapping[str, Mapping[str, KnobValue]] = {"bpreshuffle": {"xcd_swizzle": 0, "split_k": 1}}


def knobs_of(kernel_name: str) -> tuple[str, Config]:
    """What aiter's name of a FlyDSL kernel says: (family, knobs).

    >>> knobs_of("flydsl_mxpsh_32x128x256_F8_F8_B16_w2_x0")
    ('mxpreshuffle', Config(tile_k=256, tile_m=32, tile_n=128, waves_per_eu=2, xcd_swizzle=0))

    Raises:
        BadInput: for a name of another form.
    """
    for family, pattern in _NAMES.items():
        found = pattern.fullmatch(kernel_name)
        if found is not None:
            said = {name: _value(text) for name, text in found.groupdict().items() if text is not None}
            knobs = {**_USUAL.get(family, {}), **{n: v for n, v in said.items() if n not in _NO_KNOBS}}
            return family, Config(**knobs)
    raise BadInput(f"{kernel_name!r} is no name of a FlyDSL kernel of aiter's; known families: {', '.join(_NAMES)}")


def _value(text: str) -> KnobValue:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdigit() else text


def aiter_rows(
    path: str | Path, *, family: str, given: Mapping[str, FieldValue] | None = None,
    rename: Mapping[str, str] | None = None, kernel: str = "",
) -> Tables:  # fmt: skip
    """aiter's CSV files as a table for a kernel in FlyDSL: of the rows that a FlyDSL kernel won, its knobs.

    Rows that another library won are misses, as are names of another family.

    Args:
        path: a file, or a folder of them.
        family: of the kernels' names: `bpreshuffle`, `mxpreshuffle`, `hgemm`, `gemm2`.
        given: what rows say and the kernel's Problem does not: `{"dtype": "torch.bfloat16", "bias": False}`.
        rename: aiter's name of a knob → the kernel's; what is named "" is left out.
        kernel: the kernel it is for; any that asks if not given.

    Raises:
        BadInput: for a path that is no table, and an unknown family.
    """
    if family not in _NAMES:
        raise BadInput(f"family={family!r}; good values: {', '.join(_NAMES)}")
    return _AiterRows(load(path, kernel=kernel, given=given), family, dict(rename or {}))


@dataclass(frozen=True)
class _AiterRows:
    """Rows whose Config is a name, read as knobs."""

    table: Tables
    family: str
    rename: Mapping[str, str]

    def lookup(self, key: Key, exact: Problem, device: Device) -> Row | None:
        """The row for a call, if a FlyDSL kernel of this family won it."""
        row = self.table.lookup(key, exact, device)
        if row is None or str(row.config.get("libtype", "flydsl")).lower() != "flydsl":
            return None
        try:
            family, knobs = knobs_of(str(row.config.get("kernelName", "")))
        except BadInput:
            return None
        if family != self.family:
            return None
        named = {self.rename.get(name, name): value for name, value in knobs.items()}
        return replace(row, config=Config(**{name: value for name, value in named.items() if name}))


# --- FlyDSL's own artifacts ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Artifacts:
    """FlyDSL's offline configurations of one kernel. Nothing in them is executed.

    Attributes:
        rows: (chip, key, Config, file) of each.
    """

    rows: tuple[tuple[Mapping[str, Any], Mapping[str, Any], Config, Path], ...]

    def lookup(self, key: Key, exact: Problem, device: Device) -> Row | None:
        """The row of just this chip and key; `None` where there is none."""
        for chip, asked, config, path in self.rows:
            same_chip = (chip.get("name"), chip.get("arch"), chip.get("compute_units")) == (
                device.name, device.arch, device.units
            )  # fmt: skip
            if same_chip and all(_is_at(exact, name, value) for name, value in asked.items()):
                return Row(config, f"table {path}")
        return None


def artifacts(folder: str | Path, name: str) -> Artifacts:
    """What FlyDSL wrote to `$FLYDSL_AUTOTUNE_CONFIG_DIR` for a kernel of this `artifact_name`, as a table.

    A file that can't be read is left out, with one warning.

    Raises:
        BadInput: when there is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise BadInput(
            f"there is no folder {str(root)!r}; FlyDSL writes its configurations to FLYDSL_AUTOTUNE_CONFIG_DIR"
        )
    rows: list[tuple[Mapping[str, Any], Mapping[str, Any], Config, Path]] = []
    for path in sorted(root.glob(f"{name}-*.json")):
        try:
            data = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
            identity = data["identity"]
            if data["version"] != 1 or identity["name"] != name:
                continue
            rows.append((dict(identity["device"]), dict(identity["key"]), Config(**data["config"]), path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{path} is left out: {type(error).__name__}: {error}", TunesmithWarning, stacklevel=2)
    return Artifacts(tuple(rows))


def _is_at(problem: Problem, name: str, value: Any) -> bool:
    """Whether a Problem has this value of FlyDSL's key: of an array its shape."""
    if isinstance(value, list):
        return all(problem.get(f"{name}.{i}") == size for i, size in enumerate(cast("list[object]", value)))
    return problem.get(name) == value
