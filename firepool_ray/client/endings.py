"""What the pump's verdict on a job means to its submitter: one error for each cause."""

from __future__ import annotations

from firepool_ray.client.job import Job
from firepool_ray.client.outcome import Outcome
from firepool_ray.core.pump_events import EndJob
from firepool_ray.errors import (
    FirepoolError,
    ImpossibleRequest,
    JobCancelled,
    JobTimeout,
    NestedDeadlock,
    PoolUnavailable,
    QueueFull,
    QueueTimeout,
    StartFailed,
    WorkerLost,
)


def outcome_of(job: Job, action: EndJob) -> Outcome:
    """The outcome of a job that the pump has ended."""
    if action.cause in ("answered", "aborted") and job._pending is not None:
        return job._pending
    return Outcome(action.cause, error=_error(job, action))


def _error(job: Job, action: EndJob) -> FirepoolError:
    what = f"{job.name} ({job.id})"
    detail = action.message
    match action.cause:
        case "cancelled":
            return JobCancelled(f"{what} was cancelled")
        case "scope_ended":
            return JobCancelled(
                f"{what} was cancelled: the task or job that submitted it ended before it started; "
                "take its result, or wait for it, before returning"
            )
        case "closed":
            return JobCancelled(f"{what} was cancelled: {detail}")
        case "timeout":
            return JobTimeout(f"{what} ran longer than its {job.timeout_s:g} s and was stopped")
        case "queue_timeout":
            return QueueTimeout(
                f"{what} found no worker within its queue_timeout_s; `firepool explain {job.id}` "
                "says what it waited for"
            )
        case "queue_full":
            return QueueFull(f"{what}: {detail}")
        case "unavailable":
            return PoolUnavailable(f"{what}: {detail}")
        case "deadlock":
            return NestedDeadlock(f"{what}: {detail}")
        case "start_failed":
            return StartFailed(f"{what}: {detail}")
        case "impossible":
            return ImpossibleRequest(f"{what}: {detail}")
        case _:
            return _lost(job, what, action)


def _lost(job: Job, what: str, action: EndJob) -> WorkerLost:
    run = {
        True: "its code had begun",
        False: "its code had not begun",
        None: "nobody can tell whether its code had begun",
    }[action.started]
    why = action.message or job._trail.loss or "its worker is gone"
    where = f" on worker {job._trail.worker}" if job._trail.worker else ""
    return WorkerLost(f"{what} was lost{where}: {why}; {run}", action.started)
