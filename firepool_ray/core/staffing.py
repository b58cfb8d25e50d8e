"""Keeps lanes and standbys in supply. Called by ``placement`` (demand) and ``machine`` (news).

Starts for waiting demand go at once; refills that only restore a standby are paced by a token
bucket, so that they never compete with demand. Failing starts back off, and after several in a row
a breaker stops trying and says why.
"""

from __future__ import annotations

from firepool_ray.core import eviction, leases, queueing
from firepool_ray.core.actions import (
    GrowLane,
    RemoveLane,
    SendRejection,
    StartWorker,
)
from firepool_ray.core.model import Rejection
from firepool_ray.core.shelves import shelve
from firepool_ray.core.state import Device, Lane, Pool, Profile, Worker

#: Sweeps of a quarantined lane are tried again after this.
SWEEP_RETRY_S = 30.0


# ---------------------------------------------------------------- starting workers


def start(pool: Pool, lane: Lane, at: float, *, fresh: bool) -> Worker:
    """Start a worker in a free slot of the lane."""
    slot = lane.slots.index(None)
    number = pool.number()
    worker = Worker(f"e{pool.epoch}w{number}", number, lane, slot, "starting", at, fresh=fresh)
    lane.slots[slot] = worker
    pool.workers[worker.id] = worker
    lane.profile.starting += 1
    pool.out.append(StartWorker(worker.id, lane.id, slot))
    shelve(pool, lane.device)
    return worker


def may_start(pool: Pool, profile: Profile, at: float) -> bool:
    """False while starts back off; after a failure one start at a time is tried."""
    if at < profile.retry_at or at < profile.open_until:
        return False
    return not (profile.failures and profile.starting)


def supply(pool: Pool, profile: Profile, at: float) -> None:
    """Get workers under way for demand that nothing ready can serve: cold starts, then growth."""
    if not any(profile.waiting.values()):
        return
    if may_start(pool, profile, at):
        _start_for_demand(pool, profile, at)
    _grow_for_demand(pool, profile, at)


def _under_way(profile: Profile) -> int:
    return len(profile.coming) + profile.growing + profile.recycling


def _start_for_demand(pool: Pool, profile: Profile, at: float) -> None:
    possible = len(profile.startable) + sum(len(lanes) for lanes in profile.recycle.values())
    if not possible:
        return
    enough = _under_way(profile) + possible
    missing = queueing.wanted_starts(pool, profile, profile.start_cost_s, enough)
    missing -= _under_way(profile)
    while missing > 0 and (lane := profile.startable.first()) is not None:
        start(pool, lane, at, fresh=True)
        missing -= 1
        if not may_start(pool, profile, at):
            return
    while missing > 0:
        lane = eviction.find_victim(pool, profile, profile.recycle, None, at)
        if lane is None:
            return
        victim = lane.device.active
        assert victim is not None
        leases.revoke(pool, victim, "recycle", "if_idle", at)
        if None in lane.slots and not any(w.state == "starting" for w in lane.workers()):
            start(pool, lane, at, fresh=True)
        missing -= 1


def staff(pool: Pool, lane: Lane) -> None:
    """Queue the lane for refill if it lacks standbys."""
    if _lacks_standby(lane):
        pool.refill[lane.id] = None
    else:
        pool.refill.pop(lane.id, None)


def _lacks_standby(lane: Lane) -> bool:
    if lane.state != "ready" or lane.draining or None not in lane.slots:
        return False
    unbound = sum(1 for w in lane.workers() if w.state in ("starting", "standby"))
    return unbound < lane.profile.spec.standbys


