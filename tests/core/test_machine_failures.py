"""What fails, and what happens then (architecture, section 7, as far as the core decides it)."""

from __future__ import annotations

from firepool_ray.core import events as ev
from firepool_ray.core.actions import (
    GrowLane,
    PromoteWorker,
    RegrantLease,
    RemoveLane,
    RetireWorker,
    RevokeLease,
    SendGrant,
    SendRejection,
    SendRevoked,
    StartWorker,
)
from firepool_ray.core.model import Fence, LeaseId
from tests.core.desk import BOB, Desk, pool, profile, ready, want


def all_started(desk: Desk) -> None:
    for worker in [w for w in desk.pool.workers.values() if w.state == "starting"]:
        desk.do(ev.WorkerStarted(desk.at, worker.id))


# ---------------------------------------------------------------- clients


def test_a_lost_client_without_sibling_loses_its_workers() -> None:
    desk = ready()
    (lease,) = desk.hold("c1")
    all_started(desk)
    assert desk.do(ev.ClientLost(1.0, "c1", "gone")) == [
        RevokeLease(lease.worker, lease.fence, "stop")
    ]
    assert desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "draining")) == []
    assert desk.do(ev.LeaseEnded(1.2, lease.worker, lease.fence)) == [
        RetireWorker(lease.worker, "release")
    ]


def test_a_lost_clients_workers_are_warm_for_its_sibling() -> None:
    desk = ready()
    (lease,) = desk.hold("c1")
    all_started(desk)
    desk.sync("c2", want(), at=0.5)
    (stop,) = desk.do(ev.ClientLost(1.0, "c1", "gone"))
    (regrant,) = desk.do(ev.LeaseEnded(1.2, lease.worker, lease.fence))
    assert regrant == RegrantLease(lease.worker, lease.fence, desk.fence(), "c2")


def test_an_unleased_worker_leaves_with_the_last_client_of_its_caller() -> None:
    desk = ready()
    (lease,) = desk.hold("c1")
    all_started(desk)
    desk.sync("c2", want(deps="d"), at=0.5)
    desk.sync("c2", at=0.6)
    desk.do(ev.ClientLost(1.0, "c1", "gone"), ev.LeaseEnded(1.2, lease.worker, lease.fence))
    assert desk.pool.workers[lease.worker].state == "unleased"
    (retire,) = desk.do(ev.ClientLost(2.0, "c2", "gone"))
    assert retire == RetireWorker(lease.worker, "no client of its caller is left")


def test_a_standby_claimed_for_a_lost_client_serves_the_next() -> None:
    desk = ready(pool(profile(max_lanes=1)))
    (lease,) = desk.hold("c1")
    all_started(desk)
    desk.idle(lease)
    desk.sync("c2", want(BOB), at=1.0)
    desk.sync("c3", want(BOB, deps="d"), at=1.1)
    desk.do(ev.RevokeAnswered(1.2, lease.worker, lease.fence, "gone"))
    assert desk.do(ev.ClientLost(1.3, "c2", "gone")) == []
    (promote,) = desk.do(ev.WorkerRetired(1.4, lease.worker))
    assert isinstance(promote, PromoteWorker) and promote.client == "c3"


def test_a_promotion_for_a_lost_client_is_revoked_when_it_succeeds() -> None:
    desk = ready()
    (promote,) = desk.sync("c1", want())
    desk.do(ev.ClientLost(0.1, "c1", "gone"))
    decisions = desk.promoted(promote, at=0.2)
    assert RevokeLease(promote.worker, promote.fence, "drain") in decisions  # type: ignore[attr-defined]
    assert not any(isinstance(a, SendGrant) for a in decisions)


def test_a_lease_no_longer_listed_was_given_up() -> None:
    desk = ready()
    (lease,) = desk.hold("c1")
    assert desk.sync("c1", held=[]) == [RevokeLease(lease.worker, lease.fence, "drain")]


def test_a_grant_not_yet_seen_is_not_a_lease_given_up() -> None:
    desk = ready()
    (promote,) = desk.sync("c1", want())
    desk.promoted(promote)
    assert desk.sync("c1", want(), held=[], acked=(0, 0)) == []


def test_a_client_is_told_of_leases_it_does_not_hold() -> None:
    desk = ready()
    ghost = LeaseId("a0s0", Fence(0, 7))
    assert desk.sync("c1", held=[ghost]) == [SendRevoked("c1", ghost)]


