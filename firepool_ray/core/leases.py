"""How a worker gets bound, moved, revoked and let go. Called by ``machine`` and ``placement``.

Nothing is killed before it is revoked, and a worker that was bound serves nobody but its caller.
"""

from __future__ import annotations

from firepool_ray.core import bursts, holders, ledger, queueing, retention
from firepool_ray.core.actions import (
    PromoteWorker,
    RegrantLease,
    RetireWorker,
    RevokeLease,
    RevokeMode,
    SendGrant,
)
from firepool_ray.core.model import Grant, JobClass, LeaseId, ReuseKey
from firepool_ray.core.shelves import clear_idle, set_idle, shelve
from firepool_ray.core.state import Claim, Client, Device, Entry, Pool, Profile, Purpose, Worker
from firepool_ray.core.tables import HELD_STATES

INF = float("inf")
#: Purposes for which a worker makes way for somebody else.
FOR_OTHERS = ("handover", "recycle", "exchange")


def promote(pool: Pool, worker: Worker, claim: Claim, at: float) -> None:
    """A standby becomes the active worker of its free device, for the claim's caller."""
    entry = claim.entry
    _unreserve_units(pool, worker, claim)
    worker.move("promoting", at)
    worker.claim = claim
    _bind(pool, worker, entry.job_class.key, entry.client, at)
    retention.bound(pool, worker, min(at, entry.oldest_at), at)
    shelve(pool, worker.lane.device)


def promote_ahead(pool: Pool, worker: Worker, key: ReuseKey, client: str, at: float) -> None:
    """Bind a standby of a free device to a caller that does not want one yet, but soon will.

    It is granted to ``client`` before that one asks, so that its burst finds it; without a client
    ("") the first that wants it will get it.
    """
    worker.move("promoting", at)
    worker.ahead = True
    if client:
        entry = _entry_of(pool, client, key)
        worker.claim = Claim(entry, "warm")
        cover(pool, entry)
    _bind(pool, worker, key, client, at)
    shelve(pool, worker.lane.device)


def _entry_of(pool: Pool, client: str, key: ReuseKey) -> Entry:
    entries, job_class = pool.clients[client].entries, JobClass(key)
    entry = entries.get(job_class)
    if entry is None:
        entry = entries[job_class] = Entry(pool.number(), client, job_class, oldest_at=INF)
    return entry


def _bind(pool: Pool, worker: Worker, key: ReuseKey, client: str, at: float) -> None:
    worker.key = key
    worker.client = client
    worker.fence = pool.fence()
    worker.lane.device.active, worker.lane.device.next = worker, None
    pool.promoted_at = at
    ledger.charge(pool, worker, at)
    pool.agenda.cancel(("lane", worker.lane.id))
    pool.out.append(PromoteWorker(worker.id, worker.fence, key, client))


def cover(pool: Pool, entry: Entry) -> None:
    """One worker more is on its way to the entry (I4)."""
    entry.pending += 1
    entry.urgent_at = None
    queueing.refresh(pool, entry)


def drop_claim(pool: Pool, worker: Worker) -> None:
    """Whoever waited for this worker waits again for any."""
    claim = worker.claim
    if claim is None:
        return
    worker.claim = None
    _unreserve_units(pool, worker, claim)
    holders.uncover(pool, claim.entry)


def reserve_units(pool: Pool, standby: Worker, claim: Claim) -> None:
    """Tell the queue's accounts that this standby will be charged."""
    if not claim.reserved:
        claim.reserved = True
        queueing.queue_of(pool, claim.entry).reserved += standby.lane.profile.spec.unit


def _unreserve_units(pool: Pool, standby: Worker, claim: Claim) -> None:
    if claim.reserved:
        claim.reserved = False
        queue = queueing.queue_of(pool, claim.entry)
        queue.reserved -= standby.lane.profile.spec.unit
        queueing.room_changed(pool, queue)


def reserve(pool: Pool, standby: Worker, entry: Entry, at: float) -> None:
    """The standby takes its device over for the entry, as soon as that is free.

    At its limit a queue exchanges workers of its own: the leaving one is charged until it is gone,
    and only then the units are reserved (see ``leave``), so that nobody else takes the room.
    """
    standby.move("reserved", at)
    standby.claim = claim = Claim(entry, "handover")
    if queueing.queue_of(pool, entry).has_room(standby.lane.profile.spec.unit):
        reserve_units(pool, standby, claim)
    standby.lane.device.next = standby
    cover(pool, entry)
    shelve(pool, standby.lane.device)


def hand_over(
    pool: Pool, victim: Worker, standby: Worker, entry: Entry, mode: RevokeMode, at: float
) -> None:
    """The device goes from the victim to the standby, once the victim is revoked and gone."""
    reserve(pool, standby, entry, at)
    revoke(pool, victim, "handover", mode, at)