def refill(pool: Pool, at: float) -> None:
    """Start missing standbys as far as the token bucket allows."""
    rate, burst = pool.spec.refill_rate_per_s, float(pool.spec.refill_burst)
    pool.tokens = min(burst, pool.tokens + (at - pool.tokens_at) * rate)
    pool.tokens_at = at
    for name in list(pool.refill):
        lane = pool.lanes.get(name)
        if lane is None or not _lacks_standby(lane):
            del pool.refill[name]
            continue
        profile = lane.profile
        if not may_start(pool, profile, at):
            pool.agenda.set_earlier(
                ("refill", ""), max(profile.retry_at, profile.open_until, at + 0.1)
            )
            continue
        if pool.tokens < 1.0 - 1e-9:
            pool.agenda.set_earlier(("refill", ""), at + (1.0 - pool.tokens) / rate)
            return
        pool.tokens -= 1.0
        start(pool, lane, at, fresh=False)
        if not _lacks_standby(lane):
            del pool.refill[name]


# ---------------------------------------------------------------- failures


def start_failed(pool: Pool, profile: Profile, reason: str, at: float) -> None:
    """Back off; open the breaker after too many failures in a row."""
    profile.failures += 1
    profile.reason = reason
    profile.retry_at = at + _backoff(pool, profile.failures)
    if profile.failures >= pool.spec.breaker_failures:
        profile.open_until = at + pool.spec.breaker_open_s
        reject_if_broken(pool, profile, at)
    pool.agenda.set_earlier(("place", profile.spec.name), max(profile.retry_at, profile.open_until))


def grow_failed(pool: Pool, profile: Profile, reason: str, at: float) -> None:
    profile.grow_failures += 1
    profile.reason = reason
    profile.grow_retry_at = at + _backoff(pool, profile.grow_failures)
    if profile.grow_failures >= pool.spec.breaker_failures:
        profile.grow_retry_at = at + pool.spec.breaker_open_s
        reject_if_broken(pool, profile, at)
    pool.agenda.set_earlier(("place", profile.spec.name), profile.grow_retry_at)


def _backoff(pool: Pool, failures: int) -> float:
    spec = pool.spec
    return float(min(spec.start_backoff_max_s, spec.start_backoff_s * 2 ** min(failures - 1, 30)))


def broken(pool: Pool, profile: Profile, at: float) -> bool:
    """The breaker is open and nothing of the profile lives that could serve."""
    no_starts = at < profile.open_until
    no_growth = profile.grow_failures >= pool.spec.breaker_failures and at < profile.grow_retry_at
    if not no_starts and not (no_growth and not profile.counted):
        return False
    return not any(
        worker.state not in ("starting", "leaving", "gone")
        for lane in profile.lanes.values()
        for worker in lane.workers()
    )


def reject_if_broken(pool: Pool, profile: Profile, at: float) -> None:
    """End what waits for a profile whose workers cannot start, with the reason."""
    if not broken(pool, profile, at):
        return
    failures = max(profile.failures, profile.grow_failures)
    message = (
        f"workers of profile {profile.spec.name!r} cannot start: {failures} failures in a row, "
        f"the last: {profile.reason}. Trying again in {pool.spec.breaker_open_s:g} s; fix the "
        "profile or the cluster, then submit again."
    )
    for order in list(profile.waiting.values()):
        for entry in list(order):
            entry.count = 0
            queueing.refresh(pool, entry)
            rejection = Rejection(entry.job_class, "start_failed", message)
            pool.out.append(SendRejection(entry.client, rejection))


# ---------------------------------------------------------------- lanes


def _grow_for_demand(pool: Pool, profile: Profile, at: float) -> None:
    room = profile.spec.max_lanes - profile.counted
    if room <= 0 or at < profile.grow_retry_at or (profile.grow_failures and profile.growing):
        return
    enough = _under_way(profile) + room
    missing = queueing.wanted_starts(pool, profile, profile.grow_cost_s, enough)
    missing = min(room, missing - _under_way(profile))
    for _ in range(missing):
        if not _has_gpus(pool, profile) and not _make_room(pool, profile, at):
            return
        if not _has_gpus(pool, profile):
            return  # room is being made
        grow(pool, profile, at, needed=True)
        if profile.grow_failures:
            return


