"""Kernels in CUDA C++: knobs are macros and launch sizes, NVRTC compiles them in child processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tunesmith.backends.c_files import included, read_source
from tunesmith.backends.cuda.kernel import CudaExecutable, CudaKernel
from tunesmith.backends.cuda.sizes import Extent
from tunesmith.backends.cuda.source import parse_prototype
from tunesmith.errors import BadInput

__all__ = ["CudaExecutable", "CudaKernel", "kernel"]


def kernel(
    source: str | Path,
    *,
    grid: Extent,
    block: Extent,
    entry: str | None = None,
    shared: Extent = 0,
    cluster: Extent | None = None,
    dependent: Extent | None = None,
    types: Mapping[str, str] | None = None,
    name: str | None = None,
    headers: Iterable[str | Path] = (),
    options: Sequence[str] = (),
) -> CudaKernel:
    """A kernel in CUDA C++. Its prototype in the source says what a call takes.

    >>> scale = kernel('''
    ... #ifndef BLOCK
    ... #define BLOCK 256
    ... #endif
    ... template <typename T>
    ... __global__ void __launch_bounds__(BLOCK) scale(const T *x, T *y, float a, int n) {
    ...     int i = blockIdx.x * BLOCK + threadIdx.x;
    ...     if (i < n) y[i] = T(a * float(x[i]));
    ... }
    ... ''', entry="scale<T>", grid=lambda n, BLOCK: -(-n // BLOCK), block="BLOCK")
    >>> scale.signature
    <Signature (x, y, a, n)>

    Sizes are numbers, names of arguments or knobs, or functions of them by name; `device` is the Device.

    Args:
        source: CUDA C++ text, or the path of a .cu file.
        grid: blocks: one to three sizes. Where one is 0, nothing is launched.
        block: threads of a block: one to three sizes.
        entry: the kernel; not needed where the source defines one that is no template. Template arguments may be
            macros; a typename that stands for itself is taken from the dtype of the arrays that are declared with it.
        shared: bytes of dynamic shared memory.
        cluster: blocks of a cluster, one to three sizes, of knobs alone (sm_90 and later).
        dependent: whether a launch may begin before the kernel ahead of it has ended, of knobs alone (sm_90 and later;
            programmatic dependent launch). The source says `griddepcontrol.wait` ahead of all that it reads and writes.
        types: what types that the source makes itself are, or parameters by name: `{"index_t": "int"}`.
        name: the entry's, if not given.
        headers: files that the source includes by name in quotes and that do not lie beside it.
        options: further arguments for NVRTC.

    Raises:
        BadInput: for a prototype that can't be called from here, or a name that the source does not know.
    """
    text, path, where = read_source(source, "CUDA source")
    _check_options(options)
    prototype = parse_prototype(text, entry, dict(types or {}), where)
    found = included(text, path, [Path(h).expanduser().absolute() for h in headers], where)
    made = CudaKernel(
        name or prototype.name, text, path, prototype, grid, block, shared, cluster, dependent, found, tuple(options)
    )
    made.check_declaration()
    return made


def _check_options(options: Sequence[str]) -> None:
    """Refuse options that bring in files: a change of theirs would go unnoticed."""
    if isinstance(options, str):
        raise BadInput(f"options={options!r} is one string; give a list: options=[{options!r}]")
    for option in options:
        if re.match(
            r"(-I|--?include-path|--?pre-include|-include|--?options-file|-optf|@|--?gpu-architecture|--?arch)", option
        ):
            raise BadInput(
                f"option {option!r}: headers are named in headers=, so that a change of theirs is noticed, and the "
                "architecture is that of the device"
            )
