"""The child's side of compiling a kernel of quack's: what a worker of quack's own pool does with a key."""

from __future__ import annotations

import base64
import os
import pickle
from pathlib import Path

from tunesmith.backends.cute.child import take_architecture
from tunesmith.backends.quack import kernel
from tunesmith.core.outcome import Failed
from tunesmith.places import attribute_of


def compile_key(*, module: str, name: str, key: str, output: str, arch: str) -> Failed | None:
    """Compile what quack would, into its cache.

    Args:
        module, name: of quack's function that compiles. key: its arguments, as the parent pickled them.
        output: where quack's cache has the object file.
    """
    os.environ["CUTE_DSL_ARCH"] = arch  # before CuTe DSL is imported, which else takes sm_100a
    os.environ["QUACK_ARCH"] = arch.removeprefix("sm_").rstrip("a")
    take_architecture(arch)
    kernel.module("cache").CACHE_DIR = str(Path(output).parents[1])
    function = attribute_of(kernel.module(module.partition(".")[2]), name)
    args, kwargs = pickle.loads(base64.b64decode(key))
    function(*args, **kwargs)
    if not Path(output).exists():
        return Failed("compile", f"quack compiled {name} and exported nothing to its cache")
    return None
