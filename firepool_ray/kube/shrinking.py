"""Groups that are to have fewer pods than they have, and pods whose form has changed.

``maxReplicas`` below the pods that are there kills busy ones, so ``deploy`` drains first: growth is
told (``nodes.MOST_PODS``), surplus pods are deleted with their grace, in which their running jobs
finish, and only then bounds are lowered and groups taken out. Everything here is pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from firepool_ray.kube.api import Object
from firepool_ray.kube.nodes import MOST_PODS, facts_of


class Surplus(NamedTuple):
    """A group with more pods than it may keep."""

    group: str
    most: int  #: pods that may stay; 0 for a group that is taken out
    pods: tuple[str, ...]  #: those to go

    def __str__(self) -> str:
        return f"group {self.group} may keep {self.most} pods: {', '.join(self.pods)} to go"


def surplus_of(wanted: Object, living: Object, pods: Iterable[Object]) -> list[Surplus]:
    """Pods that do not run yet go first, then the youngest: what is warm there is worth least."""
    most = {g["groupName"]: g["maxReplicas"] for g in wanted["spec"]["workerGroupSpecs"]}
    present: dict[str, list[tuple[bool, str, str]]] = {}
    for pod in pods:
        facts = facts_of(pod)
        if not facts.leaving and not facts.ended:
            made = pod["metadata"].get("creationTimestamp", "")
            present.setdefault(facts.group, []).append((facts.ready, made, facts.name))
    found = []
    for group in living["spec"].get("workerGroupSpecs") or ():
        name = group["groupName"]
        keep = most.get(name, 0)
        mine = sorted(present.get(name, ()), key=lambda row: (not row[0], row[1]))
        if names := [pod for *_, pod in mine[keep:]]:
            found.append(Surplus(name, keep, tuple(names)))
    return found


def announced(living: Object, surplus: Iterable[Surplus]) -> Object:
    """The change that lets nothing of these groups be made again; bounds stay as they are."""
    most = {row.group: row.most for row in surplus}
    return {
        "metadata": {"annotations": {MOST_PODS: json.dumps(most)}},
        "spec": {"workerGroupSpecs": [_fewer(g, most) for g in _groups(living)]},
    }


def lowered(living: Object, surplus: Iterable[Surplus]) -> Object:
    """The change of their bounds, once Ray knows that the pods to go are draining."""
    most = {row.group: row.most for row in surplus}
    groups = [_fewer(g, most) for g in _groups(living)]
    for group in groups:
        if (bound := most.get(group["groupName"])) is not None:
            group["maxReplicas"] = bound
    return {"spec": {"workerGroupSpecs": groups}}


#: Afterwards ``maxReplicas`` says it all.
FINISHED: Object = {"metadata": {"annotations": {MOST_PODS: None}}}


def outdated_of(cluster: Object, pods: Iterable[Object]) -> dict[str, list[str]]:
    """Pods that run in another form than new ones of their group would, by group."""
    spec = cluster["spec"]
    forms = {"headgroup": spec["headGroupSpec"], **{g["groupName"]: g for g in _groups(cluster)}}
    found: dict[str, list[str]] = {}
    for pod in pods:
        facts = facts_of(pod)
        group = forms.get(facts.group)
        if group is not None and not facts.ended and not facts.leaving and _differs(pod, group):
            found.setdefault(facts.group, []).append(facts.name)
    return {group: sorted(names) for group, names in found.items()}


def _differs(pod: Object, group: Object) -> bool:
    """By what the template states of its first container; Ray's operator adds to that."""
    (has, *_), (wanted, *_) = pod["spec"]["containers"], group["template"]["spec"]["containers"]
    env = {row["name"]: row.get("value") for row in has.get("env") or ()}
    changed = any(
        "value" in row and env.get(row["name"]) != row["value"] for row in wanted.get("env") or ()
    )
    sizes = (has.get("resources") or {}, wanted.get("resources") or {})
    return changed or has.get("image") != wanted.get("image") or sizes[0] != sizes[1]


def _groups(cluster: Object) -> list[Object]:
    return list(cluster["spec"].get("workerGroupSpecs") or ())


def _fewer(group: Object, most: dict[str, int]) -> Object:
    bound = most.get(group["groupName"])
    if bound is None:
        return dict(group)
    return {
        **group,
        "replicas": min(group.get("replicas") or 0, bound),
        "minReplicas": min(group.get("minReplicas") or 0, bound),
    }
