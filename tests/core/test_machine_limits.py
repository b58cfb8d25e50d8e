"""Quotas, limits, caps, lifetimes: what may be held, and what goes when it may not."""

from __future__ import annotations

import pytest

from firepool_ray.core import events as ev
from firepool_ray.core.actions import (
    GrowLane,
    PromoteWorker,
    RemoveLane,
    RetireWorker,
    RevokeLease,
    SendRejection,
    StartWorker,
)
from firepool_ray.core.model import Caller, LeaseId, QueueSpec
from firepool_ray.errors import IllegalTransition
from tests.core.desk import ALICE, BOB, CAROL, INF, Desk, pool, profile, ready, want

LIMITED = (QueueSpec("default", limit=1), QueueSpec("rl"))


def all_started(desk: Desk) -> None:
    for worker in [w for w in desk.pool.workers.values() if w.state == "starting"]:
        desk.do(ev.WorkerStarted(desk.at, worker.id))


def test_a_queue_at_its_limit_gets_no_more() -> None:
    desk = ready(pool(queues=LIMITED), p=3)
    (promote,) = desk.sync("c1", want(), count=2)
    desk.promoted(promote)
    assert desk.sync("c1", want(), count=1) == []
    (other,) = desk.sync("c3", want(CAROL))
    assert isinstance(other, PromoteWorker) and other.client == "c3"


def test_the_limit_counts_what_is_promised() -> None:
    desk = ready(pool(queues=LIMITED), p=3)
    (_,) = desk.sync("c1", want())
    assert desk.sync("c2", want(BOB)) == []


def test_leaving_units_count_until_they_are_gone() -> None:
    """A handover away from the queue may still be answered busy."""
    desk = ready(pool(profile(max_lanes=2), queues=LIMITED), p=2)
    (lease,) = desk.hold("c1")
    (other,) = desk.hold("c3", want(CAROL))
    all_started(desk)
    desk.idle(lease)
    (revoke,) = desk.sync("c3", want(CAROL), at=1.0)
    assert isinstance(revoke, RevokeLease) and revoke.worker == lease.worker
    desk.idle(other, since=1.0)
    assert desk.sync("c2", want(BOB), at=2.0) == []


def test_a_queue_at_its_limit_exchanges_its_own_idle_worker() -> None:
    desk = ready(pool(queues=LIMITED), p=2)
    (lease,) = desk.hold("c1")
    all_started(desk)
    desk.idle(lease)
    (revoke,) = desk.sync("c2", want(BOB), at=1.0)
    assert isinstance(revoke, RevokeLease) and revoke.worker == lease.worker
    desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "gone"))
    # The room is promised: nobody else of the queue gets it while the worker is swept.
    assert desk.sync("c9", want(Caller("default", "eve")), at=1.1) == []
    (promote,) = desk.do(ev.WorkerRetired(1.2, lease.worker))
    assert isinstance(promote, PromoteWorker) and promote.client == "c2"


def test_the_exchange_reaches_other_profiles() -> None:
    spec = pool(profile("p"), profile("q"), queues=LIMITED)
    desk = ready(spec, p=1, q=1)
    (lease,) = desk.hold("c1", want(profile="q"))
    desk.idle(lease)
    (revoke,) = desk.sync("c2", want(BOB), at=1.0)
    assert isinstance(revoke, RevokeLease) and revoke.worker == lease.worker
    assert desk.sync("c2", want(BOB), at=1.0) == []  # one is enough
    decisions = desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "gone"))
    assert [a.client for a in decisions if isinstance(a, PromoteWorker)] == ["c2"]


