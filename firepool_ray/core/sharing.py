"""Busy leases are shared when somebody has waited past the window. Called by ``placement``.

If entitled demand has waited longer than the window and no idle worker can go, the busy lease of
the caller with the highest usage is drained: its job finishes, then the lane (or, between clients
of one caller, the worker itself) goes to the one that waited. A lease is never taken where that
would only turn the inequality around.
"""

from __future__ import annotations

from firepool_ray.core import leases, ledger, queueing
from firepool_ray.core.model import Caller
from firepool_ray.core.shelves import standby_of
from firepool_ray.core.state import Claim, Entry, Pool, Profile, Worker

#: Waiting entries and busy workers are all looked at, so not more often than this.
LOOK_EVERY_S = 0.25


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
        and queueing.queue_of(pool, entry).entitled(profile.spec.unit)
    ]
    if overdue:
        overdue.sort(
            key=lambda e: (
                ledger.usage(pool, e.job_class.key.caller, at),
                queueing.order_key(pool, e),
                e.number,
            )
        )
        busy = _busy_by_caller(pool, profile)
        for entry in overdue:
            under_way = profile.recycling + len(profile.coming) + profile.growing
            if under_way >= sum(e.unmet for e in overdue):
                break
            while entry.unmet > 0 and _drain_one(pool, profile, entry, busy, at):
                pass
    pool.agenda.set_earlier(("place", profile.spec.name), profile.relieve_after)


def _busy_by_caller(pool: Pool, profile: Profile) -> dict[Caller, list[Worker]]:
    """Bound workers that may be drained for this profile: busy, and not waiting for children."""
    parents = {c.parent.worker for c in pool.clients.values() if c.parent and c.blocked}
    busy: dict[Caller, list[Worker]] = {}
    for lane in profile.lanes.values():
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


def _drain_other(
    pool: Pool,
    profile: Profile,
    entry: Entry,
    busy: dict[Caller, list[Worker]],
    at: float,
) -> bool:
    caller = entry.job_class.key.caller
    units = profile.spec.unit
    mine = ledger.caller_state(pool, caller, at)
    my_weight = pool.queues[caller.queue].spec.weight
    my_usage = ledger.usage(pool, caller, at)
    my_share = (mine.held + entry.pending * units) / my_weight
    full = not queueing.queue_of(pool, entry).has_room(units)
    best: tuple[float, Caller] | None = None
    for other, workers in busy.items():
        if other == caller or not workers or (full and other.queue != caller.queue):
            continue
        usage = ledger.usage(pool, other, at)
        theirs = pool.callers[other]
        weight = pool.queues[other.queue].spec.weight
        left = (theirs.held - theirs.leaving - units) / weight
        fair = my_share == 0 or left >= my_share + units / my_weight
        if fair and usage > my_usage and (best is None or usage > best[0]):
            best = (usage, other)
    if best is None:
        return False
    victim = _pick(busy[best[1]])
    busy[best[1]].remove(victim)
    candidates = [standby_of(lane) for lane in victim.lane.device.lanes if lane.profile is profile]
    standby = next((worker for worker in candidates if worker is not None), None)
    if standby is not None:
        leases.hand_over(pool, victim, standby, entry, "drain", at)
        return True
    leases.revoke(pool, victim, "recycle", "drain", at)
    return False  # no claim: the lane starts a worker, and the waiting order decides who gets it


def _pick(workers: list[Worker]) -> Worker:
    """One that has a standby beside it, if any: its lane is handed on fastest."""
    for worker in workers:
        if standby_of(worker.lane) is not None:
            return worker
    return workers[0]
