"""Two Configs for one call: in a CUDA graph one counts by the GPU's time alone, called one by one by the host's too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tunesmith.core.config import Config
from tunesmith.core.outcome import Resources
from tunesmith.kernel import Executable


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
    def of(cls, in_graphs: Executable, outside: Executable, index: int) -> ByCapture:
        """Of both, by torch's current stream; where no torch with a GPU is loaded, nothing is captured.

        Args:
            index: the GPU's.
        """
        captured, called = in_graphs.launch, outside.launch
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return cls(in_graphs.config, called, outside.resources)
        # Without the Python functions around them, which take as long again.
        capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing
        stream_of: Callable[[int], int] = torch._C._cuda_getCurrentRawStream

        def launch(*args: Any) -> Any:
            if stream_of(index) and capturing():  # the default stream, 0, never is
                return captured(*args)
            return called(*args)

        return cls(in_graphs.config, launch, in_graphs.resources)
