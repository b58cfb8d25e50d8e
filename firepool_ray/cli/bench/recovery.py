"""The controller is killed: how long until a new caller is served again?"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import firepool_ray as fp
from firepool_ray.cli.bench import pools, profiling, work
from firepool_ray.cli.bench.figures import Measured

ROUNDS = 3
LANES = 20


def measure(names: frozenset[str]) -> Iterator[Measured]:
    """Each round another caller, whose first worker only a living controller can grant."""
    took_s = []
    with pools.pool(4, cpus=0.1, min_lanes=LANES, max_lanes=LANES):
        for number in range(ROUNDS):
            described = pools.wait_until(f"{LANES} lanes with a standby", _staffed)
            killed_at = time.time()
            os.kill(described["pid"], signal.SIGKILL)
            job = fp.options(caller=f"caller{number}").submit(work.nothing)
            job.result()
            took_s.append(job.info().started_at - killed_at)
    detail = f"{LANES} lanes; rounds: " + ", ".join(f"{s:.2f} s" for s in took_s)
    yield Measured("recovery_s", profiling.median(took_s), detail)


def _staffed(described: dict[str, Any]) -> bool:
    return pools.still(described) and pools.count(described, "standby") == LANES
