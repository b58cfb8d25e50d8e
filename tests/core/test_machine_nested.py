"""Jobs that wait for jobs of their own: circles are broken, and nothing else."""

from __future__ import annotations

from firepool_ray.core import events as ev
from firepool_ray.core.actions import PromoteWorker, SendRejection
from firepool_ray.core.model import LeaseId, QueueSpec
from tests.core.desk import BOB, CAROL, Desk, pool, profile, ready, want


def one_lane(**settings: object) -> tuple[Desk, LeaseId]:
    desk = ready(pool(profile(max_lanes=1), **settings))
    (lease,) = desk.hold("c1")
    desk.do(ev.WorkerStarted(0.0, desk.pool.lanes["a0"].workers()[1].id))
    return desk, lease


def rejections(decisions: list[object]) -> list[SendRejection]:
    return [a for a in decisions if isinstance(a, SendRejection)]


def test_a_child_that_can_never_run_fails_at_once_with_the_chain() -> None:
    desk, lease = one_lane()
    (rejection,) = desk.sync("job1", want(), parent=lease, blocked=True)
    assert isinstance(rejection, SendRejection) and rejection.client == "job1"
    assert rejection.rejection.code == "deadlock"
    assert f"{lease.worker} in lane a0" in rejection.rejection.message
    assert desk.pool.clients["job1"].entries[want()].count == 0


def test_a_parent_that_does_not_wait_is_no_circle() -> None:
    desk, lease = one_lane()
    assert desk.sync("job1", want(), parent=lease, blocked=False) == []


def test_a_free_lane_is_no_circle() -> None:
    desk = ready(pool(profile(max_lanes=2)), p=2)
    (lease,) = desk.hold("c1")
    (promote,) = desk.sync("job1", want(), parent=lease, blocked=True)
    assert isinstance(promote, PromoteWorker)


def test_a_lane_still_to_be_grown_is_no_circle() -> None:
    desk = ready(pool(profile(max_lanes=2)))
    (lease,) = desk.hold("c1")
    assert not rejections(desk.sync("job1", want(), parent=lease, blocked=True))


def test_a_lane_with_a_running_job_is_no_circle() -> None:
    desk = ready(pool(profile(max_lanes=2)), p=2)
    (lease,) = desk.hold("c1")
    desk.hold("c2", want(BOB))
    assert not rejections(desk.sync("job1", want(), parent=lease, blocked=True))


def test_a_quarantined_lane_may_come_back() -> None:
    desk = ready(pool(profile(max_lanes=2)), p=2)
    (lease,) = desk.hold("c1")
    (other,) = desk.hold("c2", want(BOB))
    desk.do(ev.WorkerExited(1.0, other.worker, "killed"))
    desk.do(ev.RetireFailed(2.0, other.worker, "a process hangs"))
    assert not rejections(desk.sync("job1", want(), parent=lease, blocked=True, at=2.1))


def test_two_parents_that_wait_for_each_others_lanes_are_a_circle() -> None:
    desk = ready(pool(profile(max_lanes=2)), p=2)
    (first,) = desk.hold("c1")
    (second,) = desk.hold("c2", want(BOB))
    assert not rejections(desk.sync("job1", want(), parent=first, blocked=True))
    (rejection,) = rejections(desk.sync("job2", want(BOB), parent=second, blocked=True))
    assert rejection.client == "job2"
    assert first.worker in rejection.rejection.message
    assert second.worker in rejection.rejection.message


def test_a_grandchild_closes_the_circle() -> None:
    desk = ready(pool(profile(max_lanes=2)), p=2)
    (lease,) = desk.hold("c1")
    (promote,) = desk.sync("job1", want(), parent=lease, blocked=True)
    desk.promoted(promote)
    (child,) = (LeaseId(w, f) for w, f in desk.held["job1"].items())
    assert not rejections(desk.sync("job1", parent=lease, blocked=True))
    (rejection,) = rejections(desk.sync("job2", want(), parent=child, blocked=True))
    assert rejection.client == "job2"


def test_a_grandchild_with_room_is_no_circle() -> None:
    desk = ready(pool(profile(max_lanes=3)), p=3)
    (lease,) = desk.hold("c1")
    (promote,) = desk.sync("job1", want(), parent=lease, blocked=True)
    desk.promoted(promote)
    (child,) = (LeaseId(w, f) for w, f in desk.held["job1"].items())
    desk.sync("job1", parent=lease, blocked=True)
    assert not rejections(desk.sync("job2", want(), parent=child, blocked=True))


def test_the_limit_of_a_queue_closes_a_circle_as_well() -> None:
    queues = (QueueSpec("default", limit=1), QueueSpec("rl"))
    desk = ready(pool(queues=queues), p=3)
    (lease,) = desk.hold("c1")
    assert len(rejections(desk.sync("job1", want(), parent=lease, blocked=True))) == 1
    assert not rejections(desk.sync("job1", want(CAROL), parent=lease, blocked=True))


def test_what_is_promised_to_the_queue_is_no_circle() -> None:
    queues = (QueueSpec("default", limit=2), QueueSpec("rl"))
    desk = ready(pool(profile(max_lanes=2), queues=queues), p=2)
    (lease,) = desk.hold("c1")
    (other,) = desk.hold("c3", want(CAROL))
    for worker in [w for w in desk.pool.workers.values() if w.state == "starting"]:
        desk.do(ev.WorkerStarted(0.0, worker.id))
    desk.idle(other)
    desk.sync("c2", want(BOB), at=1.0)  # a handover for the same queue is under way
    assert desk.pool.queues["default"].reserved == 1
    assert not rejections(desk.sync("job1", want(), parent=lease, blocked=True))


def test_the_lane_of_a_draining_parent_is_not_room_to_come() -> None:
    desk, lease = one_lane(max_gpus=1)
    desk.do(ev.NodeDraining(0.5, "node-a0"))
    (rejection,) = rejections(desk.sync("job1", want(), parent=lease, blocked=True))
    assert rejection.client == "job1"


def test_the_childs_own_running_sibling_is_no_circle() -> None:
    desk = ready(pool(profile(max_lanes=2)), p=2)
    (lease,) = desk.hold("c1")
    (promote,) = desk.sync("job1", want(), parent=lease, blocked=True)
    desk.promoted(promote)
    assert not rejections(desk.sync("job1", want(), count=5, parent=lease, blocked=True))


def test_news_of_a_parent_under_an_old_lease_is_no_circle() -> None:
    desk, lease = one_lane()
    stale = lease._replace(fence=lease.fence._replace(number=1))
    assert not rejections(desk.sync("job1", want(), parent=stale, blocked=True))
