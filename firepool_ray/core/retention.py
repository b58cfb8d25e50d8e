"""What happens to idle capacity over time: the one place that speaks to keep-alive policies.

Called by ``shelves`` and ``leases`` at every turn of a worker's life, and by ``growth`` for lanes.
It tells the policy what became of each gap, asks it for hold times, and notes why workers went.
An idle worker is held for its own caller, and for whoever else may need its lane, whichever is
longer: both end up as one time on the agenda.
"""

from __future__ import annotations

from firepool_ray.core import bursts, keepalive
from firepool_ray.core.adaptive import LONGEST, Adaptive
from firepool_ray.core.gaps import Hold, best_hold
from firepool_ray.core.keepalive import Idle, KeepAlive, Prices
from firepool_ray.core.model import Caller, ProfileSpec
from firepool_ray.core.state import Lane, LetGo, Pool, Profile, Worker

INF = float("inf")
#: Why a warm worker went, by the purpose of its revocation.
WHY = {
    "retire": "it was idle for as long as holding it pays, or idle workers are capped",
    "handover": "another caller waited: it got the lane",
    "recycle": "another caller waited: a worker was started for it in the lane",
    "exchange": "its queue was at its limit and wanted another worker instead",
    "reclaim": "work outside the pool waited for its GPUs",
}
CLOSED = "its caller said that it is done"
#: Gaps of lanes seen before they decide anything.
FEW_LANE_GAPS = 8
#: A profile's lane hold time is computed anew after so much more of them.
_STALE = 0.1
#: Released lanes whose return is awaited.
_LANES_AWAITED = 256
#: Weight of the newest in the mean time that workers were held idle.
_HELD_GAIN = 0.05


def make_policy(spec: ProfileSpec) -> KeepAlive:
    form = keepalive.parse(spec.keep_alive)
    return Adaptive(spec.cold_price) if form.name == "adaptive" else keepalive.Fixed(form.ttl_s)


def prices(profile: Profile) -> Prices:
    return Prices(profile.costs.cold_s, profile.promote_cost_s, profile.spec.unit)


# ---------------------------------------------------------------- workers


def became_idle(pool: Pool, worker: Worker, since: float) -> float:
    """Tell the policy; returns until when the worker is held."""
    assert worker.key is not None
    lane, profile = worker.lane, worker.lane.profile
    if worker.rest is not None and worker.rest.since != since:
        _end_gap(pool, worker, since)  # it worked in between, unnoticed
    caller = worker.key.caller
    if worker.ahead and since > worker.since:
        works_again(pool, worker, worker.since)  # as soon as it was bound, unnoticed
    bursts.is_there(worker)
    bursts.rests(pool, worker, since)
    if worker.ahead:
        return bursts.held_until(pool, worker)
    lane.rest_since = since
    if worker.rest is None:
        worker.rest = Idle(caller, since)
        costs = prices(profile)
        worker.hold_s = profile.policy.hold_s(worker.rest, costs)
        bursts.is_held(profile, caller, worker.hold_s)
        bridge_s = bursts.bridge_s(profile, caller)
        worker.bridges = bridge_s > worker.hold_s
        worker.hold_s = max(worker.hold_s, bridge_s)
        queue = pool.queues[caller.queue]
        expected_s = _expected_idle_s(profile, worker)
        queue.standing_of(profile.gpu_type).add(since, expected_s * profile.spec.unit)
    if is_closing(pool, worker):
        return since
    return since + max(worker.hold_s, lane_hold_s(profile, since))


def is_closing(pool: Pool, worker: Worker) -> bool:
    """Its caller said that it is done."""
    state = pool.callers.get(worker.key.caller) if worker.key is not None else None
    return state is not None and state.closing


def _expected_idle_s(profile: Profile, worker: Worker) -> float:
    """How long it will be held idle on average, before it is used or let go."""
    assert worker.key is not None
    outlook = profile.policy.outlook(worker.key.caller)
    return outlook.idle_s if outlook is not None else min(worker.hold_s, profile.held_s)


def worth(worker: Worker, costs: Prices, at: float) -> float:
    """What holding the idle worker is worth to its policy; a warmed one waits for its burst."""
    return INF if worker.rest is None else worker.lane.profile.policy.worth(worker.rest, at, costs)


def is_expected(worker: Worker) -> bool:
    """Its caller's next burst has been told, and the worker is held for it."""
    return worker.ahead or worker.bridges


def works_again(pool: Pool, worker: Worker, at: float) -> None:
    """An idle worker serves its caller once more: the gap is over."""
    _end_gap(pool, worker, at)
    bursts.is_there(worker)
    bursts.works(pool, worker, at)


