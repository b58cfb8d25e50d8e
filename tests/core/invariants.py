"""What holds after every event in the controller's machine: the invariants I1-I6 of the
architecture, and every derived index recomputed from the primary facts.

``check(pool)`` is called by all tests of the machine after every event. It only reads.
"""

from __future__ import annotations

from collections import Counter
from math import inf, isclose
from typing import Any

from firepool_ray.core import budget, eviction, queueing, retention
from firepool_ray.core.model import Caller, ReuseKey
from firepool_ray.core.ordered import Ordered
from firepool_ray.core.shelves import lacks_standby, standby_of
from firepool_ray.core.state import EPSILON, Entry, Pool, Profile, Worker
from firepool_ray.core.tables import HELD_STATES

IDLE_STATES = {"bound", "unleased"}
#: Measured costs move by this much at most between two looks.
COST_MOVES_S = 2.0
#: Units an adopted pool may hold beyond limits that were set lower meanwhile.
NO_EXCESS: dict[str, float] = {}


def check(pool: Pool, at: float = inf, excess: dict[str, float] = NO_EXCESS) -> None:
    """Assert everything. ``at`` is the time of the last event; ``excess`` is per queue."""
    _structure(pool)
    _one_active_per_device(pool)
    _bound_once(pool)
    _claims(pool)
    _accounts(pool)
    if pool.open:
        _indexes(pool)
    _limits(pool, excess)
    if pool.open:
        assert not pool.dirty and not pool.rematch and not pool.suspects and not pool.out
        if at < inf:
            _nothing_left_undone(pool, at)


def _structure(pool: Pool) -> None:
    for name, lane in pool.lanes.items():
        assert lane.id == name and lane.profile.lanes[name] is lane
        assert lane in lane.device.lanes and pool.devices[lane.device.id] is lane.device
        assert lane.state != "gone"
        if lane.state in ("growing", "retiring"):
            assert not lane.workers(), f"{lane.state} lane {name} has workers"
        for slot, worker in enumerate(lane.slots):
            if worker is not None:
                assert worker.lane is lane and worker.slot == slot
                assert pool.workers[worker.id] is worker
    assert sum(len(p.lanes) for p in pool.profiles.values()) == len(pool.lanes)
    assert sum(len(lane.workers()) for lane in pool.lanes.values()) == len(pool.workers)
    assert sum(len(d.lanes) for d in pool.devices.values()) == len(pool.lanes)
    assert all(device.lanes for device in pool.devices.values())


def _one_active_per_device(pool: Pool) -> None:
    """I1: whoever may see the GPUs is the device's one active worker."""
    for worker in pool.workers.values():
        device = worker.lane.device
        if worker.state in HELD_STATES:
            assert device.active is worker, f"I1: {worker.id} is {worker.state} beside another"
        if worker.state == "reserved":
            assert device.next is worker
    for device in pool.devices.values():
        active, following = device.active, device.next
        if active is not None:
            assert pool.workers[active.id] is active
            assert active.state in HELD_STATES or active.state == "leaving"
        if following is not None:
            assert following.state == "reserved" and following.claim is not None
            assert active is not None, "a reserved standby of a free device was not promoted"
            assert active.state in ("revoking", "draining", "leaving")
            assert following.lane.state == "ready" and not following.lane.draining


def _bound_once(pool: Pool) -> None:
    """I2: a lease belongs to one client, and a worker without lease to none."""
    held: Counter[str] = Counter()
    for client in pool.clients.values():
        for name, fence in client.leases.items():
            held[name] += 1
            worker = pool.workers[name]
            assert worker.fence == fence and worker.client == client.id
            assert worker.state in ("bound", "revoking", "draining")
        for number, (issued, entry) in client.unacked.items():
            assert 1 <= number <= client.grants and issued.number == number
            assert client.leases[issued.lease.worker] == issued.lease.fence
            assert client.entries[issued.job_class] is entry
    assert all(count == 1 for count in held.values()), "I2: two clients hold one worker"
    for worker in pool.workers.values():
        if worker.ahead and not worker.client:
            assert worker.state in ("promoting", "bound", "revoking", "draining")
        elif worker.state == "revoking" and worker.purpose == "move" and not worker.client:
            assert worker.claim is not None  # was bound ahead, and goes to the first that wants it
        elif worker.state in ("bound", "revoking"):
            assert held[worker.id] == 1, f"{worker.id} is {worker.state} without a holder"
        if worker.state in ("starting", "standby", "reserved"):
            assert worker.key is None and not worker.client
        if worker.state in HELD_STATES:
            assert worker.key is not None and worker.fence.number > 0
        if worker.state in ("unleased", "leaving"):
            assert not worker.client and not held[worker.id]
        if worker.successor is not None:
            assert worker.state in ("revoking", "draining")


