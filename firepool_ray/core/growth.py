"""Keeps lanes in supply. Called by ``placement`` (demand) and ``machine`` (news, unused lanes).

Lanes grow for demand and up to ``min_lanes``, within the profile's and the pool's limits, and go
when nobody uses them. Where GPUs are all reserved, lanes of other profiles make room.
"""

from __future__ import annotations

from firepool_ray.core import bursts, eviction, leases, queueing, retention, staffing
from firepool_ray.core.actions import GrowLane, RemoveLane
from firepool_ray.core.shelves import UNBOUND_STATES, shelve
from firepool_ray.core.state import EPSILON, Device, Lane, Pool, Profile, Queue, Worker
from firepool_ray.core.tables import HELD_STATES

#: An unused lane that is kept because somebody waits is looked at again no sooner than this.
UNUSED_LOOK_S = 1.0


def impossible(pool: Pool, profile: Profile, queue: Queue) -> str:
    """Why the queue can never have a worker of the profile; "" if it can."""
    spec, gpus = profile.spec, profile.spec.gpus
    # By the pool's own settings: what another system says of the queue may be lifted again.
    if queue.spec.limit + EPSILON < spec.unit:
        return (
            f"a lane of profile {spec.name!r} counts {spec.unit:g}, but queue {queue.spec.name!r} "
            f"may hold only {queue.spec.limit:g}. Raise its limit or use another queue."
        )
    if profile.counted:
        return ""
    if spec.max_lanes <= 0:
        return f"profile {spec.name!r} may have no lanes: its max_lanes is {spec.max_lanes}."
    if profile.allowed == 0:
        return (
            f"nothing in the cluster may carry a lane of profile {spec.name!r}: its group of nodes "
            "was taken out, or allows none. Bring it back, or use another profile."
        )
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
    if profile.counted >= profile.most_lanes or at < profile.grow_retry_at:
        return False
    return not (profile.grow_failures and profile.growing)


def grow_for_demand(pool: Pool, profile: Profile, at: float) -> None:
    if not _may_grow(profile, at):
        staffing.look_again(pool, profile, profile.grow_retry_at, at)
        return
    room = profile.most_lanes - profile.counted
    enough = staffing.under_way(profile) + room
    cost_s = profile.grow_cost_s + profile.start_cost_s
    missing = queueing.wanted_starts(pool, profile, cost_s, enough)
    missing = min(room, missing - staffing.under_way(profile))
    while missing > 0 and _may_grow(profile, at):
        if not _has_gpus(pool, profile, at):
            _make_room(pool, profile, missing, at)
            return
        retention.lane_wanted(profile, at)
        grow(pool, profile, at, needed=True)
        missing -= 1


def grow_ahead(pool: Pool, profile: Profile, at: float) -> Lane | None:
    """One lane for workers that are warmed; None where none may be added."""
    if not _may_grow(profile, at) or not _has_gpus(pool, profile, at):
        return None
    return grow(pool, profile, at, needed=True)


def _has_gpus(pool: Pool, profile: Profile, at: float) -> bool:
    """The profile may reserve one lane more now."""
    if profile.spec.gpus <= 0:
        return True
    if pool.room_for and pool.room_for != profile.spec.name:
        other = pool.profiles[pool.room_for]
        coming = _coming_back(pool, at) > EPSILON and _may_grow(other, at)
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
    reserved = pool.reserved_gpus - _coming_back(pool, at)
    return reserved + lanes * gpus > pool.spec.max_gpus + EPSILON


def _coming_back(pool: Pool, at: float) -> float:
    """GPUs of lanes that go. A lane whose drained job lasts is not waited for alone."""
    return sum(
        lane.profile.spec.gpus
        for lane, since in pool.releasing.values()
        if at - since < pool.spec.window_s or not _is_held(lane)
    )


def _is_held(lane: Lane) -> bool:
    active = lane.device.active
    return active is not None and active.state in HELD_STATES


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
        staffing.look_again(pool, profile, profile.grow_retry_at, at)


def watch_unused(pool: Pool, device: Device, at: float) -> None:
    """Give the device's lanes back later if nobody uses them by then."""
    for lane in device.lanes:
        keep_s = retention.lane_keep_s(lane.profile, at)
        if _is_unused(lane) and keep_s < float("inf"):
            since = at
            if lane.profile.spec.lane_keep_s is None and lane.rest_since is not None:
                since = lane.rest_since  # what is learned counts from the end of its last work
            pool.agenda.set(("lane", lane.id), max(at, since + keep_s))
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
    # A worker that starts or stands by there may be meant for a burst that is due.
    if profile.short and any(worker.state in UNBOUND_STATES for worker in lane.workers()):
        pool.agenda.set(("lane", lane.id), at + UNUSED_LOOK_S)
        return
    if _is_wanted(pool, profile, lane):
        keep_s = retention.lane_keep_s(profile, at)
        pool.agenda.set(("lane", lane.id), at + max(keep_s, UNUSED_LOOK_S))
        return
    retire(pool, lane, "unused", at)


def stays(pool: Pool, lane: Lane) -> bool:
    """The lane would not go if its worker did: it is kept anyway, or wanted by who waits."""
    profile = lane.profile
    return profile.counted <= profile.spec.min_lanes or _is_wanted(pool, profile, lane)


def _is_wanted(pool: Pool, profile: Profile, lane: Lane) -> bool:
    """Somebody waits for what starts there, or for more than what is under way."""
    if not any(profile.waiting.values()):
        return False
    if any(worker.state == "starting" for worker in lane.workers()):
        return True
    coming = staffing.under_way(profile)
    return queueing.wanted_starts(pool, profile, profile.start_cost_s, coming + 1) > coming


def retire(pool: Pool, lane: Lane, reason: str, at: float) -> None:
    """No new work; idle and unbound workers leave, busy ones finish; then the lane goes."""
    lane.draining = True
    pool.agenda.cancel(("lane", lane.id))
    uncount(pool, lane, at)
    for worker in lane.workers():
        if worker.state in ("starting", "standby", "reserved", "unleased"):
            leases.leave(pool, worker, reason, at)
        elif worker.state == "bound":
            leases.revoke(pool, worker, "retire", "drain", at)
    shelve(pool, lane.device)
    close_if_empty(pool, lane)


def uncount(pool: Pool, lane: Lane, at: float) -> None:
    """The lane no longer counts against the profile's bounds; its GPUs are on their way back."""
    if lane.counted:
        lane.counted = False
        lane.profile.counted -= 1
        retention.lane_gone(lane)
        bursts.meant_for(lane.profile, lane, "")
        pool.giving_back.pop(lane.id, None)
        pool.releasing[lane.id] = (lane, at)


def close_if_empty(pool: Pool, lane: Lane) -> None:
    if lane.draining and lane.state in ("ready", "quarantined") and not lane.workers():
        lane.move("retiring")
        pool.out.append(RemoveLane(lane.id))
