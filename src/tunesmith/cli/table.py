"""`tunesmith table`: look at, check, compare, merge and convert offline tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunesmith.cli.output import GOOD, NO, AsJson, Commands, note, print_json
from tunesmith.errors import BadInput
from tunesmith.report.units import count

if TYPE_CHECKING:
    from tunesmith.tables.convert import Exported
    from tunesmith.tables.edit import Change
    from tunesmith.tables.sheet import Finding

app = typer.Typer(cls=Commands, help="Offline tables: check, compare, merge and convert them. Needs no GPU.")

FormatOption = Annotated[
    str | None, typer.Option("--format", metavar="NAME", help="The files' format, where they do not say.")
]
TritonOption = Annotated[str, typer.Option("--triton", metavar="VERSION", help="The version that it was tuned with.")]
FolderOption = Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where to write.")]
FileOption = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")]
RenameOption = Annotated[
    list[str], typer.Option("--rename", metavar="FROM=TO", help="Another name for a knob; may be repeated.")
]
#: of each kind of finding, how many are shown where nothing is said
SHOWN = 10


@app.command()
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Tables, or folders of them.")],
    device: Annotated[
        str, typer.Option(metavar="NAME", help="A chip to run on: rows that can't are found. Else each on its own.")
    ] = "",
    upto: Annotated[int, typer.Option(metavar="N", help="Say which of the sizes 1…N are served by no row.")] = 0,
    kernels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Names of compiled kernels, a line each: others are found.")
    ] = None,
    format: FormatOption = None,
    everything: Annotated[bool, typer.Option("--all", help=f"Show more than {SHOWN} findings of a kind.")] = False,
    json: AsJson = False,
) -> int:
    """Say what is wrong in tables: rows and names that nothing reads, rows that can't run, conflicts, bad times.

    Exit code 1: at least one error was found. Warnings alone are 0.
    """
    from tunesmith.tables import check as checks
    from tunesmith.tables import resources

    named = None if kernels is None else frozenset(_text(kernels).split())
    options = checks.Options(resources.named(device) if device else "", upto, named, format)
    report = checks.check(paths, options)
    if json:
        fields = {"files": report.files, "rows": report.rows, "errors": report.errors}
        passed = [{"path": str(path), "why": why} for path, why in report.passed_over]
        print_json("table-check", {**fields, "findings": [_data(f) for f in report.findings], "passed_over": passed})
    else:
        _print_findings(report.findings, None if everything else SHOWN)
        warned = len(report.findings) - report.errors
        looked = f"{count(report.files, 'table')}, {count(report.rows, 'row')}"
        print(f"{looked}: {count(report.errors, 'error')}, {count(warned, 'warning')}")
        if report.passed_over:
            files = count(len(report.passed_over), "file")
            print(f"{files} passed over: {report.passed_over[0][0]} …: of no known format")
    return NO if report.errors else GOOD


def _data(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "path": str(finding.path)}


def _print_findings(findings: Sequence[Finding], most: int | None) -> None:
    from tunesmith.report.terminal import print_lines

    shown: Counter[str] = Counter()
    for finding in findings:
        shown[finding.code] += 1
        if most is None or shown[finding.code] <= most:
            print_lines(str(finding))
    for code, number in shown.items():
        if most is not None and number > most:
            print(f"… and {number - most} more of [{code}]: --all shows them")


@app.command()
def explain(
    file: Annotated[Path, typer.Argument(help="A table.")],
    at: Annotated[str, typer.Option(metavar="M=…", help="What to look up: the size, and further fields of its rows.")],
    rule: Annotated[str | None, typer.Option(metavar="NAME", help="Another rule than the format's own.")] = None,
    format: FormatOption = None,
    json: AsJson = False,
) -> int:
    """Say which row of a table serves a size, how far it is, and by which rule. Exit code 1: none does."""
    from tunesmith.core.problem import Problem
    from tunesmith.report.terminal import print_lines
    from tunesmith.tables import aiter_triton, formats, policy

    sheet, problem = formats.read(file, format), Problem.parse(at)
    sheet = sheet if rule is None else sheet.with_rule(policy.rule(rule))
    if sheet.format == "aiter-triton":
        size = problem.get("M")
        if type(size) is not int:
            raise BadInput(f"--at {at}: M is {'not given' if size is None else size}; good ones: --at M=64")
        bound = aiter_triton.find(sheet, size)
        row, said = bound.row, str(bound)
    else:
        found = sheet.find(problem)
        row, said = (None if found is None else found.row), sheet.explain(problem)
    if json:
        fields = {"said": said, "line": row.line if row else None, "config": row.config if row else None}
        print_json("table-explain", fields)
    else:
        print_lines(said + (f"\n{file}:{row.line}: {dict(row.config) if row.config else 'null'}" if row else ""))
    return NO if row is None else GOOD


def _called(change: Change) -> dict[str, Any]:
    """What calls outside of CUDA graphs are launched with, before and after, where a row says that."""
    both = [None if row is None else row.called for row in (change.before, change.after)]
    return {"called": both} if any(both) else {}


@app.command()
def diff(
    one: Annotated[Path, typer.Argument(help="A table.")],
    other: Annotated[Path, typer.Argument(help="Another.")],
    format: FormatOption = None,
    json: AsJson = False,
) -> int:
    """Say in which rows two tables differ. Exit code 1: in some."""
    from tunesmith.report.terminal import print_lines
    from tunesmith.tables import edit, formats

    changes = edit.diff(formats.read(one, format), formats.read(other, format))
    if json:
        rows = [
            {
                "key": dict(change.key),
                "before": None if change.before is None else change.before.config,
                "after": None if change.after is None else change.after.config,
                **_called(change),
            }
            for change in changes
        ]
        print_json("table-diff", {"changes": rows})
    else:
        print_lines("\n".join(map(str, changes)) if changes else "the same rows")
    return NO if changes else GOOD


@app.command()
def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Tables of one format. None is changed.")],
    output: FileOption,
    prefer: Annotated[
        str, typer.Option(metavar="first|fastest", help="Which of two rows of one key is used.")
    ] = "first",
    format: FormatOption = None,
) -> int:
    """Write the first table with the rows that only the others have; its own bytes stay as they are."""
    from tunesmith.tables import edit, formats

    if prefer not in ("first", "fastest"):
        raise BadInput(f"--prefer {prefer}: good ones: first, fastest")
    sheets = [formats.read(file, format) for file in files]
    merged = edit.merge(sheets, prefer)
    edit.refuse_other_reading(output, merged.document, sheets[0], format)
    _write({output: merged.document.data()})
    for said in merged.notes:
        note(said)
    print(f"wrote {output}: {count(merged.added, 'row')} added, {len(merged.notes)} decided")
    return GOOD


@app.command()
def make(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="A kernel's name in the store.")],
    device: Annotated[str, typer.Option(metavar="NAME", help="The device, as its driver reports it.")],
    output: FileOption,
) -> int:
    """Make one of our tables of what the store knows; where the file is a table of the same, its other rows stay."""
    from tunesmith.store import default_store
    from tunesmith.tables import edit
    from tunesmith.tables.native import from_store

    store = default_store()
    identities = {key.device for key in store.keys(kernel) if device in (key.device, key.device.split(":")[1])}
    if len(identities) > 1:
        raise BadInput(f"several devices are named {device!r}; give one of them whole: {', '.join(sorted(identities))}")
    table = from_store(store, kernel, next(iter(identities), device))
    try:
        whole = edit.add(output, table)
    except OSError as error:
        raise BadInput(f"{output} cannot be written: {error.strerror or error}") from error
    print(f"wrote {output}: {count(len(whole.rows), 'row')}, {len(table.rows)} of them from the store")
    return GOOD


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Tables of another format.")],
    kernel: Annotated[str, typer.Option(metavar="NAME", help="The kernel's name with us.")],
    device: Annotated[str, typer.Option(metavar="NAME", help="The device they are for, as its driver reports it.")],
    output: FileOption,
    given: Annotated[str, typer.Option(metavar="NAME=VALUE,…", help="Further fields of each problem.")] = "",
    rename: RenameOption = [],
    format: FormatOption = None,
) -> int:
    """Make one of our tables from tables of another format."""
    from tunesmith.core.device import known_device
    from tunesmith.core.problem import Problem
    from tunesmith.tables import convert, formats

    sheets = [formats.read(file, format) for file in files]
    more = dict(Problem.parse(given)) if given else {}
    table, left = convert.native(sheets, kernel, known_device(device), more, _pairs(rename))
    _write({output: table.data()})
    for said in left:
        note(f"left out: {said}")
    print(f"wrote {output}: {count(len(table.rows), 'row')}")
    return GOOD


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="One of our tables.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="sglang-moe, vllm-moe, sglang-gemm or vllm-gemm.")],
    layer: Annotated[
        str,
        typer.Option(
            metavar="experts=…,…",
            help="The layer's logical shape: experts, intermediate, tp, dtype, block_n, block_k, per_channel; of a "
            "GEMM n, k, dtype, block_n, block_k.",
        ),
    ],
    device: Annotated[str, typer.Option(metavar="NAME", help="The device, as its driver reports it.")],
    triton: TritonOption,
    output: FolderOption,
    where: Annotated[str, typer.Option(metavar="NAME=VALUE,…", help="Which rows: further fields of them.")] = "",
    size: Annotated[str, typer.Option(metavar="NAME", help="The field that counts tokens.")] = "M",
    rename: RenameOption = [],
    down: Annotated[bool, typer.Option("--down", help="For the down projection.")] = False,
) -> int:
    """Make a table of a serving engine from one of ours, under the name that the engine looks for."""
    from tunesmith.core.problem import Problem
    from tunesmith.tables import convert
    from tunesmith.tables.native import NativeTable

    if to not in convert.TARGETS:
        raise BadInput(f"--to {to}: good ones: {', '.join(convert.TARGETS)}")
    gemm = _gemm(layer) if to.endswith("gemm") else None
    if gemm is not None and down:
        raise BadInput("--down is of fused-MoE tables; a GEMM has no down projection")
    table = NativeTable.read(file)
    fields = dict(Problem.parse(where)) if where else {}
    made = {"from": file.name, "kernel": table.kernel, "fingerprint": table.fingerprint, **table.soft}
    engine = "sglang" if to.startswith("sglang") else "vllm"
    if gemm is not None:
        rows = convert.rows_by_size(table, size, fields, _pairs(rename))
        exported = convert.export_gemm(engine, device=device, rows=rows, triton=triton, provenance=made, **gemm)
    else:
        shape = _layer(layer)
        rows = convert.rows_by_size(table, size, {**convert.rows_of_layer(table, shape), **fields}, _pairs(rename))
        exported = convert.export_moe(engine, shape, device, rows, triton=triton, down=down, provenance=made)
    _write_exported(exported, output)
    return GOOD


@app.command("convert")
def convert_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Tables of a serving engine.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="sglang-moe, vllm-moe, sglang-gemm or vllm-gemm.")],
    output: FolderOption,
    triton: TritonOption = "",
    format: FormatOption = None,
) -> int:
    """Make one engine's tables of another's, under the names that it looks for."""
    from tunesmith.tables import convert, formats

    for file in files:
        _write_exported(convert.convert(formats.read(file, format), to, triton=triton), output)
    return GOOD


def _layer(text: str) -> Any:
    from tunesmith.core.problem import Problem
    from tunesmith.tables.names import Layer

    fields: dict[str, Any] = dict(Problem.parse(text))
    n, k = fields.pop("block_n", None), fields.pop("block_k", None)
    if (n is None) != (k is None):
        raise BadInput("a block has two sizes: give block_n= and block_k=")
    try:
        return Layer(**fields, block=None if n is None else (n, k))
    except TypeError:
        good = "experts, intermediate, tp, dtype, block_n, block_k, per_channel, hidden"
        raise BadInput(f"a layer of {', '.join(fields)}; needed: experts, intermediate; known: {good}") from None


def _gemm(text: str) -> dict[str, Any]:
    """What `export_gemm` asks of a GEMM: its weight is n × k, quantised in blocks."""
    from tunesmith.core.problem import Problem

    fields = dict(Problem.parse(text))
    n, k = fields.pop("block_n", 128), fields.pop("block_k", 128)
    known = {name: fields.pop(name) for name in ("n", "k", "dtype") if name in fields}
    sizes = (known.get("n"), known.get("k"), n, k)
    if fields or not all(isinstance(size, int) for size in sizes):
        said = ", ".join(fields) or text
        raise BadInput(f"a GEMM of {said}; needed: n, k; known: n, k, dtype, block_n, block_k")
    return {**known, "block": (n, k)}


def _write_exported(exported: Exported, folder: Path) -> None:
    _write({folder / path: data for path, data in exported.files().items()})
    for said in exported.notes:
        note(said)
    print(f"wrote {folder / exported.path}")


def _write(files: Mapping[Path, bytes]) -> None:
    from tunesmith.tables import edit

    for path, data in files.items():
        try:
            kept = edit.write(path, data)
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror or error}") from error
        if kept is not None:
            note(f"{path} could not be read as a table: it is kept as {kept.name}")


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    bad = [text for text in texts if text.count("=") != 1]
    if bad:
        raise BadInput(f"{bad[0]!r} is not FROM=TO")
    return dict(text.split("=") for text in texts)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
