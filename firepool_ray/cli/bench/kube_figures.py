"""What ``firepool bench --kube`` measures and what is to be reached. Pure data.

Two rivals, each from creation to its job's first instruction, in the same run: a "plain pod" has
Python alone, a "Ray pod" what a job of the pool has: it joins Ray and holds an actor in a placement
group. In the loops every job of the rival has a plain pod of its own; the Ray pod stands alone.
"""

from __future__ import annotations

from firepool_ray.cli.bench.figures import Target

GROUPS: dict[str, tuple[Target, ...]] = {
    "loops": (
        Target("kube_agents_start", "x", 100, at_least=True, what="agents: start p50, plain pod"),
        Target("kube_agents_start_ray", "x", 100, at_least=True, what="agents: start p50, Ray pod"),
        Target("kube_agents_loop", "x", 1.1, what="agents: loop time / with free starts"),
        Target("kube_rollouts_start", "x", 100, at_least=True, what="RL: start p50, plain pod"),
        Target("kube_rollouts_start_ray", "x", 100, at_least=True, what="RL: start p50, Ray pod"),
        Target("kube_rollouts_loop", "x", 1.1, what="RL: loop time / with free starts"),
        Target("kube_promotion", "x", 0.01, what="promotion p50 / plain pod"),
        Target("kube_promotion_ray", "x", 0.01, what="promotion p50 / Ray pod"),
        Target("kube_handover", "x", 0.02, what="handover p90 / plain pod"),
        Target("kube_handover_ray", "x", 0.02, what="handover p90 / Ray pod"),
    ),
    "empty": (
        Target("kube_first_job", "x", 1.25, what="first job on zero pods / the same by hand, p50"),
    ),
    "idle": (
        Target("kube_requests", "1/min", 10, what="API requests of an idle pool, 12 lanes, 4 pods"),
    ),
    "queue": (
        Target("kube_quota", "s", 2.0, what="ClusterQueue's quota changed to the pool's, p90"),
    ),
    "deletions": (
        Target("kube_deletions_failed", "jobs", 0, what="failed in 50 voluntary pod deletions"),
        Target("kube_deletions_p99", "x", 3.0, what="start p99, with the deletions / without"),
    ),
    "kills": (
        Target("kube_kills_unclear", "jobs", 0, what="not ended exactly once in 20 pod kills"),
        Target("kube_kills_back", "x", 2.0, what="longest time to be back / Ray pod"),
    ),
    "head": (
        Target("kube_head_lost", "jobs", 0, what="running jobs lost with the head (Redis)"),
        Target("kube_head_grant", "s", 60, what="head lost to the first new grant"),
    ),
}

TARGETS: dict[str, Target] = {
    target.name: target for targets in GROUPS.values() for target in targets
}
