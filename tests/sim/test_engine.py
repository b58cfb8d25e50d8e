"""The engine: hand-made runs whose every figure is known, and the core's invariants on any load."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firepool_ray.core import events as ev
from firepool_ray.core.actions import Action
from firepool_ray.core.model import PoolSpec, ProfileSpec, QueueSpec
from firepool_ray.errors import TraceError
from firepool_ray.sim import engine, generators
from firepool_ray.sim.costs import Constant, Costs, Uniform
from firepool_ray.sim.engine import Setup, simulate
from firepool_ray.sim.result import Result
from firepool_ray.sim.traces import TraceJob
from firepool_ray.sim.workload import Workload, closed_loop, open_loop, together
from tests.core.invariants import check

FREE = Costs(Constant(0), Constant(0), Constant(0), Constant(0))
#: Every kind of cost another number, so that a sum tells which ones are in it.
TOLD_APART = Costs(cold=Constant(20), promote=Constant(1), grow=Constant(3), retire=Constant(2))


def pool(
    keep_alive: str = "fixed:30",
    standbys: int = 0,
    lanes: int = 1000,
    lane_keep_s: float = 0.0,
    **kwargs: Any,
) -> PoolSpec:
    profile = ProfileSpec(
        "gpu", 1.0, standbys, max_lanes=lanes, keep_alive=keep_alive, lane_keep_s=lane_keep_s
    )
    return PoolSpec((profile,), (QueueSpec("default"),), refill_burst=1000, **kwargs)


def run(spec: PoolSpec, jobs: Iterable[TraceJob], costs: Costs = TOLD_APART, **more: Any) -> Result:
    return simulate(Setup(spec, costs, **more), open_loop(list(jobs)))


def test_cold_then_warm_then_gone() -> None:
    # grow 3, start 20, promote 1: it runs from 24 to 29; idle to 40; busy to 45; idle 30; 2 to go
    result = run(pool(), [TraceJob("a", 0, 5), TraceJob("a", 40, 5)])
    assert result.sources == {"warm": 1, "standby": 0, "handover": 0, "cold": 1}
    assert result.gpu_s == pytest.approx({"busy": 10, "idle": 41, "starting": 26, "free": 0})
    assert result.starts == {"cold": 1, "standby": 0, "handover": 0, "refill": 0}
    assert result.cost_gpu_s == pytest.approx(41 + 20)
    assert result.longest_wait_s == {"default": pytest.approx(24)}
    assert result.latencies.percentile(1.0, "cold") == pytest.approx(24, rel=0.05)
    assert result.latencies.percentile(1.0, "warm") == pytest.approx(1e-6)
    assert (result.span_s, result.peak_gpus, result.peak_wanted_gpus) == (45, 1, 1)
    assert result.always_on_gpu_s == 45
    assert (result.warm_share, result.ready_share) == (0.5, 0.5)


def test_time_to_live_ends_between_two_jobs() -> None:
    result = run(pool("fixed:10"), [TraceJob("a", 0, 5), TraceJob("a", 60, 5)])
    assert result.sources["cold"] == 2
    assert result.gpu_s == pytest.approx({"busy": 10, "idle": 20, "starting": 52, "free": 0})


def test_always_pays_to_the_end_of_the_load_and_no_further() -> None:
    result = run(pool("always"), [TraceJob("a", 0, 5), TraceJob("a", 100, 5)])
    # the measured linger after the last end is the only tail
    assert result.gpu_s["idle"] == pytest.approx(71, abs=1.5)
    assert result.sources["cold"] == 1


def test_closing_spares_the_tail() -> None:
    jobs = [TraceJob("a", 0, 5), TraceJob("a", 40, 5), TraceJob("b", 200, 1)]
    told = run(pool(), jobs, closing=True)
    untold = run(pool(), jobs)
    assert untold.gpu_s["idle"] - told.gpu_s["idle"] == pytest.approx(60)
    assert told.sources == untold.sources


def test_a_standby_is_promoted_and_its_lane_reserved_for_it() -> None:
    spec = pool("fixed:10", standbys=1, lanes=1, lane_keep_s=1000.0)
    result = run(spec, [TraceJob("a", 0, 5), TraceJob("b", 100, 5)], h2=0.25)
    assert result.sources == {"warm": 0, "standby": 1, "handover": 0, "cold": 1}
    assert result.starts["standby"] == 1
    # a's worker runs from 24, leaves at 39 and is gone at 41; the standby beside it starts from 24
    # to 44 and serves b from 101; the next one starts from 101 to 121, b's leaves at 116
    assert result.gpu_s["free"] == pytest.approx(100 - 44 + 1000 + 2)
    assert result.starts == {"cold": 1, "standby": 1, "handover": 0, "refill": 2}
    # five seconds of each of the two refills had the lane to themselves
    assert result.cost_gpu_s == pytest.approx(20 + 0.25 * 1058 + 20 + 2 * 5 + 1)
    assert result.longest_wait_s["default"] == pytest.approx(24)


def test_a_handover_retires_the_idle_worker_first() -> None:
    spec = pool("always", standbys=1, lanes=1)
    result = run(spec, [TraceJob("a", 0, 5), TraceJob("b", 100, 5)])
    assert result.sources["handover"] == 1
    assert result.starts["handover"] == 1
    # retire 2, promote 1
    assert result.latencies.percentile(1.0, "handover") == pytest.approx(3, rel=0.05)
    assert result.starts["refill"] == 2
    assert result.starts["cold"] == 1, "starts beside an active worker cost no GPU"


def test_several_gpus_count_as_many() -> None:
    profile = ProfileSpec("big", 4.0, 0, max_lanes=9, keep_alive="fixed:30", lane_keep_s=0.0)
    spec = PoolSpec((profile,), (QueueSpec("default"),))
    result = run(spec, [TraceJob("a", 0, 5, "big", gpus=4.0)])
    assert result.gpu_s == pytest.approx({"busy": 20, "idle": 120, "starting": 104, "free": 0})
    assert result.cost_gpu_s == pytest.approx(4 * (30 + 20))


def test_a_faster_start_shortens_a_closed_loop() -> None:
    jobs = [TraceJob("a", float(10 * i), 5) for i in range(10)]
    slow = simulate(Setup(pool("never"), TOLD_APART), closed_loop(jobs))
    fast = simulate(Setup(pool("always"), TOLD_APART), closed_loop(jobs))
    # as recorded it took 95 s; each cold start adds 24 s
    assert fast.loop_s == pytest.approx(95 + 24)
    assert slow.loop_s == pytest.approx(95 + 10 * 24)
    assert (fast.sessions, slow.sessions) == (1, 1)


def test_a_cap_makes_jobs_wait() -> None:
    jobs = [TraceJob(f"c{i}", 0, 10) for i in range(4)]
    result = run(pool("never", lanes=2), jobs, FREE)
    assert result.peak_gpus == 2
    assert result.peak_wanted_gpus == 4
    assert result.longest_wait_s["default"] == pytest.approx(10, abs=0.1)


def test_jobs_of_strangers_are_refused_with_a_hint() -> None:
    with pytest.raises(TraceError, match="profile 'cpu', which the pool does not have: it has gpu"):
        run(pool(), [TraceJob("a", 0, 1, "cpu")])
    with pytest.raises(TraceError, match="queue 'rl', which the pool does not have"):
        run(pool(), [TraceJob("a", 0, 1, queue="rl")])
    with pytest.raises(TraceError, match="wants 2 GPUs of profile 'gpu', whose workers have 1"):
        run(pool(), [TraceJob("a", 0, 1, gpus=2.0)])


def test_what_can_never_run_is_counted_with_its_reason() -> None:
    profile = ProfileSpec("gpu", 1.0, max_lanes=1)
    spec = PoolSpec((profile,), (QueueSpec("default", limit=0.5),))
    result = run(spec, [TraceJob("a", 0, 1), TraceJob("a", 5, 1)])
    assert result.failed == {"impossible": 2}
    assert "may hold only 0.5" in result.first_failure
    assert result.sources["cold"] == 0


def test_nothing_to_do() -> None:
    result = simulate(Setup(pool()), Workload())
    assert (result.jobs, result.span_s, result.cost_gpu_s) == (0, 0.0, 0.0)
    assert result.latencies.percentile(0.5) is None


def test_a_run_follows_from_its_seed() -> None:
    load = together(
        generators.parse("agents:callers=6,calls=8,spread_s=60").workload(1),
        generators.parse("poisson:callers=4,jobs=60").workload(1),
    )
    costs = Costs(cold=Uniform(5, 30), promote=Uniform(0, 2), message=Uniform(0, 0.01))

    def figures(seed: int) -> dict[str, Any]:
        shown = simulate(Setup(pool("adaptive", 1, 8), costs, seed), load).to_dict()
        del shown["wall_s"], shown["seed"]
        return shown

    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


def test_progress_is_told() -> None:
    told: list[int] = []
    jobs = [TraceJob("a", float(i), 0.1) for i in range(1200)]
    simulate(Setup(pool(), FREE), open_loop(jobs), told.append)
    assert told == [500, 1000]


def test_memory_does_not_depend_on_the_number_of_jobs() -> None:
    """What is left of a run is per caller and per worker; nothing is kept of a job."""
    jobs = [TraceJob(f"c{i % 3}", float(i), 0.4) for i in range(3000)]
    driven = engine._Run(Setup(pool("always", 1, 4), FREE), open_loop(jobs), None)
    result = driven.run()
    assert result.jobs == 3000
    assert not driven._callers._jobs
    assert len(driven.clock._planned) == 0
    assert len(result.curve.gpus["busy"]) <= 1024
    counts = driven._callers._by_caller
    assert len(counts) == 3
    assert all(client.pump.counts()["waiting"] == 0 for client in counts.values())


class Checked:
    """Hears every event, and checks the machine's invariants after it."""

    def __init__(self, driven: engine._Run) -> None:
        self._driven = driven
        self._handle = driven.machine.handle
        self.told: list[tuple[ev.Event, list[Action]]] = []
        driven.machine.handle = self.handle  # type: ignore[method-assign]

    def handle(self, event: ev.Event) -> list[Action]:
        actions = self._handle(event)
        check(self._driven.machine.pool)
        self.told.append((event, actions))
        return actions


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["adaptive", "fixed:5", "never", "always"]))
def test_the_core_keeps_its_invariants_and_every_job_ends(seed: int, keep_alive: str) -> None:
    chance = random.Random(seed)
    kinds = {"gpu": 1.0, "half": 0.5, "wide": 2.0}
    spec = PoolSpec(
        tuple(
            ProfileSpec(
                name,
                gpus,
                chance.randint(0, 2),
                chance.choice((0, 0, 1)),
                chance.randint(1, 4),
                keep_alive,
                lane_keep_s=chance.choice((0.0, 20.0, None)),
            )
            for name, gpus in kinds.items()
        ),
        (QueueSpec("a", quota=2.0), QueueSpec("b", quota=1.0, limit=4.0, weight=3.0)),
        max_gpus=chance.choice((4.0, 6.0, float("inf"))),
    )
    slow = chance.random() < 0.5
    costs = Costs(
        cold=Uniform(1, 12),
        promote=Uniform(0, 1),
        grow=Uniform(0, 3),
        retire=Uniform(0, 1),
        message=Uniform(0, 0.05) if slow else Constant(0),
    )
    jobs = []
    for _ in range(60):
        profile = chance.choice(list(kinds))
        who, queue = chance.choice((("x", "a"), ("y", "a"), ("z", "b")))
        start_s, duration_s = chance.uniform(0, 120), chance.choice((0.0, 0.1, 2.0, 9.0))
        jobs.append(TraceJob(who, start_s, duration_s, profile, queue, kinds[profile]))
    setup = Setup(spec, costs, seed, closing=chance.random() < 0.5)
    load = open_loop(jobs) if chance.random() < 0.5 else closed_loop(jobs)
    driven = engine._Run(setup, load, None)
    checked = Checked(driven)
    result = driven.run()
    assert result.jobs == 60
    assert sum(result.sources.values()) == 60
    assert not result.failed
    assert result.gpu_s["busy"] == pytest.approx(
        sum(job.duration_s * max(job.gpus, 0.5) for job in jobs)
    )
    assert result.peak_gpus <= spec.max_gpus + 1e-9
    assert all(value >= -1e-6 for value in result.gpu_s.values())
    assert len(checked.told) == result.events
