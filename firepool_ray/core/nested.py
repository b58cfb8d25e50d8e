"""Work submitted from inside jobs: finds the circle that can never finish.

A job on a worker that waits for children holds its lane. If everything that could ever serve those
children is held by jobs that wait in the same way, nobody moves again. Called by ``machine`` after
a client with a parent lease stated its situation; costs a walk over the workers involved.
"""

from __future__ import annotations

from collections import deque

from firepool_ray.core import queueing
from firepool_ray.core.actions import SendRejection
from firepool_ray.core.model import Rejection
from firepool_ray.core.state import HELD_STATES, Client, Entry, Pool, Profile, Worker


def break_circle(pool: Pool, client: Client, at: float) -> None:
    """Reject the client's waiting children if they could never run."""
    if client.parent is None or not client.blocked:
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
    parents = {
        c.parent.worker: c for c in pool.clients.values() if c.parent is not None and c.blocked
    }
    seen: set[str] = set()
    todo = deque([client])
    while todo:
        waiter = todo.popleft()
        if any(number for number in waiter.unacked):
            return True  # a grant is on its way to it
        places = [pool.workers[name] for name in waiter.leases if name in pool.workers]
        for entry in waiter.entries.values():
            if entry.count <= 0:
                continue
            if entry.pending > 0:
                return True
            profile = queueing.profile_of(pool, entry)
            if queueing.queue_of(pool, entry).has_room(profile.spec.unit):
                if _may_get_free(pool, profile, at):
                    return True
                places.extend(_holders(profile))
            else:
                places.extend(_held_by_queue(pool, entry))
        for worker in places:
            if worker.id in seen:
                continue
            seen.add(worker.id)
            parent = parents.get(worker.id)
            if parent is None:
                return True  # it is idle, leaving, or runs a job that waits for nobody
            todo.append(parent)
    return False


def _may_get_free(pool: Pool, profile: Profile, at: float) -> bool:
    """Capacity that is held by no job: there already, coming, or still to be grown."""
    if profile.ready or profile.soon or profile.coming or profile.startable or profile.growing:
        return True
    room = profile.counted < profile.spec.max_lanes
    return room and pool.reserved_gpus + profile.spec.gpus <= pool.spec.max_gpus + 1e-9


def _holders(profile: Profile) -> list[Worker]:
    return [
        lane.device.active
        for lane in profile.lanes.values()
        if lane.device.active is not None and lane.state == "ready" and not lane.draining
    ]


def _held_by_queue(pool: Pool, entry: Entry) -> list[Worker]:
    queue = entry.job_class.key.caller.queue
    return [
        worker
        for worker in pool.workers.values()
        if worker.state in HELD_STATES
        and worker.key is not None
        and worker.key.caller.queue == queue
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
