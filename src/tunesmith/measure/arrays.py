"""Arrays made of a shape and a dtype: with content where a kernel is launched on them, without memory where it is not.

Floats are drawn from the standard normal distribution, as a chip that multiplies zeros takes less power and runs at
another clock. So are both parts of complex numbers. 8-bit integers are uniform over all their values, bools are even.
Wider integers may be indices into other arrays, where a random one reads beyond the end: the caller says how they are
filled (zeros stand in where nobody does).
"""

from __future__ import annotations

import copy
import importlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, cast

from tunesmith.core.shaped import Shaped
from tunesmith.dispatch.arguments import ALIGNMENT_BYTES, is_descriptor, protocol_of, strides_of
from tunesmith.errors import BadInput

#: of the CPU's caches
CACHE_LINE_BYTES = 64
#: Elements of an 8-bit float that are drawn at once, in 32 bits: 64 MiB.
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Layout:
    """How an array lies in memory.

    Attributes:
        strides: in elements. dtype: the engine's own. offset: elements ahead of the first one.
        place: the device, as torch spells it.
    """

    engine: Literal["torch", "numpy"]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    offset: int
    place: str

    @property
    def elements(self) -> int:
        """What has to be allocated, gaps included."""
        if 0 in self.shape:
            return self.offset
        return self.offset + 1 + sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))

    @property
    def n_bytes(self) -> int:
        """Bytes of `elements`."""
        return self.elements * int(self.dtype.itemsize)

    @property
    def is_wide_integer(self) -> bool:
        """Whether its content may be indices."""
        kind = str(self.dtype).rpartition(".")[2]
        return "int" in kind and self.dtype.itemsize > 1

    def outline(self, address: int | None = None) -> Any:
        """An array like this without content or memory: all else can be read of it.

        Args:
            address: where its first element is said to lie; as `offset` says if not given.
        """
        at = self.offset * int(self.dtype.itemsize) if address is None else address
        return HostOutline(self, at) if self.engine == "numpy" else _torch_outline()(self, at)

    def allocate(self, fill: Callable[[Any], object] | None = None, seed: int = 0) -> Any:
        """An array like this, filled with random content or by `fill`, which is given the array.

        Its first element lies at a multiple of 64 bytes, unless `offset` says otherwise: a kernel for the CPU takes up
        to 8 % longer where loads go over the ends of cache lines, and not every Config does.
        """
        if self.engine == "numpy":
            flat, array = self._numpy()
            if fill is None:
                _fill_numpy(flat, seed)
        else:
            import torch

            flat = torch.empty(self.elements, dtype=self.dtype, device=self.place)
            array = flat.as_strided(self.shape, self.strides, self.offset)
            if fill is None:
                _fill_torch(flat, seed)
        if fill is not None:
            fill(array)
        return array

    def _numpy(self) -> tuple[Any, Any]:
        """(all elements in a row, the array)."""
        import numpy as np

        raw = np.empty(self.n_bytes + CACHE_LINE_BYTES, np.uint8)
        start = -raw.ctypes.data % CACHE_LINE_BYTES
        flat = raw[start : start + self.n_bytes].view(self.dtype)
        steps = [step * self.dtype.itemsize for step in self.strides]
        return flat, np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, steps)


# --- descriptions ------------------------------------------------------------------------------------


def is_described(value: object) -> bool:
    """Whether a value stands for an array that is not there: a `Shaped`, or a tensor on torch's meta device."""
    return isinstance(value, Shaped) or getattr(getattr(value, "device", None), "type", "") == "meta"


def is_outline(value: object) -> bool:
    """Whether it is what `outline_of` left of an array."""
    return isinstance(value, HostOutline) or type(value).__name__ == "Outline"


def layout_of(value: Any, place: str, engine: Literal["torch", "numpy"]) -> Layout:
    """Where and how an array lies that `value` stands for.

    Args:
        place: where, unless a Shaped says it itself.
        engine: whose array a Shaped on the CPU is. A meta tensor is torch's, and what is on a GPU.

    Raises:
        BadInput: for a dtype that the engine does not have.
    """
    if not isinstance(value, Shaped):
        # elements ahead of the first one count as far as they change its alignment
        offset = int(value.storage_offset()) % ALIGNMENT_BYTES
        return Layout("torch", tuple(value.shape), strides_of("", value), value.dtype, offset, place)
    at = value.device or place
    if engine == "torch" or at != "cpu":
        return Layout("torch", value.shape, value.element_strides, _torch_dtype(value.dtype), 0, at)
    return Layout("numpy", value.shape, value.element_strides, _numpy_dtype(value.dtype), 0, at)


def outline_of(array: Any) -> Any:
    """What is left of an array of torch's or numpy's when its memory is given back; of any other, the array itself."""
    protocol, package = protocol_of(array), type(array).__module__.partition(".")[0]
    if protocol == "torch" and package == "torch":
        layout = Layout("torch", tuple(array.shape), strides_of("", array), array.dtype, 0, str(array.device))
        return layout.outline(int(array.data_ptr()) % ALIGNMENT_BYTES)
    if protocol == "host" and package == "numpy":
        layout = Layout("numpy", array.shape, strides_of("", array), array.dtype, 0, "cpu")
        return layout.outline(array.ctypes.data % ALIGNMENT_BYTES)
    return array


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """An argument with a change made to each of its parts: of a tuple or list to each, of a descriptor to its base."""
    if isinstance(value, (tuple, list)):
        whole = cast(Any, value)
        parts = [mapped(change, part) for part in whole]
        return whole.__class__(*parts) if hasattr(whole, "_fields") else whole.__class__(parts)
    if is_descriptor(value):
        other = copy.copy(value)
        other.base = change(value.base)
        return other
    return change(value)


