"""Which client holds which lease, and what it is told when that ends. Used by ``leases``."""

from __future__ import annotations

from firepool_ray.core import queueing
from firepool_ray.core.actions import SendRevoked
from firepool_ray.core.model import LeaseId
from firepool_ray.core.state import Client, Entry, Pool, Worker


def uncover(pool: Pool, entry: Entry) -> None:
    entry.pending -= 1
    queueing.refresh(pool, entry)


def tell_revoked(pool: Pool, worker: Worker, at: float) -> None:
    """The client learns that the lease is over; its unseen grant of it is withdrawn."""
    client = pool.clients.get(worker.client)
    if client is not None and client.leases.get(worker.id) == worker.fence:
        forget_lease(pool, worker)
        lease = LeaseId(worker.id, worker.fence)
        client.told[lease] = at
        pool.out.append(SendRevoked(client.id, lease))
    worker.client = ""


def forget_lease(pool: Pool, worker: Worker) -> None:
    client = pool.clients.get(worker.client)
    if client is None:
        return
    client.leases.pop(worker.id, None)
    for number, (issued, entry) in list(client.unacked.items()):
        if issued.lease.worker == worker.id:
            del client.unacked[number]
            uncover(pool, entry)


def client_of(pool: Pool, name: str) -> Client:
    client = pool.clients.get(name)
    if client is None:
        client = pool.clients[name] = Client(name)
    return client
