"""What code inside a job can learn about its job. Process-wide, whatever the thread.

Set by the worker around user code; read by the client, which takes caller and queue of nested
jobs from it. No Ray here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from firepool_ray.core.model import Caller, LeaseId

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobContext:
    """The job that runs in this process."""

    job: str
    lease: LeaseId
    profile: str
    caller: Caller
    deps: str


_current: JobContext | None = None
_on_job_end: list[Callable[[JobContext], None]] = []


def current_job() -> JobContext | None:
    """The job that runs in this process, or None outside of a job."""
    return _current


def on_job_end(callback: Callable[[JobContext], None]) -> None:
    """Have ``callback`` called on the worker's main thread at the end of every job from now on."""
    if callback not in _on_job_end:
        _on_job_end.append(callback)


def enter_job(context: JobContext) -> None:
    """For the worker only."""
    global _current
    _current = context


def leave_job() -> None:
    """For the worker only: the job's code has ended. Callbacks that fail are logged."""
    global _current
    context, _current = _current, None
    if context is None:
        return
    for callback in list(_on_job_end):
        try:
            callback(context)
        except Exception:
            _log.exception("a callback at the end of job %s failed", context.job)
