"""What tests of kernels made of several Triton programs share: the interpreter, and a GPU's tensors with strides."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def interpreted(text: str) -> None:
    """Run a program in a Python whose Triton kernels are interpreted; it has to end by printing `right`."""
    root = Path(__file__).parents[1]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", text], env=environment, capture_output=True, text=True, cwd=root
    )
    assert ended.stdout.strip() == "right", ended.stderr


def run(device_module: Any, plan: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every program of a plan, in that Python, on fresh arrays full of what nothing computes; all arrays by name."""
    import torch
    import triton
    from triton.runtime import interpreter

    if triton.__version__ < "3.9" and not hasattr(interpreter, "_with_numbers"):
        # beside numpy 2.4 the interpreter of Triton 3.6 can't loop to a number that is an argument
        patch = interpreter._patch_lang_tensor

        def with_numbers(tensor: Any, *rest: Any) -> None:
            patch(tensor, *rest)
            tensor.__index__ = lambda self: int(self.handle.data.item())

        interpreter._patch_lang_tensor = interpreter._with_numbers = with_numbers
    arrays: dict[Any, Any] = {**given, None: None}
    for array in plan.fresh:
        unwritten = float("nan") if array.dtype.is_floating_point else -77
        arrays[array.name] = torch.full(array.shape, unwritten, dtype=array.dtype)
    for program in plan.programs:
        launch = getattr(device_module, program.name)[program.grid]
        launch(*[arrays[name] for name in program.names], *program.integers, **program.constants)
    return arrays
