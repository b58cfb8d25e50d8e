"""The job border: what user code may leave behind in a warm process, and how it is put back.

Called by the worker around every job, on the main thread. Put back: signal handlers, alarms and
interval timers, working directory, umask, soft resource limits, standard streams, and the
variables of the job's own ``env``. Kept on purpose, since they are what makes a worker warm:
imported modules with their globals, and variables that user code itself set in ``os.environ``
(libraries do so once, on import). Threads cannot be ended from outside and are left alone.

Everything from ``os`` and ``signal`` is bound at import, so that a job that disarms these
modules (sandboxes for generated code do) does not disarm the border.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Any

_chdir, _getcwd, _umask = os.chdir, os.getcwd, os.umask
#: The bare functions below those of ``signal``. Some 60 calls are in every border, and turning
#: each number into an enum member would cost ten times as much. Besides, Ray replaces
#: ``signal.signal`` while it loads an actor's class, which may be when this module is imported.
_bare: Any = importlib.import_module("_signal")
_getsignal, _setsignal, _setitimer = _bare.getsignal, _bare.signal, _bare.setitimer
_sigmask, _sigpending, _sigtimedwait = _bare.pthread_sigmask, _bare.sigpending, _bare.sigtimedwait
_getrlimit, _setrlimit = resource.getrlimit, resource.setrlimit
_environ = os.environ

_TIMER_SIGNALS = frozenset(map(int, (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)))
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_LIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_CPU,
    resource.RLIMIT_DATA,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_STACK,
)
#: Rounds of putting handlers back. Each can be broken off only by a handler of the job that was
#: already due and raises; with all timers at zero such handlers run out at once.
_ROUNDS = 100


class Border:
    """The state of a process between jobs. Taken once, after the worker has preloaded."""

    def __init__(self) -> None:
        catchable = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
        #: Handlers that were not set from Python read as None and cannot be put back.
        self._handlers: list[tuple[int, Any]] = [
            (int(number), handler)
            for number in sorted(catchable)
            if (handler := _getsignal(number)) is not None
        ]
        self._blocked = set(_sigmask(signal.SIG_BLOCK, ()))
        self._cwd = _getcwd()
        self._mask = _umask(0o077)
        _umask(self._mask)
        self._limits = [(kind, _getrlimit(kind)) for kind in _LIMITS]
        self._streams = (sys.stdin, sys.stdout, sys.stderr)

    def restore(self) -> None:
        """Put the process back. Never raises for what user code did."""
        for _ in range(_ROUNDS):
            try:
                self._restore_signals()
            except BaseException:  # raised by a handler of the job; its timer is off now
                continue
            break
        self._restore_rest()

    def _restore_signals(self) -> None:
        for timer in _TIMERS:
            _setitimer(timer, 0.0)
        # A signal may be on its way still: behind the job's mask, or handed to a thread that does
        # not run just now, from where it would hit the next job. It was meant for this one.
        _sigmask(signal.SIG_BLOCK, _TIMER_SIGNALS)
        while waiting := set(_sigpending()) - self._blocked:
            _sigtimedwait(waiting, 0)
        for number, handler in self._handlers:
            if _getsignal(number) is not handler:
                _setsignal(number, handler)
        _sigmask(signal.SIG_SETMASK, self._blocked)

    def _restore_rest(self) -> None:
        _umask(self._mask)
        for kind, limits in self._limits:
            now = _getrlimit(kind)
            if now != limits:
                _raise_soft_limit(kind, limits, now)
        if (sys.stdin, sys.stdout, sys.stderr) != self._streams:
            sys.stdin, sys.stdout, sys.stderr = self._streams
        try:
            if _getcwd() == self._cwd:
                return
        except OSError:  # the job removed the folder it was in
            pass
        try:
            _chdir(self._cwd)
        except OSError:  # the worker's own folder is gone: there is nothing to go back to
            _chdir("/")


def _raise_soft_limit(kind: int, wanted: tuple[int, int], now: tuple[int, int]) -> None:
    hard = now[1]  # a lowered hard limit cannot be raised again
    soft = wanted[0]
    if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard):
        soft = hard
    _setrlimit(kind, (soft, hard))


def apply_env(variables: Iterable[tuple[str, str]]) -> dict[str, str | None]:
    """Set a job's variables; returns what they were, for ``restore_env``."""
    before: dict[str, str | None] = {}
    for name, value in variables:
        before.setdefault(name, _environ.get(name))
        _environ[name] = value
    return before


def restore_env(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            _environ.pop(name, None)
        else:
            _environ[name] = value
