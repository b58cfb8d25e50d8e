"""A RayCluster on the test cluster: the real operator and the real autoscaler."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kube.bed import Bed

NODES = "cpu-a:cpu=8,mem=32;gpu-a:cpu=8,mem=32,gpu=2"
PATIENCE_S = 120.0

#: Ends at once if the group is made, and prints what its actor saw.
_LANE = """
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ray.init(address="auto", namespace="lanes", log_to_driver=False)
group = placement_group(
    [{"GPU": 1, "CPU": 1}],
    bundle_label_selector=[{"firepool/profile": "gpu"}],
    lifetime="detached",
    name="lane",
)
ray.get(group.ready(), timeout=60)

@ray.remote(num_gpus=0.1, num_cpus=0, scheduling_strategy=PlacementGroupSchedulingStrategy(group))
def seen():
    import os
    return {"host": os.uname().nodename, "gpus": os.environ["NVIDIA_VISIBLE_DEVICES"]}

import json
print("SEEN", json.dumps(ray.get(seen.remote())))
"""

_REMOVE = """
import ray
from ray.util.placement_group import get_placement_group, remove_placement_group

ray.init(address="auto", namespace="lanes", log_to_driver=False)
remove_placement_group(get_placement_group("lane"))
"""


def _template(name: str, **resources: Any) -> dict[str, Any]:
    limits = {"cpu": "1", "memory": "4Gi", **resources}
    container = {
        "name": name,
        "image": "rayproject/ray:2.60.0",
        "resources": {"limits": limits, "requests": limits},
        "env": [{"name": "RAY_AUTH_MODE", "value": "disabled"}],
    }
    return {"spec": {"containers": [container]}}


def _cluster() -> dict[str, Any]:
    start = {"object-store-memory": "200000000"}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "pool"},
        "spec": {
            "rayVersion": "2.60.0",
            "enableInTreeAutoscaling": True,
            "autoscalerOptions": {
                "version": "v2",
                "idleTimeoutSeconds": 5,
                "env": [{"name": "RAY_AUTH_MODE", "value": "disabled"}],
                "resources": {
                    "limits": {"cpu": "500m", "memory": "512Mi"},
                    "requests": {"cpu": "100m", "memory": "512Mi"},
                },
            },
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0", **start},
                "template": _template("ray-head"),
            },
            "workerGroupSpecs": [
                {
                    "groupName": "gpu",
                    "replicas": 0,
                    "minReplicas": 0,
                    "maxReplicas": 2,
                    "labels": {"firepool/profile": "gpu"},
                    "rayStartParams": start,
                    "template": _template("ray-worker", **{"nvidia.com/gpu": "1"}),
                }
            ],
        },
    }


def _workers(bed: Bed) -> list[Any]:
    return bed.pods("ray.io/cluster=pool,ray.io/node-type=worker")


@pytest.fixture(scope="module")
def pool(bed: Bed) -> str:
    bed.apply([_cluster()])
    bed.wait_head("pool", PATIENCE_S)
    return "pool"


def test_a_cluster_becomes_ready_without_workers(bed: Bed, pool: str) -> None:
    def state() -> bool:
        found = bed.custom.get_namespaced_custom_object(
            "ray.io", "v1", "default", "rayclusters", pool
        )
        return found.get("status", {}).get("state") == "ready"

    bed.wait_for(state, PATIENCE_S, "ready RayCluster")
    assert _workers(bed) == []


def test_a_labelled_group_brings_a_pod_from_zero_and_it_goes_with_the_group(
    bed: Bed, pool: str
) -> None:
    head = bed.head_pod(pool)
    assert head is not None
    made = bed.exec(head.metadata.name, ["python", "-c", _LANE], timeout_s=PATIENCE_S)
    assert made.returncode == 0, f"{made.stdout}{made.stderr}\n{bed.describe()}"
    line = next(line for line in made.stdout.splitlines() if line.startswith("SEEN "))
    seen = json.loads(line.removeprefix("SEEN "))
    (worker,) = _workers(bed)
    assert seen["host"] == worker.metadata.name[:63]
    assert seen["gpus"].startswith("GPU-gpu-a-")

    gone = bed.exec(head.metadata.name, ["python", "-c", _REMOVE], timeout_s=PATIENCE_S)
    assert gone.returncode == 0, gone.stderr
    bed.wait_for(lambda: not _workers(bed), PATIENCE_S, "end of the idle worker")
