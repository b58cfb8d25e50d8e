"""Budgets: every term by hand, what they protect, and signals from other systems.

Accounts are set by hand where only the arithmetic matters; decisions go through a whole machine.
"""

from __future__ import annotations

from dataclasses import replace
from math import isclose
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firepool_ray.core import budget
from firepool_ray.core import events as ev
from firepool_ray.core.actions import (
    GrowLane,
    PromoteWorker,
    RemoveLane,
    RetireWorker,
    RevokeLease,
    StartWorker,
)
from firepool_ray.core.budget import Terms, share_by_weight
from firepool_ray.core.model import Caller, LeaseId, PoolSpec, QueueSpec
from firepool_ray.core.rhythm import Rhythm
from firepool_ray.errors import IllegalTransition
from tests.core.desk import ALICE, BOB, CAROL, INF, Desk, pool, profile, ready, want

DAVE = Caller("x", "dave")


def account(
    desk: Desk,
    queue: str,
    busy: float = 0.0,
    idle: float = 0.0,
    average: float = 0.0,
    gpu_type: str = "gpu",
) -> None:
    """The queue holds so much, and its callers' gaps hold so much idle on average."""
    books = desk.pool.queues[queue]
    books.held_of[gpu_type] = busy + idle
    books.idle_of[gpu_type] = idle
    books.standing_of(gpu_type).add(0.0, average)


def terms(desk: Desk, queue: str = "default", gpu_type: str = "gpu") -> Terms:
    return budget.compute(desk.pool, desk.at)[queue, gpu_type]


def cluster(lanes: int, *queues: QueueSpec, **settings: Any) -> Desk:
    return Desk(pool(profile(max_lanes=lanes), queues=queues or None, **settings))


# ---------------------------------------------------------------- the formula, by hand


def test_every_term_by_hand() -> None:
    desk = cluster(20, QueueSpec("a", quota=8.0), QueueSpec("b", quota=8.0, weight=3.0))
    account(desk, "a", busy=3.0, idle=2.0, average=3.0)
    account(desk, "b", busy=4.0, average=6.0)
    desk.sync("c", want(Caller("b", "x")), count=2)
    # R 3 and 4, D 0 and 2; in = min(3, 2, 8 - 3) = 2 and min(6, 2, 8 - 4 - 2) = 2;
    # spare = 20 - (3 + 0 + 2) - (4 + 2 + 2) = 7; a wants 1 more and b wants 4.
    assert terms(desk, "a") == Terms("a", "gpu", 3, 0, 8, INF, 1, 20, 3, 2, 1, 3, 2)
    assert terms(desk, "b") == Terms("b", "gpu", 4, 2, 8, INF, 3, 20, 6, 2, 4, 6, 0)


def test_scarce_spare_goes_by_weight() -> None:
    desk = cluster(
        20, QueueSpec("a", quota=8.0), QueueSpec("b", quota=8.0, weight=3.0), headroom=9.0
    )
    account(desk, "a", busy=3.0, average=6.0)
    account(desk, "b", busy=3.0, average=9.0)
    # spare = 20 - 5 - 5 - 9 = 1: a quarter and three quarters of it.
    assert terms(desk, "a").over == 0.25 and terms(desk, "a").budget == 2.25
    assert terms(desk, "b").over == 0.75 and terms(desk, "b").budget == 2.75


def test_headroom_is_nobodys_beyond_its_quota() -> None:
    for headroom, over in ((0.0, 6.0), (2.0, 4.0), (6.0, 0.0), (100.0, 0.0)):
        desk = cluster(8, QueueSpec("a", quota=8.0), headroom=headroom)
        account(desk, "a", average=8.0)
        assert (terms(desk, "a").within, terms(desk, "a").over) == (2.0, over)


def test_what_is_within_the_quota_is_a_part_of_it() -> None:
    for rho, within in ((0.0, 0.0), (0.25, 2.0), (0.5, 4.0), (1.0, 6.0)):
        desk = cluster(8, QueueSpec("a", quota=8.0), rho=rho, headroom=8.0)
        account(desk, "a", busy=2.0, average=7.0)
        assert terms(desk, "a").within == within  # never more than quota - R


def test_without_need_there_is_no_budget() -> None:
    desk = cluster(8, QueueSpec("a"))
    account(desk, "a", busy=3.0)
    assert (terms(desk, "a").need, terms(desk, "a").budget) == (0.0, 0.0)


