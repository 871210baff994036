"""`Device`: what a chip is. A table of known chips, which a user can add to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tunesmith.errors import BadInput, unknown

KIB = 1024
#: dense FLOP/s of the matrix units (of the vector units for float32) by dtype name
Peaks = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of chip. Only `kind`, `name`, `arch` and `units` tell two devices apart in a Key.

    Attributes:
        kind: `cuda`, `hip` or `cpu`.
        name: as the driver reports it.
        arch: `sm_90`, `gfx942`, or a CPU's instruction sets.
        units: streaming multiprocessors, compute units, or the CPU cores this process may use.
        registers_per_unit: 32-bit registers.
        uid: which one of several alike chips of a host it is; of a CPU, the cores that this process may use (`0-3,8`),
            where that can be told.
        shared_bytes_per_block: the most a block can ask for.
        bandwidth: bytes/s of device memory.
        peak: FLOP/s by dtype name, dense.
    """

    kind: str
    name: str
    arch: str
    units: int
    uid: str = field(default="", compare=False)  # which one of several alike: for locks, not for Keys
    registers_per_unit: int = 0
    shared_bytes_per_block: int = 0
    shared_bytes_per_unit: int = 0
    threads_per_unit: int = 0
    blocks_per_unit: int = 0
    warp: int = 0  # threads
    l2_bytes: int = 0
    memory_bytes: int = 0
    bandwidth: float = 0.0
    peak: Peaks = field(default_factory=dict[str, float], hash=False)

    def __post_init__(self) -> None:
        if self.kind not in ("cuda", "hip", "cpu"):
            raise BadInput(unknown("kind of device", self.kind, ["cuda", "hip", "cpu"]))
        if self.units < 1:
            raise BadInput(f"device {self.name!r} has {self.units} units: at least 1")

    @property
    def identity(self) -> str:
        """What must match exactly for a Choice to be used: `cuda:NVIDIA H200:sm_90:132`."""
        return f"{self.kind}:{self.name}:{self.arch}:{self.units}"

    @property
    def places(self) -> tuple[str, ...]:
        """The pieces of hardware that two searches must not use at once: of a CPU each core."""
        if self.kind != "cpu":
            return (f"{self.kind}:{self.name}:{self.uid}",)
        return tuple(f"cpu:{core}" for core in cores_of(self.uid)) if self.uid else ("cpu",)


