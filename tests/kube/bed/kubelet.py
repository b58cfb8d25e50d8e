"""Plays the kubelets of all nodes: registers them, beats their hearts, runs their pods."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.kube.bed.containers import utc_now
from tests.kube.bed.controlplane import GATEWAY
from tests.kube.bed.devices import Gpus, publish_devices
from tests.kube.bed.names import HostsFile, hosts_text
from tests.kube.bed.nodes import NodeSpec, node_object, node_status
from tests.kube.bed.pod import Host, Pod
from tests.kube.bed.rest import STRATEGIC, ApiError, Object, Rest, follow

_HEARTBEAT_S = 5.0
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class Kubelet:
    """One for all nodes, since they are all this machine."""

    def __init__(
        self,
        rest: Rest,
        nodes: Mapping[str, NodeSpec],
        directory: Path,
        hosts: HostsFile,
        extra_env: Mapping[str, str],
    ) -> None:
        self.nodes = nodes
        self.dead: set[str] = set()
        self._rest = rest
        self._hosts = hosts
        self._host = Host(
            rest,
            directory / "pods",
            hosts.path,
            Gpus(nodes.values()),
            extra_env,
            self._names_changed,
        )
        self._pods: dict[str, Pod] = {}
        self._folders: dict[tuple[str, str], Path] = {}
        self._services: dict[str, Object] = {}
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Returns once all nodes are ready."""
        for node in self.nodes.values():
            self._rest.post("/api/v1/nodes", node_object(node))
            status = {"status": node_status(node, GATEWAY, utc_now())}
            self._rest.patch(f"/api/v1/nodes/{node.name}/status", status, STRATEGIC)
            self._rest.post(_LEASES, {"metadata": {"name": node.name}, "spec": _beat(node.name)})
        publish_devices(self._rest, self.nodes.values())
        for target, args in (
            (self._beat_all, ()),
            (follow, (self._rest, "/api/v1/pods", self._on_pod, self._stop)),
            (follow, (self._rest, "/api/v1/services", self._on_service, self._stop)),
        ):
            thread = threading.Thread(target=target, args=args, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Ends all pods at once; called before the API server ends."""
        self._stop.set()
        self._rest.close()
        for pod in self.pods():
            pod.drop()
        self._host.points.remove()

    def pods(self) -> list[Pod]:
        with self._lock:
            return list(self._pods.values())

    def pod(self, name: str, namespace: str = "default") -> Pod:
        """The one that runs here; raises ``KeyError`` if none does."""
        for pod in reversed(self.pods()):
            if (pod.name, pod.namespace) == (name, namespace):
                return pod
        raise KeyError(f"no node runs a pod {namespace}/{name}")

    def folder(self, name: str, namespace: str = "default") -> Path:
        """With the logs of the last pod of that name, which may be gone."""
        return self._folders[namespace, name]

    def kill_node(self, name: str) -> None:
        """Its pods die, its heart stops."""
        self.dead.add(name)
        for pod in self.pods():
            if pod.node == name:
                pod.drop()
        self._names_changed()

    def _on_pod(self, kind: str, found: Object) -> None:
        if kind == "LIST":
            for item in found["items"]:
                self._on_pod("MODIFIED", item)
            here = {item["metadata"]["uid"] for item in found["items"]}
            for pod in self.pods():
                if pod.uid not in here:
                    self._forget(pod.uid)
            return
        node = found.get("spec", {}).get("nodeName")
        if node not in self.nodes or node in self.dead:
            return
        meta = found["metadata"]
        if kind == "DELETED":
            self._forget(meta["uid"])
        elif kind in ("ADDED", "MODIFIED"):
            self._changed(found, meta)

    def _changed(self, found: Object, meta: Mapping[str, Any]) -> None:
        pod = self._pods.get(meta["uid"])
        if pod is None:
            if found.get("status", {}).get("phase", "Pending") != "Pending":
                return
            with self._lock:
                pod = self._pods[meta["uid"]] = Pod(self._host, found)
                self._folders[pod.namespace, pod.name] = pod.folder
        pod.manifest["metadata"] = meta
        if "deletionTimestamp" in meta:
            pod.delete(meta.get("deletionGracePeriodSeconds", 0))

    def _forget(self, uid: str) -> None:
        """The object is gone; so must the pod be, at once."""
        with self._lock:
            pod = self._pods.pop(uid, None)
        if pod is not None:
            pod.delete(0)
        self._names_changed()

    def _on_service(self, kind: str, found: Object) -> None:
        with self._lock:
            if kind == "LIST":
                self._services = {item["metadata"]["uid"]: item for item in found["items"]}
            elif kind == "DELETED":
                self._services.pop(found["metadata"]["uid"], None)
            else:
                self._services[found["metadata"]["uid"]] = found
        self._names_changed()

    def _names_changed(self) -> None:
        with self._lock:
            named = [found for pod in self._pods.values() if (found := pod.named())]
            self._hosts.write(hosts_text(self._services.values(), named))

    def _beat_all(self) -> None:
        while not self._stop.wait(_HEARTBEAT_S):
            for name in self.nodes.keys() - self.dead:
                with suppress(ApiError):
                    self._rest.patch(f"{_LEASES}/{name}", {"spec": _beat(name)})


def _beat(node: str) -> dict[str, Any]:
    at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": at}