def test_the_need_is_the_average_or_what_is_idle_now() -> None:
    desk = cluster(8, QueueSpec("a"))
    account(desk, "a", idle=3.0, average=1.2)
    assert terms(desk, "a").need == 3.0
    account(desk, "a", idle=1.0, average=1.1)  # the amounts add up: 2.3 in a second
    assert terms(desk, "a").need == 3.0  # in whole workers


def test_a_need_is_in_whole_workers_of_the_smallest_profile() -> None:
    for gpus, need in ((0.5, 2.5), (1.0, 3.0), (2.0, 4.0)):
        desk = Desk(pool(profile(gpus=gpus, max_lanes=9), profile("big", gpus=2.0, max_lanes=9)))
        account(desk, "default", average=2.1)
        assert terms(desk).need == need


@pytest.mark.parametrize(("limit", "demand", "allowed"), [(INF, 5, 3), (9, 4, 0), (6, 1, 0)])
def test_demand_and_budget_end_at_the_limit(limit: float, demand: float, allowed: float) -> None:
    desk = cluster(20, QueueSpec("a", limit=limit))
    account(desk, "a", busy=5.0, average=3.0)
    desk.sync("c", want(Caller("a", "x")), count=5)
    found = terms(desk, "a")
    assert (found.demand, found.budget) == (demand, allowed)


def test_a_limit_leaves_part_of_the_need() -> None:
    desk = cluster(20, QueueSpec("a", limit=7.0))
    account(desk, "a", busy=5.0, average=3.0)
    assert terms(desk, "a").budget == 2.0


def test_a_queue_with_quota_0_lives_on_what_is_spare() -> None:
    desk = cluster(8, QueueSpec("a", quota=0.0), QueueSpec("b", quota=8.0))
    account(desk, "a", average=3.0)
    assert (terms(desk, "a").within, terms(desk, "a").budget) == (0.0, 3.0)
    account(desk, "b", busy=7.0)
    assert (terms(desk, "a").within, terms(desk, "a").budget) == (0.0, 1.0)
    account(desk, "b", busy=8.0)
    assert terms(desk, "a").budget == 0.0


def test_a_quota_beyond_the_cluster_is_the_cluster() -> None:
    desk = cluster(8, QueueSpec("a", quota=1000.0), QueueSpec("b"), headroom=8.0)
    account(desk, "a", average=8.0)
    account(desk, "b", average=8.0)
    for queue in "ab":
        assert terms(desk, queue).quota == 8.0
        assert terms(desk, queue).budget == 2.0  # a quarter of what there is


def test_the_pools_own_cap_is_less_than_all_lanes() -> None:
    desk = cluster(20, max_gpus=6.0)
    assert terms(desk).cap == 6.0 and terms(desk).quota == 6.0


# ---------------------------------------------------------------- where a careless formula fails


def test_56_jobs_behind_8_workers_in_numbers() -> None:
    """Nothing is kept idle while there is work; at the tail all that is idle may stay."""
    desk = cluster(8, QueueSpec("a", quota=8.0), QueueSpec("b"))
    account(desk, "a", busy=8.0, average=1.0)
    desk.sync("c", want(Caller("a", "x")), count=48)
    assert (terms(desk, "a").running, terms(desk, "a").demand) == (8.0, 48.0)
    assert terms(desk, "a").budget == 0.0
    desk.sync("c")
    for idle in range(9):
        account(desk, "a", busy=8.0 - idle, idle=float(idle))
        assert terms(desk, "a").excess == 0.0


def test_a_blocked_queues_demand_takes_nothing_from_others() -> None:
    """50 jobs of a queue that may hold only two, while two lanes are free."""
    desk = kept(8, QueueSpec("default", limit=2.0), QueueSpec("rl", quota=4.0))
    desk.hold("c1", count=2)
    for lease in desk.hold("c3", want(CAROL), count=4):
        desk.idle(lease)
    assert terms(desk, "rl").budget == 4.0
    desk.sync("c1", want(), count=50, at=1.0)
    assert (terms(desk).running, terms(desk).demand) == (2.0, 0.0)
    assert terms(desk, "rl").budget == 4.0


