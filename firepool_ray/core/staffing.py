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
from firepool_ray.core.state import EPSILON, Device, Lane, Pool, Profile, Queue, Worker

#: Weight of the newest measurement in a moving average of costs.
COST_GAIN = 0.2
#: Sweeps of a quarantined lane are tried again after this.
SWEEP_RETRY_S = 30.0
#: An unused lane that is kept because somebody waits is looked at again no sooner than this.
UNUSED_LOOK_S = 1.0


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
    keep_minimum(pool, profile, at)
    if not any(profile.waiting.values()):
        return
    if may_start(pool, profile, at):
        _start_for_demand(pool, profile, at)
    else:
        _look_again(pool, profile, max(profile.retry_at, profile.open_until), at)
    _grow_for_demand(pool, profile, at)


def _look_again(pool: Pool, profile: Profile, when: float, at: float) -> None:
    """Nothing else need happen before a backoff ends: place the profile then."""
    if when > at:
        pool.agenda.set_earlier(("place", profile.spec.name), when)


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
        leases.recycle(pool, profile, victim, "if_idle", at)
        if None in lane.slots and not any(w.state == "starting" for w in lane.workers()):
            start(pool, lane, at, fresh=True)
        missing -= 1


def refill(pool: Pool, at: float) -> None:
    """Start missing standbys as far as the token bucket allows, and not amid promotions."""
    pool.lacking_since = min(pool.lacking_since, at)
    quiet_s = pool.spec.refill_quiet_s
    hold = min(pool.promoted_at + quiet_s, pool.lacking_since + 4 * quiet_s)
    if at < hold:
        pool.agenda.set_earlier(("refill", ""), hold)
        return
    rate, burst = pool.spec.refill_rate_per_s, float(pool.spec.refill_burst)
    pool.tokens = min(burst, pool.tokens + max(0.0, at - pool.tokens_at) * rate)
    pool.tokens_at = at
    for name in list(pool.refill):
        profile = pool.profiles[name]
        while profile.refill and may_start(pool, profile, at):
            if pool.tokens < 1.0 - EPSILON:
                if rate > 0:
                    pool.agenda.set_earlier(("refill", ""), at + (1.0 - pool.tokens) / rate)
                return
            pool.tokens -= 1.0
            start(pool, next(iter(profile.refill.values())), at, fresh=False)
        if not profile.refill:
            del pool.refill[name]
        elif (when := max(profile.retry_at, profile.open_until)) > at:
            pool.agenda.set_earlier(("refill", ""), when)
    if not pool.refill:
        pool.lacking_since = float("inf")


# ---------------------------------------------------------------- failures


def start_failed(pool: Pool, profile: Profile, reason: str, at: float) -> None:
    """Back off; open the breaker after too many failures in a row."""
    profile.failures += 1
    profile.reason = reason
    profile.retry_at = at + _backoff(pool, profile.failures)
    if profile.failures >= pool.spec.breaker_failures:
        profile.open_until = at + pool.spec.breaker_open_s
        reject_if_broken(pool, profile, at)
    _look_again(pool, profile, max(profile.retry_at, profile.open_until), at)


def promotion_failed(pool: Pool, profile: Profile, reason: str, at: float) -> None:
    """As a failed start; and only a promotion, not a mere start, proves that all is well again."""
    profile.unproven = True
    start_failed(pool, profile, reason, at)


def succeeded(profile: Profile, *, promoted: bool) -> None:
    """A worker started, or was promoted: the row of failures ends."""
    if promoted:
        profile.unproven = False
    if profile.failures and not profile.unproven:
        profile.failures = 0
        profile.retry_at = profile.open_until = 0.0


def grow_failed(pool: Pool, profile: Profile, reason: str, at: float) -> None:
    profile.grow_failures += 1
    profile.reason = reason
    profile.grow_retry_at = at + _backoff(pool, profile.grow_failures)
    if profile.grow_failures >= pool.spec.breaker_failures:
        profile.grow_retry_at = at + pool.spec.breaker_open_s
        reject_if_broken(pool, profile, at)
    _look_again(pool, profile, profile.grow_retry_at, at)


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


def impossible(pool: Pool, profile: Profile, queue: Queue) -> str:
    """Why the queue can never have a worker of the profile; "" if it can."""
    spec, gpus = profile.spec, profile.spec.gpus
    if queue.spec.limit + EPSILON < spec.unit:
        return (
            f"a lane of profile {spec.name!r} counts {spec.unit:g}, but queue {queue.spec.name!r} "
            f"may hold only {queue.spec.limit:g}. Raise its limit or use another queue."
        )
    if profile.counted:
        return ""
    if spec.max_lanes <= 0:
        return f"profile {spec.name!r} may have no lanes: its max_lanes is {spec.max_lanes}."
    if gpus > 0 and not fits_beside_minimum(pool, profile):
        kept = _kept_by_others(pool, profile)
        return (
            f"a lane of profile {spec.name!r} needs {gpus:g} GPUs; of the pool's "
            f"{pool.spec.max_gpus:g} the min_lanes of other profiles keep {kept:g}. Raise max_gpus "
            "or lower those min_lanes."
        )
    return ""


def _may_grow(profile: Profile, at: float) -> bool:
    """False while growth backs off; after a failure one lane at a time is tried."""
    if profile.counted >= profile.spec.max_lanes or at < profile.grow_retry_at:
        return False
    return not (profile.grow_failures and profile.growing)


