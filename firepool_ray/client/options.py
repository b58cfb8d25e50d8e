"""The options of a submit: checked once, when they are stated.

They never travel in ``submit``'s own arguments, so they cannot collide with the function's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from firepool_ray.errors import UnknownName, UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Options:
    """How jobs are run. None or empty: the pool's, or the enclosing job's, default."""

    profile: str | None = None
    caller: str | None = None
    queue: str | None = None
    env: Mapping[str, str] | None = field(
        default=None, hash=False
    )  #: added to the job's environment, removed after it
    timeout_s: float | None = None  #: a running job is stopped after this
    queue_timeout_s: float | None = None  #: a job that has not started by then ends
    max_retries: int = 0  #: how often a job may run again after its worker was lost
    priority: int = 0  #: one step is worth one fairness window of waiting
    #: ``env`` as it travels, sorted
    env_items: tuple[tuple[str, str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for key in ("profile", "caller", "queue"):
            _check_name(key, getattr(self, key))
        for key in ("timeout_s", "queue_timeout_s"):
            _check_seconds(key, getattr(self, key))
        _check_whole("max_retries", self.max_retries, low=0)
        _check_whole("priority", self.priority)
        items = _env_items(self.env)
        object.__setattr__(self, "env", dict(items))  # ours: a later change does not reach it
        object.__setattr__(self, "env_items", items)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Options by keyword. Raises ``UnknownName``, which lists the valid ones."""
        return cls().but(given)

    def but(self, given: Mapping[str, Any]) -> Options:
        """These options with some replaced."""
        valid = [option.name for option in fields(self) if option.init]
        for key in given:
            if key not in valid:
                raise UnknownName("option", key, valid)
        return type(self)(**{key: given.get(key, getattr(self, key)) for key in valid})


def _check_name(key: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise UsageError(
            f"{key}={value!r} is no valid name: use 1 to 63 letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit"
        )


def _check_seconds(key: str, value: object) -> None:
    if value is None:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:  # type: ignore[operator, arg-type]
        raise UsageError(f"{key}={value!r} must be a number of seconds above 0, or None for none")


def _check_whole(key: str, value: object, low: int | None = None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or (low is not None and value < low):  # type: ignore[operator]
        above = f" of at least {low}" if low is not None else ""
        raise UsageError(f"{key}={value!r} must be a whole number{above}")


def _env_items(env: object) -> tuple[tuple[str, str], ...]:
    if env is None:
        return ()
    if not isinstance(env, Mapping):
        raise UsageError(f"env must be a mapping of strings, not {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"env: {name!r}: {value!r} must be strings; write str(...)")
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"env: {name!r} is no valid name of a variable")
    return tuple(sorted(env.items()))
