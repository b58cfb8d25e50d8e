"""Figures of closed loops: RL trainers and agents against an always-on pool and fresh pods.

Called by ``figures.run``. Loads are generated, costs are the published ones, messages take a
millisecond so that a warm start is not free. No folder is needed.
"""

from __future__ import annotations

from typing import Any

from firepool_ray.core.model import QueueSpec
from firepool_ray.sim import bound
from firepool_ray.sim.costs import Constant, Costs
from firepool_ray.sim.engine import Setup, simulate
from firepool_ray.sim.figures_base import (
    INF,
    MESSAGE_S,
    NO_WINDOW_S,
    PUBLISHED_COLD_S,
    PUBLISHED_PROMOTE_S,
    Figure,
    Folder,
    Progress,
    Run,
    pool,
    published,
    run,
)
from firepool_ray.sim.generators import Agents, RlLoops
from firepool_ray.sim.policies import choose
from firepool_ray.sim.result import Result
from firepool_ray.sim.workload import LoopSession, Step, Workload, together

SEED = 1
#: Updates of a trainer: some hours. The first few teach its pauses.
BURSTS = 60
#: Mean length of a burst and an update. Agents come one after the other, as tasks do, for as long
#: as the trainers are there.
STEP_S = 155.0
AGENTS = 400
READY = 0.947
#: Steps of a loop whose length is compared.
STEPS = 400
AGENT_FACTOR, RL_FACTOR = 13.0, 10.8
PEAK_PART = 0.1


# ---------------------------------------------------------------------- against always-on


def rl(folder: Folder, progress: Progress) -> list[Figure]:
    """Trainers alone: bursts of 20-80 s, updates of 30-180 s, each 10 % more or less."""
    load = RlLoops(loops=4, n=8, bursts=BURSTS).workload(SEED)
    lanes = _lanes_needed(load, ("default",), progress, "rl")
    ran = {
        policy: _in_pool(policy, load, lanes, ("default",), progress, "rl")
        for policy in ("always", "adaptive", "never")
    }
    mine, always = ran["adaptive"].result, ran["always"].result
    idle = mine.gpu_s["idle"] + mine.gpu_s["free"]
    always_idle = always.gpu_s["idle"] + always.gpu_s["free"]
    values = {
        "p90 start latency / always-on's": _p90(mine) / _p90(always),
        "p90 later than always-on's by_s": _p90(mine) - _p90(always),
        "idle GPU-s (free ones too) / always-on's": idle / always_idle,
        "idle GPU-s (free ones not) / always-on's": mine.gpu_s["idle"] / always_idle,
        "warm share": mine.warm_share,
    }
    ok = _p90(mine) <= 1.1 * _p90(always) and idle <= 0.35 * always_idle
    reach = "p90 start latency within 10 % of always-on; idle GPU-seconds <= 0.35 x always-on"
    detail: dict[str, Any] = {policy: _told(one.result) for policy, one in ran.items()}
    detail["lanes"] = lanes
    return [Figure("rl", values, reach, ok, detail)]


def headline(folder: Folder, progress: Progress) -> list[Figure]:
    """Trainers and agents together, each with a queue and half of the GPUs as its quota."""
    trainers = RlLoops(loops=4, n=8, bursts=BURSTS, queue="rl")
    agents = Agents(callers=AGENTS, calls=40, queue="agents", spread_s=BURSTS * STEP_S)
    load = together(trainers.workload(SEED), agents.workload(SEED))
    names = ("rl", "agents")
    lanes = _lanes_needed(load, names, progress, "headline")
    ran = {
        policy: _in_pool(policy, load, lanes, names, progress, "headline")
        for policy in ("always", "adaptive")
    }
    mine, always = ran["adaptive"].result, ran["always"].result
    always_on = lanes * always.span_s
    held = mine.held_gpu_s
    ready = mine.peak_ready_share(PEAK_PART)
    values = {
        "busy + idle + starting + free GPU-s / always-on": held / always_on,
        "busy + idle + starting GPU-s / always-on": (held - mine.gpu_s["free"]) / always_on,
        "busy GPU-s / always-on": mine.gpu_s["busy"] / always_on,
        "p90 start latency / always-on's": _p90(mine) / _p90(always),
        "p90 later than always-on's by_s": _p90(mine) - _p90(always),
        "warm + standby + handover share at peak": ready,
        "warm + standby + handover share": mine.ready_share,
    }
    ok = held <= 0.5 * always_on and _p90(mine) <= 1.1 * _p90(always) and ready >= READY
    reach = (
        "GPU-seconds <= 0.5 x always-on, p90 start latency within 10 % of it, "
        f"warm + standby + handover >= {READY:.1%} at peak"
    )
    detail: dict[str, Any] = {policy: _told(one.result) for policy, one in ran.items()}
    detail["lanes"] = lanes
    foreseen = _foreseen_gpu_s(ran["always"])
    detail["had all been foreseen, without standbys: GPU-s / always-on"] = foreseen / always_on
    return [Figure("headline", values, reach, ok, detail)]


