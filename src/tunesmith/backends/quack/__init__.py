"""quack's tuned functions (CuTe DSL kernels of Dao-AILab/quack) as kernels of ours."""

from __future__ import annotations

from tunesmith.backends.quack.configs import config_of, configs_of, kwargs_of
from tunesmith.backends.quack.kernel import QuackKernel

__all__ = ["QuackKernel", "config_of", "configs_of", "kwargs_of"]
