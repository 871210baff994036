"""An exported CuTe DSL function, loaded and ready to launch: TVM-FFI takes tensors and the caller's stream itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from tunesmith.backends.cute.compile import INSTALL
from tunesmith.errors import MissingEngine

#: what an object file calls the function that launches
ENTRY = "launch"


def load_module(path: Path) -> Any:
    """An object file as a mapping of functions. Its kernels are loaded on a device when they are first launched there.

    Raises:
        MissingEngine: without CuTe DSL, TVM-FFI, or, where its version needs that to load, an NVIDIA driver.
    """
    try:
        from cutlass.cute import runtime

        return runtime.load_module(str(path), enable_tvm_ffi=True)
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
