"""Writes the launch of one compiled CUDA kernel as Python source: from a call's arguments to the driver's launch.

Nothing is looked up that can't change. Arguments are packed by one call into memory that is there already, and the
driver is told where in it each lies; it has copied them when it returns. Several threads may launch at once, and the
driver's function lets others run, so each launch in progress has a piece of memory of its own.

Measured against a driver that does nothing (Python 3.11, cuda-bindings 13.5, 2 cores shared with others' work, ns of
one launch): packing and `cuLaunchKernel` 670 to 1,580; the same by ctypes 1,710 to 3,880; `cuda.core.launch` with its
configuration kept 1,040 to 2,440. The three were measured by turns; each range is that of the machine's load.
"""

from __future__ import annotations

import ctypes
import itertools
import linecache
import struct
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, cast

from tunesmith.backends.cuda import driver as cuda
from tunesmith.backends.cuda.arguments import address_of, stream_of
from tunesmith.backends.cuda.sizes import Resolved, three
from tunesmith.backends.cuda.source import SCALAR_TYPES, Parameter, Prototype
from tunesmith.errors import BadInput, DeviceError

_numbers = itertools.count()
#: a CUlaunchConfig: grid, block, shared memory, stream, address and number of its attributes
LAUNCH_CONFIG = struct.Struct("@7IQQI")


def launcher(
    prototype: Prototype, function: Any, index: int, grid: Resolved, block: Resolved, shared: Resolved, name: str,
    dependent: bool = False,
) -> Callable[..., None]:  # fmt: skip
    """The function that a call of one Config ends in. It takes the kernel's arguments by position.

    Who knows the arrays' addresses, and that they are tensors of the right dtypes on the right device, may give the
    addresses after the arguments (`takes_addresses`).

    Args:
        prototype: of the call: no type of it is left to decide.
        function: the driver's, loaded on the device `index`.
        name: the kernel's, for messages.
        dependent: whether a launch may begin before the kernel ahead of it has ended.
    """
    p = prototype.prefix
    frames = _Frames(prototype.parameters, dependent)
    arrays = [one for one in prototype.parameters if one.is_array]
    space: dict[str, Any] = {
        f"{p}pop": frames.free.pop, f"{p}push": frames.free.append, f"{p}new": frames.new, f"{p}pack": frames.pack,
        f"{p}Empty": IndexError, f"{p}Refused": (struct.error, TypeError, OverflowError, ValueError), f"{p}int": int,
        f"{p}function": function, f"{p}three": three, f"{p}run": cuda.driver().cuLaunchKernel,
        f"{p}read": _reader(arrays, index), f"{p}refused": _refused(prototype, name), f"{p}again": _again(index, name),
    }  # fmt: skip
    if dependent:
        space.update({
            f"{p}run": cuda.driver().cuLaunchKernelEx, f"{p}configure": LAUNCH_CONFIG.pack_into,
            f"{p}attributes": cuda.dependent_attribute().getPtr(),
        })  # fmt: skip
    text = _text(prototype, arrays, index, {"grid": grid, "block": block, "shared": shared}, space, p, dependent)
    launch = _written(text, name, space, p)
    cast(Any, launch).takes_addresses = prototype.arrays
    return launch


