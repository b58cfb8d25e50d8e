"""Workers warmed ahead of bursts, and bridged pauses, through the whole machine.

One caller works in bursts. A start from nothing takes 15 s (a lane 5, a worker 10), as measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from firepool_ray.core import actions as do
from firepool_ray.core import bursts
from firepool_ray.core import events as ev
from firepool_ray.core.model import Caller, LeaseId, PoolSpec
from tests.core.desk import ALICE, BOB, Desk, pool, profile, want

COLD_S = 15.0
BURST_S = 20.0
#: A regular pause, well beyond a start.
PAUSE_S = 60.0


class Bursts(Desk):
    """Everything asked for is done: starts take their time, all else none."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.coming: list[tuple[float, ev.Event]] = []
        self.log: list[tuple[float, do.Action]] = []
        self.ahead: list[float] = []  #: when workers were bound before anybody asked
        self.start_s = 10.0  #: of a worker, from here on
        self.slow: list[do.Action] | None = None  #: promotions that are not answered yet

    def carry_out(self, decisions: Sequence[do.Action]) -> None:
        for action in decisions:
            self.log.append((self.at, action))
            if isinstance(action, do.PromoteWorker) and self.pool.workers[action.worker].ahead:
                self.ahead.append(self.at)
            if isinstance(action, do.GrowLane):
                self._later(5.0, lambda at, a=action: ev.LaneReady(at, a.lane, "n1"))
            elif isinstance(action, do.StartWorker):
                self._later(self.start_s, lambda at, a=action: ev.WorkerStarted(at, a.worker))
            elif isinstance(action, do.PromoteWorker):
                if self.slow is None:
                    self.carry_out(self.promoted(action))
                    worker = self.pool.workers.get(action.worker)
                    if worker is not None and worker.ahead:  # its warden sees it idle
                        self.carry_out(self.idle(LeaseId(worker.id, action.fence), since=self.at))
                else:
                    self.slow.append(action)
            elif isinstance(action, do.RevokeLease):
                answer: Any = "moved" if action.successor else "gone"
                event = ev.RevokeAnswered(self.at, action.worker, action.fence, answer)
                self.carry_out(self.do(event))
            elif isinstance(action, do.RetireWorker):
                self.carry_out(self.do(ev.WorkerRetired(self.at, action.worker)))
            elif isinstance(action, do.RemoveLane):
                self.carry_out(self.do(ev.LaneRemoved(self.at, action.lane)))

    def _later(self, seconds: float, event_of: Any) -> None:
        when = self.at + seconds
        self.coming.append((when, event_of(when)))

    def until(self, end: float) -> None:
        """Let time pass: what is under way arrives, and the machine is woken when it asks."""
        while (now := min([self.wake_at, *[when for when, _ in self.coming]])) <= end:
            due = next((item for item in self.coming if item[0] <= now), None)
            if due is not None:
                self.coming.remove(due)
                self.carry_out(self.do(due[1]))
            else:
                self.wake_at = float("inf")
                self.carry_out(self.wake(now))
        self.at = end

    def burst(self, workers: int, caller: Caller = ALICE, client: str = "c1") -> None:
        """The caller's client uses so many workers for ``BURST_S``; then all are idle."""
        begin = self.at
        leases = list(self.held.get(client, {}).items())
        for worker, fence in leases[:workers]:
            self.carry_out(self.do(ev.WorkerBusy(begin, worker, fence)))
        for second in range(int(BURST_S)):
            missing = workers - len(self.held.get(client, {}))
            demand = want(caller) if missing > 0 else None
            self.carry_out(self.sync(client, demand, missing, at=begin + second, age_s=second))
            self.until(begin + second + 0.9)
        self.at = begin + BURST_S
        for worker, fence in list(self.held[client].items()):
            self.carry_out(self.idle(LeaseId(worker, fence), since=self.at))

    def regular(self, count: int, workers: int = 2, pause_s: float = PAUSE_S) -> None:
        """So many bursts with equal pauses after them; ends where the next one should begin."""
        for _ in range(count):
            self.burst(workers)
            self.until(self.at + pause_s)

    def warmed(self, since: float = 0.0) -> list[float]:
        """When workers were bound before anybody asked."""
        return [at for at in self.ahead if at >= since]

    def sources(self, since: float) -> list[str]:
        return [a.grant.source for at, a in self.log if at >= since and isinstance(a, do.SendGrant)]

    def idle_workers(self) -> int:
        return len(self.pool.idle)


