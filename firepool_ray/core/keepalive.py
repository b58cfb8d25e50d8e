"""Until when is an idle bound worker held, and which one goes first? What all policies share.

Called by ``retention`` on behalf of the machine; one policy object per profile. A policy sees gaps
(the time from the end of a caller's job to its next one on that worker), never demand or limits.
Holding is priced in GPU-seconds: a second of an idle worker costs its GPUs, a start from nothing
costs its duration times its GPUs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from firepool_ray.core.gaps import Hold
from firepool_ray.core.model import Caller

INF = float("inf")


class Prices(NamedTuple):
    """What starts of one profile cost, as measured.

    Letting a worker go is priced as a start from nothing, although a standby may serve its caller
    when it comes back: the lane goes with its worker, so that somebody will have to wait for one.
    """

    cold_s: float  #: a start from nothing: growth of a lane and start of a worker
    promote_s: float  #: binding a standby
    gpus: float  #: GPUs of a lane; 1 where it has none


@dataclass(slots=True, eq=False)
class Idle:
    """One idle bound worker."""

    caller: Caller
    since: float
    mark: float = 0.0  #: the policy's own note, a priority for example


class KeepAlive(ABC):
    """One policy of one profile. Times are those of the machine's events, in seconds.

    Two methods decide. Those that tell what happened do nothing here: a policy takes what it needs.
    """

    #: Whether lanes are kept, and bursts told, by what is learned as well.
    learns: ClassVar[bool] = False

    @abstractmethod
    def hold_s(self, idle: Idle, prices: Prices) -> float:
        """How long to hold a worker that has just become idle; inf for ever."""

    @abstractmethod
    def worth(self, idle: Idle, at: float, prices: Prices) -> float:
        """What holding on is worth at this age: the lowest is evicted first."""

    def lane_s(self) -> float:
        """How long a lane is kept from the end of its last work; for policies that do not learn."""
        return 0.0

    def outlook(self, caller: Caller) -> Hold | None:
        """What is expected of the caller's idle workers, as last decided; None if nothing is."""
        return None

    # What happened, for those that learn.

    def reused(self, idle: Idle, at: float) -> None:  # noqa: B027
        """It serves its caller again: the gap was ``at - idle.since``."""

    def released(self, idle: Idle, at: float) -> None:  # noqa: B027
        """It was let go, expired or evicted; its caller may come back all the same."""

    def started(self, caller: Caller, at: float) -> None:  # noqa: B027
        """The caller got another worker than one of its own idle ones."""

    def closed(self, caller: Caller) -> None:  # noqa: B027
        """The caller said that it is done: what it left open tells nothing."""


class Fixed(KeepAlive):
    """A fixed time to live; the longest idle goes first. ``never`` and ``always`` are its ends."""

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s

    def hold_s(self, idle: Idle, prices: Prices) -> float:
        return self.ttl_s

    def worth(self, idle: Idle, at: float, prices: Prices) -> float:
        return idle.since

    def lane_s(self) -> float:
        return self.ttl_s


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