def _end_gap(pool: Pool, worker: Worker, at: float) -> None:
    assert worker.key is not None
    profile, rest = worker.lane.profile, worker.rest
    worker.rest = None
    lane_busy_again(worker.lane, at, by_others=False)
    if worker.ahead:
        worker.ahead = False
        profile.policy.started(worker.key.caller, at)
    elif rest is not None:
        profile.policy.reused(rest, at)
        profile.held_s += _HELD_GAIN * (at - rest.since - profile.held_s)


def bound(pool: Pool, worker: Worker, wanted_at: float, at: float) -> None:
    """A worker is promised to a caller that wanted one since ``wanted_at``, for want of a warm one.

    What that cost is what it waited; at most a start from nothing, since a full pool is no reason
    to hold idle workers longer.
    """
    assert worker.key is not None
    profile = worker.lane.profile
    lane_busy_again(worker.lane, at, by_others=True)
    profile.policy.started(worker.key.caller, wanted_at)
    took_s = at - wanted_at + profile.promote_cost_s
    bursts.started(pool, worker, min(took_s, profile.costs.cold_s + profile.promote_cost_s))
    bursts.works(pool, worker, wanted_at)


def gone(pool: Pool, worker: Worker, why: str, at: float) -> None:
    """The worker leaves. If it was idle, its caller may still come back: the policy watches on."""
    bursts.leaves(pool, worker, at)
    if worker.key is None:
        return
    profile, lane = worker.lane.profile, worker.lane
    if lane.rest_since is None:
        lane.rest_since = at
    rest, worker.rest = worker.rest, None
    ahead, worker.ahead = worker.ahead, False
    if rest is None and not ahead:
        return
    held_s = at - (rest.since if rest is not None else worker.since)
    if rest is not None:
        profile.policy.released(rest, at)
        profile.held_s += _HELD_GAIN * (held_s - profile.held_s)
        if is_closing(pool, worker):
            profile.policy.closed(worker.key.caller)
    reason = CLOSED if is_closing(pool, worker) and why == "retire" else WHY.get(why, why)
    pool.let_go.append(LetGo(at, worker.id, worker.key, held_s, reason))


def caller_closed(pool: Pool, caller: Caller) -> None:
    """The caller is done: its open gaps tell nothing, and no burst of it is to be expected."""
    for profile in pool.profiles.values():
        profile.policy.closed(caller)
        rhythm = profile.rhythms.get(caller)
        if rhythm is not None:
            bursts.forget_plan(pool, profile, rhythm)


# ---------------------------------------------------------------- lanes


def lane_busy_again(lane: Lane, at: float, *, by_others: bool) -> None:
    """Work begins on the lane. What its own caller does there, its own keep-alive has foreseen;
    lanes are held beyond that for others only.
    """
    since, lane.rest_since = lane.rest_since, None
    if since is not None:
        gaps, gap_s = lane.profile.lane_gaps, max(0.0, at - since)
        (gaps.add if by_others else gaps.censor)(gap_s)


def lane_gone(lane: Lane) -> None:
    profile, since = lane.profile, lane.rest_since
    lane.rest_since = None
    if since is not None:
        profile.lane_gaps.let_go(since)
        profile.lanes_awaited.append(since)
        if len(profile.lanes_awaited) > _LANES_AWAITED:
            profile.lane_gaps.lost(profile.lanes_awaited.pop(0))


def lane_wanted(profile: Profile, at: float) -> None:
    """A lane is grown because somebody waits: one that went would have been of use."""
    if profile.lanes_awaited:
        profile.lane_gaps.returned(profile.lanes_awaited.pop(), at)


def lane_hold_s(profile: Profile, at: float) -> float:
    """How long an idle worker is held for the sake of its lane, whoever may come."""
    learns = profile.policy.learns and profile.spec.lane_keep_s is None
    return _learned_lane_hold(profile, at).hold_s if learns else 0.0


def lane_keep_s(profile: Profile, at: float) -> float:
    """How long a lane without active worker is kept, from the end of its last work."""
    if profile.spec.lane_keep_s is not None:
        return profile.spec.lane_keep_s
    return lane_hold_s(profile, at) if profile.policy.learns else profile.policy.lane_s()


def _learned_lane_hold(profile: Profile, at: float) -> Hold:
    """What another lane would cost beyond a start in this one, against the lanes' own gaps."""
    costs = prices(profile)
    here_s = costs.promote_s if profile.spec.standbys else profile.costs.start.value
    price_s = profile.spec.cold_price * max(0.0, costs.cold_s - here_s)
    gaps = profile.lane_gaps
    moved = abs(price_s - profile.lane_price_s) > _STALE * profile.lane_price_s
    if moved or gaps.seen >= profile.lane_hold_until:
        profile.lane_price_s = price_s
        profile.lane_hold_until = gaps.seen + max(1, int(_STALE * gaps.seen))
        if gaps.seen < FEW_LANE_GAPS:
            profile.lane_hold = Hold(price_s, price_s, 0.0)
        else:
            profile.lane_hold = best_hold(gaps.shares(at), price_s, LONGEST * price_s)
    return profile.lane_hold
