"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import tunesmith.core
import tunesmith.errors

MODULES = [
    "tunesmith.errors",
    *[f"tunesmith.core.{module.name}" for module in pkgutil.iter_modules(tunesmith.core.__path__)],
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
