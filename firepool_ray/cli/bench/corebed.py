"""A small world around the controller's machine: clients that come and go, effects that succeed.

Everything is drawn from one seeded generator and every action is answered at once, so that a run
is the same each time and the time measured is that of ``Machine.handle`` alone: CPU time of the
thread, which a busy machine does not stretch.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque

from firepool_ray.core import actions as ac
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

LANES_PER_CLIENT = 10
QUEUES = 4
#: Seconds between two steps of a pool of 100 lanes; larger pools have proportionally more to do.
STEP_S = 0.02


class _Client:
    """One client as the machine sees it: demand, leases, acknowledged grants."""

    def __init__(self, number: int) -> None:
        self.id = f"client{number}"
        self.job_class = JobClass(ReuseKey("gpu", Caller(f"queue{number % QUEUES}", self.id)))
        self.wanted = 0
        self.seq = 0
        self.acked = (0, 0)
        self.held: dict[str, LeaseId] = {}

    def synced(self, at: float) -> ev.ClientSynced:
        self.seq += 1
        unmet = max(0, self.wanted - len(self.held))
        demands = (Demand(self.job_class, unmet, 0.1, 10.0),) if unmet else ()
        return ev.ClientSynced(
            at, self.id, self.seq, tuple(self.held.values()), self.acked, demands
        )


class CoreBed:
    """Drives one machine with ``lanes`` lanes near full use."""

    def __init__(self, lanes: int, seed: int = 1) -> None:
        queues = tuple(
            QueueSpec(f"queue{i}", quota=lanes / QUEUES, limit=float(lanes)) for i in range(QUEUES)
        )
        profile = ProfileSpec("gpu", gpus=1.0, min_lanes=lanes, max_lanes=lanes)
        # Refills are not what is measured: the bucket never runs dry.
        spec = PoolSpec((profile,), queues, refill_rate_per_s=1e6, refill_burst=10 * lanes)
        self._machine = Machine(spec, epoch=1)
        self._random = random.Random(seed)
        self._at = 0.0
        self._step_s = STEP_S * 100 / lanes
        self._wake_at = float("inf")
        self._pending: deque[ev.Event] = deque([ev.Reconciled(0.0)])
        self._clients = {
            client.id: client for client in map(_Client, range(max(1, lanes // LANES_PER_CLIENT)))
        }
        self._order = list(self._clients)
        self._busy: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._inside_s = 0.0
        self._drain()
        for client in self._clients.values():
            client.wanted = LANES_PER_CLIENT - 2
            self._pending.append(client.synced(self._at))
            self._drain()

    def run(self, events: int) -> tuple[int, float]:
        """Handle at least so many events; returns how many, and the CPU seconds they took."""
        self._counts.clear()
        self._inside_s = 0.0
        while self._counts.total() < events:
            self._step()
            self._drain()
        return self._counts.total(), self._inside_s

    def mix(self) -> str:
        """Of what kinds the events of the last run were."""
        total = self._counts.total()
        return ", ".join(
            f"{name} {100 * count / total:.0f} %" for name, count in self._counts.most_common(6)
        )

    def _step(self) -> None:
        """Some time passes and one client's situation changes."""
        self._at += self._step_s
        if self._at >= self._wake_at:
            self._wake_at = float("inf")
            self._pending.append(ev.Woke(self._at))
        client = self._clients[self._random.choice(self._order)]
        change = self._random.random()
        if change < 0.15:  # a burst, sometimes more than there is
            client.wanted = self._random.randint(LANES_PER_CLIENT * 4 // 5, LANES_PER_CLIENT * 2)
        elif change < 0.25:  # gives some workers up
            for worker in list(client.held)[: self._random.randint(1, 4)]:
                del client.held[worker]
            client.wanted = len(client.held)
        elif client.held:  # a worker starts or ends a job, as its warden saw it
            lease = self._random.choice(list(client.held.values()))
            self._pending.append(self._turn(lease))
            return
        self._pending.append(client.synced(self._at))

    def _turn(self, lease: LeaseId) -> ev.Event:
        if lease.worker in self._busy:
            self._busy.remove(lease.worker)
            return ev.WorkerIdle(self._at, lease.worker, lease.fence, self._at)
        self._busy.add(lease.worker)
        return ev.WorkerBusy(self._at, lease.worker, lease.fence)

    def _drain(self) -> None:
        """Hand events over one by one, and answer what the machine asks for."""
        while self._pending:
            event = self._pending.popleft()
            self._counts[type(event).__name__] += 1
            began = time.thread_time()
            actions = self._machine.handle(event)
            self._inside_s += time.thread_time() - began
            for action in actions:
                self._carry_out(action)

    def _carry_out(self, action: ac.Action) -> None:
        at = self._at
        match action:
            case ac.WakeAt(when):
                self._wake_at = when
            case ac.GrowLane(lane):
                self._pending.append(ev.LaneReady(at, lane, f"node{len(lane) % 8}"))
            case ac.RemoveLane(lane):
                self._pending.append(ev.LaneRemoved(at, lane))
            case ac.StartWorker(worker):
                self._pending.append(ev.WorkerStarted(at, worker))
            case ac.PromoteWorker(worker, fence):
                self._pending.append(ev.WorkerPromoted(at, worker, fence))
            case ac.RetireWorker(worker):
                self._busy.discard(worker)
                self._pending.append(ev.WorkerRetired(at, worker))
            case ac.RegrantLease(worker, _, fence):
                self._pending.append(ev.LeaseRegranted(at, worker, fence))
            case ac.RevokeLease(worker, fence):
                self._pending += self._revoke(action, worker, fence)
            case ac.SendGrant(client, grant):
                self._granted(self._clients[client], grant)
            case ac.SendRevoked(client, lease):
                self._revoked(self._clients[client], lease)
            case ac.SendRejection():
                raise AssertionError(f"nothing fails here, yet: {action}")

    def _revoke(self, action: ac.RevokeLease, worker: str, fence: Fence) -> list[ev.Event]:
        """The warden's answer; a job that is drained or stopped ends at once."""
        if worker not in self._busy:
            answer: ev.RevokeAnswer = "gone" if action.successor is None else "moved"
            return [ev.RevokeAnswered(self._at, worker, fence, answer)]
        if action.mode == "if_idle":
            return [ev.RevokeAnswered(self._at, worker, fence, "busy")]
        self._busy.remove(worker)
        return [
            ev.RevokeAnswered(self._at, worker, fence, "draining"),
            ev.LeaseEnded(self._at, worker, fence),
        ]

    def _granted(self, client: _Client, grant: Grant) -> None:
        client.acked = (1, grant.number)
        client.held[grant.lease.worker] = grant.lease
        # A job starts at once and its warden tells; the client's next word acknowledges.
        self._busy.add(grant.lease.worker)
        self._pending.append(ev.WorkerBusy(self._at, grant.lease.worker, grant.lease.fence))
        self._pending.append(client.synced(self._at))

    def _revoked(self, client: _Client, lease: LeaseId) -> None:
        if client.held.get(lease.worker) == lease:
            del client.held[lease.worker]
            client.wanted = min(client.wanted, len(client.held))
