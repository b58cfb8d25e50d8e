"""The pods behind a pool's Ray nodes: which they are, what becomes of them, why none come.

One watch on the RayCluster's pods and one on the RayCluster itself. Why capacity does not come is
said in Kubernetes' own words, since those are what a platform engineer searches for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from firepool_ray.kube.api import POD, RAY_CLUSTER, Kube, Object
from firepool_ray.kube.watching import Change, Watched

CLUSTER_LABEL = "ray.io/cluster"
GROUP_LABEL = "ray.io/group"
TYPE_LABEL = "ray.io/node-type"
#: Ray label of a worker group: the profile whose lanes it carries.
PROFILE_LABEL = "firepool/profile"

#: On a RayCluster while groups get fewer pods: {group: how many may carry lanes}. Growth heeds it
#: before ``maxReplicas`` says so, which must not be lowered while more pods are there.
MOST_PODS = "firepool/most-pods"

#: Waiting reasons that are no trouble.
_COMING = frozenset({"ContainerCreating", "PodInitializing"})


class PodFacts(NamedTuple):
    """What the pool wants to know of one pod."""

    name: str
    group: str
    ip: str  #: "" until it has one
    host: str  #: the Kubernetes node, "" until scheduled
    phase: str
    ready: bool
    leaving: bool  #: its deletion has begun
    ended: bool  #: its Ray container, or all of it, has ended
    gpus: str  #: what it was given: "2 nvidia.com/gpu", "claim lane-0", or ""
    trouble: str  #: why it does not run, in Kubernetes' words; "" where nothing is wrong


class GroupFacts(NamedTuple):
    """A worker group as the RayCluster states it."""

    name: str
    profile: str  #: "" for a group without lanes
    replicas: int
    minimum: int
    maximum: int  #: pods; lower than ``maxReplicas`` while the group gets fewer


def facts_of(pod: Object) -> PodFacts:
    metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    labels = metadata.get("labels", {})
    conditions = {row["type"]: row for row in status.get("conditions") or ()}
    phase = status.get("phase", "Pending")
    return PodFacts(
        name=metadata["name"],
        group=labels.get(GROUP_LABEL, ""),
        ip=status.get("podIP", ""),
        host=spec.get("nodeName", ""),
        phase=phase,
        ready=conditions.get("Ready", {}).get("status") == "True",
        leaving="deletionTimestamp" in metadata,
        ended=phase in ("Failed", "Succeeded") or _ray_container_ended(pod),
        gpus=_gpus(spec),
        trouble=_trouble(conditions, status),
    )


def groups_of(cluster: Object) -> list[GroupFacts]:
    """The worker groups of a RayCluster, in its order."""
    fewer = _fewer(cluster)
    return [
        GroupFacts(
            group["groupName"],
            (group.get("labels") or {}).get(PROFILE_LABEL, ""),
            group.get("replicas") or 0,
            group.get("minReplicas") or 0,
            min(most := group.get("maxReplicas") or 0, fewer.get(group["groupName"], most)),
        )
        for group in cluster.get("spec", {}).get("workerGroupSpecs") or ()
    ]


def _fewer(cluster: Object) -> dict[str, int]:
    text = (cluster["metadata"].get("annotations") or {}).get(MOST_PODS, "{}")
    try:
        return {str(group): int(most) for group, most in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):  # by hand
        return {}


def cluster_trouble(cluster: Object | None, name: str) -> str:
    """Why the RayCluster as a whole brings no pods; "" where nothing is wrong with it."""
    if cluster is None:
        return f"there is no RayCluster {name!r}"
    if cluster.get("spec", {}).get("suspend"):
        return f"RayCluster {name!r} is suspended (its queue has not admitted it, or took it back)"
    for condition in cluster.get("status", {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return f"RayCluster {name!r}: {condition.get('message') or condition.get('reason')}"
    return ""


class ClusterView:
    """The pods and groups of one RayCluster as last heard. ``on_pod`` is called on a thread."""

    def __init__(
        self,
        kube: Kube,
        name: str,
        on_pod: Callable[[PodFacts, bool], None] = lambda facts, gone: None,
        on_cluster: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._on_pod = on_pod
        self._pods = Watched(kube, POD, labels=f"{CLUSTER_LABEL}={name}", on_change=self._changed)
        self._cluster = Watched(
            kube,
            RAY_CLUSTER,
            fields=f"metadata.name={name}",
            on_change=lambda change, item: on_cluster(),
        )

    def start(self) -> ClusterView:
        self._cluster.start()
        self._pods.start()
        return self

    def stop(self) -> None:
        self._pods.stop()
        self._cluster.stop()

    def wait_ready(self, timeout_s: float) -> bool:
        return self._cluster.wait_ready(timeout_s) and self._pods.wait_ready(timeout_s)

    def problem(self) -> str:
        """Why this view may be stale; "" while both watches stand."""
        return self._pods.error or self._cluster.error

    def raw(self) -> list[Object]:
        """The pods as Kubernetes says them; not to be changed."""
        return self._pods.objects()

    def pods(self) -> Iterator[PodFacts]:
        for pod in self.raw():
            yield facts_of(pod)

    def pod_at(self, ip: str) -> PodFacts | None:
        """The living pod with that address. Addresses are used again, so an ended one loses."""
        found = [facts for facts in self.pods() if ip and facts.ip == ip]
        return min(found, key=lambda facts: facts.ended, default=None)

    def groups(self) -> list[GroupFacts]:
        cluster = self._cluster.get(self.name)
        return groups_of(cluster) if cluster is not None else []

    def max_pods(self, profile: str) -> int | None:
        """How many pods may carry the profile's lanes; None before the RayCluster was read."""
        if self._cluster.get(self.name) is None:
            return None
        return sum(group.maximum for group in self.groups() if group.profile == profile)

    def trouble(self, profile: str) -> str:
        """Why no pod comes for the profile, or "" where one may be on its way."""
        if not self._cluster.wait_ready(0):
            return self.problem()
        if whole := cluster_trouble(self._cluster.get(self.name), self.name):
            return whole
        mine = [group for group in self.groups() if group.profile == profile]
        if not mine:
            return f"no worker group of RayCluster {self.name!r} has {PROFILE_LABEL}: {profile}"
        names = {group.name for group in mine}
        pods = [facts for facts in self.pods() if facts.group in names and not facts.ended]
        told = sorted({facts.trouble for facts in pods if facts.trouble and not facts.ready})
        if told:
            return "; ".join(told)
        most = sum(group.maximum for group in mine)
        if sum(not facts.leaving for facts in pods) >= most and all(f.ready for f in pods):
            return f"group {', '.join(sorted(names))} is at its maxReplicas of {most}"
        return ""

    def _changed(self, change: Change, pod: Object) -> None:
        self._on_pod(facts_of(pod), change == "DELETED")


