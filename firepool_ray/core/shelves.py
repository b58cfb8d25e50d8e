"""Indexes that make every decision cheap: which lanes and workers could serve whom.

Each lane stands on at most one shelf of its profile, decided by its own slots and its device. Call
``shelve`` after any change of a worker on the device; the rest of the core only reads shelves.

    ready      the device is free and a standby waits
    soon       a standby waits, the device's worker is leaving
    coming     the device is free or being freed, a worker is starting or about to
    startable  the device is free and so is a slot
    handover   an idle worker holds the device, a standby waits
    recycle    an idle worker holds the device, no standby

Beside the shelves it keeps the profile's list of lanes that lack a standby.
"""

from __future__ import annotations

from firepool_ray.core import retention
from firepool_ray.core.ordered import Ordered
from firepool_ray.core.state import Device, Lane, Pool, Profile, Worker

UNBOUND_STATES = frozenset({"starting", "standby", "reserved", "promoting"})


def standby_of(lane: Lane) -> Worker | None:
    """A worker of the lane that waits unbound and unclaimed."""
    for worker in lane.slots:
        if worker is not None and worker.state == "standby":
            return worker
    return None


def shelve(pool: Pool, device: Device) -> None:
    for lane in device.lanes:
        _place_on_shelf(pool, device, lane)


def _place_on_shelf(pool: Pool, device: Device, lane: Lane) -> None:
    profile = lane.profile
    name = _shelf_name(device, lane)
    victim = device.active if name in ("handover", "recycle") else None
    queue = victim.key.caller.queue if victim is not None and victim.key is not None else ""
    if lacks_standby(lane):
        profile.refill[lane.id] = lane
        pool.refill[profile.spec.name] = None
    elif profile.refill:
        profile.refill.pop(lane.id, None)
    if lane.shelf and (lane.shelf != name or lane.shelf_queue != queue):
        _shelf(profile, lane.shelf, lane.shelf_queue).discard(lane.number)
    lane.shelf, lane.shelf_queue = name, queue
    if name:
        key = float(lane.rank)
        if victim is not None:
            key = victim.idle_since if victim.idle_since is not None else 0.0
        _shelf(profile, name, queue).add(key, lane.number, lane)
        pool.dirty[profile.spec.name] = None


def lacks_standby(lane: Lane) -> bool:
    """Something is missing beside the active worker. One that is about to be promoted is not yet
    missed, so that its successor's start does not slow the promotion down.
    """
    if lane.state != "ready" or lane.draining or None not in lane.slots:
        return False
    unbound = sum(1 for w in lane.slots if w is not None and w.state in UNBOUND_STATES)
    return unbound < lane.profile.spec.standbys


def _shelf_name(device: Device, lane: Lane) -> str:
    if lane.state != "ready" or lane.draining or device.next is not None:
        return ""
    active = device.active
    standby = starting = free = False
    for worker in lane.slots:
        if worker is None:
            free = True
        elif worker.state == "standby":
            standby = True
        elif worker.state == "starting":
            starting = True
    if active is None:
        return "ready" if standby else "coming" if starting else "startable" if free else ""
    if active.state == "leaving":
        if active.lane.state == "quarantined":
            return ""
        return "soon" if standby else "coming"
    if active.idle_since is not None:
        return "handover" if standby else "recycle"
    return ""


def _shelf(profile: Profile, name: str, queue: str) -> Ordered[Lane]:
    if name == "ready":
        return profile.ready
    if name == "soon":
        return profile.soon
    if name == "coming":
        return profile.coming
    if name == "startable":
        return profile.startable
    by_queue = profile.handover if name == "handover" else profile.recycle
    shelf = by_queue.get(queue)
    if shelf is None:
        shelf = by_queue[queue] = Ordered()
    return shelf


def set_idle(pool: Pool, worker: Worker, since: float) -> None:
    """The bound worker is known to be idle since then: it may be reused, moved or evicted."""
    assert worker.key is not None
    queue, profile = pool.queues[worker.key.caller.queue], worker.lane.profile
    if worker.idle_since is None:
        pool.idle_units += profile.spec.unit
        gpu_type = profile.gpu_type
        queue.idle_of[gpu_type] = queue.idle_of.get(gpu_type, 0.0) + profile.spec.unit
    worker.idle_since = since
    pool.idle.add(since, worker.number, worker)
    queue.idle.add(since, worker.number, worker)
    warm = pool.warm.get(worker.key)
    if warm is None:
        warm = pool.warm[worker.key] = Ordered()
    warm.add(-since, worker.number, worker)  # newest first: last in, first out is optimal
    if worker.key in pool.wanting:
        pool.rematch[worker.key] = None
    until = retention.became_idle(pool, worker, since)
    if until < float("inf"):
        pool.agenda.set(("ttl", worker.id), until)
    shelve(pool, worker.lane.device)


def clear_idle(pool: Pool, worker: Worker) -> None:
    """The worker is busy, being revoked or gone. Does nothing if it was not idle."""
    if worker.idle_since is None:
        return
    assert worker.key is not None
    worker.idle_since = None
    queue, profile = pool.queues[worker.key.caller.queue], worker.lane.profile
    pool.idle_units -= profile.spec.unit
    pool.idle.discard(worker.number)
    queue.idle.discard(worker.number)
    gpu_type = profile.gpu_type
    queue.idle_of[gpu_type] = queue.idle_of[gpu_type] - profile.spec.unit if queue.idle else 0.0
    if not pool.idle:
        pool.idle_units = 0.0
    warm = pool.warm[worker.key]
    warm.discard(worker.number)
    if not warm:
        del pool.warm[worker.key]
    pool.agenda.cancel(("ttl", worker.id))
    shelve(pool, worker.lane.device)
