"""Calls that are told from others by torch's own guards: one check in C++ instead of a key that is made in Python."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar

import torch

from tunesmith.chooser.eager import PLAIN, dual, modes
from tunesmith.options import scoped_policy

T = TypeVar("T")
#: what torch.compile asks of tensors before it uses what it has compiled; `None` in a torch that has it no more
_Guards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)
#: (guards, the call's other arguments, whether no tensor wants a gradient, a setting of torch's, its value, the policy,
#: what is known)
Entry: TypeAlias = "tuple[Any, Any, bool, Callable[[], object], object, object, T]"
#: weights that are remembered, and kinds of calls of each
_WEIGHTS, _KINDS = 16384, 8


class Recent(Generic[T]):
    """What is known of calls, by a tensor that comes again and again, as a layer's weights do.

    Its identity says where to look, and nothing else: what is found there is used where torch's guards hold for the
    call's tensors. They see types, dtypes, devices, sizes, strides and dispatch keys, and with these whether autograd,
    autocast or a transform sees the call; modes are asked for. All calls have as many tensors, the one that comes again
    last.

    Attributes:
        found: entries by that one's identity, for who has no time for `find`, which says what else has to hold.
    """

    def __init__(self) -> None:
        self.found: dict[int, tuple[Entry[T], ...]] = {}
        #: what came once
        self._once: dict[tuple[int, Hashable], None] = {}
        #: By kind of call. A model has many weights of one kind: what is looked at for each of them is the same, and so
        #: in the processor's caches, where guards of each weight's own take microseconds to come from memory.
        self._kinds: dict[Hashable, tuple[Entry[T]]] = {}
        self._lock = Lock()

    def clear(self) -> None:
        with self._lock:
            self.found.clear()
            self._once.clear()
            self._kinds.clear()

    def find(self, tensors: tuple[Any, ...], asked: object) -> T | None:
        """What is known of a call of tensors with these other arguments."""
        entries = self.found.get(id(tensors[-1]))
        if entries is None:
            return None
        for one in tensors:  # nested ones are asked in vain for their strides: torch ends the process
            if type(one) not in PLAIN or one.is_nested:
                return None
        for holds, others, ungraded, allowed, was, policy, known in entries:
            if (
                others == asked
                and holds(*tensors)
                and (ungraded or not torch.is_grad_enabled())
                and allowed() == was
                and scoped_policy.get() is policy
                and dual._current_level < 0
                and not modes()
            ):
                return known
        return None

    def note(
        self, tensors: tuple[Any, ...], asked: object, allowed: Callable[[], object], name: Hashable, known: T
    ) -> None:
        """Remember what is known of a call that nobody but its caller sees, from the second time on that it comes.

        Args:
            allowed: reads the setting of torch's that it depends on. name: tells such calls from others.
        """
        ungraded = not any(tensor.requires_grad for tensor in tensors)
        if _Guards is None or (torch.is_grad_enabled() and not ungraded):
            return
        where = id(tensors[-1])
        with self._lock:
            if (where, name) not in self._once:
                _keep(self._once, (where, name), None)
                return
            flags = tuple([(type(tensor) is PLAIN[0], bool(tensor.requires_grad)) for tensor in tensors])
            kind: Hashable = (name, asked, known, flags)
            entries = self._kinds.get(kind)
        if entries is None or not entries[0][0](*tensors) or entries[0][4] != allowed():
            guards = _Guards(
                *tensors, dynamic_dims_sizes=[list(one.shape) for one in tensors],
                dynamic_dims_strides=[list(one.stride()) for one in tensors],
            )  # fmt: skip
            entries = ((guards.check, asked, ungraded, allowed, allowed(), scoped_policy.get(), known),)
        with self._lock:
            self._once.pop((where, name), None)
            _keep(self._kinds, kind, entries)
            before = [one for one in self.found.get(where, ()) if one is not entries[0]]
            _keep(self.found, where, (*entries, *before)[:_KINDS] if before else entries)


def remembered(run: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Callable[..., Any]:
    """What a caller goes through to a launch for tensors that come again, for who times it."""
    recent = Recent[Callable[..., Any]]()
    for tensors in (*calls, *calls):  # from the second time on
        recent.note(tensors, None, torch._C._get_cublas_allow_bf16_reduced_precision_reduction, "timed", run)
    find = recent.find

    def call(*tensors: Any) -> Any:
        return (find(tensors, None) or run)(*tensors)

    return call


def _keep(known: dict[Any, Any], name: Hashable, value: object) -> None:
    """Keep it, instead of the oldest where there are too many."""
    if name not in known and len(known) >= _WEIGHTS:
        del known[next(iter(known))]
    known[name] = value
