"""Hooks of `triton.autotune` and of its Configs, around the launches of a search."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunesmith.backends.triton_autotune.run import PreHook
from tunesmith.core.config import Config
from tunesmith.errors import CompileFailed
from tunesmith.kernel import Executable


def taking(hook: Callable[..., object] | None, keyword: str) -> Callable[..., object] | None:
    """A decorator's hook that may be called with this keyword: Triton's early ones were given the arguments alone."""
    if hook is None:
        return None
    try:
        inspect.signature(hook).bind({}, **{keyword: None})
    except ValueError:  # it does not tell what it takes
        return hook
    except TypeError:

        def given_the_arguments(named: Mapping[str, Any], **_: Any) -> object:
            return hook(named)

        return given_the_arguments
    return hook


class Hooks:
    """The hooks of a decorator and of its Configs around the launches of one search (`kernel.Around`).

    Args:
        hook_of: a Config's own pre-hook. pre_hook, post_hook: the decorator's.
        arguments: the call's, by name.
    """

    def __init__(
        self, hook_of: Callable[[Config], PreHook | None], pre_hook: Callable[..., object] | None,
        post_hook: Callable[..., object] | None, arguments: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._hook_of, self._pre, self._post, self._arguments = hook_of, pre_hook, post_hook, arguments
        self._pending: dict[str, Any] | None = None

    @property
    def acts(self) -> bool:
        return True

    def launch_of(self, executable: Executable) -> Callable[..., Any]:
        return getattr(executable, "bare", executable.launch)  # a hooked one's launch would run the hook again

    def before(self, config: Config, args: Sequence[Any]) -> None:
        named = {**self._arguments, "warmup": False, **config}
        hook = self._hook_of(config)
        if hook is not None:
            hook(named)
        if self._pre is not None:
            self._pre(named)
        self._pending = named

    def after(self) -> None:
        self._finish(None)

    def failed(self, error: BaseException) -> None:
        self._finish(_tritons(error) if isinstance(error, CompileFailed) else error)

    def _finish(self, error: BaseException | None) -> None:
        named, self._pending = self._pending, None
        if named is not None and self._post is not None:
            self._post(named, exception=error)


def _tritons(error: CompileFailed) -> BaseException:
    """What Triton would have raised for a Config that a child process compiled, where that is known."""
    found = re.search(r"out of ([\w ]+): needs (\d+)[\w ]*, limit (\d+)", str(error))
    if found is None:
        return error
    from triton.runtime.errors import OutOfResources

    return OutOfResources(int(found[2]), int(found[3]), found[1])
