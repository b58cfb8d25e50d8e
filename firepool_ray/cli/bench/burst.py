"""Many short jobs at once on warm workers: is every worker kept busy?"""

from __future__ import annotations

import time
from collections.abc import Iterator

import firepool_ray as fp
from firepool_ray.cli.bench import pools, profiling
from firepool_ray.cli.bench.figures import TARGETS, Measured

ROUNDS = 10
WIDTH = 8
JOBS = 64
JOB_S = 0.020
IDEAL_S = JOBS * JOB_S / WIDTH


def measure(names: frozenset[str]) -> Iterator[Measured]:
    with pools.pool(WIDTH, max_lanes=WIDTH, standbys=0):
        options = fp.options(caller="burst")
        pools.warm_up(options, WIDTH)
        walls, gaps = [], []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            jobs = [options.submit(time.sleep, JOB_S) for _ in range(JOBS)]
            for job in jobs:
                job.result()
            walls.append(time.perf_counter() - began)
            gaps += _gaps(jobs)
        ratio = profiling.median(walls) / IDEAL_S
        detail = (
            f"median {1e3 * profiling.median(walls):.0f} ms, worst {1e3 * max(walls):.0f} ms, "
            f"of {ROUNDS} bursts"
        )
        if not TARGETS["burst_ratio"].met_by(ratio):
            detail += "; between two jobs of a worker: " + profiling.phases(gaps)
        yield Measured("burst_ratio", ratio, detail)


def _gaps(jobs: list[fp.Job]) -> list[dict[str, float]]:
    """What passes on a worker between the end of one job and the start of the next."""
    infos = sorted((job.info() for job in jobs), key=lambda info: (info.worker, info.started_at))
    return [
        {
            "reply and next call": now.received_at - before.ended_at,
            "bind": now.started_at - now.received_at,
            "longer than asked": now.ended_at - now.started_at - JOB_S,
        }
        for before, now in zip(infos, infos[1:], strict=False)
        if before.worker == now.worker
    ]