def _claims(pool: Pool) -> None:
    """I4: what is on its way to an entry is exactly what it counts as pending."""
    pending: Counter[int] = Counter()
    entries: dict[int, Entry] = {}
    for client in pool.clients.values():
        for _, entry in client.unacked.values():
            pending[entry.number] += 1
            entries[entry.number] = entry
    for worker in pool.workers.values():
        claim = worker.claim
        if claim is None:
            assert worker.ahead or worker.state not in ("promoting", "reserved", "regranting")
            continue
        assert worker.state in ("promoting", "reserved", "regranting", "revoking", "draining")
        pending[claim.entry.number] += 1
        entries[claim.entry.number] = claim.entry
        if worker.state in ("revoking", "draining"):
            assert worker.purpose == "move"
        if worker.key is not None:
            assert worker.key == claim.entry.job_class.key, "I2: bound to another caller"
        if worker.state == "reserved":
            victim = worker.lane.device.active
            assert victim is not None
            if not claim.reserved:  # at the limit: the victim's charge stands for its own
                assert victim.state in HELD_STATES and victim.key is not None
                assert victim.key.caller.queue == claim.entry.job_class.key.caller.queue
        else:
            assert not claim.reserved
    for client in pool.clients.values():
        for job_class, entry in client.entries.items():
            assert entry.job_class == job_class and entry.client == client.id
            entries[entry.number] = entry
    for entry in entries.values():
        assert entry.count >= 0
        assert entry.pending == pending[entry.number], f"entry {entry} counts {pending}"


def _accounts(pool: Pool) -> None:
    queues: dict[str, list[float]] = {name: [0.0, 0.0, 0.0] for name in pool.queues}
    callers: dict[Caller, list[float]] = {}
    recycling: Counter[str] = Counter()
    starting: Counter[str] = Counter()
    for worker in pool.workers.values():
        units = worker.lane.profile.spec.unit
        if worker.state in HELD_STATES:
            assert worker.key is not None
            queues[worker.key.caller.queue][0] += units
            sums = callers.setdefault(worker.key.caller, [0.0, 0.0])
            sums[0] += units
            if worker.handing_over:
                sums[1] += units
                if worker.purpose == "exchange":
                    queues[worker.key.caller.queue][2] += units
        if worker.claim is not None and worker.claim.reserved:
            queues[worker.claim.entry.job_class.key.caller.queue][1] += units
        if worker.recycled_for is not None:
            recycling[worker.recycled_for.spec.name] += 1
        starting[worker.lane.profile.spec.name] += worker.state == "starting"
        if worker.state not in ("revoking", "draining"):
            assert not worker.purpose and not worker.handing_over
            assert worker.recycled_for is None
    for name, queue in pool.queues.items():
        for found, stated in zip(
            queues[name], (queue.held, queue.reserved, queue.exchanging), strict=True
        ):
            assert isclose(found, stated, abs_tol=1e-6), f"queue {name}: {queues[name]} {queue}"
    for caller, state in pool.callers.items():
        held, leaving = callers.pop(caller, [0.0, 0.0])
        assert isclose(state.held, held, abs_tol=1e-6)
        assert isclose(state.leaving, leaving, abs_tol=1e-6)
        clients = {c.id for c in pool.clients.values() if caller in c.callers}
        assert state.clients.keys() == clients
        forgettable = not clients and state.held <= EPSILON
        assert (caller in pool.past) == forgettable, f"{caller} {state}"
    assert not callers
    assert pool.past.keys() <= pool.callers.keys()
    for profile in pool.profiles.values():
        lanes = profile.lanes.values()
        assert profile.starting == starting[profile.spec.name]
        assert profile.recycling == recycling[profile.spec.name]
        assert profile.ahead == sum(bool(lane.ahead) for lane in lanes)
        assert profile.growing == sum(lane.state == "growing" for lane in lanes)
        assert profile.counted == sum(lane.counted for lane in lanes)
        assert all(lane.counted != lane.draining for lane in lanes)
    gpus = [lane.profile.spec.gpus for lane in pool.lanes.values()]
    assert isclose(pool.reserved_gpus, sum(gpus), abs_tol=1e-6)
    assert pool.releasing.keys() == {lane.id for lane in pool.lanes.values() if not lane.counted}


