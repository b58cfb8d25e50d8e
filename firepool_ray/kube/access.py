"""What the controller may do in Kubernetes: read, and nothing else.

Pods, their events and claims and the RayCluster in its own namespace; queues where the pool file
names some, cluster-wide where they are. What firepool applies, it applies with its user's rights.
"""

from __future__ import annotations

from collections.abc import Iterable

from firepool_ray.config import PoolConfig
from firepool_ray.config.kubernetes import parse_queue
from firepool_ray.kube.api import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    Kind,
    Object,
)

#: (API group, resource).
Resource = tuple[str, str]

READ = ["get", "list", "watch"]
OWN: tuple[Resource, ...] = (
    ("", "pods"),
    ("", "events"),
    ("ray.io", "rayclusters"),
    ("resource.k8s.io", "resourceclaims"),
)
#: What a kind of cluster queue is read from, whole clusters wide.
QUEUES: dict[str, tuple[Resource, ...]] = {
    "kueue": (
        ("kueue.x-k8s.io", "clusterqueues"),
        ("kueue.x-k8s.io", "cohorts"),
        ("kueue.x-k8s.io", "localqueues"),
        ("kueue.x-k8s.io", "workloads"),
    ),
    "kai": (("scheduling.run.ai", "queues"),),
    "volcano": (
        ("scheduling.volcano.sh", "queues"),
        ("scheduling.volcano.sh", "podgroups"),
    ),
    "yunikorn": (),  # asked directly, without the API server
}


def account_name(pool: PoolConfig) -> str:
    """The controller's. Not the RayCluster's name: Ray's operator gives that to the autoscaler."""
    assert pool.kubernetes is not None
    return pool.kubernetes.service_account or f"{pool.kubernetes.name}-controller"


def wide_name(pool: PoolConfig, namespace: str) -> str:
    """Of what has no namespace, where pools of one name in two namespaces must not meet."""
    return f"{namespace}-{account_name(pool)}"


def access(pool: PoolConfig, namespace: str) -> Iterable[tuple[str, Object]]:
    """(purpose, manifest), in order of application."""
    assert pool.kubernetes is not None
    name = account_name(pool)
    if not pool.kubernetes.service_account:
        yield (
            "Who the controller is.",
            {
                "apiVersion": SERVICE_ACCOUNT.api_version,
                "kind": SERVICE_ACCOUNT.kind,
                "metadata": {"name": name, "namespace": namespace},
                "automountServiceAccountToken": False,
            },
        )
    subject = {"kind": SERVICE_ACCOUNT.kind, "name": name, "namespace": namespace}
    yield "What the controller may read here; it writes nothing.", _role(ROLE, name, namespace, OWN)
    yield "Gives that to the controller.", _binding(ROLE_BINDING, ROLE, name, namespace, subject)
    queues = [parse_queue(queue.cluster_queue) for queue in pool.queues.values()]
    wide = sorted({row for kind, _ in queues for row in QUEUES.get(kind, ())})
    if wide:
        both = wide_name(pool, namespace)
        yield "The queues it follows, which have no namespace.", _role(CLUSTER_ROLE, both, "", wide)
        binding = _binding(CLUSTER_ROLE_BINDING, CLUSTER_ROLE, both, "", subject)
        yield "Gives that to the controller.", binding
    for place in sorted({queue.partition("/")[0] for kind, queue in queues if kind == "quota"}):
        both = f"{wide_name(pool, namespace)}-quota"
        role = _role(ROLE, both, place, (("", "resourcequotas"), ("", "pods")))
        yield f"The ResourceQuota it follows in {place}, and the pods that use it.", role
        binding = _binding(ROLE_BINDING, ROLE, both, place, subject)
        yield "Gives that to the controller.", binding


def _role(kind: Kind, name: str, namespace: str, resources: Iterable[Resource]) -> Object:
    grouped: dict[str, list[str]] = {}
    for group, resource in resources:
        grouped.setdefault(group, []).append(resource)
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": _metadata(name, namespace),
        "rules": [
            {"apiGroups": [group], "resources": names, "verbs": list(READ)}
            for group, names in grouped.items()
        ],
    }


def _binding(kind: Kind, role: Kind, name: str, namespace: str, subject: Object) -> Object:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": _metadata(name, namespace),
        "roleRef": {"apiGroup": role.group, "kind": role.kind, "name": name},
        "subjects": [subject],
    }


def _metadata(name: str, namespace: str) -> Object:
    return {"name": name, "namespace": namespace} if namespace else {"name": name}
