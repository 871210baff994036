"""quack's configurations, which are dataclasses, as Configs, and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields, is_dataclass
from typing import Any, cast

from tunesmith.core.config import Config
from tunesmith.errors import BadInput


def config_of(given: Any) -> Config:
    """The Config of a dataclass of quack's (`GemmConfig`), or of an `AutotuneConfig`: a knob for each field.

    Raises:
        BadInput: for anything else, and where two fields have one name.
    """
    if is_dataclass(given) and not isinstance(given, type):
        return Config(**asdict(given))
    kwargs = getattr(given, "kwargs", None)
    if not isinstance(kwargs, dict):
        raise BadInput(f"{given!r} of type {type(given).__name__} is no configuration of quack's: a dataclass is one")
    found: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", kwargs).items():
        parts: dict[str, Any] = asdict(value) if is_dataclass(value) and not isinstance(value, type) else {name: value}
        if twice := sorted(found.keys() & parts.keys()):
            raise BadInput(f"quack's configuration {given} has {twice[0]!r} twice")
        found.update(parts)
    return Config(**found)


def configs_of(many: Iterable[Any]) -> list[Config]:
    """Several at once, each of them once."""
    return list(dict.fromkeys(map(config_of, many)))


def kwargs_of(config: Config, like: Any) -> dict[str, Any]:
    """What a tuned function of quack's is given for a Config.

    Args:
        like: an `AutotuneConfig` of the same function.

    Raises:
        BadInput: for a Config with other knobs.
    """
    made: dict[str, Any] = {}
    left = set(config)
    for name, value in like.kwargs.items():
        names = [one.name for one in fields(value)] if is_dataclass(value) else [name]
        if not left.issuperset(names):
            raise BadInput(f"{config!r} lacks {sorted(set(names) - left)[0]!r}, which quack's configuration has")
        left -= set(names)
        made[name] = type(value)(**{one: config[one] for one in names}) if is_dataclass(value) else config[name]
    if left:
        raise BadInput(f"{config!r} has {sorted(left)[0]!r}, which quack's configuration does not")
    return made