def _shelf_of(lane: Any) -> str:
    """The definition of ``shelves``, in words of its own."""
    active = lane.device.active
    if lane.state != "ready" or lane.draining or lane.device.next is not None:
        return ""
    if active is not None and active.state == "leaving" and active.lane.state == "quarantined":
        return ""
    states = [w.state for w in lane.workers()]
    standby = "standby" in states
    if active is None:
        if standby:
            return "ready"
        if "starting" in states:
            return "coming"
        return "startable" if None in lane.slots else ""
    if active.state == "leaving":
        return "soon" if standby else "coming"
    if active.idle_since is not None:
        return "handover" if standby else "recycle"
    return ""


def _items(ordered: Ordered[Any]) -> list[Any]:
    found = list(ordered)
    assert len(found) == len(ordered)
    return found


def _indexes(pool: Pool) -> None:
    for profile in pool.profiles.values():
        expected: dict[str, set[str]] = {}
        for lane in profile.lanes.values():
            assert lane.shelf == _shelf_of(lane), f"{lane.id} stands on {lane.shelf!r}"
            expected.setdefault(lane.shelf, set()).add(lane.id)
        for name in ("ready", "soon", "coming", "startable"):
            found = [lane.id for lane in _items(getattr(profile, name))]
            assert len(found) == len(set(found)) and set(found) == expected.get(name, set())
        for name in ("handover", "recycle"):
            found = []
            for queue, shelf in getattr(profile, name).items():
                for lane in _items(shelf):
                    victim = lane.device.active
                    assert victim.key.caller.queue == queue == lane.shelf_queue
                    assert shelf.key_of(lane.number) == victim.idle_since
                    found.append(lane.id)
            assert len(found) == len(set(found)) and set(found) == expected.get(name, set())
        for lane in profile.lanes.values():
            assert (lane.id in profile.refill) == lacks_standby(lane), lane.id
        if profile.refill:
            assert profile.spec.name in pool.refill
    _check_idle(pool)
    _check_demand(pool)


def _check_idle(pool: Pool) -> None:
    idle = [w for w in pool.workers.values() if w.idle_since is not None]
    assert all(w.state in IDLE_STATES for w in idle)
    assert all(w.idle_since is not None for w in pool.workers.values() if w.state == "unleased")
    assert sorted(w.id for w in _items(pool.idle)) == sorted(w.id for w in idle)
    assert isclose(pool.idle_units, sum(w.lane.profile.spec.unit for w in idle), abs_tol=1e-6)
    for name, queue in pool.queues.items():
        mine = sorted(w.id for w in idle if w.key is not None and w.key.caller.queue == name)
        assert sorted(w.id for w in _items(queue.idle)) == mine
    warm: dict[ReuseKey, list[str]] = {}
    for worker in idle:
        assert worker.key is not None
        warm.setdefault(worker.key, []).append(worker.id)
        assert worker.number in pool.idle
    found = {key: sorted(w.id for w in _items(order)) for key, order in pool.warm.items()}
    assert found == {key: sorted(names) for key, names in warm.items()}


def _check_demand(pool: Pool) -> None:
    wanting: dict[ReuseKey, list[int]] = {}
    waiting: dict[tuple[str, str], list[int]] = {}
    for client in pool.clients.values():
        for entry in client.entries.values():
            if entry.unmet <= 0:
                continue
            key = entry.job_class.key
            wanting.setdefault(key, []).append(entry.number)
            waiting.setdefault((key.profile, key.caller.queue), []).append(entry.number)
    found = {key: sorted(e.number for e in _items(order)) for key, order in pool.wanting.items()}
    assert found == {key: sorted(numbers) for key, numbers in wanting.items()}
    for profile in pool.profiles.values():
        for queue, order in profile.waiting.items():
            numbers = {e.number for e in _items(order)}
            # Those whose own leases will be free sooner than a promotion takes do not wait.
            assert numbers <= set(waiting.get((profile.spec.name, queue), ()))
            keys = [queueing.order_key(pool, e) for e in order]
            assert keys == sorted(keys)


