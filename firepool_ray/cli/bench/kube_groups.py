"""The groups of ``firepool bench --kube``: each brings up the pool it needs and measures on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from firepool_ray.cli.bench import kube_faults, kube_plan
from firepool_ray.cli.bench.figures import Measured
from firepool_ray.cli.bench.kube_fresh import FreshPods
from firepool_ray.cli.bench.kube_plan import Ran
from firepool_ray.cli.bench.kube_queue import Quotas
from firepool_ray.cli.bench.kube_site import QUEUE, Row, Where, standing
from firepool_ray.cli.bench.profiling import median, percentile
from firepool_ray.config import PoolConfig

LANES, PODS = 16, 4
ROUNDS = 12
FRESH_ALONE, BY_HAND = 10, 3


def loops(where: Where) -> Iterator[Measured]:
    """With room for one pod more, in which capacity made by hand comes."""
    per_pod = LANES // PODS
    kept: Row = {"min_lanes": LANES, "max_lanes": LANES + per_pod}
    kubernetes = {"idle_timeout_s": 10}
    pool = where.config(lanes_per_pod=per_pod, kubernetes=kubernetes, **kept)
    with standing(where, pool) as site, _fresh(where) as fresh:
        ray_pod_s = median(kube_faults.by_hand(site, BY_HAND))
        agents, rollouts = kube_plan.agents(), kube_plan.rollouts()
        asked: Row = {"count": len(agents.steps), "jobs": len(agents.steps[0]), "lanes": LANES}
        ran = _ran(site.drive("agents", **asked))
        yield from _loop("agents", ran, fresh.agents(agents), agents.ideal_s, ray_pod_s)
        asked = {"bursts": len(rollouts.bursts), "jobs": len(rollouts.bursts[0]), "lanes": LANES}
        ran = _ran(site.drive("rollouts", **asked))
        yield from _loop("rollouts", ran, fresh.rollouts(rollouts), rollouts.ideal_s, ray_pod_s)
        plain_s = median([fresh.run(0.0) for _ in range(FRESH_ALONE)])
        rows = site.drive("promotions", timeout_s=400.0, rounds=ROUNDS, lanes=LANES)
        yield from _single("promotion", rows, "standby", 50, plain_s, ray_pod_s)
        rows = site.drive("handovers", timeout_s=400.0, rounds=ROUNDS, lanes=LANES)
        yield from _single("handover", rows, "handover", 90, plain_s, ray_pod_s)


def empty(where: Where) -> Iterator[Measured]:
    kept: Row = {"max_lanes": 1, "keep_alive": "never", "lane_keep_s": 0.0, "standbys": 0}
    with standing(where, where.config(kubernetes={"idle_timeout_s": 5}, **kept)) as site:
        asked: Row = {"profile": "bench", "gpus": 1, "cpus": 0.25, "patience_s": 120.0}
        rows = site.drive("first", timeout_s=900.0, rounds=5, **asked)
    by_hand = [row["by_hand_s"] for row in rows if "by_hand_s" in row]
    ours = [row["start_s"] for row in rows if "start_s" in row]
    detail = f"p50 {median(ours):.1f} s against {median(by_hand):.1f} s by hand; " + _each(
        ours, by_hand
    )
    yield Measured("kube_first_job", median(ours) / median(by_hand), detail)


def idle(where: Where) -> Iterator[Measured]:
    lanes, pods = 12, 4
    kept: Row = {"min_lanes": lanes, "max_lanes": lanes}
    with standing(where, where.config(lanes_per_pod=lanes // pods, **kept)) as site:
        rows = site.drive("idle", timeout_s=400.0, lanes=lanes, settle_s=20.0, seconds=150.0)
    (row,) = [row for row in rows if "requests" in row]
    per_minute = 60 * row["requests"] / row["seconds"]
    detail = f"{row['requests']} in {row['seconds']:.0f} s, {row['pods']} pods with GPUs"
    yield Measured("kube_requests", per_minute, detail)


def queue(where: Where) -> Iterator[Measured]:
    seconds = 30.0
    with (
        Quotas(where.kube, where.gpu_resource) as quotas,
        standing(where, where.config(max_lanes=1, follows=quotas.follow)) as site,
    ):
        job = site.begin("quota", queue=QUEUE, seconds=seconds)
        site.await_running(job)
        changed = quotas.change_for(seconds + 5.0)
        rows = site.finish(job, timeout_s=180.0)
    delays = kube_faults.delays(changed, [(r["at"], r["quota"]) for r in rows if "quota" in r])
    detail = f"p50 {median(delays):.2f} s, longest {max(delays):.2f} s, {len(delays)} changes"
    yield Measured("kube_quota", percentile(delays, 90), detail)


def deletions(where: Where) -> Iterator[Measured]:
    with standing(where, _for_faults(where)) as site:
        quiet = kube_faults.undisturbed(site)
        yield from kube_faults.deletions(site, quiet)


def kills(where: Where) -> Iterator[Measured]:
    with standing(where, _for_faults(where)) as site:
        yield from kube_faults.kills(site)


def head(where: Where) -> Iterator[Measured]:
    pool = _for_faults(where, redis="managed")
    with standing(where, pool) as site:
        yield from kube_faults.head(site)


def _for_faults(where: Where, **more: Any) -> PoolConfig:
    """A pod per lane, more lanes than callers, and all of them kept."""
    lanes = kube_faults.LANES
    kubernetes = {"idle_timeout_s": 10, **more}
    return where.config(kubernetes=kubernetes, min_lanes=lanes, max_lanes=lanes + 2)


GROUPS: dict[str, Callable[[Where], Iterator[Measured]]] = {
    group.__name__: group for group in (loops, empty, idle, queue, deletions, kills, head)
}


# ------------------------------------------------------------ arithmetic


def _fresh(where: Where) -> FreshPods:
    return FreshPods(where.kube, where.base, where.gpu_resource)


def _ran(rows: list[Row]) -> Ran:
    starts = [row["start_s"] for row in rows if "start_s" in row]
    lengths = [row["loop_s"] for row in rows if "loop_s" in row]
    sources = Counter(row["source"] for row in rows if "source" in row)
    return Ran(sum(lengths) / len(lengths), starts, dict(sources))


def _loop(name: str, pool: Ran, fresh: Ran, ideal_s: float, ray_pod_s: float) -> Iterator[Measured]:
    ours, theirs = median(pool.starts_s), median(fresh.starts_s)
    started = ", ".join(f"{count} {source}" for source, count in sorted(pool.sources.items()))
    tails = [f"{1e3 * percentile(pool.starts_s, 90):.0f} ms", percentile(fresh.starts_s, 90)]
    yield Measured(
        f"kube_{name}_start",
        theirs / ours,
        f"p50 {1e3 * ours:.1f} ms against {theirs:.2f} s, p90 {tails[0]} against {tails[1]:.2f} s; "
        f"starts: {started}",
    )
    yield Measured(
        f"kube_{name}_start_ray",
        ray_pod_s / ours,
        f"p50 {1e3 * ours:.1f} ms against {ray_pod_s:.2f} s for one Ray pod while nothing else ran",
    )
    yield Measured(
        f"kube_{name}_loop",
        pool.loop_s / ideal_s,
        f"{pool.loop_s:.1f} s, free starts {ideal_s:.1f} s, fresh pods {fresh.loop_s:.1f} s: "
        f"{fresh.loop_s / pool.loop_s:.2f} x faster than fresh pods, at most "
        f"{fresh.loop_s / ideal_s:.2f} x is possible",
    )


def _single(
    name: str, rows: list[Row], source: str, p: int, plain_s: float, ray_pod_s: float
) -> Iterator[Measured]:
    starts = [row["start_s"] for row in rows if "start_s" in row]
    others = [row["source"] for row in rows if row.get("source", source) != source]
    if others:
        raise AssertionError(f"expected {source} starts, there were {Counter(others)}")
    value = percentile(starts, p)
    told = f"p{p} {1e3 * value:.1f} ms of {len(starts)}"
    yield Measured(f"kube_{name}", value / plain_s, f"{told}, plain pod p50 {plain_s:.2f} s")
    yield Measured(f"kube_{name}_ray", value / ray_pod_s, f"{told}, Ray pod p50 {ray_pod_s:.2f} s")


def _each(ours: list[float], by_hand: list[float]) -> str:
    return "pairs " + ", ".join(f"{a:.1f}/{b:.1f}" for a, b in zip(ours, by_hand, strict=False))