def test_profiles_that_share_a_gpu_type_share_one_budget() -> None:
    desk = Desk(
        pool(profile("p", max_lanes=4), profile("q", gpus=2.0, max_lanes=2), headroom=8.0),
    )
    account(desk, "default", idle=8.0)
    found = budget.compute(desk.pool, 0.0)
    assert [key for key in found if key[0] == "default"] == [("default", "gpu")]
    assert (terms(desk).cap, terms(desk).quota, terms(desk).budget) == (8.0, 8.0, 2.0)


def test_each_gpu_type_has_its_own_budget() -> None:
    desk = Desk(
        pool(profile("p", max_lanes=4), profile("q", gpu_type="h100", max_lanes=12), headroom=16.0)
    )
    account(desk, "default", busy=2.0, idle=4.0)
    account(desk, "default", idle=4.0, gpu_type="h100")
    assert (terms(desk).cap, terms(desk).running, terms(desk).budget) == (4.0, 2.0, 1.0)
    there = terms(desk, gpu_type="h100")
    assert (there.cap, there.running, there.budget) == (12.0, 0.0, 3.0)


def test_lanes_without_gpus_are_a_type_of_their_own() -> None:
    desk = Desk(
        pool(profile("p", max_lanes=4), profile("cpu", gpus=0.0, max_lanes=40), max_gpus=2.0)
    )
    account(desk, "default", busy=3.0, idle=1.0, gpu_type="")
    there = terms(desk, gpu_type="")
    # One unit a lane; the pool's GPUs bound nothing here.
    assert (there.cap, there.quota, there.running) == (40.0, 40.0, 3.0)
    assert (there.need, there.budget) == (1.0, 1.0)
    assert (terms(desk).cap, terms(desk).running) == (2.0, 0.0)


def test_demand_counts_in_the_type_and_units_of_its_profile() -> None:
    desk = Desk(pool(profile("p"), profile("q", gpus=2.0), profile("cpu", gpus=0.0)))
    desk.sync("c", want(profile="q"), count=3)
    desk.sync("d", want(profile="cpu"), count=5)
    assert terms(desk).demand == 6.0
    assert terms(desk, gpu_type="").demand == 5.0


def test_the_need_of_a_burst_that_is_due_adds_to_the_average() -> None:
    desk = cluster(8)
    account(desk, "default", average=1.0)
    rhythm = Rhythm("r", want().key, 1.0)
    rhythm.sizes = [3, 3, 3]
    desk.pool.profiles["p"].warming["r"] = rhythm
    assert terms(desk).need == 4.0
    assert terms(desk, "rl").need == 0.0


# ---------------------------------------------------------------- sharing by weight


@pytest.mark.parametrize(
    ("total", "wants", "shares"),
    [
        (6.0, [], []),
        (0.0, [(1.0, 5.0)], [0.0]),
        (6.0, [(1.0, 9.0), (2.0, 9.0)], [2.0, 4.0]),
        (6.0, [(1.0, 1.0), (1.0, 9.0)], [1.0, 5.0]),  # what one does not want
        (6.0, [(1.0, 9.0), (1.0, 1.0), (2.0, 9.0)], [5 / 3, 1.0, 10 / 3]),
        (60.0, [(1.0, 9.0), (5.0, 2.0)], [9.0, 2.0]),  # never more than wanted
        (6.0, [(1.0, 3.0), (1.0, 3.0)], [3.0, 3.0]),
        (1.0, [(1.0, 1.0), (1e-20, 1.0)], [1.0, 0.0]),
        (2.0, [(1.0, 1.0), (1e-20, 1.0)], [1.0, 1.0]),
    ],
)
def test_shares_by_hand(
    total: float, wants: list[tuple[float, float]], shares: list[float]
) -> None:
    assert list(share_by_weight(total, wants)) == pytest.approx(shares)


def wanted(weights: st.SearchStrategy[float]) -> st.SearchStrategy[list[tuple[float, float]]]:
    return st.lists(st.tuples(weights, st.floats(0.0, 1e4)), max_size=8)


