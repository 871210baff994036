"""Files of a command that may lie on object storage (`s3://…`, `gs://…`, `https://…`), through fsspec."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tunesmith.errors import MissingEngine, StoreError
from tunesmith.measure.failure import attempt

#: `s3://bucket/x.json`, and chains of fsspec's (`simplecache::s3://…`)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z][A-Za-z0-9+.-]+)*://")


@contextmanager
def fetched(place: str) -> Generator[Path]:
    """Within this scope, the file that a path or a URL names.

    Raises:
        StoreError: naming the URL and what is wrong with it.
        MissingEngine: without fsspec, or what it needs for this kind of storage.
    """
    if not _URL.match(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="tunesmith-fetched-") as folder:
        path = Path(folder) / "fetched"
        path.write_bytes(_with_file(place, "rb", _read))
        yield path


@contextmanager
def put(place: str) -> Generator[Path]:
    """Within this scope, where to write a file that goes to a path or a URL; object storage shows it once it is whole.

    Raises:
        StoreError, MissingEngine: as of `fetched`.
    """
    if not _URL.match(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="tunesmith-put-") as folder:
        path = Path(folder) / "put"
        yield path
        _with_file(place, "wb", partial(_write, path.read_bytes()))


def _read(file: Any) -> bytes:
    return file.read()


def _write(data: bytes, file: Any) -> bytes:
    file.write(data)
    return data


def _with_file(url: str, mode: str, use: Callable[[Any], bytes]) -> bytes:
    try:
        import fsspec
    except ImportError as error:
        raise MissingEngine(f"{url} needs fsspec, which is not installed; pip install 'tunesmith[cloud]'") from error

    def act() -> bytes:
        with fsspec.open(url, mode) as file:
            return use(file)

    found, failure, error = attempt("load", act)
    if isinstance(error, ImportError):  # fsspec says which package, and how it is installed
        raise MissingEngine(f"{url}: {error}") from error
    if found is None or failure is not None:
        assert failure is not None
        raise StoreError(f"{url}: {failure.reason}") from error
    return found
