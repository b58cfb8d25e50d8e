"""Warms workers ahead of a caller's next burst, where its pauses are regular.

Called by ``machine``: when the time of a plan has come (see ``bursts``), and after placement. A
warmed worker is bound to its caller before any client asks, and granted to the one that worked
last; without that one the first that wants it gets it, as it would get a sibling's. Warming never
takes a worker from anybody and stays within the queue's limit and budget.
"""

from __future__ import annotations

from firepool_ray.core import budget, bursts, growth, leases, staffing
from firepool_ray.core.rhythm import Rhythm
from firepool_ray.core.shelves import standby_of
from firepool_ray.core.state import EPSILON, Pool, Profile


def fire(pool: Pool, name: str, at: float) -> None:
    """The time of a plan has come: to begin warming, or to give up."""
    found = pool.rhythms.get(name)
    if found is None:
        return
    profile, rhythm = found
    if not _expected(pool, rhythm):
        bursts.forget_plan(pool, profile, rhythm)
        return
    if at >= rhythm.until:
        bursts.end(pool, profile, rhythm, None)
        return
    rhythm.due = True
    pool.budgets_at = float("-inf")  # the burst is a need of its queue from now on
    profile.warming[rhythm.id] = rhythm
    pool.agenda.set(("warm", name), rhythm.until)
    pool.dirty[profile.spec.name] = None


def _expected(pool: Pool, rhythm: Rhythm) -> bool:
    """Its caller has clients and has not said that it is done."""
    state = pool.callers.get(rhythm.key.caller)
    return state is not None and bool(state.clients) and not state.closing


def serve(pool: Pool, profile: Profile, at: float) -> None:
    """Bind what is ready, and start what is missing.

    After placement, so that whoever waits goes first; but a worker that was started for a burst
    goes there. One late burst would otherwise take the next one's workers, and so on for ever.
    """
    profile.short = 0
    for rhythm in list(profile.warming.values()):
        missing = _missing(pool, profile, rhythm, at)
        while missing > 0 and (lane := profile.ready.first()) is not None:
            standby = standby_of(lane)
            assert standby is not None
            rhythm.coming += 1
            standby.awaited = True
            client = rhythm.client if rhythm.client in pool.clients else ""
            leases.promote_ahead(pool, standby, rhythm.key, client, at)
            missing -= 1
        profile.short += missing
        missing -= sum(lane.ahead == rhythm.id for lane in profile.lanes.values())
        while missing > 0 and _start_one(pool, profile, rhythm, at):
            missing -= 1


def _start_one(pool: Pool, profile: Profile, rhythm: Rhythm, at: float) -> bool:
    if not staffing.may_start(pool, profile, at):
        return False
    lane = profile.startable.first()
    if lane is not None:
        bursts.meant_for(profile, lane, rhythm.id)
        staffing.start(pool, lane, at, fresh=False)
        return True
    lane = growth.grow_ahead(pool, profile, at)
    if lane is None:
        return False
    bursts.meant_for(profile, lane, rhythm.id)
    return True


def _missing(pool: Pool, profile: Profile, rhythm: Rhythm, at: float) -> int:
    """Workers still to be warmed, within what the queue may hold."""
    if not _expected(pool, rhythm):
        return 0
    caller = rhythm.key.caller
    there = len(pool.warm.get(rhythm.key, ())) + rhythm.coming + rhythm.busy
    missing = rhythm.workers - there
    if missing <= 0:
        return 0
    queue, units = pool.queues[caller.queue], profile.spec.unit
    terms = budget.terms(pool, caller.queue, profile.gpu_type, at)
    held = queue.idle_of.get(profile.gpu_type, 0.0) + rhythm.coming * units
    allowed = min(terms.budget - held, queue.limit - queue.after(0.0))
    return max(0, min(missing, int((allowed + EPSILON) / units)))
