"""Files of a command that may lie on object storage (`s3://…`, `gs://…`, `https://…`), through fsspec."""

from __future__ import annotations

import re
import secrets
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tunesmith.errors import MissingEngine, StoreError
from tunesmith.measure.failure import attempt

#: `s3://bucket/x.json`, and chains of fsspec's (`simplecache::s3://…`)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z][A-Za-z0-9+.-]+)*://")


#: Storage that shows an object when all of it is there, and the old one until then.
_OBJECTS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "memory"}


@contextmanager
def fetched(place: str) -> Generator[Path]:
    """Within this scope, the file that a path or a URL names. What is found wrong with it there names the URL.

    Raises:
        StoreError: naming the URL and what is wrong with it.
        MissingEngine: without fsspec, or what it needs for this kind of storage.
    """
    if not _URL.match(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="tunesmith-fetched-") as folder:
        path = Path(folder) / "fetched"
        path.write_bytes(_with_fsspec(place, _read))
        try:
            yield path
        except StoreError as error:
            raise StoreError(str(error).replace(str(path), place)) from error


@contextmanager
def put(place: str) -> Generator[Path]:
    """Within this scope, where to write a file that goes to a path or a URL, where it is seen once it is whole.

    Raises:
        StoreError, MissingEngine: as of `fetched`.
    """
    if not _URL.match(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="tunesmith-put-") as folder:
        path = Path(folder) / "put"
        try:
            yield path
        except StoreError as error:
            raise StoreError(str(error).replace(str(path), place)) from error
        _with_fsspec(place, partial(_write, path.read_bytes()))


def _read(fsspec: Any, url: str) -> bytes:
    with fsspec.open(url, "rb") as file:
        return file.read()


def _write(data: bytes, fsspec: Any, url: str) -> bytes:
    """Whole or not at all: at once where that is what the storage does, else beside it and then in its place."""
    storage, path = fsspec.core.url_to_fs(url)
    if "::" in url or url.partition("://")[0].lower() in _OBJECTS:
        storage.pipe_file(path, data)
        return data
    aside = f"{path}.{secrets.token_hex(4)}.tmp"
    try:
        storage.makedirs(path.rpartition("/")[0], exist_ok=True)
        storage.pipe_file(aside, data)
        _move(storage, aside, path)
    except BaseException:
        with suppress(Exception):  # it may not be there, or the storage may be gone: what came first is raised
            storage.rm_file(aside)
        raise
    return data


def _move(storage: Any, aside: str, path: str) -> None:
    try:
        storage.mv(aside, path)
    except OSError:  # some servers replace nothing
        if not storage.exists(path):
            raise
        storage.rm_file(path)
        storage.mv(aside, path)


def _with_fsspec(url: str, use: Callable[[Any, str], bytes]) -> bytes:
    try:
        import fsspec
    except ImportError as error:
        raise MissingEngine(f"{url} needs fsspec, which is not installed; pip install 'tunesmith[cloud]'") from error

    found, failure, error = attempt("load", lambda: use(fsspec, url))
    if isinstance(error, ImportError):  # fsspec says which package, and how it is installed
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        type_ = f"; type: pip install {cause.name}" if cause.name else ""
        raise MissingEngine(f"{url}: {error}{type_}") from error
    if found is None or failure is not None:
        assert failure is not None
        raise StoreError(f"{url}: {failure.reason}") from error
    return found
