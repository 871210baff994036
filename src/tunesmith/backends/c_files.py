"""Sources in C and its kin that lie in files: reading them, and the headers that they include in quotes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tunesmith.backends.c_source import quoted_includes
from tunesmith.errors import BadInput


def read_source(source: str | Path, what: str) -> tuple[str, Path | None, str]:
    """(text, the file it is from, what to call it in messages) of a source that is given as a text or a path.

    Raises:
        BadInput: for a file that can't be read.
    """
    if not isinstance(source, Path):
        return source, None, f"the {what}"
    path = source.expanduser().absolute()
    try:
        return path.read_text(encoding="utf-8"), path, str(source)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{source} can't be read as {what}: {error}") from None


def included(text: str, path: Path | None, given: Sequence[Path], where: str) -> dict[Path, str]:
    """The headers that a source includes in quotes, and those that these include, with their text."""
    found: dict[Path, str] = {}
    queue = [(name, path.parent if path else None) for name in quoted_includes(text)]
    while queue:
        name, beside = queue.pop(0)
        candidates = [
            *([beside / name] if beside else []),
            *(h for h in given if h.parts[-len(Path(name).parts) :] == Path(name).parts),
        ]
        header = next((c for c in candidates if c.is_file()), None)
        if header is None:
            raise BadInput(f'{where} includes "{name}", which is not beside it; name its path in headers=')
        if header not in found:
            found[header] = header.read_text(encoding="utf-8")
            queue += [(nested, header.parent) for nested in quoted_includes(found[header])]
    return found
