"""The pump's decisions, event by event: ``assert actions == [...]``."""

from __future__ import annotations

import pytest

from firepool_ray.core.model import (
    Caller,
    Demand,
    Fence,
    Grant,
    JobClass,
    LeaseId,
    Rejection,
    ReuseKey,
)
from firepool_ray.core.pump import Pump
from firepool_ray.core.pump_events import (
    AbandonLease,
    CancelAnswered,
    CancelRequested,
    Closed,
    DispatchJob,
    EndJob,
    ForgetLease,
    JobAborted,
    JobAnswered,
    JobReady,
    JobSettled,
    JobSubmitted,
    ParentChanged,
    PumpWoke,
    ReplayFailed,
    ReplayJob,
    ReplyLost,
    ScopeEnded,
    SendSync,
    SettleJob,
    StopJob,
    Synced,
    SyncFailed,
    WakePump,
)
from firepool_ray.errors import IllegalTransition

KEY = ReuseKey("gpu", Caller("default", "me"))
CLASS = JobClass(KEY)
URGENT = JobClass(KEY, priority=1)
INF = float("inf")


def lease(number: int) -> LeaseId:
    return LeaseId(f"w{number}", Fence(1, number))


L1, L2, L3 = lease(1), lease(2), lease(3)


def grant(number: int, source="standby", epoch=1) -> Grant:
    return Grant(number, LeaseId(f"w{number}", Fence(epoch, number)), CLASS, source)


def sync(seq, held=(), acked=(0, 0), demands=(), parent=None, blocked=False) -> SendSync:
    return SendSync(seq, tuple(held), acked, tuple(demands), parent, blocked)


def demand(count, age_s=0.0, drain_s=INF, job_class=CLASS) -> Demand:
    return Demand(job_class, count, age_s, drain_s)


def jobs(actions) -> list:
    """The actions about jobs and leases, without syncs and wake-ups."""
    return [a for a in actions if not isinstance(a, (SendSync, WakePump))]


def ended(job, lease=L1, ran_s=1.0, state="idle", at=2.0) -> JobAnswered:
    return JobAnswered(at, job, lease, "ended", state, ran_s)


@pytest.fixture
def pump() -> Pump:
    return Pump()


@pytest.fixture
def warm(pump) -> Pump:
    """One lease, free, its first job done; the controller has been told."""
    pump.handle(JobSubmitted(0.0, "first", CLASS))
    pump.handle(Synced(0.1, 1, 1, grants=(grant(1),)))
    pump.handle(ended("first", at=0.2))
    return pump


# -- the way in -----------------------------------------------------------------------------------


def test_the_first_job_states_demand_at_once_and_asks_for_a_heartbeat(pump):
    actions = pump.handle(JobSubmitted(10.0, "a", CLASS))
    assert actions == [sync(1, demands=[demand(1)]), WakePump(11.0)]


def test_a_grant_dispatches_and_is_acknowledged(pump):
    pump.handle(JobSubmitted(10.0, "a", CLASS))
    actions = pump.handle(Synced(10.1, 1, 1, grants=(grant(1, "cold"),)))
    assert actions == [DispatchJob("a", L1, "cold"), sync(2, [L1], (1, 1))]


def test_a_free_lease_takes_a_job_and_nothing_is_said(warm):
    assert warm.handle(JobSubmitted(1.0, "a", CLASS)) == [DispatchJob("a", L1, "warm")]
    assert warm.handle(ended("a")) == [EndJob("a", "answered")]


def test_the_first_job_of_a_lease_has_the_source_of_its_grant_and_later_ones_are_warm(pump):
    pump.handle(JobSubmitted(0.0, "a", CLASS))
    pump.handle(JobSubmitted(0.0, "b", CLASS))
    first = pump.handle(Synced(0.1, 1, 1, grants=(grant(1, "handover"),)))
    assert jobs(first) == [DispatchJob("a", L1, "handover")]
    assert jobs(pump.handle(ended("a"))) == [
        EndJob("a", "answered"),
        DispatchJob("b", L1, "warm"),
    ]


