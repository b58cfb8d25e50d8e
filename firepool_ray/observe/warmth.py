"""Why a warm worker is held, why one went, what each queue may hold. For ``status``, ``explain``.

Reads the machine's state and changes nothing. Plain values only, since the result must be JSON.
"""

from __future__ import annotations

from typing import Any

from firepool_ray.core import budget, bursts, retention
from firepool_ray.core.adaptive import FEW_GAPS, Adaptive
from firepool_ray.core.keepalive import Fixed
from firepool_ray.core.model import Caller
from firepool_ray.core.state import Pool, Profile, Worker

INF = float("inf")
#: Warm workers that went lately, as shown by ``status``.
SHOWN = 20


def _finite(value: float) -> float | None:
    return None if value == INF else round(value, 6)


def describe_warmth(pool: Pool, worker: Worker, at: float) -> dict[str, Any]:
    """``held_for_s`` (None: until somebody needs its lane) and ``why`` of an idle worker."""
    if worker.idle_since is None or worker.key is None:
        return {"held_for_s": None, "why": ""}
    until = pool.agenda.time_of(("ttl", worker.id))
    left_s = None if until == INF else round(max(0.0, until - at), 3)
    return {"held_for_s": left_s, "why": _why_held(worker)}


def _why_held(worker: Worker) -> str:
    assert worker.key is not None
    profile, caller = worker.lane.profile, worker.key.caller
    if worker.ahead:
        return f"bound ahead of {caller}'s next burst, told from its regular pauses"
    policy = profile.policy
    if isinstance(policy, Adaptive):
        return _why_adaptive(policy, profile, worker)
    if isinstance(policy, Fixed):
        if policy.ttl_s == INF:
            return "keep_alive is always: it goes when somebody else needs its lane"
        return f"keep_alive is fixed: {policy.ttl_s:g} s after its last job"
    return f"held for {worker.hold_s:.3g} s by {type(policy).__name__}"


def _why_adaptive(policy: Adaptive, profile: Profile, worker: Worker) -> str:
    assert worker.key is not None and worker.idle_since is not None
    caller = worker.key.caller
    start_s = profile.costs.cold_s * profile.spec.cold_price
    lane_s = retention.lane_hold_s(profile, worker.idle_since)
    if lane_s > worker.hold_s:
        return f"lanes of {profile.spec.name!r} are usually needed again within {lane_s:.3g} s"
    outlook = policy.outlook(caller)
    if policy.gaps.seen < FEW_GAPS or outlook is None:
        return (
            f"only {policy.gaps.seen} pauses were seen: held for {worker.hold_s:.3g} s, what a "
            "start costs"
        )
    if worker.hold_s > outlook.hold_s and bursts.bridge_s(profile, caller) > 0:
        return f"{caller}'s pauses are hardly longer than a start ({start_s:.3g} s): bridged"
    return (
        f"{100 * outlook.warm:.0f} % of the pauses of {caller} end within {outlook.hold_s:.3g} s; "
        f"holding on beyond costs more than a start ({start_s:.3g} s)"
    )


def describe_budgets(pool: Pool, queue: str, at: float) -> list[dict[str, Any]]:
    """Per GPU type: the queue's budget for idle workers and its terms, in units."""
    rows = []
    for gpu_type in dict.fromkeys(profile.gpu_type for profile in pool.profiles.values()):
        terms = budget.terms(pool, queue, gpu_type, at)
        rows.append(
            {
                "gpu_type": gpu_type or "none",
                "budget": _finite(terms.budget),
                "idle": _finite(terms.idle),
                "running": _finite(terms.running),
                "demand": _finite(terms.demand),
                "need": _finite(terms.need),
                "within_quota": _finite(terms.within),
                "beyond_quota": _finite(terms.over),
                "cap": _finite(terms.cap),
            }
        )
    return rows


def describe_signal(pool: Pool, queue: str, at: float) -> dict[str, Any] | None:
    """What another system said of the queue last, while that counts."""
    signal = pool.queues[queue].signal
    if signal is None:
        return None
    return {
        "source": signal.source,
        "age_s": round(at - signal.at + signal.age_s, 3),
        "running": signal.running,
        "pending": signal.pending,
    }


def describe_policy(profile: Profile, at: float) -> dict[str, Any]:
    """The profile's keep-alive and the costs it decides with."""
    return {
        "keep_alive": profile.spec.keep_alive,
        "cold_start_s": round(profile.costs.cold_s, 4),
        "restart_s": round(profile.costs.restart.value, 4),
        "lane_keep_s": _finite(retention.lane_keep_s(profile, at)),
        "bursts_due": len(profile.warming),
    }


def describe_let_go(pool: Pool, at: float, caller: Caller | None = None) -> list[dict[str, Any]]:
    """Warm workers that went, newest last."""
    rows = [row for row in pool.let_go if caller is None or row.key.caller == caller]
    return [
        {
            "worker": row.worker,
            "caller": str(row.key.caller),
            "profile": row.key.profile,
            "ago_s": round(max(0.0, at - row.at), 3),
            "idle_s": round(row.idle_s, 3),
            "why": row.why,
        }
        for row in rows[-SHOWN:]
    ]