def test_a_client_that_cannot_let_go_yet_hears_it_once_a_second() -> None:
    """It would sync again after every word, at the speed of the network."""
    desk = ready()
    (lease,) = desk.hold("c1")
    assert desk.do(ev.NodeLost(1.0, "node-a0", "gone"))[0] == SendRevoked("c1", lease)
    assert SendRevoked("c1", lease) not in desk.sync("c1", held=[lease], at=1.01)
    assert SendRevoked("c1", lease) in desk.sync("c1", held=[lease], at=2.0)
    desk.sync("c1", held=[], at=2.1)
    assert not desk.pool.clients["c1"].told


def test_a_lease_given_up_during_a_move_reaches_the_sibling_all_the_same() -> None:
    desk = ready(p=2)
    (lease,) = desk.hold("c1")
    desk.idle(lease)
    (move,) = desk.sync("c2", want())
    assert desk.sync("c1", held=[]) == [RevokeLease(lease.worker, lease.fence, "drain")]
    (grant,) = desk.do(ev.RevokeAnswered(0.1, lease.worker, lease.fence, "moved"))
    assert isinstance(grant, SendGrant) and grant.client == "c2"
    assert desk.do(ev.RevokeAnswered(0.2, lease.worker, lease.fence, "stale")) == []


def test_late_words_of_a_lost_client_change_nothing_and_its_numbers_go_on() -> None:
    desk = ready(p=2)
    desk.hold("c1")
    desk.do(ev.ClientLost(1.0, "c1", "gone"))
    late = ev.ClientSynced(1.1, "c1", 1, (), (0, 0), ())
    assert desk.do(late) == []
    assert "c1" not in desk.pool.clients
    desk.held["c1"].clear()
    (promote,) = [a for a in desk.sync("c1", want(), at=1.2) if isinstance(a, PromoteWorker)]
    (grant, *_) = desk.promoted(promote)
    assert isinstance(grant, SendGrant) and grant.grant.number == 2


# ---------------------------------------------------------------- starts


def test_failing_starts_back_off_then_the_breaker_opens_and_says_why() -> None:
    desk = ready(pool(profile(standbys=0, max_lanes=1), breaker_failures=3))
    (start,) = desk.sync("c1", want())
    pauses = []
    for _ in range(2):
        assert isinstance(start, StartWorker)
        desk.do(ev.WorkerStartFailed(desk.at, start.worker, "no such module"))
        desk.do(ev.WorkerRetired(desk.at, start.worker))
        pauses.append(desk.wake_at - desk.at)
        assert desk.sync("c1", want()) == []
        (start,) = desk.wake(desk.wake_at)
    assert pauses == [0.5, 1.0]
    retire, rejection = desk.do(ev.WorkerStartFailed(desk.at, start.worker, "no such module"))
    assert isinstance(rejection, SendRejection) and rejection.rejection.code == "start_failed"
    assert "3 failures in a row, the last: no such module" in rejection.rejection.message
    desk.do(ev.WorkerRetired(desk.at, start.worker))
    (again,) = desk.sync("c2", want(BOB))
    assert isinstance(again, SendRejection)


def test_half_open_tries_one_start_and_success_closes_the_breaker() -> None:
    desk = ready(pool(profile(standbys=0, max_lanes=3), breaker_failures=1), p=3)
    starts = desk.sync("c1", want(), count=3)
    desk.do(*(ev.WorkerStartFailed(1.0, s.worker, "no") for s in starts))  # type: ignore[attr-defined]
    desk.do(*(ev.WorkerRetired(1.0, s.worker) for s in starts))  # type: ignore[attr-defined]
    assert desk.wake(60.0) == []
    (one,) = desk.sync("c1", want(), count=3, at=61.1)
    assert isinstance(one, StartWorker)
    decisions = desk.do(ev.WorkerStarted(62.0, one.worker))
    assert [type(a) for a in decisions] == [PromoteWorker, StartWorker, StartWorker]


def test_the_breaker_does_not_reject_while_something_lives() -> None:
    desk = ready(pool(profile(standbys=0, max_lanes=2), breaker_failures=1), p=2)
    (start,) = desk.sync("c1", want())
    (promote,) = desk.do(ev.WorkerStarted(0.1, start.worker))  # type: ignore[attr-defined]
    desk.promoted(promote)
    (start,) = desk.sync("c1", want())
    decisions = desk.do(ev.WorkerStartFailed(0.2, start.worker, "no"))  # type: ignore[attr-defined]
    assert not any(isinstance(a, SendRejection) for a in decisions)


