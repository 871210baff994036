"""Where arrays lie in memory: their bytes, copies that alias each other as the originals do, and what is free.

Arrays are torch's or numpy's; `has_content` says which can be read here. Others (descriptions, another engine's) are
passed on as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.dispatch.arguments import leaves, protocol_of
from tunesmith.measure.arrays import is_described, is_outline, mapped, spelled_bytes

#: Of the free memory, the part that copies may take: candidates want some for themselves.
COPIES_MAY_TAKE = 0.9
#: Copies begin at an address with the same remainder: compilers specialise on alignment, at most to a cache line, and
#: cuBLAS chooses its kernels by it, up to this.
LINE_BYTES = 256


def has_content(array: Any) -> bool:
    """Whether an array's bytes can be read and copied here."""
    protocol = protocol_of(array)
    if protocol == "torch":
        return hasattr(array, "untyped_storage") and _has_memory(array)
    return protocol == "host" and hasattr(array, "flags") and not array.dtype.hasobject


def _has_memory(tensor: Any) -> bool:
    """Whether a tensor's elements lie in memory as its strides say."""
    if is_described(tensor) or is_outline(tensor) or tensor.layout is not _torch().strided:
        return False
    return not (tensor.is_conj() or tensor.is_neg()) and tensor.data_ptr() % tensor.element_size() == 0


def _torch() -> Any:
    import torch

    return torch


def is_torch(array: Any) -> bool:
    """Whether it is a tensor of torch's, and not an array of numpy's."""
    return hasattr(array, "untyped_storage")


def place_of(array: Any) -> str:
    """The memory it lies in: `cpu` or `cuda:N`."""
    return str(array.device) if is_torch(array) else "cpu"


def n_bytes(array: Any) -> int:
    """Bytes of all its elements."""
    return int(array.numel() * array.element_size() if is_torch(array) else array.nbytes)


def distinct(array: Any) -> Any:
    """The same memory without the dimensions in which elements repeat (stride 0), and beside autograd."""
    if is_torch(array):
        array = array.detach()
    cut = first_of_repeated(array)
    return array[cut] if slice(0, 1) in cut else array


def first_of_repeated(array: Any) -> tuple[slice, ...]:
    """The part of an array that holds each of its elements once, where some repeat (stride 0)."""
    steps = array.stride() if is_torch(array) else array.strides
    return tuple(slice(0, 1) if step == 0 and size > 1 else slice(None)
                 for step, size in zip(steps, array.shape, strict=True))  # fmt: skip


# --- spans ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes from an array's first to its last element.

    Attributes:
        start, stop: addresses. first: of the element at index 0.
        dense: whether each byte in between belongs to an element.
    """

    place: str
    start: int
    stop: int
    first: int
    dense: bool

    def meets(self, other: Span) -> bool:
        """Whether some bytes are common to both."""
        return self.place == other.place and self.start < other.stop and other.start < self.stop

    def within(self, other: Span) -> bool:
        """Whether all bytes, where there are any, are the other's."""
        return self.place == other.place and other.start <= self.start and self.stop <= other.stop


def span_of(array: Any) -> Span:
    """Where an array lies."""
    size = int(array.element_size()) if is_torch(array) else int(array.itemsize)
    first = int(array.data_ptr()) if is_torch(array) else int(array.__array_interface__["data"][0])
    steps = [int(step) * size for step in array.stride()] if is_torch(array) else list(array.strides)
    if 0 in array.shape:
        return Span(place_of(array), first, first, first, True)
    reach = [(n - 1) * step for n, step in zip(array.shape, steps, strict=True)]
    start, stop = first + sum(r for r in reach if r < 0), first + sum(r for r in reach if r > 0) + size
    dense = stop - start == n_bytes(array) and all(step >= 0 for step in steps)
    return Span(place_of(array), start, stop, first, dense)


def flat_bytes(array: Any, start: int = 0, stop: int | None = None) -> Any:
    """A dense array's bytes in the order they lie in memory, as uint8: a view."""
    if is_torch(array):
        flat = array.as_strided((array.numel(),), (1,)).view(_torch().uint8)
    else:
        import numpy as np

        flat = np.lib.stride_tricks.as_strided(array, (array.size,), (array.itemsize,)).view(np.uint8)
    return flat[start:stop]


