"""Kueue takes a running pool's quota back: the whole cluster goes, and comes back by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from tests.kube.bed import Bed
from tests.kube.cluster.standing import NAME, StandingPool, settings, since, standing
from tests.kube.cluster.test_kueue import queue_objects

#: Whole outages fit into this on a machine that has much else to do.
pytestmark = pytest.mark.timeout(560)
NODES = "cpu-a:cpu=16,mem=64"
KUEUE = True
PATIENCE_S = 150.0
#: Ray Client tries to reconnect for 30 s before it gives up.
ERROR_S = 120.0
PREEMPTED = "Preempted to accommodate a workload"


def queues() -> list[dict[str, Any]]:
    """The pool's queue owns next to nothing and borrows; the other may have its own back."""
    return [
        *queue_objects("rl", {"cpu": "1", "memory": "2Gi"}, cohort="all"),
        *queue_objects("batch", {"cpu": "8", "memory": "32Gi"}, cohort="all", reclaim="Any"),
    ]


def batch_job(cpus: int) -> dict[str, Any]:
    size = {"cpu": str(cpus), "memory": "1Gi"}
    container = {
        "name": "main",
        "image": "none",
        "command": ["sleep", "infinity"],
        "resources": {"requests": size, "limits": size},
    }
    pod = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    labels = {"kueue.x-k8s.io/queue-name": "batch"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "greedy", "labels": labels},
        "spec": {"suspend": True, "parallelism": 1, "completions": 1, "template": {"spec": pod}},
    }


@pytest.fixture(scope="module")
def pool(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingPool]:
    bed.apply(queues())
    lanes: dict[str, Any] = {"max_lanes": 1, "keep_alive": "fixed:120", "lane_keep_s": 120}
    # Never scaled up before it is preempted: this Kueue does not start a cluster again that was.
    lanes["pod"] = {"memory": "3Gi", "min_pods": 1}
    config = settings(profiles={"cpu": lanes}, kubernetes={"queue": "kueue:rl", "drain_s": 5})
    with standing(bed, tmp_path_factory.mktemp("pool"), config) as pool:
        yield pool


def suspended(pool: StandingPool) -> bool:
    found = pool.bed.custom.get_namespaced_custom_object(
        "ray.io", "v1", "default", "rayclusters", NAME
    )
    return bool(found["spec"]["suspend"])


def test_a_pool_is_preempted_and_comes_back_by_itself(pool: StandingPool) -> None:
    bed = pool.bed
    outside = pool.load_outside(seconds=0, job_s=600, patience_s=200)
    pool.busy_pod()
    began = time.monotonic()
    bed.apply([batch_job(8)])
    bed.wait_for(lambda: suspended(pool), 60, "preemption")
    bed.wait_for(lambda: not bed.pods(f"ray.io/cluster={NAME}"), 60, "end of all pods")
    print(f"pods_gone_s {since(began):.1f}")

    said = pool.firepool("kube", "status", "-f", str(pool.file), code=1)
    assert "is suspended (its queue has not admitted it, or took it back)" in said
    assert PREEMPTED in said
    (line,) = [
        line
        for line in pool.firepool("kube", "doctor", "-f", str(pool.file), code=1).splitlines()
        if line.startswith("problem")
    ]
    assert line.startswith("problem  admission: ") and PREEMPTED in line
    assert "comes back by itself" in line

    # A client outside of the cluster; those inside end with it.
    (job,) = outside.finish()
    print(f"error_s {since(began):.1f}")
    assert (job["outcome"], job["started_code"]) == ("WorkerLost", None)
    assert since(began) < ERROR_S

    back = time.monotonic()
    client.BatchV1Api(bed.api).delete_namespaced_job(
        "greedy", "default", propagation_policy="Background"
    )
    bed.wait_head(NAME, PATIENCE_S)
    bed.wait_for(pool.answers, PATIENCE_S, "pool that answers")
    assert [row["outcome"] for row in pool.jobs()] == ["ok"]
    print(f"back_s {since(back):.1f}")
    assert "admission: " in pool.firepool("kube", "doctor", "-f", str(pool.file))
