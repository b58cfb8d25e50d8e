"""Figures of cost against the clairvoyant bound: agents, image jobs, a cap, a swept price.

Called by ``figures.run``. Policies run in the engine, on the pool's own machines. A run whose jobs
wait for starts has a schedule of its own; its bound is that of this schedule, and the bound of the
trace as recorded is shown beside it. Agents' sessions are closed loops (a call follows on the last
one's end), image jobs come when they were recorded.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from firepool_ray.core.adaptive import Adaptive
from firepool_ray.sim import bound, figures_hindsight, rivals
from firepool_ray.sim.bound import Standby
from firepool_ray.sim.costs import Constant, Costs, Distribution
from firepool_ray.sim.figures_base import (
    INF,
    NO_WINDOW_S,
    PUBLISHED_PROMOTE_S,
    Figure,
    Folder,
    Progress,
    Run,
    load_of,
    pool,
    run,
)
from firepool_ray.sim.figures_replay import Replayed, replay
from firepool_ray.sim.traces import TraceJob

#: Random start times of sessions: figures are means over these.
SEEDS = (1, 2, 3)
PROMOTE = Constant(PUBLISHED_PROMOTE_S)
READY = 0.947

CAP_GPUS = 4
CAP_COLD_S = 60.0
#: The engine sees so many of the jobs: under a cap they wait, and waiting is dear to simulate.
CAP_ENGINE_JOBS = 2_000
PRICES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
RIVALS = ("lru:60", "greedy-dual", "hybrid")

SWEEP_COLD_S = (5.0, 10.0, 22.0, 42.0, 60.0, 120.0)
#: Traces up to this many jobs are swept in the engine, larger ones by policy objects alone.
SWEEP_JOBS = 5_000
GRID = 12
#: Points added to a curve where it is read, at most, and warm shares that are close enough.
REFINED, CLOSE = 4, 0.01


# ---------------------------------------------------------------------- cost / bound


def agents_bash(folder: Folder, progress: Progress) -> list[Figure]:
    loads = [folder.agents(seed, "Bash") for seed in SEEDS]
    return [_against_bound("agents-bash", loads, folder, True, 1.25, progress)]


def agents_all(folder: Folder, progress: Progress) -> list[Figure]:
    loads = [folder.agents(seed) for seed in SEEDS]
    return [_against_bound("agents-all", loads, folder, True, 1.25, progress)]


def image(folder: Folder, progress: Progress) -> list[Figure]:
    return [_against_bound("image", [folder.image()], folder, False, 1.20, progress)]


def _against_bound(
    name: str,
    loads: list[list[TraceJob]],
    folder: Folder,
    closed: bool,
    most: float,
    progress: Progress,
) -> Figure:
    """Adaptive at the mean, median and 90th percentile of the cold starts, and what explains it."""
    cold = folder.cold()
    values_s = np.array(cold.values_s)
    kinds: dict[str, Distribution] = {
        "mean": cold,
        "p50": Constant(float(np.percentile(values_s, 50))),
        "p90": Constant(float(np.percentile(values_s, 90))),
    }
    values: dict[str, float] = {}
    detail: dict[str, Any] = {"jobs": len(loads[0]), "loop": "closed" if closed else "open"}
    for kind, distribution in kinds.items():
        progress(f"{name}: C at its {kind}")
        costs = Costs(cold=distribution, promote=PROMOTE)
        numbers = [_two_state("adaptive", jobs, costs, closed) for jobs in loads]
        suffix = "" if kind == "mean" else f", C = {kind}"
        values[f"cost / bound{suffix}"] = _mean(n["cost / bound"] for n in numbers)
        detail[f"C = {kind}"] = _means(numbers) | {"cold_s": distribution.mean_s}
        progress(f"{name}: standbys on, C at its {kind}")
        ready = [_three_state(jobs, costs, closed) for jobs in loads]
        if kind == "mean":
            recorded = _mean(n["cost / bound as recorded"] for n in numbers)
            values["cost / bound of the trace as recorded"] = recorded
            values["warm share"] = _mean(n["warm share"] for n in numbers)
            values["warm + standby share, standbys on"] = _mean(n["ready share"] for n in ready)
        detail[f"standbys on, C = {kind}"] = _means(ready)
    detail |= _explained(name, loads, Costs(cold=cold, promote=PROMOTE), closed, progress)
    share = values["warm + standby share, standbys on"]
    reach = f"cost / bound <= {most}, tails included"
    ok = values["cost / bound"] <= most
    if closed:
        reach += f"; warm + standby >= {READY:.1%} with standbys on"
        ok = ok and share >= READY
    return Figure(name, values, reach, ok, detail)


def _two_state(
    policy: str, jobs: list[TraceJob], costs: Costs, closed: bool, closing: bool = False
) -> dict[str, float]:
    """One run in which every start is warm or cold."""
    cold_s = costs.cold.mean_s
    spec = pool(cold_s=cold_s, window_s=NO_WINDOW_S)
    ran = run(policy, spec, costs, load_of(jobs, closed=closed), closing=closing)
    as_run = bound.uncapped(bound.pair(ran.seen.schedule()), cold_s)
    recorded = bound.uncapped(bound.pair(jobs), cold_s)
    return _numbers(ran, as_run, recorded) | {"warm share": ran.result.warm_share}


def _three_state(jobs: list[TraceJob], costs: Costs, closed: bool) -> dict[str, float]:
    """One run with standbys, lanes kept as adaptive finds. Its bound may pass lanes on."""
    cold_s = costs.cold.mean_s
    spec = pool(cold_s=cold_s, standbys=1, lane_keep_s=None, window_s=NO_WINDOW_S)
    ran = run("adaptive", spec, costs, load_of(jobs, closed=closed))
    standby = Standby(costs.promote.mean_s)
    as_run = bound.pooled(bound.pair(ran.seen.schedule()), cold_s, standby)
    recorded = bound.pooled(bound.pair(jobs), cold_s, standby)
    shares = {"warm share": ran.result.warm_share, "ready share": ran.result.ready_share}
    own = bound.uncapped(bound.pair(ran.seen.schedule()), cold_s, standby)
    return _numbers(ran, as_run, recorded) | shares | {"bound, lanes not shared": own}


def _numbers(ran: Run, as_run: float, recorded: float) -> dict[str, float]:
    result = ran.result
    return {
        "cost / bound": result.cost_gpu_s / as_run,
        "cost / bound as recorded": result.cost_gpu_s / recorded,
        "cost": result.cost_gpu_s,
        "bound": as_run,
        "idle": result.gpu_s["idle"],
        "free": result.gpu_s["free"],
        "starting": result.gpu_s["starting"],
        "cold starts": float(result.starts["cold"]),
    }


def _explained(
    name: str, loads: list[list[TraceJob]], costs: Costs, closed: bool, progress: Progress
) -> dict[str, Any]:
    """What other knowledge would give: simple policies, known ends, the best times afterwards."""
    cold_s = costs.cold.mean_s
    detail: dict[str, Any] = {}
    others = {"never": False, f"fixed:{cold_s:.3f}": False, "adaptive": True}
    for policy, closing in others.items():
        label = "adaptive, closing told" if closing else policy
        progress(f"{name}: {label}")
        numbers = [_two_state(policy, jobs, costs, closed, closing) for jobs in loads]
        detail[label] = _means(numbers)
    pairing = bound.pair(loads[0])
    least = bound.uncapped(pairing, cold_s)
    best, told = (figures_hindsight.best(pairing, cold_s, tails=tails) for tails in (True, False))
    detail["hindsight, starts take no time"] = {
        "best ttl, cost / bound": best.cost_gpu_s / least,
        "best ttl_s": best.ttl_s,
        "best ttl, closing told, cost / bound": told.cost_gpu_s / least,
        "best ttl per caller, cost / bound": (
            figures_hindsight.best_per_caller_gpu_s(pairing, cold_s) / least
        ),
        "best ttl per caller, closing told, cost / bound": (
            figures_hindsight.best_per_caller_gpu_s(pairing, cold_s, tails=False) / least
        ),
        "ttl of C, cost / bound": (
            figures_hindsight.at_ttls(pairing, [cold_s], cold_s)[0].cost_gpu_s / least
        ),
        "never, cost / bound": float(pairing.gpus().sum()) * cold_s / least,
        "adaptive, cost / bound": replay(loads[0], Adaptive(), cold_s).cost_gpu_s(cold_s) / least,
    }
    grid = [cold_s * factor for factor in _grid()]
    detail["ttl curve, starts take no time"] = [
        {"ttl_s": ttl.ttl_s, "warm": ttl.warm_share, "cost / bound": ttl.cost_gpu_s / least}
        for ttl in figures_hindsight.at_ttls(pairing, grid, cold_s)
    ]
    return detail


# ---------------------------------------------------------------------- the price of a start


def sweep(folder: Folder, progress: Progress) -> list[Figure]:
    """Adaptive against all fixed times to live, in the plane of warm share and idleness."""
    loads = {
        "agents, Bash": folder.agents(SEEDS[0], "Bash"),
        "agents, all tools": folder.agents(SEEDS[0]),
        "image": folder.image(),
    }
    values: dict[str, float] = {}
    detail: dict[str, Any] = {}
    for name, jobs in loads.items():
        rows = _sweep_one(name, jobs, progress)
        compared = [row["idle / fixed"] for row in rows if row["idle / fixed"] is not None]
        values[f"{name}: worst idle / fixed at equal warm share"] = max(compared, default=INF)
        detail[name] = rows
    return [
        Figure(
            "sweep",
            values,
            "idle GPU-seconds <= 0.85 x fixed TTL's at equal warm share, at every price",
            all(value <= 0.85 for value in values.values()),
            detail,
        )
    ]


def _sweep_one(name: str, jobs: list[TraceJob], progress: Progress) -> list[dict[str, Any]]:
    """Sessions are closed loops in the engine, so gaps, and with them the curve of fixed times to
    live, do not depend on what a start takes: it is measured once.
    """
    simulated = len(jobs) <= SWEEP_JOBS
    fixed = _Simulated(jobs, progress) if simulated else _Replayed(jobs)
    rows = []
    for cold_s in SWEEP_COLD_S:
        progress(f"sweep: {name}: adaptive, C = {cold_s:g} s")
        warm, idle = fixed.adaptive(cold_s)
        least = fixed.idle_at(warm)
        rows.append(
            {
                "cold_s": cold_s,
                "warm share": warm,
                "idle": idle,
                "fixed idle": least,
                "idle / fixed": idle / least if least else None,
                "engine": simulated,
            }
        )
    return rows


class _Replayed:
    """A large trace, its starts taking no time: policy objects alone, the curve by its formula."""

    def __init__(self, jobs: list[TraceJob]) -> None:
        self._jobs = jobs
        pairing = bound.pair(jobs)
        gaps = pairing.lengths_s()
        ttls = np.quantile(gaps[np.isfinite(gaps)], np.linspace(0, 1, 2_000))
        found = figures_hindsight.at_ttls(pairing, np.unique(ttls).tolist(), 0.0)
        self._curve = [(ttl.warm_share, ttl.idle_gpu_s) for ttl in found]

    def adaptive(self, cold_s: float) -> tuple[float, float]:
        """Warm share and idle GPU-seconds."""
        ran = replay(self._jobs, Adaptive(), cold_s)
        return ran.warm_share, ran.idle_gpu_s

    def idle_at(self, warm: float) -> float | None:
        return _between(self._curve, warm)


class _Simulated:
    """A small trace in the engine. The curve is refined where it is asked for."""

    def __init__(self, jobs: list[TraceJob], progress: Progress) -> None:
        self._jobs = jobs
        self._progress = progress
        self._curve: list[tuple[float, float, float]] = []  # warm share, idle, time to live
        for factor in _grid():
            self._add(SWEEP_COLD_S[2] * factor)

    def adaptive(self, cold_s: float) -> tuple[float, float]:
        """Warm share and idle GPU-seconds."""
        return self._run("adaptive", cold_s)

    def idle_at(self, warm: float) -> float | None:
        for _ in range(REFINED):
            above = next((i for i, point in enumerate(self._curve) if point[0] >= warm), None)
            if not above or self._curve[above][0] - self._curve[above - 1][0] < CLOSE:
                break
            self._add(math.sqrt(self._curve[above - 1][2] * self._curve[above][2]))
        return _between([point[:2] for point in self._curve], warm)

    def _add(self, ttl_s: float) -> None:
        self._progress(f"sweep: fixed:{ttl_s:.3g}")
        warm, idle = self._run(f"fixed:{ttl_s:.6f}", SWEEP_COLD_S[2])
        self._curve = sorted([*self._curve, (warm, idle, ttl_s)])

    def _run(self, policy: str, cold_s: float) -> tuple[float, float]:
        costs = Costs(cold=Constant(cold_s), promote=PROMOTE)
        spec = pool(cold_s=cold_s, window_s=NO_WINDOW_S)
        result = run(policy, spec, costs, load_of(self._jobs, closed=True)).result
        return result.warm_share, result.gpu_s["idle"]


def _between(curve: Sequence[tuple[float, float]], warm: float) -> float | None:
    """The fixed curve's idle seconds at a warm share; None outside of what it reaches.

    Straight between points. Between the first point and the origin as well: a mixture of it and
    holding nothing.
    """
    shares = [0.0] + [point[0] for point in curve]
    idles = [0.0] + [point[1] for point in curve]
    if not shares[0] < warm <= shares[-1]:
        return None
    return float(np.interp(warm, shares, idles))


def _grid() -> list[float]:
    """Times to live as multiples of C: a twentieth to twenty times, evenly by ratio."""
    return [float(factor) for factor in np.geomspace(0.05, 20.0, GRID)]


# ---------------------------------------------------------------------- a cap


def cap(folder: Folder, progress: Progress) -> list[Figure]:
    """Image jobs on four GPUs. Judged as in the literature, where starts take no time and jobs
    run at their times (LRU + TTL is then at about 1.6); beside it the engine on the first part of
    the trace, where jobs wait for a GPU and each waiting job is looked at again and again.
    """
    jobs = folder.image()
    least = bound.capped(bound.pair(jobs), CAP_GPUS, CAP_COLD_S)
    detail: dict[str, Any] = {}
    for policy in ("adaptive", *RIVALS):
        progress(f"cap: {policy}")
        rule = rivals.parse(policy) or Adaptive()
        detail[policy] = _capped_replay(replay(jobs, rule, CAP_COLD_S, CAP_GPUS), least)
    progress("cap: the frontier")
    detail["frontier"] = _frontier(jobs, least)
    part = jobs[:CAP_ENGINE_JOBS]
    for policy in ("adaptive", RIVALS[0]):
        progress(f"cap: {policy} in the engine, {len(part):,} jobs")
        detail[f"{policy}, engine"] = _capped_engine(policy, part)
    values = {}
    for label in ("", ", engine"):
        mine, lru = detail[f"adaptive{label}"], detail[f"{RIVALS[0]}{label}"]
        values[f"cost / bound{label}"] = mine["cost / bound"]
        values[f"warm starts / LRU + TTL's{label}"] = mine["warm"] / max(1, lru["warm"])
        values[f"LRU + TTL cost / bound{label}"] = lru["cost / bound"]
    ok = values["cost / bound"] <= 1.45 and values["warm starts / LRU + TTL's"] >= 0.9
    reach = "B = 4, C = 60: cost / bound <= 1.45 with >= 0.9 x the warm starts of LRU + TTL"
    return [Figure("cap", values, reach, ok, detail)]


def _frontier(jobs: list[TraceJob], least: float) -> list[dict[str, Any]]:
    """Warm starts against cost: adaptive at other prices of a start, LRU at other times to live."""
    rules = {f"adaptive, a start worth {price:g} x": Adaptive(price) for price in PRICES}
    ttls = {f"lru:{CAP_COLD_S * part:g}": rivals.LruTtl(CAP_COLD_S * part) for part in PRICES}
    return [
        {"policy": name} | _capped_replay(replay(jobs, rule, CAP_COLD_S, CAP_GPUS), least)
        for name, rule in (rules | ttls).items()
    ]


def _capped_engine(policy: str, jobs: list[TraceJob]) -> dict[str, float]:
    costs = Costs(cold=Constant(CAP_COLD_S), promote=PROMOTE)
    spec = pool(cold_s=CAP_COLD_S, max_lanes=CAP_GPUS)
    ran = run(policy, spec, costs, load_of(jobs, closed=False))
    least = bound.capped(bound.pair(ran.seen.schedule()), CAP_GPUS, CAP_COLD_S)
    numbers = _numbers(ran, least, bound.capped(bound.pair(jobs), CAP_GPUS, CAP_COLD_S))
    longest_s = max(ran.result.longest_wait_s.values(), default=0.0)
    return numbers | {"warm": float(ran.result.sources["warm"]), "longest wait": longest_s}


def _capped_replay(ran: Replayed, least: float) -> dict[str, float]:
    return {
        "cost / bound": ran.cost_gpu_s(CAP_COLD_S) / least,
        "cost": ran.cost_gpu_s(CAP_COLD_S),
        "bound": least,
        "idle": ran.idle_gpu_s,
        "warm": float(ran.warm),
    }


# ---------------------------------------------------------------------- numbers


def _mean(numbers: Iterable[float]) -> float:
    return statistics.fmean(numbers)


def _means(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: _mean(row[key] for row in rows) for key in rows[0]}
