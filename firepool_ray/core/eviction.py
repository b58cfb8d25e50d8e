"""Which idle worker goes first. Called by ``placement`` and ``staffing``, never for busy workers.

Order: those of the queue that borrowed most beyond its quota, by weight; then what is worth least
to its keep-alive (the chance of being wanted again, per GPU-second); then the longest idle. Expired
ones have left already. A worker idle for less than the linger, the measured cost of a promotion,
counts as running: its client is between two jobs.
"""

from __future__ import annotations

from itertools import islice

from firepool_ray.core import budget, leases, ledger, queueing, retention
from firepool_ray.core.model import Caller
from firepool_ray.core.ordered import Ordered
from firepool_ray.core.state import EPSILON, Entry, Lane, Pool, Profile, Queue, Worker


def find_victim(
    pool: Pool,
    profile: Profile,
    shelf: dict[str, Ordered[Lane]],
    entry: Entry | None,
    at: float,
    only: Queue | None = None,
) -> Lane | None:
    """The lane of ``shelf`` whose idle worker goes first for ``entry``; None if there is none.

    ``only`` restricts the search to one queue's workers. Where candidates are only too fresh, the
    profile is placed again when the first of them has been idle long enough.
    """
    names = [name for name, lanes in shelf.items() if lanes]
    if only is not None:
        names = [name for name in names if name == only.spec.name]
    elif len(names) > 1:
        names.sort(key=lambda n: (-pool.queues[n].borrowed, shelf[n].first_key()))
    if entry is not None and only is None:
        names = [name for name in names if _may_take(pool, profile, name, entry, at)]
    costs = retention.prices(profile)
    best: Lane | None = None
    least = 0.0
    borrowed = 0.0  #: of the queue that the best one is of
    for name in names:
        if best is not None and pool.queues[name].borrowed < borrowed:
            break
        for lane in islice(shelf[name], queueing.SCAN):
            victim = lane.device.active
            assert victim is not None and victim.idle_since is not None
            ripe_at = victim.idle_since + profile.promote_cost_s
            if ripe_at > at and victim.state != "unleased":
                pool.agenda.set_earlier(("place", profile.spec.name), ripe_at)
                break
            if not _may_go(pool, profile, victim, entry, at, only):
                continue
            worth = retention.worth(victim, costs, at)
            if best is None or worth < least:
                best, least, borrowed = lane, worth, pool.queues[name].borrowed
    return best


def _may_go(
    pool: Pool, profile: Profile, victim: Worker, entry: Entry | None, at: float, only: Queue | None
) -> bool:
    if entry is not None and _is_own(victim, entry):
        return False
    if _waits_for_its_burst(pool, profile, victim, entry, at):
        return False
    # Within one queue a smaller worker makes no room for a larger one.
    return only is None or victim.lane.profile.spec.unit >= profile.spec.unit


def _waits_for_its_burst(
    pool: Pool, profile: Profile, victim: Worker, entry: Entry | None, at: float
) -> bool:
    """A burst that has been told would have to start anew: for one window it goes first."""
    if entry is None or not retention.is_expected(victim):
        return False
    free_at = entry.oldest_at + pool.spec.window_s
    if at >= free_at:
        return False
    pool.agenda.set_earlier(("place", profile.spec.name), free_at)
    return True


def _may_take(pool: Pool, profile: Profile, name: str, entry: Entry, at: float) -> bool:
    """Whoever is beyond its own quota leaves other queues what their budgets let them keep.

    For one window: idle capacity that nobody has come back to by then serves those who wait.
    """
    queue = queueing.queue_of(pool, entry)
    if name == queue.spec.name or queue.entitled(profile.spec.unit):
        return True
    if at - entry.oldest_at >= pool.spec.window_s:
        return True
    terms = budget.terms(pool, name, profile.gpu_type, at)
    idle = pool.queues[name].idle_of.get(profile.gpu_type, 0.0)
    return idle > terms.budget + EPSILON


def may_fit_others(pool: Pool, profile: Profile, at: float) -> bool:
    """Some idle worker may go now: one that did not fit an entry may fit those behind it."""
    return any(
        (victim := lane.device.active) is not None
        and victim.idle_since is not None
        and (victim.state == "unleased" or victim.idle_since + profile.promote_cost_s <= at)
        for shelf in (profile.handover, profile.recycle)
        for lanes in shelf.values()
        if (lane := lanes.first()) is not None
    )


def _is_own(victim: Worker, entry: Entry) -> bool:
    """A lease that serves this very demand is not evicted for it: news of it is stale."""
    return victim.key == entry.job_class.key


def trim(pool: Pool, at: float) -> None:
    """Revoke idle workers beyond what may be held, the longest idle first."""
    for worker in list(islice(pool.idle, queueing.SCAN)):
        if pool.idle_units <= pool.idle_cap + EPSILON:
            return
        assert worker.idle_since is not None
        ripe_at = worker.idle_since + worker.lane.profile.promote_cost_s
        if ripe_at > at and worker.state != "unleased":
            pool.agenda.set_earlier(("trim", ""), ripe_at)
            return
        leases.revoke(pool, worker, "retire", "if_idle", at)
    if pool.idle_units > pool.idle_cap + EPSILON:
        pool.agenda.set_earlier(("trim", ""), at)


def close_caller(pool: Pool, caller: Caller, at: float) -> None:
    """The caller is done: what is idle goes at once, what becomes idle later as well."""
    state = pool.callers.get(caller)
    if state is None:
        return
    state.closing = True
    retention.caller_closed(pool, caller)
    for worker in list(ledger.queue_of(pool, caller).idle):
        if worker.key is not None and worker.key.caller == caller:
            leases.revoke(pool, worker, "retire", "if_idle", at)


def exchange(pool: Pool, profile: Profile, queue: Queue, entry: Entry, at: float) -> None:
    """A queue at its limit lets idle workers of its own go for what it wants more, anywhere.

    For what a handover cannot exchange: lanes without standby, other profiles, other sizes.
    """
    units = profile.spec.unit
    for worker in list(islice(queue.idle, queueing.SCAN)):
        if queue.held + queue.reserved - queue.exchanging + units <= queue.limit + EPSILON:
            return
        assert worker.idle_since is not None
        if _is_own(worker, entry):
            continue
        ripe_at = worker.idle_since + worker.lane.profile.promote_cost_s
        if ripe_at > at and worker.state != "unleased":
            pool.agenda.set_earlier(("place", profile.spec.name), ripe_at)
            continue
        leases.revoke(pool, worker, "exchange", "if_idle", at)
