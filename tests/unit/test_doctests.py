"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import tunesmith.core
import tunesmith.errors

MODULES = [
    "tunesmith.errors",
    *[module.name for module in pkgutil.walk_packages(tunesmith.core.__path__, "tunesmith.core.")],
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