class _Frames:
    """Memory for the arguments of launches in progress: (where they are packed, the address of their addresses), and of
    dependent ones (the driver's configuration, its memory)."""

    def __init__(self, parameters: Sequence[Parameter], dependent: bool) -> None:
        codes = ["Q" if one.is_array else SCALAR_TYPES[one.ctype] for one in parameters]
        packed = struct.Struct("@" + "".join(codes))  # aligned as C aligns them
        ends = [struct.calcsize("@" + "".join(codes[: i + 1])) for i in range(len(codes))]
        self._offsets = [end - struct.calcsize(code) for end, code in zip(ends, codes, strict=True)]
        self._size = max(1, packed.size)
        self._kept: list[object] = []
        self.pack = packed.pack_into
        self.free: list[tuple[Any, ...]] = []
        self._dependent = dependent

    def new(self) -> tuple[Any, ...]:
        memory = (ctypes.c_uint64 * -(-self._size // 8))()
        start = ctypes.addressof(memory)
        addresses = (ctypes.c_void_p * max(1, len(self._offsets)))(*(start + offset for offset in self._offsets))
        self._kept += [memory, addresses]
        if not self._dependent:
            return memory, ctypes.addressof(addresses)
        config = cuda.driver().CUlaunchConfig()
        inside = (ctypes.c_char * LAUNCH_CONFIG.size).from_address(config.getPtr())
        return memory, ctypes.addressof(addresses), config, inside


# --- the source --------------------------------------------------------------------------------------


def _text(
    prototype: Prototype, arrays: Sequence[Parameter], index: int, sizes: Mapping[str, Resolved],
    space: dict[str, Any], p: str, dependent: bool,
) -> str:  # fmt: skip
    names = [one.name for one in prototype.parameters]
    arguments = ", ".join(names)
    addresses = [f"{p}at_{one.name}=None" for one in arrays]
    lines = [
        f"def {p}launch({', '.join([*names, *addresses])}):",
        *_device_guard(arguments, index, space, p),
        *_read(arrays, index, space, p),
    ]
    for what in ("grid", "block"):
        lines += _extent(what, sizes[what], space, p)
    if sizes["shared"].constant:
        space[f"{p}shared"] = sizes["shared"].value()
    else:
        space.update(sizes["shared"].values)
        lines.append(f"{p}shared = {sizes['shared'].expression}")
    given = f"({arguments}{',' if names else ''})"
    packed = "".join(f", {p}at_{one.name}" if one.is_array else f", {one.name}" for one in prototype.parameters)
    size = ", ".join(f"{p}{what}_{axis}" for what in ("grid", "block") for axis in "xyz") + f", {p}shared, {p}stream"
    if dependent:
        run = [f"    {p}configure({p}frame[3], 0, {size}, {p}attributes, 1)",
               f"    {p}code = {p}run({p}frame[2], {p}function, {p}frame[1], 0)[0]"]  # fmt: skip
    else:
        run = [f"    {p}code = {p}run({p}function, {size}, {p}frame[1], 0)[0]"]
    lines += [
        f"if not ({p}grid_x and {p}grid_y and {p}grid_z):", "    return",
        "try:", f"    {p}frame = {p}pop()",
        f"except {p}Empty:", f"    {p}frame = {p}new()",
        "try:", f"    {p}pack({p}frame[0], 0{packed})", *run,
        f"except {p}Refused as {p}error:", f"    {p}push({p}frame)",
        f"    raise {p}refused({p}error, {given}) from None",
        f"{p}push({p}frame)",
        f"if {p}code and {p}again({p}code, ({p}grid_x, {p}grid_y, {p}grid_z), ({p}block_x, {p}block_y, {p}block_z), "
        f"{p}shared):", f"    {p}launch({arguments})",
    ]  # fmt: skip
    return "\n    ".join(lines) + "\n"


def _device_guard(arguments: str, index: int, space: dict[str, Any], p: str) -> list[str]:
    """Where there are several GPUs: the kernel's own is made the current one for the launch."""
    if cuda.device_count() < 2:
        return []
    space.update({f"{p}current": cuda.current_index, f"{p}on": cuda.on_device})
    return [f"if {p}current() != {index}:", f"    with {p}on({index}):", f"        return {p}launch({arguments})"]


def _read(arrays: Sequence[Parameter], index: int, space: dict[str, Any], p: str) -> list[str]:
    """Addresses and stream: of tensors of torch's at once, of anything else by asking what it is."""
    names = [one.name for one in arrays]
    left = "".join(f"{p}at_{name}, " for name in names)
    slow = f"{left}{p}stream = {p}read({', '.join(names)})"
    torch = sys.modules.get("torch")
    if torch is None or not names or not torch.cuda.is_available():
        return [slow]
    space[f"{p}stream_of"] = torch._C._cuda_getCurrentRawStream
    space[f"{p}tensors"] = {torch.Tensor, torch.nn.Parameter}
    guards: list[str] = []
    for one in arrays:
        guards += [f"{one.name}.__class__ in {p}tensors", f"{one.name}.is_cuda"]
        found = [getattr(torch, dtype, None) for dtype in one.dtypes]
        if found:
            space[f"{p}dtype_{one.name}"] = found[0]
            guards.append(f"{one.name}.dtype is {p}dtype_{one.name}")
    return [
        f"if {p}at_{names[0]} is not None:", f"    {p}stream = {p}stream_of({index})",
        f"elif {' and '.join(guards)}:",
        *(f"    {p}at_{name} = {name}.data_ptr()" for name in names),
        f"    {p}stream = {p}stream_of({index})",
        "else:", f"    {slow}",
    ]  # fmt: skip


def _extent(what: str, size: Resolved, space: dict[str, Any], p: str) -> list[str]:
    """Three sizes, known now or made of a call's arguments."""
    at = [f"{p}{what}_{axis}" for axis in "xyz"]
    if size.constant:
        space.update(dict(zip(at, three(size.value(), what), strict=True)))
        return []
    space.update(size.values)
    found = f"{p}{what}"
    return [
        f"{found} = {size.expression}",
        f"if {found}.__class__ is {p}int and {found} >= 0:", f"    {at[0]} = {found}; {at[1]} = {at[2]} = 1",
        "else:", f"    {', '.join(at)} = {p}three({found}, {what!r})",
    ]  # fmt: skip


def _written(text: str, name: str, space: dict[str, Any], p: str) -> Callable[..., None]:
    filename = f"<tunesmith: launch of {name}, {next(_numbers)}>"
    exec(compile(text, filename, "exec"), space)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    launch = cast("FunctionType", space[f"{p}launch"])
    weakref.finalize(launch, linecache.cache.pop, filename, None).atexit = False
    return launch


# --- what it calls off the fast way --------------------------------------------------------------------


def _reader(arrays: Sequence[Parameter], index: int) -> Callable[..., tuple[int, ...]]:
    def read(*given: Any) -> tuple[int, ...]:
        addresses = [address_of(one, array, index) for one, array in zip(arrays, given, strict=True)]
        return (*addresses, stream_of(given, index))

    return read


def _refused(prototype: Prototype, name: str) -> Callable[[Exception, Sequence[Any]], Exception]:
    """Which scalar can't be packed; what it is then is not the caller's exception."""

    def refused(error: Exception, args: Sequence[Any]) -> Exception:
        for one, value in zip(prototype.parameters, args, strict=True):
            if not one.is_array:
                try:
                    struct.pack(SCALAR_TYPES[one.ctype], value)
                except (struct.error, TypeError, OverflowError, ValueError) as why:
                    shown = "None" if value is None else f"{value!r} of type {type(value).__name__}"
                    return BadInput(f"argument {one.name!r} is {shown}; expected a number that fits ({one}): {why}")
        return BadInput(f"{name} can't be launched so: {type(error).__name__}: {error}")

    return refused


def _again(index: int, name: str) -> Callable[[Any, Sequence[int], Sequence[int], int], bool]:
    """After a launch that the driver refused: whether another attempt may go well."""

    def again(code: Any, grid: Sequence[int], block: Sequence[int], shared: int) -> bool:
        if int(code) == cuda.INVALID_CONTEXT and cuda.enter_device(index):
            return True  # the first launch of a thread that has not used the GPU before
        raise DeviceError(
            f"{name}: launching a grid of {tuple(grid)} blocks of {tuple(block)} threads with {shared} bytes of "
            f"dynamic shared memory: {cuda.said(code)}"
        )

    return again
