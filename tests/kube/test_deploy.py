"""Applying a pool, waiting for it, telling why it does not come, and taking it away."""

from __future__ import annotations

from typing import Any

import pytest

from firepool_ray.config import PoolConfig
from firepool_ray.errors import KubeError, PoolUnavailable
from firepool_ray.kube import deploy, draining, manifests, nodes, standing
from firepool_ray.kube.api import Object
from tests.kube.server import FakeServer, pod


def pool_of(**kubernetes: Any) -> PoolConfig:
    profile = {"gpus": 1, "max_lanes": 4}
    return PoolConfig.from_dict({"profiles": {"gpu": profile}, "kubernetes": kubernetes})


def container_of(group: Object) -> Object:
    form: Object = group["template"]["spec"]["containers"][0]
    return form


class Operated(FakeServer):
    """A server whose operator makes the head and system pods of an applied RayCluster."""

    def __init__(self, **pods: Any) -> None:
        super().__init__()
        self.reason = pods.pop("reason", "")

    def apply(self, manifest: Object, *, dry_run: bool = False, force: bool = True) -> Object:
        answer = super().apply(manifest, dry_run=dry_run, force=force)
        if manifest["kind"] == "RayCluster" and not dry_run:
            name, spec = manifest["metadata"]["name"], manifest["spec"]
            if ("pods", "default", f"{name}-head") not in self.objects:
                form = container_of(spec["headGroupSpec"])
                self.put(pod(name, f"{name}-head", "headgroup", container=form))
                ready, form = not self.reason, container_of(spec["workerGroupSpecs"][0])
                system = pod(
                    name, f"{name}-sys", "system", ready=ready, reason=self.reason, container=form
                )
                self.put(system)
        return answer

    def delete(self, kind: Any, name: str, namespace: str = "", grace_s: int | None = None) -> bool:
        gone = super().delete(kind, name, namespace, grace_s)
        if kind.kind == "RayCluster":
            for key in [key for key in self.objects if key[0] == "pods"]:
                del self.objects[key]
        return gone


def up(
    server: FakeServer, pool: PoolConfig, timeout_s: float = 0.0, *, replace: bool = False
) -> list[str]:
    said: list[str] = []
    deploy.up(
        server,  # type: ignore[arg-type]
        pool,
        timeout_s=timeout_s,
        say=said.append,
        replace=replace,
    )
    return said


def down(server: FakeServer, pool: PoolConfig, timeout_s: float = 0.0) -> list[str]:
    said: list[str] = []
    deploy.down(server, pool, timeout_s=timeout_s, say=said.append)  # type: ignore[arg-type]
    return said


def test_up_applies_all_in_order_and_says_what_is_new() -> None:
    server = Operated()
    said = up(server, pool_of())
    wanted = [m.manifest for m in manifests.documents(pool_of())]
    assert server.calls == [f"apply {m['kind']} {m['metadata']['name']}" for m in wanted]
    assert "RayCluster firepool created" in said
    assert said[-1] == "RayCluster firepool is up: 2 pods."
    again = up(server, pool_of())
    assert again == [
        "0 objects were created or changed in namespace default.",
        "RayCluster firepool is up: 2 pods.",
    ]


def test_a_running_pool_keeps_its_settings_and_that_is_said() -> None:
    server = Operated()
    up(server, pool_of())
    changed = PoolConfig.from_dict(
        {"profiles": {"gpu": {"gpus": 1, "max_lanes": 4}}, "window_s": 1, "kubernetes": {}}
    )
    assert any("keeps its old settings" in line for line in up(server, changed))
    assert not any("keeps its old settings" in line for line in up(server, changed))


def test_a_second_up_leaves_the_autoscalers_pods_alone() -> None:
    server = Operated()
    up(server, pool_of())
    key = ("rayclusters", "default", "firepool")
    server.objects[key]["spec"]["workerGroupSpecs"][-1]["replicas"] = 3
    up(server, pool_of())
    assert server.objects[key]["spec"]["workerGroupSpecs"][-1]["replicas"] == 3


CLUSTER = ("rayclusters", "default", "firepool")


def with_lane_pods(server: FakeServer, names: str) -> None:
    """As the autoscaler brings them, one after the other."""
    group = server.objects[CLUSTER]["spec"]["workerGroupSpecs"][-1]
    group["replicas"] = len(names)
    for name in names:
        made = f"2026-01-01T00:00:0{ord(name) - ord('a')}Z"
        server.put(pod("firepool", name, "gpu", made=made, container=container_of(group)))


def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "DRAIN_KNOWN_S", 0.0)
    monkeypatch.setattr(draining, "LOOK_S", 0.0)


