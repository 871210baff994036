"""From a FlyDSL function to a code object of AMD's, without a GPU: in a child process, or here.

A child imports the file in which the function stands, so one that is defined in the program itself, or inside another
function, is compiled here. Either way FlyDSL keeps what it compiled in its own cache, where it finds it when the kernel
is loaded on a GPU: a child saves lowering and code generation, not tracing. What a Config takes is kept beside the code
object in ours.

Measured on a kernel of 30 lines, FlyDSL 0.5.0, 2 cores shared with others' work: importing torch and FlyDSL 2 to 3 s a
child, which is kept; then 0.1 to 0.3 s a Config, a third of it linking.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from tunesmith.backends.flydsl.reading import Parameters, Told, hints_of
from tunesmith.backends.flydsl.toolkit import compiler, compiling_for
from tunesmith.core.config import KnobValue
from tunesmith.errors import BadInput, CompileFailed, TunesmithError, one_line
from tunesmith.files import write_whole

#: what chips that have none say of their accumulation registers
_NONE = (1 << 32) - 1


# --- a function, found by another process --------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a function is defined."""

    module: str
    file: str
    attribute: str
    line: int

    def found(self) -> Callable[..., Any]:
        """The function there, whatever stands around it.

        Raises:
            BadInput: when the file has another one by now.
        """
        value: Any = self._module()
        for part in self.attribute.split("."):
            value = getattr(value, part)
        for _ in range(4):  # a tuned kernel, what launches it, its source
            inner = _inside(value)
            if inner is None:
                break
            value = inner
        there = place_of(value)  # the module may go by another name here
        if there is None or replace(there, module=self.module) != self:
            raise BadInput(f"{self.file}:{self.line} does not define {self.attribute} any more")
        return value

    def _module(self) -> ModuleType:
        for loaded in (sys.modules.get(self.module), sys.modules.get(self._alias)):
            if loaded is not None and getattr(loaded, "__file__", None) == self.file:
                return loaded
        try:
            spec = importlib.util.find_spec(self.module)  # imports the packages that it is in
        except (ImportError, ValueError):
            spec = None
        if spec is not None and spec.origin == self.file:
            return importlib.import_module(self.module)
        return self._imported()

    @property
    def _alias(self) -> str:
        return f"_flydsl_{Path(self.file).stem}"

    def _imported(self) -> ModuleType:
        """A file that cannot be imported by name, with what lies beside it."""
        spec = importlib.util.spec_from_file_location(self._alias, self.file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[self._alias] = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(Path(self.file).parent))
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[self._alias]
            raise
        finally:
            sys.path.remove(str(Path(self.file).parent))
        return module


def _inside(value: Any) -> Any:
    """What a tuned kernel, or a kernel of ours, is made of; `None` for FlyDSL's and Python's own functions."""
    if value.__class__.__module__.startswith("tunesmith."):
        return getattr(value, "kernel", None) or getattr(value, "source", None)
    return None


def place_of(source: Any) -> Place | None:
    """Where another process finds a function; `None` where none can."""
    function = inspect.unwrap(getattr(source, "func", source))
    module, attribute = getattr(function, "__module__", "__main__"), getattr(function, "__qualname__", "<locals>")
    code = getattr(function, "__code__", None)
    if module == "__main__" or "<" in attribute or code is None or not Path(code.co_filename).is_file():
        return None
    return Place(module, code.co_filename, attribute, code.co_firstlineno)


# --- compiling -------------------------------------------------------------------------------------------------


def compiled(
    source: Any, is_build: bool, parameters: Parameters, told: Sequence[Told], config: Mapping[str, KnobValue],
    arch: str,
) -> Any:  # fmt: skip
    """FlyDSL's CompiledFunction for a chip that need not be here. Nothing is launched.

    Raises:
        CompileFailed: with all that FlyDSL said.
        MissingEngine: without FlyDSL, torch or a linker.
    """
    compile_ = compiler().compile
    from flydsl.compiler.kernel_function import CompilationContext

    runtime = {p.name for p in parameters.runtime}
    names = list(parameters.signature.parameters)
    given = dict(zip(names, told, strict=True))
    values = {name: one[1] for name, one in given.items() if name not in runtime}
    knobs = {knob: value for knob, value in config.items() if knob in parameters.knobs}
    stands_for = {name: _placeholder(one) for name, one in given.items() if name in runtime}
    with compiling_for(arch), CompilationContext.compile_hints(hints_of(parameters, config)):
        try:
            if is_build:
                launcher = source(**values, **knobs)
                _check_launcher(launcher, [p.name for p in parameters.runtime])
                return compile_(launcher, *(stands_for[p.name] for p in parameters.runtime))
            return compile_(source, **stands_for, **values, **knobs)
        except TunesmithError:
            raise
        except Exception as error:
            raise CompileFailed(_reason(error), str(error)) from error


def _check_launcher(launcher: Any, names: Sequence[str]) -> None:
    """Refuse a launcher that does not take what was said, and a stream after it.

    Raises:
        BadInput: naming what it takes.
    """
    found = list(inspect.signature(launcher.func).parameters) if hasattr(launcher, "func") else None
    if found is None:
        raise BadInput(f"the build function returned {launcher!r}; expected what @flyc.jit made")
    if found[: len(names)] != list(names) or len(found) > len(names) + 1:
        raise BadInput(
            f"the launcher takes ({', '.join(found)}), and launch= says ({', '.join(names)}); a stream may follow these"
        )


