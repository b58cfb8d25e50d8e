"""Until when is an idle bound worker held, and which one goes first? The policies' protocol.

Called by ``retention`` on behalf of the machine; one policy object per profile. A policy sees gaps
(the time from the end of a caller's job to its next one on that worker), never demand or limits.
Holding is priced in GPU-seconds: a second of an idle worker costs its GPUs, a start from nothing
costs its duration times its GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from firepool_ray.core.model import Caller

INF = float("inf")


class Prices(NamedTuple):
    """What starts of one profile cost, as measured."""

    cold_s: float  #: a start from nothing: growth of a lane and start of a worker
    promote_s: float  #: binding a standby
    start_s: float  #: expected cost of the start that would follow a release
    gpus: float  #: GPUs of a lane; 1 where it has none


@dataclass(slots=True, eq=False)
class Idle:
    """One idle bound worker."""

    caller: Caller
    since: float
    mark: float = 0.0  #: the policy's own note, a priority for example


class KeepAlive(Protocol):
    """One policy of one profile. Times are those of the machine's events, in seconds."""

    def hold_s(self, idle: Idle, prices: Prices) -> float:
        """How long to hold a worker that has just become idle; inf for ever."""
        ...

    def worth(self, idle: Idle, at: float, prices: Prices) -> float:
        """What holding on is worth at this age: the lowest is evicted first."""
        ...

    def reused(self, idle: Idle, at: float) -> None:
        """It serves its caller again: the gap was ``at - idle.since``."""
        ...

    def released(self, idle: Idle, at: float) -> None:
        """It was let go, expired or evicted; its caller may come back all the same."""
        ...

    def started(self, caller: Caller, at: float) -> None:
        """The caller got another worker than one of its own idle ones."""
        ...


class Fixed:
    """A fixed time to live; the longest idle goes first. ``never`` and ``always`` are its ends."""

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s

    def hold_s(self, idle: Idle, prices: Prices) -> float:
        return self.ttl_s

    def worth(self, idle: Idle, at: float, prices: Prices) -> float:
        return idle.since

    def reused(self, idle: Idle, at: float) -> None:
        """Nothing is learned."""

    def released(self, idle: Idle, at: float) -> None:
        """Nothing is learned."""

    def started(self, caller: Caller, at: float) -> None:
        """Nothing is learned."""


class Form(NamedTuple):
    """A policy as it is written in a pool file."""

    name: str  #: ``fixed``, ``never``, ``always`` or ``adaptive``
    ttl_s: float = 0.0  #: of the first three


def parse(text: str) -> Form:
    """Read ``fixed:SECONDS``, ``never``, ``always`` or ``adaptive``; else ``ValueError``."""
    name, colon, number = text.partition(":")
    if name == "fixed" and colon:
        try:
            ttl_s = float(number)
        except ValueError:
            ttl_s = -1.0
        if 0 <= ttl_s < INF:
            return Form("fixed", ttl_s)
    elif not colon and name in ("never", "always", "adaptive"):
        return Form(name, INF if name == "always" else 0.0)
    raise ValueError(
        f"{text!r} is no keep-alive: use adaptive, fixed:SECONDS (fixed:60), never or always"
    )
