"""What takes pods from a living pool on purpose: fewer of them, or others in their place.

Behind ``firepool kube up``. Pods are deleted with their own grace, which Ray and the controller use
to let running jobs finish; whoever waits here is told what is going on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from firepool_ray.errors import KubeError, PoolUnavailable
from firepool_ray.kube import shrinking
from firepool_ray.kube.api import POD, RAY_CLUSTER, Kube, Object
from firepool_ray.kube.nodes import CLUSTER_LABEL, facts_of

Say = Callable[[str], None]

LOOK_S = 1.0
#: Ray's autoscaler, which looks every 5 s, must know of a drain before bounds are lowered: it would
#: end pods of its own choice, without a drain. The drain is known 0.1 s after the deletion.
DRAIN_KNOWN_S = 4.0
_CONFLICT, _NOT_FOUND = 409, 404


def shrink(kube: Kube, wanted: Object, living: Object, *, deadline: float, say: Say) -> None:
    """Bring every group of the living cluster down to the pods that it may keep.

    Raises ``PoolUnavailable`` if pods are still there at ``deadline``; nothing is undone then, and
    the next time it goes on from there.
    """
    name, place = living["metadata"]["name"], living["metadata"]["namespace"]
    began = False
    # Again, since the autoscaler may have asked for a pod before it read the lower bounds.
    while surplus := shrinking.surplus_of(wanted, living, raw_pods(kube, name, place)):
        began = True
        _drain(kube, name, place, surplus, deadline, say)
    if began:
        _change(kube, name, place, lambda now: shrinking.FINISHED)


def _drain(
    kube: Kube,
    name: str,
    place: str,
    surplus: list[shrinking.Surplus],
    deadline: float,
    say: Say,
) -> None:
    for row in surplus:
        say(f"{row}. Their running jobs have their pods' grace to finish.")
    _change(kube, name, place, lambda now: shrinking.announced(now, surplus))
    leaving = [pod for row in surplus for pod in row.pods]
    for pod in leaving:
        kube.delete(POD, pod, place)
    time.sleep(DRAIN_KNOWN_S)
    _change(kube, name, place, lambda now: shrinking.lowered(now, surplus))
    _wait_until_gone(kube, place, leaving, deadline, say)


def roll(kube: Kube, name: str, place: str, *, deadline: float, say: Say) -> None:
    """Replace the pods of worker groups whose form has changed, one at a time.

    Raises ``PoolUnavailable`` if that is not done by ``deadline``.
    """
    while rows := _outdated_workers(kube, name, place):
        group, pod = rows[0]
        ready = _ready(kube, name, place, group)
        say(f"pod {pod} of group {group} is replaced; {len(rows) - 1} more to go")
        kube.delete(POD, pod, place)
        _wait_until_gone(kube, place, [pod], deadline, say)
        while _ready(kube, name, place, group) < min(ready, _wanted(kube, name, place, group)):
            if time.monotonic() >= deadline:
                raise PoolUnavailable(
                    f"no replacement of pod {pod} is ready; the other pods were left as they are: "
                    "see `firepool kube status`"
                )
            time.sleep(LOOK_S)


def tell_outdated(kube: Kube, name: str, place: str, say: Say) -> None:
    """What still runs in its old form, and how to change that."""
    cluster = kube.get(RAY_CLUSTER, name, place)
    if cluster is None:
        return
    outdated = shrinking.outdated_of(cluster, raw_pods(kube, name, place))
    heads = outdated.pop("headgroup", [])
    if outdated:
        pods = ", ".join(pod for pods in outdated.values() for pod in pods)
        say(
            f"still in their old form: {pods}. New pods have the new one; `firepool kube up "
            "--roll` replaces these one at a time, and lets their jobs finish"
        )
    if heads:
        say(
            f"the head, pod {heads[0]}, still has its old form, and is never replaced by us: "
            "delete it when the pool may end (with `redis`: at any time)"
        )


def raw_pods(kube: Kube, name: str, place: str) -> list[Object]:
    pods, _ = kube.list(POD, labels=f"{CLUSTER_LABEL}={name}", namespace=place)
    return pods


def _change(kube: Kube, name: str, place: str, change: Callable[[Object], Object]) -> None:
    """Again where somebody else, such as the autoscaler, changed it in between."""
    for _ in range(10):
        now = kube.get(RAY_CLUSTER, name, place)
        if now is None:
            raise PoolUnavailable(f"RayCluster {name} was deleted meanwhile")
        patch = dict(change(now))
        version = now["metadata"]["resourceVersion"]
        patch["metadata"] = {**patch.get("metadata", {}), "resourceVersion": version}
        try:
            kube.patch(RAY_CLUSTER, name, patch, place)
            return
        except KubeError as error:
            if error.status != _CONFLICT:
                raise
    raise PoolUnavailable(f"RayCluster {name} is changed all the time by somebody else: try again")


def _wait_until_gone(
    kube: Kube, place: str, names: Iterable[str], deadline: float, say: Say
) -> None:
    left, told = list(names), ""
    while left := [pod for pod in left if kube.get(POD, pod, place) is not None]:
        text = ", ".join(left)
        if text != told:
            say(f"waiting for the end of pod {text}")
            told = text
        if time.monotonic() >= deadline:
            raise PoolUnavailable(f"pod {text} has not ended yet: run `firepool kube up` again")
        time.sleep(LOOK_S)


def _outdated_workers(kube: Kube, name: str, place: str) -> list[tuple[str, str]]:
    """(group, pod); the head is not among them."""
    cluster = kube.get(RAY_CLUSTER, name, place)
    if cluster is None:
        return []
    outdated = shrinking.outdated_of(cluster, raw_pods(kube, name, place))
    outdated.pop("headgroup", None)
    return [(group, pod) for group, pods in outdated.items() for pod in pods]


def _ready(kube: Kube, name: str, place: str, group: str) -> int:
    pods = map(facts_of, raw_pods(kube, name, place))
    return sum(pod.group == group and pod.ready and not pod.leaving for pod in pods)


def _wanted(kube: Kube, name: str, place: str, group: str) -> int:
    """Pods that the group is to have: fewer than before if its lanes have gone meanwhile."""
    cluster = kube.get(RAY_CLUSTER, name, place) or {"spec": {}}
    for row in cluster["spec"].get("workerGroupSpecs") or ():
        if row["groupName"] == group:
            return int(row.get("replicas") or 0)
    return 0
