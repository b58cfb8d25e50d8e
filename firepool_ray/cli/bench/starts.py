"""A worker for a new caller: a promoted standby, and a handover, against a fresh actor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import firepool_ray as fp
from firepool_ray.cli.bench import pools, profiling, work
from firepool_ray.cli.bench.figures import TARGETS, Measured
from firepool_ray.runtime import baselines

ROUNDS = 15
RESOURCES = {"gpus": 1, "cpus": 1}


def measure(names: frozenset[str]) -> Iterator[Measured]:
    if "standby_ratio" in names:
        yield _standby()
    if "handover_ratio" in names:
        yield _handover()


def _standby() -> Measured:
    """Each round a new caller, after the last one's worker has gone and a standby stands."""
    fresh, ours = [], []
    with pools.pool(4, 2, **RESOURCES, max_lanes=1, min_lanes=1, keep_alive="fixed:0.1"):
        for number in range(ROUNDS):
            pools.wait_until("a free lane with a standby", _free)
            fresh.append(baselines.fresh_actor_s(num_gpus=1, num_cpus=1))
            ours.append(_first_job(f"caller{number}", "standby"))
    return _against_fresh("standby_ratio", 50, ours, fresh)


def _handover() -> Measured:
    """Each round a new caller, while the last one's worker is idle on the only lane."""
    fresh, ours = [], []
    with pools.pool(4, 2, **RESOURCES, max_lanes=1, min_lanes=1):
        pools.wait_until("a free lane with a standby", _free)
        _first_job("first", "standby")
        for number in range(ROUNDS):
            pools.wait_until("an idle worker and a standby", _idle)
            fresh.append(baselines.fresh_actor_s(num_gpus=1, num_cpus=1))
            ours.append(_first_job(f"caller{number}", "handover"))
    return _against_fresh("handover_ratio", 90, ours, fresh)


def _free(described: dict[str, Any]) -> bool:
    return (
        pools.still(described)
        and pools.count(described, "standby") == 1
        and len(pools.workers(described)) == 1
    )


def _idle(described: dict[str, Any]) -> bool:
    return (
        pools.still(described)
        and pools.count(described, "standby") == 1
        and pools.count(described, "idle") == 1
    )


def _first_job(caller: str, source: str) -> fp.Job:
    job = fp.options(caller=caller).submit(work.nothing)
    job.result()
    if job.info().source != source:
        raise AssertionError(f"expected a {source} start, it was {job.info()}")
    return job


def _against_fresh(name: str, p: int, ours: list[fp.Job], fresh: list[float]) -> Measured:
    start_s = profiling.percentile([pools.start_s(job) for job in ours], p)
    fresh_s = profiling.median(fresh)
    detail = (
        f"p{p} {1e3 * start_s:.1f} ms, fresh actor p50 {1e3 * fresh_s:.0f} ms, {len(ours)} of each"
    )
    if not TARGETS[name].met_by(start_s / fresh_s):
        detail += "; " + profiling.phases(pools.phases_of(job, job.info().ended_at) for job in ours)
    return Measured(name, start_s / fresh_s, detail)
