"""Measured costs and rates: small moving averages, used all over the controller's machine."""

from __future__ import annotations

import math

#: Weight of the newest measurement, once there are so many that the plain mean moves less.
_GAIN = 0.02


class Mean:
    """A mean that follows slow changes. The guess counts as ``weight`` measurements."""

    __slots__ = ("count", "value")

    def __init__(self, guess: float, weight: int = 0) -> None:
        self.value = guess
        self.count = weight

    def add(self, measured: float) -> None:
        self.count += 1
        self.value += max(_GAIN, 1.0 / self.count) * (measured - self.value)


class Costs:
    """What starts of one profile take, in seconds. For prices; ``staffing`` has faster averages."""

    __slots__ = ("grow", "restart", "start")

    def __init__(self, grow_s: float, start_s: float) -> None:
        self.grow = Mean(grow_s)  #: a lane
        self.start = Mean(start_s)  #: a worker in a lane
        #: Whatever a caller without a warm worker had to wait for: a promotion or a cold start.
        #: The first few say little of what is usual: from nothing, until shown otherwise.
        self.restart = Mean(grow_s + start_s, weight=4)

    @property
    def cold_s(self) -> float:
        """A start from nothing: growth of a lane and start of a worker."""
        return self.grow.value + self.start.value


class Rate:
    """Amounts per second, lately: older ones count half after each half-life."""

    __slots__ = ("_at", "_born", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at = 0.0
        self._born = -1.0

    def add(self, at: float, amount: float) -> None:
        if self._born < 0:
            self._born = self._at = at
        self._settle(at)
        self._sum += amount

    def per_s(self, at: float) -> float:
        """Since the first amount, or over about a half-life and a half, whichever is shorter."""
        if self._born < 0:
            return 0.0
        self._settle(at)
        age = (at - self._born) / HALF_LIFE_S
        seen_s = HALF_LIFE_S / math.log(2) * (1.0 - math.pow(2.0, -age))
        return self._sum / max(seen_s, 1.0)

    def _settle(self, at: float) -> None:
        if at > self._at:
            self._sum *= math.pow(2.0, (self._at - at) / HALF_LIFE_S)
            self._at = at


#: Of a ``Rate``: long against bursts and pauses, short against a working day.
HALF_LIFE_S = 600.0
