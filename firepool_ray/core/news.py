"""What the machine learns of workers, and what follows at once.

One function per event; ``machine`` finds them in ``HANDLERS``. Each checks first whether the event
is possible (else ``IllegalTransition``) or only late (else dropped), then changes state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firepool_ray.core import (
    bursts,
    growth,
    leases,
    placement,
    reclaim,
    retention,
    staffing,
    warming,
)
from firepool_ray.core import events as ev
from firepool_ray.core.actions import RetireWorker
from firepool_ray.core.model import Fence
from firepool_ray.core.shelves import clear_idle, set_idle, shelve
from firepool_ray.core.state import Pool, Worker
from firepool_ray.errors import IllegalTransition


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


def on_worker_started(pool: Pool, event: ev.WorkerStarted) -> None:
    worker = _worker(pool, event.worker, "starting")
    if worker is None:
        return
    profile = worker.lane.profile
    cost = event.at - worker.since
    profile.start_cost_s += staffing.COST_GAIN * (cost - profile.start_cost_s)
    profile.costs.start.add(cost)
    profile.starting -= 1
    staffing.succeeded(profile, promoted=False)
    worker.move("standby", event.at)
    meant_for_burst = bool(worker.lane.ahead)
    bursts.meant_for(profile, worker.lane, "")
    shelve(pool, worker.lane.device)
    if pool.open:
        if meant_for_burst:
            warming.serve(pool, profile, event.at)
        placement.place(pool, profile, event.at)
    worker.fresh = False
    growth.watch_unused(pool, worker.lane.device, event.at)


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
    profile.promote_cost_s += staffing.COST_GAIN * (cost - profile.promote_cost_s)
    staffing.succeeded(profile, promoted=True)
    worker.move("bound", event.at)
    if worker.claim is not None:
        leases.grant(pool, worker, event.at)
    else:  # bound ahead: its warden tells that it is idle
        leases.hear_idle(pool, worker)
    shelve(pool, worker.lane.device)
    _drain_if_leaving(pool, worker, event.at)


def on_promotion_failed(pool: Pool, event: ev.PromotionFailed) -> None:
    worker = _leased(pool, event.worker, event.fence)
    if worker is None:
        return
    if worker.state != "promoting":
        raise IllegalTransition(f"worker {worker.id} is {worker.state}, not promoting")
    leases.leave(pool, worker, event.reason, event.at)
    staffing.promotion_failed(pool, worker.lane.profile, event.reason, event.at)


def on_lease_regranted(pool: Pool, event: ev.LeaseRegranted) -> None:
    worker = _leased(pool, event.worker, event.fence)
    if worker is None:
        return
    if worker.state != "regranting":
        raise IllegalTransition(f"worker {worker.id} is {worker.state}, not regranting")
    worker.move("bound", event.at)
    leases.grant(pool, worker, event.at)
    shelve(pool, worker.lane.device)
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
    elif event.answer == "moved":
        if worker.successor is None:
            raise IllegalTransition(f"worker {worker.id} was not asked to move")
        leases.moved(pool, worker, at)
        _drain_if_leaving(pool, worker, at)
    elif worker.state == "revoking":  # busy, draining or stale: nothing was revoked
        leases.stay(pool, worker, at)
        _drain_if_leaving(pool, worker, at)
    elif event.answer == "stale" and worker.successor is None:
        leases.leave(pool, worker, "its lease word is not ours", at)


def on_lease_ended(pool: Pool, event: ev.LeaseEnded) -> None:
    worker = _leased(pool, event.worker, event.fence)
    if worker is not None and worker.state == "draining":
        leases.ended(pool, worker, event.at)


def _drain_if_leaving(pool: Pool, worker: Worker, at: float) -> None:
    """A lane that is to go takes no new work: whatever was bound there meanwhile is drained."""
    if worker.lane.draining and worker.state == "bound":
        leases.revoke(pool, worker, "retire", "drain", at)


def on_worker_idle(pool: Pool, event: ev.WorkerIdle) -> None:
    worker = pool.workers.get(event.worker)
    if worker is None or event.fence not in (worker.fence, worker.successor):
        return
    since = min(event.idle_since, event.at)
    if worker.state == "bound":
        set_idle(pool, worker, since)
    elif worker.state in ("promoting", "regranting", "revoking"):
        worker.heard_idle = (event.fence, since)


def on_worker_busy(pool: Pool, event: ev.WorkerBusy) -> None:
    worker = pool.workers.get(event.worker)
    if worker is None:
        return
    if worker.heard_idle is not None and worker.heard_idle[0] == event.fence:
        worker.heard_idle = None
    if worker.fence == event.fence and worker.state == "bound":
        if worker.idle_since is not None:
            since = event.at if event.since is None else min(event.since, event.at)
            retention.works_again(pool, worker, max(since, worker.idle_since))
        clear_idle(pool, worker)


def on_worker_exited(pool: Pool, event: ev.WorkerExited) -> None:
    worker = pool.workers.get(event.worker)
    if worker is None or worker.state in ("leaving", "gone"):
        return
    was, profile = worker.state, worker.lane.profile
    leases.leave(pool, worker, event.reason, event.at)
    if was == "starting":
        staffing.start_failed(pool, profile, event.reason, event.at)
    elif was == "promoting":
        staffing.promotion_failed(pool, profile, event.reason, event.at)


def on_worker_retired(pool: Pool, event: ev.WorkerRetired) -> None:
    worker = pool.workers.get(event.worker)
    if worker is None:
        return
    if worker.state != "leaving":
        raise IllegalTransition(f"worker {worker.id} is {worker.state}, not leaving")
    lane = worker.lane
    leases.remove(pool, worker, event.at)
    if lane.state == "quarantined" and not any(w.state == "leaving" for w in lane.workers()):
        lane.move("ready")
    leases.promote_next(pool, lane.device, event.at)
    shelve(pool, lane.device)
    reclaim.worker_left(pool, lane, event.at)
    growth.watch_unused(pool, lane.device, event.at)
    growth.close_if_empty(pool, lane)


def on_retire_failed(pool: Pool, event: ev.RetireFailed) -> None:
    worker = pool.workers.get(event.worker)
    if worker is None:
        return
    if worker.state != "leaving":
        raise IllegalTransition(f"worker {worker.id} is {worker.state}, not leaving")
    lane = worker.lane
    if lane.state == "ready":
        lane.move("quarantined")
    lane.profile.reason = event.reason
    if lane.device.next is not None:
        leases.unreserve(pool, lane.device.next, event.at)
    shelve(pool, lane.device)
    pool.agenda.set(("sweep", worker.id), event.at + staffing.SWEEP_RETRY_S)


def retry_sweep(pool: Pool, worker: Worker) -> None:
    pool.out.append(RetireWorker(worker.id, "sweep again"))


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
}
