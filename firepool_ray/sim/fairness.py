"""How evenly GPUs were shared: Jain's index of received / min(demand, fair share).

Written by the engine as jobs come, start and end. At every instant of a grid each caller and queue
has a demand (GPUs of its jobs that run or wait), has received something (those of its running jobs)
and deserves the smaller of its demand and its fair share: quotas first, then by weight, what one
does not want goes to the others; within a queue callers are equal. The ratio is that of the two
integrals over time, so waiting for a cold start counts as not received, whoever is to blame.

The grid becomes coarser as a run gets longer, so the work is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firepool_ray.core.model import Caller, QueueSpec
from firepool_ray.sim.clock import Clock

#: First distance of two looks, in seconds; doubled each time so many callers have been looked at.
STEP_S = 0.05
LOOKS = 20_000


class Share:
    """One caller's demand and receipts. Its owner tells it what happens."""

    __slots__ = ("_book", "caller", "deserved_gpu_s", "received_gpu_s", "running", "waiting")

    def __init__(self, book: Fairness, caller: Caller) -> None:
        self._book = book
        self.caller = caller
        self.running = 0.0  #: GPUs
        self.waiting = 0.0  #: GPUs
        self.received_gpu_s = 0.0
        self.deserved_gpu_s = 0.0

    def wants(self, gpus: float) -> None:
        self._book.look()
        self.waiting += gpus
        self._book.want(self, gpus)

    def gives_up(self, gpus: float) -> None:
        self._book.look()
        self.waiting -= gpus
        self._book.want(self, -gpus)

    def starts(self, gpus: float) -> None:
        self._book.look()
        self.waiting -= gpus
        self.running += gpus

    def ends(self, gpus: float) -> None:
        self._book.look()
        self.running -= gpus
        self._book.want(self, -gpus)


class Fairness:
    def __init__(self, clock: Clock, queues: Sequence[QueueSpec], capacity_gpus: float) -> None:
        self._clock = clock
        self._capacity = capacity_gpus
        self._queues = {queue.name: queue for queue in queues}
        self._shares: dict[Caller, Share] = {}
        self._active: dict[Caller, Share] = {}  #: with demand now
        self._received: dict[str, float] = {}  #: GPU-seconds by queue
        self._deserved: dict[str, float] = {}
        self._next_at = clock.now + STEP_S
        self._step_s = STEP_S
        self._looked = 0
        self._wanted = 0.0
        self.peak_wanted_gpus = 0.0  #: the most that ran and waited at one time

    def share_of(self, caller: Caller) -> Share:
        share = self._shares.get(caller)
        if share is None:
            share = self._shares[caller] = Share(self, caller)
        return share

    def want(self, share: Share, gpus: float) -> None:
        """The share's demand has changed by so much."""
        self._wanted += gpus
        if self._wanted > self.peak_wanted_gpus:
            self.peak_wanted_gpus = self._wanted
        if gpus > 0:
            self._active[share.caller] = share
        elif share.running + share.waiting <= 1e-9:
            share.running = share.waiting = 0.0
            self._active.pop(share.caller, None)

    def look(self) -> None:
        """Account for the grid's points up to now: nothing has changed since the last call."""
        now = self._clock.now
        if self._next_at > now:
            return
        points = int((now - self._next_at) / self._step_s) + 1
        self._next_at += points * self._step_s
        if not self._active:
            return
        self._count(points * self._step_s)
        self._looked += len(self._active)
        if self._looked >= LOOKS:
            self._looked = 0
            self._step_s *= 2

    def _count(self, seconds: float) -> None:
        by_queue: dict[str, list[Share]] = {}
        for share in self._active.values():
            by_queue.setdefault(share.caller.queue, []).append(share)
        demands = {
            name: min(sum(s.running + s.waiting for s in shares), self._queues[name].limit)
            for name, shares in by_queue.items()
        }
        for name, deserved in self._queue_shares(demands).items():
            shares = by_queue[name]
            running = sum(share.running for share in shares)
            self._received[name] = self._received.get(name, 0.0) + running * seconds
            self._deserved[name] = self._deserved.get(name, 0.0) + deserved * seconds
            wanted = [share.running + share.waiting for share in shares]
            fair = water_fill(wanted, [1.0] * len(shares), deserved)
            for share, units in zip(shares, fair, strict=True):
                share.received_gpu_s += share.running * seconds
                share.deserved_gpu_s += units * seconds

    def _queue_shares(self, demands: Mapping[str, float]) -> dict[str, float]:
        """Quotas first, then what is left, both by weight."""
        names = list(demands)
        weights = [self._queues[name].weight for name in names]
        entitled = [min(demands[name], self._queues[name].quota) for name in names]
        first = water_fill(entitled, weights, self._capacity)
        left = max(0.0, self._capacity - sum(first))
        beyond = [demands[name] - got for name, got in zip(names, first, strict=True)]
        second = water_fill(beyond, weights, left)
        return {name: a + b for name, a, b in zip(names, first, second, strict=True)}

    def jain_callers(self) -> float:
        return jain([(s.received_gpu_s, s.deserved_gpu_s) for s in self._shares.values()])

    def jain_queues(self) -> float:
        return jain([(self._received[name], self._deserved[name]) for name in self._received])


def water_fill(wanted: Sequence[float], weights: Sequence[float], amount: float) -> list[float]:
    """Max-min fair shares by weight: nobody gets more than wanted, what is left goes to others."""
    if sum(wanted) <= amount:
        return list(wanted)
    got = [0.0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i] / weights[i])
    weight = sum(weights)
    for i in order:
        got[i] = min(wanted[i], amount * weights[i] / weight)
        amount -= got[i]
        weight -= weights[i]
    return got


def jain(pairs: Sequence[tuple[float, float]]) -> float:
    """Jain's index of received / deserved; 1.0 where nobody deserved anything."""
    ratios = [received / deserved for received, deserved in pairs if deserved > 1e-9]
    squares = sum(ratio * ratio for ratio in ratios)
    return sum(ratios) ** 2 / (len(ratios) * squares) if squares else 1.0