def test_jobs_of_a_class_go_in_order_of_arrival_one_per_lease(pump):
    for name in "abc":
        pump.handle(JobSubmitted(0.0, name, CLASS))
    actions = pump.handle(Synced(0.1, 1, 1, grants=(grant(2), grant(1))))
    assert jobs(actions) == [
        DispatchJob("a", L1, "standby"),
        DispatchJob("b", L2, "standby"),
    ]
    assert jobs(pump.handle(ended("b", L2))) == [
        EndJob("b", "answered"),
        DispatchJob("c", L2, "warm"),
    ]


def test_the_lease_freed_last_is_used_first(pump):
    for name in "abc":
        pump.handle(JobSubmitted(0.0, name, CLASS))
    pump.handle(Synced(0.1, 1, 1, grants=(grant(1), grant(2), grant(3))))
    for name, used in (("b", L2), ("c", L3), ("a", L1)):
        pump.handle(ended(name, used))
    order = [jobs(pump.handle(JobSubmitted(3.0, name, CLASS)))[0].lease for name in "xyz"]
    assert order == [L1, L3, L2]


def test_priority_is_worth_a_window_of_waiting_and_no_more(pump):
    pump.handle(JobSubmitted(0.0, "old", CLASS))
    pump.handle(JobSubmitted(1.0, "older", CLASS))
    pump.handle(JobSubmitted(5.5, "urgent", URGENT))
    assert jobs(pump.handle(Synced(6.0, 1, 1, grants=(grant(1),))))[0].job == "old"
    assert jobs(pump.handle(ended("old", at=7.0)))[1].job == "urgent"
    assert jobs(pump.handle(ended("urgent", at=8.0)))[1].job == "older"


def test_a_lease_serves_its_reuse_key_only(warm):
    other = JobClass(KEY._replace(profile="cpu"))
    assert jobs(warm.handle(JobSubmitted(1.0, "a", other))) == []


def test_a_job_enters_its_fifo_when_its_references_exist(warm):
    assert warm.handle(JobSubmitted(1.0, "a", CLASS, ready=False)) == []
    assert warm.place_of("a") == "blocked"
    assert warm.handle(JobReady(2.0, "a")) == [DispatchJob("a", L1, "warm")]


def test_a_job_whose_argument_fails_ends_with_that_error(warm):
    warm.handle(JobSubmitted(1.0, "a", CLASS, ready=False))
    assert warm.handle(JobAborted(2.0, "a")) == [EndJob("a", "aborted")]
    assert warm.handle(JobReady(2.0, "a")) == []  # late news of an ended job


def test_waiting_is_bounded_per_class():
    pump = Pump(max_waiting=2)
    pump.handle(JobSubmitted(0.0, "a", CLASS))
    pump.handle(JobSubmitted(0.0, "b", CLASS, ready=False))
    (end, *_) = pump.handle(JobSubmitted(0.0, "c", CLASS))
    assert (end.job, end.cause) == ("c", "queue_full") and "2 jobs" in end.message
    assert pump.place_of("c") == "ended"
    assert jobs(pump.handle(JobSubmitted(0.0, "d", URGENT))) == []
    assert pump.place_of("d") == "waiting"


# -- what is said to the controller ---------------------------------------------------------------


def test_a_burst_is_stated_in_two_syncs(pump):
    assert pump.handle(JobSubmitted(0.0, "j0", CLASS))[0] == sync(1, demands=[demand(1)])
    actions = [a for n in range(1, 8) for a in pump.handle(JobSubmitted(0.001, f"j{n}", CLASS))]
    assert actions == [WakePump(0.02)]
    assert pump.handle(PumpWoke(0.02)) == [sync(2, demands=[demand(8, 0.02)]), WakePump(1.02)]


def test_demand_is_stated_every_second_while_jobs_wait(pump):
    pump.handle(JobSubmitted(0.0, "a", CLASS))
    assert pump.handle(PumpWoke(1.0)) == [sync(2, demands=[demand(1, 1.0)]), WakePump(2.0)]


