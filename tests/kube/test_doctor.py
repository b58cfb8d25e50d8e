"""Each check of ``firepool kube doctor``, with what is wrong and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firepool_ray.config import PoolConfig
from firepool_ray.errors import KubeError
from firepool_ray.kube import doctor, manifests
from firepool_ray.kube.api import Object
from firepool_ray.kube.doctor import Check
from tests.kube.server import FakeServer


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OPERATOR_S", 0.0)


def pool_of(data: dict[str, Any] | None = None, **kubernetes: Any) -> PoolConfig:
    profiles = {"gpu": {"gpus": 1, "max_lanes": 4}}
    return PoolConfig.from_dict({"profiles": profiles, "kubernetes": kubernetes, **(data or {})})


def healthy() -> FakeServer:
    """A cluster in which nothing is wrong for ``pool_of()``."""
    server = FakeServer()
    server.put({"kind": "Namespace", "metadata": {"name": "default"}})
    offers = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "4"}
    server.put({"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": offers}})
    put_cluster(server)
    return server


def put_cluster(server: FakeServer, change: Callable[[Object], None] = lambda spec: None) -> None:
    cluster = manifests.documents(pool_of())[-1].manifest
    change(cluster["spec"])
    cluster["metadata"]["generation"] = 2
    server.put({**cluster, "status": {"observedGeneration": 2}})


def examine(server: FakeServer, pool: PoolConfig | None = None) -> list[Check]:
    return doctor.examine(server, pool or pool_of())  # type: ignore[arg-type]


def wrong(server: FakeServer, pool: PoolConfig | None = None) -> dict[str, str]:
    return {c.what: c.detail for c in examine(server, pool) if c.verdict != "ok"}


def test_a_healthy_cluster_is_all_ok() -> None:
    found = examine(healthy())
    assert {check.verdict for check in found} == {"ok"}
    assert [check.what for check in found][:4] == [
        "API server",
        "namespace",
        "RayCluster",
        "your rights",
    ]


def test_nothing_that_stays_is_changed() -> None:
    server = healthy()
    before = repr(server.objects)
    examine(server)
    assert repr(server.objects) == before
    assert all(call.startswith("try ") for call in server.calls)


def test_an_api_server_that_does_not_answer_is_all_there_is_to_say() -> None:
    server = healthy()
    server.down = KubeError("GET /version: the API server does not answer")
    assert [check.verdict for check in examine(server)] == ["problem"]


def test_missing_kinds() -> None:
    server = healthy()
    server.unserved = {"rayclusters"}
    found = wrong(server)
    assert "install Ray's operator" in found["RayCluster"]
    assert "Ray's operator" not in found  # not asked for where there is no such kind


def test_missing_rights_are_listed() -> None:
    server = healthy()
    server.refused = {("create", "roles"), ("list", "events")}
    text = wrong(server)["your rights"]
    assert "create roles in default, list events in default" in text


def test_refused_manifests_are_told_in_the_servers_words() -> None:
    server = healthy()
    server.refused = {("patch", "networkpolicies")}
    found = wrong(server)["manifests"]
    assert found.startswith("NetworkPolicy firepool: patch networkpolicies: forbidden")


def test_namespace_and_named_objects() -> None:
    server = healthy()
    pool = pool_of(namespace="ml", redis="h:1", redis_secret="s", service_account="a")
    found = wrong(server, pool)
    assert "kubectl create namespace ml" in found["namespace"]
    assert "there is no 's' in ml" in found["Secret"]
    assert "there is no 'a' in ml" in found["ServiceAccount"]


@pytest.mark.parametrize(
    ("kubernetes", "queue", "key", "kind", "where"),
    [
        ({"queue": "kueue:team"}, "", "kubernetes.queue", "LocalQueue", "default"),
        ({}, "kueue:all", "queues.q.cluster_queue", "ClusterQueue", ""),
        ({"queue": "kai:team"}, "", "kubernetes.queue", "Queue", ""),
        ({}, "volcano:team", "queues.q.cluster_queue", "Queue", ""),
        ({}, "quota:ml/gpus", "queues.q.cluster_queue", "ResourceQuota", "ml"),
    ],
)
def test_queues_that_are_named(
    kubernetes: dict[str, Any], queue: str, key: str, kind: str, where: str
) -> None:
    server = healthy()
    pool = pool_of({"queues": {"q": {"cluster_queue": queue}}}, **kubernetes)
    text = wrong(server, pool)[key]
    assert text.startswith(f"there is no {kind} ")
    name = (queue or kubernetes["queue"]).rpartition(":")[2].rpartition("/")[2]
    plural = f"{kind.lower()}s"
    server.objects[plural, where, name] = {"metadata": {"name": name}}
    assert key not in wrong(server, pool)
    server.unserved = {plural}
    assert "is not served" in wrong(server, pool)[key]


def test_device_class_of_claims() -> None:
    shared = {"gpus": 1, "max_lanes": 1, "pod": {"sharing": "dra:d"}}
    pool = pool_of({"profiles": {"gpu": shared}}, device_class="gpu.bed")
    server = healthy()
    assert "there is no DeviceClass 'gpu.bed'" in wrong(server, pool)["device class"]
    server.put({"kind": "DeviceClass", "metadata": {"name": "gpu.bed"}})
    assert "device class" not in wrong(server, pool)


def test_a_device_lock_needs_a_volume_or_somebody_who_makes_one() -> None:
    shared = {"gpus": 1, "max_lanes": 1, "pod": {"sharing": "dra:d"}}
    pool = pool_of({"profiles": {"gpu": shared}})
    server = healthy()
    assert "set kubernetes.device_locks: host:/FOLDER" in wrong(server, pool)["device lock"]
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    metadata = {"name": "fast", "annotations": default}
    server.put({"kind": "StorageClass", "metadata": metadata}, "storageclasses")
    assert "device lock" not in wrong(server, pool)
    on_nodes = pool_of({"profiles": {"gpu": shared}}, device_locks="host:/var/lib/firepool")
    assert "device lock" not in wrong(healthy(), on_nodes)


def test_an_operator_that_does_not_act() -> None:
    server = healthy()
    server.objects["rayclusters", "default", "firepool"]["status"]["observedGeneration"] = 1
    assert "nobody acts on RayCluster firepool" in wrong(server)["Ray's operator"]


def test_without_a_cluster_one_is_made_for_a_moment() -> None:
    server = healthy()
    del server.objects["rayclusters", "default", "firepool"]
    found = wrong(server)
    assert "nobody acts on RayCluster firepool-doctor" in found["Ray's operator"]
    assert "there is no RayCluster yet" in found["pool file"]
    assert server.names("rayclusters") == []
    assert "apply RayCluster firepool-doctor" in server.calls


def test_a_cluster_that_differs_from_the_pool_file() -> None:
    def change(spec: Object) -> None:
        gpu = spec["workerGroupSpecs"][-1]
        gpu["maxReplicas"] = 2
        spec["workerGroupSpecs"].append({**gpu, "groupName": "old"})
        spec["workerGroupSpecs"].pop(1)

    server = healthy()
    put_cluster(server, change)
    text = wrong(server)["pool file"]
    assert "no group drivers" in text
    assert "group gpu has 0 to 2 pods, not 0 to 4" in text
    assert "group old is not in the pool file" in text

    def label(spec: Object) -> None:
        spec["workerGroupSpecs"][-1]["labels"] = {"firepool/profile": "other"}

    put_cluster(server, label)
    assert "group gpu is labelled 'other'" in wrong(server)["pool file"]


def test_gpus_that_no_node_has() -> None:
    server = healthy()
    pool = pool_of({"profiles": {"gpu": {"gpus": 8, "max_lanes": 1}}})
    assert "no node has 8 nvidia.com/gpu (most: 4)" in wrong(server, pool)["group gpu"]


def test_where_one_may_not_look_it_says_so() -> None:
    server = healthy()
    server.refused = {("list", "nodes")}
    notes = [check for check in examine(server) if check.verdict == "note"]
    assert [check.what for check in notes] == ["capacity"]
    assert "forbidden" in notes[0].detail


def test_a_cluster_that_its_queue_took_back_is_told_in_kueues_words() -> None:
    """Of several workloads the newest; what Kueue says several times is said once."""
    server, pool = healthy(), pool_of(queue="kueue:rl")
    server.put({"kind": "LocalQueue", "metadata": {"name": "rl"}}, "localqueues")
    owner = [{"kind": "RayCluster", "name": "firepool", "uid": "firepool"}]
    for name, made, types in (("old", "1", ["Admitted"]), ("new", "2", ["Evicted", "Preempted"])):
        conditions = [{"type": t, "status": "True", "message": "to accommodate"} for t in types]
        metadata = {"name": name, "creationTimestamp": made, "ownerReferences": owner}
        workload = {"kind": "Workload", "metadata": metadata, "status": {"conditions": conditions}}
        server.put(workload, "workloads")
    assert "admission" not in wrong(server, pool)

    put_cluster(server, lambda spec: spec.update(suspend=True))
    told = wrong(server, pool)["admission"]
    assert "suspended (its queue has not admitted it, or took it back)" in told
    assert "new: Evicted=True, Preempted=True: to accommodate. It comes back by itself" in told
    assert "old" not in told
    assert "admission" not in wrong(server)  # no queue, no admission
