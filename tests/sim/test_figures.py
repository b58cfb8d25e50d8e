"""Figures on small loads made here: they run, judge by their own numbers and hold the bound."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firepool_ray.core.keepalive import Fixed
from firepool_ray.errors import TraceError, UnknownName
from firepool_ray.sim import (
    bound,
    figures,
    figures_cost,
    figures_hindsight,
    figures_limits,
    figures_loops,
)
from firepool_ray.sim.costs import Constant, Costs
from firepool_ray.sim.figures_base import Figure, load_of, pool, run
from firepool_ray.sim.figures_replay import replay
from firepool_ray.sim.result import Result
from firepool_ray.sim.traces import TraceJob

COLD_S = 10.0


def some_jobs(
    seed: int, count: int = 40, callers: int = 3, span_s: float = 600.0
) -> list[TraceJob]:
    chance = random.Random(seed)
    jobs = [
        TraceJob(f"c{chance.randrange(callers)}", chance.uniform(0, 600), chance.expovariate(0.1))
        for _ in range(count)
    ]
    return sorted(jobs, key=lambda job: job.start_s)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    agents = ["caller,start_s,duration_s,tool"]
    for number in range(4):
        at, chance = 0.0, random.Random(number)
        for call in range(12):
            duration_s = chance.uniform(0.1, 3.0)
            tool = "Bash" if call % 3 else "Read"
            agents.append(f"agent{number},{at:.3f},{duration_s:.3f},{tool}")
            at += duration_s + chance.uniform(1.0, 40.0)
    (tmp_path / "agent_tool_calls.csv").write_text("\n".join(agents) + "\n")
    image = ["caller,start_s,duration_s,image"]
    image += [f"{j.caller},{j.start_s:.3f},{j.duration_s:.3f},m" for j in some_jobs(7, 60, 5)]
    (tmp_path / "image_jobs.csv").write_text("\n".join(image) + "\n")
    cold = ["cold_start_s", *(f"{seconds}" for seconds in (5.0, 8.0, 9.0, 12.0, 16.0))]
    (tmp_path / "cold_start_s.csv").write_text("\n".join(cold) + "\n")
    return tmp_path


def judged(found: list[Figure]) -> Figure:
    """The only figure; it has numbers, travels as JSON and prints."""
    (figure,) = found
    assert figure.values
    assert json.loads(json.dumps(figure.to_dict(), allow_nan=False))["name"] == figure.name
    printed = list(figures.lines(found))
    assert printed[0].startswith(f"{figure.name}: {'reached' if figure.ok else 'MISSED'}")
    assert len(printed) == 1 + len(figure.values)
    return figure


# ---------------------------------------------------------------------- the bound holds


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(("never", "fixed:4", "fixed:30", "always", "adaptive", "lru:15", "hybrid")),
    st.booleans(),
)
def test_no_policy_costs_less_than_the_bound_of_what_ran(
    seed: int, policy: str, closed: bool
) -> None:
    spec = pool(cold_s=COLD_S)
    costs = Costs(cold=Constant(COLD_S), promote=Constant(0.5))
    ran = run(policy, spec, costs, load_of(some_jobs(seed), closed=closed), seed=seed)
    schedule = ran.seen.schedule()
    assert len(schedule) == 40
    least = bound.uncapped(bound.pair(schedule), COLD_S)
    assert ran.result.cost_gpu_s >= least - _swept_s(ran.result, costs) - 1e-6


def _swept_s(result: Result, costs: Costs) -> float:
    """A start in a lane that is still being swept costs only what comes after the sweep."""
    return costs.retire.mean_s * result.starts["cold"]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(("fixed:0", "fixed:20", "adaptive", "greedy-dual")))
def test_nor_less_than_the_capped_one(seed: int, policy: str) -> None:
    spec = pool(cold_s=COLD_S, max_lanes=2)
    costs = Costs(cold=Constant(COLD_S), promote=Constant(0.5))
    ran = run(policy, spec, costs, load_of(some_jobs(seed), closed=False), seed=seed)
    pairing = bound.pair(ran.seen.schedule())
    least = bound.capped(pairing, 2.0, COLD_S)
    assert ran.result.cost_gpu_s >= least - _swept_s(ran.result, costs) - 1e-6
    assert least >= bound.uncapped(pairing, COLD_S) - 1e-6


# ---------------------------------------------------------------------- in hindsight


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from((0.0, 3.0, 10.0, 80.0)))
def test_times_to_live_by_formula_and_replayed(seed: int, ttl_s: float) -> None:
    jobs = some_jobs(seed)
    (found,) = figures_hindsight.at_ttls(bound.pair(jobs), [ttl_s], COLD_S)
    ran = replay(jobs, Fixed(ttl_s), COLD_S)
    assert found.warm_share == pytest.approx(ran.warm_share)
    assert found.idle_gpu_s == pytest.approx(ran.idle_gpu_s)
    assert found.cost_gpu_s == pytest.approx(ran.cost_gpu_s(COLD_S))


def test_the_best_times_to_live_are_the_best() -> None:
    jobs = some_jobs(3)
    pairing = bound.pair(jobs)
    best = figures_hindsight.best(pairing, COLD_S)
    ttls = [0.0, *(gap.end_s - gap.begin_s for gap in pairing.gaps)]
    costs = [replay(jobs, Fixed(ttl_s), COLD_S).cost_gpu_s(COLD_S) for ttl_s in ttls]
    assert best.cost_gpu_s == pytest.approx(min(costs))
    by_caller = 0.0
    for caller in sorted({job.caller for job in jobs}):
        own = [job for job in jobs if job.caller == caller]
        by_caller += min(replay(own, Fixed(t), COLD_S).cost_gpu_s(COLD_S) for t in ttls)
    assert figures_hindsight.best_per_caller_gpu_s(pairing, COLD_S) == pytest.approx(by_caller)
    told = figures_hindsight.best_per_caller_gpu_s(pairing, COLD_S, tails=False)
    assert bound.uncapped(pairing, COLD_S) <= told <= by_caller <= best.cost_gpu_s + 1e-9


# ---------------------------------------------------------------------- each figure


def test_unknown_names_and_missing_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'headline'"):
        figures.run(tmp_path, ["headlin"])
    with pytest.raises(TraceError, match="needs a folder"):
        figures.run(None, ["image"])
    with pytest.raises(TraceError, match="cannot read"):
        figures.run(tmp_path, ["sweep"])


@pytest.mark.parametrize("name", ["agents-bash", "agents-all", "image"])
def test_cost_against_the_bound(folder: Path, name: str) -> None:
    told: list[str] = []
    figure = judged(figures.run(folder, [name], told.append))
    assert told
    assert figure.values["cost / bound"] >= 1.0 - 1e-9
    assert figure.detail["C = mean"]["cold_s"] == 10.0
    assert figure.detail["C = p90"]["cold_s"] == pytest.approx(14.4)
    limits = figure.detail["hindsight, starts take no time"]
    least = limits["best ttl per caller, closing told, cost / bound"]
    assert 1.0 - 1e-9 <= least <= limits["best ttl per caller, cost / bound"]
    assert limits["best ttl per caller, cost / bound"] <= limits["best ttl, cost / bound"] + 1e-9
    if name == "image":
        assert figure.ok == (figure.values["cost / bound"] <= 1.20)


@pytest.mark.parametrize("largest", [0, 5_000])
def test_sweep_compares_at_equal_warm_share(
    folder: Path, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_cost, "SWEEP_COLD_S", (5.0, 10.0, 22.0))
    monkeypatch.setattr(figures_cost, "GRID", 4)
    monkeypatch.setattr(figures_cost, "SWEEP_JOBS", largest)
    figure = judged(figures.run(folder, ["sweep"]))
    assert figure.ok == all(value <= 0.85 for value in figure.values.values())
    for rows in figure.detail.values():
        assert [row["cold_s"] for row in rows] == [5.0, 10.0, 22.0]
        assert all(row["engine"] == bool(largest) for row in rows)


def test_a_fixed_curve_is_read_between_its_points() -> None:
    curve = [(0.2, 10.0), (0.6, 50.0)]
    assert figures_cost._between(curve, 0.1) == pytest.approx(5.0)
    assert figures_cost._between(curve, 0.4) == pytest.approx(30.0)
    assert figures_cost._between(curve, 0.7) is None


def test_a_cap_is_compared_with_rivals(folder: Path) -> None:
    figure = judged(figures.run(folder, ["cap"]))
    for policy in ("adaptive", "lru:60", "greedy-dual", "hybrid"):
        assert figure.detail[policy]["cost / bound"] >= 1.0 - 1e-9
    for policy in ("adaptive, engine", "lru:60, engine"):
        assert figure.detail[policy]["cost / bound"] >= 1.0 - 1e-9
    dearer = [row["warm"] for row in figure.detail["frontier"] if "lru" in row["policy"]]
    assert dearer == sorted(dearer)


def test_trainers_against_always_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures_loops, "BURSTS", 6)
    figure = judged(figures.run(None, ["rl"]))
    assert figure.detail["lanes"] == 32
    always = figure.detail["always"]
    assert always["sources"]["cold"] == 0
    assert always["peak_gpus"] == 32.0


def test_the_headline_counts_all_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures_loops, "BURSTS", 2)
    monkeypatch.setattr(figures_loops, "AGENTS", 6)
    figure = judged(figures.run(None, ["headline"]))
    held = figure.values["busy + idle + starting + free GPU-s / always-on"]
    assert held >= figure.values["busy + idle + starting GPU-s / always-on"]
    assert held >= figure.values["busy GPU-s / always-on"]


def test_loops_against_fresh_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures_loops, "STEPS", 40)
    figure = judged(figures.run(None, ["loop-time"]))
    # The pool's one cold start weighs more in so short a loop: (40 * 55) / (40 * 3.8 + 51).
    assert figure.values["agents: fresh / pool"] == pytest.approx(10.8, abs=0.5)
    # 13 x needs (51 + t) / (t + 2 ms) >= 13, so t <= (51 - 13 * 2 ms) / 12.
    assert figure.values["agents: job + pause_s up to (warm)"] == pytest.approx(4.2478, abs=1e-3)


def test_fairness_bounds_what_a_light_caller_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures_limits, "END_S", 700.0)
    found = figures.run(None, ["fairness"])
    assert len(found) == 4
    for figure in found:
        allowed_s = figure.values["allowed_s on arrival"]
        assert figure.values["longest wait_s on arrival"] <= allowed_s + 1e-6
    assert [figure.ok for figure in found if "back to back" in figure.name] == [True, True]


def test_scale_compares_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = 0.0

    def measured(requests: int, lanes: int, callers: int) -> dict[str, float]:
        return {
            "requests": requests,
            "wall_s": requests / 5_000,
            "jobs_per_s": 5_000.0,
            "events_per_s": 20_000.0 if lanes == 100 else 12_000.0,
            "peak_rss_bytes": 1e8 + grown * requests,
        }

    monkeypatch.setattr(figures_limits.scale_run, "run", measured)
    for grown, ok in ((10.0, True), (100.0, False)):
        figure = judged(figures.run(None, ["scale"]))
        assert figure.ok is ok
        assert figure.values["events/s at 10,000 lanes / at 100"] == 0.6
        assert figure.values["bytes more per request"] == pytest.approx(grown)