def test_a_draining_queue_is_stated_rarely(pump):
    for n in range(100):
        pump.handle(JobSubmitted(0.0, f"j{n}", CLASS))
    pump.handle(Synced(0.1, 1, 1, grants=(grant(1),)))
    at, syncs = 0.2, 0
    for n in range(100):
        at += 0.05
        actions = pump.handle(ended(f"j{n}", ran_s=0.0, at=at))
        syncs += sum(isinstance(a, SendSync) for a in actions)
    assert syncs <= 14  # halvings, and heartbeats of five seconds


def test_the_poll_is_parked_again_after_each_answer_while_leases_are_held(warm):
    assert warm.handle(Synced(10.0, 2, 1)) == [sync(3, [L1], (1, 1))]
    assert warm.handle(Synced(10.001, 3, 1)) == [WakePump(10.02)]  # never in a tight loop
    assert warm.handle(PumpWoke(10.02)) == [sync(4, [L1], (1, 1))]


def test_a_client_that_had_work_listens_for_a_while_and_is_silent_then(warm):
    actions = warm.handle(Synced(1.0, 2, 1, revoked=(L1,)))
    assert actions == [ForgetLease(L1), sync(3, (), (1, 1))]
    # Its next burst may be told: workers for it would be granted before it asks.
    assert warm.handle(Synced(11.0, 3, 1)) == [sync(4, (), (1, 1))]
    assert warm.handle(Synced(500.0, 4, 1)) == []


def test_an_answer_to_an_older_sync_leaves_the_newer_one_parked(pump):
    pump.handle(JobSubmitted(0.0, "a", CLASS))
    pump.handle(PumpWoke(1.0))
    assert pump.handle(Synced(1.001, 1, 1)) == [sync(3, demands=[demand(1, 1.001)], acked=(1, 0))]
    assert pump.handle(Synced(1.002, 2, 1)) == []


def test_grants_sent_again_are_taken_once(pump):
    pump.handle(JobSubmitted(0.0, "a", CLASS))
    pump.handle(JobSubmitted(0.0, "b", CLASS))
    pump.handle(Synced(0.1, 1, 1, grants=(grant(1),)))
    actions = pump.handle(Synced(0.2, 2, 1, grants=(grant(1), grant(2))))
    assert jobs(actions) == [DispatchJob("b", L2, "standby")]


def test_a_new_epoch_counts_grants_from_one_and_keeps_leases(warm):
    warm.handle(JobSubmitted(1.0, "a", CLASS))
    warm.handle(JobSubmitted(1.0, "b", CLASS))
    fresh = LeaseId("w1", Fence(2, 1))
    actions = warm.handle(Synced(1.5, 2, 2, grants=(grant(1, epoch=2),)))
    assert actions[0] == DispatchJob("b", fresh, "standby")
    assert sync(4, [L1, fresh], (2, 1)) in actions
    assert jobs(warm.handle(Synced(1.6, 3, 1, grants=(grant(7),)))) == []  # of the old one: late


def test_drain_time_follows_from_experience_and_from_what_runs(warm):
    for name in "abc":
        warm.handle(JobSubmitted(1.0, name, CLASS))
    (said, _) = warm.handle(PumpWoke(1.5))
    # one second per job: two wait, and the running one has half a second left
    assert said.demands == (demand(2, 0.5, 2.5),)
    (said, _) = warm.handle(PumpWoke(11.0))
    assert said.demands[0].drain_s == 12.0  # the one that hangs counts what it has run


def test_rejections_end_the_jobs_of_their_class_that_wait(pump):
    pump.handle(JobSubmitted(0.0, "a", CLASS))
    pump.handle(JobSubmitted(0.0, "b", URGENT))
    actions = pump.handle(Synced(0.1, 1, 1, rejections=(Rejection(CLASS, "deadlock", "why"),)))
    assert jobs(actions) == [EndJob("a", "deadlock", "why")]
    assert pump.place_of("b") == "waiting"


def test_the_parent_and_its_blocking_are_stated(warm):
    warm.handle(JobSubmitted(1.0, "a", CLASS))
    assert warm.handle(ParentChanged(1.0, L3, True)) == [
        sync(3, [L1], (1, 1), parent=L3, blocked=True)
    ]
    assert warm.handle(ParentChanged(1.0, L3, True)) == []


# -- failures of the controller -------------------------------------------------------------------


