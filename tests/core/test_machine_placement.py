"""Which worker serves which demand: sources, their order, and what is never done."""

from __future__ import annotations

from firepool_ray.core import events as ev
from firepool_ray.core.actions import (
    GrowLane,
    PromoteWorker,
    RegrantLease,
    RetireWorker,
    RevokeLease,
    SendGrant,
    SendRevoked,
    StartWorker,
)
from firepool_ray.core.model import Fence, LeaseId, QueueSpec
from tests.core.desk import BOB, CAROL, Desk, granted, pool, profile, ready, want


def test_a_ready_standby_is_promoted_and_granted_once_it_acknowledged() -> None:
    desk = ready()
    (promote,) = desk.sync("c1", want())
    fence = desk.fence()
    assert promote == PromoteWorker("a0s0", fence, want().key, "c1")
    decisions = desk.do(ev.WorkerPromoted(0.01, "a0s0", fence))
    assert decisions == [
        SendGrant("c1", granted(1, LeaseId("a0s0", fence), want(), "standby")),
        StartWorker("e1w5", "a0", 1),  # the next standby, beside the one that is active now
    ]


def test_a_grant_under_way_covers_demand_until_it_is_acknowledged() -> None:
    desk = ready(p=2)
    (promote,) = desk.sync("c1", want(), count=1)
    assert desk.sync("c1", want(), count=1) == []
    desk.promoted(promote)
    assert desk.sync("c1", want(), count=1, acked=(0, 0), held=[]) == []
    (second,) = desk.sync("c1", want(), count=1)  # acknowledged: this is one worker more
    assert isinstance(second, PromoteWorker)


def test_a_standby_is_promoted_only_if_the_queue_takes_longer_than_that() -> None:
    desk = ready()
    assert desk.sync("c1", want(), drain_s=0.01) == []
    (promote,) = desk.sync("c1", want(), drain_s=0.03)
    assert isinstance(promote, PromoteWorker)


def test_an_idle_lease_of_a_sibling_moves_before_a_standby_is_used() -> None:
    desk = ready(p=2)
    (lease,) = desk.hold("c1")
    desk.idle(lease)
    (move,) = desk.sync("c2", want())
    successor = desk.fence()
    assert move == RevokeLease(
        lease.worker, lease.fence, "if_idle", 0.0, successor=successor, client="c2"
    )
    assert desk.do(ev.RevokeAnswered(0.1, lease.worker, lease.fence, "moved")) == [
        SendRevoked("c1", lease),
        SendGrant("c2", granted(1, LeaseId(lease.worker, successor), want(), "warm")),
    ]


def test_a_move_that_finds_the_worker_busy_takes_a_standby_instead() -> None:
    desk = ready(p=2)
    (lease,) = desk.hold("c1")
    desk.idle(lease)
    desk.sync("c2", want())
    (promote,) = desk.do(ev.RevokeAnswered(0.1, lease.worker, lease.fence, "busy"))
    assert isinstance(promote, PromoteWorker) and promote.client == "c2"


def test_another_fingerprint_is_another_reuse_key() -> None:
    desk = ready(p=2)
    (lease,) = desk.hold("c1")
    desk.idle(lease)
    (promote,) = desk.sync("c2", want(deps="d"))
    assert isinstance(promote, PromoteWorker)


def handover_desk() -> tuple[Desk, LeaseId]:
    desk = ready(pool(profile(max_lanes=1)))
    (lease,) = desk.hold("c1")
    desk.do(ev.WorkerStarted(0.0, desk.pool.lanes["a0"].workers()[1].id))
    return desk, lease


def test_handover_revokes_retires_sweeps_and_then_promotes() -> None:
    desk, lease = handover_desk()
    desk.idle(lease, since=0.0)
    (revoke,) = desk.sync("c2", want(BOB), at=1.0)
    linger_s = desk.pool.profiles["p"].promote_cost_s
    assert revoke == RevokeLease(lease.worker, lease.fence, "if_idle", linger_s)
    assert desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "gone")) == [
        SendRevoked("c1", lease),
        RetireWorker(lease.worker, "handover"),
    ]
    (promote,) = desk.do(ev.WorkerRetired(1.2, lease.worker))
    assert isinstance(promote, PromoteWorker) and promote.client == "c2"
    grant, _ = desk.promoted(promote, at=1.3)
    assert isinstance(grant, SendGrant) and grant.grant.source == "handover"


