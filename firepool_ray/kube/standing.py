"""How a pool's RayCluster stands: what is ready, what is not and why, in Kubernetes' own words.

Behind ``firepool kube status`` and the waiting of ``up``. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from firepool_ray.config import PoolConfig
from firepool_ray.config.pods import SYSTEM_GROUP
from firepool_ray.errors import KubeError
from firepool_ray.kube.admission import KUEUE_WORKLOADS
from firepool_ray.kube.api import EVENT, POD, RAY_CLUSTER, Kube, Object
from firepool_ray.kube.manifests import namespace_of, settings_of
from firepool_ray.kube.nodes import (
    CLUSTER_LABEL,
    GroupFacts,
    PodFacts,
    cluster_trouble,
    facts_of,
    groups_of,
)

HEAD_GROUP = "headgroup"
#: Warnings of Kubernetes that are shown for a cluster that does not come.
SHOWN_EVENTS = 3
_NOT_FOUND = 404


def status(kube: Kube, pool: PoolConfig) -> dict[str, Any]:
    """The cluster, its groups, pods and queue, as plain values. Raises ``KubeError``."""
    settings = settings_of(pool)
    name, place = settings.name, namespace_of(pool, kube.namespace)
    cluster = kube.get(RAY_CLUSTER, name, place)
    pods = pods_of(kube, name, place)
    groups = groups_of(cluster) if cluster is not None else []
    missing = missing_of(cluster, name, pods)
    is_kueue = settings.admitter[0] == "kueue"
    return {
        "cluster": name,
        "namespace": place,
        "state": "up" if not missing else "not up",
        "missing": missing,
        "conditions": _conditions(cluster),
        "groups": [_group_row(group, pods) for group in groups],
        "pods": [pod._asdict() for pod in pods],
        "queue": settings.queue,
        "admission": admission_words(kube, cluster, place) if is_kueue else [],
    }


def _group_row(group: GroupFacts, pods: Iterable[PodFacts]) -> dict[str, Any]:
    mine = [pod for pod in pods if pod.group == group.name and not pod.ended]
    return {
        "group": group.name,
        "profile": group.profile,
        "wanted": group.replicas,
        "ready": sum(pod.ready and not pod.leaving for pod in mine),
        "leaving": sum(pod.leaving for pod in mine),
        "min": group.minimum,
        "max": group.maximum,
        "trouble": "; ".join(sorted({pod.trouble for pod in mine if pod.trouble})),
    }


def _conditions(cluster: Object | None) -> list[dict[str, str]]:
    rows = (cluster or {}).get("status", {}).get("conditions") or ()
    return [
        {key: str(row.get(key, "")) for key in ("type", "status", "reason", "message")}
        for row in rows
    ]


def admission_words(kube: Kube, cluster: Object | None, place: str) -> list[str]:
    """What Kueue says of this cluster's workloads, newest last."""
    if cluster is None:
        return []
    try:
        workloads = _workloads(kube, place)
    except KubeError as error:
        return [f"Kueue's workloads cannot be read: {error}"]
    uid = cluster["metadata"]["uid"]
    told = []
    for item in sorted(workloads, key=lambda w: w["metadata"].get("creationTimestamp", "")):
        if any(o.get("uid") == uid for o in item["metadata"].get("ownerReferences") or ()):
            told.append(f"{item['metadata']['name']}: {_workload_words(item)}")
    return told


def _workload_words(workload: Object) -> str:
    """Each message once: Kueue repeats a preemption's in several conditions."""
    states: dict[str, list[str]] = {}
    for row in workload.get("status", {}).get("conditions") or ():
        message = str(row.get("message", "")).strip()
        states.setdefault(message, []).append(f"{row['type']}={row['status']}")
    words = [f"{', '.join(types)}: {text}".rstrip(": ") for text, types in states.items()]
    return "; ".join(words) or "no word yet"


def _workloads(kube: Kube, place: str) -> list[Object]:
    for kind in KUEUE_WORKLOADS:
        try:
            return kube.list(kind, namespace=place)[0]
        except KubeError as error:
            if error.status != _NOT_FOUND:
                raise
    return []


def missing_of(cluster: Object | None, name: str, pods: Iterable[PodFacts]) -> dict[str, str]:
    """What is not ready yet -> why."""
    if whole := cluster_trouble(cluster, name):
        return {f"RayCluster {name}": whole}
    assert cluster is not None
    living = [pod for pod in pods if not pod.leaving and not pod.ended]
    wanted = {"the head": (HEAD_GROUP, 1)}
    for group in groups_of(cluster):
        if group.minimum:
            title = "the system pod" if group.name == SYSTEM_GROUP else f"group {group.name}"
            wanted[title] = (group.name, group.minimum)
    missing = {}
    for title, (group_name, least) in wanted.items():
        mine = [pod for pod in living if pod.group == group_name]
        ready = sum(pod.ready for pod in mine)
        if ready < least:
            reasons = sorted({pod.trouble for pod in mine if pod.trouble and not pod.ready})
            count = f"{ready} of {least} ready, " if least > 1 else ""
            missing[title] = count + ("; ".join(reasons) or _phase(mine))
    return missing


def _phase(pods: list[PodFacts]) -> str:
    if not pods:
        return "no pod yet"
    pod = pods[0]
    return f"pod {pod.name} is {pod.phase}" + (f" on {pod.host}" if pod.host else "")


def warnings_of(kube: Kube, place: str, names: set[str]) -> list[str]:
    """The newest warnings about these objects, in Kubernetes' words."""
    try:
        events, _ = kube.list(EVENT, fields="type=Warning", namespace=place)
    except KubeError as error:
        return [f"events cannot be read: {error}"]
    mine = [event for event in events if event["involvedObject"].get("name") in names]
    mine.sort(key=lambda e: e.get("lastTimestamp") or e.get("eventTime") or "", reverse=True)
    texts = [
        f"{e['involvedObject']['name']}: {e.get('reason')}: {e.get('message', '').strip()}"
        for e in mine
    ]
    return list(dict.fromkeys(texts))[:SHOWN_EVENTS]


def pods_of(kube: Kube, name: str, place: str) -> list[PodFacts]:
    pods, _ = kube.list(POD, labels=f"{CLUSTER_LABEL}={name}", namespace=place)
    return sorted(facts_of(pod) for pod in pods)
