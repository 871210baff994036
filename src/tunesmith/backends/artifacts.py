"""Where what our own compilers make is kept: a folder of the cache for each kernel language that has no other."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from functools import cache, lru_cache
from pathlib import Path

from tunesmith.errors import TunesmithWarning
from tunesmith.files import write_whole
from tunesmith.options import options


def digest(*parts: object) -> str:
    """A name for values of JSON types: what an artifact was made of."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def place(language: str, name: str, content: str | None = None) -> Path:
    """Where a file belongs: in the cache if it is there already or can be, else in this process's own folder.

    Args:
        language: the backend's name.
        name: of the file; it names the content.
        content: what is written there if there is no such file. `None`: somebody else will.
    """
    kept = options().cache_dir / language / name
    path = kept if kept.exists() else writable_folder(language) / name
    if content is not None and not path.exists():
        write_whole(path, content.encode())
    return path


def writable_folder(language: str) -> Path:
    """The cache's folder for a language's binaries; a temporary one of this process where the cache takes nothing."""
    asked = options()
    return _writable_folder(asked.cache_dir / language, asked.read_only, os.getpid())


@lru_cache(maxsize=8)
def _writable_folder(wanted: Path, read_only: bool, pid: int) -> Path:
    if read_only:
        return _own_folder(wanted.name, pid)
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted) as probe:
            probe.write(bytes(4096))  # a full disk takes a file and not its content
    except OSError as error:
        own = _own_folder(wanted.name, pid)
        warnings.warn(
            f"compiled kernels can't be kept in {wanted} ({error.strerror or error}): "
            f"they go to {own} and end with this process",
            TunesmithWarning,
            stacklevel=2,
        )
        return own
    return wanted


@cache
def _own_folder(language: str, pid: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"tunesmith-{language}-"))

    def remove() -> None:
        if os.getpid() == pid:  # a forked child inherits this function
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