def test_handover_waits_for_the_linger() -> None:
    desk, lease = handover_desk()
    desk.idle(lease, since=0.0)
    linger_s = desk.pool.profiles["p"].promote_cost_s
    assert desk.sync("c2", want(BOB), at=0.0) == []
    assert desk.wake_at == linger_s
    (revoke,) = desk.wake(linger_s)
    assert isinstance(revoke, RevokeLease)


def test_a_handover_that_finds_the_worker_busy_leaves_everything_as_it_was() -> None:
    desk, lease = handover_desk()
    desk.idle(lease, since=0.0)
    desk.sync("c2", want(BOB), at=1.0)
    assert desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "busy")) == []
    assert desk.pool.workers[lease.worker].state == "bound"
    assert desk.pool.profiles["p"].waiting["default"].first().unmet == 1


def test_a_victim_that_dies_meanwhile_hands_over_all_the_same() -> None:
    desk, lease = handover_desk()
    desk.idle(lease, since=0.0)
    desk.sync("c2", want(BOB), at=1.0)
    assert desk.do(ev.WorkerExited(1.1, lease.worker, "killed")) == [
        SendRevoked("c1", lease),
        RetireWorker(lease.worker, "killed"),
    ]
    assert desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "dead")) == []
    (promote,) = desk.do(ev.WorkerRetired(1.2, lease.worker))
    assert isinstance(promote, PromoteWorker) and promote.client == "c2"


def test_a_handover_nobody_wants_any_more_leaves_the_standby_to_others() -> None:
    desk, lease = handover_desk()
    desk.idle(lease, since=0.0)
    desk.sync("c2", want(BOB), at=1.0)
    desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "gone"))
    desk.sync("c2", at=1.1)
    assert desk.do(ev.WorkerRetired(1.2, lease.worker)) == []
    assert desk.pool.devices["a0"].active is None
    (promote,) = [a for a in desk.sync("c3", want(CAROL), at=1.3) if isinstance(a, PromoteWorker)]
    assert promote.client == "c3"


def test_eviction_takes_the_longest_idle_and_never_its_own_key() -> None:
    desk = ready(pool(profile(max_lanes=3)), p=3)
    leases = desk.hold("c1", count=1) + desk.hold("c2", want(BOB)) + desk.hold("c3", want(CAROL))
    for worker in [w for w in desk.pool.workers.values() if w.state == "starting"]:
        desk.do(ev.WorkerStarted(0.0, worker.id))
    desk.idle(leases[0], since=0.3)
    desk.idle(leases[1], since=0.1)
    desk.idle(leases[2], since=0.2)
    (move,) = desk.sync("c2b", want(BOB), at=1.0)  # its caller's own: moved, not evicted
    assert isinstance(move, RevokeLease) and move.worker == leases[1].worker and move.successor
    (revoke,) = desk.sync("c4", want(BOB, deps="d"), at=1.0)
    assert isinstance(revoke, RevokeLease) and revoke.worker == leases[2].worker


def test_the_queue_that_borrowed_most_is_evicted_first() -> None:
    queues = (QueueSpec("default", quota=2), QueueSpec("rl", quota=0))
    desk = ready(pool(profile(max_lanes=2), queues=queues), p=2)
    own, borrowed = desk.hold("c1") + desk.hold("c3", want(CAROL))
    for worker in [w for w in desk.pool.workers.values() if w.state == "starting"]:
        desk.do(ev.WorkerStarted(0.0, worker.id))
    desk.idle(own, since=0.0)
    desk.idle(borrowed, since=0.5)
    (revoke,) = desk.sync("c2", want(BOB), at=1.0)
    assert isinstance(revoke, RevokeLease) and revoke.worker == borrowed.worker


def test_a_frozen_clients_own_idle_lease_does_not_block_those_behind_it() -> None:
    """Its demand stands first and its lease is idle: it cannot take its own, but others can."""
    desk, lease = handover_desk()
    desk.idle(lease, since=0.0)
    assert desk.sync("c1", want(), at=1.0, age_s=1.0) == []
    (revoke,) = desk.sync("c2", want(BOB), at=1.0)
    assert isinstance(revoke, RevokeLease) and revoke.worker == lease.worker


def test_cold_start_in_a_free_slot_then_growth() -> None:
    desk = ready(pool(profile(standbys=0, max_lanes=2)))
    assert desk.sync("c1", want(), count=3) == [StartWorker("e1w3", "a0", 0), GrowLane("e1l4", "p")]
    (promote,) = desk.do(ev.WorkerStarted(1.0, "e1w3"))
    (grant,) = desk.promoted(promote)
    assert isinstance(grant, SendGrant) and grant.grant.source == "cold"
    assert desk.do(ev.LaneReady(2.0, "e1l4", "n1")) == [StartWorker("e1w6", "e1l4", 0)]
    (promote,) = desk.do(ev.WorkerStarted(3.0, "e1w6"))
    (grant,) = desk.promoted(promote)
    assert isinstance(grant, SendGrant) and grant.grant.source == "cold"


