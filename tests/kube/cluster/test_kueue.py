"""Kueue beside the operator: what fits the quota is admitted, the rest waits suspended."""

from __future__ import annotations

from typing import Any

from tests.kube.bed import Bed

NODES = "cpu-a:cpu=8,mem=32"
KUEUE = True
PATIENCE_S = 120.0
QUOTA = {"cpu": "2", "memory": "8Gi"}
_KUEUE = "kueue.x-k8s.io/v1beta2"


def queue_objects(
    name: str, quota: dict[str, str], *, cohort: str = "", reclaim: str = "Never"
) -> list[dict[str, Any]]:
    """A ClusterQueue, the LocalQueue of the same name, and the flavor of all queues."""
    resources = [{"name": key, "nominalQuota": amount} for key, amount in quota.items()]
    group = {
        "coveredResources": list(quota),
        "flavors": [{"name": "default", "resources": resources}],
    }
    # all that Kueue's webhooks would fill in
    queue = {
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {
            "withinClusterQueue": "Never",
            "reclaimWithinCohort": reclaim,
            "borrowWithinCohort": {"policy": "Never"},
        },
        "flavorFungibility": {
            "whenCanBorrow": "MayStopSearch",
            "whenCanPreempt": "TryNextFlavor",
        },
        "stopPolicy": "None",
        "resourceGroups": [group],
    }
    if cohort:
        queue["cohortName"] = cohort
    local = {"clusterQueue": name, "stopPolicy": "None"}
    return [
        _object("ResourceFlavor", "default", {}),
        _object("ClusterQueue", name, queue),
        _object("LocalQueue", name, local),
    ]


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": _KUEUE, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _cluster(name: str) -> dict[str, Any]:
    limits = {"cpu": "1500m", "memory": "4Gi"}
    container = {
        "name": "ray-head",
        "image": "none",
        "resources": {"limits": limits, "requests": limits},
    }
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1}
    head = {"rayStartParams": {}, "template": {"spec": pod}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "rl"}},
        "spec": {"rayVersion": "2.60.0", "suspend": True, "headGroupSpec": head},
    }


def _admitted(bed: Bed) -> dict[str, bool]:
    """Of each RayCluster that Kueue knows."""
    found = bed.custom.list_namespaced_custom_object(
        "kueue.x-k8s.io", "v1beta2", "default", "workloads"
    )["items"]
    return {
        workload["metadata"]["ownerReferences"][0]["name"]: any(
            c["type"] == "Admitted" and c["status"] == "True"
            for c in workload.get("status", {}).get("conditions", ())
        )
        for workload in found
    }


def test_a_cluster_over_the_quota_waits_until_there_is_room(bed: Bed) -> None:
    bed.apply(queue_objects("rl", QUOTA))
    bed.apply([_cluster("first")])
    bed.wait_for(lambda: bed.head_pod("first"), PATIENCE_S, "head of the admitted cluster")
    bed.apply([_cluster("second")])
    both = {"first": True, "second": False}
    bed.wait_for(lambda: _admitted(bed) == both, PATIENCE_S, "second workload")
    assert bed.head_pod("second") is None

    bed.custom.delete_namespaced_custom_object("ray.io", "v1", "default", "rayclusters", "first")
    bed.wait_for(lambda: bed.head_pod("second"), PATIENCE_S, "head of the second cluster")
