"""A submitted job, as its submitter sees it.

Made by ``client.pool``; its outcome is set exactly once by ``client.engine``. A Job needs no lock:
the outcome is one write, and callbacks are taken from their list one by one.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from firepool_ray.client.outcome import JobInfo, Outcome, Trail
from firepool_ray.errors import NotPicklable, UsageError

if TYPE_CHECKING:
    from firepool_ray.client.capture import Capture
    from firepool_ray.client.engine import Engine


class Job:
    """One call of user code on a worker. Await it, or ask ``result()``.

    Dropping a Job does not stop it.
    """

    __slots__ = (
        "__weakref__",
        "_call",
        "_callbacks",
        "_capture",
        "_dispatched",
        "_engine",
        "_fresh",
        "_given",
        "_outcome",
        "_pending",
        "_ref",
        "_scope",
        "_trail",
        "id",
        "name",
        "timeout_s",
        "env",
    )

    def __init__(
        self,
        id: str,
        name: str,
        engine: Engine | None,
        capture: Capture | None,
        trail: Trail,
        env: tuple[tuple[str, str], ...] = (),
        timeout_s: float = 0.0,
    ) -> None:
        self.id = id
        self.name = name
        self.env = env
        self.timeout_s = timeout_s
        self._engine = engine
        self._capture = capture
        self._call: list[bool] = []  #: not empty while the reply of its call counts
        self._fresh = True  #: until ``submit`` has returned
        self._trail = trail
        self._scope: Any = None
        self._ref: Any = None
        self._outcome: Outcome | None = None
        self._pending: Outcome | None = None  #: what the pump's verdict will make its outcome
        self._callbacks: list[Callable[[], None]] = []  #: to be called when it ends
        self._dispatched: list[Callable[[], None]] = []  #: or when it is dispatched
        self._given: tuple[Any, ...] = ()  #: references that its user got before it ended

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name} {self._state()}>"

    # -- the user's side ----------------------------------------------------------------------

    def result(self, timeout_s: float | None = None) -> Any:
        """The value, or the job's own error raised.

        ``timeout_s`` bounds the waiting only (``TimeoutError``); the job goes on.
        """
        if self._outcome is None:
            self._wait(timeout_s)
        outcome = self._outcome
        assert outcome is not None
        error = outcome.error()
        if error is None:
            return outcome.value()
        try:
            raise error
        finally:
            del error, self  # no cycle through the traceback

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """The error that ``result`` would raise; None for a value. Waits like ``result``."""
        if self._outcome is None:
            self._wait(timeout_s)
        assert self._outcome is not None
        return self._outcome.error()

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        self._listen()
        return self._outcome is not None

    def cancel(self) -> bool:
        """Ask for its end; False if it has ended already.

        Returns at once. A running job is interrupted on its worker and, if it does not let go,
        killed; if it was just returning, it may still end with its value.
        """
        if self._outcome is not None or self._engine is None:
            return False
        self._engine.cancel(self)
        return True

    @property
    def ref(self) -> Any:
        """The Ray ObjectRef of the value; ``ray.get`` of it raises a failed job's error.

        It exists from dispatch on: asked earlier, this waits, and raises what ended a job that
        was never dispatched. A retry makes a new one.
        """
        while self._ref is None and self._outcome is None:
            asleep = threading.Lock()
            asleep.acquire()
            self._dispatched.append(asleep.release)
            if self._ref is None and self._outcome is None:
                asleep.acquire()
        if self._ref is None:
            assert self._outcome is not None
            raise self._outcome.error() or AssertionError("a job without a reference has failed")
        ref = self._ref
        if self._outcome is None and self._engine is not None and ref not in self._given:
            self._engine.give(self, ref)
        return ref

    def info(self) -> JobInfo:
        """A snapshot of where the job is and where its time went."""
        self._listen()
        trail, header = self._trail, self._trail.header
        return JobInfo(
            self.id,
            self.name,
            self._state(),
            self._outcome.name if self._outcome is not None else None,
            trail.caller,
            trail.profile,
            trail.source,
            trail.worker,
            trail.lane,
            trail.node,
            trail.submitted_at,
            trail.ready_at,
            trail.dispatched_at,
            header.received_at if header is not None else 0.0,
            header.started_at if header is not None else 0.0,
            header.ended_at if header is not None else 0.0,
            header.bind_s if header is not None else 0.0,
        )

    def __await__(self) -> Generator[Any, None, Any]:
        """``await job`` in any event loop. Cancelling the awaiting task leaves the job alone."""
        if self._outcome is None:
            yield from self._await_end().__await__()
        outcome = self._outcome
        assert outcome is not None
        if not outcome.is_local:
            loop = asyncio.get_running_loop()
            return (yield from loop.run_in_executor(None, self.result).__await__())
        return self.result()

    async def _await_end(self) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ended.done():
                ended.set_result(None)

        def notify() -> None:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                return  # the loop was closed: nobody awaits any more

        self._add_callback(notify)
        leave = self._engine.enter_wait() if self._engine is not None else None
        try:
            await ended
        finally:
            self._remove_callback(notify)
            if leave is not None:
                leave()

    # -- the engine's side --------------------------------------------------------------------

    def _state(self) -> str:
        if self._outcome is not None:
            return "ended"
        return self._engine.place_of(self.id) if self._engine is not None else "running"

    def _listen(self) -> None:
        if self._outcome is None and self._engine is not None:
            self._engine.listen(self)

    def _wait(self, timeout_s: float | None) -> None:
        assert self._engine is not None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        scopes = self._engine.job_scopes
        while self._outcome is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError(f"{self!r} has not ended within {timeout_s} s; it goes on")
            if self._engine.take(self, left_s):
                continue
            if scopes is not None:
                scopes.wait(self, left_s)
            else:
                self._await_callback(left_s)

    def _await_callback(self, timeout_s: float | None) -> None:
        """Sleep until the end or the timeout, whichever comes first."""
        asleep = threading.Lock()
        asleep.acquire()
        self._add_callback(asleep.release)
        if timeout_s is None:
            asleep.acquire()
        elif not asleep.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            self._remove_callback(asleep.release)

    def _add_callback(self, callback: Callable[[], None]) -> None:
        self._listen()
        self._callbacks.append(callback)
        if self._outcome is not None:
            _call_each(self._callbacks)

    def _remove_callback(self, callback: Callable[[], None]) -> None:
        try:
            self._callbacks.remove(callback)
        except ValueError:
            return  # it was called meanwhile

    def _dispatch(self, ref: Any) -> None:
        """Its call left under this reference, the first or that of a retry."""
        self._ref = ref
        if self._dispatched:
            _call_each(self._dispatched)

    def _end(self, outcome: Outcome) -> None:
        """Its only outcome. A second one is ignored: the first may have been seen."""
        if self._outcome is None:
            self._outcome = outcome
            self._capture = self._pending = None
        _call_each(self._callbacks)
        if self._dispatched:
            _call_each(self._dispatched)

    # -- travelling ---------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        if self._ref is None:
            raise NotPicklable(
                f"{self!r} cannot be pickled before it is dispatched: only a running or finished "
                "job has a reference. Pass it to submit as an argument of its own instead"
            )
        return (_view, (self.id, self.name, self._ref, self._trail))


def _view(id: str, name: str, ref: Any, trail: Trail) -> JobView:
    return JobView(id, name, ref, trail)


class JobView(Job):
    """A job of another process: it can be waited for by its reference, and not be cancelled."""

    __slots__ = ()

    def __init__(self, id: str, name: str, ref: Any, trail: Trail) -> None:
        super().__init__(id, name, None, None, trail)
        self._ref = ref

    def result(self, timeout_s: float | None = None) -> Any:
        return _transport().fetch(self._ref, timeout_s)

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        ended_in_time = _transport().is_ready(self._ref, timeout_s)
        if not ended_in_time:
            raise TimeoutError(f"{self!r} has not ended within {timeout_s} s; it goes on")
        try:
            self.result()
        except Exception as error:
            return error
        return None

    def done(self) -> bool:
        return bool(_transport().is_ready(self._ref, 0))

    def cancel(self) -> bool:
        raise UsageError(f"{self!r} belongs to another process: only that can cancel it")

    def __await__(self) -> Generator[Any, None, Any]:
        loop = asyncio.get_running_loop()
        return (yield from loop.run_in_executor(None, self.result).__await__())

    def _state(self) -> str:
        return "ended" if self.done() else "running"


def _transport() -> Any:
    return importlib.import_module("firepool_ray.client.transport")


def _call_each(callbacks: list[Callable[[], None]]) -> None:
    """Every callback once, even if two threads come here at the same time."""
    while callbacks:
        try:
            callback = callbacks.pop(0)
        except IndexError:  # another thread took the last one
            return
        callback()