def cold_pool(**settings: Any) -> PoolSpec:
    """No standbys: whatever is not warm is a start of 10 s in a lane, or of 15 s without."""
    made: dict[str, Any] = {
        "keep_alive": "adaptive",
        "standbys": 0,
        "max_lanes": 6,
        "start_cost_s": 10.0,
        "grow_cost_s": 5.0,
        "lane_keep_s": 1.0,
    }
    return pool(profile(**{**made, **settings}))


def standby_pool(**settings: Any) -> PoolSpec:
    return cold_pool(**{"standbys": 1, "lane_keep_s": 1e9, **settings})


@pytest.fixture(params=[cold_pool, standby_pool], ids=["without standbys", "with standbys"])
def spec(request: pytest.FixtureRequest) -> PoolSpec:
    found: PoolSpec = request.param()
    return found


# ---------------------------------------------------------------- regular pauses


def test_workers_are_released_in_the_pause_and_warmed_before_the_next_burst(
    spec: PoolSpec,
) -> None:
    desk = Bursts(spec)
    desk.regular(6)
    desk.burst(2)
    pause = desk.at
    assert desk.warmed(pause) == []
    desk.until(pause + PAUSE_S / 2)
    assert desk.idle_workers() == 0  # released
    desk.until(pause + PAUSE_S)
    assert desk.idle_workers() == 2  # as many as the last bursts used
    warmed = desk.warmed(pause)
    assert len(warmed) == 2
    assert all(PAUSE_S - 2 * COLD_S <= at - pause <= PAUSE_S for at in warmed)
    # Bound to the caller, and granted to the client that worked last before it asks.
    workers = list(desk.pool.idle)
    assert [(w.key, w.client, w.ahead) for w in workers] == [(want().key, "c1", True)] * 2
    assert desk.sources(pause) == ["warm", "warm"]


def test_the_first_that_wants_a_warmed_worker_gets_it_warm(spec: PoolSpec) -> None:
    desk = Bursts(spec)
    desk.regular(7)
    begin, warmed = desk.at, list(desk.pool.idle)
    assert len(warmed) == 2
    (first, *_) = desk.sync("c7", want())
    assert isinstance(first, do.RevokeLease)
    assert first.worker in {w.id for w in warmed}
    assert (first.mode, first.client) == ("if_idle", "c7")
    assert first.successor is not None
    desk.carry_out([first])
    assert desk.sources(begin) == ["warm"]
    desk.burst(1)
    assert desk.sources(begin) == ["warm"]  # the other one was granted before


def test_bursts_find_their_workers_warm_once_the_rhythm_is_known(spec: PoolSpec) -> None:
    desk = Bursts(spec)
    desk.regular(6)
    since = desk.at
    desk.regular(6)
    assert desk.sources(since) == ["warm"] * 12
    assert len(desk.warmed(since)) == 12


def test_as_many_as_the_median_of_the_last_three_bursts(spec: PoolSpec) -> None:
    desk = Bursts(spec)
    desk.regular(6, workers=2)
    for workers, warmed in ((4, 2), (2, 2), (4, 4), (4, 4), (1, 4), (1, 1)):
        desk.burst(workers)
        pause = desk.at
        desk.until(pause + PAUSE_S)
        assert len(desk.warmed(pause)) == warmed


def test_a_rhythm_is_followed_only_after_a_prediction_came_true(spec: PoolSpec) -> None:
    """Two pauses tell the third, which is only watched; the fourth is followed."""
    desk = Bursts(spec)
    desk.regular(3)
    assert desk.warmed() == []
    (rhythm,) = desk.pool.profiles["p"].rhythms.values()
    assert (rhythm.pauses, rhythm.told, rhythm.due) == (2, True, False)
    desk.regular(1)
    assert len(desk.warmed()) == 2


