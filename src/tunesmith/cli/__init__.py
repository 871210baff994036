"""The command line: `tunesmith COMMAND`. One file for each command or group.

A command imports what is heavy when it runs, so that `--help` is there at once.

Exit codes of every command: 0 done and good; 1 done and the answer is no (nothing ran, faults found, worse);
2 bad usage; 3 cannot tell; 130 ended by Ctrl-C.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, cast

import typer

from tunesmith.cli import plan, store, table
from tunesmith.cli.compile import compile_
from tunesmith.cli.distill import distill
from tunesmith.cli.doctor import doctor
from tunesmith.cli.explain import explain
from tunesmith.cli.guard import guard
from tunesmith.cli.kernels import kernels
from tunesmith.cli.output import (
    CANNOT_TELL,
    GOOD,
    INTERRUPTED,
    NO,
    UNREAD,
    USAGE,
    Commands,
    complain,
    installed,
    works_long,
)
from tunesmith.cli.profile import profile
from tunesmith.cli.record import record
from tunesmith.cli.report import report
from tunesmith.cli.sweep import sweep
from tunesmith.cli.tune import tune
from tunesmith.cli.verify import verify
from tunesmith.errors import BadInput, Busy, StoreError, TunesmithError, TunesmithWarning, unknown
from tunesmith.report.signs import ERRORS

app = typer.Typer(
    cls=Commands,
    name="tunesmith",
    help="Find the fastest configuration of a compute kernel by measuring it, and remember it.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it is there at once
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(works_long(tune))
app.command()(works_long(sweep))
app.command()(explain)
app.command()(works_long(profile))
app.command()(works_long(verify))
app.command()(works_long(record))
app.command()(works_long(guard))
app.command()(distill)
app.command()(report)
app.command("compile")(works_long(compile_))
app.command()(kernels)
app.command()(doctor)
app.add_typer(store.app, name="store")
app.add_typer(plan.app, name="plan")
app.add_typer(table.app, name="table")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tunesmith {installed('tunesmith') or '(a source tree: not installed)'}")
        raise typer.Exit(GOOD)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find the fastest configuration of a compute kernel by measuring it, and remember it."""
    if context.invoked_subcommand is None:
        print(context.get_help())


#: click's error of bad usage: newer typers carry their own click, so it is reached through typer
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])


def main(args: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        args: what stands behind `tunesmith`; the process's own arguments where not given.

    Returns:
        The exit code. Errors of the user's are one line on standard error; an error of ours is a traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ERRORS)  # × and µ in a terminal of another encoding
    with _short_warnings():
        try:
            code = app(args, prog_name="tunesmith", standalone_mode=False)
            _flush()
            return code if isinstance(code, int) else GOOD
        except SystemExit as error:
            if not isinstance(error.__context__, BrokenPipeError):
                raise
            return _unwritable(error.__context__)  # typer ends the process on it
        except _UsageError as error:
            complain(_usage(error))
        except (BadInput, StoreError) as error:
            complain(" ".join(str(error).split("\n")))
        except Busy as error:
            complain(str(error))
            return CANNOT_TELL
        except TunesmithError as error:
            complain(str(error))
            return NO
        except OSError as error:
            if error.filename is not None and error.errno in _OF_A_PATH:
                complain(f"{os.fsdecode(error.filename)!r} cannot be used: {error.strerror}; give another path")
                return USAGE
            if error.errno not in (errno.EPIPE, errno.ENOSPC):
                raise
            return _unwritable(error)
        except (KeyboardInterrupt, typer.Abort):
            complain("interrupted")
            return INTERRUPTED
    return USAGE


#: What is wrong with a path that was asked for, however it was used: no bug of ours.
_OF_A_PATH = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EROFS}


def _flush() -> None:
    """Write what is still in hand of the answer: at the process's end it would be too late to say that it can't be."""
    if isinstance(sys.stdout, io.TextIOBase):  # it is None where it was closed
        sys.stdout.flush()


def _unwritable(error: OSError) -> int:
    """An answer that cannot be written: nobody reads it any more (`… | head`), or the disk is full."""
    nobody = error.errno == errno.EPIPE
    if not nobody:
        complain(f"the answer cannot be written: {error.strerror}")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the rest would fail at the process's end
    return UNREAD if nobody else NO


def _usage(error: Any) -> str:
    """Click's complaint in one line, with what would have been good."""
    context: Any = getattr(error, "ctx", None)
    command: Any = getattr(context, "command", None)
    if type(error).__name__ == "NoSuchOption":
        options = [name for parameter in command.params for name in parameter.opts] if command else []
        return unknown("option", error.option_name, [*[o for o in options if o.startswith("--")], "--help"])
    said = " ".join(error.format_message().split())
    if isinstance(command, Commands):
        return f"{said} good ones: {', '.join(command.list_commands(context))}"
    return f"{said} (see {context.command_path} --help)" if context else said


@contextmanager
def _short_warnings() -> Generator[None]:
    """Within this scope our own warnings are one line, without the place in our source that raised them."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, TunesmithWarning):
                complain(f"warning: {message}")
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        yield
