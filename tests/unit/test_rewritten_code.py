"""A function whose code a compiler replaced for good, as CuTe DSL 4.3 does, has the fingerprint it had before."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from tunesmith.fingerprint import of_function

TEXT = """
import functools

def marked(function):
    return function

def scale(x):
    return 3 * x

@marked
@functools.lru_cache(
    maxsize=None
)
def apply(x):
    return x

class Other:
    @marked
    def apply(x):
        return x - 1

@marked
def outer(x):
    return scale(x) + {more}

def apply(x):
    return outer(x) + Other.apply(x)
"""


def loaded(folder: Path, more: int) -> ModuleType:
    path = folder / f"rewritten_{more}.py"
    path.write_text(TEXT.format(more=more))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rewrite(function: FunctionType) -> None:
    """Replace its code by one of the same place that reads other names, and begins at its `def`."""
    code = function.__code__
    decorators = 1 if function.__name__ == "outer" else 0
    blank = "\n" * (code.co_firstlineno + decorators - 1)
    space: dict[str, FunctionType] = {}
    exec(compile(f"{blank}def {function.__name__}(x):\n    return hex(len(x))", code.co_filename, "exec"), space)
    function.__code__ = space[function.__name__].__code__
    vars(function)["_preprocessed"] = True


def test_code_that_was_replaced_counts_as_it_was_written(tmp_path: Path) -> None:
    module = loaded(tmp_path, 1)
    before = of_function(module.apply)
    for function in (module.apply, module.outer):
        rewrite(function)
    assert module.outer("four") == "0x4"
    assert of_function(module.apply) == before
    assert of_function(loaded(tmp_path, 2).apply) != before  # what it reads is still followed


@pytest.mark.parametrize("text", ["", "def ("])
def test_where_the_file_has_it_no_more_the_new_code_counts(tmp_path: Path, text: str) -> None:
    module = loaded(tmp_path, 3)
    before = of_function(module.apply)
    rewrite(module.apply)
    Path(str(module.__file__)).write_text(text)
    assert of_function(module.apply) != before
