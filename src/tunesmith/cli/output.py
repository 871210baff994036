"""What every command shares: exit codes, one JSON document, one line of error, how much is said beside the answer."""

from __future__ import annotations

import inspect
import json
import math
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer
from typer.core import TyperGroup

from tunesmith.errors import BadInput, unknown
from tunesmith.files import write_whole
from tunesmith.report.signs import harmless, is_unicode

if TYPE_CHECKING:
    from tunesmith.report.progress import Detail

GOOD = 0  # done, and the answer is good
NO = 1  # done, and the answer is no: nothing ran, faults found, worse
USAGE = 2  # what was asked for makes no sense
CANNOT_TELL = 3
UNREAD = 141  # what shells give a command whose answer nobody reads to its end
INTERRUPTED = 130  # what shells give a command that Ctrl-C ended

#: the option that every command with an answer has
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else.")
]


QuietOption: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="Nothing but the answer, warnings and errors: no progress, no notes.")
]
VerboseOption: TypeAlias = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Each candidate's fate too: its time and how far it went, or why it failed."),
]


def print_json(kind: str, fields: Mapping[str, Any]) -> None:
    """Print the one document of a command; its first key is `format`. A number that JSON has no word for is null."""
    document = _json({"format": f"tunesmith-{kind}/1", **fields})
    print(json.dumps(document, indent=2, ensure_ascii=not is_unicode(sys.stdout), allow_nan=False))


def _json(value: Any) -> Any:
    """The same with null for what JSON cannot write: NaN and the infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _json(one) for name, one in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_json(one) for one in cast("list[Any]", value)]
    return value


# --- beside the answer ---------------------------------------------------------------------------------

_detail: ContextVar[Detail] = ContextVar("tunesmith_detail", default="usual")


def detail() -> Detail:
    """How much the command under way says beside its answer."""
    return _detail.get()


def works_long(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same command with the options -q and -v: for every command that may take longer than a moment.

    Raises:
        BadInput: when both are given.
    """

    @wraps(command)
    def with_detail(*args: Any, quiet: bool = False, verbose: bool = False, **given: Any) -> Any:
        if quiet and verbose:
            raise BadInput("--quiet and --verbose are opposites: give one of them")
        token = _detail.set("quiet" if quiet else "verbose" if verbose else "usual")
        try:
            return command(*args, **given)
        finally:
            _detail.reset(token)

    signature = inspect.signature(command, eval_str=True)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
        for name, option in (("quiet", QuietOption), ("verbose", VerboseOption))
    ]
    told: Any = with_detail
    told.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])
    told.__annotations__ = {name: one.annotation for name, one in told.__signature__.parameters.items()}
    return with_detail


def note(text: str) -> None:
    """Say something that is not the answer, on standard error, unless the command is to be quiet."""
    if detail() != "quiet":
        complain(text)


def aside(text: str) -> None:
    """Say a detail, on standard error, where the command is to be verbose."""
    if detail() == "verbose":
        complain(text)


def paced(every_s: float = 10.0) -> Callable[[str], None]:
    """A `note` for how far something is: what is said too early after the one before is left out."""
    last = time.monotonic()

    def say(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= every_s:
            last = time.monotonic()
            note(text)

    return say


def complain(text: str) -> None:
    """Say what is wrong, on standard error: in a file as it is, on a terminal wrapped between words.

    Where nothing can be said, the exit code has to do.
    """
    said = f"tunesmith: {harmless(text)}"
    if sys.stderr is None:
        return
    with suppress(OSError, ValueError):
        if not sys.stderr.isatty():
            print(said, file=sys.stderr)
            return
        from tunesmith.report.live import asides, put

        put(asides(), said)


def write_file(path: Path, data: bytes, option: str = "") -> None:
    """Write an answer to a file, whole or not at all.

    Args:
        option: which asks for it.

    Raises:
        BadInput: naming the file and why it cannot be written.
        BrokenPipeError: when it is a pipe, and nobody reads it to its end.
    """
    try:
        write_whole(path, data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BadInput(f"{option} {path} cannot be written: {error.strerror or error}".lstrip()) from error


@contextmanager
def answers_only(as_json: bool) -> Generator[None]:
    """Within this scope, what a user's module or kernel prints does not get into the JSON document."""
    if not as_json:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


def installed(package: str) -> str | None:
    """The version of an installed package, `None` where it is not. Imports nothing of it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class Commands(TyperGroup):
    """A group of commands that names the good ones when a bad one is typed, and says that it was interrupted."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            command.short_help = command.short_help or " ".join((command.help or "").split("\n\n")[0].split())
        super().format_commands(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would end without a word
            complain("interrupted")
            raise typer.Exit(INTERRUPTED) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise BadInput(unknown("command", args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)