@given(st.floats(0.0, 1e4), wanted(st.floats(1e-18, 1e18)))
def test_shares_leave_nothing(total: float, wants: list[tuple[float, float]]) -> None:
    shares = list(share_by_weight(total, wants))
    assert len(shares) == len(wants)
    assert all(0.0 <= s <= w for s, (_, w) in zip(shares, wants, strict=True))
    # Work-conserving: all of it goes, or everybody has what it wants.
    everything = sum(w for _, w in wants)
    assert sum(shares) <= total * (1 + 1e-9)
    assert isclose(sum(shares), min(total, everything), rel_tol=1e-6, abs_tol=1e-6)


@given(st.floats(0.0, 1e4), wanted(st.floats(0.1, 10.0)))
def test_whoever_wants_more_has_no_less_by_weight_than_others(
    total: float, wants: list[tuple[float, float]]
) -> None:
    shares = list(share_by_weight(total, wants))
    rows = [(s / weight, w - s) for s, (weight, w) in zip(shares, wants, strict=True)]
    level = max((by_weight for by_weight, _ in rows), default=0.0)
    assert all(more <= 1e-6 or by_weight >= level - 1e-6 for by_weight, more in rows)


# ---------------------------------------------------------------- through the machine


def all_started(desk: Desk) -> None:
    for worker in [w for w in desk.pool.workers.values() if w.state == "starting"]:
        desk.do(ev.WorkerStarted(desk.at, worker.id))


def revoked(decisions: list[Any]) -> list[str]:
    return [a.worker for a in decisions if isinstance(a, RevokeLease)]


def kept(lanes: int, *queues: QueueSpec, **settings: Any) -> Desk:
    """Lanes whose workers nobody retires, whatever they are idle for."""
    spec = pool(profile(max_lanes=lanes, keep_alive="always"), queues=queues, **settings)
    return ready(spec, p=lanes)


def test_the_accounts_follow_the_workers() -> None:
    desk = kept(4, QueueSpec("default", quota=4.0))
    first, second = desk.hold("c1", count=2)
    assert (terms(desk).running, terms(desk).idle) == (2.0, 0.0)
    desk.idle(first)
    assert (terms(desk).running, terms(desk).idle, terms(desk).need) == (1.0, 1.0, 1.0)
    desk.do(ev.WorkerBusy(1.0, first.worker, first.fence))
    assert (terms(desk).running, terms(desk).idle) == (2.0, 0.0)
    desk.do(ev.WorkerExited(2.0, second.worker, "gone"))
    desk.do(ev.WorkerRetired(2.0, second.worker))
    assert (terms(desk).running, terms(desk).idle) == (1.0, 0.0)


def test_a_queue_with_work_does_not_lose_its_workers_between_jobs() -> None:
    """56 jobs behind 8 workers: each is idle for a moment now and then while others wait."""
    desk = kept(8, QueueSpec("default", quota=8.0), QueueSpec("rl", quota=8.0))
    leases = desk.hold("c1", count=8)
    all_started(desk)
    desk.sync("c1", want(), count=48, drain_s=6.0)
    decisions = desk.sync("c3", want(CAROL), at=1.0)
    linger_s = desk.pool.profiles["p"].promote_cost_s
    at = 1.0
    for _ in range(6):
        for lease in leases:
            at += 0.01
            decisions += desk.idle(lease, since=at)
            decisions += desk.wake(at + 0.9 * linger_s)
            at += 0.9 * linger_s
            decisions += desk.do(ev.WorkerBusy(at, lease.worker, lease.fence))
    assert at < 1.0 + desk.pool.spec.window_s
    assert revoked(decisions) == []
    # One that stays idle for the linger goes to the queue that waits.
    desk.idle(leases[0], since=at)
    assert revoked(desk.wake(at + linger_s)) == [leases[0].worker]


def test_a_queue_keeps_its_workers_at_the_tail_while_nobody_waits() -> None:
    desk = kept(8, QueueSpec("default", quota=8.0), QueueSpec("rl", quota=8.0))
    leases = desk.hold("c1", count=8)
    all_started(desk)
    for at, lease in enumerate(leases, start=1):
        assert revoked(desk.idle(lease, since=float(at))) == []
    assert revoked(desk.wake(1000.0)) == []


def test_nobody_waiting_means_nothing_is_evicted() -> None:
    """Far beyond any budget, and borrowed on top: idle capacity costs nobody anything."""
    desk = kept(4, QueueSpec("default", quota=0.0), QueueSpec("rl"), headroom=4.0)
    leases = desk.hold("c1", count=4)
    all_started(desk)
    for lease in leases:
        desk.idle(lease, since=1.0)
    assert terms(desk).budget == 0.0 and terms(desk).excess == 4.0
    for at in (2.0, 100.0, 10_000.0):
        assert revoked(desk.wake(at)) == []


