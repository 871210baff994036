"""Names of devices in tables: how each reader spells them, and which spellings are the same chip."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

#: Spellings of one chip: a driver's, a data sheet's, a container's. Never two chips.
SAME = (
    frozenset({"AMD_Instinct_MI325X", "AMD_Instinct_MI325_OAM"}),
    frozenset({"AMD_Instinct_MI350X", "AMD_Instinct_MI350_OAM"}),
    frozenset({"AMD_Instinct_MI355X", "AMD_Instinct_MI355_OAM"}),
    frozenset({"AMD_Radeon_8060S", "Radeon_8060S_Graphics"}),
)
#: (chip, chip whose table serves it where it has none): the same die and memory, other power.
SERVED_BY = {"NVIDIA_H200_NVL": "NVIDIA_H200"}
#: Names that readers no longer ask for, and what they ask for now.
RENAMED = {"Radeon_8060S_Graphics": "AMD_Radeon_8060S"}
#: In tables, and reported by no public driver: those say H100 80GB HBM3, H100 PCIe or H100 NVL.
NEVER_REPORTED = frozenset({"NVIDIA_H100"})
_MIG = re.compile(r"_MIG_\d+g\.\d+gb")
#: Helion's names for chips whose reported name is longer.
HELION = {"nvidia_h100_80gb_hbm3": "nvidia_h100"}


def sglang(reported: str) -> str:
    """SGLang's spelling: blanks become underscores, nothing else changes."""
    return reported.replace(" ", "_")


def vllm(reported: str) -> str:
    """vLLM's spelling: each run of blanks and slashes becomes one underscore."""
    return re.sub(r"[\s/]+", "_", reported)


def vllm_moe(reported: str) -> str:
    """vLLM's spelling for fused MoE: every H200 is one name."""
    name = vllm(reported)
    return "NVIDIA_H200" if "H200" in name.split("_") else name


def vllm_lora(reported: str) -> str:
    """vLLM's spelling for LoRA: dashes go too."""
    return reported.replace(" ", "_").replace("-", "_")


def helion(reported: str) -> str:
    """vLLM's spelling for Helion kernels: lower case, some names cut."""
    name = vllm(reported).lower()
    return HELION.get(name, name)


#: Formats whose files spell devices in a way of their own.
SPELLED_BY = {"vllm-lora": vllm_lora, "vllm-helion": helion, "sglang-sum-reduce": vllm_lora}


@dataclass(frozen=True, slots=True)
class Match:
    """Which of a table's names is a device's.

    Attributes:
        name: `None` where none surely is.
        note: what a user should know; empty for the exact name.
    """

    name: str | None
    note: str = ""


def of_table(reported: str, format: str, name: str) -> Match:
    """Whether a table's name of a device, as its format spells it, is the reported device's; see `match`."""
    spelled = SPELLED_BY.get(format)
    if spelled is not None and spelled(reported) == name:
        return Match(name)
    return match(reported, [name])


def match(reported: str, names: Iterable[str]) -> Match:
    """The name among a table's that is the reported device's: the exact one, else a known other spelling of it.

    Never a guess: part of a name, or the only name left, is not enough.
    """
    known, asked = list(names), vllm(reported)
    if asked in known:
        return Match(asked)
    for name in known:
        if name.lower() == asked.lower():
            return Match(name, f"{reported!r} is spelled {name} in the table")
    for group in SAME:
        for name in known if asked in group else ():
            if name in group:
                return Match(name, f"{reported!r} is the chip that the table calls {name}")
    if _MIG.search(asked):
        return Match(None, f"{reported!r} is a slice of a chip: the whole chip's table is not used for it")
    other = SERVED_BY.get(asked)
    if other in known:
        return Match(other, f"{reported!r} has no table of its own: that of {other} serves it")
    near = [name for name in known if name.lower().startswith(asked.lower() + "_")]
    if near:
        return Match(None, f"{reported!r} could be {' or '.join(near)}: not guessed")
    return Match(None, f"no table for {reported!r} (there are: {', '.join(known) or 'none'})")