def test_promotions_that_fail_open_the_breaker_though_starts_succeed() -> None:
    desk = ready(pool(profile(max_lanes=1), breaker_failures=2))
    (promote,) = desk.sync("c1", want())
    rejections: list[SendRejection] = []
    for _ in range(2):
        assert isinstance(promote, PromoteWorker)
        failed = ev.PromotionFailed(desk.at, promote.worker, promote.fence, "CUDA is in use")
        rejections = [a for a in desk.do(failed) if isinstance(a, SendRejection)]
        decisions = desk.do(ev.WorkerRetired(desk.at, promote.worker))
        if not rejections:
            decisions += desk.wake(desk.at + 0.5)
        starts = [a for a in decisions if isinstance(a, StartWorker)]
        if starts:
            (promote,) = desk.do(ev.WorkerStarted(desk.at, starts[0].worker))
    assert "CUDA is in use" in rejections[0].rejection.message


def test_a_worker_that_exits_while_promoted_counts_as_a_failure() -> None:
    desk = ready()
    (promote,) = desk.sync("c1", want())
    desk.do(ev.WorkerExited(0.1, promote.worker, "segmentation fault"))  # type: ignore[attr-defined]
    assert desk.pool.profiles["p"].failures == 1


def test_a_failed_promotion_takes_the_next_standby() -> None:
    desk = ready(p=2)
    (promote,) = desk.sync("c1", want())
    assert isinstance(promote, PromoteWorker)
    decisions = desk.do(ev.PromotionFailed(0.1, promote.worker, promote.fence, "CUDA is in use"))
    assert [type(a) for a in decisions] == [RetireWorker, PromoteWorker]


def test_refills_are_paced_by_the_token_bucket() -> None:
    desk = ready(pool(refill_burst=1, refill_rate_per_s=2.0), p=3)
    starts = []
    for promote in desk.sync("c1", want(), count=3):
        starts += [a for a in desk.promoted(promote) if isinstance(a, StartWorker)]
    assert len(starts) == 1
    (second,) = desk.wake(0.5)
    (third,) = desk.wake(1.0)
    assert isinstance(second, StartWorker) and isinstance(third, StartWorker)


def test_a_failed_refill_is_made_up_for() -> None:
    desk = ready(pool(profile(standbys=2)))
    desk.hold("c1")
    (starting,) = [w for w in desk.pool.workers.values() if w.state == "starting"]
    desk.do(ev.WorkerStartFailed(0.1, starting.id, "no"), ev.WorkerRetired(0.2, starting.id))
    (again,) = desk.wake(0.6)
    assert isinstance(again, StartWorker)


def test_lanes_that_cannot_be_placed_back_off() -> None:
    desk = Desk(pool(profile(max_lanes=3)))
    grows = desk.sync("c1", want(), count=2)
    first, second = (a.lane for a in grows if isinstance(a, GrowLane))
    assert desk.do(ev.LaneFailed(0.0, first, "no node fits")) == [RemoveLane(first)]
    assert desk.do(ev.LaneRemoved(0.1, first)) == []
    desk.do(ev.LaneFailed(0.2, second, "no node fits"), ev.LaneRemoved(0.2, second))
    (one,) = desk.wake(1.2)  # one lane at a time is tried
    assert isinstance(one, GrowLane)


# ---------------------------------------------------------------- sweeps


def test_a_sweep_that_fails_quarantines_the_lane_until_one_succeeds() -> None:
    desk = ready()
    (lease,) = desk.hold("c1")
    all_started(desk)
    desk.do(ev.WorkerExited(1.0, lease.worker, "killed"))
    desk.do(ev.RetireFailed(2.0, lease.worker, "a process hangs"))
    lane = desk.pool.lanes["a0"]
    assert lane.state == "quarantined"
    decisions = desk.sync("c1", want(), at=2.1)
    assert not any(isinstance(a, PromoteWorker) for a in decisions)  # the lane is not handed on
    for second in range(3, 33):
        desk.sync("c1", want(), at=float(second))
    assert desk.pool.workers[lease.worker].state == "leaving"
    assert RetireWorker(lease.worker, "sweep again") in desk.wake(33.0) or desk.at >= 32.0
    (promote,) = [
        a for a in desk.do(ev.WorkerRetired(34.0, lease.worker)) if isinstance(a, PromoteWorker)
    ]
    assert lane.state == "ready"


def test_a_reserved_standby_of_a_quarantined_lane_is_set_free() -> None:
    desk = ready(pool(profile(max_lanes=1)))
    (lease,) = desk.hold("c1")
    all_started(desk)
    desk.idle(lease)
    desk.sync("c2", want(BOB), at=1.0)
    desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "gone"))
    assert desk.pool.devices["a0"].next is not None
    desk.do(ev.RetireFailed(11.1, lease.worker, "a process hangs"))
    assert desk.pool.devices["a0"].next is None


