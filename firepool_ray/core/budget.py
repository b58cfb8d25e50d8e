"""How much idle capacity may each queue hold? Computed when somebody asks, at most once a moment.

Asked by ``eviction`` (whose idle worker goes first), ``warming`` (how much may be warmed),
``reclaim`` (what must be given back) and the status. Per queue q and GPU type, in units:

    need = what q's callers hold idle, on average by their own gaps or just now, whichever is
           more, and the workers of bursts that are due
    in   = min(need, rho * Q, max(0, Q - R - D))          within q's quota
    over = q's share by weight of what nobody needs        beyond it
    B    = max(0, min(need, in + over, limit - R - D))

R is what runs (held and busy, or idle for less than the linger), D unmet demand that the queue's
limit would allow now, Q the quota and never more than all there is. What others run in the same
queue outside the pool counts into R and D (``QueueSignal``). A budget is no quota: nothing is taken
away while nobody asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from firepool_ray.core import bursts
from firepool_ray.core.state import EPSILON, Pool, Queue

#: Budgets older than this are computed anew when asked for.
FRESH_S = 0.25


@dataclass(frozen=True, slots=True)
class Terms:
    """The budget of one queue for one GPU type, and what it was made of. Units."""

    queue: str
    gpu_type: str
    running: float
    demand: float
    quota: float  #: never more than ``cap``
    limit: float
    weight: float
    cap: float
    need: float
    within: float
    over: float
    budget: float
    idle: float  #: held idle when this was computed

    @property
    def excess(self) -> float:
        """Idle units beyond the budget: the first to go when somebody asks."""
        return max(0.0, self.idle - self.budget)


def terms(pool: Pool, queue: str, gpu_type: str, at: float) -> Terms:
    if at - pool.budgets_at > FRESH_S or (queue, gpu_type) not in pool.budgets:
        pool.budgets = compute(pool, at)
        pool.budgets_at = at
    return pool.budgets[queue, gpu_type]


def compute(pool: Pool, at: float) -> dict[tuple[str, str], Terms]:
    """All budgets, from the accounts as they are."""
    found: dict[tuple[str, str], Terms] = {}
    types = dict.fromkeys(profile.gpu_type for profile in pool.profiles.values())
    for gpu_type in types:
        rows = [_before_sharing(pool, queue, gpu_type, at) for queue in pool.queues.values()]
        cap = cap_of(pool, gpu_type)
        taken = sum(row.running + row.demand + row.within for row in rows)
        spare = max(0.0, cap - taken - pool.spec.headroom)
        shares = share_by_weight(
            spare, [(row.weight, row.need - row.within) for row in rows if row.need > row.within]
        )
        for row in rows:
            over = next(shares) if row.need > row.within else 0.0
            room = max(0.0, row.limit - row.running - row.demand)
            found[row.queue, gpu_type] = Terms(
                row.queue,
                gpu_type,
                row.running,
                row.demand,
                row.quota,
                row.limit,
                row.weight,
                cap,
                row.need,
                row.within,
                over,
                max(0.0, min(row.need, row.within + over, room)),
                row.idle,
            )
    return found


@dataclass(frozen=True, slots=True)
class _Row:
    queue: str
    running: float
    demand: float
    quota: float
    limit: float
    weight: float
    need: float
    within: float
    idle: float


def _before_sharing(pool: Pool, queue: Queue, gpu_type: str, at: float) -> _Row:
    cap = cap_of(pool, gpu_type)
    idle = queue.idle_of.get(gpu_type, 0.0)
    outside = queue.outside if gpu_type == queue.outside_type else (0.0, 0.0)
    running = max(0.0, queue.held_of.get(gpu_type, 0.0) - idle) + outside[0]
    room = max(0.0, queue.limit - running)
    demand = min(_demand(pool, queue, gpu_type) + outside[1], room)
    quota = min(queue.quota, cap)
    need = _need(pool, queue, gpu_type, at)
    within = min(need, pool.spec.rho * quota, max(0.0, quota - running - demand))
    return _Row(
        queue.spec.name, running, demand, quota, queue.limit, queue.weight, need, within, idle
    )


def cap_of(pool: Pool, gpu_type: str) -> float:
    """All units of the type that the pool may ever reserve."""
    profiles = [p for p in pool.profiles.values() if p.gpu_type == gpu_type]
    lanes = sum(p.most_lanes * p.spec.unit for p in profiles)
    has_gpus = any(p.spec.gpus > 0 for p in profiles)
    return min(lanes, pool.spec.max_gpus) if has_gpus else lanes


def _demand(pool: Pool, queue: Queue, gpu_type: str) -> float:
    total = 0.0
    for profile in pool.profiles.values():
        if profile.gpu_type == gpu_type and (order := profile.waiting.get(queue.spec.name)):
            total += profile.spec.unit * sum(entry.unmet for entry in order)
    return total


def _need(pool: Pool, queue: Queue, gpu_type: str, at: float) -> float:
    """The average in whole workers of the smallest profile, since half a one serves nobody.

    What is held idle at this moment is needed too: each keep-alive has found that it pays.
    """
    unit = min(p.spec.unit for p in pool.profiles.values() if p.gpu_type == gpu_type)
    average = queue.standing_of(gpu_type).per_s(at)
    standing = math.ceil(average / unit - EPSILON) * unit
    idle = queue.idle_of.get(gpu_type, 0.0)
    return max(standing, idle) + bursts.standing_burst(pool, queue.spec.name, gpu_type)


def share_by_weight(total: float, wants: list[tuple[float, float]]) -> Iterator[float]:
    """Divide ``total`` by weight among (weight, want); what one does not want goes to the others.

    Water-filling: in the order of want per weight, each gets its share of what is left.
    """
    order = sorted(range(len(wants)), key=lambda i: (wants[i][1] / wants[i][0], i))
    shares = [0.0] * len(wants)
    # Summed up from the last, not counted down: a tiny weight must not vanish beside a large one.
    weights = list(accumulate(wants[i][0] for i in reversed(order)))
    for i in order:
        shares[i] = min(wants[i][1], total * (wants[i][0] / weights.pop()))
        total -= shares[i]
    return iter(shares)
