"""Inputs and outputs of the pump: past facts with ``at`` seconds, and imperatives.

The client turns Ray's completions, the user's calls and the controller's news into these events
and carries out the actions in order; the simulator does the same without Ray.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firepool_ray.core.model import Demand, Grant, JobClass, LeaseId, Rejection, Source

INF = float("inf")


@dataclass(frozen=True, slots=True)
class PumpEvent:
    at: float


@dataclass(frozen=True, slots=True)
class JobSubmitted(PumpEvent):
    job: str
    job_class: JobClass
    ready: bool = True  #: False while it waits for references or other jobs
    queue_deadline: float = INF  #: it ends if it has not started by then
    timeout_s: float = 0.0  #: 0 for none; enforced on the worker's node, known here for verdicts
    max_retries: int = 0


@dataclass(frozen=True, slots=True)
class JobReady(PumpEvent):
    """All that the job waited for exists."""

    job: str


@dataclass(frozen=True, slots=True)
class JobAborted(PumpEvent):
    """What the job waited for failed; the client holds the error."""

    job: str


@dataclass(frozen=True, slots=True)
class JobAnswered(PumpEvent):
    """The call came back. ``refused`` and ``need_code``: no user code ran."""

    job: str
    lease: LeaseId
    answer: Literal["ended", "refused", "need_code"]
    lease_state: Literal["idle", "draining", "gone"]
    ran_s: float = 0.0  #: how long user code ran


@dataclass(frozen=True, slots=True)
class ReplyLost(PumpEvent):
    """The call broke: nobody knows yet whether the job ran."""

    job: str
    lease: LeaseId


@dataclass(frozen=True, slots=True)
class JobSettled(PumpEvent):
    """What the warden knows of a job whose reply was lost. ``started`` None: it cannot tell."""

    job: str
    lease: LeaseId
    started: bool | None
    running: bool
    alive: bool
    stopped: str = ""  #: the worker was killed for this reason


@dataclass(frozen=True, slots=True)
class ReplayFailed(PumpEvent):
    """The worker finished the job but has its reply no longer."""

    job: str
    lease: LeaseId


@dataclass(frozen=True, slots=True)
class CancelRequested(PumpEvent):
    job: str


@dataclass(frozen=True, slots=True)
class CancelAnswered(PumpEvent):
    """``reached`` False: the warden did not find the job on the worker, or was not found."""

    job: str
    lease: LeaseId
    reached: bool


@dataclass(frozen=True, slots=True)
class ScopeEnded(PumpEvent):
    """The code that submitted these jobs has ended: those that wait are cancelled."""

    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParentChanged(PumpEvent):
    """The lease whose job this client runs in, and whether that job waits for its children."""

    parent: LeaseId | None
    blocked: bool


@dataclass(frozen=True, slots=True)
class Synced(PumpEvent):
    """The controller answered a sync."""

    seq: int
    epoch: int
    grants: tuple[Grant, ...] = ()
    revoked: tuple[LeaseId, ...] = ()
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncFailed(PumpEvent):
    """The controller could not be reached; jobs wait ``patience_s`` from the first failure on."""

    seq: int
    reason: str
    patience_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Closed(PumpEvent):
    """This client leaves the pool. Later events are ignored."""

    reason: str


@dataclass(frozen=True, slots=True)
class PumpWoke(PumpEvent):
    """The time of an earlier ``WakePump`` has come."""


EndCause = Literal[
    "answered",  #: the reply says how
    "aborted",  #: the error of what it waited for
    "cancelled",
    "scope_ended",
    "closed",
    "timeout",
    "queue_timeout",
    "queue_full",
    "lost",
    "unavailable",
    "deadlock",
    "start_failed",
    "impossible",
]


@dataclass(frozen=True, slots=True)
class PumpAction:
    pass


@dataclass(frozen=True, slots=True)
class DispatchJob(PumpAction):
    """Call the worker. Answered by ``JobAnswered`` or ``ReplyLost``."""

    job: str
    lease: LeaseId
    source: Source
    with_code: bool = False  #: the worker said that it lacks the function or the code


@dataclass(frozen=True, slots=True)
class EndJob(PumpAction):
    """The job's only outcome. ``started`` as in ``WorkerLost``."""

    job: str
    cause: EndCause
    message: str = ""
    started: bool | None = None


@dataclass(frozen=True, slots=True)
class StopJob(PumpAction):
    """Ask the warden to cancel the running job. Answered by ``CancelAnswered``."""

    job: str
    lease: LeaseId


@dataclass(frozen=True, slots=True)
class SettleJob(PumpAction):
    """Ask the warden what became of it, fencing off a late delivery. Answered by ``JobSettled``."""

    job: str
    lease: LeaseId


@dataclass(frozen=True, slots=True)
class ReplayJob(PumpAction):
    """Ask the worker for its last reply. Answered by ``JobAnswered`` or ``ReplayFailed``."""

    job: str
    lease: LeaseId


@dataclass(frozen=True, slots=True)
class AbandonLease(PumpAction):
    """Nobody can tell what the worker does: have it revoked and killed. No answer."""

    job: str
    lease: LeaseId


@dataclass(frozen=True, slots=True)
class ForgetLease(PumpAction):
    """The lease is no longer this client's; no further action names it."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class SendSync(PumpAction):
    """State the client's whole situation. Answered by ``Synced`` or ``SyncFailed``."""

    seq: int
    held: tuple[LeaseId, ...]
    acked: tuple[int, int]
    demands: tuple[Demand, ...]
    parent: LeaseId | None
    blocked: bool


@dataclass(frozen=True, slots=True)
class WakePump(PumpAction):
    """Send ``PumpWoke`` at this time. A later action replaces an earlier one."""

    when: float
