"""A keep-alive policy on a trace whose starts take no time: what the bound assumes, replayed.

Called by ``sim.figures_cost`` to separate a policy's own loss from what waiting for starts does to
a schedule, and to compare with the literature, which reports it so. Drives a policy object alone:
no machine, no pump; what the machine adds (linger, standbys, warming ahead, fairness) is missing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from firepool_ray.core.keepalive import Idle, KeepAlive, Prices
from firepool_ray.core.model import Caller
from firepool_ray.sim.traces import TraceJob


@dataclass(slots=True)
class Replayed:
    """What was held and started. GPU-seconds, and counts of jobs."""

    jobs: int = 0
    warm: int = 0
    idle_gpu_s: float = 0.0
    cold_gpus: float = 0.0  #: starts, weighted by GPUs

    def cost_gpu_s(self, cold_s: float) -> float:
        return self.idle_gpu_s + self.cold_gpus * cold_s

    @property
    def warm_share(self) -> float:
        return self.warm / self.jobs if self.jobs else 0.0


def replay(
    jobs: Iterable[TraceJob],
    policy: KeepAlive,
    cold_s: float,
    cap_gpus: float = float("inf"),
    closing: bool = False,
) -> Replayed:
    """Run the jobs, sorted by start, at their times. Workers of one caller are alike.

    Under a cap idle workers go, the least worth first, as soon as busy and idle ones exceed it.
    Jobs run even so. With ``closing`` nothing is held after a caller's last job.
    """
    jobs = list(jobs)
    run = _Run(policy, cold_s, cap_gpus)
    left: dict[Caller, int] = {}
    for job in jobs:
        caller = Caller(job.queue, job.caller)
        left[caller] = left.get(caller, 0) + 1
    for job in jobs:
        run.until(job.start_s)
        caller = Caller(job.queue, job.caller)
        left[caller] -= 1
        run.begin(caller, job, last=closing and not left[caller])
    run.until(float("inf"))
    return run.result


@dataclass(slots=True)
class _Held:
    idle: Idle
    gpus: float
    until: float
    there: bool = True


@dataclass(slots=True)
class _Run:
    policy: KeepAlive
    cold_s: float
    cap_gpus: float
    result: Replayed = field(default_factory=Replayed)
    stacks: dict[Caller, list[_Held]] = field(default_factory=dict)
    ends: list[tuple[float, int, Caller, float, bool]] = field(default_factory=list)
    expiries: list[tuple[float, int, _Held]] = field(default_factory=list)
    serial: int = 0
    busy: float = 0.0
    held: float = 0.0
    now: float = 0.0

    def prices(self, gpus: float) -> Prices:
        return Prices(cold_s=self.cold_s, promote_s=0.0, gpus=gpus)

    def until(self, at: float) -> None:
        """Let jobs end and holds expire, in order; at one time ends come first."""
        while True:
            end = self.ends[0][0] if self.ends else float("inf")
            expiry = self.expiries[0][0] if self.expiries else float("inf")
            now = min(end, expiry)
            if now > at or now == float("inf"):
                break
            self.now = now
            if end <= expiry:
                _, _, caller, gpus, last = heapq.heappop(self.ends)
                self._ended(caller, gpus, last)
            elif (held := heapq.heappop(self.expiries)[2]).there and now < at:
                self._release(held)
            elif held.there:  # a job that begins at this very time may still have it
                heapq.heappush(self.expiries, (now, self._next(), held))
                break
        if at != float("inf"):
            self.now = at
        else:
            for held in [one for stack in self.stacks.values() for one in stack]:
                self._release(held)

    def begin(self, caller: Caller, job: TraceJob, last: bool) -> None:
        gpus = job.gpus or 1.0
        stack = self.stacks.get(caller)
        self.result.jobs += 1
        if stack:
            held = stack[-1]
            self._drop(held)
            self.result.warm += 1
            self.policy.reused(held.idle, self.now)
        else:
            self.result.cold_gpus += gpus
            self.policy.started(caller, self.now)
        self.busy += gpus
        self._trim()
        end = self.now + job.duration_s
        heapq.heappush(self.ends, (end, self._next(), caller, gpus, last))

    def _ended(self, caller: Caller, gpus: float, last: bool) -> None:
        self.busy -= gpus
        idle = Idle(caller, self.now)
        if last:
            self.policy.released(idle, self.now)
            for held in list(self.stacks.get(caller, ())):
                self._release(held)
            return
        hold_s = self.policy.hold_s(idle, self.prices(gpus))
        held = _Held(idle, gpus, self.now + max(0.0, hold_s))
        self.stacks.setdefault(caller, []).append(held)
        self.held += gpus
        if held.until < float("inf"):
            heapq.heappush(self.expiries, (held.until, self._next(), held))
        self._trim()

    def _trim(self) -> None:
        while self.held and self.busy + self.held > self.cap_gpus:
            everyone = [one for stack in self.stacks.values() for one in stack]
            self._release(min(everyone, key=self._worth))

    def _worth(self, held: _Held) -> float:
        return self.policy.worth(held.idle, self.now, self.prices(held.gpus))

    def _release(self, held: _Held) -> None:
        self._drop(held)
        self.policy.released(held.idle, self.now)

    def _drop(self, held: _Held) -> None:
        held.there = False
        self.stacks[held.idle.caller].remove(held)
        self.held -= held.gpus
        self.result.idle_gpu_s += (self.now - held.idle.since) * held.gpus

    def _next(self) -> int:
        self.serial += 1
        return self.serial