def unreserve(pool: Pool, standby: Worker, at: float) -> None:
    """Whoever was to get this standby does not want it any more, or cannot have it."""
    standby.lane.device.next = None
    standby.move("standby", at)
    drop_claim(pool, standby)
    shelve(pool, standby.lane.device)


def promote_next(pool: Pool, device: Device, at: float) -> None:
    """The device may be free now: its reserved standby goes on, if it is still wanted."""
    standby = device.next
    if standby is None or device.active is not None:
        return
    assert standby.claim is not None
    if owner_of(pool, standby.claim) is not None and standby.claim.entry.unmet >= 0:
        promote(pool, standby, standby.claim, at)
    else:
        unreserve(pool, standby, at)


def owner_of(pool: Pool, claim: Claim) -> Client | None:
    """The client whose demand the claim covers; None if it is gone, or came back anew."""
    client = pool.clients.get(claim.entry.client)
    if client is not None and client.entries.get(claim.entry.job_class) is claim.entry:
        return client
    return None


def move_to(pool: Pool, worker: Worker, entry: Entry, at: float) -> None:
    """An idle worker of the same reuse key goes to a sibling client."""
    cover(pool, entry)
    worker.claim = Claim(entry, "warm")
    retention.works_again(pool, worker, max(worker.idle_since or at, min(at, entry.oldest_at)))
    clear_idle(pool, worker)
    if worker.state == "unleased":
        regrant(pool, worker, at)
        return
    worker.successor = pool.fence()
    worker.purpose = "move"
    worker.move("revoking", at)
    pool.out.append(
        RevokeLease(
            worker.id,
            worker.fence,
            "if_idle",
            successor=worker.successor,
            client=entry.client,
        )
    )


def regrant(pool: Pool, worker: Worker, at: float) -> None:
    """A revoked worker back to idle, under a new fence, for the claim's client."""
    assert worker.claim is not None
    revoked = worker.fence
    worker.move("regranting", at)
    worker.fence = pool.fence()
    worker.client = worker.claim.entry.client
    worker.successor = None
    _unmark(pool, worker, at)
    pool.out.append(RegrantLease(worker.id, revoked, worker.fence, worker.client))


def grant(pool: Pool, worker: Worker, at: float) -> None:
    """The worker acknowledged its binding: its client gets the lease, if it is still there."""
    claim = worker.claim
    assert claim is not None
    worker.claim = None
    worker.client = claim.entry.client
    client = owner_of(pool, claim)
    if client is None:
        holders.uncover(pool, claim.entry)
        release(pool, worker, "drain", at)
        return
    client.grants += 1
    issued = Grant(
        client.grants, LeaseId(worker.id, worker.fence), claim.entry.job_class, claim.source
    )
    client.leases[worker.id] = worker.fence
    client.unacked[issued.number] = (issued, claim.entry)
    pool.out.append(SendGrant(client.id, issued))
    hear_idle(pool, worker)


def hear_idle(pool: Pool, worker: Worker) -> None:
    """News and answers come by different ways: one of idleness may have been early."""
    heard, worker.heard_idle = worker.heard_idle, None
    if heard is not None and heard[0] == worker.fence:
        set_idle(pool, worker, heard[1])


def revoke(pool: Pool, worker: Worker, purpose: Purpose, mode: RevokeMode, at: float) -> None:
    """Ask the warden to revoke; an unleased worker is revoked already and leaves at once."""
    worker.purpose = purpose
    if purpose in FOR_OTHERS:
        assert worker.key is not None
        units = worker.lane.profile.spec.unit
        worker.handing_over = True
        ledger.caller_state(pool, worker.key.caller, at).leaving += units
        if purpose == "exchange":
            ledger.queue_of(pool, worker.key.caller).exchanging += units
    if worker.state == "unleased":
        leave(pool, worker, purpose, at)
        return
    min_idle_s = 0.0
    if mode == "if_idle" and purpose in (*FOR_OTHERS, "reclaim"):
        min_idle_s = worker.lane.profile.promote_cost_s
    clear_idle(pool, worker)
    worker.move("revoking" if mode == "if_idle" else "draining", at)
    pool.out.append(RevokeLease(worker.id, worker.fence, mode, min_idle_s))
    shelve(pool, worker.lane.device)


def recycle(pool: Pool, profile: Profile, victim: Worker, mode: RevokeMode, at: float) -> None:
    """Free a device for a worker that has still to be started in a lane of ``profile``."""
    victim.recycled_for = profile
    profile.recycling += 1
    revoke(pool, victim, "recycle", mode, at)


def give_up_waiting(pool: Pool, victim: Worker, at: float) -> None:
    """The drained worker's job lasts: whoever waited for this one may have another instead."""
    if victim.state != "draining":
        return
    _stop_recycling(pool, victim)
    drop_claim(pool, victim)
    standby = victim.lane.device.next
    if standby is not None:
        unreserve(pool, standby, at)
    pool.dirty[victim.lane.profile.spec.name] = None


