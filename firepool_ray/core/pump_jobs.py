"""What happens to one job, from submit to its end: half of the pump.

``Pump`` calls this with events about jobs; nobody else does. Writes go in an order that
``Pump.recover`` relies on: a dispatch first marks its lease with the turn, and an end is announced
before the job leaves its place.
"""

from __future__ import annotations

import heapq
from typing import NoReturn

from firepool_ray.core.model import LeaseId
from firepool_ray.core.pump_events import (
    INF,
    AbandonLease,
    CancelAnswered,
    CancelRequested,
    DispatchJob,
    EndCause,
    EndJob,
    ForgetLease,
    JobAborted,
    JobAnswered,
    JobReady,
    JobSettled,
    JobSubmitted,
    PumpAction,
    ReplayFailed,
    ReplayJob,
    ReplyLost,
    ScopeEnded,
    SettleJob,
    StopJob,
)
from firepool_ray.core.pump_polling import Polling
from firepool_ray.core.pump_state import JOB_MOVES, Book, Cause, Job, JobState, Key, Lease
from firepool_ray.errors import IllegalTransition

#: A job that provably never started is delivered again; a worker that dies each time must not be
#: fed for ever.
MAX_REDELIVERIES = 10
STOP_RETRY_S = 0.05  #: first pause before a cancel that found no job is sent again; doubles
SETTLE_POLL_S = 0.2  #: first pause between questions about a job that still runs; doubles
RETRY_MAX_S = 2.0
#: How a job ends whose worker was killed for it, by the warden's reason.
_STOPPED: dict[str, EndCause] = {
    "cancelled": "cancelled",
    "client_lost": "cancelled",
    "timeout": "timeout",
}


