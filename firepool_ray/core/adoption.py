"""A controller that restarts takes over what stands: lanes, workers and what their words say.

Called by ``machine`` before ``Reconciled``; nothing is decided yet. Leases whose clients do not
state them again are revoked later (``reclaim``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firepool_ray.core import events as ev
from firepool_ray.core import holders, leases, ledger, nodes
from firepool_ray.core.actions import RevokeLease
from firepool_ray.core.lane_news import join_device
from firepool_ray.core.shelves import set_idle
from firepool_ray.core.state import Device, Lane, Pool, Worker
from firepool_ray.errors import IllegalTransition


def on_lane_adopted(pool: Pool, event: ev.LaneAdopted) -> None:
    if pool.open or event.lane in pool.lanes or event.profile not in pool.profiles:
        raise IllegalTransition(f"lane {event.lane} cannot be adopted now")
    profile = pool.profiles[event.profile]
    device = pool.devices[event.lane] = Device(event.lane)
    slots: list[Worker | None] = [None] * (profile.spec.standbys + 1)
    number = pool.number()
    lane = Lane(event.lane, number, profile, device, "ready", slots, since=event.at)
    nodes.settle(pool, lane, event.node)
    device.lanes.append(lane)
    pool.lanes[lane.id] = profile.lanes[lane.id] = lane
    profile.counted += 1
    pool.reserved_gpus += profile.spec.gpus
    join_device(pool, lane, event.device)


def on_worker_adopted(pool: Pool, event: ev.WorkerAdopted) -> None:
    lane = pool.lanes.get(event.lane)
    if pool.open or lane is None or event.worker in pool.workers or event.slot < 0:
        raise IllegalTransition(f"worker {event.worker} cannot be adopted now")
    if event.slot < len(lane.slots) and lane.slots[event.slot] is not None:
        raise IllegalTransition(f"slot {event.slot} of lane {lane.id} is taken twice")
    while len(lane.slots) <= event.slot:
        lane.slots.append(None)
    worker = Worker(event.worker, pool.number(), lane, event.slot, "standby", event.at)
    lane.slots[event.slot] = pool.workers[worker.id] = worker
    if event.state != "standby":
        _adopt_bound(pool, worker, event)


def _adopt_bound(pool: Pool, worker: Worker, event: ev.WorkerAdopted) -> None:
    at, device = event.at, worker.lane.device
    key, fence = event.key, event.fence
    known = key is not None and key.caller.queue in pool.queues
    if key is None or fence is None or not known or device.active is not None:
        device.active = device.active or worker
        if fence is not None and event.state != "revoked":
            pool.out.append(RevokeLease(worker.id, fence, "stop"))
        leases.leave(pool, worker, "adopted without a usable lease", at)
        return
    worker.move("promoting", at)
    worker.move("bound", at - event.age_s)
    worker.key, worker.fence, worker.client = key, fence, event.client
    device.active = worker
    ledger.charge(pool, worker, at)
    if event.state == "revoked" or not event.client:
        worker.client = ""
    else:
        client = holders.client_of(pool, event.client)
        client.leases[worker.id] = fence
        client.callers[key.caller] = None
        ledger.caller_state(pool, key.caller, at).clients[client.id] = None
    if event.state == "revoked":
        leases.leave(pool, worker, "revoked before the controller restarted", at)
    elif event.state == "draining" or not event.client:
        leases.release(pool, worker, "drain", at)
    elif event.state == "idle":
        set_idle(pool, worker, at - event.age_s)


HANDLERS: dict[type[ev.Event], Callable[[Pool, Any], None]] = {
    ev.LaneAdopted: on_lane_adopted,
    ev.WorkerAdopted: on_worker_adopted,
}
