"""The same loops on a real pool, one keep-alive after the other, and as simulated beforehand.

``firepool bench --loops``. Trainers (bursts of rollouts, then an update) and agents run with short
constants: a cold start takes about two seconds, since each worker preloads a module that sleeps.
GPU-seconds are sampled from the pool's status. The simulator gets the measured costs and the very
same sessions, and says what it would have expected.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import firepool_ray as fp
from firepool_ray.cli.bench import model_load, profiling
from firepool_ray.config import PoolConfig
from firepool_ray.runtime import baselines
from firepool_ray.sim import costs
from firepool_ray.sim.engine import Setup, simulate
from firepool_ray.sim.generators import Agents, Range, RlLoops
from firepool_ray.sim.workload import Call, Session, Workload, together

POLICIES = ("adaptive", "always", "never")
FRESH = "fresh actor per job"
SEED = 3
SAMPLE_S = 0.1
LANES = 6
RL = RlLoops(
    loops=2, n=2, bursts=7, burst_s=Range(1.0, 2.0), pause_s=Range(10.0, 14.0), spread_s=2.0
)
AGENTS = Agents(
    callers=2,
    calls=20,
    job_s=Range(0.2, 0.4),
    job_sigma=0.3,
    pause_s=Range(0.5, 1.0),
    pause_sigma=0.7,
    spread_s=2.0,
)
#: What a sampled lane is doing; "other": it starts, is handed on, or has no worker.
_KINDS = ("busy", "idle", "other")


class Outcome(NamedTuple):
    """What one way of running the loops came to."""

    name: str
    loop_s: float  #: mean length of a trainer's or agent's session
    p50_s: float  #: start latency: submit to the first user instruction
    p90_s: float
    held_gpu_s: float  #: GPUs reserved, over time
    idle_gpu_s: float
    warm: float  #: share of jobs served by their caller's own idle worker


def workload() -> Workload:
    return together(RL.workload(SEED), AGENTS.workload(SEED))


def settings(policy: str) -> PoolConfig:
    profile = {
        "gpus": 1,
        "cpus": 0.5,
        "standbys": 0,
        "max_lanes": LANES,
        "keep_alive": policy,
        "preload": [model_load.__name__],
    }
    return PoolConfig.from_dict({"profiles": {"gpu": profile}})


# ---------------------------------------------------------------- live


@dataclass(slots=True)
class _Watch:
    """Samples what the pool holds, in a thread of its own."""

    gpu_s: dict[str, float] = field(
        default_factory=lambda: {"busy": 0.0, "idle": 0.0, "other": 0.0}
    )
    leaving_s: float = 0.0
    costs: dict[str, Any] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> _Watch:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._over.wait(SAMPLE_S):
            described = fp.status()
            now = time.monotonic()
            self._count(described, now - last)
            last = now

    def _count(self, described: dict[str, Any], seconds: float) -> None:
        self.costs = described["profiles"][0]
        for lane in described["lanes"]:
            states = [worker["state"] for worker in lane["workers"]]
            kind = "busy" if "busy" in states else "idle" if "idle" in states else "other"
            self.gpu_s[kind] += seconds * lane["gpus"]
            self.leaving_s += seconds * states.count("leaving")


def run_pool(policy: str) -> tuple[Outcome, dict[str, Any]]:
    """The loops on a pool; also the costs that the pool has measured."""
    with baselines.local_cluster(LANES, LANES):
        fp.start(settings(policy))
        try:
            with _Watch() as watch:
                done, loop_s = _drive(_submit)
            described = watch.costs
            infos = [job.info() for job in done]
        finally:
            fp.shutdown()
    waits = [info.started_at - info.submitted_at for info in infos]
    cold = [wait for wait, info in zip(waits, infos, strict=True) if info.source == "cold"]
    bound = Outcome(
        policy,
        loop_s,
        profiling.percentile(waits, 50),
        profiling.percentile(waits, 90),
        sum(watch.gpu_s.values()),
        watch.gpu_s["idle"],
        sum(info.source == "warm" for info in infos) / len(infos),
    )
    measured = {
        "cold_s": described["cold_start_s"] - described["grow_s"],
        "grow_s": described["grow_s"],
        "promote_s": described["promote_s"],
        "retire_s": watch.leaving_s / max(1, len(cold)),
        "warm_s": profiling.percentile(
            [w for w, info in zip(waits, infos, strict=True) if info.source == "warm"] or [0.0], 50
        ),
    }
    return bound, measured


def _submit(call: Call) -> Any:
    return fp.options(caller=call.job.caller).submit(time.sleep, call.job.duration_s)


def _drive(submit: Callable[[Call], Any]) -> tuple[list[Any], float]:
    """Play all sessions in real time; the finished jobs, and the mean length of a session."""
    began = time.monotonic()
    planned: list[tuple[float, int, Session, Call]] = []
    running: list[tuple[Session, Call, Any]] = []
    finished: list[Any] = []
    lengths: list[float] = []
    serial = 0

    def plan(session: Session, calls: list[Call]) -> None:
        nonlocal serial
        for call in calls:
            serial += 1
            heapq.heappush(planned, (call.job.start_s, serial, session, call))

    for session in workload().sessions():
        plan(session, session.begin())
    while planned or running:
        now = time.monotonic() - began
        while planned and planned[0][0] <= now:
            _, _, session, call = heapq.heappop(planned)
            running.append((session, call, submit(call)))
        for entry in [entry for entry in running if entry[2].done()]:
            running.remove(entry)
            session, call, job = entry
            finished.append(job)
            at = time.monotonic() - began
            plan(session, session.ended(call.tag, at))
            if session.done():
                lengths.append(at - session.begin_s)
        time.sleep(0.002)
    return finished, sum(lengths) / len(lengths)


# ---------------------------------------------------------------- a fresh actor per job


class _Fresh:
    """One job on an actor of its own: made, used once, killed."""

    def __init__(self, call: Call) -> None:
        self.submitted = time.time()
        self.started = self.ended = 0.0
        self._seconds = call.job.duration_s
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.started, self.ended = baselines.one_job_on_a_fresh_actor(
            self._seconds, model_load.__name__, num_gpus=1, num_cpus=0.5
        )

    def done(self) -> bool:
        return not self._thread.is_alive()


def run_fresh() -> Outcome:
    with baselines.local_cluster(LANES, LANES):
        done, loop_s = _drive(_Fresh)
    waits = [job.started - job.submitted for job in done]
    held = sum(job.ended - job.submitted for job in done)
    return Outcome(
        FRESH,
        loop_s,
        profiling.percentile(waits, 50),
        profiling.percentile(waits, 90),
        held,
        0.0,
        0.0,
    )


# ---------------------------------------------------------------- simulated


def predict(policy: str, measured: dict[str, Any]) -> Outcome:
    """What the simulator expects of exactly that run, with the costs that it measured."""
    prices = costs.Costs(
        cold=costs.Constant(measured["cold_s"]),
        grow=costs.Constant(measured["grow_s"]),
        promote=costs.Constant(measured["promote_s"]),
        retire=costs.Constant(measured["retire_s"]),
    )
    spec = settings(policy).to_spec()
    spec = replace(spec, max_gpus=float(LANES))
    # What is still held after the last job has ended is not sampled on the live pool either.
    result = simulate(Setup(spec, prices, SEED, tail_s=0.0), workload())
    warm_s = measured["warm_s"]
    p50, p90 = (result.latencies.percentile(q) or 0.0 for q in (0.5, 0.9))
    return Outcome(
        policy,
        result.loop_s,
        p50 + warm_s,
        p90 + warm_s,
        result.held_gpu_s,
        result.gpu_s["idle"],
        result.warm_share,
    )


class Row(NamedTuple):
    live: Outcome
    simulated: Outcome | None  #: None for the fresh actors


def measure() -> Iterator[Row]:
    """One row after the other, as they are known; about a minute each."""
    for policy in POLICIES:
        live, measured = run_pool(policy)
        yield Row(live, predict(policy, measured))
    yield Row(run_fresh(), None)