class Alarms:
    """One alarm per job, in ``Job.alarm_at``; the heap also holds outdated ones."""

    def __init__(self, jobs: dict[str, Job]) -> None:
        self._jobs = jobs
        self._heap: list[tuple[float, int, Job]] = []
        self._count = 0

    def set(self, job: Job, when: float) -> None:
        job.alarm_at = when
        if when == INF:
            return
        if len(self._heap) > 64 + 4 * len(self._jobs):
            self._heap = [alarm for alarm in self._heap if _is_set(alarm)]
            heapq.heapify(self._heap)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, job))

    def next_at(self) -> float:
        heap = self._heap
        while heap and not _is_set(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else INF

    def next_due(self, at: float) -> Job | None:
        """A job whose alarm rings by now; to be turned ``off`` once that was acted upon."""
        return self._heap[0][2] if self.next_at() <= at else None

    def off(self, job: Job) -> None:
        job.alarm_at = INF

    def clear(self) -> None:
        self._heap = []


def _is_set(alarm: tuple[float, int, Job]) -> bool:
    return alarm[2].alarm_at == alarm[0] and alarm[2].state != "ended"


class JobDesk:
    def __init__(self, book: Book, polling: Polling, window_s: float, max_waiting: int) -> None:
        self._book = book
        self._polling = polling
        self._window_s = window_s
        self._max_waiting = max_waiting
        self._order = 0
        self.alarms = Alarms(book.jobs)
        self.turn = 0  #: counts calls of ``Pump.handle``
        self.actions: list[PumpAction] = []

    # -- a job's way in -----------------------------------------------------------------------

    def on_submitted(self, event: JobSubmitted) -> None:
        book = self._book
        if event.job in book.jobs:
            _illegal(f"job {event.job} was submitted before")
        cls = book.class_of(event.job_class)
        if len(cls.fifo) + cls.blocked >= self._max_waiting:
            self.actions.append(
                EndJob(
                    event.job,
                    "queue_full",
                    f"{self._max_waiting} jobs of this kind wait already in this process. "
                    "Take results before submitting more, or ask for more workers.",
                )
            )
            return
        self._order += 1
        job = Job(
            event.job,
            cls,
            self._order,
            event.at,
            "waiting" if event.ready else "blocked",
            event.queue_deadline,
            event.timeout_s,
            event.max_retries,
        )
        book.jobs[event.job] = job
        if event.queue_deadline < INF:
            self.alarms.set(job, event.queue_deadline)
        if event.ready and cls.key.free:
            self._dispatch(job, cls.key.free.pop(), event.at)
        else:
            book.enter(job)

    def on_ready(self, event: JobReady) -> None:
        job = self._book.jobs.get(event.job)
        if job is None:
            return  # it was cancelled while the news was on its way
        state = self._move_to(job, "ready")
        self._book.leave(job)
        self._order += 1
        job.order = self._order  # it stands where it stands ready, not where it was announced
        job.arrived_at = event.at
        job.state = state
        self._book.enter(job)
        self.match(job.job_class.key, event.at)

    def on_aborted(self, event: JobAborted) -> None:
        job = self._book.jobs.get(event.job)
        if job is not None:
            self.withdraw(job, "aborted")

    # -- dispatch -----------------------------------------------------------------------------

    def match(self, key: Key, at: float) -> None:
        while key.free:
            cls = key.head(self._window_s)
            if cls is None:
                return
            job = next(iter(cls.fifo.values()))
            self._book.leave(job)
            self._dispatch(job, key.free.pop(), at)

    def _dispatch(self, job: Job, lease: Lease, at: float) -> None:
        # the order of these writes is what recover() relies on: the turn first, the action last
        lease.turn = self.turn
        lease.job = job
        job.lease = lease
        job.resent = False
        job.alarm_at = INF
        job.state = self._move_to(job, "dispatch")
        job.dispatched_at = at
        self.actions.append(DispatchJob(job.id, lease.id, lease.source))

    # -- a job's way out ----------------------------------------------------------------------

    def on_answered(self, event: JobAnswered) -> None:
        job, lease = self._called(event.job, event.lease)
        if event.answer == "ended":
            state = self._move_to(job, "finish")
            lease.key.observe(event.ran_s)
            lease.source = "warm"
            self.end(job, state, "answered")
            self._release(lease, event.lease_state == "idle", event.at)
        elif job.state == "settling":
            _illegal(f"job {job.id} has run, yet its worker answers {event.answer}")
        elif job.state == "stopping":
            self.end(job, self._move_to(job, "finish"), "cancelled")
            self._release(lease, event.answer == "need_code", event.at)
        elif event.answer == "need_code" and not job.resent:
            job.state = self._move_to(job, "resend")
            job.resent = True
            lease.turn = self.turn
            self.actions.append(DispatchJob(job.id, lease.id, lease.source, with_code=True))
        else:  # refused, or a worker that cannot keep the code it was given
            self._hand_back(job, lease, event.at, count=event.answer == "need_code")

    def on_reply_lost(self, event: ReplyLost) -> None:
        job, lease = self._called(event.job, event.lease)
        job.cancel_asked |= job.state == "stopping"
        job.state = self._move_to(job, "lose")
        job.settle_delay_s = 0.0
        self.actions.append(SettleJob(job.id, lease.id))

    def on_settled(self, event: JobSettled) -> None:
        job, lease = self._sought(event.job, event.lease)
        if job is None or lease is None:
            return
        if event.running and event.alive:
            job.settle_delay_s = min(RETRY_MAX_S, job.settle_delay_s * 2 or SETTLE_POLL_S)
            self.alarms.set(job, event.at + job.settle_delay_s)
        elif event.started and event.alive:
            job.state = self._move_to(job, "poll")
            job.stopped = event.stopped
            self.actions.append(ReplayJob(job.id, lease.id))
        elif event.started is False:
            self._hand_back(job, lease, event.at)
        else:
            if event.started is None:
                self.actions.append(AbandonLease(job.id, lease.id))
            self._lose(job, lease, event.started, _verdict(job, event), event.at)

    def on_replay_failed(self, event: ReplayFailed) -> None:
        job, lease = self._sought(event.job, event.lease)
        if job is not None and lease is not None:
            # The worker may have died between the warden's answer and the replay.
            self._lose(job, lease, True, _STOPPED.get(job.stopped, "lost"), event.at)

    def _lose(
        self, job: Job, lease: Lease, started: bool | None, cause: EndCause, at: float
    ) -> None:
        """The job is not to be had from this lease: it ends, or is retried where that is wished."""
        if job.retries_left > 0 and cause == "lost" and not job.cancel_asked:
            job.retries_left -= 1
            self._hand_back(job, lease, at, count=False)
            return
        if job.cancel_asked and cause == "lost":
            cause = "cancelled"
        self.end(job, self._move_to(job, "finish"), cause, started=started)
        self._release(lease, False, at)

    def _hand_back(self, job: Job, lease: Lease, at: float, count: bool = True) -> None:
        """To the head of its FIFO: nothing of it ran, or it may run again."""
        job.redeliveries += count
        if job.cancel_asked:
            self.end(job, self._move_to(job, "finish"), "cancelled")
        elif job.redeliveries > MAX_REDELIVERIES:
            message = f"delivered {job.redeliveries} times, and each time its worker went before"
            self.end(job, self._move_to(job, "finish"), "lost", message, started=False)
        else:
            job.state = self._move_to(job, "hand_back")
            job.lease = None
            lease.job = None
            self._book.enter(job)
            self.alarms.set(job, job.queue_deadline)
        self._release(lease, False, at)
        self.match(lease.key, at)

    def _release(self, lease: Lease, usable: bool, at: float) -> None:
        """The lease's call is over: it serves the next job, or is forgotten."""
        lease.job = None
        if usable and not lease.revoked:
            lease.key.free.append(lease)
            self.match(lease.key, at)
        else:
            self.forget(lease)

    def forget(self, lease: Lease) -> None:
        self.actions.append(ForgetLease(lease.id))
        self._book.drop_lease(lease)
        self._polling.note_change()

    def end(
        self,
        job: Job,
        state: JobState,
        cause: EndCause,
        message: str = "",
        started: bool | None = None,
    ) -> None:
        # the action first: recover() completes an end that was announced
        self.actions.append(EndJob(job.id, cause, message, started))
        job.state = state
        job.lease = None
        del self._book.jobs[job.id]

    def withdraw(self, job: Job, cause: EndCause, message: str = "") -> None:
        """End a job that no worker has."""
        state = self._move_to(job, "withdraw")
        # announced before it leaves its place, for recover()
        self.actions.append(EndJob(job.id, cause, message))
        self._book.leave(job)
        job.state = state
        del self._book.jobs[job.id]

    # -- cancel -------------------------------------------------------------------------------

    def on_cancel_requested(self, event: CancelRequested) -> None:
        job = self._book.jobs.get(event.job)
        if job is None:
            return  # it has ended: too late is no fault
        if job.state in ("blocked", "waiting"):
            self.withdraw(job, "cancelled")
        elif not job.cancel_asked:
            state = self._move_to(job, "stop")
            self.stop(job)
            job.state = state
            job.cancel_asked = True

    def on_cancel_answered(self, event: CancelAnswered) -> None:
        job = self._book.jobs.get(event.job)
        if job is None or job.lease is None or job.lease.id != event.lease:
            return  # its reply came first
        if job.state == "stopping" and not event.reached:
            job.stop_delay_s = min(RETRY_MAX_S, job.stop_delay_s * 2 or STOP_RETRY_S)
            self.alarms.set(job, event.at + job.stop_delay_s)

    def stop(self, job: Job) -> None:
        if job.lease is not None:
            self.actions.append(StopJob(job.id, job.lease.id))

    def on_scope_ended(self, event: ScopeEnded) -> None:
        for id in event.jobs:
            job = self._book.jobs.get(id)
            if job is not None and job.state in ("blocked", "waiting"):
                self.withdraw(job, "scope_ended")

    # -- alarms ----------------------------------------------------------------------------------

    def ring(self, job: Job) -> None:
        """The job's alarm; what it means follows from where the job is."""
        if job.state in ("blocked", "waiting"):
            self.withdraw(job, "queue_timeout")
        elif job.lease is not None:
            if job.state == "settling":
                self.actions.append(SettleJob(job.id, job.lease.id))
            if job.cancel_asked:
                self.stop(job)

    def reset_alarms(self) -> None:
        """For ``Pump.recover``: derive the heap from the jobs' own alarms."""
        self.alarms.clear()
        asked = {a.job for a in self.actions if isinstance(a, (SettleJob, ReplayJob))}
        for job in self._book.jobs.values():
            if job.state in ("blocked", "waiting"):
                job.alarm_at = job.queue_deadline
            elif job.id in asked:  # the answer sets the next one
                job.alarm_at = INF
            self.alarms.set(job, job.alarm_at)

    # -- tables -------------------------------------------------------------------------------

    def _move_to(self, job: Job, cause: Cause) -> JobState:
        state = JOB_MOVES.get((job.state, cause))
        if state is None:
            _illegal(f"job {job.id} is {job.state}: it cannot {cause}")
        return state

    def _called(self, job_id: str, lease_id: LeaseId) -> tuple[Job, Lease]:
        """The job and the lease of an outstanding call."""
        job = self._book.jobs.get(job_id)
        lease = self._book.leases.get(lease_id)
        if job is None or lease is None or lease.job is not job:
            _illegal(f"no call of job {job_id} is outstanding on {lease_id}")
        return job, lease

    def _sought(self, job_id: str, lease_id: LeaseId) -> tuple[Job | None, Lease | None]:
        """The same for a job whose reply is sought; nothing if it was found meanwhile."""
        job = self._book.jobs.get(job_id)
        if job is None or job.state != "settling" or job.lease is None or job.lease.id != lease_id:
            return None, None
        return job, job.lease


def _verdict(job: Job, event: JobSettled) -> EndCause:
    """Why a worker that died in a job did so: by our own hand, or lost."""
    ran_s = event.at - job.dispatched_at
    if not event.stopped and event.started and 0 < job.timeout_s <= ran_s:
        return "timeout"
    return _STOPPED.get(event.stopped, "lost")


def _illegal(message: str) -> NoReturn:
    raise IllegalTransition(message)
