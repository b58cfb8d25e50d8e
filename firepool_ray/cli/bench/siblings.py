"""A warm lease that moves between two processes of one caller."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import firepool_ray as fp
from firepool_ray.cli.bench import pools, profiling, work
from firepool_ray.cli.bench.figures import TARGETS, Measured
from firepool_ray.runtime import baselines

ROUNDS = 30
WARM_PER_ROUND = 5
PAUSE_S = 0.1


class Sibling:
    """One more process of the caller."""

    def turn(self) -> tuple[dict[str, float], float, list[float]]:
        """Take the lease from the sibling, then use it. Returns (phases, first job, others)."""
        options = fp.options(caller="family")
        job, took_s = _timed(options)
        phases = pools.phases_of(job, time.time())
        if job.info().source != "warm":
            raise AssertionError(f"the lease was not moved: {job.info()}")
        return phases, took_s, [_timed(options)[1] for _ in range(WARM_PER_ROUND)]

    def begin(self) -> None:
        fp.options(caller="family").submit(work.nothing).result()


def measure(names: frozenset[str]) -> Iterator[Measured]:
    phases, moved, warm = [], [], []
    with pools.pool(4, max_lanes=1, standbys=0):
        family = [baselines.start_actor(Sibling, num_cpus=0) for _ in range(2)]
        baselines.call(family[0], "begin")
        for number in range(ROUNDS):
            time.sleep(PAUSE_S)
            where, first_s, later_s = baselines.call(family[(number + 1) % 2], "turn")
            if number >= 2:  # by then each process knows the worker
                phases.append(where)
                moved.append(first_s)
                warm += later_s
        baselines.stop_actors(family)
    moved_s, warm_s = profiling.median(moved), profiling.median(warm)
    detail = f"moved {1e3 * moved_s:.2f} ms ({len(moved)}), warm {1e3 * warm_s:.2f} ms"
    if not TARGETS["moved_ratio"].met_by(moved_s / warm_s):
        detail += "; " + profiling.phases(phases)
    yield Measured("moved_ratio", moved_s / warm_s, detail)


def _timed(options: Any) -> tuple[fp.Job, float]:
    began = time.perf_counter()
    job: fp.Job = options.submit(work.nothing)
    job.result()
    return job, time.perf_counter() - began