def cores_of(text: str) -> tuple[int, ...]:
    """The cores of a set, as Linux spells it, in ascending order.

    >>> cores_of("0-3,8")
    (0, 1, 2, 3, 8)

    Raises:
        BadInput: for text that is no such set.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and len(first) < 6 and len(last) < 6):
            raise BadInput(f"{part.strip()!r} is no core or range of cores; good ones: 0 and 4-7, several as 0-3,8")
        if int(last) < int(first):
            raise BadInput(f"{part.strip()!r} is a range that ends before it begins; good ones: 4-7")
        found.update(range(int(first), int(last) + 1))
    return tuple(sorted(found))


def spell_cores(cores: Iterable[int]) -> str:
    """A set of cores as `cores_of` reads it.

    >>> spell_cores([8, 0, 1, 2, 3])
    '0-3,8'
    """
    runs: list[list[int]] = []
    for core in sorted(set(cores)):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _nvidia(
    name: str, arch: str, units: int, *, shared_kib: tuple[int, int], threads: int, blocks: int, l2_mib: int, gib: int,
    tb_s: float, **tera: float,
) -> Device:  # fmt: skip
    """A CUDA chip: shared memory of (a block, an SM), threads and blocks of an SM, dense TFLOP/s by dtype."""
    return Device(
        "cuda", name, arch, units,
        registers_per_unit=65536, shared_bytes_per_block=shared_kib[0] * KIB, shared_bytes_per_unit=shared_kib[1] * KIB,
        threads_per_unit=threads, blocks_per_unit=blocks, warp=32,
        l2_bytes=l2_mib * KIB**2, memory_bytes=gib * KIB**3, bandwidth=tb_s * 1e12, peak=_flops(tera),
    )  # fmt: skip


def _flops(tera: Mapping[str, float]) -> dict[str, float]:
    """FLOP/s from TFLOP/s; bfloat16 runs as fast as float16 where nothing else is said."""
    half = {"bfloat16": tera["float16"]} if "float16" in tera else {}
    return {dtype: rate * 1e12 for dtype, rate in {**half, **tera}.items()}


# Vendors' data sheets (dense rates), and the table of technical specifications per compute capability in CUDA's
# programming guide.
_KNOWN = (
    _nvidia(
        "NVIDIA GeForce RTX 3070", "sm_86", 46, shared_kib=(99, 100), threads=1536, blocks=16,
        l2_mib=4, gib=8, tb_s=0.448, float32=20.3, float16=81.3, bfloat16=40.6,
    ),
    _nvidia(
        "NVIDIA L40S", "sm_89", 142, shared_kib=(99, 100), threads=1536, blocks=24,
        l2_mib=96, gib=48, tb_s=0.864, float32=91.6, float16=362, float8_e4m3fn=733,
    ),
    _nvidia(
        "NVIDIA A100-SXM4-80GB", "sm_80", 108, shared_kib=(163, 164), threads=2048, blocks=32,
        l2_mib=40, gib=80, tb_s=2.039, float64=19.5, float32=19.5, float16=312,
    ),
    _nvidia(
        "NVIDIA H100 80GB HBM3", "sm_90", 132, shared_kib=(227, 228), threads=2048, blocks=32,
        l2_mib=50, gib=80, tb_s=3.35, float64=66.9, float32=66.9, float16=989, float8_e4m3fn=1979,
    ),
    _nvidia(
        "NVIDIA H200", "sm_90", 132, shared_kib=(227, 228), threads=2048, blocks=32,
        l2_mib=60, gib=141, tb_s=4.8, float64=66.9, float32=66.9, float16=989, float8_e4m3fn=1979,
    ),
    _nvidia(
        "NVIDIA B200", "sm_100", 148, shared_kib=(227, 228), threads=2048, blocks=32,
        l2_mib=126, gib=180, tb_s=7.7, float32=75, float16=2250, float8_e4m3fn=4500,
    ),
    Device(
        "hip", "AMD Instinct MI300X", "gfx942", 304,
        registers_per_unit=131072, shared_bytes_per_block=64 * KIB, shared_bytes_per_unit=64 * KIB,
        threads_per_unit=2048, blocks_per_unit=32, warp=64, l2_bytes=4 * KIB**2,
        memory_bytes=192 * KIB**3, bandwidth=5.3e12,
        peak=_flops({"float64": 163.4, "float32": 163.4, "float16": 1307, "float8_e4m3fnuz": 2615}),
    ),
    Device(
        "hip", "AMD Instinct MI355X", "gfx950", 256,
        registers_per_unit=131072, shared_bytes_per_block=160 * KIB, shared_bytes_per_unit=160 * KIB,
        threads_per_unit=2048, blocks_per_unit=32, warp=64, l2_bytes=4 * KIB**2,
        memory_bytes=288 * KIB**3, bandwidth=8.0e12,
        peak=_flops({"float64": 78.6, "float32": 157.3, "float16": 2517, "float8_e4m3fn": 5033}),
    ),
)  # fmt: skip

_devices: dict[str, Device] = {device.name: device for device in _KNOWN}


def known_devices() -> tuple[Device, ...]:
    """Every chip in the table, those a user added last."""
    return tuple(_devices.values())


def add_device(device: Device) -> Device:
    """Put a chip in the table, or replace the one of that name, for this process."""
    _devices[device.name] = device
    return device


def device_of(identity: str) -> Device | None:
    """The chip of the table that a Key's device names, `None` where it is not there."""
    return next((device for device in _devices.values() if device.identity == identity), None)


def known_device(name: str) -> Device:
    """The chip of exactly this name: `NVIDIA H200` is not `NVIDIA H200 NVL`.

    Raises:
        BadInput: naming the known ones.
    """
    if name not in _devices:
        raise BadInput(unknown("device", name, _devices))
    return _devices[name]
