"""One function per action of the pump: what the client does to the world.

Called by ``client.engine`` outside of its lock, in whatever thread the event came. Nothing here
decides; whatever comes back is posted to the engine as an event.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from firepool_ray.client.clock import Clock
from firepool_ray.client.ears import Ears
from firepool_ray.client.endings import outcome_of
from firepool_ray.client.job import Job
from firepool_ray.client.link import Link
from firepool_ray.client.outcome import Outcome
from firepool_ray.client.poller import Poller
from firepool_ray.client.transport import CallFailed, Transport
from firepool_ray.core.model import LeaseId
from firepool_ray.core.pump_events import (
    AbandonLease,
    CancelAnswered,
    DispatchJob,
    EndJob,
    ForgetLease,
    JobAnswered,
    JobSettled,
    PumpAction,
    PumpEvent,
    ReplayFailed,
    ReplayJob,
    ReplyLost,
    SendSync,
    SettleJob,
    StopJob,
    Synced,
    SyncFailed,
    WakePump,
)
from firepool_ray.observe.histogram import Counts, bucket_of
from firepool_ray.runtime.protocol import Header, JobCall, Settled, SyncReply, SyncRequest

log = logging.getLogger(__name__)

#: A warden that restarts answers again within 2 s; on a node that is gone none ever will.
_SETTLE_TRIES = 10
_SETTLE_PAUSE_S = 0.5
#: A reply that is lost again and again on its way from a living worker is given up.
_REPLAY_TRIES = 10
#: Functions remembered as sent per lease; forgetting one costs one more sending.
_SENT_KEPT = 200
#: A pool that ``down`` ended is not coming back; one that is being restarted is, within this.
_GONE_PATIENCE_S = 3.0


class Effects:
    def __init__(
        self,
        client: str,
        transport: Transport,
        post: Callable[[PumpEvent], None],
        clock: Clock,
        code: Callable[[], tuple[str, bytes]],
    ) -> None:
        self.jobs: dict[str, Job] = {}  #: until they end: a dropped job still runs
        self.given: dict[Any, Job] = {}  #: unfinished jobs by the references users have of them
        self._client = client
        self._transport = transport
        self._post = post
        self._clock = clock
        self._code = code
        self.ears = Ears(transport, clock)
        self._links: dict[LeaseId, Link] = {}
        self._served: dict[str, Counts] = {}
        self._about: dict[str, Any] | None = None
        self._poller = Poller(transport, self._on_synced, self._on_sync_failed)
        self.perform: dict[type[PumpAction], Callable[[Any], None]] = {
            DispatchJob: self._dispatch,
            EndJob: self._end,
            StopJob: self._stop,
            SettleJob: self._settle,
            ReplayJob: self._replay,
            AbandonLease: self._abandon,
            ForgetLease: self._forget,
            SendSync: self._sync,
            WakePump: self._wake,
        }

    def stop(self) -> None:
        self._poller.stop()

    # -- calls to workers ---------------------------------------------------------------------

    def _dispatch(self, action: DispatchJob) -> None:
        lease = action.lease
        job = self.jobs.get(action.job)
        link = self._links.get(lease)
        capture = job._capture if job is not None else None
        if job is None or link is None or capture is None:
            self.lose(action.job, lease, "it could not be sent")
            return
        trail, address, fn = job._trail, link.address, capture.fn
        code_key, code = self._code()
        send_fn = action.with_code or fn.key not in link.functions
        send_code = bool(code_key) and (action.with_code or code_key not in link.codes)
        trail.dispatched_at = time.time()
        trail.source, trail.worker = action.source, address.worker
        trail.lane, trail.node = address.lane, address.node_id
        call = JobCall(
            job.id,
            job.name,
            trail.submitted_at,
            job.timeout_s,
            action.source,
            job.env,
            fn.key,
            fn.data if send_fn else None,
            code_key,
            code if send_code else None,
            capture.args,
            capture.buffers,
        )

        ticket = [True]  # one reply counts, and none after the call was given up
        job._call = ticket

        def on_reply(reply: Any, error: BaseException | None) -> None:
            try:
                ticket.pop()
            except IndexError:
                return
            self._take_reply(job, lease, reply, error)

        try:
            header, value = self._transport.run(
                link,
                lease.fence,
                call,
                capture.refs,
                capture.nested,
                f"{job.name}[{trail.caller}]{action.source}",
            )
            job._dispatch(value)  # before anybody can hear the reply, which refers to it
            self.ears.add(job, header, on_reply)
        except CallFailed as error:
            self.lose(job.id, lease, str(error))
            return
        if send_fn:
            if len(link.functions) >= _SENT_KEPT:
                link.functions.clear()
            link.functions.add(fn.key)
        if send_code:
            link.codes.add(code_key)

    def lose(self, job_id: str, lease: LeaseId, why: str) -> None:
        """Give a call up. Should its reply come after all, it is not heard."""
        job = self.jobs.get(job_id)
        if job is not None:
            job._trail.loss = why
            job._call.clear()
        self._post(ReplyLost(time.monotonic(), job_id, lease))

    def _take_reply(
        self, job: Job, lease: LeaseId, reply: Any, error: BaseException | None
    ) -> None:
        """On Ray's thread, or the one that waits for the job."""
        if error is None:
            self._take_header(job, lease, self._transport.header_of(reply))
        elif self._transport.is_argument_failure(error):
            job._pending = Outcome("bad_argument", error=self._transport.cause_of(error))
            self._post(JobAnswered(time.monotonic(), job.id, lease, "ended", "idle"))
        else:
            self.lose(job.id, lease, self._transport.first_line(error))

    def _take_header(self, job: Job, lease: LeaseId, header: Header) -> None:
        outcome = header.outcome
        if outcome == "refused" or outcome == "need_code":
            self._post(JobAnswered(time.monotonic(), job.id, lease, outcome, header.lease_state))
            return
        trail = job._trail
        trail.header = header._replace(value=None, error=None)
        ran_s = 0.0
        if header.started_at:
            ran_s = max(0.0, header.ended_at - header.started_at)
            counts = self._served.setdefault(trail.source or "warm", {})
            bucket = bucket_of(header.started_at - trail.submitted_at)
            counts[bucket] = counts.get(bucket, 0) + 1
        if outcome != "ok":
            job._pending = Outcome(outcome, failure=header.error)
        elif header.value is not None:
            job._pending = Outcome("ok", data=header.value)
        else:
            job._pending = Outcome("ok", fetch=self._transport.fetcher(job._ref))
        self._post(JobAnswered(time.monotonic(), job.id, lease, "ended", header.lease_state, ran_s))

    def _end(self, action: EndJob) -> None:
        job = self.jobs.pop(action.job, None)
        if job is not None:
            if job._scope is not None:
                job._scope.discard(job.id)
            for ref in job._given:
                self.given.pop(ref, None)
            outcome = outcome_of(job, action)
            if outcome.has_failed and job._ref is not None:
                self._transport.hush(job._ref)
            job._end(outcome)

    def _forget(self, action: ForgetLease) -> None:
        self._links.pop(action.lease, None)

    # -- lost replies and cancels -------------------------------------------------------------

    def _stop(self, action: StopJob) -> None:
        job, lease = action.job, action.lease

        def answered(reached: bool) -> None:
            self._post(CancelAnswered(time.monotonic(), job, lease, reached))

        link = self._links.get(lease)
        if link is None:
            answered(False)
        else:
            self._try(lambda: self._transport.cancel(link, job, answered), lambda: answered(False))

    def _settle(self, action: SettleJob, tries: int = 1) -> None:
        job, lease = action.job, action.lease

        def unknown() -> None:
            self._post(JobSettled(time.monotonic(), job, lease, None, False, False))

        def answered(settled: Settled | None, may_help: bool) -> None:
            if settled is not None:
                self._note_end(job, settled)
                self._post(
                    JobSettled(
                        time.monotonic(),
                        job,
                        lease,
                        settled.started,
                        settled.running,
                        settled.alive,
                        settled.stopped,
                    )
                )
            elif may_help and tries < _SETTLE_TRIES:
                self._clock.call_later(_SETTLE_PAUSE_S, lambda: self._settle(action, tries + 1))
            else:
                unknown()

        link = self._links.get(lease)
        if link is None:
            unknown()
        else:
            self._try(lambda: self._transport.settle(link, lease.fence, job, answered), unknown)

    def _note_end(self, job_id: str, settled: Settled) -> None:
        """A job that may run again fails nobody: then this line alone tells of the loss."""
        job = self.jobs.get(job_id)
        if job is None or not settled.end:
            return
        trail = job._trail
        trail.loss = f"{settled.end} ({trail.loss})"
        if settled.started is not False and not settled.stopped:
            what, worker = f"{job.name} ({job.id})", trail.worker
            log.warning("%s lost its worker %s: %s", what, worker, trail.loss)

    def _replay(self, action: ReplayJob, tries: int = 1) -> None:
        job, link = self.jobs.get(action.job), self._links.get(action.lease)

        def failed() -> None:
            self._post(ReplayFailed(time.monotonic(), action.job, action.lease))

        def answered(reply: Any, error: BaseException | None) -> None:
            lost = error is not None and self._transport.may_answer_yet(error)
            if lost and tries < _REPLAY_TRIES:
                self._clock.call_later(_SETTLE_PAUSE_S, lambda: self._replay(action, tries + 1))
                return
            header = None if error is not None else self._transport.header_of(reply)
            if job is None or header is None or header.outcome == "refused":
                failed()
            else:
                self._take_header(job, action.lease, header)

        def ask() -> None:
            if job is None or link is None:
                failed()
            else:
                header, value = self._transport.replay(link, action.job)
                job._dispatch(value)
                self._transport.listen(header, answered)

        self._try(ask, failed)

    def _abandon(self, action: AbandonLease) -> None:
        link = self._links.get(action.lease)
        if link is not None:
            fence = action.lease.fence
            self._try(lambda: self._transport.abandon(link, fence, action.job), lambda: None)

    def _try(self, call: Callable[[], None], otherwise: Callable[[], None]) -> None:
        try:
            call()
        except CallFailed:
            log.debug("a call to the pool could not be sent", exc_info=True)
            otherwise()

    # -- the controller -----------------------------------------------------------------------

    def _sync(self, action: SendSync) -> None:
        if self._about is None:
            self._about = self._transport.about()
        served = {source: (sum(c.values()), dict(c)) for source, c in list(self._served.items())}
        self._poller.send(
            SyncRequest(
                self._client,
                action.seq,
                action.held,
                action.acked,
                action.demands,
                action.parent,
                action.blocked,
                self._about,
                served,
            )
        )

    def _on_synced(self, seq: int, reply: SyncReply) -> None:
        for address in reply.addresses:
            for grant in reply.grants:
                if grant.lease.worker == address.worker:
                    self._links.setdefault(grant.lease, Link(address))
        self._post(
            Synced(
                time.monotonic(), seq, reply.epoch, reply.grants, reply.revoked, reply.rejections
            )
        )

    def _on_sync_failed(self, seq: int, reason: str) -> None:
        if self._transport.find_again():
            self._tether_again()
            self._post(SyncFailed(time.monotonic(), seq, reason))
        else:
            text = f"no pool runs on this cluster any more ({reason})"
            self._post(SyncFailed(time.monotonic(), seq, text, _GONE_PATIENCE_S))

    def _tether_again(self) -> None:
        self._try(lambda: self._transport.tether(self._client), lambda: None)

    # -- time ---------------------------------------------------------------------------------

    def _wake(self, action: WakePump) -> None:
        self._clock.wake_at(action.when)
