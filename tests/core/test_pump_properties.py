"""The pump under random events, and under exceptions at every line of its code.

The model is what the client would see: which calls are outstanding, which jobs have ended. After
every event, and after every recovery, I4's half of the pump must hold: each job is in exactly one
place and ends exactly once, one call per lease, and no free lease beside a job it could serve.
"""

from __future__ import annotations

import sys
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firepool_ray.core.model import Caller, Fence, Grant, JobClass, LeaseId, Rejection, ReuseKey
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

KEYS = [ReuseKey("gpu", Caller("default", name)) for name in ("ann", "bob")]
CLASSES = [JobClass(key, priority) for key in KEYS for priority in (0, 2)]


class World:
    """The pump's surroundings: remembers what it did, and knows what may happen next."""

    def __init__(self) -> None:
        self.pump = Pump(max_waiting=6)
        self.at = 0.0
        self.submitted = 0
        self.ended: Counter[str] = Counter()
        self.alive: list[str] = []
        self.blocked: list[str] = []
        self.calls: dict[LeaseId, str] = {}  #: outstanding calls of run or replay
        self.settles: list[tuple[str, LeaseId]] = []
        self.stops: list[tuple[str, LeaseId]] = []
        self.held: dict[LeaseId, JobClass] = {}
        self.granted = 0
        self.epoch = 1
        self.syncs: list[int] = []
        self.wake_at = float("inf")

    # -- the surroundings act -----------------------------------------------------------------

    def next_event(self, draw):
        """One event that could really come now."""
        self.at += draw(st.sampled_from([0.0, 0.001, 0.03, 0.5, 1.1, 7.0]))
        kinds = ["submit", "submit", "wake", "parent"]
        kinds += ["cancel"] * bool(self.alive) + ["ready", "abort"] * bool(self.blocked)
        kinds += ["answer", "answer", "answer", "lose", "need"] * bool(self.calls)
        kinds += ["settle", "settle"] * bool(self.settles) + ["stopped"] * bool(self.stops)
        kinds += ["sync", "sync", "sync_fail", "restart"] * bool(self.syncs)
        return getattr(self, f"_{draw(st.sampled_from(kinds))}")(draw)

    def _submit(self, draw):
        self.submitted += 1
        job = f"j{self.submitted}"
        ready = draw(st.booleans())
        deadline = self.at + draw(st.sampled_from([float("inf"), 0.4, 5.0]))
        self.alive.append(job)
        if not ready:
            self.blocked.append(job)
        cls = draw(st.sampled_from(CLASSES))
        retries = draw(st.integers(0, 2))
        return JobSubmitted(self.at, job, cls, ready, deadline, 0.0, retries)

    def _wake(self, draw):
        if self.wake_at < float("inf"):
            self.at = max(self.at, self.wake_at)
        return PumpWoke(self.at)

    def _parent(self, draw):
        return ParentChanged(self.at, None, draw(st.booleans()))

    def _cancel(self, draw):
        return CancelRequested(self.at, draw(st.sampled_from(self.alive)))

    def _ready(self, draw):
        return JobReady(self.at, self.blocked.pop(draw(st.integers(0, len(self.blocked) - 1))))

    def _abort(self, draw):
        return JobAborted(self.at, self.blocked.pop(0))

    def _take_call(self, draw):
        lease = draw(st.sampled_from(sorted(self.calls)))
        return self.calls.pop(lease), lease

    def _answer(self, draw):
        job, lease = self._take_call(draw)
        if self.pump.place_of(job) != "settling" and draw(st.integers(0, 4)) == 0:
            return JobAnswered(self.at, job, lease, "refused", "gone")
        state = draw(st.sampled_from(["idle", "idle", "idle", "gone"]))
        return JobAnswered(self.at, job, lease, "ended", state, 0.1)

    def _need(self, draw):
        job, lease = self._take_call(draw)
        if self.pump.place_of(job) == "settling":
            return ReplayFailed(self.at, job, lease)
        return JobAnswered(self.at, job, lease, "need_code", "idle")

    def _lose(self, draw):
        job, lease = self._take_call(draw)
        if self.pump.place_of(job) == "settling":
            return ReplayFailed(self.at, job, lease)
        return ReplyLost(self.at, job, lease)

    def _settle(self, draw):
        job, lease = self.settles.pop(0)
        started, running, alive, stopped = draw(
            st.sampled_from(
                [
                    (False, False, True, ""),
                    (False, False, False, ""),
                    (True, True, True, ""),
                    (True, False, True, ""),
                    (True, False, False, ""),
                    (True, False, False, "timeout"),
                    (None, False, False, ""),
                ]
            )
        )
        return JobSettled(self.at, job, lease, started, running, alive, stopped)

    def _stopped(self, draw):
        job, lease = self.stops.pop(0)
        return CancelAnswered(self.at, job, lease, draw(st.booleans()))

    def _sync(self, draw):
        seq = self.syncs.pop(0)
        grants = []
        for cls in draw(st.lists(st.sampled_from(CLASSES), max_size=2)):
            self.granted += 1
            fence = Fence(self.epoch, self.granted)
            lease = LeaseId(f"w{self.epoch}.{self.granted}", fence)
            self.held[lease] = cls
            grants.append(Grant(self.granted, lease, cls, "standby"))
        revoked = (
            draw(st.lists(st.sampled_from(sorted(self.held)), max_size=1)) if self.held else []
        )
        rejections = []
        if draw(st.integers(0, 9)) == 0:
            rejections = [Rejection(draw(st.sampled_from(CLASSES)), "deadlock", "circle")]
        return Synced(self.at, seq, self.epoch, tuple(grants), tuple(revoked), tuple(rejections))

    def _sync_fail(self, draw):
        return SyncFailed(self.at, self.syncs.pop(0), "down", draw(st.sampled_from([1.0, 30.0])))

    def _restart(self, draw):
        self.epoch += 1
        self.granted = 0
        return Synced(self.at, self.syncs.pop(0), self.epoch)

    # -- the surroundings see -----------------------------------------------------------------

    def see(self, actions) -> None:
        for action in actions:
            match action:
                case DispatchJob(job, lease):
                    assert lease in self.held, "a lease that was never granted or is forgotten"
                    assert lease not in self.calls, "two calls on one lease"
                    assert job not in self.calls.values(), "one job on two leases"
                    assert self.ended[job] == 0
                    self.calls[lease] = job
                case ReplayJob(job, lease):
                    assert lease not in self.calls
                    self.calls[lease] = job
                case SettleJob(job, lease):
                    assert lease not in self.calls
                    self.settles.append((job, lease))
                case StopJob(job, lease):
                    self.stops.append((job, lease))
                case EndJob(job):
                    self.ended[job] += 1
                    assert self.ended[job] == 1, f"{job} ended twice"
                    self.alive.remove(job)
                    if job in self.blocked:
                        self.blocked.remove(job)
                case ForgetLease(lease):
                    assert lease in self.held, "forgotten twice"
                    del self.held[lease]
                case SendSync(seq, held):
                    assert set(held) <= set(self.held)
                    self.syncs.append(seq)
                case WakePump(when):
                    assert when >= self.at
                    self.wake_at = when
                case AbandonLease(job, lease):
                    assert lease in self.held

    def check(self) -> None:
        """Every index against the records, every record against what was seen."""
        book = self.pump._book
        assert set(book.jobs) == set(self.alive)
        assert set(book.leases) == set(self.held)
        seen: Counter[str] = Counter()
        for key in book.keys.values():
            assert all(lease.job is None and not lease.revoked for lease in key.free)
            assert not (key.free and any(cls.fifo for cls in key.classes.values()))
            for cls in key.classes.values():
                orders = [job.order for job in cls.fifo.values()]
                assert orders == sorted(orders)
                assert all(job.state == "waiting" for job in cls.fifo.values())
                seen.update(cls.fifo.keys())
                assert cls.blocked == sum(
                    job.job_class is cls and job.state == "blocked" for job in book.jobs.values()
                )
        seen.update(job.id for job in book.jobs.values() if job.state == "blocked")
        for lease in book.leases.values():
            assert book.keys[lease.key.id] is lease.key and lease.id in lease.key.leases
            assert (lease.job is None) == (lease in lease.key.free)
            if lease.job is not None:
                assert lease.job.lease is lease and book.jobs[lease.job.id] is lease.job
                seen.update([lease.job.id])
        assert seen == Counter(dict.fromkeys(book.jobs, 1)), "each job in exactly one place"
        counts = self.pump.counts()
        assert counts["waiting"] == sum(j.state == "waiting" for j in book.jobs.values())
        assert counts["blocked"] == sum(j.state == "blocked" for j in book.jobs.values())

    def run_dry(self) -> None:
        """With every call answered and every wait over, every job has ended."""
        for _ in range(200):
            self.at += 1.0
            for lease, job in list(self.calls.items()):
                del self.calls[lease]
                if self.pump.place_of(job) == "settling":
                    self.give(ReplayFailed(self.at, job, lease))
                else:
                    self.give(JobAnswered(self.at, job, lease, "ended", "gone"))
            while self.settles:
                job, lease = self.settles.pop()
                self.give(JobSettled(self.at, job, lease, True, False, False))
            while self.blocked:
                self.give(JobAborted(self.at, self.blocked[0]))
            for seq in list(self.syncs):
                self.syncs.remove(seq)
                self.give(SyncFailed(self.at, seq, "down"))
            self.give(PumpWoke(self.at))
            if not self.alive:
                break
        assert not self.alive and set(self.ended.values()) <= {1}

    def give(self, event) -> None:
        self.see(self.pump.handle(event))
        self.check()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_job_is_in_one_place_and_ends_once(data):
    world = World()
    for _ in range(data.draw(st.integers(1, 50))):
        world.give(world.next_event(data.draw))
    world.run_dry()


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt."""


def interrupt_after(lines: int):
    """A trace function that raises at the given line of the core's code."""
    left = lines

    def trace(frame, event, arg):
        nonlocal left
        if "/core/pump" not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise Interrupted
        return trace

    return trace


