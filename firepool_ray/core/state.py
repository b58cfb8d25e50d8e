"""State of the controller's machine. ``tables`` says which moves are legal.

Only ``machine.handle`` and the decision modules it calls (``placement``, ``leases``, ``staffing``)
change what stands here. Nothing here decides or emits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from firepool_ray.core.actions import Action
from firepool_ray.core.costs import Costs, Mean, Rate
from firepool_ray.core.events import ClientSynced, QueueSignal
from firepool_ray.core.gaps import Gaps, Hold
from firepool_ray.core.keepalive import Idle, KeepAlive
from firepool_ray.core.model import (
    Caller,
    Fence,
    Grant,
    JobClass,
    LeaseId,
    PoolSpec,
    ProfileSpec,
    QueueSpec,
    ReuseKey,
    Source,
)
from firepool_ray.core.ordered import Agenda, Ordered
from firepool_ray.core.rhythm import Rhythm
from firepool_ray.core.tables import LANE_EDGES, WORKER_EDGES, LaneState, WorkerState
from firepool_ray.errors import IllegalTransition

if TYPE_CHECKING:
    from firepool_ray.core.budget import Terms

#: Tolerance of sums of GPU fractions.
EPSILON = 1e-9

#: Why a lease is being revoked. ``exchange``: its queue is at its limit and wants others instead.
#: ``reclaim``: its lane is given back to work outside the pool.
Purpose = Literal["", "retire", "handover", "recycle", "exchange", "reclaim", "move", "release"]


@dataclass(slots=True)
class Entry:
    """Waiting demand of one client for one class."""

    number: int
    client: str
    job_class: JobClass
    count: int = 0
    oldest_at: float = 0.0
    drain_s: float = 0.0
    #: promotions, moves and unacknowledged grants on their way: they cover that much of count
    pending: int = 0
    #: since when it is before all others: its caller waited past the window and holds nothing
    urgent_at: float | None = None

    @property
    def unmet(self) -> int:
        return self.count - self.pending


@dataclass(slots=True)
class Claim:
    """A worker on its way to one client."""

    entry: Entry
    source: Source
    #: Will be charged at promotion and is in the queue's accounts already. False as well while the
    #: worker that makes way is of the same queue at its limit, and is still charged itself.
    reserved: bool = False


@dataclass(slots=True, eq=False)
class Device:
    """What one active worker at a time may use. Invariant I1 lives in ``active``."""

    id: str
    active: Worker | None = None
    next: Worker | None = None  #: a reserved standby that takes over when the device is free
    lanes: list[Lane] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Lane:
    id: str
    number: int
    profile: Profile
    device: Device
    state: LaneState
    slots: list[Worker | None]
    node: str = ""
    rank: int = 0  #: of its node, see ``nodes``
    draining: bool = False  #: it is to go: nothing new here
    counted: bool = True  #: counts against the profile's min_lanes and max_lanes
    since: float = 0.0
    shelf: str = ""  #: on which of the profile's shelves it stands, see ``shelves``
    shelf_queue: str = ""  #: queue of the idle worker in its way, on the victims' shelves
    needed: bool = False  #: grown for waiting demand: its first start is not paced
    rest_since: float | None = None  #: end of its last work; None while some worker works
    ahead: str = ""  #: the rhythm for whose burst it grows, or a worker starts in it

    def move(self, to: LaneState) -> None:
        if to not in LANE_EDGES[self.state]:
            raise IllegalTransition(f"lane {self.id} cannot go from {self.state} to {to}")
        self.state = to

    def workers(self) -> list[Worker]:
        return [worker for worker in self.slots if worker is not None]


@dataclass(slots=True, eq=False)
class Worker:
    id: str
    number: int
    lane: Lane
    slot: int
    state: WorkerState
    since: float = 0.0
    key: ReuseKey | None = None
    client: str = ""  #: "" where nobody holds a lease
    fence: Fence = Fence(0, 0)
    idle_since: float | None = None  #: None: busy, or not known to be idle
    #: News of idleness that came before the answer which makes it true: its fence, since when.
    heard_idle: tuple[Fence, float] | None = None
    claim: Claim | None = None  #: to whom it goes next
    purpose: Purpose = ""  #: why it is being revoked
    successor: Fence | None = None  #: fence it takes if the move under way succeeds
    handing_over: bool = False  #: its caller's ``leaving`` counts it
    recycled_for: Profile | None = None  #: whose ``recycling`` counts it
    fresh: bool = False  #: started while demand waited for it: its first grant is cold
    rest: Idle | None = None  #: since its last job, until it works again or is gone
    hold_s: float = 0.0  #: how long its keep-alive holds it, from ``rest.since`` on
    ahead: bool = False  #: bound before anybody asked, and not used yet
    awaited: bool = False  #: bound ahead, and not yet known to be idle: its rhythm's ``coming``
    bridges: bool = False  #: held over a pause hardly longer than a start
    counted: bool = False  #: as working, in its caller's rhythm

    def move(self, to: WorkerState, at: float) -> None:
        if to not in WORKER_EDGES[self.state]:
            raise IllegalTransition(f"worker {self.id} cannot go from {self.state} to {to}")
        self.state = to
        self.since = at


@dataclass(slots=True, eq=False)
class Client:
    id: str
    seq: int = -1
    leases: dict[str, Fence] = field(default_factory=dict)  #: by worker, granted or on their way
    unacked: dict[int, tuple[Grant, Entry]] = field(default_factory=dict)
    grants: int = 0  #: number of the last grant
    entries: dict[JobClass, Entry] = field(default_factory=dict)
    callers: dict[Caller, None] = field(default_factory=dict)
    parent: LeaseId | None = None
    blocked: bool = False
    #: Leases it lists although they ended, and when it was told so last.
    told: dict[LeaseId, float] = field(default_factory=dict)
    stated_at: float = 0.0  #: demand that is not stated again soon is taken as gone


@dataclass(slots=True, eq=False)
class CallerState:
    """Usage: decayed unit-seconds held, see ``ledger``."""

    held: float = 0.0
    leaving: float = 0.0  #: part of held that is being drained away for somebody else
    usage: float = 0.0
    stamp: float = 0.0
    clients: dict[str, None] = field(default_factory=dict)
    closing: bool = False  #: it said that it is done: what becomes idle goes at once


@dataclass(slots=True, eq=False)
class Queue:
    spec: QueueSpec
    held: float = 0.0  #: charged: workers bound to its callers, busy or idle
    reserved: float = 0.0  #: will be charged when a handover's device is free
    idle: Ordered[Worker] = field(default_factory=Ordered)  #: its part of the pool's ``idle``
    exchanging: float = 0.0  #: charged, but asked to leave for others of the queue
    held_of: dict[str, float] = field(default_factory=dict)  #: ``held`` by GPU type
    idle_of: dict[str, float] = field(default_factory=dict)  #: and what of it is known to be idle
    #: By GPU type: idle unit-seconds that its callers' gaps are expected to hold.
    standing: dict[str, Rate] = field(default_factory=dict)
    signal: QueueSignal | None = None  #: what another system says, while that is fresh

    @property
    def quota(self) -> float:
        said = self.signal.quota if self.signal is not None else None
        return self.spec.quota if said is None else said

    @property
    def limit(self) -> float:
        said = self.signal.limit if self.signal is not None else None
        return self.spec.limit if said is None else said

    @property
    def weight(self) -> float:
        said = self.signal.weight if self.signal is not None else None
        return self.spec.weight if said is None else said

    @property
    def outside(self) -> tuple[float, float]:
        """(running, pending) units of work in this queue that is not the pool's."""
        signal = self.signal
        return (signal.running, signal.pending) if signal is not None else (0.0, 0.0)

    @property
    def outside_type(self) -> str:
        return self.signal.gpu_type if self.signal is not None else ""

    def standing_of(self, gpu_type: str) -> Rate:
        rate = self.standing.get(gpu_type)
        if rate is None:
            rate = self.standing[gpu_type] = Rate()
        return rate

    def after(self, units: float) -> float:
        """What the queue would hold if ``units`` more were promised to it.

        What is leaving still counts: its answer may be that it is busy and stays.
        """
        outside = self.signal.running if self.signal is not None else 0.0
        return self.held + self.reserved + outside + units

    def has_room(self, units: float) -> bool:
        return self.after(units) <= self.limit + EPSILON

    def entitled(self, units: float) -> bool:
        return self.after(units) <= self.quota + EPSILON

    @property
    def borrowed(self) -> float:
        """Units held beyond the quota, by weight."""
        return max(0.0, self.after(0.0) - self.reserved - self.quota) / self.weight


