"""Stop signals: they raise inside user code and nowhere else.

Used by the worker. The warden first writes the target job into the lease word and then signals;
the handler raises only while armed and only if the word names the job that is armed. Late
signals and signals meant for an earlier job do nothing. Neither do ``SIGINT`` and the signals of
timers outside of user code: their default action would end the worker for an alarm that a job
left behind.

An import is not broken off: a module that is half imported (an extension above all) cannot be
imported again, and the worker would be spoilt for all later jobs. The warden repeats its signal.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import TypeVar

from firepool_ray.runtime.words import WordFile

#: A real-time signal, which user code hardly uses, and which no tool sends by default.
STOP_SIGNAL = signal.SIGRTMIN + 5

TIMER_SIGNALS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)

#: Code that swallowed a stop, or that cleans up, is left alone for this long.
RAISE_AGAIN_S = 0.9
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"

T = TypeVar("T")


class JobStopped(KeyboardInterrupt):
    """Raised in user code when its job is cancelled or out of time.

    A ``KeyboardInterrupt``, because event loops, test runners and the like let that one through
    where they would swallow any other exception.
    """


class Guard:
    """Arms the handler around calls of user code. Main thread only."""

    def __init__(self, word: WordFile) -> None:
        self._word = word
        self._armed = ""  #: the job that a first stop signal may break off
        self._running = ""  #: the job whose code is on the stack; a later signal may break it off
        self._raised_at = 0.0
        #: The current job was told to stop. Whatever its code made of that, it is cancelled.
        self.stopped = False

    def install(self) -> None:
        signal.signal(STOP_SIGNAL, self._on_stop)
        signal.signal(signal.SIGINT, self._on_interrupt)
        for number in TIMER_SIGNALS:
            signal.signal(number, self._on_timer)

    def new_job(self) -> None:
        self._running = ""
        self.stopped = False

    def call(self, job: str, fn: Callable[..., T], *args: object) -> T:
        """``fn(*args)``, broken off by ``JobStopped`` when the job is to stop.

        May raise ``JobStopped`` even after ``fn`` has returned, never after this has returned:
        the handler disarms itself before it raises. It raises again, for code that swallowed the
        first one (in a ``__del__``, say), only while a frame above this one is interrupted.
        """
        try:
            self._running = self._armed = job
            if self._word.read().cancel == job:  # marked before there was anything to break off
                self._stop()
            return fn(*args)
        finally:
            self._running = ""
            self._armed = ""

    def _on_stop(self, _number: int, frame: FrameType | None) -> None:
        here = frame is None or frame.f_code is Guard.call.__code__
        job = self._armed
        if job:
            if self._word.read().cancel == job and not _is_importing(frame):
                if here:
                    self._running = ""
                self._stop()
        elif self._running and self.stopped and not here and self._may_raise_again(frame):
            self._raised_at = monotonic()
            raise JobStopped

    def _may_raise_again(self, frame: FrameType | None) -> bool:
        return monotonic() - self._raised_at >= RAISE_AGAIN_S and not _is_importing(frame)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._armed:
            raise KeyboardInterrupt

    def _on_timer(self, number: int, _frame: FrameType | None) -> None:
        if self._armed:
            name = signal.Signals(number).name
            raise TimeoutError(f"{name} arrived, and the job has set no handler for it")

    def _stop(self) -> None:
        self._armed = ""
        self.stopped = True
        self._raised_at = monotonic()
        raise JobStopped


def _is_importing(frame: FrameType | None) -> bool:
    """Whether user code is inside an import statement, here or further up the stack."""
    while frame is not None and frame.f_code is not Guard.call.__code__:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False