def borrowed_desk() -> tuple[Desk, list[LeaseId], LeaseId]:
    """Alice holds two of which one is borrowed, Carol one within her quota, idle for longer."""
    queues = (QueueSpec("default", quota=1.0), QueueSpec("rl", quota=2.0), QueueSpec("x"))
    desk = kept(3, *queues)
    (hers,) = desk.hold("c3", want(CAROL))
    mine = desk.hold("c1", count=2)
    all_started(desk)
    desk.idle(hers, since=1.0)
    desk.idle(mine[0], since=3.0)
    desk.idle(mine[1], since=2.0)
    return desk, mine, hers


def test_borrowed_workers_go_first_the_moment_entitled_demand_waits() -> None:
    desk, mine, hers = borrowed_desk()
    decisions = desk.sync("c5", want(DAVE), at=4.0)
    assert revoked(decisions) == [mine[1].worker]  # not the longest idle of all
    (one,) = decisions
    assert one.min_idle_s == desk.pool.profiles["p"].promote_cost_s


def test_borrowed_workers_go_only_as_far_as_they_are_wanted() -> None:
    desk, mine, hers = borrowed_desk()
    assert len(revoked(desk.sync("c5", want(DAVE), count=1, at=4.0))) == 1
    assert revoked(desk.wake(4.5)) == []
    assert len(revoked(desk.sync("c5", want(DAVE), count=2, at=5.0))) == 1


def test_from_the_queue_furthest_over_its_share_by_weight() -> None:
    queues = (QueueSpec("default", quota=1.0, weight=4.0), QueueSpec("rl", quota=1.0))
    desk = kept(5, *queues, QueueSpec("x"))
    mine = desk.hold("c1", count=3)  # two beyond the quota, half of one by weight
    hers = desk.hold("c3", want(CAROL), count=2)  # one beyond
    all_started(desk)
    for lease in mine:
        desk.idle(lease, since=1.0)
    for lease in hers:
        desk.idle(lease, since=2.0)
    assert revoked(desk.sync("c5", want(DAVE), at=4.0))[0] in {lease.worker for lease in hers}


# ---------------------------------------------------------------- borrowers and others' budgets


def lender(**settings: Any) -> tuple[Desk, LeaseId]:
    """Carol's one worker is idle; ``default`` has no quota, so Alice can only borrow."""
    queues = (QueueSpec("default", quota=0.0), QueueSpec("rl", quota=4.0))
    desk = kept(1, *queues, **settings)
    (lease,) = desk.hold("c3", want(CAROL))
    all_started(desk)
    desk.idle(lease)
    return desk, lease


def test_a_borrower_takes_nothing_within_anothers_budget_before_the_window() -> None:
    desk, lease = lender(rho=1.0)
    assert terms(desk, "rl").within == 1.0
    for second in range(5):
        at = 1.0 + second
        assert desk.sync("c1", want(), at=at, age_s=float(second)) == []
    assert desk.wake(5.99) == []
    assert revoked(desk.wake(6.0)) == [lease.worker]


def test_what_is_beyond_anothers_budget_is_anybodys() -> None:
    desk, lease = lender(headroom=1.0, rho=0.0)
    assert terms(desk, "rl").budget == 0.0
    assert revoked(desk.sync("c1", want(), at=1.0)) == [lease.worker]


def test_a_borrower_takes_as_much_as_is_beyond_the_budget() -> None:
    """Four GPUs: two busy elsewhere, two of Carol's idle, of which one is hers to keep."""
    queues = (QueueSpec("default", quota=0.0), QueueSpec("rl", quota=4.0), QueueSpec("x"))
    desk = kept(4, *queues)
    desk.hold("c5", want(DAVE), count=2)
    leases = desk.hold("c3", want(CAROL), count=2)
    all_started(desk)
    for lease in leases:
        desk.idle(lease)
    assert revoked(desk.sync("c1", want(), count=2, at=1.0)) == [leases[0].worker]
    found = budget.terms(desk.pool, "rl", "gpu", 1.0)
    assert (found.within, found.over, found.budget) == (1.0, 0.0, 1.0)
    for second in range(1, 5):
        at = 1.0 + second
        assert revoked(desk.sync("c1", want(), count=2, at=at, age_s=float(second))) == []
    assert revoked(desk.wake(6.0)) == [leases[1].worker]