def test_a_lower_maximum_drains_before_bounds_are_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)
    server = Operated()
    up(server, pool_of())
    with_lane_pods(server, "abcd")
    server.calls.clear()
    fewer = PoolConfig.from_dict(
        {"profiles": {"gpu": {"gpus": 1, "max_lanes": 2}}, "kubernetes": {}}
    )
    said = up(server, fewer)
    assert said[1].startswith("group gpu may keep 2 pods: c, d to go")
    begin = server.calls.index("patch RayCluster firepool")
    assert server.calls[begin : begin + 6] == [
        "patch RayCluster firepool",  # nothing new comes
        "delete Pod c",
        "delete Pod d",
        "patch RayCluster firepool",  # now the bounds
        "patch RayCluster firepool",
        "apply RayCluster firepool",
    ]
    group = server.objects[CLUSTER]["spec"]["workerGroupSpecs"][-1]
    assert (group["replicas"], group["maxReplicas"]) == (2, 2)
    assert nodes.MOST_PODS not in server.objects[CLUSTER]["metadata"].get("annotations", {})


def test_a_pod_that_came_in_between_is_drained_too(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)
    server = Operated()
    up(server, pool_of())
    with_lane_pods(server, "ab")
    delete = server.delete

    def late(kind: Any, name: str, *rest: Any, **more: Any) -> bool:
        if name == "b":
            server.put(pod("firepool", "c", "gpu", made="2026-01-02", ready=False))
        return delete(kind, name, *rest, **more)

    monkeypatch.setattr(server, "delete", late)
    fewer = PoolConfig.from_dict(
        {"profiles": {"gpu": {"gpus": 1, "max_lanes": 1}}, "kubernetes": {}}
    )
    up(server, fewer)
    assert [call for call in server.calls if call.startswith("delete")] == [
        "delete Pod b",
        "delete Pod c",
    ]
    assert server.names("pods") == ["a", "firepool-head", "firepool-sys"]


def test_pods_that_do_not_end_stop_an_up(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)
    server = Operated()
    up(server, pool_of())
    with_lane_pods(server, "ab")
    monkeypatch.setattr(server, "delete", lambda *_, **__: True)
    fewer = PoolConfig.from_dict(
        {"profiles": {"gpu": {"gpus": 1, "max_lanes": 1}}, "kubernetes": {}}
    )
    with pytest.raises(PoolUnavailable, match="pod b has not ended yet: run `firepool kube up`"):
        up(server, fewer)


def test_an_old_form_is_told_and_replaced_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)
    server = Operated()
    up(server, pool_of())
    with_lane_pods(server, "ab")
    said = up(server, pool_of(image="other:2.60.0"))
    assert any(line.startswith("still in their old form: firepool-sys, a, b.") for line in said)
    assert any("the head, pod firepool-head, still has its old form" in line for line in said)

    def replaced(kind: Any, name: str, *_: Any, **__: Any) -> bool:
        group = "system" if name == "firepool-sys" else "gpu"
        row = 0 if group == "system" else -1
        form = container_of(server.objects[CLUSTER]["spec"]["workerGroupSpecs"][row])
        del server.objects["pods", "default", name]
        server.put(pod("firepool", f"{name}-new", group, container=form))
        return True

    monkeypatch.setattr(server, "delete", replaced)
    said = up(server, pool_of(image="other:2.60.0"), timeout_s=30, replace=True)
    assert [line for line in said if "is replaced" in line] == [
        "pod firepool-sys of group system is replaced; 2 more to go",
        "pod a of group gpu is replaced; 1 more to go",
        "pod b of group gpu is replaced; 0 more to go",
    ]
    assert not any("old form: " in line for line in said)


def test_a_cluster_that_does_not_come_says_so_in_the_schedulers_words() -> None:
    words = "0/2 nodes are available: 2 Insufficient cpu."
    server = Operated(reason=words)
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e"},
            "involvedObject": {"name": "firepool-sys"},
            "reason": "FailedScheduling",
            "message": "preemption is not helpful",
        }
    )
    with pytest.raises(PoolUnavailable) as caught:
        up(server, pool_of())
    text = str(caught.value)
    assert f"the system pod: {words}" in text
    assert "firepool-sys: FailedScheduling: preemption is not helpful" in text
    assert "the head" not in text


