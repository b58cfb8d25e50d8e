"""What the benchmark's jobs do. Imports little: a worker imports this before its first job."""

from __future__ import annotations

import os
import time


def nothing() -> None:
    """The no-op job."""


def hold(gate: str) -> None:
    """A job that lasts until the file exists."""
    while not os.path.exists(gate):
        time.sleep(0.01)


def nap(seconds: float) -> None:
    """A job that takes so long and needs no processor."""
    time.sleep(seconds)