def test_entitled_demand_takes_what_is_within_anothers_budget() -> None:
    queues = (QueueSpec("default", quota=1.0), QueueSpec("rl", quota=4.0))
    desk = kept(1, *queues)
    (lease,) = desk.hold("c3", want(CAROL))
    all_started(desk)
    desk.idle(lease)
    assert terms(desk, "rl").excess == 0.0
    assert revoked(desk.sync("c1", want(), at=1.0)) == [lease.worker]


def test_a_borrower_may_take_its_own_queues_workers() -> None:
    desk = kept(1, QueueSpec("default", quota=0.0))
    (lease,) = desk.hold("c1")
    all_started(desk)
    desk.idle(lease)
    assert terms(desk).excess == 0.0
    assert revoked(desk.sync("c2", want(BOB), at=1.0)) == [lease.worker]


def test_idle_capacity_may_be_borrowed_while_nobody_entitled_waits() -> None:
    desk = kept(3, QueueSpec("default", quota=0.0), QueueSpec("rl", quota=3.0))
    decisions = desk.sync("c1", want(), count=3)
    assert len([a for a in decisions if isinstance(a, PromoteWorker)]) == 3


# ---------------------------------------------------------------- when they are computed


def test_budgets_are_computed_at_most_once_a_moment() -> None:
    desk = cluster(8, QueueSpec("a"))
    account(desk, "a", busy=1.0)
    assert budget.terms(desk.pool, "a", "gpu", 1.0).running == 1.0
    account(desk, "a", busy=2.0)
    assert budget.terms(desk.pool, "a", "gpu", 1.0 + budget.FRESH_S).running == 1.0
    assert budget.terms(desk.pool, "a", "gpu", 1.1 + budget.FRESH_S).running == 2.0


# ---------------------------------------------------------------- signals from other systems

SIGNAL = ev.QueueSignal(0.0, "default")


def signal(desk: Desk, at: float, **said: Any) -> list[Any]:
    return desk.do(replace(SIGNAL, at=at, **said))


def test_a_signal_overrides_what_it_speaks_of() -> None:
    desk = cluster(8, QueueSpec("default", quota=4.0, limit=6.0, weight=2.0))
    signal(desk, 0.0, quota=1.0, limit=3.0, weight=5.0)
    found = terms(desk)
    assert (found.quota, found.limit, found.weight) == (1.0, 3.0, 5.0)
    signal(desk, 1.0, quota=0.0)
    found = terms(desk)
    assert (found.quota, found.limit, found.weight) == (0.0, 6.0, 2.0)


def test_a_signal_is_forgotten_when_it_is_stale() -> None:
    desk = cluster(8, QueueSpec("default", quota=4.0), signal_stale_s=60.0)
    signal(desk, 10.0, quota=1.0, age_s=20.0)
    assert desk.wake_at == 50.0
    desk.wake(49.9)
    assert desk.pool.queues["default"].quota == 1.0
    desk.wake(50.0)
    assert desk.pool.queues["default"].quota == 4.0
    signal(desk, 100.0, quota=1.0, age_s=60.0)  # too old when it came
    assert desk.pool.queues["default"].quota == 4.0


def test_an_older_reading_changes_nothing() -> None:
    desk = cluster(8, QueueSpec("default", quota=4.0))
    signal(desk, 10.0, quota=1.0)
    signal(desk, 11.0, quota=3.0, age_s=2.0)  # read at 9
    assert desk.pool.queues["default"].quota == 1.0
    signal(desk, 12.0, quota=2.0, age_s=2.0)  # read at 10 as well: the later word counts
    assert desk.pool.queues["default"].quota == 2.0
    signal(desk, 13.0, quota=5.0, age_s=3.000001)  # the same, as far as clocks can tell
    assert desk.pool.queues["default"].quota == 5.0