def _lanes_needed(load: Workload, queues: tuple[str, ...], progress: Progress, name: str) -> int:
    """What an always-on pool needs: a lane for every worker that a caller at work ever used."""
    progress(f"{name}: lanes of an always-on pool")
    spec = pool(cold_s=PUBLISHED_COLD_S, queues=[QueueSpec(queue) for queue in queues])
    chosen, objects = choose(spec, "always")
    result = simulate(Setup(chosen, published(), SEED, objects, closing=True), load)
    return round(result.peak_gpus)


def _in_pool(
    policy: str, load: Workload, lanes: int, queues: tuple[str, ...], progress: Progress, name: str
) -> Run:
    """As many lanes for each policy; the always-on pool has them all from the beginning."""
    progress(f"{name}: {policy}")
    always = policy == "always"
    spec = pool(
        cold_s=PUBLISHED_COLD_S,
        standbys=1,
        lane_keep_s=INF if always else None,
        min_lanes=lanes if always else 0,
        max_lanes=lanes,
        queues=[QueueSpec(queue, quota=lanes / len(queues)) for queue in queues],
    )
    return run(policy, spec, published(), load, seed=SEED)


def _foreseen_gpu_s(ran: Run) -> float:
    """What had to be held for the schedule of a run, had it been known: jobs, gaps shorter than a
    start, and starts for the rest.
    """
    pairing = bound.pair(ran.seen.schedule())
    return ran.result.gpu_s["busy"] + bound.uncapped(pairing, PUBLISHED_COLD_S)


def _p90(result: Result) -> float:
    return result.latencies.percentile(0.9) or 0.0


def _told(result: Result) -> dict[str, Any]:
    return result.to_dict(curve=False)


# ---------------------------------------------------------------------- against fresh pods


def loop_time(folder: Folder, progress: Progress) -> list[Figure]:
    """How much shorter a loop is than with a fresh pod per job, and up to which job + pause.

    A step takes pause + start + job. With a fresh pod its start is 51 s, with a warm worker next
    to nothing, with a handover 0.94 s: the factor is at least k where job + pause is at most
    (51 - k * start) / (k - 1). Times at the limits are then run in the engine.
    """
    values: dict[str, float] = {}
    detail: dict[str, Any] = {}
    ok = True
    for name, factor, width in (("agents", AGENT_FACTOR, 1), ("rl", RL_FACTOR, 8)):
        warm_s = _longest_step_s(factor, 2 * MESSAGE_S)
        handed_s = _longest_step_s(factor, PUBLISHED_PROMOTE_S)
        job_s = warm_s / 4
        progress(f"loop-time: {name}")
        # A little inside the limit: the pool's first start is a cold one as well.
        pause_s = 0.9 * warm_s - job_s
        fresh_s = _loop_s("never", width, job_s, pause_s)
        pool_s = _loop_s("adaptive", width, job_s, pause_s)
        values[f"{name}: fresh / pool"] = fresh_s / pool_s
        values[f"{name}: job + pause_s up to (warm)"] = warm_s
        values[f"{name}: job + pause_s up to (each start a handover)"] = handed_s
        ok = ok and fresh_s / pool_s >= factor
        detail[name] = {
            "factor": factor,
            "job_s": job_s,
            "pause_s": pause_s,
            "fresh step_s": fresh_s / STEPS,
            "pool step_s": pool_s / STEPS,
            "steps": STEPS,
        }
    detail["factor by job + pause, warm"] = {
        f"{step_s:g}": (PUBLISHED_COLD_S + step_s) / (step_s + 2 * MESSAGE_S)
        for step_s in (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
    }
    reach = f"loop {AGENT_FACTOR:g} x (agents) and {RL_FACTOR:g} x (RL) shorter than fresh pods"
    return [Figure("loop-time", values, reach, ok, detail)]


def _longest_step_s(factor: float, start_s: float) -> float:
    return (PUBLISHED_COLD_S - factor * start_s) / (factor - 1)


def _loop_s(policy: str, width: int, job_s: float, pause_s: float) -> float:
    """Length of one caller's loop of ``STEPS`` steps with ``width`` jobs each."""
    fresh = policy == "never"
    promote_s = 0.0 if fresh else PUBLISHED_PROMOTE_S
    costs = Costs(
        cold=Constant(PUBLISHED_COLD_S),
        promote=Constant(promote_s),
        message=Constant(MESSAGE_S),
    )
    spec = pool(
        cold_s=PUBLISHED_COLD_S,
        standbys=0 if fresh else 1,
        lane_keep_s=0.0 if fresh else None,
        window_s=NO_WINDOW_S,
    )
    step = Step(pause_s, (job_s,) * width)
    load = Workload(sessions=lambda: iter([LoopSession("loop", 0.0, [step] * STEPS)]))
    chosen, objects = choose(spec, policy)
    return simulate(Setup(chosen, costs, SEED, objects), load).loop_s
