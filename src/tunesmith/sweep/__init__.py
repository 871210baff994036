"""Many problems of many kernels on many devices: what to do, in which order, by whom, and what came of it."""

from tunesmith.sweep.task import Result, Task

__all__ = ["Result", "Task"]
