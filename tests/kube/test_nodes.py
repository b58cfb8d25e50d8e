"""What is told of pods: facts from their status, and why none come, in Kubernetes' own words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from firepool_ray.kube.api import POD, RAY_CLUSTER
from firepool_ray.kube.nodes import ClusterView, facts_of, groups_of
from tests.kube.fakes import FakeKube

NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def pod(name: str = "p-gpu-1", group: str = "gpu", ip: str = "10.0.0.1", **status: Any) -> Any:
    conditions = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"ray.io/cluster": "pool", "ray.io/group": group},
        },
        "spec": {"nodeName": "host", "containers": [{"name": "ray-worker"}, {"name": "side"}]},
        "status": {"phase": "Running", "podIP": ip, "conditions": conditions, **status},
    }


def unschedulable(message: str = NO_GPU, reason: str = "Unschedulable", **more: Any) -> Any:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod(ip="", phase="Pending", conditions=[condition], **more)


def waiting(reason: str, message: str = "") -> Any:
    state = {"waiting": {"reason": reason, "message": message}}
    statuses = [{"name": "ray-worker", "state": state}]
    return pod(phase="Pending", conditions=[], containerStatuses=statuses)


def cluster(**spec: Any) -> Any:
    group = {
        "groupName": "gpu",
        "labels": {"firepool/profile": "h100"},
        "replicas": 1,
        "maxReplicas": 2,
    }
    return {
        "metadata": {"name": "pool", "namespace": "default"},
        "spec": {"workerGroupSpecs": [group, {"groupName": "system", "maxReplicas": 1}], **spec},
    }


def test_a_running_pod() -> None:
    facts = facts_of(pod())
    assert (facts.name, facts.group, facts.ip, facts.host) == ("p-gpu-1", "gpu", "10.0.0.1", "host")
    assert facts.ready and not facts.leaving and not facts.ended
    assert facts.trouble == ""


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (unschedulable(), NO_GPU),
        (unschedulable("", "SchedulingGated"), "waits to be admitted by its queue"),
        (waiting("ImagePullBackOff", "Back-off pulling image x"), "ImagePullBackOff: Back-off pul"),
        (waiting("CrashLoopBackOff"), "CrashLoopBackOff"),
        (waiting("ContainerCreating"), ""),
        (pod(phase="Failed", reason="Evicted", message="node low on memory"), "Evicted: node low"),
    ],
)
def test_why_a_pod_does_not_run(seen: Any, told: str) -> None:
    trouble = facts_of(seen).trouble
    assert told in trouble
    assert bool(told) == bool(trouble)


def test_a_pod_that_goes() -> None:
    leaving = pod()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert facts_of(leaving).leaving and not facts_of(leaving).ended
    ended = [{"name": "ray-worker", "state": {"terminated": {"exitCode": 137}}}]
    assert facts_of(pod(containerStatuses=ended)).ended
    beside = [{"name": "side", "state": {"terminated": {"exitCode": 0}}}]
    assert not facts_of(pod(containerStatuses=beside)).ended
    assert facts_of(pod(phase="Failed")).ended


def test_gpus_are_counted_over_containers_and_claims_named() -> None:
    seen = pod()
    seen["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2", "cpu": "4"}}
    assert facts_of(seen).gpus == "2 nvidia.com/gpu"
    seen["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/mig-1g.10gb": 1}}
    seen["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "lane-0"}]
    assert facts_of(seen).gpus == "1 nvidia.com/mig-1g.10gb, claim lane-0"


def test_groups_and_their_profiles() -> None:
    assert [tuple(group) for group in groups_of(cluster())] == [
        ("gpu", "h100", 1, 0, 2),
        ("system", "", 0, 0, 1),
    ]


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


@contextmanager
def seen_by(kube: FakeKube) -> Iterator[ClusterView]:
    view = ClusterView(kube, "pool").start()  # type: ignore[arg-type]
    assert view.wait_ready(10)
    yield view
    view.stop()
    kube.end_watches()


@pytest.mark.parametrize(
    ("objects", "told"),
    [
        ([], "there is no RayCluster 'pool'"),
        ([cluster(suspend=True)], "is suspended"),
        ([cluster(workerGroupSpecs=[])], "no worker group of RayCluster 'pool' has firepool/prof"),
        ([cluster()], ""),
        ([cluster(), unschedulable()], NO_GPU),
        ([cluster(), pod()], ""),
        ([cluster(), pod(), pod("p-gpu-2", ip="10.0.0.2")], "is at its maxReplicas of 2"),
        ([cluster(), pod("other", group="system")], ""),
    ],
)
def test_why_no_pods_come(kube: FakeKube, objects: list[Any], told: str) -> None:
    for found in objects:
        kube.put(RAY_CLUSTER if "workerGroupSpecs" in found["spec"] else POD, found)
    with seen_by(kube) as view:
        assert told in view.trouble("h100")
        assert bool(told) == bool(view.trouble("h100"))


def test_a_quota_that_refuses_pods_is_told(kube: FakeKube) -> None:
    refused = cluster()
    message = 'pods "p" is forbidden: exceeded quota: gpus'
    refused["status"] = {
        "conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]
    }
    kube.put(RAY_CLUSTER, refused)
    with seen_by(kube) as view:
        assert message in view.trouble("h100")
        assert (view.max_pods("h100"), view.max_pods("other")) == (2, 0)


def test_an_address_belongs_to_the_pod_that_lives(kube: FakeKube) -> None:
    kube.put(POD, pod("old", phase="Failed"))
    kube.put(POD, pod("new"))
    with seen_by(kube) as view:
        found = view.pod_at("10.0.0.1")
        assert found is not None and found.name == "new"
        assert view.pod_at("") is None
