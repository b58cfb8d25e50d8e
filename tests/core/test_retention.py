"""Why warm workers went, how long lanes are kept, and what keep-alives are told."""

from __future__ import annotations

from math import isclose
from typing import Any

import pytest

from firepool_ray.core import events as ev
from firepool_ray.core import retention
from firepool_ray.core.actions import RemoveLane, RetireWorker, RevokeLease
from firepool_ray.core.adaptive import Adaptive
from firepool_ray.core.gaps import EDGES_S, bin_of
from firepool_ray.core.keepalive import Fixed, Idle, KeepAlive, Prices
from firepool_ray.core.machine import Machine
from firepool_ray.core.model import Caller, LeaseId, PoolSpec, QueueSpec
from tests.core.desk import ALICE, BOB, CAROL, INF, Desk, pool, profile, ready, want


class Told(KeepAlive):
    """A policy that holds for seven seconds and writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def hold_s(self, idle: Idle, prices: Prices) -> float:
        self.told.append(("hold", idle.caller.name, idle.since))
        return 7.0

    def worth(self, idle: Idle, at: float, prices: Prices) -> float:
        return idle.mark

    def reused(self, idle: Idle, at: float) -> None:
        self.told.append(("reused", idle.caller.name, idle.since, at))

    def released(self, idle: Idle, at: float) -> None:
        self.told.append(("released", idle.caller.name, idle.since, at))

    def started(self, caller: Caller, at: float) -> None:
        self.told.append(("started", caller.name, at))


def watched(lanes: int = 1, **settings: Any) -> tuple[Desk, Told]:
    """A desk whose profile has a ``Told``, with lanes and standbys."""
    spec = pool(profile(max_lanes=lanes, lane_keep_s=INF), **settings)
    policy = Told()
    desk = Desk(spec, start=False)
    desk.machine = Machine(spec, 1, {"p": policy})
    desk.lanes(lanes)
    desk.do(ev.Reconciled(0.0))
    return desk, policy


def all_started(desk: Desk) -> None:
    for worker in [w for w in desk.pool.workers.values() if w.state == "starting"]:
        desk.do(ev.WorkerStarted(desk.at, worker.id))


def answered(desk: Desk, lease: LeaseId, at: float, answer: Any = "gone") -> list[Any]:
    return desk.do(ev.RevokeAnswered(at, lease.worker, lease.fence, answer))


def held(desk: Desk, client: str = "c1", job_class: Any = None, count: int = 1) -> list[LeaseId]:
    leases = desk.hold(client, job_class, count)
    all_started(desk)
    return leases


# ---------------------------------------------------------------- what policies are told


def test_a_gap_that_ends_in_time() -> None:
    desk, policy = watched()
    (lease,) = held(desk)
    desk.idle(lease, since=1.0)
    desk.do(ev.WorkerBusy(4.0, lease.worker, lease.fence, since=3.5))
    assert policy.told == [
        ("started", "alice", 0.0),
        ("hold", "alice", 1.0),
        ("reused", "alice", 1.0, 3.5),
    ]


def test_a_gap_that_outlasts_the_hold() -> None:
    desk, policy = watched()
    (lease,) = held(desk)
    desk.idle(lease, since=1.0)
    assert desk.wake(8.0) == [RevokeLease(lease.worker, lease.fence, "if_idle")]
    answered(desk, lease, 8.1)
    desk.do(ev.WorkerRetired(8.2, lease.worker))
    (promote,) = desk.sync("c1", want(), at=30.0, age_s=2.0)
    desk.promoted(promote)
    # The caller came back when it began to wait.
    assert policy.told[2:] == [("released", "alice", 1.0, 8.1), ("started", "alice", 28.0)]


def test_a_revocation_that_was_answered_busy_is_a_gap_that_ended() -> None:
    desk, policy = watched()
    (lease,) = held(desk)
    desk.idle(lease, since=1.0)
    desk.wake(8.0)
    answered(desk, lease, 8.1, "busy")
    assert policy.told[2:] == [("reused", "alice", 1.0, 8.1)]


def test_work_that_was_not_noticed_ended_the_gap() -> None:
    """Idle since 1, then idle since 5: it worked in between."""
    desk, policy = watched()
    (lease,) = held(desk)
    desk.idle(lease, since=1.0)
    desk.idle(lease, since=5.0)
    assert policy.told[2:] == [("reused", "alice", 1.0, 5.0), ("hold", "alice", 5.0)]
    assert desk.pool.agenda.time_of(("ttl", lease.worker)) == 12.0


def test_the_same_news_twice_is_one_gap() -> None:
    desk, policy = watched()
    (lease,) = held(desk)
    desk.idle(lease, since=1.0)
    desk.idle(lease, since=1.0)
    assert policy.told[1:] == [("hold", "alice", 1.0)]


def test_a_sibling_that_takes_the_idle_worker_ends_the_gap() -> None:
    desk, policy = watched()
    (lease,) = held(desk)
    desk.idle(lease, since=1.0)
    (move,) = desk.sync("c2", want(), at=4.0, age_s=1.0)
    assert isinstance(move, RevokeLease) and move.successor is not None
    assert policy.told[2:] == [("reused", "alice", 1.0, 3.0)]


def test_a_worker_whose_process_ends_while_idle_was_released() -> None:
    desk, policy = watched()
    (lease,) = held(desk)
    desk.idle(lease, since=1.0)
    desk.do(ev.WorkerExited(3.0, lease.worker, "its process is gone"))
    assert policy.told[2:] == [("released", "alice", 1.0, 3.0)]


def test_one_that_goes_while_busy_was_no_gap() -> None:
    desk, policy = watched()
    (lease,) = held(desk)
    desk.do(ev.WorkerExited(3.0, lease.worker, "its process is gone"))
    assert policy.told == [("started", "alice", 0.0)]


# ---------------------------------------------------------------- prices


def test_prices_are_measured() -> None:
    spec = pool(profile(gpus=2.0, standbys=0, start_cost_s=1.0, grow_cost_s=1.0))
    desk = Desk(spec)
    p = desk.pool.profiles["p"]
    assert retention.prices(p)[:1] == (2.0,)
    assert retention.prices(p).gpus == 2.0
    (grow,) = desk.sync("c1", want(), at=1.0)
    (start,) = desk.do(ev.LaneReady(11.0, grow.lane, "n1"))
    for at in (20.0, 29.0, 38.0):  # it goes on waiting
        desk.sync("c1", want(), at=at, age_s=at - 1.0)
    (promote,) = desk.do(ev.WorkerStarted(41.0, start.worker))
    before = retention.prices(p)
    assert before.cold_s == 40.0  # measured, not guessed
    desk.promoted(promote, at=41.5)
    assert retention.prices(p).promote_s > before.promote_s
    # What a caller without a warm worker had to wait for: here a start from nothing.
    assert p.costs.restart.value > 2.0


def test_lanes_without_gpus_are_priced_as_one() -> None:
    desk = Desk(pool(profile(gpus=0.0)))
    assert retention.prices(desk.pool.profiles["p"]).gpus == 1.0


# ---------------------------------------------------------------- why workers went


def let_go(desk: Desk) -> list[tuple[float, str, Caller, float, str]]:
    return [(g.at, g.worker, g.key.caller, g.idle_s, g.why) for g in desk.pool.let_go]


def test_an_expired_worker_is_noted() -> None:
    desk = ready(pool(profile(keep_alive="fixed:7")))
    (lease,) = held(desk)
    desk.idle(lease, since=1.0)
    desk.wake(8.0)
    answered(desk, lease, 8.5)
    assert let_go(desk) == [(8.5, lease.worker, ALICE, 7.5, retention.WHY["retire"])]


def test_a_handed_over_worker_is_noted() -> None:
    desk = ready(pool(profile(max_lanes=1)))
    (lease,) = held(desk)
    desk.idle(lease, since=1.0)
    desk.sync("c2", want(BOB), at=3.0)
    answered(desk, lease, 3.5)
    assert let_go(desk) == [(3.5, lease.worker, ALICE, 2.5, retention.WHY["handover"])]


def test_an_exchanged_worker_is_noted() -> None:
    queues = (QueueSpec("default", limit=1), QueueSpec("rl"))
    desk = ready(pool(profile("p"), profile("q"), queues=queues), p=1, q=1)
    (lease,) = held(desk, job_class=want(profile="q"))
    desk.idle(lease, since=1.0)
    desk.sync("c2", want(BOB), at=3.0)
    answered(desk, lease, 3.5)
    assert let_go(desk) == [(3.5, lease.worker, ALICE, 2.5, retention.WHY["exchange"])]


def test_a_reclaimed_worker_is_noted() -> None:
    spec = pool(profile(max_lanes=1), max_gpus=1.0, rho=0.0, headroom=1.0)
    desk = ready(spec)
    (lease,) = held(desk)
    desk.idle(lease, since=1.0)
    desk.do(ev.QueueSignal(3.0, "rl", pending=1.0))
    answered(desk, lease, 3.5)
    assert let_go(desk) == [(3.5, lease.worker, ALICE, 2.5, retention.WHY["reclaim"])]


def test_other_reasons_are_noted_in_their_own_words() -> None:
    desk = ready()
    (lease,) = held(desk)
    desk.idle(lease, since=1.0)
    desk.do(ev.WorkerExited(3.0, lease.worker, "its process is gone"))
    assert let_go(desk) == [(3.0, lease.worker, ALICE, 2.0, "its process is gone")]


def test_busy_workers_and_standbys_that_go_are_no_warm_ones() -> None:
    desk = ready()
    (lease,) = held(desk)
    standby = next(w for w in desk.pool.workers.values() if w.state == "standby")
    desk.do(ev.WorkerExited(3.0, lease.worker, "gone"), ev.WorkerExited(3.0, standby.id, "gone"))
    assert let_go(desk) == []


def test_the_notes_are_bounded() -> None:
    desk = ready()
    for number in range(300):
        (lease,) = held(desk)
        desk.at += 1.0
        desk.idle(lease, since=desk.at)
        desk.do(ev.WorkerExited(desk.at, lease.worker, f"gone {number}"))
        desk.do(ev.WorkerRetired(desk.at, lease.worker))
        all_started(desk)
    assert len(desk.pool.let_go) == 256
    assert desk.pool.let_go[-1].why == "gone 299"


# ---------------------------------------------------------------- closing


def test_a_closing_caller_releases_at_once_whatever_its_keep_alive_says() -> None:
    for keep_alive in ("always", "fixed:1000", "adaptive"):
        desk = ready(pool(profile(keep_alive=keep_alive)), p=2)
        idle, busy = held(desk, count=2)
        desk.idle(idle, since=1.0)
        assert desk.do(ev.CallerClosing(2.0, ALICE)) == [
            RevokeLease(idle.worker, idle.fence, "if_idle")
        ]
        # What is busy goes when its job has ended.
        assert desk.idle(busy, since=3.0) == [RevokeLease(busy.worker, busy.fence, "if_idle")]


def test_closing_concerns_no_other_caller() -> None:
    desk = ready(pool(profile(keep_alive="always")), p=2)
    (mine,) = held(desk)
    (his,) = held(desk, "c2", want(BOB))
    desk.idle(mine, since=1.0)
    desk.idle(his, since=1.0)
    assert desk.do(ev.CallerClosing(2.0, Caller("default", "nobody"))) == []
    decisions = desk.do(ev.CallerClosing(2.0, ALICE))
    assert decisions == [RevokeLease(mine.worker, mine.fence, "if_idle")]


def test_whoever_comes_again_after_closing_is_held_again() -> None:
    desk = ready(pool(profile(keep_alive="always")))
    (lease,) = held(desk)
    desk.do(ev.CallerClosing(1.0, ALICE))
    desk.sync("c1", want(), at=2.0)
    desk.sync("c1", at=3.0)
    assert desk.idle(lease, since=4.0) == []


def test_what_is_released_at_closing_is_awaited_by_nobody() -> None:
    desk = ready(pool(profile(keep_alive="adaptive")))
    policy = desk.pool.profiles["p"].policy
    assert isinstance(policy, Adaptive)
    (lease,) = held(desk)
    desk.idle(lease, since=1.0)
    desk.do(ev.CallerClosing(2.0, ALICE))
    answered(desk, lease, 2.1)
    assert policy.habits[ALICE].awaited == [] and policy.gaps._pending == []


# ---------------------------------------------------------------- lanes


def lane_desk(**settings: Any) -> Desk:
    made = {"keep_alive": "adaptive", "standbys": 0, "lane_keep_s": None, "max_lanes": 1}
    spec = pool(profile(**{**made, "start_cost_s": 10.0, "grow_cost_s": 30.0, **settings}))
    return ready(spec)


def test_a_fixed_lane_keep_is_from_the_time_it_was_freed() -> None:
    desk = ready(pool(profile(lane_keep_s=30.0)))
    assert desk.wake_at == 30.0
    assert desk.wake(29.9) == []
    assert desk.wake(30.0) == [RetireWorker("a0s0", "unused")]


@pytest.mark.parametrize(("keep_alive", "keep_s"), [("never", 0.0), ("fixed:7", 7.0)])
def test_lanes_follow_a_fixed_keep_alive_where_nothing_is_said(
    keep_alive: str, keep_s: float
) -> None:
    desk = lane_desk(keep_alive=keep_alive)
    p = desk.pool.profiles["p"]
    assert retention.lane_keep_s(p, 0.0) == keep_s
    assert retention.lane_hold_s(p, 0.0) == 0.0  # an idle worker is held by its own


def test_lanes_of_always_are_kept_for_ever() -> None:
    desk = lane_desk(keep_alive="always")
    assert retention.lane_keep_s(desk.pool.profiles["p"], 0.0) == INF
    assert desk.wake(1e9) == []


def test_a_new_lane_is_kept_for_what_another_would_cost_beyond_a_start() -> None:
    # A lane takes 30 s and a worker 10; here a worker must be started in any case.
    desk = lane_desk()
    assert retention.lane_keep_s(desk.pool.profiles["p"], 0.0) == 30.0
    assert desk.wake_at == 30.0
    # With a standby in it a lane saves the worker's start as well, but for a promotion.
    p = lane_desk(standbys=1).pool.profiles["p"]
    assert isclose(retention.lane_keep_s(p, 0.0), 40.0 - p.promote_cost_s)


def test_a_lanes_hold_is_learned_from_its_gaps() -> None:
    p = lane_desk().pool.profiles["p"]
    for _ in range(40):
        p.lane_gaps.add(4.0)
    assert retention.lane_keep_s(p, 0.0) == EDGES_S[bin_of(4.0)]
    assert retention.lane_hold_s(p, 0.0) == EDGES_S[bin_of(4.0)]


def test_lanes_nobody_comes_back_to_are_not_kept() -> None:
    p = lane_desk().pool.profiles["p"]
    for _ in range(40):
        p.lane_gaps.add(500.0)
    assert retention.lane_keep_s(p, 0.0) == 0.0


def test_a_lane_that_went_and_would_have_been_of_use_teaches_its_gap() -> None:
    desk = lane_desk()
    p = desk.pool.profiles["p"]
    (start,) = desk.sync("c1", want(), at=1.0)
    (promote,) = desk.do(ev.WorkerStarted(11.0, start.worker))
    desk.promoted(promote)
    desk.sync("c1")
    desk.do(ev.ClientLost(20.0, "c1", "gone"))
    (lease,) = [LeaseId(w.id, w.fence) for w in desk.pool.workers.values()]
    answered(desk, lease, 20.0)
    desk.do(ev.WorkerRetired(20.0, lease.worker))
    assert desk.pool.lanes["a0"].rest_since == 20.0
    keep_s = retention.lane_keep_s(p, 20.0)
    assert desk.wake_at == 20.0 + keep_s
    assert desk.wake(20.0 + keep_s) == [RemoveLane("a0")]
    desk.do(ev.LaneRemoved(desk.at, "a0"))
    assert p.lanes_awaited == [20.0] and p.lane_gaps._pending == [20.0]
    before = p.lane_gaps.seen
    desk.sync("c2", want(BOB), at=120.0)
    assert p.lanes_awaited == [] and p.lane_gaps._pending == []
    assert p.lane_gaps.seen == before + 1 and p.lane_gaps.counts[bin_of(100.0)] == 1.0


def test_awaited_lanes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_LANES_AWAITED", 2)
    desk = lane_desk()
    lane = desk.pool.lanes["a0"]
    for since in (1.0, 2.0, 3.0):
        lane.rest_since = since
        retention.lane_gone(lane)
    p = desk.pool.profiles["p"]
    assert p.lanes_awaited == [2.0, 3.0] and p.lane_gaps._pending == [2.0, 3.0]


def test_an_idle_worker_is_held_for_its_caller_or_for_its_lane_whichever_is_longer() -> None:
    desk = lane_desk()
    p = desk.pool.profiles["p"]
    for _ in range(40):
        p.lane_gaps.add(25.0)
    (start,) = desk.sync("c1", want())
    (promote,) = desk.do(ev.WorkerStarted(10.0, start.worker))
    desk.promoted(promote)
    desk.sync("c1")
    worker = desk.pool.workers[start.worker]
    desk.idle(LeaseId(worker.id, worker.fence), since=100.0)
    own_s = worker.hold_s
    lane_s = EDGES_S[bin_of(25.0)]
    assert desk.wake_at == pytest.approx(100.0 + max(own_s, lane_s))
    p.policy.hold_s = lambda idle, prices: 99.0  # type: ignore[method-assign]
    desk.do(ev.WorkerBusy(101.0, worker.id, worker.fence))
    desk.idle(LeaseId(worker.id, worker.fence), since=200.0)
    assert desk.wake_at == 299.0


# ---------------------------------------------------------------- policies of profiles


def test_each_profile_has_its_own_policy() -> None:
    spec = PoolSpec(
        (
            profile("a", keep_alive="adaptive", cold_price=3.0),
            profile("b", keep_alive="fixed:9"),
            profile("c", keep_alive="always"),
        ),
        (QueueSpec("default"),),
    )
    profiles = Machine(spec, 1).pool.profiles
    assert isinstance(profiles["a"].policy, Adaptive) and profiles["a"].policy.price == 3.0
    assert isinstance(profiles["b"].policy, Fixed) and profiles["b"].policy.ttl_s == 9.0
    assert isinstance(profiles["c"].policy, Fixed) and profiles["c"].policy.ttl_s == INF
    assert [p.warms for p in profiles.values()] == [True, False, False]


def test_the_least_worth_goes_first() -> None:
    """One caller has always been back within a second, the other within a minute."""
    soon, late = Caller("default", "soon"), Caller("default", "late")
    desk = ready(pool(profile(keep_alive="adaptive", cold_price=100.0)), p=2)
    policy = desk.pool.profiles["p"].policy
    for _ in range(50):
        policy.reused(Idle(soon, 0.0), 1.0)
        policy.reused(Idle(late, 0.0), 60.0)
    (first,) = held(desk, "c1", want(soon))
    (second,) = held(desk, "c2", want(late))
    desk.idle(first, since=1.0)  # the longest idle
    desk.idle(second, since=1.2)
    (revoke,) = desk.sync("c3", want(CAROL), at=1.8)
    assert isinstance(revoke, RevokeLease) and revoke.worker == second.worker
    # Past its usual gap the first is no longer likely to come.
    (revoke,) = desk.sync("c3", want(CAROL), count=2, at=9.0, age_s=7.2)
    assert isinstance(revoke, RevokeLease) and revoke.worker == first.worker


def test_an_idle_worker_on_a_lane_that_stays_is_kept_and_seldom_looked_at() -> None:
    """A thousand of them, each looked at every second, once kept the machine busy for nothing."""
    spec = profile(keep_alive="adaptive", lane_keep_s=None, min_lanes=1, max_lanes=1)
    desk = ready(pool(spec))
    (lease,) = desk.hold("c1")
    for worker in [w for w in desk.pool.workers.values() if w.state == "starting"]:
        desk.do(ev.WorkerStarted(desk.at, worker.id))
    desk.idle(lease)
    looks = 0
    while desk.wake_at < 100_000.0:
        looks += 1
        when, desk.wake_at = desk.wake_at, INF
        assert desk.wake(when) == []
    assert desk.pool.workers[lease.worker].idle_since is not None
    assert looks < 30