def test_cold_recycle_retires_an_idle_worker_first() -> None:
    desk = ready(pool(profile(standbys=0, max_lanes=1)))
    (start,) = desk.sync("c1", want())
    assert isinstance(start, StartWorker)
    (promote,) = desk.do(ev.WorkerStarted(0.0, start.worker))
    (grant,) = desk.promoted(promote)
    assert isinstance(grant, SendGrant)
    lease = grant.grant.lease
    desk.sync("c1")
    desk.idle(lease)
    (revoke,) = desk.sync("c2", want(BOB), at=1.0)
    assert isinstance(revoke, RevokeLease) and revoke.mode == "if_idle"
    assert desk.sync("c2", want(BOB), at=1.0) == []  # one is enough
    desk.do(ev.RevokeAnswered(1.1, lease.worker, lease.fence, "gone"))
    (start,) = desk.do(ev.WorkerRetired(1.2, lease.worker))
    assert isinstance(start, StartWorker)


def test_a_worker_is_started_only_if_the_queue_takes_longer_than_a_start() -> None:
    desk = ready(pool(profile(standbys=0, max_lanes=2, start_cost_s=1.0, grow_cost_s=5.0)))
    assert desk.sync("c1", want(), drain_s=0.9) == []
    (start,) = desk.sync("c1", want(), count=5, drain_s=1.1)
    assert isinstance(start, StartWorker)  # but no lane is grown for that
    (grow,) = desk.sync("c1", want(), count=5, drain_s=6.1)
    assert isinstance(grow, GrowLane)


def test_growth_stays_within_the_profile_and_counts_what_is_under_way() -> None:
    desk = Desk(pool(profile(max_lanes=3)))
    assert len(desk.sync("c1", want(), count=2)) == 2
    assert desk.sync("c1", want(), count=2) == []
    assert len(desk.sync("c1", want(), count=9)) == 1


def test_a_revoked_worker_serves_a_sibling_under_a_new_fence() -> None:
    desk = ready(pool(profile(max_lanes=1)))
    (lease,) = desk.hold("c1")
    desk.sync("c2", want())  # a sibling is known
    desk.sync("c2")
    (drain,) = desk.sync("c1", held=[])
    assert drain == RevokeLease(lease.worker, lease.fence, "drain")
    desk.do(ev.RevokeAnswered(0.1, lease.worker, lease.fence, "gone"))
    assert desk.pool.workers[lease.worker].state == "unleased"
    (regrant,) = desk.sync("c2", want())
    assert regrant == RegrantLease(lease.worker, lease.fence, desk.fence(), "c2")
    (grant,) = desk.do(ev.LeaseRegranted(0.2, lease.worker, regrant.fence))
    assert grant == SendGrant(
        "c2", granted(1, LeaseId(lease.worker, regrant.fence), want(), "warm")
    )


def test_news_of_idleness_that_overtakes_the_answer_is_not_lost() -> None:
    desk = ready(p=2)
    (lease,) = desk.hold("c1")
    desk.idle(lease)
    (move,) = desk.sync("c2", want())
    assert isinstance(move, RevokeLease) and move.successor is not None
    moved = LeaseId(lease.worker, move.successor)
    desk.idle(moved, since=0.05)
    desk.do(ev.RevokeAnswered(0.1, lease.worker, lease.fence, "moved"))
    assert desk.pool.workers[lease.worker].idle_since == 0.05


def test_news_with_an_old_fence_is_dropped() -> None:
    desk = ready()
    (lease,) = desk.hold("c1")
    old = Fence(0, 99)
    assert (
        desk.do(
            ev.WorkerIdle(0.1, lease.worker, old, 0.1),
            ev.WorkerBusy(0.1, lease.worker, old),
            ev.LeaseEnded(0.1, lease.worker, old),
            ev.RevokeAnswered(0.1, lease.worker, old, "gone"),
            ev.WorkerPromoted(0.1, lease.worker, old),
            ev.LeaseRegranted(0.1, lease.worker, old),
            ev.PromotionFailed(0.1, lease.worker, old, "late"),
            ev.WorkerRetired(0.1, "nobody"),
            ev.WorkerExited(0.1, "nobody", "late"),
            ev.ClientLost(0.1, "nobody", "late"),
        )
        == []
    )
    assert desk.pool.workers[lease.worker].state == "bound"
