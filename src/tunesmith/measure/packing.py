"""A call's arguments on their way to a worker: plain values, shapes, and the content of what may be indices.

Floats are made there anew by the kernel's `make_inputs`; integers decide which memory is read, so they are copied. No
pickle: a description of JSON types, and files of raw bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from tunesmith.dispatch.arguments import (
    ALIGNMENT_BYTES,
    is_array,
    is_numpy_scalar,
    protocol_of,
    strides_of,
)
from tunesmith.errors import BadInput
from tunesmith.measure.arrays import Layout
from tunesmith.measure.fenced import Fence, fenced
from tunesmith.measure.memory import as_bytes

_PLAIN = (bool, int, float, str, type(None))


def why_not_packed(name: str, value: Any, made_there: bool) -> str:
    """Why an argument can't be had in a worker; empty if it can.

    Args:
        made_there: whether `make_inputs` makes this argument.
    """
    if made_there or _is_plain(value) or is_numpy_scalar(value) or _engine(value) is not None:
        return ""
    return f"argument {name!r} is a {type(value).__name__}, which can't be sent; let make_inputs make {name!r} too"


def packed(arguments: Mapping[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """What a worker has to know of each argument, by name; contents go into files of a folder."""
    told: dict[str, dict[str, Any]] = {}
    seen: dict[object, str] = {}  # the same array under two names is one there too
    for i, (name, value) in enumerate(arguments.items()):
        if _is_plain(value):
            told[name] = {"value": _spelled(value)}
        elif is_numpy_scalar(value):
            told[name] = {"numpy": str(value.dtype), "value": value.item()}
        elif (engine := _engine(value)) is not None:
            described = _described(value, engine)
            same = (_address(value), json.dumps(described))
            if same in seen:
                told[name] = {"same": seen[same]}
                continue
            seen[same] = name
            told[name] = described
            if _may_be_indices(described["dtype"]):
                file = folder / f"{i}.bin"
                _write(value, file)
                told[name]["file"] = str(file)
        else:
            told[name] = {"made": True}
    return told


def unpacked(
    told: Mapping[str, Mapping[str, Any]], made: Mapping[str, Any], fences: dict[str, Fence], seed: int = 0
) -> dict[str, Any]:
    """The arguments, in their order.

    Args:
        made: by `make_inputs`, for the same Problem: where the content of arrays comes from that is not in a file.
        fences: of arrays on the CPU by name, which are added to it.
        seed: for random content, where nothing of that shape was made.

    Raises:
        BadInput: for what was to be made and was not.
    """
    found: dict[str, Any] = {}
    for i, (name, one) in enumerate(told.items()):
        if "same" in one:
            found[name] = found[one["same"]]
        elif "numpy" in one:
            import numpy as np

            found[name] = np.dtype(one["numpy"]).type(one["value"])
        elif "value" in one:
            found[name] = _meant(one["value"])
        elif "engine" in one:
            found[name] = _array(name, one, made.get(name), fences, seed + i)
        elif name in made:
            found[name] = made[name]
        else:
            raise BadInput(f"make_inputs made no {name!r}")
    return found


# --- plain values ------------------------------------------------------------------------------------


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return type(cast(Any, value)) in (tuple, list) and all(_is_plain(part) for part in cast("list[Any]", value))
    return type(value) in _PLAIN


def _spelled(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return {type(cast(Any, value)).__name__: [_spelled(part) for part in cast("list[Any]", value)]}
    return value


def _meant(spelled: Any) -> Any:
    if isinstance(spelled, dict):
        [(kind, parts)] = cast("dict[str, list[Any]]", spelled).items()
        return {"tuple": tuple, "list": list}[kind](_meant(part) for part in parts)
    return spelled


# --- arrays ------------------------------------------------------------------------------------------


def _engine(value: Any) -> Any:
    """Whose plain array it is: `torch`, `numpy`, or nobody's that is known here."""
    if not is_array(value):
        return None
    package, protocol = type(value).__module__.partition(".")[0], protocol_of(value)
    is_torch = protocol == "torch" and package == "torch" and not getattr(value, "is_sparse", False)
    return "torch" if is_torch else "numpy" if protocol == "host" and package == "numpy" else None


def _described(value: Any, engine: str) -> dict[str, Any]:
    ahead = _address(value) % ALIGNMENT_BYTES  # as far as it changes the alignment
    size = int(value.dtype.itemsize)
    return {
        "engine": engine,
        "shape": [int(n) for n in value.shape],
        "strides": list(strides_of("an argument", value)),
        "dtype": str(value.dtype).rpartition(".")[2],
        "offset": ahead // size if ahead % size == 0 else 0,
        "place": str(getattr(value, "device", "cpu")),
    }


def _address(value: Any) -> int:
    return int(value.data_ptr() if hasattr(value, "data_ptr") else value.ctypes.data)


def _may_be_indices(dtype: str) -> bool:
    return "float" not in dtype and "complex" not in dtype


def _write(value: Any, file: Path) -> None:
    """An array's elements in the order of its shape."""
    if hasattr(value, "detach"):
        value = as_bytes(value.cpu()).numpy()
    value.tofile(file)


def _array(name: str, one: Mapping[str, Any], made: Any, fences: dict[str, Fence], seed: int) -> Any:
    """An array as it lies in the caller's process, with content from a file, from what was made, or random."""
    layout, backwards = _layout(one)
    fill: Callable[[Any], object] | None = None
    if "file" in one:
        fill = _reader(Path(one["file"]), layout)
    elif made is not None and _engine(made) == layout.engine and tuple(made.shape) == layout.shape:
        if layout.place != "cpu" and _described(made, layout.engine) == dict(one):
            return made
        fill = _copier(made)
    if layout.place != "cpu":
        return layout.allocate(fill, seed)
    array, fences[name] = fenced(layout)
    array = array[backwards] if backwards else array
    content = layout.allocate(fill, seed)  # in the order of the elements, whatever the strides
    _copier(content)(array)
    return array


def _layout(one: Mapping[str, Any]) -> tuple[Layout, tuple[slice, ...]]:
    """How an array lies, and where numpy's is read backwards what to take of one that is not."""
    if one["engine"] == "torch":
        import torch

        dtype = getattr(torch, one["dtype"])
    else:
        import numpy as np

        dtype = np.dtype(one["dtype"])
    steps: list[int] = one["strides"]
    backwards = tuple(slice(None, None, -1 if step < 0 else 1) for step in steps) if min(steps, default=0) < 0 else ()
    layout = Layout(
        one["engine"], tuple(one["shape"]), tuple(map(abs, steps)), dtype, one["offset"], one["place"]
    )  # fmt: skip
    return layout, backwards


def _copier(source: Any) -> Callable[[Any], object]:
    def copy(array: Any) -> None:
        if hasattr(array, "copy_"):
            array.copy_(source)
        else:
            array[...] = source

    return copy


def _reader(file: Path, layout: Layout) -> Callable[[Any], object]:
    def read(array: Any) -> None:
        import numpy as np

        raw = np.fromfile(file, np.uint8)
        if layout.engine == "numpy":
            array[...] = raw.view(layout.dtype).reshape(layout.shape)
        else:
            import torch

            array.copy_(torch.from_numpy(raw).view(layout.dtype).reshape(layout.shape))

    return read
