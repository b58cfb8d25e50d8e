"""Priority, fairness past the window, and moves between the clients of one caller."""

from __future__ import annotations

from firepool_ray.core import events as ev
from firepool_ray.core.actions import PromoteWorker, RevokeLease, SendGrant, SendRevoked
from firepool_ray.core.model import Demand, LeaseId, QueueSpec
from tests.core.desk import ALICE, BOB, CAROL, INF, Desk, granted, pool, profile, ready, want


def full(lanes: int = 1, **settings: object) -> tuple[Desk, list[LeaseId]]:
    """Alice's client c1 holds every lane, all busy, standbys beside them."""
    desk = ready(pool(profile(max_lanes=lanes), **settings), p=lanes)
    leases = desk.hold("c1", count=lanes)
    for worker in [w for w in desk.pool.workers.values() if w.state == "starting"]:
        desk.do(ev.WorkerStarted(0.0, worker.id))
    return desk, leases


def test_a_step_of_priority_is_worth_one_window() -> None:
    desk, (lease,) = full()
    desk.sync("c2", want(BOB), at=10.0, age_s=4.9)
    desk.sync("c3", want(BOB, priority=1), at=10.0)
    (revoke,) = desk.idle(lease, since=9.0)
    desk.do(ev.RevokeAnswered(10.1, lease.worker, lease.fence, "gone"))
    (promote,) = desk.do(ev.WorkerRetired(10.2, lease.worker))
    assert isinstance(promote, PromoteWorker) and promote.client == "c3"


def test_priority_is_bounded_so_nobody_starves() -> None:
    # Nothing is drained for them: what the other queue holds is its own by quota.
    queues = (QueueSpec("default", quota=0), QueueSpec("rl"))
    desk = ready(pool(profile(max_lanes=1), queues=queues))
    (lease,) = desk.hold("c1", want(CAROL))
    desk.do(ev.WorkerStarted(0.0, desk.pool.lanes["a0"].workers()[1].id))
    desk.sync("c2", want(BOB), at=2.5, age_s=2.5)
    desk.sync("c3", want(ALICE, priority=1), at=5.2)
    (revoke,) = desk.idle(lease, since=5.1)
    assert isinstance(revoke, RevokeLease) and revoke.worker == lease.worker
    desk.do(ev.RevokeAnswered(5.3, lease.worker, lease.fence, "gone"))
    (promote,) = desk.do(ev.WorkerRetired(5.4, lease.worker))
    assert isinstance(promote, PromoteWorker) and promote.client == "c2"


def test_a_busy_lease_is_drained_after_the_window_and_no_sooner() -> None:
    desk, (lease,) = full()
    assert desk.sync("c2", want(BOB), at=1.0) == []
    assert desk.sync("c2", want(BOB), at=5.9, age_s=4.9) == []
    assert desk.wake(6.0) == [RevokeLease(lease.worker, lease.fence, "drain")]
    assert desk.do(ev.RevokeAnswered(6.1, lease.worker, lease.fence, "draining")) == []
    retire = desk.do(ev.LeaseEnded(7.0, lease.worker, lease.fence))
    assert retire[0] == SendRevoked("c1", lease)
    (promote,) = desk.do(ev.WorkerRetired(7.1, lease.worker))
    assert isinstance(promote, PromoteWorker) and promote.client == "c2"


def test_unentitled_demand_does_not_drain_other_queues() -> None:
    queues = (QueueSpec("default", quota=4), QueueSpec("rl", quota=0))
    desk, _ = full(queues=queues)
    assert desk.sync("c3", want(CAROL), at=6.0, age_s=6.0) == []


def test_unentitled_demand_still_shares_within_its_own_queue() -> None:
    queues = (QueueSpec("default", quota=1, limit=2), QueueSpec("rl"))
    desk, leases = full(2, queues=queues)
    (drain,) = desk.sync("c2", want(BOB), at=6.0, age_s=6.0)
    assert isinstance(drain, RevokeLease) and drain.mode == "drain"


def test_sharing_stops_where_it_would_turn_the_inequality_around() -> None:
    desk, leases = full(3)
    decisions = desk.sync("c2", want(BOB), count=3, at=6.0, age_s=6.0)
    assert len(decisions) == 1  # 2 : 1 is as fair as 1 : 2
    assert desk.wake(6.3) == []


