"""`Key`: everything that decides which Choice is right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tunesmith.core.problem import Problem


@dataclass(frozen=True)
class Key:
    """The hard part decides: two calls share a Choice exactly when it is equal. The soft part is compared on a hit.

    Attributes:
        kernel: its name, for people.
        fingerprint: of its source, the functions it calls, the values it reads.
        problem: the call's shape, dtypes, flags; bucketed where asked.
        device: `Device.identity`.
        environment: environment variables that change the generated code.
        protocol: how it was measured; samples of two protocols are never mixed.
        soft: versions of language, compiler, driver and Python: staleness, not identity.
    """

    kernel: str
    fingerprint: str
    problem: Problem
    device: str
    protocol: str
    environment: tuple[tuple[str, str], ...] = ()
    soft: Mapping[str, str] = field(default_factory=dict[str, str], compare=False, hash=False)

    @cached_property
    def digest(self) -> str:
        """A file-system-safe name for the hard part."""
        parts = [self.kernel, self.fingerprint, self.problem.text, self.device, self.protocol, list(self.environment)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def stale(self, soft: Mapping[str, str]) -> list[str]:
        """The soft reasons why something found under other versions may be out of date: `compiler: 12.2, was 11.4`."""
        names = sorted({*self.soft, *soft})
        return [
            f"{n}: {self.soft.get(n, '?')}, was {soft.get(n, '?')}" for n in names if self.soft.get(n) != soft.get(n)
        ]

    def differences(self, other: Key) -> list[str]:
        """The hard fields in which two Keys differ, nearest first: the Problem's fields, then the rest."""
        return [f"{name}: {mine}, known: {known}" for name, mine, known in self.differing(other)]

    def differing(self, other: Key) -> list[tuple[str, str, str]]:
        """The same as (field, this one's value, the other's)."""
        mine, known = dict(self.environment), dict(other.environment)
        rest = [
            (name, str(getattr(self, name)), str(getattr(other, name)))
            for name in ("kernel", "device", "fingerprint", "protocol")
            if getattr(self, name) != getattr(other, name)
        ]
        names = [name for name in sorted({*mine, *known}) if mine.get(name) != known.get(name)]
        env = [(f"${name}", str(mine.get(name)), str(known.get(name))) for name in names]
        return self.problem.differing(other.problem) + rest + env

    def to_data(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "kernel": self.kernel, "fingerprint": self.fingerprint, "problem": self.problem.text, "device": self.device,
            "protocol": self.protocol, "environment": dict(self.environment), "soft": dict(self.soft),
        }  # fmt: skip

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Key:
        """The inverse of `to_data`."""
        return cls(
            str(data["kernel"]), str(data["fingerprint"]), Problem.parse(data["problem"]), str(data["device"]),
            str(data["protocol"]), tuple(sorted((str(n), str(v)) for n, v in data.get("environment", {}).items())),
            {str(n): str(v) for n, v in data.get("soft", {}).items()},
        )  # fmt: skip
