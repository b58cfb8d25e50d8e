"""What the machine learns of lanes and nodes, and what follows at once.

One function per event; ``machine`` finds them in ``HANDLERS``. Each checks first whether the event
is possible (else ``IllegalTransition``) or only late (else dropped), then changes state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firepool_ray.core import events as ev
from firepool_ray.core import growth, leases, nodes, staffing
from firepool_ray.core.actions import RemoveLane
from firepool_ray.core.shelves import shelve
from firepool_ray.core.state import Device, Lane, Pool
from firepool_ray.errors import IllegalTransition


def on_lane_ready(pool: Pool, event: ev.LaneReady) -> None:
    lane = pool.lanes.get(event.lane)
    if lane is None or lane.state == "retiring":
        return
    if lane.state != "growing":
        raise IllegalTransition(f"lane {lane.id} is {lane.state}, not growing")
    profile = lane.profile
    profile.growing -= 1
    profile.grow_failures = 0
    grow_s = event.at - lane.since
    profile.grow_cost_s += staffing.COST_GAIN * (grow_s - profile.grow_cost_s)
    profile.costs.grow.add(grow_s)
    lane.move("ready")
    nodes.settle(pool, lane, event.node)
    join_device(pool, lane, event.device)
    if lane.needed and staffing.may_start(pool, profile, event.at):
        staffing.start(pool, lane, event.at, fresh=not lane.ahead)
    shelve(pool, lane.device)
    growth.watch_unused(pool, lane.device, event.at)


def join_device(pool: Pool, lane: Lane, name: str) -> None:
    if not name or name == lane.device.id:
        return
    del pool.devices[lane.device.id]
    device = pool.devices.get(name)
    if device is None:
        device = pool.devices[name] = Device(name)
    device.lanes.append(lane)
    lane.device = device


def on_lane_failed(pool: Pool, event: ev.LaneFailed) -> None:
    lane = pool.lanes.get(event.lane)
    if lane is None or lane.state == "retiring":
        return
    if lane.state != "growing":
        raise IllegalTransition(f"lane {lane.id} is {lane.state}, not growing")
    lane.profile.growing -= 1
    lane.draining = True
    growth.uncount(pool, lane, event.at)
    lane.move("retiring")
    pool.out.append(RemoveLane(lane.id))
    staffing.grow_failed(pool, lane.profile, event.reason, event.at)


def on_lane_removed(pool: Pool, event: ev.LaneRemoved) -> None:
    lane = pool.lanes.get(event.lane)
    if lane is None:
        return
    if lane.state != "retiring":
        raise IllegalTransition(f"lane {lane.id} is {lane.state}, not retiring")
    lane.move("gone")
    nodes.depart(pool, lane)
    del pool.lanes[lane.id]
    del lane.profile.lanes[lane.id]
    lane.device.lanes.remove(lane)
    if not lane.device.lanes:
        pool.devices.pop(lane.device.id, None)
    pool.reserved_gpus = max(0.0, pool.reserved_gpus - lane.profile.spec.gpus)
    pool.releasing.pop(lane.id, None)
    pool.agenda.cancel(("lane", lane.id))
    for profile in pool.profiles.values():
        pool.dirty[profile.spec.name] = None


def on_node_lost(pool: Pool, event: ev.NodeLost) -> None:
    """Everything there is gone: no process is left to revoke, kill or sweep."""
    lost = [
        lane
        for lane in pool.lanes.values()
        if lane.node == event.node and lane.state in ("ready", "quarantined")
    ]
    for lane in lost:
        lane.draining = True
        growth.uncount(pool, lane, event.at)
        pool.agenda.cancel(("lane", lane.id))
        for worker in lane.workers():
            if worker.state != "leaving":
                leases.leave(pool, worker, event.reason, event.at, kill=False)
            leases.remove(pool, worker, event.at)
    for lane in lost:
        leases.promote_next(pool, lane.device, event.at)
        shelve(pool, lane.device)
        growth.close_if_empty(pool, lane)
    for profile in pool.profiles.values():
        pool.dirty[profile.spec.name] = None


def on_node_draining(pool: Pool, event: ev.NodeDraining) -> None:
    """Its lanes take nothing new and go when their jobs have finished; others come meanwhile."""
    for lane in [lane for lane in pool.lanes.values() if lane.node == event.node]:
        if lane.draining or lane.state not in ("ready", "quarantined"):
            continue
        was_used = lane.device.active is not None
        growth.retire(pool, lane, "its node is draining", event.at)
        if was_used:
            growth.replace(pool, lane.profile, event.at)
    for profile in pool.profiles.values():
        pool.dirty[profile.spec.name] = None


HANDLERS: dict[type[ev.Event], Callable[[Pool, Any], None]] = {
    ev.LaneReady: on_lane_ready,
    ev.LaneFailed: on_lane_failed,
    ev.LaneRemoved: on_lane_removed,
    ev.NodeLost: on_node_lost,
    ev.NodeDraining: on_node_draining,
}