def test_another_caller_of_the_profile_is_followed_sooner(spec: PoolSpec) -> None:
    """What predictions brought for the profile speaks for its other callers."""
    desk = Bursts(spec)
    desk.regular(8)
    since = desk.at
    for _ in range(3):
        desk.burst(1, BOB, "c2")
        desk.until(desk.at + PAUSE_S)
    bobs = [w for w in desk.pool.idle if w.key.caller == BOB]
    assert len(bobs) == 1 and desk.warmed(since)


def test_what_is_warmed_counts_as_a_need_of_its_queue() -> None:
    desk = Bursts(standby_pool())
    desk.regular(6)
    desk.burst(2)
    (rhythm,) = desk.pool.profiles["p"].rhythms.values()
    when = desk.pool.agenda.time_of(("warm", rhythm.id))
    desk.until(when - 0.1)
    assert bursts.standing_burst(desk.pool, "default", "gpu") == 0.0
    desk.pool.profiles["p"].warming[rhythm.id] = rhythm
    assert bursts.standing_burst(desk.pool, "default", "gpu") == 2.0
    assert bursts.standing_burst(desk.pool, "rl", "gpu") == 0.0
    assert bursts.standing_burst(desk.pool, "default", "") == 0.0
    del desk.pool.profiles["p"].warming[rhythm.id]
    desk.until(when + COLD_S)
    assert bursts.standing_burst(desk.pool, "default", "gpu") == 0.0  # they are there


# ---------------------------------------------------------------- where nothing is warmed


def test_nothing_is_warmed_for_irregular_pauses(spec: PoolSpec) -> None:
    desk = Bursts(spec)
    for pause_s in (30.0, 400.0, 70.0, 900.0, 45.0, 1500.0, 60.0, 300.0):
        desk.burst(2)
        desk.until(desk.at + pause_s)
    assert desk.warmed() == []


def test_nothing_is_warmed_where_the_profile_says_so() -> None:
    desk = Bursts(cold_pool(warm_ahead=False))
    desk.regular(8)
    assert desk.warmed() == []


@pytest.mark.parametrize("keep_alive", ["fixed:5", "never", "always"])
def test_only_the_adaptive_policy_warms(keep_alive: str) -> None:
    desk = Bursts(cold_pool(keep_alive=keep_alive))
    desk.regular(8)
    assert desk.warmed() == []


def test_nothing_is_warmed_for_a_caller_that_is_done(spec: PoolSpec) -> None:
    desk = Bursts(spec)
    desk.regular(6)
    desk.burst(2)
    desk.carry_out(desk.do(ev.CallerClosing(desk.at, ALICE)))
    since = desk.at
    assert desk.idle_workers() == 0
    desk.until(since + 3 * PAUSE_S)
    assert desk.warmed(since) == [] and not desk.pool.rhythms


def test_nothing_is_warmed_for_a_caller_without_clients(spec: PoolSpec) -> None:
    desk = Bursts(spec)
    desk.regular(6)
    desk.burst(2)
    desk.until(desk.at + 5.0)
    desk.carry_out(desk.do(ev.ClientLost(desk.at, "c1", "gone")))
    since = desk.at
    desk.until(since + 3 * PAUSE_S)
    assert desk.warmed(since) == [] and not desk.pool.rhythms


def test_warmed_workers_go_with_the_last_client(spec: PoolSpec) -> None:
    desk = Bursts(spec)
    desk.regular(7)
    assert desk.idle_workers() == 2
    desk.carry_out(desk.do(ev.ClientLost(desk.at, "c1", "gone")))
    assert desk.idle_workers() == 0


def test_warmed_workers_go_when_their_caller_is_done(spec: PoolSpec) -> None:
    desk = Bursts(spec)
    desk.regular(7)
    assert desk.idle_workers() == 2
    desk.carry_out(desk.do(ev.CallerClosing(desk.at, ALICE)))
    since = desk.at
    assert desk.idle_workers() == 0
    desk.until(since + PAUSE_S)
    assert desk.warmed(since) == []


