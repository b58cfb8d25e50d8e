"""Lanes that share a node: the oldest node fills first, so that the newest becomes empty."""

from __future__ import annotations

from firepool_ray.core import events as ev
from firepool_ray.core.actions import PromoteWorker, RemoveLane
from tests.core.desk import Desk, pool, profile, want


def standing(nodes: str, **settings: float | str) -> Desk:
    """One lane with a standby on each of these nodes, in this order."""
    desk = Desk(pool(profile(max_lanes=len(nodes), **settings)), start=False)
    for number, node in enumerate(nodes):
        lane = f"a{number}"
        desk.do(ev.LaneAdopted(desk.at, lane, "p", node))
        desk.do(ev.WorkerAdopted(desk.at, f"{lane}s0", lane, 0, "standby"))
    desk.do(ev.Reconciled(0.0))
    return desk


def nodes_of(desk: Desk, actions: list[object]) -> list[str]:
    return [
        desk.pool.workers[action.worker].lane.node
        for action in actions
        if isinstance(action, PromoteWorker)
    ]


def test_free_lanes_of_the_oldest_node_are_used_first() -> None:
    desk = standing("xyxyxy")
    assert nodes_of(desk, desk.sync("c1", want(), 4)) == ["x", "x", "x", "y"]


def test_unused_lanes_leave_the_newest_node_empty() -> None:
    desk = standing("xyxy", lane_keep_s=10.0, keep_alive="always")
    desk.hold("c1", want(), 2)
    actions = desk.wake(10.0) + desk.wake(11.0)
    for lane in [lane for lane in desk.pool.lanes.values() if lane.draining]:
        for worker in list(lane.workers()):
            actions += desk.do(ev.WorkerRetired(12.0, worker.id))
    gone = {desk.pool.lanes[a.lane].node for a in actions if isinstance(a, RemoveLane)}
    assert gone == {"y"}
    for lane in list(desk.pool.lanes.values()):
        if lane.state == "retiring":
            desk.do(ev.LaneRemoved(13.0, lane.id))
    assert set(desk.pool.nodes) == {"x"}


def test_a_node_without_lanes_is_forgotten_and_may_come_back_younger() -> None:
    desk = standing("xy")
    for action in desk.do(ev.NodeLost(1.0, "x", "gone")):
        if isinstance(action, RemoveLane):
            desk.do(ev.LaneRemoved(1.0, action.lane))
    assert list(desk.pool.nodes) == ["y"]
