"""Who finds whom: services and pods as lines of /etc/hosts, one file for the whole cluster.

A service is an address only: its ports are those of its pods, ``targetPort`` is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kube.bed.controlplane import GATEWAY

_API = "kubernetes kubernetes.default kubernetes.default.svc kubernetes.default.svc.cluster.local"


@dataclass(frozen=True, slots=True)
class Named:
    """A pod that can be reached."""

    name: str
    namespace: str
    address: str
    labels: Mapping[str, str]
    ready: bool


def hosts_text(services: Iterable[Mapping[str, Any]], pods: Iterable[Named]) -> str:
    """A service's name is the address of its first ready pod; a pod's name is its own."""
    pods = list(pods)
    lines = ["127.0.0.1 localhost", f"{GATEWAY} {_API}"]
    for service in services:
        pod = _backend(service, pods)
        if pod is not None:
            name = service["metadata"]["name"]
            space = f"{name}.{pod.namespace}"
            lines.append(f"{pod.address} {name} {space} {space}.svc {space}.svc.cluster.local")
    lines += [f"{pod.address} {pod.name}" for pod in pods]
    return "\n".join(lines) + "\n"


def _backend(service: Mapping[str, Any], pods: Iterable[Named]) -> Named | None:
    spec = service["spec"]
    wanted = spec.get("selector")
    if not wanted:
        return None
    fitting = [
        pod
        for pod in pods
        if pod.namespace == service["metadata"]["namespace"]
        and all(pod.labels.get(key) == value for key, value in wanted.items())
    ]
    ready = [pod for pod in fitting if pod.ready]
    if not ready and spec.get("publishNotReadyAddresses"):
        ready = fitting
    return ready[0] if ready else None


class HostsFile:
    """Changed in place: every pod has this very file mounted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text = ""
        self.write(hosts_text((), ()))

    def write(self, text: str) -> None:
        if text != self._text:
            self._text = text
            with open(self.path, "r+b" if self.path.exists() else "wb") as file:
                file.write(text.encode())
                file.truncate()
