"""What happened: the inputs of the controller's machine. Past facts, each with ``at`` seconds.

Built by the controller (from client calls, effects and warden news) and by the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firepool_ray.core.model import Caller, Demand, Fence, LeaseId, ReuseKey

RevokeAnswer = Literal["gone", "busy", "draining", "moved", "stale", "dead"]


@dataclass(frozen=True, slots=True)
class Event:
    at: float


@dataclass(frozen=True, slots=True)
class ClientSynced(Event):
    """A client stated its whole situation; the highest ``seq`` wins."""

    client: str
    seq: int
    held: tuple[LeaseId, ...]
    acked: tuple[int, int]  #: (epoch, number) of the last grant it has seen; (0, 0) for none
    demands: tuple[Demand, ...]
    parent: LeaseId | None = None  #: the lease whose job this client runs in, if any
    blocked: bool = False  #: that job now waits for its children


@dataclass(frozen=True, slots=True)
class ClientLost(Event):
    """The client's process is gone, or it left on purpose."""

    client: str
    reason: str


@dataclass(frozen=True, slots=True)
class LaneReady(Event):
    lane: str
    node: str
    device: str = ""  #: "" where the lane is its own device


@dataclass(frozen=True, slots=True)
class LaneFailed(Event):
    """The lane could not be placed, or died before it was ready."""

    lane: str
    reason: str


@dataclass(frozen=True, slots=True)
class LaneRemoved(Event):
    lane: str


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """The worker has started and preloaded; it is a standby."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerStartFailed(Event):
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerPromoted(Event):
    """The worker acknowledged its promotion under this fence."""

    worker: str
    fence: Fence


@dataclass(frozen=True, slots=True)
class PromotionFailed(Event):
    worker: str
    fence: Fence
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseRegranted(Event):
    """A revoked worker went back to idle under a new fence."""

    worker: str
    fence: Fence


@dataclass(frozen=True, slots=True)
class RevokeAnswered(Event):
    """The warden's answer to ``RevokeLease``; ``fence`` is the one that was to be revoked."""

    worker: str
    fence: Fence
    answer: RevokeAnswer


@dataclass(frozen=True, slots=True)
class LeaseEnded(Event):
    """A draining lease's last job ended: the word is revoked now."""

    worker: str
    fence: Fence


@dataclass(frozen=True, slots=True)
class WorkerIdle(Event):
    worker: str
    fence: Fence
    idle_since: float


@dataclass(frozen=True, slots=True)
class WorkerBusy(Event):
    worker: str
    fence: Fence
    since: float | None = None  #: when its job began; None: about now


@dataclass(frozen=True, slots=True)
class WorkerExited(Event):
    """The worker's process ended by itself; what it left is not yet swept."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerRetired(Event):
    """The worker is gone and its leftovers are swept: its slot and device are free."""

    worker: str


@dataclass(frozen=True, slots=True)
class RetireFailed(Event):
    """The sweep missed its deadline: the lane must not be handed on."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeLost(Event):
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeDraining(Event):
    node: str


@dataclass(frozen=True, slots=True)
class LaneAdopted(Event):
    """After a restart: a lane that stands already. Before ``Reconciled`` only."""

    lane: str
    profile: str
    node: str
    device: str = ""


@dataclass(frozen=True, slots=True)
class WorkerAdopted(Event):
    """After a restart: a living worker and what its lease word says. Before ``Reconciled`` only."""

    worker: str
    lane: str
    slot: int
    state: Literal["standby", "idle", "busy", "draining", "revoked"]
    key: ReuseKey | None = None
    fence: Fence | None = None
    client: str = ""
    age_s: float = 0.0  #: how long it has been in that state


@dataclass(frozen=True, slots=True)
class Reconciled(Event):
    """Everything that stood is adopted; decisions begin."""


@dataclass(frozen=True, slots=True)
class IdleCapSet(Event):
    """The static cap on idle units was changed."""

    cap: float


@dataclass(frozen=True, slots=True)
class LanesAllowed(Event):
    """What carries the profile's lanes has room for so many; None: nobody says how many."""

    profile: str
    most: int | None


@dataclass(frozen=True, slots=True)
class QueueSignal(Event):
    """What another system says of a queue: its own limits, and work there outside the pool.

    None: it says nothing of that, and the pool's settings hold. ``running`` and ``pending`` are
    units of work that the pool knows nothing of. ``age_s``: how old the reading is.
    """

    queue: str
    quota: float | None = None
    limit: float | None = None
    weight: float | None = None
    running: float = 0.0
    pending: float = 0.0
    gpu_type: str = "gpu"  #: of what ``running`` and ``pending`` use
    age_s: float = 0.0
    source: str = ""  #: who says so, for people


@dataclass(frozen=True, slots=True)
class CallerClosing(Event):
    """The caller says it is done: its idle workers go at once."""

    caller: Caller


@dataclass(frozen=True, slots=True)
class Woke(Event):
    """The time of an earlier ``WakeAt`` has come."""
