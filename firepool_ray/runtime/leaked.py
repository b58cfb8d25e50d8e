"""Ends Ray's idle processes on a node, where a start waits for what they may hold.

A head that goes while it hands a process to an actor leaves that process leased to nobody: its
successor in a cluster with fault tolerance does not know of it, and the part of the lane that it
holds never comes free by itself. Its end frees it. An idle process that holds nothing is only a
spare one, which Ray replaces.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from firepool_ray.runtime import processes
from firepool_ray.runtime.processes import Process

#: As the kernel knows a process of Ray that runs nobody's code.
IDLE = "ray::IDLE"
#: One that is younger may still be on its way to its actor.
OLD_S = 10.0
_WAIT_S = 2.0


def end_idle(raylet: int) -> int:
    """How many were ended. Blocks for a moment."""
    found = [
        process
        for process in idle_below(raylet, processes.table())
        if processes.name_of(process.pid) == IDLE
    ]
    processes.kill_all(found, _WAIT_S)
    return len(found)


def idle_below(raylet: int, among: Mapping[int, Process]) -> list[Process]:
    """Children of the raylet that are old enough to have got their actor, if they get one."""
    newest = processes.ticks_at(time.clock_gettime(time.CLOCK_BOOTTIME) - OLD_S)
    return [p for p in among.values() if p.parent == raylet and p.start <= newest and not p.ended]
