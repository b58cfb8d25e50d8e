"""One daemon thread per client: timed wake-ups, and work that must not run where it arose.

Anything may be handed to it from any thread, signal handler or finaliser: handing over is one
append to a lock-free queue.
"""

from __future__ import annotations

import heapq
import logging
import queue
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Clock:
    def __init__(self, on_wake: Callable[[], None]) -> None:
        self._on_wake = on_wake
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_at = float("inf")
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="firepool-clock", daemon=True)
        self._thread.start()

    def call_soon(self, work: Callable[[], None]) -> None:
        self._inbox.put(work)

    def call_later(self, pause_s: float, work: Callable[[], None]) -> None:
        when = time.monotonic() + pause_s
        self._inbox.put(lambda: self._add_timer(when, work))

    def wake_at(self, when: float) -> None:
        """Call ``on_wake`` at this monotonic time. A later call replaces an earlier one."""
        self._inbox.put(lambda: self._set_wake(when))

    def stop(self) -> None:
        """The thread ends after what it is doing; what was handed over is dropped."""
        self._stopped = True
        self._inbox.put(lambda: None)

    def _set_wake(self, when: float) -> None:
        self._wake_at = when

    def _add_timer(self, when: float, work: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, work))

    def _serve(self) -> None:
        while not self._stopped:
            due_at = min(self._wake_at, self._timers[0][0] if self._timers else float("inf"))
            try:
                if due_at == float("inf"):
                    work = self._inbox.get()
                else:
                    work = self._inbox.get(timeout=max(0.0, due_at - time.monotonic()))
            except queue.Empty:
                work = self._next_due()
            try:
                work()
            except Exception:
                log.exception("background work of this process's pool client failed")

    def _next_due(self) -> Callable[[], None]:
        if self._timers and self._timers[0][0] <= self._wake_at:
            return heapq.heappop(self._timers)[2]
        self._wake_at = float("inf")
        return self._on_wake
