"""Busy leases are shared when somebody has waited past the window. Called by ``placement``.

If entitled demand has waited longer than the window and no idle worker can go, the busy lease of
the caller with the highest usage is drained: its job finishes, then the lane (or, between clients
of one caller, the worker itself) goes to the one that waited. A lease is never taken where that
would only turn the inequality around. Demand of a queue that may hold no more shares within that
queue, which changes nothing in what the queue holds. Where GPUs are all taken by other profiles,
their lanes go in the same manner. A drained job that lasts is not waited for alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from firepool_ray.core import growth, leases, ledger, queueing, staffing
from firepool_ray.core.model import Caller
from firepool_ray.core.shelves import standby_of
from firepool_ray.core.state import EPSILON, Claim, Entry, Lane, Pool, Profile, Worker

#: Waiting entries and busy workers are all looked at, so not more often than this.
LOOK_EVERY_S = 0.25
#: Nor than this while enough workers start.
COVERED_LOOK_S = 1.0


def relieve(pool: Pool, profile: Profile, at: float) -> None:
    heads = [first for order in profile.waiting.values() if (first := order.first())]
    oldest = min((entry.oldest_at for entry in heads), default=None)
    if oldest is None:
        return
    due = max(oldest + pool.spec.window_s, profile.relieve_after)
    if due > at:
        pool.agenda.set_earlier(("place", profile.spec.name), due)
        return
    profile.relieve_after = at + LOOK_EVERY_S
    overdue = [
        entry
        for order in profile.waiting.values()
        for entry in order
        if at - entry.oldest_at >= pool.spec.window_s
    ]
    if overdue:
        overdue.sort(
            key=lambda e: (
                ledger.usage(pool, e.job_class.key.caller, at),
                queueing.order_key(pool, e),
                e.number,
            )
        )
        _serve_first_those_without(pool, overdue, at)
        if staffing.under_way(profile) >= sum(e.unmet for e in overdue):
            # Workers for all of them start already: nothing is to be shared, only waited for.
            profile.relieve_after = at + COVERED_LOOK_S
            pool.agenda.set_earlier(("place", profile.spec.name), profile.relieve_after)
            return
        busy = _busy_by_caller(pool, profile.lanes.values())
        for entry in overdue:
            if staffing.under_way(profile) >= sum(e.unmet for e in overdue):
                break
            while entry.unmet > 0 and _drain_one(pool, profile, entry, busy, at):
                pass
        _make_room(pool, profile, overdue, at)
    pool.agenda.set_earlier(("place", profile.spec.name), profile.relieve_after)


def _serve_first_those_without(pool: Pool, overdue: list[Entry], at: float) -> None:
    """A caller that holds nothing goes before a backlog that others have had for longer.

    It is worth one worker: the first one on its way to the entry ends its urgency.
    """
    for entry in overdue:
        caller = pool.callers.get(entry.job_class.key.caller)
        without = not entry.pending and (caller is None or caller.held <= EPSILON)
        if without and entry.urgent_at is None:
            entry.urgent_at = at
            queueing.refresh(pool, entry)


def _make_room(pool: Pool, profile: Profile, overdue: list[Entry], at: float) -> None:
    """Lanes of other profiles go, once their jobs have finished, where GPUs are all taken."""
    entry = next((e for e in overdue if e.unmet > 0), None)
    if entry is None or not growth.lacks_only_gpus(pool, profile, at):
        return
    queue = queueing.queue_of(pool, entry)
    units = profile.spec.unit
    if profile.growing or not (queue.entitled(units) and queue.has_room(units)):
        return
    others = [p for p in pool.profiles.values() if p is not profile and p.spec.gpus > 0]
    lanes = [
        lane for p in others if p.counted > p.spec.min_lanes for lane in list(p.lanes.values())
    ]
    busy = _busy_by_caller(pool, lanes)
    while growth.lacks_only_gpus(pool, profile, at):
        victim = _victim_for(pool, profile, entry, busy, at)
        if victim is None:
            return
        other = victim.lane.profile
        if other.counted > other.spec.min_lanes:
            pool.room_for = profile.spec.name
            growth.retire(pool, victim.lane, "its GPUs are needed by another profile", at)


def _busy_by_caller(pool: Pool, lanes: Iterable[Lane]) -> dict[Caller, list[Worker]]:
    """Bound workers that may be drained: busy, and not waiting for children."""
    parents = {c.parent.worker for c in pool.clients.values() if c.parent and c.blocked}
    busy: dict[Caller, list[Worker]] = {}
    for lane in lanes:
        worker = lane.device.active
        if (
            lane.state == "ready"
            and not lane.draining
            and worker is not None
            and worker.state == "bound"
            and worker.idle_since is None
            and worker.key is not None
            and worker.id not in parents
        ):
            busy.setdefault(worker.key.caller, []).append(worker)
    return busy


def _drain_one(
    pool: Pool, profile: Profile, entry: Entry, busy: dict[Caller, list[Worker]], at: float
) -> bool:
    """Drain one busy lease for the entry; False if it would not be fair to."""
    return _drain_sibling(pool, entry, busy, at) or _drain_other(pool, profile, entry, busy, at)


def _drain_sibling(pool: Pool, entry: Entry, busy: dict[Caller, list[Worker]], at: float) -> bool:
    """Between clients of one caller the worker itself moves, warm, from the one with most."""
    mine = _leases(pool, entry.client, entry) + entry.pending
    best: Worker | None = None
    most = 0
    for worker in busy.get(entry.job_class.key.caller, ()):
        if worker.key != entry.job_class.key or worker.client == entry.client:
            continue
        theirs = _leases(pool, worker.client, entry)
        if theirs > most and (mine == 0 or theirs >= mine + 2):
            best, most = worker, theirs
    if best is None:
        return False
    busy[entry.job_class.key.caller].remove(best)
    leases.cover(pool, entry)
    best.claim = Claim(entry, "warm")
    leases.revoke(pool, best, "move", "drain", at)
    _be_patient(pool, best, at)
    return True


def _leases(pool: Pool, client: str, entry: Entry) -> int:
    state = pool.clients.get(client)
    if state is None:
        return 0
    key = entry.job_class.key
    return sum(
        1
        for name in state.leases
        if (worker := pool.workers.get(name)) is not None
        and worker.key == key
        and worker.state != "draining"
    )


def _be_patient(pool: Pool, victim: Worker, at: float) -> None:
    """Its job may last: after another window the one that waits for it may have another worker."""
    pool.agenda.set(("patience", victim.id), at + pool.spec.window_s)


def _drain_other(
    pool: Pool,
    profile: Profile,
    entry: Entry,
    busy: dict[Caller, list[Worker]],
    at: float,
) -> bool:
    victim = _victim_for(pool, profile, entry, busy, at)
    if victim is None:
        return False
    candidates = [standby_of(lane) for lane in victim.lane.device.lanes if lane.profile is profile]
    standby = next((worker for worker in candidates if worker is not None), None)
    grown = profile.spec.unit - victim.lane.profile.spec.unit
    if standby is not None and queueing.queue_of(pool, entry).has_room(grown):
        leases.hand_over(pool, victim, standby, entry, "drain", at)
        _be_patient(pool, victim, at)
        return True
    leases.recycle(pool, profile, victim, "drain", at)
    _be_patient(pool, victim, at)
    return False  # no claim: the lane starts a worker, and the waiting order decides who gets it


def _victim_for(
    pool: Pool, profile: Profile, entry: Entry, busy: dict[Caller, list[Worker]], at: float
) -> Worker | None:
    """A busy worker of the caller with the highest usage, if that is fair; taken out of ``busy``.

    A queue that may not hold more can only take from its own callers.
    """
    caller = entry.job_class.key.caller
    units = profile.spec.unit
    queue = queueing.queue_of(pool, entry)
    within = not (queue.has_room(units) and queue.entitled(units))
    mine = pool.callers.get(caller)
    my_share = ((mine.held if mine is not None else 0.0) + entry.pending * units) / (queue.weight)
    my_usage = ledger.usage(pool, caller, at)
    best: tuple[float, Caller] | None = None
    for other, workers in busy.items():
        if other == caller or not workers or (within and other.queue != caller.queue):
            continue
        usage = ledger.usage(pool, other, at)
        theirs = pool.callers[other]
        left = (theirs.held - theirs.leaving - units) / pool.queues[other.queue].weight
        fair = my_share == 0 or left >= my_share + units / queue.weight
        if fair and usage > my_usage and (best is None or usage > best[0]):
            best = (usage, other)
    if best is None:
        return None
    victim = _pick(busy[best[1]])
    busy[best[1]].remove(victim)
    return victim


def _pick(workers: list[Worker]) -> Worker:
    """One that has a standby beside it, if any: its lane is handed on fastest."""
    for worker in workers:
        if standby_of(worker.lane) is not None:
            return worker
    return workers[0]