def _ray_container_ended(pod: Object) -> bool:
    """The first container runs Ray. With another start it is another Ray node."""
    containers = pod.get("spec", {}).get("containers") or ()
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    first = containers[0]["name"] if containers else ""
    return any(row["name"] == first and "terminated" in row.get("state", {}) for row in statuses)


def _gpus(spec: Mapping[str, Any]) -> str:
    given: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for name, count in (container.get("resources", {}).get("limits") or {}).items():
            if "/" in name and ("gpu" in name or "mig" in name):
                given[name] = given.get(name, 0) + int(count)
    told = [f"{count} {name}" for name, count in sorted(given.items()) if count]
    for claim in spec.get("resourceClaims") or ():
        told.append(f"claim {claim.get('resourceClaimName') or claim['name']}")
    return ", ".join(told)


def _trouble(conditions: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        if scheduled.get("reason") == "SchedulingGated":
            return "its pod waits to be admitted by its queue (scheduling gated)"
        return str(scheduled.get("message") or scheduled.get("reason", ""))
    for kind in ("initContainerStatuses", "containerStatuses"):
        for row in status.get(kind) or ():
            waiting = row.get("state", {}).get("waiting")
            if waiting and waiting.get("reason") not in _COMING:
                message = waiting.get("message", "")
                return f"{waiting.get('reason')}: {message}".rstrip(": ")
    if status.get("phase") == "Failed":
        return f"{status.get('reason', 'Failed')}: {status.get('message', '')}".rstrip(": ")
    return ""
