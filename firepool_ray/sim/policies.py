"""How a run gets its keep-alive policy. Called by the engine's users: commands and figures.

The policies themselves are the core's (``core.keepalive``) and, for comparison, ``sim.rivals``.
"""

from __future__ import annotations

from dataclasses import replace

from firepool_ray.core import keepalive
from firepool_ray.core.keepalive import KeepAlive
from firepool_ray.core.model import PoolSpec
from firepool_ray.errors import UsageError


def choose(spec: PoolSpec, text: str) -> tuple[PoolSpec, dict[str, KeepAlive] | None]:
    """The pool with this policy in every profile; objects where it is one of the rivals.

    Raises ``UsageError`` that lists what there is.
    """
    from firepool_ray.sim import rivals

    made: dict[str, KeepAlive] = {}
    for profile in spec.profiles:
        rival = rivals.parse(text)
        if rival is not None:
            made[profile.name] = rival
    if made:
        return spec, made
    return with_policy(spec, text), None


def with_policy(spec: PoolSpec, text: str) -> PoolSpec:
    """The pool with this keep-alive of the core in every profile. Raises ``UsageError``."""
    try:
        keepalive.parse(text)
    except ValueError as error:
        raise UsageError(f"{error}; or, for comparison, {_rivals()}") from None
    profiles = tuple(replace(profile, keep_alive=text) for profile in spec.profiles)
    return replace(spec, profiles=profiles)


def _rivals() -> str:
    return "lru:SECONDS, greedy-dual or hybrid"
