"""The client's machine: which job goes to which lease, and what ends a job.

Driven by ``client.pool`` under its lock and by the simulator. Pure: standard library only, no
clock, no effects. Every job is in exactly one place (blocked, in its FIFO, on its lease) and ends
exactly once; a lease has at most one outstanding call; a free lease and a waiting job of the same
reuse key never coexist after ``handle`` returns. Illegal events raise and change nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, NoReturn

from firepool_ray.core.model import Grant, LeaseId, Rejection, ReuseKey
from firepool_ray.core.pump_events import (
    INF,
    AbandonLease,
    CancelAnswered,
    CancelRequested,
    Closed,
    DispatchJob,
    EndCause,
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
from firepool_ray.core.pump_polling import Polling
from firepool_ray.core.pump_state import JOB_MOVES, Book, Cause, Job, Key, Lease
from firepool_ray.errors import IllegalTransition

#: A job that provably never started is delivered again; a worker that dies each time must not be
#: fed for ever.
MAX_REDELIVERIES = 10
STOP_RETRY_S = 0.05  #: first pause before a cancel that found no job is sent again; doubles
SETTLE_POLL_S = 0.2  #: first pause between questions about a job that still runs; doubles
RETRY_MAX_S = 2.0


class Pump:
    """One client's jobs and leases. ``handle`` is the only mutator (and ``recover``)."""

    def __init__(self, window_s: float = 5.0, max_waiting: int = 100_000) -> None:
        self._window_s = window_s
        self._max_waiting = max_waiting
        self._book = Book()
        self._polling = Polling(self._book)
        self._timers: list[tuple[float, int, str]] = []  #: (when, tie, job), outdated ones too
        self._timer_count = 0
        self._order = 0
        self._turn = 0  #: counts calls of ``handle``
        self._wake_at = INF
        self._closed = False
        self._actions: list[PumpAction] = []
        self._handlers: dict[type[PumpEvent], Callable[[Any], None]] = {
            JobSubmitted: self._on_submitted,
            JobReady: self._on_ready,
            JobAborted: self._on_aborted,
            JobAnswered: self._on_answered,
            ReplyLost: self._on_reply_lost,
            JobSettled: self._on_settled,
            ReplayFailed: self._on_replay_failed,
            CancelRequested: self._on_cancel_requested,
            CancelAnswered: self._on_cancel_answered,
            ScopeEnded: self._on_scope_ended,
            ParentChanged: self._on_parent_changed,
            Synced: self._on_synced,
            SyncFailed: self._on_sync_failed,
            Closed: self._on_closed,
            PumpWoke: self._on_woke,
        }

    # -- the two mutators ---------------------------------------------------------------------

    def handle(self, event: PumpEvent) -> list[PumpAction]:
        """The only way in. Raises ``IllegalTransition``, having changed nothing."""
        self._actions = []
        self._turn += 1
        if self._closed:
            return self._actions
        self._handlers[type(event)](event)
        self._plan(event.at)
        return self._actions

    def recover(self, at: float) -> list[PumpAction]:
        """Mend after an exception broke ``handle`` off at any point (a signal handler's, say).

        No action of the broken call has been carried out. Its dispatches are undone, its ended
        jobs stay ended, every index is derived anew, and the controller is told everything again.
        The event itself counts as not handled.
        """
        book = self._book
        kept: list[PumpAction] = []
        for action in self._actions:
            if isinstance(action, EndJob):
                job = book.jobs.pop(action.job, None)
                if job is not None:
                    job.state = "ended"
            if not isinstance(action, (DispatchJob, SendSync, WakePump)):
                kept.append(action)
        for lease in list(book.leases.values()):
            job = lease.job
            if job is None:
                continue
            if lease.turn == self._turn and job.state != "ended":
                job.state = "waiting"
                job.lease = None
                lease.job = None
            elif job.state == "ended" or job.lease is not lease:
                lease.job = None
        for job in book.jobs.values():
            if job.state in ("running", "stopping", "settling") and (
                job.lease is None or job.lease.job is not job
            ):
                job.state = "waiting"
            if job.state in ("blocked", "waiting"):
                job.lease = None
        book.rebuild()
        for action in kept:
            if isinstance(action, ForgetLease) and action.lease in book.leases:
                book.drop_lease(book.leases[action.lease])
        for lease in [lease for lease in book.leases.values() if lease.revoked and not lease.job]:
            book.drop_lease(lease)
            kept.append(ForgetLease(lease.id))
        self._polling.recover()
        self._wake_at = INF
        self._turn += 1
        self._actions = kept
        if not self._closed:
            for key in list(book.keys.values()):
                self._match(key)
            self._rebuild_timers(at)
            self._plan(at)
        return self._actions

    # -- reading, for status and tests --------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """No job is in this pump and no lease is held."""
        return not self._book.jobs and not self._book.leases

    def place_of(self, job: str) -> str:
        """The state of a job; "ended" for one that is gone."""
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
            self._book.add_lease(grant.lease, grant.job_class.key, grant.source)
            self._match(self._book.leases[grant.lease].key, at)

    def _take_revocation(self, lease_id: LeaseId) -> None:
        lease = self._book.leases.get(lease_id)
        if lease is None:
            return
        lease.revoked = True
        if lease.job is None:
            self._forget(lease)

    def _take_rejection(self, rejection: Rejection) -> None:
        key = self._book.keys.get(rejection.job_class.key)
        cls = key.classes.get(rejection.job_class) if key is not None else None
        for job in list(cls.fifo.values()) if cls is not None else ():
            self._withdraw(job, rejection.code, rejection.message)

    def _on_sync_failed(self, event: SyncFailed) -> None:
        self._polling.failed(event)

    def _on_closed(self, event: Closed) -> None:
        for job in list(self._book.jobs.values()):
            if job.state in ("blocked", "waiting"):
                self._withdraw(job, "closed", event.reason)
                continue
            lease = job.lease
            self._stop(job)
            self._end(job, "ended", "closed", event.reason)
            if lease is not None:
                lease.job = None
        for lease in list(self._book.leases.values()):
            self._forget(lease)
        self._closed = True

    # -- time ---------------------------------------------------------------------------------

    def _on_woke(self, event: PumpWoke) -> None:
        if self._wake_at <= event.at:
            self._wake_at = INF

    def _plan(self, at: float) -> None:
        """Whatever is due by now, then the next wake-up."""
        if self._closed:
            return
        timers = self._timers
        while timers and timers[0][0] <= at:
            job = self._book.jobs.get(heapq.heappop(timers)[2])
            if job is not None:
                self._ring(job, at)
        polling = self._polling
        if polling.silent_until() <= at:
            self._end_unserved(at)
        due_at = polling.due_at(at)
        if due_at <= at:
            self._actions.append(polling.send(at))
            due_at = polling.due_at(at)
        wake_at = min(due_at, polling.silent_until(), timers[0][0] if timers else INF)
        if wake_at < self._wake_at or self._wake_at <= at < wake_at < INF:
            self._wake_at = wake_at
            self._actions.append(WakePump(wake_at))

    def _end_unserved(self, at: float) -> None:
        why = self._polling.failure or "its controller does not answer"
        message = f"the pool cannot be reached: {why}"
        for job in list(self._book.jobs.values()):
            if job.state in ("blocked", "waiting"):
                self._withdraw(job, "unavailable", message)
        self._polling.give_up(at)

