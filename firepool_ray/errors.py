"""Every error this package raises, in one tree.

    FirepoolError
    ├── UsageError (also ValueError)      the call is wrong; nothing was started
    │   ├── ConfigError                   a pool file or setting; names the path of the key
    │   ├── UnknownName                   option, profile or queue; lists the valid ones
    │   ├── NotPicklable                  names the object that cannot travel
    │   ├── ArgumentTooLarge              arguments beyond the object store
    │   ├── ImpossibleRequest             no lane could ever serve it
    │   ├── TraceError                    a trace for the simulator; names the line
    │   └── PoolClosed                    used after ``shutdown``
    ├── JobError                          the job ended without a value, not by its own code
    │   ├── WorkerLost                    ``started`` says whether user code had begun
    │   ├── JobTimeout                    ran longer than ``timeout_s``
    │   ├── QueueTimeout                  waited longer than ``queue_timeout_s``
    │   ├── JobCancelled                  ``cancel()``, or its client went away
    │   ├── QueueFull                     too many jobs of this client and class wait already
    │   ├── NestedDeadlock                every eligible worker waits for a child of its own
    │   ├── StartFailed                   workers of the profile do not start; says why
    │   ├── BadResult                     the value cannot travel back (generator, unpicklable)
    │   ├── BadArgument                   an argument could not be loaded on the worker
    │   └── WorkerExit                    user code tried to end the worker (``sys.exit`` ...)
    ├── RemoteError                       user code raised something that cannot be rebuilt here
    ├── PoolUnavailable                   the controller or the cluster cannot be reached
    ├── KubeError                         Kubernetes refused, or does not answer; has ``status``
    └── InternalError                     a bug of ours
        ├── IllegalTransition             an event no table allows; nothing was changed
        ├── StaleEpoch                    an order of an older controller, refused
        └── DeviceBusy                    another process still holds the device's lock

User code's own exceptions are not in this tree: ``Job.result()`` raises them as they are.
Every error keeps its fields when it is pickled.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class FirepoolError(Exception):
    """Base of everything raised by firepool_ray itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(cls: type[FirepoolError], args: tuple[Any, ...], fields: dict[str, Any]) -> Any:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class UsageError(FirepoolError, ValueError):
    """The call is wrong; nothing was started and nothing is left behind."""


class ConfigError(UsageError):
    """A pool file or setting is wrong; the message names the path of the key."""


class UnknownName(UsageError):
    """An option, profile or queue that does not exist; the valid ones are listed."""

    def __init__(self, kind: str, name: object, valid: Iterable[str]) -> None:
        self.kind = kind
        self.name = name
        self.valid = tuple(sorted(valid))
        near = difflib.get_close_matches(str(name), self.valid, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(self.valid) or "none is defined"
        super().__init__(f"unknown {kind} {name!r}.{hint} Valid: {listed}.")


class NotPicklable(UsageError):
    """A function or argument cannot travel to a worker; the message names the culprit."""


class ArgumentTooLarge(UsageError):
    """Arguments larger than the object store or the configured bound."""


class ImpossibleRequest(UsageError):
    """No lane of the pool could ever serve this request."""


class TraceError(UsageError):
    """A trace for the simulator cannot be read; the message names the file and the line."""


class PoolClosed(UsageError):
    """The pool was used after ``shutdown``."""


class JobError(FirepoolError):
    """The job ended without a value, for a reason outside its own code."""


class WorkerLost(JobError):
    """The worker died or its reply was lost.

    ``started`` is True if user code had begun, False if it provably had not (then a retry is
    safe and was done unless retries ran out), None if nobody can tell.
    """

    def __init__(self, message: str, started: bool | None = None) -> None:
        self.started = started
        super().__init__(message)


class JobTimeout(JobError):
    """The job ran longer than ``options(timeout_s=...)`` and was stopped."""


class QueueTimeout(JobError):
    """The job waited for a worker longer than ``options(queue_timeout_s=...)``."""


class JobCancelled(JobError):
    """The job was cancelled before it ended."""


class QueueFull(JobError):
    """The bound on waiting jobs per client and class is reached."""


class NestedDeadlock(JobError):
    """All eligible workers wait for children that could only run on these workers."""


class StartFailed(JobError):
    """Workers of the profile fail to start; the message gives the last reason."""


class BadResult(JobError):
    """The job's value cannot travel back: a generator, or something unpicklable."""


class BadArgument(JobError):
    """An argument or the function itself could not be loaded on the worker."""


class WorkerExit(JobError):
    """User code tried to end its worker (``sys.exit``, ``KeyboardInterrupt``)."""


class RemoteError(FirepoolError):
    """User code raised an exception that cannot be rebuilt in this process."""

    def __init__(self, type_name: str, message: str, traceback_text: str) -> None:
        self.type_name = type_name
        self.message = message
        self.traceback_text = traceback_text
        super().__init__(f"{type_name}: {message}\n\n{traceback_text}")


class PoolUnavailable(FirepoolError):
    """The pool's controller or the Ray cluster cannot be reached."""


class KubeError(FirepoolError):
    """What Kubernetes was asked for and what it answered. ``status``: HTTP, 0 without answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class InternalError(FirepoolError):
    """Something that should not happen: a bug of this package."""


class IllegalTransition(InternalError):
    """An event that no transition table allows; nothing was changed."""


class StaleEpoch(InternalError):
    """An order by a controller whose epoch has been superseded."""

    def __init__(self, given: int, current: int) -> None:
        self.given = given
        self.current = current
        super().__init__(f"order of epoch {given} refused: epoch {current} is in charge")


class DeviceBusy(InternalError):
    """A worker was to become active while another process still holds its device's lock."""
