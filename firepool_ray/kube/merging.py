"""A RayCluster that is applied again beside a living one.

What others decide while it lives stays theirs: Kueue whether it is suspended, Ray's autoscaler how
many pods a group has. ``draining.shrink`` has been here before: no group has more pods than it may
keep, and one that was left out has none.
"""

from __future__ import annotations

from firepool_ray.kube.api import Object


def beside(wanted: Object, living: Object) -> Object:
    """What to apply. Pure."""
    spec, now = dict(wanted["spec"]), living.get("spec", {})
    if "suspend" in now:
        spec["suspend"] = now["suspend"]
    before = {group["groupName"]: group for group in now.get("workerGroupSpecs") or ()}
    groups = [_group_beside(g, before.get(g["groupName"])) for g in spec["workerGroupSpecs"]]
    return {**wanted, "spec": {**spec, "workerGroupSpecs": groups}}


def _group_beside(group: Object, living: Object | None) -> Object:
    if living is None:
        return group
    replicas = max(living.get("replicas") or 0, group["minReplicas"])
    merged = {**group, "replicas": min(replicas, group["maxReplicas"])}
    if "scaleStrategy" in living:
        merged["scaleStrategy"] = living["scaleStrategy"]
    return merged
