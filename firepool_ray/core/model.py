"""The words both machines share: callers, reuse keys, leases, specifications.

Used by everything above the core. Plain immutable values; nothing here changes state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Source = Literal["warm", "standby", "handover", "cold"]
#: In the order in which a job would like to be served.
SOURCES: tuple[Source, ...] = ("warm", "standby", "handover", "cold")


class Caller(NamedTuple):
    """The reuse identity: a worker serves nobody else after its caller."""

    queue: str
    name: str

    def __str__(self) -> str:
        return f"{self.queue}/{self.name}"


class ReuseKey(NamedTuple):
    """What a lease may serve: jobs with exactly this key."""

    profile: str
    caller: Caller
    deps: str = ""  #: fingerprint of extra dependencies; "" for none


class JobClass(NamedTuple):
    """What makes waiting jobs interchangeable."""

    key: ReuseKey
    priority: int = 0
    gang: int = 1


class Fence(NamedTuple):
    """Fencing number of a lease: compared as a pair, epochs first."""

    epoch: int
    number: int


class LeaseId(NamedTuple):
    """One client's right to one bound worker."""

    worker: str
    fence: Fence


@dataclass(frozen=True, slots=True)
class Demand:
    """How many workers a client could use now, beyond those it holds, for one class."""

    job_class: JobClass
    count: int
    oldest_age_s: float  #: how long the oldest waiting job of the class has waited
    drain_s: float  #: how long present leases need for what waits; inf if unknown or none held


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease on its way to a client; ``number`` counts per client and epoch from 1."""

    number: int
    lease: LeaseId
    job_class: JobClass
    source: Source


@dataclass(frozen=True, slots=True)
class Rejection:
    """All waiting jobs of a class end with an error: ``deadlock`` or ``start_failed``."""

    job_class: JobClass
    code: Literal["deadlock", "start_failed", "impossible"]
    message: str


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """What the core must know of a profile. Times in seconds, GPUs may be fractions."""

    name: str
    gpus: float = 0.0  #: GPUs of one lane
    standbys: int = 1  #: unbound workers kept beside the active one
    min_lanes: int = 0
    max_lanes: int = 1
    keep_alive: str = "fixed:60"  #: until when an idle bound worker is held, see ``keepalive``
    cold_price: float = 1.0  #: what a second of a start is worth, in seconds of an idle worker
    warm_ahead: bool = True  #: with ``adaptive``: bind workers before a burst that can be told
    #: A lane without active worker beyond min_lanes goes after this; None: as keep_alive says.
    lane_keep_s: float | None = 300.0
    start_cost_s: float = 1.0  #: first guess of a worker start; measured from then on
    grow_cost_s: float = 5.0  #: first guess of a lane's growth; measured from then on
    gpu_type: str = "gpu"  #: profiles of one type share quotas' budgets; unused where gpus is 0

    @property
    def unit(self) -> float:
        """What one lane counts as against quotas, limits and caps."""
        return self.gpus if self.gpus > 0 else 1.0


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """Who pays. ``inf`` where nothing is said."""

    name: str
    quota: float = float("inf")
    limit: float = float("inf")
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """All settings of the controller's machine."""

    profiles: tuple[ProfileSpec, ...]
    queues: tuple[QueueSpec, ...]
    window_s: float = 5.0  #: fairness window; one step of priority is worth this much waiting
    max_gpus: float = float("inf")  #: units that all lanes together may reserve
    idle_cap: float = float("inf")  #: units that may be held idle, whatever the budgets say
    rho: float = 0.25  #: part of its quota that a queue may keep idle while others wait
    headroom: float = 0.0  #: units of each type that no budget counts on
    signal_stale_s: float = 60.0  #: what a queue signal said counts for so long
    refill_rate_per_s: float = 2.0  #: token bucket that paces standby refills
    refill_burst: int = 4
    #: refills wait until no promotion was asked for so long, and never more than four times that
    refill_quiet_s: float = 0.0
    stale_s: float = 10.0  #: demand not stated again for so long is taken as gone
    reclaim_s: float = 10.0  #: leases nobody claims after a controller restart go after this
    start_backoff_s: float = 0.5
    start_backoff_max_s: float = 30.0
    breaker_failures: int = 5  #: starts failing in a row before the profile's breaker opens
    breaker_open_s: float = 60.0
    usage_half_life_s: float = 60.0