def as_bytes(array: Any) -> Any:
    """An array's bytes, in the order of its elements, as one row of uint8; a copy unless it is contiguous."""
    if is_torch(array):
        # torch calls an array of one element contiguous whatever its stride, and its bytes can't be viewed then
        return flat_bytes(array.detach().contiguous())
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def same_bytes(a: Any, b: Any) -> bool:
    """Whether two arrays of one shape and dtype hold the same bytes: NaN equals the same NaN, 0.0 is not -0.0."""
    if is_torch(a):
        return bool(_torch().equal(as_bytes(a), as_bytes(b)))
    return bool((as_bytes(a) == as_bytes(b)).all())


def copied(array: Any) -> Any:
    """A copy of its content."""
    return array.detach().clone() if hasattr(array, "clone") else array.copy()


def write(array: Any, value: Any) -> None:
    """Overwrite an array's content."""
    if hasattr(array, "copy_"):
        array.copy_(value)
    else:
        array[...] = value


def fill(array: Any, value: Any) -> None:
    """Set all elements to one value."""
    if hasattr(array, "fill_"):
        array.fill_(value)
    else:
        array[...] = value


def readable(name: str, value: Any) -> list[tuple[str, Any]]:
    """The arrays of an argument that can be read here, by name (`xs.0` for a part of a tuple)."""
    return [(leaf, array) for leaf, array in leaves(name, value) if has_content(array)]


# --- copies that alias as the originals do -----------------------------------------------------------------


class Twin:
    """Arguments that look to a kernel as the originals do, in memory of their own.

    Shapes, strides, alignment and which of them overlap are the originals'; so a kernel that is given strides as
    numbers, or an output that is also an input, does the same. Content is not copied before `take`.

    Attributes:
        arguments: by name; what can't be copied is the original.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        found = [array for name, value in arguments.items() for _, array in readable(name, value)]
        spans = {id(array): span_of(array) for array in found}
        self._twins: dict[int, Any] = {}
        for cluster in clusters(list(spans.values())):
            buffer = _Buffer(cluster)
            for array in found:
                if spans[id(array)].within(cluster):
                    self._twins.setdefault(id(array), buffer.view_like(array, spans[id(array)]))
        self._pairs = [(array, self._twins[id(array)]) for array in found]
        self.arguments = {name: mapped(self._twin, value) for name, value in arguments.items()}

    def _twin(self, value: Any) -> Any:
        return self._twins.get(id(value), value)

    def take(self, other: Twin | None = None) -> None:
        """Copy the originals' content, or that of another Twin of the same arguments."""
        sources = self._pairs if other is None else [(theirs, None) for _, theirs in other._pairs]
        for (source, _), (_, twin) in zip(sources, self._pairs, strict=True):
            write(distinct(twin), distinct(source))


def clusters(spans: Iterable[Span]) -> list[Span]:
    """Spans that overlap as one, each from the first byte to the last."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.place, s.start)):
        if merged and merged[-1].place == span.place and (
            span.start < merged[-1].stop or (span.start, span.stop) == (merged[-1].start, merged[-1].stop)
        ):  # fmt: skip
            last = merged.pop()
            span = Span(span.place, last.start, max(last.stop, span.stop), last.start, False)
        merged.append(span)
    return merged


class _Buffer:
    """Memory for a cluster of arrays, zeros in the gaps between them."""

    def __init__(self, cluster: Span) -> None:
        self._start, self._pad = cluster.start, cluster.start % LINE_BYTES
        n = self._pad + cluster.stop - cluster.start + LINE_BYTES
        n += -n % LINE_BYTES
        self._raw: dict[bool, Any] = {}
        self._place, self._n = cluster.place, n

    def _bytes(self, torch_wants: bool) -> Any:
        """Zeros at a multiple of a line. Of one cluster, torch's tensors and numpy's arrays share them."""
        if not self._raw:
            if self._place == "cpu":
                import numpy as np

                raw = np.zeros(self._n + LINE_BYTES, np.uint8)
                start = -raw.ctypes.data % LINE_BYTES
                self._raw[False] = raw[start : start + self._n]
            else:
                self._raw[True] = _torch().zeros(self._n, dtype=_torch().uint8, device=self._place)
        if torch_wants and True not in self._raw:
            self._raw[True] = _torch().from_numpy(self._raw[False])
        return self._raw[torch_wants]

    def view_like(self, array: Any, span: Span) -> Any:
        at = self._pad + span.first - self._start
        if is_torch(array):
            typed = self._bytes(torch_wants=True).view(array.dtype)
            return typed.as_strided(array.shape, array.stride(), at // array.element_size())
        import numpy as np

        return np.ndarray(array.shape, array.dtype, self._bytes(torch_wants=False), at, array.strides)


# --- how much there is -------------------------------------------------------------------------------------


def free_bytes(place: str) -> int | None:
    """Memory that can still be allocated, `None` where that can't be known."""
    if place.startswith("cuda"):
        cuda = _torch().cuda
        cached = int(cuda.memory_reserved(place)) - int(cuda.memory_allocated(place))
        return int(cuda.mem_get_info(place)[0]) + cached
    return _host_free() if place == "cpu" else None