def test_a_suspended_cluster_waits_for_its_queue() -> None:
    server = FakeServer()
    uid = {"uid": "firepool"}
    server.put(
        {
            "kind": "Workload",
            "metadata": {"name": "w", "ownerReferences": [uid]},
            "status": {
                "conditions": [
                    {"type": "QuotaReserved", "status": "False", "message": "insufficient quota"}
                ]
            },
        }
    )
    with pytest.raises(PoolUnavailable) as caught:
        up(server, pool_of(queue="kueue:team"))
    assert "is suspended" in str(caught.value)
    assert "w: QuotaReserved=False: insufficient quota" in str(caught.value)


def test_a_cluster_without_the_operators_kinds_is_told_what_to_install() -> None:
    server = FakeServer()
    server.unserved = {"rayclusters"}
    with pytest.raises(KubeError, match="does not know ray.io/v1 RayCluster: install Ray's op"):
        up(server, pool_of())
    server.unserved = {"podmonitors"}
    with pytest.raises(KubeError, match=r"install the Prometheus operator, or set .*monitors"):
        up(server, pool_of(monitors=True))


def test_a_missing_right_names_the_object_and_a_way_out() -> None:
    server = FakeServer()
    server.refused = {("patch", "roles")}
    with pytest.raises(KubeError, match=r"Role firepool-controller: .*forbidden.*kube render"):
        up(server, pool_of())


def test_down_takes_the_cluster_first_and_leaves_nothing() -> None:
    server = Operated()
    pool = pool_of(redis="managed")
    up(server, pool)
    server.put({"kind": "ConfigMap", "metadata": {"name": "of-others"}})
    server.calls.clear()
    said = down(server, pool)
    assert server.calls[0] == "delete RayCluster firepool"
    assert server.calls.index("delete Deployment firepool-redis") > 0
    assert {key[2] for key in server.objects} == {"of-others"}
    assert said[-1] == "Pool firepool has gone from namespace default."
    assert down(server, pool) == ["Nothing of pool firepool is in namespace default."]


def test_down_finds_what_an_older_pool_file_had() -> None:
    server = Operated()
    up(server, pool_of(redis="managed", monitors=True))
    job = manifests.rayjob_document(pool_of(), "true", "train").manifest
    server.put(job)
    down(server, pool_of())
    assert server.objects == {}


def test_down_leaves_pools_of_the_same_name_elsewhere_alone() -> None:
    server = Operated()
    queues = {"q": {"cluster_queue": "kueue:c"}}
    pool = PoolConfig.from_dict(
        {"profiles": {"g": {"max_lanes": 1}}, "queues": queues, "kubernetes": {}}
    )
    up(server, pool)
    for document in manifests.documents(pool, "elsewhere"):
        server.put(document.manifest)
    down(server, pool)
    assert server.names("clusterroles") == ["elsewhere-firepool-controller"]
    assert server.names("rayclusters") == ["firepool"]


def test_down_says_what_does_not_end() -> None:
    server = FakeServer()
    server.put(pod("firepool", "firepool-head", "headgroup", leaving=True))
    server.refused = {("delete", "pods")}
    for document in manifests.documents(pool_of()):
        server.put(document.manifest)
    with pytest.raises(PoolUnavailable, match="still there: pod firepool-head"):
        down(server, pool_of())
    assert server.names("configmaps") == ["firepool-pool"]


def test_down_without_the_right_to_look_is_an_error_only_where_it_matters() -> None:
    server = Operated()
    up(server, pool_of())
    server.refused = {("list", "clusterroles"), ("list", "clusterrolebindings")}
    down(server, pool_of())
    assert server.objects == {}
    server.refused = {("list", "roles")}
    with pytest.raises(KubeError, match="list roles: forbidden"):
        down(server, pool_of())


def test_status_counts_groups_and_names_pods() -> None:
    server = Operated()
    up(server, pool_of())
    words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    server.put(pod("firepool", "g-1", "gpu"))
    server.put(pod("firepool", "g-2", "gpu", leaving=True))
    server.put(pod("firepool", "g-3", "gpu", ready=False, reason=words))
    said = standing.status(server, pool_of())  # type: ignore[arg-type]
    assert (said["state"], said["missing"]) == ("up", {})
    row = next(row for row in said["groups"] if row["group"] == "gpu")
    assert (row["ready"], row["leaving"], row["max"]) == (1, 1, 4)
    assert row["trouble"] == words
    names = [row["name"] for row in said["pods"]]
    assert names == ["firepool-head", "firepool-sys", "g-1", "g-2", "g-3"]


def test_status_of_nothing() -> None:
    said = standing.status(FakeServer(), pool_of())  # type: ignore[arg-type]
    assert said["missing"] == {"RayCluster firepool": "there is no RayCluster 'firepool'"}
    assert (said["groups"], said["pods"]) == ([], [])
