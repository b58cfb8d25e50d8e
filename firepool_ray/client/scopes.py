"""Who stands behind a submit: the code that would be missed if it ended.

Inside a job of the pool, or inside a Ray task, jobs that still wait are of no use once that code
has returned: they are cancelled, with a warning. Drivers and actors have no such end.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from firepool_ray.client.engine import Engine
from firepool_ray.client.job import Job
from firepool_ray.core.pump_events import ParentChanged, ScopeEnded
from firepool_ray.runtime import context
from firepool_ray.runtime.context import JobContext

log = logging.getLogger(__name__)

#: A wait inside a job is told to the controller if it lasts longer than this.
TELL_BLOCKED_S = 0.02
#: How often it is looked whether a Ray task has ended.
TASK_LOOK_S = 1.0

#: Ids of the unfinished jobs that one piece of code has submitted.
Scope = set[str]


class JobScopes:
    """Submits from inside jobs of the pool: caller, parent lease, and what ends with the job."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.RLock()  #: a signal handler may submit, too
        self._parent: JobContext | None = None
        self._scope: Scope = set()
        self._blocked = 0
        context.on_job_end(self._on_job_end)

    def enter(self, parent: JobContext) -> Scope:
        """The scope of the job that runs now."""
        with self._lock:
            if self._parent is parent:
                return self._scope
            self._parent, self._scope = parent, set()
        self._tell()
        return self._scope

    def wait(self, job: Job, timeout_s: float | None) -> None:
        """Wait for a job, letting the controller know that this one is stuck meanwhile."""
        first_s = TELL_BLOCKED_S if timeout_s is None else min(timeout_s, TELL_BLOCKED_S)
        job._await_callback(first_s)
        if job._outcome is not None or (timeout_s is not None and timeout_s <= first_s):
            return
        leave = self.block()
        try:
            job._await_callback(None if timeout_s is None else timeout_s - first_s)
        finally:
            leave()

    def block(self) -> Callable[[], None]:
        """The running job waits for its children until the returned function is called."""
        with self._lock:
            self._blocked += 1
            changed = self._blocked == 1
        if changed:
            self._tell()
        return self._unblock

    def _unblock(self) -> None:
        with self._lock:
            self._blocked -= 1
            changed = self._blocked == 0
        if changed:
            self._tell()

    def _tell(self) -> None:
        lease = self._parent.lease if self._parent is not None else None
        self._engine.post(
            ParentChanged(time.monotonic(), lease, lease is not None and self._blocked > 0)
        )

    def _on_job_end(self, ended: JobContext) -> None:
        with self._lock:
            if self._parent is not ended:
                return
            scope, self._parent, self._scope = self._scope, None, set()
        end_scope(self._engine, scope, f"job {ended.job}")
        self._tell()


class TaskScopes:
    """Submits from inside Ray tasks, which end without telling anybody.

    A task is known by its outermost Python frame. Looking for that frame once a second costs less
    than any hook, and needs nothing private of Ray.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.RLock()  #: a signal handler may submit, too
        self._frame: FrameType | None = None
        self._scope: Scope = set()

    def enter(self) -> Scope:
        """The scope of the task that runs now."""
        frame = _task_frame()
        with self._lock:
            if frame is self._frame and frame is not None:
                return self._scope
            ended = self._scope
            fresh = self._frame is None
            self._frame, self._scope = frame, set()
        end_scope(self._engine, ended, "a Ray task")
        if fresh and frame is not None:
            self._engine.clock.call_later(TASK_LOOK_S, self._look)
        return self._scope

    def _look(self) -> None:
        with self._lock:
            if self._frame is not None and self._frame is _task_frame():
                scope: Scope = set()
            else:
                scope, self._scope, self._frame = self._scope, set(), None
            again = self._frame is not None
        end_scope(self._engine, scope, "a Ray task")
        if again:
            self._engine.clock.call_later(TASK_LOOK_S, self._look)


def _task_frame() -> FrameType | None:
    """The outermost frame of what runs above Ray's task loop on the main thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        if frame.f_back.f_code.co_name == "main_loop":
            return frame
        frame = frame.f_back
    return None


def end_scope(engine: Engine, scope: Scope, what: str) -> None:
    jobs = tuple(sorted(scope))
    waiting = [job for job in jobs if engine.place_of(job) in ("blocked", "waiting")]
    if waiting:
        log.warning(
            "firepool: %s has ended; %d of its jobs had not started and are cancelled. "
            "Wait for them before returning",
            what,
            len(waiting),
        )
        engine.post(ScopeEnded(time.monotonic(), tuple(waiting)))
