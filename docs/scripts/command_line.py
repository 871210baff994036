"""Writes `docs/command-reference.md`, every command with its options, from the program itself.

python docs/scripts/command_line.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from tunesmith.cli import app

PAGE = Path(__file__).parents[1] / "command-reference.md"
HEAD = """# Commands and options

What `tunesmith COMMAND --help` says, for all commands; `python docs/scripts/command_line.py` writes this page from
the program. How they are used, what TARGET and `--problem` mean, and the exit codes are on
[the command line](command-line.md).
"""


def page() -> str:
    """The page, as text."""
    return "\n".join(
        [HEAD, *(_section(name, command) for name, command in commands("tunesmith", typer.main.get_command(app)))]
    )


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Each command that does something, with all its words, in the program's order."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
    for word, one in (below or {}).items():
        yield from commands(f"{name} {word}", one)


def _section(name: str, command: Any) -> str:
    """One command: its usage, its words, its options."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join([name, *map(_argument, arguments), *(["[OPTIONS]"] if options else [])])
    told = [(f"`{_argument(one)}`", one) for one in arguments] + [(_option(one), one) for one in options]
    rows = [f"| {words} | {_cell(one)} |" for words, one in told]
    table = ["", "| argument, option | what it does |", "|---|---|", *rows] if rows else []
    return "\n".join([f"## {name}", "", "```text", usage, "```", "", (command.help or "").strip(), *table, ""])


def _argument(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()) + ("…" if argument.nargs == -1 else "")
    return name if argument.required else f"[{name.strip('[]')}]"


def _option(option: Any) -> str:
    """Its spellings and what follows them; code, so that a bar in it needs its escape."""
    spellings = "/".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    return f"`{spellings}{value}`".replace("|", "\\|")


def _cell(parameter: Any) -> str:
    """What it does, and what holds where it is not given."""
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
    default = parameter.default
    shown = isinstance(default, (int, float, str)) and not isinstance(default, bool) and default != ""
    value = f"{default:g}" if isinstance(default, float) else default
    return f"{text} Without it: `{value}`." if shown else text


if __name__ == "__main__":
    PAGE.write_text(page())
