"""GPUs go back to work outside the pool: exactly what is asked for, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from firepool_ray.core import events as ev
from firepool_ray.core import reclaim
from firepool_ray.core.actions import RemoveLane, RetireWorker, RevokeLease, StartWorker
from firepool_ray.core.model import LeaseId, QueueSpec
from tests.core.desk import CAROL, INF, Desk, pool, profile, ready, want

WHY = reclaim.WHY


def standing(
    lanes: int, *queues: QueueSpec, spec: dict[str, Any] | None = None, **settings: Any
) -> Desk:
    """So many lanes with a standby each; the pool may reserve no GPU more."""
    made = pool(
        profile(max_lanes=lanes, keep_alive="always", lane_keep_s=INF, **(spec or {})),
        queues=queues or (QueueSpec("default"), QueueSpec("rl"), QueueSpec("out")),
        **{"max_gpus": float(lanes), **settings},
    )
    return ready(made, p=lanes)


def waits(desk: Desk, pending: float, at: float, queue: str = "out", **said: Any) -> list[Any]:
    """So much work outside the pool waits in the queue."""
    return desk.do(ev.QueueSignal(at, queue, pending=pending, **said))


def started(desk: Desk) -> None:
    for worker in [w for w in desk.pool.workers.values() if w.state == "starting"]:
        desk.do(ev.WorkerStarted(desk.at, worker.id))


def held(desk: Desk, client: str, job_class: Any = None, count: int = 1) -> list[LeaseId]:
    leases = desk.hold(client, job_class, count)
    started(desk)
    return leases


def lane_of(desk: Desk, lease: LeaseId) -> str:
    return str(desk.pool.workers[lease.worker].lane.id)


def unused_go(lanes: list[str]) -> list[Any]:
    return [RetireWorker(f"{lane}s0", WHY) for lane in lanes]


def asked_to_go(decisions: list[Any]) -> list[str]:
    assert all(isinstance(a, RevokeLease) and a.mode == "if_idle" for a in decisions), decisions
    return [a.worker for a in decisions]


# ---------------------------------------------------------------- how much


@pytest.mark.parametrize(
    ("pending", "running", "quota", "units"),
    [
        (0.0, 2.0, None, 0.0),
        (3.0, 0.0, None, 3.0),
        (3.0, 2.0, None, 3.0),  # four GPUs and two outside: all that waits lacks
        (3.0, 0.0, 2.0, 2.0),  # beyond its quota it may wait
        (3.0, 2.0, 2.0, 0.0),
        (3.0, 1.0, 2.0, 1.0),
        (3.0, 0.0, 0.0, 0.0),
    ],
)
def test_what_is_asked_for(pending: float, running: float, quota: float, units: float) -> None:
    desk = standing(4)
    desk.pool.queues["out"].signal = ev.QueueSignal(
        0.0, "out", quota=quota, running=running, pending=pending
    )
    assert reclaim.asked(desk.pool, "gpu") == units


def test_what_is_free_is_not_asked_for() -> None:
    desk = standing(2, max_gpus=6.0)  # four GPUs nobody reserves
    waits(desk, 3.0, 0.0)
    assert reclaim.asked(desk.pool, "gpu") == 0.0
    waits(desk, 5.0, 1.0)
    desk2 = standing(2, max_gpus=6.0)
    waits(desk2, 3.0, 0.0, running=2.0)  # two of the four are taken outside
    assert len(desk2.pool.releasing) == 1


def test_without_max_gpus_the_lanes_that_fit_are_all_there_is() -> None:
    desk = standing(4, max_gpus=INF)
    assert waits(desk, 3.0, 0.0) == unused_go(["a3", "a2", "a1"])


def test_where_lanes_have_no_bound_there_is_room_for_everybody() -> None:
    desk = ready(pool(profile(max_lanes=1_000_000), queues=(QueueSpec("out"),)), p=4)
    assert waits(desk, 3.0, 0.0) == []


def test_work_outside_on_another_type_takes_nothing() -> None:
    desk = standing(4)
    assert waits(desk, 3.0, 0.0, gpu_type="h100") == []


def test_its_own_idle_workers_may_go_for_a_queues_work_outside() -> None:
    desk = standing(2, QueueSpec("default", quota=2.0))
    leases = held(desk, "c1", count=2)
    for lease in leases:
        desk.idle(lease)
    desk.pool.queues["default"].signal = ev.QueueSignal(0.0, "default", pending=2.0)
    assert reclaim.asked(desk.pool, "gpu") == 2.0
    desk.do(ev.WorkerBusy(1.0, leases[0].worker, leases[0].fence))
    assert reclaim.asked(desk.pool, "gpu") == 1.0


# ---------------------------------------------------------------- unused lanes


def test_exactly_what_is_asked_for_goes() -> None:
    desk = standing(4)
    assert waits(desk, 2.0, 1.0) == unused_go(["a3", "a2"])
    # What leaves counts already, and what is free afterwards as well.
    assert desk.wake(2.0) == []
    for lane in ("a3", "a2"):
        assert desk.do(ev.WorkerRetired(2.1, f"{lane}s0")) == [RemoveLane(lane)]
        desk.do(ev.LaneRemoved(2.2, lane))
    assert desk.wake(3.0) == []
    assert waits(desk, 2.0, 4.0) == []
    assert waits(desk, 3.0, 5.0) == unused_go(["a1"])


def test_lanes_go_whole() -> None:
    desk = standing(2, spec={"gpus": 2.0}, max_gpus=4.0)
    assert waits(desk, 1.0, 1.0) == unused_go(["a1"])
    assert desk.wake(2.0) == []


def test_min_lanes_are_kept() -> None:
    desk = standing(3, spec={"min_lanes": 2})
    assert waits(desk, 3.0, 1.0) == unused_go(["a2"])
    assert desk.wake(2.0) == []


def test_min_lanes_are_kept_where_workers_are_idle() -> None:
    desk = standing(3, spec={"min_lanes": 2}, rho=0.0, headroom=9.0)
    for lease in held(desk, "c1", count=3):
        desk.idle(lease)
    (victim,) = asked_to_go(waits(desk, 3.0, 1.0))
    assert desk.wake(2.0) == []
    desk.do(ev.RevokeAnswered(2.1, victim, desk.pool.workers[victim].fence, "gone"))
    lane = desk.pool.workers[victim].lane
    retired = desk.do(ev.WorkerRetired(2.2, victim))
    assert [a for a in retired if isinstance(a, RetireWorker)] and lane.draining
    assert desk.wake(5.0) == []


def test_a_profile_somebody_waits_for_keeps_its_lanes() -> None:
    """Its own demand comes first to its own lanes."""
    made = pool(
        profile("p", max_lanes=2, standbys=0, lane_keep_s=INF),
        queues=(QueueSpec("default"), QueueSpec("out")),
        max_gpus=2.0,
    )
    desk = ready(made, p=2)
    (start,) = desk.sync("c1", want())
    assert isinstance(start, StartWorker)
    assert waits(desk, 2.0, 1.0) == []
    assert desk.sync("c1", at=2.0) == [RemoveLane("a1")]


def test_it_is_looked_at_again_while_work_waits_and_no_longer() -> None:
    desk = standing(1, spec={"min_lanes": 1})
    assert waits(desk, 1.0, 1.0) == []
    assert desk.wake_at == 1.0 + reclaim.LOOK_EVERY_S
    desk.wake(2.0)
    assert desk.wake_at == 2.0 + reclaim.LOOK_EVERY_S
    waits(desk, 0.0, 2.5)
    desk.wake(3.0)
    assert desk.wake_at > 60.0


# ---------------------------------------------------------------- idle workers


def test_unused_lanes_go_before_idle_workers() -> None:
    desk = standing(3, rho=0.0, headroom=9.0)
    (lease,) = held(desk, "c1")
    desk.idle(lease)
    decisions = waits(desk, 3.0, 1.0)
    assert decisions[:2] == unused_go(["a2", "a1"])
    assert asked_to_go(decisions[2:]) == [lease.worker]
    assert decisions[2].min_idle_s == desk.pool.profiles["p"].promote_cost_s


def test_busy_workers_stay() -> None:
    desk = standing(2, rho=0.0, headroom=9.0)
    first, second = held(desk, "c1", count=2)
    desk.idle(first)
    assert asked_to_go(waits(desk, 2.0, 1.0)) == [first.worker]
    assert desk.wake(2.0) == [] and desk.wake(100.0) == []


def test_the_freshly_idle_stay_until_they_have_lingered() -> None:
    desk = standing(1, rho=0.0, headroom=9.0)
    (lease,) = held(desk, "c1")
    linger_s = desk.pool.profiles["p"].promote_cost_s
    desk.idle(lease, since=1.0)
    assert waits(desk, 1.0, 1.0 + linger_s / 2) == []
    assert asked_to_go(desk.wake(1.0 + linger_s / 2 + reclaim.LOOK_EVERY_S)) == [lease.worker]


def test_what_is_within_the_budget_stays() -> None:
    """Quota 4, a quarter of it may stay idle whoever waits outside."""
    desk = standing(4, QueueSpec("default", quota=4.0), QueueSpec("out"))
    for lease in held(desk, "c1", count=4):
        desk.idle(lease)
    assert len(asked_to_go(waits(desk, 4.0, 1.0))) == 3


def test_from_the_queue_furthest_over_its_budget() -> None:
    desk = standing(3, QueueSpec("default"), QueueSpec("rl"), QueueSpec("out"), rho=0.0)
    (hers,) = held(desk, "c3", want(CAROL))
    mine = held(desk, "c1", count=2)
    desk.idle(hers, since=0.0)
    for lease in mine:
        desk.idle(lease, since=1.0)
    assert asked_to_go(waits(desk, 1.0, 2.0, quota=1.0)) == [mine[0].worker]
    more = asked_to_go(waits(desk, 3.0, 3.0, quota=3.0))
    assert sorted(more) == sorted([hers.worker, mine[1].worker])


def test_by_weight() -> None:
    queues = (QueueSpec("default", weight=4.0), QueueSpec("rl"), QueueSpec("out"))
    desk = standing(3, *queues, rho=0.0, headroom=9.0)
    mine = held(desk, "c1", count=2)
    (hers,) = held(desk, "c3", want(CAROL))
    for lease in [*mine, hers]:
        desk.idle(lease)
    # Two beyond the budget by a weight of four are less than one by a weight of one.
    assert asked_to_go(waits(desk, 1.0, 1.0)) == [hers.worker]


def test_the_lane_follows_its_worker() -> None:
    desk = standing(1, rho=0.0, headroom=9.0)
    (lease,) = held(desk, "c1")
    desk.idle(lease)
    lane = lane_of(desk, lease)
    waits(desk, 1.0, 1.0)
    assert list(desk.pool.giving_back) == [lane]
    desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "gone"))
    standby = next(w for w in desk.pool.lanes[lane].workers() if w.id != lease.worker)
    decisions = desk.do(ev.WorkerRetired(1.2, lease.worker))
    assert decisions == [RetireWorker(standby.id, WHY)]
    assert not desk.pool.giving_back
    assert desk.do(ev.WorkerRetired(1.3, standby.id)) == [RemoveLane(lane)]


def test_a_victim_that_turns_out_busy_stays_and_so_does_its_lane() -> None:
    desk = standing(1, rho=0.0, headroom=9.0)
    (lease,) = held(desk, "c1")
    desk.idle(lease)
    waits(desk, 1.0, 1.0)
    assert desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "busy")) == []
    assert not desk.pool.giving_back
    assert desk.pool.workers[lease.worker].state == "bound"
    assert desk.wake(2.0) == []
    # When it is idle again it is asked again.
    desk.idle(lease, since=3.0)
    assert asked_to_go(desk.wake(4.0)) == [lease.worker]


def test_while_an_answer_is_late_the_others_go_all_the_same() -> None:
    """Two of three are idle and beyond the budget; the warden of the first is slow."""
    desk = standing(3, rho=0.0, headroom=9.0)
    leases = held(desk, "c1", count=3)
    desk.idle(leases[0], since=0.0)
    desk.idle(leases[1], since=0.5)
    assert asked_to_go(waits(desk, 1.0, 1.0)) == [leases[0].worker]
    assert asked_to_go(waits(desk, 2.0, 2.0)) == [leases[1].worker]
    assert desk.wake(3.0) == []
