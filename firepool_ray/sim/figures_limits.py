"""Figures of fairness and of scale. Called by ``figures.run``. No folder is needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from firepool_ray.core.model import QueueSpec
from firepool_ray.sim import scale as scale_run
from firepool_ray.sim.costs import Constant, Costs
from firepool_ray.sim.figures_base import (
    PUBLISHED_PROMOTE_S,
    Figure,
    Folder,
    Progress,
    Run,
    pool,
    run,
)
from firepool_ray.sim.traces import TraceJob
from firepool_ray.sim.workload import LoopSession, Session, Step, Workload

LANES = 10
LIGHT = 9
GREEDY = "greedy"
#: The greedy caller keeps twice as many jobs in the pool as it has lanes.
GREEDY_JOBS = 2 * LANES
GREEDY_JOB_S, LIGHT_JOB_S = 10.0, 4.0
ARRIVAL_S, END_S = 300.0, 2100.0
WINDOW_S = 5.0
COLD_S = 22.0
COSTS = Costs(cold=Constant(COLD_S), promote=Constant(PUBLISHED_PROMOTE_S))
#: Light callers: pauses between their jobs. Without any, each wants its whole share.
PAUSES_S = {"back to back": 0.0, "with pauses": 4.0}

#: Memory is flat if a request more costs less than this: a kept job would cost several hundred.
FLAT_BYTES = 50.0


def fairness(folder: Folder, progress: Progress) -> list[Figure]:
    """Ten lanes held by a greedy caller; nine light ones arrive at once.

    With a queue per caller, each with a tenth of the lanes as its quota, and all in one queue.
    """
    figures = []
    for shared in (False, True):
        for pattern, pause_s in PAUSES_S.items():
            name = f"fairness, {'one queue' if shared else 'a queue each'}, {pattern}"
            progress(name)
            figures.append(_fairness(name, shared, pause_s))
    return figures


def _fairness(name: str, shared: bool, pause_s: float) -> Figure:
    names = [GREEDY, *(f"light{i}" for i in range(LIGHT))]
    queues = [QueueSpec("default")] if shared else [QueueSpec(n, quota=1.0) for n in names]
    spec = pool(
        cold_s=COLD_S,
        standbys=1,
        lane_keep_s=None,
        min_lanes=LANES,
        max_lanes=LANES,
        queues=queues,
        window_s=WINDOW_S,
    )
    load = Workload(sessions=lambda: _greedy_and_light(shared, pause_s))
    ran = run("adaptive", spec, COSTS, load)
    light = [(job, wait_s) for job, wait_s in ran.seen.waits if job.caller != GREEDY]
    first_s = max(wait_s for job, wait_s in light if job.start_s == ARRIVAL_S)
    longest_s = max(wait_s for _, wait_s in light)
    # A handover: the old worker is swept, then the standby is promoted.
    besides_s = COSTS.retire.mean_s + PUBLISHED_PROMOTE_S + WINDOW_S
    residual_s = _residual_s(ran.seen.schedule(), ARRIVAL_S + WINDOW_S)
    jain = ran.result.jain_callers if shared else ran.result.jain_queues
    values = {
        "longest wait_s on arrival": first_s,
        "allowed_s on arrival": besides_s + residual_s,
        "longest wait_s of a light caller": longest_s,
        "allowed_s": besides_s + GREEDY_JOB_S,
        "Jain index": jain,
    }
    ok = first_s <= besides_s + residual_s + 1e-6
    ok = ok and longest_s <= besides_s + GREEDY_JOB_S + 1e-6 and jain >= 0.95
    detail = {
        "jain_callers": ran.result.jain_callers,
        "jain_queues": ran.result.jain_queues,
        "mean wait_s of light callers": sum(wait_s for _, wait_s in light) / len(light),
        "sources": ran.result.sources,
        "gpu_s": ran.result.gpu_s,
        "received / needed by light callers": _received_share(ran),
    }
    reach = "longest wait of a light caller <= promotion + residual of the drained job + window; "
    return Figure(name, values, reach + "Jain >= 0.95", ok, detail)


def _greedy_and_light(shared: bool, pause_s: float) -> Iterator[Session]:
    """The greedy caller's jobs are back to back and out of step with each other."""
    for number in range(GREEDY_JOBS):
        begin_s = number * GREEDY_JOB_S / GREEDY_JOBS
        steps = itertools.repeat(Step(0.0, (GREEDY_JOB_S,)), round(END_S / GREEDY_JOB_S / 2))
        queue = "default" if shared else GREEDY
        yield LoopSession(GREEDY, begin_s, steps, queue=queue)
    rounds = round((END_S - ARRIVAL_S) / (LIGHT_JOB_S + pause_s) / 2)
    for number in range(LIGHT):
        light = [Step(pause_s if i else 0.0, (LIGHT_JOB_S,)) for i in range(rounds)]
        queue = "default" if shared else f"light{number}"
        yield LoopSession(f"light{number}", ARRIVAL_S, light, queue=queue)


def _residual_s(schedule: list[TraceJob], at: float) -> float:
    """The longest that any job of the greedy caller still ran then: nine of ten are drained."""
    left = [
        job.start_s + job.duration_s - at
        for job in schedule
        if job.caller == GREEDY and job.start_s <= at < job.start_s + job.duration_s
    ]
    return max(left, default=0.0)


def _received_share(ran: Run) -> float:
    """Time in jobs over time in jobs and in waits: 1 where nothing waits."""
    light = [(job.duration_s, wait_s) for job, wait_s in ran.seen.waits if job.caller != GREEDY]
    ran_s = math.fsum(duration_s for duration_s, _ in light)
    return ran_s / (ran_s + math.fsum(wait_s for _, wait_s in light))


# ---------------------------------------------------------------------- scale


def scale(folder: Folder, progress: Progress) -> list[Figure]:
    """A million requests; memory against a quarter of them; 10,000 lanes against 100.

    Callers are as many for a quarter, so that memory per request shows alone; with 10,000 lanes
    each lane has as much work as with 100.
    """
    progress("scale: 250,000 requests")
    quarter = scale_run.run(250_000, 1_000, 10_000)
    progress("scale: 1,000,000 requests")
    whole = scale_run.run(1_000_000, 1_000, 10_000)
    progress("scale: 100 lanes")
    small = scale_run.run(30_000, 100, 1_000)
    progress("scale: 10,000 lanes")
    large = scale_run.run(600_000, 10_000, 20_000)
    growth = whole["peak_rss_bytes"] - quarter["peak_rss_bytes"]
    values = {
        "requests": whole["requests"],
        "wall_s": whole["wall_s"],
        "jobs/s": whole["jobs_per_s"],
        "peak RSS MiB": whole["peak_rss_bytes"] / 2**20,
        "bytes more per request": growth / (whole["requests"] - quarter["requests"]),
        "events/s at 10,000 lanes / at 100": large["events_per_s"] / small["events_per_s"],
    }
    ok = values["events/s at 10,000 lanes / at 100"] >= 0.5
    ok = ok and values["bytes more per request"] < FLAT_BYTES
    reach = (
        "1,000,000 requests, 1,000 lanes, 10,000 callers finish, memory flat in requests; "
        "events/s at 10,000 lanes >= half that at 100"
    )
    detail = {"quarter": quarter, "whole": whole, "100 lanes": small, "10,000 lanes": large}
    return [Figure("scale", values, reach, ok, detail)]
