"""The client's machine: which job goes to which lease, and what ends a job.

Driven by ``client.pool`` under its lock and by the simulator. Pure: standard library only, no
clock, no effects. Every job is in exactly one place (blocked, in its FIFO, on its lease) and ends
exactly once; a lease has at most one outstanding call; a free lease and a waiting job of the same
reuse key never coexist after ``handle`` returns. Illegal events raise and change nothing.

``pump_jobs`` is what happens to one job, ``pump_polling`` what is said to the controller and when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firepool_ray.core.model import Grant, LeaseId, Rejection
from firepool_ray.core.pump_events import (
    INF,
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
    PumpAction,
    PumpEvent,
    PumpWoke,
    ReplayFailed,
    ReplyLost,
    ScopeEnded,
    SendSync,
    Synced,
    SyncFailed,
    WakePump,
)
from firepool_ray.core.pump_jobs import JobDesk
from firepool_ray.core.pump_polling import Polling
from firepool_ray.core.pump_state import Book

#: Undone, or said anew, by ``recover``.
_LOST_WITHOUT_HARM = (DispatchJob, SendSync, WakePump)


class Pump:
    """One client's jobs and leases. ``handle`` is the only mutator, besides ``recover``."""

    def __init__(self, window_s: float = 5.0, max_waiting: int = 100_000) -> None:
        self._book = Book()
        self._polling = Polling(self._book)
        self._desk = desk = JobDesk(self._book, self._polling, window_s, max_waiting)
        self._wake_at = INF  #: of the last ``WakePump``; inf once it has passed
        self._closed = False
        self._begun: PumpEvent | None = None
        self._handlers: dict[type[PumpEvent], Callable[[Any], None]] = {
            JobSubmitted: desk.on_submitted,
            JobReady: desk.on_ready,
            JobAborted: desk.on_aborted,
            JobAnswered: desk.on_answered,
            ReplyLost: desk.on_reply_lost,
            JobSettled: desk.on_settled,
            ReplayFailed: desk.on_replay_failed,
            CancelRequested: desk.on_cancel_requested,
            CancelAnswered: desk.on_cancel_answered,
            ScopeEnded: desk.on_scope_ended,
            ParentChanged: self._on_parent_changed,
            Synced: self._on_synced,
            SyncFailed: self._polling.failed,
            Closed: self._on_closed,
            PumpWoke: self._on_woke,
        }

    def handle(self, event: PumpEvent) -> list[PumpAction]:
        """The only way in. Raises ``IllegalTransition``, having changed nothing."""
        desk = self._desk
        desk.actions = []
        desk.turn += 1
        self._begun = event  # last, for recover(): before it nothing has changed
        if not self._closed:
            self._handlers[type(event)](event)
            self._plan(event.at)
        return desk.actions

    def recover(self, at: float, event: PumpEvent) -> list[PumpAction]:
        """Mend after an exception broke ``handle(event)`` off at any point (a signal handler's).

        No action of the broken call has been carried out. Its dispatches are undone, its ended
        jobs stay ended, every index is derived anew, and the controller is told everything again.
        The event counts as not handled; a job that it was to submit is dropped without a word,
        since nobody knows of it.
        """
        book, desk = self._book, self._desk
        kept: list[PumpAction] = []
        if self._begun is event:
            kept = [a for a in desk.actions if not isinstance(a, _LOST_WITHOUT_HARM)]
            book.undo(desk.turn)
        for action in kept:
            if isinstance(action, EndJob) and (job := book.jobs.pop(action.job, None)) is not None:
                job.state = "ended"
        if isinstance(event, JobSubmitted):
            kept = [a for a in kept if not (isinstance(a, EndJob) and a.job == event.job)]
            if (job := book.jobs.pop(event.job, None)) is not None:
                job.state = "ended"
        book.rebuild()
        forgotten = {action.lease for action in kept if isinstance(action, ForgetLease)}
        desk.turn += 1
        desk.actions = kept
        for lease in list(book.leases.values()):
            if lease.id in forgotten:
                book.drop_lease(lease)
            elif lease.revoked and lease.job is None:
                desk.forget(lease)
        self._polling.recover()
        self._wake_at = INF
        if not self._closed:
            for key in list(book.keys.values()):
                desk.match(key, at)
            desk.reset_alarms()
            self._plan(at)
        return desk.actions

    # -- reading, for status and tests --------------------------------------------------------

    def place_of(self, job: str) -> str:
        """The state of a job; "ended" for one that is gone or never was."""
        found = self._book.jobs.get(job)
        return found.state if found is not None else "ended"

    def counts(self) -> dict[str, int]:
        """Jobs by place, and leases held and free."""
        book = self._book
        return {
            "blocked": book.blocked,
            "waiting": book.waiting,
            "dispatched": len(book.jobs) - book.blocked - book.waiting,
            "held": len(book.leases),
            "free": sum(len(key.free) for key in book.keys.values()),
        }

    # -- the controller's news ----------------------------------------------------------------

    def _on_parent_changed(self, event: ParentChanged) -> None:
        polling = self._polling
        if (polling.parent, polling.blocked) != (event.parent, event.blocked):
            polling.parent, polling.blocked = event.parent, event.blocked
            if self._book.waiting or self._book.leases:
                polling.note_change()

    def _on_synced(self, event: Synced) -> None:
        polling = self._polling
        news = bool(event.grants or event.revoked or event.rejections)
        polling.heard(event.seq, event.at, news)
        if event.epoch < polling.epoch:
            return  # of a controller that is no longer in charge
        if event.epoch > polling.epoch:
            polling.epoch, polling.acked = event.epoch, 0
            polling.note_change()
        for grant in sorted(event.grants, key=lambda grant: grant.number):
            self._take_grant(grant, event.at)
        for lease_id in event.revoked:
            self._take_revocation(lease_id)
        for rejection in event.rejections:
            self._take_rejection(rejection)

    def _take_grant(self, grant: Grant, at: float) -> None:
        if grant.number <= self._polling.acked:
            return  # sent again before our acknowledgement arrived
        self._polling.acked = grant.number
        self._polling.note_change()
        if grant.lease not in self._book.leases:
            lease = self._book.add_lease(grant.lease, grant.job_class.key, grant.source)
            self._desk.match(lease.key, at)

    def _take_revocation(self, lease_id: LeaseId) -> None:
        lease = self._book.leases.get(lease_id)
        if lease is not None:
            lease.revoked = True
            if lease.job is None:
                self._desk.forget(lease)

    def _take_rejection(self, rejection: Rejection) -> None:
        key = self._book.keys.get(rejection.job_class.key)
        cls = key.classes.get(rejection.job_class) if key is not None else None
        for job in list(cls.fifo.values()) if cls is not None else ():
            self._desk.withdraw(job, rejection.code, rejection.message)

    def _on_closed(self, event: Closed) -> None:
        desk = self._desk
        for job in list(self._book.jobs.values()):
            if job.lease is None:
                desk.withdraw(job, "closed", event.reason)
            else:
                lease = job.lease
                desk.stop(job)
                desk.end(job, "ended", "closed", event.reason)
                lease.job = None
        for lease in list(self._book.leases.values()):
            desk.forget(lease)
        self._closed = True

    # -- time ---------------------------------------------------------------------------------

    def _on_woke(self, event: PumpWoke) -> None:
        if self._wake_at <= event.at:
            self._wake_at = INF

    def _plan(self, at: float) -> None:
        """Whatever is due by now, then the next wake-up."""
        if self._closed:
            return
        desk, polling = self._desk, self._polling
        while (job := desk.alarms.next_due(at)) is not None:
            desk.ring(job)
            desk.alarms.off(job)
        if polling.silent_until() <= at:
            self._end_unserved()
        due_at = polling.due_at(at)
        if due_at <= at:
            desk.actions.append(polling.send(at))
            due_at = polling.due_at(at)
        wake_at = min(due_at, polling.silent_until(), desk.alarms.next_at())
        if wake_at < self._wake_at or self._wake_at <= at < wake_at < INF:
            self._wake_at = wake_at
            desk.actions.append(WakePump(wake_at))

    def _end_unserved(self) -> None:
        why = self._polling.failure or "its controller does not answer"
        for job in list(self._book.jobs.values()):
            if job.lease is None:
                self._desk.withdraw(job, "unavailable", f"the pool cannot be reached: {why}")
        self._polling.give_up()
