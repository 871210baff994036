"""Names of devices in tables: how each reader spells them, and which spellings are the same chip."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tunesmith.core.device import known_devices

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
#: Chips for which engines ship tables, and further ones that drivers report by these names, as tables spell them.
IN_TABLES = frozenset(
    {
        "AMD_Instinct_MI210", "AMD_Instinct_MI250", "AMD_Instinct_MI250X", "AMD_Instinct_MI300A", "AMD_Instinct_MI300X",
        "AMD_Instinct_MI300X_VF", "AMD_Instinct_MI308X", "AMD_Radeon_Graphics", "AMD_Radeon_R9700",
        "Intel(R)_Arc(TM)_Pro_B60_Graphics", "Intel(R)_Arc(TM)_Pro_B70_Graphics", "NVIDIA_A10", "NVIDIA_A10G",
        "NVIDIA_A100-PCIE-40GB", "NVIDIA_A100-SXM4-40GB", "NVIDIA_A100-SXM4-80GB", "NVIDIA_A100_80GB_PCIe",
        "NVIDIA_A30", "NVIDIA_A40", "NVIDIA_A800-SXM4-80GB", "NVIDIA_B200", "NVIDIA_B300_SXM6_AC",
        "NVIDIA_GB10", "NVIDIA_GB200", "NVIDIA_GB300", "NVIDIA_GH200_480GB", "NVIDIA_GeForce_RTX_3090",
        "NVIDIA_GeForce_RTX_4090", "NVIDIA_GeForce_RTX_5090", "NVIDIA_H100_80GB_HBM3", "NVIDIA_H100_NVL",
        "NVIDIA_H100_PCIe", "NVIDIA_H20", "NVIDIA_H20-3e", "NVIDIA_H200", "NVIDIA_H200_NVL", "NVIDIA_H800",
        "NVIDIA_L20", "NVIDIA_L20Y", "NVIDIA_L4", "NVIDIA_L40", "NVIDIA_L40S", "NVIDIA_RTX_5880_Ada_Generation",
        "NVIDIA_RTX_6000_Ada_Generation", "NVIDIA_RTX_A6000",
        "NVIDIA_RTX_PRO_6000_Blackwell_Max-Q_Workstation_Edition", "NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition",
        "NVIDIA_RTX_PRO_6000_Blackwell_Workstation_Edition", "Tesla_T4", "Tesla_V100-SXM2-16GB",
        "Tesla_V100-SXM2-32GB",
    }
)  # fmt: skip
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


def all_known() -> list[str]:
    """Every chip's name in tables that some list has: ours, the engines', a user's own (`add_device`)."""
    spelled = {vllm(device.name) for device in known_devices() if device.kind != "cpu"}
    return sorted(spelled.union(IN_TABLES, NEVER_REPORTED, RENAMED, RENAMED.values(), *SAME))


def is_known(name: str) -> bool:
    """Whether some list has a chip of this name, whole or as a slice."""
    whole = _MIG.sub("", name).lower()
    return any(known.lower() == whole for known in all_known())


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
