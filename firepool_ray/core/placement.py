"""Which worker serves which waiting demand. Called by ``machine`` for every changed profile.

For one wanted worker the first that applies (architecture, section 4): an idle lease of a sibling
client, a ready standby, a handover, a cold start, growth, waiting. Demand is served in waiting
order, entitled queues first; a queue at its limit can only exchange workers of its own.
"""

from __future__ import annotations

from itertools import islice

from firepool_ray.core import eviction, growth, leases, queueing, sharing, staffing
from firepool_ray.core.model import ReuseKey
from firepool_ray.core.ordered import Ordered
from firepool_ray.core.shelves import standby_of
from firepool_ray.core.state import Claim, Entry, Pool, Profile, Queue

#: So many reuse keys are passed over when the idle workers there are happen to be their own.
PASSED_KEYS = 8


def place(pool: Pool, profile: Profile, at: float) -> None:
    """Serve what can be served in this profile now, then get more capacity under way."""
    passed: list[ReuseKey] = []
    while (entry := queueing.next_entry(pool, profile, passed)) is not None:
        served = _take_standby(pool, profile, entry, at) or _take_victim(
            pool, profile, entry, at, None
        )
        if not served and not _pass_over(pool, profile, entry, passed, at):
            break
    for queue, order in queueing.full_queues(pool, profile):
        _exchange_within(pool, profile, queue, order, at)
    _supply(pool, profile, at)
    sharing.relieve(pool, profile, at)


def _supply(pool: Pool, profile: Profile, at: float) -> None:
    """Get workers under way for demand that nothing ready can serve: cold starts, then growth."""
    growth.keep_minimum(pool, profile, at)
    if not any(profile.waiting.values()):
        return
    if not staffing.may_start(pool, profile, at):
        staffing.look_again(pool, profile, max(profile.retry_at, profile.open_until), at)
        growth.grow_for_demand(pool, profile, at)
        return
    staffing.start_in_free_lanes(pool, profile, at)
    if staffing.would_rather_grow(profile):
        growth.grow_for_demand(pool, profile, at)
        staffing.recycle_for_demand(pool, profile, at)
    else:
        staffing.recycle_for_demand(pool, profile, at)
        growth.grow_for_demand(pool, profile, at)


def _pass_over(
    pool: Pool, profile: Profile, entry: Entry, passed: list[ReuseKey], at: float
) -> bool:
    """May somebody behind this entry use what it could not (its own idle workers)?"""
    if len(passed) >= PASSED_KEYS or not eviction.may_fit_others(pool, profile, at):
        return False
    passed.append(entry.job_class.key)
    return True


def _exchange_within(
    pool: Pool, profile: Profile, queue: Queue, order: Ordered[Entry], at: float
) -> None:
    """A queue at its limit hands its own idle workers over among its callers."""
    passed: list[ReuseKey] = []
    while (entry := queueing.first_not_passed(order, passed)) is not None:
        if not _take_victim(pool, profile, entry, at, queue):
            eviction.exchange(pool, profile, queue, entry, at)
            if not _pass_over(pool, profile, entry, passed, at):
                return


def _take_standby(pool: Pool, profile: Profile, entry: Entry, at: float) -> bool:
    """A standby on a free device, or on one that is being freed."""
    lane = profile.ready.first()
    if lane is not None:
        standby = standby_of(lane)
        assert standby is not None
        leases.cover(pool, entry)
        leases.promote(pool, standby, Claim(entry, "cold" if standby.fresh else "standby"), at)
        return True
    lane = profile.soon.first()
    if lane is None:
        return False
    standby = standby_of(lane)
    assert standby is not None
    leases.reserve(pool, standby, entry, at)
    return True


def _take_victim(pool: Pool, profile: Profile, entry: Entry, at: float, only: Queue | None) -> bool:
    """Hand an idle worker's device over to the standby beside it."""
    lane = eviction.find_victim(pool, profile, profile.handover, entry, at, only)
    if lane is None:
        return False
    standby, victim = standby_of(lane), lane.device.active
    assert standby is not None and victim is not None
    leases.hand_over(pool, victim, standby, entry, "if_idle", at)
    return True


def match_warm(pool: Pool, key: ReuseKey, at: float) -> None:
    """Idle leases go to sibling clients that want exactly this reuse key: no limits are touched."""
    while (warm := pool.warm.get(key)) and (wanting := pool.wanting.get(key)):
        for entry in islice(wanting, queueing.SCAN):
            worker = next(
                (w for w in islice(warm, queueing.SCAN) if w.client != entry.client), None
            )
            if worker is not None:
                break
        else:
            return
        leases.move_to(pool, worker, entry, at)