def test_an_unreachable_controller_is_asked_again_with_backoff(pump):
    pump.handle(JobSubmitted(0.0, "a", CLASS))
    assert pump.handle(SyncFailed(0.0, 1, "gone")) == [WakePump(0.05)]
    assert pump.handle(PumpWoke(0.05))[0] == sync(2, demands=[demand(1, 0.05)])
    assert pump.handle(SyncFailed(0.05, 2, "gone")) == [WakePump(pytest.approx(0.15))]


def test_jobs_wait_thirty_seconds_for_a_controller_and_running_ones_longer(warm):
    warm.handle(JobSubmitted(1.0, "runs", CLASS))
    warm.handle(JobSubmitted(1.0, "waits", CLASS))
    warm.handle(JobSubmitted(1.0, "blocked", CLASS, ready=False))
    at, seq = 1.0, 3
    while at < 29.9:
        warm.handle(SyncFailed(at, seq, "no controller"))
        at += 1.0
        seq += sum(isinstance(a, SendSync) for a in warm.handle(PumpWoke(at)))
        assert warm.place_of("waits") == "waiting"
    actions = jobs(warm.handle(PumpWoke(31.1)))
    assert {(a.job, a.cause) for a in actions} == {
        ("waits", "unavailable"),
        ("blocked", "unavailable"),
    }
    assert "no controller" in actions[0].message
    assert warm.place_of("runs") == "running"


def test_a_controller_that_hangs_is_given_up_too(pump):
    pump.handle(JobSubmitted(0.0, "a", CLASS))
    for second in range(1, 30):
        assert jobs(pump.handle(PumpWoke(float(second)))) == []
    (end,) = jobs(pump.handle(PumpWoke(30.0)))
    assert (end.cause, "does not answer" in end.message) == ("unavailable", True)


def test_a_long_parked_poll_is_no_silence(warm):
    assert jobs(warm.handle(JobSubmitted(500.0, "a", CLASS))) != []
    warm.handle(JobSubmitted(500.0, "b", CLASS))
    assert jobs(warm.handle(PumpWoke(501.0))) == []


def test_a_pool_that_was_ended_is_given_up_sooner(pump):
    pump.handle(JobSubmitted(0.0, "a", CLASS))
    pump.handle(SyncFailed(0.1, 1, "no pool", patience_s=3.0))
    assert jobs(pump.handle(PumpWoke(2.9))) == []
    assert jobs(pump.handle(PumpWoke(3.2)))[0].cause == "unavailable"


# -- answers that are no outcome ------------------------------------------------------------------


def test_a_refused_job_goes_back_to_the_head_and_its_lease_is_forgotten(warm):
    warm.handle(JobSubmitted(1.0, "a", CLASS))
    warm.handle(JobSubmitted(1.0, "b", CLASS))
    actions = warm.handle(JobAnswered(1.1, "a", L1, "refused", "gone"))
    assert actions[:2] == [ForgetLease(L1), sync(4, (), (1, 1), [demand(2, pytest.approx(0.1))])]
    actions = warm.handle(Synced(1.2, 4, 1, grants=(grant(2),)))
    assert jobs(actions) == [DispatchJob("a", L2, "standby")]


def test_several_refused_jobs_keep_their_order(pump):
    for name in "abcd":
        pump.handle(JobSubmitted(0.0, name, CLASS))
    pump.handle(Synced(0.1, 1, 1, grants=(grant(1), grant(2), grant(3))))
    for name, held in (("b", L2), ("a", L1), ("c", L3)):
        pump.handle(JobAnswered(0.2, name, held, "refused", "gone"))
    order = []
    for number in range(4, 8):
        actions = pump.handle(Synced(0.3, number, 1, grants=(grant(number),)))
        order += [a.job for a in jobs(actions)]
    assert order == ["a", "b", "c", "d"]


def test_any_number_of_refusals_is_borne(pump):
    pump.handle(JobSubmitted(0.0, "a", CLASS))
    for number in range(1, 50):
        pump.handle(Synced(0.1, number, 1, grants=(grant(number),)))
        pump.handle(JobAnswered(0.1, "a", lease(number), "refused", "gone"))
    assert pump.place_of("a") == "waiting"


