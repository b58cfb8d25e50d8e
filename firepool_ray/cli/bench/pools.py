"""Pools for the groups: small, of logical resources, and waited for until nothing moves."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import firepool_ray as fp
from firepool_ray.cli.bench import work
from firepool_ray.config import PoolConfig
from firepool_ray.runtime import baselines

SETTLE_S = 60.0
#: States of a worker in which something is under way.
MOVING = frozenset({"starting", "promoting", "draining", "leaving"})


@contextmanager
def pool(cluster_cpus: int, cluster_gpus: int = 0, **profile: Any) -> Iterator[None]:
    """A cluster and a pool with one profile, "bench"; both end with the block.

    Workers are held for a minute unless the profile says otherwise.
    """
    kept = {"keep_alive": "fixed:60", "lane_keep_s": 300.0}
    config = PoolConfig.from_dict({"profiles": {"bench": {**kept, **profile}}})
    with baselines.local_cluster(cluster_cpus, cluster_gpus):
        fp.start(config)
        try:
            yield
        finally:
            fp.shutdown()


def wait_until(
    what: str, holds: Callable[[dict[str, Any]], bool], timeout_s: float = SETTLE_S
) -> dict[str, Any]:
    """Poll the pool's status until ``holds``; returns that status. Raises ``TimeoutError``."""
    deadline = time.monotonic() + timeout_s
    while not holds(described := fp.status()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}: {described}")
        time.sleep(0.05)
    return described


def count(described: dict[str, Any], state: str) -> int:
    """Workers in that state."""
    return sum(worker["state"] == state for worker in workers(described))


def workers(described: dict[str, Any]) -> list[dict[str, Any]]:
    return [worker for lane in described["lanes"] for worker in lane["workers"]]


def still(described: dict[str, Any]) -> bool:
    """Nothing starts, moves or leaves."""
    return all(lane["state"] == "ready" for lane in described["lanes"]) and not any(
        worker["state"] in MOVING for worker in workers(described)
    )


def warm_up(options: Any, width: int) -> None:
    """Have ``options``'s caller hold ``width`` idle workers: so many jobs run until all do."""
    with tempfile.TemporaryDirectory(prefix="fpb") as folder:
        gate = Path(folder, "open")
        jobs = [options.submit(work.hold, str(gate)) for _ in range(width)]
        wait_until(f"{width} busy workers", lambda d: count(d, "busy") >= width)
        gate.touch()
        for job in jobs:
            job.result()
    wait_until(f"{width} idle workers", lambda d: count(d, "idle") >= width and still(d))


def start_s(job: Any) -> float:
    """Submit to the first user instruction."""
    info = job.info()
    return float(info.started_at - info.submitted_at)


def phases_of(job: Any, seen_at: float) -> dict[str, float]:
    """Where the time of a finished job went; ``seen_at`` is when its result was there."""
    info = job.info()
    return {
        "submit": info.dispatched_at - info.submitted_at,
        "to worker": info.received_at - info.dispatched_at,
        "bind": info.started_at - info.received_at,
        "run": info.ended_at - info.started_at,
        "back": seen_at - info.ended_at,
    }
