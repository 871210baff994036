"""Which of a call's arguments and knobs a grid function reads: only these have to be put in a dictionary for it."""

from __future__ import annotations

import dis
from types import CodeType, FunctionType
from typing import Any

#: instructions that say nothing of what the function reads
_SILENT = {"RESUME", "NOP", "CACHE", "EXTENDED_ARG", "COPY_FREE_VARS", "MAKE_CELL"}


def names_read(grid: Any) -> frozenset[str] | None:
    """The names under which a function of one mapping subscribes to it, `None` where it may do anything else with it.

    Every use of the parameter has to be `meta["name"]` with the name spelled out. Where it is handed on, iterated,
    captured or assigned, and for whatever is no plain Python function, the answer is `None`.
    """
    if not isinstance(grid, FunctionType):
        return None
    code = grid.__code__
    if not _takes_one(code):
        return None
    parameter, found = code.co_varnames[0], set[str]()
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SILENT]
    for at, step in enumerate(steps):
        if not _touches(step, parameter):
            continue
        if not step.opname.startswith("LOAD_FAST") or step.argval != parameter or len(steps) < at + 3:
            return None
        name, subscript = steps[at + 1], steps[at + 2]
        if name.opname != "LOAD_CONST" or type(name.argval) is not str or not _subscribes(subscript):
            return None
        found.add(name.argval)
    return frozenset(found)


def _takes_one(code: CodeType) -> bool:
    """Whether it has one parameter, which no inner function sees, and asks for no names of its own at run time."""
    plain = code.co_argcount == 1 and not code.co_kwonlyargcount and not code.co_flags & (0x04 | 0x08 | 0x20)
    return plain and code.co_varnames[0] not in code.co_cellvars and not {"locals", "vars", "dir"} & {*code.co_names}


def _touches(step: dis.Instruction, parameter: str) -> bool:
    """Whether an instruction has to do with a local variable (one that handles two has both as its argument)."""
    if "FAST" not in step.opname:
        return False
    handled: Any = step.argval
    return handled == parameter or (isinstance(handled, tuple) and parameter in handled)


def _subscribes(step: dis.Instruction) -> bool:
    return step.opname == "BINARY_SUBSCR" or (step.opname == "BINARY_OP" and step.argrepr == "[]")