def _has_gpus(pool: Pool, profile: Profile) -> bool:
    return pool.reserved_gpus + profile.spec.gpus <= pool.spec.max_gpus + 1e-9


def _make_room(pool: Pool, profile: Profile, at: float) -> bool:
    """Retire a lane that nobody uses, of another profile with GPUs, unless some go already."""
    if pool.reserved_gpus - pool.releasing_gpus + profile.spec.gpus <= pool.spec.max_gpus + 1e-9:
        return True
    for other in pool.profiles.values():
        if other is profile or not other.spec.gpus or other.counted <= other.spec.min_lanes:
            continue
        lane = other.ready.last() or other.startable.last()
        if lane is None:
            lane = eviction.find_victim(pool, other, other.handover, None, at)
        if lane is None:
            lane = eviction.find_victim(pool, other, other.recycle, None, at)
        if lane is not None:
            retire(pool, lane, "its GPUs are needed by another profile", at)
            return True
    return False


def grow(pool: Pool, profile: Profile, at: float, *, needed: bool) -> Lane:
    number = pool.number()
    lane_id = f"e{pool.epoch}l{number}"
    device = pool.devices[lane_id] = Device(lane_id)
    slots: list[Worker | None] = [None] * (profile.spec.standbys + 1)
    lane = Lane(lane_id, number, profile, device, "growing", slots, since=at, needed=needed)
    device.lanes.append(lane)
    pool.lanes[lane_id] = profile.lanes[lane_id] = lane
    profile.growing += 1
    profile.counted += 1
    pool.reserved_gpus += profile.spec.gpus
    pool.out.append(GrowLane(lane_id, profile.spec.name))
    return lane


def keep_minimum(pool: Pool, profile: Profile, at: float) -> None:
    """Grow up to min_lanes, whether or not anybody waits."""
    while (
        profile.counted < min(profile.spec.min_lanes, profile.spec.max_lanes)
        and at >= profile.grow_retry_at
        and _has_gpus(pool, profile)
    ):
        if profile.grow_failures and profile.growing:
            return
        grow(pool, profile, at, needed=False)


def watch_unused(pool: Pool, lane: Lane, at: float) -> None:
    """Give the lane back later if nobody uses it by then."""
    if lane.state == "ready" and lane.device.active is None and lane.device.next is None:
        keep_s = lane.profile.spec.lane_keep_s
        if keep_s < float("inf"):
            pool.agenda.set(("lane", lane.id), at + keep_s)
    else:
        pool.agenda.cancel(("lane", lane.id))


def unused(pool: Pool, lane: Lane, at: float) -> None:
    """The time of ``watch_unused`` has come."""
    profile = lane.profile
    if lane.state != "ready" or lane.device.active is not None or lane.device.next is not None:
        return
    if profile.counted > profile.spec.min_lanes and not any(profile.waiting.values()):
        retire(pool, lane, "unused", at)


def retire(pool: Pool, lane: Lane, reason: str, at: float) -> None:
    """No new work; idle and unbound workers leave, busy ones finish; then the lane goes."""
    lane.draining = True
    pool.agenda.cancel(("lane", lane.id))
    pool.refill.pop(lane.id, None)
    uncount(pool, lane)
    for worker in lane.workers():
        if worker.state in ("starting", "standby", "reserved", "unleased"):
            leases.leave(pool, worker, reason, at)
        elif worker.state == "bound":
            leases.revoke(pool, worker, "retire", "drain", at)
    shelve(pool, lane.device)
    close_if_empty(pool, lane)


def uncount(pool: Pool, lane: Lane) -> None:
    """The lane no longer counts against the profile's bounds; its GPUs are on their way back."""
    if lane.counted:
        lane.counted = False
        lane.profile.counted -= 1
        pool.releasing_gpus += lane.profile.spec.gpus


def close_if_empty(pool: Pool, lane: Lane) -> None:
    if lane.draining and lane.state in ("ready", "quarantined") and not lane.workers():
        lane.move("retiring")
        pool.out.append(RemoveLane(lane.id))
