"""Who holds how much: charges per queue and caller, and a caller's decayed usage.

Called by the decision modules whenever a worker becomes bound or stops being so.
Usage is the integral of held units over time, decayed with a half-life H, divided by the queue's
weight: with constant holding h over dt it becomes ``u * 2^(-dt/H) + h * H/ln2 * (1 - 2^(-dt/H))``.
"""

from __future__ import annotations

import math

from firepool_ray.core import queueing
from firepool_ray.core.model import Caller
from firepool_ray.core.state import EPSILON, CallerState, Pool, Queue, Worker

#: Callers remembered only for their past usage.
REMEMBERED_CALLERS = 4096


def queue_of(pool: Pool, caller: Caller) -> Queue:
    return pool.queues[caller.queue]


def caller_state(pool: Pool, caller: Caller, at: float) -> CallerState:
    state = pool.callers.get(caller)
    if state is None:
        state = pool.callers[caller] = CallerState(stamp=at)
    pool.past.pop(caller, None)
    return state


def _settle(pool: Pool, state: CallerState, at: float) -> None:
    elapsed = at - state.stamp
    if elapsed > 0:
        half_life = pool.spec.usage_half_life_s
        keep = 2.0 ** (-elapsed / half_life)
        state.usage = state.usage * keep + state.held * half_life / math.log(2) * (1 - keep)
        state.stamp = at


def usage(pool: Pool, caller: Caller, at: float) -> float:
    """Decayed unit-seconds of the caller, divided by its queue's weight."""
    state = pool.callers.get(caller)
    if state is None:
        return 0.0
    _settle(pool, state, at)
    return state.usage / queue_of(pool, caller).weight


def charge(pool: Pool, worker: Worker, at: float) -> None:
    """The worker is bound now."""
    assert worker.key is not None
    units = worker.lane.profile.spec.unit
    caller = worker.key.caller
    queue, gpu_type = queue_of(pool, caller), worker.lane.profile.gpu_type
    queue.held += units
    queue.held_of[gpu_type] = queue.held_of.get(gpu_type, 0.0) + units
    state = caller_state(pool, caller, at)
    _settle(pool, state, at)
    state.held += units


def discharge(pool: Pool, worker: Worker, at: float) -> None:
    """The worker is not bound any more."""
    assert worker.key is not None
    units = worker.lane.profile.spec.unit
    caller = worker.key.caller
    queue = queue_of(pool, caller)
    queue.held = max(0.0, queue.held - units)
    gpu_type = worker.lane.profile.gpu_type
    queue.held_of[gpu_type] = max(0.0, queue.held_of[gpu_type] - units)
    state = caller_state(pool, caller, at)
    _settle(pool, state, at)
    state.held = max(0.0, state.held - units)
    remember_usage_only(pool, caller)
    queueing.room_changed(pool, queue)


def remember_usage_only(pool: Pool, caller: Caller) -> None:
    """A caller without workers and clients lives on as past usage; the oldest are forgotten."""
    state = pool.callers.get(caller)
    if state is None or state.clients or state.held > EPSILON:
        return
    state.held = 0.0
    pool.past[caller] = None
    if len(pool.past) > REMEMBERED_CALLERS:
        oldest = next(iter(pool.past))
        del pool.past[oldest], pool.callers[oldest]
