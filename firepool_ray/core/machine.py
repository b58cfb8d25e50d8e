"""The controller's machine: ``handle(*events) -> list[Action]``. The only mutator of pool state.

Driven by ``runtime.controller`` with real news and by a simulator with invented ones. Each event is
checked against the tables first: one that no table allows raises ``IllegalTransition`` and changes
nothing; one that is only late (an old fence, a worker that is gone) is dropped. Then the event is
applied, timers that are due fire, and every profile in which something changed is placed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from firepool_ray.core import (
    adoption,
    clients,
    eviction,
    growth,
    lane_news,
    leases,
    nested,
    news,
    placement,
    reclaim,
    retention,
    staffing,
    warming,
)
from firepool_ray.core import events as ev
from firepool_ray.core.actions import Action, WakeAt
from firepool_ray.core.keepalive import KeepAlive
from firepool_ray.core.model import PoolSpec
from firepool_ray.core.queueing import head_key, room_changed
from firepool_ray.core.retention import make_policy
from firepool_ray.core.shelves import shelve
from firepool_ray.core.state import Pool, Queue, Worker, new_pool
from firepool_ray.errors import IllegalTransition

INF = float("inf")
#: When a signal was read is known from its age, to within this.
SAME_S = 0.01


class Machine:
    """Decides who gets which worker. One per controller epoch."""

    def __init__(
        self, spec: PoolSpec, epoch: int, policies: Mapping[str, KeepAlive] | None = None
    ) -> None:
        """``policies``: keep-alives by profile, in place of what the profile says."""
        given = policies or {}
        self.pool: Pool = new_pool(
            spec, epoch, {p.name: given.get(p.name) or make_policy(p) for p in spec.profiles}
        )
        for profile in self.pool.profiles.values():
            profile.warms = profile.spec.warm_ahead and profile.policy.learns
        self._wake_at = INF
        self._handlers: dict[type[ev.Event], Callable[[Pool, Any], None]] = {
            ev.IdleCapSet: _on_idle_cap,
            ev.LanesAllowed: _on_allowed,
            ev.QueueSignal: _on_signal,
            ev.CallerClosing: _on_closing,
            ev.Woke: _on_woke,
            ev.Reconciled: _on_reconciled,
            **clients.HANDLERS,
            **news.HANDLERS,
            **lane_news.HANDLERS,
            **adoption.HANDLERS,
        }

    def handle(self, *events: ev.Event) -> list[Action]:
        """Apply the events in order and return what is to be done.

        Raises ``IllegalTransition`` for an event no table allows; state and pending actions are
        then as if that event (and those after it) had not come.
        """
        pool = self.pool
        for event in events:
            handler = self._handlers.get(type(event))
            if handler is None:
                raise IllegalTransition(f"the machine knows no event {type(event).__name__}")
            if not -INF < event.at < INF:
                raise IllegalTransition(f"no time at which this could have happened: {event}")
            handler(pool, event)
            if handler is _on_woke:
                self._wake_at = INF  # if that came early, ask again
            if pool.open:
                _settle(pool, event.at)
        due = pool.agenda.next_time() if pool.open else INF
        if due != self._wake_at:
            self._wake_at = due
            if due != INF:
                pool.out.append(WakeAt(due))
        out, pool.out = pool.out, []
        return out


def _settle(pool: Pool, at: float) -> None:
    """Fire due timers, then decide wherever something changed, until nothing does."""
    while (owner := pool.agenda.pop_due(at)) is not None:
        _fire(pool, owner, at)
    decide(pool, at)
    while pool.suspects:
        name = next(iter(pool.suspects))
        del pool.suspects[name]
        nested.break_circle(pool, name, at)
    if pool.idle_units > pool.idle_cap:
        eviction.trim(pool, at)
        decide(pool, at)
    if pool.refill:
        staffing.refill(pool, at)
        decide(pool, at)


def decide(pool: Pool, at: float) -> None:
    """Match what is idle with what is wanted, then place; the longest waiting profile first."""
    while pool.rematch or pool.dirty:
        while pool.rematch:
            key = next(iter(pool.rematch))
            del pool.rematch[key]
            placement.match_warm(pool, key, at)
        if pool.dirty:
            name = next(iter(pool.dirty))
            if len(pool.dirty) > 1:
                name = min(pool.dirty, key=lambda n: head_key(pool.profiles[n]))
            del pool.dirty[name]
            placement.place(pool, pool.profiles[name], at)
            if pool.profiles[name].warming:
                warming.serve(pool, pool.profiles[name], at)


def _fire(pool: Pool, owner: tuple[str, str], at: float) -> None:
    kind, name = owner
    if kind == "ttl":
        worker = pool.workers.get(name)
        if worker is not None and worker.idle_since is not None:
            _expire(pool, worker, at)
    elif kind == "lane":
        lane = pool.lanes.get(name)
        if lane is not None:
            growth.unused(pool, lane, at)
    elif kind == "place":
        pool.dirty[name] = None
    elif kind == "warm":
        warming.fire(pool, name, at)
    elif kind == "give back":
        reclaim.reclaim(pool, at)
    elif kind == "signal":
        _forget_signal(pool, name, at)
    elif kind == "patience":
        worker = pool.workers.get(name)
        if worker is not None:
            leases.give_up_waiting(pool, worker, at)
    elif kind == "stale":
        clients.forget_stale_demand(pool, name, at)
    elif kind == "reclaim":
        clients.reclaim(pool, name, at)
    elif kind == "sweep":
        worker = pool.workers.get(name)
        if worker is not None and worker.state == "leaving":
            news.retry_sweep(pool, worker)


def _expire(pool: Pool, worker: Worker, at: float) -> None:
    """Holding the worker does not pay any more, unless its lane stays in any case."""
    learns = worker.lane.profile.policy.learns
    if learns and not retention.is_closing(pool, worker) and growth.stays(pool, worker.lane):
        # Looked at again when it has been idle for twice as long: a thousand idle workers on lanes
        # that stay must not wake the machine a thousand times a second.
        idle_s = at - worker.idle_since if worker.idle_since is not None else 0.0
        pool.agenda.set(("ttl", worker.id), at + max(growth.UNUSED_LOOK_S, idle_s))
        return
    leases.revoke(pool, worker, "retire", "if_idle", at)


def _on_idle_cap(pool: Pool, event: ev.IdleCapSet) -> None:
    if not event.cap >= 0:
        raise IllegalTransition(f"the cap on idle units must be >= 0, not {event.cap}")
    pool.idle_cap = event.cap


def _on_allowed(pool: Pool, event: ev.LanesAllowed) -> None:
    """Lanes beyond it stay until their nodes go; only growth heeds it."""
    profile = pool.profiles.get(event.profile)
    if profile is None or (event.most is not None and event.most < 0):
        raise IllegalTransition(f"no such number of lanes, or no such profile: {event}")
    profile.allowed = event.most
    pool.budgets_at = -INF
    pool.dirty[event.profile] = None


def _on_signal(pool: Pool, event: ev.QueueSignal) -> None:
    queue = pool.queues.get(event.queue)
    if queue is None:
        raise IllegalTransition(f"a signal for a queue that the pool does not have: {event}")
    said = (event.quota, event.limit, event.running, event.pending, event.age_s)
    if any(value is not None and not value >= 0 for value in said):
        raise IllegalTransition(f"a queue signal out of range: {event}")
    if event.weight is not None and not 0 < event.weight < INF:
        raise IllegalTransition(f"a queue's weight must be positive: {event}")
    fresh_until = event.at - event.age_s + pool.spec.signal_stale_s
    if queue.signal is not None:
        known_until = queue.signal.at - queue.signal.age_s + pool.spec.signal_stale_s
        if fresh_until < known_until - SAME_S:
            return  # older than what is known
    queue.signal = event
    pool.agenda.set(("signal", event.queue), max(event.at, fresh_until))
    _terms_changed(pool, queue, event.at)


def _forget_signal(pool: Pool, name: str, at: float) -> None:
    """Nothing new was heard for too long: the pool's own settings hold again."""
    queue = pool.queues[name]
    if queue.signal is not None:
        queue.signal = None
        _terms_changed(pool, queue, at)


def _terms_changed(pool: Pool, queue: Queue, at: float) -> None:
    pool.budgets_at = -INF
    room_changed(pool, queue)
    pool.agenda.set_earlier(("give back", ""), at)


def _on_closing(pool: Pool, event: ev.CallerClosing) -> None:
    eviction.close_caller(pool, event.caller, event.at)


def _on_woke(pool: Pool, event: ev.Woke) -> None:
    """Nothing to apply: due timers fire after every event."""


def _on_reconciled(pool: Pool, event: ev.Reconciled) -> None:
    if pool.open:
        raise IllegalTransition("reconciled twice")
    pool.open = True
    pool.tokens_at = event.at
    for profile in pool.profiles.values():
        pool.dirty[profile.spec.name] = None
    for lane in pool.lanes.values():
        growth.watch_unused(pool, lane.device, event.at)
        shelve(pool, lane.device)
    clients.reconciled(pool, event.at)
