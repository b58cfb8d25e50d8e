"""A machine on the desk of a test: events go in one by one, decisions come out as plain lists.

Every event is followed by the check of all invariants. ``WakeAt`` is left out of the decisions
unless it is asked for.
"""

from __future__ import annotations

from typing import Any

from firepool_ray.core import actions as do
from firepool_ray.core import events as ev
from firepool_ray.core.machine import Machine
from firepool_ray.core.model import (
    Caller,
    Demand,
    Fence,
    Grant,
    JobClass,
    LeaseId,
    PoolSpec,
    ProfileSpec,
    QueueSpec,
    ReuseKey,
)
from tests.core.invariants import check

INF = float("inf")
ALICE = Caller("default", "alice")
BOB = Caller("default", "bob")
CAROL = Caller("rl", "carol")


def pool(
    *profiles: ProfileSpec, queues: tuple[QueueSpec, ...] | None = None, **settings: Any
) -> PoolSpec:
    """A specification; one profile ``p`` and the queues ``default`` and ``rl`` if none is said."""
    return PoolSpec(
        profiles or (profile(),),
        queues or (QueueSpec("default"), QueueSpec("rl")),
        **settings,
    )


def profile(name: str = "p", **settings: Any) -> ProfileSpec:
    return ProfileSpec(name, **{"gpus": 1.0, "max_lanes": 4, **settings})


def want(caller: Caller = ALICE, profile: str = "p", deps: str = "", priority: int = 0) -> JobClass:
    return JobClass(ReuseKey(profile, caller, deps), priority)


class Desk:
    def __init__(self, spec: PoolSpec | None = None, epoch: int = 1, start: bool = True) -> None:
        self.machine = Machine(spec or pool(), epoch)
        self.at = 0.0
        self.seqs: dict[str, int] = {}
        self.acked: dict[str, int] = {}
        self.held: dict[str, dict[str, Fence]] = {}
        self.excess: dict[str, float] = {}
        self.wake_at = INF
        if start:
            self.do(ev.Reconciled(0.0))

    @property
    def pool(self) -> Any:
        return self.machine.pool

    def do(self, *events: ev.Event) -> list[do.Action]:
        """Hand the events over; grants and revocations reach the modelled clients at once."""
        decisions: list[do.Action] = []
        for event in events:
            self.at = max(self.at, event.at)
            for action in self.machine.handle(event):
                if isinstance(action, do.WakeAt):
                    self.wake_at = action.when
                    continue
                if isinstance(action, do.SendGrant):
                    lease = action.grant.lease
                    self.acked[action.client] = action.grant.number
                    self.held.setdefault(action.client, {})[lease.worker] = lease.fence
                elif isinstance(action, do.SendRevoked):
                    held = self.held.setdefault(action.client, {})
                    if held.get(action.lease.worker) == action.lease.fence:
                        del held[action.lease.worker]
                decisions.append(action)
            check(self.pool, self.at, self.excess)
        return decisions

    def wake(self, at: float) -> list[do.Action]:
        return self.do(ev.Woke(at))

    def sync(
        self,
        client: str,
        job_class: JobClass | None = None,
        count: int = 1,
        *,
        at: float | None = None,
        age_s: float = 0.0,
        drain_s: float = INF,
        held: list[LeaseId] | None = None,
        acked: tuple[int, int] | None = None,
        parent: LeaseId | None = None,
        blocked: bool = False,
        also: tuple[Demand, ...] = (),
    ) -> list[do.Action]:
        """The client states its situation, acknowledging all it was sent unless told otherwise."""
        self.seqs[client] = self.seqs.get(client, 0) + 1
        if held is None:
            held = [LeaseId(w, f) for w, f in self.held.get(client, {}).items()]
        if acked is None:
            number = self.acked.get(client, 0)
            acked = (self.pool.epoch, number) if number else (0, 0)
        mine = () if job_class is None else (Demand(job_class, count, age_s, drain_s),)
        return self.do(
            ev.ClientSynced(
                self.at if at is None else at,
                client,
                self.seqs[client],
                tuple(held),
                acked,
                mine + also,
                parent,
                blocked,
            )
        )

    # ---------------------------------------------------------------- short ways to a situation

    def lanes(self, count: int, profile: str = "p") -> list[str]:
        """So many lanes with all their standbys, whoever wanted them."""
        grown = []
        for _ in range(count):
            spec = self.pool.profiles[profile].spec
            lane = f"a{len(self.pool.lanes)}"
            self.grow_by_hand(lane, profile, spec.standbys)
            grown.append(lane)
        return grown

    def grow_by_hand(self, lane: str, profile: str, standbys: int) -> None:
        """As if adopted: only before ``Reconciled``."""
        self.do(ev.LaneAdopted(self.at, lane, profile, f"node-{lane}"))
        for slot in range(standbys):
            self.do(ev.WorkerAdopted(self.at, f"{lane}s{slot}", lane, slot, "standby"))

    def promoted(self, action: do.Action, at: float | None = None) -> list[do.Action]:
        """The answer to a promotion."""
        assert isinstance(action, do.PromoteWorker)
        when = self.at if at is None else at
        return self.do(ev.WorkerPromoted(when, action.worker, action.fence))

    def hold(self, client: str, job_class: JobClass | None = None, count: int = 1) -> list[LeaseId]:
        """The client gets so many workers that are ready, and acknowledges them."""
        job_class = job_class or want()
        leases = []
        for action in self.sync(client, job_class, count):
            if isinstance(action, do.PromoteWorker) and action.client == client:
                for sent in self.promoted(action):
                    if isinstance(sent, do.SendGrant):
                        leases.append(sent.grant.lease)
        assert len(leases) == count, "not enough standbys were ready"
        self.sync(client)
        return leases

    def idle(self, lease: LeaseId, since: float | None = None) -> list[do.Action]:
        since = self.at if since is None else since
        at = max(self.at, since)
        return self.do(ev.WorkerIdle(at, lease.worker, lease.fence, since))

    def fence(self) -> Fence:
        """The last one given."""
        return Fence(self.pool.epoch, self.pool.serial)


def ready(spec: PoolSpec | None = None, **lanes: int) -> Desk:
    """A desk with lanes standing, all standbys up: ``ready(spec, p=2)``."""
    desk = Desk(spec, start=False)
    for name, count in (lanes or {"p": 1}).items():
        desk.lanes(count, name)
    desk.do(ev.Reconciled(0.0))
    return desk


def granted(number: int, lease: LeaseId, job_class: JobClass, source: str) -> Grant:
    return Grant(number, lease, job_class, source)  # type: ignore[arg-type]
