"""Jobs whose arguments do not exist yet: they enter their FIFO once everything is there.

An argument that is not ready would block its worker for every later job. References are watched
by one thread; jobs of this process tell by themselves.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from firepool_ray.client.job import Job
from firepool_ray.client.transport import Transport

log = logging.getLogger(__name__)

#: How soon a reference that joins the watch is looked at.
_LOOK_S = 0.02


class Arrivals:
    """Calls back once all references and jobs that a job needs are there."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.RLock()  #: a signal handler may submit, too
        self._inbox: queue.SimpleQueue[tuple[Any, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def missing(self, refs: list[Any]) -> list[Any]:
        """Those of the references that do not exist yet."""
        if not refs:
            return []
        ready = self._transport.are_ready(refs)
        return [ref for ref in refs if ref not in ready]

    def when_all(
        self,
        refs: list[Any],
        jobs: list[Job],
        ready: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Exactly one of ``ready`` and ``failed`` (with a job's error) is called, once."""
        lock = threading.Lock()
        left = len(refs) + len(jobs)

        def arrived(error: BaseException | None = None) -> None:
            nonlocal left
            with lock:
                if left <= 0:
                    return
                left = 0 if error is not None else left - 1
                if left:
                    return
            if error is not None:
                failed(error)
            else:
                ready()

        def follow(job: Job) -> None:
            job._add_callback(lambda: arrived(job._outcome.error() if job._outcome else None))

        for job in jobs:
            follow(job)
        for ref in refs:
            self._watch(ref, arrived)

    def stop(self) -> None:
        self._stopped = True
        self._inbox.put(None)

    def _watch(self, ref: Any, arrived: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="firepool-arrivals", daemon=True
                )
                self._thread.start()
        self._inbox.put((ref, arrived))

    def _serve(self) -> None:
        watched: dict[Any, list[Callable[[], None]]] = {}
        while not self._stopped:
            try:
                self._take_new(watched)
                if watched and not self._stopped:
                    for ref in self._transport.any_ready(list(watched), _LOOK_S):
                        for arrived in watched.pop(ref):
                            arrived()
            except Exception:  # Ray was shut down: those jobs end with the client
                log.exception("the arguments of waiting jobs can no longer be watched")
                return

    def _take_new(self, watched: dict[Any, list[Callable[[], None]]]) -> None:
        block = not watched
        while True:
            try:
                item = self._inbox.get(block)
            except queue.Empty:
                return
            if item is None:
                return
            watched.setdefault(item[0], []).append(item[1])
            block = False