def test_a_worker_without_the_code_gets_it(warm):
    warm.handle(JobSubmitted(1.0, "a", CLASS))
    actions = warm.handle(JobAnswered(1.1, "a", L1, "need_code", "idle"))
    assert actions == [DispatchJob("a", L1, "warm", with_code=True)]
    assert warm.handle(ended("a")) == [EndJob("a", "answered")]


def test_a_worker_that_cannot_keep_code_is_left(warm):
    warm.handle(JobSubmitted(1.0, "a", CLASS))
    warm.handle(JobAnswered(1.1, "a", L1, "need_code", "idle"))
    assert jobs(warm.handle(JobAnswered(1.2, "a", L1, "need_code", "idle"))) == [ForgetLease(L1)]
    assert warm.place_of("a") == "waiting"


@pytest.mark.parametrize("state", ["draining", "gone"])
def test_a_lease_that_ends_with_its_job_takes_no_other(warm, state):
    warm.handle(JobSubmitted(1.0, "a", CLASS))
    warm.handle(JobSubmitted(1.0, "b", CLASS))
    actions = warm.handle(ended("a", state=state))
    assert jobs(actions) == [EndJob("a", "answered"), ForgetLease(L1)]


def test_a_revoked_lease_is_forgotten_once_its_job_has_ended(warm):
    warm.handle(JobSubmitted(1.0, "a", CLASS))
    assert jobs(warm.handle(Synced(1.1, 2, 1, revoked=(L1, L2)))) == []
    assert jobs(warm.handle(ended("a"))) == [EndJob("a", "answered"), ForgetLease(L1)]


# -- cancel, in every state -----------------------------------------------------------------------


@pytest.mark.parametrize("ready", [True, False])
def test_a_job_that_waits_is_cancelled_at_once(pump, ready):
    pump.handle(JobSubmitted(0.0, "a", CLASS, ready))
    assert jobs(pump.handle(CancelRequested(0.1, "a"))) == [EndJob("a", "cancelled")]
    assert pump.handle(CancelRequested(0.2, "a")) == []


def test_a_running_job_is_stopped_by_the_warden_and_ends_with_its_reply(warm):
    warm.handle(JobSubmitted(1.0, "a", CLASS))
    assert warm.handle(CancelRequested(1.1, "a")) == [StopJob("a", L1)]
    assert warm.handle(CancelRequested(1.1, "a")) == []
    assert warm.handle(CancelAnswered(1.2, "a", L1, True)) == []
    assert warm.handle(ended("a")) == [EndJob("a", "answered")]  # the reply says: cancelled


def test_a_cancel_that_did_not_reach_the_job_is_sent_again(warm):
    warm.handle(JobSubmitted(1.0, "a", CLASS))
    warm.handle(CancelRequested(1.0, "a"))
    assert warm.handle(CancelAnswered(1.0, "a", L1, False)) == [WakePump(1.05)]
    assert warm.handle(PumpWoke(1.05)) == [StopJob("a", L1)]
    assert warm.handle(CancelAnswered(1.05, "a", L1, False)) == [WakePump(pytest.approx(1.15))]


def test_late_answers_to_a_cancel_change_nothing(warm):
    warm.handle(JobSubmitted(1.0, "a", CLASS))
    warm.handle(CancelRequested(1.0, "a"))
    warm.handle(ended("a", at=1.1))
    assert warm.handle(CancelAnswered(1.2, "a", L1, False)) == []


@pytest.mark.parametrize("answer", ["refused", "need_code"])
def test_a_stopped_job_that_never_ran_is_cancelled(warm, answer):
    warm.handle(JobSubmitted(1.0, "a", CLASS))
    warm.handle(CancelRequested(1.0, "a"))
    state = "idle" if answer == "need_code" else "gone"
    actions = jobs(warm.handle(JobAnswered(1.1, "a", L1, answer, state)))
    forgotten = [ForgetLease(L1)] if answer == "refused" else []
    assert actions == [EndJob("a", "cancelled"), *forgotten]


