"""The controller's machine: ``handle(*events) -> list[Action]``. The only mutator of pool state.

Driven by ``runtime.controller`` with real news and by a simulator with invented ones. Each event is
checked against the tables first: one that no table allows raises ``IllegalTransition`` and changes
nothing; one that is only late (an old fence, a worker that is gone) is dropped. Then the event is
applied, timers that are due fire, and every profile in which something changed is placed once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firepool_ray.core import events as ev
from firepool_ray.core import (
    eviction,
    leases,
    ledger,
    nested,
    news,
    placement,
    queueing,
    staffing,
)
from firepool_ray.core.actions import Action, SendRevoked, WakeAt
from firepool_ray.core.model import Caller, Demand, LeaseId, PoolSpec
from firepool_ray.core.shelves import shelve
from firepool_ray.core.state import Client, Entry, Pool, new_pool
from firepool_ray.errors import IllegalTransition

#: A revoked worker waits for a client of its caller; a client counts for this many past callers.
REMEMBERED_CALLERS_PER_CLIENT = 256


class Machine:
    """Decides who gets which worker. One per controller epoch."""

    def __init__(self, spec: PoolSpec, epoch: int) -> None:
        self.pool: Pool = new_pool(spec, epoch)
        self._wake_at = float("inf")
        self._handlers: dict[type[ev.Event], Callable[[Pool, Any], None]] = {
            ev.ClientSynced: _on_synced,
            ev.ClientLost: _on_client_lost,
            ev.IdleCapSet: _on_idle_cap,
            ev.CallerClosing: _on_closing,
            ev.Woke: _on_woke,
            ev.Reconciled: _on_reconciled,
            **news.HANDLERS,
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
            handler(pool, event)
            if pool.open:
                self._settle(event.at)
        due = pool.agenda.next_time()
        if due != self._wake_at:
            self._wake_at = due
            if due != float("inf"):
                pool.out.append(WakeAt(due))
        out, pool.out = pool.out, []
        return out

    def _settle(self, at: float) -> None:
        """Fire due timers, then decide wherever something changed, until nothing does."""
        pool = self.pool
        while (owner := pool.agenda.pop_due(at)) is not None:
            _fire(pool, owner, at)
        while pool.dirty:
            name = next(iter(pool.dirty))
            del pool.dirty[name]
            placement.place(pool, pool.profiles[name], at)
        if pool.idle_units > pool.idle_cap:
            eviction.trim(pool, at)
        if pool.refill:
            staffing.refill(pool, at)
        pool.dirty.clear()


def _fire(pool: Pool, owner: tuple[str, str], at: float) -> None:
    kind, name = owner
    if kind == "ttl":
        worker = pool.workers.get(name)
        if worker is not None and worker.idle_since is not None:
            leases.revoke(pool, worker, "retire", "if_idle", at)
    elif kind == "lane":
        lane = pool.lanes.get(name)
        if lane is not None:
            staffing.unused(pool, lane, at)
    elif kind == "place":
        profile = pool.profiles[name]
        pool.dirty[name] = None
        staffing.keep_minimum(pool, profile, at)
    elif kind == "reclaim":
        client = pool.clients.get(name)
        if client is not None and client.seq < 0:
            _drop_client(pool, client, at)
    elif kind == "sweep":
        worker = pool.workers.get(name)
        if worker is not None and worker.state == "leaving":
            news.retry_sweep(pool, worker)


# ---------------------------------------------------------------- clients


def _on_synced(pool: Pool, event: ev.ClientSynced) -> None:
    for demand in event.demands:
        key = demand.job_class.key
        if key.profile not in pool.profiles or key.caller.queue not in pool.queues:
            raise IllegalTransition(f"demand for unknown profile or queue: {demand.job_class}")
        if demand.count < 0 or not demand.oldest_age_s >= 0 or not demand.drain_s >= 0:
            raise IllegalTransition(f"demand out of range: {demand}")
    client = leases.client_of(pool, event.client)
    if event.seq <= client.seq:
        return
    client.seq = event.seq
    client.parent, client.blocked = event.parent, event.blocked
    pool.agenda.cancel(("reclaim", client.id))
    _acknowledge(pool, client, event.acked)
    _compare_leases(pool, client, event.held, event.at)
    _restate(pool, client, event.demands, event.at)


def _acknowledge(pool: Pool, client: Client, acked: tuple[int, int]) -> None:
    """Grants the client has seen are no longer subtracted: its counts include them now."""
    if acked[0] != pool.epoch:
        return
    for number in [n for n in client.unacked if n <= acked[1]]:
        _, entry = client.unacked.pop(number)
        leases.uncover(pool, entry)


def _compare_leases(pool: Pool, client: Client, held: tuple[LeaseId, ...], at: float) -> None:
    """Leases it should not hold are told so; leases it does not list any more were given up."""
    listed: dict[str, LeaseId] = {}
    for lease in held:
        listed[lease.worker] = lease
        if client.leases.get(lease.worker) != lease.fence:
            pool.out.append(SendRevoked(client.id, lease))
    if not client.unacked and listed.keys() == client.leases.keys():
        return
    on_their_way = {issued.lease.worker for issued, _ in client.unacked.values()}
    for name in [n for n in client.leases if n not in listed and n not in on_their_way]:
        leases.release(pool, pool.workers[name], "drain", at)


def _restate(pool: Pool, client: Client, demands: tuple[Demand, ...], at: float) -> None:
    stated: set[object] = set()
    for demand in demands:
        stated.add(demand.job_class)
        entry = client.entries.get(demand.job_class)
        if entry is None:
            entry = Entry(pool.number(), client.id, demand.job_class)
            client.entries[demand.job_class] = entry
            _know_caller(pool, client, demand.job_class.key.caller, at)
        entry.count = demand.count
        entry.oldest_at = at - demand.oldest_age_s
        entry.drain_s = demand.drain_s
        queueing.refresh(pool, entry)
        if entry.unmet > 0 and pool.open:
            placement.match_warm(pool, demand.job_class.key, at)
            profile = queueing.profile_of(pool, entry)
            if profile.failures or profile.grow_failures:
                staffing.reject_if_broken(pool, profile, at)
    for job_class in [c for c in client.entries if c not in stated]:
        entry = client.entries[job_class]
        if entry.count:
            entry.count = 0
            queueing.refresh(pool, entry)
        if not entry.pending:
            del client.entries[job_class]
    if pool.open and client.blocked:
        _place_dirty(pool, at)
        nested.break_circle(pool, client, at)


def _know_caller(pool: Pool, client: Client, caller: Caller, at: float) -> None:
    """The client works for this caller; the last few are remembered beyond their demand."""
    client.callers.pop(caller, None)
    client.callers[caller] = None
    ledger.caller_state(pool, caller, at).clients[client.id] = None
    if len(client.callers) > REMEMBERED_CALLERS_PER_CLIENT:
        in_use = {job_class.key.caller for job_class in client.entries}
        oldest = next((c for c in client.callers if c not in in_use), None)
        if oldest is not None:
            del client.callers[oldest]
            ledger.caller_state(pool, oldest, at).clients.pop(client.id, None)


def _place_dirty(pool: Pool, at: float) -> None:
    for name in list(pool.dirty):
        del pool.dirty[name]
        placement.place(pool, pool.profiles[name], at)


def _on_client_lost(pool: Pool, event: ev.ClientLost) -> None:
    client = pool.clients.get(event.client)
    if client is not None:
        _drop_client(pool, client, event.at)


def _drop_client(pool: Pool, client: Client, at: float) -> None:
    """Its demand goes, its jobs are stopped, its workers are its caller's other clients'."""
    pool.agenda.cancel(("reclaim", client.id))
    for entry in client.entries.values():
        entry.count = 0
        queueing.refresh(pool, entry)
    for caller in client.callers:
        state = pool.callers.get(caller)
        if state is not None:
            state.clients.pop(client.id, None)
    for name in list(client.leases):
        leases.release(pool, pool.workers[name], "stop", at)
    del pool.clients[client.id]
    for worker in [w for w in pool.idle if w.state == "unleased"]:
        assert worker.key is not None
        caller_state = pool.callers.get(worker.key.caller)
        if caller_state is None or not caller_state.clients:
            leases.leave(pool, worker, "no client of its caller is left", at)
    if any(entry.pending for entry in client.entries.values()):
        for worker in list(pool.workers.values()):
            claim = worker.claim
            if worker.state == "reserved" and claim and claim.entry.client == client.id:
                news.unreserve(pool, worker, at)


# ---------------------------------------------------------------- the pool itself


def _on_idle_cap(pool: Pool, event: ev.IdleCapSet) -> None:
    if not event.cap >= 0:
        raise IllegalTransition(f"the cap on idle units must be >= 0, not {event.cap}")
    pool.idle_cap = event.cap
    eviction.trim(pool, event.at)


def _on_closing(pool: Pool, event: ev.CallerClosing) -> None:
    eviction.close_caller(pool, event.caller, event.at)


def _on_woke(pool: Pool, event: ev.Woke) -> None:
    """Nothing to apply: due timers fire after every event."""


def _on_reconciled(pool: Pool, event: ev.Reconciled) -> None:
    if pool.open:
        raise IllegalTransition("reconciled twice")
    pool.open = True
    pool.tokens_at = event.at
    for client in pool.clients.values():
        if client.seq < 0:
            pool.agenda.set(("reclaim", client.id), event.at + pool.spec.reclaim_s)
    for lane in pool.lanes.values():
        staffing.staff(pool, lane)
        staffing.watch_unused(pool, lane, event.at)
        shelve(pool, lane.device)
    for profile in pool.profiles.values():
        pool.dirty[profile.spec.name] = None
        staffing.keep_minimum(pool, profile, event.at)
    for key in list(pool.wanting):
        placement.match_warm(pool, key, event.at)
