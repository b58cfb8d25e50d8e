"""What a Kueue ClusterQueue may ever use: its own quota and what its cohort can lend it.

Pure arithmetic on ClusterQueues and Cohorts as they stand in Kubernetes. Each node of the tree has
a nominal quota per flavor; what it does not keep for itself (``lendingLimit``) counts into its
parent, and it takes from there at most its ``borrowingLimit`` (the rules of Kueue's hierarchical
cohorts: https://kueue.sigs.k8s.io/docs/concepts/cohort/).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from firepool_ray.config.quantities import number
from firepool_ray.kube.api import Object


class Quota(NamedTuple):
    """Of one resource in one flavor."""

    nominal: float
    borrowing: float = math.inf  #: beyond what it brings
    lending: float = math.inf


@dataclass(eq=False)
class Node:
    parent: str = ""
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)


def quotas_of(item: Object, resource: str) -> dict[str, Quota]:
    """By flavor, of a ClusterQueue or Cohort; empty where it does not cover the resource."""
    found: dict[str, Quota] = {}
    for group in item.get("spec", {}).get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for row in flavor.get("resources") or ():
                if row["name"] == resource:
                    found[flavor["name"]] = Quota(
                        number(row.get("nominalQuota", 0)),
                        _limit(row.get("borrowingLimit")),
                        _limit(row.get("lendingLimit")),
                    )
    return found


def _limit(quantity: str | int | None) -> float:
    return math.inf if quantity is None else number(quantity)


def parent_of(item: Object) -> str:
    """The cohort that a ClusterQueue or Cohort belongs to: named anew in v1beta2."""
    spec = item.get("spec", {})
    return str(spec.get("cohortName") or spec.get("cohort") or spec.get("parentName") or "")


def most(queue: str, queues: Iterable[Object], cohorts: Iterable[Object], resource: str) -> float:
    """The most that the ClusterQueue can be given while nobody else uses anything.

    It uses the flavors that it names, no others. Cohorts in a circle lend nothing.
    """
    nodes = _tree(queues, cohorts, resource)
    path = [nodes[f"queue/{queue}"]]
    while path[-1].parent:
        above = nodes[path[-1].parent]
        if above in path:
            path = path[:1]
            break
        path.append(above)
    return sum(_potential(path, flavor) for flavor in path[0].quotas)


def _tree(queues: Iterable[Object], cohorts: Iterable[Object], resource: str) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for prefix, items in (("queue", queues), ("cohort", cohorts)):
        for item in items:
            parent = parent_of(item)
            name = f"{prefix}/{item['metadata']['name']}"
            nodes[name] = Node(parent and f"cohort/{parent}", quotas_of(item, resource))
    for node in list(nodes.values()):
        if node.parent:  # a cohort needs no object of its own
            nodes.setdefault(node.parent, Node()).children.append(node)
    return nodes


def _subtree(node: Node, flavor: str) -> float:
    """What the node brings: its own quota, and what its children lend."""
    brought = node.quotas[flavor].nominal if flavor in node.quotas else 0.0
    for child in node.children:
        whole = _subtree(child, flavor)
        brought += whole - _kept(child, whole, flavor)
    return brought


def _kept(node: Node, subtree: float, flavor: str) -> float:
    """What it lends to nobody."""
    quota = node.quotas.get(flavor)
    return 0.0 if quota is None else max(0.0, subtree - quota.lending)


def _potential(path: list[Node], flavor: str) -> float:
    """``path`` leads from the queue to the root."""
    available = _subtree(path[-1], flavor)
    for each in reversed(path[:-1]):
        subtree = _subtree(each, flavor)
        available += _kept(each, subtree, flavor)
        if flavor in each.quotas:
            available = min(available, subtree + each.quotas[flavor].borrowing)
    return available