def test_what_ended_code_submitted_is_cancelled_unless_it_runs(warm):
    warm.handle(JobSubmitted(1.0, "runs", CLASS))
    warm.handle(JobSubmitted(1.0, "waits", CLASS))
    actions = warm.handle(ScopeEnded(1.1, ("runs", "waits", "long gone")))
    assert jobs(actions) == [EndJob("waits", "scope_ended")]


def test_closing_ends_everything_and_later_events_are_ignored(warm):
    warm.handle(JobSubmitted(1.0, "runs", CLASS))
    warm.handle(JobSubmitted(1.0, "waits", CLASS))
    assert warm.handle(Closed(2.0, "bye")) == [
        StopJob("runs", L1),
        EndJob("runs", "closed", "bye"),
        EndJob("waits", "closed", "bye"),
        ForgetLease(L1),
    ]
    assert warm.handle(ended("runs", at=3.0)) == []
    assert warm.handle(PumpWoke(4.0)) == []


# -- lost replies and workers ---------------------------------------------------------------------


@pytest.fixture
def lost(warm) -> Pump:
    """Job "a" was sent to L1, and the call broke."""
    warm.handle(JobSubmitted(1.0, "a", CLASS, max_retries=0, timeout_s=60))
    assert warm.handle(ReplyLost(2.0, "a", L1)) == [SettleJob("a", L1)]
    return warm


def settled(started, running=False, alive=False, stopped="", at=2.1) -> JobSettled:
    return JobSettled(at, "a", L1, started, running, alive, stopped)


def test_a_job_that_never_started_is_delivered_again(lost):
    assert jobs(lost.handle(settled(False, alive=True))) == [ForgetLease(L1)]
    actions = lost.handle(Synced(2.2, 3, 1, grants=(grant(2),)))
    assert jobs(actions) == [DispatchJob("a", L2, "standby")]


def test_a_job_is_not_delivered_for_ever(pump):
    pump.handle(JobSubmitted(0.0, "a", CLASS))
    number, actions = 0, []
    while pump.place_of("a") != "ended":
        number += 1
        held = lease(number)
        pump.handle(Synced(0.1, number, 1, grants=(grant(number),)))
        pump.handle(ReplyLost(0.1, "a", held))
        actions = jobs(pump.handle(JobSettled(0.1, "a", held, False, False, False)))
    assert number == 11
    assert (actions[0].cause, actions[0].started) == ("lost", False)


def test_a_job_that_had_started_is_lost_with_its_worker(lost):
    assert jobs(lost.handle(settled(True))) == [
        EndJob("a", "lost", started=True),
        ForgetLease(L1),
    ]


def test_a_lost_job_is_retried_as_often_as_wished(warm):
    warm.handle(JobSubmitted(1.0, "a", CLASS, max_retries=1))
    warm.handle(ReplyLost(2.0, "a", L1))
    assert jobs(warm.handle(settled(True))) == [ForgetLease(L1)]
    warm.handle(Synced(2.2, 3, 1, grants=(grant(2),)))
    warm.handle(ReplyLost(3.0, "a", L2))
    assert jobs(warm.handle(JobSettled(3.1, "a", L2, True, False, False))) == [
        EndJob("a", "lost", started=True),
        ForgetLease(L2),
    ]


def test_where_nobody_can_tell_the_worker_is_abandoned(lost):
    assert jobs(lost.handle(settled(None))) == [
        AbandonLease("a", L1),
        EndJob("a", "lost", started=None),
        ForgetLease(L1),
    ]


def test_a_job_that_still_runs_is_asked_after_until_it_has_finished(lost):
    assert lost.handle(settled(True, running=True, alive=True)) == [WakePump(pytest.approx(2.3))]
    assert lost.handle(PumpWoke(2.4)) == [SettleJob("a", L1)]
    assert lost.handle(settled(True, alive=True, at=2.5)) == [ReplayJob("a", L1)]
    assert lost.handle(ended("a", at=2.6)) == [EndJob("a", "answered")]
    assert lost.handle(JobSubmitted(3.0, "b", CLASS)) == [DispatchJob("b", L1, "warm")]


