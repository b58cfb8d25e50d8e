"""Keeps workers in supply. Called by ``placement`` (demand) and ``machine`` (news).

Starts for waiting demand go at once; refills that only restore a standby are paced by a token
bucket, so that they never compete with demand. Failing starts back off, and after several in a row
a breaker stops trying and says why.
"""

from __future__ import annotations

from firepool_ray.core import eviction, leases, queueing
from firepool_ray.core.actions import (
    SendRejection,
    StartWorker,
)
from firepool_ray.core.model import Rejection
from firepool_ray.core.shelves import shelve
from firepool_ray.core.state import EPSILON, Lane, Pool, Profile, Worker

#: Weight of the newest measurement in a moving average of costs.
COST_GAIN = 0.2
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


def look_again(pool: Pool, profile: Profile, when: float, at: float) -> None:
    """Nothing else need happen before a backoff ends: place the profile then."""
    if when > at:
        pool.agenda.set_earlier(("place", profile.spec.name), when)


def under_way(profile: Profile) -> int:
    """Workers that come for whoever waits: those that start for a told burst are not among them."""
    return len(profile.coming) + profile.growing + profile.recycling - profile.ahead


def start_in_free_lanes(pool: Pool, profile: Profile, at: float) -> None:
    """Start workers for waiting demand where nobody has to go for them."""
    if not profile.startable:
        return
    missing = _missing(pool, profile, len(profile.startable))
    while missing > 0 and (lane := profile.startable.first()) is not None:
        start(pool, lane, at, fresh=True)
        missing -= 1
        if not may_start(pool, profile, at):
            return


def recycle_for_demand(pool: Pool, profile: Profile, at: float) -> None:
    """Start workers for waiting demand in lanes of idle ones, which go for them."""
    possible = sum(len(lanes) for lanes in profile.recycle.values())
    missing = _missing(pool, profile, possible) if possible else 0
    while missing > 0 and may_start(pool, profile, at):
        lane = eviction.find_victim(pool, profile, profile.recycle, None, at)
        if lane is None:
            return
        victim = lane.device.active
        assert victim is not None
        leases.recycle(pool, profile, victim, "if_idle", at)
        if None in lane.slots and not any(w.state == "starting" for w in lane.workers()):
            start(pool, lane, at, fresh=True)
        missing -= 1


def _missing(pool: Pool, profile: Profile, possible: int) -> int:
    """Workers wanted beyond those under way; looks no further than ``possible`` ones."""
    coming = under_way(profile)
    return queueing.wanted_starts(pool, profile, profile.start_cost_s, coming + possible) - coming


def would_rather_grow(profile: Profile) -> bool:
    """A new lane costs hardly more waiting than a start, and takes no warm worker from anybody."""
    return profile.costs.grow.value <= profile.costs.start.value


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
    look_again(pool, profile, max(profile.retry_at, profile.open_until), at)


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
    look_again(pool, profile, profile.grow_retry_at, at)


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
