"""Jobs that tests run on workers. Imports little, since workers import it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any


def pid() -> int:
    return os.getpid()


def mark(path: str, text: str = "x") -> None:
    """One whole line: many processes may write to one file."""
    with open(path, "a") as file:
        file.write(f"{text}\n")


def mark_and_sleep(path: str, seconds: float) -> int:
    """Says that it has started, and where."""
    mark(path, str(os.getpid()))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
    return os.getpid()


def mark_and_wait(path: str, go: str) -> int:
    """Says that it has started, and where; ends when ``go`` exists."""
    mark(path, str(os.getpid()))
    while not os.path.exists(go):
        time.sleep(0.01)
    return os.getpid()


def mark_and_hang(path: str) -> None:
    """Lets nothing stop it but its end as a process."""
    mark(path, str(os.getpid()))
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue


def start_session(path: str) -> int:
    """A child in a session of its own, which nobody in its old session can end by accident."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    mark(path, str(child.pid))
    return child.pid


def start_session_and_sleep(path: str, seconds: float) -> int:
    start_session(path)
    time.sleep(seconds)
    return os.getpid()


def start_daemon_and_die(path: str) -> None:
    """A double fork with ``setsid``, so that its parent is gone; then the worker goes."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            mark(path, str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    while not os.path.exists(path):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def die_unless_marked(path: str) -> int:
    """Ends its worker the first time it runs."""
    first = not os.path.exists(path)
    mark(path)
    if first:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def die(path: str) -> None:
    mark(path)
    os.kill(os.getpid(), signal.SIGKILL)


def raise_error(error: BaseException) -> None:
    raise error


class Awkward(Exception):
    """Pickles, and cannot be built again from what was pickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def raise_awkward() -> None:
    raise Awkward("one", "two")


def raise_unpicklable() -> None:
    raise Unpicklable("holds a lock")


def exit_with(code: Any) -> None:
    sys.exit(code)


def generate() -> Any:
    yield 1


async def coroutine() -> int:
    return 1


def lock() -> Any:
    return threading.Lock()


def _refuse() -> None:
    raise RuntimeError("this argument does not load")


class RefusesToLoad:
    def __reduce__(self) -> Any:
        return (_refuse, ())


def accept(*_: Any) -> str:
    return "ran"


def leave_alarms() -> int:
    """Timers that would go off after the job, with and without a handler."""
    signal.signal(signal.SIGALRM, _raise)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.setitimer(signal.ITIMER_PROF, 0.05)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return os.getpid()


def _raise(*_: Any) -> None:
    raise RuntimeError("an alarm of another job")


def signal_state() -> tuple[float, float, bool]:
    """What is left of alarms and handlers, after letting left-over timers go off."""
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        sum(range(1000))
    return (
        signal.getitimer(signal.ITIMER_REAL)[0],
        signal.getitimer(signal.ITIMER_PROF)[0],
        signal.getsignal(signal.SIGTERM) is signal.SIG_IGN,
    )