def _grow_for_demand(pool: Pool, profile: Profile, at: float) -> None:
    if not _may_grow(profile, at):
        _look_again(pool, profile, profile.grow_retry_at, at)
        return
    room = profile.spec.max_lanes - profile.counted
    enough = _under_way(profile) + room
    missing = queueing.wanted_starts(pool, profile, profile.grow_cost_s, enough)
    missing = min(room, missing - _under_way(profile))
    while missing > 0 and _may_grow(profile, at):
        if not _has_gpus(pool, profile, at):
            _make_room(pool, profile, missing, at)
            return
        grow(pool, profile, at, needed=True)
        missing -= 1


def _has_gpus(pool: Pool, profile: Profile, at: float) -> bool:
    """The profile may reserve one lane more now."""
    if profile.spec.gpus <= 0:
        return True
    if pool.room_for and pool.room_for != profile.spec.name:
        other = pool.profiles[pool.room_for]
        coming = pool.releasing_gpus > EPSILON and _may_grow(other, at)
        if coming and queueing.next_entry(pool, other) is not None:
            return False
        pool.room_for = ""
    return pool.reserved_gpus + profile.spec.gpus <= pool.spec.max_gpus + EPSILON


def _kept_by_others(pool: Pool, profile: Profile) -> float:
    return sum(p.spec.gpus * p.spec.min_lanes for p in pool.profiles.values() if p is not profile)


def fits_beside_minimum(pool: Pool, profile: Profile) -> bool:
    """One lane more of the profile is possible if others go down to their ``min_lanes``."""
    gpus = profile.spec.gpus * (profile.counted + 1)
    return gpus + _kept_by_others(pool, profile) <= pool.spec.max_gpus + EPSILON


def lacks_only_gpus(pool: Pool, profile: Profile, at: float, lanes: int = 1) -> bool:
    """It could grow so many lanes if others gave GPUs back, and too few are on their way back."""
    gpus = profile.spec.gpus
    if gpus <= 0 or not _may_grow(profile, at):
        return False
    if not fits_beside_minimum(pool, profile):
        return False
    return pool.reserved_gpus - pool.releasing_gpus + lanes * gpus > pool.spec.max_gpus + EPSILON


def _make_room(pool: Pool, profile: Profile, lanes: int, at: float) -> None:
    """Retire lanes that nobody uses, of other profiles with GPUs, unless enough go already."""
    if pool.room_for not in ("", profile.spec.name):
        return
    while lacks_only_gpus(pool, profile, at, lanes):
        lane = _spare_lane(pool, profile, at)
        if lane is None:
            return
        pool.room_for = profile.spec.name
        retire(pool, lane, "its GPUs are needed by another profile", at)


def _spare_lane(pool: Pool, profile: Profile, at: float) -> Lane | None:
    for other in pool.profiles.values():
        if other is profile or not other.spec.gpus or other.counted <= other.spec.min_lanes:
            continue
        lane = (
            other.ready.last()
            or other.startable.last()
            or eviction.find_victim(pool, other, other.handover, None, at)
            or eviction.find_victim(pool, other, other.recycle, None, at)
        )
        if lane is not None:
            return lane
    return None


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
    if pool.room_for == profile.spec.name:
        pool.room_for = ""
    pool.out.append(GrowLane(lane_id, profile.spec.name))
    return lane


def replace(pool: Pool, profile: Profile, at: float) -> None:
    """A lane in use has to go: have another one in time, if limits allow."""
    if pool.open and _may_grow(profile, at) and _has_gpus(pool, profile, at):
        grow(pool, profile, at, needed=False)


def keep_minimum(pool: Pool, profile: Profile, at: float) -> None:
    """Grow up to min_lanes, whether or not anybody waits."""
    if not pool.open:
        return
    while profile.counted < profile.spec.min_lanes and _may_grow(profile, at):
        if not _has_gpus(pool, profile, at):
            return
        grow(pool, profile, at, needed=False)
    if profile.counted < profile.spec.min_lanes:
        _look_again(pool, profile, profile.grow_retry_at, at)


def watch_unused(pool: Pool, device: Device, at: float) -> None:
    """Give the device's lanes back later if nobody uses them by then."""
    for lane in device.lanes:
        keep_s = lane.profile.spec.lane_keep_s
        if _is_unused(lane) and keep_s < float("inf"):
            pool.agenda.set(("lane", lane.id), at + keep_s)
        else:
            pool.agenda.cancel(("lane", lane.id))


def _is_unused(lane: Lane) -> bool:
    device = lane.device
    return (
        lane.state == "ready"
        and not lane.draining
        and device.active is None
        and device.next is None
    )


def unused(pool: Pool, lane: Lane, at: float) -> None:
    """The time of ``watch_unused`` has come."""
    profile = lane.profile
    if not _is_unused(lane) or profile.counted <= profile.spec.min_lanes:
        return
    if any(profile.waiting.values()):
        pool.agenda.set(("lane", lane.id), at + max(profile.spec.lane_keep_s, UNUSED_LOOK_S))
        return
    retire(pool, lane, "unused", at)


def retire(pool: Pool, lane: Lane, reason: str, at: float) -> None:
    """No new work; idle and unbound workers leave, busy ones finish; then the lane goes."""
    lane.draining = True
    pool.agenda.cancel(("lane", lane.id))
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
