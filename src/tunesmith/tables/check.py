"""`tunesmith table check`: what is wrong in tables, found without a GPU."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tunesmith.errors import BadInput
from tunesmith.tables import autotuner_caches, check_csv, check_json, devices, formats, versions
from tunesmith.tables.sheet import Finding, Sheet

#: Conflicts are left in files by a merge that was not finished.
CONFLICT = (b"<<<<<<< ", b">>>>>>> ")


@dataclass(frozen=True)
class Options:
    """What to check for.

    Attributes:
        device: a chip's name in tables: rows are looked at as though they were to run there. Empty: on their own chip.
        upto: sizes from 1 to this must be served by some row; 0 asks for none in particular.
        kernels: names of compiled kernels; a row that names another can't run. `None`: not known.
        format: of all files, where they do not say.
    """

    device: str = ""
    upto: int = 0
    kernels: Collection[str] | None = None
    format: str | None = None


@dataclass
class Report:
    """What was found.

    Attributes:
        files: how many tables were read.
        rows: how many rows they have.
        passed_over: files that are no tables of a known format, and why.
        digests: of each table's bytes.
    """

    findings: list[Finding] = field(default_factory=list[Finding])
    files: int = 0
    rows: int = 0
    passed_over: list[tuple[Path, str]] = field(default_factory=list[tuple[Path, str]])
    digests: dict[Path, str] = field(default_factory=dict[Path, str], repr=False)

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(finding.severity == "error" for finding in self.findings)


def check(paths: Iterable[Path], options: Options | None = None, *, among_others: bool = False) -> Report:
    """Read tables, files or whole folders, and say what is wrong with them.

    Args:
        among_others: a file that is given need not be a table, as one of a folder need not.

    Raises:
        BadInput: for a path that is not there, and for a file that is no table.
    """
    options, report = options or Options(), Report()
    sheets: list[Sheet] = []
    for path in paths:
        if not path.exists():
            raise BadInput(f"there is no {str(path)!r}; give files or folders of tables")
        report.findings += bad_folders(path) if path.is_dir() else []
        for file in formats.files(path):
            sheet = _read(file, options, report, named=not (among_others or path.is_dir()))
            if sheet is not None:
                sheets.append(sheet)
                report.findings += of_sheet(sheet, options)
    report.findings += check_json.across(sheets) + check_csv.across(sheets) + _copies(sheets, report.digests)
    report.findings.sort(key=lambda finding: (str(finding.path), finding.line))
    return report


def _read(file: Path, options: Options, report: Report, *, named: bool) -> Sheet | None:
    try:
        data = file.read_bytes()
    except OSError as error:
        report.findings.append(Finding(file, 0, "unreadable", "error", str(error.strerror)))
        return None
    if file.suffix == ".py":
        keys, wrong = autotuner_caches.read_bundled(file, data.decode(errors="replace"))
        report.findings += wrong
        report.files, report.rows = report.files + 1, report.rows + len(keys)
        return None
    try:
        sheet = formats.parse(file, data, options.format)
    except formats.UnknownFormat as error:
        if named:
            raise
        report.passed_over.append((file, str(error).removeprefix(f"{file}: ")))
        return None
    except BadInput as error:
        conflict = any(line.startswith(CONFLICT) for line in data.splitlines())
        said = str(error).removeprefix(f"{file}: ") + ("; it holds a merge's conflict marks" if conflict else "")
        report.findings.append(Finding(file, 0, "unreadable", "error", f"no reader takes it: {said}"))
        return None
    report.files += 1
    report.digests[file] = hashlib.sha256(data).hexdigest()
    report.rows += len(sheet.rows)
    return sheet


def of_sheet(sheet: Sheet, options: Options) -> list[Finding]:
    """What is wrong in one table."""
    found = list(sheet.faults)
    if not sheet.rows:
        said = "no rows: its reader finds the table, and serves nothing from it"
        found.append(sheet.finding("empty", "error", said))
    if sheet.format.startswith(("aiter-gemm", "aiter-fmoe")):
        return found + check_csv.of_sheet(sheet, options.upto, options.kernels)
    return found + check_json.of_sheet(sheet, options.device, options.upto)


def bad_folders(root: Path) -> list[Finding]:
    """Folders for a Triton version that end SGLang's reader."""
    return [
        Finding(folder, 0, "folder", "error", "SGLang's reader ends on a folder that is not triton_X_Y_Z in numbers")
        for folder in sorted(root.rglob("triton_*"))
        if folder.is_dir() and versions.of_folder(folder.name) is None and folder.name[7:8].isdigit()
    ]


def _copies(sheets: Sequence[Sheet], digests: Mapping[Path, str]) -> list[Finding]:
    """Tables that are the same to the byte under different names of devices."""
    groups: defaultdict[tuple[str, str, str], list[Sheet]] = defaultdict(list)
    for sheet in sheets:
        if sheet.name is not None and sheet.rows:
            others = {name: value for name, value in sheet.name.fields.items() if name != "device_name"}
            groups[sheet.format, digests[sheet.path], str(sorted(others.items(), key=str))].append(sheet)
    found: list[Finding] = []
    for group in groups.values():
        chips = sorted({sheet.name.device for sheet in group if sheet.name is not None})
        if len(chips) > 1 and not any(spellings.issuperset(chips) for spellings in devices.SAME):
            said = f"the same to the byte for {', '.join(chips)}: one tuning for all of them"
            found.append(group[0].finding("copy", "warning", said))
    return found
