"""GPUs of the nodes: counted ones, and devices of dynamic resource allocation."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from tests.kube.bed.nodes import GPU, NodeSpec, quantity
from tests.kube.bed.rest import Object, Rest

#: Driver and device class of the devices that nodes with ``dra=N`` offer.
DRIVER = "gpu.bed"
_API = "/apis/resource.k8s.io/v1"


class Gpus:
    """Which counted GPU is whose. The scheduler counts; this says which ones they are."""

    def __init__(self, nodes: Iterable[NodeSpec]) -> None:
        self._free = {n.name: [f"GPU-{n.name}-{i}" for i in range(n.gpu)] for n in nodes}
        self._lock = threading.Lock()

    def take(self, node: str, count: int) -> list[str] | None:
        """None while too few are free: a pod deleted without grace holds its own a little longer
        than its object, by which the scheduler counts."""
        with self._lock:
            if len(self._free[node]) < count:
                return None
            taken, self._free[node] = self._free[node][:count], self._free[node][count:]
            return taken

    def give_back(self, node: str, gpus: Iterable[str]) -> None:
        with self._lock:
            self._free[node] = sorted({*self._free[node], *gpus})


def wanted_gpus(pod: Mapping[str, Any]) -> int:
    """How many counted GPUs a pod's containers ask for together."""
    limits = (c.get("resources", {}).get("limits", {}) for c in pod["spec"]["containers"])
    return int(sum(quantity(limit.get(GPU, 0)) for limit in limits))


def publish_devices(rest: Rest, nodes: Iterable[NodeSpec]) -> None:
    """Offers the devices of nodes with ``dra=N``, and a class to ask for them by."""
    offering = [node for node in nodes if node.dra]
    for node in offering:
        rest.post(f"{_API}/resourceslices", _slice(node))
    if offering:
        expression = f'device.driver == "{DRIVER}"'
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        rest.post(f"{_API}/deviceclasses", {"metadata": {"name": DRIVER}, "spec": spec})


def claimed_devices(rest: Rest, pod: Mapping[str, Any]) -> list[str]:
    """Devices, as ``NODE/DEVICE``, that the scheduler allocated to a pod's claims."""
    statuses = pod.get("status", {}).get("resourceClaimStatuses", ())
    generated = {status["name"]: status.get("resourceClaimName") for status in statuses}
    devices = []
    for claim in pod["spec"].get("resourceClaims", ()):
        name = claim.get("resourceClaimName") or generated.get(claim["name"])
        found: Object = rest.get(
            f"{_API}/namespaces/{pod['metadata']['namespace']}/resourceclaims/{name}"
        )
        allocation = found.get("status", {}).get("allocation", {})
        results = allocation.get("devices", {}).get("results", ())
        devices += [f"{result['pool']}/{result['device']}" for result in results]
    return devices


def _slice(node: NodeSpec) -> Object:
    device = {
        "attributes": {"productName": {"string": "Bed GPU"}},
        "capacity": {"memory": {"value": "141Gi"}},
    }
    return {
        "metadata": {"name": f"{node.name}-gpu"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{i}", **device} for i in range(node.dra)],
        },
    }