def _torch_dtype(name: str) -> Any:
    import torch

    found = getattr(torch, name, None)
    if found is None:
        raise BadInput(f"torch {torch.__version__} has no {name}")
    return found


def _numpy_dtype(name: str) -> Any:
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        raise BadInput(f"numpy has no {name}: give a tensor of torch's, as torch.empty(…, device='meta')") from None


_NO_CONTENT = "asks for the content of an array that is only described: give the array itself to prepare"


class HostOutline:
    """What numpy's array says of itself, without content; it passes for one as long as nobody asks for that."""

    __array_interface__: ClassVar[Mapping[str, object]] = {}  # numpy, if it asks, raises

    def __init__(self, layout: Layout, address: int) -> None:
        self.dtype, self.shape, self.ndim = layout.dtype, layout.shape, len(layout.shape)
        self.itemsize: int = layout.dtype.itemsize
        self.strides = tuple(step * self.itemsize for step in layout.strides)
        self.size = math.prod(layout.shape)
        self.nbytes = self.size * self.itemsize
        self.ctypes = SimpleNamespace(data=address)

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        import numpy as np

        return np.ndarray  # a warm key holds an argument's class

    def __setitem__(self, *_: Any) -> None:
        raise BadInput(f"writing {_NO_CONTENT}")

    def __repr__(self) -> str:
        return f"<{self.dtype} {self.shape} without content>"


@cache
def _torch_outline() -> Any:
    import torch

    class Outline(torch.Tensor):
        """A tensor without memory, which passes for a plain one as long as nobody asks for its content."""

        @staticmethod
        def __new__(cls: Any, layout: Layout, address: int) -> Any:
            tensor = torch.Tensor._make_wrapper_subclass(
                cls, layout.shape, strides=layout.strides, dtype=layout.dtype, device=_with_index(layout.place)
            )
            tensor._address = address
            return tensor

        @property
        def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return torch.Tensor  # a warm key may hold an argument's class

        def data_ptr(self) -> int:
            """An address that is aligned as the array's would be."""
            return cast(int, self._address)

        def __repr__(self, **_: Any) -> str:
            return f"<{self.dtype} {tuple(self.shape)} without content>"

        @classmethod
        def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
            raise BadInput(f"{func} {_NO_CONTENT}")

    return Outline


def _with_index(place: str) -> Any:
    import torch

    device = torch.device(place)
    return torch.device(device.type, torch.cuda.current_device()) if place == "cuda" else device


def current_place(import_torch: bool) -> str:
    """The current GPU as torch spells it, `cpu` where there is none.

    Args:
        import_torch: ask torch even where the program has not imported it.
    """
    torch = importlib.import_module("torch") if import_torch else sys.modules.get("torch")
    return f"cuda:{torch.cuda.current_device()}" if torch is not None and torch.cuda.is_available() else "cpu"


# --- content -----------------------------------------------------------------------------------------


def _fill_torch(flat: Any, seed: int) -> None:
    import torch

    draw = torch.Generator(device=flat.device)  # the program's own random numbers stay as they are
    draw.manual_seed(seed)
    dtype = flat.dtype
    if dtype.is_complex:
        torch.view_as_real(flat).normal_(generator=draw)
    elif dtype.is_floating_point and dtype.itemsize > 1:
        flat.normal_(generator=draw)
    elif dtype.is_floating_point and "float4" not in str(dtype):
        for part in flat.split(_AT_ONCE):
            values = torch.empty(part.shape, device=flat.device).normal_(generator=draw)
            part.copy_(values.abs_() if "e8m0" in str(dtype) else values)  # powers of two, which have no sign
    elif dtype is torch.bool:
        flat.random_(0, 2, generator=draw)
    elif dtype.itemsize == 1:
        flat.view(torch.uint8).random_(0, 256, generator=draw)
    else:
        flat.zero_()


def _fill_numpy(flat: Any, seed: int) -> None:
    import numpy as np

    draw = np.random.default_rng(seed)
    kind = flat.dtype.kind
    if kind in "fc":
        parts = flat.view(flat.real.dtype)
        for start in range(0, parts.size, _AT_ONCE):
            part = parts[start : start + _AT_ONCE]
            part[...] = draw.standard_normal(part.shape, dtype=np.float64 if part.dtype == np.float64 else np.float32)
    elif kind == "b":
        flat[...] = draw.integers(0, 2, flat.shape, dtype=np.uint8).astype(bool)
    elif flat.dtype.itemsize == 1:
        flat.view(np.uint8)[...] = draw.integers(0, 256, flat.shape, dtype=np.uint8)
    else:
        flat[...] = 0


def spelled_bytes(n: int) -> str:
    """`4,294,967,296 bytes (4.0 GiB)`."""
    power = min(int(math.log(n, 1024)), 4) if n >= 1024 else 0
    short = f" ({n / 1024**power:.1f} {('', 'KiB', 'MiB', 'GiB', 'TiB')[power]})" if power else ""
    return f"{n:,} bytes{short}"