def test_a_quarantined_lane_takes_its_shared_device_out_of_use() -> None:
    desk = Desk(pool(profile("p", max_lanes=1), profile("q", max_lanes=1)), start=False)
    for lane, name in (("x", "p"), ("y", "q")):
        desk.do(ev.LaneAdopted(0.0, lane, name, "n1", "gpu-7"))
        desk.do(ev.WorkerAdopted(0.0, f"{lane}s", lane, 0, "standby"))
    desk.do(ev.Reconciled(0.0))
    (lease,) = desk.hold("c1", want(profile="p"))
    desk.do(ev.WorkerExited(1.0, lease.worker, "killed"))
    desk.do(ev.RetireFailed(11.0, lease.worker, "a process hangs"))
    assert desk.sync("c2", want(BOB, profile="q"), at=11.1) == []
    assert desk.pool.devices["gpu-7"].next is None
    (promote,) = [
        a for a in desk.do(ev.WorkerRetired(12.0, lease.worker)) if isinstance(a, PromoteWorker)
    ]
    assert promote.worker == "ys"


# ---------------------------------------------------------------- nodes


def test_a_lost_node_takes_its_lanes_and_capacity_is_rebuilt() -> None:
    desk = ready(pool(profile(min_lanes=2)), p=2)
    (lease,) = desk.hold("c1")
    decisions = desk.do(ev.NodeLost(1.0, "node-a0", "its warden does not answer"))
    assert decisions[:2] == [SendRevoked("c1", lease), RemoveLane("a0")]
    assert any(isinstance(a, GrowLane) for a in decisions)
    assert desk.do(ev.WorkerRetired(1.1, lease.worker)) == []  # late


def test_a_draining_node_gets_nothing_new_and_is_replaced() -> None:
    desk = ready(p=1)
    (lease,) = desk.hold("c1")
    all_started(desk)
    decisions = desk.do(ev.NodeDraining(1.0, "node-a0"))
    assert RevokeLease(lease.worker, lease.fence, "drain") in decisions
    assert any(isinstance(a, GrowLane) for a in decisions)
    assert not any(isinstance(a, PromoteWorker) for a in desk.sync("c1", want(), at=1.1))
    desk.do(ev.LeaseEnded(2.0, lease.worker, lease.fence))
    for worker in list(desk.pool.lanes["a0"].workers()):
        decisions = desk.do(ev.WorkerRetired(2.1, worker.id))
    assert RemoveLane("a0") in decisions


def test_the_replacement_of_a_draining_lane_respects_max_gpus() -> None:
    desk = ready(pool(max_gpus=1))
    desk.hold("c1")
    assert not any(isinstance(a, GrowLane) for a in desk.do(ev.NodeDraining(1.0, "node-a0")))


def test_what_was_under_way_on_a_draining_lane_is_drained_when_it_arrives() -> None:
    desk = ready(p=2)
    (lease,) = desk.hold("c1")
    desk.idle(lease)
    (move,) = desk.sync("c2", want())
    assert isinstance(move, RevokeLease) and move.successor is not None
    desk.do(ev.NodeDraining(1.0, f"node-{desk.pool.workers[lease.worker].lane.id}"))
    decisions = desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "moved"))
    assert decisions[-1] == RevokeLease(lease.worker, move.successor, "drain")


def test_lanes_that_share_a_device_never_have_two_active_workers() -> None:
    desk = Desk(pool(profile("p"), profile("q")), start=False)
    for lane, name in (("x", "p"), ("y", "q")):
        desk.do(ev.LaneAdopted(0.0, lane, name, "n1", "gpu-7"))
        desk.do(ev.WorkerAdopted(0.0, f"{lane}s", lane, 0, "standby"))
    desk.do(ev.Reconciled(0.0))
    (lease,) = desk.hold("c1", want(profile="p"))
    decisions = desk.sync("c2", want(BOB, profile="q"), at=1.0)
    assert not any(isinstance(a, PromoteWorker) for a in decisions)
    desk.idle(lease, since=1.0)
    revokes = [a for a in desk.wake(2.0) if isinstance(a, RevokeLease)]
    assert [a.worker for a in revokes] == [lease.worker]
    desk.do(ev.RevokeAnswered(2.1, lease.worker, lease.fence, "gone"))
    decisions = desk.do(ev.WorkerRetired(2.2, lease.worker))
    (promote,) = [a for a in decisions if isinstance(a, PromoteWorker)]
    assert promote.worker == "ys" and promote.client == "c2"
