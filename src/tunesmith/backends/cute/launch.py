"""An exported CuTe DSL function, loaded and ready to launch: TVM-FFI takes tensors and the caller's stream itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from tunesmith.backends.cute.compile import INSTALL
from tunesmith.backends.cute.link import linked
from tunesmith.errors import MissingEngine

#: what an object file calls the function that launches
ENTRY = "launch"
#: what TVM-FFI looks for when it is asked for an object file, and says when nobody has registered it
_NO_LOADER = "ffi.Module.load_from_file.o"


def load_module(path: Path) -> Any:
    """An object file as a mapping of functions. Its kernels are loaded on a device when they are first launched there.

    CuTe DSL has a loader for object files of its own, or leaves it to TVM-FFI, which has one for shared libraries
    alone: then it is linked first.

    Raises:
        MissingEngine: without CuTe DSL, TVM-FFI, or, where its version needs that to load, an NVIDIA driver or a C
            compiler.
        CompileFailed: when it can't be linked.
    """
    try:
        from cutlass.cute import runtime

        try:
            return runtime.load_module(str(path), enable_tvm_ffi=True)
        except RuntimeError as error:
            if _NO_LOADER not in str(error):
                raise
        library = linked(path, runtime.find_runtime_libraries(enable_tvm_ffi=True))
        return runtime.load_module(str(library), enable_tvm_ffi=True)
    except ImportError as error:
        raise MissingEngine(f"CuTe DSL kernels are launched through TVM-FFI ({error}): {INSTALL}") from error
    except OSError as error:
        raise MissingEngine(
            f"what CuTe DSL exported can't be loaded ({error}); a version before 4.7 needs an NVIDIA driver for that: "
            f"{INSTALL}"
        ) from error


def launcher(module: Any, names: Sequence[str], takes: Sequence[str]) -> Callable[..., Any]:
    """What a call of one Config ends in: given all arguments, it hands on those that are not compiled in.

    Args:
        names: of the call's arguments. takes: those of the function.
    """
    source = f"lambda {', '.join(names)}: _function({', '.join(takes)})"
    space = {"_function": module[ENTRY], "_module": module}  # kept: the code goes with the module
    return cast("Callable[..., Any]", eval(source, space))
