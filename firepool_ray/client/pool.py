"""The public face: one ``Client`` per process, found or started on the first submit.

Everything of ``firepool_ray`` that users call on a pool is here. Ray is reached through
``client.transport`` only, and imported when it is first needed.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firepool_ray.binding.code import build_code
from firepool_ray.client.capture import Capture, capture, name_of
from firepool_ray.client.engine import Engine
from firepool_ray.client.job import Job, JobView
from firepool_ray.client.options import Options
from firepool_ray.client.outcome import Trail
from firepool_ray.client.scopes import JobScopes, TaskScopes
from firepool_ray.client.waiting import Arrivals
from firepool_ray.config import PoolConfig, load
from firepool_ray.core.model import Caller, JobClass, ReuseKey
from firepool_ray.core.pump_events import INF, JobSubmitted
from firepool_ray.errors import PoolClosed, QueueFull, UnknownName, UsageError
from firepool_ray.runtime.context import JobContext, current_job
from firepool_ray.runtime.processes import MARKER

if TYPE_CHECKING:
    from firepool_ray.client.transport import Connection

log = logging.getLogger(__name__)

#: How long leaving may hold up the end of a process.
LEAVE_S = 2.0


class Client:
    """This process's side of a pool."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.transport = transport = connection.transport
        self.config = connection.config
        self.closed = False
        self.id = uuid.uuid4().hex[:12]
        self._numbers = itertools.count(1)
        self._default_caller = transport.default_caller()
        self._classes: dict[tuple[Options, Caller | None], JobClass] = {}
        self._engine = Engine(self.id, transport, self.config.window_s, build_code)
        self._arrivals = Arrivals(transport)
        self._is_worker = MARKER in os.environ
        self._job_scopes = JobScopes(self._engine) if self._is_worker else None
        self._task_scopes = TaskScopes(self._engine) if transport.in_ray_task() else None
        self._engine.job_scopes = self._job_scopes
        transport.tether(self.id)

    def submit(
        self,
        options: Options,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Job:
        if self.closed:
            raise PoolClosed("the pool was shut down: call firepool_ray.start() to use it again")
        submitted_at = time.time()
        parent = self._parent() if self._is_worker else None
        job_class = self._class_of(options, parent)
        call = capture(
            fn,
            args,
            kwargs,
            self.transport.ref_types,
            self.transport.object_ref,
            self.transport.put,
            self._engine.job_behind,
        )
        key = job_class.key
        job = Job(
            f"{self.id}-{next(self._numbers)}",
            name_of(fn),
            self._engine,
            call,
            Trail(str(key.caller), key.profile, submitted_at),
            options.env_items,
            options.timeout_s or 0.0,
        )
        if parent is not None and self._job_scopes is not None:
            self._join(job, self._job_scopes.enter(parent))
        elif self._task_scopes is not None:
            self._join(job, self._task_scopes.enter())
        if call.refs or call.nested:
            self._submit_when_ready(job, job_class, options, call)
        else:
            job._trail.ready_at = submitted_at
            self._enter(job, job_class, options, True)
        return job

    def _parent(self) -> JobContext:
        parent = current_job()
        if parent is None:
            raise UsageError(
                "submit from a thread that outlived the pool's job that started it: join threads "
                "before the job returns"
            )
        return parent

    def _join(self, job: Job, scope: set[str]) -> None:
        scope.add(job.id)
        job._scope = scope

    def _enter(self, job: Job, job_class: JobClass, options: Options, ready: bool) -> None:
        at = time.monotonic()
        deadline = INF if options.queue_timeout_s is None else at + options.queue_timeout_s
        self._engine.submit(
            job,
            JobSubmitted(
                at, job.id, job_class, ready, deadline, job.timeout_s, options.max_retries
            ),
        )
        outcome = job._outcome
        if outcome is not None and outcome.name == "queue_full":
            error = outcome.error()
            assert isinstance(error, QueueFull)
            raise error

    def _submit_when_ready(
        self, job: Job, job_class: JobClass, options: Options, call: Capture
    ) -> None:
        """Its references and jobs first; nothing of this waits."""
        needed: list[Job] = []
        for index, needed_job in call.deps:
            if isinstance(needed_job, JobView):
                call.refs[index] = needed_job.ref
            else:
                needed.append(needed_job)
        plain = [ref for ref in call.refs if not isinstance(ref, Job)]
        refs = self._arrivals.missing(plain)
        if not refs and not needed:
            job._trail.ready_at = time.time()
            self._enter(job, job_class, options, True)
            return
        self._enter(job, job_class, options, False)

        def ready() -> None:
            for index, dep in call.deps:
                call.refs[index] = dep.ref
            job._trail.ready_at = time.time()
            self._engine.ready(job)

        self._arrivals.when_all(refs, needed, ready, lambda error: self._engine.abort(job, error))

    def _class_of(self, options: Options, parent: JobContext | None) -> JobClass:
        known = self._classes.get((options, parent.caller if parent is not None else None))
        if known is not None:
            return known
        config = self.config
        profile = options.profile or (parent.profile if parent else config.default_profile)
        if profile not in config.profiles:
            raise UnknownName("profile", profile, config.profiles)
        queue = options.queue or (parent.caller.queue if parent else config.default_queue)
        if queue not in config.queues:
            raise UnknownName("queue", queue, config.queues)
        name = options.caller or (parent.caller.name if parent else self._default_caller)
        job_class = JobClass(ReuseKey(profile, Caller(queue, name)), options.priority)
        if len(self._classes) > 1000:
            self._classes.clear()
        self._classes[options, parent.caller if parent is not None else None] = job_class
        return job_class

    def closing(self, options: Options) -> None:
        parent = self._parent() if self._is_worker else None
        caller = self._class_of(options, parent).key.caller
        self.transport.closing(caller)

    def close(self, reason: str, timeout_s: float) -> None:
        if self.closed:
            return
        self.closed = True
        self._arrivals.stop()
        self._engine.close(reason)
        self.transport.leave(self.id, timeout_s)


class Pool:
    """A set of options to submit with. ``firepool_ray.options(...)`` makes one."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def options(self, **changed: Any) -> Pool:
        """The same options with some replaced."""
        return Pool(self._options.but(changed))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job:
        """Run ``fn(*args, **kwargs)`` on a worker; see ``firepool_ray.submit``."""
        return _client().submit(self._options, fn, args, kwargs)

    def map(
        self, fn: Callable[..., Any], iterable: Any, /, *more: Any, ordered: bool = True
    ) -> Any:
        """See ``firepool_ray.map``."""
        from firepool_ray.client.gather import map_jobs

        return map_jobs(self.submit, fn, (iterable, *more), ordered)

    def closing(self) -> None:
        """See ``firepool_ray.closing``; for the caller and queue of these options."""
        _client().closing(self._options)


_default = Pool(Options())
_current: Client | None = None
_connecting = threading.RLock()
_shut_down = False
_forked_from_ray = False


def submit(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job:
    """Run ``fn(*args, **kwargs)`` on a warm worker; returns at once with a ``Job``.

    Function and arguments are captured now; later changes do not reach the job. ObjectRefs and
    Jobs among the arguments are replaced by their values, as Ray does; the job waits for them.
    Without a running pool the embedded default is started first. Raises ``NotPicklable``,
    ``ArgumentTooLarge``, ``QueueFull``, ``PoolUnavailable`` and ``PoolClosed``.
    """
    return _client().submit(_default._options, fn, args, kwargs)


def options(**given: Any) -> Pool:
    """Options for submits: ``options(timeout_s=60).submit(fn, ...)``.

    profile, caller, queue: who asks for what (the pool's defaults otherwise). env: variables for
    the job. timeout_s: the running job is stopped. queue_timeout_s: a job that has not started
    ends. max_retries: runs again after a lost worker. priority: each step is worth the pool's
    fairness window of waiting. Raises ``UnknownName`` and ``UsageError`` at once.
    """
    return Pool(Options.of(given))


def map(fn: Callable[..., Any], iterable: Any, /, *more: Any, ordered: bool = True) -> Any:
    """``fn`` on every item, in parallel; an iterator of the values.

    Several iterables are taken in parallel, as by the builtin. ``ordered=False`` yields values as
    they come. The first error is raised and ends the rest, as does dropping the iterator.
    """
    return _default.map(fn, iterable, *more, ordered=ordered)


def closing() -> None:
    """Say that this caller is done: its idle workers are released now, not after their keep-alive.

    Call it at the end of an episode or a session; a later submit simply starts anew. Jobs that run
    or wait are not touched. Returns at once.
    """
    _default.closing()


def start(pool: str | Path | PoolConfig | Mapping[str, Any] | None = None) -> None:
    """Connect this process to the cluster's pool, starting it if none runs.

    ``pool`` is a pool file, its settings, or None for the default; a pool that runs already keeps
    its own settings. Raises ``ConfigError`` and ``PoolUnavailable``.
    """
    global _shut_down
    if isinstance(pool, PoolConfig) or pool is None:
        config = pool
    elif isinstance(pool, Mapping):
        config = PoolConfig.from_dict(pool)
    else:
        config = load(pool)
    with _connecting:
        _shut_down = False
        _connect(config)


def status() -> dict[str, Any]:
    """What the pool holds and does, as plain values. Raises ``PoolUnavailable``."""
    from firepool_ray.client import transport

    return transport.describe()


def shutdown() -> None:
    """Detach this process from the pool, and end an embedded pool that it started.

    Its unfinished jobs end as cancelled. Twice is as good as once.
    """
    global _current, _shut_down
    with _connecting:
        client, _current = _current, None
        _shut_down = True
        if client is None:
            return
        client.close("the pool was shut down by this process", LEAVE_S)
        from firepool_ray.client import transport

        transport.disconnect(client.connection)


def _client() -> Client:
    client = _current
    if client is not None and not client.closed:
        return client
    with _connecting:
        if _shut_down:
            raise PoolClosed("the pool was shut down: call firepool_ray.start() to use it again")
        return _connect(None)


def _connect(config: PoolConfig | None) -> Client:
    global _current
    if _forked_from_ray:
        raise UsageError(
            "this process was forked from one that was connected to Ray, and Ray's connection "
            "does not survive a fork: use the 'spawn' or 'forkserver' start method, or fork first"
        )
    from firepool_ray.client import transport

    if _current is not None:
        if transport.is_connected():
            return _current
        _current.close("Ray was shut down", 0.0)
    _current = Client(transport.connect(config))
    return _current


def _leave_at_exit() -> None:
    client = _current
    if client is not None:
        client.close("its process ends", LEAVE_S)


def _after_fork() -> None:
    """In the child: the parent's client, its threads and its lock are not ours."""
    global _current, _connecting, _shut_down, _forked_from_ray
    ray: Any = sys.modules.get("ray")
    _forked_from_ray = _forked_from_ray or (ray is not None and ray.is_initialized())
    _current = None
    _shut_down = False
    _connecting = threading.RLock()


atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_after_fork)