def test_the_exchange_works_without_standbys() -> None:
    desk = ready(pool(profile(standbys=0), queues=LIMITED))
    (start,) = desk.sync("c1", want())
    assert isinstance(start, StartWorker)
    (promote,) = desk.do(ev.WorkerStarted(0.0, start.worker))
    desk.promoted(promote)
    desk.sync("c1")
    desk.idle(LeaseId(start.worker, desk.pool.workers[start.worker].fence))
    (revoke,) = desk.sync("c2", want(BOB), at=1.0)
    assert isinstance(revoke, RevokeLease)
    desk.do(ev.RevokeAnswered(1.1, start.worker, revoke.fence, "gone"))
    decisions = desk.do(ev.WorkerRetired(1.2, start.worker))
    assert any(isinstance(a, StartWorker) for a in decisions)


def test_entitled_demand_goes_before_borrowing() -> None:
    queues = (QueueSpec("default", quota=0), QueueSpec("rl", quota=1))
    desk = ready(pool(profile(max_lanes=1), queues=queues))
    (lease,) = desk.hold("c1")
    all_started(desk)
    desk.sync("c2", want(BOB), at=1.0, age_s=1.0)  # older, but not entitled
    desk.sync("c3", want(CAROL), at=1.0)
    (revoke,) = desk.idle(lease, since=0.5)
    desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "gone"))
    (promote,) = desk.do(ev.WorkerRetired(1.2, lease.worker))
    assert isinstance(promote, PromoteWorker) and promote.client == "c3"


def test_borrowing_is_allowed_while_no_entitled_demand_waits() -> None:
    queues = (QueueSpec("default", quota=1), QueueSpec("rl", quota=1))
    desk = ready(pool(queues=queues), p=3)
    assert len(desk.sync("c1", want(), count=3)) == 3


def test_what_can_never_be_is_rejected_at_once() -> None:
    desk = ready(pool(profile(), profile("big", gpus=2.0), queues=LIMITED))
    (rejection,) = desk.sync("c1", want(profile="big"))
    assert isinstance(rejection, SendRejection) and rejection.rejection.code == "impossible"
    assert "queue 'default' may hold only 1" in rejection.rejection.message
    kept = pool(profile(min_lanes=2), profile("big", gpus=3.0), max_gpus=4)
    (rejection,) = [a for a in Desk(kept).sync("c1", want(profile="big"))]
    assert "keep 2" in rejection.rejection.message  # type: ignore[attr-defined]


def test_an_idle_worker_is_retired_after_its_keep_alive() -> None:
    desk = ready(pool(profile(keep_alive="fixed:7")))
    (lease,) = desk.hold("c1")
    all_started(desk)
    desk.idle(lease)
    assert desk.wake_at == 7.0
    assert desk.wake(6.9) == []
    assert desk.wake(7.0) == [RevokeLease(lease.worker, lease.fence, "if_idle")]
    desk.do(ev.RevokeAnswered(7.1, lease.worker, lease.fence, "gone"))
    assert desk.pool.workers[lease.worker].state == "leaving"


def test_a_timer_that_rings_too_early_is_set_again() -> None:
    desk = ready(pool(profile(keep_alive="fixed:7")))
    (lease,) = desk.hold("c1")
    desk.idle(lease)
    desk.wake_at = INF
    desk.wake(6.9)
    assert desk.wake_at < INF


def test_work_ends_the_keep_alive() -> None:
    desk = ready(pool(profile(keep_alive="fixed:7", lane_keep_s=INF)))
    (lease,) = desk.hold("c1")
    all_started(desk)
    desk.idle(lease)
    desk.do(ev.WorkerBusy(1.0, lease.worker, lease.fence))
    assert desk.wake(100.0) == []


def test_the_cap_on_idle_units_takes_the_longest_idle_after_the_linger() -> None:
    desk = ready(pool(idle_cap=1.0), p=2)
    leases = desk.hold("c1", count=2)
    all_started(desk)
    desk.idle(leases[1], since=0.0)
    assert desk.idle(leases[0], since=0.1) == [
        RevokeLease(leases[1].worker, leases[1].fence, "if_idle")
    ]
    assert desk.do(ev.IdleCapSet(0.1, 0.0)) == []  # it may be between two jobs
    assert desk.wake(desk.wake_at) == [RevokeLease(leases[0].worker, leases[0].fence, "if_idle")]


