"""Who is next: the waiting order of demand, and who may be served at all.

Waiting is ordered by arrival minus priority times the window: a step of priority is worth one
window of waiting and no more, so nobody starves. Called by ``machine`` and ``placement``.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from firepool_ray.core.model import ReuseKey
from firepool_ray.core.ordered import Ordered
from firepool_ray.core.state import EPSILON, Entry, Pool, Profile, Queue

#: How far a search looks past candidates that do not fit.
SCAN = 64


def profile_of(pool: Pool, entry: Entry) -> Profile:
    return pool.profiles[entry.job_class.key.profile]


def queue_of(pool: Pool, entry: Entry) -> Queue:
    return pool.queues[entry.job_class.key.caller.queue]


#: Urgent entries stand before all others, whoever became so first before the rest.
URGENT_S = 1e9


def order_key(pool: Pool, entry: Entry) -> float:
    if entry.urgent_at is not None:
        return entry.urgent_at - URGENT_S
    return entry.oldest_at - entry.job_class.priority * pool.spec.window_s


def refresh(pool: Pool, entry: Entry) -> None:
    """Put the entry where its unmet demand belongs; call after any change of it."""
    key = entry.job_class.key
    profile = pool.profiles[key.profile]
    wanting = pool.wanting.get(key)
    waiting = profile.waiting.get(key.caller.queue)
    if entry.unmet > 0:
        if wanting is None:
            wanting = pool.wanting[key] = Ordered()
        order = order_key(pool, entry)
        wanting.add(order, entry.number, entry)
        if key in pool.warm:
            pool.rematch[key] = None
        if entry.drain_s > profile.promote_cost_s:
            if waiting is None:
                waiting = profile.waiting[key.caller.queue] = Ordered()
            waiting.add(order, entry.number, entry)
        elif waiting is not None:
            waiting.discard(entry.number)
        pool.dirty[key.profile] = None
    else:
        if wanting is not None:
            wanting.discard(entry.number)
            if not wanting:
                del pool.wanting[key]
        if waiting is not None:
            waiting.discard(entry.number)


def next_entry(pool: Pool, profile: Profile, passed: Collection[ReuseKey] = ()) -> Entry | None:
    """The first waiting entry whose queue may hold more: entitled queues before borrowing ones.

    Entries of the reuse keys in ``passed`` could not be served just now.
    """
    units = profile.spec.unit
    best: Entry | None = None
    best_rank: tuple[bool, float] = (True, float("inf"))
    for name, order in profile.waiting.items():
        if not order:
            continue
        queue = pool.queues[name]
        if not queue.has_room(units):
            continue
        entry = first_not_passed(order, passed) if passed else order.first()
        if entry is None:
            continue
        rank = (not queue.entitled(units), order.key_of(entry.number))
        if best is None or rank < best_rank:
            best, best_rank = entry, rank
    return best


def head_key(profile: Profile) -> float:
    """Place in the waiting order of whoever waits first for the profile; inf if nobody does."""
    return min((order.first_key() for order in profile.waiting.values()), default=float("inf"))


def first_not_passed(order: Ordered[Entry], passed: Collection[ReuseKey]) -> Entry | None:
    return next((e for e in islice(order, SCAN) if e.job_class.key not in passed), None)


def room_changed(pool: Pool, queue: Queue) -> None:
    """Units of the queue became free: what waits for them is looked at again."""
    for profile in pool.profiles.values():
        if profile.waiting.get(queue.spec.name):
            pool.dirty[profile.spec.name] = None


def full_queues(pool: Pool, profile: Profile) -> list[tuple[Queue, Ordered[Entry]]]:
    """Queues with waiting demand that are at their limit: they can only exchange workers."""
    units = profile.spec.unit
    return [
        (pool.queues[name], order)
        for name, order in profile.waiting.items()
        if order and not pool.queues[name].has_room(units)
    ]


def wanted_starts(pool: Pool, profile: Profile, cost_s: float, enough: int) -> int:
    """Workers that waiting demand could use, within limits, and would wait ``cost_s`` for.

    Counts up to ``enough`` only, and looks at each queue's first entries until its room is used.
    """
    units = profile.spec.unit
    total = 0
    for name, order in profile.waiting.items():
        queue = pool.queues[name]
        room = int(min(enough - total, (queue.limit - queue.after(0.0) + EPSILON) / units))
        wanted = 0
        for entry in order:
            if wanted >= room:
                break
            if entry.drain_s > cost_s:
                wanted += entry.unmet
        total += max(0, min(wanted, room))
        if total >= enough:
            break
    return total
