"""Tests that need a GPU: marked `gpu`, and skipped file by file, unimported, where there is none."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

import pytest


@cache
def why_not() -> str | None:
    """Why nothing here can run; `None` if it can."""
    try:
        import torch
    except ImportError:
        return "needs torch: pip install 'tunesmith[torch]'"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old driver is a reason to skip, said below
        usable = torch.cuda.is_available()
    return None if usable else "needs a GPU that torch can use: torch.cuda.is_available() is False"


class Skipped(pytest.Module):
    """A test file that is not imported, since it may import what is missing."""

    def collect(self) -> list[pytest.Item]:
        pytest.skip(str(why_not()), allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return Skipped.from_parent(parent, path=module_path) if why_not() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
