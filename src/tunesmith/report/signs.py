"""Text for streams that cannot show every sign: `75.00 µs` on one of ASCII is `75.00 us`, never an error."""

from __future__ import annotations

import codecs
import re
from typing import IO, Any

#: The name of the error handler that writes a sign as `PLAIN` has it, for `encode` and a stream's `errors`.
ERRORS = "tunesmith-plain"
#: What stands for a sign where it cannot be shown; for every other one it is a question mark.
PLAIN = {
    "×": "x", "µ": "u", "–": "-", "—": "-", "…": "...", "→": "->", "←": "<-", "·": ".", "≤": "<=", "≥": ">=", "±": "+-",
    "÷": "/", "━": "-", "╸": "-", "╺": "-", "─": "-", "│": "|", "’": "'", "“": '"', "”": '"',
}  # fmt: skip


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error(ERRORS, _plain)


#: A terminal's commands: of colours, of its title; and signs that move its cursor.
_COMMANDS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """Text that commands no terminal: compilers colour their messages, and a recording may hold anything.

    >>> harmless("\\x1b[31merror\\x1b[0m: no")
    'error: no'
    """
    return _COMMANDS.sub("", text)


def is_unicode(stream: Any) -> bool:
    """Whether a stream can hold every sign: one of text in memory can, one of a terminal says its encoding."""
    encoding = getattr(stream, "encoding", None)
    return encoding is None or str(encoding).lower().replace("_", "-").startswith("utf")


def showable(stream: IO[str]) -> IO[str]:
    """The stream itself where it can hold every sign, else one in front of it that writes plain ones."""
    if is_unicode(stream):
        return stream
    plain: Any = _Plain(stream)  # as much of a file as a console needs
    return plain


class _Plain:
    """Writes to another stream what that can hold. The stream is the user's: how it fails otherwise is left alone."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.encoding = stream, str(stream.encoding)

    def write(self, text: str) -> int:
        self._stream.write(text.encode(self.encoding, ERRORS).decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()
