"""The discrete-event engine: one controller's machine, one pump per caller, on simulated time.

``simulate`` is called by the commands, the figures and tests. The machine and the pumps are those
that run in a real pool; clients, mailboxes, wardens and workers follow the same protocol with drawn
costs (``cluster``, ``callers``). Nothing is random but the seeded draws and nothing fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from firepool_ray.core import actions as do
from firepool_ray.core import events as ev
from firepool_ray.core.keepalive import KeepAlive
from firepool_ray.core.machine import Machine
from firepool_ray.core.model import Caller, PoolSpec
from firepool_ray.errors import TraceError
from firepool_ray.sim.accounts import GpuAccounts, Latencies, Starts
from firepool_ray.sim.callers import EPOCH, Callers, SimJob
from firepool_ray.sim.clock import Clock
from firepool_ray.sim.cluster import Cluster
from firepool_ray.sim.costs import Costs, Draws
from firepool_ray.sim.fairness import Fairness
from firepool_ray.sim.result import Result, summarise
from firepool_ray.sim.traces import TraceJob
from firepool_ray.sim.workload import Call, Session, Workload

INF = float("inf")
#: Idle workers are followed so long after the last job has ended; a policy that still holds some
#: then holds them for ever.
TAIL_S = 86_400.0
#: The progress callback is told once in so many jobs.
PROGRESS_EVERY = 500


@dataclass(frozen=True, slots=True)
class Setup:
    """All of a run but its load."""

    spec: PoolSpec
    costs: Costs = field(default_factory=Costs)
    seed: int = 0
    #: by profile name; None: what the spec says
    policies: Mapping[str, KeepAlive] | None = None
    #: callers say that they are done after their last job; else nobody is ever told
    closing: bool = False
    h2: float = 1.0  #: price of a free (standby) GPU-second, as a part of an idle one
    tail_s: float = TAIL_S
    lead_s: float = 0.0  #: the pool stands for so long before the first job; that counts as held


def simulate(
    setup: Setup,
    work: Workload,
    progress: Callable[[int], None] | None = None,
    ran: Callable[[TraceJob], None] | None = None,
) -> Result:
    """Run the load to its end and until what it left idle has been let go.

    ``progress`` is called with the number of jobs that have ended, ``ran`` with each job at the
    time at which its worker accepted it, in that order. Raises ``TraceError`` for a job whose
    profile or queue the pool does not have.
    """
    return _Run(setup, work, progress, ran).run()


class _Run:
    def __init__(
        self,
        setup: Setup,
        work: Workload,
        progress: Callable[[int], None] | None = None,
        ran: Callable[[TraceJob], None] | None = None,
    ) -> None:
        self._setup = setup
        self._progress = progress
        self._ran = ran
        spec = setup.spec
        self._units = {profile.name: profile.unit for profile in spec.profiles}
        self._gpus = {profile.name: profile.gpus for profile in spec.profiles}
        self._queues = {queue.name for queue in spec.queues}
        self._jobs: Iterator[TraceJob] = work.jobs()
        self._sessions: Iterator[Session] = work.sessions()
        self._next_job = next(self._jobs, None)
        self._next_session = next(self._sessions, None)
        begin_s = min(
            self._next_job.start_s if self._next_job is not None else INF,
            self._next_session.begin_s if self._next_session is not None else INF,
        )
        self.begin_s = begin_s if begin_s < INF else 0.0
        self._left = self._jobs_by_caller(work) if setup.closing else {}
        self._open_sessions: dict[Caller, int] = {}

        draws = Draws(setup.costs, setup.seed)
        self.clock = clock = Clock(draws)
        clock.now = self.begin_s - setup.lead_s
        self.accounts = GpuAccounts(clock.now)
        self.starts = Starts()
        self.latencies = Latencies()
        self.fairness = Fairness(clock, spec.queues, _capacity(spec))
        self.machine: Machine = Machine(spec, EPOCH, setup.policies)
        self._wake_at = INF
        cluster = Cluster(
            clock, draws, self.accounts, self.starts, self._units, self._linger_s, self._feed
        )
        callers = Callers(
            clock,
            cluster,
            self._units,
            spec.window_s,
            self.fairness.share_of,
            self._feed,
            self._job_started,
            self._job_ended,
        )
        self._callers = callers
        self._actions: dict[type[do.Action], Callable[[Any], None]] = {
            **cluster.orders,
            do.SendGrant: self._send_grant,
            do.SendRevoked: lambda action: callers.post_revoked(action.client, action.lease),
            do.SendRejection: lambda action: callers.post_rejection(
                action.client, action.rejection
            ),
            do.WakeAt: self._set_wake,
        }
        self.served: dict[str, int] = {source: 0 for source in self.latencies.counts}
        self.failed: dict[str, int] = {}
        self.first_failure = ""
        self.jobs = 0
        self.events = 0
        self.open = 0
        self.last_end_s = self.begin_s
        self.sessions = 0
        self.sessions_s = 0.0

    @staticmethod
    def _jobs_by_caller(work: Workload) -> dict[Caller, int]:
        """How many open-loop jobs each caller will submit."""
        counts: dict[Caller, int] = {}
        for job in work.jobs():
            caller = Caller(job.queue, job.caller)
            counts[caller] = counts.get(caller, 0) + 1
        return counts

    def run(self) -> Result:
        began = time.perf_counter()
        clock = self.clock
        self._feed(ev.Reconciled(clock.now))
        self._plan_job()
        self._plan_session()
        step, next_at = clock.step, clock.next_at
        while (when := next_at()) < INF:
            if not self.open and when > self.last_end_s + self._setup.tail_s and self._is_over():
                break
            step()
        self.accounts.advance(max(clock.now, self.last_end_s))
        self.fairness.look()
        return summarise(self, self._setup, time.perf_counter() - began)

    def _is_over(self) -> bool:
        return self._next_job is None and self._next_session is None and not self._open_sessions

    # -- arrivals ------------------------------------------------------------------------------

    def _plan_job(self) -> None:
        if self._next_job is not None:
            self.clock.at(self._next_job.start_s, self._arrive, self._next_job)

    def _arrive(self, job: TraceJob) -> None:
        self._submit(job, None, 0)
        self._next_job = next(self._jobs, None)
        self._plan_job()

    def _plan_session(self) -> None:
        if self._next_session is not None:
            self.clock.at(self._next_session.begin_s, self._begin, self._next_session)

    def _begin(self, session: Session) -> None:
        self.sessions += 1
        self.sessions_s -= session.begin_s
        self._follow(session, session.begin())
        self._next_session = next(self._sessions, None)
        self._plan_session()

    def _follow(self, session: Session, calls: list[Call]) -> None:
        for call in calls:
            caller = Caller(call.job.queue, call.job.caller)
            self._open_sessions[caller] = self._open_sessions.get(caller, 0) + 1
            self.clock.at(call.job.start_s, self._call, (session, call))

    def _call(self, planned: tuple[Session, Call]) -> None:
        session, call = planned
        self._submit(call.job, session, call.tag)

    def _submit(self, job: TraceJob, session: Session | None, tag: int) -> None:
        if job.profile not in self._units or job.queue not in self._queues:
            raise TraceError(_unknown(job, self._units, self._queues))
        if job.gpus != self._gpus[job.profile]:
            raise TraceError(
                f"caller {job.caller!r} wants {job.gpus:g} GPUs of profile {job.profile!r}, whose "
                f"workers have {self._gpus[job.profile]:g}: give it a profile of its own"
            )
        self.open += 1
        self.jobs += 1
        self._callers.submit(job, session, tag)

    # -- jobs ----------------------------------------------------------------------------------

    def _job_started(self, job: SimJob, source: str) -> None:
        self.served[source] += 1
        waited_s = self.clock.now - job.submitted_at
        self.latencies.note(source, job.client.caller.queue, waited_s)
        self.accounts.served(job.submitted_at, source)
        if self._ran is not None:
            self._ran(job.job._replace(start_s=self.clock.now))

    def _job_ended(self, job: SimJob, cause: str, message: str) -> None:
        self.open -= 1
        now = self.last_end_s = self.clock.now
        caller = job.client.caller
        if cause != "answered":
            self.failed[cause] = self.failed.get(cause, 0) + 1
            self.first_failure = self.first_failure or message
        if self._progress is not None and (self.jobs - self.open) % PROGRESS_EVERY == 0:
            self._progress(self.jobs - self.open)
        if job.session is None:
            self._count_down(caller)
            return
        self._follow(job.session, job.session.ended(job.tag, now))
        left = self._open_sessions[caller] - 1
        if left:
            self._open_sessions[caller] = left
        else:
            del self._open_sessions[caller]
        if job.session.done():
            self.sessions_s += now
            if not left and self._setup.closing:
                self._callers.close(caller)

    def _count_down(self, caller: Caller) -> None:
        """An open-loop job of a caller has ended; after its last one it may say so."""
        if self._left:
            self._left[caller] -= 1
            if not self._left[caller]:
                del self._left[caller]
                self._callers.close(caller)

    # -- the controller ------------------------------------------------------------------------

    def _feed(self, event: ev.Event) -> None:
        self.events += 1
        for action in self.machine.handle(event):
            self._actions[type(action)](action)

    def _send_grant(self, action: do.SendGrant) -> None:
        grant = action.grant
        self.starts.granted(grant.source, self._units[grant.job_class.key.profile])
        self._callers.post_grant(action.client, grant)

    def _set_wake(self, action: do.WakeAt) -> None:
        self._wake_at = action.when
        self.clock.at(action.when, self._wake, action.when)

    def _wake(self, when: float) -> None:
        if self._wake_at == when:
            self._wake_at = INF
            self._feed(ev.Woke(self.clock.now))

    def _linger_s(self, profile: str) -> float:
        return self.machine.pool.profiles[profile].promote_cost_s


def _capacity(spec: PoolSpec) -> float:
    """GPUs (units) that all lanes together may have."""
    return min(spec.max_gpus, sum(p.max_lanes * p.unit for p in spec.profiles))


def _unknown(job: TraceJob, profiles: Mapping[str, float], queues: set[str]) -> str:
    if job.profile not in profiles:
        return (
            f"a job of caller {job.caller!r} wants profile {job.profile!r}, which the pool does "
            f"not have: it has {', '.join(profiles)}"
        )
    return (
        f"a job of caller {job.caller!r} is of queue {job.queue!r}, which the pool does not have: "
        f"it has {', '.join(sorted(queues))}"
    )
