"""Two Configs for one call: in a CUDA graph one counts by the GPU's time alone, called one by one by the host's too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith.core.config import Config
from tunesmith.core.outcome import Resources
from tunesmith.decide import REMEMBERED
from tunesmith.dispatch import Call, is_array
from tunesmith.kernel import Executable, sees_captures, settled, settling
from tunesmith.measure.allowed import captures_spared


@dataclass(frozen=True, slots=True)
class ByCapture:
    """An Executable that is another one outside of a CUDA graph's capture.

    Attributes:
        config: of the one in graphs.
    """

    config: Config
    launch: Callable[..., Any]
    resources: Resources

    @classmethod
    def of(
        cls, in_graphs: Executable, outside: Executable, call: Call, may_repeat: bool, launched: set[object]
    ) -> ByCapture:  # fmt: skip
        """Of both, by torch's current stream; where no torch with a GPU is loaded, nothing is captured.

        Args:
            may_repeat: whether a call that is made twice leaves the same.
            launched: what was launched outside of a capture, for which Problems and where. Programs call what they
                capture once before, so that nothing is loaded or made for the first time then: what serves graphs has
                to be launched by that call too.
        """
        captured, called, places = in_graphs.launch, outside.launch, call.places
        torch = sys.modules.get("torch")
        on_cpu = bool(places) and all(place.partition(":")[0] == "cpu" for place in places)
        if on_cpu or torch is None or not torch.cuda.is_available():
            return cls(in_graphs.config, called, outside.resources)
        # Without the Python functions around them, which take as long again.
        capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing
        stream_of: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        index = next((int(end) for place in places if (end := place.rpartition(":")[2]).isdecimal()), 0)
        mine = captured, call.exact, places
        cold = [] if mine in launched else [captured]

        def launch(*args: Any) -> Any:
            if stream_of(index) and capturing():  # the default stream, 0, never is
                return captured(*args)
            if cold:
                cold.clear()
                if len(launched) >= REMEMBERED:
                    launched.clear()
                launched.add(mine)
                with captures_spared():  # of other threads
                    made = captured(*args)
                if not may_repeat:
                    return made
                del made
            return called(*args)

        def settle(args: Sequence[Any], otherwise: Callable[..., Any], turned: bool) -> Callable[..., Any] | None:
            inner = settled(called, args, otherwise, turned)
            if inner is None or (sees_captures(inner) and not cold):
                return inner

            def of_two(a: Any, b: Any) -> Any:
                return otherwise(a, b) if cold or (stream_of(index) and capturing()) else inner(a, b)

            def of_all(*arrays: Any) -> Any:
                return otherwise(*arrays) if cold or (stream_of(index) and capturing()) else inner(*arrays)

            return of_two if sum(is_array(value) for value in args) == 2 else of_all  # half as long to call

        settling(launch, settle)
        return cls(in_graphs.config, launch, in_graphs.resources)
