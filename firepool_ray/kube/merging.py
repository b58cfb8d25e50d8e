"""A RayCluster that is applied again beside a living one.

What others decide while it lives stays theirs: Kueue whether it is suspended, Ray's autoscaler how
many pods a group has. And nothing is taken from under running jobs: a maximum is not lowered below
the pods that are there, and a group that was left out stays until its pods have gone.
"""

from __future__ import annotations

from firepool_ray.kube.api import Object


def beside(wanted: Object, living: Object) -> tuple[Object, list[str]]:
    """(what to apply, what to tell people about it). Pure."""
    spec, now = dict(wanted["spec"]), living.get("spec", {})
    if "suspend" in now:
        spec["suspend"] = now["suspend"]
    before = {group["groupName"]: group for group in now.get("workerGroupSpecs") or ()}
    groups, notes = [], []
    for group in spec["workerGroupSpecs"]:
        merged, note = _group_beside(group, before.pop(group["groupName"], None))
        groups.append(merged)
        notes += note
    for name, group in before.items():
        if replicas := group.get("replicas") or 0:
            groups.append({**group, "minReplicas": 0, "maxReplicas": replicas})
            notes.append(
                f"group {name} is not in the pool file any more, but {replicas} of its pods are "
                "there: it stays until they have gone; then run `firepool kube up` again"
            )
    if templates_differ(groups, now):
        notes.append("pods that run keep their old form; new ones have the new one")
    return {**wanted, "spec": {**spec, "workerGroupSpecs": groups}}, notes


def templates_differ(groups: list[Object], now: Object) -> bool:
    """Whether a group whose pods run now has another container image or other resources."""
    before = {group["groupName"]: group for group in now.get("workerGroupSpecs") or ()}
    return any(
        _form(group) != _form(before[group["groupName"]])
        for group in groups
        if group["groupName"] in before and before[group["groupName"]].get("replicas")
    )


def _form(group: Object) -> list[object]:
    containers = group["template"]["spec"]["containers"]
    return [
        group.get("rayStartParams"),
        *([c.get("image"), c.get("resources"), c.get("env")] for c in containers),
    ]


def _group_beside(group: Object, living: Object | None) -> tuple[Object, list[str]]:
    if living is None:
        return group, []
    replicas, notes = living.get("replicas") or 0, []
    most = group["maxReplicas"]
    if replicas > most:
        notes.append(
            f"group {group['groupName']}: maxReplicas stays {replicas} instead of {most} while "
            "that many pods are there, since lowering it would kill them without a drain"
        )
        most = replicas
    merged = {
        **group,
        "replicas": max(replicas, group["minReplicas"]),
        "maxReplicas": most,
    }
    if "scaleStrategy" in living:
        merged["scaleStrategy"] = living["scaleStrategy"]
    return merged, notes