def test_a_closing_caller_keeps_nothing_idle() -> None:
    desk = ready(p=2)
    first, second = desk.hold("c1", count=2)
    all_started(desk)
    desk.idle(first)
    assert desk.do(ev.CallerClosing(0.0, ALICE)) == [
        RevokeLease(first.worker, first.fence, "if_idle")
    ]
    assert desk.idle(second) == [RevokeLease(second.worker, second.fence, "if_idle")]
    desk.do(ev.RevokeAnswered(0.1, second.worker, second.fence, "busy"))
    desk.sync("c1", want(deps="d"))  # it works again
    desk.do(ev.WorkerIdle(0.2, second.worker, second.fence, 0.2))
    assert desk.pool.workers[second.worker].state == "bound"


def test_an_unused_lane_goes_down_to_the_minimum() -> None:
    desk = ready(pool(profile(min_lanes=1, lane_keep_s=30.0)), p=2)
    assert desk.wake(30.0) == [RetireWorker("a0s0", "unused")]
    assert desk.do(ev.WorkerRetired(30.1, "a0s0")) == [RemoveLane("a0")]
    desk.do(ev.LaneRemoved(30.2, "a0"))
    assert desk.wake(1000.0) == []


def test_a_lane_is_not_kept_for_demand_that_may_not_have_it() -> None:
    desk = ready(pool(profile(lane_keep_s=30.0), queues=LIMITED), p=3)
    (lease,) = desk.hold("c1")
    desk.sync("c1", want(), at=25.0)  # its queue is at its limit
    retired = [a for a in desk.wake(30.0) if isinstance(a, RetireWorker)]
    assert len(retired) == 2 and lease.worker not in {a.worker for a in retired}


def test_a_lane_in_which_a_worker_starts_for_somebody_stays() -> None:
    desk = ready(pool(profile(lane_keep_s=30.0, standbys=0, max_lanes=1)))
    (start,) = desk.sync("c1", want())
    assert isinstance(start, StartWorker)
    desk.sync("c1", want(), at=29.0)
    assert [a for a in desk.wake(30.0) if isinstance(a, RetireWorker)] == []
    desk.sync("c1", at=31.0)  # it has given up
    assert isinstance(desk.do(ev.WorkerStarted(32.0, start.worker)), list)
    retired = [a for a in desk.wake(62.0) if isinstance(a, RetireWorker)]
    assert [a.worker for a in retired] == [start.worker]


def test_lanes_are_grown_to_the_minimum_and_again_after_a_failure() -> None:
    desk = Desk(pool(profile(min_lanes=2)), start=False)
    assert desk.do(ev.Reconciled(0.0)) == [GrowLane("e1l1", "p"), GrowLane("e1l2", "p")]
    assert desk.do(ev.LaneFailed(1.0, "e1l1", "no room")) == [RemoveLane("e1l1")]
    desk.do(ev.LaneRemoved(1.1, "e1l1"))
    assert desk.wake_at == 1.5
    desk.do(ev.LaneReady(1.2, "e1l2", "n1"))
    assert GrowLane(f"e1l{desk.pool.serial + 1}", "p") in desk.wake(1.5)


def test_gpus_are_not_reserved_beyond_the_pool() -> None:
    desk = Desk(pool(profile(gpus=2.0, max_lanes=9), max_gpus=5))
    assert len(desk.sync("c1", want(), count=9)) == 2


def room_desk(**settings: float) -> Desk:
    spec = pool(
        profile("small", gpus=1.0, max_lanes=4), profile("big", gpus=2.0), max_gpus=2, **settings
    )
    return ready(spec, small=2)