def test_after_another_window_a_lasting_job_is_not_waited_for_alone() -> None:
    desk, leases = full(2)
    (first,) = desk.sync("c2", want(BOB), at=6.0, age_s=6.0)
    desk.do(ev.RevokeAnswered(6.1, first.worker, first.fence, "draining"))
    for second in range(7, 11):
        assert desk.sync("c2", want(BOB), at=float(second), age_s=float(second)) == []
    (second_drain,) = desk.wake(11.0)
    assert isinstance(second_drain, RevokeLease) and second_drain.worker != first.worker


def test_a_caller_without_workers_goes_before_an_older_backlog() -> None:
    """No standby beside the busy worker: the lane is won back cold, and not by the same caller."""
    desk = ready(pool(profile(standbys=0, max_lanes=1)))
    desk.sync("c1", want())
    start = desk.pool.lanes["a0"].workers()[0]
    (promote,) = desk.do(ev.WorkerStarted(0.0, start.id))
    desk.promoted(promote)
    desk.sync("c1", want(), count=50, at=1.0, age_s=1.0)
    desk.sync("c2", want(BOB), at=1.5)
    lease = LeaseId(start.id, start.fence)
    drains = desk.sync("c2", want(BOB), at=6.6, age_s=5.1)
    assert drains == [RevokeLease(lease.worker, lease.fence, "drain")]
    desk.do(ev.LeaseEnded(6.7, lease.worker, lease.fence))
    (started,) = desk.do(ev.WorkerRetired(6.8, lease.worker))
    desk.sync("c1", want(), count=50, at=7.0, age_s=7.0)
    (promote,) = desk.do(ev.WorkerStarted(7.5, started.worker))  # type: ignore[attr-defined]
    assert isinstance(promote, PromoteWorker) and promote.client == "c2"


def test_a_sibling_without_workers_gets_one_of_the_others_warm() -> None:
    desk, leases = full(2)
    (drain,) = desk.sync("c2", want(), at=6.0, age_s=6.0)
    assert isinstance(drain, RevokeLease) and drain.mode == "drain"
    desk.do(ev.RevokeAnswered(6.1, drain.worker, drain.fence, "draining"))
    lease = LeaseId(drain.worker, drain.fence)
    revoked, regrant = desk.do(ev.LeaseEnded(6.2, drain.worker, drain.fence))
    assert revoked == SendRevoked("c1", lease)
    (grant,) = desk.do(ev.LeaseRegranted(6.3, drain.worker, regrant.fence))  # type: ignore[attr-defined]
    moved = LeaseId(drain.worker, desk.pool.workers[drain.worker].fence)
    assert grant == SendGrant("c2", granted(1, moved, want(), "warm"))


def test_siblings_even_out_to_within_one() -> None:
    desk, leases = full(4)
    decisions = desk.sync("c2", want(), count=4, at=6.0, age_s=6.0)
    assert len(decisions) == 2


def test_jobs_that_wait_for_children_are_not_drained() -> None:
    desk, (lease,) = full()
    desk.sync("nested", want(), at=0.0, parent=lease, blocked=True)
    assert [a for a in desk.sync("c2", want(BOB), at=6.0, age_s=6.0)] == []


def test_demand_that_is_not_stated_again_is_forgotten() -> None:
    desk, (lease,) = full()
    desk.sync("c2", want(BOB), at=1.0)
    desk.sync("c2", want(BOB), at=4.0)
    (entry,) = desk.pool.clients["c2"].entries.values()
    desk.wake(11.0)
    desk.wake(13.9)
    assert entry.count == 1
    desk.wake(14.0)
    assert entry.count == 0


def test_several_classes_of_one_client_are_served_by_age() -> None:
    desk = ready(p=1)
    younger = Demand(want(deps="d"), 1, 1.0, INF)
    promote, _ = desk.sync("c1", want(), age_s=2.0, also=(younger,), at=3.0)
    assert isinstance(promote, PromoteWorker) and promote.key == want().key
    assert promote.key.caller == ALICE