@pytest.mark.parametrize(("limit", "warmed"), [(3.0, 2), (2.0, 2), (1.0, 1), (0.0, 0)])
def test_no_more_than_the_queue_may_hold(limit: float, warmed: int, spec: PoolSpec) -> None:
    desk = Bursts(replace(spec, signal_stale_s=1e9))
    desk.regular(6)
    desk.burst(2)
    pause = desk.at
    desk.until(pause + 25.0)
    desk.carry_out(desk.do(ev.QueueSignal(desk.at, "default", limit=limit)))
    desk.until(pause + PAUSE_S)
    assert len(desk.warmed(pause)) == warmed


def test_work_of_the_queue_outside_leaves_less_to_warm(spec: PoolSpec) -> None:
    desk = Bursts(replace(spec, signal_stale_s=1e9))
    desk.regular(6)
    desk.burst(2)
    pause = desk.at
    desk.until(pause + 25.0)
    desk.carry_out(desk.do(ev.QueueSignal(desk.at, "default", limit=2.0, running=1.0)))
    desk.until(pause + PAUSE_S)
    assert len(desk.warmed(pause)) == 1


def test_headroom_and_quotas_bound_what_is_warmed(spec: PoolSpec) -> None:
    """All that is spare is headroom, and no quota: the queue may keep nothing idle."""
    desk = Bursts(replace(spec, headroom=100.0, rho=0.0))
    desk.regular(8)
    assert desk.warmed() == []


def test_whoever_waits_goes_first() -> None:
    """Two lanes, both wanted by Bob when Alice's burst is due: nothing is taken from him."""
    desk = Bursts(cold_pool(max_lanes=2))
    desk.regular(6)
    desk.burst(2)
    pause = desk.at
    desk.until(pause + 20.0)
    desk.carry_out(desk.sync("c2", want(BOB), count=2))
    for _ in range(39):
        missing = 2 - len(desk.held.get("c2", {}))
        desk.carry_out(desk.sync("c2", want(BOB) if missing else None, missing, at=desk.at + 1))
        desk.until(desk.at)
    assert len(desk.held["c2"]) == 2 and desk.warmed(pause) == []
    revoked = [a for at, a in desk.log if at > pause + 20.0 and isinstance(a, do.RevokeLease)]
    assert revoked == []


# ---------------------------------------------------------------- predictions that fail


def test_a_burst_that_does_not_come_is_given_up(spec: PoolSpec) -> None:
    desk = Bursts(spec)
    desk.regular(7)
    since = desk.at
    assert desk.idle_workers() == 2
    (rhythm,) = desk.pool.profiles["p"].rhythms.values()
    until = rhythm.until
    assert since < until < since + 2 * COLD_S
    desk.until(until - 0.1)
    assert desk.idle_workers() == 2
    desk.until(until + 0.1)
    assert desk.idle_workers() == 0
    assert not rhythm.due and not rhythm.told and not desk.pool.rhythms
    assert not desk.pool.profiles["p"].warming
    desk.until(since + 20 * PAUSE_S)
    assert desk.warmed(since) == []  # nobody warms again and again


def test_a_worker_that_is_ready_only_after_that_goes_at_once() -> None:
    desk = Bursts(standby_pool())
    desk.regular(6)
    desk.burst(2)
    desk.slow = []
    desk.until(desk.at + PAUSE_S)
    (rhythm,) = desk.pool.profiles["p"].rhythms.values()
    assert rhythm.coming == len(desk.slow) == 2
    desk.until(rhythm.until + 1.0)
    assert not rhythm.due and desk.warmed(desk.at - 1.0) == []
    for promote in desk.slow:
        assert isinstance(promote, do.PromoteWorker)
        desk.promoted(promote)
        (revoke,) = desk.idle(LeaseId(promote.worker, promote.fence), since=desk.at)
        assert isinstance(revoke, do.RevokeLease) and revoke.worker == promote.worker
    assert rhythm.coming == 0


