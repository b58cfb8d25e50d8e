"""A warm worker against a bare actor: what the pool adds to a call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import firepool_ray as fp
from firepool_ray.cli.bench import pools, profiling, work
from firepool_ray.cli.bench.figures import TARGETS, Measured
from firepool_ray.runtime import baselines

ROUNDS = 20
CALLS_PER_ROUND = 100
JOBS = 2_000
WIDTH = 4


def measure(names: frozenset[str]) -> Iterator[Measured]:
    with pools.pool(2 * WIDTH, max_lanes=WIDTH, standbys=0):
        if names & {"warm_p50_ratio", "warm_p99_ratio"}:
            yield from (found for found in _latency() if found.name in names)
        if "warm_throughput_ratio" in names:
            yield _throughput()


def _latency() -> Iterator[Measured]:
    """Both ways in turns, so that a noisy moment hits both."""
    options, actor = fp.options(caller="warm"), baselines.bare_actor()
    pools.warm_up(options, 1)
    ours: list[float] = []
    bare: list[float] = []
    for round_number in range(ROUNDS + 1):
        took_s = [_job_s(options) for _ in range(CALLS_PER_ROUND)]
        base_s = [baselines.bare_call_s(actor) for _ in range(CALLS_PER_ROUND)]
        if round_number:  # the first warms both up
            ours += took_s
            bare += base_s
    baselines.stop_actors([actor])
    for name, p in (("warm_p50_ratio", 50), ("warm_p99_ratio", 99)):
        job_s, call_s = profiling.percentile(ours, p), profiling.percentile(bare, p)
        detail = f"job {1e3 * job_s:.3f} ms, bare call {1e3 * call_s:.3f} ms, {len(ours)} of each"
        if not TARGETS[name].met_by(job_s / call_s):
            detail += "; " + _where_a_job_goes(options)
        yield Measured(name, job_s / call_s, detail)


def _job_s(options: Any) -> float:
    began = time.perf_counter()
    options.submit(work.nothing).result()
    return time.perf_counter() - began


def _where_a_job_goes(options: Any) -> str:
    phases = []
    for _ in range(300):
        job = options.submit(work.nothing)
        job.result()
        phases.append(pools.phases_of(job, time.time()))
    where = profiling.cpu_by_function(lambda: [_job_s(options) for _ in range(1000)])
    return f"{profiling.phases(phases)}; {where}"


def _throughput() -> Measured:
    options = fp.options(caller="warm")
    pools.warm_up(options, WIDTH)
    actors = [baselines.bare_actor(num_cpus=0) for _ in range(WIDTH)]
    ours, bare = [], []
    for _ in range(3):
        ours.append(JOBS / _many_s(options))
        bare.append(JOBS / baselines.actor_pool_s(actors, JOBS))
    baselines.stop_actors(actors)
    ratio = profiling.median(ours) / profiling.median(bare)
    detail = (
        f"pool {profiling.median(ours):.0f} jobs/s, ActorPool {profiling.median(bare):.0f} calls/s"
    )
    if not TARGETS["warm_throughput_ratio"].met_by(ratio):
        detail += "; " + profiling.cpu_by_function(lambda: _many_s(options))
    return Measured("warm_throughput_ratio", ratio, detail)


def _many_s(options: Any) -> float:
    began = time.perf_counter()
    for job in [options.submit(work.nothing) for _ in range(JOBS)]:
        job.result()
    return time.perf_counter() - began
