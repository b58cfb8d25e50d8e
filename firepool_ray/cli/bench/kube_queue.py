"""A Kueue ClusterQueue of the benchmark's own, whose quota is changed while a pool follows it."""

from __future__ import annotations

import time
from typing import Any

from firepool_ray.errors import KubeError
from firepool_ray.kube.admission import KUEUE_CLUSTER_QUEUES, KUEUE_FLAVORS
from firepool_ray.kube.api import Kind, Kube

NAME = "firepool-bench"
#: Longer than what is to be reached, so that changes do not cover each other.
EVERY_S = 2.5


class Quotas:
    """Raises ``KubeError`` on entry where there is no Kueue or no right to make queues."""

    def __init__(self, kube: Kube, gpu_resource: str) -> None:
        self._kube = kube
        self._resource = gpu_resource
        self._queue = self._flavor = KUEUE_CLUSTER_QUEUES[0]

    @property
    def follow(self) -> str:
        return f"kueue:{NAME}"

    def __enter__(self) -> Quotas:
        self._queue = self._served(KUEUE_CLUSTER_QUEUES)
        self._flavor = self._served(KUEUE_FLAVORS)
        self._apply(self._flavor, {})
        self._change(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._kube.delete(self._queue, NAME)
        self._kube.delete(self._flavor, NAME)

    def change_for(self, seconds: float) -> list[tuple[float, float]]:
        """(when, quota) of each change; goes round through 1, 2 and 3."""
        changed: list[tuple[float, float]] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            quota = 1 + (len(changed) + 1) % 3
            changed.append((time.time(), quota))
            self._change(quota)
            time.sleep(EVERY_S)
        return changed

    def _served(self, kinds: tuple[Kind, ...]) -> Kind:
        found = next((kind for kind in kinds if self._kube.serves(kind)), None)
        if found is None:
            raise KubeError(f"this cluster has no {kinds[0].kind}: Kueue is not installed")
        return found

    def _change(self, quota: int) -> None:
        resource = {"name": self._resource, "nominalQuota": str(quota)}
        group = {
            "coveredResources": [self._resource],
            "flavors": [{"name": NAME, "resources": [resource]}],
        }
        # as complete as Kueue's webhooks would make it, for clusters that run without them
        spec = {
            "namespaceSelector": {"matchLabels": {"firepool/bench": "nobody"}},
            "queueingStrategy": "BestEffortFIFO",
            "stopPolicy": "None",
            "preemption": {
                "withinClusterQueue": "Never",
                "reclaimWithinCohort": "Never",
                "borrowWithinCohort": {"policy": "Never"},
            },
            "flavorFungibility": {
                "whenCanBorrow": "MayStopSearch",
                "whenCanPreempt": "TryNextFlavor",
            },
            "resourceGroups": [group],
        }
        self._apply(self._queue, spec)

    def _apply(self, kind: Kind, spec: dict[str, Any]) -> None:
        metadata = {"name": NAME}
        manifest = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        self._kube.apply({**manifest, "spec": spec}, kind=kind)