def test_a_reply_that_the_worker_no_longer_has_is_a_loss(lost):
    lost.handle(settled(True, alive=True))
    assert jobs(lost.handle(ReplayFailed(2.5, "a", L1))) == [
        EndJob("a", "lost", started=True),
        ForgetLease(L1),
    ]


@pytest.mark.parametrize(
    ("stopped", "cause"), [("timeout", "timeout"), ("cancelled", "cancelled"), ("", "lost")]
)
def test_a_worker_that_is_killed_on_purpose_before_it_replays_is_no_loss(lost, stopped, cause):
    lost.handle(settled(True, alive=True, stopped=stopped))
    (end, _) = jobs(lost.handle(ReplayFailed(2.5, "a", L1)))
    assert end.cause == cause


def test_a_late_second_verdict_changes_nothing(lost):
    lost.handle(settled(True))
    assert lost.handle(settled(False)) == []


@pytest.mark.parametrize(
    ("stopped", "at", "cause"),
    [
        ("timeout", 2.1, "timeout"),
        ("cancelled", 2.1, "cancelled"),
        ("client_lost", 2.1, "cancelled"),
        ("", 61.5, "timeout"),  # dead after its time was over: the warden's hand
        ("", 60.5, "lost"),
    ],
)
def test_a_worker_killed_on_purpose_is_no_loss(lost, stopped, at, cause):
    (end, _) = jobs(lost.handle(settled(True, stopped=stopped, at=at)))
    assert end.cause == cause


@pytest.mark.parametrize("started", [True, False, None])
def test_a_cancelled_job_whose_worker_dies_is_cancelled(warm, started):
    warm.handle(JobSubmitted(1.0, "a", CLASS, max_retries=3))
    warm.handle(CancelRequested(1.1, "a"))
    warm.handle(ReplyLost(1.2, "a", L1))
    ends = [a for a in warm.handle(settled(started)) if isinstance(a, EndJob)]
    assert [end.cause for end in ends] == ["cancelled"]


def test_a_job_is_cancelled_while_its_reply_is_sought(lost):
    assert lost.handle(CancelRequested(2.1, "a")) == [StopJob("a", L1)]
    lost.handle(settled(True, running=True, alive=True))
    assert lost.handle(PumpWoke(2.4)) == [SettleJob("a", L1), StopJob("a", L1)]


# -- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ready", [True, False])
def test_a_job_that_has_not_started_in_time_ends(pump, ready):
    pump.handle(JobSubmitted(0.0, "a", CLASS, ready, queue_deadline=5.0))
    assert jobs(pump.handle(PumpWoke(4.9))) == []
    assert jobs(pump.handle(PumpWoke(5.0))) == [EndJob("a", "queue_timeout")]


def test_a_started_job_has_no_queue_timeout_until_it_is_handed_back(warm):
    warm.handle(JobSubmitted(1.0, "a", CLASS, queue_deadline=2.0))
    assert jobs(warm.handle(PumpWoke(3.0))) == []
    actions = jobs(warm.handle(JobAnswered(3.1, "a", L1, "refused", "gone")))
    assert actions == [ForgetLease(L1), EndJob("a", "queue_timeout")]


# -- illegal events -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        JobSubmitted(1.0, "a", CLASS),
        JobReady(1.0, "a"),
        JobAborted(1.0, "a"),
        ended("a", L2),
        ended("nobody"),
        ReplyLost(1.0, "nobody", L1),
    ],
)
def test_an_illegal_event_raises_and_changes_nothing(warm, event):
    warm.handle(JobSubmitted(1.0, "a", CLASS))
    before = warm.counts()
    with pytest.raises(IllegalTransition):
        warm.handle(event)
    assert warm.counts() == before
    assert warm.handle(ended("a")) == [EndJob("a", "answered")]


def test_nothing_is_kept_of_jobs_that_ended(pump):
    for n in range(500):
        pump.handle(JobSubmitted(float(n), f"j{n}", JobClass(KEY, n), queue_deadline=n + 1000.0))
        pump.handle(CancelRequested(float(n), f"j{n}"))
    pump.handle(PumpWoke(600.0))
    book = pump._book
    assert not book.jobs and len(book.keys) <= 1
    assert len(pump._desk.alarms._heap) < 200
