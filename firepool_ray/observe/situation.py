"""The machine's state in words and plain values: who holds what, who waits and why.

Read by the controller for ``describe`` and ``explain``; changes nothing. Ages are in seconds,
amounts in units; inf is written as None, since the result must be JSON.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from firepool_ray.core import queueing
from firepool_ray.core.model import Caller
from firepool_ray.core.state import Entry, Lane, Pool, Profile, Worker
from firepool_ray.observe import warmth


def finite(value: float) -> float | None:
    return None if value == float("inf") else round(value, 6)


def worker_state(worker: Worker) -> str:
    """The word people use: a bound worker is busy or idle, by the latest news."""
    if worker.state == "bound":
        return "busy" if worker.idle_since is None else "idle"
    return {
        "reserved": "standby",
        "unleased": "idle",
        "regranting": "idle",
        "revoking": "idle",
    }.get(worker.state, worker.state)


def caller_text(worker: Worker) -> str:
    return str(worker.key.caller) if worker.key is not None else ""


def describe_lane(pool: Pool, lane: Lane, at: float) -> dict[str, Any]:
    return {
        "lane": lane.id,
        "profile": lane.profile.spec.name,
        "device": lane.device.id,
        "node": lane.node,
        "state": lane.state if not lane.draining or lane.state == "retiring" else "draining",
        "age_s": round(at - lane.since, 3),
        "gpus": lane.profile.spec.gpus,
        "detail": lane.profile.reason if lane.state == "quarantined" else "",
        "workers": [
            {
                "worker": worker.id,
                "slot": worker.slot,
                "state": worker_state(worker),
                "caller": caller_text(worker),
                "deps": worker.key.deps if worker.key is not None else "",
                "client": worker.client,
                "age_s": round(at - worker.since, 3),
                **warmth.describe_warmth(pool, worker, at),
            }
            for worker in lane.workers()
        ],
    }


def describe_queue(pool: Pool, name: str, at: float) -> dict[str, Any]:
    queue = pool.queues[name]
    idle = sum(
        worker.lane.profile.spec.unit
        for worker in pool.idle
        if worker.key is not None and worker.key.caller.queue == name
    )
    workers, units = 0, 0.0
    for entry in waiting_entries(pool):
        if entry.job_class.key.caller.queue == name:
            workers += entry.unmet
            units += entry.unmet * queueing.profile_of(pool, entry).spec.unit
    return {
        "queue": name,
        "quota": finite(queue.quota),
        "limit": finite(queue.limit),
        "weight": queue.weight,
        "held": round(queue.held, 6),
        "idle": round(idle, 6),
        "demand": round(units, 6),
        "demand_workers": workers,
        "budgets": warmth.describe_budgets(pool, name, at),
        "signal": warmth.describe_signal(pool, name, at),
    }


def describe_profile(profile: Profile, at: float) -> dict[str, Any]:
    return {
        "profile": profile.spec.name,
        "gpus": profile.spec.gpus,
        "lanes": profile.counted,
        "max_lanes": profile.spec.max_lanes,
        "standbys": profile.spec.standbys,
        "breaker": "open" if at < profile.open_until else "closed",
        "last_failure": profile.reason,
        "start_s": round(profile.start_cost_s, 4),
        "grow_s": round(profile.grow_cost_s, 4),
        "promote_s": round(profile.promote_cost_s, 5),
        **warmth.describe_policy(profile, at),
    }


def describe_workers(pool: Pool) -> dict[str, Any]:
    states = Counter(worker_state(worker) for worker in pool.workers.values())
    callers = Counter(
        caller_text(worker)
        for worker in pool.workers.values()
        if worker.key is not None and worker.state != "leaving"
    )
    return {"by_state": dict(sorted(states.items())), "by_caller": dict(sorted(callers.items()))}


def waiting_entries(pool: Pool) -> list[Entry]:
    """All unmet demand, oldest first."""
    found = [
        entry
        for client in pool.clients.values()
        for entry in client.entries.values()
        if entry.unmet > 0
    ]
    return sorted(found, key=lambda entry: (queueing.order_key(pool, entry), entry.number))


def describe_waiting(pool: Pool, at: float, caller: Caller | None = None) -> list[dict[str, Any]]:
    return [
        {
            "caller": str(entry.job_class.key.caller),
            "queue": entry.job_class.key.caller.queue,
            "profile": entry.job_class.key.profile,
            "deps": entry.job_class.key.deps,
            "priority": entry.job_class.priority,
            "count": entry.unmet,
            "oldest_age_s": round(at - entry.oldest_at, 3),
            "reason": why_waiting(pool, entry, at),
        }
        for entry in waiting_entries(pool)
        if caller is None or entry.job_class.key.caller == caller
    ]


def why_waiting(pool: Pool, entry: Entry, at: float) -> str:
    """One sentence: what this demand waits for."""
    profile = queueing.profile_of(pool, entry)
    queue = queueing.queue_of(pool, entry)
    units = profile.spec.unit
    name = profile.spec.name
    if not pool.open:
        return "the controller is taking over after a restart"
    if not queue.has_room(units):
        return (
            f"queue {queue.spec.name!r} is at its limit: it holds {queue.held:g} of "
            f"{queue.limit:g} units"
        )
    if entry.drain_s <= profile.promote_cost_s:
        return f"the leases its client holds will be free in {entry.drain_s:.3f} s"
    if at < profile.open_until:
        return f"workers of {name!r} do not start, the breaker is open: {profile.reason}"
    if profile.coming or profile.starting:
        return f"a worker of {name!r} is starting (takes about {profile.start_cost_s:.2f} s)"
    if profile.growing:
        ages = [at - lane.since for lane in profile.lanes.values() if lane.state == "growing"]
        return (
            f"a lane of {name!r} waits for its node since {max(ages, default=0.0):.1f} s "
            f"(usually {profile.grow_cost_s:.1f} s)"
        )
    if at < profile.retry_at:
        return f"starts of {name!r} back off after a failure: {profile.reason}"
    if at < profile.grow_retry_at:
        return f"lanes of {name!r} cannot be placed: {profile.reason}"
    if not queue.entitled(units):
        return f"queue {queue.spec.name!r} is beyond its quota and entitled demand goes first"
    return f"all {profile.counted} lanes of {name!r} are taken"