def _placeholder(told: Told) -> Any:
    """Something small that FlyDSL compiles as it does what it stands for, and does not launch."""
    if told[0] == "number":
        return {"int": 1, "float": 1.0, "bool": True}[told[1]]
    import torch

    _, dtype, rank, unit = told
    strides = [0] * rank
    strides[unit] = 1
    others = [i for i in range(rank) if i != unit]
    for number, i in enumerate(reversed(others), 1):
        strides[i] = 2**number
    return torch.empty_strided([2] * rank, strides, dtype=getattr(torch, dtype))


def _reason(error: Exception) -> str:
    """The line of FlyDSL's that says why, without the place: the same mistake is to be counted as one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else one_line(error)
    if "amdgcn bitcode path" in first:
        return (
            "this kernel calls AMD's device libraries (sin, log and the like), which come with ROCm alone: "
            "set ROCM_PATH to an installation"
        )
    if "lld invocation failed" in first:
        return f"{first}: ld.lld, which AMD's binaries are linked by, ended with an error"
    return f"{type(error).__name__}: {first}"


# --- what came of it -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Artifact:
    """What a compiled Config takes of a chip.

    Attributes:
        registers: vector registers of a thread, accumulation registers among them where the chip counts them so.
        spills: of them.
        shared_bytes: of a block, as far as it is known without a launch.
        threads: of a block, `None` where a launch decides it.
    """

    arch: str
    entry: str
    registers: int
    scalar_registers: int
    spills: int
    shared_bytes: int
    threads: int | None
    code_bytes: int

    @classmethod
    def read(cls, path: Path) -> Artifact:
        """What lies at a Task's `output`.

        Raises:
            OSError, ValueError: when it can't be read, or is no Artifact.
        """
        data = json.loads(path.read_text())
        try:
            return cls(**data)
        except TypeError as error:
            raise ValueError(f"{path}: {error}") from None


def code_object_beside(path: Path) -> Path:
    """Where the code object of an Artifact lies."""
    return path.with_suffix(".hsaco")


def looked_at(function: Any) -> tuple[Artifact, bytes]:
    """What a CompiledFunction takes, of several kernels the most, and its code object.

    Raises:
        CompileFailed: when this is another FlyDSL than those that are known.
    """
    text = str(function._keepalive.ir)
    binary = re.search(r'\bbin = "((?:[^"\\]|\\.)*)"', text)
    arch = re.search(r'chip = "([^"]+)"', text)
    facts = [_facts(found[1]) for found in re.finditer(r"metadata = \{([^}]*)\}", text)]
    if binary is None or arch is None or not facts:
        raise CompileFailed("FlyDSL made no code object that can be read: expected gpu.binary with metadata", text)
    code = _unescaped(binary[1])
    entry = re.search(r'kernel_metadata<"([^"]+)"', text)

    def most(name: str) -> int:
        return max(one.get(name, 0) for one in facts)

    sizes = re.search(r"reqd_workgroup_size = array<i32: (-?\d+), (-?\d+), (-?\d+)>", text)
    threads = [int(size) for size in sizes.groups()] if sizes is not None else [-1]
    dynamic = _dynamic_shared(text)
    return Artifact(
        arch[1], entry[1] if entry is not None else "", most("vgpr_count"), most("sgpr_count"),
        most("vgpr_spill_count"), most("group_segment_fixed_size") + dynamic,
        threads[0] * threads[1] * threads[2] if min(threads) > 0 else None, len(code),
    ), code  # fmt: skip


def _facts(metadata: str) -> dict[str, int]:
    found = {name: int(value) for name, value in re.findall(r"(\w+) = (-?\d+) : i64", metadata)}
    return {name: 0 if value == _NONE else value for name, value in found.items()}


def _dynamic_shared(text: str) -> int:
    """Bytes of dynamic shared memory of the launches, where they are constants."""
    found = 0
    for name in re.findall(r"gpu\.launch_func [^\n]*dynamic_shared_memory_size (%\w+)", text):
        constant = re.search(rf"{re.escape(name)} = llvm\.mlir\.constant\((\d+) : i32\)", text)
        found = max(found, int(constant[1]) if constant is not None else 0)
    return found


def _unescaped(text: str) -> bytes:
    """The bytes of a string of MLIR's: `\\7FELF`."""
    return re.sub(
        rb"\\([0-9A-Fa-f]{2})|\\(.)", lambda m: bytes([int(m[1], 16)]) if m[1] else cast(bytes, m[2]), text.encode()
    )


# --- in the child ------------------------------------------------------------------------------------------------


def compile_config(
    *, place: Mapping[str, Any], kernel: Mapping[str, Any], fingerprint: str, told: Sequence[Sequence[Any]],
    config: Mapping[str, KnobValue], arch: str, output: str,
) -> None:  # fmt: skip
    """Compile a Config of the kernel whose source stands at `place`; write what it takes, and its code object.

    Args:
        kernel: what was said of it, as `FlydslKernel.of` takes it.
        fingerprint: what it has to be.

    Raises:
        BadInput: when the file has been changed since the parent imported it.
        CompileFailed: with all that FlyDSL said.
    """
    from tunesmith.backends.flydsl.kernel import FlydslKernel

    found = FlydslKernel.of(Place(**place).found(), **kernel)
    if found.fingerprint() != fingerprint:
        raise BadInput(f"{place['file']} has been changed since {found.name} was imported: start again")
    types = [tuple(one) for one in told]
    write_artifact(compiled(found.source, found.is_build, found.parameters, types, config, arch), Path(output))


def write_artifact(function: Any, output: Path) -> Artifact:
    """Keep what a CompiledFunction takes, which says that all is there, and its code object."""
    artifact, code = looked_at(function)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(code_object_beside(output), code)
    write_whole(output, json.dumps(asdict(artifact)).encode())
    return artifact
