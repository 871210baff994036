"""The hot path: a call's arguments → a warm key → a launch; and, for a key not seen before, the call's Problem."""

from tunesmith.dispatch.arguments import dtype_name, is_array
from tunesmith.dispatch.dispatcher import REFUSALS, WARM_ENTRIES, Call, Dispatcher, Launch
from tunesmith.dispatch.left_out import LeftOut
from tunesmith.dispatch.spec import KeyNames, KeySpec, check_key_spec, check_names, names_taken

__all__ = [
    "REFUSALS",
    "WARM_ENTRIES",
    "Call",
    "Dispatcher",
    "KeyNames",
    "KeySpec",
    "Launch",
    "LeftOut",
    "check_key_spec",
    "check_names",
    "dtype_name",
    "is_array",
    "names_taken",
]