def test_unused_lanes_make_room_for_another_profile() -> None:
    desk = room_desk()
    assert desk.sync("c1", want(profile="big")) == [
        RetireWorker("a1s0", "its GPUs are needed by another profile"),
        RetireWorker("a0s0", "its GPUs are needed by another profile"),
    ]
    desk.do(ev.WorkerRetired(0.1, "a1s0"), ev.WorkerRetired(0.1, "a0s0"))
    assert desk.do(ev.LaneRemoved(0.2, "a1")) == []
    (grow,) = desk.do(ev.LaneRemoved(0.3, "a0"))
    assert isinstance(grow, GrowLane) and grow.profile == "big"


def test_room_that_is_made_is_not_taken_by_others() -> None:
    desk = room_desk()
    desk.sync("c1", want(profile="big"))
    desk.do(ev.WorkerRetired(0.1, "a1s0"), ev.LaneRemoved(0.2, "a1"))
    assert desk.sync("c2", want(BOB, profile="small"), at=0.3) == []
    desk.do(ev.WorkerRetired(0.4, "a0s0"))
    (grow,) = desk.do(ev.LaneRemoved(0.5, "a0"))
    assert isinstance(grow, GrowLane) and grow.profile == "big"


def test_room_that_does_not_come_is_not_waited_for_alone() -> None:
    spec = pool(*(profile(name, max_lanes=1) for name in "pqr"), max_gpus=2)
    desk = ready(spec, p=1, q=1)
    desk.hold("c1", want(profile="p"))
    desk.do(ev.NodeDraining(0.0, "node-a0"))  # its GPU comes back, but its job lasts
    assert desk.sync("c2", want(BOB, profile="r"), at=4.0) == []
    assert desk.sync("c2", want(BOB, profile="r"), at=5.0, age_s=1.0) == [
        RetireWorker("a1s0", "its GPUs are needed by another profile")
    ]


def test_busy_lanes_make_room_after_the_window() -> None:
    desk = room_desk()
    leases = desk.hold("c1", want(profile="small"), count=2)
    all_started(desk)
    assert desk.sync("c2", want(BOB, profile="big"), at=4.9, age_s=4.9) == []
    decisions = desk.sync("c2", want(BOB, profile="big"), at=5.1, age_s=5.1)
    drained = {a.worker for a in decisions if isinstance(a, RevokeLease) and a.mode == "drain"}
    assert drained == {lease.worker for lease in leases}


@pytest.mark.parametrize("cap", [-1.0, float("nan")])
def test_a_cap_out_of_range_is_refused(cap: float) -> None:
    desk = ready()
    with pytest.raises(IllegalTransition):
        desk.do(ev.IdleCapSet(0.0, cap))


# ---------------------------------------------------------------- what carries the lanes


def test_growth_heeds_what_carries_the_lanes() -> None:
    desk = Desk(pool(profile(max_lanes=4)))
    assert desk.do(ev.LanesAllowed(0.0, "p", 1)) == []
    (first,) = desk.sync("c1", want(), count=5)
    more = desk.do(ev.LanesAllowed(1.0, "p", 3))
    assert [type(action) for action in [first, *more]] == [GrowLane] * 3
    (last,) = desk.do(ev.LanesAllowed(2.0, "p", None))
    assert isinstance(last, GrowLane)  # its own max_lanes holds again


def test_lanes_beyond_what_is_allowed_stay() -> None:
    """Their nodes are drained: that takes them, when their jobs have ended."""
    desk = ready(pool(profile(max_lanes=4)), p=3)
    assert desk.do(ev.LanesAllowed(1.0, "p", 1)) == []
    assert desk.pool.profiles["p"].counted == 3
    for profile_name, most in (("p", -1), ("nobody", 1)):
        with pytest.raises(IllegalTransition, match="no such number of lanes"):
            desk.do(ev.LanesAllowed(2.0, profile_name, most))


def test_a_profile_that_nothing_carries_is_refused_with_the_reason() -> None:
    desk = Desk(pool(profile(max_lanes=4)))
    desk.do(ev.LanesAllowed(0.0, "p", 0))
    (rejected,) = desk.sync("c1", want())
    assert isinstance(rejected, SendRejection)
    assert "nothing in the cluster may carry a lane of profile 'p'" in rejected.rejection.message
