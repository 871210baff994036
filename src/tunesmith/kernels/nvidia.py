"""What the shipped kernels in CUDA C++ need: a compiler, and of a chip the parts that they are written for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from tunesmith.core.device import Device
from tunesmith.errors import BadInput, MissingEngine

if TYPE_CHECKING:
    from tunesmith.backends.cuda import CudaKernel


def bindings() -> Mapping[str, str]:
    """The version of what compiles and launches CUDA C++, none where it is missing; imports nothing of it."""
    try:
        return {"cuda-bindings": version("cuda-bindings")}
    except PackageNotFoundError:
        return {}


@cache
def missing() -> str:
    """Why CUDA C++ can't be compiled here, and what to do; empty where it can be."""
    from tunesmith.backends.cuda.compile import INSTALL, nvrtc_version

    if not bindings():
        return f"cuda-bindings is not installed, through which NVRTC compiles it: {INSTALL}"
    try:
        nvrtc_version()
    except MissingEngine as error:
        return str(error)
    return ""


class CudaSource(ABC):
    """What a shipped kernel in CUDA C++ says of itself by its source alone."""

    name: str

    @staticmethod
    @abstractmethod
    def program() -> CudaKernel:
        """The kernel as the CUDA backend has it."""

    def fingerprint(self) -> str:
        return self.program().fingerprint()

    def environment(self) -> Mapping[str, str]:
        return self.program().environment()

    def versions(self) -> Mapping[str, str]:
        """None where it is not installed: it is asked for wherever it may be chosen."""
        return bindings()

    def on_nvidia(self, found: Device, array: str) -> Device:
        """The device of an array.

        Raises:
            BadInput: for one that runs no CUDA.
        """
        if found.kind != "cuda":
            raise BadInput(
                f"{self.name} is a CUDA kernel, and {array} is on {found.name}; good values: tensors on NVIDIA's"
            )
        return found


def has_clusters(device: Device) -> bool:
    """Whether a chip's blocks read each other's shared memory, and may begin before the kernel ahead has ended."""
    return _is_from(device, 90)


def has_matrix_units(device: Device) -> bool:
    """Whether a chip multiplies tiles of 16-bit floats, both kinds, and copies to shared memory past its registers."""
    return _is_from(device, 80)


def _is_from(device: Device, least: int) -> bool:
    number = device.arch.removeprefix("sm_").rstrip("af")
    return device.kind == "cuda" and number.isdecimal() and int(number) >= least
