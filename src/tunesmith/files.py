"""Files that are written whole or not at all; and lines that are added to one by several processes."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path`: a reader, a crash or a full disk sees the old file or the new one, never a part.

    A link stays one: what it leads to is replaced. A device or a pipe (`/dev/stdout`) is written to, not replaced.

    Raises:
        OSError: when the folder is missing or not writable, or the disk is full; what was there is untouched.
    """
    if path.parts[:2] == ("/", "dev") or _is_device(path):
        with open(path, "ab") as file:
            file.write(data)
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:  # not mkstemp: the file gets the permissions a user's umask asks for
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def add_line(path: Path, line: bytes) -> None:
    """Add a line at the end of a file that other processes add to as well; its folder is made where it is missing.

    Each line begins anew, as the writer of the one before may have been killed within it: a reader skips blank lines
    and what it can't read. It goes out at once, so that lines don't mix; what the system takes only a part of is
    continued.

    Raises:
        OSError: when it cannot be written, or not all of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        left = memoryview(b"\n" + line + b"\n")
        while left:
            written = os.write(handle, left)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            left = left[written:]
    finally:
        os.close(handle)


def _is_device(path: Path) -> bool:
    """Whether there is something that can be written to and is no file."""
    return path.exists() and not path.is_file() and not path.is_dir()
