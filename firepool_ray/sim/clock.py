"""Simulated time: what happens next, and messages on their way. Used by the engine's parts only.

Never reads a real clock. Two things at one time happen in the order in which they were planned, so
a run depends on its seed alone.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from firepool_ray.errors import InternalError
from firepool_ray.sim.costs import Draws

#: So many things at one instant are no load but two decisions that undo each other for ever.
MOST_AT_ONCE = 2_000_000


class Channel:
    """One way between two parties: messages on it arrive in the order in which they were sent."""

    __slots__ = ("free_at",)

    def __init__(self) -> None:
        self.free_at = 0.0


class Clock:
    def __init__(self, draws: Draws) -> None:
        self.now = 0.0
        self._draws = draws
        self._instant = draws.instant
        self._planned: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._arriving: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._serial = 0
        self._at_once = 0  #: things that happened since time last moved

    def at(self, when: float, what: Callable[[Any], None], arg: Any) -> None:
        """Plan a call; one in the past happens now."""
        self._serial += 1
        heapq.heappush(self._planned, (when, self._serial, what, arg))

    def soon(self, what: Callable[[Any], None], arg: Any) -> None:
        """A call at the present time, after what is going on now."""
        self._arriving.append((what, arg))

    def send(self, channel: Channel, what: Callable[[Any], None], arg: Any) -> None:
        """A message: the call happens when it arrives."""
        if self._instant:
            self._arriving.append((what, arg))
            return
        channel.free_at = max(channel.free_at, self.now + self._draws.message_s())
        self.at(channel.free_at, what, arg)

    def next_at(self) -> float:
        """When the next thing happens; inf when nothing is planned."""
        if self._arriving:
            return self.now
        return self._planned[0][0] if self._planned else float("inf")

    def step(self) -> None:
        """The next thing happens. There must be one.

        Raises ``InternalError`` when time stands still.
        """
        self._at_once += 1
        if self._at_once > MOST_AT_ONCE:
            raise InternalError(f"time stands still at {self.now:g} s: decisions go in a circle")
        if self._arriving:
            what, arg = self._arriving.popleft()
        else:
            when, _, what, arg = heapq.heappop(self._planned)
            if when > self.now:
                self.now = when
                self._at_once = 0
        what(arg)
