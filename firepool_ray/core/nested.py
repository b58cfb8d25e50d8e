"""Work submitted from inside jobs: finds the circle that can never finish.

A job on a worker that waits for children holds its lane. If everything that could ever serve those
children is held by jobs that wait in the same way, nobody moves again. Called by ``machine`` when
a blocked client has stated its situation and everything is placed; costs a walk over the workers
involved.
"""

from __future__ import annotations

from collections import deque

from firepool_ray.core import growth, queueing
from firepool_ray.core.actions import SendRejection
from firepool_ray.core.model import LeaseId, Rejection
from firepool_ray.core.state import EPSILON, Client, Entry, Pool, Profile, Worker
from firepool_ray.core.tables import HELD_STATES


def suspect(pool: Pool, client: Client) -> None:
    """A job that waits for children which wait for workers: look at it once all is placed."""
    if client.parent is not None and any(e.unmet > 0 for e in client.entries.values()):
        pool.suspects[client.id] = None


def break_circle(pool: Pool, name: str, at: float) -> None:
    """Reject the client's waiting children if they could never run."""
    client = pool.clients.get(name)
    if client is None or not client.blocked:
        return
    waiting = [entry for entry in client.entries.values() if entry.unmet > 0]
    if not waiting or _can_move(pool, client, at):
        return
    for entry in waiting:
        rejection = Rejection(entry.job_class, "deadlock", _chain(pool, client, entry))
        entry.count = 0
        queueing.refresh(pool, entry)
        pool.out.append(SendRejection(client.id, rejection))


def _can_move(pool: Pool, client: Client, at: float) -> bool:
    """Is there a free place, or a running job outside of any circle, behind this client's wait?"""
    blocked = {c.parent: c for c in pool.clients.values() if c.parent is not None and c.blocked}
    seen: set[str] = set()
    todo = deque([client])
    while todo:
        waiter = todo.popleft()
        if waiter.unacked:
            return True  # a grant is on its way to it
        places = [
            worker
            for name in waiter.leases
            if (worker := pool.workers.get(name)) is not None and not _long_idle(pool, worker, at)
        ]
        for entry in waiter.entries.values():
            if entry.count <= 0:
                continue
            if entry.pending > 0:
                return True
            holders = _holders_before(pool, entry, at)
            if holders is None:
                return True
            places.extend(holders)
        for worker in places:
            if worker.id in seen:
                continue
            seen.add(worker.id)
            parent = blocked.get(LeaseId(worker.id, worker.fence))
            if parent is None:
                return True  # it is idle, leaving, or runs a job that waits for nobody
            todo.append(parent)
    return False


def _long_idle(pool: Pool, worker: Worker, at: float) -> bool:
    """The waiter's own lease that it has no use for; freshly idle ones may be in use again."""
    return worker.idle_since is not None and at - worker.idle_since > pool.spec.window_s


def _holders_before(pool: Pool, entry: Entry, at: float) -> list[Worker] | None:
    """Who holds what the entry could use; None if something is, or comes, free without them."""
    profile = queueing.profile_of(pool, entry)
    if not queueing.queue_of(pool, entry).has_room(profile.spec.unit):
        return _held_by_queue(pool, entry)
    if profile.ready or profile.soon or profile.coming or profile.startable or profile.growing:
        return None
    if any(lane.state == "quarantined" and not lane.draining for lane in profile.lanes.values()):
        return None
    holders = _holders(profile)
    if profile.counted < profile.most_lanes:
        keepers = _keepers_of_gpus(pool, profile)
        if keepers is None:
            return None
        holders += keepers
    return holders


def _keepers_of_gpus(pool: Pool, profile: Profile) -> list[Worker] | None:
    """Who keeps the profile from growing; None if nobody does."""
    if pool.reserved_gpus + profile.spec.gpus <= pool.spec.max_gpus + EPSILON:
        return None
    keepers: list[Worker] = []
    for lane in pool.lanes.values():
        if lane.draining and lane.profile.spec.gpus > 0:
            if lane.device.active is None:
                return None
            keepers.append(lane.device.active)
    if not growth.fits_beside_minimum(pool, profile):
        return keepers
    for other in pool.profiles.values():
        may_give = other.spec.gpus > 0 and other.counted > other.spec.min_lanes
        if other is not profile and may_give:
            if other.ready or other.startable or other.coming or other.soon:
                return None
            keepers += _holders(other)
    return keepers


def _holders(profile: Profile) -> list[Worker]:
    return [
        lane.device.active
        for lane in profile.lanes.values()
        if lane.device.active is not None and lane.state == "ready" and not lane.draining
    ]


def _held_by_queue(pool: Pool, entry: Entry) -> list[Worker]:
    """Bound to callers of its queue, or about to be."""
    queue = entry.job_class.key.caller.queue
    return [
        worker
        for worker in pool.workers.values()
        if (
            worker.state in HELD_STATES
            and worker.key is not None
            and worker.key.caller.queue == queue
        )
        or (worker.claim is not None and worker.claim.entry.job_class.key.caller.queue == queue)
    ]


def _chain(pool: Pool, client: Client, entry: Entry) -> str:
    links: list[str] = []
    for other in pool.clients.values():
        if other.parent is None or not other.blocked or len(links) >= 8:
            continue
        worker = pool.workers.get(other.parent.worker)
        if worker is not None and worker.key is not None:
            children = ", ".join(
                f"{e.count} of {e.job_class.key.profile}"
                for e in other.entries.values()
                if e.count or e is entry
            )
            links.append(
                f"{worker.id} in lane {worker.lane.id} (caller {worker.key.caller}) waits for "
                f"{children or 'children that run'}"
            )
    key = entry.job_class.key
    return (
        f"a job waits for a child in profile {key.profile!r} that can never run: every lane it "
        f"could use is held by a job that waits like this: {'; '.join(links)}. Give the profile "
        "more lanes or the queue a higher limit, use another profile for children, or do not wait "
        "inside of jobs."
    )