def _limits(pool: Pool, excess: dict[str, float]) -> None:
    """I5: lanes and held units stay within what profile, queue and pool allow."""
    for profile in pool.profiles.values():
        adopted = excess.get(f"lanes of {profile.spec.name}", 0)
        assert profile.counted <= profile.spec.max_lanes + adopted, "I5: too many lanes"
    assert pool.reserved_gpus <= pool.spec.max_gpus + EPSILON + excess.get("gpus", 0.0), "I5: GPUs"
    for name, queue in pool.queues.items():
        limit = max(queue.spec.limit, excess.get(name, 0.0))
        assert queue.held + queue.reserved <= limit + 1e-6, f"I5: queue {name} is over its limit"


def _nothing_left_undone(pool: Pool, at: float) -> None:
    """I3, and no lost wake-up: whoever still waits cannot be served by anything known."""
    for key, order in pool.wanting.items():
        for worker in pool.warm.get(key, ()):
            others = [e for e in order if e.client != worker.client]
            assert not others or len(order) > queueing.SCAN, "a sibling's idle lease was not moved"
    for profile in pool.profiles.values():
        entry = queueing.next_entry(pool, profile)
        if entry is not None:
            assert not profile.ready and not profile.soon, "a standby waits beside demand"
            _idle_victims_asked(pool, profile, profile.handover, entry, at)
            _armed(pool, profile, entry, at)
        elif any(profile.waiting.values()):
            assert any(owner[0] == "stale" for owner in _owners(pool)), "demand never expires"
    # I6: everything that waits is on the agenda again.


def _idle_victims_asked(
    pool: Pool, profile: Profile, shelf: dict[str, Ordered[Any]], entry: Entry, at: float
) -> None:
    for lanes in shelf.values():
        for lane in lanes:
            victim = lane.device.active
            if eviction._is_own(victim, entry):
                continue
            ripe_at = at if victim.state == "unleased" else victim.idle_since
            ripe_at += 0.0 if victim.state == "unleased" else profile.promote_cost_s
            armed_at = _time_of(pool, ("place", profile.spec.name))
            # The cost is measured again all the time, so what was ripe later may be ripe by now.
            if _is_kept(pool, profile, victim, entry, at):
                continue
            if ripe_at <= at and armed_at > at + COST_MOVES_S:
                raise AssertionError(f"I3: {victim.id} is idle, {entry} waits")
            assert armed_at < inf, "nobody looks again"


def _is_kept(pool: Pool, profile: Profile, victim: Worker, entry: Entry, at: float) -> bool:
    """Held for a burst that was told; or within its queue's budget, and who waits would borrow."""
    assert victim.key is not None
    if retention.is_expected(victim) and at - entry.oldest_at < pool.spec.window_s:
        return True
    mine, theirs = pool.queues[victim.key.caller.queue], queueing.queue_of(pool, entry)
    if mine is theirs or theirs.entitled(profile.spec.unit):
        return False
    if at - entry.oldest_at >= pool.spec.window_s:
        return False
    now = budget.compute(pool, at)[mine.spec.name, profile.gpu_type]
    seen = pool.budgets.get((mine.spec.name, profile.gpu_type), now)
    allowed = max(now.budget, seen.budget)
    return bool(now.idle <= allowed + EPSILON)


def _armed(pool: Pool, profile: Profile, entry: Entry, at: float) -> None:
    """Demand that waits is looked at again without any further news."""
    assert ("place", profile.spec.name) in _owners(pool), f"nobody looks again at {entry}"
    assert pool.agenda.next_time() > at


def _owners(pool: Pool) -> set[Any]:
    return set(pool.agenda._numbers)


def _time_of(pool: Pool, owner: Any) -> float:
    number = pool.agenda._numbers.get(owner)
    return inf if number is None else pool.agenda._ordered.key_of(number)


def worker_of(pool: Pool, lane: str) -> Worker:
    """The standby of a lane, for tests that need its name."""
    worker = standby_of(pool.lanes[lane])
    assert worker is not None
    return worker