@pytest.mark.parametrize(
    "said",
    [
        {"quota": -1.0},
        {"limit": -0.1},
        {"running": -1.0},
        {"pending": -1.0},
        {"age_s": -1.0},
        {"weight": 0.0},
        {"weight": -2.0},
        {"weight": INF},
        {"quota": float("nan")},
        {"limit": float("nan")},
        {"weight": float("nan")},
        {"running": float("nan")},
        {"queue": "nobody's"},
    ],
)
def test_a_signal_out_of_range_is_refused_and_changes_nothing(said: dict[str, Any]) -> None:
    desk = cluster(8, QueueSpec("default", quota=4.0))
    signal(desk, 0.0, quota=2.0)
    with pytest.raises(IllegalTransition):
        signal(desk, 1.0, **said)
    assert desk.pool.queues["default"].quota == 2.0
    assert desk.machine.handle() == []


def test_work_outside_counts_as_running_and_as_demand() -> None:
    desk = cluster(8, QueueSpec("default", quota=4.0), QueueSpec("rl", quota=8.0))
    account(desk, "default", average=4.0)
    account(desk, "rl", average=8.0)
    signal(desk, 0.0, running=2.0, pending=3.0)
    assert terms(desk) == replace(terms(desk), running=2.0, demand=3.0, within=0.0)
    # spare = 8 - (2 + 3 + 0) - (0 + 0 + 2) = 1, shared by two.
    assert terms(desk).budget == 0.5 and terms(desk, "rl").budget == 2.5


def test_work_outside_counts_in_the_type_it_uses() -> None:
    desk = Desk(pool(profile("p"), profile("q", gpu_type="h100")))
    signal(desk, 0.0, running=2.0, pending=1.0, gpu_type="h100")
    assert (terms(desk).running, terms(desk).demand) == (0.0, 0.0)
    there = terms(desk, gpu_type="h100")
    assert (there.running, there.demand) == (2.0, 1.0)


def test_work_outside_counts_against_the_limit() -> None:
    desk = ready(pool(queues=(QueueSpec("default", limit=3.0), QueueSpec("rl"))), p=3)
    signal(desk, 0.0, running=2.0)
    decisions = desk.sync("c1", want(), count=3)
    assert len([a for a in decisions if isinstance(a, PromoteWorker)]) == 1
    decisions = signal(desk, 1.0, running=1.0)
    assert len([a for a in decisions if isinstance(a, PromoteWorker)]) == 1


def test_work_outside_counts_against_the_quota() -> None:
    """The queue's quota is used up outside: it only borrows here, and others go first."""
    desk = kept(1, QueueSpec("default", quota=2.0), QueueSpec("rl", quota=4.0), rho=1.0)
    (lease,) = desk.hold("c3", want(CAROL))
    all_started(desk)
    desk.idle(lease)
    signal(desk, 1.0, running=2.0)
    assert revoked(desk.sync("c1", want(), at=1.0)) == []
    assert revoked(signal(desk, 2.0, running=1.0)) == [lease.worker]


def test_a_lower_limit_lets_nothing_new_and_takes_nothing_away() -> None:
    desk = kept(3, QueueSpec("default"))
    leases = desk.hold("c1", count=2)
    all_started(desk)
    assert signal(desk, 1.0, limit=1.0) == []
    assert desk.sync("c1", want(), at=1.0) == []
    assert len(desk.held["c1"]) == len(leases)
    assert [a for a in signal(desk, 2.0, limit=3.0) if isinstance(a, PromoteWorker)]


def test_more_room_is_used_at_once() -> None:
    desk = cluster(4, QueueSpec("default"))
    signal(desk, 0.0, running=1.0, limit=1.0)
    assert desk.sync("c1", want(), count=2) == []
    assert signal(desk, 1.0, running=1.0, limit=2.0) == [GrowLane(f"e1l{desk.pool.serial}", "p")]


# ---------------------------------------------------------------- any signals, demands and news

