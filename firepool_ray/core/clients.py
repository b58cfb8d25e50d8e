"""What clients say: demand, leases held, acknowledged grants; and what follows when one is gone.

One function per event; ``machine`` finds them in ``HANDLERS``. A statement is whole and the newest
wins, so nothing here depends on an earlier one having arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firepool_ray.core import events as ev
from firepool_ray.core import growth, holders, leases, ledger, nested, queueing, staffing
from firepool_ray.core.actions import SendRejection, SendRevoked
from firepool_ray.core.model import Caller, Demand, LeaseId, Rejection
from firepool_ray.core.state import Client, Entry, Pool
from firepool_ray.errors import IllegalTransition

INF = float("inf")
#: A revoked worker waits for a client of its caller; a client counts for this many past callers.
REMEMBERED_CALLERS_PER_CLIENT = 256
#: A client that goes on listing a lease that ended is told so again after this.
TELL_AGAIN_S = 1.0
#: Clients that are gone are known as such, so that their late news changes nothing.
REMEMBERED_CLIENTS = 4096


def on_synced(pool: Pool, event: ev.ClientSynced) -> None:
    for demand in event.demands:
        key = demand.job_class.key
        if key.profile not in pool.profiles or key.caller.queue not in pool.queues:
            raise IllegalTransition(f"demand for unknown profile or queue: {demand.job_class}")
        if demand.count < 0 or not 0 <= demand.oldest_age_s < INF or not demand.drain_s >= 0:
            raise IllegalTransition(f"demand out of range: {demand}")
    if pool.open:
        _apply(pool, event, event.at)
    elif event.client not in pool.early or pool.early[event.client].seq < event.seq:
        pool.early[event.client] = event  # what it holds is perhaps not adopted yet


def reconciled(pool: Pool, at: float) -> None:
    """Everything is adopted: listen to the clients, and wait some time for those still silent."""
    for event in pool.early.values():
        _apply(pool, event, at)
    pool.early.clear()
    for client in pool.clients.values():
        if client.seq < 0:
            pool.agenda.set(("reclaim", client.id), at + pool.spec.reclaim_s)


def _apply(pool: Pool, event: ev.ClientSynced, at: float) -> None:
    client = pool.clients.get(event.client)
    seq = client.seq if client is not None else pool.departed.get(event.client, (-1, 0))[0]
    if event.seq <= seq:
        return
    if client is None:
        client = holders.client_of(pool, event.client)
        client.grants = pool.departed.pop(event.client, (-1, 0))[1]
    client.seq = event.seq
    client.parent, client.blocked = event.parent, event.blocked
    client.stated_at = at
    pool.agenda.cancel(("reclaim", client.id))
    _acknowledge(pool, client, event.acked)
    _compare_leases(pool, client, event.held, at)
    _restate(pool, client, event.demands, at)
    if event.demands:
        pool.agenda.set_earlier(("stale", client.id), at + pool.spec.stale_s)
    if client.blocked:
        nested.suspect(pool, client)


def _acknowledge(pool: Pool, client: Client, acked: tuple[int, int]) -> None:
    """Grants the client has seen are no longer subtracted: its counts include them now."""
    if acked[0] != pool.epoch:
        return
    for number in [n for n in client.unacked if n <= acked[1]]:
        _, entry = client.unacked.pop(number)
        holders.uncover(pool, entry)


def _compare_leases(pool: Pool, client: Client, held: tuple[LeaseId, ...], at: float) -> None:
    """Leases it should not hold are told so; leases it does not list any more were given up."""
    listed = set(held)
    if client.told:
        client.told = {lease: told for lease, told in client.told.items() if lease in listed}
    for lease in held:
        if client.leases.get(lease.worker) != lease.fence:
            _tell_again(pool, client, lease, at)
    if not client.unacked and client.leases.items() == listed:
        return
    on_their_way = {issued.lease for issued, _ in client.unacked.values()}
    for name, fence in list(client.leases.items()):
        lease = LeaseId(name, fence)
        if lease not in listed and lease not in on_their_way:
            leases.release(pool, pool.workers[name], "drain", at)


def _tell_again(pool: Pool, client: Client, lease: LeaseId, at: float) -> None:
    """The word may have been lost; but a client that cannot let go yet need not hear it always.

    (It lists a lease for as long as its call there is open, on a lost node for half a minute.)
    """
    if at - client.told.get(lease, -INF) >= TELL_AGAIN_S:
        client.told[lease] = at
        pool.out.append(SendRevoked(client.id, lease))


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
        if entry.unmet > 0:
            profile = queueing.profile_of(pool, entry)
            why = growth.impossible(pool, profile, queueing.queue_of(pool, entry))
            if why:
                entry.count = 0
                queueing.refresh(pool, entry)
                rejection = Rejection(entry.job_class, "impossible", why)
                pool.out.append(SendRejection(client.id, rejection))
            elif profile.failures or profile.grow_failures:
                staffing.reject_if_broken(pool, profile, at)
    if len(stated) < len(client.entries):
        for entry in [e for c, e in client.entries.items() if c not in stated]:
            _withdraw(pool, client, entry)


def _withdraw(pool: Pool, client: Client, entry: Entry) -> None:
    """The client wants nothing of this class; what is on its way to it still comes."""
    if entry.count:
        entry.count = 0
        entry.urgent_at = None
        queueing.refresh(pool, entry)
    if not entry.pending:
        del client.entries[entry.job_class]


def forget_stale_demand(pool: Pool, name: str, at: float) -> None:
    """Whoever waits says so again and again; a client that has stopped doing so waits no more."""
    client = pool.clients.get(name)
    if client is None or not client.entries:
        return
    due = client.stated_at + pool.spec.stale_s
    if at < due:
        pool.agenda.set(("stale", name), due)
        return
    for entry in list(client.entries.values()):
        _withdraw(pool, client, entry)


def _know_caller(pool: Pool, client: Client, caller: Caller, at: float) -> None:
    """The client works for this caller; the last few are remembered beyond their demand."""
    client.callers.pop(caller, None)
    client.callers[caller] = None
    state = ledger.caller_state(pool, caller, at)
    state.clients[client.id] = None
    state.closing = False
    if len(client.callers) > REMEMBERED_CALLERS_PER_CLIENT:
        in_use = {job_class.key.caller for job_class in client.entries}
        oldest = next((c for c in client.callers if c not in in_use), None)
        if oldest is not None:
            del client.callers[oldest]
            _forget_client_of(pool, oldest, client)


def _forget_client_of(pool: Pool, caller: Caller, client: Client) -> None:
    state = pool.callers.get(caller)
    if state is not None:
        state.clients.pop(client.id, None)
        ledger.remember_usage_only(pool, caller)


def on_client_lost(pool: Pool, event: ev.ClientLost) -> None:
    pool.early.pop(event.client, None)
    client = pool.clients.get(event.client)
    if client is not None:
        _drop(pool, client, event.at)


def reclaim(pool: Pool, name: str, at: float) -> None:
    """After a restart: whoever has not said a word by now is gone."""
    client = pool.clients.get(name)
    if client is not None and client.seq < 0:
        _drop(pool, client, at)


def _drop(pool: Pool, client: Client, at: float) -> None:
    """Its demand goes, its jobs are stopped, its workers are its caller's other clients'."""
    pool.agenda.cancel(("reclaim", client.id))
    pool.agenda.cancel(("stale", client.id))
    expected = any(entry.pending for entry in client.entries.values())
    for entry in list(client.entries.values()):
        _withdraw(pool, client, entry)
    for caller in client.callers:
        _forget_client_of(pool, caller, client)
    for name in list(client.leases):
        leases.release(pool, pool.workers[name], "stop", at)
    del pool.clients[client.id]
    pool.departed[client.id] = (client.seq, client.grants)
    if len(pool.departed) > REMEMBERED_CLIENTS:
        del pool.departed[next(iter(pool.departed))]
    for worker in [w for w in pool.idle if not w.client]:
        assert worker.key is not None
        caller_state = pool.callers.get(worker.key.caller)
        if caller_state is None or not caller_state.clients:
            if worker.state == "unleased":
                leases.leave(pool, worker, "no client of its caller is left", at)
            else:  # warmed ahead
                leases.revoke(pool, worker, "retire", "if_idle", at)
    if expected:
        for worker in list(pool.workers.values()):
            claim = worker.claim
            if worker.state == "reserved" and claim and claim.entry.client == client.id:
                leases.unreserve(pool, worker, at)


HANDLERS: dict[type[ev.Event], Callable[[Pool, Any], None]] = {
    ev.ClientSynced: on_synced,
    ev.ClientLost: on_client_lost,
}