@dataclass(frozen=True, slots=True)
class LetGo:
    """A warm worker that went, and why: for people."""

    at: float
    worker: str
    key: ReuseKey
    idle_s: float
    why: str


@dataclass(slots=True, eq=False)
class Profile:
    spec: ProfileSpec
    policy: KeepAlive
    costs: Costs
    lanes: dict[str, Lane] = field(default_factory=dict)
    #: shelves of lanes, kept by ``shelves``; a lane stands on one at most
    ready: Ordered[Lane] = field(default_factory=Ordered)  #: free device and a standby
    soon: Ordered[Lane] = field(default_factory=Ordered)  #: the device's worker leaves; a standby
    coming: Ordered[Lane] = field(default_factory=Ordered)  #: free device, a worker starting
    startable: Ordered[Lane] = field(default_factory=Ordered)  #: free device, a free slot
    #: by the victim's queue and idle time
    handover: dict[str, Ordered[Lane]] = field(default_factory=dict)
    recycle: dict[str, Ordered[Lane]] = field(default_factory=dict)
    waiting: dict[str, Ordered[Entry]] = field(default_factory=dict)  #: by queue
    counted: int = 0  #: lanes that count against min_lanes and max_lanes
    allowed: int | None = None  #: what carries its lanes has room for so many, if anybody says
    growing: int = 0
    starting: int = 0
    recycling: int = 0
    promote_cost_s: float = 0.02  #: measured: command to acknowledgement
    start_cost_s: float = 1.0
    grow_cost_s: float = 5.0
    failures: int = 0
    unproven: bool = False  #: a promotion failed last: a mere start does not end the failures
    retry_at: float = 0.0
    open_until: float = 0.0  #: the breaker: no starts before this
    grow_failures: int = 0
    grow_retry_at: float = 0.0
    relieve_after: float = 0.0  #: busy leases are looked at for sharing no sooner
    reason: str = ""  #: the last failure, in words
    refill: dict[str, Lane] = field(default_factory=dict)  #: lanes that lack a standby
    rhythms: dict[Caller, Rhythm] = field(default_factory=dict)  #: of its callers, see ``bursts``
    warming: dict[str, Rhythm] = field(default_factory=dict)  #: those whose next burst is due
    short: int = 0  #: workers for them that nothing ready could serve
    ahead: int = 0  #: lanes that grow or start for them: nobody else counts on these
    warms: bool = False  #: bind workers ahead of bursts
    #: Seconds per worker that following all predictions of bursts would have brought, on average.
    gain_s: Mean = field(default_factory=lambda: Mean(-1.0))
    held_s: float = 0.0  #: mean time that workers were held idle
    lane_gaps: Gaps = field(
        default_factory=lambda: Gaps(5000.0)
    )  #: from work to others' work on a lane
    lanes_awaited: list[float] = field(default_factory=list)  #: when lanes that went had rested
    lane_hold: Hold = Hold(0.0, 0.0, 0.0)  #: learned, for the price below
    lane_price_s: float = -1.0
    lane_hold_until: int = 0  #: count of gaps up to which it stands

    @property
    def most_lanes(self) -> int:
        most = self.spec.max_lanes
        return most if self.allowed is None else min(most, self.allowed)

    @property
    def gpu_type(self) -> str:
        """Lanes without GPUs are a kind of their own."""
        return self.spec.gpu_type if self.spec.gpus > 0 else ""