CALLERS = (ALICE, CAROL, DAVE)
some = st.sampled_from([0.0, 1.0, 2.0, 5.0])
maybe = st.one_of(st.none(), some)
specs = st.builds(
    lambda lanes, gpus, keep_alive, quotas, headroom, rho, max_gpus: PoolSpec(
        (
            profile("p", max_lanes=lanes, keep_alive=keep_alive),
            profile("q", gpus=gpus, max_lanes=2, gpu_type="gpu"),
        ),
        tuple(QueueSpec(n, quota=q) for n, q in zip(("default", "rl", "x"), quotas, strict=True)),
        headroom=headroom,
        rho=rho,
        max_gpus=max_gpus,
    ),
    st.integers(1, 4),
    st.sampled_from([0.0, 2.0]),
    st.sampled_from(["adaptive", "always", "fixed:3"]),
    st.tuples(*[st.sampled_from([0.0, 1.0, 3.0, INF])] * 3),
    st.sampled_from([0.0, 1.0, 9.0]),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.sampled_from([INF, 4.0]),
)
signals = st.tuples(
    st.just("signal"),
    st.builds(
        ev.QueueSignal,
        st.just(0.0),
        st.sampled_from(["default", "rl", "x"]),
        maybe,
        maybe,
        st.sampled_from([None, 1e-20, 1.0, 3.0]),
        some,
        some,
        st.sampled_from(["gpu", "", "h100"]),
        st.sampled_from([0.0, 50.0]),
    ),
)
demands = st.tuples(st.just("demand"), st.tuples(st.integers(0, 2), st.integers(0, 5)))
news = st.tuples(st.sampled_from(["idle", "idle", "idle", "busy", "wake"]), st.integers(0, 99))


def sound(desk: Desk) -> None:
    found = budget.compute(desk.pool, desk.at)
    for one in found.values():
        assert one.budget >= 0.0 and one.within >= 0.0 and one.over >= 0.0
        assert one.budget <= max(0.0, one.limit - one.running - one.demand) + 1e-9
        assert one.budget <= one.need + 1e-9 and one.excess <= one.idle
    for gpu_type in {key[1] for key in found}:
        rows = [one for key, one in found.items() if key[1] == gpu_type]
        taken = sum(one.running + one.demand for one in rows)
        kept_free = rows[0].cap - desk.pool.spec.headroom - taken
        within = sum(one.within for one in rows)
        over = sum(one.over for one in rows)
        assert over <= max(0.0, kept_free - within) + 1e-6
        if within <= kept_free:
            assert within + over <= kept_free + 1e-6


def react(desk: Desk, decisions: list[Any]) -> None:
    """Everything that was asked for is done, at once."""
    for action in decisions:
        if isinstance(action, PromoteWorker):
            react(desk, desk.promoted(action))
        elif isinstance(action, GrowLane):
            react(desk, desk.do(ev.LaneReady(desk.at, action.lane, "n1")))
        elif isinstance(action, StartWorker):
            react(desk, desk.do(ev.WorkerStarted(desk.at, action.worker)))
        elif isinstance(action, RevokeLease):
            worker = desk.pool.workers[action.worker]
            answer: Any = "moved" if action.successor else "gone"
            if worker.state in ("revoking", "draining"):
                react(desk, desk.do(ev.RevokeAnswered(desk.at, worker.id, action.fence, answer)))
        elif isinstance(action, RetireWorker):
            if action.worker in desk.pool.workers:
                react(desk, desk.do(ev.WorkerRetired(desk.at, action.worker)))
        elif isinstance(action, RemoveLane):
            react(desk, desk.do(ev.LaneRemoved(desk.at, action.lane)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(specs, st.lists(st.one_of(signals, demands, news, news), min_size=15, max_size=30))
def test_budgets_are_sound_whatever_happens(spec: PoolSpec, happens: list[Any]) -> None:
    desk = Desk(spec)
    for number, caller in enumerate(CALLERS):
        react(desk, desk.sync(f"c{number}", want(caller), 1))
    for what, how in happens:
        at = desk.at + 0.7
        if what == "signal":
            react(desk, desk.do(replace(how, at=at)))
        elif what == "demand":
            caller, count = how
            name = "q" if count == 5 else "p"
            react(desk, desk.sync(f"c{caller}", want(CALLERS[caller], name), count, at=at))
        elif what == "wake":
            react(desk, desk.wake(at))
        else:
            react(desk, tell_something(desk, what, how, at))
        sound(desk)


def tell_something(desk: Desk, what: str, which: int, at: float) -> list[Any]:
    found = [w for w in desk.pool.workers.values() if w.state == "bound"]
    if not found:
        return desk.wake(at)
    worker = found[which % len(found)]
    if what == "busy":
        return desk.do(ev.WorkerBusy(at, worker.id, worker.fence))
    return desk.do(ev.WorkerIdle(at, worker.id, worker.fence, at))