def test_a_burst_whose_first_start_is_slow_has_come_all_the_same() -> None:
    """It began in time; that its first worker took longer than usual is no wrong prediction."""
    desk = Bursts(cold_pool())
    desk.regular(3)
    (rhythm,) = desk.pool.profiles["p"].rhythms.values()
    assert rhythm.told and rhythm.judged == 0
    desk.start_s = 13.0
    desk.burst(2)
    assert rhythm.judged == 1 and rhythm.gain_s > 0


def test_after_a_burst_that_came_late_all_goes_on(spec: PoolSpec) -> None:
    desk = Bursts(spec)
    desk.regular(6)
    desk.burst(2)
    desk.until(desk.at + 1.2 * PAUSE_S)
    desk.burst(2)
    assert desk.idle_workers() <= 2
    desk.regular(20)
    since = desk.at
    desk.regular(2)
    assert desk.sources(since) == ["warm"] * 4


def test_predictions_that_do_not_pay_are_not_followed_any_more(spec: PoolSpec) -> None:
    """Regular pauses end with the caller's last burst, again and again: nothing comes of it."""
    desk = Bursts(spec)
    desk.regular(6)
    (rhythm,) = desk.pool.profiles["p"].rhythms.values()
    assert rhythm.pays(desk.pool.profiles["p"].gain_s.value)
    for _ in range(8):
        rhythm.judge(None, COLD_S)
        desk.pool.profiles["p"].gain_s.add(-COLD_S)
    assert not rhythm.pays(desk.pool.profiles["p"].gain_s.value)
    since = desk.at + BURST_S + 1.0
    desk.regular(1)
    assert desk.warmed(since) == []
    # Told all the same, to see whether it comes true; it does, and in time is followed again.
    assert rhythm.told
    desk.regular(15)
    since = desk.at
    desk.regular(1)
    assert len(desk.warmed(since)) == 2


# ---------------------------------------------------------------- short pauses, bounds


def test_a_pause_shorter_than_a_start_is_held_through() -> None:
    """Each start takes 15 s and each pause 8: letting go would mean starting again at once."""
    desk = Bursts(cold_pool(cold_price=0.2))  # by its price alone nothing is held for so long
    desk.regular(8, pause_s=8.0)
    since = desk.at
    desk.regular(4, pause_s=8.0)
    assert desk.sources(since) == []  # the same leases, all the time
    assert [a for at, a in desk.log if at > since and isinstance(a, do.StartWorker)] == []
    assert desk.warmed(since) == []


def test_callers_whose_rhythm_is_known_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "REMEMBERED", 3)
    desk = Bursts(standby_pool())
    for number in range(6):
        desk.burst(1, Caller("default", f"n{number}"), f"c{number}")
        desk.until(desk.at + 30.0)
    known = [caller.name for caller in desk.pool.profiles["p"].rhythms]
    assert known == ["n3", "n4", "n5"]


def test_a_burst_that_takes_its_warmed_workers_at_once_is_seen_all_the_same() -> None:
    """They may be in use before their warden could tell that they were idle: only the end shows."""
    desk = Bursts(cold_pool())
    desk.regular(6)
    desk.burst(2)
    (rhythm,) = desk.pool.profiles["p"].rhythms.values()
    desk.slow = []
    desk.until(desk.at + PAUSE_S)
    promotions, desk.slow = desk.slow, None
    assert len(promotions) == 2 and rhythm.coming == 2
    pauses, begin = rhythm.pauses, desk.at
    for promote in promotions:
        assert isinstance(promote, do.PromoteWorker)
        desk.promoted(promote)  # granted; the client uses it at once, so nothing is told
    assert rhythm.coming == 2 and rhythm.pauses == pauses
    desk.at = begin + BURST_S
    for promote in promotions:
        assert isinstance(promote, do.PromoteWorker)
        desk.carry_out(desk.idle(LeaseId(promote.worker, promote.fence), since=desk.at))
    assert rhythm.coming == 0 and rhythm.busy == 0
    assert rhythm.pauses == pauses + 1
    assert rhythm.quiet_since == begin + BURST_S
