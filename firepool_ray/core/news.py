"""What the machine learns of lanes, workers and nodes, and what follows at once.

One function per event; ``machine`` finds them in ``HANDLERS``. Each checks first whether the event
is possible (else ``IllegalTransition``) or only late (else dropped), then changes state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firepool_ray.core import events as ev
from firepool_ray.core import leases, ledger, placement, staffing
from firepool_ray.core.actions import RemoveLane, RetireWorker
from firepool_ray.core.model import Fence
from firepool_ray.core.shelves import clear_idle, set_idle, shelve
from firepool_ray.core.state import Device, Lane, Pool, Worker
from firepool_ray.errors import IllegalTransition

#: Weight of the newest measurement in a moving average of costs.
COST_GAIN = 0.2


def _worker(pool: Pool, name: str, *states: str) -> Worker | None:
    """The worker, if the news can concern it; None if it is only late."""
    worker = pool.workers.get(name)
    if worker is None or worker.state in ("leaving", "gone"):
        return None
    if worker.state not in states:
        raise IllegalTransition(
            f"worker {name} is {worker.state}; this news is for {' or '.join(states)}"
        )
    return worker


def _leased(pool: Pool, name: str, fence: Fence) -> Worker | None:
    """The worker, if ``fence`` is its present lease."""
    worker = pool.workers.get(name)
    if worker is None or worker.fence != fence or worker.state in ("leaving", "gone"):
        return None
    return worker


# ---------------------------------------------------------------- workers


def on_worker_started(pool: Pool, event: ev.WorkerStarted) -> None:
    worker = _worker(pool, event.worker, "starting")
    if worker is None:
        return
    profile = worker.lane.profile
    cost = event.at - worker.since
    profile.start_cost_s += COST_GAIN * (cost - profile.start_cost_s)
    profile.starting -= 1
    profile.failures = 0
    profile.retry_at = profile.open_until = 0.0
    worker.move("standby", event.at)
    shelve(pool, worker.lane.device)
    if pool.open:
        placement.place(pool, profile, event.at)
    worker.fresh = False
    staffing.staff(pool, worker.lane)
    staffing.watch_unused(pool, worker.lane, event.at)


def on_worker_start_failed(pool: Pool, event: ev.WorkerStartFailed) -> None:
    worker = _worker(pool, event.worker, "starting")
    if worker is None:
        return
    leases.leave(pool, worker, event.reason, event.at)
    staffing.start_failed(pool, worker.lane.profile, event.reason, event.at)


def on_worker_promoted(pool: Pool, event: ev.WorkerPromoted) -> None:
    worker = _leased(pool, event.worker, event.fence)
    if worker is None:
        return
    if worker.state != "promoting":
        raise IllegalTransition(f"worker {worker.id} is {worker.state}, not promoting")
    profile = worker.lane.profile
    cost = event.at - worker.since
    profile.promote_cost_s += COST_GAIN * (cost - profile.promote_cost_s)
    worker.move("bound", event.at)
    leases.grant(pool, worker, event.at)
    staffing.staff(pool, worker.lane)
    _drain_if_leaving(pool, worker, event.at)


def on_promotion_failed(pool: Pool, event: ev.PromotionFailed) -> None:
    worker = _leased(pool, event.worker, event.fence)
    if worker is None:
        return
    if worker.state != "promoting":
        raise IllegalTransition(f"worker {worker.id} is {worker.state}, not promoting")
    leases.leave(pool, worker, event.reason, event.at)
    staffing.start_failed(pool, worker.lane.profile, event.reason, event.at)


def on_lease_regranted(pool: Pool, event: ev.LeaseRegranted) -> None:
    worker = _leased(pool, event.worker, event.fence)
    if worker is None:
        return
    if worker.state != "regranting":
        raise IllegalTransition(f"worker {worker.id} is {worker.state}, not regranting")
    worker.move("bound", event.at)
    leases.grant(pool, worker, event.at)
    _drain_if_leaving(pool, worker, event.at)


def on_revoke_answered(pool: Pool, event: ev.RevokeAnswered) -> None:
    worker = _leased(pool, event.worker, event.fence)
    if worker is None or worker.state not in ("revoking", "draining"):
        return
    at = event.at
    if event.answer == "dead":
        leases.leave(pool, worker, "its process is gone", at)
    elif event.answer == "gone":
        leases.ended(pool, worker, at)
        _after_end(pool, worker, at)
    elif event.answer == "moved":
        if worker.successor is None:
            raise IllegalTransition(f"worker {worker.id} was not asked to move")
        draining = worker.state == "draining"
        leases.moved(pool, worker, at)
        if not draining:
            _drain_if_leaving(pool, worker, at)
    elif worker.state == "revoking":  # busy, draining or stale: nothing was revoked
        leases.stay(pool, worker, at)
        _drain_if_leaving(pool, worker, at)


def on_lease_ended(pool: Pool, event: ev.LeaseEnded) -> None:
    worker = _leased(pool, event.worker, event.fence)
    if worker is None or worker.state != "draining":
        return
    leases.ended(pool, worker, event.at)
    _after_end(pool, worker, event.at)


def _after_end(pool: Pool, worker: Worker, at: float) -> None:
    if worker.state == "unleased" and worker.key is not None:
        placement.match_warm(pool, worker.key, at)


def _drain_if_leaving(pool: Pool, worker: Worker, at: float) -> None:
    """A lane that is to go takes no new work: whatever was bound there meanwhile is drained."""
    if worker.lane.draining and worker.state == "bound":
        leases.revoke(pool, worker, "retire", "drain", at)


def on_worker_idle(pool: Pool, event: ev.WorkerIdle) -> None:
    worker = _leased(pool, event.worker, event.fence)
    if worker is None or worker.state != "bound" or worker.key is None:
        return
    set_idle(pool, worker, min(event.idle_since, event.at))
    placement.match_warm(pool, worker.key, event.at)


def on_worker_busy(pool: Pool, event: ev.WorkerBusy) -> None:
    worker = _leased(pool, event.worker, event.fence)
    if worker is not None and worker.state == "bound":
        clear_idle(pool, worker)


def on_worker_exited(pool: Pool, event: ev.WorkerExited) -> None:
    worker = pool.workers.get(event.worker)
    if worker is None or worker.state in ("leaving", "gone"):
        return
    starting = worker.state == "starting"
    leases.leave(pool, worker, event.reason, event.at)
    if starting:
        staffing.start_failed(pool, worker.lane.profile, event.reason, event.at)


def on_worker_retired(pool: Pool, event: ev.WorkerRetired) -> None:
    worker = pool.workers.get(event.worker)
    if worker is None or worker.state == "gone":
        return
    if worker.state != "leaving":
        raise IllegalTransition(f"worker {worker.id} is {worker.state}, not leaving")
    lane = worker.lane
    _remove_worker(pool, worker, event.at)
    pool.agenda.cancel(("sweep", worker.id))
    if lane.state == "quarantined" and not any(w.state == "leaving" for w in lane.workers()):
        lane.move("ready")
    _promote_next(pool, lane.device, event.at)
    shelve(pool, lane.device)
    staffing.staff(pool, lane)
    staffing.watch_unused(pool, lane, event.at)
    staffing.close_if_empty(pool, lane)


def _promote_next(pool: Pool, device: Device, at: float) -> None:
    standby = device.next
    if standby is not None and device.active is None:
        assert standby.claim is not None
        if standby.claim.entry.client in pool.clients:
            leases.promote(pool, standby, standby.claim, at)
        else:
            unreserve(pool, standby, at)


def unreserve(pool: Pool, standby: Worker, at: float) -> None:
    """Whoever was to get this standby does not want it any more."""
    standby.lane.device.next = None
    standby.move("standby", at)
    leases.drop_claim(pool, standby)
    shelve(pool, standby.lane.device)


def _remove_worker(pool: Pool, worker: Worker, at: float) -> None:
    worker.move("gone", at)
    worker.lane.slots[worker.slot] = None
    if worker.lane.device.active is worker:
        worker.lane.device.active = None
    del pool.workers[worker.id]


def on_retire_failed(pool: Pool, event: ev.RetireFailed) -> None:
    worker = pool.workers.get(event.worker)
    if worker is None or worker.state == "gone":
        return
    if worker.state != "leaving":
        raise IllegalTransition(f"worker {worker.id} is {worker.state}, not leaving")
    lane = worker.lane
    if lane.state == "ready":
        lane.move("quarantined")
    lane.profile.reason = event.reason
    if lane.device.next is not None:
        unreserve(pool, lane.device.next, event.at)
    shelve(pool, lane.device)
    pool.agenda.set(("sweep", worker.id), event.at + staffing.SWEEP_RETRY_S)


def retry_sweep(pool: Pool, worker: Worker) -> None:
    pool.out.append(RetireWorker(worker.id, "sweep again"))


# ---------------------------------------------------------------- lanes and nodes


def on_lane_ready(pool: Pool, event: ev.LaneReady) -> None:
    lane = pool.lanes.get(event.lane)
    if lane is None or lane.state in ("retiring", "gone"):
        return
    if lane.state != "growing":
        raise IllegalTransition(f"lane {lane.id} is {lane.state}, not growing")
    profile = lane.profile
    profile.growing -= 1
    profile.grow_failures = 0
    profile.grow_cost_s += COST_GAIN * (event.at - lane.since - profile.grow_cost_s)
    lane.move("ready")
    lane.node = event.node
    _join_device(pool, lane, event.device)
    if lane.draining:
        staffing.close_if_empty(pool, lane)
        return
    if lane.needed and staffing.may_start(pool, profile, event.at):
        staffing.start(pool, lane, event.at, fresh=True)
    shelve(pool, lane.device)
    staffing.staff(pool, lane)
    staffing.watch_unused(pool, lane, event.at)


def _join_device(pool: Pool, lane: Lane, name: str) -> None:
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
    if lane is None or lane.state in ("retiring", "gone"):
        return
    if lane.state != "growing":
        raise IllegalTransition(f"lane {lane.id} is {lane.state}, not growing")
    lane.profile.growing -= 1
    lane.draining = True
    staffing.uncount(pool, lane)
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
    del pool.lanes[lane.id]
    del lane.profile.lanes[lane.id]
    lane.device.lanes.remove(lane)
    if not lane.device.lanes:
        pool.devices.pop(lane.device.id, None)
    pool.reserved_gpus = max(0.0, pool.reserved_gpus - lane.profile.spec.gpus)
    pool.releasing_gpus = max(0.0, pool.releasing_gpus - lane.profile.spec.gpus)
    for profile in pool.profiles.values():
        pool.dirty[profile.spec.name] = None
        if pool.open:
            staffing.keep_minimum(pool, profile, event.at)


def on_node_lost(pool: Pool, event: ev.NodeLost) -> None:
    """Everything there is gone: no process is left to revoke, kill or sweep."""
    for lane in [lane for lane in pool.lanes.values() if lane.node == event.node]:
        if lane.state in ("retiring", "gone"):
            continue
        lane.draining = True
        staffing.uncount(pool, lane)
        pool.agenda.cancel(("lane", lane.id))
        for worker in lane.workers():
            if worker.state != "leaving":
                leases.leave(pool, worker, event.reason, event.at, kill=False)
            pool.agenda.cancel(("sweep", worker.id))
            _remove_worker(pool, worker, event.at)
        pool.refill.pop(lane.id, None)
        _promote_next(pool, lane.device, event.at)
        shelve(pool, lane.device)
        staffing.close_if_empty(pool, lane)
    for profile in pool.profiles.values():
        if pool.open:
            staffing.keep_minimum(pool, profile, event.at)


def on_node_draining(pool: Pool, event: ev.NodeDraining) -> None:
    """Its lanes take nothing new and go when their jobs have finished; others come meanwhile."""
    for lane in [lane for lane in pool.lanes.values() if lane.node == event.node]:
        if lane.draining or lane.state not in ("ready", "quarantined"):
            continue
        was_used = lane.device.active is not None
        staffing.retire(pool, lane, "its node is draining", event.at)
        profile = lane.profile
        if was_used and profile.counted < profile.spec.max_lanes:
            staffing.grow(pool, profile, event.at, needed=False)
    for profile in pool.profiles.values():
        staffing.keep_minimum(pool, profile, event.at)


# ---------------------------------------------------------------- adoption after a restart


def on_lane_adopted(pool: Pool, event: ev.LaneAdopted) -> None:
    if pool.open or event.lane in pool.lanes or event.profile not in pool.profiles:
        raise IllegalTransition(f"lane {event.lane} cannot be adopted now")
    profile = pool.profiles[event.profile]
    device = pool.devices[event.lane] = Device(event.lane)
    slots: list[Worker | None] = [None] * (profile.spec.standbys + 1)
    number = pool.number()
    lane = Lane(event.lane, number, profile, device, "ready", slots, event.node, since=event.at)
    device.lanes.append(lane)
    pool.lanes[lane.id] = profile.lanes[lane.id] = lane
    profile.counted += 1
    pool.reserved_gpus += profile.spec.gpus
    _join_device(pool, lane, event.device)


def on_worker_adopted(pool: Pool, event: ev.WorkerAdopted) -> None:
    lane = pool.lanes.get(event.lane)
    if pool.open or lane is None or event.worker in pool.workers:
        raise IllegalTransition(f"worker {event.worker} cannot be adopted now")
    while len(lane.slots) <= event.slot:
        lane.slots.append(None)
    if lane.slots[event.slot] is not None:
        raise IllegalTransition(f"slot {event.slot} of lane {lane.id} is taken twice")
    at, number = event.at, pool.number()
    worker = Worker(event.worker, number, lane, event.slot, "standby", at)
    lane.slots[event.slot] = pool.workers[worker.id] = worker
    if event.state == "standby":
        return
    known = event.key is not None and event.key.caller.queue in pool.queues
    if event.key is None or event.fence is None or not known or lane.device.active is not None:
        lane.device.active = lane.device.active or worker
        leases.leave(pool, worker, "adopted without a usable lease", at)
        return
    worker.key, worker.fence, worker.client = event.key, event.fence, event.client
    worker.state, worker.since = "bound", at - event.age_s
    lane.device.active = worker
    ledger.charge(pool, worker, at)
    if event.state == "revoked":
        worker.client = ""
        leases.leave(pool, worker, "revoked before the controller restarted", at)
        return
    client = leases.client_of(pool, event.client)
    client.leases[worker.id] = event.fence
    client.callers[event.key.caller] = None
    ledger.caller_state(pool, event.key.caller, at).clients[client.id] = None
    if event.state == "idle":
        set_idle(pool, worker, at - event.age_s)
    elif event.state == "draining":
        leases.release(pool, worker, "drain", at)


HANDLERS: dict[type[ev.Event], Callable[[Pool, Any], None]] = {
    ev.WorkerStarted: on_worker_started,
    ev.WorkerStartFailed: on_worker_start_failed,
    ev.WorkerPromoted: on_worker_promoted,
    ev.PromotionFailed: on_promotion_failed,
    ev.LeaseRegranted: on_lease_regranted,
    ev.RevokeAnswered: on_revoke_answered,
    ev.LeaseEnded: on_lease_ended,
    ev.WorkerIdle: on_worker_idle,
    ev.WorkerBusy: on_worker_busy,
    ev.WorkerExited: on_worker_exited,
    ev.WorkerRetired: on_worker_retired,
    ev.RetireFailed: on_retire_failed,
    ev.LaneReady: on_lane_ready,
    ev.LaneFailed: on_lane_failed,
    ev.LaneRemoved: on_lane_removed,
    ev.NodeLost: on_node_lost,
    ev.NodeDraining: on_node_draining,
    ev.LaneAdopted: on_lane_adopted,
    ev.WorkerAdopted: on_worker_adopted,
}
