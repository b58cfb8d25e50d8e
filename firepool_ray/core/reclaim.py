"""Gives GPUs back to work outside the pool that waits for them. Called by ``machine``.

A queue may run other work than the pool's (``QueueSignal``). Where such work is within its quota
and waits, and the pool holds more than would leave room for it, lanes go: first those that nobody
uses, then those of idle workers beyond their queue's budget. Busy workers and those idle for less
than the linger stay; budgets protect the rest. Exactly what is asked for goes, whole lanes at a
time, and what leaves already counts.
"""

from __future__ import annotations

from firepool_ray.core import budget, eviction, growth, leases
from firepool_ray.core.state import EPSILON, Lane, Pool, Profile, Worker

#: While work outside waits, looked at again this often.
LOOK_EVERY_S = 1.0
WHY = "work outside the pool waits for its GPUs"


def asked(pool: Pool, gpu_type: str) -> float:
    """Units that must go so that entitled work outside the pool fits.

    All there is are the pool's ``max_gpus``; without them, what its lanes could reserve.
    """
    profiles = [p for p in pool.profiles.values() if p.gpu_type == gpu_type]
    pending = running = 0.0
    for queue in pool.queues.values():
        if queue.outside_type == gpu_type:
            outside_running, outside_pending = queue.outside
            room = queue.quota - queue.held_of.get(gpu_type, 0.0) - outside_running
            # Its own idle workers may go for it as well.
            room += queue.idle_of.get(gpu_type, 0.0)
            pending += max(0.0, min(outside_pending, room))
            running += outside_running
    if pending <= EPSILON:
        return 0.0
    reserved = sum(p.counted * p.spec.unit for p in profiles)
    bounded = pool.spec.max_gpus < float("inf")
    total = pool.spec.max_gpus if bounded else budget.cap_of(pool, gpu_type)
    free = max(0.0, total - running - reserved)
    return max(0.0, pending - free)


def reclaim(pool: Pool, at: float) -> None:
    """Let lanes go for whoever waits outside; look again while anybody does."""
    waiting = False
    for gpu_type in dict.fromkeys(p.gpu_type for p in pool.profiles.values()):
        wanted = asked(pool, gpu_type)
        waiting = waiting or wanted > EPSILON
        wanted -= sum(
            lane.profile.spec.unit
            for lane in pool.giving_back.values()
            if lane.profile.gpu_type == gpu_type
        )
        while wanted > EPSILON and (lane := _unused_lane(pool, gpu_type)) is not None:
            wanted -= lane.profile.spec.unit
            growth.retire(pool, lane, WHY, at)
        while wanted > EPSILON and (worker := _idle_worker(pool, gpu_type, at)) is not None:
            wanted -= worker.lane.profile.spec.unit
            pool.giving_back[worker.lane.id] = worker.lane
            leases.revoke(pool, worker, "reclaim", "if_idle", at)
    if waiting:
        pool.agenda.set_earlier(("give back", ""), at + LOOK_EVERY_S)


def _profiles(pool: Pool, gpu_type: str) -> list[Profile]:
    """Those that hold more lanes than they keep, counting those that go already."""
    going: dict[str, int] = {}
    for lane in pool.giving_back.values():
        going[lane.profile.spec.name] = going.get(lane.profile.spec.name, 0) + 1
    return [
        p
        for p in pool.profiles.values()
        if p.gpu_type == gpu_type
        and p.counted - going.get(p.spec.name, 0) > p.spec.min_lanes
        and not any(p.waiting.values())  # its own demand comes first to its own lanes
    ]


def _unused_lane(pool: Pool, gpu_type: str) -> Lane | None:
    for profile in _profiles(pool, gpu_type):
        lane = profile.ready.last() or profile.startable.last()
        if lane is not None:
            return lane
    return None


def _idle_worker(pool: Pool, gpu_type: str, at: float) -> Worker | None:
    """Of the queue furthest over its budget, the one that goes first."""
    over = []
    for name, queue in pool.queues.items():
        terms = budget.terms(pool, name, gpu_type, at)
        # What is idle now: those already asked to go are idle no more, but budgets may be older.
        excess = queue.idle_of.get(gpu_type, 0.0) - terms.budget
        if excess > EPSILON:
            over.append((excess / terms.weight, queue))
    over.sort(key=lambda pair: -pair[0])
    profiles = _profiles(pool, gpu_type)
    for _, queue in over:
        for profile in profiles:
            for shelf in (profile.recycle, profile.handover):
                lane = eviction.find_victim(pool, profile, shelf, None, at, queue)
                if lane is not None:
                    return lane.device.active
    return None


def worker_left(pool: Pool, lane: Lane, at: float) -> None:
    """The idle worker of a lane that is to be given back is gone: the lane follows."""
    if pool.giving_back.pop(lane.id, None) is None or lane.draining or lane.state != "ready":
        return
    if lane.device.active is None and lane.profile.counted > lane.profile.spec.min_lanes:
        growth.retire(pool, lane, WHY, at)
