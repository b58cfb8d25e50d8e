"""What is known of a job: how it ended, where it was and where its time went.

Written by ``client.effects`` along the way, read through ``client.job``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from firepool_ray.binding import payload
from firepool_ray.errors import RemoteError
from firepool_ray.runtime.protocol import Header, RemoteFailure


@dataclass(frozen=True)
class JobInfo:
    """Where a job is, or was, and where its time went. Times are ``time.time()``; 0 for not yet."""

    job: str
    name: str
    state: str  #: "blocked" | "waiting" | "running" | "stopping" | "settling" | "ended"
    outcome: str | None  #: of an ended job: "ok", "error", "cancelled", "timeout", "lost", ...
    caller: str  #: "queue/name"
    profile: str
    source: str | None  #: "warm" | "standby" | "handover" | "cold"; None before it is dispatched
    worker: str
    lane: str
    node: str
    submitted_at: float
    ready_at: float  #: its references existed
    dispatched_at: float
    received_at: float
    started_at: float  #: right before its first user instruction
    ended_at: float
    bind_s: float  #: spent on code and arguments on the worker

    @property
    def start_s(self) -> float | None:
        """From submit to the first user instruction; None if it never started."""
        return max(0.0, self.started_at - self.submitted_at) if self.started_at else None

    @property
    def run_s(self) -> float | None:
        """Time in user code; None if it has not ended, or never started."""
        return max(0.0, self.ended_at - self.started_at) if self.ended_at else None


@dataclass
class Trail:
    """What ``JobInfo`` is made of, written along the way."""

    caller: str
    profile: str
    submitted_at: float
    ready_at: float = 0.0
    dispatched_at: float = 0.0
    source: str | None = None
    worker: str = ""
    lane: str = ""
    node: str = ""
    header: Header | None = None  #: without value and error
    loss: str = ""  #: why a reply was lost


class RemoteTraceback(Exception):
    """Shows the traceback of the worker as the cause of a user's exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


class Outcome:
    """How a job ended. ``value`` is loaded on first use."""

    __slots__ = ("_data", "_error", "_failure", "_fetch", "_value", "name")

    def __init__(
        self,
        name: str,
        *,
        data: bytes | None = None,
        fetch: Callable[[], Any] | None = None,
        failure: RemoteFailure | None = None,
        error: BaseException | None = None,
    ) -> None:
        self.name = name
        self._data = data  #: a small value, pickled
        self._fetch = fetch  #: gets a big value from Ray
        self._failure = failure
        self._error = error
        self._value: Any = None

    @property
    def has_failed(self) -> bool:
        return self._error is not None or self._failure is not None

    @property
    def is_local(self) -> bool:
        """Whether neither ``value`` nor ``error`` has to wait for Ray."""
        return self._fetch is None

    def value(self) -> Any:
        """The value; for a job that succeeded. Two threads may load it; one load is kept."""
        data, fetch = self._data, self._fetch
        if data is not None:
            self._value = payload.loads(data)
            self._data = None
        elif fetch is not None:
            self._value = fetch()
            self._fetch = None
        return self._value

    def error(self) -> BaseException | None:
        failure = self._failure
        if self._error is None and failure is not None:
            self._error = _rebuild(failure)
            self._failure = None
        return self._error


def _rebuild(failure: RemoteFailure) -> BaseException:
    error: Any = None
    if failure.pickled is not None:
        try:
            error = payload.loads(failure.pickled)
        except Exception:  # its class cannot be loaded here: the text has to do
            error = None
    if not isinstance(error, BaseException):
        return RemoteError(failure.type_name, failure.message, failure.traceback_text)
    if failure.traceback_text:
        error.__cause__ = RemoteTraceback(failure.traceback_text)
    return error
