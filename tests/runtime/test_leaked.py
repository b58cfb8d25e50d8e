"""Ray's idle processes, and which of them may be holding a place for nobody."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from firepool_ray.runtime import leaked, processes
from tests.conftest import eventually

_NAMED = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
time.sleep(600)
"""
#: Starts a child for each name, and waits.
_PARENT = f"""
import subprocess, sys, time
for name in sys.argv[1:]:
    subprocess.Popen([sys.executable, "-c", {_NAMED!r}, name])
time.sleep(600)
"""


@pytest.fixture
def raylet() -> Iterator[int]:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, "ray::IDLE", "ray::Worker.run"])
    yield parent.pid
    processes.kill_tree(parent.pid, processes.start_of(parent.pid), 10.0)
    parent.wait()


def names_below(pid: int) -> list[str]:
    below = processes.descendants(pid, processes.table())
    return sorted(processes.name_of(process.pid) for process in below if not process.ended)


def test_only_idle_ones_are_ended(raylet: int, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ["ray::IDLE", "ray::Worker.run"]
    assert eventually(lambda: names_below(raylet) == both)
    assert leaked.end_idle(raylet) == 0  # they may still be on their way to an actor
    monkeypatch.setattr(leaked, "OLD_S", 0.0)
    assert leaked.end_idle(raylet) == 1
    assert names_below(raylet) == ["ray::Worker.run"]
    assert leaked.end_idle(raylet) == 0
