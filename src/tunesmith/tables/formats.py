"""Which format a file is of, and its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tunesmith.errors import BadInput, unknown
from tunesmith.tables import (
    aiter_csv,
    aiter_triton,
    autotuner_caches,
    csvtext,
    jsontext,
    ladder_json,
    native_sheet,
    nested_json,
    tuner_json,
)
from tunesmith.tables.sheet import Sheet

#: (name, whether a JSON is one, its reader), the surest first
JSON_SHAPES: tuple[tuple[str, Callable[[Any], bool], Callable[[Path, jsontext.Document], Sheet]], ...] = (
    ("triton-autotune", tuner_json.is_triton_autotune, tuner_json.read_triton_autotune),
    ("kernel-tuner", tuner_json.is_kernel_tuner, tuner_json.read_kernel_tuner),
    ("flashinfer", autotuner_caches.is_flashinfer, autotuner_caches.read_flashinfer),
    ("tensorrt-llm", autotuner_caches.is_tensorrt, autotuner_caches.read_tensorrt),
    ("native", native_sheet.matches, native_sheet.read),
    ("inductor", tuner_json.is_inductor, tuner_json.read_inductor),
    ("t4", tuner_json.is_t4, tuner_json.read_t4),
)
NAMES = (
    *(format.name for format in ladder_json.FORMATS), *(format.name for format in nested_json.FORMATS), "aiter-gemm",
    "aiter-fmoe", "aiter-triton", *(name for name, _, _ in JSON_SHAPES),
)  # fmt: skip


class UnknownFormat(BadInput):
    """A file that may be whole, and is no table that we know."""


def read(path: Path, format: str | None = None) -> Sheet:
    """The table in a file.

    Args:
        format: its format's name, where the file does not say; see `NAMES`.

    Raises:
        BadInput: naming the file, the line and what is wrong, for one that cannot be read or is of no known format.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from error
    return parse(path, data, format)


def parse(path: Path, data: bytes, format: str | None = None) -> Sheet:
    """The table in a file's content; its name counts too."""
    if format is not None and format not in NAMES:
        raise BadInput(unknown("table format", format, NAMES))
    try:
        if path.suffix == ".csv":
            rows = csvtext.read(data)
            if not aiter_csv.matches(rows):
                raise BadInput("its header names neither M, N, K nor token, model_dim, inter_dim, expert, topk")
            return aiter_csv.read(path, rows)
        return _json(path, jsontext.read(data), format)
    except BadInput as error:
        raise type(error)(f"{path}: {error}") from None


def _json(path: Path, document: jsontext.Document, format: str | None) -> Sheet:
    value = document.value
    for name, matches, reader in JSON_SHAPES:
        if format in (None, name) and matches(value):
            return reader(path, document)
    for nested in nested_json.FORMATS:
        if format in (None, nested.name) and nested.matches(path, value):
            return nested.read(path, document)
    engine = ladder_json.engine_of(path, document)
    for ladder in ladder_json.FORMATS:
        if format == ladder.name or (format is None and ladder.matches(path, engine)):
            return ladder.read(path, document)
    if format in (None, "aiter-triton") and aiter_triton.matches(path, value):
        return aiter_triton.read(path, document)
    if format is not None:
        raise BadInput(f"it has not the shape of {format}: leave the format out, or give the right one")
    raise UnknownFormat("not a table of a known format (`tunesmith table check --help` lists them)")


def files(path: Path) -> Iterator[Path]:
    """The files of a folder that could be tables, sorted; a file itself."""
    if not path.is_dir():
        yield path
        return
    for found in sorted(path.rglob("*")):
        if found.is_file() and found.suffix in (".json", ".csv") and not found.name.startswith("."):
            yield found
