"""How large a run may be: jobs and events per second, and memory, at a given size.

Called by the figures and by hand. A pool near full use under closed-loop agents: callers come, work
for a while and stay silent from then on, as the simulator's callers do.
"""

from __future__ import annotations

import resource
import sys
import time

from firepool_ray.core.model import PoolSpec, ProfileSpec, QueueSpec
from firepool_ray.sim.costs import Constant, Costs
from firepool_ray.sim.engine import Setup, simulate
from firepool_ray.sim.generators import Agents, Range

JOB_S = 1.0
PAUSE_S = 1.0
COLD_S = 5.0
LOAD = 0.7  #: of the lanes that callers would use at once, on average


def run(requests: int, lanes: int, callers: int, seed: int = 0) -> dict[str, float]:
    """Simulate so many requests; returns rates per CPU second and the process's peak memory."""
    calls = max(1, requests // callers)
    session_s = calls * (JOB_S + PAUSE_S)
    spread_s = callers * session_s / (LOAD * lanes)
    load = Agents(
        callers=callers,
        calls=calls,
        job_s=Range(JOB_S, JOB_S),
        job_sigma=0.3,
        pause_s=Range(PAUSE_S, PAUSE_S),
        pause_sigma=0.3,
        spread_s=spread_s,
    ).workload(seed)
    profile = ProfileSpec(
        "gpu",
        gpus=1.0,
        standbys=1,
        min_lanes=lanes,
        max_lanes=lanes,
        keep_alive="adaptive",
    )
    spec = PoolSpec(
        (profile,),
        (QueueSpec("default"),),
        # all lanes have their standby before the first job comes
        refill_rate_per_s=float(lanes),
        refill_burst=lanes,
    )
    costs = Costs(cold=Constant(COLD_S), promote=Constant(0.1), retire=Constant(0.05))
    began_s = time.thread_time()
    result = simulate(Setup(spec, costs, seed, lead_s=2 * COLD_S), load)
    cpu_s = time.thread_time() - began_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "requests": result.jobs,
        "lanes": lanes,
        "callers": callers,
        "wall_s": result.wall_s,
        "cpu_s": cpu_s,  # what a busy machine does not stretch
        "jobs_per_s": result.jobs / cpu_s,
        "events": result.events,
        "events_per_s": result.events / cpu_s,
        "peak_rss_bytes": float(peak if sys.platform == "darwin" else peak * 1024),
        "ready_share": result.ready_share,
        "busy_share": result.gpu_s["busy"] / max(1e-9, result.held_gpu_s),
    }
