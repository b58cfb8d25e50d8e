"""Kueue: quota and limit from ClusterQueues and cohorts, other work from Workloads.

Serves v1beta2 and v1beta1, whose differences here are the name of a cohort's field. A queue that
is stopped grants nothing new, so its limit is 0 until it is resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from firepool_ray.config.quantities import number
from firepool_ray.errors import KubeError
from firepool_ray.kube.admission import (
    KUEUE_CLUSTER_QUEUES,
    KUEUE_COHORTS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
)
from firepool_ray.kube.api import Kube, Object
from firepool_ray.kube.queues import cohorts
from firepool_ray.kube.queues.base import Own, Reading, Source, Watches, amount, gpus_of, served


class Use(NamedTuple):
    """What is kept of a Workload."""

    local_queue: str  #: "namespace/name"
    cluster_queue: str  #: "" while it waits
    gpus: float
    is_own: bool


class Kueue(Source):
    def __init__(self, kube: Kube, own: Own, resource: str, on_change: Callable[[], None]) -> None:
        self._kube = kube
        self._own = own
        self._resource = resource
        self._on_change = on_change
        self._watches: Watches | None = None

    def start(self) -> None:
        kinds = [
            served(self._kube, versions) or versions[0]
            for versions in (KUEUE_CLUSTER_QUEUES, KUEUE_LOCAL_QUEUES, KUEUE_WORKLOADS)
        ]
        if cohorts_ := served(self._kube, KUEUE_COHORTS):  # older ones have no such objects
            kinds.append(cohorts_)
        self._watches = Watches(
            self._kube,
            kinds,
            self._on_change,
            trim={"Workload": self._trim},
        )
        self._watches.start()

    def stop(self) -> None:
        if self._watches is not None:
            self._watches.stop()

    def read(self, queue: str) -> Reading:
        watches = self._watches
        if watches is None or watches.age_s() == float("inf"):
            problem = watches.problem() if watches is not None else ""
            raise KubeError(problem or "Kueue has not been read yet")
        found = watches.get("ClusterQueue", queue)
        if found is None:
            raise KubeError(f"there is no ClusterQueue {queue!r}")
        spec = found.get("spec", {})
        stopped = spec.get("stopPolicy") or "None"
        running, pending = self._others(queue, watches)
        nominal = sum(q.nominal for q in cohorts.quotas_of(found, self._resource).values())
        limit = cohorts.most(
            queue, watches.objects("ClusterQueue"), watches.objects("Cohort"), self._resource
        )
        source = f"Kueue ClusterQueue {queue}"
        return Reading(
            quota=nominal,
            limit=limit if stopped == "None" else 0.0,
            # 0 is allowed there: such a queue comes after all others
            weight=max(1e-3, number((spec.get("fairSharing") or {}).get("weight", 1))),
            running=running,
            pending=pending,
            age_s=watches.age_s(),
            source=source if stopped == "None" else f"{source}, stopped ({stopped})",
        )

    def _others(self, queue: str, watches: Watches) -> tuple[float, float]:
        locals_ = {
            f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            for item in watches.objects("LocalQueue")
            if item.get("spec", {}).get("clusterQueue") == queue
        }
        running = pending = 0.0
        for workload in watches.objects("Workload"):
            use: Use | None = workload["use"]
            if use is None or use.is_own:
                continue
            if use.cluster_queue == queue:
                running += use.gpus
            elif not use.cluster_queue and use.local_queue in locals_:
                pending += use.gpus
        return running, pending

    def _trim(self, workload: Object) -> Object:
        """Pod templates make Workloads large, and there may be thousands."""
        metadata = workload["metadata"]
        kept = {key: metadata.get(key) for key in ("name", "namespace", "resourceVersion")}
        return {"metadata": kept, "use": self._use(workload)}

    def _use(self, workload: Object) -> Use | None:
        """None for one that needs nothing: finished, or switched off."""
        spec, status = workload.get("spec", {}), workload.get("status", {})
        true = {c["type"] for c in status.get("conditions") or () if c["status"] == "True"}
        if "Finished" in true:
            return None
        local = f"{workload['metadata'].get('namespace', '')}/{spec.get('queueName', '')}"
        is_own = self._own.owns(workload)
        admission = status.get("admission")
        if admission and "QuotaReserved" in true:
            used = sum(
                amount(row.get("resourceUsage"), self._resource) or 0.0
                for row in admission.get("podSetAssignments") or ()
            )
            return Use(local, str(admission["clusterQueue"]), used, is_own)
        if spec.get("active") is False:
            return None
        asked = 0.0
        for pods in spec.get("podSets") or ():
            template = pods.get("template") or {}
            each = gpus_of(
                template.get("spec") or {}, template.get("metadata") or {}, self._resource
            )
            asked += pods.get("count", 1) * each
        return Use(local, "", asked, is_own)
