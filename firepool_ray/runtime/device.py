"""The lock of a device: held by its active worker, over all pods that share the device.

The file names its holder, so that a sweep can tell a leftover of its own worker from a worker of
another pod that has the device by now.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import suppress

from firepool_ray.errors import DeviceBusy

_POLL_S = 0.005


def holder(worker: str) -> str:
    """As the lock names it. Names of workers begin anew when all of Ray's state is lost."""
    return f"{worker} on {socket.gethostname()}"


def check(path: str) -> None:
    """Raises ``RuntimeError`` that says what to do if the lock could not be taken here."""
    os.close(_open(path))


def take(path: str, worker: str, wait_s: float) -> int:
    """The held lock, as a file descriptor. Children forked later share it.

    Raises ``DeviceBusy``, and ``RuntimeError`` as ``check``.
    """
    fd = _open(path)
    try:
        deadline = time.monotonic() + wait_s
        while not _try(fd):
            if time.monotonic() > deadline:
                by = _read(fd) or "another process"
                raise DeviceBusy(f"{path} is still locked by {by} after {wait_s:g} s")
            time.sleep(_POLL_S)
        os.ftruncate(fd, 0)
        os.pwrite(fd, holder(worker).encode(), 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def wait_left(path: str, worker: str, deadline: float) -> bool:
    """Whether nothing of ``worker`` holds the lock by ``deadline`` (CLOCK_MONOTONIC).

    All that counts is what it left: a worker of another pod may hold the lock rightly, having been
    promoted when this pod was given up.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        while not _try(fd):
            if _read(fd) not in ("", holder(worker)):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True
    finally:
        os.close(fd)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(fd: int) -> str:
    return os.pread(fd, 512, 0).decode(errors="replace")


def _open(path: str) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise RuntimeError(
            f"the device lock {path} cannot be opened ({error.strerror}): its folder must be "
            "mounted in all pods of the device, writable for their user; see "
            "kubernetes.device_locks, and apply the manifests again"
        ) from None
    with suppress(PermissionError):  # whoever made it did this; images differ in user and umask
        os.fchmod(fd, 0o666)
    return fd
