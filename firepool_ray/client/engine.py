"""Drives the pump of this process: events in under one lock, actions out to the transport.

Called by ``client.pool`` (submit), jobs (cancel, waiting) and Ray's threads (replies). Nothing
here decides. The warm path stays in the calling thread: submit runs the pump and sends the call;
the reply's thread runs the pump and sends the next.

Theory of operation. ``_turn`` runs one event: under the lock the pump handles it, outside of the
lock its actions are performed in order, so that a slow call holds nobody up. An exception from a
signal handler (KeyboardInterrupt, a user's alarm) may hit the main thread anywhere in that. So the
lock is only ever held across the pump; ``_torn`` says that a call of the pump broke off, and the
next thread to take the lock mends it; actions that were not performed are performed by the clock
thread, and a dispatch that may be half done is treated as a lost reply, which the warden settles.
A thread that holds the lock and comes here again (from a signal handler, or a finaliser that the
garbage collector runs) leaves its event in ``_inbox`` for the clock thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from firepool_ray.client.clock import Clock
from firepool_ray.client.effects import Effects
from firepool_ray.client.job import Job
from firepool_ray.client.outcome import Outcome
from firepool_ray.client.transport import Transport
from firepool_ray.core.pump import Pump
from firepool_ray.core.pump_events import (
    CancelRequested,
    Closed,
    DispatchJob,
    JobAborted,
    JobReady,
    JobSubmitted,
    PumpAction,
    PumpEvent,
    PumpWoke,
)
from firepool_ray.errors import IllegalTransition

if TYPE_CHECKING:
    from firepool_ray.client.scopes import JobScopes

log = logging.getLogger(__name__)


class _Turn:
    """One event on its way through the pump and out again."""

    __slots__ = ("actions", "done", "event")

    def __init__(self, event: PumpEvent, actions: list[PumpAction] | None = None) -> None:
        self.event = event
        self.actions = actions
        self.done = 0  #: actions performed


class Engine:
    def __init__(
        self,
        client: str,
        transport: Transport,
        window_s: float,
        code: Callable[[], tuple[str, bytes]],
    ) -> None:
        self._pump = Pump(window_s)
        self._lock = threading.RLock()
        self._owner = 0  #: the thread that holds the lock
        self._torn: PumpEvent | None = None  #: what the pump is handling, or broke off handling
        self._inbox: deque[PumpEvent] = deque()
        #: Set where this process is a worker of the pool: waiting is told to the controller then.
        self.job_scopes: JobScopes | None = None
        self.clock = Clock(self._on_wake)
        transport.defer = self.clock.call_soon
        self._effects = Effects(client, transport, self.post, self.clock, code)

    # -- the way in ---------------------------------------------------------------------------

    def submit(self, job: Job, event: JobSubmitted) -> None:
        """Hand a job over. Afterwards it has an outcome, whatever happens."""
        ears = self._effects.ears
        try:
            if ears.unheard:
                ears.listen_all()
            self._effects.jobs[job.id] = job
            self._run(event)
            job._fresh = False
        except BaseException:
            job._fresh = False
            self.clock.call_soon(lambda: self._disown(job.id))
            raise

    def ready(self, job: Job) -> None:
        self.post(JobReady(time.monotonic(), job.id))

    def abort(self, job: Job, error: BaseException) -> None:
        """What a waiting job needs has failed with ``error``."""
        job._pending = Outcome("aborted", error=error)
        self.post(JobAborted(time.monotonic(), job.id))

    def cancel(self, job: Job) -> None:
        self.listen(job)
        self._run(CancelRequested(time.monotonic(), job.id))

    def listen(self, job: Job) -> None:
        """See to it that the end of a job is noticed even if nobody waits for it."""
        if self._effects.ears.unheard:
            self._effects.ears.listen(job.id)

    def take(self, job: Job, timeout_s: float | None) -> bool:
        """Wait a moment for a reply that nobody listens to yet; True if it came."""
        ears = self._effects.ears
        return bool(ears.unheard) and ears.take(job.id, timeout_s)

    def post(self, event: PumpEvent) -> None:
        """Like ``_run``, for callers that can do nothing about an illegal event."""
        try:
            self._run(event)
        except IllegalTransition:
            log.exception("refused: %s", event)

    def enter_wait(self) -> Callable[[], None] | None:
        """A wait begins; call the answer, if any, when it is over."""
        return self.job_scopes.block() if self.job_scopes is not None else None

    def place_of(self, job: str) -> str:
        return self._pump.place_of(job)

    def give(self, job: Job, ref: Any) -> None:
        """A user has got this reference of the job: whoever submits with it means the job."""
        job._given = (*job._given, ref)
        self._effects.given[ref] = job
        if job._outcome is not None:  # it ended meanwhile, perhaps before this was known
            self._effects.given.pop(ref, None)

    def job_behind(self, ref: Any) -> Job | None:
        """The unfinished job of this process that the reference belongs to, or None."""
        return self._effects.given.get(ref)

    def counts(self) -> dict[str, int]:
        return self._pump.counts()

    def close(self, reason: str) -> None:
        """End every job and forget every lease; later events change nothing."""
        self.post(Closed(time.monotonic(), reason))
        self._effects.stop()
        self.clock.stop()

    def _run(self, event: PumpEvent) -> None:
        turn = _Turn(event)
        try:
            self._handle(turn)
            if turn.actions:
                self._perform(turn)
        except IllegalTransition:
            raise
        except BaseException:
            self._salvage(turn)
            raise

    def _handle(self, turn: _Turn) -> None:
        mended: list[PumpAction] = []
        me = threading.get_ident()
        with self._lock:
            if self._owner == me:
                self._inbox.append(turn.event)
                self.clock.call_soon(self._drain_inbox)
                return
            try:
                self._owner = me
                if self._torn is not None:
                    mended = self._mend(self._torn)
                self._torn = turn.event
                turn.actions = self._pump.handle(turn.event)
                self._torn = None
            except IllegalTransition:
                self._torn = None
                raise
            finally:
                self._owner = 0
        if mended:
            self.clock.call_soon(lambda: self._perform_again(mended))

    def _perform(self, turn: _Turn) -> None:
        assert turn.actions is not None
        performers = self._effects.perform
        for action in turn.actions:
            performers[type(action)](action)
            turn.done += 1

    # -- broken off ---------------------------------------------------------------------------

    def _salvage(self, turn: _Turn) -> None:
        """An exception broke a turn off: have the clock thread do the rest of it."""
        if turn.actions is None or self._torn is turn.event:
            self.clock.call_soon(self._mend_now)
        else:
            self.clock.call_soon(lambda: self._finish(turn))

    def _finish(self, turn: _Turn) -> None:
        """Perform what is left. The first of it may be half done."""
        assert turn.actions is not None
        rest = turn.actions[turn.done :]
        if rest and isinstance(rest[0], DispatchJob):
            broken = rest.pop(0)
            assert isinstance(broken, DispatchJob)
            self._effects.lose(broken.job, broken.lease, "its sending was broken off")
        self._perform_again(rest)

    def _disown(self, job: str) -> None:
        """A submit that raised: nobody got to know this job."""
        self.post(CancelRequested(time.monotonic(), job))
        if self.place_of(job) == "ended":
            self._effects.jobs.pop(job, None)

    def _mend_now(self) -> None:
        actions: list[PumpAction] = []
        with self._lock:
            if self._torn is not None:
                actions = self._mend(self._torn)
        self._perform_again(actions)

    def _mend(self, event: PumpEvent) -> list[PumpAction]:
        """Under the lock: make the pump whole. A submit that broke off never happened."""
        actions = self._pump.recover(time.monotonic(), event)
        self._torn = None
        if not isinstance(event, JobSubmitted):
            self._inbox.append(event)
            self.clock.call_soon(self._drain_inbox)
        return actions

    def _perform_again(self, actions: list[PumpAction]) -> None:
        self._perform(_Turn(PumpWoke(time.monotonic()), actions))

    def _on_wake(self) -> None:
        self.post(PumpWoke(time.monotonic()))

    def _drain_inbox(self) -> None:
        while self._inbox:
            self.post(self._inbox.popleft())
