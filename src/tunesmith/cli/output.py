"""What every command shares: exit codes, one JSON document, one line of error."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperGroup

from tunesmith.errors import BadInput, unknown

GOOD = 0  # done, and the answer is good
NO = 1  # done, and the answer is no: nothing ran, faults found, worse
USAGE = 2  # what was asked for makes no sense
CANNOT_TELL = 3
INTERRUPTED = 130  # what shells give a command that Ctrl-C ended

#: the option that every command with an answer has
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else.")
]


def print_json(kind: str, fields: Mapping[str, Any]) -> None:
    """Print the one document of a command; its first key is `format`."""
    print(json.dumps({"format": f"tunesmith-{kind}/1", **fields}, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Say something that is not the answer, on standard error."""
    print(f"tunesmith: {text}", file=sys.stderr)


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
    """A group of commands that names the good ones when a bad one is typed."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            command.short_help = command.short_help or " ".join((command.help or "").split("\n\n")[0].split())
        super().format_commands(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise BadInput(unknown("command", args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)
