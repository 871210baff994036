"""From Triton's source objects to its compiled artifacts, which lie in its own cache: in a child process, or here.

Triton's front end needs the kernel's Python: closures, globals, what a notebook defined. So it runs here (a tenth of
the work), and the child is given the module as text and does the rest: passes, LLVM, ptxas. It needs nothing of the
user's, and no GPU. It writes under the name that Triton itself computes here, so that any later compilation of the
same, ours or `kernel[grid](...)`, finds it, bit for bit the same.

Measured on 40 Configs of a matrix product for sm_90, 2 cores, Triton 3.6, seconds, medians of three: one after the
other 12.3; 2 threads of this process 6.2; 2 forked processes 6.0; 2 children 7.0, their start included, and they are
kept. On the same cores shared with others' work: 1 child 16.8, 2 children 14.9, 2 threads 22.1; all of them take 8.4 to
9.6 s of processor time. So threads save nothing that can be relied on, and would die with the first LLVM ERROR, and a
fork inherits locks and a GPU context: children it is.
"""

from __future__ import annotations

import base64
import hashlib
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tunesmith.errors import OutOfResources
from tunesmith.kernel import Task

#: the most threads of a block, on every GPU that Triton compiles for
_THREADS = 1024
#: stages before which the size of shared memory is known, and after which is most of what is left of the work
_AFTER_LLVM = ("ptx", "amdgcn")


@dataclass(frozen=True)
class Source:
    """One Config of a kernel as Triton's compiler takes it.

    Attributes:
        ast: an ASTSource. options: the backend's, parsed.
        shared_limit: bytes of shared memory that a block can have, 0 where that is not known.
    """

    ast: Any
    target: Any
    options: Any
    shared_limit: int = 0

    def task(self) -> Task | None:
        """What compiles it in a child; `None` where that must be done here, by `compile_here`.

        That is so when Triton is told to report to, or to be changed by, Python code of this process.

        Raises:
            OutOfResources: when its warps are more than a block can have, which Triton would find when it is loaded.
        """
        from triton import knobs

        _check_threads(self.options.num_warps, self.target.warp_size)
        if (
            knobs.compilation.listener is not None
            or knobs.runtime.add_stages_inspection_hook is not None
            or knobs.cache.manager_class is not None
            or knobs.compilation.always_compile
        ):
            return None
        key, environ = self._key()
        folder = base64.b32encode(hashlib.sha256(key.encode()).digest()).decode().rstrip("=")
        output = Path(knobs.cache.dir) / folder / f"__grp__{self.ast.name[:150]}.json"
        return Task("tunesmith.backends.triton.compile:compile_module", lambda: self._request(key, environ), output)

    def _key(self) -> tuple[str, dict[str, str]]:
        """The text whose hash names it in Triton's cache, and the environment variables that are part of it."""
        from triton._C.libtriton import get_cache_invalidating_env_vars
        from triton.compiler.compiler import get_cache_key, make_backend

        environ = get_cache_invalidating_env_vars()
        return get_cache_key(self.ast, make_backend(self.target), self.options, env_vars=environ), environ

    def _request(self, key: str, environ: Mapping[str, str]) -> dict[str, Any]:
        """What a child is given: the module that Triton's front end makes of the kernel's Python."""
        from triton._C.libtriton import ir
        from triton.compiler.compiler import make_backend

        backend, context = make_backend(self.target), ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        codegen, modules = backend.get_codegen_implementation(self.options), backend.get_module_map()
        module = self.ast.make_ir(self.target, self.options, codegen, modules, context)
        return {
            "text": str(module), "name": self.ast.name, "ext": self.ast.ext, "language": self.ast.language.name,
            "source_hash": self.ast.hash(), "key": key, "environ": dict(environ),
            "target": [self.target.backend, self.target.arch, self.target.warp_size],
            "options": dict(self.options.__dict__), "shared_limit": self.shared_limit,
        }  # fmt: skip

    def compile_here(self) -> Any:
        """Triton's CompiledKernel: read from its cache, else compiled now."""
        from triton.compiler import compile

        return compile(self.ast, target=self.target, options=self.options.__dict__)


# --- in the child ------------------------------------------------------------------------------------


def compile_module(
    *, text: str, name: str, ext: str, language: str, source_hash: str, key: str, environ: Mapping[str, str],
    target: list[Any], options: Mapping[str, Any], shared_limit: int,
) -> None:  # fmt: skip
    """Compile a module of Triton's into its cache. Runs in a child.

    Raises:
        OutOfResources: before the last and longest stages, when the block would want more than there is.
    """
    from triton.backends.compiler import GPUTarget, Language
    from triton.compiler import ASTSource, compiler

    def named_already(*_: Any, **__: Any) -> str:  # where the kernel's Python is
        return key

    class Module(ASTSource):
        """A module that the front end has made already."""

        def __init__(self) -> None:
            self.fn, self.signature, self.constants, self.attrs = None, {}, {}, {}
            self.name, self.ext, self.language = name, ext, Language[language]

        def hash(self) -> str:
            return source_hash

        def make_ir(self, target: Any, options: Any, codegen_fns: Any, module_map: Any, context: Any) -> Any:
            with tempfile.NamedTemporaryFile("w", suffix=f".{ext}") as file:
                file.write(text)
                file.flush()
                return compiler.parse(file.name, ext, context)

    cast(Any, compiler).get_cache_key = named_already
    chip = GPUTarget(*target)
    with _watching(shared_limit, chip.warp_size):
        compiler.compile(Module(), target=chip, options=_tuples(dict(options)), _env_vars=dict(environ))


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    if isinstance(value, list):
        return tuple(_tuples(part) for part in cast("list[Any]", value))
    if isinstance(value, dict):
        return {name: _tuples(part) for name, part in cast("dict[str, Any]", value).items()}
    return value


@contextmanager
def _watching(shared_limit: int, warp_size: int) -> Generator[None]:
    """Within this scope, compilation stops as soon as a block is known to want more than there is."""
    from triton import knobs

    def hook(*args: Any) -> Any:
        if not args:  # from 3.9 on: what the hook adds to the name in the cache
            return "", ""
        stages = args[1]
        for stage in stages.keys() & set(_AFTER_LLVM):
            stages[stage] = _checked(stages[stage], shared_limit, warp_size)
        return None

    before = knobs.runtime.add_stages_inspection_hook
    if before is None:
        knobs.runtime.add_stages_inspection_hook = hook
    try:
        yield
    finally:
        knobs.runtime.add_stages_inspection_hook = before


def _checked(stage: Callable[..., Any], shared_limit: int, warp_size: int) -> Callable[..., Any]:
    def checked(module: Any, metadata: Mapping[str, Any]) -> Any:
        if shared_limit and metadata["shared"] > shared_limit:
            raise OutOfResources("shared memory", metadata["shared"], shared_limit, "bytes")
        _check_threads(metadata["num_warps"], warp_size)  # warp specialisation has added its own
        return stage(module, metadata)

    return checked


def _check_threads(warps: int, warp_size: int) -> None:
    if warps * warp_size > _THREADS:
        raise OutOfResources("threads in a block", warps * warp_size, _THREADS, "threads")
