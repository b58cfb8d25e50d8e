"""A controller that restarts: what it adopts, whom it listens to, and what nobody claims."""

from __future__ import annotations

import pytest

from firepool_ray.core import events as ev
from firepool_ray.core.actions import (
    GrowLane,
    PromoteWorker,
    RetireWorker,
    RevokeLease,
    SendRevoked,
)
from firepool_ray.core.model import Demand, Fence, LeaseId, ReuseKey
from firepool_ray.errors import IllegalTransition
from tests.core.desk import BOB, INF, Desk, pool, profile, want

OLD = Fence(1, 41)


def adopt(state: str, client: str = "c1", age_s: float = 0.0, epoch: int = 2) -> Desk:
    desk = Desk(pool(profile(max_lanes=1)), epoch=epoch, start=False)
    desk.do(ev.LaneAdopted(100.0, "e1l1", "p", "n1"))
    key: ReuseKey | None = want().key if state != "standby" else None
    fence = OLD if state != "standby" else None
    desk.adopted = desk.do(  # type: ignore[attr-defined]
        ev.WorkerAdopted(100.0, "e1w2", "e1l1", 0, state, key, fence, client, age_s)  # type: ignore[arg-type]
    )
    return desk


def test_a_standby_serves_again() -> None:
    desk = adopt("standby", client="")
    desk.do(ev.Reconciled(100.0))
    (promote,) = [a for a in desk.sync("c1", want()) if isinstance(a, PromoteWorker)]
    assert promote.worker == "e1w2" and promote.fence.epoch == 2


def test_a_lease_that_its_client_states_goes_on() -> None:
    desk = adopt("busy")
    desk.do(ev.Reconciled(100.0))
    assert desk.sync("c1", held=[LeaseId("e1w2", OLD)]) == []
    desk.wake(111.0)
    assert desk.pool.workers["e1w2"].state == "bound"
    assert desk.pool.queues["default"].held == 1


def test_a_statement_that_comes_before_the_adoption_is_kept_for_it() -> None:
    desk = Desk(pool(profile(max_lanes=1)), epoch=2, start=False)
    lease = LeaseId("e1w2", OLD)
    assert desk.sync("c1", want(deps="d"), held=[lease], at=99.0) == []
    desk.do(ev.LaneAdopted(100.0, "e1l1", "p", "n1"))
    desk.do(ev.WorkerAdopted(100.0, "e1w2", "e1l1", 0, "busy", want().key, OLD, "c1"))
    assert not any(isinstance(a, SendRevoked) for a in desk.do(ev.Reconciled(100.0)))
    assert desk.pool.workers["e1w2"].state == "bound"


def test_leases_nobody_states_are_revoked_after_ten_seconds() -> None:
    desk = adopt("busy")
    desk.do(ev.Reconciled(100.0))
    assert not any(isinstance(a, RevokeLease) for a in desk.wake(109.9))
    assert RevokeLease("e1w2", OLD, "stop") in desk.wake(110.0)


def test_a_lease_its_client_gave_up_meanwhile_is_drained() -> None:
    desk = adopt("idle")
    desk.do(ev.Reconciled(100.0))
    assert RevokeLease("e1w2", OLD, "drain") in desk.sync("c1", held=[])


def test_the_age_of_idleness_counts() -> None:
    desk = adopt("idle", age_s=59.0)
    desk.do(ev.Reconciled(100.0))
    desk.sync("c1", held=[LeaseId("e1w2", OLD)])
    assert RevokeLease("e1w2", OLD, "if_idle") in desk.wake(101.0)


def test_a_draining_lease_is_drained_on() -> None:
    desk = adopt("draining")
    assert desk.adopted == [RevokeLease("e1w2", OLD, "drain")]  # type: ignore[attr-defined]
    desk.do(ev.Reconciled(100.0))
    decisions = desk.do(ev.LeaseEnded(101.0, "e1w2", OLD))
    assert desk.pool.workers["e1w2"].state in ("unleased", "leaving"), decisions


def test_a_revoked_worker_leaves() -> None:
    desk = adopt("revoked")
    assert desk.adopted == [  # type: ignore[attr-defined]
        RetireWorker("e1w2", "revoked before the controller restarted")
    ]


def test_a_lease_without_a_usable_word_is_revoked_before_it_is_killed() -> None:
    desk = Desk(pool(), epoch=2, start=False)
    desk.do(ev.LaneAdopted(1.0, "e1l1", "p", "n1"))
    key = ReuseKey("p", BOB._replace(queue="abolished"))
    decisions = desk.do(ev.WorkerAdopted(1.0, "e1w2", "e1l1", 0, "busy", key, OLD, "c1"))
    assert decisions[0] == RevokeLease("e1w2", OLD, "stop")
    assert isinstance(decisions[1], RetireWorker)


def test_nothing_is_decided_before_everything_is_adopted() -> None:
    desk = Desk(pool(profile(min_lanes=1)), epoch=2, start=False)
    assert desk.sync("c1", want()) == []
    assert desk.do(ev.NodeDraining(0.0, "n1"), ev.IdleCapSet(0.0, 0.0)) == []
    assert [type(a) for a in desk.do(ev.Reconciled(1.0))] == [GrowLane]


def test_acknowledgements_of_an_older_epoch_say_nothing() -> None:
    desk = adopt("standby", client="")
    desk.do(ev.Reconciled(100.0))
    (promote,) = desk.sync("c1", want())
    desk.promoted(promote)
    desk.sync("c1", want(), held=[], acked=(1, 99))
    assert desk.pool.clients["c1"].unacked


@pytest.mark.parametrize(
    "event",
    [
        ev.LaneAdopted(100.0, "e1l1", "p", "n1"),
        ev.LaneAdopted(100.0, "e1l9", "unknown", "n1"),
        ev.WorkerAdopted(100.0, "e1w2", "e1l1", 1, "standby"),
        ev.WorkerAdopted(100.0, "e1w9", "e1l1", 0, "standby"),
        ev.WorkerAdopted(100.0, "e1w9", "e1l1", -1, "standby"),
        ev.WorkerAdopted(100.0, "e1w9", "e1l7", 0, "standby"),
    ],
)
def test_nothing_is_adopted_twice_or_into_nowhere(event: ev.Event) -> None:
    desk = adopt("standby", client="")
    with pytest.raises(IllegalTransition):
        desk.do(event)


def test_nothing_is_adopted_after_decisions_have_begun() -> None:
    desk = adopt("standby", client="")
    desk.do(ev.Reconciled(100.0))
    for event in (
        ev.LaneAdopted(101.0, "e1l5", "p", "n1"),
        ev.WorkerAdopted(101.0, "e1w6", "e1l1", 1, "standby"),
        ev.Reconciled(101.0),
    ):
        with pytest.raises(IllegalTransition):
            desk.do(event)


def test_a_demand_stated_early_counts_its_age_from_then() -> None:
    desk = Desk(pool(), epoch=2, start=False)
    early = ev.ClientSynced(0.0, "c1", 1, (), (0, 0), (Demand(want(), 1, 2.0, INF),))
    desk.do(early)
    desk.do(ev.Reconciled(1.0))
    assert desk.pool.clients["c1"].entries[want()].count == 1