def _host_free(proc: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What Linux says is available, less where the process's group may take less."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = dict(line.split(":", 1) for line in proc.read_text().splitlines())
        found.append(int(lines.get("MemAvailable", "").split()[0]) * 1024)
    with contextlib.suppress(OSError, ValueError):
        most = int((cgroup / "memory.max").read_text())  # "max" where there is no limit
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        found.append(max(0, most - used + int(stat.get("inactive_file", 0))))
    return min(found, default=None)


def too_much(wanted: Sequence[tuple[str, str, int]]) -> str:
    """Why copies can't be made, empty where they can.

    Args:
        wanted: (argument, place, bytes) of each copy.
    """
    for place in dict.fromkeys(place for _, place, _ in wanted):
        here = [(name, n) for name, at, n in wanted if at == place]
        needed, free = sum(n for _, n in here), free_bytes(place)
        if free is not None and needed > COPIES_MAY_TAKE * free:
            each = ", ".join(f"{name} {spelled_bytes(n)}" for name, n in sorted(here, key=lambda pair: -pair[1])[:3])
            return f"needed {spelled_bytes(needed)} ({each}), free {spelled_bytes(free)} on {place}"
    return ""


# --- checksums ---------------------------------------------------------------------------------------------

#: bytes that are summed at once
_CHUNK = 64 * 1024**2


def checksum(array: Any) -> tuple[int, ...]:
    """Tells two contents of an array apart, for all practical purposes, without a copy of it.

    Each 8 bytes count with a random odd weight of their place: one changed word always shows, several with all
    but 1 in 2⁶³.
    """
    return tuple(_weighted(part) for part in _parts(distinct(array)))


def _parts(array: Any) -> Iterator[Any]:
    if span_of(array).dense:
        flat = flat_bytes(array)
        for start in range(0, len(flat), _CHUNK):
            yield flat[start : start + _CHUNK]
    elif n_bytes(array) <= _CHUNK:
        yield as_bytes(array)
    else:
        rows = max(1, _CHUNK * len(array) // n_bytes(array))
        for start in range(0, len(array), rows):
            yield as_bytes(array[start : start + rows])


def _weighted(part: Any) -> int:
    whole = len(part) - len(part) % 8
    rest = bytes(part[whole:].tolist())
    if is_torch(part):
        torch = _torch()
        if part.storage_offset() % 8 or part.data_ptr() % 8:
            part = part.clone()
        words = part[:whole].view(torch.int64)
        draw = torch.Generator(device=part.device)
        draw.manual_seed(7)
        weights = torch.empty(len(words), dtype=torch.int64, device=part.device).random_(generator=draw) | 1
        total = int((words * weights).sum()) if whole else 0
    else:
        import numpy as np

        weights = np.random.default_rng(7).integers(0, 2**63, whole // 8, dtype=np.uint64) | np.uint64(1)
        total = int((np.ascontiguousarray(part[:whole]).view(np.uint64) * weights).sum()) if whole else 0
    return hash((total, rest))
