"""Whether the nodes of a cluster could hold the pods of a RayCluster, one at a time.

What other pods use is not counted: that changes, sizes do not. The scheduler has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from firepool_ray.config.quantities import number
from firepool_ray.kube.api import NODE, Kube, Object


def shortages(kube: Kube, cluster: Object) -> Iterator[tuple[str, str]]:
    """(group, what every node lacks for one pod of it, or "") of a RayCluster's manifest."""
    nodes, _ = kube.list(NODE)
    spec = cluster["spec"]
    yield "head", shortage(nodes, spec["headGroupSpec"]["template"]["spec"])
    for group in spec["workerGroupSpecs"]:
        yield f"group {group['groupName']}", shortage(nodes, group["template"]["spec"])


def shortage(nodes: list[Object], pod: Object) -> str:
    """Pure. "" where at least one node has the labels and the size."""
    wanted = requests_of(pod)
    selector = pod.get("nodeSelector") or {}
    fitting = [node for node in nodes if _has_labels(node, selector)]
    if not fitting:
        labels = ", ".join(f"{key}={value}" for key, value in selector.items())
        return f"no node has the labels {labels}" if selector else "there is no node"
    if any(_holds(node, wanted) for node in fitting):
        return ""
    lacking = [name for name in wanted if not any(_holds(n, {name: wanted[name]}) for n in fitting)]
    if not lacking:
        return f"no single node has all of {_told(wanted)}"
    return "no node has " + ", ".join(
        f"{wanted[name]:g} {name} (most: {max(_offer(n, name) for n in fitting):g})"
        for name in lacking
    )


def requests_of(pod: Mapping[str, object]) -> dict[str, float]:
    """What a pod asks for, over its containers."""
    total: dict[str, float] = {}
    containers = pod.get("containers")
    assert isinstance(containers, list)
    for container in containers:
        for name, quantity in (container.get("resources", {}).get("requests") or {}).items():
            total[name] = total.get(name, 0.0) + number(quantity)
    return total


def _has_labels(node: Object, selector: Mapping[str, str]) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selector.items())


def _offer(node: Object, name: str) -> float:
    return number((node.get("status", {}).get("allocatable") or {}).get(name, 0))


def _holds(node: Object, wanted: Mapping[str, float]) -> bool:
    return all(_offer(node, name) >= amount for name, amount in wanted.items())


def _told(wanted: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in wanted.items())