@dataclass(slots=True, eq=False)
class Pool:
    """Everything the machine knows."""

    spec: PoolSpec
    epoch: int
    profiles: dict[str, Profile]
    queues: dict[str, Queue]
    callers: dict[Caller, CallerState] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    lanes: dict[str, Lane] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    nodes: dict[str, tuple[int, int]] = field(default_factory=dict)  #: (rank, lanes there)
    workers: dict[str, Worker] = field(default_factory=dict)
    warm: dict[ReuseKey, Ordered[Worker]] = field(default_factory=dict)  #: idle, newest first
    wanting: dict[ReuseKey, Ordered[Entry]] = field(default_factory=dict)  #: unmet, by order
    idle: Ordered[Worker] = field(default_factory=Ordered)  #: all idle bound workers, oldest first
    idle_units: float = 0.0
    idle_cap: float = float("inf")
    budgets: dict[tuple[str, str], Terms] = field(default_factory=dict)  #: last computed
    budgets_at: float = float("-inf")
    giving_back: dict[str, Lane] = field(default_factory=dict)  #: when their idle worker has left
    #: Plans for bursts by their name on the agenda, see ``bursts``.
    rhythms: dict[str, tuple[Profile, Rhythm]] = field(default_factory=dict)
    let_go: deque[LetGo] = field(default_factory=lambda: deque(maxlen=256))  #: newest last
    reserved_gpus: float = 0.0  #: GPUs of all lanes, until they are removed
    releasing: dict[str, tuple[Lane, float]] = field(default_factory=dict)  #: that go, since when
    agenda: Agenda[tuple[str, str]] = field(default_factory=Agenda)
    refill: dict[str, None] = field(default_factory=dict)  #: profiles with lanes to refill
    #: blocked clients that stated their situation: looked at for a circle after placement
    suspects: dict[str, None] = field(default_factory=dict)
    room_for: str = ""  #: the profile for which lanes of others go; only it may grow meanwhile
    promoted_at: float = float("-inf")  #: the last promotion asked for
    lacking_since: float = float("inf")  #: standbys are missing since then
    tokens: float = 0.0
    tokens_at: float = 0.0
    open: bool = False  #: reconciled: decisions are taken
    early: dict[str, ClientSynced] = field(default_factory=dict)  #: syncs before ``open``
    #: clients that are gone: last seq and grant number, so that late news is known as such
    departed: dict[str, tuple[int, int]] = field(default_factory=dict)
    past: dict[Caller, None] = field(default_factory=dict)  #: callers known only for their usage
    serial: int = 0
    out: list[Action] = field(default_factory=list)
    #: profiles in which something changed since they were placed
    dirty: dict[str, None] = field(default_factory=dict)
    #: reuse keys that are both wanted and idle since something changed
    rematch: dict[ReuseKey, None] = field(default_factory=dict)

    def number(self) -> int:
        self.serial += 1
        return self.serial

    def fence(self) -> Fence:
        return Fence(self.epoch, self.number())


def new_pool(spec: PoolSpec, epoch: int, policies: Mapping[str, KeepAlive]) -> Pool:
    """An empty pool; ``policies`` by profile."""
    pool = Pool(
        spec=spec,
        epoch=epoch,
        profiles={
            p.name: Profile(p, policies[p.name], Costs(p.grow_cost_s, p.start_cost_s))
            for p in spec.profiles
        },
        queues={q.name: Queue(q) for q in spec.queues},
        idle_cap=spec.idle_cap,
        tokens=float(spec.refill_burst),
    )
    for profile in pool.profiles.values():
        profile.start_cost_s = profile.spec.start_cost_s
        profile.grow_cost_s = profile.spec.grow_cost_s
    return pool