def release(pool: Pool, worker: Worker, mode: RevokeMode, at: float) -> None:
    """Its client gave the lease up or is gone: back to the caller's other clients, or away."""
    holders.forget_lease(pool, worker)
    worker.client = ""
    if worker.state == "bound":
        revoke(pool, worker, "release", mode, at)
    elif worker.state == "revoking":
        # the answer under way may say busy; the job must end all the same
        worker.move("draining", at)
        pool.out.append(RevokeLease(worker.id, worker.fence, mode))
    elif worker.state == "draining" and mode == "stop":
        pool.out.append(RevokeLease(worker.id, worker.fence, mode))


def _unmark(pool: Pool, worker: Worker, at: float) -> None:
    """The plan behind the revocation is over, whatever came of it."""
    if worker.handing_over:
        assert worker.key is not None
        units = worker.lane.profile.spec.unit
        worker.handing_over = False
        ledger.caller_state(pool, worker.key.caller, at).leaving -= units
        if worker.purpose == "exchange":
            ledger.queue_of(pool, worker.key.caller).exchanging -= units
    _stop_recycling(pool, worker)
    pool.agenda.cancel(("patience", worker.id))
    worker.purpose = ""


def _stop_recycling(pool: Pool, worker: Worker) -> None:
    if worker.recycled_for is not None:
        worker.recycled_for.recycling -= 1
        pool.dirty[worker.recycled_for.spec.name] = None
        worker.recycled_for = None


def stay(pool: Pool, worker: Worker, at: float) -> None:
    """The worker turned out busy: nothing happened; whoever waited for it waits again."""
    _unmark(pool, worker, at)
    worker.successor = None
    worker.move("bound", at)
    pool.giving_back.pop(worker.lane.id, None)
    if worker.ahead and not worker.client:
        set_idle(pool, worker, at)  # nobody can have used it: it was only too fresh
    elif not worker.counted:
        retention.works_again(pool, worker, at)
    drop_claim(pool, worker)
    device = worker.lane.device
    if device.next is not None:
        unreserve(pool, device.next, at)
    shelve(pool, device)
    hear_idle(pool, worker)


def ended(pool: Pool, worker: Worker, at: float) -> None:
    """The lease is revoked: what its purpose asked for happens now."""
    holders.tell_revoked(pool, worker, at)
    if worker.purpose == "move":
        if worker.claim is not None and _may_stay(worker) and owner_of(pool, worker.claim):
            regrant(pool, worker, at)
            return
        drop_claim(pool, worker)
        worker.purpose = "release"
    if worker.purpose == "release" and _has_other_home(pool, worker):
        _unmark(pool, worker, at)
        worker.successor = None
        worker.move("unleased", at)
        set_idle(pool, worker, worker.rest.since if worker.rest is not None else at)
        return
    leave(pool, worker, worker.purpose or "released", at)


def _has_other_home(pool: Pool, worker: Worker) -> bool:
    assert worker.key is not None
    caller = pool.callers.get(worker.key.caller)
    return bool(caller and caller.clients) and _may_stay(worker)


def _may_stay(worker: Worker) -> bool:
    return worker.lane.state == "ready" and not worker.lane.draining


def moved(pool: Pool, worker: Worker, at: float) -> None:
    """The warden took the lease from one sibling and gave it to the other in one step."""
    assert worker.successor is not None
    holders.tell_revoked(pool, worker, at)
    worker.fence, worker.successor = worker.successor, None
    _unmark(pool, worker, at)
    worker.move("bound", at)
    if worker.claim is None:  # whoever wanted it is gone
        release(pool, worker, "drain", at)
        return
    grant(pool, worker, at)


def leave(pool: Pool, worker: Worker, reason: str, at: float, *, kill: bool = True) -> None:
    """Kill and sweep; the device stays taken until that is done.

    ``kill=False`` where its node is gone: nothing is left to kill.
    """
    holders.tell_revoked(pool, worker, at)
    clear_idle(pool, worker)
    retention.gone(pool, worker, reason, at)
    _unmark(pool, worker, at)
    device = worker.lane.device
    if worker.state in HELD_STATES:
        ledger.discharge(pool, worker, at)
        if device.next is not None and device.next.claim is not None:
            reserve_units(pool, device.next, device.next.claim)
    if device.next is worker:
        device.next = None
    drop_claim(pool, worker)
    if worker.state == "starting":
        worker.lane.profile.starting -= 1
        bursts.meant_for(worker.lane.profile, worker.lane, "")
    worker.successor = None
    worker.move("leaving", at)
    if kill:
        pool.out.append(RetireWorker(worker.id, reason))
    shelve(pool, device)


def remove(pool: Pool, worker: Worker, at: float) -> None:
    """Nothing is left of the worker: its slot and device are free."""
    worker.move("gone", at)
    worker.lane.slots[worker.slot] = None
    if worker.lane.device.active is worker:
        worker.lane.device.active = None
    del pool.workers[worker.id]
    pool.agenda.cancel(("sweep", worker.id))
