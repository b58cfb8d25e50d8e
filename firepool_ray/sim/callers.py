"""The simulated callers: one real pump each, its mailbox at the controller, and its jobs.

A caller's client is made with its first job and dropped only where the run says that callers close.
Used by the engine. Nothing is decided here: pumps decide, this carries out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from firepool_ray.core import events as ev
from firepool_ray.core import pump_events as pe
from firepool_ray.core.model import Caller, Grant, JobClass, LeaseId, Rejection, ReuseKey
from firepool_ray.core.pump import Pump
from firepool_ray.errors import InternalError
from firepool_ray.sim.clock import Channel, Clock
from firepool_ray.sim.cluster import Cluster
from firepool_ray.sim.fairness import Share
from firepool_ray.sim.traces import TraceJob
from firepool_ray.sim.workload import Session

#: The controller's only epoch in a simulation.
EPOCH = 1


class Mailbox:
    """As the controller keeps it: grants until acknowledged, the rest once.

    An empty answer after ten seconds changes nothing but the poll's number, so a simulated poll
    stays parked until there is news or a newer one.
    """

    __slots__ = ("grants", "parked", "rejections", "revoked", "ringing", "seq")

    def __init__(self) -> None:
        self.seq = -1
        self.grants: dict[int, Grant] = {}
        self.revoked: list[LeaseId] = []
        self.rejections: list[Rejection] = []
        self.parked = 0  #: the poll that waits for news; 0 for none
        self.ringing = False  #: an answer is about to be sent

    def has_news(self) -> bool:
        return bool(self.grants or self.revoked or self.rejections)


class SimClient:
    __slots__ = (
        "alive",
        "box",
        "caller",
        "classes",
        "downward",
        "id",
        "open",
        "pump",
        "share",
        "upward",
        "wake_at",
    )

    def __init__(self, id: str, caller: Caller, window_s: float, share: Share) -> None:
        self.id = id
        self.caller = caller
        self.pump = Pump(window_s)
        self.box = Mailbox()
        self.share = share
        self.upward = Channel()  #: to the controller
        self.downward = Channel()  #: from the controller
        self.classes: dict[str, JobClass] = {}  #: by profile
        self.wake_at = float("inf")
        self.open = 0  #: jobs that have not ended
        self.alive = True


class SimJob:
    """One job until it ends."""

    __slots__ = ("client", "gpus", "job", "session", "started", "submitted_at", "tag", "way")

    def __init__(
        self,
        client: SimClient,
        submitted_at: float,
        job: TraceJob,
        gpus: float,
        session: Session | None,
        tag: int,
    ) -> None:
        self.client = client
        self.submitted_at = submitted_at
        self.job = job
        self.gpus = gpus  #: its units
        self.session = session
        self.tag = tag
        self.started = False
        self.way = Channel()  #: between its client and its worker


class Callers:
    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        units: dict[str, float],
        window_s: float,
        share_of: Callable[[Caller], Share],
        tell: Callable[[ev.Event], None],
        started: Callable[[SimJob, str], None],
        ended: Callable[[SimJob, str, str], None],
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._units = units
        self._window_s = window_s
        self._share_of = share_of
        self._tell = tell
        self._started = started  #: (job, source): its worker accepted it
        self._ended = ended  #: (job, cause, message): its only outcome
        self._serial = 0
        self._made = 0
        self._by_caller: dict[Caller, SimClient] = {}
        self._by_id: dict[str, SimClient] = {}
        self._jobs: dict[str, SimJob] = {}
        self._acts: dict[type[pe.PumpAction], Callable[[SimClient, Any], None]] = {
            pe.DispatchJob: self._dispatch,
            pe.EndJob: self._end,
            pe.SendSync: self._send_sync,
            pe.WakePump: self._set_wake,
            pe.ForgetLease: _forget,
        }

    # -- jobs ----------------------------------------------------------------------------------

    def submit(self, job: TraceJob, session: Session | None, tag: int) -> SimJob:
        caller = Caller(job.queue, job.caller)
        client = self._by_caller.get(caller)
        if client is None:
            client = self._join(caller)
        job_class = client.classes.get(job.profile)
        if job_class is None:
            job_class = client.classes[job.profile] = JobClass(ReuseKey(job.profile, caller))
        now = self._clock.now
        self._serial += 1
        name = str(self._serial)
        made = SimJob(client, now, job, self._units[job.profile], session, tag)
        self._jobs[name] = made
        client.open += 1
        client.share.wants(made.gpus)
        self._pump(client, pe.JobSubmitted(now, name, job_class))
        return made

    def _dispatch(self, client: SimClient, action: pe.DispatchJob) -> None:
        job = self._jobs[action.job]
        self._clock.send(job.way, self._arrive, (job, action))

    def _arrive(self, sent: tuple[SimJob, pe.DispatchJob]) -> None:
        job, action = sent
        if not self._cluster.accept(action.lease, action.job):
            self._clock.send(job.way, self._refused, sent)
            return
        job.started = True
        job.client.share.starts(job.gpus)
        self._started(job, action.source)
        self._clock.at(self._clock.now + job.job.duration_s, self._finish, sent)

    def _refused(self, sent: tuple[SimJob, pe.DispatchJob]) -> None:
        job, action = sent
        answer = pe.JobAnswered(self._clock.now, action.job, action.lease, "refused", "gone")
        self._pump(job.client, answer)

    def _finish(self, sent: tuple[SimJob, pe.DispatchJob]) -> None:
        job, action = sent
        usable = self._cluster.finish(action.lease, action.job)
        self._clock.send(job.way, self._answered, (job, action, usable))

    def _answered(self, sent: tuple[SimJob, pe.DispatchJob, bool]) -> None:
        job, action, usable = sent
        now, ran_s = self._clock.now, job.job.duration_s
        lease_state: Literal["idle", "gone"] = "idle" if usable else "gone"
        self._pump(
            job.client,
            pe.JobAnswered(now, action.job, action.lease, "ended", lease_state, ran_s),
        )

    def _end(self, client: SimClient, action: pe.EndJob) -> None:
        job = self._jobs.pop(action.job)
        client.open -= 1
        if job.started:
            client.share.ends(job.gpus)
        else:
            client.share.gives_up(job.gpus)
        self._ended(job, action.cause, action.message)

    # -- clients -------------------------------------------------------------------------------

    def _join(self, caller: Caller) -> SimClient:
        self._made += 1
        share = self._share_of(caller)
        client = SimClient(f"c{self._made}", caller, self._window_s, share)
        self._by_caller[caller] = self._by_id[client.id] = client
        return client

    def close(self, caller: Caller) -> None:
        """The caller is done: it says so, and its client leaves."""
        client = self._by_caller.get(caller)
        if client is not None and not client.open:
            del self._by_caller[caller]
            self._clock.send(client.upward, self._leave, client)

    def _leave(self, client: SimClient) -> None:
        now = self._clock.now
        client.alive = False
        del self._by_id[client.id]
        self._tell(ev.CallerClosing(now, client.caller))
        self._tell(ev.ClientLost(now, client.id, "done"))

    def _pump(self, client: SimClient, event: pe.PumpEvent) -> None:
        if not client.alive:
            return
        for action in client.pump.handle(event):
            act = self._acts.get(type(action))
            if act is None:
                raise InternalError(f"nothing fails here, yet: {action}")
            act(client, action)

    def _set_wake(self, client: SimClient, action: pe.WakePump) -> None:
        client.wake_at = action.when
        self._clock.at(action.when, self._wake, (client, action.when))

    def _wake(self, due: tuple[SimClient, float]) -> None:
        client, when = due
        if client.wake_at == when:
            client.wake_at = float("inf")
            self._pump(client, pe.PumpWoke(self._clock.now))

    # -- the mailbox at the controller ---------------------------------------------------------

    def _send_sync(self, client: SimClient, action: pe.SendSync) -> None:
        self._clock.send(client.upward, self._sync, (client, action))

    def _sync(self, sent: tuple[SimClient, pe.SendSync]) -> None:
        client, action = sent
        if not client.alive:
            return
        box = client.box
        if box.parked:
            self._to_client(client, box.parked, (), (), ())
        box.seq = box.parked = action.seq
        if action.acked[0] == EPOCH and box.grants:
            box.grants = {n: g for n, g in box.grants.items() if n > action.acked[1]}
        self._tell(
            ev.ClientSynced(
                self._clock.now,
                client.id,
                action.seq,
                action.held,
                action.acked,
                action.demands,
            )
        )
        self._ring(client)

    def post_grant(self, client_id: str, grant: Grant) -> None:
        client = self._by_id.get(client_id)
        if client is not None:
            client.box.grants[grant.number] = grant
            self._ring(client)

    def post_revoked(self, client_id: str, lease: LeaseId) -> None:
        client = self._by_id.get(client_id)
        if client is not None:
            box = client.box
            box.grants = {n: g for n, g in box.grants.items() if g.lease != lease}
            box.revoked.append(lease)
            self._ring(client)

    def post_rejection(self, client_id: str, rejection: Rejection) -> None:
        client = self._by_id.get(client_id)
        if client is not None:
            client.box.rejections.append(rejection)
            self._ring(client)

    def _ring(self, client: SimClient) -> None:
        """Answer the parked poll once all that happens now has been posted."""
        box = client.box
        if box.parked and not box.ringing and box.has_news():
            box.ringing = True
            self._clock.soon(self._answer, client)

    def _answer(self, client: SimClient) -> None:
        box = client.box
        box.ringing = False
        if box.parked and box.has_news():
            seq, box.parked = box.parked, 0
            news = (tuple(box.grants.values()), tuple(box.revoked), tuple(box.rejections))
            box.revoked, box.rejections = [], []
            self._to_client(client, seq, *news)

    def _to_client(
        self,
        client: SimClient,
        seq: int,
        grants: tuple[Grant, ...],
        revoked: tuple[LeaseId, ...],
        rejections: tuple[Rejection, ...],
    ) -> None:
        told = (client, seq, grants, revoked, rejections)
        self._clock.send(client.downward, self._synced, told)

    def _synced(
        self,
        told: tuple[SimClient, int, tuple[Grant, ...], tuple[LeaseId, ...], tuple[Rejection, ...]],
    ) -> None:
        client, seq, grants, revoked, rejections = told
        self._pump(client, pe.Synced(self._clock.now, seq, EPOCH, grants, revoked, rejections))


def _forget(client: SimClient, action: pe.ForgetLease) -> None:
    """The next sync says so."""