def handle_interrupted(world: World, event, lines: int) -> bool:
    """Whether the event was broken off; the pump is whole again then."""
    old = sys.gettrace()
    sys.settrace(interrupt_after(lines))
    try:
        actions = world.pump.handle(event)
    except Interrupted:
        broken = True
    else:
        broken = False
    finally:
        sys.settrace(old)
    if not broken:
        world.see(actions)
        return False
    actions = world.pump.recover(world.at, event)
    if isinstance(event, JobSubmitted):  # it never happened
        assert world.pump.place_of(event.job) == "ended"
        world.alive.remove(event.job)
        if event.job in world.blocked:
            world.blocked.remove(event.job)
    world.see(actions)
    return True


#: What the main thread itself brings: only there do signal handlers raise.
OWN = (JobSubmitted, CancelRequested, ScopeEnded, ParentChanged, Closed)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_an_interrupt_at_any_line_loses_no_job(data):
    world = World()
    for _ in range(data.draw(st.integers(1, 20))):
        event = world.next_event(data.draw)
        if isinstance(event, OWN) and data.draw(st.booleans()):
            if handle_interrupted(world, event, data.draw(st.integers(1, 90))):
                world.check()
                if not isinstance(event, JobSubmitted):
                    world.give(event)
        else:
            world.give(event)
        world.check()
    world.run_dry()


def test_recovery_states_everything_anew():
    pump = Pump()
    pump.handle(JobSubmitted(0.0, "a", CLASSES[0]))
    actions = pump.recover(0.5, PumpWoke(0.5))
    assert [type(action) for action in actions] == [SendSync, WakePump]
    assert actions[0].demands[0].count == 1 and pump.place_of("a") == "waiting"
